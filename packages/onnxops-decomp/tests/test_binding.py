"""Arguments of a call take the kinds and dtypes of the operator's schema."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx_ir as ir
import pytest

from onnxops_decomp.builder import binding
from onnxops_decomp.errors import LoweringError
from onnxops_decomp.spec.schemas import NEWEST_OPSET, first_opset, op_spec

T = ir.DataType


def spec(op_type: str, opset: int = NEWEST_OPSET) -> Any:
    found = op_spec(op_type, opset)
    assert found is not None
    return found


@pytest.mark.parametrize(
    "value, expected",
    [
        (True, T.BOOL),
        (1, T.INT64),
        (1.0, T.FLOAT),
        ([1, 2.5], T.FLOAT),
        ([], T.INT64),
        ([[1], [2]], T.INT64),
        (np.float16(1), T.FLOAT16),
        (np.zeros(2, np.uint8), T.UINT8),
    ],
)
def test_natural_dtype_of_python_numbers(value: object, expected: ir.DataType) -> None:
    assert binding.natural_dtype(value) == expected


def test_text_is_no_constant() -> None:
    with pytest.raises(TypeError, match="not a constant"):
        binding.natural_dtype("x")


def test_integers_wrap_like_those_of_torch() -> None:
    assert binding.to_array(300, T.UINT8) == 44
    assert binding.to_array(-1, T.UINT16) == 65535
    assert binding.to_array(2**64 - 1, T.UINT64) == 2**64 - 1


def test_attributes_take_the_kind_of_the_schema() -> None:
    bound = binding.bind_attributes(spec("LeakyRelu"), {"alpha": 1})
    assert bound == {"alpha": 1.0}
    assert isinstance(bound["alpha"], float)
    bound = binding.bind_attributes(spec("Transpose"), {"perm": (np.int64(1), 0)})
    assert bound == {"perm": [1, 0]}
    assert all(type(axis) is int for axis in bound["perm"])


@pytest.mark.parametrize(
    "op_type, attributes",
    [("Softmax", {"axis": -1}), ("LeakyRelu", {"alpha": 0.01}), ("Gelu", {"approximate": "none"}), ("Clip", {})],
)
def test_defaults_are_left_out(op_type: str, attributes: dict[str, Any]) -> None:
    assert binding.bind_attributes(spec(op_type), attributes) == {}


def test_required_attributes_stay_even_if_they_look_like_a_default() -> None:
    assert binding.bind_attributes(spec("Concat"), {"axis": 0}) == {"axis": 0}


def test_none_is_an_absent_attribute() -> None:
    assert binding.bind_attributes(spec("Transpose"), {"perm": None}) == {}


@pytest.mark.parametrize(
    "value, kind",
    [
        (1, ir.AttributeType.INT),
        (True, ir.AttributeType.INT),
        (1.5, ir.AttributeType.FLOAT),
        ("a", ir.AttributeType.STRING),
        ([1, 2], ir.AttributeType.INTS),
        ([1, 2.5], ir.AttributeType.FLOATS),
        (["a"], ir.AttributeType.STRINGS),
        ([], ir.AttributeType.INTS),
        (np.zeros(2, np.float32), ir.AttributeType.TENSOR),
    ],
)
def test_attribute_of_a_node_without_schema(value: object, kind: ir.AttributeType) -> None:
    assert binding.free_attribute("name", value).type == kind


def test_attribute_that_onnx_does_not_have_is_refused() -> None:
    with pytest.raises(LoweringError, match="'name'"):
        binding.free_attribute("name", object())


def test_schemas_answer_by_opset() -> None:
    assert op_spec("Gelu", 19) is None
    assert spec("Gelu", 20).since_version == 20
    assert spec("ReduceSum", 12).since_version == 11
    assert op_spec("Upsample", 10) is None
    assert (first_opset("Gelu"), first_opset("Relu"), first_opset("NoSuchOperator")) == (20, 1, None)
