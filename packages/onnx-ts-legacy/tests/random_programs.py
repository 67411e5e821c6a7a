"""Random programs of tensors, views, writes, numbers, containers and control flow, as source text; one for each seed.

A statement is kept if the program still runs at the example's size, so that nearly all programs are valid.
"""

from __future__ import annotations

import contextlib
import linecache
import random
import re
import warnings
from typing import Any

import torch

__all__ = ["RandomProgram", "arguments", "compiled"]

_HEADER = """\
import math
from typing import Dict, List, Optional, Tuple
import torch
from torch import Tensor

"""


def _alternatives(text: str) -> list[str]:
    return [part.strip() for part in re.split(r" \|\s", text)]


# What fills a hole of a statement: {T} is a tensor, {V} a view, {t} a tensor variable, {i} an integer and so on.
_EXPRESSIONS = {
    "T": _alternatives("""
        {t} | {t} | {t} | {t} | {t} | {t} | {t} | {t} | {t} + {T} | {t} - {T} | {t} * {c} | {t} * {t} | {T} / 4 |
        -{t} | {t} * {i} | {c} - {t} | {t} + {f} | {t} // {n} | {t} % {n} | {t} / {n} | {t} > {c} | {t} <= {t} |
        {t} == {n} | {t} != {t} | ~({t} > {c}) | torch.where({t} > {c}, {t}, {t}) | torch.where({t} < {t}, {t}, {c}) |
        {t}.masked_fill({t} > {c}, {n}) | {t}.sum({d}) | {t}.mean({d}) | {t}.amax({d}) | {t}.max({d})[0] |
        {t}.argmin({d}) | {t}.cumsum({d}) | {t}.sum() | {t}.max() | {t}.any({d}) | {t}.all() | {t}.prod({d}) |
        {t}.sum({d}, keepdim=True) | torch.cat([{t}, {T}], {d}) | torch.stack([{t}, {t}], {d}) | {t} @ {t} |
        {t}.relu() | {t}.softmax({d}) | {t}.abs() | {t}.round() | {t}.floor() | {t}.clamp({n}, {p}) |
        {t}.minimum({T}) | {t}.sign() | {t}.to(torch.int64) | {t}.float() | {t}.to(torch.int32) | {t}.bool() |
        {t}.double() | {t}.type_as({t}) | torch.zeros({t}.size({d}), {p}) | torch.arange({s}) |
        torch.full(({p}, {s}), {c}) | torch.ones_like({t}) | {t}.new_zeros({s}, {p}) | torch.tensor([{i}, {i}]) |
        torch.tensor({f}) | {t}.flip({d}) | {t}.roll(1, {d}) | {t}[{t} > {c}] |
        {t}.index_select({d}, torch.tensor([0, -1 + {p}])) | {t}[torch.tensor([0, -1])] | {t}.tril() |
        {t}.repeat({p}, 1) | torch.nonzero({t} > {c}) | {t}.clone() | {t}.contiguous() | {t}.size({d}) * {t} |
        torch.as_tensor({i}) + {t} | {t}.logical_not() | {t}.sort({d})[0] | {t}.pow(2) | {V} | {V} + {c} | {l}[{k}] |
        {o} if {o} is not None else {t} | halved({t}, {i}) | {d_}['a'] | torch.stack({l}) | torch.cat({l}) |
        torch.tensor({m}) | {t} if {b} else {t} | {t}.div({n}, rounding_mode='floor')
    """),
    "V": _alternatives("""
        {t}.t() | {t}.transpose(0, {d}) | {t}[{k}] | {t}[:, {k}] | {t}[..., {k}] | {t}.select({d}, {k}) | {t}[{p}:] |
        {t}[:, :{p}] | {t}[:-1] | {t}[::2] | {t}[..., 1:] | {t}[{i}:] | {t}[:{i}] | {t}[{k}:{i}] |
        {t}.narrow({d}, 0, {p}) | {t}.narrow({d}, {t}.size({d}) - 1, 1) | {t}.view(-1) | {t}.flatten() |
        {t}.view({t}.size({d}), -1) | {t}.reshape(-1, {t}.size({d})) | {t}.unsqueeze({d}) | {t}[:, None] |
        {t}.unbind({d})[{k}] | {t}.chunk(2, {d})[0] | {t}.split(1, {d})[{k}] | {t}.diagonal() | {t}[None] |
        {t}.unsqueeze({d}).squeeze({d}) | {t}.view_as({t}) | {t}.permute(1, 0) | {t}.mT | {t}.detach() |
        {t}[{k}, {p}:] | {t}[1:, {k}] | {t}[1:][:, {k}] | {t}.t()[{k}] | {t}.unflatten(0, (1, -1)) |
        {t}.split([1, {t}.size({d}) - 1], {d})[1] | {t}.swapaxes(0, -1) | {t}.movedim(0, -1) | {t}[-{p}:]
    """),
    "i": _alternatives("""
        {j} | {j} | {j} | {j} | {n} | {s} | {s} | len({t}) | {t}.shape[{d}] | {t}.numel() | {t}.dim() | {i} + {n} |
        {i} - {i} | {i} * {p} | {i} // {n} | {i} % {n} | -{i} // {p} | min({i}, {i}) | max({i}, {n}) | abs({i}) |
        int({f}) | int({b}) | int({t}.sum()) | int({t}.argmax()) | len({l}) | {m}[{k}] | sum({m}) |
        int({t}.max().item()) | len({m}) | {i} if {b} else {i} | int({i} / {p}) | round({f}) | {i} & 3 | max({m}) |
        int({i} * 0.5) | {i} ** 2 | math.floor({f}) | math.ceil({f}) | ({i} + 1) // 2 | divmod({i}, {p})[0]
    """),
    "f": _alternatives("""
        {g} | {g} | {g} | {g} | {c} | float({i}) | {i} / {p} | float({t}.sum()) | {f} + {c} | {f} * {i} | {f} // {p} |
        {f} % {p} | min({f}, {c}) | max({f}, {f}) | abs({f}) | {t}.float().mean().item() | -{f} |
        math.sqrt(abs({f})) | {f} if {b} else {c} | float({b}) | {i} * {c} | {f} / {p} | math.exp(-abs({f})) |
        float(math.floor({f}))
    """),
    "b": _alternatives("""
        {h} | {h} | {i} > {i} | {i} == {n} | {f} < {f} | {f} >= {c} | bool(({t} > {c}).any()) |
        bool({t}.sum() > {c}) | not {b} | {b} and {b} | {b} or {b} | {i} % 2 == 0 | {o} is None | {o} is not None |
        len({l}) > {p} | {i} in {m} | bool({i}) | {t}.dim() == 2 | 'b' in {d_} | {i} < {i} <= {i} |
        {t}.size(0) > {p} | True | bool(({t} == {t}).all()) | {i} != {i} | {t}.is_floating_point() | {b} == {b}
    """),
    "c": _alternatives("0.5 | -1.5 | 2.0 | 0.25 | -0.75 | 3 | 1 | -2"),
    "n": _alternatives("2 | 3 | -2 | -3 | 1 | -1 | 4"),
    "p": _alternatives("1 | 2 | 3"),
    "k": _alternatives("0 | -1 | 1 | 0"),
    "d": _alternatives("0 | 1 | -1 | 0"),
    "s": _alternatives("x0.size(0) | x0.size(1) | x0.shape[0]"),
}

# A statement; {new T} is a new variable or an old one.
_STATEMENTS = _alternatives("""
    {=t} = {T} | {=t} = {T} | {=t} = {T} | {=t} = {T} | {=t} = {T} | {=t} = {T} | {=t} = {V} | {=t} = {V} |
    {=t} = {V} | {=t} = {V} | {=t} = {V} | {=t} = {V} | {=t} = {V} | {=t} = {V} | {=j} = {i} | {=j} = {i} |
    {=j} = {i} | {=g} = {f} | {=g} = {f} | {=h} = {b} | {j} += {i} | {g} *= {c} | {j} -= {n} | {t}.add_({c}) |
    {t}.mul_({f}) | {t}.sub_({T} * 1) | {t} += {T} | {t} *= {c} | {t}.div_({p}) | {t} -= {i} | {t}.fill_({c}) |
    {t}.zero_() | {t}.clamp_({n}, {p}) | {t}.copy_({T} * 1) | {t}.neg_() | {t}.relu_() | {V}.add_({c}) |
    {V}.fill_({c}) | {V}.copy_({T} * 1) | {V}.mul_({T} + 1) | {V}.zero_() | {V}.clamp_(min={n}) | {t}[{k}] = {T} * 1 |
    {t}[{k}] = {c} | {t}[:, {k}] = {T} + 0 | {t}[{p}:] += {T} * 2 | {t}[:{i}] = {c} | {t}[{k}] += {c} |
    {t}[..., {k}] -= {T} * 2 | {t}[::2] = {n} | {t}[{k}][{k}] = {i} | {t}[1:, {k}] *= {c} | {t}[{i}] = {c} |
    {t}[:-1] = {T} * 2 | {t}[{i}:] -= {f} | {t}[{t} > {c}] = {n} | {t}[{t} > {c}] *= {c} |
    {t}[torch.tensor([0, -1])] = {T} * 3 | {t}[torch.tensor([0, 1]), torch.tensor([1, 0])] = {c} |
    {t}.index_put_((torch.tensor([0, 0]),), {T} * 1, accumulate=True) | {t}.masked_fill_({t} > {c}, {n}) |
    {t}.index_add_({d}, torch.tensor([0, 0]), {T} * 1) | {t}.index_fill_({d}, torch.tensor([-1]), {c}) |
    {t}.scatter_(0, torch.tensor([0]), {c}) | {t}[:, torch.tensor([0, -1])] += {c} | {t}.t_() | {t}.unsqueeze_({d}) |
    {t}.squeeze_({d}) | {t}[{t}[:, 0] > {c}] = {c} | {t}.masked_scatter_({t} > {c}, {t} * 2) | {=l} = [{T}, {T}] |
    {=l} = [{V}, {t}] | {l}.append({T}) | {l}.append({V}) | {l}[{k}] = {T} | {l}[{k}].add_({c}) | {l}.insert(0, {T}) |
    {=t} = {l}.pop() | {=l} = [r * 2 for r in {l}] | {=l} = {l} + [{T}] | {l}.reverse() |
    {=l} = list({t}.unbind({d})) | {=l} = list({t}.split(2, {d})) | {l}.extend({l}[:1]) | {=l} = {l}[1:] |
    {=m} = [{i}, {i}] | {m}.append({i}) | {m}[{k}] = {i} | {m}[{k}] += {n} | {=m} = [r + 1 for r in {m}] |
    {m}.sort() | {=m} = list({t}.shape) | {=m} = [r for r in range({s})] | {=j} = {m}.pop() | {=m} = {m}[::-1] |
    {=d_} = {'a': {T}, 'b': {t}} | {d_}['a'] = {T} | {d_}['c'] = {T} | {d_}['b'].add_({c}) | {=t} = {d_}.pop('b') |
    {=o} = {T} | {=o} = torch.jit.annotate(Optional[Tensor], None) | {=t}, {=t} = {t}, {T} | {=t}, {=j} = {T}, {i} |
    {=t} = halved({T}, {i}) | {=t}, {=j} = found({t}, {i}) | bump({t}, {i}) | {=t}, {=j} = {t}.max(), {i}
""")

# The first line of a block, and what its body may end with.
_BLOCKS = _alternatives("""
    if {b}: | if {b}: | if {b}: | if {b}: | for {=j} in range({s}): | for {=j} in range({p}): |
    for {=j} in range(min({i}, 4)): | for {=j} in range({s}): -> break | for {=j} in range(1, {s}): -> continue |
    for {=t} in {l}[:3]: | for {=j}, {=t} in enumerate({l}[:3]): | for {=j} in {m}[:3]: | while {w} < min({i}, 4): |
    while {w} < {s}: -> break | for {=j} in range({s}, 0, -1): | for {=t} in {t}: | for {=k_}, {=t} in {d_}.items(): |
    if {o} is not None: | for {=t}, {=j} in zip({l}[:3], {m}):
""")

_HELPERS = """\
def halved(a: Tensor, k: int) -> Tensor:
    if k > 3:
        return a * 0.5
    for i in range(k):
        if bool(a.sum() > i):
            return a + i
    return a


def found(a: Tensor, k: int) -> Tuple[Tensor, int]:
    i = 0
    while i < a.size(0):
        if bool(a[i].sum() > k):
            break
        i += 1
    return a[:i], i


def bump(a: Tensor, k: int) -> None:
    if k % 2 == 0:
        a.add_(1)
    elif a.dim() > 1:
        a[0].mul_(2)


"""

_HOLE = re.compile(r"\{(=?)(\w+)\}")
# What a program returns.
_KINDS = {"t": torch.Tensor, "j": int, "g": float, "h": bool}


def arguments(rows: int, columns: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the arguments that the programs take, in a size of choice."""
    generator = torch.Generator().manual_seed(7 * rows + columns)
    x = torch.randn(rows, columns, generator=generator)
    return x, torch.randint(-3, 4, (columns,), generator=generator)


def compiled(source: str, name: str) -> dict[str, Any]:
    """Run the source of a program; return what it defines."""
    file = f"/programs/{name}.py"
    linecache.cache[file] = len(source), None, source.splitlines(True), file
    scope: dict[str, Any] = {"__name__": name}
    exec(compile(source, file, "exec"), scope)
    return scope


class RandomProgram:
    """A program ``forward(x0, z0)``; ``source`` is its text.

    Args:
        seed: Decides everything.
        statements: How many statements are tried at the outermost level.
    """

    def __init__(self, seed: int, statements: int = 12) -> None:
        self._random, self._name = random.Random(seed), f"program{seed}"
        self._lines = ["    t1 = x0 * 1.5", "    t2 = z0 + 1", "    j1 = x0.size(0)", "    g1 = 0.5", "    h1 = j1 > 2"]
        self._values: dict[str, Any] = self._run(self._lines)
        self._scopes: list[list[str]] = [["t1", "t2", "j1", "g1", "h1"]]
        self._count = 2
        self._statements(statements, 1)
        self.source = self._text([*self._lines, self._result()])

    # ---- running

    def _text(self, lines: list[str]) -> str:
        return "\n".join([_HEADER, _HELPERS + "def forward(x0: Tensor, z0: Tensor):", *lines, ""])

    def _run(self, lines: list[str]) -> dict[str, Any]:
        scope = compiled(self._text([*lines, "    return dict(locals())"]), self._name)
        with warnings.catch_warnings(), torch.no_grad():
            warnings.simplefilter("ignore")
            values: dict[str, Any] = scope["forward"](*arguments(4, 3))
        return values

    def _fits(self, values: dict[str, Any]) -> bool:
        """Tell whether values are small and variables keep their kind, dtype and rank."""
        for name, value in values.items():
            before = self._values.get(name)
            if isinstance(value, torch.Tensor):
                if value.numel() > 200 or (value.numel() and not bool((value.double().abs() < 1e4).all())):
                    return False
                if isinstance(before, torch.Tensor) and (before.dtype, before.dim()) != (value.dtype, value.dim()):
                    return self._random.random() < 0.1
            elif type(value) in (int, float) and not abs(value) < 1e4:
                return False
        return True

    # ---- generating

    def _statements(self, count: int, depth: int) -> None:
        for _ in range(count):
            if depth < 4 and self._random.random() < 0.2:
                self._block(depth)
            else:
                self._try(depth, self._random.choice(_STATEMENTS))

    def _block(self, depth: int) -> None:
        head, _, end = self._random.choice(_BLOCKS).partition(" -> ")
        if "{w}" in head:
            self._count += 1
            head = head.replace("{w}", f"w{self._count}")
            self._lines.append(f"{'    ' * depth}w{self._count} = 0")
            first = f"w{self._count} += 1"
        else:
            first = "pass"
        start = len(self._lines)
        self._scopes.append([])
        try:
            if self._try(depth, head, f"{'    ' * (depth + 1)}{first}"):
                self._statements(self._random.randint(1, 4), depth + 1)
                if end and self._try(depth + 1, "if {b}:", f"{'    ' * (depth + 2)}{end}"):
                    self._statements(self._random.randint(0, 2), depth + 1)
                if first == "pass" and len(self._lines) > start + 2:
                    del self._lines[start + 1]
        finally:
            self._scopes.pop()
        if head.startswith("if") and len(self._lines) > start + 1 and self._random.random() < 0.5:
            self._scopes.append([])
            if self._try(depth, "else:", f"{'    ' * (depth + 1)}pass"):
                self._statements(self._random.randint(1, 3), depth + 1)
            self._scopes.pop()

    def _try(self, depth: int, template: str, *further: str) -> bool:
        """Add a statement if the program runs with it."""
        for _ in range(4):
            names: list[str] = []
            try:
                line = "    " * depth + self._filled(template, names)
                lines = [*self._lines, line, *further]
                values = self._run(lines)
            except Exception:
                continue
            if self._fits(values):
                self._lines, self._values = lines, values
                self._scopes[-1].extend(name for name in names if not any(name in scope for scope in self._scopes))
                return True
        return False

    def _filled(self, template: str, names: list[str], depth: int = 0) -> str:
        def fill(hole: re.Match[str]) -> str:
            new, kind = hole.groups()
            if new:
                names.append(self._target(kind))
                return names[-1]
            if kind in _EXPRESSIONS:
                choices = _EXPRESSIONS[kind]
                if depth > 2 and kind in "TifbV":
                    choices = choices[:1] if kind != "V" else choices[:9]
                text = self._filled(self._random.choice(choices), names, depth + 1)
                return f"({text})" if " " in text and kind in "TifbV" else text
            return self._variable(kind)

        return _HOLE.sub(fill, template)

    def _variable(self, kind: str) -> str:
        known = [n for scope in self._scopes for n in scope if n.rstrip("0123456789") == kind and n in self._values]
        if not known:
            raise LookupError(kind)
        return self._random.choice(known[-5:] if self._random.random() < 0.8 else known)

    def _target(self, kind: str) -> str:
        with contextlib.suppress(LookupError):
            if self._random.random() < 0.35:
                return self._variable(kind)
        self._count += 1
        return f"{kind}{self._count}"

    def _result(self) -> str:
        names = [n for n in self._scopes[0] if n[0] in _KINDS and n.rstrip("0123456789") == n[0]]
        shown = [n for n in names if type(self._values.get(n)) is _KINDS[n[0]]]
        return f"    return {', '.join(shown)}"
