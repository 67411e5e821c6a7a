"""What several adapters need: static operands, element-wise selection, index ranges."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import onnx_ir as ir

from onnxops_decomp.errors import UnsupportedOpsetError
from onnxops_decomp.spec.inference import dims_of, same_dim

if TYPE_CHECKING:
    from onnxops_decomp.builder.op_builder import OpBuilder
    from onnxops_decomp.builder.sizes import Size

__all__ = ["arange", "broadcast_sizes", "dim_sizes", "halves", "odd", "rank_of", "static_ints"]

_INT64 = ir.DataType.INT64


def static_ints(op: OpBuilder, value: ir.Value | None, op_type: str, what: str, lowest: int) -> list[int] | None:
    """Return the contents of an integer operand that is an attribute in the older form; None if it is left out.

    Raises:
        UnsupportedOpsetError: If they are known only at run time; ``lowest`` is the opset that made it an input.
    """
    if value is None:
        return None
    array = op.static(value)
    if array is None:
        raise UnsupportedOpsetError(op_type, op.opset, lowest=lowest, reason=f"{what} known only at run time")
    return [int(element) for element in array.ravel()]


def rank_of(op: OpBuilder, value: ir.Value, op_type: str, lowest: int) -> int:
    """Return the rank of ``value``.

    Raises:
        UnsupportedOpsetError: If it is not known; from opset ``lowest`` on it need not be.
    """
    dims = dims_of(value)
    if dims is None:
        raise UnsupportedOpsetError(op_type, op.opset, lowest=lowest, reason="the rank is not known")
    return len(dims)


def dim_sizes(op: OpBuilder, value: ir.Value, op_type: str, lowest: int) -> list[Size]:
    """Return the sizes of ``value``, ints where they are static.

    Raises:
        UnsupportedOpsetError: If the rank is not known; from opset ``lowest`` on it need not be.
    """
    rank_of(op, value, op_type, lowest)
    return op.sizes(value)


def arange(op: OpBuilder, size: Size) -> ir.Value:
    """Return ``0, 1, ..., size - 1`` as a 1-D INT64 value."""
    return op.newest.Range(op.newest.constant(0, _INT64), _scalar(op, size), op.newest.constant(1, _INT64))


def _scalar(op: OpBuilder, size: Size) -> ir.Value:
    return op.newest.constant(size, _INT64) if isinstance(size, int) else size


def halves(op: OpBuilder, x: ir.Value) -> tuple[ir.Value, ir.Value]:
    """Split 64-bit integers into two doubles whose lexicographic order is theirs."""
    if x.dtype == ir.DataType.UINT64:
        # The same bits as a signed number, moved down by 2**63, keep the order.
        x = op.Add(op.cast(x, _INT64), -(2**63))
    high = op.Div(x, 2**32)
    low = op.Sub(x, op.Mul(high, 2**32))
    return op.cast(high, ir.DataType.DOUBLE), op.cast(low, ir.DataType.DOUBLE)


def broadcast_sizes(op: OpBuilder, values: Sequence[ir.Value], op_type: str, lowest: int) -> list[Size]:
    """Return the sizes of the shape that ``values`` broadcast to.

    Raises:
        UnsupportedOpsetError: If a rank is not known; from opset ``lowest`` on it need not be.
    """
    newest = op.newest
    shapes = [dim_sizes(op, value, op_type, lowest) for value in values]
    result: list[Size] = []
    for axis in range(-max(len(shape) for shape in shapes), 0):
        size: Size = 1
        for other in (shape[axis] for shape in shapes if len(shape) >= -axis):
            if isinstance(other, int) and other == 1:
                continue
            if isinstance(size, int) and size == 1:
                size = other
            elif not same_dim(newest.dim(size), newest.dim(other)):
                # A size of 1 gives way; the only others that may meet are equal, or 0 and 1.
                size = _wider(op, size, other)
        result.append(size)
    return result


def _wider(op: OpBuilder, a: Size, b: Size) -> Size:
    if isinstance(a, int) and isinstance(b, int):
        return b if a == 1 else a
    if isinstance(a, int) or isinstance(b, int):
        # A static size other than 1 decides.
        return a if isinstance(a, int) else b
    return op.newest.size_max(a, b)


def odd(op: OpBuilder, x: ir.Value, value: ir.Value) -> ir.Value:
    """Return ``value``, the result for the absolute value of ``x``, with the sign of ``x``."""
    return op.Where(op.Less(x, 0), op.Neg(value), value)
