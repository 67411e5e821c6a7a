"""Exports a bare TorchScript graph; ``onnx-verify`` finds this to check a model piece by piece."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import onnx
import torch
from torch.utils import _pytree as pytree

from onnx_ts_legacy import _torch_private as private
from onnx_ts_legacy.capture.graphs import Captured, ExampleInput, leaves_of
from onnx_ts_legacy.errors import ArgumentsError
from onnx_ts_legacy.graph.parts import block_inputs
from onnx_ts_legacy.pipeline import Options, convert
from onnxops_core.exporting import conversion_settings, exclusive_export
from onnxops_decomp.exporting import CallStructure

__all__ = ["export_graph"]


def export_graph(graph: Any, example_inputs: Sequence[Any], opset_version: int = 18) -> onnx.ModelProto:
    """Export a graph of ATen operators.

    Args:
        graph: A ``torch._C.Graph``, which stays as it is.
        example_inputs: A value for each of its inputs; what is not a tensor becomes part of the model.
        opset_version: Opset to write.

    Returns:
        The model; its inputs have the names of the graph's.

    Raises:
        OnnxExporterError: If the graph cannot be converted.
    """
    copied = graph.copy()
    names = [variable.debugName() for variable in block_inputs(copied)]
    if len(names) != len(example_inputs):
        raise ArgumentsError(f"The graph has {len(names)} inputs, got {len(example_inputs)} values.")
    private.inline_calls(copied)
    inputs = [ExampleInput(name, value, is_constant=True) for name, value in zip(names, example_inputs, strict=True)]
    call = CallStructure(pytree.tree_structure((tuple(example_inputs), {})), pytree.tree_structure(None))
    captured = Captured(copied, None, "", inputs, None, call, leaves_of(inputs))
    with exclusive_export(), torch.no_grad(), conversion_settings():
        return convert(captured, Options(opset_version)).model_proto
