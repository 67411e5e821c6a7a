"""The table from ATen operators to the functions that write them in ONNX."""

from __future__ import annotations

import dataclasses
import functools
import importlib
import inspect
import itertools
import pkgutil
from collections.abc import Callable, Iterator, Mapping
from typing import Any, TypeVar

import torch

__all__ = ["Lowering", "LoweringTable", "builtin_table", "lowering", "operator_name"]

Function = Callable[..., Any]
F = TypeVar("F", bound=Function)
Operator = torch._ops.OpOverload | torch._ops.OpOverloadPacket | str

# Keyword-only arguments that say where or how a tensor is stored, which ONNX has no notion of. A lowering that
# cares about one of them names it in its signature; the others never see it.
PLACEMENT_ARGUMENTS = frozenset(
    ("device", "generator", "layout", "memory_format", "non_blocking", "pin_memory", "requires_grad")
)


def operator_name(operator: Operator) -> str:
    """Return the qualified name under which an operator is listed, such as ``aten::add.Tensor``.

    Args:
        operator: An overload; a packet, which stands for its default overload; or the name itself, where the
            operator belongs to a library that need not be installed.
    """
    if isinstance(operator, str):
        return operator
    overload = operator.default if isinstance(operator, torch._ops.OpOverloadPacket) else operator
    return str(overload.name())


@dataclasses.dataclass(frozen=True, slots=True)
class Lowering:
    """One entry of the table.

    Attributes:
        operator: Qualified ATen name.
        function: Called as ``function(op, *args, **kwargs)`` with the arguments named as in native_functions.yaml.
    """

    operator: str
    function: Function

    @classmethod
    def of(cls, operator: Operator, function: Function) -> Lowering:
        """Return the entry for a plain function, or for one of ``onnxscript``."""
        if hasattr(function, "to_function_proto"):
            from onnxops_decomp.lowerings.scripted import script_lowering

            function = script_lowering(function)
        return cls(operator_name(operator), function)

    @property
    def accepted(self) -> frozenset[str] | None:
        """Names of the arguments that the function takes; None if it takes any."""
        return _signature(self.function)[0]

    @property
    def positional(self) -> int | None:
        """How many positional arguments the function takes after ``op``; None if it takes any number."""
        return _signature(self.function)[1]

    def takes_by_name(self, names: tuple[str, ...]) -> bool:
        """Tell whether the function has the arguments ``names`` of an overload, but at other positions.

        So one function serves all overloads of an operator; one with names of its own takes them by their positions.
        """
        accepted, _, order = _signature(self.function)
        if accepted is None or order[: len(names)] == names:
            return False
        return accepted.issuperset(name for name in names if name not in PLACEMENT_ARGUMENTS)


@functools.lru_cache(maxsize=4096)
def _signature(function: Function) -> tuple[frozenset[str] | None, int | None, tuple[str, ...]]:
    parameters = inspect.signature(function).parameters.values()
    kinds = [p.kind for p in parameters]
    names = frozenset(p.name for p in parameters if p.kind is not inspect.Parameter.VAR_POSITIONAL)
    order = tuple(
        p.name
        for p in parameters
        if p.kind in (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    )[1:]
    return (
        None if inspect.Parameter.VAR_KEYWORD in kinds else names,
        None if inspect.Parameter.VAR_POSITIONAL in kinds else len(order),
        order,
    )


class LoweringTable(Mapping[str, Lowering]):
    """Lowerings by operator name, real and complex ones apart.

    A table is a plain mapping of the real ones. Derived tables (:meth:`extended`) leave the one they come from as it
    is, so that a user's own lowerings hold for one export and nothing else.

    Attributes:
        numbers: The user's own lowerings of functions of numbers, such as ``operator.mul`` and ``torch.sym_not``, that
            fx graphs call.
    """

    def __init__(self) -> None:
        self._real: dict[str, Lowering] = {}
        self._complex: dict[str, Lowering] = {}
        self.numbers: dict[Function, Function] = {}

    def register(self, *operators: Operator, complex: bool | None = False) -> Callable[[F], F]:
        """Return a decorator that enters a function for ``operators``.

        Args:
            operators: What the function lowers.
            complex: Whether the function is for calls with a complex operand, or for the others; None is both. It sees
                complex operands as real tensors with a trailing dimension of size 2.

        Raises:
            ValueError: If one of the operators has an entry already.
        """
        tables = [table for kind, table in ((False, self._real), (True, self._complex)) if complex in (None, kind)]

        def enter(function: F) -> F:
            for operator, table in itertools.product(operators, tables):
                entry = Lowering.of(operator, function)
                known = table.setdefault(entry.operator, entry)
                if known is not entry:
                    raise ValueError(f"{entry.operator} has a lowering already: {known.function.__qualname__}.")
            return function

        return enter

    def find(self, name: str, *, complex: bool = False) -> Lowering | None:
        """Return the entry for ``name``, or None."""
        return (self._complex if complex else self._real).get(name)

    @property
    def has_own(self) -> bool:
        """Whether entries may be the user's own."""
        return self is not _BUILTIN

    def is_own(self, name: str) -> bool:
        """Tell whether the entry for ``name`` is the user's own, which takes precedence over everything built in."""
        if not self.has_own:
            return False
        pairs = ((self._real, _BUILTIN._real), (self._complex, _BUILTIN._complex))
        return any(mine.get(name) is not theirs.get(name) for mine, theirs in pairs)

    def extended(self, functions: Mapping[Operator, Function], *, complex: bool | None = None) -> LoweringTable:
        """Return a copy in which ``functions`` take the place of the entries for the same operators.

        Args:
            functions: By operator a plain function, called as ``function(op, *args, **kwargs)``, or a function of
                ``onnxscript``, whose parameters are the arguments of the operator.
            complex: Whether they are for calls with a complex operand, or for the others; by default for both.
        """
        table = LoweringTable()
        table._real, table._complex, table.numbers = dict(self._real), dict(self._complex), dict(self.numbers)
        for operator, function in functions.items():
            entry = Lowering.of(operator, function)
            for kind, entries in ((False, table._real), (True, table._complex)):
                if complex in (None, kind):
                    entries[entry.operator] = entry
        return table

    def __getitem__(self, name: str) -> Lowering:
        return self._real[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._real)

    def __len__(self) -> int:
        return len(self._real)


_BUILTIN = LoweringTable()
_loaded = False

lowering = _BUILTIN.register


def builtin_table() -> LoweringTable:
    """Return the table of the project. It is loaded on first use and must not be changed: derive from it."""
    global _loaded
    if not _loaded:
        package = importlib.import_module(__name__.rpartition(".")[0])
        for module in pkgutil.walk_packages(package.__path__, f"{package.__name__}."):
            importlib.import_module(module.name)
        _loaded = True
    return _BUILTIN
