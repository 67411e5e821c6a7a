"""Lists that comprehensions make, written as loops that append to them."""

from __future__ import annotations

import ast
from collections.abc import Collection, Iterator, Mapping

__all__ = ["Renamed", "with_loops"]

# Their parts are not evaluated, or not once, whenever the statement is.
_LAZY = (ast.Lambda, ast.IfExp, ast.BoolOp, ast.ListComp, ast.SetComp, ast.DictComp, ast.GeneratorExp, ast.NamedExpr)
_SIMPLE = (ast.Assign, ast.AugAssign, ast.AnnAssign, ast.Return, ast.Expr)
# They take the elements of a generator one after the other.
_CONSUMERS = ("sum", "list", "tuple")


def with_loops(function: ast.FunctionDef, whole: Collection[ast.For]) -> ast.FunctionDef:
    """Write the comprehensions of a function as loops, where its statements evaluate them once.

    Args:
        function: The function, which is changed.
        whole: Loops whose bodies stay as they are.
    """
    _Maps().visit(function)
    _Statements(whole).generic_visit(function)
    return function


class _Maps(ast.NodeTransformer):
    """Writes ``list(map(f, values))`` as the comprehension that makes the same list."""

    def visit_Call(self, node: ast.Call) -> ast.AST:
        self.generic_visit(node)
        match node:
            case ast.Call(
                func=ast.Name(id="list"),
                args=[ast.Call(func=ast.Name(id="map"), args=[ast.Name() | ast.Attribute() as function, values])],
                keywords=[],
            ):
                element = ast.Call(function, [ast.Name("each", ast.Load())], [])
                source = ast.comprehension(ast.Name("each", ast.Store()), values, [], 0)
                return ast.copy_location(ast.ListComp(element, [source]), node)
            case _:
                return node


class _Statements(ast.NodeTransformer):
    """Puts the loops of the comprehensions in a statement before it."""

    def __init__(self, whole: Collection[ast.For]) -> None:
        self._whole, self.count = whole, 0

    def visit(self, node: ast.AST) -> ast.AST | list[ast.AST]:
        if node in self._whole:
            return node
        if not isinstance(node, _SIMPLE):
            return self.generic_visit(node) if isinstance(node, ast.stmt | ast.mod | ast.ExceptHandler) else node
        loops: list[ast.AST] = []
        for comprehension in list(_comprehensions(node)):
            self.count += 1
            name = f"__onnx_fx_list_{self.count}"
            loops.extend(_loop(comprehension, name))
            node = _Replaced(comprehension, name).visit(node)
        return [*(ast.copy_location(loop, node) for loop in loops), node]


def _comprehensions(statement: ast.AST) -> Iterator[ast.ListComp | ast.GeneratorExp]:
    """Yield the comprehensions that a statement evaluates once, from the inside of none of them."""
    for child in ast.iter_child_nodes(statement):
        if isinstance(child, ast.ListComp | ast.GeneratorExp) and _is_plain(child):
            if isinstance(child, ast.ListComp) or _is_consumed(statement, child):
                yield child
        elif not isinstance(child, _LAZY):
            yield from _comprehensions(child)


def _is_consumed(parent: ast.AST, generator: ast.AST) -> bool:
    match parent:
        case ast.Call(func=ast.Name(id=name), args=[first, *_]):
            return name in _CONSUMERS and first is generator
        case _:
            return False


def _is_plain(comprehension: ast.ListComp | ast.GeneratorExp) -> bool:
    match comprehension.generators:
        case [ast.comprehension(target=target, ifs=[], is_async=0)]:
            names = target.elts if isinstance(target, ast.Tuple) else [target]
            scopes = any(isinstance(node, ast.Lambda | ast.NamedExpr) for node in ast.walk(comprehension.elt))
            return not scopes and all(isinstance(name, ast.Name) for name in names)
        case _:
            return False


def _loop(comprehension: ast.ListComp | ast.GeneratorExp, name: str) -> list[ast.stmt]:
    """Return the loop; what a comprehension counts with is a name of its own."""
    (generator,) = comprehension.generators
    own = {node.id for node in ast.walk(generator.target) if isinstance(node, ast.Name)}
    renamed = Renamed({each: f"{name}_{each}" for each in own})
    target, element = renamed.visit(generator.target), renamed.visit(comprehension.elt)
    append = ast.Call(ast.Attribute(ast.Name(name, ast.Load()), "append", ast.Load()), [element], [])
    return [
        ast.Assign([ast.Name(name, ast.Store())], ast.List([], ast.Load())),
        ast.For(target, generator.iter, [ast.Expr(append)], []),
    ]


class Renamed(ast.NodeTransformer):
    """Gives names others, wherever they are read or assigned."""

    def __init__(self, names: Mapping[str, str]) -> None:
        self._names = names

    def visit_Name(self, node: ast.Name) -> ast.Name:  # noqa: D102
        return ast.copy_location(ast.Name(self._names.get(node.id, node.id), node.ctx), node)


class _Replaced(ast.NodeTransformer):
    def __init__(self, old: ast.AST, name: str) -> None:
        self._old, self._name = old, name

    def visit_ListComp(self, node: ast.ListComp) -> ast.AST:
        return self._new(node)

    def visit_GeneratorExp(self, node: ast.GeneratorExp) -> ast.AST:
        return self._new(node)

    def _new(self, node: ast.AST) -> ast.AST:
        return ast.copy_location(ast.Name(self._name, ast.Load()), node) if node is self._old else node
