"""Around an export: modes of a module, printing, what could not be converted."""

from __future__ import annotations

import contextlib
import importlib
from typing import Any

import onnx_ir as ir

from onnx_ts_legacy.enumerations import TrainingMode
from onnxops_decomp.exporting import in_mode

__all__ = ["disable_log", "enable_log", "is_log_enabled", "pretty_model", "select_model_mode_for_export"]

_log = {"enabled": False}
# Published programs also import these from here; their modules need this one.
_ELSEWHERE = {
    "export": "api",
    "unconvertible_ops": "api",
    "register_custom_op_symbolic": "registration",
    "unregister_custom_op_symbolic": "registration",
}


def __getattr__(name: str) -> Any:
    """Find functions of the package that are defined in other modules."""
    if name in _ELSEWHERE:
        return getattr(importlib.import_module(f"onnx_ts_legacy.{_ELSEWHERE[name]}"), name)
    raise AttributeError(f"module 'onnx_ts_legacy.utils' has no attribute {name!r}")


def _add_block(node: Any) -> Any:
    return node.addBlock()


def _add_input_to_block(block: Any) -> Any:
    return block.addInputToBlock()


def _add_output_to_block(block: Any, value: Any) -> int:
    place: int = block.registerOutput(value)
    return place


def enable_log() -> None:
    """Print the readable graph of every export from now on."""
    _log["enabled"] = True


def disable_log() -> None:
    """Take :func:`enable_log` back."""
    _log["enabled"] = False


def is_log_enabled() -> bool:
    """Tell whether exports print their graphs."""
    return _log["enabled"]


def select_model_mode_for_export(
    model: Any, mode: TrainingMode | Any = TrainingMode.EVAL
) -> contextlib.AbstractContextManager[None]:
    """Put a module in the mode that it is exported in; each of its submodules gets its own mode back afterwards.

    Args:
        model: A module; anything else stays as it is.
        mode: The mode, evaluation for None; ``PRESERVE`` leaves every submodule as it is.
    """
    return in_mode(model, TrainingMode.EVAL if mode is None else mode)


def pretty_model(model: ir.Model) -> str:
    """Return the graph of a model as text: names, dtypes, shapes, modules and source lines."""
    lines = [f"graph {model.graph.name} (opset {model.opset_imports.get('', '?')})"]
    lines += [f"  input  {_typed(value)}" for value in model.graph.inputs]
    lines += [f"  weight {_typed(value)}" for value in model.graph.initializers.values()]
    lines += _nodes(model.graph, "  ")
    lines += [f"  output {_typed(value)}" for value in model.graph.outputs]
    for function in model.functions.values():
        lines.append(f"function {function.domain}::{function.name}({', '.join(f'%{v.name}' for v in function.inputs)})")
        lines += _nodes(function, "  ")
        lines.append(f"  -> {', '.join(f'%{v.name}' for v in function.outputs)}")
    return "\n".join(lines)


def _nodes(graph: ir.Graph | ir.Function, indent: str) -> list[str]:
    lines: list[str] = []
    for node in graph:
        results = ", ".join(_typed(value) for value in node.outputs)
        plain = [a for a in node.attributes.values() if a.type != ir.AttributeType.GRAPH]
        attributes = f"[{', '.join(f'{a.name}={_text(a)}' for a in plain)}]" if plain else ""
        inputs = ", ".join("" if value is None else f"%{value.name}" for value in node.inputs)
        name = f"{node.domain}::{node.op_type}" if node.domain else node.op_type
        line = f"{indent}{results} = {name}{attributes}({inputs})"
        module, source = (node.metadata_props.get(f"onnxops.{key}") for key in ("module", "source"))
        line += f", scope: {module}" if module else ""
        lines.append(f"{line}  # {source}" if source else line)
        for attribute in node.attributes.values():
            if attribute.type == ir.AttributeType.GRAPH:
                inner = attribute.as_graph()
                lines.append(f"{indent}  {attribute.name}({', '.join(_typed(v) for v in inner.inputs)}):")
                lines += _nodes(inner, indent + "    ")
                lines.append(f"{indent}    -> {', '.join(f'%{v.name}' for v in inner.outputs)}")
    return lines


def _typed(value: ir.Value) -> str:
    dtype = "?" if value.dtype is None else value.dtype.name
    return f"%{value.name} : {dtype}{value.shape if value.shape is not None else '[...]'}"


def _text(attribute: ir.Attr) -> str:
    text = str(attribute.value)
    return text if len(text) <= 60 else text[:57] + "..."
