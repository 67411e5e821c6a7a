"""Where the code of a model asks of what class a number or tensor is: in a capture, it is of another one.

``type(n) is int`` is false for a symbolic size, ``isinstance(n, torch.SymInt)`` true, and ``type(x) is torch.Tensor``
false for a fake tensor. Nothing that a capture notes shows that such a branch was taken otherwise than in eager
PyTorch; the results do.
"""

from __future__ import annotations

import ast
import dis
import functools
import inspect
import textwrap
from collections.abc import Iterable, Iterator, Mapping
from types import CodeType, FunctionType
from typing import Any

from onnxops_decomp.exporting.state.code import code_names, is_generated_code

__all__ = ["type_tests"]

_NUMBERS = ("bool", "complex", "float", "int")
_CLASSES = (*_NUMBERS, "FakeTensor", "Parameter", "Size", "SymBool", "SymFloat", "SymInt", "Tensor")
_CONTAINERS = ("bytes", "dict", "frozenset", "list", "set", "slice", "str", "tuple")
# Attributes by which code tells a number from a tensor.
_TELLING = ("bit_length", "device", "dim", "dtype", "is_integer", "item", "ndim", "numel", "numpy", "shape", "tolist")
_SIZES = ("numel", "shape", "size")
_SYMBOLIC = ("SymBool", "SymFloat", "SymInt")
_WORDS, _ATTRIBUTE_WORDS = frozenset(("__class__", "type", *_SYMBOLIC)), frozenset(("getattr", "hasattr"))
_IS, _MATCH = dis.opmap["IS_OP"], dis.opmap["MATCH_CLASS"]
_DESCRIBING = ("ascii", "getattr", "hasattr", "print", "repr", "str")
_Parents = Mapping[ast.AST, ast.AST]


def type_tests(functions: Iterable[Any], *, attributes: bool = False) -> list[str]:
    """Return ``file:line`` of the code that may do something else for numbers and tensors of other classes.

    Args:
        functions: The functions that may run. One whose source is not known is taken to have such a test if it names
            what they are made of.
        attributes: Whether attributes that only tensors have tell numbers from them, too.
    """
    plain = [function for function in functions if isinstance(function, FunctionType)]
    found = (line for function in plain for line in (*_dispatches(function), *_lines_of(function.__code__, attributes)))
    return list(dict.fromkeys(found))


def _lines_of(code: CodeType, attributes: bool) -> Iterator[str]:
    # The same code in another file is equal.
    yield from (f"{code.co_filename}:{line}" for line in _tests_of(code, attributes))


def _dispatches(function: FunctionType) -> tuple[str, ...]:
    """Return the line of a ``functools.singledispatch`` function, which asks for the class of its argument."""
    if not {"dispatch", "registry", "__wrapped__"} <= vars(function).keys():
        return ()
    code = inspect.unwrap(function).__code__
    return (f"{code.co_filename}:{code.co_firstlineno}",)


@functools.lru_cache(maxsize=8192)
def _tests_of(code: CodeType, attributes: bool) -> tuple[int, ...]:
    words = _WORDS | _ATTRIBUTE_WORDS if attributes else _WORDS
    # What dataclasses generate compares their own class only.
    is_generated = is_generated_code(code.co_filename, code.co_name)
    if is_generated or not (code_names(code) & words or _compares_classes(code)):
        return ()
    first = code.co_firstlineno
    try:
        tree = ast.parse(textwrap.dedent(inspect.getsource(code)))
    except (OSError, TypeError, SyntaxError):
        return (first,)
    parents = {child: node for node in ast.walk(tree) for child in ast.iter_child_nodes(node)}
    found = [*_tests(tree, parents), *(_attribute_tests(tree) if attributes else ())]
    lines = sorted(node.lineno for node in found if not _is_in_a_message(node, parents))
    return tuple(first + line - 1 for line in lines)


def _compares_classes(code: CodeType) -> bool:
    inner = (constant for constant in code.co_consts if isinstance(constant, CodeType))
    operations = code.co_code[::2]
    is_of_sizes = _IS in operations and not code_names(code).isdisjoint(_SIZES)
    return is_of_sizes or _MATCH in operations or any(map(_compares_classes, inner))


def _tests(tree: ast.AST, parents: _Parents) -> Iterator[ast.expr | ast.pattern]:
    for node in ast.walk(tree):
        match node:
            case ast.Name(id="type") if not _is_function(node, parents):
                if _is_argument(node, parents):
                    yield node
            case ast.Call(func=ast.Name(id="type"), args=[value]) | ast.Attribute(attr="__class__", value=value):
                if not _is_own(value) and _decides(node, parents):
                    yield node
            case ast.Compare(left=left, ops=operators, comparators=others):
                if any(isinstance(o, ast.Is | ast.IsNot) for o in operators) and any(map(_is_number, [left, *others])):
                    yield node
            case ast.Call(func=ast.Name(id="isinstance"), args=[_, kinds]):
                # What has the class itself is an instance, whatever it says of its class.
                if any(_name(part) in _SYMBOLIC for part in ast.walk(kinds)):
                    yield node
            case ast.MatchClass(cls=ast.Name(id=name)) if name in _NUMBERS:
                yield node


def _attribute_tests(tree: ast.AST) -> Iterator[ast.expr]:
    for node in ast.walk(tree):
        match node:
            case ast.Call(func=ast.Name(id="getattr" | "hasattr"), args=[value, ast.Constant(value=name), *_]):
                if name in _TELLING and not _is_own(value):
                    yield node


def _is_function(name: ast.Name, parents: _Parents) -> bool:
    call = parents[name]
    return isinstance(call, ast.Call) and call.func is name


def _is_argument(name: ast.Name, parents: _Parents) -> bool:
    """Tell whether ``type`` is what a function applies, as ``map`` does, and not a class to compare with."""
    call = parents[name]
    return isinstance(call, ast.Call) and call.args[:1] == [name]


def _is_own(node: ast.AST) -> bool:
    return isinstance(node, ast.Name) and node.id in ("cls", "self")


def _decides(kind: ast.expr, parents: _Parents) -> bool:
    """Tell whether the class of a value may decide something about numbers and tensors."""
    parent = parents[kind]
    if isinstance(parent, ast.Attribute):
        # Its name is a text; other attributes of the class mean a class of the user's.
        outer = parents[parent]
        compared = isinstance(outer, ast.Compare) and _compares(parent, outer, str)
        return parent.attr == "__name__" and (compared or isinstance(outer, ast.Subscript | ast.Match))
    if isinstance(parent, ast.Compare):
        return _compares(kind, parent, type)
    if isinstance(parent, ast.Call):
        return parent.func is not kind and getattr(parent.func, "id", "") not in _DESCRIBING
    return not isinstance(parent, ast.Expr)


def _compares(kind: ast.expr, compare: ast.Compare, of: type) -> bool:
    """Tell whether a class, or the name of one, is compared with that of a number or tensor, or an unknown one."""
    others = [side for side in (compare.left, *compare.comparators) if side is not kind]
    named = [part for side in others for part in (side.elts if isinstance(side, ast.Tuple | ast.List) else [side])]
    return any(_may_be_number(part, of) for part in named)


def _may_be_number(node: ast.expr, of: type) -> bool:
    match node:
        case ast.Constant(value=value):
            return value in _CLASSES
        case ast.Attribute(attr=name):
            return of is type and name in _CLASSES
        case ast.Call(func=ast.Name(id="type"), args=[value]):
            return isinstance(value, ast.Constant)
        case ast.Name(id=name):
            return name in _CLASSES or (of is type and name.islower() and name not in _CONTAINERS)
    return of is type


def _name(node: ast.AST) -> str:
    return str(getattr(node, "attr", getattr(node, "id", "")))


def _is_number(node: ast.AST) -> bool:
    """Tell whether an operand of ``is`` is a number, or a size."""
    if isinstance(node, ast.Constant):
        return type(node.value) is int
    if isinstance(node, ast.Call):
        node = node.func
    elif isinstance(node, ast.Subscript):
        node = node.value
    else:
        return False
    return isinstance(node, ast.Attribute) and node.attr in _SIZES


def _is_in_a_message(node: ast.AST, parents: _Parents) -> bool:
    while node in parents:
        outer = parents[node]
        if isinstance(outer, ast.Raise | ast.FormattedValue) or (isinstance(outer, ast.Assert) and outer.msg is node):
            return True
        node = outer
    return False
