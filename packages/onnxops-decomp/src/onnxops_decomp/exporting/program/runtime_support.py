"""What ONNX Runtime says about a model that it cannot load or run, in terms of the user's model."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

import onnx_ir as ir

from onnxops_decomp.runtimes.onnxruntime.kernel_gaps import LOADED_SINCE, installed_release, is_older

__all__ = ["failed_node", "refused_node", "refused_opset"]

_REFUSAL = re.compile(r"Could not find an implementation for (\S+)\((\d+)\) node with name '([^']*)'")
_FAILURE = re.compile(r"while running (\S+) node. Name:'([^']*)' Status Message: (.*)", re.DOTALL)
_TOO_NEW = re.compile(r"Unsupported model IR version|Opset \d+ is under development")


def refused_opset(model: ir.Model, message: str) -> str | None:
    """Return what to say about an opset that is newer than the runtime; None if its complaint is another."""
    opset = model.opset_imports.get("", 0)
    if _TOO_NEW.search(message) is None or opset not in LOADED_SINCE or not is_older(*LOADED_SINCE[opset]):
        return None
    newest = max((each for each, since in LOADED_SINCE.items() if not is_older(*since)), default=min(LOADED_SINCE) - 1)
    installed, needed = (".".join(map(str, each or ())) for each in (installed_release(), LOADED_SINCE[opset]))
    return (
        f"ONNX Runtime {installed} loads no models of opset {opset}: export with opset_version={newest}, or install "
        f"onnxruntime>={needed}; call_reference() runs the model without a runtime."
    )


def refused_node(model: ir.Model, message: str) -> str | None:
    """Return what to say about a node that the runtime has no kernel for; None if its complaint is another."""
    found = _REFUSAL.search(message)
    if found is None:
        return None
    op_type, version, name = found.groups()
    node = next((node for graph in _graphs(model) for node in graph.all_nodes() if node.name == name), None)
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


def failed_node(model: ir.Model, message: str, shapes: Mapping[str, Sequence[int]]) -> str | None:
    """Return what to say about a node that the runtime failed in; None if its complaint is another.

    Args:
        model: The model.
        message: What the runtime says.
        shapes: The shapes of the inputs.
    """
    found = _FAILURE.search(message)
    if found is None:
        return None
    op_type, name, status = found.groups()
    # The runtime joins nodes and names the result after them.
    node = next((n for graph in _graphs(model) for n in graph.all_nodes() if n.name and n.name == name), None)
    source = node.metadata_props.get("onnxops.source", "") if node is not None else ""
    given = ", ".join(f"{name} {list(shape)}" for name, shape in shapes.items())
    empty = " Some of its kernels take no empty tensors." if any(0 in shape for shape in shapes.values()) else ""
    return (
        f"ONNX Runtime failed in {op_type} ({name}{f', at {source}' if source else ''}) for {given}: "
        f"{status.strip().rstrip('.')}.{empty} call_reference() runs the model without a runtime."
    )


def _graphs(model: ir.Model) -> list[ir.Graph]:
    return [model.graph, *(function.graph for function in model.functions.values())]
