"""The sessions by opset run what is parametrized by these opsets, and nothing else."""

from __future__ import annotations

import pytest

from tools.opset_option import opset_range

pytest_plugins = ["pytester"]

TESTS = """
import pytest

def test_plain(): pass

@pytest.mark.parametrize("opset", [7, pytest.param(9, marks=pytest.mark.wide), 13])
def test_swept(opset): pass

@pytest.mark.parametrize("dtype", [9, 13])
def test_of_something_else(dtype): pass
"""


@pytest.mark.parametrize(("text", "expected"), [("13", [13]), ("7-9", [7, 8, 9])])
def test_an_opset_or_a_range_is_read(text: str, expected: list[int]) -> None:
    assert list(opset_range(text)) == expected


@pytest.mark.parametrize("text", ["", "x", "7-", "-7", "7-x", "7,8"])
def test_anything_else_is_refused(text: str) -> None:
    with pytest.raises(pytest.UsageError, match="such as 7-12"):
        opset_range(text)


@pytest.mark.parametrize(
    ("arguments", "ran"),
    [
        ([], ["plain", "7", "9", "13", "9", "13"]),
        (["--opset", "9"], ["9"]),
        (["--opset", "7-12"], ["7", "9"]),
        (["--opset", "13-28"], ["13"]),
    ],
)
def test_tests_are_chosen_by_their_opset(pytester: pytest.Pytester, arguments: list[str], ran: list[str]) -> None:
    pytester.makepyfile(TESTS)
    result = pytester.inline_run("-p", "tools.opset_option", "-W", "ignore", *arguments)

    passed, _, failed = result.listoutcomes()
    names = [report.nodeid.rpartition("::test_")[2].partition("[")[2].rstrip("]") or "plain" for report in passed]
    assert names == ran
    assert not failed


def test_a_range_without_tests_fails_the_run(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(TESTS)

    result = pytester.inline_run("-p", "tools.opset_option", "-W", "ignore", "--opset", "20")

    assert result.ret == pytest.ExitCode.NO_TESTS_COLLECTED
