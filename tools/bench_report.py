"""Figures for people out of the JSON files that the benchmarks write: `python -m tools.bench_report bench-output`.

Each file holds one figure in the format of `benchmarks/figures.py`. Writes `report.md` and a plot for each figure
there. With `--publish` it also puts the comparison with torch.onnx between the marks in README.md, and the whole report
into docs/reference/benchmarks.md, where figures that were not measured now stay, with what they were measured on.
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
SECTION = re.compile(r"^<!-- figure: ([\w-]+); (.*) -->$", re.MULTILINE)
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
        ToolError: There is none, or a file is not a figure.
    """
    names = sorted((path.stem for path in folder.glob("*.json")), key=_place)
    if not names:
        raise ToolError(f"{folder} has no figures; run the benchmarks first")
    figures = {name: json.loads((folder / f"{name}.json").read_text(encoding="utf-8")) for name in names}
    for name, figure in figures.items():
        if not isinstance(figure, dict) or not {"title", "caption", "columns", "rows"} <= set(figure):
            raise ToolError(f"{folder / name}.json is not a figure of benchmarks/figures.py")
    return figures


def _place(name: str) -> tuple[bool, str]:
    return name != FIRST, name


def report(folder: Path, described: str) -> tuple[str | None, str]:
    """Return the short comparison for the README, if it was measured, and the whole report; plots go to the folder.

    Raises:
        ToolError: The folder has no figures, or a file is not a figure.
    """
    figures = read_figures(folder)
    sections = {}
    for name, figure in figures.items():
        parts = [f"## {figure['title']}", figure["caption"]]
        if figure.get("plot"):
            (folder / f"{name}.svg").write_text(plot(figure), encoding="utf-8")
            parts.append(f"![{figure['plot']['label']}]({name}.svg)")
        sections[name] = described, "\n\n".join([*parts, table(figure)])
    short = f"{table(figures[FIRST])}\n\n{_measured(described)}" if FIRST in figures else None
    return short, composed(sections, described)


def _measured(described: str) -> str:
    return f"Measured by `{COMMAND}` on {described}."


def composed(sections: Mapping[str, tuple[str, str]], described: str) -> str:
    """Return the page of sections by the name of their figure, each with what it was measured on.

    Args:
        sections: What each was measured on, and its text.
        described: What the page is measured on, but for sections that say something else.
    """
    intro = "Sides take turns within one run: their ratios hold elsewhere, seconds do not."
    parts = ["# Benchmarks", _measured(described), intro]
    for name in sorted(sections, key=_place):
        own, text = sections[name]
        earlier = "" if own == described else f"\n\nMeasured earlier, on {own}."
        parts.append(f"<!-- figure: {name}; {own} -->\n\n{text}{earlier}")
    return "\n\n".join(parts) + "\n"


def sections_of(page: str) -> dict[str, tuple[str, str]]:
    """Return what the sections of a page were measured on and their texts, by the name of their figure."""
    found = SECTION.split(page)
    named = zip(found[1::3], found[2::3], found[3::3], strict=True)
    return {name: (own, text.strip().removesuffix(f"Measured earlier, on {own}.").strip()) for name, own, text in named}


def between_marks(text: str, content: str) -> str:
    """`text` with what is between the two marks replaced by `content`.

    Raises:
        ToolError: There is not exactly one pair of marks.
    """
    if text.count(START) != 1 or text.count(END) != 1 or text.index(START) > text.index(END):
        raise ToolError(f"expected one {START} and one {END} after it")
    return text[: text.index(START) + len(START)] + f"\n{content}\n" + text[text.index(END) :]


def publish(root: Path, folder: Path, short: str | None, whole: str, described: str) -> None:
    """Put the short comparison into the README, and the report and its plots into the docs, beside what stays there."""
    readme, target, plots = root / "README.md", root / "docs/reference/benchmarks.md", root / "docs/_static/benchmarks"
    if short is not None:
        readme.write_text(between_marks(readme.read_text(encoding="utf-8"), short), encoding="utf-8")
    kept = sections_of(target.read_text(encoding="utf-8")) if target.exists() else {}
    page = re.sub(r"\]\(([\w-]+\.svg)\)", r"](../_static/benchmarks/\1)", whole)
    sections = {**kept, **sections_of(page)}
    target.write_text(composed(sections, described), encoding="utf-8")
    plots.mkdir(parents=True, exist_ok=True)
    for drawn in folder.glob("*.svg"):
        shutil.copyfile(drawn, plots / drawn.name)
    for drawn in plots.glob("*.svg"):
        if drawn.stem not in sections:
            drawn.unlink()


def main(arguments: Sequence[str] | None = None, root: Path | None = None) -> int:
    """Run the command and return the exit status."""
    parser = argparse.ArgumentParser(prog="python -m tools.bench_report", description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--publish", action="store_true")
    options = parser.parse_args(arguments)
    root = root or Path.cwd()
    try:
        commit = run(["git", "describe", "--always", "--dirty", "--abbrev=12"], cwd=root).strip()
        described = f"{machine()}; revision {commit}"
        short, whole = report(options.folder, described)
        (options.folder / "report.md").write_text(whole, encoding="utf-8")
        if options.publish:
            publish(root, options.folder, short, whole, described)
    except ToolError as error:
        print(f"bench-report: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
