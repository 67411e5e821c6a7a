"""What is read of the code of a model, and put in its place for a capture, is that of the function that runs."""

from __future__ import annotations

import linecache
from collections.abc import Callable
from pathlib import Path
from typing import Any

from onnxops_decomp.exporting import identities_of_numbers, type_tests

CODE = """
THREE = 3
def asks(n):
    return {first!r} if n is THREE else {second!r}
def asks_in_a_function(n):
    return [(lambda m: m is not THREE)(n) for _ in range(2)]
def tests(n):
    return type(n) is int
"""


class Symbol:
    """Stands for a number, and equals it."""

    def __init__(self, number: int) -> None:
        self.number = number

    def __eq__(self, other: object) -> bool:
        return self.number == other

    def __le__(self, other: int) -> bool:
        return self.number <= other

    __hash__ = None  # type: ignore[assignment]


def kind_of(value: Any) -> type | None:
    return int if isinstance(value, Symbol) else None


def functions(file: Path, first: str = "three", second: str = "other") -> dict[str, Callable[[Any], Any]]:
    """Return the functions of a file that is written."""
    file.write_text(CODE.format(first=first, second=second))
    namespace: dict[str, Any] = {}
    exec(compile(file.read_text(), str(file), "exec", dont_inherit=True), namespace)
    return namespace


def test_what_stands_for_a_number_is_as_identical_as_the_number(tmp_path: Path) -> None:
    found = functions(tmp_path / "model.py")
    asks, nested = found["asks"], found["asks_in_a_function"]
    before = asks.__code__
    with identities_of_numbers([asks, nested], kind_of):
        assert [asks(Symbol(3)), asks(Symbol(4)), asks(3), asks(3.0)] == ["three", "other", "three", "other"]
        assert nested(Symbol(3)) == [False, False]
    assert asks.__code__ is before
    assert asks(Symbol(3)) == "other"


def test_code_of_another_name_is_the_same(tmp_path: Path) -> None:
    asks = functions(tmp_path / "model.py")["asks"]
    asks.__code__ = asks.__code__.replace(co_name="forward")
    with identities_of_numbers([asks], kind_of):
        assert asks.__code__.co_name == "forward"
        assert asks(Symbol(3)) == "three"


def test_numbers_that_python_makes_anew_are_not_identical(tmp_path: Path) -> None:
    asks = functions(tmp_path / "model.py")["asks"]
    asks.__globals__["THREE"] = 1000
    with identities_of_numbers([asks], kind_of):
        assert asks(Symbol(1000)) == "other"


def test_code_that_was_written_since_does_not_run(tmp_path: Path) -> None:
    file = tmp_path / "model.py"
    old = functions(file)["asks"]
    with identities_of_numbers([old], kind_of):
        assert old(Symbol(3)) == "three"
    new = functions(file, first="new three")["asks"]
    linecache.checkcache(str(file))
    with identities_of_numbers([old, new], kind_of):
        assert (old(3), new(Symbol(3))) == ("three", "new three")


def test_lines_are_those_of_the_file_that_holds_the_function(tmp_path: Path) -> None:
    files = [tmp_path / name for name in ("first.py", "second.py")]
    found = [functions(file)["tests"] for file in files]
    assert found[0].__code__ == found[1].__code__
    assert [type_tests([function]) for function in found] == [[f"{file}:8"] for file in files]
