"""What the code of a model says of the things that it changes: where it does so, and whether it ever reads them."""

from __future__ import annotations

import ast
import contextlib
import dis
import functools
import importlib.util
import inspect
import sys
import textwrap
import types
from collections.abc import Callable, Iterator, Mapping
from typing import Any

__all__ = [
    "FUNCTIONS",
    "all_names",
    "code_names",
    "imported_modules",
    "is_generated_code",
    "is_read",
    "line_of",
    "parts_of",
    "plain_functions",
]

_WRAPPERS = (staticmethod, classmethod, types.MethodType)
#: The classes of which :func:`plain_functions` finds functions.
FUNCTIONS = (types.FunctionType, *_WRAPPERS, property, functools.cached_property)
_NOT_OF_A_CALL = ("__init__", "__repr__", "__str__", "extra_repr", "__getstate__", "__setstate__", "__deepcopy__")
_FILLING = ("append", "appendleft", "extend", "add", "update", "insert", "clear", "remove")
# How the files are called of code that programs write: Python's imports, torch.fx, NumPy, attrs, SymPy, decorator.
_GENERATED = (
    "<frozen ",
    "<eval_with_key>",
    "<__array_function__",
    "<attrs generated",
    "<lambdifygenerated",
    "<decorator-gen",
)
_STORES = ("STORE_ATTR", "STORE_GLOBAL", "STORE_DEREF")
_IMPORT = dis.opmap["IMPORT_NAME"]
_LOADS = ("LOAD_ATTR", "LOAD_METHOD", "LOAD_GLOBAL", "LOAD_DEREF")


def parts_of(value: Any) -> list[Any]:
    """Return what a property or method calls, which may be a function or an object such as a cache; else the value."""
    if isinstance(value, property):
        return [part for part in (value.fget, value.fset, value.fdel) if part is not None]
    if isinstance(value, _WRAPPERS):
        return [value.__func__]
    return [value.func] if isinstance(value, functools.cached_property) else [value]


def plain_functions(value: Any) -> list[types.FunctionType]:
    """Return the functions written in Python that a function, method, property or decorated function consists of."""
    if isinstance(value, property):
        return [part for part in parts_of(value) if isinstance(part, types.FunctionType)]
    (value,) = parts_of(value)
    found: list[types.FunctionType] = []
    while isinstance(value, types.FunctionType) and value not in found:
        found.append(value)
        value = vars(value).get("__wrapped__")
    return found


def is_generated_code(file: str, function: str) -> bool:
    """Tell whether a program wrote some code, as dataclasses write methods and torch.fx the forward of a graph.

    What a user types at a prompt, or passes to ``exec``, has no file either.

    Args:
        file: The name of its file.
        function: The name of the function.
    """
    return file.startswith(_GENERATED) or (file == "<string>" and (function == "<module>" or function[:2] == "__"))


@functools.lru_cache(maxsize=8192)
def code_names(code: types.CodeType) -> frozenset[str]:
    """Return the names of globals and attributes in code and in the functions that it defines.

    pytest puts names with an ``@`` into what it rewrites. They lead to the whole session of tests.
    """
    inner = [code_names(constant) for constant in code.co_consts if isinstance(constant, types.CodeType)]
    return frozenset(name for name in code.co_names if not name.startswith("@")).union(*inner)


def imported_modules(code: types.CodeType, namespace: Mapping[str, Any]) -> list[types.ModuleType]:
    """Return the modules that code imports itself, as far as they are loaded.

    Args:
        code: Of a function.
        namespace: Its globals.
    """
    found = (sys.modules.get(name) for name in _imports(code, namespace.get("__package__") or ""))
    return [module for module in found if isinstance(module, types.ModuleType)]


@functools.lru_cache(maxsize=8192)
def _imports(code: types.CodeType, package: str) -> tuple[str, ...]:
    inner = (_imports(constant, package) for constant in code.co_consts if isinstance(constant, types.CodeType))
    names = [name for names in inner for name in names]
    instructions = list(dis.get_instructions(code)) if _IMPORT in code.co_code[::2] else []
    for level, _, instruction in zip(instructions, instructions[1:], instructions[2:], strict=False):
        if instruction.opcode == _IMPORT:
            with contextlib.suppress(ImportError):
                name = importlib.util.resolve_name("." * level.argval + instruction.argval, package)
                # Of a.b the code gets a.
                names += [name, name.partition(".")[0]]
    return tuple(dict.fromkeys(names))


def line_of(path: str, functions: Mapping[Callable[..., Any], Any], owner: Any) -> str:
    """Return ``file:line`` of the code that sets something, or else names it first; an empty string if none does.

    Args:
        path: Its dotted path, of which the last part that the code names decides.
        functions: Functions of the model, with the objects or classes that they belong to.
        owner: The module or object that holds it, whose code is asked first.
    """
    kind = owner if isinstance(owner, type) else type(owner)
    called = [f for f in functions if f.__name__ not in _NOT_OF_A_CALL]
    called.sort(key=lambda f: not (isinstance(functions[f], type) and issubclass(kind, functions[f])))
    for operations in (_STORES, _LOADS, ("LOAD_FAST",)):
        for part in reversed(path.split(".")):
            for function in called:
                for code, line in _uses(function.__code__, part, operations):
                    return f"{code.co_filename}:{line}"
    return ""


def _uses(code: types.CodeType, name: str, operations: tuple[str, ...]) -> Iterator[tuple[types.CodeType, int]]:
    for instruction in dis.get_instructions(code):
        line = instruction.positions.lineno if instruction.positions else None
        if instruction.argval == name and instruction.opname in operations and line is not None:
            yield code, line
        elif isinstance(instruction.argval, types.CodeType):
            yield from _uses(instruction.argval, name, operations)


def is_read(path: str, functions: Mapping[Callable[..., Any], Any]) -> bool:
    """Tell whether code uses something otherwise than to change it, as ``self.calls += 1`` does.

    Args:
        path: Its dotted path below the module or object that holds it.
        functions: Functions of the model. One whose source is not known may do anything.
    """
    called = [f for f in functions if f.__name__ not in _NOT_OF_A_CALL]
    named = [(part, f) for part in path.split(".") for f in called if part in all_names(f.__code__)]
    return not named or any(_reads(function, part) for part, function in named)


@functools.cache
def all_names(code: types.CodeType) -> frozenset[str]:
    """Return the names and texts in code and in the functions that it defines."""
    inner = [constant for constant in code.co_consts if isinstance(constant, types.CodeType)]
    texts = (constant for constant in code.co_consts if isinstance(constant, str))
    named = (*code.co_names, *code.co_varnames, *code.co_freevars, *code.co_cellvars, *texts)
    return frozenset(named).union(*map(all_names, inner))


def _reads(function: Callable[..., Any], name: str) -> bool:
    try:
        tree = ast.parse(textwrap.dedent(inspect.getsource(function)))
    except (OSError, TypeError, SyntaxError):
        return True
    parents = {child: node for node in ast.walk(tree) for child in ast.iter_child_nodes(node)}
    for node in ast.walk(tree):
        text = isinstance(node, ast.Constant) and node.value == name
        # The bytecode has the name of the class in private names, the source has not.
        attribute = getattr(node, "attr", None) or ""
        private = attribute.startswith("__") and name.startswith("_") and name.endswith(attribute)
        named = private or attribute == name or (isinstance(node, ast.Name) and node.id == name)
        if text or (named and not _is_write(node, parents, name)):
            return True
    return False


def _is_write(node: ast.AST, parents: Mapping[ast.AST, ast.AST], name: str) -> bool:
    if isinstance(getattr(node, "ctx", None), ast.Store | ast.Del):
        return True
    parent = parents[node]
    while isinstance(parent, ast.Subscript | ast.Attribute) and parent.value is node:
        if isinstance(parent.ctx, ast.Store | ast.Del):
            return True
        node, parent = parent, parents[parent]
    if isinstance(parent, ast.Attribute) and parent.attr in _FILLING:
        call = parents[parent]
        return isinstance(call, ast.Call) and isinstance(parents[call], ast.Expr)
    return _is_own_update(node, parents, name)


def _is_own_update(node: ast.AST, parents: Mapping[ast.AST, ast.AST], name: str) -> bool:
    """Tell whether a name is read for its own next value alone: ``self.n = self.n + 1``."""
    parent: ast.AST = parents[node]
    while isinstance(parent, ast.BinOp):
        node, parent = parent, parents[parent]
    if not isinstance(parent, ast.Assign) or len(parent.targets) != 1 or parent.value is not node:
        return False
    target = parent.targets[0]
    return getattr(target, "attr", getattr(target, "id", None)) == name
