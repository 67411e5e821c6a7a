"""Figures for people out of the JSON files that the benchmarks write: `python -m tools.bench_report bench-output`.

Each file holds one figure in the format of `benchmarks/figures.py`. Writes `report.md` and a plot for each figure
there. With `--publish` it also puts the comparison with torch.onnx between the marks in README.md, and the whole report
into docs/reference/benchmarks.md.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import re
import shutil
import sys
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from importlib import metadata
from pathlib import Path
from typing import Any

from tools.bench_plot import plot
from tools.commands import ToolError, run

START, END = "<!-- bench:start -->", "<!-- bench:end -->"
COMMAND = "python3 -m nox -s bench -- --publish"
FIRST = "exporters"  # the figure that the README shows
Figure = Mapping[str, Any]


def markdown_table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Return a Markdown table; the first column is text, the others are numbers."""
    lines = [header, ["---", *["---:"] * (len(header) - 1)], *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def cell(value: str | int | float | None) -> str:
    """Return a value of a row with three digits; None says that there is nothing to measure because an export fails."""
    if value is None:
        return "fails"
    if not isinstance(value, float):
        return str(value)
    return f"{value:.0f}" if abs(value) >= 1000 else f"{value:#.3g}".rstrip(".")


def table(figure: Figure) -> str:
    """Return the table of one figure."""
    columns: Mapping[str, str] = figure["columns"]
    body = [[cell(row[key]) for key in columns] for row in figure["rows"]]
    return markdown_table(list(columns.values()), body)


def machine() -> str:
    """Return what the figures were measured on, in one line."""
    info = Path("/proc/cpuinfo")
    models = [line for line in info.read_text().splitlines() if "model name" in line] if info.exists() else []
    processor = models[0].partition(":")[2].strip() if models else platform.processor() or platform.machine()
    names = ("torch", "onnx", "onnxruntime", "onnxscript", "transformers")
    versions = ", ".join(f"{name} {metadata.version(name)}" for name in names)
    return (
        f"{processor}, {os.cpu_count()} cores; Python {platform.python_version()}, {versions}; "
        f"{datetime.now(UTC).date().isoformat()}"
    )


def read_figures(folder: Path) -> dict[str, Figure]:
    """Return the figures in a folder by the name of their file, that of the README first, the others by name.

    Raises:
        ToolError: There is none of the exporters, or a file is not a figure.
    """
    names = sorted((path.stem for path in folder.glob("*.json")), key=lambda name: (name != FIRST, name))
    if FIRST not in names:
        raise ToolError(f"{folder / FIRST}.json is missing; run the benchmarks first")
    figures = {name: json.loads((folder / f"{name}.json").read_text(encoding="utf-8")) for name in names}
    for name, figure in figures.items():
        if not isinstance(figure, dict) or not {"title", "caption", "columns", "rows"} <= set(figure):
            raise ToolError(f"{folder / name}.json is not a figure of benchmarks/figures.py")
    return figures


def report(folder: Path, described: str) -> tuple[str, str]:
    """Return the short comparison for the README, and the whole report; the plots go to the folder.

    Raises:
        ToolError: The folder has no figures of the exporters, or a file is not a figure.
    """
    figures = read_figures(folder)
    measured = f"Measured by `{COMMAND}` on {described}."
    sections = [
        "# Benchmarks",
        measured,
        "Sides take turns within one run: their ratios hold elsewhere, seconds do not.",
    ]
    for name, figure in figures.items():
        sections += [f"## {figure['title']}", figure["caption"]]
        if figure.get("plot"):
            (folder / f"{name}.svg").write_text(plot(figure), encoding="utf-8")
            sections.append(f"![{figure['plot']['label']}]({name}.svg)")
        sections.append(table(figure))
    return f"{table(figures[FIRST])}\n\n{measured}", "\n\n".join(sections) + "\n"


def between_marks(text: str, content: str) -> str:
    """`text` with what is between the two marks replaced by `content`.

    Raises:
        ToolError: There is not exactly one pair of marks.
    """
    if text.count(START) != 1 or text.count(END) != 1 or text.index(START) > text.index(END):
        raise ToolError(f"expected one {START} and one {END} after it")
    return text[: text.index(START) + len(START)] + f"\n{content}\n" + text[text.index(END) :]


def publish(root: Path, folder: Path, short: str, whole: str) -> None:
    """Put the short comparison into the README, the whole report and its plots into the docs."""
    readme = root / "README.md"
    readme.write_text(between_marks(readme.read_text(encoding="utf-8"), short), encoding="utf-8")
    plots = root / "docs/_static/benchmarks"
    shutil.rmtree(plots, ignore_errors=True)
    plots.mkdir(parents=True)
    for drawn in folder.glob("*.svg"):
        shutil.copyfile(drawn, plots / drawn.name)
    page = re.sub(r"\]\(([\w-]+\.svg)\)", r"](../_static/benchmarks/\1)", whole)
    (root / "docs/reference/benchmarks.md").write_text(page, encoding="utf-8")


def main(arguments: Sequence[str] | None = None, root: Path | None = None) -> int:
    """Run the command and return the exit status."""
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
