"""Figures reach the pages as they were measured."""

from __future__ import annotations

import json
from pathlib import Path
from xml.etree import ElementTree as ET

import pytest

from tools import bench_report
from tools.commands import ToolError

ROW = {
    "model": "small",
    "opset": 23,
    "capture_seconds": 2.0,
    "ours_over_capture": 1.25,
    "theirs_over_capture": 5.0,
    "ours_nodes": 120,
    "theirs_nodes": 150,
    "ours_latency_ms": 3.25,
    "theirs_latency_ms": 4.5,
}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "exporters.json").write_text(json.dumps([ROW]))
    return tmp_path


def test_a_row_shows_both_sides(folder: Path) -> None:
    short, _ = bench_report.report(folder, "a machine")

    assert "| small, opset 23 | 2.00 | 1.25 | 5.00 | 120 | 150 | 3.25 | 4.50 |" in short
    assert "on a machine." in short


def test_operators_are_reported_where_they_were_measured(folder: Path) -> None:
    measured = {"rotary": {"ours_us": 20.0, "theirs_us": 50.0, "target": 1.0}, "memory x": {"mebibytes": 1.0}}
    (folder / "core_ops.json").write_text(json.dumps({"results": measured}))

    _, whole = bench_report.report(folder, "a machine")

    assert "| rotary | 20.0 | 50.0 | 0.40 |" in whole
    assert "memory x" not in whole


def test_the_bars_are_as_long_as_the_figures(folder: Path) -> None:
    bench_report.report(folder, "a machine")

    tree = ET.fromstring((folder / "exporters.svg").read_text())
    widths = [float(bar.get("width", 0)) for bar in tree.iter("{http://www.w3.org/2000/svg}rect")]
    assert widths == [120.0, 480.0]


def test_a_folder_without_figures_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ToolError, match="run the benchmarks first"):
        bench_report.report(tmp_path, "a machine")


def test_publishing_replaces_what_is_between_the_marks_and_nothing_else(folder: Path) -> None:
    root = folder / "repository"
    (root / "docs/_static").mkdir(parents=True)
    (root / "docs/reference").mkdir()
    page = f"before\n{bench_report.START}\nold figures\n{bench_report.END}\nafter\n"
    (root / "README.md").write_text(page)
    short, whole = bench_report.report(folder, "a machine")

    bench_report.publish(root, folder, short, whole)
    bench_report.publish(root, folder, short, whole)

    text = (root / "README.md").read_text()
    assert text.startswith(f"before\n{bench_report.START}\n| model |")
    assert text.endswith(f"a machine.\n{bench_report.END}\nafter\n")
    assert "(../_static/exporters.svg)" in (root / "docs/reference/benchmarks.md").read_text()


@pytest.mark.parametrize("text", ["", bench_report.START, bench_report.END + bench_report.START])
def test_a_page_without_a_pair_of_marks_is_refused(text: str) -> None:
    with pytest.raises(ToolError, match="expected one"):
        bench_report.between_marks(text, "figures")


def test_an_export_that_fails_is_said_to_fail() -> None:
    row = {
        "model": "swin",
        "opset": 23,
        "capture_seconds": 2.0,
        "ours_over_capture": 1.1,
        "theirs_over_capture": None,
        "ours_nodes": 437,
        "theirs_nodes": None,
        "ours_latency_ms": 10.0,
        "theirs_latency_ms": None,
    }
    assert bench_report.exporters_table([row]).count("fails") == 3
    assert "fails" in bench_report.chart([row])
