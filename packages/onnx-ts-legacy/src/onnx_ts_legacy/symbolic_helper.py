"""Helpers for custom symbolics, under the names that published ones import them by.

Values are those of :mod:`onnx_ts_legacy.symbolic_values`; what a helper writes, it writes with ``g.op`` in the form of
the requested opset.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Sequence
from typing import Any, NoReturn, TypeVar

import numpy as np
import torch

from onnx_ts_legacy.enumerations import JitScalarType
from onnx_ts_legacy.errors import ScriptValueError
from onnx_ts_legacy.graph_context import GraphContext
from onnx_ts_legacy.quantized_values import Quantized, dequantize, quantize
from onnx_ts_legacy.symbolic_interpolation import interpolation_warning as _interpolate_warning
from onnx_ts_legacy.symbolic_interpolation import scales_of_factors as _interpolate_get_scales_if_available
from onnx_ts_legacy.symbolic_interpolation import scales_of_sizes as _interpolate_size_to_scales
from onnx_ts_legacy.symbolic_values import SymbolicValue
from onnx_ts_legacy.values import ListRef, Tensor
from onnxops_decomp.errors import LoweringError, UnsupportedOpsetError
from onnxops_decomp.schemas import NEWEST_OPSET, OLDEST_OPSET

__all__ = [
    "_interpolate_get_scales_if_available",
    "_interpolate_size_to_scales",
    "_interpolate_warning",
    "args_have_same_dtype",
    "cast_pytorch_to_onnx",
    "check_training_mode",
    "dequantize_helper",
    "is_complex_value",
    "parse_args",
    "pytorch_name_to_type",
    "quantize_helper",
    "quantized_args",
    "scalar_type_to_onnx",
    "scalar_type_to_pytorch_type",
]

F = TypeVar("F", bound=Callable[..., Any])

cast_pytorch_to_onnx = {
    kind.scalar_name(): kind.onnx_type()
    for kind in JitScalarType
    if kind.onnx_compatible() and kind is not JitScalarType.COMPLEX32
}
pytorch_name_to_type = {
    kind.scalar_name(): kind.dtype() for kind in JitScalarType if kind is not JitScalarType.UNDEFINED
}
scalar_type_to_pytorch_type = [JitScalarType(code).dtype() for code in range(16)]
scalar_type_to_onnx = [
    JitScalarType(code).onnx_type() if JitScalarType(code).onnx_compatible() else None for code in range(16)
]

_onnx_main_opset = NEWEST_OPSET
_onnx_stable_opsets = list(range(OLDEST_OPSET, NEWEST_OPSET))


# ---- arguments


def parse_args(*arg_descriptors: str) -> Callable[[F], F]:
    """Return a decorator that turns the inputs of a symbolic into what it works with.

    Args:
        arg_descriptors: One for each input after ``g``: ``"v"`` keeps the value; ``"i"``, ``"f"``, ``"s"``, ``"b"``,
            ``"t"`` read a constant as int, float, string, bool, tensor; ``"is"``, ``"fs"`` a list; ``"none"`` asserts
            that the input is None.

    Raises:
        ScriptValueError: When called, if an input is not the constant that was asked for.
    """

    def decorate(function: F) -> F:
        @functools.wraps(function)
        def wrapper(g: GraphContext, *args: Any, **kwargs: Any) -> Any:
            if len(args) > len(arg_descriptors):
                raise ScriptValueError(
                    f"{function.__name__} takes {len(arg_descriptors)} inputs, but the operator has {len(args)}."
                )
            names = list(inspect.signature(function).parameters)[1:]
            parsed = [
                _parse_arg(arg, descriptor, name)
                for arg, descriptor, name in zip(args, arg_descriptors, [*names, *arg_descriptors], strict=False)
            ]
            return function(g, *parsed, **kwargs)

        wrapper._arg_descriptors = arg_descriptors  # type: ignore[attr-defined]
        return wrapper  # type: ignore[return-value]

    return decorate


def quantized_args(
    *arg_q_descriptors: bool,
    scale: float | None = None,
    zero_point: int | None = None,
    quantize_output: bool = True,
) -> Callable[[F], F]:
    """Return a decorator that lets a symbolic written for floats take quantized inputs.

    Args:
        arg_q_descriptors: For each input after ``g``, whether it may be quantized.
        scale: Scale of the result; that of the first quantized input if left out.
        zero_point: Zero point of the result, likewise.
        quantize_output: Whether the result is quantized.
    """

    def decorate(function: F) -> F:
        @functools.wraps(function)
        def wrapper(g: GraphContext, *args: Any, **kwargs: Any) -> Any:
            flags = (*arg_q_descriptors, *(False for _ in args))
            chosen = [flag and _is_quantized(arg) for flag, arg in zip(flags, args, strict=False)]
            like = next((arg.variable for arg, taken in zip(args, chosen, strict=True) if taken), None)
            if like is None:
                return function(g, *args, **kwargs)
            floats = [_dequantized(g, arg) if taken else arg for arg, taken in zip(args, chosen, strict=True)]
            result = function(g, *floats, **kwargs)
            if not quantize_output:
                return result
            return _requantized(
                g,
                result,
                like.dtype,
                like.scale if scale is None else scale,
                like.zero_point if zero_point is None else zero_point,
                like.axis if scale is None else None,
            )

        return wrapper  # type: ignore[return-value]

    return decorate


def _is_quantized(value: Any) -> bool:
    return isinstance(value, SymbolicValue) and isinstance(value.variable, Quantized)


def _dequantized(g: GraphContext, value: Any) -> SymbolicValue:
    return SymbolicValue(dequantize(g.interpreter, value.variable))


def _requantized(g: GraphContext, value: Any, dtype: torch.dtype, scale: Any, zero_point: Any, axis: Any) -> Any:
    variable = value.variable
    if not isinstance(variable, Tensor):
        variable = g.interpreter.fresh(variable, g.interpreter.described(variable, "a symbolic"))
    return SymbolicValue(quantize(g.interpreter, variable, dtype, scale, zero_point, axis))


def dequantize_helper(g: GraphContext, qtensor: Any, qdtype: Any = None) -> tuple[Any, Any, Any, Any]:
    """Return a quantized input as floats, and its scale, zero point and axis."""
    quantized = qtensor.variable
    return _dequantized(g, qtensor), quantized.scale, quantized.zero_point, quantized.axis


def quantize_helper(g: GraphContext, tensor: Any, scale: Any, zero_point: Any, axis: Any = None) -> Any:
    """Return a float value quantized to ``quint8``."""
    return _requantized(g, tensor, torch.quint8, _number_of(scale), _number_of(zero_point), axis)


def _number_of(value: Any) -> Any:
    constant = _constant_of(value)
    return constant.tolist() if isinstance(constant, torch.Tensor) else constant


def _overload_by_arg_count(function: Callable[..., Sequence[Callable[..., Any]]]) -> Callable[..., Any]:
    """Call, of the functions that ``function`` returns, the one that is declared for as many inputs as there are."""

    @functools.wraps(function)
    def wrapper(g: GraphContext, *args: Any) -> Any:
        for overload in function(g, *args):
            if len(getattr(overload, "_arg_descriptors", ())) == len(args):
                return overload(g, *args)
        raise ScriptValueError(f"{function.__name__} has no form with {len(args)} inputs.")

    return wrapper


def _parse_arg(value: Any, descriptor: str, name: str = "argument") -> Any:
    if descriptor == "v":
        return value
    constant = _constant_of(value)
    if descriptor == "none":
        if constant is not None:
            raise ScriptValueError(f"Input {name!r} of a symbolic has to be None.")
        return None
    if constant is None:
        if _is_none(value):
            return None
        raise ScriptValueError(
            f"Input {name!r} of a symbolic has to be a constant, but the runtime computes it; "
            "take it as a value ('v'), or make it a constant in the model."
        )
    return _converted(constant, descriptor, name)


def _converted(constant: Any, descriptor: str, name: str) -> Any:
    if descriptor == "t":
        return torch.as_tensor(constant)
    if isinstance(constant, torch.Tensor):
        constant = constant.tolist()
    kinds: dict[str, Callable[[Any], Any]] = {"i": int, "f": float, "s": str, "b": bool, "is": int, "fs": float}
    if descriptor not in kinds:
        raise ScriptValueError(f"{descriptor!r} is no descriptor of a symbolic's input.")
    if descriptor in ("is", "fs"):
        items = constant if isinstance(constant, list | tuple) else [constant]
        return [kinds[descriptor](item) for item in items]
    try:
        return kinds[descriptor](constant)
    except (TypeError, ValueError):
        raise ScriptValueError(f"Input {name!r} of a symbolic is {constant!r}, not of kind {descriptor!r}.") from None


def _constant_of(value: Any) -> Any:
    """Return the Python value of a constant, or None."""
    if not isinstance(value, SymbolicValue):
        return value
    if value.static is not None:
        return value.static
    variable = value.variable
    if isinstance(variable, ListRef | tuple):
        items = [
            _constant_of(SymbolicValue(item))
            for item in (variable.items if isinstance(variable, ListRef) else variable)
        ]
        return None if any(item is None for item in items) else [_plain(item) for item in items]
    if isinstance(variable, bool | int | float | str | torch.dtype | torch.device):
        return variable
    return _tensor_constant(value)


def _tensor_constant(value: SymbolicValue) -> torch.Tensor | None:
    variable = value.variable
    if isinstance(variable, Tensor):
        content = variable.storage.state
        if content.value is None:
            return torch.tensor(content.number) if isinstance(content.number, int) else None
        variable = content.value
    source = getattr(variable, "const_value", None)
    return None if source is None or source.size > 4096 else torch.from_numpy(np.array(source.numpy()))


def _plain(item: Any) -> Any:
    return item.item() if isinstance(item, torch.Tensor) and item.dim() == 0 else item


def _get_const(value: Any, desc: str, arg_name: str) -> Any:
    return _parse_arg(value, desc, arg_name)


def _maybe_get_const(value: Any, descriptor: str) -> Any:
    constant = _constant_of(value)
    return value if constant is None and not _is_none(value) else _parse_arg(value, descriptor)


def _maybe_get_scalar(value: Any) -> Any:
    constant = _constant_of(value)
    return constant if isinstance(constant, torch.Tensor) and constant.dim() == 0 else value


def _unpack_list(list_value: Any) -> list[Any]:
    return list(list_value.node().inputs())


def _unpack_tuple(tuple_value: Any) -> tuple[Any, ...]:
    return tuple(tuple_value.node().inputs())


# ---- questions


def _is_value(x: Any) -> bool:
    return isinstance(x, SymbolicValue)


def _is_none(x: Any) -> bool:
    return x is None or (isinstance(x, SymbolicValue) and x.node().mustBeNone())


def _is_constant(value: Any) -> bool:
    return not _is_value(value) or value.node().kind() in ("onnx::Constant", "prim::Constant")


def _is_tensor(x: Any) -> bool:
    return _is_value(x) and x.type().kind() == "TensorType"


def _is_list(x: Any) -> bool:
    return _is_value(x) and x.type().kind() == "ListType"


def _is_tensor_list(x: Any) -> bool:
    return _is_list(x) and x.type().getElementType().kind() == "TensorType"


def _is_scalar_list(x: Any) -> bool:
    return _is_list(x) and x.type().getElementType().kind() in ("IntType", "FloatType", "BoolType")


def _is_onnx_constant(value: Any) -> bool:
    return bool(value.node().kind() == "onnx::Constant")


def _is_split_static(split_size_or_sizes: Any, _outputs: Any) -> bool:
    if _outputs is None or (_is_value(split_size_or_sizes) and not _is_constant(split_size_or_sizes)):
        static = _is_packed_list(split_size_or_sizes) and _constant_of(split_size_or_sizes) is not None
        return _outputs is not None and static
    return True


def is_complex_value(x: Any) -> bool:
    """Tell whether a value is a complex tensor."""
    kind = _try_get_scalar_type(x)
    return kind is not None and kind.dtype().is_complex


def args_have_same_dtype(args: Sequence[Any]) -> bool:
    """Tell whether all values have the dtype of the first."""
    return len({_try_get_scalar_type(arg) for arg in args}) <= 1


def _node_get(node: Any, key: str) -> Any:
    return node[key]


def _is_packed_list(list_value: Any) -> bool:
    return _is_value(list_value) and list_value.node().kind() == "prim::ListConstruct"


def _is_tuple_construct(x: Any) -> bool:
    return _is_value(x) and x.node().kind() == "prim::TupleConstruct"


def _try_get_scalar_type(*args: Any) -> JitScalarType | None:
    for arg in args:
        found: JitScalarType = JitScalarType.from_value(arg, JitScalarType.UNDEFINED)
        if found != JitScalarType.UNDEFINED:
            return found
    return None


def _is_fp(value: Any) -> bool:
    kind = _try_get_scalar_type(value)
    return kind is not None and kind.dtype().is_floating_point


def _is_bool(value: Any) -> bool:
    return _try_get_scalar_type(value) == JitScalarType.BOOL


def _is_in_type_group(value: Any, scalar_types: Sequence[JitScalarType]) -> bool:
    return _try_get_scalar_type(value) in scalar_types


def _type_promote_from_values(*args: Any) -> JitScalarType:
    kinds = [kind for arg in args if (kind := _try_get_scalar_type(arg)) is not None]
    dtype = functools.reduce(torch.promote_types, (kind.dtype() for kind in kinds))
    return JitScalarType.from_dtype(dtype)


def _get_tensor_rank(x: Any) -> int | None:
    if not _is_tensor(x):
        return None
    rank: int | None = x.type().dim()
    return rank


def _get_tensor_sizes(x: Any, allow_nonstatic: bool = True) -> list[int | None] | None:
    if not _is_tensor(x):
        return None
    kind = x.type()
    sizes: list[int | None] | None = kind.varyingSizes() if allow_nonstatic else kind.sizes()
    return sizes


def _get_tensor_dim_size(x: Any, dim: int) -> int | None:
    sizes = _get_tensor_sizes(x)
    return sizes[dim] if sizes else None


def _get_dim_for_cross(x: Any, dim: int | None) -> int | None:
    if dim is not None and dim != -1:
        return dim
    sizes = _get_tensor_sizes(x) or []
    return next((index for index, size in enumerate(sizes) if size == 3), None)


def check_training_mode(op_train_mode: int, op_name: str) -> None:
    """Kept for compatibility: the mode of an operator is that of its module, which the user chose."""


def _scalar(x: torch.Tensor) -> bool | int | float:
    return x.item()


# ---- refusals


def _unimplemented(op: str, msg: str, value: Any = None) -> NoReturn:
    raise LoweringError(f"{op} cannot be converted: {msg}.")


def _onnx_unsupported(op_name: str, value: Any = None) -> NoReturn:
    raise LoweringError(f"{op_name} has no ONNX form.")


def _onnx_opset_unsupported(op_name: str, current_opset: int, supported_opset: int, value: Any = None) -> NoReturn:
    raise UnsupportedOpsetError(op_name, current_opset, lowest=supported_opset)


def _onnx_opset_unsupported_detailed(
    op_name: str, current_opset: int, supported_opset: int, reason: str, value: Any = None
) -> NoReturn:
    raise UnsupportedOpsetError(op_name, current_opset, lowest=supported_opset, reason=reason)


def _block_list_in_opset(name: str) -> Callable[..., NoReturn]:
    def refuse(*args: Any, **kwargs: Any) -> NoReturn:
        raise LoweringError(f"{name} cannot be converted at this opset.")

    return refuse


_black_list_in_opset = _block_list_in_opset


# ---- nodes that are written differently from opset to opset


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
    inputs = [_vector(g, part) for part in (starts, ends, axes)]
    return g.op("Slice", input, *inputs, *([] if steps is None else [_vector(g, steps)]))


def _topk_helper(
    g: GraphContext, input: Any, k: Any, dim: int, largest: bool = True, sorted: bool = False, out: Any = None
) -> Any:
    if out is not None:
        _unimplemented("TopK", "an out argument")
    if g.opset < 10:
        return g.op("TopK", input, k_i=int(k), axis_i=dim, outputs=2)
    count = k if _is_value(k) else g.op("Constant", value_t=torch.tensor([k], dtype=torch.int64))
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
    return g.op("Gather", shape, g.op("Constant", value_t=torch.tensor(dim)), axis_i=0)


def _maybe_cast_to_type(g: GraphContext, value: Any, jit_type: JitScalarType) -> Any:
    return value if _try_get_scalar_type(value) == jit_type else g.op("Cast", value, to_i=int(jit_type.onnx_type()))


def _if_scalar_type_as(self: Any, tensor: Any) -> Any:
    kind = _try_get_scalar_type(tensor)
    return self if _is_value(self) or kind is None else torch.tensor(self, dtype=kind.dtype())
