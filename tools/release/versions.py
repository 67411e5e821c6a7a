"""Version numbers, and whether the ranges of the dependents admit them."""

from __future__ import annotations

import sys
from dataclasses import dataclass

from packaging.requirements import Requirement
from packaging.version import Version

from tools.commands import ToolError, run
from tools.workspace import Distribution, Workspace

CURRENT = "current"


def bump(distribution: Distribution, part: str) -> Version:
    """Write the next version into the source tree and return it.

    Args:
        distribution: What is to be released.
        part: What `hatch version` takes (`major`, `minor`, `patch`, `rc`, `1.2.0`, ...), or `current` to keep
            the version that stands in the tree, as a first release does.

    Raises:
        ToolError: The build backend refuses the version, for example because it is not higher.
    """
    if part != CURRENT:
        try:
            run([sys.executable, "-m", "hatchling", "version", part], cwd=distribution.path)
        except ToolError as error:
            reason = str(error).strip().splitlines()[-1]  # the lines before it are the backend's own stack
            raise ToolError(f"{distribution.version} cannot become {part}: {reason}") from None
    return distribution.version


@dataclass(frozen=True)
class Refusal:
    """A declared range that does not admit the version to be released."""

    dependent: Distribution
    requirement: Requirement

    def __str__(self) -> str:
        return f"{self.dependent.name} requires {self.requirement}"


def refusals(workspace: Workspace, distribution: Distribution, version: Version) -> list[Refusal]:
    """Return the ranges in the workspace that keep `version` of `distribution` out."""
    return [
        Refusal(dependent, requirement)
        for dependent in workspace
        for requirement in dependent.requirements_on(distribution)
        if not requirement.specifier.contains(version, prereleases=True)
    ]


def require_admitted(workspace: Workspace, distribution: Distribution, version: Version) -> None:
    """Raise ToolError, naming each dependent that must move, unless every range admits `version`."""
    found = refusals(workspace, distribution, version)
    if found:
        lines = "\n".join(f"  {refusal}" for refusal in found)
        raise ToolError(
            f"{distribution.name} {version} is outside of what its dependents accept:\n{lines}\n"
            "Widen these ranges first, or let --move-dependents do it, and release the dependents afterwards."
        )


def move(refusal: Refusal, version: Version) -> None:
    """Make the dependent require `version` or a compatible later one, and say so in its changelog."""
    old = refusal.requirement
    extras = f"[{','.join(sorted(old.extras))}]" if old.extras else ""
    text = refusal.dependent.pyproject.read_text(encoding="utf-8")
    written = [part for part in text.split('"') if is_same_requirement(part, old)]
    for part in written:
        text = text.replace(f'"{part}"', f'"{old.name}{extras}~={version}"')
    refusal.dependent.pyproject.write_text(text, encoding="utf-8")
    fragment = refusal.dependent.path / "changelog.d" / f"requires-{old.name}-{version}.changed.md"
    fragment.parent.mkdir(exist_ok=True)
    fragment.write_text(f"Requires {old.name} {version} or a compatible later version.\n", encoding="utf-8")


def is_same_requirement(text: str, requirement: Requirement) -> bool:
    return text.startswith(requirement.name) and str(requirement) == text.replace(" ", "")
