"""What torch keeps to itself about computing with symbolic sizes, in one place.

There is no public way to change how torch bounds and simplifies them.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import AbstractContextManager
from typing import Any

import sympy
from torch.utils._sympy import functions, value_ranges
from torch.utils._sympy.interp import _run_sympy_handler
from torch.utils._sympy.value_ranges import SymPyValueRangeAnalysis, ValueRanges

from onnxops_core.exporting import original, replaced

__all__ = ["shared_bounds", "short_divisions", "whole_bounds"]

# More operations in two expressions are no short ones.
_MOST_DIVIDED = 40


def whole_bounds() -> AbstractContextManager[None]:
    """Let the bounds of numbers that were cut off be integers (``SymPyValueRangeAnalysis.trunc_to_int``).

    torch 2.15 leaves the bound 0.0 as it is, and fails where it divides such a number.
    """

    def trunc_to_int(a: Any, dtype: Any) -> Any:
        found = original(SymPyValueRangeAnalysis, "trunc_to_int")(a, dtype)
        bounds = (sympy.Integer(int(b)) if isinstance(b, sympy.Float) else b for b in (found.lower, found.upper))
        return ValueRanges(*bounds)

    return replaced([(SymPyValueRangeAnalysis, "trunc_to_int", trunc_to_int)])


def shared_bounds() -> AbstractContextManager[None]:
    """Find the bounds of each part of an expression once (``sympy_interp`` of ``bound_sympy``).

    The sizes of a model are computed from one another, and torch asks for the bounds of each of them and of their
    differences anew, from the sizes of the inputs on.
    """
    known: dict[frozenset[tuple[sympy.Basic, Any]], dict[sympy.Basic, Any]] = {}
    plain = original(value_ranges, "sympy_interp")

    def bounds(analysis: Any, env: Mapping[Any, Any], expr: sympy.Basic, **options: Any) -> Any:
        if analysis is not SymPyValueRangeAnalysis or "index_dtype" in options:
            return plain(analysis, env, expr, **options)
        of_symbols = frozenset((symbol, env.get(symbol)) for symbol in expr.free_symbols)
        found = known.setdefault(of_symbols, {})

        def of_part(part: sympy.Basic) -> Any:
            if not part.args:
                return plain(analysis, env, part, **options)
            if part not in found:
                found[part] = _run_sympy_handler(analysis, [of_part(argument) for argument in part.args], part)
            return found[part]

        return of_part(expr)

    return replaced([(value_ranges, "sympy_interp", bounds)])


def short_divisions() -> AbstractContextManager[None]:
    """Look for common divisors of short expressions only (``torch.utils._sympy.functions.safe_gcd``).

    They make a quotient simpler. torch leaves out wide sums, but not products of sums: those of images in windows take
    minutes to expand.
    """
    usual = original(functions, "safe_gcd")

    def gcd(a: sympy.Basic, b: sympy.Basic) -> sympy.Basic:
        if a.count_ops() + b.count_ops() > _MOST_DIVIDED:
            return functions.simple_floordiv_gcd(a, b)
        return usual(a, b)

    return replaced([(functions, "safe_gcd", gcd)])
