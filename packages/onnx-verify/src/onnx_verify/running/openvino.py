"""OpenVINO on the CPU."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import onnx
import openvino

__all__ = ["load"]


def load(model: onnx.ModelProto) -> Callable[[Mapping[str, Any]], Sequence[Any]]:
    """Return what runs a model in the precision of the file, which OpenVINO would lower where the CPU is faster so."""
    core = openvino.Core()
    read = core.read_model(model.SerializeToString())
    compiled = core.compile_model(read, "CPU", {"INFERENCE_PRECISION_HINT": "f32"})
    names = [value.name for value in model.graph.output]

    def run(feeds: Mapping[str, Any]) -> Sequence[Any]:
        if any(not isinstance(value, np.ndarray | np.generic) for value in feeds.values()):
            raise TypeError("OpenVINO takes only tensors")
        results = compiled(dict(feeds))
        by_name = {name: results[port] for port in compiled.outputs for name in port.names}
        return [by_name[name] if name in by_name else results[index] for index, name in enumerate(names)]

    return run
