"""Runs the ONNX standard's own node test cases against torch functions.

A case holds one node with its inputs, attributes and expected outputs. The torch function is called with the
inputs in order and the attributes by name. Values of sub-byte ONNX dtypes are widened to one value per
element.
"""

import dataclasses
import functools
import warnings
from typing import Any

import numpy as np
import onnx
import torch
from onnx import helper, numpy_helper

_BIT_EQUAL = {
    "bfloat16": (np.uint16, torch.bfloat16),
    "float8_e4m3fn": (np.uint8, torch.float8_e4m3fn),
    "float8_e4m3fnuz": (np.uint8, torch.float8_e4m3fnuz),
    "float8_e5m2": (np.uint8, torch.float8_e5m2),
    "float8_e5m2fnuz": (np.uint8, torch.float8_e5m2fnuz),
    "float8_e8m0fnu": (np.uint8, torch.float8_e8m0fnu),
}
_WIDENED = {
    "int4": np.int8,
    "uint4": np.uint8,
    "int2": np.int8,
    "uint2": np.uint8,
    "float4_e2m1fn": np.float32,
    "float6_e2m3fn": np.float32,
    "float6_e3m2fn": np.float32,
}


@dataclasses.dataclass
class NodeCase:
    name: str
    op_type: str
    opset: int
    inputs: list[Any]
    numbers: list[Any]
    input_dtypes: list[int]
    attributes: dict[str, Any]
    outputs: list[Any]
    output_dtypes: list[int]
    rtol: float
    atol: float


def to_torch(value):
    if value is None:
        return None
    array = numpy_helper.to_array(value) if isinstance(value, onnx.TensorProto) else np.asarray(value)
    shape = array.shape
    if array.dtype.name in _BIT_EQUAL:
        carrier, dtype = _BIT_EQUAL[array.dtype.name]
        return torch.from_numpy(np.ascontiguousarray(array).view(carrier).copy()).view(dtype).reshape(shape)
    array = array.astype(_WIDENED.get(array.dtype.name, array.dtype))
    return torch.from_numpy(np.ascontiguousarray(array).copy()).reshape(shape)


def _numbers(tensor):
    """A tensor's elements as Python numbers: of one element the number, else the list."""
    if tensor is None or tensor.numel() == 1:
        return None if tensor is None else tensor.item()
    return tensor.tolist()


def _attribute(attribute):
    value = helper.get_attribute_value(attribute)
    if isinstance(value, bytes):
        return value.decode()
    if attribute.type == onnx.AttributeProto.TENSOR:
        return to_torch(value)
    return list(value) if attribute.type in (onnx.AttributeProto.INTS, onnx.AttributeProto.FLOATS) else value


@functools.cache
def onnx_cases():
    """All node cases of the installed onnx, those of several nodes too, as onnx gives them."""
    with warnings.catch_warnings(), np.errstate(all="ignore"):
        warnings.simplefilter("ignore")
        if not hasattr(np, "bool"):  # The cases of onnx are written for NumPy 2.
            np.bool = np.bool_  # type: ignore[misc, assignment]
        from onnx.backend.test.case.node import collect_testcases

        return collect_testcases(None)


@functools.cache
def _all_cases():
    return [case for case in onnx_cases() if len(case.model.graph.node) == 1]


def node_cases(op_types):
    """All cases of the given operators, without those that spell an operator out as a function."""
    found = []
    for case in _all_cases():
        node = case.model.graph.node[0]
        if node.op_type not in op_types or "_expanded" in case.name:
            continue
        graph = case.model.graph
        dtypes = {value.name: value.type.tensor_type.elem_type for value in (*graph.input, *graph.output)}
        for inputs, outputs in case.data_sets:
            given, expected = iter(inputs), iter(outputs)
            tensors = [to_torch(next(given)) if name else None for name in node.input]
            found.append(
                NodeCase(
                    name=case.name.removeprefix("test_"),
                    op_type=node.op_type,
                    opset=next(o.version for o in case.model.opset_import if o.domain == node.domain),
                    inputs=tensors,
                    numbers=[_numbers(tensor) for tensor in tensors],
                    input_dtypes=[dtypes.get(name, 0) for name in node.input],
                    attributes={a.name: _attribute(a) for a in node.attribute},
                    outputs=[to_torch(next(expected)) if name else None for name in node.output],
                    output_dtypes=[dtypes.get(name, 0) for name in node.output],
                    rtol=case.rtol,
                    atol=case.atol,
                )
            )
    return found


def assert_close(actual, case, noise=0.0):
    """Compares outputs as ONNX's own test runner does: exact shape and dtype, the case's tolerance."""
    results = [actual] if isinstance(actual, torch.Tensor) else list(actual)
    for result, expected in zip(results, case.outputs, strict=False):
        if expected is None:
            continue
        assert (tuple(result.shape), result.dtype) == (tuple(expected.shape), expected.dtype)
        rtol = max(case.rtol, 2**-6) if expected.dtype == torch.bfloat16 else case.rtol
        exact = not (expected.is_floating_point() or expected.is_complex())
        torch.testing.assert_close(
            result if exact else _wide(result),
            expected if exact else _wide(expected),
            rtol=0 if exact else rtol,
            atol=0 if exact else max(case.atol, noise),
            equal_nan=True,
        )
    assert len(results) >= len([output for output in case.outputs if output is not None])


def _wide(tensor):
    return tensor if tensor.is_complex() else tensor.double()
