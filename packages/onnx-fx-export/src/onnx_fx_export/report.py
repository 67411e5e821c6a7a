"""A page about one export: stages with their times, inputs and outputs, operators, conditions on sizes."""

from __future__ import annotations

import collections
import html
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import onnx_ir as ir

from onnx_fx_export._version import __version__
from onnx_fx_export.saving import write_text

if TYPE_CHECKING:
    from onnx_fx_export.program import ONNXProgram

__all__ = ["write_report"]

_STYLE = """
body { font: 15px/1.5 system-ui, sans-serif; max-width: 60rem; margin: 2rem auto; padding: 0 1rem; color: #222 }
table { border-collapse: collapse; margin: 0.5rem 0 1.5rem }
td, th { padding: 0.2rem 0.9rem 0.2rem 0; text-align: left }
th { border-bottom: 2px solid #888 } td { border-bottom: 1px solid #ddd } td.n { text-align: right }
pre { overflow-x: auto; background: #f6f6f6; padding: 0.8rem; font-size: 12px }
@media (prefers-color-scheme: dark) { body { background: #1b1b1b; color: #ddd } pre { background: #262626 } }
"""


def _table(header: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    head = "".join(f"<th>{html.escape(text)}</th>" for text in header)
    body = "".join(
        "<tr>"
        + "".join(f"<td{' class=n' if isinstance(c, int | float) else ''}>{html.escape(_text(c))}</td>" for c in row)
        + "</tr>"
        for row in rows
    )
    return f"<table><tr>{head}</tr>{body}</table>"


def _text(cell: object) -> str:
    return f"{cell:.3f}" if isinstance(cell, float) else str(cell)


def _values(values: Iterable[ir.Value]) -> list[tuple[str, str, str]]:
    return [(str(v.name), v.dtype.name if v.dtype else "?", str(v.shape) if v.shape else "?") for v in values]


def report_html(program: ONNXProgram, profile: str | None = None) -> str:
    """Return the page as text; it refers to nothing outside itself.

    Args:
        program: What was exported.
        profile: Where the time went, as text, if it was measured.
    """
    graph = program.model.graph
    operators: dict[str, list[ir.Node]] = collections.defaultdict(list)
    for node in graph.all_nodes():
        operators[f"{node.domain}::{node.op_type}".removeprefix("::")].append(node)
    rows = sorted(((name, len(nodes), _sources(nodes)) for name, nodes in operators.items()), key=lambda row: -row[1])
    weights = [value for value in graph.initializers.values() if value.const_value is not None]
    size = sum(value.const_value.nbytes for value in weights if value.const_value is not None)
    opsets = ", ".join(f"{domain or 'ai.onnx'} {version}" for domain, version in graph.opset_imports.items())
    parts = [
        f"<!doctype html><meta charset=utf-8><title>ONNX export</title><style>{_STYLE}</style><h1>ONNX export</h1>",
        f"<p>{html.escape(opsets)}; {sum(map(len, operators.values()))} nodes; {len(weights)} weights, {size:,} bytes; "
        f"onnx-fx-export {__version__}.</p>",
        "<h2>Stages</h2>",
        _table(["stage", "seconds"], program.timings.items()),
        "<h2>Inputs</h2>",
        _table(["name", "dtype", "shape"], _values(graph.inputs)),
        "<h2>Outputs</h2>",
        _table(["name", "dtype", "shape"], _values(graph.outputs)),
    ]
    conditions = [[condition] for condition in program.constraints.conditions]
    if conditions:
        parts += ["<h2>Sizes that the model is right for</h2>", _table(["condition"], conditions)]
    if program.state:
        parts += ["<h2>State</h2>", _table(["input", "output with the next value"], program.state.items())]
    parts += ["<h2>Operators</h2>", _table(["operator", "count", "from"], rows)]
    if profile:
        parts += ["<h2>Profile</h2>", f"<pre>{html.escape(profile)}</pre>"]
    return "\n".join(parts)


def _sources(nodes: Sequence[ir.Node]) -> str:
    """Return the first few places in the user's code that nodes come from."""
    places = dict.fromkeys(node.metadata_props.get("onnxops.source", "") for node in nodes)
    known = [place for place in places if place]
    return ", ".join(known[:3]) + (", ..." if len(known) > 3 else "")


def write_report(program: ONNXProgram, folder: Path, profile: str | None = None) -> Path:
    """Write the page to ``onnx_export_report.html`` in a folder and return its path.

    Raises:
        SaveError: If it cannot be written.
    """
    path = folder / "onnx_export_report.html"
    write_text(path, report_html(program, profile))
    return path
