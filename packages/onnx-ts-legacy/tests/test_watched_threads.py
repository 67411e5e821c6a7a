"""What other threads compute for a model that is traced is not part of the trace: it is reported, or refused."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from multiprocessing.pool import ThreadPool

import pytest
import torch
from ts_models import in_another_thread

import onnx_ts_legacy
from onnx_ts_legacy.errors import CaptureError

T = torch.Tensor
X = torch.linspace(-2, 2, 6).reshape(2, 3) + 0.3
WORKERS, POOL = ThreadPoolExecutor(1), ThreadPool(1)


class Worker(threading.Thread):
    def __init__(self, function: Callable[[], object]) -> None:
        super().__init__()
        self.function = function

    def run(self) -> None:
        self.found = self.function()


def derived(function: Callable[[], object]) -> object:
    worker = Worker(function)
    worker.start()
    worker.join()
    return worker.found


def own_pool(function: Callable[[], object]) -> object:
    with ThreadPoolExecutor(2) as pool:
        return next(pool.map(lambda _: function(), [0]))


WAYS: dict[str, Callable[[Callable[[], object]], object]] = {
    "thread": in_another_thread,
    "class of threads": derived,
    "executor": own_pool,
    "executor that runs": lambda function: WORKERS.submit(function).result(),
    "pool": lambda function: POOL.apply(function),
    "map of a pool": lambda function: POOL.map(lambda _: function(), [0])[0],
}
WORK: dict[str, Callable[[T], object]] = {
    "number": lambda x: int(x.max() + 3),
    "tensor": lambda x: x * 2,
    "size": lambda x: x.shape[0],
    "truth": lambda x: x.sum().item() > 0,
}


# For the whole session: a worker of pytest-xdist may leave this file and come back to it.
@pytest.fixture(autouse=True, scope="session")
def running() -> Iterator[None]:
    for way in WAYS.values():
        way(lambda: None)
    yield
    WORKERS.shutdown()
    POOL.terminate()


@pytest.mark.parametrize("work", WORK)
@pytest.mark.parametrize("way", WAYS)
def test_what_a_thread_computes_is_refused_or_reported(way: str, work: str) -> None:
    def model(x: T) -> T:
        return x * WAYS[way](lambda: WORK[work](x))

    with pytest.raises(CaptureError, match=r"in another thread at .*test_watched_threads\.py:\d+"):
        onnx_ts_legacy.export(model, (X,), frozen_values="error")
    with pytest.warns(torch.jit.TracerWarning, match="calls torch in another thread") as caught:
        onnx_ts_legacy.export(model, (X,))
    assert {each.filename for each in caught} == {__file__}


@pytest.mark.parametrize("way", WAYS)
def test_threads_that_leave_torch_alone_are_no_news(way: str, recwarn: pytest.WarningsRecorder) -> None:
    program = onnx_ts_legacy.export(lambda x: x * WAYS[way](lambda: 2.0), (X,), frozen_values="error")

    torch.testing.assert_close(program(-X)[0], -X * 2)
    assert [str(each.message) for each in recwarn if "thread" in str(each.message)] == []


def test_threads_of_others_are_not_watched(recwarn: pytest.WarningsRecorder) -> None:
    before, done = threading.Thread.start, threading.Event()
    other = threading.Thread(target=lambda: [X.sum().item() for _ in iter(done.is_set, True)])
    other.start()
    try:
        onnx_ts_legacy.export(lambda x: x * 2, (X,), frozen_values="error")
    finally:
        done.set()
        other.join()
    assert [str(each.message) for each in recwarn if "thread" in str(each.message)] == []
    assert threading.Thread.start is before
