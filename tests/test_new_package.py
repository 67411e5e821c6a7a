"""A package from the template is complete from the start."""

from __future__ import annotations

import shutil
import sys
import tomllib
from pathlib import Path

import pytest
from packaging.version import Version

from tools import new_package
from tools.commands import run
from tools.release import artifacts
from tools.workspace import Workspace

ROOT = Path(__file__).parents[1]
LISTS = {
    ".github/CODEOWNERS": "/packages/onnx-something/",
    "README.md": "| [`onnx-something`](packages/onnx-something) | Does something |",
    "coverage-floor.toml": "onnx-something = 0.0",
    "docs/index.md": "packages/onnx-something",
}


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    root = tmp_path / "repository"
    (root / "packages").mkdir(parents=True)
    shutil.copy(ROOT / "pyproject.toml", root)
    shutil.copy(ROOT / "LICENSE", root)
    for file in LISTS:
        (root / file).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(ROOT / file, root / file)
    return root


def test_a_new_package_builds_passes_its_tests_and_could_be_released(repository: Path, tmp_path: Path) -> None:
    status = new_package.main(["onnx-something", "Does something."], root=repository)

    assert status == 0
    package = Workspace(repository)["onnx-something"]
    assert package.version == Version("0.1.0")
    assert package.fragments
    files = artifacts.build(package, tmp_path / "dist", epoch=1_700_000_000)
    artifacts.check(package, files)
    python = tmp_path / "env/bin/python"
    run([sys.executable, "-m", "venv", "--without-pip", tmp_path / "env"], cwd=tmp_path)
    wheel = next(file for file in files if file.suffix == ".whl")
    run([sys.executable, "-m", "pip", "--python", python, "install", "--quiet", wheel, "pytest"], cwd=tmp_path)
    assert "works" in run([python, "-I", package.path / "tests/smoke.py"], cwd=tmp_path)
    assert "1 passed" in run([python, "-m", "pytest", package.path / "tests"], cwd=repository)


def test_a_new_package_is_known_to_the_type_checker_and_the_import_contracts(repository: Path) -> None:
    before = tomllib.loads((repository / "pyproject.toml").read_text())["tool"]

    new_package.create(repository, "onnx-something", "Does something")

    after = tomllib.loads((repository / "pyproject.toml").read_text())["tool"]
    assert after["mypy"]["mypy_path"] == [*before["mypy"]["mypy_path"], "packages/onnx-something/src"]
    known = before["importlinter"]["root_packages"]
    assert after["importlinter"].pop("root_packages") == [*known, "onnx_something"]
    before["importlinter"].pop("root_packages")
    assert after["importlinter"] == before["importlinter"]
    assert after["ruff"] == before["ruff"]


def test_a_new_package_is_listed_and_has_its_pages(repository: Path) -> None:
    new_package.create(repository, "onnx-something", "Does something.")

    for file, line in LISTS.items():
        before, after = (path.read_text().splitlines() for path in (ROOT / file, repository / file))
        assert line in after
        assert [each for each in after if each != line] == before
    for folder in ("packages", "reference"):
        sibling = (ROOT / f"docs/{folder}/onnx-verify.md").read_text()
        expected = sibling.replace("onnx-verify", "onnx-something").replace("onnx_verify", "onnx_something")
        assert (repository / f"docs/{folder}/onnx-something.md").read_text() == expected


@pytest.mark.parametrize("name", ["something", "onnx_something", "Onnx-Something", "onnx-", "../onnx-x"])
def test_a_name_that_does_not_fit_is_refused(repository: Path, name: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert new_package.main([name, "Does something"], root=repository) == 1
    assert "should look like onnx-something" in capsys.readouterr().err


def test_an_existing_package_is_left_alone(repository: Path) -> None:
    new_package.create(repository, "onnx-something", "Does something")

    assert new_package.main(["onnx-something", "Does something else"], root=repository) == 1

    assert "Does something." in (repository / "packages/onnx-something/README.md").read_text()
