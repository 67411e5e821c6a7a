"""Functions that repeat another one are found, those that only resemble one are not."""

from __future__ import annotations

import pytest

from tools.duplicates import repeated

FIRST = '''
def total(values: list[int], start: int = 0) -> int:
    """Add up."""
    result: int = start
    for value in values:
        result = plus(result, value)
    return result
'''
SECOND = """
def summed(numbers, first=0):
    outcome = first
    for number in numbers:
        outcome = plus(outcome, number)
    return outcome
"""
DECOMP, FX = "packages/onnxops-decomp/src/onnxops_decomp/a.py", "packages/onnx-fx-export/src/onnx_fx_export/b.py"


def test_a_function_that_differs_in_its_own_names_alone_is_reported_with_the_place_of_the_other() -> None:
    assert list(repeated({DECOMP: FIRST, FX: SECOND})) == [f"{FX}:2: summed does what total does, {DECOMP}:2"]


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("plus(", "minus("),  # calls another function
        ("=0", "=1"),
        ("outcome, number)", "number, outcome)"),
        ("number in numbers", "number in numbers.sizes"),
    ],
)
def test_a_function_that_does_something_else_is_not(old: str, new: str) -> None:
    assert old in SECOND
    assert list(repeated({DECOMP: FIRST, FX: SECOND.replace(old, new)})) == []


@pytest.mark.parametrize(
    ("first", "second", "shared"),
    [
        (DECOMP, "packages/onnxops-core/src/onnxops_core/b.py", True),
        (DECOMP, "packages/onnx-verify/src/onnx_verify/b.py", False),
        (DECOMP, "packages/onnxops-decomp/tests/b.py", False),
        ("packages/onnx-verify/tests/a.py", "packages/onnx-verify/tests/b.py", True),
        ("packages/onnx-verify/tests/a.py", "packages/onnx-fx-export/tests/b.py", False),
        ("tools/a.py", "tools/release/b.py", True),
        ("tools/a.py", "benchmarks/b.py", False),
    ],
)
def test_only_files_that_can_share_a_helper_are_compared(first: str, second: str, shared: bool) -> None:
    assert bool(list(repeated({first: FIRST, second: SECOND}))) == shared


def test_entries_of_a_table_may_repeat_each_other_but_not_a_helper() -> None:
    decorated = [f"@lowering('{name}'){text}" for name, text in (("a", FIRST), ("b", SECOND))]

    assert list(repeated({DECOMP: decorated[0], FX: decorated[1]})) == []
    assert len(list(repeated({DECOMP: decorated[0], FX: SECOND}))) == 1


@pytest.mark.parametrize("name", ["test_summed", "__init__", "forward"])
def test_what_a_framework_calls_is_no_helper(name: str) -> None:
    assert list(repeated({DECOMP: FIRST, FX: SECOND.replace("summed", name)})) == []


def test_what_calls_another_function_of_its_own_module_does_something_else() -> None:
    own = "def plus(a, b):\n    return a {} b\n"

    assert list(repeated({DECOMP: own.format("+") + FIRST, FX: own.format("-") + SECOND})) == []


def test_a_function_that_calls_itself_may_repeat_one_that_does_so_too() -> None:
    assert len(list(repeated({DECOMP: FIRST.replace("plus", "total"), FX: SECOND.replace("plus", "summed")}))) == 1


def test_an_inner_function_is_not_compared_its_meaning_is_that_of_the_outer_variables() -> None:
    def nested(text: str, plus: str) -> str:
        return f"def outer():\n    plus = {plus}\n" + text.replace("\n", "\n    ")

    assert list(repeated({DECOMP: nested(SECOND, "add"), FX: nested(SECOND, "subtract")})) == []


def test_a_short_function_is_not_reported() -> None:
    assert list(repeated({DECOMP: "def a(x):\n    return x + 1\n", FX: "def b(y):\n    return y + 1\n"})) == []
