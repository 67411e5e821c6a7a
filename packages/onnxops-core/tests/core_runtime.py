"""Runs the ONNX node that a native call stands for in ONNX Runtime."""

import dataclasses

import numpy as np
import onnx
import onnxruntime
import torch
from onnx import helper

from onnxops_core.dtypes import onnx_dtype, torch_dtype
from onnxops_core.native import NativeOp, ScalarInput


def _array(value, dtype):
    if isinstance(value, torch.Tensor):
        if value.dtype == torch.bfloat16 or (value.dtype.itemsize == 1 and value.is_floating_point()):
            bits = value.contiguous().view(torch.int16 if value.dtype == torch.bfloat16 else torch.uint8)
            return bits.numpy()
        return value.contiguous().numpy()
    return np.asarray(value, dtype=helper.tensor_dtype_to_np_dtype(dtype))


def run_in_runtime(op: NativeOp, args, kwargs, wanted: int, domain: str | None = None):
    """Builds a model of one node from ``onnx_call`` and returns its first ``wanted`` torch outputs as
    tensors.

    Trailing outputs of the ONNX node beyond those wanted are left out. ``domain`` replaces the operator's
    own.
    """
    call = op.onnx_call(args, kwargs)
    if domain is not None:
        call = dataclasses.replace(call, domain=domain, min_opset=1)
    names, inputs, feeds = [], [], {}
    for position, value in enumerate(call.inputs):
        if value is None:
            names.append("")
            continue
        raw, dtype = (value.value, value.dtype) if isinstance(value, ScalarInput) else (value, onnx_dtype(value.dtype))
        name = f"in{position}"
        feeds[name] = onnxruntime.OrtValue.ortvalue_from_numpy_with_onnx_type(_array(raw, dtype), dtype)
        inputs.append(helper.make_tensor_value_info(name, dtype, list(np.shape(raw))))
        names.append(name)
    positions = call.outputs[:wanted]
    outputs = ["" for _ in range(max(positions) + 1)]
    for position in positions:
        outputs[position] = f"out{position}"
    node = helper.make_node(call.op_type, names, outputs, domain=call.domain, **call.attributes)
    infos = [onnx.ValueInfoProto(name=name) for name in outputs if name]
    graph = helper.make_graph([node], "one_node", inputs, infos)
    versions = {call.domain: call.min_opset} if not call.domain else {"": 20, call.domain: call.min_opset}
    imports = [helper.make_opsetid(domain, version) for domain, version in versions.items()]
    # No newer than needed, because an older runtime refuses versions that it does not know.
    version = max(helper.find_min_ir_version_for(imports, ignore_unknown=True), 10)
    model = helper.make_model(graph, opset_imports=imports, ir_version=version)
    session = onnxruntime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    return [_tensor(result) for result in session.run_with_ort_values(None, feeds)]


def _tensor(value):
    array = torch.from_numpy(value.numpy())
    dtype = torch_dtype(value.element_type())
    return array if array.dtype == dtype else array.view(dtype)
