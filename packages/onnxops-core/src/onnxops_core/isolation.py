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

import torch

if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = [
    "active_autocasts",
    "conversion_settings",
    "exclusive_export",
    "without_autocast",
    "without_collection",
]

_exporting = threading.RLock()
_collection = threading.RLock()
_depth = 0
_undo = contextlib.ExitStack()


@contextlib.contextmanager
def exclusive_export() -> Iterator[None]:
    """Let one thread export at a time, and nothing be collected meanwhile.

    Both exporters enter it around a whole export; another thread waits for its end. Contexts nest within a thread.
    """
    with _exporting, without_collection():
        # Weights that were cast before would be constants of the graph, and those cast inside are parts of it.
        torch.clear_autocast_cache()
        try:
            yield
        finally:
            torch.clear_autocast_cache()


@contextlib.contextmanager
def without_collection() -> Iterator[None]:
    """Keep objects that are no longer reachable from being collected in the body.

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
    # What a program froze itself is indistinguishable from what is frozen here, and stays frozen.
    if gc.get_freeze_count() == 0:
        gc.freeze()
        _undo.callback(gc.unfreeze)


def active_autocasts() -> list[tuple[str, torch.dtype]]:
    """Return the types of devices for which the thread is under autocast, each with the dtype that is cast to."""
    accelerator = torch.accelerator.current_accelerator()
    devices = dict.fromkeys(["cpu", "cuda", *([accelerator.type] if accelerator else [])])
    return [(device, torch.get_autocast_dtype(device)) for device in devices if torch.is_autocast_enabled(device)]


@contextlib.contextmanager
def without_autocast() -> Iterator[None]:
    """Let operators compute in the dtypes that they are given, also under autocast."""
    with contextlib.ExitStack() as stack:
        for device, dtype in active_autocasts():
            stack.enter_context(torch.autocast(device, dtype=dtype, enabled=False))
        yield


@contextlib.contextmanager
def conversion_settings() -> Iterator[None]:
    """Let what an exporter computes for itself be on the CPU and without autocast, whatever the program has set.

    The default dtype stays: what operators promote to depends on it.
    """
    # A device that is entered costs time in every call of torch.
    device = contextlib.nullcontext() if _is_on_cpu() else torch.device("cpu")
    with without_autocast(), device:
        yield


def _is_on_cpu() -> bool:
    try:
        return torch.get_default_device().type == "cpu"
    except (AssertionError, RuntimeError):  # torch asks the device, which this machine may not have
        return False
