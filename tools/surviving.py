"""Running what may take its process with it: kernels and converters written in C++."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from typing import TypeVar

T = TypeVar("T")
CRASH = "crash"


def in_children(work: Callable[[T], str], items: Sequence[T]) -> list[str]:
    """Return what a function says of each item, `crash` where the process does not survive it.

    Args:
        work: Called in a forked process; what it raises ends that process.
        items: What it is called with, one by one.
    """
    said: list[str] = []
    while len(said) < len(items):
        said += _in_one_child(work, items[len(said) :])
        if len(said) < len(items):
            said.append(CRASH)
    return said


def _in_one_child(work: Callable[[T], str], items: Sequence[T]) -> list[str]:
    """Return what a forked process says, as far as it comes."""
    reader, writer = os.pipe()
    child = os.fork()
    if not child:
        status = 1
        try:
            with os.fdopen(writer, "w", encoding="utf-8") as lines:
                for item in items:
                    print(work(item).replace("\n", " "), file=lines, flush=True)
            status = 0
        finally:
            os._exit(status)
    os.close(writer)
    with os.fdopen(reader, encoding="utf-8") as answers:
        said = [line.rstrip("\n") for line in answers]
    os.waitpid(child, 0)
    return said
