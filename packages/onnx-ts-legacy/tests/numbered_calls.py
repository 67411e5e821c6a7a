"""Calls of the operators of the table in which one number is read from a tensor, as TorchScript graphs."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch.utils import _pytree as pytree

from onnxops_decomp import builtin_table

__all__ = ["NumberedCall", "names", "numbered_calls"]

_KINDS = {"number": "ScalarImplicit", "int": "Int", "float": "Float", "bool": "Bool"}
_TYPES = {
    "ScalarImplicit": torch._C.NumberType,
    "Int": torch._C.IntType,
    "Float": torch._C.FloatType,
    "Bool": torch._C.BoolType,
}
_OTHERS = {bool: (False, True), int: (-1, 0, 1, 2, 3), float: (-1.5, 0.0, 0.5, 2.0)}
# Only these many samples of an operator are tried.
_SAMPLES = 40


@dataclasses.dataclass(frozen=True)
class NumberedCall:
    """A program that calls an operator.

    Attributes:
        function: The program.
        inputs: Its example.
        parameter: Name of the parameter that is read from a tensor.
        place: Where that tensor stands among the inputs.
    """

    function: torch.jit.ScriptFunction
    inputs: tuple[torch.Tensor, ...]
    parameter: str
    place: int

    def others(self) -> Iterator[tuple[Sequence[torch.Tensor], Any]]:
        """Yield further inputs that torch takes, and what it computes of them."""
        number = self.inputs[self.place]
        for value in _OTHERS[type(number.item())]:
            inputs = list(self.inputs)
            inputs[self.place] = torch.tensor(value, dtype=number.dtype)
            try:
                expected = self.function(*(tensor.clone() for tensor in inputs))
            except RuntimeError:
                continue
            yield inputs, expected


def names() -> list[str]:
    """Return the operators of the table that take numbers, if there are samples of them."""
    try:
        from entry_samples import is_drawn
    except ImportError:  # these tests stand alone
        return []
    found = []
    for name in sorted(builtin_table()):
        overload = _overload(name)
        if overload is None or not overload._schema.returns or is_drawn(name):
            continue
        if any(_kind(a) for a in overload._schema.arguments):
            found.append(name)
    return found


def numbered_calls(name: str) -> Iterator[NumberedCall]:
    """Yield a call for each numeric parameter of an operator and each type of number that a sample has for it."""
    from entry_samples import entry_calls

    overload = _overload(name)
    assert overload is not None
    samples = list(itertools.islice(entry_calls(name), _SAMPLES))
    for argument in filter(_kind, overload._schema.arguments):
        seen: set[type] = set()
        for sample in samples:
            args, kwargs = pytree.tree_unflatten(sample.leaves, sample.structure)
            call = _call(overload, _given(overload, args, kwargs), argument)
            kind = None if call is None else type(call.inputs[call.place].item())
            if call is not None and kind is not None and kind not in seen:
                seen.add(kind)
                yield call


def _overload(name: str) -> torch._ops.OpOverload | None:
    from entry_samples import overload_of

    try:
        return overload_of(name)
    except (AttributeError, RuntimeError):
        return None


def _kind(argument: Any) -> str | None:
    """Return the operator that reads the number of a parameter from a tensor; None if it is no number."""
    return None if argument.is_out else _KINDS.get(str(argument.type).removeprefix("Optional[").removesuffix("]"))


def _given(overload: torch._ops.OpOverload, args: Sequence[Any], kwargs: dict[str, Any]) -> dict[str, Any]:
    arguments = [a for a in overload._schema.arguments if not a.is_out]
    given = {a.name: a.default_value if a.has_default_value() else None for a in arguments}
    positional = [a.name for a in arguments if not a.kwarg_only]
    return {**given, **dict(zip(positional, args, strict=False)), **kwargs}


def _call(overload: torch._ops.OpOverload, given: dict[str, Any], argument: Any) -> NumberedCall | None:
    """Return the call with one of its numbers read from a tensor; None if torch does not take it so."""
    number, kind = given[argument.name], _kind(argument)
    if type(number) not in _OTHERS or (kind == "Bool") != (type(number) is bool):
        return None
    number = float(number) if kind == "Float" else number
    graph, inputs = torch._C.Graph(), list[torch.Tensor]()

    def tensor(value: torch.Tensor) -> Any:
        inputs.append(value)
        variable = graph.addInput(f"input_{len(inputs)}")
        variable.setType(torch._C.TensorType.get())
        return variable

    def node(operator: str, operands: Sequence[Any], kind: Any) -> Any:
        made = graph.insertNode(graph.create(operator, list(operands), 1))
        made.output().setType(kind)
        return made.output()

    def variable(name: str, value: Any) -> Any:
        if name == argument.name:
            read = tensor(torch.tensor(number, dtype=torch.float64 if type(number) is float else None))
            return node(f"aten::{kind}", [read], _TYPES[str(kind)].get())
        if isinstance(value, torch.Tensor):
            return tensor(value)
        if isinstance(value, list | tuple) and value and all(isinstance(x, torch.Tensor) for x in value):
            return node("prim::ListConstruct", map(tensor, value), torch._C.ListType(torch._C.TensorType.get()))
        return graph.insertConstant(_constant(value))

    try:
        operands = [variable(name, value) for name, value in given.items()]
        made = graph.insertNode(graph.create(overload._schema.name, operands, len(overload._schema.returns)))
        results = list(made.outputs())
        for result, returned in zip(results, overload._schema.returns, strict=True):
            result.setType(returned.type)
        kinds = torch._C.TupleType([result.type() for result in results])
        graph.registerOutput(results[0] if len(results) == 1 else node("prim::TupleConstruct", results, kinds))
        function = torch._C._create_function_from_graph("program", graph)
        function(*(value.clone() for value in inputs))
    except (RuntimeError, TypeError):
        return None
    place = [x.debugName() for x in graph.inputs()].index(_read_input(graph, str(kind)))
    return NumberedCall(function, tuple(inputs), argument.name, place)


def _read_input(graph: Any, kind: str) -> str:
    name: str = graph.findNode(f"aten::{kind}").inputsAt(0).debugName()
    return name


_CODES = {
    torch.uint8: 0,
    torch.int8: 1,
    torch.int16: 2,
    torch.int32: 3,
    torch.int64: 4,
    torch.float16: 5,
    torch.float32: 6,
    torch.float64: 7,
    torch.complex64: 9,
    torch.complex128: 10,
    torch.bool: 11,
    torch.bfloat16: 15,
    torch.strided: 0,
    torch.contiguous_format: 0,
    torch.preserve_format: 1,
    torch.channels_last: 2,
    torch.channels_last_3d: 3,
}


def _constant(value: Any) -> Any:
    """Return a constant as TorchScript holds it."""
    if isinstance(value, torch.device) or value == "cpu":
        return None
    if isinstance(value, torch.dtype | torch.layout | torch.memory_format):
        return _CODES[value]
    return list(value) if isinstance(value, list | tuple) else value
