"""The page of what runtimes run says what was measured."""

from __future__ import annotations

import json

from tools import runtime_table

OPERATORS: dict[str, dict[str, runtime_table.Numbers]] = {
    "one": {"Abs": (2, 2, 2, 13), "Neg": (3, 2, 1, 13)},
    "two": {"Abs": (2, 2, 1, 13), "Neg": (3, 3, 3, 13)},
}


def test_cases_are_right_wrong_or_refused() -> None:
    assert runtime_table.totals(OPERATORS) == [["one", "5", "3", "1", "1"], ["two", "5", "4", "1", "0"]]


def test_what_is_complete_is_left_out() -> None:
    assert runtime_table.rows_of_operators({"one": {"Abs": (2, 2, 2, 13)}}) == []
    assert runtime_table.rows_of_operators(OPERATORS) == [
        ["`Abs`", "", "1 of 2, all run"],
        ["`Neg`", "1 of 3", ""],
    ]


def test_files_are_counted_by_what_stands_in_their_way() -> None:
    files = {"one": {"a": "", "b": "Loop", "c": "Loop", "d": "Det"}, "two": dict.fromkeys("abcd", "")}
    assert runtime_table.rows_of_files(files) == [["one", "1 of 4", "Loop 2, Det 1"], ["two", "4 of 4", ""]]


def test_data_have_a_line_for_each_operator() -> None:
    data = {"one": {"version": "1", "operators": {name: list(numbers) for name, numbers in OPERATORS["one"].items()}}}
    text = runtime_table.by_line(data)
    assert json.loads(text) == data
    assert '"Neg": [3, 2, 1, 13]' in text
