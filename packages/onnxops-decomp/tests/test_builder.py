"""The builder writes each node once, in the opset that was asked for, and says so where it cannot."""

from __future__ import annotations

import numpy as np
import onnx
import onnx_ir as ir
import pytest

from onnxops_decomp.builder.op_builder import OpBuilder
from onnxops_decomp.builder.scope import ModelContext
from onnxops_decomp.errors import LoweringError, UnsupportedOpsetError
from onnxops_decomp.files.model import build_model

T = ir.DataType


def kinds(op: OpBuilder) -> list[str]:
    return [node.op_type for node in op.scope.nodes]


def test_equal_nodes_are_merged() -> None:
    op = OpBuilder(20)
    x = op.input("x", T.FLOAT, (2,))
    assert op.Add(op.Exp(x), 1.0) is op.Add(op.Exp(x), 1.0)
    assert kinds(op) == ["Exp", "Add"]


def test_attributes_tell_nodes_apart() -> None:
    op = OpBuilder(20)
    x = op.input("x", T.FLOAT, (2, 3))
    assert op.Softmax(x, axis=0) is not op.Softmax(x, axis=1)
    assert op.LeakyRelu(x, alpha=0.0) is not op.LeakyRelu(x, alpha=-0.0)
    assert op.Softmax(x) is op.Softmax(x, axis=-1)


def test_random_nodes_are_not_merged() -> None:
    op = OpBuilder(20)
    x = op.input("x", T.FLOAT, (2,))
    assert op.RandomUniformLike(x) is not op.RandomUniformLike(x)


def test_what_the_runtime_lacks_is_written_otherwise_for_that_runtime_alone() -> None:
    written = []
    for context in (ModelContext(24), ModelContext(24, runtime=None)):
        op = OpBuilder(24, context=context)
        op.Max(op.input("a", T.INT16, (2,)), op.input("b", T.INT16, (2,)))
        op.RandomUniformLike(op.input("c", T.FLOAT, (2,)))
        written.append(kinds(op))
    assert written[0][:4] == ["Cast", "Cast", "Max", "Cast"]
    assert "RandomUniformLike" not in written[0]
    assert written[1] == ["Max", "RandomUniformLike"]


def test_subgraph_sees_nodes_outside_but_not_the_reverse() -> None:
    op = OpBuilder(20)
    x = op.input("x", T.FLOAT, (2,))
    outside = op.Exp(x)
    inner = op.subgraph()
    assert inner.Exp(x) is outside
    inside = inner.Log(x)
    assert op.Log(x) is not inside


def test_numbers_take_the_dtype_of_the_type_variable() -> None:
    op = OpBuilder(20)
    half, whole = op.input("h", T.FLOAT16, (2,)), op.input("w", T.INT32, (2,))
    assert op.Add(half, 1).dtype == T.FLOAT16
    assert op.Add(1, whole).dtype == T.INT32
    assert op.Where(op.Equal(whole, 0), 1.5, half).dtype == T.FLOAT16
    assert op.Add(1, 2).dtype == T.INT64


def test_list_with_values_becomes_a_vector() -> None:
    op = OpBuilder(20)
    x = op.input("x", T.FLOAT, (ir.SymbolicDim("a"), 4))
    result = op.Reshape(x, [op.size(x, 0), 2, 2])
    assert result.producer().op_type == "Reshape"


def test_mixed_dtypes_are_refused() -> None:
    op = OpBuilder(20)
    with pytest.raises(LoweringError, match="one dtype"):
        op.Add(op.input("a", T.FLOAT, ()), op.input("b", T.INT64, ()))


@pytest.mark.parametrize(
    "call, text",
    [
        (lambda op, x: op.Exp(x, x), "takes 1 to 1 inputs"),
        (lambda op, x: op.Exp(x, scale=1), "no attribute 'scale'"),
        (lambda op, x: op.Concat(x, x), "needs attribute 'axis'"),
        (lambda op, x: op.Nothing(x), "Nothing"),
        (lambda op, x: op.Sigmoid(op.cast(x, T.INT64)), "no INT64 input"),
    ],
)
def test_call_that_does_not_fit_is_refused(call: object, text: str) -> None:
    op = OpBuilder(20)
    with pytest.raises(LoweringError, match=text):
        call(op, op.input("x", T.FLOAT, (2,)))  # type: ignore[operator]


@pytest.mark.parametrize("opset", [6, 29])
def test_opset_outside_the_range_is_refused(opset: int) -> None:
    with pytest.raises(UnsupportedOpsetError):
        OpBuilder(opset)


@pytest.mark.parametrize(
    "call, opset, lowest",
    [
        (lambda op, x: op.Det(x), 10, 11),
        (lambda op, x: op.Unique(x), 10, 11),
        (lambda op, x: op.cast(x, T.BFLOAT16), 12, 13),
        (lambda op, x: op.cast(x, T.FLOAT8E4M3FN), 18, 19),
        (lambda op, x: op.Squeeze(x, op.input("axes", T.INT64, (1,))), 12, 13),
        (lambda op, x: op.emit_many("MaxPool", 2, op.Unsqueeze(x, [0]), kernel_shape=[1]), 7, 8),
    ],
)
def test_error_names_the_lowest_opset(call: object, opset: int, lowest: int) -> None:
    op = OpBuilder(opset)
    with pytest.raises(UnsupportedOpsetError, match=f"which opset {opset} .*lowest opset that works is {lowest}"):
        call(op, op.input("x", T.FLOAT, (2, 2)))  # type: ignore[operator]


@pytest.mark.parametrize("dtype", [T.INT8, T.UINT8, T.INT16, T.BOOL])
def test_missing_dtype_is_computed_in_a_wider_one_and_cast_back(dtype: ir.DataType) -> None:
    op = OpBuilder(13)
    x = op.input("x", dtype, (2,))
    assert op.Add(x, x).dtype == dtype
    assert kinds(op) == ["Cast", "Add", "Cast"]


def test_negative_axes_count_from_the_front_below_opset_11() -> None:
    op = OpBuilder(9)
    x = op.input("x", T.FLOAT, (2, 3))
    axes = [
        op.Concat(x, x, axis=-1).producer().attributes["axis"].as_int(),
        op.Unsqueeze(x, [-1]).producer().attributes["axes"].as_ints()[0],
        op.ReduceSum(x, [-1]).producer().attributes["axes"].as_ints()[0],
    ]
    assert axes == [1, 2, 1]
    unknown = op.input("y", T.FLOAT, None)
    with pytest.raises(UnsupportedOpsetError, match="unknown rank"):
        op.Concat(unknown, unknown, axis=-1)


def test_names_are_unique_in_the_whole_model() -> None:
    op = OpBuilder(20)
    x = op.input("val_0", T.FLOAT, (2,))
    body = op.subgraph()
    names = {x.name, op.Exp(x).name, body.Log(x).name, op.input("val_0", T.FLOAT, ()).name}
    assert len(names) == 4


def test_unused_nodes_are_dropped_and_outputs_are_distinct() -> None:
    op = OpBuilder(20)
    x = op.input("x", T.FLOAT, (2,))
    op.Exp(x)
    y = op.Neg(x)
    proto = ir.to_proto(build_model(op, [y, y, x], name="test"))
    onnx.checker.check_model(proto)
    assert [node.op_type for node in proto.graph.node] == ["Neg", "Identity", "Identity"]


def test_equal_constants_are_one_initializer() -> None:
    op = OpBuilder(20)
    x = op.input("x", T.FLOAT, (2,))
    y = op.Mul(op.Add(x, 2.0), np.float32(2))
    proto = ir.to_proto(build_model(op, [y], name="test"))
    assert len(proto.graph.initializer) == 1


def test_origin_is_stamped_on_every_node_emitted_inside() -> None:
    op = OpBuilder(20)
    x = op.input("x", T.FLOAT, (2,))
    with op.origin(source="model.py:3"):
        y = op.Exp(x)
    assert y.producer().metadata_props["onnxops.source"] == "model.py:3"
    assert not op.Log(x).producer().metadata_props


def test_older_view_takes_older_forms_of_the_same_graph() -> None:
    op = OpBuilder(20)
    x = op.input("x", T.FLOAT, (2, 1))
    with pytest.raises(LoweringError, match="no attribute 'axes'"):
        op.Squeeze(x, axes=[1])
    older = OpBuilder(9)
    y = older.input("y", T.FLOAT, (2, 1))
    assert older.at(9).Squeeze(y, axes=[1]) is older.newest.Squeeze(y, [1])


def test_values_that_were_made_before_become_the_outputs_of_a_node() -> None:
    op = OpBuilder(20)
    x = op.input("x", T.FLOAT, (2,))
    ahead = ir.Value()

    (given,) = op.emit_custom("my.domain", "Double", [x], {}, [T.FLOAT], shapes=[(2,)], outputs=[ahead])

    assert given is ahead
    assert ahead.producer().op_type == "Double"
    assert (ahead.dtype, ahead.shape) == (T.FLOAT, ir.Shape((2,)))
