"""Building the files of a distribution, and what they must fulfil before anyone gets them."""

from __future__ import annotations

import hashlib
import sys
import tempfile
from pathlib import Path

from tools.commands import ToolError, run
from tools.workspace import Distribution


def build(distribution: Distribution, target: Path, epoch: int) -> list[Path]:
    """Build sdist and, from it, wheel into `target`; time stamps inside are `epoch`."""
    command = [sys.executable, "-m", "build", "--outdir", str(target), str(distribution.path)]
    run(command, cwd=distribution.path, env={"SOURCE_DATE_EPOCH": str(epoch)})
    return files_of(distribution, target)


def files_of(distribution: Distribution, folder: Path) -> list[Path]:
    """Return the files in `folder` that belong to the version of `distribution` in its source tree."""
    stem = f"{distribution.import_name}-{distribution.version}"
    return sorted([*folder.glob(f"{stem}.tar.gz"), *folder.glob(f"{stem}-*.whl")])


def build_wheel(distribution: Distribution, target: Path) -> list[Path]:
    """Build the wheel alone, straight from the source: enough to install it in a rehearsal."""
    target.mkdir(parents=True, exist_ok=True)
    command = [sys.executable, "-m", "hatchling", "build", "--target", "wheel", "--directory", str(target)]
    run(command, cwd=distribution.path)
    return [file for file in files_of(distribution, target) if file.suffix == ".whl"]


def build_reproducibly(distribution: Distribution, target: Path, epoch: int) -> list[Path]:
    """Build twice and keep one.

    Raises:
        ToolError: The two builds differ in a byte.
    """
    files = build(distribution, target, epoch)
    with tempfile.TemporaryDirectory() as scratch:
        require_same(files, build(distribution, Path(scratch), epoch))
    return files


def require_same(first: list[Path], second: list[Path]) -> None:
    """Raise ToolError unless both hold files of the same names with the same bytes."""
    digests = [{path.name: digest(path) for path in files} for files in (first, second)]
    names = digests[0].keys() | digests[1].keys()
    different = sorted(name for name in names if digests[0].get(name) != digests[1].get(name))
    if different:
        raise ToolError(f"two builds of the same source differ in {', '.join(different)}")


def digest(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


def check(distribution: Distribution, files: list[Path]) -> None:
    """Check metadata and contents.

    Raises:
        ToolError: A file is missing, its metadata does not render, or the wheel holds what it should not.
    """
    wheels = [path for path in files if path.suffix == ".whl"]
    if len(wheels) != 1 or len(files) != 2:
        raise ToolError(f"expected one sdist and one wheel, got {[path.name for path in files]}")
    run([sys.executable, "-m", "twine", "check", "--strict", *files], cwd=distribution.path)
    contents = [sys.executable, "-m", "check_wheel_contents", "--no-config"]
    run([*contents, "--toplevel", distribution.import_name, *wheels], cwd=distribution.path)
