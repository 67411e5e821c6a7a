"""Conditions on sizes as people write them.

``2*n % 4 == 0`` is ``n % 2 == 0``, and ``n > 3`` beside ``n >= 4`` is left out.
"""

from __future__ import annotations

import ast
import functools
import itertools
import math
from collections.abc import Callable, Iterable, Sequence

import sympy

from onnxops_decomp.exporting.sizes.deciding import deciding_points, deciding_sizes, first_other, holds_within, truths
from onnxops_decomp.exporting.sizes.expressions import condition_holds, names_in_size, parsed_size, symbolic_size

__all__ = ["either_of", "holds_for_each_size", "simplified"]

_MOST_PERIODS = 64
_FLIPPED: dict[type, type] = {ast.Lt: ast.Gt, ast.LtE: ast.GtE, ast.Gt: ast.Lt, ast.GtE: ast.LtE}
_LINEAR = (ast.BinOp, ast.UnaryOp, ast.Name, ast.Constant, ast.Load, ast.Add, ast.Sub, ast.Mult, ast.USub)
_OPPOSITES: dict[type, type[ast.cmpop]] = {
    ast.Eq: ast.NotEq,
    ast.NotEq: ast.Eq,
    ast.Lt: ast.GtE,
    ast.GtE: ast.Lt,
    ast.Gt: ast.LtE,
    ast.LtE: ast.Gt,
}
_SIGNS: dict[type, str] = {ast.Eq: "==", ast.NotEq: "!=", ast.GtE: ">=", ast.LtE: "<=", ast.Gt: ">", ast.Lt: "<"}


def holds_for_each_size(text: str) -> bool:
    """Tell whether a condition holds for all sizes of one or two dimensions, as trying sizes shows.

    It is made of sums and products of integers, remainders and quotients by numbers, and comparisons of these, so that
    what it says repeats itself from some size on. False where that is not so.
    """
    tree = _tree(text)
    names = sorted(names_in_size(tree))
    if len(names) == 1:
        sizes = deciding_sizes([tree])
        return sizes is not None and all(truths(tree, {names[0]: [size for size in sizes if size >= 0]}))
    sizes = deciding_points([tree]) if len(names) == 2 else None
    if sizes is None:
        return False
    first, second = zip(*itertools.product(sizes, repeat=2), strict=True)
    return all(truths(tree, {names[0]: first, names[1]: second}))


def either_of(alternatives: Sequence[Sequence[str]]) -> list[str]:
    """Return what has to hold for all conditions of one of several alternatives to hold.

    Args:
        alternatives: For each its conditions.

    Returns:
        One condition, or none if one of the alternatives holds for all sizes, as far as that can be told.
    """
    parts = [[f"({text})" if " or " in text else text for text in texts] for texts in alternatives]
    text = " or ".join(f"({' and '.join(each)})" if len(each) > 1 else "".join(each) for each in parts)
    return [text] if all(alternatives) and not holds_for_each_size(text) else []


def simplified(texts: Iterable[str]) -> list[str]:
    """Return conditions that say the same, each as short as it can be, without those that follow from others.

    Args:
        texts: Python comparisons over the names of dimensions; what is none is left out.
    """
    return [*_simplified(tuple(texts))]


# Exports of one model have the same, and nothing but the texts decides what becomes of them.
@functools.lru_cache(maxsize=1024)
def _simplified(texts: tuple[str, ...]) -> tuple[str, ...]:
    trees = [part for text in texts if (tree := parsed_size(text)) is not None for part in _conjuncts(tree)]
    plain = dict.fromkeys(_short(ast.unparse(_plain(tree))) for tree in trees)
    found = _without_implied([text for text in plain if text != "True"])
    return tuple(text for text in found if not _follows(text, found))


def _conjuncts(tree: ast.expr) -> list[ast.expr]:
    """Return the conditions that all have to hold for one to hold, of what does not hold the opposite."""
    match tree:
        case ast.BoolOp(op=ast.And(), values=parts):
            return [each for part in parts for each in _conjuncts(part)]
        case ast.UnaryOp(op=ast.Not(), operand=ast.BoolOp(op=ast.Or(), values=parts)):
            return [each for part in parts for each in _conjuncts(ast.UnaryOp(ast.Not(), part))]
        case ast.UnaryOp(op=ast.Not(), operand=ast.UnaryOp(op=ast.Not(), operand=part)):
            return _conjuncts(part)
        case ast.UnaryOp(op=ast.Not(), operand=ast.Compare(left, [sign], right)) if type(sign) in _OPPOSITES:
            return [ast.Compare(left, [_OPPOSITES[type(sign)]()], right)]
    return [tree]


def _tree(text: str) -> ast.expr:
    tree = parsed_size(text)
    assert tree is not None, text
    return tree


def _without_implied(texts: Sequence[str]) -> list[str]:
    """Leave out what follows from the other conditions on the same dimension, the longest first."""
    by_name: dict[str, list[str]] = {}
    for text in texts:
        names = set(names_in_size(_tree(text)))
        if len(names) == 1:
            by_name.setdefault(names.pop(), []).append(text)
    implied = {text for text in texts if _alternatives(text) & {*texts} - {text}}
    for name, group in by_name.items():
        decided, sizes = _decided(group)
        tables = {text: truths(_tree(text), {name: sizes}) for text in decided}
        for text in sorted(decided, key=len, reverse=True):
            others = [tables[other] for other in decided if other != text and other not in implied]
            allowed = [all(row) for row in zip(*others, strict=True)] if others else [True] * len(sizes)
            if all(own or not other for own, other in zip(tables[text], allowed, strict=True)):
                implied.add(text)
    return [text for text in texts if text not in implied]


def _decided(texts: Sequence[str]) -> tuple[list[str], list[int]]:
    """Return those of the conditions on one dimension that some sizes decide about together, and these sizes."""
    decided: list[str] = []
    sizes: list[int] = []
    for text in texts:
        found = deciding_sizes([*map(_tree, decided), _tree(text)])
        if found is not None:
            decided, sizes = [*decided, text], found
    return decided, sizes


def _follows(text: str, texts: Iterable[str]) -> bool:
    """Tell whether a condition on two dimensions holds wherever those on each of them do."""
    tree = _tree(text)
    names = sorted(names_in_size(tree))
    if len(names) != 2:
        return False
    single = {name: [other for each in texts if names_in_size(other := _tree(each)) == {name}] for name in names}
    if holds_within(tree, {name: _limits(single[name]) for name in names}):
        return True
    sizes = deciding_points([tree, *single[names[0]], *single[names[1]]])
    if sizes is None:
        return False
    held = {name: [truths(each, {name: sizes}) for each in single[name]] for name in names}
    taken = [[size for size, *each in zip(sizes, *held[name], strict=True) if all(each)] for name in names]
    points = [*itertools.product(*taken)]
    return bool(points) and all(truths(tree, dict(zip(names, map(list, zip(*points, strict=True)), strict=True))))


def _limits(trees: Iterable[ast.expr]) -> tuple[float, float]:
    """Return the least and the largest size that conditions on one dimension say outright."""
    least, most = 0.0, math.inf
    for tree in trees:
        match tree:
            case ast.Compare(ast.Name(), [ast.GtE()], [ast.Constant(value=int(number))]):
                least = max(least, number)
            case ast.Compare(ast.Name(), [ast.LtE()], [ast.Constant(value=int(number))]):
                most = min(most, number)
    return least, most


def _alternatives(text: str) -> set[str]:
    """Return the conditions of which one has to hold."""
    tree = _tree(text)
    either = isinstance(tree, ast.BoolOp) and isinstance(tree.op, ast.Or)
    return {ast.unparse(part) for part in tree.values} if either else set()  # type: ignore[attr-defined]


# ---- one condition


def _plain(tree: ast.expr) -> ast.expr:
    """Return a condition in its usual form, as far as it is arithmetic of sums and products."""
    match tree:
        case ast.Compare(left=left, ops=[ast.Eq()], comparators=[right]) if divisor := _divides(left, right):
            return _tree(f"({ast.unparse(left)}) % ({ast.unparse(divisor)}) == 0")
        case ast.Compare(left=left, ops=[ast.Eq()], comparators=[right]) if divisor := _divides(right, left):
            return _tree(f"({ast.unparse(right)}) % ({ast.unparse(divisor)}) == 0")
        case ast.Compare(left=left, ops=[sign], comparators=[right]) if _is_linear(left) and _is_linear(right):
            return _tree(_of_sum(symbolic_size(left) - symbolic_size(right), type(sign)))
        case ast.Compare(
            left=ast.BinOp(left=left, op=ast.Mod(), right=right), ops=[ast.Eq()], comparators=[ast.Constant(value=0)]
        ) if _is_linear(left) and _is_linear(right):
            ratio = sympy.together(sympy.cancel(symbolic_size(left) / symbolic_size(right)))
            whole, divisor = sympy.fraction(ratio)
            if divisor.is_Integer:
                return _tree(_of_remainder(whole, int(divisor)))
    return tree


def _divides(whole: ast.expr, product: ast.expr) -> ast.expr | None:
    """Return m where the other expression is ``m * (whole // m)``."""
    if not isinstance(product, ast.BinOp) or not isinstance(product.op, ast.Mult):
        return None
    for factor, quotient in ((product.left, product.right), (product.right, product.left)):
        if isinstance(quotient, ast.BinOp) and isinstance(quotient.op, ast.FloorDiv):
            parts, wanted = (quotient.left, quotient.right), (whole, factor)
            if [ast.dump(part) for part in parts] == [ast.dump(part) for part in wanted]:
                return factor
            scaled = _scaled(whole, quotient.left, factor, quotient.right)
            if scaled:
                return factor
    return None


def _scaled(whole: ast.expr, part: ast.expr, factor: ast.expr, divisor: ast.expr) -> bool:
    """Tell whether ``whole`` is as many times ``part`` as ``factor`` is ``divisor``: 2*n == 4*(n//2)."""
    if not all(map(_is_linear, (whole, part, factor, divisor))):
        return False
    return bool(
        sympy.expand(symbolic_size(whole) * symbolic_size(divisor) - symbolic_size(part) * symbolic_size(factor)) == 0
    )


def _is_linear(tree: ast.expr) -> bool:
    """Tell whether an expression has sums and products of integers and sizes only."""
    return all(
        isinstance(node, _LINEAR) and not (isinstance(node, ast.Constant) and type(node.value) is not int)
        for node in ast.walk(tree)
    )


def _of_sum(difference: sympy.Expr, sign: type) -> str:
    """Return the text of a comparison of a sum with 0, all terms counted positive on their side."""
    difference = sympy.expand(difference)
    if not difference.free_symbols:
        return str(condition_holds(_tree(f"{int(difference)} {_SIGNS[sign]} 0"), {}))
    if sign in (ast.Gt, ast.Lt) and len(difference.free_symbols) == 1:
        difference, sign = difference + (-1 if sign is ast.Gt else 1), {ast.Gt: ast.GtE, ast.Lt: ast.LtE}[sign]
    constant, terms = difference.as_coeff_Add()
    factors = {term: int(factor) for term, factor in terms.as_coefficients_dict().items()}
    shared = math.gcd(*factors.values())
    limit = -int(constant)
    if all(factor < 0 for factor in factors.values()):
        limit, sign = -limit, _FLIPPED.get(sign, sign)
        factors = {term: -factor for term, factor in factors.items()}
    if sign in (ast.GtE, ast.Lt):
        limit = -(-limit // shared)
    elif sign in (ast.LtE, ast.Gt):
        limit //= shared
    elif limit % shared:
        return str(sign is ast.NotEq)
    else:
        limit //= shared
    factors = {term: factor // shared for term, factor in factors.items()}
    left = [_term(term, factor) for term, factor in sorted(factors.items(), key=str) if factor > 0]
    right = [_term(term, -factor) for term, factor in sorted(factors.items(), key=str) if factor < 0]
    (right if limit >= 0 else left).extend([str(abs(limit))] if limit or not right else [])
    return f"{' + '.join(left)} {_SIGNS[sign]} {' + '.join(right) or '0'}"


def _term(term: sympy.Expr, factor: int) -> str:
    return str(term) if factor == 1 else f"{factor} * {term}"


def _of_remainder(dividend: sympy.Expr, divisor: int) -> str:
    """Return the text that says that a sum is a multiple of a number."""
    constant, terms = sympy.expand(dividend).as_coeff_Add()
    factors = {term: int(factor) % divisor for term, factor in terms.as_coefficients_dict().items()}
    factors = {term: factor for term, factor in factors.items() if factor}
    rest = int(constant) % divisor
    shared = math.gcd(divisor, rest, *factors.values())
    parts = [_term(term, factor // shared) for term, factor in sorted(factors.items(), key=str)]
    parts += [str(rest // shared)] if rest else []
    if divisor == shared or not factors:
        return str(not rest)
    text = " + ".join(parts)
    return f"{text if len(parts) == 1 else f'({text})'} % {divisor // shared} == 0"


def _short(text: str) -> str:
    """Return a condition on one dimension as bounds or as divisibility, if it is no more than that."""
    tree = _tree(text)
    names = names_in_size(tree)
    if len(names) != 1 or _is_usual(tree):
        return text
    (name,) = names
    if (bound := first_other(tree, name)) is not None:
        return f"{name} <= {bound - 1}" if condition_holds(tree, {name: 0}) else f"{name} >= {bound}"
    decided = deciding_sizes([tree])
    if decided is None:
        return text
    sizes = [size for size in decided if size >= 0]
    table = truths(tree, {name: sizes})
    candidates: list[Callable[[], str | None]] = [
        lambda: "True" if all(truths(tree, {name: decided})) else None,
        lambda: _as_bound(name, sizes, table),
        lambda: _as_multiple(name, sizes, table),
    ]
    return next((found for candidate in candidates if (found := candidate()) is not None), text)


def _is_usual(tree: ast.expr) -> bool:
    """Tell whether a condition is that a size is a number, more or less, or a multiple of one."""
    if not isinstance(tree, ast.Compare):
        return False
    left = tree.left
    if not all(isinstance(part, ast.Constant) for part in tree.comparators):
        return False
    remainder = isinstance(left, ast.BinOp) and isinstance(left.op, ast.Mod) and isinstance(left.left, ast.Name)
    return isinstance(left, ast.Name) or remainder


def _as_bound(name: str, sizes: Sequence[int], table: Sequence[bool]) -> str | None:
    if not any(table) or all(table):
        return None
    changes = [index for index in range(1, len(table)) if table[index] != table[index - 1]]
    if len(changes) != 1:
        return None
    place = changes[0]
    if sizes[place] != sizes[place - 1] + 1:
        return None
    return f"{name} >= {sizes[place]}" if table[place] else f"{name} <= {sizes[place - 1]}"


def _as_multiple(name: str, sizes: Sequence[int], table: Sequence[bool]) -> str | None:
    for period in range(2, _MOST_PERIODS + 1):
        if all(here == (size % period == 0) for size, here in zip(sizes, table, strict=True)):
            return f"{name} % {period} == 0"
    return None
