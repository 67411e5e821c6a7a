"""What ONNX Runtime says about a node that it has no kernel for, in terms of the user's model."""

from __future__ import annotations

import re

import onnx_ir as ir

__all__ = ["refused_node"]

_REFUSAL = re.compile(r"Could not find an implementation for (\S+)\((\d+)\) node with name '([^']*)'")


def refused_node(model: ir.Model, message: str) -> str | None:
    """Return what to say about a node that the runtime has no kernel for; None if its complaint is another."""
    found = _REFUSAL.search(message)
    if found is None:
        return None
    op_type, version, name = found.groups()
    graphs = [model.graph, *(function.graph for function in model.functions.values())]
    node = next((node for graph in graphs for node in graph.all_nodes() if node.name == name), None)
    values = [value for value in (node.inputs if node is not None else ()) if value is not None]
    dtypes = ", ".join(dict.fromkeys(value.dtype.name for value in values if value.dtype is not None))
    source = node.metadata_props.get("onnxops.source", "") if node is not None else ""
    advice = (
        "Export with widen_bfloat16=True, which computes there in float32"
        if any(value.dtype == ir.DataType.BFLOAT16 for value in values)
        else "Export the model in another dtype or at another opset"
    )
    return (
        f"ONNX Runtime has no kernel for {op_type} of version {version}{f' of {dtypes}' if dtypes else ''}"
        f"{f' ({source})' if source else ''} with these providers. {advice}, or give initialize_inference_session() "
        "other providers; call_reference() runs the model without a runtime."
    )
