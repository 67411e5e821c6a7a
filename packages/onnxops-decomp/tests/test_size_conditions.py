"""Conditions on sizes are short, without those that follow from others, and mean what they meant."""

from __future__ import annotations

import ast
import itertools

import pytest

from onnxops_decomp.exporting.sizes.conditions import simplified
from onnxops_decomp.exporting.sizes.constraints import SizeConstraints, warn_of_bounds
from onnxops_decomp.exporting.sizes.expressions import condition_holds, names_in_size, parsed_size, value_of_size

CONDITIONS = {
    ("s >= 4", "2*s % 4 == 0", "2*s == 4*(s//2)", "s > 3"): ["s >= 4", "s % 2 == 0"],
    ("k <= 14", "k <= 16", "k <= 16 + -1 * n"): ["k <= 14", "k + n <= 16"],
    ("4*n % m == 0", "4*n == m*(4*n//m)"): ["4 * n % m == 0"],
    ("(1 + n) // 2 == n + -1 * ((1 + n) // 2)",): ["n % 2 == 0"],
    ("t == Min(16, t) or t == 1 or Min(16, t) == 1",): ["t <= 16"],
    ("n == m", "n == m or n == 1 or m == 1"): ["n == m"],
    ("n == m or n == 1 or m == 1",): ["n == m or n == 1 or m == 1"],
    ("min(4, n) <= n", "n == n"): [],
    ("p + s + -1*t > 0",): ["p + s > t"],
    ("2*p + 2*s > 5",): ["p + s > 2"],
    ("-1*t <= -3",): ["t >= 3"],
    ("IntTrueDiv(n, 2) > 1",): ["n >= 3"],
    ("Mod(n, 2) == 0",): ["n % 2 == 0"],
    ("2*n + 1 == 4",): ["False"],
    ("3*n + 1 != 4",): ["n != 1"],
    ("n <= 6", "n >= 2", "n != 4"): ["n <= 6", "n >= 2", "n != 4"],
    ("3 * t * b % (12 * b) == 0", "t >= 4", "3 * t == 3 * (t // 4) * (t // (t // 4))"): ["t % 4 == 0", "t >= 4"],
    ("h >= 3", "w >= 3", "w // 2 >= 1 and (1 + (w - 1) // 2) * (1 + (h - 1) // 2) != 1"): [
        "h >= 3",
        "w >= 3",
    ],
    ("n ** 0.5 > 2",): ["n >= 5"],
    ("floor(log2(n) / 2) > 3",): ["n >= 256"],
    ("0.1 * sqrt(3 * n) < 2",): ["n <= 133"],
    ("m * n != 5063",): ["m * n != 5063"],
    ("12 % n == 0",): ["12 % n == 0"],
    ("n*m >= 2*n",): ["m * n >= 2 * n"],
    ("(n - 3) % 4 == 0",): ["(n + 1) % 4 == 0"],
    ("not (n == 4 or n > 8)",): ["n != 4", "n <= 8"],
    ("not (not (n > 3 and (not m < 2)))",): ["n >= 4", "m >= 2"],
    ("not (n == 1 and m == 2)",): ["not (n == 1 and m == 2)"],
}


@pytest.mark.parametrize("texts", CONDITIONS)
def test_conditions_are_written_in_short(texts: tuple[str, ...]) -> None:
    assert simplified(texts) == CONDITIONS[texts]


@pytest.mark.parametrize("texts", CONDITIONS)
def test_short_conditions_say_the_same(texts: tuple[str, ...]) -> None:
    before, after = ([tree for text in given if (tree := parsed_size(text))] for given in (texts, simplified(texts)))
    names = sorted({name for tree in before for name in names_in_size(tree)})
    for point in itertools.product(range(1, 24), repeat=len(names)):
        sizes = dict(zip(names, point, strict=True))
        assert _all_hold(before, sizes) == _all_hold(after, sizes), sizes


# False for the first time far from the numbers in them, beside what they must not be taken to follow from.
LATE = (
    ("(n + 10) % 150 != 0",),
    ("(3*n + 50) % 1000 != 0", "n > 4"),
    ("n % 37 != 36 or n % 29 != 11",),
    ("n // 37 % 11 != 5", "n % 2 == 0"),
    ("n % 37 == 36", "m % 2 == 0 or n % 37 == 0"),
    ("max(n, 3) % 97 != 41",),
    ("(n - 40) ** 2 > 3",),
    ("(n - 7) // 8 != 5 or m >= 1",),
    ("sqrt(n) % 7 != 6",),
    ("log(n - 700) < 2",),
    ("m >= 300", "16 * m >= n"),
    ("m % 13 != 7 or n % 11 != 4",),
)


@pytest.mark.parametrize("texts", LATE)
def test_a_condition_that_is_false_late_is_kept(texts: tuple[str, ...]) -> None:
    before, after = ([tree for text in given if (tree := parsed_size(text))] for given in (texts, simplified(texts)))
    names = sorted({name for tree in before for name in names_in_size(tree)})
    some = range(2000) if len(names) == 1 else (*range(60), 100, 299, 300, 301, 4801, 10**5)
    for point in itertools.product(some, repeat=len(names)):
        sizes = dict(zip(names, point, strict=True))
        assert _all_hold(before, sizes) == _all_hold(after, sizes), sizes


def test_a_sum_that_is_no_negative_number_is_compared_with_nothing() -> None:
    assert simplified(["n != -130"]) == []
    assert simplified(["n + k != -130 - m"]) == ["k + m + n + 130 != 0"]


# As torch writes them, and what they are for n = 7.
OF_TORCH = {
    "0.5*ToFloat(n)": 3.5,
    "FloorToInt(FloatTrueDiv(ToFloat(n), 2.0))": 3,
    "CeilToInt(IntTrueDiv(n, 2))": 4,
    "TruncToInt(-1*IntTrueDiv(n, 2))": -3,
    "TruncToFloat(IntTrueDiv(n, 2))": 3.0,
    "RoundToInt(IntTrueDiv(n, 3))": 2,
    "RoundDecimal(IntTrueDiv(n, 3), 1)": 2.3,
    "CleanDiv(2*n, 7)": 2,
    "CeilDiv(n, 4)": 2,
    "ModularIndexing(n, 2, 2)": 1,
    "PowByNatural(n, 2)": 49,
    "FloatPow(ToFloat(n), 2.0)": 49.0,
    "OpaqueUnaryFn_sqrt(n + 2)": 3.0,
    "Abs(Identity(-1*n))": 7,
    "ceiling(n/2)": 4,
}


@pytest.mark.parametrize("text", OF_TORCH)
def test_what_torch_computes_of_sizes_is_read(text: str) -> None:
    tree = parsed_size(text)
    assert tree is not None
    assert value_of_size(tree, {"n": 7}) == OF_TORCH[text]


def test_a_condition_that_cannot_be_read_is_reported() -> None:
    with pytest.warns(UserWarning, match=r"cannot check:\n  unheard_of"):
        constraints = SizeConstraints(["unheard_of(n) > 2", "n != 7"])
    assert constraints.conditions == ("n != 7",)


def test_of_many_conditions_the_warning_lists_the_shortest() -> None:
    constraints = SizeConstraints([f"n{'n' * number} % 4 == 0" for number in reversed(range(9))])
    with pytest.warns(UserWarning, match=r"sizes: n{6} % 4 == 0; .*; n % 4 == 0; and 3 more, .*size_constraints"):
        warn_of_bounds(constraints, [])


def _all_hold(trees: list[ast.expr], sizes: dict[str, int]) -> bool:
    return all(condition_holds(tree, sizes) for tree in trees)


def test_conditions_on_dimensions_that_get_one_name_are_short_again() -> None:
    constraints = SizeConstraints(["a <= 8", "b <= 6", "a == b"])
    assert constraints.renamed({"a": "n", "b": "n"}).conditions == ("n <= 6",)
