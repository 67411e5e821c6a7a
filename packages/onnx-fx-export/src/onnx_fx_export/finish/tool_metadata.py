"""The metadata of torch's exporter for models from captured programs."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import onnx_ir as ir
import torch

from onnx_fx_export.repeats.regions import qualified_name
from onnxops_decomp.exporting import Metadata, scope_keys, stamp_nodes, stamp_values, without_metadata

__all__ = ["apply_metadata"]


def apply_metadata(model: ir.Model, program: torch.export.ExportedProgram, metadata: Metadata) -> None:
    """Give a model the metadata that is asked for; it has that of its sources."""
    if metadata == "none":
        without_metadata(model)
    if metadata != "full":
        return
    nodes = dict(_by_name(program.graph_module, ""))
    known: dict[str, Mapping[str, str]] = {}

    def keys_of(node: ir.Node) -> Mapping[str, str]:
        name = node.metadata_props.get("onnxops.fx_node", "")
        if name not in known:
            known[name] = _keys(nodes[name]) if name in nodes else {}
        return known[name]

    stamp_nodes(model, keys_of)
    signature = program.graph_signature
    transient = set(signature.non_persistent_buffers)
    stamp_values(model, _by_target(signature.inputs_to_parameters), _by_target(signature.inputs_to_buffers), transient)
    model.graph.metadata_props["pkg.torch.export.ExportedProgram.graph_signature"] = str(signature)
    model.graph.metadata_props["pkg.torch.export.ExportedProgram.range_constraints"] = str(program.range_constraints)


def _by_target(inputs: Mapping[str, str]) -> dict[str, str]:
    return {target: name for name, target in inputs.items()}


def _by_name(module: torch.fx.GraphModule, prefix: str) -> Iterator[tuple[str, torch.fx.Node]]:
    """Yield the nodes of a graph, those of nested graphs by the name of their operator and their own."""
    for node in module.graph.nodes:
        yield f"{prefix}{node.name}", node
        for operand in node.all_input_nodes:
            nested = getattr(module, str(operand.target), None) if operand.op == "get_attr" else None
            if isinstance(nested, torch.fx.GraphModule):
                yield from _by_name(nested, f"{prefix}{node.name}/")


def _keys(node: torch.fx.Node) -> dict[str, str]:
    stack = (node.meta.get("nn_module_stack") or {}).values()
    modules = [(str(path), qualified_name(kind)) for path, kind in stack]
    return {
        **scope_keys(modules, node.name, str(node.target)),
        "pkg.torch.onnx.fx_node": str(node.format_node()),
        "pkg.torch.onnx.stack_trace": node.meta.get("stack_trace") or "",
    }
