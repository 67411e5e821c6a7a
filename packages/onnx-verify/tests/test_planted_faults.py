"""Every planted fault is found, and attributed to the node that has it."""

import faults
import models
import numpy as np
import onnx
import pytest
import realistic
from models import normal

from onnx_verify import ModelRunError, compare, find_mismatch, load_model
from onnx_verify.models.slicing import Graph

INPUTS = {
    "cnn": [(normal(2, 3, 12, 12),), (normal(1, 3, 12, 12, seed=1),)],
    "decoder": [realistic.decoder_inputs(), realistic.decoder_inputs(1, 4, 4, seed=1)],
    "recurrent": [(normal(4, 2, 5),)],
    "quantized": [(normal(3, 8),)],
    "integer": [(normal(3, 8),), (normal(2, 8, seed=1) * 3,)],
    "half": [(normal(2, 5, 8).astype(np.float16),), (normal(1, 3, 8, seed=1).astype(np.float16),)],
    "functions": [(normal(3, 6),), (normal(2, 6, seed=1),)],
    "control_flow": [(normal(4),)],
}
MODELS = {name: getattr(realistic, name)() for name in INPUTS}
FAULTS = faults.small_faults()


def test_there_are_more_than_fifty_faults():
    assert len({fault.id for fault in FAULTS}) == len(FAULTS) > 50


@pytest.mark.parametrize("name", MODELS)
def test_the_sound_models_are_valid_and_agree_with_themselves_node_by_node(name):
    onnx.checker.check_model(MODELS[name])
    report = find_mismatch(MODELS[name], INPUTS[name], reference=MODELS[name], exhaustive=True)
    assert report.ok
    assert not report.mismatches
    assert report.checked == len(Graph(load_model(MODELS[name])).nodes)


@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault.id)
def test_the_fault_is_found_and_attributed(fault):
    sound = MODELS[fault.model]
    broken = faults.broken(sound, fault)
    report = find_mismatch(broken, INPUTS[fault.model], reference=sound)
    assert report.has_mismatch
    assert not report.verdict
    assert report.first.confirmed
    # Inlining numbers the nodes of a function by the call.
    assert report.first.node.name.partition("__")[0] == fault.expected
    assert tuple(report.first.path) == fault.path


def _renamed(model, name_of=lambda place: f"value.{place}"):
    """The same model with every value that a node makes called ``name_of`` its place."""
    copy = models.clone(model)
    made = [name for node in copy.graph.node for name in node.output if name]
    names = {name: name_of(place) for place, name in enumerate(made)}
    for node in copy.graph.node:
        node.input[:] = [names.get(name, name) for name in node.input]
        node.output[:] = [names.get(name, name) for name in node.output]
    for value in copy.graph.output:
        value.name = names[value.name]
    return copy


@pytest.mark.parametrize("fault", [f for f in FAULTS if f.model == "cnn"], ids=lambda fault: fault.id)
def test_the_fault_is_found_by_position_when_no_names_are_shared(fault):
    sound = MODELS["cnn"]
    report = find_mismatch(_renamed(faults.broken(sound, fault)), INPUTS["cnn"], reference=sound)
    found = {node.name for node in report.first.nodes}
    assert report.first.confirmed
    assert fault.expected in found


def _numbered(model, first):
    """The same model with its values numbered from ``first``, as exporters do: two numberings share most names."""
    return _renamed(model, lambda place: f"val_{first + place}")


@pytest.mark.parametrize("fault", [f for f in FAULTS if f.model == "cnn"], ids=lambda fault: fault.id)
def test_names_that_are_shared_by_chance_do_not_mislead(fault):
    sound = MODELS["cnn"]
    broken = _numbered(faults.broken(sound, fault), 0)
    report = find_mismatch(broken, INPUTS["cnn"], reference=_numbered(sound, 2))
    assert report.has_mismatch
    assert fault.expected in {node.name for node in report.first.nodes}
    assert len(report.first.nodes) < len(sound.graph.node)


@pytest.mark.parametrize("fault", FAULTS[::4], ids=lambda fault: fault.id)
def test_comparison_alone_never_calls_a_broken_model_right(fault):
    sound = MODELS[fault.model]
    assert not _agrees(sound, faults.broken(sound, fault), INPUTS[fault.model])


def _agrees(sound, broken, inputs):
    try:
        return compare(sound, broken, inputs).ok
    except ModelRunError:
        return False


def test_an_exhaustive_search_finds_a_dropped_cast_that_no_output_shows():
    broken = models.clone(MODELS["decoder"])
    faults.bypass("Cast_wide")(broken)
    assert find_mismatch(broken, INPUTS["decoder"], reference=MODELS["decoder"]).ok
    report = find_mismatch(broken, INPUTS["decoder"], reference=MODELS["decoder"], exhaustive=True)
    assert report.first.node.name == "ReduceMean_mean"
    assert "dtype is float32, should be float64" in str(report.first)


@pytest.mark.parametrize(
    "name, node, position, value", [("recurrent", "Scan_last", 0, "decayed"), ("control_flow", "Loop_final", 1, "acc")]
)
def test_a_body_that_returns_the_wrong_value_is_told_apart_from_a_wrong_node(name, node, position, value):
    broken = models.clone(MODELS[name])
    faults.body_output(node, position, value)(broken)
    report = find_mismatch(broken, INPUTS[name], reference=MODELS[name])
    assert report.first.node.name == node
    assert f"returns {value!r}" in str(report.first)


def test_a_fault_in_a_local_function_names_the_function():
    broken = models.clone(MODELS["functions"])
    faults.becomes("Mul_g", "Add")(broken)
    report = find_mismatch(broken, INPUTS["functions"], reference=MODELS["functions"])
    assert report.first.node.function == "local::Gate"
    assert "in function local::Gate" in str(report)


def test_a_graph_output_that_returns_the_wrong_value_is_noted():
    broken = models.clone(MODELS["decoder"])
    broken.graph.output[1].name = "past_k"
    report = find_mismatch(broken, INPUTS["decoder"], reference=MODELS["decoder"])
    assert report.has_mismatch
    assert "graph output 1 ('past_k') returns" in str(report)
