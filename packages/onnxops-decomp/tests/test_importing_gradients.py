"""Derivatives of imported operators are those of finite differences, in the cases of ONNX and of ONNX Runtime's own.

Each model is brought to float64, and its inputs are moved off the places where an operator has no derivative. What does
not depend on the inputs has to have differences of zero. What is read as Python numbers (sizes, scales, ratios) has no
derivative in torch, and is held fixed.
"""

from __future__ import annotations

import copy
import sys
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import onnx
import pytest
import test_importing_contrib as contrib
import test_importing_node_cases as nodes
import torch
from onnx import TensorProto, numpy_helper
from torch import Tensor

from onnxops_decomp import to_torch
from onnxops_decomp.importing.registry import Kind, implementation
from onnxops_decomp.spec.schemas import op_spec
from onnxops_decomp.spec.traits import Trait, has_trait

sys.path.insert(0, str(Path(__file__).parents[2] / "onnxops-core" / "tests"))

from core_node_cases import onnx_cases

WIDENED = {TensorProto.FLOAT, TensorProto.FLOAT16, TensorProto.BFLOAT16}
OF_DTYPES = {"to", "dtype", "output_dtype", "stash_type", "softmax_precision"}
FLOAT32_ALONE = {"DequantizeLinear", "NonMaxSuppression", "QuantizeLinear"}
"""They have no form in float64."""

Case = tuple[str, onnx.ModelProto, list[Any]]


def cases() -> Iterator[tuple[str, Case]]:
    """Yield each case that draws no random numbers, behind the name of its operator."""
    for case in onnx_cases():
        op_type = case.model.graph.node[0].op_type
        drawn = any(part in case.name for part in nodes.RANDOM) or has_trait(op_type, Trait.RANDOM)
        # The bits of a float have no derivative.
        if "_expanded" not in case.name and op_type not in (*nodes.REASONS, "BitCast") and not drawn:
            yield op_type, (case.name, case.model, [nodes.value(each) for each in case.data_sets[0][0]])
    for op_type, several in contrib.CASES.items():
        # What this one reads is rounded at each step, and has no derivative.
        for index, given in enumerate(several if op_type != "DynamicQuantizeLSTM" else []):
            model, fed = contrib.case_model(op_type, *given)
            yield f"own {op_type}", (f"{op_type} {index}", model, [torch.from_numpy(each) for each in fed.values()])


def graphs(graph: onnx.GraphProto) -> Iterator[onnx.GraphProto]:
    yield graph
    for node in graph.node:
        for attribute in node.attribute:
            for inner in (attribute.g, *attribute.graphs):
                yield from graphs(inner)


def tensor_types(type_: onnx.TypeProto) -> Iterator[onnx.TypeProto.Tensor]:
    kind = type_.WhichOneof("value")
    if kind in ("sequence_type", "optional_type"):
        yield from tensor_types(getattr(type_, kind).elem_type)
    else:
        yield type_.tensor_type


def in_dtype(model: onnx.ModelProto, dtype: int) -> onnx.ModelProto:
    """Return a model with one dtype in place of all floats of 16 and 32 bits."""
    made = copy.deepcopy(model)
    for graph in graphs(made.graph):
        for value in (*graph.input, *graph.output, *graph.value_info):
            for each in tensor_types(value.type):
                each.elem_type = dtype if each.elem_type in WIDENED else each.elem_type
        attributes = [attribute for node in graph.node for attribute in node.attribute]
        for tensor in (*graph.initializer, *(attribute.t for attribute in attributes)):
            if tensor.data_type in WIDENED:
                array = numpy_helper.to_array(tensor).astype(onnx.helper.tensor_dtype_to_np_dtype(dtype))
                tensor.CopyFrom(numpy_helper.from_array(array, tensor.name))
        for attribute in attributes:
            attribute.i = dtype if attribute.name in OF_DTYPES and attribute.i in WIDENED else attribute.i
    return made


def held_fixed(model: onnx.ModelProto) -> set[str]:
    """Return the inputs of a model of one node that are read as Python numbers."""
    node = model.graph.node[0]
    opset = next(each.version for each in model.opset_import if each.domain == node.domain)
    spec = op_spec(node.op_type, opset, node.domain)
    entry = implementation(node.domain, node.op_type, spec.since_version if spec else opset)
    if spec is None or entry is None or entry.parameters is None or len(model.graph.node) > 1:
        return set()
    formals = [spec.formal_input(index).name for index in range(len(node.input))]
    kinds = [entry.parameters.get(entry.renamed.get(name, name)) for name in formals]
    return {name for name, kind in zip(node.input, kinds, strict=True) if kind in (Kind.NUMBER, Kind.NUMBERS)}


def moved(value: Any, dtype: torch.dtype, fixed: bool, generator: torch.Generator) -> Any:
    """Return an input as one that has a gradient: in a dtype, off round numbers. What is no float stays as it is."""
    if isinstance(value, list):
        return [moved(each, dtype, fixed, generator) for each in value]
    if not isinstance(value, Tensor) or not value.is_floating_point() or value.element_size() < 2:
        return value
    if fixed or not value.numel():
        return value.to(dtype)
    finite = torch.nan_to_num(value.to(dtype), 0.5, 3.0, -3.0)
    return (finite + 1e-3 + 1e-2 * torch.rand(value.shape, generator=generator, dtype=dtype)).requires_grad_()


def tensors(value: Any, dtype: torch.dtype) -> list[Tensor]:
    """Return the tensors of a dtype in a value."""
    if isinstance(value, list | tuple):
        return [each for item in value for each in tensors(item, dtype)]
    return [value] if isinstance(value, Tensor) and value.dtype == dtype and value.numel() else []


def refilled(value: Any, given: Iterator[Tensor]) -> Any:
    """Return an input with other tensors in the places of those that have gradients."""
    if isinstance(value, list):
        return [refilled(each, given) for each in value]
    return next(given) if isinstance(value, Tensor) and value.requires_grad else value


def checked(operator: str, case: Case) -> str | None:
    """Return how derivatives of a case differ from finite differences; empty if they do not, None if it has none."""
    _, model, inputs = case
    narrow = operator.removeprefix("own ") in FLOAT32_ALONE
    dtype, step = (torch.float32, 1e-2) if narrow else (torch.float64, 1e-6)
    module = to_torch(in_dtype(model, TensorProto.FLOAT if narrow else TensorProto.DOUBLE))
    fixed, generator = held_fixed(model), torch.Generator().manual_seed(0)
    names = [each.name for each in model.graph.input]
    given = [moved(each, dtype, name in fixed, generator) for name, each in zip(names, inputs, strict=True)]
    leaves = [each for each in tensors(given, dtype) if each.requires_grad]

    def function(*inputs: Tensor) -> tuple[Tensor, ...]:
        nothing = sum(each.sum() * 0 for each in inputs)
        made = tensors(module(*refilled(given, iter(inputs))), dtype)
        return tuple(torch.where(torch.isfinite(each), each, 0) + nothing for each in made)

    if not leaves or not function(*leaves):
        return None
    tolerance = 1e-2 if narrow else 1e-4
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", ".*not a double precision.*")
        torch.autograd.gradcheck(function, leaves, eps=step, atol=tolerance, rtol=tolerance, fast_mode=True)
    return ""


def failure(operator: str, case: Case) -> str | None:
    try:
        return checked(operator, case)
    except Exception as error:
        return f"{type(error).__name__}: {error}"


def assert_right(chosen: list[tuple[str, Case]], least: int) -> None:
    results = {case[0]: failure(operator, case) for operator, case in chosen}
    assert not {name: text for name, text in results.items() if text}
    assert sum(text == "" for text in results.values()) > least


def test_derivatives_of_each_operator_are_those_of_finite_differences() -> None:
    assert_right(list({operator: (operator, case) for operator, case in reversed(list(cases()))}.values()), 140)


@pytest.mark.wide
def test_derivatives_of_all_cases_are_those_of_finite_differences() -> None:
    assert_right(list(cases()), 700)


def test_a_wrong_derivative_is_noticed(monkeypatch) -> None:
    operator, case = next(each for each in cases() if each[0] == "Sin")
    assert failure(operator, case) == ""
    monkeypatch.setattr(sys.modules[__name__], "to_torch", lambda model: lambda x: torch.sin(x.detach()) + x)
    assert "Jacobian mismatch" in str(failure(operator, case))
