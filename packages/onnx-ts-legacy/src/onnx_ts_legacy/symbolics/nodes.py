"""Nodes that custom symbolics write alike at all opsets; they are found in :mod:`onnx_ts_legacy.symbolic_helper`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from onnx_ts_legacy.enumerations import JitScalarType
from onnx_ts_legacy.errors import ScriptValueError
from onnx_ts_legacy.symbolics.arguments import (
    _constant_of,
    _get_tensor_dim_size,
    _get_tensor_rank,
    _is_fp,
    _is_none,
    _is_tensor,
    _is_value,
    _onnx_opset_unsupported_detailed,
    _parse_arg,
    _try_get_scalar_type,
    _unimplemented,
    _unpack_list,
)
from onnx_ts_legacy.symbolics.aten_functions import aten_function
from onnx_ts_legacy.symbolics.graph_context import GraphContext
from onnx_ts_legacy.symbolics.values import SymbolicValue


def _vector(g: GraphContext, numbers: Any) -> Any:
    return numbers if _is_value(numbers) else g.op("Constant", value_t=torch.tensor(list(numbers), dtype=torch.int64))


def _unsqueeze_helper(g: GraphContext, input: Any, axes_i: Sequence[int]) -> Any:
    if g.opset >= 13:
        return g.op("Unsqueeze", input, _vector(g, axes_i))
    return g.op("Unsqueeze", input, axes_i=list(axes_i))


def _squeeze_helper(g: GraphContext, input: Any, axes_i: Sequence[int]) -> Any:
    if g.opset >= 13:
        return g.op("Squeeze", input, _vector(g, axes_i))
    return g.op("Squeeze", input, axes_i=list(axes_i))


def _reducesum_helper(
    g: GraphContext,
    input: Any,
    axes_i: Sequence[int] | None = None,
    keepdims_i: int = 1,
    noop_with_empty_axes_i: int = 0,
) -> Any:
    if g.opset < 13:
        axes: dict[str, Any] = {} if axes_i is None else {"axes_i": list(axes_i)}
        return g.op("ReduceSum", input, keepdims_i=keepdims_i, **axes)
    inputs = [input] if axes_i is None else [input, _vector(g, axes_i)]
    return g.op("ReduceSum", *inputs, keepdims_i=keepdims_i, noop_with_empty_axes_i=noop_with_empty_axes_i)


def _reshape_helper(g: GraphContext, input: Any, shape: Any, allowzero: int = 0) -> Any:
    extra = {"allowzero_i": allowzero} if g.opset >= 14 else {}
    return g.op("Reshape", input, _vector(g, shape), **extra)


def _slice_helper(
    g: GraphContext, input: Any, axes: Any, starts: Any, ends: Any, steps: Any = None, dynamic_slice: bool = False
) -> Any:
    if g.opset < 10:
        if steps is not None and any(step != 1 for step in steps):
            _onnx_opset_unsupported_detailed("Slice", g.opset, 10, "steps")
        return g.op("Slice", input, axes_i=list(axes), starts_i=list(starts), ends_i=list(ends))
    parts = (starts, ends, axes) if steps is None else (starts, ends, axes, steps)
    return g.op("Slice", input, *(_at_least_vector(g, part) for part in parts))


def _at_least_vector(g: GraphContext, numbers: Any) -> Any:
    """Return a list, a vector or a single number as a vector."""
    vector = _vector(g, numbers)
    return _reshape_helper(g, vector, [1]) if _get_tensor_rank(vector) == 0 or not _is_tensor(vector) else vector


def _topk_helper(
    g: GraphContext, input: Any, k: Any, dim: int, largest: bool = True, sorted: bool = False, out: Any = None
) -> Any:
    if out is not None:
        _unimplemented("TopK", "an out argument")
    if g.opset < 10:
        return g.op("TopK", input, k_i=_parse_arg(k, "i"), axis_i=dim, outputs=2)
    count = _reshape_helper(g, k, [1]) if _is_value(k) else _vector(g, [k])
    if g.opset < 11:
        return g.op("TopK", input, count, axis_i=dim, outputs=2)
    return g.op("TopK", input, count, axis_i=dim, largest_i=int(largest), sorted_i=int(sorted), outputs=2)


def _sort_helper(g: GraphContext, input: Any, dim: int, descending: bool = True, out: Any = None) -> Any:
    size = _size_helper(g, input, dim)
    count = _reshape_helper(g, size, [1])
    if not descending and g.opset < 11:
        _unimplemented("Sort", "ascending order below opset 11")
    if g.opset < 10:
        return _topk_helper(g, input, _get_tensor_dim_size(input, dim), dim)
    return _topk_helper(g, input, count, dim, largest=descending, sorted=True, out=out)


def _flatten_helper(g: GraphContext, input: Any, start_dim: int, end_dim: int, dim: int) -> Any:
    if start_dim == 1 and end_dim == dim - 1:
        return g.op("Flatten", input, axis_i=1)
    first, last = [0] * start_dim, list(range(end_dim + 1, dim))
    shape = g.op("Shape", input)
    rest = [_reshape_helper(g, g.op("Gather", shape, _vector(g, [axis]), axis_i=0), [1]) for axis in last]
    return _reshape_helper(g, input, g.op("Concat", _vector(g, [*first, -1]), *rest, axis_i=0))


def _numel_helper(g: GraphContext, self: Any) -> Any:
    return g.op("Size", self)


def _select_helper(g: GraphContext, self: Any, dim: int, index: Any, apply_reshape: bool = True) -> Any:
    """Take one index along ``dim``, which stays as a dimension of size 1."""
    constant = _constant_of(index)
    if isinstance(constant, int) or (isinstance(constant, torch.Tensor) and constant.dim() == 0):
        index = g.op("Constant", value_t=torch.tensor([int(constant)], dtype=torch.int64))
    elif apply_reshape and _get_tensor_rank(index) == 0:
        index = _reshape_helper(g, index, [1])
    return g.op("Gather", self, index, axis_i=dim)


def _scatter_helper(g: GraphContext, self: Any, dim: int, index: Any, src: Any) -> Any:
    return g.op("Scatter" if g.opset < 11 else "ScatterElements", self, index, src, axis_i=dim)


def _argmin_argmax_helper(g: GraphContext, input: Any, dim: Any, keepdim: bool, op_name: str) -> Any:
    if _is_none(dim):
        return g.op(op_name, _reshape_helper(g, input, [-1]), axis_i=0, keepdims_i=0)
    return g.op(op_name, input, axis_i=_parse_arg(dim, "i"), keepdims_i=int(_parse_arg(keepdim, "i")))


def _generate_wrapped_number(g: GraphContext, scalar: float) -> Any:
    """Return a constant for a Python number, a DOUBLE for a float, as TorchScript wraps numbers."""
    dtype = torch.float64 if isinstance(scalar, float) else None
    return g.op("Constant", value_t=torch.tensor(scalar, dtype=dtype))


def _size_helper(g: GraphContext, self: Any, dim: Any) -> Any:
    shape = g.op("Shape", self)
    return g.op("Gather", shape, dim if _is_value(dim) else g.op("Constant", value_t=torch.tensor(dim)), axis_i=0)


def _maybe_cast_to_type(g: GraphContext, value: Any, jit_type: JitScalarType) -> Any:
    return value if _try_get_scalar_type(value) == jit_type else g.op("Cast", value, to_i=int(jit_type.onnx_type()))


def _if_scalar_type_as(self: Any, tensor: Any) -> Any:
    kind = _try_get_scalar_type(tensor)
    return self if _is_value(self) or kind is None else torch.tensor(self, dtype=kind.dtype())


def _optional_input_placeholder_tensor(g: GraphContext) -> SymbolicValue:
    """Return what stands for an input that is left out."""
    return SymbolicValue(None)


def _op_with_optional_float_cast(
    g: GraphContext,
    op_name: str,
    *args: Any,
    opset_before: int | None = None,
    target_float_t: JitScalarType = JitScalarType.FLOAT,
    **kwargs: Any,
) -> Any:
    """Write a node that takes floats only, below ``opset_before`` or always, on values that need not be floats."""
    kind = _try_get_scalar_type(args[0])
    if kind is None or _is_fp(args[0]) or (opset_before is not None and g.opset >= opset_before):
        return g.op(op_name, *args, **kwargs)
    kinds = {found for arg in args if (found := _try_get_scalar_type(arg)) is not None}
    if len(kinds) > 1:
        names = " and ".join(sorted(found.scalar_name() for found in kinds))
        raise ScriptValueError(f"The inputs of {op_name} need one dtype, but they are {names}; cast them first.")
    floats = [g.op("Cast", arg, to_i=int(target_float_t.onnx_type())) if _is_tensor(arg) else arg for arg in args]
    result = g.op(op_name, *floats, **kwargs)
    results = result if isinstance(result, tuple) else (result,)
    back = tuple(g.op("Cast", part, to_i=int(kind.onnx_type())) for part in results)
    return back if isinstance(result, tuple) else back[0]


# ---- whole operators


def _lt_helper(g: GraphContext, input: Any, other: Any) -> Any:
    return aten_function("lt")(g, input, other)


def _arange_helper(g: GraphContext, *args: Any) -> Any:
    return aten_function("arange")(g, *args)


def _arange_cast_helper(
    g: GraphContext, end: Any, start: Any = None, step: Any = None, dtype: Any = None
) -> tuple[JitScalarType, Any, Any, Any]:
    """Return the dtype of an ``arange``, and its end, start and step as values of that dtype."""
    bounds = (end, start, step)
    code = None if _is_none(dtype) else _parse_arg(dtype, "i")
    if code is not None:
        kind = JitScalarType(code)
    elif all(_try_get_scalar_type(bound) in (None, JitScalarType.INT64) for bound in bounds):
        kind = JitScalarType.INT64
    else:
        kind = JitScalarType.from_dtype(torch.get_default_dtype())
    cast = [None if _is_none(bound) else g.op("Cast", bound, to_i=int(kind.onnx_type())) for bound in bounds]
    return kind, cast[0], cast[1], cast[2]


def _unbind_helper(g: GraphContext, self: Any, dim: Any = 0, _outputs: int | None = None) -> Any:
    """Return the slices along ``dim``: as a list value, or as ``_outputs`` values."""
    result = aten_function("unbind")(g, self, dim)
    return result if _outputs is None else _unpack_list(result)


def _embedding_bag_helper(
    g: GraphContext,
    embedding_matrix: Any,
    indices: Any,
    offsets: Any,
    scale_grad_by_freq: Any,
    mode: int,
    sparse: Any,
    per_sample_weights: Any,
    include_last_offset: Any,
    padding_idx: Any,
) -> Any:
    """Return the results of ``aten::embedding_bag``, of which the first is the bags."""
    scaled, compact, closed = (
        bool(_parse_arg(flag, "b")) for flag in (scale_grad_by_freq, sparse, include_last_offset)
    )
    weights = SymbolicValue(None) if _is_none(per_sample_weights) else per_sample_weights
    padding = SymbolicValue(None) if _is_none(padding_idx) else _parse_arg(padding_idx, "i")
    call = aten_function("embedding_bag")
    return call(g, embedding_matrix, indices, offsets, scaled, mode, compact, weights, closed, padding)


def _avgpool_helper(
    tuple_fn: Callable[[Any], Sequence[int]],
    padding: int | Sequence[int],
    kernel_size: Any,
    stride: Any,
    divisor_override: Any,
    name: str,
) -> tuple[int, ...]:
    """Return the padding of an AveragePool, one number for each spatial axis; it has no divisor of its own."""
    if not _is_none(divisor_override):
        _unimplemented(name, "AveragePool divides by the size of the window, so that divisor_override has to be None")
    return tuple(tuple_fn(padding))


def _batchnorm_helper(
    g: GraphContext, input: Any, weight: Any, bias: Any, running_mean: Any, running_var: Any
) -> tuple[Any, Any, Any, Any]:
    """Return weight, bias, mean and variance of a BatchNormalization; those of the batch where there are none."""
    channels, kind = _get_tensor_dim_size(input, 1), _try_get_scalar_type(input)

    def filled(number: float) -> Any:
        if channels is None or kind is None:
            raise ScriptValueError("batch_norm without weight and bias needs a number of channels that is known here.")
        return g.op("Constant", value_t=torch.full((channels,), number, dtype=kind.dtype()))

    weight = filled(1.0) if _is_none(weight) else weight
    bias = filled(0.0) if _is_none(bias) else bias
    if _is_none(running_mean) or _is_none(running_var):
        rank = _get_tensor_rank(input) or 0
        axes = [axis for axis in range(rank) if axis != 1]
        running_var, running_mean = aten_function("var_mean")(g, input, axes, 0, False)
    return weight, bias, running_mean, running_var


def _index_fill_reshape_helper(g: GraphContext, self: Any, dim: Any, index: Any) -> tuple[Any, Any]:
    """Return the shape of the part of ``self`` that ``index`` picks along ``dim``, and ``index`` expanded to it."""
    rank = _get_tensor_rank(self)
    if rank is None:
        _unimplemented("index_fill", "the rank of its input is not known")
    axis = range(rank)[_parse_arg(dim, "i")]
    picked = _reshape_helper(g, index, [-1])
    shape = g.op("Shape", self)
    parts = [
        g.op("Shape", picked) if place == axis else g.op("Gather", shape, _vector(g, [place]), axis_i=0)
        for place in range(rank)
    ]
    full = g.op("Concat", *parts, axis_i=0)
    return full, g.op("Expand", _reshape_helper(g, picked, [-1 if place == axis else 1 for place in range(rank)]), full)


def _repeat_interleave_split_helper(g: GraphContext, self: Any, reps: int, dim: int) -> list[Any]:
    """Return the ``reps`` slices of size 1 along ``dim``."""
    if g.opset < 13:
        parts = g.op("Split", self, split_i=[1] * reps, axis_i=dim, outputs=reps)
    else:
        parts = g.op("Split", self, _vector(g, [1] * reps), axis_i=dim, outputs=reps)
    return [parts] if reps == 1 else list(parts)


def _repeat_interleave_single_value_repeat_helper(g: GraphContext, self: Any, repeats: Any, dim: int) -> Any:
    """Repeat each element along ``dim`` as often as ``repeats``, one number, tells."""
    rank = _get_tensor_rank(self)
    if rank is None:
        _unimplemented("repeat_interleave", "the rank of its input is not known")
    constant = _constant_of(repeats)
    count = repeats if constant is None else torch.as_tensor(constant).to(torch.int64)
    dim = range(rank)[dim]
    inner = _reshape_helper(g, g.op("Constant", value_t=count) if isinstance(count, torch.Tensor) else count, [1])
    before, after = ([_vector(g, [1] * size)] if size else [] for size in (dim + 1, rank - dim - 1))
    tiled = g.op("Tile", _unsqueeze_helper(g, self, [dim + 1]), g.op("Concat", *before, inner, *after, axis_i=0))
    return aten_function("flatten")(g, tiled, dim, dim + 1)
