"""Sizes that decide about conditions: what holds at all of these holds at every size.

Sums and products, remainders and quotients by numbers repeat themselves from some size on. Trying a few sizes proves
nothing where that takes long: ``(n + 10) % 150 != 0`` is false for the first time at 140.
"""

from __future__ import annotations

import ast
import functools
import math
import operator
from collections.abc import Callable, Mapping, Sequence
from fractions import Fraction
from typing import Any

import numpy as np

from onnxops_decomp.exporting.sizes.expressions import condition_holds, value_of_size

__all__ = ["deciding_points", "deciding_sizes", "first_other", "holds_within", "truths"]

# Sizes that are tried in any case: small ones, and those around powers of two.
_SIZES = (*range(-8, 131), *(2**power + step for power in range(8, 21) for step in (-1, 0, 1)))
# Up to so many sizes are tried one by one, the fewer where functions are called for each.
_MOST_TRIED = 16384
_MOST_CALLED = 1024
# So many sizes of each of two dimensions, and numbers in a sum of both, are tried at most.
_MOST_OF_TWO = 128
_LARGEST_OF_SUM = 16
_FAR = (64, 100, 127, 128, 1009, 4096, 2**20, 2**40)
_LARGEST_NEAR = 1024
# Functions that never fall where they are defined.
_RISING = frozenset({"ceil", "exp", "float", "floor", "log", "log2", "round", "sqrt", "sym_float", "trunc"})
_RISING |= {f"_sym_{name}" for name in ("exp", "log", "log2", "sqrt")}
_LARGEST = 2**40
_CALLS = frozenset({"abs", "ceil", "float", "floor", "max", "min", "round", "sym_float", "trunc"})
_SIGNS: dict[type, Callable[[Any, Any], Any]] = {
    ast.Eq: operator.eq,
    ast.NotEq: operator.ne,
    ast.Lt: operator.lt,
    ast.LtE: operator.le,
    ast.Gt: operator.gt,
    ast.GtE: operator.ge,
}
_COUNTED = (
    *(ast.Compare, ast.BoolOp, ast.UnaryOp, ast.BinOp, ast.Name, ast.Constant, ast.Call, ast.Load, ast.And, ast.Or),
    *(ast.Not, ast.USub, ast.Add, ast.Sub, ast.Mult, ast.Mod, ast.FloorDiv, ast.Div, *_SIGNS),
)


def deciding_sizes(trees: Sequence[ast.expr]) -> list[int] | None:
    """Return sizes of one dimension that decide about conditions on it, and all that is made of them; None if too many.

    Args:
        trees: The conditions. They name one dimension.
    """
    if not all(map(_repeats_itself, trees)):
        return None
    numbers = {number for tree in trees for number in _numbers_in(tree)}
    near = {value + step for number in numbers for value in (number, 2 * number) for step in (-1, 0, 1)}
    combined = {both for a in numbers for b in numbers for both in (a + b, a * b)}
    period = math.lcm(*map(_period, trees))
    limits = [_limit(part) for tree in trees for part in ast.walk(tree) if isinstance(part, ast.Compare)]
    last = period + 2 * max((bound for bound in limits if bound is not None), default=0)
    limited = [part for tree in trees for part in ast.walk(tree) if _is_limit(part)]
    windows = {number for part in limited for number in _numbers_in(part)}
    is_called = any(isinstance(part, ast.Call) for tree in trees for part in ast.walk(tree))
    if last + period * len(windows) > (_MOST_CALLED if is_called else _MOST_TRIED):
        return None
    after = {size for number in windows for size in range(number, number + period + 2)}
    return sorted({*_SIZES, *near, *combined, *range(last + 1), *after})


def deciding_points(trees: Sequence[ast.expr]) -> list[int] | None:
    """Return sizes that decide about conditions on two dimensions, tried for each of the two; None if too many.

    Args:
        trees: Conditions that name two dimensions or one of them.
    """
    sums = [tree for tree in trees if not _is_limit(tree)]
    numbers = {abs(number) for tree in trees for number in _numbers_in(tree)}
    if not all(map(_repeats_itself, trees)) or max(numbers, default=0) > _LARGEST_NEAR:
        return None
    if any(abs(number) > _LARGEST_OF_SUM for tree in sums for number in _numbers_in(tree)):
        return None
    period = math.lcm(*map(_period, trees))
    of_quotients = [part for tree in sums if _period(tree) > 1 for part in ast.walk(tree)]
    last = period + 2 * max((bound for part in of_quotients if (bound := _limit(part)) is not None), default=0)
    if last > _MOST_OF_TWO:
        return None
    found = {*range(max(32, last) + 1), *_FAR}
    found |= {number + step for number in numbers for step in (-1, *range(period + 1)) if number + step >= 0}
    return sorted(found) if len(found) <= _MOST_OF_TWO else None


def first_other(tree: ast.expr, name: str) -> int | None:
    """Return the first size where a condition does not say what it does at smaller ones, which it says from there on.

    Args:
        tree: The condition.
        name: The dimension that it names.

    Returns:
        The size; None where none is found, or where it is not known that there is but one.
    """
    if not isinstance(tree, ast.Compare) or len(tree.ops) != 1 or isinstance(tree.ops[0], ast.Eq | ast.NotEq):
        return None
    sides = (tree.left, *tree.comparators)
    if not all(map(_rises, sides)) or sum(map(_names_one, sides)) != 1:
        return None
    usual, least, end = condition_holds(tree, {name: 0}), 1, _LARGEST
    if condition_holds(tree, {name: least}) != usual or condition_holds(tree, {name: end}) == usual:
        return None
    while end - least > 1:
        middle = (least + end) // 2
        least, end = (middle, end) if condition_holds(tree, {name: middle}) == usual else (least, middle)
    return end


def _names_one(tree: ast.expr) -> bool:
    return any(isinstance(part, ast.Name) and isinstance(part.ctx, ast.Load) for part in _without_functions(tree))


def _without_functions(tree: ast.expr) -> list[ast.AST]:
    called = {id(part.func) for part in ast.walk(tree) if isinstance(part, ast.Call)}
    return [part for part in ast.walk(tree) if id(part) not in called]


def _rises(tree: ast.expr) -> bool:
    """Tell whether an expression of one dimension never falls as that becomes larger."""
    match tree:
        case ast.Name():
            return True
        case ast.Constant(value=int() | float()):
            return True
        case ast.Call(func=ast.Name(id=name), args=[part]):
            return name in _RISING and _rises(part)
        case ast.BinOp(left=left, op=ast.Add(), right=right):
            return _rises(left) and _rises(right)
        case ast.BinOp(left=left, op=ast.Sub(), right=ast.Constant()):
            return _rises(left)
        case ast.BinOp(left=left, op=ast.Mult() | ast.Div() | ast.FloorDiv(), right=ast.Constant(value)):
            return isinstance(value, int | float) and value > 0 and _rises(left)
        case ast.BinOp(left=ast.Name(), op=ast.Pow(), right=ast.Constant(value)):
            return isinstance(value, int | float) and value > 0
        case ast.BinOp(left=ast.Constant(value), op=ast.Mult(), right=right):
            return isinstance(value, int | float) and value > 0 and _rises(right)
    return False


def holds_within(tree: ast.expr, limits: Mapping[str, tuple[float, float]]) -> bool:
    """Tell whether a comparison holds for all numbers within limits, as far as these alone show it.

    Args:
        tree: The comparison.
        limits: The least and the largest value of each dimension.
    """
    if not isinstance(tree, ast.Compare) or len(tree.ops) != 1:
        return False
    left, right = (_within(side, limits) for side in (tree.left, *tree.comparators))
    if left is None or right is None:
        return False
    below, above = left[1] < right[0], left[0] > right[1]
    match tree.ops[0]:
        case ast.NotEq():
            return below or above
        case ast.Lt():
            return below
        case ast.Gt():
            return above
        case ast.LtE():
            return left[1] <= right[0]
        case ast.GtE():
            return left[0] >= right[1]
    return False


def _within(tree: ast.expr, limits: Mapping[str, tuple[float, float]]) -> tuple[float, float] | None:
    """Return the limits of an expression of sizes; None where they are not known."""
    match tree:
        case ast.Name(id=name):
            return limits.get(name)
        case ast.Constant(value=int(number)):
            return (number, number)
        case ast.BinOp(left=part, op=ast.FloorDiv(), right=ast.Constant(value=int(divisor))) if divisor > 0:
            found = _within(part, limits)
            return found and (found[0] // divisor, found[1] if math.isinf(found[1]) else found[1] // divisor)
        case ast.BinOp(op=ast.Mod(), right=ast.Constant(value=int(divisor))) if divisor > 0:
            return (0, divisor - 1)
        case ast.BinOp(left=left, op=ast.Add() | ast.Sub() | ast.Mult() as op, right=right):
            one, other = _within(left, limits), _within(right, limits)
            if one is None or other is None:
                return None
            if isinstance(op, ast.Add):
                return (one[0] + other[0], one[1] + other[1])
            if isinstance(op, ast.Sub):
                return (one[0] - other[1], one[1] - other[0])
            return (one[0] * other[0], one[1] * other[1]) if min(one[0], other[0]) > 0 else None
    return None


def truths(tree: ast.expr, sizes: Mapping[str, Sequence[int]]) -> list[bool]:
    """Tell at each of several sizes whether a condition holds.

    Args:
        tree: The condition.
        sizes: As many sizes of each dimension that it names.
    """
    if not any(isinstance(part, ast.Call) for part in ast.walk(tree)):
        arrays = {name: np.array(values, object) for name, values in sizes.items()}
        try:
            return [*map(bool, np.broadcast_to(_at_all(tree, arrays), len(next(iter(sizes.values())))))]
        except (ZeroDivisionError, OverflowError, ValueError, TypeError):
            pass
    return [condition_holds(tree, dict(zip(sizes, point, strict=True))) for point in zip(*sizes.values(), strict=True)]


def _numbers_in(tree: ast.AST) -> list[int]:
    """Return the integers that a condition has."""
    return [n.value for n in ast.walk(tree) if isinstance(n, ast.Constant) and type(n.value) is int]


def _at_all(node: ast.expr, sizes: Mapping[str, Any]) -> Any:
    match node:
        case ast.BoolOp(op=sign, values=parts):
            join = np.logical_and if isinstance(sign, ast.And) else np.logical_or
            return functools.reduce(join, [_at_all(part, sizes) for part in parts])
        case ast.UnaryOp(op=ast.Not(), operand=part):
            return np.logical_not(_at_all(part, sizes))
        case ast.Compare(left=left, ops=signs, comparators=others):
            values = [value_of_size(part, sizes) for part in (left, *others)]
            held = [_SIGNS[type(sign)](a, b) for sign, a, b in zip(signs, values, values[1:], strict=False)]
            return functools.reduce(np.logical_and, held)
        case _:
            return value_of_size(node, sizes)


def _repeats_itself(tree: ast.expr) -> bool:
    functions = (part.func for part in ast.walk(tree) if isinstance(part, ast.Call))
    return all(isinstance(part, _COUNTED) for part in ast.walk(tree)) and all(
        isinstance(function, ast.Name) and function.id in _CALLS for function in functions
    )


def _is_limit(part: ast.AST) -> bool:
    """Tell whether this is that a dimension is a number, more or less."""
    if not isinstance(part, ast.Compare):
        return False
    return all(isinstance(each, ast.Name | ast.Constant) for each in (part.left, *part.comparators))


def _period(tree: ast.expr) -> int:
    """Return after how many sizes remainders and quotients are those that they were, or more by a number each."""
    found = 1
    for part in ast.walk(tree):
        match part:
            case ast.BinOp(op=ast.Mod() | ast.FloorDiv() | ast.Div(), right=divisor):
                found *= math.prod(abs(number) for number in _numbers_in(divisor) if number)
            case ast.Constant(value=float(number)) if math.isfinite(number):
                found *= Fraction(number).denominator
    return found


def _limit(part: ast.AST) -> int | None:
    """Return a size from which on a comparison repeats itself; None if it says no more than what the size is."""
    if _is_limit(part) or not isinstance(part, ast.Compare):
        return None
    constants = (n.value for n in ast.walk(part) if isinstance(n, ast.Constant) and isinstance(n.value, int | float))
    return math.prod(math.ceil(abs(number)) + 1 for number in constants if math.isfinite(number))
