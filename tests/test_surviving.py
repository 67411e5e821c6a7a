"""A process that dies costs one answer."""

from __future__ import annotations

import os
import signal

from tools.surviving import in_children


def test_what_kills_its_process_is_told_of_and_the_rest_goes_on() -> None:
    def work(number: int) -> str:
        if number == 2:
            os.kill(os.getpid(), signal.SIGKILL)
        if number == 3:
            raise ValueError
        return f"saw\n{number}"

    assert in_children(work, [0, 1, 2, 3, 4]) == ["saw 0", "saw 1", "crash", "crash", "saw 4"]


def test_nothing_is_asked_of_nothing() -> None:
    assert in_children(str, []) == []
