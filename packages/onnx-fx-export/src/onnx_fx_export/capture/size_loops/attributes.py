"""Loops that keep their state in attributes of the module, written as those that keep it in names."""

from __future__ import annotations

import ast
import copy
from collections.abc import Mapping
from typing import Any

from onnx_fx_export.capture.size_loops.names import helper

__all__ = ["with_names"]

_NAME = "__onnx_fx_attribute_"


def with_names(function: ast.FunctionDef) -> ast.FunctionDef:
    """Write ``self.state = ...`` in loops as an assignment to a name, which the attribute becomes behind the loop.

    That is done where nothing else can ask for the attribute inside of the loop; the loop as it was stays for the
    other case.
    """
    arguments = [*function.args.posonlyargs, *function.args.args]
    if arguments:
        _Loops(arguments[0].arg).visit(function)
    return function


class _Loops(ast.NodeTransformer):
    def __init__(self, owner: str) -> None:
        self._owner = owner

    def visit_For(self, node: ast.For) -> Any:
        inside = [part for statement in node.body for part in ast.walk(statement)]
        attributes = [part for part in inside if isinstance(part, ast.Attribute) and self._is_owner(part.value)]
        kept = sorted({each.attr for each in attributes if isinstance(each.ctx, ast.Store)})
        uses = sum(self._is_owner(part) for part in inside)
        if not kept or uses > len(attributes):
            return self.generic_visit(node)
        called = {part.func.attr for part in inside if isinstance(part, ast.Call) and part.func in attributes}
        names = {attribute: f"{_NAME}{attribute}" for attribute in kept}
        before = [ast.Assign([ast.Name(name, ast.Store())], self._attribute(key)) for key, name in names.items()]
        behind = [
            ast.Assign([self._attribute(key, ast.Store())], ast.Name(name, ast.Load())) for key, name in names.items()
        ]
        loop = copy.deepcopy(node)
        loop.body = [_Named(self._owner, names).visit(statement) for statement in loop.body]
        read = {each.attr for each in attributes if isinstance(each.ctx, ast.Load)}
        lists = [ast.List([*map(ast.Constant, each)], ast.Load()) for each in (kept, sorted(called), sorted(read))]
        test = ast.Call(helper("are_apart"), [ast.Name(self._owner, ast.Load()), *lists], [])
        choice = ast.If(test, [*before, loop, *behind], [node])
        return ast.fix_missing_locations(ast.copy_location(choice, node))

    def _is_owner(self, node: ast.AST) -> bool:
        return isinstance(node, ast.Name) and node.id == self._owner

    def _attribute(self, name: str, context: ast.expr_context | None = None) -> ast.expr:
        return ast.Attribute(ast.Name(self._owner, ast.Load()), name, context or ast.Load())


class _Named(ast.NodeTransformer):
    def __init__(self, owner: str, names: Mapping[str, str]) -> None:
        self._owner, self._names = owner, names

    def visit_Attribute(self, node: ast.Attribute) -> Any:
        self.generic_visit(node)
        if isinstance(node.value, ast.Name) and node.value.id == self._owner and node.attr in self._names:
            return ast.copy_location(ast.Name(self._names[node.attr], node.ctx), node)
        return node
