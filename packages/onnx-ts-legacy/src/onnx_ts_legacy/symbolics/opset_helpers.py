"""Functions of the modules ``symbolic_opset7`` and so on that are not ATen operators but that symbolics call."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

import torch

from onnx_ts_legacy.enumerations import JitScalarType
from onnx_ts_legacy.errors import ScriptValueError
from onnx_ts_legacy.quantization.modules import convert_module_call
from onnx_ts_legacy.symbolics.arguments import (
    _constant_of,
    _get_tensor_dim_size,
    _is_none,
    _onnx_unsupported,
    _parse_arg,
    _try_get_scalar_type,
    _unpack_list,
    is_complex_value,
)
from onnx_ts_legacy.symbolics.aten_functions import aten_function, variable_of
from onnx_ts_legacy.symbolics.graph_context import GraphContext
from onnx_ts_legacy.symbolics.nodes import _optional_input_placeholder_tensor, _slice_helper
from onnx_ts_legacy.symbolics.reductions import (
    _max_helper,
    _min_helper,
    _reduce_op_symbolic_helper,
    _reduce_with_dtype_helper,
    _var_mean_helper,
)
from onnx_ts_legacy.symbolics.values import SymbolicValue

__all__ = ["opset_helper"]

# From this opset on the paddings of a Pad are an input.
_PADS_ARE_AN_INPUT = 11
_QUANTIZED = "quantized_"


def opset_helper(name: str, opset: int) -> Callable[..., Any] | None:
    """Return a function of the module of an opset that is not an ATen operator, or None."""
    if name == "_prepare_onnx_paddings":
        return _paddings_as_value if opset >= _PADS_ARE_AN_INPUT else _paddings_as_list
    if name.startswith(_QUANTIZED) and not hasattr(torch.ops.aten, name):
        return _quantized_function(name.removeprefix(_QUANTIZED))
    return _HELPERS.get(name)


def _quantized_function(name: str) -> Callable[..., Any] | None:
    """Return what converts a call of ``quantized::<name>``; it takes the operator's own arguments."""
    if not hasattr(torch.ops.quantized, name):
        return None

    def symbolic(g: GraphContext, *args: Any) -> Any:
        variables = [variable_of(g, arg) for arg in args]
        with g.writing():
            return SymbolicValue(convert_module_call(g.context, f"quantized::{name}", variables))

    symbolic.__name__ = symbolic.__qualname__ = f"quantized_{name}"
    symbolic.__doc__ = f"Convert a call of ``quantized::{name}``."
    return symbolic


# ---- padding


def _onnx_order(dim: int, count: int) -> list[int]:
    """Return which of torch's paddings each of ONNX's is; those of axes that torch does not pad are ``count``."""
    begins = [2 * (dim - 1 - axis) for axis in range(dim)]
    return [place if place < count else count for place in (*begins, *(begin + 1 for begin in begins))]


def _paddings_as_list(dim: int, pad: Sequence[int]) -> list[int]:
    """Return torch's paddings in the order of ONNX: all begins, then all ends."""
    return [[*pad, 0][place] for place in _onnx_order(dim, len(pad))]


def _paddings_as_value(g: GraphContext, input: Any, pad: Any) -> Any:
    """Return torch's paddings in the order of ONNX as INT64 of length 2 * rank."""
    rank = input.type().dim()
    vector = SymbolicValue(g.value(pad))
    sizes = vector.type().sizes()
    if rank is None or sizes is None:
        raise ScriptValueError("The rank of what is padded, and the number of paddings, have to be known here.")
    order = g.op("Constant", value_t=torch.tensor(_onnx_order(rank, sizes[0])))
    zero = g.op("Constant", value_t=torch.tensor([0]))
    return g.op("Gather", g.op("Concat", g.op("Cast", vector, to_i=7), zero, axis_i=0), order, axis_i=0)


def _convert_padding_node(input: Any) -> list[int]:
    """Return the numbers of a list of paddings."""
    numbers = _constant_of(input)
    if numbers is None:
        raise ScriptValueError("The paddings have to be constants here; from opset 11 on Pad takes them as an input.")
    return [int(number) for number in numbers]


def _padding_function(kind: str) -> Callable[..., Any]:
    def symbolic(g: GraphContext, input: Any, padding: Any) -> Any:
        numbers = variable_of(g, padding)
        count = len(getattr(numbers, "items", numbers))
        return aten_function(f"{kind}{count // 2}d")(g, input, padding)

    return symbolic


# ---- arithmetic and structure


def _slice(g: GraphContext, input: Any, axes: Any, starts: Any, ends: Any, steps: Any = None) -> Any:
    """Write a Slice in the form of the opset."""
    return _slice_helper(g, input, axes, starts, ends, steps)


def _divided(rounding: str) -> Callable[..., Any]:
    def symbolic(g: GraphContext, self: Any, other: Any) -> Any:
        return aten_function("div")(g, self, other, rounding)

    return symbolic


def _div_rounding_mode(g: GraphContext, self: Any, other: Any, rounding_mode: Any) -> Any:
    return aten_function("div")(g, self, other, rounding_mode)


def _tanhshrink(g: GraphContext, self: Any) -> Any:
    return aten_function("sub")(g, self, aten_function("tanh")(g, self))


def _dtype(g: GraphContext, self: Any) -> Any:
    """Return the number of a dtype in TorchScript."""
    kind = _try_get_scalar_type(self)
    if kind is None:
        raise ScriptValueError("The dtype of the value is not known here.")
    return g.op("Constant", value_t=torch.tensor(int(kind)))


def _split(g: GraphContext, self: Any, split_size: int, dim: int) -> Any:
    """Return parts of ``split_size`` elements along ``dim``, the last one of those that are left."""
    if _get_tensor_dim_size(self, dim) is None:
        raise ScriptValueError("The size that is split has to be known here.")
    return tuple(_unpack_list(aten_function("split")(g, self, split_size, dim)))


def _chunk(g: GraphContext, self: Any, chunks: int, dim: int) -> Any:
    return tuple(_unpack_list(aten_function("chunk")(g, self, chunks, dim)))


# ---- logic


def _cast_to(to_type: str) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Return a decorator that casts both operands of a function to a dtype, given by its name in TorchScript."""
    code = JitScalarType.from_name(to_type).onnx_type()

    def decorate(function: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(function)
        def symbolic(g: GraphContext, input: Any, other: Any) -> Any:
            return function(g, g.op("Cast", input, to_i=code), g.op("Cast", other, to_i=code))

        return symbolic

    return decorate


def _negated(function: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(function)
    def symbolic(g: GraphContext, input: Any, other: Any) -> Any:
        return g.op("Not", function(g, input, other))

    return symbolic


def _is(g: GraphContext, self: Any, other: Any) -> Any:
    """Tell whether a value is None, or equals another one."""
    if _is_none(other):
        return g.op("Constant", value_t=torch.tensor(_is_none(self)))
    return aten_function("eq")(g, self, other)


def _real(g: GraphContext, self: Any) -> Any:
    """Return a real value as it is.

    Raises:
        LoweringError: If it is complex.
    """
    if is_complex_value(self):
        _onnx_unsupported("the conjugate of a complex tensor", self)
    return self


_HELPERS: dict[str, Callable[..., Any]] = {
    "unused": _optional_input_placeholder_tensor,
    "_slice": _slice,
    "_convert_padding_node": _convert_padding_node,
    "reflection_pad": _padding_function("reflection_pad"),
    "replication_pad": _padding_function("replication_pad"),
    "_div_rounding_mode": _div_rounding_mode,
    "_floor_divide": _divided("floor"),
    "_trunc_divide": _divided("trunc"),
    "tanhshrink": _tanhshrink,
    "_var_mean": _var_mean_helper,
    "_reduce_op_symbolic": _reduce_op_symbolic_helper,
    "_reduce_with_dtype": _reduce_with_dtype_helper,
    "wrap_logical_op_with_cast_to": _cast_to,
    "wrap_logical_op_with_negation": _negated,
    "aten__is_": _is,
    "aten__isnot_": _negated(_is),
    "noop_complex_operators": lambda g, input: input,
    "unsupported_complex_operators": _real,
    "convert_element_type": lambda g, self, dtype, *args: g.op(
        "Cast", self, to_i=JitScalarType(_parse_arg(dtype, "i")).onnx_type()
    ),
    "prim_layout": lambda g, self: g.op("Constant", value_t=torch.tensor(0)),
    "prim_tolist": lambda g, input, dim_val, elem_ty_val: input,
    "prim_shape": lambda g, self: g.op("Shape", self),
    "prim_data": lambda g, self: self,
    "prim_unchecked_cast": lambda g, self: self,
    "prim_dtype": _dtype,
    "prim_max": lambda g, self, other: _max_helper(g, self, other),
    "prim_min": lambda g, self, other: _min_helper(g, self, other),
    "prim_constant_split": _split,
    "prim_constant_chunk": _chunk,
    "prim_list_unpack": lambda g, *inputs, **options: tuple(_unpack_list(inputs[0])),
}
