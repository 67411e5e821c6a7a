"""Padding in every mode: constant, reflect, replicate and circular."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import onnx_ir as ir
import torch

from onnxops_decomp.dtypes import promote
from onnxops_decomp.errors import LoweringError
from onnxops_decomp.lowerings.registry import lowering
from onnxops_decomp.spec.inference import dims_of

if TYPE_CHECKING:
    from onnxops_decomp.builder.op_builder import OpBuilder
    from onnxops_decomp.builder.sizes import Size
    from onnxops_decomp.dtypes import Operand

__all__ = ["onnx_pads"]

aten = torch.ops.aten

_MODES = {"constant": "constant", "reflect": "reflect", "replicate": "edge", "circular": "wrap"}


def onnx_pads(rank: int, pad: Sequence[Size]) -> list[Size]:
    """Turn torch's (begin, end) pairs, last axis first, into ONNX's begins of all axes before their ends."""
    begins: list[Size] = [0] * rank
    ends: list[Size] = [0] * rank
    for position in range(len(pad) // 2):
        axis = rank - 1 - position
        begins[axis], ends[axis] = pad[2 * position], pad[2 * position + 1]
    return [*begins, *ends]


def _is_negative(size: Size) -> bool:
    return isinstance(size, int) and size < 0


@lowering(aten.constant_pad_nd.default)
def constant_pad_nd(op: OpBuilder, self: ir.Value, pad: Sequence[Size], value: Operand = 0) -> ir.Value:
    filler: ir.Value | None = None
    if isinstance(value, ir.Value) or value != 0:
        filler = promote(op, value, dtype=op.dtype(self))[0]
    return op.Pad(self, op.vector(onnx_pads(op.rank(self), pad)), filler)


@lowering(
    aten.reflection_pad1d.default,
    aten.reflection_pad2d.default,
    aten.reflection_pad3d.default,
)
def reflection_pad(op: OpBuilder, self: ir.Value, padding: Sequence[Size]) -> ir.Value:
    return _padded(op, self, padding, "reflect")


@lowering(
    aten.replication_pad1d.default,
    aten.replication_pad2d.default,
    aten.replication_pad3d.default,
)
def replication_pad(op: OpBuilder, self: ir.Value, padding: Sequence[Size]) -> ir.Value:
    return _padded(op, self, padding, "edge")


@lowering(aten._pad_circular.default)
def pad_circular(op: OpBuilder, self: ir.Value, pad: Sequence[Size]) -> ir.Value:
    return _padded(op, self, pad, "wrap")


def _padded(op: OpBuilder, value: ir.Value, pad: Sequence[Size], mode: str) -> ir.Value:
    """Pad by the tensor's own elements.

    Negative amounts cut off afterwards, as torch does; a circular padding repeats what the cut leaves over.
    """
    rank = op.rank(value)
    if 0 in (dims_of(value) or ()):
        # Nothing is there to repeat, and torch only lets the sizes next to the empty one grow.
        return constant_pad_nd(op, value, pad)
    grown: list[Size] = [0 if _is_negative(size) else size for size in pad]
    cut: list[Size] = [size if _is_negative(size) else 0 for size in pad]
    if mode == "wrap":
        return op.Pad(op.Pad(value, op.vector(onnx_pads(rank, cut))), op.vector(onnx_pads(rank, grown)), mode=mode)
    return op.Pad(op.Pad(value, op.vector(onnx_pads(rank, grown)), mode=mode), op.vector(onnx_pads(rank, cut)))


@lowering(aten.pad.default)
def pad(
    op: OpBuilder, self: ir.Value, pad: Sequence[Size], mode: str = "constant", value: Operand | None = None
) -> ir.Value:
    if mode == "constant":
        return constant_pad_nd(op, self, pad, 0 if value is None else value)
    if mode not in _MODES:
        raise LoweringError(f"Padding mode {mode!r} is not one of {', '.join(_MODES)}.")
    return _padded(op, self, pad, _MODES[mode])
