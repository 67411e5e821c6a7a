"""Bumping a version and moving the ranges of those who depend on it."""

from __future__ import annotations

import tomllib

import pytest
from packaging.version import Version

from tools.commands import ToolError
from tools.release import versions
from tools.workspace import Workspace


@pytest.mark.parametrize(
    ("part", "expected"),
    [("patch", "0.1.1"), ("minor", "0.2.0"), ("major", "1.0.0"), ("0.3.0", "0.3.0"), ("current", "0.1.0")],
)
def test_a_bump_writes_the_next_version_into_the_source(sample: Workspace, part: str, expected: str) -> None:
    alpha = sample["sample-alpha"]

    returned = versions.bump(alpha, part)

    assert returned == alpha.version == Version(expected)


def test_a_version_that_is_not_higher_is_refused(sample: Workspace) -> None:
    with pytest.raises(ToolError, match="not higher"):
        versions.bump(sample["sample-alpha"], "0.0.9")


def test_a_compatible_version_is_admitted(sample: Workspace) -> None:
    versions.require_admitted(sample, sample["sample-alpha"], Version("0.1.7"))


def test_an_incompatible_version_names_the_dependent_that_must_move(sample: Workspace) -> None:
    with pytest.raises(ToolError, match=r"sample-beta requires sample-alpha~=0\.1\.0"):
        versions.require_admitted(sample, sample["sample-alpha"], Version("0.2.0"))


def test_a_range_inside_an_extra_keeps_a_version_out_too(sample: Workspace) -> None:
    [refusal] = versions.refusals(sample, sample["sample-gamma"], Version("1.0.0"))

    assert refusal.dependent.name == "sample-beta"


def test_a_moved_dependent_requires_the_new_version_and_says_so(sample: Workspace) -> None:
    alpha, beta = sample["sample-alpha"], sample["sample-beta"]
    [refusal] = versions.refusals(sample, alpha, Version("0.2.0"))

    versions.move(refusal, Version("0.2.0"))

    project = tomllib.loads(beta.pyproject.read_text())["project"]
    assert project["dependencies"] == ["sample-alpha~=0.2.0"]
    assert project["optional-dependencies"]["checked"] == ["sample-gamma~=0.1.0"]
    assert versions.refusals(sample, alpha, Version("0.2.0")) == []
    assert any("sample-alpha 0.2.0" in fragment.read_text() for fragment in beta.fragments)


def test_a_moved_requirement_keeps_its_extras(sample: Workspace) -> None:
    alpha, beta = sample["sample-alpha"], sample["sample-beta"]
    text = beta.pyproject.read_text()
    beta.pyproject.write_text(text.replace('"sample-alpha~=0.1.0"', '"sample-alpha[a, b] ~= 0.1.0"'))
    [refusal] = versions.refusals(sample, alpha, Version("0.2.0"))

    versions.move(refusal, Version("0.2.0"))

    assert '"sample-alpha[a,b]~=0.2.0"' in beta.pyproject.read_text()
