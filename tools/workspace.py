"""The distributions of the repository and how they depend on each other."""

from __future__ import annotations

import sys
import tomllib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from packaging.version import Version

from tools.commands import ToolError, run


@dataclass(frozen=True)
class Distribution:
    """One project under `packages/`."""

    name: str
    path: Path

    @property
    def import_name(self) -> str:
        return self.name.replace("-", "_")

    @property
    def pyproject(self) -> Path:
        return self.path / "pyproject.toml"

    @property
    def fragments(self) -> list[Path]:
        """The changelog entries that wait for the next release."""
        return sorted(self.path.glob("changelog.d/*.md"))

    @property
    def version(self) -> Version:
        """The version in the source tree, as the build backend reads it."""
        return Version(run([sys.executable, "-m", "hatchling", "version"], cwd=self.path).strip())

    @property
    def extras(self) -> list[str]:
        return sorted(self._project.get("optional-dependencies", {}))

    @property
    def always_needed(self) -> list[Requirement]:
        """What it declares without any extra."""
        return [Requirement(text) for text in self._project.get("dependencies", [])]

    @property
    def requirements(self) -> list[Requirement]:
        """What it declares, its extras included."""
        project = self._project
        declared = [*project.get("dependencies", [])]
        for extra in project.get("optional-dependencies", {}).values():
            declared += extra
        return [Requirement(text) for text in declared]

    def requirements_on(self, other: Distribution) -> list[Requirement]:
        return [need for need in self.requirements if canonicalize_name(need.name) == other.name]

    @property
    def _project(self) -> dict[str, Any]:
        project: dict[str, Any] = tomllib.loads(self.pyproject.read_text(encoding="utf-8"))["project"]
        return project


class Workspace:
    """All distributions of the repository at `root`, in the order of their names."""

    def __init__(self, root: Path) -> None:
        self.root = root

    @cached_property
    def distributions(self) -> dict[str, Distribution]:
        paths = sorted(file.parent for file in self.root.glob("packages/*/pyproject.toml"))
        return {path.name: Distribution(path.name, path) for path in paths}

    def __iter__(self) -> Iterator[Distribution]:
        return iter(self.distributions.values())

    def __getitem__(self, name: str) -> Distribution:
        """Return the distribution called `name`.

        Raises:
            ToolError: There is none of that name.
        """
        if name not in self.distributions:
            raise ToolError(f"there is no distribution {name!r}; there are {', '.join(self.distributions)}")
        return self.distributions[name]

    def dependencies(self, of: Distribution) -> list[Distribution]:
        """Return the distributions that `of` needs, directly or not, itself left out."""
        return self._reach(of, lambda here: [other for other in self if here.requirements_on(other)])

    def dependents(self, of: Distribution) -> list[Distribution]:
        """Return the distributions that need `of`, directly or not, itself left out."""
        return self._reach(of, lambda here: [other for other in self if other.requirements_on(here)])

    def _reach(self, start: Distribution, step: Callable[[Distribution], list[Distribution]]) -> list[Distribution]:
        found: dict[str, Distribution] = {}
        waiting = [start]
        while waiting:
            for other in step(waiting.pop()):
                if other.name not in found:
                    found[other.name] = other
                    waiting.append(other)
        found.pop(start.name, None)
        return [found[name] for name in sorted(found)]
