"""Native operators decompose, with symbolic sizes, into ATen operators that give what ONNX's node cases expect."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.fx.experimental.proxy_tensor import make_fx

from onnxops_core import native_ops
from onnxops_decomp import aten_decompositions

# The loader of the cases, and what calls an operator with one, belong to the tests of onnxops-core.
sys.path.insert(0, str(Path(__file__).parents[2] / "onnxops-core" / "tests"))

from core_node_cases import assert_close, node_cases
from test_native_node_cases import ADAPTED, FUNCTIONS, NOISE

CASES = node_cases(set(ADAPTED) | set(FUNCTIONS))
OPERATORS = sorted({case.op_type for case in CASES})


def call(case: Any, inputs: list[Any]) -> Any:
    if case.op_type in ADAPTED:
        return ADAPTED[case.op_type](case, inputs, case.attributes)
    return FUNCTIONS[case.op_type](*inputs, **case.attributes)


def decomposed(case: Any) -> torch.fx.GraphModule:
    """Record the case with symbolic sizes, its operator replaced by the decomposition."""
    positions = [index for index, value in enumerate(case.inputs) if isinstance(value, torch.Tensor)]

    def function(*tensors: torch.Tensor) -> Any:
        inputs = list(case.inputs)
        for position, tensor in zip(positions, tensors, strict=True):
            inputs[position] = tensor
        return call(case, inputs)

    tensors = [case.inputs[position] for position in positions]
    return make_fx(function, decomposition_table=aten_decompositions(), tracing_mode="symbolic")(*tensors)


# Its loop ends where the data say so, which no trace can hold.
UNTRACEABLE = pytest.mark.xfail(strict=True, reason="the decomposition of NonMaxSuppression depends on data")
EACH_OPERATOR = pytest.mark.parametrize(
    "op_type", [pytest.param(name, marks=UNTRACEABLE if name == "NonMaxSuppression" else ()) for name in OPERATORS]
)


def check(cases: list[Any]) -> None:
    failures = {}
    for case in cases:
        try:
            graph_module = decomposed(case)
            namespaces = {getattr(node.target, "namespace", "") for node in graph_module.graph.nodes}
            assert not namespaces & {"onnx", "onnxops"}
            tensors = [value for value in case.inputs if isinstance(value, torch.Tensor)]
            assert_close(graph_module(*tensors), case, noise=NOISE.get(case.name, 0.0))
        except Exception as error:
            failures[case.name] = f"{type(error).__name__}: {error}"
    assert not failures


@EACH_OPERATOR
def test_the_decomposition_gives_what_the_first_node_cases_expect(op_type: str) -> None:
    check([case for case in CASES if case.op_type == op_type][:3])


@pytest.mark.wide
@EACH_OPERATOR
def test_the_decomposition_gives_what_the_node_cases_expect(op_type: str) -> None:
    check([case for case in CASES if case.op_type == op_type])


def test_every_native_operator_of_onnx_has_node_cases() -> None:
    assert {op.op_type for op in native_ops().values() if not op.domain} <= set(OPERATORS)
