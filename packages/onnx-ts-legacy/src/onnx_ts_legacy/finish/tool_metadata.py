"""The metadata of torch's exporter for models from TorchScript, as far as a TorchScript graph has it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import onnx_ir as ir
import torch

from onnxops_decomp.exporting import (
    Metadata,
    class_name,
    nodes_in,
    scope_keys,
    stamp_nodes,
    stamp_values,
    without_metadata,
)

__all__ = ["apply_metadata"]

# Modules that only hold others are not in the stack of a call.
_HOLDERS = ("ModuleList", "ModuleDict")


def apply_metadata(converted: ir.Model, model: Any, metadata: Metadata) -> None:
    """Give a converted model the metadata that is asked for; it has that of its sources."""
    if metadata == "none":
        without_metadata(converted)
        return
    module = model if isinstance(model, torch.nn.Module) else torch.nn.Module()
    classes = {name: kind for name, part in module.named_modules() if not _holds(kind := class_name(part))}
    _complete_paths(converted, classes)
    if metadata != "full":
        return
    stamp_nodes(converted, lambda node: _keys(node, classes))
    saved = set(module.state_dict(keep_vars=True))
    buffers = {name: "" for name, _ in module.named_buffers()}
    stamp_values(converted, {name: "" for name, _ in module.named_parameters()}, buffers, buffers.keys() - saved)


def _holds(kind: str) -> bool:
    return kind.rpartition(".")[2] in _HOLDERS


def _complete_paths(converted: ir.Model, classes: Mapping[str, str]) -> None:
    """Name the lists and dicts of modules in the paths of scripted ones, which TorchScript leaves out.

    A path that could be that of several modules stays as it is.
    """
    full: dict[str, list[str]] = {}
    for path in classes:
        parts = path.split(".")
        short = ".".join(part for end, part in enumerate(parts, 1) if ".".join(parts[:end]) in classes)
        full.setdefault(short, []).append(path)
    renamed = {short: path for short, (path, *others) in full.items() if path != short and not others}
    for node in nodes_in(converted.graph) if renamed else ():
        found = renamed.get(node.metadata_props.get("onnxops.module", ""))
        if found is not None:
            node.metadata_props["onnxops.module"] = found


def _keys(node: ir.Node, classes: Mapping[str, str]) -> dict[str, str]:
    own = node.metadata_props
    if "onnxops.operator" not in own:
        return {}
    parts = own.get("onnxops.module", "").split(".")
    paths = ["", *(".".join(parts[: count + 1]) for count in range(len(parts)) if parts[0])]
    modules = [(path, classes[path]) for path in paths if path in classes]
    name, operator = str(node.outputs[0].name), own["onnxops.operator"]
    keys = {**scope_keys(modules, name, operator), "pkg.torch.onnx.fx_node": _call(node, operator)}
    file, _, line = own.get("onnxops.source", "").rpartition(":")
    keys["pkg.torch.onnx.stack_trace"] = f'File "{file}", line {line}' if file else ""
    return keys


def _call(node: ir.Node, operator: str) -> str:
    """Return the call of an operator on values of the model, as graphs of ``torch.fx`` write it."""
    operands = ", ".join("None" if value is None else f"%{value.name}" for value in node.inputs)
    users = sum(len(value.uses()) for value in node.outputs)
    target = f"torch.ops.{operator.replace('::', '.')}"
    return f"%{node.outputs[0].name} : [num_users={users}] = call_function[target={target}](args = ({operands}))"
