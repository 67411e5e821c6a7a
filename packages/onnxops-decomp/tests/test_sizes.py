"""Sizes are ints where they are static, and the shortest graph where they are known only at run time."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import adapter_cases
import numpy as np
import onnx_ir as ir
import pytest
import sympy

from onnxops_decomp.builder.op_builder import OpBuilder
from onnxops_decomp.errors import LoweringError
from onnxops_decomp.files.model import build_model

T = ir.DataType
OPSETS = [7, 9, 11, 13, 14, 20]


def model(opset: int, function: Callable[[OpBuilder, ir.Value], Any], *dims: Any) -> tuple[OpBuilder, Any]:
    op = OpBuilder(opset)
    x = op.input("x", T.FLOAT, tuple(ir.SymbolicDim(dim) if isinstance(dim, str) else dim for dim in dims))
    return op, function(op, x)


def run(op: OpBuilder, output: ir.Value, array: np.ndarray) -> np.ndarray:
    proto = ir.to_proto(build_model(op, [output], name="test"))
    return adapter_cases.run_in_runtime(proto, {"x": array})[0]


def test_static_sizes_are_ints() -> None:
    op, sizes = model(20, lambda op, x: op.sizes(x), 2, "n", 4)
    assert (sizes[0], sizes[2]) == (2, 4)
    assert isinstance(sizes[1], ir.Value)
    assert op.rank(sizes[1]) == 0


def test_size_of_unknown_rank_counts_from_the_front_only() -> None:
    op = OpBuilder(20)
    x = op.input("x", T.FLOAT, None)
    assert isinstance(op.size(x, 1), ir.Value)
    with pytest.raises(LoweringError, match="rank"):
        op.size(x, -1)


@pytest.mark.parametrize("opset", OPSETS)
@pytest.mark.parametrize("n", [1, 5, 8])
def test_arithmetic_agrees_with_python(opset: int, n: int) -> None:
    def sizes(op: OpBuilder, x: ir.Value) -> ir.Value:
        n = op.size(x, 0)
        results = [
            op.size_add(n, 2),
            op.size_sub(3, n),
            op.size_mul(n, 4, n),
            op.size_floordiv(n, 3),
            op.size_floordiv(op.size_sub(0, n), 3),
            op.size_max(n, 4),
            op.size_min(n, 4),
            op.size_add(2, 3),
        ]
        return op.vector(results)

    op, vector = model(opset, sizes, "n")
    expected = [n + 2, 3 - n, 4 * n * n, n // 3, -n // 3, max(n, 4), min(n, 4), 5]
    assert run(op, vector, np.zeros(n, np.float32)).tolist() == expected


@pytest.mark.parametrize("opset", OPSETS)
def test_reshape_with_a_size_of_the_runtime(opset: int) -> None:
    op, y = model(opset, lambda op, x: op.reshape(x, [op.size(x, 0), op.size_mul(op.size(x, 1), 4)]), "n", "m", 4)
    proto = ir.to_proto(build_model(op, [y], name="test"))
    for n in (2, 0):
        array = np.arange(n * 12, dtype=np.float32).reshape(n, 3, 4)
        result = adapter_cases.run_in_runtime(proto, {"x": array})[0]
        np.testing.assert_array_equal(result, array.reshape(n, 12), strict=True)
    # A copied and an inferred size need no Shape node.
    assert [node.op_type for node in proto.graph.node] == ["Flatten"]


@pytest.mark.parametrize("opset", OPSETS)
def test_reshape_to_no_elements(opset: int) -> None:
    op, y = model(opset, lambda op, x: op.reshape(x, [0, 3]), 0, 5)
    assert run(op, y, np.zeros((0, 5), np.float32)).shape == (0, 3)


def test_reshape_to_the_sizes_it_has_is_nothing() -> None:
    op, _ = model(20, lambda op, x: [x, op.reshape(x, op.sizes(x))], "n", 4)
    assert not [node for node in op.scope.nodes if node.op_type == "Reshape"]


@pytest.mark.parametrize("opset", OPSETS)
def test_expand_to_sizes_of_another_axis(opset: int) -> None:
    op, y = model(opset, lambda op, x: op.expand(op.Slice(x, [0], [1], [1]), [2, -1, op.size(x, 1)]), "n", "m")
    array = np.arange(6, dtype=np.float32).reshape(2, 3)
    np.testing.assert_array_equal(run(op, y, array), np.broadcast_to(array[:, :1], (2, 2, 3)))


def test_neighbouring_sizes_of_one_tensor_are_one_slice_of_its_shape() -> None:
    op, _ = model(20, lambda op, x: op.vector(op.sizes(x)), "a", "b", "c")
    live = [node for node in op.scope.nodes if node.op_type == "Concat"]
    assert not live


@pytest.mark.parametrize("opset", OPSETS)
@pytest.mark.parametrize("axes", [(0, 1, 2, 3), (1, 2), (2, 3), (0, 2), (3, 2, 1, 0), (1, 1, 2, 2)], ids=str)
def test_known_sizes_beside_those_of_the_runtime_are_in_their_place(opset: int, axes: tuple[int, ...]) -> None:
    def sizes(op: OpBuilder, x: ir.Value) -> ir.Value:
        return op.vector([9, *(op.size(x, axis) for axis in axes), 4])

    op, vector = model(opset, sizes, 4, "n", 4, "m")
    array = np.zeros((4, 2, 4, 3), np.float32)
    assert run(op, vector, array).tolist() == [9, *(array.shape[axis] for axis in axes), 4]


@pytest.mark.parametrize("dims", [(4, "n", 2), ("n", 4), (4, "n"), (2, 3, "n", 4, 5)], ids=str)
def test_all_sizes_of_a_tensor_are_its_shape(dims: tuple[int | str, ...]) -> None:
    op, vector = model(20, lambda op, x: op.vector(op.sizes(x)), *dims)
    proto = ir.to_proto(build_model(op, [vector], name="test"))
    assert [node.op_type for node in proto.graph.node] == ["Shape"]


@pytest.mark.parametrize("opset", OPSETS)
@pytest.mark.parametrize("n", [3, 6])
def test_size_of_an_expression(opset: int, n: int) -> None:
    symbol = sympy.Symbol("n", integer=True, positive=True)

    def size(op: OpBuilder, x: ir.Value) -> ir.Value:
        op.context.symbols["n"] = lambda b: b.Shape(x, start=0, end=1)
        return op.vector([op.size_of_expression(2 * symbol**2 - 3 * symbol + sympy.Max(symbol, 5) - 1)])

    op, vector = model(opset, size, "n")
    assert run(op, vector, np.zeros(n, np.float32)).tolist() == [2 * n * n - 3 * n + max(n, 5) - 1]


def test_expression_of_an_unknown_symbol_is_refused() -> None:
    op = OpBuilder(20)
    with pytest.raises(LoweringError, match="u7"):
        op.size_of_expression(sympy.Symbol("u7") + 1)
