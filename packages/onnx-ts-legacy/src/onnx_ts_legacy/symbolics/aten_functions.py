"""Every ATen operator as a function for custom symbolics."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Sequence
from typing import Any

import torch

from onnx_ts_legacy.state.values import ListRef, Tensor, is_runtime
from onnx_ts_legacy.state.variables import number_in
from onnx_ts_legacy.symbolics.graph_context import GraphContext
from onnx_ts_legacy.symbolics.values import SymbolicValue
from onnxops_decomp import UnsupportedOperatorError
from onnxops_decomp.exporting import NEWEST_OPSET

__all__ = ["aten_function", "opset_function", "variable_of"]


def opset_function(name: str, opset: int) -> Callable[..., Any] | None:
    """Return the function of a symbolic opset module that converts calls of ``aten::<name>``; None if there is none.

    The functions convert as the exporter itself does, for the opset of the graph that they are called on: the modules
    differ in their names only, because the shared table knows the operators and the adapters the opsets.
    """
    packet = None if name.startswith("_") and name.endswith("__") else getattr(torch.ops.aten, name, None)
    if not isinstance(packet, torch._ops.OpOverloadPacket):
        return None
    general, special = _function(packet, opset), _SPECIAL.get(name)
    return general if special is None else special(general)


def aten_function(name: str) -> Callable[..., Any]:
    """Return what converts a call of ``aten::<name>``; it takes ``g`` and the arguments of the call."""
    return _function(getattr(torch.ops.aten, name), NEWEST_OPSET)


def _function(packet: torch._ops.OpOverloadPacket, opset: int) -> Callable[..., Any]:
    def symbolic(g: GraphContext, *args: Any, **kwargs: Any) -> Any:
        variables = [variable_of(g, arg) for arg in (*args, *_by_name(packet, len(args), kwargs))]
        try:
            overload = _overload(packet, variables)
        except UnsupportedOperatorError:
            overload, variables = _converting_overload(g, packet, variables)
        variables = [_taken(s, a) for a, s in zip(variables, overload._schema.arguments, strict=False)]
        positional = [a for a, s in zip(variables, overload._schema.arguments, strict=False) if not s.kwarg_only]
        keyword = {s.name: a for a, s in zip(variables, overload._schema.arguments, strict=False) if s.kwarg_only}
        with g.writing():
            return _wrapped(g.context.call(overload, positional, keyword))

    symbolic.__name__ = symbolic.__qualname__ = str(packet.__name__)
    symbolic.__doc__ = f"Convert a call of ``aten::{packet.__name__}``."
    symbolic.__module__ = f"onnx_ts_legacy.symbolic_opset{opset}"
    return symbolic


def _by_name(packet: torch._ops.OpOverloadPacket, count: int, kwargs: dict[str, Any]) -> list[Any]:
    """Return arguments that are given by name in the order of the first overload that has them all.

    Raises:
        UnsupportedOperatorError: If there is none.
    """
    if not kwargs:
        return []
    for name in packet.overloads():
        rest = [argument.name for argument in getattr(packet, name)._schema.arguments[count:]]
        if set(kwargs) <= set(rest):
            last = max(rest.index(key) for key in kwargs)
            return [kwargs.get(key) for key in rest[: last + 1]]
    raise UnsupportedOperatorError(f"no overload has the arguments {sorted(kwargs)}", operator=str(packet))


def _select(general: Callable[..., Any]) -> Callable[..., Any]:
    """Let ``select`` keep the dimension where its index is a vector, which published symbolics squeeze afterwards."""

    @functools.wraps(general)
    def symbolic(g: GraphContext, self: Any, dim: Any, index: Any) -> Any:
        if not isinstance(index, SymbolicValue) or index.type().kind() != "TensorType" or index.type().dim() != 1:
            return general(g, self, dim, index)
        tensor = g.value(variable_of(g, self))
        return SymbolicValue(g.builder.newest.Gather(tensor, g.value(index), axis=variable_of(g, dim)))

    return symbolic


def _size(general: Callable[..., Any]) -> Callable[..., Any]:
    """Let ``size`` keep the rank of an index that is a value, and take lists of numbers."""

    @functools.wraps(general)
    def symbolic(g: GraphContext, self: Any, dim: Any = None) -> Any:
        if dim is None or (isinstance(dim, SymbolicValue) and dim.node().mustBeNone()):
            return g.op("Shape", self)
        if not isinstance(dim, SymbolicValue) or dim.type().kind() != "TensorType":
            return general(g, self, dim)
        return g.op("Gather", g.op("Shape", self), dim, axis_i=0)

    return symbolic


_SPECIAL: dict[str, Callable[[Callable[..., Any]], Callable[..., Any]]] = {"select": _select, "size": _size}


def variable_of(g: GraphContext, argument: Any) -> Any:
    """Return an argument as a variable of the program: results of ``g.op`` become tensors."""
    import onnx_ir as ir

    variable = argument.variable if isinstance(argument, SymbolicValue) else argument
    if isinstance(argument, SymbolicValue) and argument.static is not None and argument.static.dim() <= 1:
        return argument.static.tolist() if not argument.static.dtype.is_complex else variable
    if isinstance(variable, ir.Value):
        return g.context.fresh(variable, g.context.described(variable, "an argument of a symbolic"))
    if isinstance(variable, list | tuple):
        return [variable_of(g, item) for item in variable]
    return variable


def _wrapped(result: Any) -> Any:
    if isinstance(result, tuple):
        return tuple(_wrapped(item) for item in result)
    return SymbolicValue(result)


def _overload(packet: torch._ops.OpOverloadPacket, args: Sequence[Any]) -> torch._ops.OpOverload:
    """Return the first overload without side effects that takes the arguments.

    Raises:
        UnsupportedOperatorError: If there is none.
    """
    for name in packet.overloads():
        overload: torch._ops.OpOverload = getattr(packet, name)
        arguments = overload._schema.arguments
        if overload._schema.is_mutable or len(args) > len(arguments):
            continue
        if any(not argument.has_default_value() for argument in arguments[len(args) :]):
            continue
        if all(
            _fits(str(argument.type), _taken(argument, arg)) for argument, arg in zip(arguments, args, strict=False)
        ):
            return overload
    raise UnsupportedOperatorError("no overload takes these arguments", operator=f"aten::{packet.__name__}")


def _converting_overload(
    g: GraphContext, packet: torch._ops.OpOverloadPacket, args: Sequence[Any]
) -> tuple[torch._ops.OpOverload, list[Any]]:
    """Return an overload that takes the arguments when vectors are read as lists of numbers, or the other way round.

    Raises:
        UnsupportedOperatorError: If there is none.
    """
    for name in packet.overloads():
        arguments = getattr(packet, name)._schema.arguments
        if len(args) > len(arguments):
            continue
        with g.writing():
            converted = [_converted(g, str(argument.type), arg) for argument, arg in zip(arguments, args, strict=False)]
        with contextlib.suppress(UnsupportedOperatorError):
            return _overload(packet, converted), converted
    if args and args[-1] is None:
        # An optional argument of torch.onnx's function that the operator does not have.
        return _converting_overload(g, packet, args[:-1])
    raise UnsupportedOperatorError("no overload takes these arguments", operator=f"aten::{packet.__name__}")


def _converted(g: GraphContext, kind: str, arg: Any) -> Any:
    """Return a tensor as the numbers that it holds, or numbers as a tensor, where the other is wanted."""
    kind = kind.removeprefix("Optional[")
    if kind.startswith("Tensor") and isinstance(arg, bool | int | float | list):
        value = g.value(torch.tensor(arg))
        assert value is not None
        return g.context.fresh(value, g.context.described(value, "a constant"))
    if not isinstance(arg, Tensor):
        return arg
    sizes = arg.fake.shape
    if kind.startswith("List[int]") and len(sizes) == 1 and isinstance(sizes[0], int):
        select = torch.ops.aten.select.int
        numbers = [g.context.call(select, [arg, 0, index], {}) for index in range(sizes[0])]
        return [number_in(g.context, number) for number in numbers]
    if kind.startswith(("int", "float", "number", "bool")) and all(size == 1 for size in sizes):
        return number_in(g.context, arg)
    return arg


def _taken(argument: Any, arg: Any) -> Any:
    """Return what an argument stands for: None for its default where it cannot be None."""
    if arg is None and argument.has_default_value():
        return argument.default_value
    return _single(str(argument.type), arg)


def _single(kind: str, arg: Any) -> Any:
    """Return the number in a list of one, where a number is wanted: symbolics make constants of one element."""
    return arg[0] if kind in ("int", "float", "bool", "number") and isinstance(arg, list) and len(arg) == 1 else arg


def _fits(kind: str, arg: Any) -> bool:
    arg = _single(kind, arg)
    if arg is None:
        return kind.startswith("Optional")
    kind = kind.removeprefix("Optional[").rstrip("]") if kind.startswith("Optional[") else kind
    if kind == "Tensor":
        return isinstance(arg, Tensor)
    if kind.startswith("List"):
        items = arg.items if isinstance(arg, ListRef) else arg
        return isinstance(items, list | tuple) or ("int" in kind and isinstance(arg, int))
    kinds: dict[str, Any] = {"int": int, "bool": bool, "float": (int, float), "str": str, "number": (int, float, bool)}
    wanted = next((python for text, python in kinds.items() if kind.startswith(text)), object)
    return (is_runtime(arg) and wanted is not object) or (isinstance(arg, wanted) and not isinstance(arg, Tensor))
