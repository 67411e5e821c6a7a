"""What code asks about small sizes, read from its source: a program that torch captured has no note of it.

torch.export takes a dynamic size for 2 or more, answers ``x.shape[0] == 1`` by that, and leaves no guard.
"""

from __future__ import annotations

import ast
import functools
import linecache
from collections.abc import Iterator

import torch

from onnx_fx_export.origin import source_frames
from onnx_fx_export.torch_private import not_the_users
from onnxops_core.exporting import warn_user

__all__ = ["warn_of_small_sizes"]

_SIZES = frozenset(("shape", "size", "numel", "nelement", "len"))
_SMALL = (0, 1, 2)
_Function = ast.FunctionDef | ast.Lambda


def warn_of_small_sizes(program: torch.export.ExportedProgram) -> None:
    """Warn of lines in the code of a captured program that compare sizes with 0, 1 or 2.

    Args:
        program: A program with dynamic sizes that the user captured.
    """
    nodes = [
        node for module in program.graph_module.modules() for node in getattr(module, "graph", torch.fx.Graph()).nodes
    ]
    frames = {frame for node in nodes for frame in source_frames(node) if not frame[0].startswith(not_the_users())}
    found = {(file, asked) for file, line in frames for asked in _asked_around(file, line)}
    if found:
        places = "\n".join(f"  {file}:{line}" for file, line in sorted(found))
        warn_user(
            "torch.export assumed that the dynamic sizes of this program are 2 or more, and answered accordingly "
            f"what the code asks about them at\n{places}\nAt sizes 0 and 1 the exported model does what the "
            "program does, which may not be what the module does. Pass the module itself to export, which checks "
            "that."
        )


@functools.lru_cache(maxsize=16)
def _functions(file: str) -> tuple[_Function, ...]:
    """Return the functions of a source file, outer ones first."""
    try:
        tree = ast.parse("".join(linecache.getlines(file)))
    except SyntaxError:
        return ()
    return tuple(node for node in ast.walk(tree) if isinstance(node, _Function))


def _asked_around(file: str, line: int) -> Iterator[int]:
    """Yield the lines that ask about small sizes in the innermost function around a line."""
    around = [function for function in _functions(file) if function.lineno <= line <= (function.end_lineno or line)]
    for function in around[-1:]:
        names = _names_of_sizes(function)
        for node in ast.walk(function):
            if _asks(node, names):
                yield node.lineno  # type: ignore[attr-defined]


def _names_of_sizes(function: _Function) -> set[str]:
    """Return the variables that are computed of sizes."""
    names: set[str] = set()
    # A second round finds what is computed of the first ones.
    for _ in range(2):
        for node in ast.walk(function):
            if isinstance(node, ast.Assign) and _is_of_sizes(node.value, names):
                stored = (part for target in node.targets for part in ast.walk(target))
                names.update(part.id for part in stored if isinstance(part, ast.Name))
    return names


def _asks(node: ast.AST, names: set[str]) -> bool:
    if isinstance(node, ast.Compare):
        operands = [node.left, *node.comparators]
        small = any(
            type(part) is ast.Constant and type(part.value) is int and part.value in _SMALL for part in operands
        )
        return small and any(_is_of_sizes(operand, names) for operand in operands)
    # A size by itself is asked whether it is 0.
    test = node.test if isinstance(node, ast.If | ast.IfExp | ast.While) else None
    return isinstance(test, ast.BinOp | ast.Subscript | ast.Name | ast.Call) and _is_of_sizes(test, names)


def _is_of_sizes(expression: ast.expr, names: set[str]) -> bool:
    """Tell whether an expression is a size, or a number computed of sizes."""
    match expression:
        case ast.Name(id=name):
            return name in names
        case ast.Attribute(attr=name):
            return name in _SIZES
        case ast.Subscript(value=value):
            return _is_of_sizes(value, names)
        case ast.Call(func=ast.Attribute(attr=name) | ast.Name(id=name)):
            return name in _SIZES
        case ast.BinOp(left=left, right=right):
            return _is_of_sizes(left, names) or _is_of_sizes(right, names)
        case ast.Tuple(elts=parts):
            return any(_is_of_sizes(part, names) for part in parts)
    return False
