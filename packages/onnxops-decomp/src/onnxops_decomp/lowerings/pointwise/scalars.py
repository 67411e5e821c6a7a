"""Numbers read from tensors: sizes, and the elements that become Python numbers."""

from __future__ import annotations

from typing import TYPE_CHECKING

import onnx_ir as ir
import torch

from onnxops_decomp.dtypes import mark_number
from onnxops_decomp.lowerings.registry import Function, lowering

if TYPE_CHECKING:
    from onnxops_decomp.builder.op_builder import OpBuilder
    from onnxops_decomp.builder.sizes import Size

aten = torch.ops.aten


def _number(size: Size) -> Size:
    return mark_number(size) if isinstance(size, ir.Value) else size


@lowering(aten.sym_size.int, aten.size.int)
def size(op: OpBuilder, self: ir.Value, dim: int) -> Size:
    return _number(op.size(self, dim))


@lowering(aten.sym_size.default, aten.size.default)
def sizes(op: OpBuilder, self: ir.Value) -> list[Size]:
    return [_number(size) for size in op.sizes(self)]


@lowering(aten.sym_numel.default, aten.numel.default)
def numel(op: OpBuilder, self: ir.Value) -> Size:
    return _number(op.size_mul(*op.sizes(self)))


@lowering(aten.dim.default)
def dim(op: OpBuilder, self: ir.Value) -> int:
    return op.rank(self)


@lowering(aten.len.Tensor)
def length(op: OpBuilder, t: ir.Value) -> Size:
    return _number(op.size(t, 0))


def _number_of(op: OpBuilder, value: ir.Value, dtype: ir.DataType) -> ir.Value:
    """Return the one element of ``value`` as a number. It is a value of its own: the tensor must not become one."""
    element = op.cast(op.Reshape(value, []) if op.rank(value) else value, dtype)
    if element is value:
        (element,) = op.emit_custom("", "Identity", [value], {}, [dtype], shapes=[()])
    return mark_number(element)


@lowering(aten.item.default, aten._local_scalar_dense.default, aten.ScalarImplicit.default)
def item(op: OpBuilder, self: ir.Value) -> ir.Value:
    dtype = op.dtype(self)
    if dtype != ir.DataType.BOOL:
        dtype = ir.DataType.DOUBLE if dtype.is_floating_point() else ir.DataType.INT64
    return _number_of(op, self, dtype)


def _converted(number: ir.DataType, python: type[bool] | type[int] | type[float]) -> Function:
    """Lowering of ``int(a)`` and the like, where ``a`` is a tensor or a number, static or not."""

    def convert(op: OpBuilder, a: ir.Value | bool | int | float) -> ir.Value | bool | int | float:
        return _number_of(op, a, number) if isinstance(a, ir.Value) else python(a)

    return convert


lowering(aten.Int.Tensor, aten.Int.Scalar, aten.Int.float, aten.Int.bool, aten.IntImplicit.default)(
    _converted(ir.DataType.INT64, int)
)
lowering(aten.Float.Tensor, aten.Float.Scalar, aten.Float.int, aten.Float.bool, aten.FloatImplicit.default)(
    _converted(ir.DataType.DOUBLE, float)
)
lowering(aten.Bool.Tensor, aten.Bool.int, aten.Bool.float)(_converted(ir.DataType.BOOL, bool))
