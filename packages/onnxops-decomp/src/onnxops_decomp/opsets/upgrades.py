"""How an operator of an older opset is written in its newest form, where more than names and dtypes changed.

An upgrade belongs to one change of one operator, like an adapter, whose other direction it is::

    @upgrade("Softmax", below=13)
    def softmax(op, input, *, axis=1): ...

What only turned from an attribute into an input needs none: :mod:`onnxops_decomp.opsets.convert` does that by names.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import onnx_ir as ir

from onnxops_decomp.builder.op_builder import OpBuilder
from onnxops_decomp.errors import LoweringError

__all__ = ["RENAMED", "Upgrade", "find_upgrade", "upgrade"]

Upgrade = Callable[..., Any]

RENAMED = {("Pad", "value"): "constant_value", ("TopK", "k"): "K"}
"""Inputs that had another name while they were attributes."""

_UPGRADES: dict[str, dict[int, Upgrade]] = {}


def upgrade(*op_types: str, below: int) -> Callable[[Upgrade], Upgrade]:
    """Register a function as what ``op_types`` of opsets below ``below`` are in the newest form.

    The function is called as ``function(op, *inputs, _outputs=count, **attributes)`` with the operands and all
    attributes, defaults included, of the older form, and a builder that takes the newest forms. It returns the values
    that stand for the node's outputs.
    """

    def register(function: Upgrade) -> Upgrade:
        for op_type in op_types:
            _UPGRADES.setdefault(op_type, {})[below] = function
        return function

    return register


def find_upgrade(op_type: str, source: int, target: int) -> Upgrade | None:
    """Return the function for the oldest change that lies between two opsets, or None if there is none."""
    below = min((v for v in _UPGRADES.get(op_type, ()) if source < v <= target), default=None)
    return None if below is None else _UPGRADES[op_type][below]


def _of_rows(op_type: str) -> Upgrade:
    def function(op: OpBuilder, input: ir.Value, *, axis: int = 1, _outputs: int = 1) -> ir.Value:
        rank = None if input.shape is None else len(input.shape)
        if axis == -1 or (rank is not None and axis == rank - 1):
            return op.emit(op_type, input, axis=-1)
        # The older operator takes all dimensions from the axis on for one.
        rows = op.emit(op_type, op.Flatten(input, axis=axis), axis=-1)
        return op.Reshape(rows, op.Shape(input))

    return function


for _op_type in ("Softmax", "LogSoftmax", "Hardmax"):
    upgrade(_op_type, below=13)(_of_rows(_op_type))


@upgrade("Upsample", below=9)
def upsample_of_constant(
    op: OpBuilder, X: ir.Value, *, scales: Sequence[float], mode: str = "nearest", _outputs: int = 1
) -> ir.Value:
    result: ir.Value = upsample(op, X, op.constant(list(scales), ir.DataType.FLOAT), mode=mode)
    return result


@upgrade("Upsample", below=10)
def upsample(op: OpBuilder, X: ir.Value, scales: ir.Value, *, mode: str = "nearest", _outputs: int = 1) -> ir.Value:
    return op.Resize(X, None, scales, mode=mode, coordinate_transformation_mode="asymmetric", nearest_mode="floor")


@upgrade("Resize", below=11)
def resize(op: OpBuilder, X: ir.Value, scales: ir.Value, *, mode: str = "nearest", _outputs: int = 1) -> ir.Value:
    numbers = op.static(scales)
    if mode == "nearest" and (numbers is None or bool((numbers < 1).any())):
        # The only example of the specification, and ONNX Runtime, round up where a dimension shrinks.
        shrinking, scales = op.Min(scales, 1.0), op.Max(scales, 1.0)
        X = op.Resize(X, None, shrinking, coordinate_transformation_mode="asymmetric", nearest_mode="ceil")
    result: ir.Value = upsample(op, X, scales, mode=mode)
    return result


@upgrade("Resize", below=13)
def resize_for_nn(
    op: OpBuilder, *inputs: ir.Value, coordinate_transformation_mode: str, _outputs: int = 1, **attributes: Any
) -> Any:
    if coordinate_transformation_mode == "tf_half_pixel_for_nn":
        # Its positions lie half a pixel behind those of half_pixel.
        if attributes["mode"] != "nearest" or attributes["nearest_mode"] != "floor":
            raise LoweringError("ONNX Resize with tf_half_pixel_for_nn has a form in newer opsets if it rounds down.")
        coordinate_transformation_mode, attributes["nearest_mode"] = "half_pixel", "round_prefer_ceil"
    return op.Resize(*inputs, coordinate_transformation_mode=coordinate_transformation_mode, **attributes)


@upgrade("Scatter", below=11)
def scatter(
    op: OpBuilder, data: ir.Value, indices: ir.Value, updates: ir.Value, *, axis: int = 0, _outputs: int = 1
) -> ir.Value:
    return op.ScatterElements(data, indices, updates, axis=axis)


@upgrade("GridSample", below=20)
def grid_sample(op: OpBuilder, X: ir.Value, grid: ir.Value, *, mode: str, _outputs: int = 1, **attributes: Any) -> Any:
    names = {"bilinear": "linear", "bicubic": "cubic"}
    return op.GridSample(X, grid, mode=names.get(mode, mode), **attributes)


@upgrade("RoiAlign", below=16)
def roi_align(
    op: OpBuilder, X: ir.Value, rois: ir.Value, batch_indices: ir.Value, *, _outputs: int = 1, **attributes: Any
) -> ir.Value:
    return op.RoiAlign(X, rois, batch_indices, coordinate_transformation_mode="output_half_pixel", **attributes)


@upgrade("Split", below=18)
def split(
    op: OpBuilder, input: ir.Value, lengths: Any = None, *, split: Any = None, axis: int = 0, _outputs: int = 1
) -> tuple[ir.Value, ...]:
    lengths = split if lengths is None else lengths
    if lengths is None:
        return op.emit_many("Split", _outputs, input, axis=axis, num_outputs=_outputs)
    return op.emit_many("Split", _outputs, input, lengths, axis=axis)


@upgrade("BatchNormalization", below=14)
def batch_normalization(
    op: OpBuilder, *inputs: ir.Value, spatial: int = 1, _outputs: int = 1, **attributes: Any
) -> ir.Value:
    if _outputs > 1 or not spatial:
        raise LoweringError("ONNX BatchNormalization in training mode, or per element, has no form in newer opsets.")
    return op.BatchNormalization(*inputs, **attributes)


@upgrade("Dropout", below=12)
def dropout(op: OpBuilder, data: ir.Value, *, ratio: float = 0.5, _outputs: int = 1) -> tuple[ir.Value, ...]:
    return op.emit_many("Dropout", _outputs, data, ratio)


@upgrade("Scan", below=9)
def scan_of_batches(op: OpBuilder, *inputs: ir.Value | None, **attributes: Any) -> tuple[ir.Value, ...]:
    raise LoweringError("ONNX Scan of opset 8, which scans batches, has no form in newer opsets.")
