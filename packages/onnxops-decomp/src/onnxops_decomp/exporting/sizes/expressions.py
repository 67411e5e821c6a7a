"""Dimensions such as ``2*length + 1`` and conditions on them, as text that is parsed and evaluated."""

from __future__ import annotations

import ast
import functools
import math
import operator
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import sympy

from onnxops_decomp.errors import LoweringError
from onnxops_decomp.graph.symbols import dimension_symbol

__all__ = [
    "condition_holds",
    "names_in_size",
    "parsed_size",
    "size",
    "solved",
    "symbolic_size",
    "unevaluated",
    "value_of_size",
]


def _power(base: Any, exponent: Any) -> Any:
    result = base**exponent
    if isinstance(result, complex):
        raise ValueError("the root of a negative number")
    return result


def _of_bits(function: Callable[[Any, Any], Any], name: str) -> tuple[Callable[[Any, Any], Any], str]:
    """Return an operator on bits, which SymPy has for truth values alone, and its name."""

    def run(left: Any, right: Any) -> Any:
        is_symbolic = isinstance(left, sympy.Basic) or isinstance(right, sympy.Basic)
        return sympy.Function(name)(left, right) if is_symbolic else function(left, right)

    return run, name


# What Python computes, and the name under which :mod:`onnxops_decomp.builder.expressions` knows it, if it has one.
_OPERATORS: dict[type, tuple[Callable[..., Any], str]] = {
    ast.Add: (operator.add, "Add"),
    ast.Sub: (operator.sub, ""),
    ast.Mult: (operator.mul, "Mul"),
    ast.FloorDiv: (operator.floordiv, "FloorDiv"),
    ast.Div: (operator.truediv, "IntTrueDiv"),
    ast.Mod: (operator.mod, "Mod"),
    ast.Pow: (_power, "Pow"),
    ast.BitAnd: _of_bits(operator.and_, "BitwiseFn_bitwise_and"),
    ast.BitOr: _of_bits(operator.or_, "BitwiseFn_bitwise_or"),
    ast.BitXor: _of_bits(operator.xor, "BitwiseFn_bitwise_xor"),
    ast.USub: (operator.neg, ""),
    ast.Not: (operator.not_, "Not"),
    ast.Eq: (operator.eq, "Equality"),
    ast.NotEq: (operator.ne, "Unequality"),
    ast.Lt: (operator.lt, "StrictLessThan"),
    ast.LtE: (operator.le, "LessThan"),
    ast.Gt: (operator.gt, "StrictGreaterThan"),
    ast.GtE: (operator.ge, "GreaterThan"),
}
_REAL_FUNCTIONS = (
    *("sqrt", "exp", "log", "log2", "sin", "cos", "tan", "asin", "acos", "atan"),
    *("sinh", "cosh", "tanh", "asinh"),
)
# As torch writes them, without the modules that they are in.
_FUNCTIONS: dict[str, tuple[Callable[..., Any], str]] = {
    **{name: (getattr(math, name), f"OpaqueUnaryFn_{name}") for name in _REAL_FUNCTIONS},
    **{f"_sym_{name}": (getattr(math, name), f"OpaqueUnaryFn_{name}") for name in _REAL_FUNCTIONS},
    "abs": (abs, "Abs"),
    "ceil": (math.ceil, "CeilToInt"),
    "float": (float, "ToFloat"),
    "floor": (math.floor, "FloorToInt"),
    "max": (max, "Max"),
    "min": (min, "Min"),
    "round": (round, "RoundToInt"),
    "sym_float": (float, "ToFloat"),
    "trunc": (math.trunc, "TruncToInt"),
}
_MODULE = re.compile(r"\b(?:math|torch)\.")
_STRUCTURE = (ast.BinOp, ast.BoolOp, ast.UnaryOp, ast.Compare, ast.Name, ast.Constant, ast.Load, ast.And, ast.Or)

# SymPy's and torch's names of what Python has operators or other names for.
_AS_OPERATORS: dict[str, type[ast.operator]] = {
    "BitwiseFn_bitwise_and": ast.BitAnd,
    "BitwiseFn_bitwise_or": ast.BitOr,
    "BitwiseFn_bitwise_xor": ast.BitXor,
    "CleanDiv": ast.FloorDiv,
    "FloatPow": ast.Pow,
    "FloatTrueDiv": ast.Div,
    "FloorDiv": ast.FloorDiv,
    "IntTrueDiv": ast.Div,
    "Mod": ast.Mod,
    "PowByNatural": ast.Pow,
    "PythonMod": ast.Mod,
}
_AS_FUNCTIONS = {
    **{f"OpaqueUnaryFn_{name}": name for name in _REAL_FUNCTIONS},
    "Abs": "abs",
    "CeilToInt": "ceil",
    "FloorToInt": "floor",
    "Max": "max",
    "Min": "min",
    "RoundDecimal": "round",
    "RoundToInt": "round",
    "TruncToFloat": "trunc",
    "TruncToInt": "trunc",
    "ceiling": "ceil",
}
# Python computes with numbers of both kinds.
_AS_THEY_ARE = ("Identity", "ToFloat")
_AS_TEXTS = {"CeilDiv": "-(-({0}) // ({1}))", "ModularIndexing": "({0}) // ({1}) % ({2})"}


class _InPython(ast.NodeTransformer):
    def visit_Call(self, node: ast.Call) -> ast.AST:
        self.generic_visit(node)
        name = node.func.id if isinstance(node.func, ast.Name) else ""
        if name in _AS_OPERATORS and len(node.args) == 2:
            return ast.BinOp(node.args[0], _AS_OPERATORS[name](), node.args[1])
        if name in _AS_THEY_ARE and len(node.args) == 1:
            return node.args[0]
        if name in _AS_TEXTS:
            return ast.parse(_AS_TEXTS[name].format(*map(ast.unparse, node.args)), mode="eval").body
        if name in _AS_FUNCTIONS:
            node.func = ast.Name(_AS_FUNCTIONS[name], ast.Load())
        return node


@functools.lru_cache(maxsize=4096)
def parsed_size(text: str) -> ast.expr | None:
    """Return the syntax tree of an expression or comparison, not to be changed; None if the text has anything else."""
    try:
        tree: ast.expr = _InPython().visit(ast.parse(_MODULE.sub("", text), mode="eval")).body
    except SyntaxError:
        return None
    return tree if all(map(_is_known, ast.walk(tree))) else None


def _is_known(node: ast.AST) -> bool:
    if isinstance(node, ast.Call):
        return isinstance(node.func, ast.Name) and node.func.id in _FUNCTIONS and not node.keywords
    return isinstance(node, _STRUCTURE) or type(node) in _OPERATORS


@functools.lru_cache(maxsize=4096)
def names_in_size(tree: ast.expr) -> frozenset[str]:
    """Return the names that an expression uses."""
    nodes = [*ast.walk(tree)]
    functions = {id(node.func) for node in nodes if isinstance(node, ast.Call)}
    return frozenset(node.id for node in nodes if isinstance(node, ast.Name) and id(node) not in functions)


def value_of_size(node: ast.AST, values: Mapping[str, Any]) -> Any:
    """Evaluate an expression or a comparison.

    Args:
        node: What :func:`parsed_size` returned.
        values: What the names stand for: numbers or symbols.

    Raises:
        KeyError: If a name has no value.
        OverflowError: If a function has no value that a double can hold.
        TypeError: If a function or a condition gets a symbol.
        ZeroDivisionError: If the expression divides by zero.
        ValueError: If it takes the root or the logarithm of a negative number.
    """
    return _evaluation(node)(values)


_Evaluation = Callable[[Mapping[str, Any]], Any]


# Conditions are tried at many sizes.
@functools.lru_cache(maxsize=4096)
def _evaluation(node: ast.AST) -> _Evaluation:
    """Return the function that evaluates an expression or a comparison."""
    match node:
        case ast.Call(func=ast.Name(id=name)):
            return _applied(_FUNCTIONS[name][0], *map(_evaluation, node.args))
        case ast.BoolOp():
            parts, together = [_evaluation(part) for part in node.values], all if isinstance(node.op, ast.And) else any
            return lambda values: together(part(values) for part in parts)
        case ast.Constant(value=value):
            return lambda values: value
        case ast.Name(id=name):
            return lambda values: values[name]
        case ast.UnaryOp():
            return _applied(_OPERATORS[type(node.op)][0], _evaluation(node.operand))
        case ast.BinOp():
            return _applied(_OPERATORS[type(node.op)][0], _evaluation(node.left), _evaluation(node.right))
        case ast.Compare():
            return _compared([_OPERATORS[type(sign)][0] for sign in node.ops], (node.left, *node.comparators))
        case _:
            raise KeyError(ast.dump(node))


def condition_holds(node: ast.expr, sizes: Mapping[str, int]) -> bool:
    """Evaluate a condition; one that needs a size the call does not give holds, one that has no value does not."""
    try:
        return bool(value_of_size(node, sizes))
    except KeyError:
        return True
    except (ZeroDivisionError, OverflowError, ValueError):
        return False


def _applied(function: Callable[..., Any], *operands: _Evaluation) -> _Evaluation:
    return lambda values: function(*[operand(values) for operand in operands])


def _compared(signs: Sequence[Callable[[Any, Any], Any]], nodes: Iterable[ast.expr]) -> _Evaluation:
    operands = [_evaluation(node) for node in nodes]

    def holds(values: Mapping[str, Any]) -> bool:
        found = [operand(values) for operand in operands]
        return all(sign(left, right) for sign, left, right in zip(signs, found, found[1:], strict=False))

    return holds


def symbolic_size(tree: ast.expr) -> sympy.Expr:
    """Return an expression in the symbols of the dimensions that it names."""
    found: sympy.Expr = sympy.sympify(
        value_of_size(tree, {name: dimension_symbol(name) for name in names_in_size(tree)})
    )
    return found


def unevaluated(node: ast.AST) -> sympy.Basic:
    """Return an expression or a condition as SymPy functions of which nothing is known, so that none is simplified.

    Raises:
        LoweringError: If a part of it has no such function.
    """
    match node:
        case ast.Constant(value=int(number)):
            return sympy.Integer(number)
        case ast.Constant(value=float(number)):
            return sympy.Float(number)
        case ast.Name(id=name):
            return sympy.Symbol(name)
        case ast.Call(func=ast.Name(id=name), args=parts):
            kind = _FUNCTIONS[name][1]
        case ast.BoolOp(op=sign, values=parts):
            kind = type(sign).__name__
        case ast.UnaryOp(op=ast.USub(), operand=operand):
            return -unevaluated(operand)
        case ast.BinOp(op=ast.Sub(), left=left, right=right):
            kind, parts = "Add", [left, ast.UnaryOp(ast.USub(), right)]
        case ast.UnaryOp(op=sign, operand=operand):
            kind, parts = _OPERATORS[type(sign)][1], [operand]
        case ast.BinOp(op=sign, left=left, right=right) | ast.Compare(left=left, ops=[sign], comparators=[right]):
            kind, parts = _OPERATORS[type(sign)][1], [left, right]
        case _:
            raise LoweringError(f"{ast.unparse(node)} has no form as ONNX nodes.")
    return sympy.Function(kind)(*map(unevaluated, parts))


def size(text: str, sizes: Mapping[str, int]) -> int | None:
    """Return the size that a dimension such as ``batch`` or ``2*length + 1`` has, or None if that is not known."""
    tree = parsed_size(text)
    if tree is None:
        return None
    try:
        value = value_of_size(tree, sizes)
    except (KeyError, ZeroDivisionError, OverflowError, ValueError):
        return None
    return int(value) if value == int(value) else None


def solved(text: str, actual: int, sizes: Mapping[str, int]) -> tuple[str, int | None] | None:
    """Find the one size that is unknown in an expression whose value is known.

    Args:
        text: The expression.
        actual: Its value.
        sizes: The other sizes.

    Returns:
        The name, with the size or None if no integer gives that value; None if there is not one unknown name, or the
        expression is not linear in it.
    """
    tree = parsed_size(text)
    unknown = names_in_size(tree) - sizes.keys() if tree is not None else ()
    if len(unknown) != 1:
        return None
    (name,) = unknown
    values = [size(text, {**sizes, name: number}) for number in range(3)]
    first, second, third = values
    if first is None or second is None or third is None or not (second - first) or third - second != second - first:
        return None
    found, rest = divmod(actual - first, second - first)
    return name, None if rest else found
