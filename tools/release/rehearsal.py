"""Installing a release the way its users will, before it exists for them."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from packaging.version import Version

from tools.commands import run
from tools.release import artifacts, git, index
from tools.workspace import Distribution, Workspace


@dataclass(frozen=True)
class Candidate:
    """A distribution as it takes part in a rehearsal: where its source is and which version that is."""

    distribution: Distribution
    version: Version

    @classmethod
    def of(cls, distribution: Distribution) -> Candidate:
        return cls(distribution, distribution.version)

    def pin(self, extras: Iterable[str] = ()) -> str:
        wanted = ",".join(extras)
        return f"{self.distribution.name}{f'[{wanted}]' if wanted else ''}=={self.version}"


def rehearse(
    workspace: Workspace, released: Distribution, files: list[Path], constraints: Sequence[str], scratch: Path
) -> list[str]:
    """Install `released` alone, then with all that depends on it, from a local index; run the smoke tests.

    Args:
        workspace: The source tree with the new version in it.
        released: The distribution to be released.
        files: Its built sdist and wheel.
        constraints: What pip must keep to besides the declared ranges, such as one torch release.
        scratch: An empty directory for the index, the checkouts and the environment.

    Returns:
        The distributions of this repository that were installed, as `name==version`.

    Raises:
        ToolError: Something does not resolve, does not install, or fails its smoke test.
    """
    candidate = Candidate.of(released)
    dependents = [as_published(workspace, candidate, other, scratch) for other in workspace.dependents(released)]
    needed = {need.name: need for user in [released, *workspace.dependents(released)]
              for need in workspace.dependencies(user)}  # fmt: skip
    taking_part = {each.distribution.name: each for each in dependents}
    for name in needed.keys() - taking_part.keys() - {released.name}:
        taking_part[name] = as_published(workspace, candidate, needed[name], scratch)

    local = scratch / "index"
    index.add(local, released.name, files)
    for other in taking_part.values():
        index.add(local, other.distribution.name, artifacts.build_wheel(other.distribution, scratch / "dist"))

    pins = [each.pin() for each in [candidate, *taking_part.values()]]
    environment = Environment.create(scratch / "env", local, [*constraints, *pins])
    environment.install(candidate.pin())
    environment.smoke(released)
    for other in dependents:
        extras = other.distribution.extras
        environment.install(other.pin(extras))
        environment.smoke(other.distribution, *extras)
    return sorted(pins)


def as_published(workspace: Workspace, released: Candidate, other: Distribution, scratch: Path) -> Candidate:
    """`other` as users have it: its newest tag, or the source tree when no tag fits the release."""
    versions = git.released_versions(workspace.root, other)
    if not versions:
        return Candidate.of(other)
    checkout = scratch / "checkouts" / git.tag_of(other, versions[-1])
    old = Workspace(git.clone_at(workspace.root, git.tag_of(other, versions[-1]), checkout))[other.name]
    ranges = [need.specifier for need in old.requirements_on(released.distribution)]
    admitted = all(each.contains(released.version, prereleases=True) for each in ranges)
    return Candidate.of(old if admitted else other)


@dataclass(frozen=True)
class Environment:
    """A clean virtual environment that installs from the local index first."""

    directory: Path
    local: Path

    @classmethod
    def create(cls, directory: Path, local: Path, constraints: Iterable[str]) -> Environment:
        run([sys.executable, "-m", "venv", "--without-pip", directory], cwd=local)
        (directory / "constraints.txt").write_text("\n".join(constraints) + "\n", encoding="utf-8")
        return cls(directory, local)

    @property
    def python(self) -> Path:
        return self.directory / ("Scripts/python.exe" if sys.platform == "win32" else "bin/python")

    def install(self, requirement: str) -> None:
        options = ["--extra-index-url", self.local.as_uri()]
        options += ["--constraint", str(self.directory / "constraints.txt")]
        pip: list[str | Path] = [sys.executable, "-m", "pip", "--python", self.python]
        run([*pip, "install", "--quiet", "--no-compile", *options, requirement], cwd=self.directory)
        run([*pip, "check"], cwd=self.directory)

    def smoke(self, distribution: Distribution, *extras: str) -> None:
        """Run the distribution's smoke test, plain and with each extra."""
        command: list[str | Path] = [self.python, "-I", distribution.path / "tests/smoke.py"]
        run(command, cwd=self.directory)
        for extra in extras:
            run([*command, extra], cwd=self.directory)
