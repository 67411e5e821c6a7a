"""The changelog of a distribution, put together from its fragments."""

from __future__ import annotations

import sys

from packaging.version import Version

from tools.commands import ToolError, run
from tools.workspace import Distribution, Workspace


def build(workspace: Workspace, distribution: Distribution, version: Version, date: str) -> None:
    """Move the fragments of `distribution` into its CHANGELOG.md, under `version` and `date` (YYYY-MM-DD).

    Raises:
        ToolError: No fragment says what changed.
    """
    if not distribution.fragments:
        raise ToolError(
            f"nothing in {distribution.path.name}/changelog.d says what {version} changes; "
            "add a fragment such as changelog.d/new-option.added.md"
        )
    command = [sys.executable, "-m", "towncrier", "build", "--yes"]
    command += ["--config", str(workspace.root / "pyproject.toml"), "--dir", str(distribution.path)]
    command += ["--name", distribution.name, "--version", str(version), "--date", date]
    run(command, cwd=workspace.root)
