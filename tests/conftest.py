"""A small repository of the same layout as this one, cheap enough to release again and again."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from tools.commands import run
from tools.workspace import Workspace

ROOT = Path(__file__).parents[1]

PYPROJECT = """
[build-system]
requires = ["hatchling>=1.27"]
build-backend = "hatchling.build"

[project]
name = "{name}"
dynamic = ["version"]
description = "A sample"
readme = "README.md"
license = "Apache-2.0"
requires-python = ">=3.11"
dependencies = [{dependencies}]

[project.optional-dependencies]
{extras}

[tool.hatch.version]
path = "src/{module}/_version.py"

[tool.hatch.build.targets.wheel]
packages = ["src/{module}"]
"""

SMOKE = """
import sys
from importlib.metadata import version

import {module}

assert {module}.__version__ == version("{name}")
assert sys.argv[1:] in ([], ["checked"])
"""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Begin with the longest test, so that the others run beside it."""
    items.sort(key=lambda item: item.path.name != "test_release_of_this_repository.py")


def write_distribution(
    root: Path, name: str, *, version: str = "0.1.0", dependencies: str = "", extras: str = ""
) -> Path:
    module = name.replace("-", "_")
    path = root / "packages" / name
    source = path / "src" / module
    source.mkdir(parents=True)
    (path / "tests").mkdir()
    (path / "changelog.d").mkdir()
    (path / "pyproject.toml").write_text(
        PYPROJECT.format(name=name, module=module, dependencies=dependencies, extras=extras)
    )
    (path / "README.md").write_text(f"# {name}\n")
    (path / "CHANGELOG.md").write_text(f"# {name}\n\n<!-- towncrier release notes start -->\n")
    (source / "_version.py").write_text(f'__version__ = "{version}"\n')
    (source / "__init__.py").write_text(f"from {module}._version import __version__\n")
    (path / "tests" / "smoke.py").write_text(SMOKE.format(name=name, module=module))
    (path / "changelog.d" / ".gitkeep").touch()
    (path / "changelog.d" / "first-feature.added.md").write_text("The first feature.\n")
    return path


@pytest.fixture
def identity(monkeypatch: pytest.MonkeyPatch) -> None:
    """Lets git commit and tag on a machine where no one has introduced themselves."""
    for role in ("AUTHOR", "COMMITTER"):
        monkeypatch.setenv(f"GIT_{role}_NAME", "Releaser")
        monkeypatch.setenv(f"GIT_{role}_EMAIL", "releaser@example.invalid")


@pytest.fixture
def sample(tmp_path: Path, identity: None) -> Workspace:
    """A committed repository: `sample-beta` needs `sample-alpha`, and `sample-gamma` too where checked."""
    root = tmp_path / "repository"
    (root / "tools" / "release").mkdir(parents=True)
    shutil.copy(ROOT / "pyproject.toml", root)
    shutil.copy(ROOT / ".gitignore", root)
    shutil.copy(ROOT / "tools/release/changelog.md.jinja", root / "tools/release")
    write_distribution(root, "sample-alpha")
    write_distribution(
        root,
        "sample-beta",
        dependencies='"sample-alpha~=0.1.0"',
        extras='checked = ["sample-gamma~=0.1.0"]',
    )
    write_distribution(root, "sample-gamma")
    run(["git", "init", "--quiet"], cwd=root)
    run(["git", "add", "--all"], cwd=root)
    run(["git", "commit", "--quiet", "--message", "Start"], cwd=root)
    return Workspace(root)
