"""Faults in well-known vision networks, at their full size."""

import faults
import numpy as np
import pytest
import realistic
from models import clone, normal

from onnx_verify import find_mismatch


def _middle(model, kind, wanted=lambda node: True):
    found = [node for node in model.graph.node if node.op_type == kind and wanted(node)]
    return found[len(found) // 2]


def _kernel(model, node):
    faults.values(node.input[1], lambda w: w.swapaxes(2, 3))(model)


def _is_3x3(node):
    return any(a.name == "kernel_shape" and list(a.ints) == [3, 3] for a in node.attribute)


def _reversed_inputs(model, node):
    faults.rewire(node.name, *reversed(node.input))(model)


def _twice(model, node):
    faults.rewire(node.name, node.input[1], node.input[1])(model)


CASES = [
    ("squeezenet", "Conv", _is_3x3, _kernel),
    ("squeezenet", "Concat", None, _reversed_inputs),
    ("squeezenet", "Relu", None, lambda m, n: faults.becomes(n.name, "LeakyRelu")(m)),
    ("shufflenet", "Transpose", None, lambda m, n: faults.attribute(n.name, "perm", [0, 1, 2, 3, 4])(m)),
    ("shufflenet", "AveragePool", None, lambda m, n: faults.becomes(n.name, "MaxPool")(m)),
    ("shufflenet", "BatchNormalization", None, lambda m, n: faults.attribute(n.name, "epsilon", 1e-2)(m)),
    ("inception_v1", "LRN", None, lambda m, n: faults.attribute(n.name, "alpha", 5.0)(m)),
    ("resnet50", "Sum", None, _twice),
    ("resnet50", "BatchNormalization", None, lambda m, n: faults.attribute(n.name, "epsilon", 1e-2)(m)),
    ("densenet121", "Concat", None, _reversed_inputs),
]
DEFAULT = {"squeezenet", "shufflenet"}


@pytest.mark.parametrize(
    "name, kind, wanted, plant",
    [
        pytest.param(*case, id=f"{case[0]}-{case[1]}", marks=() if case[0] in DEFAULT else pytest.mark.wide)
        for case in CASES
    ],
)
def test_the_fault_is_found_and_attributed(name, kind, wanted, plant):
    sound = realistic.light_model(name)
    broken = clone(sound)
    node = _middle(broken, kind, wanted or (lambda node: True))
    plant(broken, node)
    inputs = {sound.graph.input[0].name: normal(1, 3, 224, 224)}
    report = find_mismatch(broken, inputs, reference=sound, exhaustive=True)
    assert report.first.confirmed
    assert report.first.node.name == node.name
    assert np.isfinite(report.first.score) or report.first.reports[0].metrics is None
