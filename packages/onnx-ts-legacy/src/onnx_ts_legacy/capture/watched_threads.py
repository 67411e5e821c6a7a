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
from onnxops_core.exporting import replaced

__all__ = ["watched_threads"]

Notice = Callable[[str], None]
"""Takes the name of a function of torch, in the thread and in the frame that calls it."""
# What a thread pool calls in its threads is the first argument of each.
_OF_POOLS = ("apply", "apply_async", "imap", "imap_unordered", "map", "map_async", "starmap", "starmap_async")


@contextmanager
def watched_threads(notice: Notice) -> Iterator[None]:
    """Report what the threads call to which this thread hands work meanwhile, until the end of the body.

    Args:
        notice: Called with each function of torch that takes or gives tensors.
    """
    is_over = threading.Event()

    def watched(function: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(function)
        def call(*args: Any, **kwargs: Any) -> Any:
            with contextlib.nullcontext() if is_over.is_set() else _Calls(notice, is_over):
                return function(*args, **kwargs)

        return call

    def start(thread: threading.Thread) -> None:
        thread.run = watched(thread.run)  # type: ignore[method-assign]
        usual_start(thread)

    def submit(pool: ThreadPoolExecutor, function: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Any:
        return usual_submit(pool, watched(function), *args, **kwargs)

    def handing(usual: Callable[..., Any]) -> Callable[..., Any]:
        def hand(pool: Pool, function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
            return usual(pool, watched(function) if isinstance(pool, ThreadPool) else function, *args, **kwargs)

        return hand

    usual_start, usual_submit = threading.Thread.start, ThreadPoolExecutor.submit
    of_pools = [(Pool, name, handing(getattr(Pool, name))) for name in _OF_POOLS]
    with replaced([(threading.Thread, "start", start), (ThreadPoolExecutor, "submit", submit), *of_pools]):
        try:
            yield
        finally:
            is_over.set()


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
