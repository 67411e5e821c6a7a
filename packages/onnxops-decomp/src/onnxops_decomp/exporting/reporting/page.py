"""A page about one export: how it went, stages with their times, what became of every call, shapes, verification."""

from __future__ import annotations

import collections
import dataclasses
import html
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple, Protocol, runtime_checkable

import onnx_ir as ir
import torch

from onnxops_core import OnnxExporterError
from onnxops_decomp.exporting.program.onnx_program import ONNXProgram
from onnxops_decomp.exporting.program.saving import write_text
from onnxops_decomp.exporting.program.verification import Verified

__all__ = ["Page", "ReportedCall", "Unconverted", "report_html", "write_report"]

Row = tuple[str, int, str, Sequence[str]]

_STYLE = """
:root { color-scheme: light dark; --line: #d7dade; --soft: #f4f5f7; --bad: #b3261e; --good: #1b6e3c }
@media (prefers-color-scheme: dark) {
  :root { --line: #3a3f45; --soft: #24282c; --bad: #ff8a80; --good: #7bd69b }
  body { background: #16181b; color: #e4e6e8 }
}
body { font: 15px/1.5 system-ui, sans-serif; max-width: 68rem; margin: 2rem auto; padding: 0 1rem }
h1 { font-size: 1.6rem; margin-bottom: 0 } h2 { font-size: 1.15rem; margin: 2rem 0 0.4rem }
table { border-collapse: collapse; min-width: 20rem }
td, th { padding: 0.25rem 1rem 0.25rem 0; text-align: left; vertical-align: top; border-bottom: 1px solid var(--line) }
th { font-weight: 600; white-space: nowrap } .n { text-align: right; white-space: nowrap }
td:not(.n) { overflow-wrap: anywhere } td { font-variant-numeric: tabular-nums }
pre { overflow-x: auto; background: var(--soft); padding: 0.8rem; font-size: 12.5px; white-space: pre-wrap }
.bad { color: var(--bad) } .good { color: var(--good) } summary { cursor: pointer; margin: 2rem 0 0.4rem }
"""
_PLACES_SHOWN = 6


class ReportedCall(NamedTuple):
    """A call that was captured: its operator, the name of its node, and its line."""

    target: str
    name: str
    place: str


@runtime_checkable
class Unconverted(Protocol):
    """An error that lists operators that could not be converted."""

    def rows(self) -> Sequence[Row]:
        """Return for each operator and reason: the operator, the number of calls, the reason, the lines."""


@dataclasses.dataclass(frozen=True)
class Page:
    """What the page tells.

    Attributes:
        exporter: Name and version of the exporter.
        seconds: Time of each stage; the last one failed if the export did.
        warnings: Texts of the warnings.
        verified: What was compared with PyTorch.
        calls: What torch.export captured, once it did.
        program: The converted model, once there is one.
        failure: Why the export failed, if it did.
        profile: Where the time of the conversion went, as text, if it was measured.
        replaced: Why another exporter than the one that was asked made the model.
    """

    exporter: str

    seconds: Mapping[str, float]
    warnings: Sequence[str] = ()
    verified: Sequence[Verified] = ()
    calls: Sequence[ReportedCall] = ()
    program: ONNXProgram | None = None
    failure: OnnxExporterError | None = None
    profile: str | None = None
    replaced: OnnxExporterError | None = None


def write_report(page: Page, folder: Path) -> Path:
    """Write the page to ``onnx_export_report.html`` in a folder and return its path.

    Raises:
        SaveError: If it cannot be written.
    """
    path = folder / "onnx_export_report.html"
    write_text(path, report_html(page))
    return path


def report_html(page: Page) -> str:
    """Return the page as text; it refers to nothing outside itself."""
    parts = [
        "<!doctype html><html lang=en><meta charset=utf-8><meta name=viewport content='width=device-width'>",
        f"<title>ONNX export</title><style>{_STYLE}</style><h1>ONNX export</h1>",
        *_outcome(page),
        *_section("Stages", ["stage", "seconds"], page.seconds.items()),
        *_section("Warnings", ["warning"], [[text] for text in dict.fromkeys(page.warnings)]),
    ]
    if isinstance(page.failure or page.replaced, Unconverted):
        parts += _failures(page.failure or page.replaced)
    if page.program is not None:
        parts += _about_the_model(page.program)
    parts += _section(
        "Verification", ["sizes", "outputs compared", "largest difference"],
        [(f"at {v.sizes}" if "=" in v.sizes else v.sizes, v.outputs, f"{v.max_abs:.3g}") for v in page.verified],
    )  # fmt: skip
    if page.program is not None:
        parts += _operators(page.program.model)
    if page.calls:
        parts += _captured_calls(page)
    if page.profile:
        parts += [f"<details><summary>Profile</summary><pre>{html.escape(page.profile)}</pre></details>"]
    return "\n".join(parts)


def _outcome(page: Page) -> list[str]:
    version = f"{page.exporter}, torch {torch.__version__}"
    if page.failure is not None:
        stage = next(reversed(list(page.seconds)), "the arguments")
        return [
            f"<p><strong class=bad>Failed</strong> at {html.escape(stage)}; no model was written. {version}</p>",
            f"<pre>{html.escape(f'{type(page.failure).__name__}: {page.failure}')}</pre>",
        ]
    verified = "verified against PyTorch" if page.verified else "not verified against PyTorch"
    strategy = page.program.capture_strategy if page.program is not None else None
    captured = f" Captured by the strategy {strategy}." if strategy else ""
    outcome = [f"<p><strong class=good>Exported</strong>, {verified}.{captured} {version}</p>"]
    if page.replaced is not None:
        reason = html.escape(f"{type(page.replaced).__name__}: {page.replaced}")
        outcome += [
            f"<p>The fallback to TorchScript made the model, because the FX exporter failed:</p><pre>{reason}</pre>"
        ]
    return outcome


def _failures(error: Unconverted) -> list[str]:
    rows = [(target, count, reason, _listed(places)) for target, count, reason, places in error.rows()]
    return _section("Operators that cannot be converted", ["operator", "calls", "reason", "from"], rows)


def _about_the_model(program: ONNXProgram) -> list[str]:
    graph, functions = program.model.graph, program.model.functions.values()
    weights = [value.const_value for value in graph.initializers.values() if value.const_value is not None]
    opsets = ", ".join(f"{domain or 'ai.onnx'} {version}" for domain, version in graph.opset_imports.items())
    nodes, inside = _count(graph), sum(_count(function.graph) for function in functions)
    facts: list[tuple[str, object]] = [("opset", opsets), ("nodes", f"{nodes:,}")]
    if functions:
        facts.append(("nodes of functions", f"{inside:,} in {len(functions)} functions"))
    facts.append(("weights", f"{len(weights)}, {sum(tensor.nbytes for tensor in weights):,} bytes"))
    return [
        *_section("Model", ["", ""], facts),
        *_section("Inputs", ["name", "dtype", "shape"], _values(graph.inputs)),
        *_section("Outputs", ["name", "dtype", "shape"], _values(graph.outputs)),
        *_section("Sizes that the model is right for", ["condition"], [[c] for c in program.constraints.conditions]),
        *_section("State", ["input", "output with the next value"], program.state.items()),
    ]


def _count(graph: ir.Graph) -> int:
    return sum(1 for _ in graph.all_nodes())


def _operators(model: ir.Model) -> list[str]:
    """Return the table of ONNX operators, those inside functions counted apart."""
    outside, inside = _by_operator([model.graph]), _by_operator([f.graph for f in model.functions.values()])
    rows = []
    for name in {*outside, *inside}:
        here, there = outside.get(name, []), inside.get(name, [])
        rows.append((name, len(here), *([len(there)] if inside else []), _listed(here + there)))
    rows.sort(key=lambda row: (-sum(cell for cell in row if isinstance(cell, int)), row[0]))
    header = ["operator", "nodes", *(["in functions"] if inside else []), "from"]
    return _section("Operators", header, rows)


def _by_operator(graphs: Iterable[ir.Graph]) -> dict[str, list[str]]:
    """Return the places in the user's code that the nodes of each operator come from."""
    found: dict[str, list[str]] = collections.defaultdict(list)
    for graph in graphs:
        for node in graph.all_nodes():
            name = f"{node.domain}::{node.op_type}".removeprefix("::")
            found[name].append(node.metadata_props.get("onnxops.source", ""))
    return found


def _captured_calls(page: Page) -> list[str]:
    """Return the table of PyTorch's operators with what became of their calls."""
    became: dict[str, collections.Counter[str]] = collections.defaultdict(collections.Counter)
    if page.program is not None:
        model = page.program.model
        for graph in (model.graph, *(function.graph for function in model.functions.values())):
            for node in graph.all_nodes():
                became[node.metadata_props.get("onnxops.fx_node", "")][node.op_type] += 1
    rows: dict[str, tuple[int, collections.Counter[str], list[str]]] = {}
    for call in page.calls:
        count, nodes, places = rows.get(call.target, (0, collections.Counter(), []))
        rows[call.target] = (count + 1, nodes + became[call.name], [*places, call.place])
    table = [
        (target, count, ", ".join(f"{number} {name}" for name, number in nodes.most_common()), _listed(places))
        for target, (count, nodes, places) in sorted(rows.items(), key=lambda row: (-row[1][0], row[0]))
    ]
    if page.program is None or page.replaced is not None:
        return _section("Captured calls", ["call", "calls", "from"], [(row[0], row[1], row[3]) for row in table])
    return _section("Captured calls", ["call", "calls", "became", "from"], table)


def _section(title: str, header: Sequence[str], rows: Iterable[Sequence[object]]) -> list[str]:
    """Return a heading and a table; nothing if there are no rows."""
    rows = list(rows)
    if not rows:
        return []
    right = [isinstance(cell, int | float) for cell in rows[0]]
    head = "".join(_cell("th", html.escape(text), number) for text, number in zip(header, right, strict=True))
    body = "".join(
        f"<tr>{''.join(_cell('td', _text(cell), isinstance(cell, int | float)) for cell in row)}</tr>" for row in rows
    )
    return [f"<h2>{html.escape(title)}</h2>", f"<table>{f'<tr>{head}</tr>' if any(header) else ''}{body}</table>"]


def _cell(tag: str, text: str, number: bool) -> str:
    return f"<{tag}{' class=n' if number else ''}>{text}</{tag}>"


def _text(cell: object) -> str:
    return html.escape(f"{cell:.3f}" if isinstance(cell, float) else str(cell))


def _values(values: Iterable[ir.Value]) -> list[tuple[str, str, str]]:
    return [(str(v.name), v.dtype.name if v.dtype else "?", "?" if v.shape is None else str(v.shape)) for v in values]


def _listed(places: Iterable[str]) -> str:
    """Return the first few places in the user's code, each file once."""
    known = list(dict.fromkeys(place for place in places if place))
    by_file: dict[str, list[str]] = collections.defaultdict(list)
    for place in known[:_PLACES_SHOWN]:
        file, _, line = place.rpartition(":")
        by_file[file].append(line)
    more = f" and {len(known) - _PLACES_SHOWN} more" if len(known) > _PLACES_SHOWN else ""
    return "; ".join(f"{file}:{', '.join(lines)}" for file, lines in by_file.items()) + more
