"""Folded constants are what ONNX's evaluator computes from them."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from onnx import helper
from onnx.reference import ReferenceEvaluator

from onnxops_decomp.builder.folding import MAX_FOLDED_BYTES, fold, is_foldable
from onnxops_decomp.builder.op_builder import OpBuilder
from onnxops_decomp.spec.schemas import NEWEST_OPSET

FLOATS = np.array([[-2.5, -1.0, -0.0], [0.5, 1.0, 7.25]], np.float32)
POSITIVE = np.abs(FLOATS) + 0.5
INTS = np.array([[-7, -1, 0], [2, 5, 9]], np.int64)
OTHERS = np.array([[2, -3, 4], [-5, 2, -4]], np.int64)
BOOLS = np.array([[True, False, True], [False, False, True]])
AXES = np.array([-1], np.int64)

CASES: list[tuple[str, list[np.ndarray | None], dict[str, Any]]] = [
    *((op_type, [x], {}) for op_type in ("Abs", "Ceil", "Floor", "Neg", "Cos", "Sin", "Exp") for x in (FLOATS,)),
    *((op_type, [INTS], {}) for op_type in ("Abs", "Neg")),
    *((op_type, [POSITIVE], {}) for op_type in ("Log", "Sqrt")),
    *(
        (op_type, [x, y], {})
        for op_type in ("Add", "Sub", "Mul", "Div", "Equal", "Greater", "GreaterOrEqual", "Less", "LessOrEqual")
        for x, y in ((FLOATS, POSITIVE), (INTS, OTHERS), (INTS.astype(np.int8), OTHERS.astype(np.int8)))
    ),
    *((op_type, [x, y, y[:1]], {}) for op_type in ("Max", "Min") for x, y in ((FLOATS, POSITIVE), (INTS, OTHERS))),
    *((op_type, [BOOLS, BOOLS[::-1].copy()], {}) for op_type in ("And", "Or")),
    ("Not", [BOOLS], {}),
    ("Mod", [INTS, OTHERS], {}),
    ("Mod", [INTS, OTHERS], {"fmod": 1}),
    ("Mod", [FLOATS, POSITIVE], {"fmod": 1}),
    ("Pow", [POSITIVE, FLOATS], {}),
    ("Pow", [INTS, np.array(3, np.int64)], {}),
    ("Pow", [INTS, np.array(2.0, np.float32)], {}),
    *(("Cast", [FLOATS], {"to": int(dtype)}) for dtype in (ir.DataType.INT64, ir.DataType.BOOL, ir.DataType.FLOAT16)),
    ("Cast", [np.array([300, -1, 2**40], np.int64)], {"to": int(ir.DataType.INT8)}),
    ("Concat", [FLOATS, POSITIVE], {"axis": -1}),
    ("ConstantOfShape", [np.array([2, 0, 3], np.int64)], {}),
    ("Expand", [FLOATS[:1], np.array([2, 1, 3], np.int64)], {}),
    ("Gather", [FLOATS, np.array([[-1, 0]], np.int64)], {"axis": 1}),
    ("Range", [np.array(1, np.int64), np.array(8, np.int64), np.array(3, np.int64)], {}),
    ("Range", [np.array(1, np.float32), np.array(-2, np.float32), np.array(-0.5, np.float32)], {}),
    *(
        (op_type, [x, axes], {"keepdims": keepdims})
        for op_type in ("ReduceMax", "ReduceMin", "ReduceSum", "ReduceProd")
        for x in (FLOATS, INTS)
        for axes in (AXES, None)
        for keepdims in (0, 1)
    ),
    ("ReduceSum", [INTS, np.zeros(0, np.int64)], {"noop_with_empty_axes": 1}),
    ("Reshape", [FLOATS, np.array([0, -1, 1], np.int64)], {}),
    ("Slice", [FLOATS, np.array([-1, 0]), np.array([-(2**63), 2]), np.array([1, 0]), np.array([-2, 1])], {}),
    ("Slice", [FLOATS, np.array([1]), np.array([2**63 - 1])], {}),
    ("Squeeze", [FLOATS[None, :, None], np.array([0, -2])], {}),
    ("Unsqueeze", [FLOATS, np.array([-1, 0])], {}),
    ("Tile", [FLOATS, np.array([2, 3])], {}),
    ("Transpose", [FLOATS], {}),
    ("Transpose", [FLOATS[None]], {"perm": [1, 2, 0]}),
    ("Trilu", [FLOATS], {"upper": 0}),
    ("Trilu", [FLOATS[None], np.array(1)], {}),
    ("Where", [BOOLS, FLOATS, POSITIVE[:1]], {}),
]


def evaluated(op_type: str, inputs: list[np.ndarray | None], attributes: dict[str, Any]) -> np.ndarray:
    names = [f"x{index}" if array is not None else "" for index, array in enumerate(inputs)]
    values = [
        helper.make_tensor_value_info(name, int(ir.DataType.from_numpy(array.dtype)), array.shape)
        for name, array in zip(names, inputs, strict=True)
        if array is not None
    ]
    node = helper.make_node(op_type, names, ["y"], **attributes)
    graph = helper.make_graph([node], "expected", values, [onnx.ValueInfoProto(name="y")])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", NEWEST_OPSET)])
    feeds = {name: array for name, array in zip(names, inputs, strict=True) if array is not None}
    return np.asarray(ReferenceEvaluator(model).run(None, feeds)[0])


@pytest.mark.parametrize(
    "op_type, inputs, attributes", CASES, ids=lambda value: value if isinstance(value, str) else ""
)
def test_folded_result_is_that_of_the_evaluator(
    op_type: str, inputs: list[np.ndarray | None], attributes: dict[str, Any]
) -> None:
    result = fold(op_type, inputs, attributes)
    assert result is not None
    expected = evaluated(op_type, inputs, attributes)
    assert result.dtype == expected.dtype
    assert result.shape == expected.shape
    np.testing.assert_array_equal(result, expected)


@pytest.mark.parametrize(
    "op_type, inputs, attributes",
    [
        ("Div", [INTS, np.zeros_like(INTS)], {}),
        ("Mod", [INTS, np.zeros_like(INTS)], {}),
        ("Pow", [INTS, np.array(-1, np.int64)], {}),
        ("Cast", [np.array([np.nan, np.inf], np.float32)], {"to": int(ir.DataType.INT64)}),
        ("Gather", [FLOATS, np.array([5], np.int64)], {"axis": 0}),
        ("Range", [np.array(0), np.array(5), np.array(0)], {}),
        ("ReduceMax", [np.zeros((0, 2), np.float32), None], {}),
    ],
)
def test_what_is_undefined_is_left_to_the_runtime(op_type: str, inputs: Any, attributes: Any) -> None:
    assert fold(op_type, inputs, attributes) is None


def test_a_slice_backwards_begins_at_the_first_element_at_the_earliest() -> None:
    """The specification limits the start to the elements; ONNX's evaluator does as NumPy, and takes none."""
    limits = [np.array([value]) for value in (-9, -(2**63), 0, -1)]
    assert fold("Slice", [np.array([1, 2, 3]), *limits], {}).tolist() == [1]


def test_nothing_large_is_made() -> None:
    many = MAX_FOLDED_BYTES + 1
    assert fold("Expand", [np.zeros(1, np.bool_), np.array([many])], {}) is None
    assert fold("Add", [np.zeros(many, np.int8), np.zeros(1, np.int8)], {}) is None
    assert fold("Tile", [np.zeros(2, np.int8), np.array([many])], {}) is None


def test_nothing_large_is_made_of_a_row_and_a_column() -> None:
    places = np.arange(1024)
    assert fold("LessOrEqual", [places, places[:, None]], {}) is None
    assert fold("Max", [places, places[:, None]], {}) is None
    assert fold("Mod", [places, places[:, None] + 1], {}) is None
    assert fold("LessOrEqual", [places[:256], places[:256, None]], {}) is not None


def test_a_small_result_of_each_dtype_is_made() -> None:
    for dtype in (np.bool_, np.float32, np.int64):
        count = MAX_FOLDED_BYTES // np.dtype(dtype).itemsize
        assert fold("Expand", [np.zeros(1, dtype), np.array([count])], {}) is not None
        assert fold("Expand", [np.zeros(1, dtype), np.array([count + 1])], {}) is None


def test_every_foldable_operator_has_a_case() -> None:
    foldable = {schema.name for schema in onnx.defs.get_all_schemas() if is_foldable(schema.name)}
    assert foldable == {op_type for op_type, _, _ in CASES}


@pytest.mark.parametrize("opset", [7, 13, 28])
def test_constants_fold_while_they_are_emitted(opset: int) -> None:
    op = OpBuilder(opset)
    total = op.Add(op.Mul(op.constant([2, 3]), 4), op.constant(1))
    assert op.static(total).tolist() == [9, 13]
    assert not op.scope.nodes


def test_weights_do_not_fold() -> None:
    op = OpBuilder(20)
    weight = op.input("weight", ir.DataType.FLOAT, (2,))
    assert op.static(op.Neg(weight)) is None
    assert len(op.scope.nodes) == 1
