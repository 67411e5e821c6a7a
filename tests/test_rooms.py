"""The plan of the rooms sees circles of imports and folders with too many modules."""

from __future__ import annotations

import pytest

from tools import rooms

ROOM = "packages/a-b/src/a_b"


@pytest.mark.parametrize(
    "back",
    [
        "from a_b.low import x",
        "if TYPE_CHECKING:\n    from a_b.low import x",
        "def f():\n    import a_b.low",
        "from a_b import low",
        'importlib.import_module("a_b.low")',
    ],
)
def test_a_circle_of_files_is_reported_whatever_the_import_is_for(back: str) -> None:
    texts = {f"{ROOM}/__init__.py": "", f"{ROOM}/low.py": "from a_b.room.high import y", f"{ROOM}/room/high.py": back}

    [fault] = rooms.faults(texts)

    assert "a_b.low -> a_b.room.high" in fault or "a_b.room.high -> a_b.low" in fault


def test_files_that_import_in_one_direction_or_their_package_are_no_circle() -> None:
    texts = {
        f"{ROOM}/__init__.py": "from a_b.high import f",
        f"{ROOM}/low.py": "from a_b import __version__",
        f"{ROOM}/high.py": "from a_b.low import x",
        "packages/c/src/c/d.py": "from a_b.high import f",
    }
    assert list(rooms.faults(texts)) == []


@pytest.mark.parametrize(("count", "wide"), [(rooms.MAX_MODULES, False), (rooms.MAX_MODULES + 1, True)])
def test_a_folder_with_too_many_modules_is_reported(count: int, wide: bool) -> None:
    texts = {f"{ROOM}/room/{name}.py": "" for name in ["__init__", *(f"m{i}" for i in range(count))]}
    assert [fault.startswith("a_b/room: ") for fault in rooms.faults(texts)] == [True] * wide


def test_the_plan_names_each_room_with_its_size() -> None:
    texts = {f"{ROOM}/{name}.py": "" for name in ("__init__", "top", "room/one", "room/inner/two")}
    assert rooms.plan(texts) == "a_b: . 1, room 2"
