"""Texts that the code of a model makes of dynamic sizes and numbers, as ``str(x.shape[0])`` and f-strings do.

A symbolic number prints as a symbol. Where a text may choose something, such as the key of a dict or the name of an
attribute, it has to be that of one number: the symbol is taken for fixed there, as by ``int()``. A text that is only
read by people, in a message or a log, decides nothing.
"""

from __future__ import annotations

import ast
import contextlib
import functools
import linecache
import sys
import sysconfig
from collections.abc import Callable, Iterator, Mapping
from types import CodeType, FrameType
from typing import Any

import torch

from onnx_fx_export.torch_private import hint_of, is_of_dynamo, is_users_code
from onnxops_core.exporting import original, replaced
from onnxops_decomp.exporting import is_generated_code

__all__ = ["MACHINERY", "asking_frame", "texts_of_numbers"]

# The files that were found to be no code of a model, for those who ask too often to call a function.
MACHINERY: set[str] = set()

_NUMBERS: Mapping[type, Callable[[Any], int | float]] = {torch.SymInt: int, torch.SymFloat: float, torch.SymBool: bool}
_STANDARD_LIBRARY = tuple({sysconfig.get_path("stdlib"), sysconfig.get_path("platstdlib")})
# Parts of the names of functions that tell people something: print, logger.warning_once, torch._assert ...
_TELLING = (
    "print",
    "log",
    "debug",
    "info",
    "warn",
    "error",
    "exception",
    "critical",
    "assert",
    "check",
    "record_function",
    "range_push",
)
_DESCRIBING = ("__repr__", "__str__", "extra_repr")
# What makes a text of texts; other expressions may decide something by them.
_COMPOSING = (
    ast.Attribute,
    ast.BinOp,
    ast.FormattedValue,
    ast.GeneratorExp,
    ast.JoinedStr,
    ast.Lambda,
    ast.List,
    ast.ListComp,
    ast.Starred,
    ast.Tuple,
    ast.keyword,
)
_COMPOSERS = ("ascii", "format", "join", "repr", "str", "tuple")


@contextlib.contextmanager
def texts_of_numbers() -> Iterator[None]:
    """Let texts that the model's code makes of symbolic numbers be those of numbers, unless people alone read them."""
    makers = {"__str__": _as_text, "__repr__": _as_text, "__format__": _formatted}
    places = [(kind, name, make(kind, name)) for kind in _NUMBERS for name, make in makers.items()]
    with replaced(places):
        yield


def _as_text(kind: type, name: str) -> Callable[[Any], str]:
    symbolic = original(kind, name)

    def text(self: Any) -> str:
        # The frame in between is that of the replacement.
        frame = asking_frame(sys._getframe(2))
        if frame is None or _is_for_people(frame.f_code, frame.f_lasti):
            return str(symbolic(self))
        return str(_NUMBERS[kind](self))

    return text


def _formatted(kind: type, name: str) -> Callable[[Any, str], str]:
    def text(self: Any, specification: str = "") -> str:
        frame = asking_frame(sys._getframe(2))
        if frame is not None and not _is_for_people(frame.f_code, frame.f_lasti):
            return format(_NUMBERS[kind](self), specification)
        number = hint_of(self) if specification else None
        return str(self) if number is None else format(number, specification)

    return text


def asking_frame(frame: FrameType | None) -> FrameType | None:
    """Return the frame of the model's code that asks, or None if that is torch, this package or logging.

    Args:
        frame: The frame that asks, which may be of Python's standard library.
    """
    while frame is not None:
        asks = _asks(frame.f_code.co_filename, frame.f_code.co_name)
        if asks is not None and not is_of_dynamo(frame):
            return frame if asks else None
        frame = frame.f_back
    return None


@functools.cache
def _asks(file: str, function: str) -> bool | None:
    """Tell whether a function is code of the model; None for what only hands on, such as the standard library."""
    if file == __file__ or is_generated_code(file, function):
        return None
    if not is_users_code(file, function):
        MACHINERY.add(file)
        return False
    return None if _is_standard(file) else True


def _is_standard(name: str) -> bool:
    return name.startswith(_STANDARD_LIBRARY) and "site-packages" not in name


@functools.lru_cache(maxsize=1024)
def _is_for_people(code: CodeType, instruction: int) -> bool:
    """Tell whether what an instruction makes ends in a message, as far as the source shows it."""
    parents = _parsed("".join(linecache.getlines(code.co_filename)))
    start, end, column, end_column = list(code.co_positions())[instruction // 2]
    if start is None:
        return False
    place = (start, column or 0), (end or start, sys.maxsize if end_column is None else end_column)
    covering = [node for node in parents if _covers(node, place)]
    # The innermost one comes last.
    return bool(covering) and _ends_in_a_message(covering[-1], parents, set())


def _covers(node: ast.AST, place: tuple[tuple[int, int], tuple[int, int]]) -> bool:
    if not isinstance(node, ast.expr) or node.end_lineno is None or node.end_col_offset is None:
        return False
    return (node.lineno, node.col_offset) <= place[0] and place[1] <= (node.end_lineno, node.end_col_offset)


@functools.lru_cache(maxsize=4)
def _parsed(source: str) -> dict[ast.AST, ast.AST]:
    """Return the nodes of a source, outer ones first, with their parents; none where it cannot be read."""
    try:
        return {child: node for node in ast.walk(ast.parse(source)) for child in ast.iter_child_nodes(node)}
    except SyntaxError:
        return {}


def _ends_in_a_message(node: ast.AST, parents: Mapping[ast.AST, ast.AST], followed: set[str]) -> bool:
    """Tell whether an expression is part of a message, itself or through local names that hold nothing else."""
    while True:
        parent = parents[node]
        if isinstance(parent, ast.Raise) or (isinstance(parent, ast.Assert) and parent.msg is node):
            return True
        if isinstance(node, ast.Call) and _tells(node.func) and isinstance(parent, ast.Expr | ast.withitem):
            return True
        if isinstance(parent, ast.Return):
            return _function_of(parent, parents) in _DESCRIBING
        if isinstance(parent, ast.Assign) and all(isinstance(target, ast.Name) for target in parent.targets):
            names = {target.id for target in parent.targets if isinstance(target, ast.Name)}
            return all(_is_read_in_messages(name, parent, parents, followed) for name in names - followed)
        if isinstance(parent, ast.Call):
            if _called(parent.func) not in _COMPOSERS and not _tells(parent.func) and not _is_raised(parent, parents):
                return False
        elif not isinstance(parent, _COMPOSING):
            return False
        node = parent


def _called(function: ast.expr) -> str:
    return function.attr if isinstance(function, ast.Attribute) else getattr(function, "id", "")


def _tells(function: ast.expr) -> bool:
    return any(part in _called(function).lower() for part in _TELLING)


def _is_raised(call: ast.Call, parents: Mapping[ast.AST, ast.AST]) -> bool:
    return isinstance(parents[call], ast.Raise)


def _function_of(node: ast.AST, parents: Mapping[ast.AST, ast.AST]) -> str:
    while node in parents and not isinstance(node, ast.FunctionDef):
        node = parents[node]
    return getattr(node, "name", "")


def _is_read_in_messages(name: str, node: ast.AST, parents: Mapping[ast.AST, ast.AST], followed: set[str]) -> bool:
    """Tell whether all that reads a local name is part of a message."""
    while node in parents and not isinstance(node, ast.FunctionDef | ast.Lambda):
        node = parents[node]
    if not isinstance(node, ast.FunctionDef):
        return False
    reads = [n for n in ast.walk(node) if isinstance(n, ast.Name) and n.id == name and isinstance(n.ctx, ast.Load)]
    return all(_ends_in_a_message(read, parents, followed | {name}) for read in reads)
