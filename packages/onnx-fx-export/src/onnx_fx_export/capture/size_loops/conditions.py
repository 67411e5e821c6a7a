"""Conditions on the counter of a loop, and what is assigned under them, as choices that a scan can make."""

from __future__ import annotations

import ast
from collections import Counter
from collections.abc import Collection, Iterator, Sequence
from typing import Any

from onnx_fx_export.capture.size_loops.names import helper, stored_in

__all__ = ["Choices", "changing", "conditions_on"]

# What is asked of values other than their numbers.
_FORMS = frozenset({"shape", "size", "dim", "ndim", "ndimension", "numel", "dtype", "device", "is_floating_point"})
_FORMS_OF = frozenset({"isinstance", "len", "hasattr", "callable", "type"})


def changing(targets: Collection[str | None], statements: Sequence[ast.stmt]) -> set[str]:
    """Return the names that have another value in each step of a loop: those it counts by, and those it assigns."""
    return {name for name in targets if name is not None} | stored_in(statements)


def conditions_on(names: Collection[str], statements: Sequence[ast.stmt]) -> Iterator[ast.If]:
    """Yield the ``if`` statements whose conditions ask for numbers that some names stand for, outer ones first."""
    for statement in statements:
        for node in ast.walk(statement):
            if isinstance(node, ast.If) and _asks_for(node.test, names):
                yield node


def _asks_for(node: ast.AST, names: Collection[str]) -> bool:
    """Tell whether an expression asks for what is in some values, not for their forms alone."""
    match node:
        case ast.Name(id=name):
            return name in names
        case ast.Attribute(attr=attr) if attr in _FORMS:
            return False
        case ast.Call(func=ast.Name(id=name)) if name in _FORMS_OF:
            return False
        case ast.Compare(ops=[ast.Is() | ast.IsNot()]):
            return False
        case _:
            return any(_asks_for(child, names) for child in ast.iter_child_nodes(node))


class Choices(ast.NodeTransformer):
    """Writes conditions that change from step to step as calls, which compute both branches where a tensor decides.

    Args:
        own: What the names of functions begin with.
        names: The names that change.
        defined: The names that have a value before.
    """

    def __init__(self, own: str, names: Collection[str], defined: Collection[str]) -> None:
        self._own, self._names, self._defined, self._count = own, names, set(defined), 0
        self._kept, self._reads = frozenset(defined), Counter[str]()

    def visit_Module(self, node: ast.Module) -> Any:  # noqa: D102
        self._reads = _reads([node])
        return self.generic_visit(node)

    def visit_IfExp(self, node: ast.IfExp) -> Any:  # noqa: D102
        self.generic_visit(node)
        if not _asks_for(node.test, self._names):
            return node
        none = ast.arguments([], [], None, [], [], None, [])
        branches = [ast.Lambda(none, branch) for branch in (node.body, node.orelse)]
        return ast.Call(helper("either"), [_Truths(self._names).visit(node.test), *branches], [])

    def visit_If(self, node: ast.If) -> Any:  # noqa: D102
        if not _asks_for(node.test, self._names):
            return self._visited(node)
        branches = [*node.body, *node.orelse]
        # What nothing else reads is left to the branches.
        read = self._reads - _reads(branches)
        names = sorted(name for name in stored_in(branches) if name in self._kept or read[name])
        unset = [name for name in names if name not in self._defined]
        known, self._defined = self._defined, self._defined | set(names)
        self.generic_visit(node)
        self._defined = known | set(names)
        self._count += 1
        listed = ", ".join(names)
        functions = [f"{self._own}_{kind}_{self._count}" for kind in ("then", "else")]
        lines = [f"{name} = None" for name in unset]
        for function, statements in zip(functions, (node.body, node.orelse), strict=True):
            body = [line for statement in statements for line in ast.unparse(statement).splitlines()]
            lines += [f"def {function}({listed}):", *(f"    {line}" for line in body), f"    return [{listed}]"]
        call = ast.unparse(ast.Call(helper("choose"), [_Truths(self._names).visit(node.test)], []))[:-1]
        lines.append(f"[{listed}] = {call}, {', '.join(functions)}, [{listed}])")
        return [ast.copy_location(each, node) for each in ast.parse("\n".join(lines)).body]

    def visit_FunctionDef(self, node: ast.FunctionDef) -> Any:  # noqa: D102
        known, self._defined = self._defined, self._defined | {each.arg for each in node.args.args}
        self.generic_visit(node)
        self._defined = known
        return node

    def visit_Assign(self, node: ast.Assign) -> Any:  # noqa: D102
        return self._visited(node)

    def visit_AugAssign(self, node: ast.AugAssign) -> Any:  # noqa: D102
        return self._visited(node)

    def visit_For(self, node: ast.For) -> Any:  # noqa: D102
        return self._visited(node)

    def _visited(self, node: ast.stmt) -> Any:
        self.generic_visit(node)
        self._defined |= stored_in([node])
        return node


class _Truths(ast.NodeTransformer):
    """Writes what Python joins conditions by as calls that take tensors; what does not change is decided as before.

    Args:
        names: The names that change.
    """

    def __init__(self, names: Collection[str]) -> None:
        self._names = names

    def visit_BoolOp(self, node: ast.BoolOp) -> ast.expr:
        return self._joined("all_of" if isinstance(node.op, ast.And) else "any_of", node.values)

    def visit_UnaryOp(self, node: ast.UnaryOp) -> ast.expr:
        self.generic_visit(node)
        return ast.Call(helper("is_not"), [node.operand], []) if isinstance(node.op, ast.Not) else node

    def visit_Compare(self, node: ast.Compare) -> ast.expr:
        operands = [node.left, *node.comparators]
        pairs = list(zip(operands, node.ops, operands[1:], strict=False))
        if len(pairs) == 1:
            return node
        return self._joined("all_of", [ast.Compare(left, [op], [right]) for left, op, right in pairs])

    def _joined(self, name: str, parts: Sequence[ast.expr]) -> ast.expr:
        none = ast.arguments([], [], None, [], [], None, [])
        decided = ast.Name("bool", ast.Load())
        parts = [self.visit(part) if _asks_for(part, self._names) else ast.Call(decided, [part], []) for part in parts]
        return ast.Call(helper(name), [ast.Lambda(none, part) for part in parts], [])


def _reads(nodes: Sequence[ast.AST]) -> Counter[str]:
    found = (each for node in nodes for each in ast.walk(node) if isinstance(each, ast.Name))
    return Counter(each.id for each in found if isinstance(each.ctx, ast.Load))
