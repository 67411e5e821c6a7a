"""What keeps an export from being disturbed by the rest of the process.

torch captures a model with state that belongs to the process, so that two threads which capture at a time disturb each
other; and what Python collects meanwhile is run by the thread that captures: a generator that was left inside of
``torch.no_grad()`` switches the mode when it is closed, which would go into the captured graph.
"""

from __future__ import annotations

import contextlib
import gc
import threading
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = ["exclusive_export", "without_collection"]

_exporting = threading.RLock()
_collection = threading.RLock()
_depth = 0
_undo = contextlib.ExitStack()


@contextlib.contextmanager
def exclusive_export() -> Iterator[None]:
    """Lets one thread export at a time, and nothing be collected meanwhile.

    Both exporters enter it around a whole export; another thread waits for its end. Contexts nest within a thread.
    """
    with _exporting, without_collection():
        yield


@contextlib.contextmanager
def without_collection() -> Iterator[None]:
    """Keeps objects that are no longer reachable from being collected in the body.

    Python's collector is off, and does not look at objects that exist already, should the body run it. What loses its
    last reference is freed as ever. Contexts nest, also across threads, and end in any order.
    """
    global _depth
    with _collection:
        if _depth == 0:
            _keep_all()
        _depth += 1
    try:
        yield
    finally:
        with _collection:
            _depth -= 1
            if _depth == 0:
                _undo.close()


def _keep_all() -> None:
    if gc.isenabled():
        gc.disable()
        _undo.callback(gc.enable)
    # What a program froze itself cannot be told apart from what is frozen here, and stays frozen.
    if gc.get_freeze_count() == 0:
        gc.freeze()
        _undo.callback(gc.unfreeze)
