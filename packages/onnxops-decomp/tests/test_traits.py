"""What the table of traits says of an operator is what ONNX's schemas and ONNX's own evaluator say."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper
from onnx.reference import ReferenceEvaluator

import onnxops_decomp
from onnxops_decomp.spec.schemas import NEWEST_OPSET, op_spec
from onnxops_decomp.spec.traits import Trait, has_trait, operators_with

NEWEST = {schema.name: schema for schema in onnx.defs.get_all_schemas() if not schema.domain}
# What an operator needs besides its first operand, of shape (2, 3).
FURTHER: dict[str, list[np.ndarray]] = {
    "Expand": [np.array([2, 2, 3])],
    "Gather": [np.array([1, 0])],
    "Reshape": [np.array([3, 2])],
    "Slice": [np.array([1]), np.array([3]), np.array([1])],
    "Tile": [np.array([2, 1])],
    "Unsqueeze": [np.array([0])],
}


@pytest.mark.parametrize("op_type", sorted({name for trait in Trait for name in operators_with(trait)}))
def test_a_row_is_that_of_an_operator(op_type: str) -> None:
    assert op_spec(op_type, NEWEST_OPSET) is not None


DTYPES = (TensorProto.FLOAT, TensorProto.BOOL, TensorProto.INT64, TensorProto.UINT8)
# Attributes that an operator must have.
REQUIRED = {"Cast": {"to": TensorProto.INT32}, "GroupNormalization": {"num_groups": 1}}


@pytest.mark.parametrize("op_type", [name for name in operators_with(Trait.KEEPS_SHAPE) if name in NEWEST])
def test_the_result_has_the_shape_of_the_first_operand_for_onnx_too(op_type: str) -> None:
    schema = NEWEST[op_type]
    allowed = {each.type_param_str: each.allowed_type_strs for each in schema.type_constraints}
    names = [formal.name for formal in schema.inputs[: schema.min_input]]
    types = {}
    for index, formal in enumerate(schema.inputs[: schema.min_input]):
        kinds = allowed.get(formal.type_str, [formal.type_str])
        dtype = next(
            d
            for d in (TensorProto.FLOAT, TensorProto.BOOL, TensorProto.INT64, TensorProto.UINT8)
            if as_text(d) in kinds
        )
        types[formal.name] = helper.make_tensor_type_proto(dtype, [2, 3, 4, 5] if index == 0 else [3])
    node = helper.make_node(op_type, names, [schema.outputs[0].name], **REQUIRED.get(op_type, {}))
    inferred = onnx.shape_inference.infer_node_outputs(schema, node, types)
    # Of what is a function for ONNX it infers no shape, and in old releases nothing at all.
    shape = inferred.get(schema.outputs[0].name, onnx.TypeProto()).tensor_type.shape
    assert [dim.dim_value for dim in shape.dim] in ([2, 3, 4, 5], [])


def as_text(dtype: int) -> str:
    return f"tensor({TensorProto.DataType.Name(dtype).lower()})"


def moved(op_type: str) -> tuple[np.ndarray, np.ndarray]:
    """The operand and the result of an operator on six different numbers."""
    x, further = np.arange(6, dtype=np.float32).reshape(2, 3), FURTHER.get(op_type, [])
    names = ["x", *(f"further_{index}" for index in range(len(further)))]
    constants = [onnx.numpy_helper.from_array(value, name) for name, value in zip(names[1:], further, strict=True)]
    graph = helper.make_graph(
        [helper.make_node(op_type, names, ["y"])],
        op_type,
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, None)],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, None)],
        constants,
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)])
    [y] = ReferenceEvaluator(model).run(None, {"x": x})
    return x, y


@pytest.mark.parametrize("op_type", operators_with(Trait.NEVER_NEGATIVE))
def test_no_real_number_is_negative(op_type: str) -> None:
    x = np.linspace(-9, 9, 48, dtype=np.float32).reshape(6, 8)
    graph = helper.make_graph(
        [helper.make_node(op_type, ["x"], ["y"])],
        op_type,
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, None)],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, None)],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)])
    [y] = ReferenceEvaluator(model).run(None, {"x": x})
    assert y.size
    assert (y >= 0).all()


@pytest.mark.parametrize("op_type", operators_with(Trait.MOVES))
def test_elements_are_moved_as_the_table_says(op_type: str) -> None:
    x, y = moved(op_type)

    assert set(y.ravel()) <= set(x.ravel())
    if has_trait(op_type, Trait.REARRANGES):
        assert set(y.ravel()) == set(x.ravel())
    if has_trait(op_type, Trait.RESHAPES):
        assert y.ravel().tolist() == x.ravel().tolist()


@pytest.mark.parametrize("op_type", operators_with(Trait.REDUCES))
def test_the_axes_of_a_reduction_are_an_input(op_type: str) -> None:
    assert [formal.name for formal in NEWEST[op_type].inputs] == ["data", "axes"]


@pytest.mark.skipif(not hasattr(onnx.defs.OpSchema, "NodeDeterminism"), reason="this onnx does not say it of operators")
def test_random_operators_are_those_that_onnx_calls_so() -> None:
    deterministic = onnx.defs.OpSchema.NodeDeterminism.Deterministic
    random = {name for name in operators_with(Trait.RANDOM) if NEWEST[name].node_determinism != deterministic}
    assert random == set(operators_with(Trait.RANDOM))


def test_operators_of_other_domains_have_no_traits() -> None:
    assert not has_trait("Reshape", Trait.RESHAPES, "com.microsoft")


def listed_operators(tree: ast.Module) -> Iterator[tuple[int, list[str]]]:
    """The collections at the top of a module that list operators, other than tables of functions: line and names."""
    for statement in tree.body:
        value = statement.value if isinstance(statement, ast.Assign | ast.AnnAssign) else None
        listed = [value]
        if isinstance(value, ast.Dict):
            listed = [*value.keys] if all(isinstance(each, ast.Constant) for each in value.values) else []
        nodes = [node for each in listed if each is not None for node in ast.walk(each)]
        names = [node.value for node in nodes if isinstance(node, ast.Constant) and node.value in NEWEST]
        if len(names) > 2:  # fewer say what is so of one case
            yield statement.lineno, names


def test_what_holds_for_operators_is_listed_in_the_table_alone() -> None:
    root = Path(onnxops_decomp.__file__).parent
    # What a runtime does to an operator is a fact of the runtime; functions of SymPy have names like operators.
    others = {root / "exporting" / "sizes" / "expressions.py", *root.glob("runtimes/**/*.py"), *root.glob("spec/*.py")}
    files = set(root.rglob("*.py")) - others
    found = [(path.name, *each) for path in files for each in listed_operators(ast.parse(path.read_text()))]
    assert found == []
