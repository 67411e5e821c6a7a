"""The dependency graph that releases and the CI matrix go by."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tools.commands import ToolError
from tools.workspace import Distribution, Workspace

ROOT = Path(__file__).parents[1]


def names(distributions: list[Distribution]) -> list[str]:
    return [distribution.name for distribution in distributions]


def test_the_arrows_of_the_real_packages_run_one_way() -> None:
    workspace = Workspace(ROOT)

    assert names(workspace.dependents(workspace["onnxops-core"])) == [
        "onnx-fx-export",
        "onnx-ts-legacy",
        "onnxops-decomp",
    ]
    assert names(workspace.dependencies(workspace["onnxops-decomp"])) == ["onnxops-core"]
    assert workspace.dependencies(workspace["onnx-verify"]) == []


def test_a_requirement_of_an_extra_counts_as_a_dependency(sample: Workspace) -> None:
    assert names(sample.dependencies(sample["sample-beta"])) == ["sample-alpha", "sample-gamma"]
    assert names(sample.dependents(sample["sample-gamma"])) == ["sample-beta"]


def test_an_unknown_distribution_is_refused_with_the_names_there_are(sample: Workspace) -> None:
    with pytest.raises(ToolError, match="sample-alpha, sample-beta, sample-gamma"):
        sample["sample-delta"]


def test_every_package_admits_the_versions_of_the_others_in_the_tree() -> None:
    workspace = Workspace(ROOT)

    for package in workspace:
        for other in workspace:
            for requirement in package.requirements_on(other):
                assert requirement.specifier.contains(other.version, prereleases=True), requirement


def test_what_every_test_loads_needs_nothing_that_the_packages_need() -> None:
    # The session of the repository's own tests installs no package.
    folders = [str(ROOT), str(ROOT / "packages/onnxops-decomp/tests")]
    blocked = "import sys; sys.modules.update(dict.fromkeys(['numpy', 'onnx', 'onnx_ir', 'onnxruntime', 'torch']))"
    load = (
        f"{blocked}; sys.path[:0] = {folders}; import conftest; [__import__(each) for each in conftest.pytest_plugins]"
    )

    subprocess.run([sys.executable, "-c", load], check=True)
