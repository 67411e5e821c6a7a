"""What a size expression is at some sizes, which guards are asked for thousands of times."""

from __future__ import annotations

import itertools

import pytest
import sympy
from torch.utils._sympy.functions import FloatTrueDiv, FloorDiv, IntTrueDiv, Max, Min, Mod, ToFloat, TruncToInt

from onnxops_decomp.exporting import at_sizes

h, w = sympy.symbols("h w", integer=True)
SCALE = Min(IntTrueDiv(sympy.Integer(96), Min(h, w)), IntTrueDiv(sympy.Integer(128), Max(h, w)))
RESIZED = TruncToInt(SCALE * ToFloat(h)), TruncToInt(FloatTrueDiv(SCALE * ToFloat(w), sympy.Float(2)))
EXPRESSIONS = [
    h,
    h * w - 3 * h + 1,
    FloorDiv(h - w, 2) ** 2,
    Mod(h, w + 1),
    *RESIZED,
    sympy.Max(2, RESIZED[0]) * FloorDiv(RESIZED[1] - 1, 2),
    sympy.Eq(RESIZED[0], w),
    sympy.Ne(h, w),
    sympy.And(sympy.Lt(h, 3), sympy.Ge(w, RESIZED[0])),
    sympy.Not(sympy.Or(sympy.Le(h, w), sympy.Gt(w, 2))),
    FloorDiv(h, w - 4),
    h + sympy.Symbol("left", integer=True),
]


@pytest.mark.parametrize("expression", EXPRESSIONS, ids=str)
def test_an_expression_is_what_sympy_makes_of_it(expression: sympy.Basic) -> None:
    for height, width in itertools.product((-2, 0, 1, 3, 4, 150), repeat=2):
        numbers = {h: sympy.Integer(height), w: sympy.Integer(width)}
        try:
            expected = expression.xreplace(numbers)
        except (ZeroDivisionError, AssertionError):
            expected = None
        assert at_sizes(expression, {h: height, w: width}) == expected
