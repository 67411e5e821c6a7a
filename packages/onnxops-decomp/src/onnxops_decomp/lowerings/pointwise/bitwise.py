"""Operations on the bits of numbers; of bools they are logic."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
import onnx_ir as ir
import torch

from onnxops_decomp.dtypes import promoted
from onnxops_decomp.formulas.loops import repeat
from onnxops_decomp.lowerings.reductions.over_dimensions import reduce
from onnxops_decomp.lowerings.registry import Function, lowering
from onnxops_decomp.spec.inference import dims_of

if TYPE_CHECKING:
    from onnxops_decomp.builder.op_builder import OpBuilder

aten = torch.ops.aten

BOOL, INT64 = ir.DataType.BOOL, ir.DataType.INT64


def _bitwise(integer: str, logical: str) -> Function:
    @promoted("self", "other")
    def bitwise(op: OpBuilder, self: ir.Value, other: ir.Value) -> ir.Value:
        return op.emit(logical if self.dtype == ir.DataType.BOOL else integer, self, other)

    return bitwise


for _name in ("and", "or", "xor"):
    lowering(
        *(f"aten::bitwise_{_name}.{overload}" for overload in ("Tensor", "Scalar", "Scalar_Tensor")),
        *(f"aten::__{_name}__.{overload}" for overload in ("Tensor", "Scalar")),
    )(_bitwise(f"Bitwise{_name.capitalize()}", _name.capitalize()))


@lowering(aten.bitwise_not.default)
def bitwise_not(op: OpBuilder, self: ir.Value) -> ir.Value:
    return op.Not(self) if self.dtype == ir.DataType.BOOL else op.BitwiseNot(self)


_POWERS = np.left_shift(np.int64(1), np.arange(64, dtype=np.int64))


def _shift(op: OpBuilder, value: ir.Value, by: ir.Value, left: bool) -> ir.Value:
    """Shift integers; a shift by a negative number or by all bits gives 0, or the sign where it goes right."""
    dtype = op.dtype(value)
    bits = dtype.itemsize * 8
    outside = op.Or(op.Less(by, 0), op.GreaterOrEqual(by, int(bits)))
    unsigned = dtype.name.startswith("UINT")
    if unsigned:
        shifted = op.BitShift(value, op.Where(outside, 0, by), direction="LEFT" if left else "RIGHT")
        return op.Where(outside, 0, shifted)
    # BitShift is for unsigned integers; powers of two do the same, and the division rounds down as the shift does.
    wide = op.cast(value, INT64)
    factor = op.Gather(op.constant(_POWERS), op.cast(op.Where(outside, 0, by), INT64), axis=0)
    if left:
        return op.Where(outside, 0, op.cast(op.Mul(wide, factor), dtype))
    sign = op.cast(op.Neg(op.cast(op.Less(value, 0), INT64)), dtype)
    # The highest power is negative; what is left of 63 bits is the sign as well.
    gone = op.Or(outside, op.Equal(by, int(bits) - 1))
    return op.Where(gone, sign, op.cast(op.floor_div(wide, op.Where(gone, 1, factor)), dtype))


def _shifting(left: bool) -> Function:
    @promoted("self", "other")
    def shift(op: OpBuilder, self: ir.Value, other: ir.Value) -> ir.Value:
        return _shift(op, self, other, left)

    return shift


for _name, _left in (("left", True), ("right", False)):
    lowering(
        *(f"aten::bitwise_{_name}_shift.{overload}" for overload in ("Tensor", "Tensor_Scalar", "Scalar_Tensor")),
        *(f"aten::__{_name[0]}shift__.{overload}" for overload in ("Tensor", "Scalar")),
    )(_shifting(_left))


# ---- common divisors


def _greatest_common_divisor(op: OpBuilder, a: ir.Value, b: ir.Value) -> ir.Value:
    """Return the greatest common divisor by Euclid's algorithm, run until the last element is done."""
    zero = op.Mul(op.Add(a, b), 0)
    start = op.Add(op.Abs(a), zero), op.Add(op.Abs(b), zero)
    dtype, dims = op.dtype(a), dims_of(zero)

    def unfinished(builder: OpBuilder, rest: ir.Value) -> ir.Value:
        open_ = builder.cast(builder.Not(builder.Equal(rest, 0)), ir.DataType.UINT8)
        return builder.cast(builder.ReduceMax(open_, keepdims=0), BOOL)

    body = op.subgraph()
    body.input("index", INT64, ())
    body.input("going", BOOL, ())
    divisor, rest = body.input("divisor", dtype, dims), body.input("rest", dtype, dims)
    done = body.Equal(rest, 0)
    after = body.Mod(divisor, body.Where(done, 1, rest))
    following = body.Where(done, divisor, rest), body.Where(done, 0, after)
    graph = body.graph([unfinished(body, following[1]), *following], name="euclid")
    # No pair of 64-bit numbers takes more than 92 steps.
    outputs = op.emit_many("Loop", 2, op.constant(96), unfinished(op, start[1]), *start, body=graph)
    outputs[0].type, outputs[0].shape = ir.TensorType(dtype), zero.shape
    return outputs[0]


@lowering(aten.gcd.default)
@promoted("self", "other")
def gcd(op: OpBuilder, self: ir.Value, other: ir.Value) -> ir.Value:
    return _greatest_common_divisor(op, self, other)


@lowering(aten.lcm.default)
@promoted("self", "other")
def lcm(op: OpBuilder, self: ir.Value, other: ir.Value) -> ir.Value:
    divisor = _greatest_common_divisor(op, self, other)
    nothing = op.Equal(divisor, 0)
    product = op.Abs(op.Mul(op.Div(self, op.Where(nothing, 1, divisor)), other))
    return op.Where(nothing, 0, product)


# ---- hashes


@lowering(aten.hash_tensor.default)
def hash_tensor(
    op: OpBuilder, self: ir.Value, dim: Sequence[int] = (), *, keepdim: bool = False, mode: int = 0
) -> ir.Value:
    """Reduce by xor the elements as 64 bits: bit by bit, whether the number of ones is odd."""
    if op.dtype(self).is_floating_point():
        bits = op.BitCast(op.cast(self, ir.DataType.DOUBLE), to=INT64)
    else:
        bits = op.cast(self, INT64)
    nothing = reduce(op, "ReduceSum", op.Mul(bits, 0), dim, keepdim)

    def step(body: OpBuilder, i: ir.Value, state: list[ir.Value]) -> tuple[list[ir.Value], list[ir.Value]]:
        rest, place, result = state
        last = body.Mod(rest, 2)
        parity = body.Mod(reduce(body, "ReduceSum", last, dim, keepdim), 2)
        # Python's division rounds down, so that the sign is shifted in.
        half = body.floor_div(rest, body.constant(2))
        return [half, body.Mul(place, 2), body.Add(result, body.Mul(parity, place))], []

    (_, _, result), _ = repeat(op, 64, [bits, op.constant(1), nothing], step)
    return op.cast(result, ir.DataType.UINT64)
