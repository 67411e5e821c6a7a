"""A release from the clean tree to the tag, and a publication from the tag to an index."""

from __future__ import annotations

import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from packaging.version import Version

from tools.commands import ToolError
from tools.release import artifacts, changelog, git, rehearsal, upload, versions
from tools.workspace import Distribution, Workspace


@dataclass(frozen=True)
class Release:
    """What a release left behind."""

    version: Version
    tag: str
    files: list[Path]
    rehearsed: list[str]


def release(
    root: Path,
    name: str,
    part: str,
    *,
    target: Path,
    constraints: Sequence[str] = (),
    move_dependents: bool = False,
) -> Release:
    """Release one distribution: everything up to the commit and its tag; nothing is uploaded.

    Args:
        root: The repository.
        name: The distribution.
        part: What `hatch version` takes, or `current` for a first release.
        target: Where the built files go.
        constraints: What pip must keep to in the rehearsal, such as one torch release.
        move_dependents: Widen the range of each dependent that keeps the new version out, in the same commit.

    Raises:
        ToolError: A step failed. The tree is as it was before.
    """
    git.require_clean(root)
    workspace = Workspace(root)
    distribution = workspace[name]
    epoch = int(time.time())
    with git.restored_on_error(root):
        version = versions.bump(distribution, part)
        tag = git.tag_of(distribution, version)
        if version in git.released_versions(root, distribution):
            raise ToolError(f"{tag} exists already")
        changelog.build(workspace, distribution, version, day(epoch))
        if move_dependents:
            for refusal in versions.refusals(workspace, distribution, version):
                versions.move(refusal, version)
        versions.require_admitted(workspace, distribution, version)
        files = artifacts.build_reproducibly(distribution, target, epoch)
        artifacts.check(distribution, files)
        with tempfile.TemporaryDirectory() as scratch:
            rehearsed = rehearsal.rehearse(workspace, distribution, files, constraints, Path(scratch))
        # At the moment the files are stamped with, so that a build of the tag gives the same bytes again.
        git.commit_all(root, [root / "packages"], f"Release {name} {version}", epoch)
        git.git(root, "tag", "--annotate", "--message", f"{name} {version}", tag, epoch=epoch)
    return Release(version, tag, files, rehearsed)


def rehearse(
    root: Path, name: str, part: str, *, constraints: Sequence[str] = (), beside: str | None = None
) -> Release:
    """Release a distribution in a clone of the last commit, which is thrown away; the repository stays as it is.

    Args:
        root: The repository.
        name: The distribution.
        part: What :func:`release` takes.
        constraints: What pip must keep to, such as one torch release.
        beside: The revision at which the other distributions count as released; by default their newest tags.

    Raises:
        ToolError: The release would fail, for instance because a dependent in its released version does.
    """
    with tempfile.TemporaryDirectory() as scratch:
        clone = git.clone_at(root, "HEAD", Path(scratch) / "clone")
        if beside is not None:
            old = Workspace(git.clone_at(root, beside, Path(scratch) / "beside"))
            revision = git.git(old.root, "rev-parse", "HEAD")
            for other in (each for each in old if each.name != name):
                git.git(clone, "tag", "--force", git.tag_of(other, other.version), revision)
        return release(clone, name, part, target=Path(scratch) / "dist", constraints=constraints)


def day(epoch: int) -> str:
    return datetime.fromtimestamp(epoch, UTC).date().isoformat()


def build_tag(root: Path, tag: str, target: Path) -> tuple[Distribution, list[Path]]:
    """Build and check the distribution that `tag` releases, from a clean checkout of that tag.

    Raises:
        ToolError: The tag does not name a distribution with the version that its source has.
    """
    name, _, version = tag.rpartition("-v")
    with tempfile.TemporaryDirectory() as scratch:
        checkout = git.clone_at(root, f"refs/tags/{tag}", Path(scratch) / "checkout")
        distribution = Workspace(checkout)[name]
        if str(distribution.version) != version:
            raise ToolError(f"{tag} holds version {distribution.version} of {name}")
        target.mkdir(parents=True, exist_ok=True)
        files = artifacts.build_reproducibly(distribution, target, git.commit_time(root, tag))
        artifacts.check(distribution, files)
    return distribution, files


def publish(root: Path, name: str, url: str) -> list[Path]:
    """Build the newest tag of a distribution and upload the files to the index at `url`.

    Args:
        root: The repository.
        name: The distribution.
        url: An upload address that twine knows how to use, or the `file://` address of a directory index.

    Raises:
        ToolError: There is no release yet, or the index refuses a file.
    """
    distribution = Workspace(root)[name]
    released = git.released_versions(root, distribution)
    if not released:
        raise ToolError(f"{name} has no release; make one with `nox -s release -- {name} current`")
    with tempfile.TemporaryDirectory() as scratch:
        _, files = build_tag(root, git.tag_of(distribution, released[-1]), Path(scratch))
        upload.upload(name, files, url)
    return files
