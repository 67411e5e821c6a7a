"""Dtypes on the way from torch to ONNX, and torch's type promotion over values whose dtype ONNX knows."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache, wraps
from inspect import signature
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar, cast

import onnx_ir as ir
import torch

from onnxops_core.exporting import onnx_dtype, torch_dtype
from onnxops_decomp.builder.constants import NUMBER_KEY, is_number, is_value

if TYPE_CHECKING:
    from onnxops_decomp.builder.op_builder import OpBuilder

__all__ = [
    "Affine",
    "affine_of",
    "is_complex",
    "leave_complex_open",
    "mark_complex",
    "mark_number",
    "mark_quantized",
    "promote",
    "promoted",
    "real_contents",
    "result_dtype",
    "settle_complex",
    "to_ir",
    "to_torch",
]

_COMPLEX_KEY = "onnxops_decomp.complex"
_OPEN_KEY = "onnxops.complex_open"
_AFFINE_KEY = "onnxops_decomp.affine"
_STORAGE = {torch.qint8: torch.int8, torch.quint8: torch.uint8, torch.qint32: torch.int32}

Operand = ir.Value | bool | int | float
F = TypeVar("F", bound=Callable[..., Any])


def to_ir(dtype: torch.dtype) -> ir.DataType:
    """Return the ONNX dtype of a torch dtype; a complex one gives that of its parts, a quantized one its integers'."""
    return ir.DataType(onnx_dtype(dtype.to_real() if dtype.is_complex else _STORAGE.get(dtype, dtype)))


def to_torch(dtype: ir.DataType) -> torch.dtype:
    """Return the torch dtype of an ONNX dtype."""
    return torch_dtype(int(dtype))


def mark_complex(value: ir.Value) -> ir.Value:
    """Mark a real value whose last dimension holds (real, imaginary) as a complex tensor."""
    value.meta[_COMPLEX_KEY] = True
    return value


def leave_complex_open(value: ir.Value) -> ir.Value:
    """Leave it to torch whether a value is a complex tensor: see :func:`settle_complex`."""
    value.meta[_OPEN_KEY] = True
    return value


def settle_complex(value: ir.Value) -> bool:
    """Mark a value as complex if that was left open; tell whether it is complex then."""
    return is_complex(mark_complex(value) if _OPEN_KEY in value.meta else value)


def is_complex(value: object) -> bool:
    """Tell whether ``value`` stands for a complex tensor."""
    return is_value(value) and _COMPLEX_KEY in value.meta


def real_contents(tensor: torch.Tensor) -> torch.Tensor:
    """Return a tensor as ONNX holds it: pairs in place of complex numbers, and no conjugates that torch puts off.

    Args:
        tensor: Any shape and dtype; one that is real and holds its own numbers is returned as a view.
    """
    own = tensor.detach().resolve_conj().resolve_neg()
    return torch.view_as_real(own) if own.is_complex() else own


class Affine(NamedTuple):
    """What the integers of a quantized tensor stand for.

    Attributes:
        scale: FLOAT, 0-d.
        zero_point: In the dtype of the integers, 0-d.
    """

    scale: ir.Value
    zero_point: ir.Value


def mark_quantized(value: ir.Value, affine: Affine) -> ir.Value:
    """Mark a value as the integers of a quantized tensor of torch."""
    value.meta[_AFFINE_KEY] = affine
    return value


def affine_of(value: object) -> Affine | None:
    """Return what the integers of a quantized tensor stand for; None if ``value`` is not a quantized tensor."""
    return value.meta[_AFFINE_KEY] if is_value(value) and _AFFINE_KEY in value.meta else None


def mark_number(value: ir.Value) -> ir.Value:
    """Mark a 0-d value as a Python number of the model, which promotes like a literal and not like a tensor."""
    value.meta[NUMBER_KEY] = True
    return value


def _category(value: Operand) -> tuple[int, torch.dtype]:
    """Return the priority of an operand in type promotion and its dtype."""
    if isinstance(value, ir.Value):
        assert value.dtype is not None
        if is_number(value):
            kind = torch.get_default_dtype() if value.dtype.is_floating_point() else to_torch(value.dtype)
            return 0, kind
        rank_zero = value.shape is not None and len(value.shape) == 0
        return (1 if rank_zero else 2), to_torch(value.dtype)
    if isinstance(value, bool):
        return 0, torch.bool
    return 0, torch.int64 if isinstance(value, int) else torch.get_default_dtype()


def _kind(dtype: torch.dtype) -> int:
    if dtype.is_floating_point:
        return 2
    return 0 if dtype == torch.bool else 1


# torch takes as long for it as the rest of a call takes to convert.
_promoted = cache(torch.promote_types)


def result_dtype(*operands: Operand) -> ir.DataType:
    """Return the dtype that torch computes ``operands`` in.

    Tensors with dimensions take precedence over 0-d ones, and those over Python numbers, unless the lesser kind is
    of a higher category (bool < integral < floating). See "Type promotion" in the PyTorch documentation of tensor
    attributes.
    """
    ranked: list[torch.dtype | None] = [None, None, None]
    for operand in operands:
        priority, dtype = _category(operand)
        known = ranked[priority]
        ranked[priority] = dtype if known is None else _promoted(known, dtype)
    number, zero_dim, dimensioned = ranked
    result = dimensioned
    for lesser in (zero_dim, number):
        if lesser is None:
            continue
        result = lesser if result is None else (_promoted(result, lesser) if _kind(lesser) > _kind(result) else result)
    assert result is not None
    return to_ir(result)


def promote(op: OpBuilder, *operands: Operand, dtype: ir.DataType | None = None) -> list[ir.Value]:
    """Bring operands to the dtype that torch computes them in, or to ``dtype``; numbers become 0-d constants."""
    dtype = dtype or result_dtype(*operands)
    return [
        op.cast(operand, dtype) if isinstance(operand, ir.Value) else op.constant(operand, dtype)
        for operand in operands
    ]


def promoted(*names: str, to_float: bool = False) -> Callable[[F], F]:
    """Return a decorator that brings the named arguments of a lowering to their common dtype first.

    Args:
        names: Parameters that take part in type promotion.
        to_float: Whether integers and bools become the default float dtype, as for ``sin`` or true division.
    """

    def decorate(function: F) -> F:
        parameters = list(signature(function).parameters)[1:]
        positions = [parameters.index(name) for name in names]

        @wraps(function)
        def wrapper(op: OpBuilder, *args: Any, **kwargs: Any) -> Any:
            arguments = list(args)
            dtype = result_dtype(*(arguments[position] for position in positions))
            if to_float and not dtype.is_floating_point():
                dtype = to_ir(torch.get_default_dtype())
            for position in positions:
                arguments[position] = promote(op, arguments[position], dtype=dtype)[0]
            return function(op, *arguments, **kwargs)

        return cast(F, wrapper)

    return decorate
