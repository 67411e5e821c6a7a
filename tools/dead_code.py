"""Functions, methods and classes that nothing uses; `python -m tools.dead_code` prints them.

A test counts as a use, and so does a name in `__all__`. What a decorator enters in a table is not a finding, nor what a
framework calls by name, nor parameters: their names are given by PyTorch's and ONNX's signatures.
"""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterable
from pathlib import Path

from vulture.core import Vulture

from tools.house import python_files

KINDS = {"class", "function", "method", "property", "unreachable_code"}
# Called by torch, transformers, onnxscript, pytest, Sphinx or the standard library, not by us.
HOOKS = ["_", "__*__", "backward", "forward", "jvp", "setup_context", "symbolic", "vmap"]
HOOKS += ["_name_template", "eval_function", "eval_op", "guard_source"]
HOOKS += ["from_program", "load_program", "program_files", "save_program", "update_conv_state"]
HOOKS += ["handle_*", "setup", "pytest_*", "test_*", "visit_*"]
# These change what a function is, and do not make it known to anyone; any other decorator may.
PLAIN_DECORATORS = {
    "abstractmethod",
    "cache",
    "cached_property",
    "classmethod",
    "contextmanager",
    "dataclass",
    "lru_cache",
    "overload",
    "override",
    "property",
    "setter",
    "staticmethod",
    "wraps",
}


def unused(root: Path, files: Iterable[str]) -> list[str]:
    """One line per definition in `files` that none of them uses."""
    search = Vulture(ignore_names=HOOKS)
    search.scavenge([str(root / name) for name in files])
    registered: dict[Path, set[int]] = {}
    lines = []
    for item in search.get_unused_code(min_confidence=60):
        path = Path(item.filename)
        if path not in registered:
            registered[path] = registered_lines(path.read_text(encoding="utf-8"))
        if item.typ in KINDS and item.first_lineno not in registered[path]:
            lines.append(f"{path.relative_to(root)}:{item.first_lineno}: nothing uses the {item.typ} {item.name}")
    return lines


def registered_lines(text: str) -> set[int]:
    """Return the first lines, with and without decorators, of definitions that a decorator may have registered."""
    lines: set[int] = set()
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            names = {decorator_name(decorator) for decorator in node.decorator_list}
            if names - PLAIN_DECORATORS:
                lines |= {node.lineno, node.decorator_list[0].lineno}
    return lines


def decorator_name(decorator: ast.expr) -> str:
    """Return the last part of a decorator's name, without its arguments."""
    called = decorator.func if isinstance(decorator, ast.Call) else decorator
    return called.attr if isinstance(called, ast.Attribute) else ast.unparse(called)


def main(root: Path) -> int:
    lines = unused(root, python_files(root))
    print("\n".join(lines) or "no dead code")
    return 1 if lines else 0


if __name__ == "__main__":
    sys.exit(main(Path.cwd().resolve()))
