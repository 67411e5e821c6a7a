"""``is`` between numbers for which a capture has symbols or tensors: as between the numbers that they stand for.

``x.shape[0] is 3`` holds in eager PyTorch where the size is 3, since CPython keeps one object of each small number. No
class can answer ``is``; functions that may ask it of numbers run from code in which it is a call.
"""

from __future__ import annotations

import ast
import contextlib
import dataclasses
import dis
import functools
import linecache
import threading
import types
import warnings
import weakref
from collections.abc import Callable, Iterable, Iterator
from typing import Any

from onnxops_core.exporting import replaced
from onnxops_decomp.exporting.sizes.number_classes import ClassOfNumbers

__all__ = ["codes_in", "identities_of_numbers", "written_code"]

_CALLED = "onnxops_decomp: is"
_IS = dis.opmap["IS_OP"]
# Of larger numbers CPython makes a new object each time.
_LARGEST = 256
_NUMBERS = (bool, int)
# What may do something each time or defines functions, and the calls that do neither.
_ONCE = (
    *(ast.Await, ast.Call, ast.NamedExpr, ast.Yield, ast.YieldFrom),
    *(ast.DictComp, ast.GeneratorExp, ast.Lambda, ast.ListComp, ast.SetComp),
)
_SIZES = ("dim", "numel", "size")
_written: weakref.WeakKeyDictionary[types.CodeType, types.CodeType] = weakref.WeakKeyDictionary()
_active = threading.local()


@contextlib.contextmanager
def identities_of_numbers(functions: Iterable[Any], kind_of: Callable[[Any], type | None] | None) -> Iterator[None]:
    """Let ``is`` compare what stands for numbers by their values in the body.

    Args:
        functions: The functions that may run. One whose source is not known stays as it is.
        kind_of: Returns ``int`` or ``bool`` for what stands for such a number, and None for anything else. None if code
            is read and not run, as by Dynamo, for which what stands for a number is of the class of that.
    """
    calls = kind_of is not None
    found = ((function, _rewritten(function, calls)) for function in functions)
    codes = [(function, "__code__", code) for function, code in found if code is not None]
    before, _active.kind_of = getattr(_active, "kind_of", None), kind_of
    try:
        with replaced(codes):
            yield
    finally:
        _active.kind_of = before


def _is_same(left: Any, right: Any) -> bool:
    """Tell whether two objects are one, or stand for numbers of which there is one object."""
    kind_of = getattr(_active, "kind_of", None)
    if left is right or kind_of is None:
        return left is right
    if isinstance(left, ClassOfNumbers) or isinstance(right, ClassOfNumbers):
        return bool(left == right)
    symbolic = [kind_of(left), kind_of(right)]
    kinds = [kind or type(value) for kind, value in zip(symbolic, (left, right), strict=True)]
    if not any(symbolic) or kinds[0] is not kinds[1] or kinds[0] not in _NUMBERS:
        return False
    return bool(left) is bool(right) if kinds[0] is bool else bool(left == right) and bool(left <= _LARGEST)


def _rewritten(function: Any, calls: bool) -> types.CodeType | None:
    """Return the code of a function with something else for each ``is``; None if it asks nothing of numbers."""
    if not isinstance(function, types.FunctionType) or not _asks(function.__code__):
        return None
    code = function.__code__
    # Exporters give code another name, by which torch notes its lines.
    written = code.replace(co_name=code.co_qualname.rpartition(".")[2])
    found = _codes_of(code.co_filename, calls).get(written)
    if found is None:
        return None
    running = found.replace(co_name=code.co_name)
    _written[running] = code
    return running


def written_code(code: types.CodeType) -> types.CodeType:
    """Return the code that the user wrote, of code that may run in its place."""
    return _written.get(code, code)


@functools.lru_cache(maxsize=8192)
def _asks(code: types.CodeType) -> bool:
    """Tell whether code has an ``is`` whose right side may be a number."""
    before = None
    # Most code has none: looking at its bytes is much faster than reading its instructions.
    for instruction in dis.get_instructions(code) if _IS in code.co_code[::2] else ():
        if instruction.opcode == _IS and before is not None:
            is_constant = before.opname == "LOAD_CONST"
            if not is_constant or isinstance(before.argval, _NUMBERS):
                return True
        before = instruction
    return any(_asks(constant) for constant in code.co_consts if isinstance(constant, types.CodeType))


def _codes_of(file: str, calls: bool) -> dict[types.CodeType, types.CodeType]:
    """Return what stands for the code of the functions of a file as it is now."""
    lines, known = linecache.getlines(file), _last_read(file, calls)
    # Joining and comparing the lines of a large file costs more than all the rest.
    if known.lines is not lines:
        known.codes, known.lines = _codes(file, "".join(lines), calls), lines
    return known.codes


@dataclasses.dataclass
class _Read:
    """What was read of a file last."""

    lines: list[str]
    codes: dict[types.CodeType, types.CodeType]


@functools.lru_cache(maxsize=256)
def _last_read(file: str, calls: bool) -> _Read:
    return _Read([], {})


@functools.lru_cache(maxsize=256)
def _codes(file: str, source: str, calls: bool) -> dict[types.CodeType, types.CodeType]:
    """Return what stands for the code of the functions of a file, by their own, which may no longer be what runs.

    Args:
        file: Its path.
        source: What it holds now.
        calls: Whether a call stands for ``is``, and not an expression.
    """
    try:
        tree = ast.parse(source)
        before = _compiled(tree, file)
        # Both have the same functions in the same order.
        after = _linked(_compiled(_Comparisons(_call if calls else _expression).visit(tree), file))
    except SyntaxError:
        return {}
    return dict(zip(codes_in(before), codes_in(after), strict=True))


def _compiled(tree: ast.Module, file: str) -> types.CodeType:
    with warnings.catch_warnings():
        # What is called is a text until it is replaced.
        warnings.simplefilter("ignore", SyntaxWarning)
        return compile(ast.fix_missing_locations(tree), file, "exec", dont_inherit=True)


def _linked(code: types.CodeType) -> types.CodeType:
    """Put what is called in place of the text that stands for it."""

    def constant(value: Any) -> Any:
        return _linked(value) if isinstance(value, types.CodeType) else _is_same if value == _CALLED else value

    return code.replace(co_consts=tuple(map(constant, code.co_consts)))


def codes_in(code: types.CodeType) -> Iterator[types.CodeType]:
    """Yield the code of the functions that code defines, and of those within them."""
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            yield constant
            yield from codes_in(constant)


def _call(left: ast.expr, right: ast.expr) -> ast.expr:
    return ast.Call(ast.Constant(_CALLED), [left, right], [])


def _expression(left: ast.expr, right: ast.expr) -> ast.expr:
    """Return an expression of Python's own, in which operands stand several times, if they may."""
    if any(isinstance(part, _ONCE) and not _is_size(part) for side in (left, right) for part in ast.walk(side)):
        return ast.Compare(left, [ast.Is()], [right])
    a, b = ast.unparse(left), ast.unparse(right)
    text = f"({a}) is ({b}) or type({a}) is type({b}) and type({a}) in (bool, int) and ({a}) == ({b}) <= {_LARGEST}"
    found = ast.parse(text, mode="eval").body
    for part in ast.walk(found):
        ast.copy_location(part, left)
    return found


def _is_size(node: ast.AST) -> bool:
    return isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr in _SIZES


class _Comparisons(ast.NodeTransformer):
    """Puts something else in place of ``is``."""

    def __init__(self, written: Callable[[ast.expr, ast.expr], ast.expr]) -> None:
        self._written = written

    def visit_Compare(self, node: ast.Compare) -> ast.expr:
        self.generic_visit(node)
        match node:
            case ast.Compare(left=left, ops=[ast.Is() | ast.IsNot() as operator], comparators=[right]):
                if not any(isinstance(n, ast.Constant) and not isinstance(n.value, _NUMBERS) for n in (left, right)):
                    same = self._written(left, right)
                    whole = same if isinstance(operator, ast.Is) else ast.UnaryOp(ast.Not(), same)
                    return ast.copy_location(whole, node)
        return node
