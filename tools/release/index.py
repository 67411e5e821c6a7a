"""A package index in a directory, in the form that pip reads (PEP 503)."""

from __future__ import annotations

import shutil
from collections.abc import Iterable
from html import escape
from pathlib import Path
from urllib.parse import quote

from packaging.utils import canonicalize_name

from tools.commands import ToolError
from tools.release.artifacts import digest


def add(index: Path, project: str, files: Iterable[Path]) -> None:
    """Add the files of one project to the index at `index`.

    Raises:
        ToolError: The index holds a different file of the same name; what is published never changes.
    """
    folder = index / canonicalize_name(project)
    folder.mkdir(parents=True, exist_ok=True)
    for file in files:
        present = folder / file.name
        if present.exists() and digest(present) != digest(file):
            raise ToolError(f"{file.name} is already published with other contents; raise the version")
        shutil.copyfile(file, present)
    write_page(folder / "index.html", [path for path in sorted(folder.iterdir()) if path.suffix != ".html"])
    write_page(index / "index.html", [path for path in sorted(index.iterdir()) if path.is_dir()])


def write_page(page: Path, entries: list[Path]) -> None:
    links = "".join(f'<a href="{link(entry)}">{escape(entry.name)}</a><br>\n' for entry in entries)
    page.write_text(f"<!DOCTYPE html>\n<html><body>\n{links}</body></html>\n", encoding="utf-8")


def link(entry: Path) -> str:
    name = quote(entry.name)
    return f"{name}/" if entry.is_dir() else f"{name}#sha256={digest(entry)}"
