"""Random programs of tensors, views, writes and sizes, as source text; one for each seed.

A statement is kept if the program still runs at every size of ``SIZES``, with results of one rank and dtype.
"""

from __future__ import annotations

import linecache
import math
import random
import re
import textwrap
import warnings
from collections.abc import Callable
from typing import Any

import torch

__all__ = ["SIZES", "TensorProgram", "arguments", "compiled"]

SIZES = [(5, 4), (3, 7), (1, 4), (6, 1), (8, 8)]
LARGEST = {"elements": 3000, "dimensions": 5, "value": 1e4, "integer": 10**6, "size": 100}
NUMBERS = ["1", "2", "0.5", "-1", "3", "0", "-1.5", "True"]


def _alternatives(text: str) -> list[str]:
    return [part.strip() for part in re.split(r" \|\s", text)]


# {t} is a tensor with dimensions and {d} one of them, {a} any tensor, {f} one of floats, {i} one of integers, {e} a
# dimension of {f}, {n} a size, {c} a number. A letter stands for one thing in a statement, and {b} for another tensor.
VIEWS = _alternatives("""
    {t}.transpose({d}, -1) | {t}[0] | {t}[-1] | {t}[..., 0] | {t}[..., -1] | {t}[1:] | {t}[..., 1:] | {t}[..., ::2] |
    {t}[:-1] | {t}[{n}:] | {t}[:{n}] | {t}[-{n}:] | {t}[..., :{n}] | {t}[::2] | {t}.reshape(-1) | {t}.flatten() |
    {t}.reshape({t}.shape[0], -1) | {t}.reshape(-1, {t}.shape[-1]) | {t}.view(-1) | {t}.unsqueeze({d}) |
    {t}.squeeze({d}) | {t}.expand(2, *{t}.shape) | {t}.unsqueeze(-1).expand(*{t}.shape, {n}) | {t}.diagonal() |
    {t}.chunk(2, {d})[0] | {t}.chunk(2, {d})[-1] | {t}.split(2, {d})[0] | {t}.unbind({d})[-1] | {t}.movedim(0, -1) |
    {t}.narrow({d}, 0, {n}) | {t}.narrow({d}, 1, {n} - 1) | {t}.mT | {t}.select({d}, -1) | {t}.contiguous() |
    {t}.unfold({d}, 2, 1) | {t}.swapaxes(0, {d}) | {t}[None] | {t}[:, None] | {t}.tensor_split(2, {d})[1] |
    {t}.unflatten({d}, (-1, 1)) | {t}.permute(*range({t}.dim())[::-1]) | {t}.detach() | {t}.expand_as({b})
""")
VALUES = _alternatives("""
    {a} + {b} | {a} - {b} | {a} * {b} | {a} + {c} | {c} - {a} | {a} * {c} | {a} / {c} | {a} // 2 | {a} // -2 |
    {a} % 3 | {a} % -1.5 | {a} > {c} | {a} == {b} | {a} <= {b} | torch.where({a} > 0, {a}, {b}) | {i}.clamp(0, 2) |
    torch.where({a} > {b}, {c}, {b}) | {f}.clamp(min=0) | torch.maximum({a}, {b}) | {t}.sum({d}) | {t}.sum() |
    {t}.sum({d}, keepdim=True) | {f}.mean({e}) | {t}.amax({d}) | {t}.argmax({d}) | {t}.max({d})[0] | {f}.std({e}) |
    {f}.var({e}, correction=0) | {t}.cumsum({d}) | {t}.sort({d})[0] | {t}.topk(1, {d})[0] | {t}.any({d}) |
    {t}.prod({d}) | {f}.softmax({e}) | {f}.log_softmax({e}) | {f}.logsumexp({e}) | {f}.norm(dim={e}) |
    {t}.flip({d}) | {t}.roll(1, {d}) | {t}.roll({n}, {d}) | {t}.int() | {t}.double() | {t}.bool() | {t}.long() |
    {t}.to({b}.dtype) | {i}.to(torch.uint8) | {i}.to(torch.int32) // 2 | torch.cat([{t}, {b}], {d}) |
    torch.stack([{t}, {t}], {d}) | {t}.repeat_interleave(2, {d}) | {t}.tile(({n},)) | torch.arange({n}) |
    torch.arange(0., {n}, 0.5) | torch.zeros({n}, 2) | torch.ones_like({t}) | torch.full(({n},), {c}) |
    torch.eye({n}) | torch.linspace(0, 1, {n}) | {t}.new_zeros({n}) | torch.tril({t}) | torch.triu({t}, 1) |
    {t} @ {b} | {f} @ {f}.mT | torch.einsum('...i,...j->...ij', {f}, {f}) | torch.nn.functional.pad({t}, (1, {n})) |
    torch.nn.functional.pad({t}, (0, 1, -1, 0)) | torch.nn.functional.one_hot({i}.clamp(0, 4), 5) |
    {t}.index_select({d}, torch.tensor([0, 0])) | {t}[torch.tensor([0, -1])] | {t}[..., torch.tensor([0, -1])] |
    {f}.tanh() | {f}.exp().clamp(max=10) | {f}.abs().sqrt() | {t}.masked_fill({t} > 0, 2) | {f} ** 3 |
    torch.nn.functional.layer_norm({f}, {f}.shape[-1:]) | torch.nn.functional.avg_pool1d({f}.reshape(1, 1, -1), 2) |
    torch.nn.functional.interpolate({f}.reshape(1, 1, -1), size={n}) | {i} & 3 | {i} << 1 | ~{i} | {a}.abs() |
    torch.nn.functional.interpolate({f}.reshape(1, 1, -1), scale_factor=1.5, mode='linear') | {t}.diff(dim={d}) |
    torch.nn.functional.conv1d({f}.reshape(1, 1, -1), torch.ones(2, 1, 3), padding=1) | {f}.round() | {a}.sign() |
    torch.cummax({t}, {d})[0] | {f}.median({e})[0] | torch.outer({t}.reshape(-1), {t}.reshape(-1)) | {a} * {n} |
    torch.meshgrid({t}.reshape(-1), {b}.reshape(-1), indexing='ij')[1] | {a} + {n} / 2 | torch.tensor({n}) |
    torch.div({a}, 3, rounding_mode='trunc') | {t}[{t} > 0] | {t}.nonzero() | torch.masked_select({t}, {t} > 0) |
    torch.bucketize({f}, torch.tensor([-1., 0., 1.])) | torch.lerp({f}, {f} * 2, 0.3) | {f}.argsort({e}) |
    {a} + torch.tensor(0.5, dtype=torch.float64) | {a} * torch.tensor([2]) | {a}.to(torch.int8) - 1.5 |
    torch.nn.functional.scaled_dot_product_attention({f}, {f}, {f}, is_causal=True) | torch.vander({f}.reshape(-1))
""")
WRITES = _alternatives("""
    {t}.add_({c}) | {t}.mul_({b}) | {t}[0] = {c} | {t}[-1] += {c} | {t}[..., 0] = {c} | {t}[1:] += {c} |
    {t}[..., 1:] *= {c} | {t}[{t} > 0] = {c} | {t}.copy_({b}) | {t}.clamp_(min=0) | {t}.masked_fill_({t} > 0, 1) |
    {t}[torch.tensor([0, -1])] = {c} | {t}[:{n}] = {c} | {t}[:2] = {c} | {t}[-2:] = {c} | {t}[{n}:] = {b} |
    {t}[..., {n} - 1] = {c} | {t}.index_fill_({d}, torch.tensor([0]), 1) | {t}.zero_() | {t}.fill_({c}) |
    {t}.narrow({d}, 0, 1).add_({c}) | {t}.transpose(0, {d})[0] = {c} | {t}.view(-1)[::2] = {c} | {t} += {b} |
    {t}.reshape(-1)[0] = {c} | {t}.unsqueeze(0).add_(1) | {t}.t_() | {t}.diagonal().fill_({c}) |
    {t}.index_put_((torch.tensor([0, 0]),), {t}[0], accumulate=True) | {t}.index_add_(0, torch.tensor([0]), {t}[:1]) |
    {t}[::2, 1:] = {c} | {t}.chunk(2, {d})[0].mul_(2) | {t}[:, torch.tensor([0])] = {c} | {t}.unbind(0)[0].add_(2)
""")
SIZE_EXPRESSIONS = _alternatives("""
    {n} // 2 | {n} + {m} | {n} - 1 | {n} * 2 | {n} % 3 | max({n}, {m}) | min({n}, {m}) | int({n} * 0.5) |
    math.ceil({n} / 2) | ({n} + 1) // 2 | -{n} // 2 | abs({n} - {m}) | round({n} * 0.7) | {n} // {m} | {n} * {m} |
    int(math.sqrt({n})) | {n} if {m} > 3 else {n} - 1 | int({n} > 3) | len({t}) | {a}.numel() | {a}.dim()
""")
CONDITIONS = _alternatives("{n} > {m} | {n} % 2 == 0 | {n} == {m} | {n} >= 4 | {n} != 1 | {n} * 2 < {m}")


def arguments(rows: int, columns: int) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Return floats and integers of these sizes, and floats of as many rows as those have columns."""
    generator = torch.Generator().manual_seed(rows * 31 + columns)
    x = torch.randn(rows, columns, generator=generator)
    k = torch.randint(-3, 6, (rows, columns), generator=generator)
    return x, k, torch.randn(columns, 3, generator=generator)


def compiled(source: str, file: str) -> Callable[..., Any]:
    """Return the ``forward`` of a program; messages show its lines as those of ``file``."""
    linecache.cache[file] = (len(source), None, source.splitlines(True), file)
    names: dict[str, Any] = {"torch": torch, "math": math}
    exec(compile(source, file, "exec"), names)
    function: Callable[..., Any] = names["forward"]
    return function


class TensorProgram:
    """A function ``forward(x, k, w)`` of so many statements, that returns some of its values.

    Attributes:
        source: Its text.
    """

    def __init__(self, seed: int, statements: int) -> None:
        self._random = random.Random(seed)
        self._tensors, self._sizes = ["x", "k", "w"], ["2", "1", "3"]
        self._lines: list[str] = []
        self._states: list[dict[str, Any]] = [
            {"torch": torch, "math": math, **dict(zip("xkw", arguments(*size), strict=True))} for size in SIZES
        ]
        # What a program writes to is its own.
        for name in "xkw":
            assert self._keep(f"{name} = {name} * 1", name)
        kept = 0
        for count in range(40 * statements):
            kept += self._add(f"v{count}")
            if kept == statements:
                break
        self.source = "def forward(x, k, w):\n" + textwrap.indent("\n".join([*self._lines, self._result()]), "    ")

    def _result(self) -> str:
        chosen = dict.fromkeys([*self._tensors[-3:], self._random.choice(self._tensors)])
        return f"return ({''.join(f'{name}.clone(), ' for name in chosen)})"

    def _tensor(self, accepts: Callable[[torch.Tensor], bool]) -> str:
        pool = [name for name in self._tensors if accepts(self._states[0][name])] or ["x"]
        return self._random.choice(pool[-6:] if self._random.random() < 0.7 else pool)

    def _size(self) -> str:
        tensor = self._tensor(lambda value: value.dim() > 0)
        return self._random.choice([*self._sizes, f"{tensor}.shape[{self._axis(tensor)}]", f"{tensor}.size(0)"])

    def _axis(self, tensor: str) -> int:
        rank = self._states[0][tensor].dim()
        return self._random.randrange(-rank, rank) if rank else 0

    def _filled(self, table: list[str]) -> str:
        tensor = self._tensor(lambda value: value.dim() > 0)
        floats = self._tensor(lambda value: value.dim() > 0 and value.is_floating_point())
        return self._random.choice(table).format(
            t=tensor,
            d=self._axis(tensor),
            f=floats,
            e=self._axis(floats),
            i=self._tensor(lambda value: value.dtype == torch.int64),
            a=self._tensor(lambda value: True),
            b=self._tensor(lambda value: True),
            n=self._size(),
            m=self._size(),
            c=self._random.choice(NUMBERS),
        )

    def _add(self, name: str) -> bool:
        """Try one more statement; tell whether it was kept."""
        kind = self._random.random()
        if kind < 0.2:
            return self._keep(f"{name} = {self._filled(VIEWS)}", name)
        if kind < 0.6:
            return self._keep(f"{name} = {self._filled(VALUES)}", name)
        if kind < 0.75:
            return self._keep(self._filled(WRITES), None)
        if kind < 0.9:
            return self._keep(f"{name} = {self._filled(SIZE_EXPRESSIONS)}", name)
        ways = [self._filled(VALUES) for _ in range(2)]
        text = f"if {self._filled(CONDITIONS)}:\n    {name} = {ways[0]}\nelse:\n    {name} = {ways[1]}"
        return self._keep(text, name)

    def _keep(self, text: str, name: str | None) -> bool:
        """Run a statement at every size, and keep it if all of them take it."""
        states = [_copied(state) for state in self._states]
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                for state in states:
                    exec(text, state)
        except Exception:
            return False
        values = [value for state in states for value in state.values() if isinstance(value, torch.Tensor)]
        if not all(map(_is_moderate, values)) or (name and not _is_one_kind([state[name] for state in states])):
            return False
        if name and name not in self._tensors:
            (self._tensors if isinstance(states[0][name], torch.Tensor) else self._sizes).append(name)
        self._lines.extend(text.splitlines())
        self._states = states
        return True


def _is_moderate(value: torch.Tensor) -> bool:
    """Tell whether a tensor is small, and its numbers are finite and far from what their type holds."""
    if value.numel() > LARGEST["elements"] or value.dim() > LARGEST["dimensions"]:
        return False
    numbers = value.double().abs()
    most = LARGEST["value"] if value.is_floating_point() else LARGEST["integer"]
    return bool(numbers.isfinite().all()) and not bool((numbers > most).any())


def _is_one_kind(values: list[Any]) -> bool:
    """Tell whether a name stands for tensors of one rank and dtype, or for sizes."""
    if isinstance(values[0], torch.Tensor):
        return len({(value.dim(), value.dtype) for value in values}) == 1
    return all(abs(value) <= LARGEST["size"] for value in values)


def _copied(state: dict[str, Any]) -> dict[str, Any]:
    """Return the same values in other memory, which they share as before."""
    storages: dict[int, torch.UntypedStorage] = {}
    copied = {name: value for name, value in state.items() if name != "__builtins__"}
    for name, value in state.items():
        if isinstance(value, torch.Tensor):
            storage = value.untyped_storage()
            mine = storages.setdefault(storage.data_ptr() or id(value), storage.clone())
            empty = torch.empty(0, dtype=value.dtype)
            copied[name] = empty.set_(mine, value.storage_offset(), value.shape, value.stride())
    return copied
