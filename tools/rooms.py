"""The rooms of each package: how many modules lie in a folder, and whether files import each other in a circle."""

from __future__ import annotations

import ast
import graphlib
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import PurePosixPath

from tools.syntax import nodes

MAX_MODULES = 22


def modules(names: Mapping[str, str]) -> dict[str, str]:
    """Return the path of each module under `packages/*/src`, by its dotted name; of a package it is `__init__.py`."""
    sources = [name for name in names if name.startswith("packages/") and "/src/" in name]
    dotted = {name.partition("/src/")[2].removesuffix(".py").replace("/", "."): name for name in sources}
    return {module.removesuffix(".__init__"): name for module, name in dotted.items()}


def imported(text: str, known: Mapping[str, str]) -> Iterator[str]:
    """Return the modules among `known` that a file imports, in functions and for types alone too."""
    for module, name in imports(text):
        found = name if name in known else module
        if found in known:
            yield found


@cache
def imports(text: str) -> tuple[tuple[str, str], ...]:
    """Return what a file imports, relative imports left out: each module, and the dotted name taken from it.

    A call of ``import_module`` with a name in quotes is an import, too.
    """
    found = []
    for node in nodes(text):
        if isinstance(node, ast.Import):
            found += [(alias.name, alias.name) for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            found += [(node.module, f"{node.module}.{alias.name}") for alias in node.names]
        elif isinstance(node, ast.Call) and ast.unparse(node.func).endswith("import_module"):
            named = [each.value for each in node.args if isinstance(each, ast.Constant)]
            found += [(name, name) for name in named if isinstance(name, str)]
    return tuple(found)


def circle(texts: Mapping[str, str], package: str) -> list[str]:
    """Return modules of a package that import each other in a circle, from one back to itself; empty without one."""
    known = {module: path for module, path in modules(texts).items() if module.partition(".")[0] == package}
    files = {module: path for module, path in known.items() if not path.endswith("/__init__.py")}
    graph = {module: set(imported(texts[path], known)) & files.keys() - {module} for module, path in files.items()}
    try:
        graphlib.TopologicalSorter(graph).prepare()
    except graphlib.CycleError as error:
        return list(error.args[1])
    return []


def folders(texts: Mapping[str, str]) -> Counter[str]:
    """Return how many modules lie in each folder of the packages, their `__init__.py` left out."""
    paths = [PurePosixPath(path) for path in modules(texts).values() if not path.endswith("/__init__.py")]
    return Counter(str(path.parent).partition("/src/")[2] for path in paths)


def faults(texts: Mapping[str, str]) -> Iterator[str]:
    """Return what is wrong with the rooms: circles of files, and folders with too many modules."""
    for package in sorted({module.partition(".")[0] for module in modules(texts)}):
        if found := circle(texts, package):
            yield f"{package}: {' -> '.join(found)} is a circle of imports"
    for folder, count in sorted(folders(texts).items()):
        if count > MAX_MODULES:
            yield f"{folder}: {count} modules lie in one folder, over {MAX_MODULES}; sort them by topic"


def plan(texts: Mapping[str, str]) -> str:
    """Return the rooms of each package with their numbers of modules, and the packages that have a circle."""
    rooms: dict[str, Counter[str]] = defaultdict(Counter)
    for folder, count in folders(texts).items():
        package, _, rest = folder.partition("/")
        rooms[package][rest.partition("/")[0] or "."] += count
    lines = []
    for package in sorted(rooms):
        sizes = ", ".join(f"{room} {count}" for room, count in sorted(rooms[package].items()))
        lines.append(f"{package}: {sizes}{'; has a circle of imports' if circle(texts, package) else ''}")
    return "\n".join(lines)
