"""A pytest plugin: `-p tools.opset_option --opset 7-12` runs the tests of these opsets, and only them.

A test belongs to an opset if it is parametrized by `opset`. The default run takes a usual few of them and leaves the
rest to `wide`; with this option whatever is marked so is included, and tests of no opset are left out.
"""

from __future__ import annotations

import pytest


def opset_range(text: str) -> range:
    """Return the opsets of `13` or `7-12`, ends included.

    Raises:
        pytest.UsageError: It is neither.
    """
    first, dash, last = text.partition("-")
    if not first.isdecimal() or not (last.isdecimal() if dash else True):
        raise pytest.UsageError(f"--opset takes an opset such as 13 or a range such as 7-12, not {text!r}")
    return range(int(first), int(last or first) + 1)


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--opset", help="run the tests that are parametrized by these opsets alone: 13, or 7-12")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    asked = config.getoption("--opset")
    if asked is None:
        return
    opsets = opset_range(asked)
    kept = [item for item in items if opset_of(item) in opsets]
    config.hook.pytest_deselected(items=[item for item in items if opset_of(item) not in opsets])
    items[:] = kept


def opset_of(item: pytest.Item) -> int | None:
    """Return the opset that a test is parametrized by."""
    call = getattr(item, "callspec", None)
    return call.params.get("opset") if call else None
