"""Which loops of a function can be scans, what they carry from step to step, and what they append to lists."""

from __future__ import annotations

import ast
import dataclasses
import math
from collections.abc import Collection, Sequence

from onnx_fx_export.capture.size_loops.conditions import changing, conditions_on
from onnx_fx_export.capture.size_loops.names import parameters_of, stored, stored_in

__all__ = ["Growth", "Order", "Plan", "Source", "growth_of", "is_newest", "plan_of", "source_of"]

# Statements in a body that a scan cannot do.
_EXCLUDED = (
    *(ast.Break, ast.Continue, ast.Return, ast.Yield, ast.YieldFrom, ast.Await, ast.Global, ast.Nonlocal, ast.Delete),
    *(ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef, ast.Try, ast.With, ast.While, ast.NamedExpr, ast.Import),
    *(ast.ImportFrom, ast.Lambda),
)
_LOOPS = (ast.For, ast.While, ast.AsyncFor)


class Order:
    """The statements of a function in order, whatever lines they are on.

    Args:
        function: The function.
    """

    def __init__(self, function: ast.FunctionDef) -> None:
        self.function = function
        # The number of the statement that a node belongs to, and of the last one inside of a statement.
        self._places: dict[ast.AST, int] = {}
        self._ends: dict[ast.AST, int] = {}
        self._count = 0
        self._number(function)

    def _number(self, statement: ast.AST) -> None:
        place = self._places[statement] = self._count
        self._count += 1
        waiting = list(ast.iter_child_nodes(statement))
        while waiting:
            node = waiting.pop(0)
            if isinstance(node, ast.stmt):
                self._number(node)
            else:
                self._places[node] = place
                waiting[:0] = ast.iter_child_nodes(node)
        self._ends[statement] = self._count - 1

    def place(self, node: ast.AST) -> int:
        """Return the number of the statement of a node."""
        return self._places[node]

    def end(self, statement: ast.AST) -> int:
        """Return the number of the last statement inside of one."""
        return self._ends[statement]

    def names(self, context: type[ast.expr_context], since: int = -1, until: float = math.inf) -> set[str]:
        """Return the names that are read or assigned between two statements."""
        found = (node for node in ast.walk(self.function) if isinstance(node, ast.Name))
        named = ((node.id, self._places[node]) for node in found if isinstance(node.ctx, context))
        return {name for name, place in named if since < place < until}

    def is_read_first(self, name: str, since: int, until: float = math.inf) -> bool:
        """Tell whether a name is read between two statements before it gets a value there."""
        named = (node for node in ast.walk(self.function) if isinstance(node, ast.Name) and node.id == name)
        uses = [node for node in named if since < self._places[node] < until]
        first = min((self._places[use] for use in uses), default=0)
        return any(isinstance(use.ctx, ast.Load) for use in uses if self._places[use] == first)


@dataclasses.dataclass(frozen=True)
class Source:
    """What a loop goes over.

    Attributes:
        items: The arguments of ``range``, or what has the rows, one after the other.
        targets: What is assigned in each step: its number first, or None if it has no name, and a row of each item.
        is_range: Whether it counts.
        is_reversed: Whether it counts down.
    """

    items: Sequence[ast.expr]
    targets: Sequence[str | None]
    is_range: bool = False
    is_reversed: bool = False


@dataclasses.dataclass(frozen=True)
class Growth:
    """What a statement adds to a list.

    Attributes:
        name: The list.
        value: What is added.
        in_front: Whether it becomes the first element, not the last one.
        is_read: Whether the loop reads what the step before it has added.
    """

    name: str
    value: ast.expr
    in_front: bool = False
    is_read: bool = False


@dataclasses.dataclass(frozen=True)
class Plan:
    """How a loop becomes a scan.

    Attributes:
        source: What it goes over.
        carried: The names that have a value from one step to the next, or that are read behind the loop.
        lists: What it adds to lists in each step.
        unset: Those of the names that have no value before the first step.
    """

    source: Source
    carried: Sequence[str]
    lists: Sequence[Growth]
    unset: Sequence[str] = ()


def plan_of(order: Order, loop: ast.For) -> Plan | None:
    """Return how a loop of a function becomes a scan; None if it cannot."""
    inside = [node for statement in loop.body for node in ast.walk(statement)]
    source = source_of(loop)
    if source is None or any(map(_is_excluded, inside)):
        return None
    found = [growth for statement in loop.body if (growth := growth_of(statement)) is not None]
    calls = [node for node in inside if isinstance(node, ast.Expr)]
    grown = [_with_reads(growth, inside) for growth in found]
    lists = [growth.name for growth in found]
    if len(calls) > len(lists) or len(set(lists)) < len(lists) or None in grown:
        return None
    assigned = [name for node in inside if (name := stored(node)) is not None]
    start, end = order.place(loop), order.end(loop)
    before = order.names(ast.Store, until=start) | parameters_of(order.function)
    own = {name for node in inside if isinstance(node, ast.comprehension) for name in _names(node.target)}
    open_ = {name for name in assigned if name not in lists and name not in own}
    left = {name for name in open_ - before if order.is_read_first(name, end)}
    conditional = _under_conditions(order, loop, changing(source.targets, loop.body))
    left |= conditional & open_ - before
    is_inner = any(
        loop in ast.walk(node) for node in ast.walk(order.function) if isinstance(node, _LOOPS) and node is not loop
    )
    if left and is_inner:
        return None
    kept = {node.target.id for node in inside if isinstance(node, ast.AugAssign) and isinstance(node.target, ast.Name)}
    # What comes before a loop within another loop comes after it as well.
    kept = before if is_inner else kept | conditional
    wanted = [name for name in dict.fromkeys(assigned) if name in before and name not in lists]
    reads = {name for name in wanted if order.is_read_first(name, start, end + 1)}
    reads |= {name for name in wanted if order.is_read_first(name, end)}
    carried = [*(name for name in wanted if name in kept | reads), *sorted(left)]
    return Plan(source, carried, [each for each in grown if each is not None], sorted(left))


def _under_conditions(order: Order, loop: ast.For, names: Collection[str]) -> set[str]:
    """Return the names that keep the value of an earlier step where a condition that changes assigns them or not."""
    found: set[str] = set()
    for node in conditions_on(names, loop.body):
        top = next(statement for statement in loop.body if node in ast.walk(statement))
        earlier = stored_in([each for each in loop.body[: loop.body.index(top)] if not isinstance(each, ast.If)])
        branches = [branch for branch in (node.body, node.orelse) if branch]
        for branch in branches:
            since, until = order.place(branch[0]) - 1, order.end(branch[-1]) + 1
            found |= {name for name in stored_in(loop.body) if order.is_read_first(name, since, until)} - earlier
        one = stored_in(node.body) ^ stored_in(node.orelse)
        read = order.names(ast.Load, order.end(node), order.end(loop) + 1)
        found |= {name for name in one - earlier if name in read or order.is_read_first(name, order.end(loop))}
    return found


def source_of(loop: ast.For) -> Source | None:
    """Return what a loop goes over; None where that is fixed, or written in another way than is known here."""
    source = None if loop.orelse else _written_source(loop)
    if source is None or any(isinstance(item, ast.Starred) for item in source.items):
        return None
    is_fixed = all if source.is_range else any
    return None if is_fixed(map(_is_fixed, source.items)) else source


def _written_source(loop: ast.For) -> Source | None:
    match loop.target, loop.iter:
        case ast.Name(id=name), ast.Call(func=ast.Name(id="range"), args=args, keywords=[]):
            return Source(args, [name], is_range=True)
        case ast.Name(id=name), ast.Call(
            func=ast.Name(id="reversed"), args=[ast.Call(func=ast.Name(id="range"), args=args, keywords=[])]
        ):
            return Source(args, [name], is_range=True, is_reversed=True)
        case ast.Tuple(elts=[ast.Name(id=number), ast.Name(id=name)]), ast.Call(
            func=ast.Name(id="enumerate"), args=[item], keywords=[]
        ):
            return Source([item], [number, name])
        case ast.Tuple(elts=[ast.Name(id=number), ast.Tuple(elts=names)]), ast.Call(
            func=ast.Name(id="enumerate"),
            args=[ast.Call(func=ast.Name(id="zip"), args=items, keywords=[] | [ast.keyword(arg="strict")])],
            keywords=[],
        ):
            return _zipped(number, names, items)
        case ast.Tuple(elts=names), ast.Call(
            func=ast.Name(id="zip"), args=items, keywords=[] | [ast.keyword(arg="strict")]
        ):
            return _zipped(None, names, items)
        case ast.Name(id=name), item:
            return Source([item], [None, name])
        case _:
            return None


def _zipped(number: str | None, names: Sequence[ast.expr], items: Sequence[ast.expr]) -> Source | None:
    known = [name.id for name in names if isinstance(name, ast.Name)]
    return Source(items, [number, *known]) if len(known) == len(names) == len(items) else None


def _is_fixed(item: ast.expr) -> bool:
    """Tell whether a loop over something has the same steps in each call: a literal or part of the module."""
    match item:
        case ast.Constant() | ast.List() | ast.Tuple() | ast.Dict():
            return True
        case ast.Attribute(value=ast.Name(id="self")):
            return True
        case ast.Call(func=ast.Name(id="len" | "reversed"), args=[of], keywords=[]):
            return _is_fixed(of)
        case _:
            return False


def _is_excluded(node: ast.AST) -> bool:
    if isinstance(node, ast.Attribute | ast.Subscript) and isinstance(node.ctx, ast.Store):
        return not (isinstance(node, ast.Subscript) and isinstance(node.value, ast.Name))
    return isinstance(node, _EXCLUDED)


def growth_of(statement: ast.AST) -> Growth | None:
    """Return what a statement adds to a list; None for another statement."""
    match statement:
        case ast.Expr(ast.Call(func=ast.Attribute(value=ast.Name(id=name), attr="append"), args=[value], keywords=[])):
            return Growth(name, value)
        case ast.Expr(
            ast.Call(
                func=ast.Attribute(value=ast.Name(id=name), attr="insert"),
                args=[ast.Constant(value=0), value],
                keywords=[],
            )
        ):
            return Growth(name, value, in_front=True)
        case _:
            return None


def is_newest(node: ast.AST, growth: Growth) -> bool:
    """Tell whether an expression reads the element that was added to a list last."""
    match node:
        case ast.Subscript(value=ast.Name(id=name), slice=place, ctx=ast.Load()):
            wanted = ast.Constant(0) if growth.in_front else ast.UnaryOp(ast.USub(), ast.Constant(1))
            return name == growth.name and ast.dump(place) == ast.dump(wanted)
        case _:
            return False


def _with_reads(growth: Growth, inside: Sequence[ast.AST]) -> Growth | None:
    """Return a growth with whether its loop reads the newest element; None if it reads the list in another way."""
    newest = sum(is_newest(node, growth) for node in inside)
    read = sum(isinstance(node, ast.Name) and node.id == growth.name for node in inside)
    # One is that of the growth itself.
    return dataclasses.replace(growth, is_read=newest > 0) if read == newest + 1 else None


def _names(target: ast.expr) -> set[str]:
    return {node.id for node in ast.walk(target) if isinstance(node, ast.Name)}
