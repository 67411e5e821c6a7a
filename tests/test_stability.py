"""Rounds in random order are noted as they end, go on where they were cut off, and are summed up in one table."""

from __future__ import annotations

from pathlib import Path

import pytest

from tools.stability import NO_RESULT, Record, Round, complete, fingerprint, read_report, table


def passing(seed: int) -> Round:
    return Round(seed, 5, [], 1.5)


def silent(text: str) -> None:
    del text


def test_rounds_go_on_where_they_were_cut_off(tmp_path: Path) -> None:
    file, said = tmp_path / "package.json", list[str]()

    def cut_off(seed: int) -> Round:
        if len(said) == 2:
            raise KeyboardInterrupt
        return passing(seed)

    with pytest.raises(KeyboardInterrupt):
        complete(file, "source", 4, [], cut_off, said.append)
    first = Record.read(file)
    record = complete(file, "source", 4, [], passing, said.append)

    assert first is not None
    assert len(first.rounds) == 1
    assert record.rounds[:1] == first.rounds
    assert len({each.seed for each in record.rounds}) == len(record.rounds) == 4
    assert [text.split(":")[0] for text in said] == ["round 1", "round 2", "round 2", "round 3", "round 4"]
    assert said[-1].split()[3] == str(record.rounds[-1].seed)


def test_another_source_begins_anew(tmp_path: Path) -> None:
    file = tmp_path / "package.json"
    complete(file, "source", 3, [], passing, silent)

    assert len(complete(file, "other", 1, [], passing, silent).rounds) == 1


def test_a_seed_is_run_again_and_replaces_what_it_gave(tmp_path: Path) -> None:
    file = tmp_path / "package.json"
    complete(file, "source", 0, [7, 8], lambda seed: Round(seed, 5, ["test_a"], 1.0), silent)

    record = complete(file, "source", 10, [7], passing, silent)

    assert [(each.seed, each.failures) for each in record.rounds] == [(8, ["test_a"]), (7, [])]


def test_the_source_is_the_commit_and_what_has_changed_since() -> None:
    root = Path(__file__).parents[1]

    assert fingerprint(root) == fingerprint(root)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (None, (0, [NO_RESULT])),
        (
            '<testsuites><testsuite><testcase classname="a" name="x"/><testcase classname="a" name="y"><failure/>'
            '</testcase><testcase classname="b" name="z"><error/></testcase></testsuite></testsuites>',
            (3, ["a::y", "b::z"]),
        ),
    ],
    ids=["none", "failures"],
)
def test_failures_are_read_from_the_report(text: str | None, expected: object, tmp_path: Path) -> None:
    file = tmp_path / "report.xml"
    if text is not None:
        file.write_text(text)

    assert read_report(file) == expected


def test_the_table_has_a_line_for_each_package_and_each_test_that_failed() -> None:
    records = {
        "second": Record("s", [Round(1, 9, [], 10.0)]),
        "first": Record("s", [Round(7, 5, ["test_a"], 1.0), Round(8, 5, [], 1.0), Round(9, 5, ["test_a"], 1.4)]),
    }

    assert [line.split() for line in table(records).splitlines()] == [
        ["package", "rounds", "failed", "tests", "seconds"],
        ["first", "3", "2", "5", "3"],
        ["second", "1", "0", "9", "10"],
        ["first:", "test_a", "failed", "with", "--seed", "7,", "9"],
    ]
