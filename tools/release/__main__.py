"""`python -m tools.release`: the commands behind the release sessions of nox."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence
from pathlib import Path

from tools.commands import ToolError
from tools.release import pipeline

INDEX = "TWINE_REPOSITORY_URL"


def main(arguments: Sequence[str] | None = None, root: Path | None = None) -> int:
    """Run one command and return the exit status."""
    options = parser().parse_args(arguments)
    try:
        options.command(root or Path.cwd(), options)
    except ToolError as error:
        print(f"{options.name}: {error}", file=sys.stderr)
        return 1
    return 0


def parser() -> argparse.ArgumentParser:
    top = argparse.ArgumentParser(prog="python -m tools.release", description=__doc__)
    commands = top.add_subparsers(required=True)

    release = commands.add_parser("release", help="bump, build, check, rehearse, commit and tag")
    release.add_argument("name", help="the distribution")
    release.add_argument("part", help="major, minor, patch, rc, a version, or `current` for the first release")
    release.add_argument("--move-dependents", action="store_true", help="widen ranges that keep it out")
    release.add_argument("--constraint", action="append", default=[], help="such as torch==2.13.0")
    release.add_argument("--target", type=Path, default=Path("dist"), help="where the built files go")
    release.set_defaults(command=run_release)

    rehearse = commands.add_parser("rehearse", help="try a release in a clone, and leave nothing behind")
    rehearse.add_argument("name", help="the distribution")
    rehearse.add_argument("part", help="as for a release")
    rehearse.add_argument("--beside", help="the revision that counts as the release of all others; default: their tags")
    rehearse.add_argument("--constraint", action="append", default=[], help="such as torch==2.13.0")
    rehearse.set_defaults(command=run_rehearse)

    build = commands.add_parser("build", help="build the files of a tag from a clean checkout")
    build.add_argument("name", metavar="tag", help="<distribution>-v<version>")
    build.add_argument("--target", type=Path, default=Path("dist"), help="where the built files go")
    build.set_defaults(command=run_build)

    publish = commands.add_parser("publish", help=f"upload the newest release to the index in ${INDEX}")
    publish.add_argument("name", help="the distribution")
    publish.set_defaults(command=run_publish)
    return top


def run_release(root: Path, options: argparse.Namespace) -> None:
    done = pipeline.release(
        root,
        options.name,
        options.part,
        target=(root / options.target).resolve(),
        constraints=options.constraint,
        move_dependents=options.move_dependents,
    )
    print(f"released {done.tag}: {', '.join(file.name for file in done.files)}")
    print(f"rehearsed with {', '.join(done.rehearsed)}")
    print(f"next: git push --follow-tags, or nox -s publish -- {options.name}")


def run_rehearse(root: Path, options: argparse.Namespace) -> None:
    done = pipeline.rehearse(root, options.name, options.part, constraints=options.constraint, beside=options.beside)
    print(f"{options.name} {done.version} can be released; rehearsed with {', '.join(done.rehearsed)}")


def run_build(root: Path, options: argparse.Namespace) -> None:
    _, files = pipeline.build_tag(root, options.name, (root / options.target).resolve())
    print("\n".join(str(file) for file in files))


def run_publish(root: Path, options: argparse.Namespace) -> None:
    url = os.environ.get(INDEX)
    if not url:
        raise ToolError(f"set ${INDEX} to the upload address of the index, or to a file:// directory")
    files = pipeline.publish(root, options.name, url)
    print(f"published {', '.join(file.name for file in files)}")


if __name__ == "__main__":
    sys.exit(main())
