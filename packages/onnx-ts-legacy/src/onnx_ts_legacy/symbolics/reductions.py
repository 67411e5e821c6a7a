"""Helpers of custom symbolics that reduce tensors; they are found in :mod:`onnx_ts_legacy.symbolic_helper`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from onnx_ts_legacy.enumerations import JitScalarType
from onnx_ts_legacy.symbolics.arguments import (
    _is_fp,
    _is_none,
    _overload_by_arg_count,
    _parse_arg,
    _try_get_scalar_type,
    parse_args,
)
from onnx_ts_legacy.symbolics.aten_functions import aten_function
from onnx_ts_legacy.symbolics.graph_context import GraphContext
from onnx_ts_legacy.symbolics.quantization import quantized_args
from onnx_ts_legacy.symbolics.values import SymbolicValue


def _maybe_cast_reduce_op_input(g: GraphContext, self: Any) -> Any:
    """Cast integers and booleans to INT64, as torch does before it reduces them."""
    kind = _try_get_scalar_type(self)
    if kind is None or kind == JitScalarType.INT64 or _is_fp(self):
        return self
    return g.op("Cast", self, to_i=int(JitScalarType.INT64.onnx_type()))


def _reduced(g: GraphContext, op_name: str, self: Any, axes: Sequence[int] | None, keepdim: bool) -> SymbolicValue:
    """Write a reduction in the form of the opset, whether its axes are an attribute there or an input."""
    op = g.builder.newest
    inputs = [g.value(self)] if axes is None else [g.value(self), op.vector(list(axes))]
    return SymbolicValue(getattr(op, op_name)(*inputs, keepdims=int(keepdim)), op_name)


def _handle_reduce_dim_none(g: GraphContext, self: Any, op_name: str) -> Any:
    return _reduced(g, op_name, self, None, keepdim=False)


def _reduce_op_symbolic_helper(onnx_op_name: str, allow_multi_dim_support: bool = True) -> Callable[..., Any]:
    """Return a symbolic for a reduction over all dimensions, over some (a list), or over one (a number)."""

    def symbolic(g: GraphContext, self: Any, dim: Any = None, keepdim: Any = None) -> Any:
        self = _maybe_cast_reduce_op_input(g, self)
        axes = None if _is_none(dim) else _parse_arg(dim, "is" if allow_multi_dim_support else "i", "dim")
        if axes is None or axes == []:
            return _handle_reduce_dim_none(g, self, onnx_op_name)
        kept = False if _is_none(keepdim) else bool(_parse_arg(keepdim, "i", "keepdim"))
        return _reduced(g, onnx_op_name, self, axes if isinstance(axes, list) else [axes], kept)

    return symbolic


def _reduce_with_dtype_helper(onnx_op: str, name: str, allow_multi_dim_support: bool = True) -> Callable[..., Any]:
    """Return a symbolic for a reduction whose call may say in which dtype it computes.

    The call is ``(self, dtype)`` or ``(self, dim, keepdim, dtype)``.
    """
    symbolic = _reduce_op_symbolic_helper(onnx_op, allow_multi_dim_support)

    def reduced(g: GraphContext, self: Any, dtype: int | None, *rest: Any) -> Any:
        if dtype is None:
            return symbolic(g, self, *rest)
        to = int(JitScalarType(dtype).onnx_type())
        return g.op("Cast", symbolic(g, g.op("Cast", self, to_i=to), *rest), to_i=to)

    @quantized_args(True)
    @parse_args("v", "i")
    def over_all(g: GraphContext, self: Any, dtype: int | None) -> Any:
        return reduced(g, self, dtype)

    @quantized_args(True)
    @parse_args("v", "is" if allow_multi_dim_support else "i", "i", "i")
    def over_some(g: GraphContext, self: Any, dim: Any, keepdim: int, dtype: int | None) -> Any:
        return reduced(g, self, dtype, dim, keepdim)

    def forms(g: GraphContext, *args: Any) -> tuple[Callable[..., Any], ...]:
        return over_all, over_some

    forms.__name__ = name
    return _overload_by_arg_count(forms)


def _extreme(g: GraphContext, name: str, self: Any, dim_or_y: Any, keepdim: Any) -> Any:
    """Return the extreme element, the extremes of two tensors, or those along a dimension with their indices."""
    op = g.builder.newest
    if _is_none(dim_or_y) and _is_none(keepdim):
        return _reduced(g, f"Reduce{name}", self, None, keepdim=False)
    if _is_none(keepdim):
        return SymbolicValue(getattr(op, name)(g.value(self), g.value(dim_or_y)), name)
    dim, kept = _parse_arg(dim_or_y, "i", "dim"), bool(_parse_arg(keepdim, "i", "keepdim"))
    return aten_function(name.lower())(g, self, dim, kept)


def _max_helper(g: GraphContext, self: Any, dim_or_y: Any = None, keepdim: Any = None) -> Any:
    return _extreme(g, "Max", self, dim_or_y, keepdim)


def _min_helper(g: GraphContext, self: Any, dim_or_y: Any = None, keepdim: Any = None) -> Any:
    return _extreme(g, "Min", self, dim_or_y, keepdim)


def _var_mean_helper(g: GraphContext, input: Any, dim: Any, correction: Any, keepdim: Any) -> Any:
    """Return the variance and the mean; without a correction the variance is divided by one less than the number."""
    axes = SymbolicValue(None) if _is_none(dim) else _parse_arg(dim, "is", "dim")
    offset = 1 if _is_none(correction) else _parse_arg(correction, "i", "correction")
    kept = False if _is_none(keepdim) else bool(_parse_arg(keepdim, "i", "keepdim"))
    return aten_function("var_mean")(g, input, axes, offset, kept)


def _linalg_vector_norm_helper(
    g: GraphContext, self: Any, ord: float, dim: Sequence[int] | None, keepdim: bool, dtype: Any
) -> Any:
    axes = SymbolicValue(None) if _is_none(dim) else _parse_arg(dim, "is", "dim")
    wanted = SymbolicValue(None) if _is_none(dtype) else _parse_arg(dtype, "i", "dtype")
    return aten_function("linalg_vector_norm")(g, self, float(ord), axes, bool(keepdim), wanted)
