"""Inputs of custom symbolics: their constants, questions about them, refusals.

The functions are found in :mod:`onnx_ts_legacy.symbolic_helper`.
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
from onnx_ts_legacy.state.values import ListRef, Tensor
from onnx_ts_legacy.symbolics.graph_context import GraphContext
from onnx_ts_legacy.symbolics.values import SymbolicValue
from onnxops_decomp import LoweringError, UnsupportedOpsetError

F = TypeVar("F", bound=Callable[..., Any])


# ---- arguments


def parse_args(*arg_descriptors: str) -> Callable[[F], F]:
    """Return a decorator that turns the inputs of a symbolic into what it works with.

    Args:
        arg_descriptors: One for each input after ``g``: ``"v"`` keeps the value; ``"i"``, ``"f"``, ``"s"``, ``"b"``,
            ``"t"`` read a constant as int, float, string, bool, tensor; ``"is"``, ``"fs"`` a list; ``"none"`` keeps
            what the function does not use.

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
    if descriptor in ("v", "none"):
        return value
    constant = _constant_of(value)
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
        raise ScriptValueError(f"{descriptor!r} is not a descriptor of a symbolic's input.")
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
    if _is_value(value) and isinstance(constant, bool | int | float):
        return torch.tensor(constant)
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
