"""Writing a loaded model, whole or not at all."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import onnx

from onnx_verify.errors import OnnxVerifyError
from onnx_verify.models.model import LoadedModel
from onnx_verify.models.weights import tensor_proto, weight_bytes
from onnx_verify.values.dtypes import PACKED_BITS

_SINGLE_FILE = 1 << 30
_ALIGNMENT = 4096


def save_model(model: LoadedModel, path: Path) -> None:
    """Write a model: one file up to 1 GiB of weights, with the weights beside it in ``<name>.data`` above.

    Each file is written under another name first, so that a failure leaves none behind.

    Raises:
        OnnxVerifyError: if the disk refuses it.
    """
    proto = onnx.ModelProto()
    proto.CopyFrom(model.proto)
    beside = path.with_name(path.name + ".data")
    total = sum(weight_bytes(weight) for weight in model.weights.values())
    try:
        if total > _SINGLE_FILE:
            _write_weights(proto, model, beside)
        else:
            for tensor in proto.graph.initializer:
                if tensor.name in model.weights:
                    values = model.weights[tensor.name].load()
                    tensor.CopyFrom(tensor_proto(values, tensor.name))
        partial = path.with_name(path.name + ".part")
        partial.write_bytes(proto.SerializeToString())
        os.replace(partial, path)
    except OSError as error:
        for name in (path.name + ".part", beside.name + ".part"):
            path.with_name(name).unlink(missing_ok=True)
        raise OnnxVerifyError(f"{path} cannot be written: {error}") from error


def _write_weights(proto: onnx.ModelProto, model: LoadedModel, path: Path) -> None:
    """Stream the weights to a file, one at a time, and point the initializers there."""
    partial = path.with_name(path.name + ".part")
    with partial.open("wb") as file:
        for tensor in proto.graph.initializer:
            if tensor.name not in model.weights:
                continue
            values = model.weights[tensor.name].load()
            file.write(b"\0" * (-file.tell() % _ALIGNMENT))
            offset = file.tell()
            if tensor.data_type in PACKED_BITS:
                file.write(tensor_proto(values).raw_data)
            else:
                np.ascontiguousarray(values).reshape(-1).view(np.uint8).tofile(file)
            length = file.tell() - offset
            del tensor.external_data[:]
            for key, value in (("location", path.name), ("offset", offset), ("length", length)):
                tensor.external_data.add(key=key, value=str(value))
    os.replace(partial, path)
