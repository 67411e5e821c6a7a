"""Which handler converts a node: one table, whose first row that takes a call converts it."""

from __future__ import annotations

import functools
from collections.abc import Callable, Container, Sequence
from typing import Any, NamedTuple

import torch

from onnx_ts_legacy import _torch_private as private
from onnx_ts_legacy.calls.containers import CONTAINER_OPERATORS, container_operator, plain
from onnx_ts_legacy.calls.forms import functional_form
from onnx_ts_legacy.calls.prims import PRIM_HANDLERS, TEXT_SINKS
from onnx_ts_legacy.calls.scalar_operators import SCALAR_OPERATORS
from onnx_ts_legacy.calls.scalars import as_float, as_int
from onnx_ts_legacy.calls.sequences import PIECES, is_cut_at_run_time, list_of_pieces
from onnx_ts_legacy.calls.size_conditions import chunk_conditions, squeeze_conditions
from onnx_ts_legacy.control_flow.if_ import convert_if
from onnx_ts_legacy.control_flow.loop import convert_loop
from onnx_ts_legacy.errors import ScriptValueError
from onnx_ts_legacy.graph.sources import module_path, source_line
from onnx_ts_legacy.mutation.writes import is_fitted, unfitted_value
from onnx_ts_legacy.quantization.calls import convert_quantized, is_quantized_call, observed_fake_quantize
from onnx_ts_legacy.state.arguments import split_arguments
from onnx_ts_legacy.state.attributes import from_python
from onnx_ts_legacy.state.context import ConversionContext
from onnx_ts_legacy.state.values import (
    DictRef,
    ListRef,
    Maybe,
    Poison,
    RuntimeFloat,
    SequenceState,
    Tensor,
    VectorState,
    is_runtime,
)
from onnx_ts_legacy.symbolics.graph_context import run_symbolic
from onnx_ts_legacy.symbolics.python_operators import convert_python_operator
from onnxops_decomp import LoweringError, UnsupportedOperatorError, builtin_table
from onnxops_decomp.exporting import functional_overload

__all__ = ["convert_call", "convert_node"]

# Called with the context, the node and what its inputs stand for; returns what its outputs stand for.
Handler = Callable[[ConversionContext, Any, Sequence[Any]], Any]
# Called with the same; returns the handler, or None if the row does not take the call.
Finder = Callable[[ConversionContext, Any, Sequence[Any]], Handler | None]


class Row(NamedTuple):
    """One row of the table.

    Attributes:
        kinds: The kinds of nodes that it is for; None for all of them.
        find: Finds the handler.
        is_noted: Whether the nodes that the handler writes are noted to come from this call.
    """

    kinds: Container[str] | None
    find: Finder
    is_noted: bool = True


def convert_node(context: ConversionContext, node: Any, args: Sequence[Any]) -> Any:
    """Return what the outputs of a node stand for, given what its inputs do.

    Raises:
        LoweringError: If there is no ONNX form of it.
        ScriptValueError: If it takes what ONNX cannot hold.
        DynamicDimensionError: If it would fix a dimension that was declared dynamic.
    """
    kind = node.kind()
    row, handler = _found(_rows(kind), context, node, args)
    if not row.is_noted:
        return handler(context, node, args)
    with context.op.origin(**_origin(context, node, kind)):
        return handler(context, node, args)


def _found(rows: Sequence[Row], context: ConversionContext, node: Any, args: Sequence[Any]) -> tuple[Row, Handler]:
    for row in rows:
        handler = row.find(context, node, args)
        if handler is not None:
            return row, handler
    raise AssertionError("the last row takes every call")


def _origin(context: ConversionContext, node: Any, kind: str) -> dict[str, str]:
    found = {"operator": kind}
    source = source_line(node)
    if source:
        found["source"] = source
    module = module_path(node, context.attributes.prefix)
    if module:
        found["module"] = module
    return found


def convert_call(context: ConversionContext, node: Any, kind: str, args: Sequence[Any]) -> Any:
    """Convert a call as it would be with other operands."""
    if kind == node.kind():
        return _found(_rows(kind, _OPERATORS), context, node, args)[1](context, node, args)
    overload = private.overload_of_schema(node.schema())
    overload = None if overload is None else functional_form(overload)
    if overload is None:
        raise UnsupportedOperatorError("it changes a tensor and has no functional form", operator=kind)
    bound, keyword = split_arguments(overload, args)
    return context.call(overload, bound, keyword)


# ---- control flow


def _flow(convert: Handler, context: ConversionContext, node: Any, args: Sequence[Any]) -> Any:
    with context.heap.watching() as written:
        try:
            return convert(context, node, args)
        except (LoweringError, ScriptValueError):
            for target in written:
                if isinstance(target, ListRef | DictRef):
                    context.heap.write(target, Poison.unconverted(node.kind()))
            raise


# ---- what the user gave


def _find_translation(context: ConversionContext, node: Any, args: Sequence[Any]) -> Handler | None:
    """Return the handler of an operator that the user gave a lowering for in ``custom_translation_table``."""
    if context.table is builtin_table():
        return None
    overload = private.overload_of_schema(node.schema())
    if overload is None or not context.table.is_own(functional_overload(overload).name()):
        return None
    return _convert_unreadable if _find_unreadable(context, node, args) else _convert_translated


def _convert_translated(context: ConversionContext, node: Any, args: Sequence[Any]) -> Any:
    overload = private.overload_of_schema(node.schema())
    assert overload is not None
    return context.call(overload, *split_arguments(overload, args))


def _find_symbolic(context: ConversionContext, node: Any, args: Sequence[Any]) -> Handler | None:
    custom = context.custom(node.kind())
    return None if custom is None else functools.partial(_convert_symbolic, custom)


def _convert_symbolic(custom: Callable[..., Any], context: ConversionContext, node: Any, args: Sequence[Any]) -> Any:
    return run_symbolic(context, node, args, custom)


# ---- values that are not converted, or not known


# What reads none of its operands.
_HOLDERS = frozenset(("prim::TupleConstruct", "prim::ListConstruct"))


def _find_prim(context: ConversionContext, node: Any, args: Sequence[Any]) -> Handler | None:
    kind = node.kind()
    # Values of prim:: nodes, such as lists, may hold what was not converted.
    read = () if kind in _HOLDERS else args[:1] if kind.startswith("prim::") else args
    if kind not in TEXT_SINKS and any(isinstance(arg, Poison) for arg in read):
        return None
    return PRIM_HANDLERS[kind]


_UNREADABLE = (Poison, Maybe)


def _find_unreadable(context: ConversionContext, node: Any, args: Sequence[Any]) -> Handler | None:
    return _convert_unreadable if any(isinstance(arg, _UNREADABLE) for arg in args) else None


def _convert_unreadable(context: ConversionContext, node: Any, args: Sequence[Any]) -> Any:
    """Hand on a text that is not known; other such values cannot be read."""
    unreadable = next(arg for arg in args if isinstance(arg, _UNREADABLE))
    if isinstance(unreadable, Maybe):
        raise ScriptValueError("A value is used that is None or not, depending on what the runtime computes.")
    if node.outputsSize() == 1 and node.output().type().kind() == "StringType":
        return unreadable
    raise unreadable.error()


# ---- containers and numbers


def _find_container(context: ConversionContext, node: Any, args: Sequence[Any]) -> Handler | None:
    kind = node.kind()
    found = container_operator(kind, args) if args else None
    if found is None and _is_container_call(kind, args):
        found = CONTAINER_OPERATORS[kind]
    return None if found is None else functools.partial(_convert_container, found)


def _is_container_call(kind: str, args: Sequence[Any]) -> bool:
    """Tell whether a call is one whose container is not the first argument, or that takes all kinds of them."""
    if kind in ("aten::len", "aten::dict"):
        return True
    return (kind == "aten::format" and isinstance(args[0], str)) or (
        kind == "aten::mul" and isinstance(args[1], ListRef)
    )


def _convert_container(convert: Callable[..., Any], context: ConversionContext, node: Any, args: Sequence[Any]) -> Any:
    return convert(context, *args)


_TAKE_TENSORS = frozenset(
    f"aten::{name}"
    for name in ("Int", "Float", "Bool", "IntImplicit", "FloatImplicit", "ScalarImplicit", "item", "Scalar")
)


def _find_scalar(context: ConversionContext, node: Any, args: Sequence[Any]) -> Handler | None:
    if any(map(is_runtime, args)) and not any(isinstance(arg, Tensor | ListRef) for arg in args):
        return _convert_scalar
    return _convert_scalar if node.kind() in _TAKE_TENSORS and isinstance(args[0], Tensor) else None


def _convert_scalar(context: ConversionContext, node: Any, args: Sequence[Any]) -> Any:
    """Return a number with the type of the operator, some of which give floats for integers and some do not."""
    number = SCALAR_OPERATORS[node.kind()](context, *args)
    if isinstance(number, torch.SymInt | RuntimeFloat):
        kind = node.output().type().kind()
        if kind == "FloatType":
            return as_float(context, number)
        if kind == "IntType":
            return as_int(context, number)
    return number


def _holds_tensor(arg: Any) -> bool:
    if isinstance(arg, ListRef):
        unknown = isinstance(arg.state, SequenceState | VectorState)
        return unknown or any(map(_holds_tensor, arg.items))
    return isinstance(arg, Tensor) or is_runtime(arg)


@functools.cache
def _returns_tensor(overload: torch._ops.OpOverload) -> bool:
    return any("Tensor" in str(result.type) for result in overload._schema.returns)


# ---- tensors


def _find_fitted(context: ConversionContext, node: Any, args: Sequence[Any]) -> Handler | None:
    return _convert_fitted if isinstance(args[0], Tensor) and is_fitted(node) else None


def _convert_fitted(context: ConversionContext, node: Any, args: Sequence[Any]) -> Any:
    return unfitted_value(context, node, args[0])


def _is_unpacked(node: Any) -> bool:
    """Tell whether the program takes a fixed number of items of the list that a node gives."""
    return any(use.user.kind() == "prim::ListUnpack" for use in node.output().uses())


def _convert_operator(context: ConversionContext, node: Any, args: Sequence[Any]) -> Any:
    kind = node.kind()
    overload = private.overload_of_schema(node.schema())
    if overload is None:
        raise UnsupportedOperatorError("it is not a torch operator", operator=kind)
    if not _returns_tensor(overload):
        if not any(map(_holds_tensor, args)):
            return _evaluated(context, overload, args)
        if all(isinstance(arg, bool | int | float | complex) or is_runtime(arg) for arg in args):
            raise UnsupportedOperatorError("only the runtime knows the numbers that it is called with")
    if overload in PIECES and not _is_unpacked(node) and is_cut_at_run_time(args):
        return list_of_pieces(context, overload, args)
    bound, keyword = split_arguments(overload, args)
    if kind in ("aten::squeeze", "aten::squeeze_"):
        context.conditions.update(dict.fromkeys(squeeze_conditions(context.metadata, node, bound), ""))
    if kind in ("aten::chunk", "aten::unsafe_chunk"):
        context.conditions.update(dict.fromkeys(chunk_conditions(context.metadata, bound), source_line(node)))
    return context.call(overload, bound, keyword)


def _evaluated(context: ConversionContext, overload: torch._ops.OpOverload, args: Sequence[Any]) -> Any:
    """Return the result of an operator on Python values that are all known."""
    if overload._schema.is_mutable:
        # The operator gets a copy, so that what it changes would be lost.
        raise UnsupportedOperatorError("it changes a list or dict in a way that is not known here")
    bound, keyword = split_arguments(overload, [plain(arg) for arg in args])
    try:
        return from_python(context, overload(*bound, **keyword))
    except (RuntimeError, ValueError, ArithmeticError, IndexError) as error:
        raise ScriptValueError(f"The program fails here: {str(error).splitlines()[0]}") from error


# ---- the table


def _always(handler: Handler) -> Finder:
    return lambda context, node, args: handler


def _find_quantized(context: ConversionContext, node: Any, args: Sequence[Any]) -> Handler | None:
    return convert_quantized if is_quantized_call(node.kind(), args) else None


# The kinds that the rest of the exporter converts calls of where their operands are not quantized.
_OPERATORS: tuple[Row, ...] = (
    Row(None, _find_unreadable),
    Row(frozenset(("aten::view", "aten::expand")), _find_fitted),
    Row(None, _find_container),
    Row(frozenset(SCALAR_OPERATORS), _find_scalar),
    Row(None, _always(_convert_operator)),
)
_TABLE: tuple[Row, ...] = (
    Row(("prim::If",), _always(functools.partial(_flow, convert_if))),
    Row(("prim::Loop",), _always(functools.partial(_flow, convert_loop))),
    Row(("prim::PythonOp",), _always(convert_python_operator), is_noted=False),
    Row(None, _find_translation),
    Row(None, _find_symbolic),
    Row(None, _find_quantized),
    Row(("aten::fused_moving_avg_obs_fake_quant",), _always(observed_fake_quantize)),
    Row(frozenset(kind for kind in PRIM_HANDLERS if kind.startswith("prim::")), _find_prim, is_noted=False),
    Row(frozenset(kind for kind in PRIM_HANDLERS if not kind.startswith("prim::")), _find_prim),
    *_OPERATORS,
)


@functools.cache
def _rows(kind: str, table: tuple[Row, ...] = _TABLE) -> tuple[Row, ...]:
    """Return the rows that may take nodes of a kind."""
    return tuple(row for row in table if row.kinds is None or kind in row.kinds)
