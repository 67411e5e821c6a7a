"""Figures reach the pages as they were measured."""

from __future__ import annotations

import importlib
import json
from pathlib import Path
from types import ModuleType
from typing import Any
from xml.etree import ElementTree as ET

import pytest

from tools import bench_report
from tools.commands import ToolError

SVG = "{http://www.w3.org/2000/svg}"
PLOT = {"kind": "bars", "x": "model", "y": {"ours": "ours", "theirs": "torch.onnx"}, "label": "ratio", "log": False}
FIGURE = {
    "title": "Export",
    "caption": "Less is better.",
    "columns": {"model": "model", "ours": "export / capture", "theirs": "torch.onnx", "nodes": "nodes"},
    "rows": [
        {"model": "small", "ours": 1.25, "theirs": 5.0, "nodes": 120},
        {"model": "swin", "ours": 0.5, "theirs": None, "nodes": 1437},
    ],
    "plot": PLOT,
}


def write(folder: Path, name: str, **changes: Any) -> None:
    (folder / f"{name}.json").write_text(json.dumps(FIGURE | changes))


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    write(tmp_path, "exporters")
    return tmp_path


@pytest.fixture
def figures(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """The module that the benchmarks import; they run as scripts, so it lies in no package."""
    monkeypatch.syspath_prepend(str(Path(__file__).parents[1] / "benchmarks"))
    return importlib.import_module("figures")


def test_a_row_shows_all_sides_and_an_export_that_fails_is_said_to_fail(folder: Path) -> None:
    short, _ = bench_report.report(folder, "a machine")

    assert short is not None
    assert "| model | export / capture | torch.onnx | nodes |" in short
    assert "| small | 1.25 | 5.00 | 120 |" in short
    assert "| swin | 0.500 | fails | 1437 |" in short
    assert "on a machine." in short


@pytest.mark.parametrize(
    ("value", "text"), [(0.0001234, "0.000123"), (12.0, "12.0"), (123.4, "123"), (98765.4, "98765"), ("a", "a")]
)
def test_figures_have_three_digits(value: float | str, text: str) -> None:
    assert bench_report.cell(value) == text


def test_every_figure_in_the_folder_is_reported_that_of_the_readme_first(folder: Path) -> None:
    write(folder, "core_ops", title="Operators", plot=None)
    write(folder, "zoo", title="Zoo")

    short, whole = bench_report.report(folder, "a machine")

    assert short is not None
    assert [line for line in whole.splitlines() if line.startswith("## ")] == ["## Export", "## Operators", "## Zoo"]
    assert sorted(path.name for path in folder.glob("*.svg")) == ["exporters.svg", "zoo.svg"]
    assert "Operators" not in short


def test_the_bars_are_as_long_as_the_figures(folder: Path) -> None:
    bench_report.report(folder, "a machine")

    tree = ET.fromstring((folder / "exporters.svg").read_text())
    widths = [float(bar.get("width", 0)) for bar in tree.iter(f"{SVG}rect")]
    assert widths == [100.0, 400.0, 40.0, 0.0]
    assert "fails" in [text.text for text in tree.iter(f"{SVG}text")]


def test_a_logarithmic_axis_keeps_the_order_and_shows_the_least(folder: Path) -> None:
    rows = [{"model": str(value), "ours": float(value), "theirs": 1000.0, "nodes": 1} for value in (1, 10, 100)]
    write(folder, "zoo", rows=rows, plot=PLOT | {"log": True})

    bench_report.report(folder, "a machine")

    bars = list(ET.fromstring((folder / "zoo.svg").read_text()).iter(f"{SVG}rect"))
    widths = [float(bar.get("width", 0)) for bar in bars]
    assert widths[1] == widths[3] == widths[5] == 400
    steps = [high - low for low, high in zip(widths[:6:2], [*widths[2:6:2], 400], strict=True)]
    assert widths[0] > 0
    assert steps == pytest.approx([steps[0]] * 3, abs=0.11)


def test_lines_leave_out_what_failed(folder: Path) -> None:
    rows = [
        {"model": depth, "ours": depth / 4, "theirs": None if depth > 8 else 1.0, "nodes": 1} for depth in (4, 8, 16)
    ]
    write(folder, "growth", rows=rows, plot=PLOT | {"kind": "lines"})

    bench_report.report(folder, "a machine")

    lines = list(ET.fromstring((folder / "growth.svg").read_text()).iter(f"{SVG}polyline"))
    assert [len(line.get("points", "").split()) for line in lines] == [3, 2]
    assert lines[0].get("points") == "170.0,255.0 270.0,190.0 470.0,60.0"


def test_names_cannot_break_the_plot(folder: Path) -> None:
    write(folder, "odd", rows=[{"model": "<a & b>", "ours": 1.0, "theirs": 2.0, "nodes": 1}])

    bench_report.report(folder, "a machine")

    assert "<a & b>" in [text.text for text in ET.fromstring((folder / "odd.svg").read_text()).iter(f"{SVG}text")]


def test_a_folder_without_figures_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ToolError, match="run the benchmarks first"):
        bench_report.report(tmp_path, "a machine")


def test_a_file_of_another_form_is_refused_by_name(folder: Path) -> None:
    (folder / "old.json").write_text("[1, 2]")

    with pytest.raises(ToolError, match=r"old\.json is not a figure"):
        bench_report.report(folder, "a machine")


def test_publishing_replaces_what_is_between_the_marks_and_nothing_else(folder: Path) -> None:
    root = folder / "repository"
    (root / "docs/_static/benchmarks").mkdir(parents=True)
    (root / "docs/_static/benchmarks/gone.svg").write_text("<svg/>")
    (root / "docs/reference").mkdir()
    page = f"before\n{bench_report.START}\nold figures\n{bench_report.END}\nafter\n"
    (root / "README.md").write_text(page)
    short, whole = bench_report.report(folder, "a machine")

    for _ in range(2):
        bench_report.publish(root, folder, short, whole, "a machine")

    text = (root / "README.md").read_text()
    assert text.startswith(f"before\n{bench_report.START}\n| model |")
    assert text.endswith(f"a machine.\n{bench_report.END}\nafter\n")
    assert "(../_static/benchmarks/exporters.svg)" in (root / "docs/reference/benchmarks.md").read_text()
    assert [path.name for path in (root / "docs/_static/benchmarks").iterdir()] == ["exporters.svg"]


def test_figures_that_are_not_measured_stay_with_what_they_were_measured_on(folder: Path, tmp_path: Path) -> None:
    root, later = folder / "repository", folder / "later"
    (root / "docs/reference").mkdir(parents=True)
    (root / "README.md").write_text(f"{bench_report.START}\n{bench_report.END}\n")
    later.mkdir()
    write(folder, "zoo", title="Zoo")
    write(later, "zoo", title="Zoo", caption="Now.")
    for figures, machine in ((folder, "one; 1"), (later, "another; 2"), (later, "a third; 3")):
        short, whole = bench_report.report(figures, machine)
        bench_report.publish(root, figures, short, whole, machine)

    page = (root / "docs/reference/benchmarks.md").read_text()

    assert page.count("## Export") == page.count("## Zoo") == page.count("Now.") == 1
    assert page.count("Measured earlier, on one; 1.") == 1
    assert "another; 2" not in page
    assert page.index("Measured earlier") < page.index("## Zoo")
    assert (root / "README.md").read_text().endswith(f"on one; 1.\n{bench_report.END}\n")
    assert sorted(path.name for path in (root / "docs/_static/benchmarks").iterdir()) == ["exporters.svg", "zoo.svg"]


@pytest.mark.parametrize("text", ["", bench_report.START, bench_report.END + bench_report.START])
def test_a_page_without_a_pair_of_marks_is_refused(text: str) -> None:
    with pytest.raises(ToolError, match="expected one"):
        bench_report.between_marks(text, "figures")


def test_what_a_benchmark_writes_is_what_the_report_reads(folder: Path, figures: ModuleType) -> None:
    asked = figures.Plot("bars", "model", {"ours": "ours"}, "ratio")
    rows = [{"model": "tiny", "ours": 1.5}, {"model": "other", "ours": None}]
    figures.Figure("A title", "A caption.", {"model": "model", "ours": "x"}, rows, asked).finish(folder / "made.json")

    _, whole = bench_report.report(folder, "a machine")

    assert "## A title\n\nA caption.\n\n![ratio](made.svg)\n\n| model | x |" in whole
    assert "| tiny | 1.50 |\n| other | fails |" in whole


def test_sides_take_turns_and_one_that_raises_has_no_time(figures: ModuleType) -> None:
    calls: list[str] = []
    clock = iter(range(100))

    def fail() -> None:
        calls.append("fails")
        raise ValueError

    actions = [lambda: calls.append("a"), fail, lambda: calls.append("b")]
    times = figures.take_turns(actions, 2, warm_up=1, clock=lambda: next(clock))

    assert calls == ["a", "fails", "b", "a", "b", "a", "b"]
    assert times == [1, None, 1]
