"""Loops with a counter of their own, written as those over ``range``."""

from __future__ import annotations

import ast
from typing import Any

from onnx_fx_export.capture.size_loops.names import mentions, stored_in

__all__ = ["with_ranges"]


def with_ranges(function: ast.FunctionDef) -> ast.FunctionDef:
    """Write ``while i < n`` with ``i += 1`` at its end as a loop over ``range``, where nothing else reads ``i``."""
    _Whiles(function).visit(function)
    return function


class _Whiles(ast.NodeTransformer):
    def __init__(self, function: ast.FunctionDef) -> None:
        self._function = function

    def visit_While(self, node: ast.While) -> Any:
        self.generic_visit(node)
        found = _range(node)
        if found is None or self._is_read_elsewhere(node, found[0]):
            return node
        counter, bounds = found
        arguments = [ast.Name(counter, ast.Load()), *bounds]
        steps = ast.Call(ast.Name("range", ast.Load()), arguments, [])
        loop = ast.For(ast.Name(counter, ast.Store()), steps, node.body[:-1] or [ast.Pass()], [])
        return ast.fix_missing_locations(ast.copy_location(loop, node))

    def _is_read_elsewhere(self, loop: ast.While, counter: str) -> bool:
        """Tell whether anything behind a loop reads its counter, which has another value there, or may do so."""
        inside = set(map(id, ast.walk(loop)))
        reads = (node for node in ast.walk(self._function) if isinstance(node, ast.Name) and id(node) not in inside)
        return any(isinstance(node.ctx, ast.Load) and node.id == counter for node in reads)


def _range(loop: ast.While) -> tuple[str, list[ast.expr]] | None:
    """Return the counter of a loop and the further arguments of ``range``; None where it counts in another way."""
    match loop.test, loop.body[-1]:
        case (
            ast.Compare(
                left=ast.Name(id=counter), ops=[ast.Lt() | ast.LtE() | ast.Gt() | ast.GtE() as asked], comparators=[end]
            ),
            ast.AugAssign(
                target=ast.Name(id=counted), op=ast.Add() | ast.Sub() as change, value=ast.Constant(value=int(step))
            ),
        ) if counter == counted and step > 0:
            pass
        case _:
            return None
    rising = isinstance(asked, ast.Lt | ast.LtE)
    others = stored_in(loop.body[:-1])
    leaves = (ast.Break, ast.Continue)
    if rising != isinstance(change, ast.Add) or loop.orelse or counter in others or mentions(end, others | {counter}):
        return None
    if any(isinstance(node, leaves) for node in ast.walk(loop)) or any(isinstance(n, ast.Call) for n in ast.walk(end)):
        return None
    if isinstance(asked, ast.LtE | ast.GtE):
        end = ast.BinOp(end, ast.Add() if rising else ast.Sub(), ast.Constant(1))
    return counter, [end, ast.Constant(step) if rising else ast.UnaryOp(ast.USub(), ast.Constant(step))]
