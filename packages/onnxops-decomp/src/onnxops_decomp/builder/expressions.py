"""Symbolic sizes: a SymPy expression of input dimensions becomes a few ONNX integer nodes.

The function classes of torch's symbolic shapes (``FloorDiv`` and others) are told apart by name, so that none of
torch's modules has to be imported for them.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import onnx_ir as ir
import sympy

from onnxops_decomp.builder.scope import NodeWriter
from onnxops_decomp.errors import LoweringError

__all__ = ["at_sizes", "emit_expression", "is_computable"]

_INT64, _DOUBLE, _BOOL = ir.DataType.INT64, ir.DataType.DOUBLE, ir.DataType.BOOL


def at_sizes(expression: sympy.Basic, sizes: Mapping[sympy.Symbol, int]) -> sympy.Basic | None:
    """Return what an expression is where symbols have these sizes; None where that is undefined, as log(0) is."""
    try:
        return _known_at(frozenset(sizes.items())).value(expression)
    except (ZeroDivisionError, ValueError, AssertionError):  # torch's remainders assert that no number is negative
        return None


class _Known:
    """What expressions are at some sizes. Guards of a model share their parts, and each is computed once."""

    def __init__(self, sizes: Iterable[tuple[sympy.Symbol, int]]) -> None:
        self._found: dict[sympy.Basic, sympy.Basic] = {symbol: sympy.Integer(size) for symbol, size in sizes}

    def value(self, expression: sympy.Basic) -> sympy.Basic:
        """Return what an expression is."""
        found = self._found.get(expression)
        if found is None:
            arguments = [self.value(argument) for argument in expression.args]
            of_numbers = _OF_INTEGERS.get(type(expression))
            if of_numbers is not None and all(type(argument) in _INTEGERS for argument in arguments):
                found = of_numbers(arguments)
            elif any(one is not other for one, other in zip(arguments, expression.args, strict=True)):
                found = expression.func(*arguments)
            else:
                found = expression
            self._found[expression] = found
        return found


# A search for sizes that contradict a guard of three dimensions goes through fewer, for one guard after the other.
_known_at = functools.lru_cache(maxsize=256)(_Known)
_INTEGERS = (sympy.Integer, type(sympy.S.Zero), type(sympy.S.One), type(sympy.S.NegativeOne))
# SymPy is slow to find what these are.
_OF_INTEGERS: dict[type[sympy.Basic], Callable[[list[Any]], sympy.Basic]] = {
    sympy.Add: lambda numbers: sympy.Integer(sum(number.p for number in numbers)),
    sympy.Mul: lambda numbers: sympy.Integer(math.prod(number.p for number in numbers)),
    sympy.Eq: lambda numbers: sympy.true if numbers[0].p == numbers[1].p else sympy.false,
    sympy.Ne: lambda numbers: sympy.true if numbers[0].p != numbers[1].p else sympy.false,
    sympy.Lt: lambda numbers: sympy.true if numbers[0].p < numbers[1].p else sympy.false,
    sympy.Le: lambda numbers: sympy.true if numbers[0].p <= numbers[1].p else sympy.false,
    sympy.Gt: lambda numbers: sympy.true if numbers[0].p > numbers[1].p else sympy.false,
    sympy.Ge: lambda numbers: sympy.true if numbers[0].p >= numbers[1].p else sympy.false,
}


def is_computable(op: NodeWriter, expression: sympy.Basic) -> bool:
    """Tell whether ``expression`` can be computed from the inputs of the model."""
    symbols = _symbols_of(expression)
    return symbols is not None and all(symbol in op.context.symbols for symbol in symbols)


@functools.lru_cache(maxsize=4096)
def _symbols_of(expression: sympy.Basic) -> tuple[str, ...] | None:
    """Return the names of the symbols, or None if the expression has a function without an ONNX form."""
    symbols: list[str] = []
    for part in sympy.preorder_traversal(expression):
        if isinstance(part, sympy.Symbol):
            symbols.append(str(part))
        elif part.args and type(part).__name__ not in _EMITTERS and type(part).__name__ != "ExprCondPair":
            return None
    return tuple(dict.fromkeys(symbols))


def emit_expression(op: NodeWriter, expression: sympy.Basic) -> ir.Value:
    """Emit ``expression`` and return a 1-D value of one element: INT64, or BOOL for a relation, DOUBLE for a real.

    Raises:
        LoweringError: If a symbol has no known source, or a function has no ONNX form.
    """
    if isinstance(expression, sympy.Symbol):
        source = op.context.symbols.get(str(expression))
        if source is None:
            raise LoweringError(f"Size {expression} cannot be computed from the inputs of the model.")
        return source(op)
    if isinstance(expression, sympy.Integer):
        return op.constant([int(expression)], _INT64)
    if isinstance(expression, sympy.Rational | sympy.Float):
        return op.constant([float(expression)], _DOUBLE)
    if expression in (sympy.true, sympy.false):
        return op.constant([bool(expression)], _BOOL)
    emitter = _EMITTERS.get(type(expression).__name__)
    if emitter is None:
        raise LoweringError(f"Size expression {expression} uses {type(expression).__name__}, which has no ONNX form.")
    return emitter(op, expression)


def _operands(op: NodeWriter, expression: sympy.Basic) -> list[ir.Value]:
    """Emit the arguments, all as DOUBLE if one of them is."""
    values = [emit_expression(op, argument) for argument in expression.args]
    if any(value.dtype == _DOUBLE for value in values):
        values = [value if value.dtype == _BOOL else op.cast(value, _DOUBLE) for value in values]
    return values


def _chain(op_type: str) -> Callable[[NodeWriter, sympy.Basic], ir.Value]:
    def emit(op: NodeWriter, expression: sympy.Basic) -> ir.Value:
        first, *others = _operands(op, expression)
        for other in others:
            first = op.emit(op_type, first, other)
        return first

    return emit


def _add(op: NodeWriter, expression: sympy.Basic) -> ir.Value:
    total: ir.Value | None = None
    negative: list[sympy.Basic] = []
    for term in expression.args:
        if term.could_extract_minus_sign():
            negative.append(-term)
            continue
        value = emit_expression(op, term)
        total = value if total is None else _binary(op, "Add", total, value)
    if total is None:
        total = op.constant([0], _INT64)
    for term in negative:
        total = _binary(op, "Sub", total, emit_expression(op, term))
    return total


def _binary(op: NodeWriter, op_type: str, a: ir.Value, b: ir.Value) -> ir.Value:
    if a.dtype != b.dtype:
        a, b = op.cast(a, _DOUBLE), op.cast(b, _DOUBLE)
    return op.emit(op_type, a, b)


def _pow(op: NodeWriter, expression: sympy.Basic) -> ir.Value:
    base, exponent = expression.args
    if isinstance(exponent, sympy.Integer) and 0 < int(exponent) <= 8:
        value = emit_expression(op, base)
        result = value
        for _ in range(int(exponent) - 1):
            result = op.Mul(result, value)
        return result
    value, power = (op.cast(emit_expression(op, part), _DOUBLE) for part in (base, exponent))
    return op.Pow(value, power)


def _integer_power(op: NodeWriter, expression: sympy.Basic) -> ir.Value:
    power = _pow(op, expression)
    return power if power.dtype == _INT64 else op.cast(op.Round(power), _INT64)


def _floor_div(op: NodeWriter, expression: sympy.Basic) -> ir.Value:
    a, b = _operands(op, expression)
    return op.floor_div(a, b)


def _python_mod(op: NodeWriter, expression: sympy.Basic) -> ir.Value:
    a, b = _operands(op, expression)
    return op.Mod(a, b)


def _ceil_div(op: NodeWriter, expression: sympy.Basic) -> ir.Value:
    a, b = _operands(op, expression)
    return op.Neg(op.floor_div(op.Neg(a), b))


def _modular_indexing(op: NodeWriter, expression: sympy.Basic) -> ir.Value:
    base, divisor, modulus = _operands(op, expression)
    return op.Mod(op.floor_div(base, divisor), modulus)


def _true_div(op: NodeWriter, expression: sympy.Basic) -> ir.Value:
    a, b = (op.cast(emit_expression(op, argument), _DOUBLE) for argument in expression.args)
    return op.Div(a, b)


def _to_float(op: NodeWriter, expression: sympy.Basic) -> ir.Value:
    return op.cast(emit_expression(op, expression.args[0]), _DOUBLE)


def _to_int(rounding: str | None) -> Callable[[NodeWriter, sympy.Basic], ir.Value]:
    def emit(op: NodeWriter, expression: sympy.Basic) -> ir.Value:
        value = emit_expression(op, expression.args[0])
        if value.dtype == _INT64:
            return value
        return op.cast(op.emit(rounding, value) if rounding else value, _INT64)

    return emit


def _relation(op_type: str, *, negate: bool = False) -> Callable[[NodeWriter, sympy.Basic], ir.Value]:
    def emit(op: NodeWriter, expression: sympy.Basic) -> ir.Value:
        a, b = _operands(op, expression)
        result: ir.Value = op.emit(op_type, a, b)
        return op.Not(result) if negate else result

    return emit


def _function(op_type: str) -> Callable[[NodeWriter, sympy.Basic], ir.Value]:
    """Return a function of reals."""

    def emit(op: NodeWriter, expression: sympy.Basic) -> ir.Value:
        result: ir.Value = op.emit(op_type, op.cast(emit_expression(op, expression.args[0]), _DOUBLE))
        return result

    return emit


def _log2(op: NodeWriter, expression: sympy.Basic) -> ir.Value:
    """Return a logarithm; that of a whole power is whole, which a quotient of logarithms may miss by a rounding."""
    number = op.cast(emit_expression(op, expression.args[0]), _DOUBLE)
    quotient = op.Div(op.Log(number), op.constant([math.log(2)], _DOUBLE))
    whole = op.Round(quotient)
    return op.Where(op.Equal(op.Pow(op.constant([2.0], _DOUBLE), whole), number), whole, quotient)


def _argument(op: NodeWriter, expression: sympy.Basic) -> ir.Value:
    return emit_expression(op, expression.args[0])


def _abs(op: NodeWriter, expression: sympy.Basic) -> ir.Value:
    return op.Abs(emit_expression(op, expression.args[0]))


def _where(op: NodeWriter, expression: sympy.Basic) -> ir.Value:
    condition, *branches = expression.args
    x, y = (emit_expression(op, branch) for branch in branches)
    if x.dtype != y.dtype:
        x, y = op.cast(x, _DOUBLE), op.cast(y, _DOUBLE)
    return op.Where(emit_expression(op, condition), x, y)


def _piecewise(op: NodeWriter, expression: sympy.Basic) -> ir.Value:
    *cases, (default, _) = [pair.args for pair in expression.args]
    result = emit_expression(op, default)
    for value, condition in reversed(cases):
        result = op.Where(emit_expression(op, condition), emit_expression(op, value), result)
    return result


def _not(op: NodeWriter, expression: sympy.Basic) -> ir.Value:
    return op.Not(emit_expression(op, expression.args[0]))


_EMITTERS: dict[str, Callable[[NodeWriter, Any], ir.Value]] = {
    "Add": _add,
    "Mul": _chain("Mul"),
    "Pow": _pow,
    "PowByNatural": _integer_power,
    "FloatPow": _pow,
    "FloorDiv": _floor_div,
    "CleanDiv": _floor_div,
    "CeilDiv": _ceil_div,
    "Mod": _python_mod,
    "PythonMod": _python_mod,
    "ModularIndexing": _modular_indexing,
    "IntTrueDiv": _true_div,
    "FloatTrueDiv": _true_div,
    "ToFloat": _to_float,
    "TruncToInt": _to_int(None),
    "FloorToInt": _to_int("Floor"),
    "CeilToInt": _to_int("Ceil"),
    "RoundToInt": _to_int("Round"),
    "floor": _to_int("Floor"),
    "ceiling": _to_int("Ceil"),
    "Max": _chain("Max"),
    "Min": _chain("Min"),
    "Equality": _relation("Equal"),
    "Unequality": _relation("Equal", negate=True),
    "StrictLessThan": _relation("Less"),
    "StrictGreaterThan": _relation("Greater"),
    "LessThan": _relation("LessOrEqual"),
    "GreaterThan": _relation("GreaterOrEqual"),
    "And": _chain("And"),
    "Or": _chain("Or"),
    "Not": _not,
    "Where": _where,
    "Piecewise": _piecewise,
    "Abs": _abs,
    "Identity": _argument,
    "BitwiseFn_bitwise_and": _chain("BitwiseAnd"),
    "BitwiseFn_bitwise_or": _chain("BitwiseOr"),
    "BitwiseFn_bitwise_xor": _chain("BitwiseXor"),
    "OpaqueUnaryFn_sqrt": _function("Sqrt"),
    "OpaqueUnaryFn_exp": _function("Exp"),
    "OpaqueUnaryFn_log": _function("Log"),
    "OpaqueUnaryFn_log2": _log2,
    "OpaqueUnaryFn_cos": _function("Cos"),
    "OpaqueUnaryFn_sin": _function("Sin"),
    "OpaqueUnaryFn_tanh": _function("Tanh"),
}
