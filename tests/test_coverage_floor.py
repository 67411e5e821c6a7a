"""Coverage is compared with what was reached before."""

from __future__ import annotations

import json
import tomllib
from pathlib import Path

import pytest

from tools import coverage_floor
from tools.workspace import Workspace

ROOT = Path(__file__).parents[1]


@pytest.fixture
def reports(tmp_path: Path) -> Path:
    folder = tmp_path / "reports"
    folder.mkdir()
    for name, percent in (("first", 91.27), ("second", 80.0)):
        (folder / f"{name}.json").write_text(json.dumps({"totals": {"percent_covered": percent}}))
    return folder


def floors(root: Path, text: str) -> None:
    (root / coverage_floor.FLOORS).write_text(text)


def test_every_package_of_this_repository_has_a_floor() -> None:
    written = tomllib.loads((ROOT / coverage_floor.FLOORS).read_text())

    assert set(written) == set(Workspace(ROOT).distributions)


def test_coverage_at_its_floor_passes(reports: Path, tmp_path: Path) -> None:
    floors(tmp_path, "first = 91.2\nsecond = 80.2\n")

    assert coverage_floor.main([str(reports)], root=tmp_path) == 0


def test_coverage_below_its_floor_fails_and_names_the_package(
    reports: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    floors(tmp_path, "first = 91.2\nsecond = 85.0\n")

    assert coverage_floor.main([str(reports)], root=tmp_path) == 1
    assert "second fell from 85.0 % to 80.0 %" in capsys.readouterr().out


def test_a_package_without_a_floor_fails(reports: Path, tmp_path: Path) -> None:
    floors(tmp_path, "first = 90.0\n")

    assert coverage_floor.main([str(reports)], root=tmp_path) == 1


def test_a_package_that_was_not_measured_fails(
    reports: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    floors(tmp_path, "first = 90.0\nsecond = 80.0\nthird = 70.0\n")

    assert coverage_floor.main([str(reports)], root=tmp_path) == 1
    assert "third was not measured" in capsys.readouterr().out


def test_an_empty_folder_of_reports_fails(tmp_path: Path) -> None:
    floors(tmp_path, "")
    (tmp_path / "none").mkdir()

    assert coverage_floor.main([str(tmp_path / "none")], root=tmp_path) == 1


def test_raising_moves_floors_up_and_never_down(reports: Path, tmp_path: Path) -> None:
    floors(tmp_path, "first = 50.0\nsecond = 88.0\nthird = 10.0\n")

    coverage_floor.main([str(reports), "--raise"], root=tmp_path)

    written = (tmp_path / coverage_floor.FLOORS).read_text()
    assert written == "first = 91.2\nsecond = 88.0\nthird = 10.0\n"
