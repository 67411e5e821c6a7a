"""The metadata of torch's exporter for models from TorchScript, as far as a TorchScript graph has it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import onnx_ir as ir
import torch

from onnxops_decomp.exporting import Metadata, class_name, scope_keys, stamp_nodes, stamp_values, without_metadata

__all__ = ["apply_metadata"]

# Modules that only hold others are not in the stack of a call.
_HOLDERS = (torch.nn.ModuleList, torch.nn.ModuleDict)


def apply_metadata(converted: ir.Model, model: Any, metadata: Metadata) -> None:
    """Give a converted model the metadata that is asked for; it has that of its sources."""
    if metadata == "none":
        without_metadata(converted)
    if metadata != "full":
        return
    module = model if isinstance(model, torch.nn.Module) else torch.nn.Module()
    classes = {name: class_name(part) for name, part in module.named_modules() if not isinstance(part, _HOLDERS)}
    stamp_nodes(converted, lambda node: _keys(node, classes))
    saved = set(module.state_dict(keep_vars=True))
    buffers = {name: "" for name, _ in module.named_buffers()}
    stamp_values(converted, {name: "" for name, _ in module.named_parameters()}, buffers, buffers.keys() - saved)


def _keys(node: ir.Node, classes: Mapping[str, str]) -> dict[str, str]:
    own = node.metadata_props
    if "onnxops.operator" not in own:
        return {}
    parts = own.get("onnxops.module", "").split(".")
    paths = ["", *(".".join(parts[: count + 1]) for count in range(len(parts)) if parts[0])]
    modules = [(path, classes[path]) for path in paths if path in classes]
    keys = scope_keys(modules, str(node.outputs[0].name), own["onnxops.operator"])
    file, _, line = own.get("onnxops.source", "").rpartition(":")
    if file:
        keys["pkg.torch.onnx.stack_trace"] = f'File "{file}", line {line}'
    return keys
