"""A package of this repository, released in a clone and then used by projects that depend on it."""

from __future__ import annotations

import sys
from pathlib import Path

from tools.commands import run
from tools.release import git, index, pipeline
from tools.release.artifacts import build_wheel
from tools.workspace import Workspace

ROOT = Path(__file__).parents[1]
TORCH = "torch==2.13.0"


def clone_with_a_change(target: Path) -> Workspace:
    """A clone of the last commit in which onnxops-core has something to release."""
    git.clone_at(ROOT, "HEAD", target)
    fragment = target / "packages/onnxops-core/changelog.d/rehearsed-feature.added.md"
    fragment.write_text("Added a feature to rehearse with.\n")
    git.commit_all(target, [fragment], "Add a feature", epoch=1_700_000_000)
    return Workspace(target)


def test_a_minor_release_of_onnxops_core_serves_projects_downstream(identity: None, tmp_path: Path) -> None:
    workspace = clone_with_a_change(tmp_path / "clone")
    core = workspace["onnxops-core"]
    before = core.version
    address = (tmp_path / "index").as_uri()

    done = pipeline.release(
        workspace.root,
        "onnxops-core",
        "minor",
        target=tmp_path / "dist",
        constraints=[TORCH],
        move_dependents=True,
    )
    pipeline.publish(workspace.root, "onnxops-core", address)

    assert (done.version.major, done.version.minor) == (before.major, before.minor + 1)
    assert done.tag in git.git(workspace.root, "tag", "--points-at", "HEAD").split()
    assert git.git(workspace.root, "status", "--porcelain") == ""
    assert "- Added a feature to rehearse with." in (core.path / "CHANGELOG.md").read_text()
    assert {pin.partition("==")[0] for pin in done.rehearsed} == {each.name for each in workspace}
    for other in workspace:
        if other != core:
            index.add(tmp_path / "index", other.name, build_wheel(other, tmp_path / "others"))
    downstream(tmp_path / "env", address, f"onnxops-core~={done.version.major}.{done.version.minor}", "onnxops_core")
    downstream(tmp_path / "env", address, "onnx-fx-export[verify]", "onnx_fx_export, onnx_verify")


def downstream(environment: Path, address: str, requirement: str, modules: str) -> None:
    """Installs a project that declares nothing but `requirement`, and imports what it gets from it."""
    project = environment.with_name(f"downstream-{modules.partition(',')[0]}")
    project.mkdir()
    (project / "pyproject.toml").write_text(
        '[build-system]\nrequires = ["hatchling"]\nbuild-backend = "hatchling.build"\n'
        f'[project]\nname = "downstream"\nversion = "1"\ndependencies = ["{requirement}"]\n'
    )
    (project / "downstream.py").write_text(f"import {modules}\n")
    python = environment / ("Scripts/python.exe" if sys.platform == "win32" else "bin/python")
    if not python.exists():
        run([sys.executable, "-m", "venv", "--without-pip", environment], cwd=environment.parent)
    pip = [sys.executable, "-m", "pip", "--python", str(python)]
    run([*pip, "install", "--quiet", "--no-compile", "--extra-index-url", address, TORCH, str(project)], cwd=project)
    run([*pip, "check"], cwd=project)
    run([python, "-I", "-c", "import downstream"], cwd=environment)
