"""The private names of torch that a package uses."""

from __future__ import annotations

import ast
import functools
import importlib
import inspect
import re
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

# A name with one underscore in front, anywhere in a dotted name of torch.
_PRIVATE = re.compile(r"torch(\.\w+)*\.(_(?!_)\w+)(\.\w+)*")


def private_names(package: ModuleType) -> list[str]:
    """Return the dotted names, sorted, that the sources of a package mention in code."""
    folder = Path(inspect.getfile(package)).parent
    names = {name for path in folder.rglob("*.py") for name in _names(ast.parse(path.read_text(encoding="utf-8")))}
    return sorted(name for name in names if _PRIVATE.fullmatch(name))


def _names(tree: ast.Module) -> Iterator[str]:
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom):
            yield from (f"{node.module}.{alias.name}" for alias in node.names)
        elif isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.Attribute):
            yield ast.unparse(node)


def found(name: str) -> Any:
    """Return what a dotted name stands for.

    Raises:
        AttributeError: If there is nothing by that name.
    """
    parts = name.split(".")
    for count in range(len(parts), 0, -1):
        try:
            module = importlib.import_module(".".join(parts[:count]))
        except ModuleNotFoundError:
            continue
        return functools.reduce(getattr, parts[count:], module)
    raise AttributeError(name)
