"""Conditions on the counter of a loop, and what is assigned under them, as choices that a scan can make."""

from __future__ import annotations

import ast
from collections import Counter
from collections.abc import Collection, Iterator, Sequence
from typing import Any

from onnx_fx_export.capture.size_loops.names import helper, mentions, stored_in

__all__ = ["Choices", "conditions_on"]


def conditions_on(counter: str | None, statements: Sequence[ast.stmt]) -> Iterator[ast.If]:
    """Yield the ``if`` statements whose conditions ask for a counter, outer ones first."""
    for statement in statements:
        for node in ast.walk(statement):
            if isinstance(node, ast.If) and counter is not None and mentions(node.test, {counter}):
                yield node


class Choices(ast.NodeTransformer):
    """Writes conditions on counters as calls, which compute both branches where a tensor decides.

    Args:
        own: What the names of functions begin with.
        counters: The names of the counters.
        defined: The names that have a value before.
    """

    def __init__(self, own: str, counters: Collection[str], defined: Collection[str]) -> None:
        self._own, self._counters, self._defined, self._count = own, counters, set(defined), 0
        self._kept, self._reads = frozenset(defined), Counter[str]()

    def visit_Module(self, node: ast.Module) -> Any:  # noqa: D102
        self._reads = _reads([node])
        return self.generic_visit(node)

    def visit_IfExp(self, node: ast.IfExp) -> Any:  # noqa: D102
        self.generic_visit(node)
        if not mentions(node.test, self._counters):
            return node
        none = ast.arguments([], [], None, [], [], None, [])
        branches = [ast.Lambda(none, branch) for branch in (node.body, node.orelse)]
        return ast.Call(helper("either"), [node.test, *branches], [])

    def visit_If(self, node: ast.If) -> Any:  # noqa: D102
        if not mentions(node.test, self._counters):
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
        call = ast.unparse(ast.Call(helper("choose"), [node.test], []))[:-1]
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


def _reads(nodes: Sequence[ast.AST]) -> Counter[str]:
    found = (each for node in nodes for each in ast.walk(node) if isinstance(each, ast.Name))
    return Counter(each.id for each in found if isinstance(each.ctx, ast.Load))
