"""Random numbers: operators and dtypes that came late."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import onnx_ir as ir

from onnxops_decomp.builder.forms import Adapter, adapter
from onnxops_decomp.errors import UnsupportedOpsetError

if TYPE_CHECKING:
    from onnxops_decomp.builder.op_builder import OpBuilder

_T = ir.DataType


@adapter("Bernoulli", below=15)
def bernoulli(op: OpBuilder, input: ir.Value, *, dtype: int | None = None, seed: float | None = None) -> ir.Value:
    draw = op.RandomUniformLike(input, seed=seed)
    return op.cast(op.Less(draw, input), ir.DataType(dtype) if dtype else op.dtype(input))


@adapter("Dropout", below=12)
def dropout(
    op: OpBuilder,
    data: ir.Value,
    ratio: ir.Value | None = None,
    training_mode: ir.Value | None = None,
    *,
    seed: int | None = None,
    _outputs: int = 1,
) -> tuple[ir.Value, ...]:
    training = False if training_mode is None else op.static(training_mode)
    if training is None:
        raise UnsupportedOpsetError("Dropout", op.opset, lowest=12, reason="a training mode that is an input")
    if not training:
        kept = op.ConstantOfShape(op.Shape(data), value=np.ones(1, np.bool_)) if _outputs > 1 else None
        return (data,) if kept is None else (data, kept)
    share = op.constant(0.5) if ratio is None else op.cast(ratio, _T.FLOAT)
    draw = op.RandomUniformLike(data, dtype=int(_T.FLOAT), seed=None if seed is None else float(seed))
    mask = op.GreaterOrEqual(draw, share)
    scaled = op.Mul(data, op.cast(op.Reciprocal(op.Sub(1.0, share)), op.dtype(data)))
    return (op.Where(mask, scaled, op.constant(0, op.dtype(data))), mask)[:_outputs]


def _without_bfloat16(op_type: str) -> Adapter:
    """Below opset 22 the generators do not draw BFLOAT16."""

    def draw(
        op: OpBuilder, *values: ir.Value, older: OpBuilder, dtype: int | None = None, **attributes: object
    ) -> ir.Value:
        target = ir.DataType(dtype) if dtype else values[0].dtype if values else _T.FLOAT
        if target != _T.BFLOAT16:
            return older.emit(op_type, *values, dtype=dtype, **attributes)
        return op.cast(older.emit(op_type, *values, dtype=int(_T.FLOAT), **attributes), target)

    return draw


for _name in ("RandomNormal", "RandomNormalLike", "RandomUniform", "RandomUniformLike"):
    adapter(_name, below=22)(_without_bfloat16(_name))
