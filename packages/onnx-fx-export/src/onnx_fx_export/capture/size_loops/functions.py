"""Which functions of a model have loops that can be scans, and their other code."""

from __future__ import annotations

import ast
import contextlib
import functools
import inspect
import linecache
import types
from collections.abc import Iterator
from typing import Any

import torch

from onnx_fx_export.capture.size_loops.rewriting import rewritten
from onnxops_core.exporting import replaced
from onnxops_decomp.exporting import codes_in, homes_of

__all__ = ["has_loops", "scanned_loops"]


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
    for home in homes_of(model):
        file = getattr(home, "__file__", None)
        codes = _codes(file, "".join(linecache.getlines(file))) if file else {}
        if not codes:
            continue
        for function in _functions(home):
            code = codes.get(function.__code__)
            if code is None or code.co_freevars != function.__code__.co_freevars:
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


@functools.lru_cache(maxsize=64)
def _codes(file: str, source: str) -> dict[types.CodeType, types.CodeType]:
    """Return the code of the functions of a file with loops that can be scans, by their own.

    Args:
        file: Its path.
        source: What it holds now, which may no longer be what runs.
    """
    if not any(word in source for word in ("for ", "map(", "unbind", ".split(", ".chunk(")):
        return {}
    found: dict[types.CodeType, types.CodeType] = {}
    tree = ast.parse(source)
    own = {(c.co_firstlineno, c.co_name): c for c in codes_in(compile(tree, file, "exec", dont_inherit=True))}
    for node in [node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)]:
        first = min([node.lineno, *(decorator.lineno for decorator in node.decorator_list)])
        name = node.name
        if rewritten(node) is not None:
            found[own[first, name]] = _compiled(node, file)
    return found


def _compiled(function: ast.FunctionDef, file: str) -> types.CodeType:
    function.decorator_list = []
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
