"""Which functions of a model have loops that can be scans, and their other code."""

from __future__ import annotations

import ast
import contextlib
import copy
import dis
import functools
import inspect
import linecache
import types
from collections.abc import Iterator, Sequence
from typing import Any

import torch

from onnx_fx_export.capture.size_loops.rewriting import rewritten
from onnxops_core.exporting import replaced
from onnxops_decomp.exporting import codes_in, helpers_of, homes_of

__all__ = ["has_loops", "scanned_loops"]

# Names of what takes tensors apart, which is a loop of its own.
_PARTS = frozenset({"split", "chunk", "unbind", "map"})
_SCOPES = (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda)


def has_loops(model: torch.nn.Module) -> bool:
    """Tell whether the code of a model has loops that can be scans."""
    return any(True for _ in _rewritten(model))


@contextlib.contextmanager
def scanned_loops(model: torch.nn.Module) -> Iterator[None]:
    """Let loops over a dynamic number of steps be scans in the body."""
    with replaced([(function, "__code__", code) for function, code in _rewritten(model)]):
        yield


def _rewritten(model: torch.nn.Module) -> Iterator[tuple[types.FunctionType, types.CodeType]]:
    renamed = _renamed(model)
    for function in _functions(model):
        code = _scanning(function.__code__)
        if code is None:
            continue
        yield function, code
        if renamed is not None and renamed[0] == function.__code__:
            yield renamed[1], code.replace(co_name=renamed[1].__code__.co_name)


def _renamed(model: torch.nn.Module) -> tuple[types.CodeType, types.FunctionType] | None:
    """Return the code of a function that is the model, and the copy of it that is called."""
    own, copy = (_plain(vars(model).get(name)) for name in ("function", "forward"))
    return None if own is None or copy is None else (own.__code__, copy)


def _plain(function: Any) -> types.FunctionType | None:
    function = getattr(function, "__func__", function)
    return function if isinstance(function, types.FunctionType) else None


@functools.lru_cache(maxsize=1024)
def _scanning(code: types.CodeType) -> types.CodeType | None:
    """Return the code of a function with its loops as scans; None if it has none that can be one, or no source."""
    parts = [code, *codes_in(code)]
    iterates = any("JUMP_BACKWARD" in each.opname for part in parts for each in dis.get_instructions(part))
    if not iterates and _PARTS.isdisjoint(name for part in parts for name in part.co_names):
        return None
    file = code.co_filename
    found = _written(file, "".join(linecache.getlines(file))).get(code)
    if found is None:
        return None
    node, owner = copy.deepcopy(found[0]), found[1]
    if rewritten(node) is None:
        return None
    scanning = _compiled(node, owner, code.co_freevars, file)
    return scanning if scanning.co_freevars == code.co_freevars else None


@functools.lru_cache(maxsize=64)
def _written(file: str, source: str) -> dict[types.CodeType, tuple[ast.FunctionDef, str | None]]:
    """Return how the functions of a file are written, by their code, each with the class that it stands in.

    Args:
        file: Its path.
        source: What it holds now, which may no longer be what runs.
    """
    tree = ast.parse(source)
    own = {(c.co_firstlineno, c.co_name): c for c in codes_in(compile(tree, file, "exec", dont_inherit=True))}
    found = {}
    for node, owner in _written_functions(tree):
        first = min([node.lineno, *(decorator.lineno for decorator in node.decorator_list)])
        found[own[first, node.name]] = (node, owner)
    return found


def _written_functions(tree: ast.AST, owner: str | None = None) -> Iterator[tuple[ast.FunctionDef, str | None]]:
    """Yield the functions in some code, each with the class whose body it is written in."""
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, ast.FunctionDef):
            yield node, owner
        inner = node.name if isinstance(node, ast.ClassDef) else owner if not isinstance(node, _SCOPES) else None
        yield from _written_functions(node, inner)


def _compiled(function: ast.FunctionDef, owner: str | None, free: Sequence[str], file: str) -> types.CodeType:
    """Compile a function where its names mean what they did: in a class, and with the names of functions around it."""
    function.decorator_list = []
    statements: list[ast.stmt] = [function]
    if owner is not None:
        statements = ast.parse(f"class {owner}: pass").body
        statements[0].body = [function]  # type: ignore[attr-defined]
    names = [name for name in free if name != "__class__"]
    around = ast.parse("def around():\n" + "".join(f"    {name} = None\n" for name in names) + "    pass")
    around.body[0].body += statements  # type: ignore[attr-defined]
    codes = codes_in(compile(ast.fix_missing_locations(around), file, "exec", dont_inherit=True))
    return next(code for code in codes if code.co_name == function.name and code.co_firstlineno == function.lineno)


def _functions(model: torch.nn.Module) -> Iterator[types.FunctionType]:
    """Yield the functions that are the code of a model, within decorators and classes."""
    homes = homes_of(model)
    kinds = dict.fromkeys(kind for module in model.modules() for kind in type(module).__mro__)
    own = [kind for kind in kinds if kind.__module__.partition(".")[0] not in ("torch", "builtins")]
    # Functions within functions are found where modules hold them; one may be the model itself.
    held = [value for module in model.modules() for value in vars(module).values() if _plain(value) is not None]
    yield from _defined([*held, *own, *(value for home in homes for value in vars(home).values())], homes)
    yield from _called(own, helpers_of(homes))


def _defined(waiting: list[Any], homes: Sequence[types.ModuleType]) -> Iterator[types.FunctionType]:
    """Yield the functions of some modules that values are, or hold."""
    # Code that is typed into an interpreter has a file of its own for each input.
    files = {home.__name__: getattr(home, "__file__", None) for home in homes}
    seen: set[int] = set()
    while waiting:
        value = waiting.pop()
        if id(value) in seen:
            continue
        seen.add(id(value))
        if isinstance(value, type) and value.__module__ in files:
            waiting.extend(vars(value).values())
        elif isinstance(value, staticmethod | classmethod):
            waiting.append(value.__func__)
        elif isinstance(value, property):
            waiting.append(value.fget)
        elif isinstance(value, types.FunctionType):
            if value.__module__ in files and files[value.__module__] in (None, value.__code__.co_filename):
                yield value
            cells = [cell.cell_contents for cell in value.__closure__ or () if _is_filled(cell)]
            waiting.extend(each for each in cells if isinstance(each, types.FunctionType | type))
            waiting.append(inspect.unwrap(value))


def _called(kinds: Sequence[type], helpers: Sequence[types.ModuleType]) -> Iterator[types.FunctionType]:
    """Yield the functions of other files that the methods of classes call by name when they run."""
    names = {helper.__name__ for helper in helpers}
    waiting: list[Any] = [vars(kind).get("forward") for kind in kinds]
    seen: set[int] = set()
    while waiting:
        function = _plain(waiting.pop())
        function = None if function is None else _plain(inspect.unwrap(function))
        if function is None or id(function) in seen:
            continue
        seen.add(id(function))
        if function.__module__ in names:
            yield function
        called = {name for code in (function.__code__, *codes_in(function.__code__)) for name in code.co_names}
        waiting.extend(function.__globals__.get(name) for name in called)
        waiting.extend(vars(kind).get(name) for kind in kinds for name in called)


def _is_filled(cell: types.CellType) -> bool:
    try:
        cell.cell_contents  # noqa: B018
    except ValueError:
        return False
    return True
