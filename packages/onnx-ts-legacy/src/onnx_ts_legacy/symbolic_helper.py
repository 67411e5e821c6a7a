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
from onnx_ts_legacy.symbolic_values import SymbolicValue
from onnx_ts_legacy.values import ListRef, Tensor
from onnxops_decomp.errors import LoweringError, UnsupportedOpsetError

__all__ = [
    "cast_pytorch_to_onnx",
    "parse_args",
    "pytorch_name_to_type",
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

        return wrapper  # type: ignore[return-value]

    return decorate


def quantized_args(*arg_q_descriptors: bool, **_: Any) -> Callable[[F], F]:
    """Kept for compatibility: quantized inputs are dequantized before a symbolic sees them."""
    return lambda function: function


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


def _size_helper(g: GraphContext, self: Any, dim: Any) -> Any:
    shape = g.op("Shape", self)
    return g.op("Gather", shape, g.op("Constant", value_t=torch.tensor(dim)), axis_i=0)


def _maybe_cast_to_type(g: GraphContext, value: Any, jit_type: JitScalarType) -> Any:
    return value if _try_get_scalar_type(value) == jit_type else g.op("Cast", value, to_i=int(jit_type.onnx_type()))


def _if_scalar_type_as(self: Any, tensor: Any) -> Any:
    kind = _try_get_scalar_type(tensor)
    return self if _is_value(self) or kind is None else torch.tensor(self, dtype=kind.dtype())
