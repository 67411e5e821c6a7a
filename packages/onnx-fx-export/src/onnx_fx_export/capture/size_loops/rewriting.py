"""Functions of a model with their loops written as scans, where the number of steps is dynamic."""

from __future__ import annotations

import ast
import builtins
from collections.abc import Collection, Mapping, Sequence
from typing import Any

from onnx_fx_export.capture.size_loops.attributes import with_names
from onnx_fx_export.capture.size_loops.conditions import Choices, changing
from onnx_fx_export.capture.size_loops.counted import with_ranges
from onnx_fx_export.capture.size_loops.exits import without_exits
from onnx_fx_export.capture.size_loops.lists import Renamed, with_loops
from onnx_fx_export.capture.size_loops.names import HELP, helper, mentions, parameters_of, stored_in
from onnx_fx_export.capture.size_loops.planning import (
    Growth,
    Order,
    Plan,
    Source,
    growth_of,
    is_newest,
    plan_of,
)

__all__ = ["rewritten"]

_IMPORT = f"from onnx_fx_export.capture.size_loops import running as {HELP}"
# What the names begin with that are made here.
_OWN = "__onnx_fx_"
_BUILT_IN = frozenset(vars(builtins))
_OF_NUMBERS = ("float", "int", "max", "min")
_JOINS = ("stack", "cat", "concat", "concatenate")


def rewritten(function: ast.FunctionDef) -> ast.FunctionDef | None:
    """Return a function with its loops as scans; None if it has none that can be one.

    Args:
        function: The function, which is changed.
    """
    _Supers(function).visit(without_exits(with_ranges(with_names(function))))
    # All loops are planned before the first one is rewritten.
    plans = _plans(with_loops(function, _plans(function)))
    rewriter = _Rewriter(function, plans)
    rewriter.visit(function)
    calls = _Calls()
    calls.visit(function)
    if not rewriter.count and not calls.parts:
        return None
    first = function.body[0]
    start = 1 if isinstance(first, ast.Expr) and isinstance(first.value, ast.Constant) else 0
    function.body[start:start] = ast.parse(_IMPORT).body
    return function


def _plans(function: ast.FunctionDef) -> dict[ast.For, Plan]:
    order = Order(function)
    loops = [node for node in ast.walk(function) if isinstance(node, ast.For)]
    return {loop: plan for loop in loops if (plan := plan_of(order, loop)) is not None}


class _Rewriter(ast.NodeTransformer):
    """Rewrites the loops of a function that can be scans; ``count`` says how many."""

    def __init__(self, function: ast.FunctionDef, plans: Mapping[ast.For, Plan]) -> None:
        self._function, self._plans, self.count = function, plans, 0
        self._counters = {name for plan in plans.values() if (name := plan.source.targets[0]) is not None}
        # The names that the outermost loop assigns, and what is asked before it of the loops inside of it.
        self._assigned: set[str] | None = None
        self._asked: list[str] = []

    def visit_For(self, node: ast.For) -> Any:
        plan = self._plans.get(node)
        if plan is None:
            return self.generic_visit(node)
        self.count += 1
        own = f"{_OWN}{self.count}"
        if self._assigned is not None:
            is_open = self._ask_before(plan, own)
            self.generic_visit(node)
            return _either(node, plan, own, self._scan(node, plan, own), is_open)
        self._assigned, self._asked = _assigned(node), []
        self.generic_visit(node)
        self._assigned = None
        asked = ast.parse("\n".join(self._asked)).body
        scan = self._scan(node, plan, own)
        if _is_read_behind(self._function, node, plan.source.targets[0]):
            scan.append(f"{plan.source.targets[0]} = {own}_numbers[-1]")
        return [*(ast.copy_location(each, node) for each in asked), *_either(node, plan, own, scan, "None")]

    def _scan(self, loop: ast.For, plan: Plan, own: str) -> list[str]:
        """Return the lines that run a loop as a scan, with copies of what it reads alone."""
        local = stored_in([self._function]) | parameters_of(self._function)
        inside = [node for part in loop.body for node in ast.walk(part)]
        owners = {id(node.value) for node in inside if isinstance(node, ast.Attribute)}
        owners |= {id(node.func) for node in inside if isinstance(node, ast.Call)}
        # Modules and functions are called or asked for something; what is neither may be a tensor from outside.
        found = [node for node in inside if isinstance(node, ast.Name) and not node.id.startswith(_OWN)]
        read = {node.id for node in found if node.id in local or (id(node) not in owners and node.id not in _BUILT_IN)}
        others = {*stored_in(loop.body), *plan.source.targets, *(each.name for each in plan.lists)}
        names = {name: f"{own}_copy_of_{name}" for name in sorted(read - others)}
        copies = [f"{copy} = {HELP}.copied(lambda: {name})" for name, copy in names.items()]
        return [*copies, *_scanned(loop, plan, own, self._counters, names)]

    def _ask_before(self, plan: Plan, own: str) -> str:
        """Return what tells whether the steps of an inner loop are as many as a size says, asked before the outer one.

        The body of a scan takes all sizes for plain numbers.
        """
        items = plan.source.items
        if not plan.source.is_range or not all(_is_plain(item, self._assigned or set()) for item in items):
            return "None"
        self._asked.append(f"{own}_open = {HELP}.is_open({', '.join(map(ast.unparse, items))})")
        return f"{own}_open"

    def visit_FunctionDef(self, node: ast.FunctionDef) -> Any:
        return self.generic_visit(node) if node is self._function else node


def _assigned(loop: ast.For) -> set[str]:
    return {node.id for node in ast.walk(loop) if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store)}


def _is_plain(bound: ast.expr, assigned: set[str]) -> bool:
    """Tell whether a bound is computed of sizes and numbers that are the same in each step of the loop around."""
    known = (ast.Name, ast.Constant, ast.BinOp, ast.UnaryOp, ast.Attribute, ast.Subscript, ast.Call)
    parts = [node for node in ast.walk(bound) if isinstance(node, ast.expr)]
    calls = [node.func for node in parts if isinstance(node, ast.Call)]
    return (
        all(isinstance(node, known) for node in parts)
        and all(isinstance(call, ast.Attribute) and call.attr == "size" for call in calls)
        and not any(isinstance(node, ast.Name) and node.id in assigned for node in parts)
    )


def _is_read_behind(function: ast.FunctionDef, loop: ast.For, counter: str | None) -> bool:
    order = Order(function)
    return counter is not None and order.is_read_first(counter, order.end(loop))


def _either(loop: ast.For, plan: Plan, own: str, scanned: Sequence[str], is_open: str) -> list[ast.stmt]:
    """Return a loop that is a scan if the number of its steps is dynamic.

    Args:
        loop: The loop.
        plan: How it becomes a scan.
        own: What the names begin with that it gets.
        scanned: The lines that run it as a scan.
        is_open: An expression that tells whether there are as many steps as a size says; None where that shows.
    """
    source = plan.source
    items = [ast.unparse(item) for item in source.items]
    counted = f"{HELP}.numbers(*{own}_rows)"
    if source.is_range:
        counted = f"{HELP}.steps({', '.join(items)}, is_reversed={source.is_reversed}, known={is_open})"
    lines = [
        *([] if source.is_range else [f"{own}_rows = [{', '.join(items)}]"]),
        f"{own}_numbers = {counted}",
        f"if {own}_numbers is not None:",
        *(f"    {line}" for line in scanned),
        "else:",
        *(f"    {line}" for line in ast.unparse(_unrolled(loop, own, plan)).splitlines()),
    ]
    return [ast.copy_location(node, loop) for node in ast.parse("\n".join(lines)).body]


def _scanned(loop: ast.For, plan: Plan, own: str, counters: Collection[str], renamed: Mapping[str, str]) -> list[str]:
    """Return the lines that run a loop as a scan."""
    appended = [f"{own}_appended_{index}" for index in range(len(plan.lists))]
    lists = dict(zip(appended, plan.lists, strict=True))
    newest = {_newest(name): growth for name, growth in lists.items() if growth.is_read}
    before = [*plan.carried, *(f"{HELP}.newest({each.name}, {each.in_front})" for each in newest.values())]
    names, targets = [*plan.carried, *newest], plan.source.targets
    carried, number = ", ".join(names), targets[0] or f"{own}_number"
    rows = [f"{name} = {HELP}.row({own}_rows[{index}], {number})" for index, name in enumerate(targets[1:])]
    known = {*names, number, *(name for name in targets if name is not None)}
    choices = Choices(own, changing([number, *targets], loop.body), known)
    body = _body(loop, lists, choices, counters)
    body = ast.unparse(Renamed(renamed).visit(ast.parse(body)))
    first = _first(plan.source)
    return [
        *([] if plan.source.is_range else [f"{own}_rows = [*map({HELP}.as_rows, {own}_rows)]"]),
        *(f"{name} = {HELP}.Unset()" for name in plan.unset),
        f"def {own}_body({', '.join((*names, number))}):",
        *(f"    {line}" for line in (*rows, *body.splitlines())),
        f"    return [{carried}], [{', '.join(appended)}]",
        f"{own}_after, {own}_stacked = {HELP}.run({own}_body, [{', '.join(before)}], {own}_numbers, {first})",
        *([f"[{carried}] = {own}_after"] if before else []),
        *(
            f"{each.name} = {HELP}.Appended({each.name}, {own}_stacked[{index}], in_front={each.in_front})"
            for index, each in enumerate(plan.lists)
        ),
    ]


def _first(source: Source) -> str:
    """Return an expression of the number of the first step, or of None where it is not written."""
    if not source.is_range:
        return "0"
    if source.is_reversed:
        return "None"
    return ast.unparse(source.items[0]) if len(source.items) > 1 else "0"


def _unrolled(loop: ast.For, own: str, plan: Plan) -> ast.For:
    """Return the loop as it is for a fixed number of steps; what it goes over is evaluated already."""
    if plan.source.is_range:
        return loop
    items = ", ".join(f"{own}_rows[{index}]" for index in range(len(plan.source.items)))
    number, *names = plan.source.targets
    if isinstance(loop.target, ast.Tuple):
        items = f"zip({items})" if number is None or len(names) > 1 else items
        items = items if number is None else f"enumerate({items})"
    over = ast.parse(items, mode="eval").body
    return ast.copy_location(ast.For(loop.target, over, loop.body, []), loop)


class _Supers(ast.NodeTransformer):
    """Writes ``super()`` with what it means in a method, as the body of a loop becomes a function of its own."""

    def __init__(self, function: ast.FunctionDef) -> None:
        self._arguments = [*function.args.posonlyargs, *function.args.args]

    def visit_Call(self, node: ast.Call) -> Any:
        self.generic_visit(node)
        match node:
            case ast.Call(func=ast.Name(id="super"), args=[], keywords=[]) if self._arguments:
                node.args = [ast.Name(name, ast.Load()) for name in ("__class__", self._arguments[0].arg)]
        return node


class _Subscripts(ast.NodeTransformer):
    """Writes reads and writes of parts as calls, which take tensors for numbers.

    Args:
        counters: The names of what loops count, which may be tensors.
    """

    def __init__(self, counters: Collection[str]) -> None:
        self._counters = counters
        # In functions stands what is done under conditions.
        self._is_wanted = True

    def visit_FunctionDef(self, node: ast.FunctionDef) -> Any:
        return self._in_condition(node)

    def visit_Lambda(self, node: ast.Lambda) -> Any:
        return self._in_condition(node)

    def _in_condition(self, node: ast.AST) -> Any:
        before, self._is_wanted = self._is_wanted, False
        self.generic_visit(node)
        self._is_wanted = before
        return node

    def visit_Subscript(self, node: ast.Subscript) -> Any:
        self.generic_visit(node)
        return self._taken(node.value, node.slice) if isinstance(node.ctx, ast.Load) else node

    def visit_Assign(self, node: ast.Assign) -> Any:
        self.generic_visit(node)
        match node.targets:
            case [ast.Subscript(value=ast.Name(id=name), slice=key)]:
                return self._put(name, key, node.value)
            case _:
                return node

    def visit_AugAssign(self, node: ast.AugAssign) -> Any:
        self.generic_visit(node)
        match node.target:
            case ast.Subscript(value=ast.Name(id=name), slice=key):
                before = self._taken(ast.Name(name, ast.Load()), key)
                return self._put(name, key, ast.BinOp(before, node.op, node.value))
            case _:
                return node

    def _taken(self, value: ast.expr, key: ast.expr) -> ast.expr:
        return self._call("taken", [value, self._key(key)], key)

    def _put(self, name: str, key: ast.expr, value: ast.expr) -> ast.Assign:
        call = self._call("put", [ast.Name(name, ast.Load()), self._key(key), value], key)
        return ast.Assign([ast.Name(name, ast.Store())], call)

    def _call(self, name: str, arguments: Sequence[ast.expr], key: ast.expr) -> ast.expr:
        if not self._is_wanted:
            return ast.Call(helper(f"{name}_anywhere"), [*arguments], [])
        parts = key.elts if isinstance(key, ast.Tuple) else [key]
        names = [part.id if isinstance(part, ast.Name) else None for part in parts]
        counted = [place for place, name in enumerate(names) if name in self._counters]
        return ast.Call(helper(name), [*arguments, *map(ast.Constant, counted)], [])

    def _key(self, key: ast.expr) -> ast.expr:
        """Return an index as an expression of its own."""
        if isinstance(key, ast.Tuple):
            return ast.Tuple([self._key(part) for part in key.elts], ast.Load())
        if not isinstance(key, ast.Slice):
            return key
        parts = [part or ast.Constant(None) for part in (key.lower, key.upper, key.step)]
        if key.lower is None or key.upper is None or not mentions(key, self._counters):
            return ast.Call(ast.Name("slice", ast.Load()), parts, [])
        # A window has the same length wherever it begins.
        begins = [_at(bound, self._counters, number) for number in (0, 1) for bound in (key.lower, key.upper)]
        return ast.Call(helper("window"), [*parts, *begins], [])


class _Computed(ast.NodeTransformer):
    """Writes what is computed of numbers as calls that take tensors for them."""

    def visit_Call(self, node: ast.Call) -> Any:
        self.generic_visit(node)
        match node:
            case ast.Call(func=ast.Name(id=name), args=[_, *_], keywords=[]) if name in _OF_NUMBERS:
                return ast.Call(helper("computed"), [ast.Constant(name), node.func, *node.args], [])
            case ast.Call(func=ast.Attribute(value=ast.Name(id="math"), attr=name), args=[_, *_], keywords=[]):
                return ast.Call(helper("computed"), [ast.Constant(f"math.{name}"), node.func, *node.args], [])
            case _:
                return node


def _at(bound: ast.expr, counters: Collection[str], number: int) -> ast.expr:
    """Return an expression with a number for all counters."""
    found = ast.parse(ast.unparse(bound), mode="eval").body
    return _Numbers(counters, number).visit(found)  # type: ignore[no-any-return]


class _Numbers(ast.NodeTransformer):
    def __init__(self, names: Collection[str], number: int) -> None:
        self._names, self._number = names, number

    def visit_Name(self, node: ast.Name) -> ast.expr:
        return ast.Constant(self._number) if node.id in self._names else node


def _newest(appended: str) -> str:
    """Return the name of what was added to a list in the step before."""
    return f"{appended}_before"


def _body(loop: ast.For, lists: Mapping[str, Growth], choices: Choices, counters: Collection[str]) -> str:
    """Return the body of a loop as that of a function.

    Args:
        loop: The loop.
        lists: The names for what is added to lists.
        choices: What writes its conditions on what is counted.
        counters: The names of what loops count.
    """
    body = ast.parse("\n".join(_with_names(statement, lists) for statement in loop.body))
    for rewrite in (_NewestReads(lists), choices, _Computed(), _Subscripts(counters)):
        body = rewrite.visit(ast.parse(ast.unparse(ast.fix_missing_locations(body))))
    return ast.unparse(ast.fix_missing_locations(body))


def _with_names(statement: ast.stmt, lists: Mapping[str, Growth]) -> str:
    """Return a statement, with names for what it adds to a list."""
    growth = growth_of(statement)
    if growth is not None:
        name, known = next((name, each) for name, each in lists.items() if each.name == growth.name)
        names = [ast.Name(each, ast.Store()) for each in (name, *([_newest(name)] if known.is_read else []))]
        statement = ast.Assign(list(names), growth.value)
    return ast.unparse(ast.fix_missing_locations(statement))


class _NewestReads(ast.NodeTransformer):
    """Writes reads of what was added to a list in the step before as the names that carry it."""

    def __init__(self, lists: Mapping[str, Growth]) -> None:
        self._lists = lists

    def visit_Subscript(self, node: ast.Subscript) -> Any:
        self.generic_visit(node)
        found = next((name for name, growth in self._lists.items() if is_newest(node, growth)), None)
        return node if found is None else ast.Name(_newest(found), ast.Load())


class _Calls(ast.NodeTransformer):
    """Lets what loops append to lists be joined and added up, and loops go over the parts of tensors."""

    def __init__(self) -> None:
        self.parts = False

    def visit_Subscript(self, node: ast.Subscript) -> Any:
        match node:
            case ast.Subscript(
                value=ast.Call(func=ast.Attribute(value=owner, attr="split" | "chunk" as name)) as call,
                slice=ast.Constant(value=int(index)),
                ctx=ast.Load(),
            ):
                self.parts = True
                self.generic_visit(call)
                given = [owner, ast.Constant(name), ast.Constant(index), *call.args]
                return ast.Call(helper("part"), given, call.keywords)
            case _:
                return self.generic_visit(node)

    def visit_Call(self, node: ast.Call) -> Any:
        self.generic_visit(node)
        match node:
            case ast.Call(func=ast.Attribute(value=ast.Name(id="torch"), attr=name), args=[_, *_]) if name in _JOINS:
                return ast.Call(helper("stack"), [node.func, *node.args], node.keywords)
            case ast.Call(func=ast.Attribute(value=owner, attr="unbind")):
                self.parts = True
                return ast.Call(helper("unbound"), [owner, *node.args], node.keywords)
            case ast.Call(func=ast.Attribute(value=owner, attr="split" | "chunk" as name), args=[_, *_]):
                return ast.Call(helper("pieces"), [owner, ast.Constant(name), *node.args], node.keywords)
            case ast.Call(func=ast.Name(id="sum"), args=[_, *_], keywords=[]):
                return ast.Call(helper("total"), [node.func, *node.args], [])
            case ast.Call(func=ast.Name(id="len" | "reversed" as name), args=[_], keywords=[]):
                return ast.Call(helper("length" if name == "len" else "backwards"), [node.func, *node.args], [])
            case _:
                return node
