"""Steps of loops that end early, written as conditions on what else they do."""

from __future__ import annotations

import ast
import copy
from collections.abc import Sequence
from typing import Any

from onnx_fx_export.capture.size_loops.planning import growth_of

__all__ = ["without_exits"]

# What gives as many elements as a size says, or as it is given.
_OF_KNOWN_LENGTH = frozenset(
    {"chunk", "enumerate", "flip", "len", "max", "min", "movedim", "permute", "range", "reversed", "size", "split", "t"}
    | {"transpose", "unbind", "zip"}
)
_OTHER_LOOPS = (ast.For, ast.While, ast.AsyncFor, ast.FunctionDef, ast.Lambda)


def without_exits(function: ast.FunctionDef) -> ast.FunctionDef:
    """Write loops without ``continue`` and ``break``, and what both branches of a condition append behind it."""
    _Steps(function).visit(function)
    return function


class _Steps(ast.NodeTransformer):
    def __init__(self, function: ast.FunctionDef) -> None:
        self._function, self._count = function, 0

    def visit_For(self, node: ast.For) -> Any:
        self.generic_visit(node)
        before: list[ast.stmt] = []
        if _has(ast.Break, node.body) and _ends_by_itself(node) and not self._is_read_elsewhere(node):
            name = f"__onnx_fx_goes_on_{self._count}"
            self._count += 1
            before = ast.parse(f"{name} = 1").body
            steps = _Breaks(name).generic_visit(ast.Module(node.body, []))
            node.body = [ast.If(ast.Name(name, ast.Load()), _whole(steps.body), [])]
        elif _has(ast.Continue, node.body):
            node.body = _whole(node.body)
        node.body = self._with_joined(node.body)
        return [ast.fix_missing_locations(ast.copy_location(each, node)) for each in (*before, node)]

    def _is_read_elsewhere(self, loop: ast.For) -> bool:
        """Tell whether anything outside of a loop reads what it counts by, which is left where the loop ends."""
        targets = {node.id for node in ast.walk(loop.target) if isinstance(node, ast.Name)}
        inside = set(map(id, ast.walk(loop)))
        names = (node for node in ast.walk(self._function) if isinstance(node, ast.Name) and id(node) not in inside)
        return any(isinstance(node.ctx, ast.Load) and node.id in targets for node in names)

    def _with_joined(self, statements: Sequence[ast.stmt]) -> list[ast.stmt]:
        """Return statements with what both branches of a condition append last as one statement behind it."""
        result: list[ast.stmt] = []
        for statement in statements:
            result.append(statement)
            if isinstance(statement, ast.If) and statement.orelse:
                result.extend(self._joined(statement))
        return result

    def _joined(self, choice: ast.If) -> list[ast.stmt]:
        choice.body, choice.orelse = map(self._with_joined, (choice.body, choice.orelse))
        one, other = growth_of(choice.body[-1]), growth_of(choice.orelse[-1])
        if one is None or other is None or (one.name, one.in_front) != (other.name, other.in_front):
            return []
        name = f"__onnx_fx_added_{self._count}"
        self._count += 1
        choice.body[-1], choice.orelse[-1] = (
            ast.Assign([ast.Name(name, ast.Store())], each.value) for each in (one, other)
        )
        return ast.parse(f"{one.name}.insert(0, {name})" if one.in_front else f"{one.name}.append({name})").body


def _whole(statements: Sequence[ast.stmt]) -> list[ast.stmt]:
    """Return the statements of a step without ``continue``: what follows a condition goes to its branches."""
    for place, statement in enumerate(statements):
        if isinstance(statement, ast.Continue):
            return list(statements[:place]) or [ast.Pass()]
        if not isinstance(statement, ast.If) or not _has(ast.Continue, [statement]):
            continue
        body, orelse = (
            _whole(branch if _always_ends(branch) else [*branch, *copy.deepcopy(statements[place + 1 :])])
            for branch in (statement.body, statement.orelse)
        )
        choice = ast.If(statement.test, body or [ast.Pass()], orelse)
        return [*statements[:place], ast.copy_location(choice, statement)]
    return list(statements)


def _always_ends(branch: Sequence[ast.stmt]) -> bool:
    return bool(branch) and isinstance(branch[-1], ast.Continue)


def _ends_by_itself(loop: ast.For) -> bool:
    """Tell whether a loop surely has an end that does without ``break``: what functions yield may have none."""
    calls = [node.func for node in ast.walk(loop.iter) if isinstance(node, ast.Call)]
    names = [call.id for call in calls if isinstance(call, ast.Name)]
    methods = [call.attr for call in calls if isinstance(call, ast.Attribute)]
    known = _OF_KNOWN_LENGTH.issuperset([*names, *methods]) and len(names) + len(methods) == len(calls)
    return known and not loop.orelse


def _has(kind: type[ast.stmt], statements: Sequence[ast.stmt]) -> bool:
    """Tell whether a statement stands in some others, for the loop around them."""
    waiting: list[ast.AST] = [*statements]
    while waiting:
        node = waiting.pop()
        if isinstance(node, kind):
            return True
        if not isinstance(node, _OTHER_LOOPS):
            waiting.extend(ast.iter_child_nodes(node))
    return False


class _Breaks(ast.NodeTransformer):
    """Writes ``break`` as the end of a step after which no other one does anything."""

    def __init__(self, name: str) -> None:
        self._name = name

    def generic_visit(self, node: ast.AST) -> Any:
        return node if isinstance(node, _OTHER_LOOPS) else super().generic_visit(node)

    def visit_Break(self, node: ast.Break) -> Any:
        return [ast.Assign([ast.Name(self._name, ast.Store())], ast.Constant(0)), ast.Continue()]
