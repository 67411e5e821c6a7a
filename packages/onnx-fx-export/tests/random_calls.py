"""Random signatures, arguments, results and names: how a model is called, and what it returns, drawn by a seed."""

from __future__ import annotations

import collections
import dataclasses
import inspect
import random
from collections.abc import Iterator, Mapping
from typing import Any

import torch
from code_of_tests import compiled

__all__ = ["Data", "Pair", "RandomCall", "Table", "leaves"]

Pair = collections.namedtuple("Pair", ["first", "second"])


class Table(dict):
    """A dict of the user's."""


@dataclasses.dataclass
class Data:
    """A dataclass of the user's."""

    first: Any
    second: Any


_NAMES = ("x", "y", "mask", "input", "output", "val_0", "a", "kwargs_", "n")
_GIVEN = (*_NAMES, "b", "weird name", "a/b", "é", "1", "m.w", "constant_0", "output_0", "output_1")
_EXTRA = ("extra", "p", "z", "input_")
_KINDS = ("tensor", "tensor", "tensor", "integers", "same", "none", "int", "float", "bool", "str")
_CONTAINERS = ("list", "tuple", "dict", "ordered", "pair", "table", "data")
_DEFAULTS = {"int": 3, "float": 0.5, "bool": True, "str": "a"}
# How the leaf of a kind is used.
_TERMS = {
    "tensor": "{} * 1.5",
    "integers": "{} + 0.5",
    "same": "{} * 0.25",
    "none": "(1.0 if {} is None else 2.0)",
    "int": "{}",
    "float": "{} * 2",
    "bool": "(4.0 if {} else 5.0)",
    "str": "{{'a': 2.0, 'b': 3.0}}[{}]",
}
_RESULTS = (
    *("r", "r", "r * 2", "r.sum()", "{x}", "{x}.t()", "{x}[0]", "r > 0", "self.w", "torch.zeros(2)"),
    *("{x}.shape[0]", "{x}.shape[0] > 4", "{x}.shape[0] * 2 + 1", "3", "1.5", "None", "'text'", "[]"),
)
_NESTED = ("[{}, {}]", "({}, {})", "{{'b': {}, 'a': {}}}", "Pair({}, {})", "Table(k={}, j={})", "Data({}, {})")


@dataclasses.dataclass(frozen=True)
class _Parameter:
    name: str
    kind: inspect._ParameterKind
    shape: tuple[Any, ...]
    has_default: bool


class RandomCall:
    """The source of a model and what it is called with.

    Args:
        seed: Decides all of it.
    """

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.seed = seed
        self.parameters = [*self._parameters()]
        self.collects = self.random.sample(_EXTRA, 2) if self.random.random() < 0.25 else []
        self.given = [each.name for each in self.parameters if not self._is_left_out(each)]
        results = [self._result() for _ in range(self.random.randint(1, 3))]
        body = [f"r = {self.parameters[0].name} * self.w", *self._uses(), f"return {', '.join(results)},"]
        head = "class Model(torch.nn.Module):\n    def __init__(self):\n        super().__init__()\n"
        head += "        self.w = torch.nn.Parameter(torch.linspace(0.5, 1.5, 3))\n"
        head += f"    def forward({', '.join(self._signature())}):\n"
        self.source = head + "".join(f"        {line}\n" for line in body)

    def _is_left_out(self, parameter: _Parameter) -> bool:
        return parameter.has_default and parameter.kind != 0 and self.random.random() < 0.4

    def _parameters(self) -> Iterator[_Parameter]:
        count, names = self.random.randint(1, 4), self.random.sample(_NAMES, 4)
        kinds = sorted(self.random.choice([0, 1, 1, 1, 3]) for _ in range(count))
        may_end = False
        for place, kind in enumerate(map(inspect._ParameterKind, kinds)):
            may_end = place > 0 and (self.random.random() < 0.3 or (may_end and kind < kind.KEYWORD_ONLY))
            yield _Parameter(names[place], kind, self._shape() if place else ("tensor",), may_end)

    def _shape(self, depth: int = 0) -> tuple[Any, ...]:
        if depth == 2 or self.random.random() < 0.7:
            return (self.random.choice(_KINDS),)
        return self.random.choice(_CONTAINERS), self._shape(depth + 1), self._shape(depth + 1)

    def _signature(self) -> list[str]:
        """Return the parameters as they stand in the source."""
        texts, last = ["self"], None
        for each in self.parameters:
            if last == each.kind.POSITIONAL_ONLY != each.kind:
                texts.append("/")
            if each.kind is each.kind.KEYWORD_ONLY != last:
                texts.append("*")
            default = f"={_DEFAULTS.get(each.shape[0])!r}" if each.has_default else ""
            texts.append(f"{each.name}{default}")
            last = each.kind
        return [
            *texts,
            *(["/"] if last is inspect.Parameter.POSITIONAL_ONLY else []),
            *(["**named"] * bool(self.collects)),
        ]

    def _uses(self) -> Iterator[str]:
        for each in self.parameters:
            terms = [f"r = r + {term}" for term in _terms(each.name, each.shape)]
            is_left_out = each.has_default and each.shape[0] not in (*_DEFAULTS, "none")
            yield from ([f"if {each.name} is not None: {'; '.join(terms)}"] if is_left_out else terms)
        if self.collects:
            yield "for key in named: r = r + named[key] * (len(key) + 0.5)"

    def _result(self, depth: int = 0) -> str:
        if depth == 2 or self.random.random() < 0.75:
            return self.random.choice(_RESULTS).format(x=self.parameters[0].name)
        return self.random.choice(_NESTED).format(self._result(depth + 1), self._result(depth + 1))

    def model(self) -> torch.nn.Module:
        """Return the model, whose lines are found."""
        names = compiled(self.source, f"/models/call{self.seed}.py", torch=torch, Pair=Pair, Table=Table, Data=Data)
        model: torch.nn.Module = names["Model"]().eval()
        return model

    def values(self, rows: int) -> dict[str, Any]:
        """Return arguments by name, with tensors of so many rows."""
        generator = torch.Generator().manual_seed(self.seed * 100 + rows)
        first: list[torch.Tensor] = []
        shapes = {each.name: each.shape for each in self.parameters if each.name in self.given}
        return {
            name: _made(shape, rows, generator, first)
            for name, shape in {**shapes, **dict.fromkeys(self.collects, ("tensor",))}.items()
        }

    def form(self, values: Mapping[str, Any]) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """Return a call with these arguments, some by position and the others by name in any order."""
        args: list[Any] = []
        named = {name: values[name] for name in self.collects}
        by_position = True
        for each in self.parameters:
            keeps = self.random.random() < 0.65 or each.kind is each.kind.POSITIONAL_ONLY
            by_position = by_position and each.name in values and each.kind < each.kind.KEYWORD_ONLY and keeps
            if by_position:
                args.append(values[each.name])
            elif each.name in values:
                named[each.name] = values[each.name]
        return tuple(args), dict(self.random.sample([*named.items()], len(named)))

    def names(self, count: int) -> list[str]:
        """Return names for some of so many inputs or outputs."""
        return self.random.sample(_GIVEN, self.random.randint(0, count)) if self.random.random() < 0.5 else []


def _terms(text: str, shape: tuple[Any, ...]) -> Iterator[str]:
    kind, *parts = shape
    if not parts:
        yield _TERMS[kind].format(text)
    for place, (part, name) in enumerate(zip(parts, ("first", "second"), strict=False)):
        is_by_name = kind in ("dict", "ordered", "table")
        inner = f"{text}.{name}" if kind in ("pair", "data") else f"{text}[{name if is_by_name else place!r}]"
        yield from _terms(inner.replace(f"[{name}]", f"['{name}']"), part)


def _made(shape: tuple[Any, ...], rows: int, generator: torch.Generator, first: list[torch.Tensor]) -> Any:
    """Return a value of a shape; the same tensor again where it says so."""
    kind, *parts = shape
    if kind == "integers":
        return torch.randint(0, 5, (rows, 3), generator=generator)
    if kind == "tensor":
        first.append(torch.randn(rows, 3, generator=generator))
        return first[-1]
    if not parts:
        return first[0] if kind == "same" else _DEFAULTS.get(kind)
    one, two = (_made(part, rows, generator, first) for part in parts)
    keyed = {"first": one, "second": two}
    containers = {"dict": keyed, "ordered": collections.OrderedDict(keyed), "table": Table(keyed), "tuple": (one, two)}
    return {**containers, "list": [one, two], "pair": Pair(one, two), "data": Data(one, two)}[kind]


def leaves(value: Any) -> list[Any]:
    """Return the tensors and numbers in a structure, in its order."""
    if value is None or isinstance(value, str):
        return []
    if dataclasses.is_dataclass(value):
        value = [getattr(value, field.name) for field in dataclasses.fields(value)]
    if isinstance(value, Mapping):
        value = [*value.values()]
    return [leaf for part in value for leaf in leaves(part)] if isinstance(value, list | tuple) else [value]
