"""Conversions between dtypes."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import onnx_ir as ir
import torch

from onnxops_decomp.dtypes import is_complex, mark_complex, to_ir, to_torch
from onnxops_decomp.lowerings.registry import F, Operator, lowering

if TYPE_CHECKING:
    from onnxops_decomp.builder.op_builder import OpBuilder

__all__ = ["as_complex", "convert", "real_and_complex"]

aten = torch.ops.aten


def as_complex(op: OpBuilder, value: ir.Value) -> ir.Value:
    """Return a real tensor as a complex one: a trailing dimension with imaginary part zero is added."""
    if is_complex(value):
        return value
    rank = op.rank(value)
    pads = [0] * (2 * rank + 1) + [1]
    return mark_complex(op.Pad(op.Unsqueeze(value, [rank]), pads))


def convert(op: OpBuilder, value: ir.Value, dtype: torch.dtype | None) -> ir.Value:
    """Convert to a torch dtype; None keeps the dtype. A complex number loses its imaginary part on the way to a real.

    Args:
        op: Builder.
        value: Real or complex tensor.
        dtype: Wanted dtype.
    """
    if dtype is None:
        return value
    target = to_ir(dtype)
    if dtype.is_complex:
        return mark_complex(op.cast(as_complex(op, value), target))
    if is_complex(value):
        if target == ir.DataType.BOOL:
            return complex_truth(op, value)
        value = op.Gather(value, 0, axis=-1)
    return op.cast(value, target)


def complex_truth(op: OpBuilder, value: ir.Value) -> ir.Value:
    """Tell which complex numbers are not 0."""
    given = op.Not(op.Equal(value, 0))
    return op.Or(op.Gather(given, 0, axis=-1), op.Gather(given, 1, axis=-1))


def real_and_complex(*operators: Operator) -> Callable[[F], F]:
    """Return a decorator that enters a function for calls with and without complex operands."""

    def enter(function: F) -> F:
        return lowering(*operators, complex=True)(lowering(*operators)(function))

    return enter


@real_and_complex(
    *(aten._to_copy.default, aten.to.dtype, aten.to.dtype_layout, aten.to.device, aten.to.prim_dtype),
    aten.to.prim_Device,
)
def to(op: OpBuilder, self: ir.Value, dtype: torch.dtype | None = None, copy: bool = False) -> ir.Value:
    return convert(op, self, dtype)


@real_and_complex(aten.type_as.default, aten.to.other)
def type_as(op: OpBuilder, self: ir.Value, other: ir.Value, copy: bool = False) -> ir.Value:
    return _like(op, self, other)


@real_and_complex("prims::convert_element_type")
def convert_element_type(op: OpBuilder, a: ir.Value, dtype: torch.dtype) -> ir.Value:
    return convert(op, a, dtype)


def _like(op: OpBuilder, value: ir.Value, other: ir.Value) -> ir.Value:
    if is_complex(other):
        return mark_complex(op.cast(as_complex(op, value), op.dtype(other)))
    return convert(op, value, to_torch(op.dtype(other)))
