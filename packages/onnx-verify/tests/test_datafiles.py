"""Inputs from files, the ONNX test data layout among them."""

from pathlib import Path

import numpy as np
import onnx
import pytest
from models import build, info, mlp, mlp_numpy, normal
from onnx import TensorProto, helper, numpy_helper
from onnx.backend.test.loader import load_model_tests

import onnx_verify
from onnx_verify import compare, input_sets
from onnx_verify.inputs.datafiles import read_expected, read_value

# ONNX Runtime has no kernels for the old opset of some of the others (PRelu 6, AveragePool 1).
RUN_BY_ORT = ("test_Conv2d", "test_Softmax", "test_Embedding")
ONNX_CASES = [
    *(case for case in load_model_tests(kind="pytorch-converted") if case.name.startswith(RUN_BY_ORT)),
    *(case for case in load_model_tests(kind="simple") if "sequence" in case.name),
]


def test_npz_npy_and_pb_are_read(tmp_path):
    x = normal(2, 8)
    np.savez(tmp_path / "x.npz", x=x)
    np.save(tmp_path / "x.npy", x)
    (tmp_path / "x.pb").write_bytes(numpy_helper.from_array(x).SerializeToString())
    for name in ("x.npz", "x.npy", "x.pb"):
        verdict = compare(mlp_reference, mlp(), str(tmp_path / name))
        assert verdict
        assert verdict.cases[0].label == name


def mlp_reference(x):
    return mlp_numpy(mlp(), x)


@pytest.mark.parametrize("case", ONNX_CASES, ids=lambda case: case.name)
def test_onnx_test_folders_are_read_and_their_outputs_agree(case):
    sets = input_sets(case.model_dir)
    model = Path(case.model_dir) / "model.onnx"
    for each, expected in zip(sets, read_expected(Path(case.model_dir)), strict=True):
        assert compare(lambda *_, values=expected: [value for _, value in values], model, each)


def test_a_gap_in_the_numbers_is_an_error(tmp_path):
    for number in (0, 2):
        np.save(tmp_path / f"input_{number}.npy", normal(1))
    with pytest.raises(onnx_verify.InputError, match="once each"):
        input_sets(tmp_path)


def test_pickled_data_is_never_read(tmp_path):
    np.save(tmp_path / "x.npy", np.array([{"a": 1}], object), allow_pickle=True)
    np.savez(tmp_path / "x.npz", x=np.array([{"a": 1}], object))
    for name in ("x.npy", "x.npz"):
        with pytest.raises(onnx_verify.InputError):
            input_sets(str(tmp_path / name))


def test_a_tensor_with_too_little_data_is_an_error(tmp_path):
    tensor = helper.make_tensor("t", TensorProto.FLOAT, [2], np.zeros(2, np.float32).tobytes(), raw=True)
    tensor.dims[0] = 10**9
    (tmp_path / "t.pb").write_bytes(tensor.SerializeToString())
    with pytest.raises(onnx_verify.InputError, match="needs 4000000000 bytes"):
        read_value(tmp_path / "t.pb")


def test_sequences_are_read(tmp_path):
    parts = [normal(2), normal(3)]
    (tmp_path / "s.pb").write_bytes(numpy_helper.from_list(parts).SerializeToString())
    (tmp_path / "o.pb").write_bytes(numpy_helper.from_optional(parts[0]).SerializeToString())
    for read, wanted in zip(read_value(tmp_path / "s.pb"), parts, strict=True):
        np.testing.assert_array_equal(read, wanted)
    np.testing.assert_array_equal(read_value(tmp_path / "o.pb"), [parts[0]])


OPTIONAL = {
    "tensor": (helper.make_tensor_type_proto(TensorProto.FLOAT, [None]), [normal(4), None]),
    "sequence": (
        helper.make_sequence_type_proto(helper.make_tensor_type_proto(TensorProto.FLOAT, None)),
        [[normal(2), normal(3)], [normal(1)], None],
    ),
}


def has_element(inner):
    """Tells whether its optional input holds something."""
    node = helper.make_node("OptionalHasElement", ["o"], ["y"])
    optional = helper.make_value_info("o", helper.make_optional_type_proto(inner))
    return build([node], [optional], [info("y", [], TensorProto.BOOL)])


@pytest.mark.parametrize("runtime", ["ort", "reference"])
@pytest.mark.parametrize("kind", OPTIONAL)
def test_optional_inputs_are_read_and_passed(kind, runtime, tmp_path):
    inner, values = OPTIONAL[kind]
    code = onnx.OptionalProto.TENSOR if kind == "tensor" else onnx.OptionalProto.SEQUENCE
    for value in values:
        for declared in (None, code):
            file = tmp_path / "input_0.pb"
            file.write_bytes(numpy_helper.from_optional(value, "o", declared).SerializeToString())
            expected = np.asarray(value is not None)
            reference = lambda *_, result=expected: result  # noqa: E731
            assert compare(reference, has_element(inner), str(tmp_path), backend=runtime)


def test_what_an_optional_holds_reaches_the_model():
    inner, values = OPTIONAL["sequence"]
    optional = helper.make_optional_type_proto(inner)
    nodes = [helper.make_node("OptionalGetElement", ["o"], ["s"]), helper.make_node("SequenceLength", ["s"], ["y"])]
    model = build(nodes, [helper.make_value_info("o", optional)], [info("y", [], TensorProto.INT64)])
    for backend in ("ort", "reference"):
        for value in values[:2]:
            assert compare(lambda _, n=len(value): np.asarray(n), model, (value,), backend=backend)


def test_an_optional_input_is_given_as_what_it_holds_or_none():
    inner, (present, absent) = OPTIONAL["tensor"]
    for backend in ("ort", "reference"):
        for value in (present, absent):
            for inputs in ((value,), {"o": value}):
                expected = np.asarray(value is not None)
                assert compare(lambda *_, e=expected, **__: e, has_element(inner), inputs, backend=backend)
    with pytest.raises(onnx_verify.InputError, match="2 tensors were given"):
        compare(lambda _: None, has_element(inner), ([present, present],))


@pytest.mark.parametrize("name", ["x.npz", "x.npy", "x.pb", "x.txt"])
@pytest.mark.parametrize("content", [b"", b"nonsense", b"PK\x03\x04nonsense"])
def test_a_damaged_file_is_an_error(name, content, tmp_path):
    (tmp_path / name).write_bytes(content)
    with pytest.raises(onnx_verify.InputError, match=name):
        input_sets(str(tmp_path / name))


def test_an_archive_that_is_cut_off_is_an_error(tmp_path):
    np.savez_compressed(tmp_path / "x.npz", x=normal(500))
    data = (tmp_path / "x.npz").read_bytes()
    for stop in range(0, len(data), 97):
        (tmp_path / "x.npz").write_bytes(data[:stop])
        with pytest.raises(onnx_verify.InputError):
            input_sets(str(tmp_path / "x.npz"))


def test_missing_places_and_outputs_are_errors(tmp_path):
    with pytest.raises(onnx_verify.InputError, match="no inputs at"):
        input_sets(str(tmp_path / "none"))
    with pytest.raises(onnx_verify.InputError, match="neither"):
        input_sets(tmp_path)
    with pytest.raises(onnx_verify.InputError, match="no expected outputs"):
        read_expected(tmp_path)
    (tmp_path / "test_data_set_0").mkdir()
    with pytest.raises(onnx_verify.InputError, match="output_0"):
        read_expected(tmp_path)


def test_a_folder_of_npz_files_is_several_sets(tmp_path):
    for index in range(2):
        np.savez(tmp_path / f"{index}.npz", x=normal(index + 1, 8))
    assert [each.kwargs["x"].shape for each in input_sets(tmp_path)] == [(1, 8), (2, 8)]
