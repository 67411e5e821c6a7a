"""Figures for people out of the JSON files that the benchmarks write: `python -m tools.bench_report bench-output`.

Writes `report.md` and `exporters.svg` there. With `--publish` it also puts the comparison with torch.onnx between the
marks in README.md, and the whole report into docs/reference/benchmarks.md.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import shutil
import sys
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from importlib import metadata
from pathlib import Path
from typing import Any

from tools.commands import ToolError, run

START, END = "<!-- bench:start -->", "<!-- bench:end -->"
COMMAND = "python3 -m nox -s bench -- --publish"
Rows = Sequence[Mapping[str, Any]]


def markdown_table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A Markdown table; the first column is text, the others are numbers."""
    lines = [header, ["---", *["---:"] * (len(header) - 1)], *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def figure(value: float | None) -> str:
    """A figure of torch.onnx, or that its export fails."""
    return "fails" if value is None else f"{value:.2f}"


def exporters_table(rows: Rows) -> str:
    """Our exporter beside `torch.onnx.export(dynamo=True)`, from the rows of `benchmarks/exporters.py`."""
    header = ["model", "capture s", "export / capture", "torch.onnx", "nodes", "torch.onnx", "latency ms", "torch.onnx"]
    body = [
        [
            f"{row['model']}, opset {row['opset']}",
            f"{row['capture_seconds']:.2f}",
            f"{row['ours_over_capture']:.2f}",
            figure(row["theirs_over_capture"]),
            f"{row['ours_nodes']}",
            str(row["theirs_nodes"] or "fails"),
            f"{row['ours_latency_ms']:.2f}",
            figure(row["theirs_latency_ms"]),
        ]
        for row in rows
    ]
    return markdown_table(header, body)


def operators_table(results: Mapping[str, Mapping[str, float]]) -> str:
    """Native operators beside what torch offers, from the results of `benchmarks/core_ops.py`."""
    timed = {name: row for name, row in results.items() if "ours_us" in row}
    body = [
        [name, f"{row['ours_us']:.1f}", f"{row['theirs_us']:.1f}", f"{row['ours_us'] / row['theirs_us']:.2f}"]
        for name, row in timed.items()
    ]
    return markdown_table(["operator", "us", "torch us", "ratio"], body)


def chart(rows: Rows) -> str:
    """Bars of export over capture, ours above torch.onnx's, as SVG."""
    longest = max(max(row["ours_over_capture"], row["theirs_over_capture"] or 0) for row in rows)
    scale = 480 / longest
    parts = []
    for place, row in enumerate(rows):
        top = 40 + 46 * place
        parts.append(f'<text x="92" y="{top + 21}" text-anchor="end">{row["model"]}</text>')
        for shift, key, color in ((0, "ours_over_capture", "#6366f1"), (16, "theirs_over_capture", "#9ca3af")):
            width = (row[key] or 0) * scale
            parts.append(f'<rect x="100" y="{top + shift}" width="{width:.1f}" height="14" fill="{color}"/>')
            text = figure(row[key])
            parts.append(f'<text x="{106 + width:.1f}" y="{top + shift + 12}" font-size="12">{text}</text>')
    one = 100 + scale
    height = 50 + 46 * len(rows)
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 660 {height}" font-family="system-ui, sans-serif" '
        f'font-size="14" fill="#4b5563">\n<text x="100" y="22" font-size="13">seconds of export over seconds of '
        f"torch.export alone: onnx-fx-export (blue), torch.onnx (grey)</text>\n"
        f'<path d="M{one:.1f} 32 V{height - 8}" stroke="#10b981" stroke-dasharray="4 3"/>\n'
        + "\n".join(parts)
        + "\n</svg>\n"
    )


def machine() -> str:
    """What the figures were measured on, in one line."""
    info = Path("/proc/cpuinfo")
    models = [line for line in info.read_text().splitlines() if "model name" in line] if info.exists() else []
    processor = models[0].partition(":")[2].strip() if models else platform.processor() or platform.machine()
    names = ("torch", "onnx", "onnxruntime", "onnxscript", "transformers")
    versions = ", ".join(f"{name} {metadata.version(name)}" for name in names)
    return (
        f"{processor}, {os.cpu_count()} cores; Python {platform.python_version()}, {versions}; "
        f"{datetime.now(UTC).date().isoformat()}"
    )


def report(folder: Path, described: str) -> tuple[str, str]:
    """The short comparison for the README, and the whole report.

    Raises:
        ToolError: The folder has no figures of the exporters.
    """
    exporters = folder / "exporters.json"
    if not exporters.exists():
        raise ToolError(f"{exporters} is missing; run the benchmarks first")
    rows = json.loads(exporters.read_text(encoding="utf-8"))
    (folder / "exporters.svg").write_text(chart(rows), encoding="utf-8")
    short = f"{exporters_table(rows)}\n\nMeasured by `{COMMAND}` on {described}."
    sections = ["# Benchmarks", f"Measured by `{COMMAND}` on {described}."]
    sections += ["## Export beside torch.onnx", "![Export over capture](exporters.svg)", exporters_table(rows)]
    operators = folder / "core_ops.json"
    if operators.exists():
        results = json.loads(operators.read_text(encoding="utf-8"))["results"]
        sections += ["## Native operators beside torch, one thread", operators_table(results)]
    return short, "\n\n".join(sections) + "\n"


def between_marks(text: str, content: str) -> str:
    """`text` with what is between the two marks replaced by `content`.

    Raises:
        ToolError: There is not exactly one pair of marks.
    """
    if text.count(START) != 1 or text.count(END) != 1 or text.index(START) > text.index(END):
        raise ToolError(f"expected one {START} and one {END} after it")
    return text[: text.index(START) + len(START)] + f"\n{content}\n" + text[text.index(END) :]


def publish(root: Path, folder: Path, short: str, whole: str) -> None:
    readme = root / "README.md"
    readme.write_text(between_marks(readme.read_text(encoding="utf-8"), short), encoding="utf-8")
    (root / "docs/reference/benchmarks.md").write_text(whole.replace("(exporters.svg)", "(../_static/exporters.svg)"))
    shutil.copyfile(folder / "exporters.svg", root / "docs/_static/exporters.svg")


def main(arguments: Sequence[str] | None = None, root: Path | None = None) -> int:
    """Runs the command; returns the exit status."""
    parser = argparse.ArgumentParser(prog="python -m tools.bench_report", description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--publish", action="store_true")
    options = parser.parse_args(arguments)
    root = root or Path.cwd()
    try:
        commit = run(["git", "describe", "--always", "--dirty", "--abbrev=12"], cwd=root).strip()
        short, whole = report(options.folder, f"{machine()}; revision {commit}")
        (options.folder / "report.md").write_text(whole, encoding="utf-8")
        if options.publish:
            publish(root, options.folder, short, whole)
    except ToolError as error:
        print(f"bench-report: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
