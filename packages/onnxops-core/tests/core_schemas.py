"""The schemas of the native operators, as onnx and ONNX Runtime define them."""

import functools
import re

import onnx
import onnxruntime
import pytest
import torch

# The releases whose operators the native ones are.
_NEWEST_OPSET, _NEWEST_RUNTIME = 28, (1, 31)


def newest_schema(op):
    """The newest schema of a native operator's ONNX operator; the test is skipped where the release is older."""
    if not op.domain and onnx.defs.onnx_opset_version() < _NEWEST_OPSET:
        pytest.skip(f"onnx {onnx.__version__} has not the forms of opset {_NEWEST_OPSET}")
    return schema_at(op, onnx.defs.onnx_opset_version() if not op.domain else op.since_version)


def schema_at(op, opset):
    """The schema of a native operator at an opset of its domain; the test is skipped where the release has none."""
    if op.domain == "com.microsoft":
        if tuple(map(int, onnxruntime.__version__.split(".")[:2])) < _NEWEST_RUNTIME:
            pytest.skip(f"ONNX Runtime {onnxruntime.__version__} has not all arguments of its newer releases")
        return _runtime_schemas()[op.domain, op.op_type]
    if not onnx.defs.has(op.op_type, op.domain) or (not op.domain and opset > onnx.defs.onnx_opset_version()):
        pytest.skip(f"onnx {onnx.__version__} has no {op.op_type} of opset {opset}")
    return onnx.defs.get_schema(op.op_type, opset, op.domain)


_TORCH = {
    "float": torch.float32,
    "double": torch.float64,
    "float8e4m3fn": torch.float8_e4m3fn,
    "float8e4m3fnuz": torch.float8_e4m3fnuz,
    "float8e5m2": torch.float8_e5m2,
    "float8e5m2fnuz": torch.float8_e5m2fnuz,
    "float8e8m0": torch.float8_e8m0fnu,
}


def types_of_input(schema, name):
    """The torch dtypes that a schema's type constraint allows for an input; those that torch lacks are left out."""
    (parameter,) = [i for i in schema.inputs if i.name == name]
    variable = getattr(parameter, "type_str", None) or parameter.typeStr  # onnx's name, and ONNX Runtime's
    texts = next((c.allowed_type_strs for c in schema.type_constraints if c.type_param_str == variable), [variable])
    words = [re.fullmatch(r"tensor\((\w+)\)", text)[1] for text in texts]
    return {_TORCH.get(word, getattr(torch, word, None)) for word in words} - {None}


@functools.cache
def _runtime_schemas():
    from onnxruntime.capi import onnxruntime_pybind11_state

    return {(s.domain, s.name): s for s in onnxruntime_pybind11_state.get_all_operator_schema()}
