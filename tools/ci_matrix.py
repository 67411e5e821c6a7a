"""Which packages a change can break: themselves, and all that depend on them.

`python -m tools.ci_matrix BASE` prints the matrix of the test job for the commits since BASE as JSON.
"""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path, PurePosixPath

from tools.commands import ToolError, run
from tools.workspace import Workspace

# A file here can change the outcome of any package's tests.
SHARED = {"noxfile.py", "pyproject.toml", "conftest.py", ".github/workflows/ci.yml"}
# Read by people, or tested elsewhere.
UNTESTED_FOLDERS = {"changelog.d"}
UNTESTED_SUFFIXES = {".md"}
# How a test names a file or folder of the repository that it reads outside of its package.
OUTSIDE = re.compile(r'parents\[3\]((?: / "[^"]+")+)')


def affected(workspace: Workspace, changed: Iterable[str]) -> list[str]:
    """Return the names of the packages whose tests can turn out differently, in alphabetical order.

    Args:
        workspace: The repository after the change.
        changed: Paths relative to its root, removed files included.
    """
    found: set[str] = set()
    for path in changed:
        if path in SHARED:
            return list(workspace.distributions)
        parts = PurePosixPath(path).parts
        if parts[0] != "packages":
            found.update(name for name, read in read_outside(workspace) if PurePosixPath(path).is_relative_to(read))
            continue
        if len(parts) < 3 or parts[1] not in workspace.distributions:
            continue
        if parts[2] in UNTESTED_FOLDERS or PurePosixPath(path).suffix in UNTESTED_SUFFIXES:
            continue
        package = workspace[parts[1]]
        found.add(package.name)
        if parts[2] != "tests":
            found.update(other.name for other in workspace.dependents(package))
        elif not parts[-1].startswith(("test_", "smoke")):
            found.update(importing(workspace, PurePosixPath(path).stem))
    return sorted(found)


def sources_of_tests(workspace: Workspace) -> Iterator[tuple[str, Path, str]]:
    """Return the name of the package, the path and the text of every file of tests."""
    for package in workspace:
        for file in sorted(package.path.glob("tests/**/*.py")):
            yield package.name, file, file.read_text(encoding="utf-8")


def read_outside(workspace: Workspace) -> Iterator[tuple[str, str]]:
    """Return the packages whose tests read files outside of `packages`, each with the path that they read."""
    for name, _, text in sources_of_tests(workspace):
        for match in OUTSIDE.finditer(text):
            yield name, "/".join(re.findall('"([^"]+)"', match.group(1)))


def importing(workspace: Workspace, module: str) -> set[str]:
    """Return the packages whose tests import a helper that lies among the tests, directly or through other helpers."""
    sources = list(sources_of_tests(workspace))
    found: set[str] = set()
    seen, waiting = {module}, [module]
    while waiting:
        imported = re.compile(rf"^\s*(?:from|import) {re.escape(waiting.pop())}\b", re.MULTILINE)
        users = [(name, file.stem) for name, file, text in sources if imported.search(text)]
        found.update(name for name, _ in users)
        waiting += {stem for _, stem in users} - seen
        seen.update(stem for _, stem in users)
    return found


def changed_since(root: Path, base: str) -> list[str] | None:
    """Return the paths that differ from `base`; None when there is no such commit, as for a first or a forced push."""
    try:
        run(["git", "rev-parse", "--verify", "--quiet", f"{base}^{{commit}}"], cwd=root)
    except ToolError:
        return None
    return run(["git", "diff", "--name-only", "--no-renames", f"{base}...HEAD"], cwd=root).splitlines()


def main(base: str, root: Path) -> None:
    workspace = Workspace(root)
    changed = changed_since(root, base)
    names = list(workspace.distributions) if changed is None else affected(workspace, changed)
    print(json.dumps(names))


if __name__ == "__main__":
    main(sys.argv[1], Path.cwd())
