"""The lowest versions that the packages promise to work with."""

from __future__ import annotations

from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.version import Version

from tools.commands import ToolError
from tools.minimums import lowest, minimums
from tools.workspace import Workspace


@pytest.mark.parametrize(
    ("requirement", "expected"),
    [("torch>=2.13", "2.13"), ("onnx>=1.22,<2", "1.22"), ("x~=0.1.0", "0.1.0"), ("x[a]>=1,>=1.5", "1.5")],
)
def test_the_lower_bound_is_the_lowest_version(requirement: str, expected: str) -> None:
    assert lowest(Requirement(requirement)) == Version(expected)


def test_a_requirement_without_a_lower_bound_is_refused() -> None:
    with pytest.raises(ToolError, match="no lower bound"):
        lowest(Requirement("numpy<3"))


def test_the_packages_of_this_repository_support_torch_2_13_and_leave_their_siblings_out() -> None:
    found = minimums(Workspace(Path(__file__).parents[1]))

    assert found["torch"] == Version("2.13")
    assert not any(name.startswith("onnxops") for name in found)
