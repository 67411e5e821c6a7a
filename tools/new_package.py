"""A new package from the template: `python -m tools.new_package onnx-something "What it is for"`."""

from __future__ import annotations

import argparse
import re
import shutil
import sys
from collections.abc import Sequence
from pathlib import Path
from string import Template

from tools.commands import ToolError

TEMPLATE = Path(__file__).parent / "template"
NAME = re.compile(r"onnx[a-z0-9]*(-[a-z0-9]+)+")


def create(root: Path, name: str, summary: str) -> Path:
    """Writes `packages/<name>` and enters it where the root configuration lists the packages.

    Args:
        root: The repository.
        name: The distribution, such as `onnx-something`.
        summary: One line that says what it is for.

    Raises:
        ToolError: The name does not fit or is taken.
    """
    if not NAME.fullmatch(name):
        raise ToolError(f"{name!r} should look like onnx-something: lower case, words joined by hyphens")
    target = root / "packages" / name
    if target.exists():
        raise ToolError(f"{target} exists already")
    words = {"name": name, "import_name": name.replace("-", "_"), "summary": summary.strip().rstrip(".")}
    for source in sorted(TEMPLATE.rglob("*.in")):
        place = str(source.relative_to(TEMPLATE).with_suffix("")).replace("import_name", words["import_name"])
        file = target / place
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(Template(source.read_text(encoding="utf-8")).substitute(words), encoding="utf-8")
    shutil.copyfile(root / "LICENSE", target / "LICENSE")
    enter(root / "pyproject.toml", "root_packages", words["import_name"])
    enter(root / "pyproject.toml", "mypy_path", f"packages/{name}/src")
    return target


def enter(file: Path, key: str, value: str) -> None:
    """Adds a string at the end of the list `key` of a TOML file, keeping the rest as it is written."""
    text = file.read_text(encoding="utf-8")
    match = re.search(rf"^{key} = \[(.*?),?\s*\]", text, re.MULTILINE | re.DOTALL)
    if match is None:
        raise ToolError(f"{file} has no list {key}")
    items = [*re.findall(r'"([^"]*)"', match.group(1)), value]
    lines = "".join(f'    "{item}",\n' for item in items)
    file.write_text(text[: match.start()] + f"{key} = [\n{lines}]" + text[match.end() :], encoding="utf-8")


def main(arguments: Sequence[str] | None = None, root: Path | None = None) -> int:
    """Runs the command; returns the exit status."""
    parser = argparse.ArgumentParser(prog="nox -s new-package --", description=__doc__)
    parser.add_argument("name")
    parser.add_argument("summary")
    options = parser.parse_args(arguments)
    try:
        target = create(root or Path.cwd(), options.name, options.summary)
    except ToolError as error:
        print(f"new-package: {error}", file=sys.stderr)
        return 1
    print(f"wrote {target}; add it to the import contracts in pyproject.toml and to README.md")
    return 0


if __name__ == "__main__":
    sys.exit(main())
