"""Which calls of torch other threads make for a program that is traced: a trace holds none of them."""

from __future__ import annotations

import contextlib
import functools
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from multiprocessing.pool import Pool, ThreadPool
from typing import Any

from torch.overrides import TorchFunctionMode

from onnx_ts_legacy.capture.watched_calls import may_be_frozen, name_of
from onnxops_core.exporting import Replacements, replaced

__all__ = ["watched_threads"]

Notice = Callable[[str], None]
"""Takes the name of a function of torch, in the thread and in the frame that calls it."""
# What a thread pool calls in its threads is the first argument of each.
_OF_POOLS = ("apply", "apply_async", "imap", "imap_unordered", "map", "map_async", "starmap", "starmap_async")


_active = threading.local()


@contextmanager
def watched_threads(notice: Notice) -> Iterator[None]:
    """Report what the threads call to which this thread hands work meanwhile, until the end of the body.

    Args:
        notice: Called with each function of torch that takes or gives tensors.
    """
    is_over, before = threading.Event(), _watches()
    _active.watches = (*before, (notice, is_over))
    try:
        with replaced(_handing(), in_all_threads=True):
            yield
    finally:
        _active.watches = before
        is_over.set()


def _watches() -> tuple[tuple[Notice, threading.Event], ...]:
    """Return where this thread reports what others call, for each trace that it records."""
    return getattr(_active, "watches", ())


def _watched(function: Callable[..., Any]) -> Callable[..., Any]:
    watches = _watches()

    @functools.wraps(function)
    def call(*args: Any, **kwargs: Any) -> Any:
        with contextlib.ExitStack() as stack:
            for notice, is_over in watches:
                if not is_over.is_set():
                    stack.enter_context(_Calls(notice, is_over))
            return function(*args, **kwargs)

    return call if watches else function


@functools.cache
def _handing() -> Replacements:
    """Return what hands work to other threads, and reports what those call; who records nothing does so as usual."""
    of_pools = ((Pool, name, _handing_to_pool) for name in _OF_POOLS)
    return Replacements(
        [(threading.Thread, "start", _starting), (ThreadPoolExecutor, "submit", _submitting), *of_pools]
    )


def _starting(usual: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(usual)
    def start(thread: threading.Thread) -> None:
        if _watches():
            thread.run = _watched(thread.run)  # type: ignore[method-assign]
        usual(thread)

    return start


def _submitting(usual: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(usual)
    def submit(pool: ThreadPoolExecutor, function: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Any:
        return usual(pool, _watched(function), *args, **kwargs)

    return submit


def _handing_to_pool(usual: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(usual)
    def hand(pool: Pool, function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        return usual(pool, _watched(function) if isinstance(pool, ThreadPool) else function, *args, **kwargs)

    return hand


class _Calls(TorchFunctionMode):
    """Reports the calls of torch in the thread that it is entered in."""

    def __init__(self, notice: Notice, is_over: threading.Event) -> None:
        super().__init__()
        self._notice, self._is_over = notice, is_over

    def __torch_function__(
        self, func: Any, types: Sequence[type], args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        result = func(*args, **(kwargs or {}))
        if not self._is_over.is_set() and may_be_frozen(func, result):
            self._notice(name_of(func))
        return result
