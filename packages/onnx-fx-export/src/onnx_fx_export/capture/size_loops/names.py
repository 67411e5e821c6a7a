"""Names in the code of loops: which are read and assigned, and how helpers are called."""

from __future__ import annotations

import ast
from collections.abc import Collection, Sequence

__all__ = ["HELP", "helper", "mentions", "parameters_of", "stored", "stored_in"]

#: The name by which rewritten functions call what they need.
HELP = "__onnx_fx_loops__"


def helper(name: str) -> ast.expr:
    """Return a helper of :mod:`onnx_fx_export.capture.size_loops.running` as an expression."""
    return ast.Attribute(ast.Name(HELP, ast.Load()), name, ast.Load())


def mentions(node: ast.AST, names: Collection[str]) -> bool:
    """Tell whether an expression reads one of some names."""
    return any(isinstance(each, ast.Name) and each.id in names for each in ast.walk(node))


def stored(node: ast.AST) -> str | None:
    """Return the name that a node assigns, or assigns a part of."""
    if isinstance(node, ast.Subscript) and isinstance(node.ctx, ast.Store):
        node = node.value
        return node.id if isinstance(node, ast.Name) else None
    return node.id if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store) else None


def stored_in(statements: Sequence[ast.stmt]) -> set[str]:
    """Return the names that statements assign, or assign parts of."""
    return {name for statement in statements for node in ast.walk(statement) if (name := stored(node)) is not None}


def parameters_of(function: ast.FunctionDef) -> set[str]:
    """Return the names of the parameters of a function, but for those that gather others."""
    arguments = function.args
    return {argument.arg for argument in (*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs)}
