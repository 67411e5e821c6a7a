"""The lowest versions that the packages say they work with, as pip constraints.

`python -m tools.minimums` prints them; the `minimums` session of nox installs and tests exactly these.
"""

from __future__ import annotations

from pathlib import Path

from packaging.requirements import Requirement
from packaging.version import Version

from tools.commands import ToolError
from tools.workspace import Workspace


def lowest(requirement: Requirement) -> Version:
    """Return the lowest version a requirement admits.

    Raises:
        ToolError: It has no lower bound, so there is nothing to test.
    """
    bounds = [Version(each.version) for each in requirement.specifier if each.operator in (">=", "~=", "==")]
    if not bounds:
        raise ToolError(f"{requirement} has no lower bound")
    return max(bounds)


def minimums(workspace: Workspace) -> dict[str, Version]:
    """Return the version of each foreign dependency at which every package's declared bound is just met.

    An extra that asks for more than its package does is no reason to test the package with more.
    """
    needed = _lowest_of(workspace, [need for package in workspace for need in package.always_needed])
    extras = _lowest_of(workspace, [need for package in workspace for need in package.requirements])
    return dict(sorted({**extras, **needed}.items()))


def _lowest_of(workspace: Workspace, requirements: list[Requirement]) -> dict[str, Version]:
    found: dict[str, Version] = {}
    for requirement in requirements:
        if requirement.name not in workspace.distributions:
            bound = lowest(requirement)
            found[requirement.name] = max(bound, found.get(requirement.name, bound))
    return found


def main(root: Path) -> None:
    for name, version in minimums(Workspace(root)).items():
        print(f"{name}=={version}")


if __name__ == "__main__":
    main(Path.cwd())
