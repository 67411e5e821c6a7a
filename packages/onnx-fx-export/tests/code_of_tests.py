"""Source text made by tests, as code whose lines are found."""

from __future__ import annotations

import linecache
from typing import Any

__all__ = ["compiled"]


def compiled(source: str, file: str, **names: Any) -> dict[str, Any]:
    """Run source text and return its names.

    Args:
        source: The text.
        file: A name of a file for it.
        names: What it may use.
    """
    linecache.cache[file] = (len(source), None, source.splitlines(keepends=True), file)
    found: dict[str, Any] = {"__name__": file.rpartition("/")[2].removesuffix(".py"), **names}
    exec(compile(source, file, "exec"), found)
    return found
