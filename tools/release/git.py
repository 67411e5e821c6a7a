"""The few git operations a release needs."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from packaging.version import Version

from tools.commands import ToolError, run
from tools.workspace import Distribution


def git(root: Path, *arguments: str | Path, epoch: int | None = None) -> str:
    date = {} if epoch is None else {"GIT_AUTHOR_DATE": f"@{epoch} +0000", "GIT_COMMITTER_DATE": f"@{epoch} +0000"}
    return run(["git", *arguments], cwd=root, env=date).strip()


def require_clean(root: Path) -> None:
    """Raise ToolError unless the work tree holds exactly what is committed."""
    changed = git(root, "status", "--porcelain")
    if changed:
        raise ToolError(f"the work tree is not clean; commit or remove these first:\n{changed}")


@contextmanager
def restored_on_error(root: Path) -> Iterator[None]:
    """Bring a tree that was clean back to its commit when the block fails."""
    try:
        yield
    except BaseException:
        git(root, "reset", "--hard", "--quiet", "HEAD")
        git(root, "clean", "-fdq", "packages")
        raise


def tag_of(distribution: Distribution, version: Version) -> str:
    return f"{distribution.name}-v{version}"


def released_versions(root: Path, distribution: Distribution) -> list[Version]:
    """Return the tagged versions of a distribution, oldest first."""
    prefix = f"{distribution.name}-v"
    tags = git(root, "tag", "--list", f"{prefix}*").split()
    return sorted(Version(tag.removeprefix(prefix)) for tag in tags)


def commit_all(root: Path, paths: Sequence[Path], message: str, epoch: int) -> None:
    git(root, "add", "--all", *paths)
    git(root, "commit", "--quiet", "--message", message, epoch=epoch)


def commit_time(root: Path, revision: str) -> int:
    """Seconds since 1970 at which the commit behind `revision` was made."""
    return int(git(root, "show", "--no-patch", "--format=%ct", f"{revision}^{{commit}}"))


def clone_at(root: Path, revision: str, target: Path) -> Path:
    """Return a clean checkout of `revision` at `target`: nothing of the work tree can get into it."""
    git(root, "clone", "--quiet", "--shared", "--no-checkout", root, target)
    git(target, "checkout", "--quiet", "--detach", revision)
    return target
