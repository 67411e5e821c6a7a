"""What the command line prints: tables on a terminal, JSON on request.

Names in a model are untrusted text: they pass through :func:`clean` and are never read as markup.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
from rich.console import Console, Group, RenderableType
from rich.progress import Progress
from rich.table import Table
from rich.text import Text

from onnx_verify.checks import Finding
from onnx_verify.comparing.bench import BenchmarkReport
from onnx_verify.comparing.verdict import OutputReport, Verdict, plain_values
from onnx_verify.judging.answers import Answer
from onnx_verify.judging.blame import Blame
from onnx_verify.judging.portable import Place
from onnx_verify.search.findings import MismatchReport

Tick = Callable[[int, int], None]


def clean(text: object) -> str:
    """Replace what could steer a terminal."""
    return "".join(c if c.isprintable() or c == "\n" else "\N{REPLACEMENT CHARACTER}" for c in str(text))


def cell(text: object, style: str = "") -> Text:
    """Return text for a table cell that is not read as markup."""
    return Text(clean(text), style=style)


@contextmanager
def progress(label: str, quiet: bool) -> Iterator[Tick | None]:
    """Show a bar on standard error while it is entered, if that is a terminal."""
    console = Console(stderr=True)
    if quiet or not console.is_terminal:
        yield None
        return
    with Progress(console=console, transient=True) as bar:
        task = bar.add_task(label, total=None)
        yield lambda done, total: bar.update(task, completed=done, total=total)


def show(content: Any, as_json: bool) -> None:
    """Print a renderable, or a dict as JSON."""
    if as_json:
        print(json.dumps(plain_values(content), indent=2, allow_nan=False))
        return
    console = Console()
    if not console.is_terminal:
        console = Console(width=200)  # a file or pipe has no width of its own to wrap at
        for part in getattr(content, "renderables", [content]):
            if isinstance(part, Table):
                part.box = None
    console.print(content, soft_wrap=not console.is_terminal)


def _state(ok: bool) -> Text:
    return Text("ok", style="green") if ok else Text("FAIL", style="bold red")


def _number(value: float | None) -> str:
    return "-" if value is None else f"{value:.3g}"


def verdict(result: Verdict) -> RenderableType:
    """Return a table with one row per output and run, and below it why each output that is wrong is so."""
    table = Table("run", "output", "type", "state", "max abs", "max rel", "ulp", "cosine", "wrong")
    reasons: dict[str, list[str]] = {}
    for case in result.cases:
        for output in case.outputs:
            table.add_row(cell(case.label), *_output_cells(output))
            if output.reasons:
                reasons.setdefault(output.name, []).append(f"{output.name}, {case.label}: {'; '.join(output.reasons)}")
        for reason in case.reasons:
            reasons.setdefault(reason, []).append(f"{case.label}: {reason}")
    word = "agrees with" if result.ok else "DISAGREES with"
    head = cell(f"{result.candidate} {word} {result.reference}", "bold green" if result.ok else "bold red")
    notes = (cell(f"note: {note}", "yellow") for note in result.notes)
    return Group(head, *notes, table, *(cell(_first(lines), "red") for lines in reasons.values()))


def _first(lines: Sequence[str]) -> str:
    """Return the first of several reasons of one kind, and how many there are more."""
    more = len(lines) - 1
    return f"{lines[0]} (and in {more} more {'run' if more == 1 else 'runs'})" if more else lines[0]


def _output_cells(output: OutputReport) -> list[Text]:
    kind = f"{output.candidate_dtype}{list(output.candidate_shape)}"
    metrics = output.metrics
    if metrics is None:
        return [cell(output.name), cell(kind), _state(output.ok), *[cell("-")] * 5]
    numbers = [
        _number(metrics.max_abs),
        _number(metrics.max_rel),
        "-" if metrics.max_ulp is None else str(metrics.max_ulp),
        "-" if metrics.cosine is None else f"{metrics.cosine:.7f}",
        f"{metrics.mismatches}/{metrics.elements}",
    ]
    return [cell(output.name), cell(kind), _state(output.ok), *map(cell, numbers)]


def mismatches(result: MismatchReport) -> RenderableType:
    """Return the verdict and the wrong nodes."""
    parts: list[RenderableType] = [verdict(result.verdict)]
    unchecked = result.ok and not result.checked
    hint = "; --exhaustive also checks every node alone" if unchecked else ""
    parts.append(cell(f"{result.checked} values compared in {result.runs} runs{hint}"))
    parts += [cell(str(each), "bold") for each in result.mismatches]
    if not result.verdict.ok and not result.mismatches:
        parts.append(cell("no single node explains the disagreement", "yellow"))
    parts += [cell(f"note: {note}", "yellow") for note in result.notes]
    return Group(*parts)


def values(results: Sequence[tuple[str, Sequence[tuple[str, Any]]]]) -> RenderableType:
    """Return a table of what the outputs hold."""
    table = Table("run", "output", "type", "min", "mean", "max", "not finite")
    for label, outputs in results:
        for name, array in outputs:
            facts = describe(array)
            shown = [_number(facts[key]) for key in ("min", "mean", "max")]
            table.add_row(
                cell(label),
                cell(name),
                cell(f"{facts['dtype']}{facts['shape']}"),
                *map(cell, shown),
                cell(facts["not_finite"]),
            )
    return table


def values_dict(results: Sequence[tuple[str, Sequence[tuple[str, Any]]]]) -> dict[str, Any]:
    """Return what the outputs hold as plain values."""
    return {
        "ok": True,
        "runs": [
            {"label": label, "outputs": [{"name": name, **describe(array)} for name, array in outputs]}
            for label, outputs in results
        ],
    }


def describe(array: Any) -> dict[str, Any]:
    """Return dtype, shape, and the range of the finite elements; None where there is none."""
    facts: dict[str, Any] = {"dtype": array.dtype.name, "shape": list(array.shape)}
    if array.dtype.kind in "OSUTc" or not array.size:
        return facts | {"min": None, "mean": None, "max": None, "not_finite": 0}
    wide = array.astype(np.float64)
    finite = wide[np.isfinite(wide)]
    ends = (finite.min(), finite.mean(), finite.max()) if finite.size else (None, None, None)
    low, mean, high = (None if end is None else float(end) for end in ends)
    return facts | {"min": low, "mean": mean, "max": high, "not_finite": int(wide.size - finite.size)}


def measurements(result: BenchmarkReport) -> RenderableType:
    """Return the benchmark as a table."""
    table = Table("model", "runtime", "median", "p95", "runs/s", "ratio", "peak memory")
    for row in result.rows:
        peak = "-" if row.peak_bytes is None else f"{row.peak_bytes / 2**20:.1f} MiB"
        times = [f"{row.median_s * 1e3:.3f} ms", f"{row.p95_s * 1e3:.3f} ms", f"{row.runs_per_s:.1f}"]
        table.add_row(cell(row.name), cell(row.backend), *map(cell, times), cell(f"{row.ratio:.2f}x"), cell(peak))
    return table


def _dim(dim: int | str | None) -> str:
    return "?" if dim is None else str(dim)


def summary(facts: dict[str, Any], findings: Sequence[Finding]) -> RenderableType:
    """Return what a model is made of and what its checks found."""
    table = Table(show_header=False)
    opsets = ", ".join(f"{domain} {version}" for domain, version in facts["opsets"].items())
    facts = {**facts, "producer": facts["producer"] or "-", "opsets": opsets}
    for key in ("source", "producer", "ir_version", "opsets", "nodes", "initializers", "parameters"):
        table.add_row(cell(key), cell(facts[key]))
    table.add_row(cell("weights"), cell(f"{facts['weight_bytes'] / 2**20:.2f} MiB"))
    for kind in ("inputs", "outputs"):
        for value in facts[kind]:
            shape = "of any shape" if value["shape"] is None else f"[{', '.join(map(_dim, value['shape']))}]"
            table.add_row(cell(kind[:-1]), cell(f"{value['name']} {value['dtype']} {shape}"))
    if facts["functions"]:
        table.add_row(cell("functions"), cell(", ".join(facts["functions"])))
    operators = ", ".join(f"{name} {count}" for name, count in facts["operators"].items())
    table.add_row(cell("operators"), cell(operators))
    styles = {"error": "bold red", "warning": "yellow"}
    lines = [cell(str(finding), styles[finding.severity]) for finding in findings]
    return Group(table, *(lines or [cell("every check passed", "green")]))


def judgment(result: Blame) -> RenderableType:
    """Return who agrees with whom, on the model and on the node on which the engines part."""
    parts: list[RenderableType] = [cell(result, "bold green" if result.ok else "bold red"), _answers(result.whole)]
    if result.node is not None:
        parts += [cell(result.node), _answers(result.of_node)]
    return Group(*parts)


def _answers(answers: Sequence[Answer]) -> RenderableType:
    table = Table("engine", "state", "agrees with")
    for answer in answers:
        table.add_row(
            cell(answer.engine),
            _state(answer.runs and bool(answer.agrees_with)),
            cell(", ".join(answer.agrees_with) if answer.runs else answer.error),
        )
    return table


def places(found: Sequence[Place]) -> RenderableType:
    """Return a table with one row per opset and engine."""
    table = Table("opset", "engine", "loads", "agrees", "operator", "what stands in the way")
    for place in found:
        agrees = cell("-") if place.agrees is None else _state(place.agrees)
        reason = place.reason if len(place.reason) <= 200 else place.reason[:200] + " ..."
        row = (cell(place.engine), _state(place.loads), agrees, cell(place.operator), cell(reason))
        table.add_row(str(place.opset), *row)
    return table
