"""Native operators decompose, with symbolic sizes, into ATen operators that give what ONNX's node cases expect."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
import torch
from onnx import numpy_helper
from torch.fx.experimental.proxy_tensor import make_fx

from onnxops_core import native, native_ops
from onnxops_decomp import aten_decompositions

# The loader of the cases, and what calls an operator with one, belong to the tests of onnxops-core.
sys.path.insert(0, str(Path(__file__).parents[2] / "onnxops-core" / "tests"))

from core_node_cases import assert_close, node_cases
from test_native_node_cases import ADAPTED, FUNCTIONS, NOISE, OF_ONNX_1_23

CASES = node_cases(set(ADAPTED) | set(FUNCTIONS))
OPERATORS = sorted({case.op_type for case in CASES})


# What the graphs that modify the scores of FlexAttention are made of.
MODIFIER_OPS: dict[str, Callable[..., Any]] = {
    "Add": torch.add,
    "Cast": lambda x, to: x.to(DTYPES[to]),
    "Div": torch.div,
    "Gather": lambda sizes, index, axis: sizes[int(index)],
    "GreaterOrEqual": torch.ge,
    "Mul": torch.mul,
    "Range": lambda start, limit, delta: torch.arange(int(start), limit, int(delta)),
    "Reshape": lambda x, sizes: x.reshape(sizes.tolist()),
    "Shape": lambda x: x.shape,
    "Sub": torch.sub,
    "Tanh": torch.tanh,
    "Where": torch.where,
}
DTYPES = {onnx.TensorProto.FLOAT: torch.float32, onnx.TensorProto.FLOAT16: torch.float16}


def constant(array: np.ndarray) -> Any:
    """Return numbers as a tensor; integers are sizes and indices, which stay outside the trace."""
    return array if array.dtype.kind == "i" else torch.from_numpy(array.copy())


def modifier(graph: onnx.GraphProto) -> Callable[[torch.Tensor], Any]:
    """Return the function that a graph computes, as torch records it."""

    def run(tensor: torch.Tensor) -> Any:
        values: dict[str, Any] = {i.name: constant(numpy_helper.to_array(i)) for i in graph.initializer}
        values[graph.input[0].name] = tensor
        for node in graph.node:
            attributes = {a.name: onnx.helper.get_attribute_value(a) for a in node.attribute}
            values[node.output[0]] = MODIFIER_OPS[node.op_type](*(values[name] for name in node.input), **attributes)
        return values[graph.output[0].name]

    return run


def call(case: Any, inputs: list[Any]) -> Any:
    if case.op_type == "FlexAttention":
        given = {k: modifier(v) if k.endswith("_mod") else v for k, v in case.attributes.items()}
        return native.flex_attention(*inputs, **given)
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


# Old releases expect wrong values for grouped heads, and cannot read their own eight-bit floats.
CORRECTED = ("Attention", "DequantizeLinear", "QuantizeLinear")
EACH_OPERATOR = pytest.mark.parametrize(
    "op_type", [pytest.param(name, marks=OF_ONNX_1_23 if name in CORRECTED else ()) for name in OPERATORS]
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
    known = onnx.defs.onnx_opset_version()
    assert {op.op_type for op in native_ops().values() if not op.domain and op.since_version <= known} <= set(OPERATORS)
