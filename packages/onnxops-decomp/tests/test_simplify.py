"""What the builder need not emit, and what it must."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import onnx_ir as ir
import pytest

from onnxops_decomp.builder.op_builder import OpBuilder
from onnxops_decomp.runtimes.onnxruntime.kernel_gaps import is_older

T = ir.DataType
N = ir.SymbolicDim("n")
INT64_MAX = 2**63 - 1


@pytest.fixture
def op() -> OpBuilder:
    return OpBuilder(20)


def floats(op: OpBuilder, *dims: Any) -> ir.Value:
    return op.input("x", T.FLOAT, dims)


UNCHANGED: dict[str, Callable[[OpBuilder, ir.Value], ir.Value]] = {
    "cast to its dtype": lambda op, x: op.Cast(x, to=T.FLOAT),
    "cast to a wider dtype and back": lambda op, x: op.Cast(op.Cast(x, to=T.DOUBLE), to=T.FLOAT),
    "cast like itself": lambda op, x: op.CastLike(x, x),
    "identity": lambda op, x: op.Identity(x),
    "transpose that moves nothing": lambda op, x: op.Transpose(x, perm=[0, 1, 2]),
    "transpose there and back": lambda op, x: op.Transpose(op.Transpose(x, perm=[1, 2, 0]), perm=[2, 0, 1]),
    "reshape to its sizes": lambda op, x: op.Reshape(x, [0, -1, 4]),
    "reshape there and back": lambda op, x: op.Reshape(op.Reshape(x, [0, 0, 2, 2]), [0, 0, 4]),
    "expand to sizes it has": lambda op, x: op.Expand(x, [3, 1]),
    "squeeze of no axes": lambda op, x: op.Squeeze(x, op.constant(np.zeros(0, np.int64))),
    "unsqueeze and squeeze": lambda op, x: op.Squeeze(op.Unsqueeze(x, [1, -1]), [4, 1]),
    "slice of everything": lambda op, x: op.Slice(x, [0, 0], [INT64_MAX, INT64_MAX], [0, 2], [1, 1]),
    "pad of nothing": lambda op, x: op.Pad(x, [0, 0], None, [1]),
    "concat of one": lambda op, x: op.Concat(x, axis=1),
    "maximum of one": lambda op, x: op.Max(x),
    "clip without bounds": lambda op, x: op.Clip(x),
    "tile of single repeats": lambda op, x: op.Tile(x, [1, 1, 1]),
    "product with one": lambda op, x: op.Mul(1.0, op.Mul(x, np.ones((1, 1), np.float32))),
    "quotient by one": lambda op, x: op.Div(x, 1.0),
    "dropout outside of training": lambda op, x: op.Dropout(x, 0.5),
}


@pytest.mark.parametrize("name", UNCHANGED)
def test_value_stays_what_it_is_after(name: str, op: OpBuilder) -> None:
    x = floats(op, N, 3, 4)
    assert UNCHANGED[name](op, x) is x


@pytest.mark.parametrize("opset", [7, 11, 13, 20])
def test_squeeze_of_unsqueeze_vanishes_at(opset: int) -> None:
    op = OpBuilder(opset)
    x = floats(op, 2, 3)
    assert op.Squeeze(op.Unsqueeze(x, [0]), [0]) is x
    y = op.input("y", T.FLOAT, (1, 3))
    assert op.Unsqueeze(op.Squeeze(y, [0]), [-2]) is y


EMITTED: dict[str, tuple[str, Callable[[OpBuilder, ir.Value], ir.Value]]] = {
    "cast through a narrower dtype": ("Cast", lambda op, x: op.Cast(op.Cast(x, to=T.FLOAT16), to=T.FLOAT)),
    "cast of floats through integers": ("Cast", lambda op, x: op.Cast(op.Cast(x, to=T.INT64), to=T.FLOAT)),
    "sum with zero, which turns -0 into 0": ("Add", lambda op, x: op.Add(x, 0.0)),
    "product with a tensor of more dimensions": (
        "Unsqueeze" if is_older(1, 23) else "Mul",
        lambda op, x: op.Mul(x, np.ones((1, 1, 1, 1), np.float32)),
    ),
    "product with two ones": ("Mul", lambda op, x: op.Mul(x, np.ones(4, np.float32))),
    "reciprocal": ("Div", lambda op, x: op.Div(1.0, x)),
    "expand that adds a dimension": ("Expand", lambda op, x: op.Expand(x, [1, 1, 1, 1])),
    "expand of a symbolic size": ("Expand", lambda op, x: op.Expand(x, [2, 3, 4])),
    "slice backwards": ("Slice", lambda op, x: op.Slice(x, [0], [INT64_MAX], [0], [-1])),
    "reshape that swaps sizes": ("Reshape", lambda op, x: op.Reshape(x, [-1, 4, 3])),
    "squeeze of one axis of two": ("Squeeze", lambda op, x: op.Squeeze(op.Unsqueeze(x, [0, 1]), [0])),
    "dropout in training": ("Dropout", lambda op, x: op.Dropout(x, 0.5, True)),
    "transpose that reverses": ("Transpose", lambda op, x: op.Transpose(x)),
}


@pytest.mark.parametrize("name", EMITTED)
def test_node_is_emitted_for(name: str, op: OpBuilder) -> None:
    op_type, expression = EMITTED[name]
    x = floats(op, N, 3, 4)
    result = expression(op, x)
    assert result is not x
    producer = result.producer()
    assert producer is not None
    assert producer.op_type == op_type


def test_a_product_of_no_elements_is_the_constant(op: OpBuilder) -> None:
    nothing = op.constant(np.zeros((0, 3), np.float32))
    assert op.Mul(nothing, floats(op, 1, 3)) is nothing
    assert op.Mul(floats(op, 3), nothing) is nothing
    for dims in ((2, 1, 3), ("n", 3)):
        assert op.Mul(nothing, floats(op, *dims)).producer().op_type == "Mul"


def test_integers_plus_zero_are_unchanged(op: OpBuilder) -> None:
    x = op.input("x", T.INT64, (N,))
    assert op.Sub(op.Add(0, x), 0) is x


@pytest.mark.parametrize(
    "narrow", [T.BOOL, T.INT8, T.UINT8, T.INT16, T.INT32, T.FLOAT16, T.BFLOAT16, T.UINT32, T.INT64]
)
@pytest.mark.parametrize("wide", [T.UINT8, T.INT8, T.INT32, T.INT64, T.FLOAT16, T.BFLOAT16, T.FLOAT, T.DOUBLE])
def test_casts_cancel_only_if_no_number_is_lost(narrow: ir.DataType, wide: ir.DataType, op: OpBuilder) -> None:
    if narrow == wide:
        return
    x = op.input("x", narrow, (4,))
    cancelled = op.Cast(op.Cast(x, to=wide), to=narrow) is x
    numbers = _extremes(narrow)
    with np.errstate(all="ignore"):
        there = numbers.astype(wide.numpy())
        kept = bool((there.astype(np.longdouble) == numbers.astype(np.longdouble)).all())
    assert cancelled == kept


def _extremes(dtype: ir.DataType) -> np.ndarray:
    """Return the numbers of a dtype that others are likeliest to lack."""
    if dtype == T.BOOL:
        return np.array([False, True])
    if dtype.is_integer():
        bounds = np.iinfo(dtype.numpy())
        return np.array([bounds.min, bounds.max, bounds.max - 1], dtype.numpy())
    import ml_dtypes

    bounds = ml_dtypes.finfo(dtype.numpy())
    return np.array([bounds.max, bounds.smallest_subnormal, 1 + float(bounds.eps)], dtype.numpy())


def test_shape_of_static_sizes_is_a_constant(op: OpBuilder) -> None:
    x = floats(op, N, 3, 4)
    assert op.static(op.Shape(x, start=1)).tolist() == [3, 4]
    assert op.static(op.Shape(x, start=-1, end=100)).tolist() == [4]
    assert op.static(op.Shape(x)) is None


def test_reshape_of_a_reshape_takes_the_source(op: OpBuilder) -> None:
    x = floats(op, N, 3, 4)
    result = op.Reshape(op.Reshape(x, [-1]), [-1, 2])
    assert result.producer().inputs[0] is x


def test_a_size_that_a_reshape_copies_stays_that_of_its_operand(op: OpBuilder) -> None:
    x = floats(op, N, 3, 4)
    inner = op.Reshape(x, [4, -1, 3])
    assert op.Reshape(inner, [0, -1]).producer().inputs[0] is inner
    assert op.Reshape(op.Reshape(x, [0, -1]), [0, 2, 6]).producer().inputs[0] is x


def test_where_of_a_constant_condition_picks_a_side(op: OpBuilder) -> None:
    x, y = floats(op, 2, 3), op.input("y", T.FLOAT, (2, 3))
    assert op.Where(np.array(True), x, y) is x
    assert op.Where(np.array([False]), x, y) is y
    assert op.Where(np.array([[[False]]]), x, y).producer().op_type == "Where"
