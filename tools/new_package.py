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

TEMPLATE = Path(__file__).parent / "template"  # laid out like the repository
NAME = re.compile(r"onnx[a-z0-9]*(-[a-z0-9]+)+")


def create(root: Path, name: str, summary: str) -> Path:
    """Write `packages/<name>` and its pages, and enter it wherever the packages are listed.

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
        place = str(source.relative_to(TEMPLATE).with_suffix(""))
        file = root / place.replace("distribution", name).replace("import_name", words["import_name"])
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(Template(source.read_text(encoding="utf-8")).substitute(words), encoding="utf-8")
    shutil.copyfile(root / "LICENSE", target / "LICENSE")
    enter(root / "pyproject.toml", "root_packages", words["import_name"])
    enter(root / "pyproject.toml", "mypy_path", f"packages/{name}/src")
    append(root / ".github/CODEOWNERS", r"/packages/\S+", f"/packages/{name}/")
    append(root / "README.md", r"\| \[`.*\]\(packages/.*", f"| [`{name}`](packages/{name}) | {words['summary']} |")
    append(root / "coverage-floor.toml", r"onnx\S+ = .*", f"{name} = 0.0")
    append(root / "docs/index.md", r"packages/\S+", f"packages/{name}")
    return target


def enter(file: Path, key: str, value: str) -> None:
    """Add a string at the end of the list `key` of a TOML file, keeping the rest as it is written."""
    text = file.read_text(encoding="utf-8")
    match = re.search(rf"^{key} = \[(.*?),?\s*\]", text, re.MULTILINE | re.DOTALL)
    if match is None:
        raise ToolError(f"{file} has no list {key}")
    items = [*re.findall(r'"([^"]*)"', match.group(1)), value]
    lines = "".join(f'    "{item}",\n' for item in items)
    file.write_text(text[: match.start()] + f"{key} = [\n{lines}]" + text[match.end() :], encoding="utf-8")


def append(file: Path, listed: str, line: str) -> None:
    """Add a line behind the last one that the pattern `listed` describes."""
    text = file.read_text(encoding="utf-8")
    lines = list(re.finditer(rf"^{listed}$", text, re.MULTILINE))
    if not lines:
        raise ToolError(f"{file} has no line like {listed}")
    end = lines[-1].end()
    file.write_text(f"{text[:end]}\n{line}{text[end:]}", encoding="utf-8")


def main(arguments: Sequence[str] | None = None, root: Path | None = None) -> int:
    """Run the command and return the exit status."""
    parser = argparse.ArgumentParser(prog="nox -s new-package --", description=__doc__)
    parser.add_argument("name")
    parser.add_argument("summary")
    options = parser.parse_args(arguments)
    try:
        target = create(root or Path.cwd(), options.name, options.summary)
    except ToolError as error:
        print(f"new-package: {error}", file=sys.stderr)
        return 1
    print(f"wrote {target}; give it its place in the import contracts of pyproject.toml")
    return 0


if __name__ == "__main__":
    sys.exit(main())
