"""Which packages a change can break: themselves, and all that depend on them.

`python -m tools.ci_matrix BASE` prints the matrix of the test job for the commits since BASE as JSON.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable
from pathlib import Path, PurePosixPath

from tools.commands import run
from tools.workspace import Workspace

# A file here can change the outcome of any package's tests.
SHARED = {"noxfile.py", "pyproject.toml", "conftest.py", ".github/workflows/ci.yml"}
# Read by people, or tested elsewhere.
UNTESTED_FOLDERS = {"changelog.d"}
UNTESTED_SUFFIXES = {".md"}
NO_COMMIT = "0" * 40


def affected(workspace: Workspace, changed: Iterable[str]) -> list[str]:
    """The names of the packages whose tests can turn out differently, in alphabetical order.

    Args:
        workspace: The repository after the change.
        changed: Paths relative to its root, removed files included.
    """
    found: set[str] = set()
    for path in changed:
        if path in SHARED:
            return list(workspace.distributions)
        parts = PurePosixPath(path).parts
        if len(parts) < 3 or parts[0] != "packages" or parts[1] not in workspace.distributions:
            continue
        if parts[2] in UNTESTED_FOLDERS or PurePosixPath(path).suffix in UNTESTED_SUFFIXES:
            continue
        package = workspace[parts[1]]
        # What tests share, such as a harness, may be shared with the tests of dependents too.
        tests_alone = parts[2] == "tests" and parts[-1].startswith(("test_", "smoke"))
        found.add(package.name)
        found.update(other.name for other in workspace.dependents(package) if not tests_alone)
    return sorted(found)


def changed_since(root: Path, base: str) -> list[str] | None:
    """The paths that differ from `base`; None when there is no such commit, as for a first push."""
    if base in ("", NO_COMMIT):
        return None
    return run(["git", "diff", "--name-only", "--no-renames", f"{base}...HEAD"], cwd=root).splitlines()


def main(base: str, root: Path) -> None:
    workspace = Workspace(root)
    changed = changed_since(root, base)
    names = list(workspace.distributions) if changed is None else affected(workspace, changed)
    print(json.dumps(names))


if __name__ == "__main__":
    main(sys.argv[1], Path.cwd())
