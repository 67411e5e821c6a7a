"""compare(): what agrees, what does not, and what the verdict says about it."""

import json
from typing import NamedTuple

import ml_dtypes
import models
import numpy as np
import onnx
import onnx_ir as ir
import pytest
import torch
from models import build, clone, info, mlp, mlp_numpy, normal, set_weight, weight
from onnx import TensorProto, helper

import onnx_verify
from onnx_verify import InputSet, Tolerance, compare, find_mismatch
from onnx_verify.values.dtypes import onnx_dtype
from onnx_verify.values.torch_tensors import to_numpy


def test_a_model_agrees_with_an_independent_computation_at_several_batch_sizes():
    model = mlp()
    verdict = compare(lambda x: mlp_numpy(model, x), model, [(normal(n, 8),) for n in (1, 3, 7)])
    assert verdict
    assert [case.outputs[0].candidate_shape for case in verdict.cases] == [(1, 8), (3, 8), (7, 8)]


def test_one_changed_weight_is_a_mismatch_with_its_place_and_values():
    model = mlp(layers=1)
    wrong = clone(model)
    values = weight(model, "b0")
    values[5] += 10.0
    set_weight(wrong, "b0", values)
    verdict = compare(model, wrong, (np.zeros((2, 8), np.float32),))
    output = verdict.cases[0].outputs[0]
    assert not verdict
    assert output.metrics.mismatches == 2
    assert output.metrics.worst_index[1] == 5
    assert output.metrics.worst_candidate == pytest.approx(max(values[5], 0))
    assert output.metrics.worst_reference == pytest.approx(max(values[5] - 10.0, 0))
    assert "2 of 16 elements differ" in str(verdict)


@pytest.mark.parametrize("form", ["proto", "ir", "path", "str"])
def test_every_form_of_an_onnx_model_is_taken(form, tmp_path):
    model = mlp()
    path = tmp_path / "m.onnx"
    onnx.save(model, path)
    forms = {"proto": model, "ir": ir.from_proto(model), "path": path, "str": str(path)}
    assert compare(lambda x: mlp_numpy(model, x), forms[form], (normal(2, 8),))


class Pair(NamedTuple):
    first: torch.Tensor
    second: dict


class Nested(torch.nn.Module):
    def forward(self, x, options, *, scale):
        return Pair(x * scale, {"a": options["b"] + 1, "none": None, "list": [x - scale]})


def nested_onnx():
    nodes = [
        helper.make_node("Mul", ["x", "scale"], ["first"]),
        helper.make_node("Add", ["b", "one"], ["a"]),
        helper.make_node("Sub", ["x", "scale"], ["last"]),
    ]
    inputs = [info("x", ["n"]), info("b", ["n"]), info("scale", [])]
    outputs = [info("first", ["n"]), info("a", ["n"]), info("last", ["n"])]
    return build(nodes, inputs, outputs, {"one": np.ones((), np.float32)})


def test_nested_torch_inputs_and_outputs_are_flattened():
    inputs = InputSet((torch.randn(5), {"b": torch.randn(5)}), {"scale": torch.tensor(3.0)})
    verdict = compare(Nested(), nested_onnx(), inputs)
    assert verdict
    assert [output.name for output in verdict.cases[0].outputs] == ["first", "a", "last"]


def test_keywords_bind_by_name_in_any_order():
    inputs = InputSet((), {"scale": torch.tensor(3.0), "options": {"b": torch.ones(2)}, "x": torch.zeros(2)})
    assert compare(Nested(), nested_onnx(), inputs)


def test_python_scalars_that_the_exporter_made_constants_are_dropped():
    def reference(x, factor):
        return x * factor

    model = build(
        [helper.make_node("Mul", ["x", "two"], ["y"])],
        [info("x", ["n"])],
        [info("y", ["n"])],
        {"two": np.asarray(2.0, np.float32)},
    )
    assert compare(reference, model, (torch.randn(3), 2.0))


def test_python_scalars_take_the_dtype_of_the_input_they_fill():
    model = build([helper.make_node("Mul", ["x", "f"], ["y"])], [info("x", ["n"]), info("f", [])], [info("y", ["n"])])
    assert compare(lambda x, f: x * f, model, (torch.randn(3), 2))


def test_a_wrong_dtype_fails_even_if_the_values_agree():
    model = build(
        [helper.make_node("Cast", ["x"], ["y"], to=TensorProto.DOUBLE)],
        [info("x", ["n"])],
        [info("y", ["n"], TensorProto.DOUBLE)],
    )
    verdict = compare(lambda x: x, model, (torch.ones(3),))
    assert not verdict
    assert "dtype is float64, should be float32" in str(verdict)
    assert compare(lambda x: x, model, (torch.ones(3),), check_dtype=False)


def test_a_wrong_shape_fails_even_if_the_values_agree():
    model = build([helper.make_node("Identity", ["x"], ["y"])], [info("x", None)], [info("y", None)])
    verdict = compare(lambda x: x.reshape(1, 3), model, (torch.ones(3),))
    assert not verdict
    assert "shape is [3], should be [1, 3]" in str(verdict)
    assert compare(lambda x: x.reshape(1, 3), model, (torch.ones(3),), check_shape=False)
    assert not compare(lambda x: x.reshape(3, 1), model, (torch.arange(3.0),), check_shape=False)


def test_a_missing_output_fails():
    model = mlp()
    verdict = compare(lambda x: (mlp_numpy(model, x), x), model, (normal(2, 8),))
    assert not verdict
    assert "the reference has 2 outputs, the candidate 1" in str(verdict)


def test_no_inputs_is_an_error_and_no_verdict():
    with pytest.raises(onnx_verify.InputError, match="at least one"):
        compare(mlp(), mlp(), [])


def test_a_list_of_bare_tensors_is_refused_for_it_could_mean_two_things():
    with pytest.raises(onnx_verify.InputError, match="several input sets"):
        compare(mlp(), mlp(), [normal(2, 8)])


@pytest.mark.parametrize(
    "inputs, message",
    [
        (({"y": normal(2, 8)}), "not among them: y"),
        ((normal(2, 8), normal(2, 8)), "takes 1 inputs"),
        ((normal(2, 7),), r"shape \[2, 7\]"),
        ((normal(2, 8).astype(np.float64),), "is float64"),
    ],
)
def test_inputs_that_do_not_fit_are_named(inputs, message):
    with pytest.raises(onnx_verify.InputError, match=message):
        compare(mlp(), mlp(), inputs)


def test_nan_agrees_with_nan_and_with_nothing_else():
    model = build([helper.make_node("Sqrt", ["x"], ["y"])], [info("x", ["n"])], [info("y", ["n"])])
    x = np.array([-1.0, 4.0], np.float32)
    assert compare(torch.sqrt, model, (torch.from_numpy(x),))
    strict = Tolerance(1e-3, 1e-3, equal_nan=False)
    assert not compare(torch.sqrt, model, (torch.from_numpy(x),), strict)
    verdict = compare(lambda x: torch.sqrt(x.abs()), model, (torch.from_numpy(x),))
    metrics = verdict.cases[0].outputs[0].metrics
    assert (metrics.mismatches, metrics.nan_mismatches, metrics.worst_index) == (1, 1, (0,))


def test_infinities_of_different_sign_disagree():
    model = build([helper.make_node("Neg", ["x"], ["y"])], [info("x", ["n"])], [info("y", ["n"])])
    verdict = compare(lambda x: x, model, (np.array([np.inf, 0.0], np.float32),), Tolerance(1e30, 1e30))
    assert verdict.cases[0].outputs[0].metrics.inf_mismatches == 1
    assert not verdict


def test_tolerances_are_per_output_by_name_or_index():
    model = build(
        [helper.make_node("Add", ["x", "d"], ["y"]), helper.make_node("Add", ["x", "d"], ["z"])],
        [info("x", ["n"])],
        [info("y", ["n"]), info("z", ["n"])],
        {"d": np.asarray(0.01, np.float32)},
    )
    loose = Tolerance(0, 0.1)
    x = np.zeros(3, np.float32)
    assert not compare(lambda x: (x, x), model, (x,))
    assert [o.ok for o in compare(lambda x: (x, x), model, (x,), {"z": loose}).cases[0].outputs] == [
        False,
        True,
    ]
    assert [o.ok for o in compare(lambda x: (x, x), model, (x,), {0: loose}).cases[0].outputs] == [
        True,
        False,
    ]
    assert compare(lambda x: (x, x), model, (x,), loose)
    with pytest.raises(onnx_verify.InputError, match="not outputs"):
        compare(lambda x: (x, x), model, (x,), {"typo": loose})


def test_integers_must_be_equal():
    model = build(
        [helper.make_node("Add", ["x", "one"], ["y"])],
        [info("x", ["n"], TensorProto.INT64)],
        [info("y", ["n"], TensorProto.INT64)],
        {"one": np.asarray(1, np.int64)},
    )
    large = np.array([2**60, 5], np.int64)
    assert compare(lambda x: x + 1, model, (large,))
    verdict = compare(lambda x: x + np.array([0, 1]), model, (large,))
    assert verdict.cases[0].outputs[0].metrics.mismatches == 1


def through_float(code):
    """A model that takes and returns a type, with float32 in between."""
    nodes = [
        helper.make_node("Cast", ["x"], ["wide"], to=TensorProto.FLOAT),
        helper.make_node("Cast", ["wide"], ["y"], to=code),
    ]
    return build(nodes, [info("x", ["n"], code)], [info("y", ["n"], code)], opset=21)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float64, torch.float8_e4m3fn])
def test_every_float_type_passes_through_onnx_runtime(dtype):
    code = onnx_dtype(to_numpy(torch.ones(1, dtype=dtype)).dtype)
    x = torch.arange(-9.0, 9.0).to(dtype)
    assert compare(lambda x: x, through_float(code), (x,), Tolerance(0, 0))
    assert not compare(lambda x: (x.float() + 1).to(dtype), through_float(code), (x,))


def test_four_bit_integers_pass_through_onnx_runtime():
    nodes = [
        helper.make_node("DequantizeLinear", ["x", "scale"], ["wide"]),
        helper.make_node("QuantizeLinear", ["wide", "scale"], ["y"], output_dtype=TensorProto.INT4),
    ]
    held = [info(name, ["n"], TensorProto.INT4) for name in "xy"]
    model = build(nodes, held[:1], held[1:], {"scale": np.float32(1)}, opset=21)
    x = np.array([-8, 7, 3], ml_dtypes.int4)
    assert compare(lambda x: x, model, (x,))
    assert not compare(lambda x: np.array([-8, 7, 2], ml_dtypes.int4), model, (x,))


@pytest.mark.skipif(onnx.defs.onnx_opset_version() < 25, reason="this release of onnx has no elements of two bits")
@pytest.mark.parametrize("dtype", [ml_dtypes.int2, ml_dtypes.uint2])
def test_elements_of_two_bits_go_in_and_out(dtype):
    code = helper.np_dtype_to_tensor_dtype(np.dtype(dtype))
    nodes = [
        helper.make_node("Cast", ["x"], ["number"], to=TensorProto.FLOAT),
        helper.make_node("Cast", ["number"], ["y"], to=code),
    ]
    model = build(nodes, [info("x", ["n"], code)], [info("y", ["n"], code)], opset=25)
    x = np.array([1, 0, 3, 2, 1], np.uint8).astype(dtype)
    assert compare(lambda x: x, model, (x,))
    assert not compare(lambda x: np.array([1, 0, 3, 2, 0], np.uint8).astype(dtype), model, (x,))


def test_strings_must_be_equal():
    model = build(
        [helper.make_node("Identity", ["x"], ["y"])],
        [info("x", ["n"], TensorProto.STRING)],
        [info("y", ["n"], TensorProto.STRING)],
    )
    x = np.array(["ab", "ü"], object)
    assert compare(lambda x: x, model, (x,))
    assert not compare(lambda x: np.array(["ab", "u"], object), model, (x,))


def test_sequence_outputs_are_compared_element_by_element():
    sequence = helper.make_tensor_sequence_value_info("s", TensorProto.FLOAT, None)
    model = build([helper.make_node("SequenceConstruct", ["x", "x"], ["s"])], [info("x", ["n"])], [sequence])
    assert compare(lambda x: [x, x], model, (torch.ones(3),))
    verdict = compare(lambda x: [x, x + 1], model, (torch.ones(3),))
    assert [output.ok for output in verdict.cases[0].outputs] == [True, False]


def test_a_sequence_input_takes_a_list_by_position_and_by_name():
    sequence = helper.make_tensor_sequence_value_info("s", TensorProto.FLOAT, None)
    nodes = [
        helper.make_node("ConcatFromSequence", ["s"], ["c"], axis=0),
        helper.make_node("Mul", ["c", "x"], ["y"]),
    ]
    model = build(nodes, [sequence, info("x", [1])], [info("y", ["n"])])
    parts, x = [normal(2), normal(3)], normal(1)
    assert compare(lambda s, x: np.concatenate(s) * x, model, (parts, x))
    assert compare(lambda s, x: np.concatenate(s) * x, model, {"s": parts, "x": x})
    assert find_mismatch(model, (parts, x), reference=model, exhaustive=True).ok


def test_agreement_that_proves_nothing_is_noted():
    model = build([helper.make_node("Sqrt", ["x"], ["y"])], [info("x", ["n"])], [info("y", ["n"])])
    assert "no finite value" in str(compare(torch.sqrt, model, (-torch.ones(3),)))
    assert "empty" in str(compare(torch.sqrt, model, (torch.ones(0),)))
    assert "note" not in str(compare(torch.sqrt, model, (torch.ones(3),)))


@pytest.mark.parametrize(
    "choice", ["reference", onnx_verify.OnnxBackend.REFERENCE, onnx_verify.Backend.parse("reference")]
)
def test_a_backend_can_be_named(choice):
    assert "in reference" in compare(mlp(), mlp(), "random", backend=choice).candidate


def test_a_complex_reference_agrees_with_its_real_pairs():
    model = build([helper.make_node("Identity", ["x"], ["y"])], [info("x", ["n", 2])], [info("y", ["n", 2])])
    x = torch.randn(4, dtype=torch.complex64)
    verdict = compare(lambda x: x, model, (x,))
    assert verdict
    assert verdict.cases[0].outputs[0].notes
    assert not compare(lambda x: x.conj(), model, (x,))


class Counter(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer("count", torch.zeros(()))

    def forward(self, x):
        self.count += 1
        x += 1
        return x * self.count, self.count


def test_a_run_changes_neither_the_module_nor_the_inputs():
    module, x = Counter(), torch.zeros(3)
    verdict = compare(module, module, [(x,), (x,), (x,)])
    assert verdict
    assert module.count.item() == 0
    assert torch.equal(x, torch.zeros(3))


class Replacing(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.inner = torch.nn.Module()
        self.inner.register_buffer("count", torch.zeros(()))

    def forward(self, x):
        self.inner.count = self.inner.count + 1
        return x * self.inner.count


def test_a_buffer_that_a_run_replaces_is_put_back():
    module = Replacing()
    before = module.inner.count
    assert compare(module, lambda x: x, [(torch.ones(2),), (torch.ones(2),)])
    assert module.inner.count is before
    assert before.item() == 0


def test_a_scripted_module_is_left_as_it_was():
    scripted = torch.jit.script(Counter())
    assert compare(scripted, lambda x: (x + 1, torch.ones(())), [(torch.zeros(2),), (torch.zeros(2),)])
    assert scripted.count.item() == 0


def test_an_exported_program_and_a_script_module_are_references():
    torch.manual_seed(0)
    linear = torch.nn.Linear(4, 2)
    x = torch.randn(3, 4)
    model = build(
        [helper.make_node("Gemm", ["x", "w", "b"], ["y"], transB=1)],
        [info("x", ["n", 4])],
        [info("y", ["n", 2])],
        {"w": linear.weight.detach().numpy(), "b": linear.bias.detach().numpy()},
    )
    program = torch.export.export(linear, (x,))
    assert compare(program, model, (x,))
    assert compare(torch.jit.trace(linear, x), model, (x,))
    set_weight(model, "b", np.zeros(2, np.float32))
    assert not compare(program, model, (x,))


def test_the_reference_evaluator_is_a_backend():
    backend = onnx_verify.Backend(onnx_verify.OnnxBackend.REFERENCE)
    model = mlp(width=64)
    verdict = compare(lambda x: mlp_numpy(model, x), model, (normal(2, 64),), backend=backend)
    assert verdict
    assert "reference" in verdict.candidate


def test_a_model_that_cannot_run_is_an_error_and_no_verdict():
    model = build([helper.make_node("NoSuchOp", ["x"], ["y"])], [info("x", [1])], [info("y", [1])])
    with pytest.raises(onnx_verify.ModelRunError, match="NoSuchOp"):
        compare(lambda x: x, model, (normal(1),))


def test_the_verdict_is_strict_json_even_with_nan():
    model = build([helper.make_node("Sqrt", ["x"], ["y"])], [info("x", ["n"])], [info("y", ["n"])])
    verdict = compare(lambda x: x, model, (np.array([-1.0, np.inf], np.float32),))
    plain = json.loads(verdict.to_json())
    assert plain["ok"] is False
    assert plain["cases"][0]["outputs"][0]["metrics"]["worst_candidate"] == "nan"


def test_raise_for_mismatch_raises_only_for_a_mismatch():
    model = mlp()
    assert compare(model, model, (normal(2, 8),)).raise_for_mismatch()
    with pytest.raises(onnx_verify.MismatchError, match="DISAGREES"):
        compare(model, mlp(seed=1), (normal(2, 8),)).raise_for_mismatch()


def test_output_names_are_checked_on_request():
    other = clone(mlp())
    models.node_named(other, "relu2").output[0] = "renamed"
    other.graph.output[0].name = "renamed"
    verdict = compare(mlp(), other, (normal(2, 8),))
    assert verdict
    assert "note: outputs are paired by position" in str(verdict)
    assert "with renamed" in str(verdict)
    assert not compare(mlp(), other, (normal(2, 8),), check_names=True)


@pytest.mark.parametrize(
    "inputs", ["random", (normal(2), normal(2) + 5), InputSet(kwargs={"b": normal(2), "a": normal(2) + 5})]
)
def test_inputs_and_outputs_in_another_order_pair_up_by_name(inputs):
    def model(names: str, results: str):
        nodes = [helper.make_node("Sub", ["a", "b"], ["c"]), helper.make_node("Mul", ["a", "c"], ["d"])]
        return build(nodes, [info(name, [2]) for name in names], [info(name, [2]) for name in results])

    assert compare(model("ab", "cd"), model("ba", "dc"), inputs)
    assert not compare(model("ab", "cd"), model("ba", "dc"), inputs, check_names=True)
    swapped = compare(model("ab", "cd"), model("ab", "d"), inputs)
    assert not swapped


@pytest.mark.parametrize(
    "tensor, message",
    [
        (torch.eye(3).to_sparse(), "to_dense"),
        (torch.ones(1, dtype=torch.float8_e4m3fn).view(torch.float8_e8m0fnu), None),
    ],
)
def test_tensors_of_unusual_kinds_are_read_or_refused(tensor, message):
    if message is None:
        assert to_numpy(tensor).dtype.name == "float8_e8m0fnu"
    else:
        with pytest.raises(onnx_verify.InputError, match=message):
            to_numpy(tensor)


def test_quantized_tensors_are_dequantized():
    quantized = torch.quantize_per_tensor(torch.tensor([0.5, 1.0]), 0.5, 0, torch.quint8)
    np.testing.assert_array_equal(to_numpy(quantized), [0.5, 1.0])


def test_progress_is_told_after_each_run():
    told = []
    compare(mlp(), mlp(), "random", progress=lambda done, total: told.append((done, total)))
    assert told[-1] == (len(told), len(told))


def test_a_string_cannot_go_into_a_torch_model():
    with pytest.raises(onnx_verify.InputError, match="string"):
        compare(torch.nn.ReLU(), mlp(), (np.array(["a"], object),))


def test_something_that_is_no_model_is_an_error():
    with pytest.raises(onnx_verify.InputError, match="cannot run a int"):
        compare(3, mlp(), "random")
