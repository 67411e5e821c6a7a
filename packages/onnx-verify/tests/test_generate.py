"""Generated inputs fit the model, vary the sizes and stay within what they index."""

import numpy as np
import pytest
from models import build, info, mlp
from onnx import TensorProto, helper

import onnx_verify
from onnx_verify import RandomInputs, compare, generate_inputs


def embedding(rows=7):
    nodes = [
        helper.make_node("Cast", ["ids"], ["wide"], to=TensorProto.INT64),
        helper.make_node("Gather", ["table", "wide"], ["y"]),
    ]
    table = np.arange(rows * 2, dtype=np.float32).reshape(rows, 2)
    return build(nodes, [info("ids", ["n", "s"], TensorProto.INT32)], [info("y", ["n", "s", 2])], {"table": table})


def test_the_same_seed_gives_the_same_inputs_and_another_seed_others():
    first, again = generate_inputs(mlp()), generate_inputs(mlp())
    other = generate_inputs(mlp(), RandomInputs(seed=1))
    assert all(np.array_equal(a.args[0], b.args[0]) for a, b in zip(first, again, strict=True))
    assert not np.array_equal(first[0].args[0], other[0].args[0])


def test_dynamic_dimensions_take_several_sizes_and_size_one():
    shapes = {each.args[0].shape for each in generate_inputs(embedding())}
    assert {(2, 3), (3, 5), (5, 2), (1, 1)} <= shapes


def test_sizes_can_be_given_by_dimension():
    spec = RandomInputs(sizes={"n": (4, 6)}, edge_cases=False)
    assert [each.args[0].shape[0] for each in generate_inputs(embedding(), spec)] == [4, 6]


def test_indices_stay_within_the_table_and_reach_its_end():
    values = np.concatenate([e.args[0].ravel() for e in generate_inputs(embedding(), RandomInputs(sizes=(50,)))])
    assert values.dtype == np.int32
    assert (values.min(), values.max()) == (0, 6)


def test_ranges_are_kept():
    spec = RandomInputs(ranges={"x": (5.0, 6.0)}, sizes=(40,), edge_cases=False)
    values = generate_inputs(mlp(), spec)[0].args[0]
    assert 5 <= values.min() < 5.2
    assert 5.8 < values.max() <= 6


def test_edge_cases_are_zeros_negatives_and_large_values():
    sets = {each.label: each.args[0] for each in generate_inputs(mlp())}
    assert not sets["zeros values"].any()
    assert (sets["negative values"] <= 0).all()
    assert np.abs(sets["large values"]).max() > 50


def test_random_inputs_compare_two_models():
    assert compare(mlp(), mlp(), "random")
    assert compare(embedding(), embedding(), "random")
    assert not compare(mlp(), mlp(seed=1), "random")


def test_random_inputs_need_an_onnx_model():
    with pytest.raises(onnx_verify.InputError, match="generated"):
        compare(lambda x: x, lambda x: x, "random")


def test_a_range_for_an_unknown_input_is_an_error():
    with pytest.raises(onnx_verify.InputError, match="typo"):
        generate_inputs(mlp(), RandomInputs(ranges={"typo": (0, 1)}))


@pytest.mark.parametrize(
    "code",
    [
        TensorProto.BFLOAT16,
        TensorProto.FLOAT16,
        TensorProto.BOOL,
        TensorProto.STRING,
        TensorProto.INT4,
        TensorProto.UINT8,
        TensorProto.COMPLEX64,
        TensorProto.FLOAT8E5M2,
    ],
)
def test_every_element_type_is_generated(code):
    model = build([helper.make_node("Identity", ["x"], ["y"])], [info("x", ["n"], code)], [info("y", ["n"], code)])
    for each in generate_inputs(model):
        assert onnx_verify.values.dtypes.onnx_dtype(each.args[0].dtype) == code
