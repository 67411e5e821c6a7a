"""Which handler converts a node: one table, whose first row that takes a call converts it."""

from __future__ import annotations

import functools
import itertools
from collections.abc import Iterator, Sequence
from typing import Any

import torch

from onnx_ts_legacy import _torch_private as private
from onnx_ts_legacy.calls.containers import CONTAINER_ROWS, plain
from onnx_ts_legacy.calls.forms import functional_form
from onnx_ts_legacy.calls.number_lists import NUMBER_LIST_ROWS
from onnx_ts_legacy.calls.prims import CONSTANT_ROW, PRIM_ROWS
from onnx_ts_legacy.calls.rows import Handler, Row
from onnx_ts_legacy.calls.scalar_operators import SCALAR_ROWS
from onnx_ts_legacy.calls.sequences import PIECES, counted_pieces, is_cut_at_run_time, list_of_pieces
from onnx_ts_legacy.calls.size_conditions import (
    SQUEEZING,
    chunk_conditions,
    power_conditions,
    squeeze_conditions,
    with_equal_sizes,
    with_met_sizes,
    with_sliced_rows,
)
from onnx_ts_legacy.control_flow.if_ import convert_if
from onnx_ts_legacy.control_flow.loop import convert_loop
from onnx_ts_legacy.errors import ScriptValueError
from onnx_ts_legacy.graph.parts import all_nodes, node_blocks
from onnx_ts_legacy.graph.sources import module_path, source_line
from onnx_ts_legacy.mutation.writes import is_fitted, unfitted_value
from onnx_ts_legacy.quantization.calls import QUANTIZED_ROWS
from onnx_ts_legacy.state.arguments import split_arguments
from onnx_ts_legacy.state.attributes import from_python
from onnx_ts_legacy.state.context import ConversionContext
from onnx_ts_legacy.state.values import (
    DictRef,
    ListRef,
    Maybe,
    Poison,
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


def convert_node(context: ConversionContext, node: Any, args: Sequence[Any]) -> Any:
    """Return what the outputs of a node stand for, given what its inputs do.

    Raises:
        LoweringError: If there is no ONNX form of it.
        ScriptValueError: If it takes what ONNX cannot hold.
        DynamicDimensionError: If it would fix a dimension that was declared dynamic.
    """
    kind = node.kind()
    row = _found(_rows(kind), context, node, args)
    if not row.is_noted:
        return row.convert(context, node, args)
    with context.op.origin(**_origin(context, node, kind)):
        return row.convert(context, node, args)


def _found(rows: Sequence[Row], context: ConversionContext, node: Any, args: Sequence[Any]) -> Row:
    for row in rows:
        if row.takes is None or row.takes(context, node, args):
            return row
    raise AssertionError("The last row takes all calls.")


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
        return _found(_rows(kind, _OPERATORS), context, node, args).convert(context, node, args)
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
            for target in [*written, *_changed_inside(context, node)]:
                if isinstance(target, ListRef | DictRef):
                    context.heap.write(target, Poison.unconverted(node.kind()))
            raise


def _changed_inside(context: ConversionContext, node: Any) -> Iterator[Any]:
    """Yield what the blocks of a node change of what is outside, whether they were converted or not."""
    for inner in itertools.chain.from_iterable(map(all_nodes, node_blocks(node))):
        if "!" in inner.schema().partition(",")[0] and inner.inputsSize():
            yield context.env.get(inner.inputsAt(0).unique())


# ---- what the user gave


def _is_translated(context: ConversionContext, node: Any, args: Sequence[Any]) -> bool:
    """Tell whether the user gave a lowering for an operator in ``custom_translation_table``."""
    if context.table is builtin_table():
        return False
    overload = private.overload_of_schema(node.schema())
    return overload is not None and context.table.is_own(functional_overload(overload).name())


def _convert_translated(context: ConversionContext, node: Any, args: Sequence[Any]) -> Any:
    if _is_unreadable(context, node, args):
        return _convert_unreadable(context, node, args)
    overload = private.overload_of_schema(node.schema())
    assert overload is not None
    return context.call(overload, *split_arguments(overload, args))


def _has_symbolic(context: ConversionContext, node: Any, args: Sequence[Any]) -> bool:
    return context.custom(node.kind()) is not None


def _convert_symbolic(context: ConversionContext, node: Any, args: Sequence[Any]) -> Any:
    custom = context.custom(node.kind())
    assert custom is not None
    return run_symbolic(context, node, args, custom)


# ---- values that are not known


_UNREADABLE = frozenset((Poison, Maybe))


def _is_unreadable(context: ConversionContext, node: Any, args: Sequence[Any]) -> bool:
    return any(map(_UNREADABLE.__contains__, map(type, args)))


def _convert_unreadable(context: ConversionContext, node: Any, args: Sequence[Any]) -> Any:
    """Hand on a text that is not known; other such values cannot be read."""
    unreadable = next(arg for arg in args if type(arg) in _UNREADABLE)
    if isinstance(unreadable, Maybe):
        raise ScriptValueError("The program uses a value that may be None, depending on what is computed at run time.")
    if node.outputsSize() == 1 and node.output().type().kind() == "StringType":
        return unreadable
    raise unreadable.error()


# ---- operators


def _holds_tensor(arg: Any) -> bool:
    if isinstance(arg, ListRef):
        unknown = isinstance(arg.state, SequenceState | VectorState)
        return unknown or any(map(_holds_tensor, arg.items))
    return isinstance(arg, Tensor) or is_runtime(arg)


@functools.cache
def _returns_tensor(overload: torch._ops.OpOverload) -> bool:
    return any("Tensor" in str(result.type) for result in overload._schema.returns)


def _is_fitted_view(context: ConversionContext, node: Any, args: Sequence[Any]) -> bool:
    return isinstance(args[0], Tensor) and is_fitted(node)


def _convert_fitted(context: ConversionContext, node: Any, args: Sequence[Any]) -> Any:
    return unfitted_value(context, node, args[0])


def _unpacked_count(node: Any) -> int | None:
    """Return how many items of the list that a node gives the program takes one by one; None if it does not."""
    counts = [use.user.outputsSize() for use in node.output().uses() if use.user.kind() == "prim::ListUnpack"]
    return max(counts, default=None)


def _convert_operator(context: ConversionContext, node: Any, args: Sequence[Any]) -> Any:
    kind = node.kind()
    overload = private.overload_of_schema(node.schema())
    if overload is None:
        raise UnsupportedOperatorError("it is not a torch operator", operator=kind)
    if not _returns_tensor(overload):
        if not any(map(_holds_tensor, args)):
            return _evaluated(context, overload, args)
        if all(isinstance(arg, bool | int | float | complex) or is_runtime(arg) for arg in args):
            raise UnsupportedOperatorError("the numbers that it is called with are known only at run time")
    if overload in PIECES and is_cut_at_run_time(args):
        count = _unpacked_count(node)
        if count is None:
            return list_of_pieces(context, overload, args)
        if (pieces := counted_pieces(context, overload, args, count, source_line(node))) is not None:
            return pieces
    bound, keyword = split_arguments(overload, args)
    if kind in SQUEEZING:
        context.conditions.update(dict.fromkeys(squeeze_conditions(context.metadata, node, bound), ""))
    if kind in ("aten::chunk", "aten::unsafe_chunk"):
        context.conditions.update(dict.fromkeys(chunk_conditions(context.metadata, bound), source_line(node)))
    context.metadata.taken.clear()
    result = with_met_sizes(context, overload, bound, context.call(overload, bound, keyword))
    result = with_equal_sizes(context, overload, result)
    if kind == "aten::slice":
        result = with_sliced_rows(context, bound, result)
    if kind == "aten::pow" and isinstance(result, Tensor):
        conditions = power_conditions(context, node, result.fake)
        context.conditions.update(dict.fromkeys(conditions, source_line(node)))
    return result


def _evaluated(context: ConversionContext, overload: torch._ops.OpOverload, args: Sequence[Any]) -> Any:
    """Return the result of an operator on Python values that are all known."""
    if overload._schema.is_mutable:
        # The operator gets a copy, so that what it changes would be lost.
        raise UnsupportedOperatorError("it changes a list or dict in a way that is not supported")
    bound, keyword = split_arguments(overload, [plain(arg) for arg in args])
    try:
        return from_python(context, overload(*bound, **keyword))
    except (RuntimeError, ValueError, ArithmeticError, IndexError) as error:
        raise ScriptValueError(f"The program fails here: {str(error).splitlines()[0]}") from error


# ---- the table


# What converts calls where their operands are not quantized, and the user gave nothing for them.
_OPERATORS: tuple[Row, ...] = (
    *PRIM_ROWS,
    Row(None, _convert_unreadable, _is_unreadable),
    Row(("aten::view", "aten::expand"), _convert_fitted, _is_fitted_view),
    *NUMBER_LIST_ROWS,
    *CONTAINER_ROWS,
    *SCALAR_ROWS,
    Row(None, _convert_operator),
)
_TABLE: tuple[Row, ...] = (
    CONSTANT_ROW,
    Row(("prim::If",), functools.partial(_flow, convert_if)),
    Row(("prim::Loop",), functools.partial(_flow, convert_loop)),
    Row(("prim::PythonOp",), convert_python_operator, is_noted=False),
    Row(None, _convert_translated, _is_translated),
    Row(None, _convert_symbolic, _has_symbolic),
    *QUANTIZED_ROWS,
    *_OPERATORS,
)


@functools.cache
def _rows(kind: str, table: tuple[Row, ...] = _TABLE) -> tuple[Row, ...]:
    """Return the rows that may take nodes of a kind."""
    return tuple(row for row in table if row.is_for(kind))
