"""Loops over a dynamic number of steps, written out as scans.

``for i in range(x.shape[1])`` makes a number of the size. The code of a model is rewritten for a capture: where the
number of steps is dynamic, the body becomes the function of a ``scan``. Names that it assigns and that had a value
before are carried from step to step; what it appends to lists is stacked. As what the body does besides may be lost,
what is captured so is compared with the model.
"""

from __future__ import annotations

import ast
import contextlib
import functools
import inspect
import linecache
import math
import types
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import torch

from onnx_fx_export.torch_private import scan
from onnxops_core.exporting import replaced
from onnxops_decomp.exporting import codes_in, homes_of

__all__ = ["has_loops", "scanned_loops"]

# Statements in a body that a scan cannot do.
_EXCLUDED = (
    *(ast.Break, ast.Continue, ast.Return, ast.Yield, ast.YieldFrom, ast.Await, ast.Global, ast.Nonlocal, ast.Delete),
    *(ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef, ast.Try, ast.With, ast.While, ast.NamedExpr, ast.Import),
    *(ast.ImportFrom, ast.Lambda),
)


# ---- at run time


def is_dynamic(*bounds: Any) -> bool:
    """Tell whether the arguments of ``range`` give a dynamic number of steps."""
    return any(isinstance(bound, torch.SymInt) for bound in bounds)


def steps(*bounds: Any) -> torch.Tensor:
    """Return the numbers of ``range`` as a tensor."""
    return torch.arange(*bounds)


def run(body: Any, carried: Sequence[Any], numbers: torch.Tensor) -> tuple[list[Any], list[Any]]:
    """Run the body of a loop as a scan.

    Args:
        body: Takes the carried tensors and the number of a step, and returns those after it, and what it appends.
        carried: Tensors before the first step.
        numbers: The number of each step.

    Returns:
        The carried tensors after the last step, and what was appended, stacked.
    """

    def step(state: Sequence[torch.Tensor], number: torch.Tensor) -> tuple[list[torch.Tensor], list[torch.Tensor]]:
        after, appended = body(*map(_copy, state[:count]), number)
        return [*map(_copy, after), *map(_copy, state[count:])], [*map(_copy, appended)]

    count = len(carried)
    # A scan carries something.
    start = [*map(_copy, carried)] if carried else [torch.zeros(())]
    state, stacked = scan(step, start, numbers)
    return list(state[:count]), list(stacked)


def _copy(value: torch.Tensor) -> torch.Tensor:
    """Return a tensor of its own: no result of a scan is another one, or an operand."""
    return value.clone(memory_format=torch.contiguous_format)


def taken(value: Any, key: Any) -> Any:
    """Return ``value[key]``, where a number in the key may be a tensor without dimensions."""
    parts = key if isinstance(key, tuple) else (key,)
    places = [place for place, part in enumerate(parts) if _is_number(part)]
    if not isinstance(value, torch.Tensor) or len(places) != 1:
        return value[key]
    axis = _axis(value, parts, places[0])
    rest = (*parts[: places[0]], 0, *parts[places[0] + 1 :])
    return value.index_select(axis, parts[places[0]].reshape(1))[rest]


def put(value: torch.Tensor, key: Any, part: Any) -> torch.Tensor:
    """Return a tensor after ``value[key] = part``."""
    parts = key if isinstance(key, tuple) else (key,)
    places = [place for place, each in enumerate(parts) if _is_number(each)]
    result = value.clone()
    if len(places) != 1:
        result[key] = part
        return result
    axis = _axis(value, parts, places[0])
    rest = (*parts[: places[0]], 0, *parts[places[0] + 1 :])
    index = parts[places[0]].reshape(1)
    row = value.index_select(axis, index)
    row[rest] = part
    return result.index_copy(axis, index, row)


def _is_number(part: Any) -> bool:
    return isinstance(part, torch.Tensor) and part.dim() == 0 and part.dtype == torch.int64


def _axis(value: torch.Tensor, parts: Sequence[Any], place: int) -> int:
    """Return the dimension of a tensor that a part of its index is for."""
    if any(part is Ellipsis for part in parts[:place]):
        return value.dim() - sum(part is not None for part in parts[place:])
    return sum(part is not None for part in parts[:place])


class Appended:
    """What a loop appended to a list, in one tensor; for ``torch.stack`` and ``torch.cat`` alone."""

    def __init__(self, before: Sequence[torch.Tensor], stacked: torch.Tensor) -> None:
        if len(before):
            raise NotImplementedError("the list of a loop is not empty before it")
        self.stacked = stacked


def stack(function: Any, values: Any, dim: int = 0) -> Any:
    """Call ``torch.stack`` or ``torch.cat`` of a list, or of what a loop appended to it."""
    if not isinstance(values, Appended):
        return function(values, dim=dim)
    stacked = values.stacked
    if function is torch.stack:
        return stacked.movedim(0, dim)
    dim = dim % (stacked.dim() - 1)
    return stacked.movedim(0, dim).flatten(dim, dim + 1)


# ---- rewriting


class _Rewriter(ast.NodeTransformer):
    """Rewrites the loops of a function that can be scans; ``count`` says how many."""

    def __init__(self, function: ast.FunctionDef) -> None:
        self.function, self.count = function, 0
        self.lists: set[str] = set()

    def visit_For(self, node: ast.For) -> Any:
        plan = _plan(self.function, node)
        if plan is None:
            return self.generic_visit(node)
        carried, lists = plan
        self.count += 1
        self.lists |= set(lists)
        return _scan(node, carried, lists, self.count)

    def visit_FunctionDef(self, node: ast.FunctionDef) -> Any:
        return self.generic_visit(node) if node is self.function else node


def _plan(function: ast.FunctionDef, loop: ast.For) -> tuple[list[str], list[str]] | None:
    """Return the names that a loop carries, and the lists that it appends to; None if it is no scan."""
    inside = [node for statement in loop.body for node in ast.walk(statement)]
    if not _counts(loop) or any(map(_is_excluded, inside)):
        return None
    lists = [name for statement in loop.body if (name := _appends_to(statement)) is not None]
    calls = [node for node in inside if isinstance(node, ast.Expr)]
    if len(calls) > len(lists) or len(set(lists)) < len(lists):
        return None
    stored = [name for node in inside if (name := _stored(node)) is not None]
    before = _names(function, ast.Store, until=loop.lineno) | _parameters(function)
    own = {name for node in inside if isinstance(node, ast.comprehension) for name in _names(node.target, ast.Store)}
    end = loop.end_lineno or 0
    left = (set(stored) - before - own) & _names(function, ast.Load, since=end)
    if any(_is_read_first(function, name, end) for name in left):
        return None
    kept = {node.target.id for node in inside if isinstance(node, ast.AugAssign) and isinstance(node.target, ast.Name)}
    if any(loop in ast.walk(node) for node in ast.walk(function) if isinstance(node, _LOOPS) and node is not loop):
        # What comes before a loop within another loop comes after it as well.
        kept = before
    wanted = [name for name in dict.fromkeys(stored) if name in before and name not in lists]
    reads = {name for name in wanted if _is_read_first(function, name, loop.lineno, end + 1)}
    reads |= {name for name in wanted if _is_read_first(function, name, end)}
    return [name for name in wanted if name in kept | reads], lists


_LOOPS = (ast.For, ast.While, ast.AsyncFor)


def _counts(loop: ast.For) -> bool:
    match loop:
        case ast.For(target=ast.Name(), iter=ast.Call(func=ast.Name(id="range"), args=args, keywords=[]), orelse=[]):
            return 1 <= len(args) <= 2 and not any(isinstance(arg, ast.Starred) for arg in args)
        case _:
            return False


def _is_excluded(node: ast.AST) -> bool:
    if isinstance(node, ast.Attribute | ast.Subscript) and isinstance(node.ctx, ast.Store):
        return not (isinstance(node, ast.Subscript) and isinstance(node.value, ast.Name))
    return isinstance(node, _EXCLUDED)


def _stored(node: ast.AST) -> str | None:
    """Return the name that a node assigns, or assigns a part of."""
    if isinstance(node, ast.Subscript) and isinstance(node.ctx, ast.Store):
        node = node.value
        return node.id if isinstance(node, ast.Name) else None
    return node.id if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store) else None


def _appends_to(statement: ast.AST) -> str | None:
    match statement:
        case ast.Expr(ast.Call(func=ast.Attribute(value=ast.Name(id=name), attr="append"), args=[_], keywords=[])):
            return str(name)
        case _:
            return None


def _parameters(function: ast.FunctionDef) -> set[str]:
    arguments = function.args
    return {argument.arg for argument in (*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs)}


def _names(tree: ast.AST, context: type[ast.expr_context], since: int = 0, until: float = math.inf) -> set[str]:
    """Return the names that are read or assigned between two lines."""
    found = (node for node in ast.walk(tree) if isinstance(node, ast.Name) and isinstance(node.ctx, context))
    return {node.id for node in found if since < node.lineno < until}


def _is_read_first(function: ast.FunctionDef, name: str, since: int, until: float = math.inf) -> bool:
    """Tell whether a name is read between two lines before it gets a value there."""
    named = (node for node in ast.walk(function) if isinstance(node, ast.Name) and node.id == name)
    uses = [node for node in named if since < node.lineno < until]
    first = min((use.lineno for use in uses), default=0)
    return any(isinstance(use.ctx, ast.Load) for use in uses if use.lineno == first)


_HELP = "__onnx_fx_loops__"


def _scan(loop: ast.For, carried: Sequence[str], lists: Sequence[str], number: int) -> list[ast.stmt]:
    target, args = loop.target.id, ", ".join(ast.unparse(arg) for arg in loop.iter.args)  # type: ignore[attr-defined]
    appended = [f"__onnx_fx_appended_{index}" for index in range(len(lists))]
    body = "\n".join(_body(statement, dict(zip(lists, appended, strict=True))) for statement in loop.body)
    parameters = ", ".join((*carried, target))
    name = f"__onnx_fx_body_{number}"
    lines = [
        f"from onnx_fx_export.capture import size_loops as {_HELP}",
        f"if {_HELP}.is_dynamic({args}):",
        f"    def {name}({parameters}):",
        *(f"        {line}" for line in body.splitlines()),
        f"        return [{', '.join(carried)}], [{', '.join(appended)}]",
        f"    __onnx_fx_after, __onnx_fx_stacked = {_HELP}.run({name}, [{', '.join(carried)}], {_HELP}.steps({args}))",
        *([f"    [{', '.join(carried)}] = __onnx_fx_after"] if carried else []),
        *(f"    {each} = {_HELP}.Appended({each}, __onnx_fx_stacked[{i}])" for i, each in enumerate(lists)),
        "else:",
        *(f"    {line}" for line in ast.unparse(loop).splitlines()),
    ]
    return [ast.copy_location(node, loop) for node in ast.parse("\n".join(lines)).body]


class _Subscripts(ast.NodeTransformer):
    """Writes reads and writes of parts as calls, which take tensors for numbers."""

    def visit_Subscript(self, node: ast.Subscript) -> Any:
        self.generic_visit(node)
        if not isinstance(node.ctx, ast.Load):
            return node
        return ast.Call(_helper("taken"), [node.value, _key(node.slice)], [])

    def visit_Assign(self, node: ast.Assign) -> Any:
        self.generic_visit(node)
        match node.targets:
            case [ast.Subscript(value=ast.Name(id=name), slice=key)]:
                return _put(name, key, node.value)
            case _:
                return node

    def visit_AugAssign(self, node: ast.AugAssign) -> Any:
        self.generic_visit(node)
        match node.target:
            case ast.Subscript(value=ast.Name(id=name), slice=key):
                before = ast.Call(_helper("taken"), [ast.Name(name, ast.Load()), _key(key)], [])
                return _put(name, key, ast.BinOp(before, node.op, node.value))
            case _:
                return node


def _put(name: str, key: ast.expr, value: ast.expr) -> ast.Assign:
    call = ast.Call(_helper("put"), [ast.Name(name, ast.Load()), _key(key), value], [])
    return ast.Assign([ast.Name(name, ast.Store())], call)


def _helper(name: str) -> ast.expr:
    return ast.Attribute(ast.Name(_HELP, ast.Load()), name, ast.Load())


def _key(key: ast.expr) -> ast.expr:
    """Return an index as an expression of its own."""
    if isinstance(key, ast.Tuple):
        return ast.Tuple([_key(part) for part in key.elts], ast.Load())
    if isinstance(key, ast.Slice):
        parts = [part or ast.Constant(None) for part in (key.lower, key.upper, key.step)]
        return ast.Call(ast.Name("slice", ast.Load()), parts, [])
    return key


def _body(statement: ast.stmt, lists: Mapping[str, str]) -> str:
    name = _appends_to(statement)
    if name is not None:
        value = statement.value.args[0]  # type: ignore[attr-defined]
        statement = ast.Assign([ast.Name(lists[name], ast.Store())], value)
    again = ast.parse(ast.unparse(ast.fix_missing_locations(statement))).body[0]
    return ast.unparse(ast.fix_missing_locations(_Subscripts().visit(again)))


class _Joins(ast.NodeTransformer):
    """Lets the lists of loops be stacked."""

    def __init__(self, lists: set[str]) -> None:
        self.lists = lists

    def visit_Call(self, node: ast.Call) -> Any:
        self.generic_visit(node)
        match node:
            case ast.Call(
                func=ast.Attribute(value=ast.Name(id="torch"), attr="stack" | "cat"), args=[ast.Name(id=name), *_]
            ) if name in self.lists:
                return ast.Call(_helper("stack"), [node.func, *node.args], node.keywords)
            case _:
                return node


# ---- functions


def has_loops(model: torch.nn.Module) -> bool:
    """Tell whether the code of a model has loops that can be scans."""
    return any(True for _ in _rewritten(model))


@contextlib.contextmanager
def scanned_loops(model: torch.nn.Module) -> Iterator[None]:
    """Let loops over a dynamic number of steps be scans in the body."""
    with replaced([(function, "__code__", code) for function, code in _rewritten(model)]):
        yield


def _rewritten(model: torch.nn.Module) -> Iterator[tuple[types.FunctionType, types.CodeType]]:
    for home in homes_of(model):
        file = getattr(home, "__file__", None)
        codes = _codes(file, "".join(linecache.getlines(file))) if file else {}
        if not codes:
            continue
        for function in _functions(home):
            code = codes.get(function.__code__)
            if code is not None and code.co_freevars == function.__code__.co_freevars:
                yield function, code


@functools.lru_cache(maxsize=64)
def _codes(file: str, source: str) -> dict[types.CodeType, types.CodeType]:
    """Return the code of the functions of a file with loops that can be scans, by their own.

    Args:
        file: Its path.
        source: What it holds now, which may no longer be what runs.
    """
    if "in range(" not in source:
        return {}
    found: dict[types.CodeType, types.CodeType] = {}
    tree = ast.parse(source)
    own = {(c.co_firstlineno, c.co_name): c for c in codes_in(compile(tree, file, "exec", dont_inherit=True))}
    for node in [node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)]:
        first = min([node.lineno, *(decorator.lineno for decorator in node.decorator_list)])
        rewriter = _Rewriter(node)
        rewriter.visit(node)
        if rewriter.count:
            _Joins(rewriter.lists).visit(node)
            found[own[first, node.name]] = _compiled(node, file)
    return found


def _compiled(function: ast.FunctionDef, file: str) -> types.CodeType:
    function.decorator_list = []
    imported = ast.parse(f"from onnx_fx_export.capture import size_loops as {_HELP}").body
    start = 1 if isinstance(function.body[0], ast.Expr) and isinstance(function.body[0].value, ast.Constant) else 0
    function.body[start:start] = imported
    module = ast.fix_missing_locations(ast.Module([function], []))
    code = compile(module, file, "exec", dont_inherit=True)
    return next(part for part in code.co_consts if isinstance(part, types.CodeType) and part.co_name == function.name)


def _functions(home: types.ModuleType) -> Iterator[types.FunctionType]:
    """Yield the functions that a module of Python defines, within decorators and classes."""
    seen: set[int] = set()
    waiting: list[Any] = [*vars(home).values()]
    while waiting:
        value = waiting.pop()
        if id(value) in seen:
            continue
        seen.add(id(value))
        if isinstance(value, type) and value.__module__ == home.__name__:
            waiting.extend(vars(value).values())
        elif isinstance(value, staticmethod | classmethod):
            waiting.append(value.__func__)
        elif isinstance(value, types.FunctionType):
            if value.__code__.co_filename == home.__file__:
                yield value
            cells = [cell.cell_contents for cell in value.__closure__ or () if _is_filled(cell)]
            waiting.extend(each for each in cells if isinstance(each, types.FunctionType))
            waiting.append(inspect.unwrap(value))


def _is_filled(cell: types.CellType) -> bool:
    try:
        cell.cell_contents  # noqa: B018
    except ValueError:
        return False
    return True
