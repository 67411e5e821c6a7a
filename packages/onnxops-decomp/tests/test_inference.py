"""Shapes that the builder works out hold for what the runtime computes."""

from __future__ import annotations

from collections.abc import Callable

import onnx_ir as ir
import pytest

from onnxops_decomp.builder.op_builder import OpBuilder
from onnxops_decomp.spec.inference import UNKNOWN_DIM, broadcast_dims

T = ir.DataType
N, M = ir.SymbolicDim("n"), ir.SymbolicDim("m")


@pytest.mark.parametrize(
    "shapes, expected",
    [
        ([(2, 3), (3,)], (2, 3)),
        ([(2, 1), (1, 4)], (2, 4)),
        ([(N, 1), (N, 4)], (N, 4)),
        ([(N,), (3,)], (3,)),
        ([(N,), (1,)], (N,)),
        ([(N,), (M,)], (UNKNOWN_DIM,)),
        ([(UNKNOWN_DIM,), (UNKNOWN_DIM,)], (UNKNOWN_DIM,)),
        ([(), (N, 0)], (N, 0)),
        ([(0,), (1,)], (0,)),
        ([(2,), None], None),
    ],
)
def test_broadcast(shapes: list, expected: object) -> None:
    assert broadcast_dims(*shapes) == expected


INFERRED: dict[str, tuple[Callable[[OpBuilder, ir.Value], ir.Value], list]] = {
    "reduction of one axis": (lambda op, x: op.ReduceSum(x, [-1]), ["n", 3, 1]),
    "reduction without the axis": (lambda op, x: op.ReduceMax(x, [1], keepdims=0), ["n", 4]),
    "reduction of everything": (lambda op, x: op.ReduceMean(x, keepdims=0), []),
    "arg-reduction": (lambda op, x: op.ArgMax(x, axis=-1, keepdims=0), ["n", 3]),
    "product": (lambda op, x: op.MatMul(x, op.constant([[1.0]] * 4)), ["n", 3, 1]),
    "product with a vector": (lambda op, x: op.MatMul(x, op.constant([1.0] * 4)), ["n", 3]),
    "transpose": (lambda op, x: op.Transpose(x), [4, 3, "n"]),
    "unsqueeze": (lambda op, x: op.Unsqueeze(x, [-1, 0]), [1, "n", 3, 4, 1]),
    "squeeze": (lambda op, x: op.Squeeze(op.ReduceSum(x, [1]), [1]), ["n", 4]),
    "reshape with a copied size": (lambda op, x: op.Reshape(x, [0, 12]), ["n", 12]),
    "concat along a static axis": (lambda op, x: op.Concat(x, x, axis=1), ["n", 6, 4]),
    "concat along a symbolic axis": (lambda op, x: op.Concat(x, x, axis=0), [None, 3, 4]),
    "gather of a scalar": (lambda op, x: op.Gather(x, op.constant(0), axis=1), ["n", 4]),
    "gather of a matrix": (lambda op, x: op.Gather(x, [[0, 1]], axis=-1), ["n", 3, 1, 2]),
    "slice": (lambda op, x: op.Slice(x, [-2, 0], [2**63 - 1, 3], [1, 2], [1, 2]), ["n", 2, 2]),
    "slice backwards": (lambda op, x: op.Slice(x, [-1], [-(2**63)], [2], [-1]), ["n", 3, 4]),
    "tile": (lambda op, x: op.Tile(x, [1, 2, 3]), ["n", 6, 12]),
    "pad": (lambda op, x: op.Pad(x, [0, 1, 0, 0, 2, 0]), ["n", 6, 4]),
    "where": (lambda op, x: op.Where(op.Greater(x, 0.0), x, 0.0), ["n", 3, 4]),
    "expand": (lambda op, x: op.Expand(x, [2, 1, 1, 1]), [2, "n", 3, 4]),
    "shape": (lambda op, x: op.Shape(x, start=1), [2]),
    "range of constants": (lambda op, x: op.Range(0, 5, 2), [3]),
    "constant of shape": (lambda op, x: op.ConstantOfShape([2, 3]), [2, 3]),
    "average pooling": (lambda op, x: op.AveragePool(x, kernel_shape=[2], strides=[2]), ["n", 3, 2]),
    "normalization": (lambda op, x: op.Softmax(x), ["n", 3, 4]),
    "by the inference of ONNX": (lambda op, x: op.LpNormalization(x), ["n", 3, 4]),
}


@pytest.mark.parametrize("opset", [7, 11, 13, 18, 26])
@pytest.mark.parametrize("name", INFERRED)
def test_shape_of(name: str, opset: int) -> None:
    op = OpBuilder(opset)
    x = op.input("x", T.FLOAT, (N, 3, 4))
    expression, expected = INFERRED[name]
    result = expression(op, x)
    assert result.shape is not None
    assert [dim if isinstance(dim, int) else dim.value for dim in result.shape] == expected


def test_shape_of_every_output() -> None:
    op = OpBuilder(20)
    x = op.input("x", T.FLOAT, (2, 6, 4))
    first, second = op.emit_many("Split", 2, x, [2, 4], axis=1)
    values, index = op.emit_many("TopK", 2, x, [3])
    assert [list(value.shape) for value in (first, second, values, index)] == [
        [2, 2, 4],
        [2, 4, 4],
        [2, 6, 3],
        [2, 6, 3],
    ]
    assert index.dtype == T.INT64
