"""Metadata by which other tools group the nodes and values of a model: the keys that torch's exporter writes.

What the exporters stamp while they write, the line and the module that a node comes from, is the source of it.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Literal

import onnx_ir as ir
import torch

__all__ = ["Metadata", "class_name", "scope_keys", "stamp_nodes", "stamp_values", "without_metadata"]

Metadata = Literal["full", "source", "none"]
"""How much is written: torch's keys and our own, our own, or nothing."""

_PREFIX = "onnxops."
_MANGLED = re.compile(r"(^__torch__\.)|(___torch_mangle_\d+\.)")
_SIGNATURE = "pkg.torch.export.graph_signature"


def without_metadata(model: ir.Model) -> None:
    """Leave out what the exporters stamped on nodes."""
    for node in _nodes(model):
        for key in [key for key in node.metadata_props if key.startswith(_PREFIX)]:
            del node.metadata_props[key]


def stamp_nodes(model: ir.Model, keys_of: Callable[[ir.Node], Mapping[str, str]]) -> None:
    """Add what ``keys_of`` gives for each node, those of subgraphs and functions included."""
    for node in _nodes(model):
        node.metadata_props.update(keys_of(node))


def _nodes(model: ir.Model) -> list[ir.Node]:
    graphs: list[ir.Graph | ir.Function] = [model.graph, *model.functions.values()]
    return [node for graph in graphs for node in graph.all_nodes()]


def class_name(module: torch.nn.Module) -> str:
    """Return the qualified name of a module's class; of a scripted one, that of the class that it was made of."""
    if isinstance(module, torch.jit.ScriptModule):
        name = _MANGLED.sub("", module._c._type().qualified_name())
        # TorchScript leaves the name of the main program out.
        return name if "." in name else f"__main__.{name}"
    return f"{type(module).__module__}.{type(module).__qualname__}"


def scope_keys(modules: Sequence[tuple[str, str]], name: str, target: str) -> dict[str, str]:
    """Return the keys that say in which modules a node lies.

    Args:
        modules: Path and class of each module that was running, from the outermost.
        name: Name of the node in the captured graph.
        target: What is called there.
    """
    scopes = [*modules, (name, target)]
    return {
        "namespace": "/".join(f"{path}: {kind}" for path, kind in scopes),
        "pkg.torch.onnx.class_hierarchy": repr([kind for _, kind in scopes]),
        "pkg.torch.onnx.name_scopes": repr([path for path, _ in scopes]),
    }


def stamp_values(
    model: ir.Model, parameters: Mapping[str, str], buffers: Mapping[str, str], transient: Collection[str] = ()
) -> None:
    """Say of inputs, outputs and weights what they are in torch.

    Args:
        model: The model.
        parameters: Names of parameters, each with that of its node in the captured graph, or an empty string.
        buffers: Names of buffers, likewise.
        transient: Those of the buffers that no checkpoint holds.
    """
    for value in model.graph.inputs:
        _mark_input(value, "USER_INPUT", "None")
    for value in model.graph.outputs:
        value.metadata_props[f"{_SIGNATURE}.OutputSpec.kind"] = "USER_OUTPUT"
    for name, value in {**model.graph.initializers, **{str(v.name): v for v in model.graph.inputs}}.items():
        node = parameters.get(name, buffers.get(name))
        if node is None:
            continue
        if name in parameters:
            _mark_input(value, "PARAMETER", "None")
        else:
            _mark_input(value, "BUFFER", str(name not in transient))
        if node:
            value.metadata_props["pkg.torch.onnx.original_node_name"] = node


def _mark_input(value: ir.Value, kind: str, persistent: str) -> None:
    value.metadata_props[f"{_SIGNATURE}.InputSpec.kind"] = kind
    value.metadata_props[f"{_SIGNATURE}.InputSpec.persistent"] = persistent
