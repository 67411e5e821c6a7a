"""State in objects of Python's library, classes, functions and modules: refused by path and line; the model stays."""

from __future__ import annotations

import array
import collections
import contextvars
import dataclasses
import functools
import heapq
import io
import itertools
import queue
import random
import re
import threading
import time
import types
import weakref
from collections.abc import Callable, Generator, Iterator
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import onnx_fx_export
import onnx_ts_legacy
from onnx_fx_export import OnnxExporterError

EXPORTERS = [onnx_fx_export.export, onnx_ts_legacy.export]
X = torch.linspace(-2, 2, 6).reshape(2, 3)


class Kept(nn.Module):
    def __init__(self, place: Any, step: Callable[[Any], Any]) -> None:
        super().__init__()
        self.place, self.step = place, step

    def forward(self, x: Tensor) -> Tensor:
        return x * float(self.step(self.place))


@dataclasses.dataclass(slots=True)
class Counts:
    n: int = 0


class Numbers(list[int]):
    calls = 0


class Names(dict[str, int]):
    def __init__(self) -> None:
        super().__init__()
        self.calls = 0


class Steps(Iterator[int]):
    n = 0

    def __next__(self) -> int:
        self.n += 1
        return self.n


class Private:
    def __init__(self) -> None:
        self.__n = 0

    def next(self) -> int:
        self.__n += 1
        return self.__n


class Total:
    n = 0


class Referred:
    """What others refer to weakly, which a SimpleNamespace cannot be."""

    n = 0


REFERRED = Referred()


class Counting:
    """A descriptor."""

    n = 0

    def __get__(self, instance: Any, owner: Any = None) -> Any:
        self.n += 1
        return self.n


class ByInstance:
    """A descriptor that keeps the values of all instances."""

    def __init__(self) -> None:
        self.values: Any = weakref.WeakKeyDictionary()

    def __get__(self, instance: Any, owner: Any = None) -> Any:
        return self.values.get(instance, 0)

    def __set__(self, instance: Any, value: Any) -> None:
        self.values[instance] = value


def with_descriptor(descriptor: Any) -> Any:
    return type("Own", (), {"n": descriptor})()


class Weighted(nn.Module):
    def __init__(self, weight: float) -> None:
        super().__init__()
        self.weight = weight


def new_list(key: int) -> list[int]:
    return []


def filled(cache: Any) -> Any:
    cache(1).append(0)
    return cache


def settings() -> types.ModuleType:
    module = types.ModuleType("settings")
    module.n = 0  # type: ignore[attr-defined]
    return module


def generated() -> Iterator[int]:
    yield from range(1, 100)


def add_to_attribute(place: Any) -> int:
    place.n = getattr(place, "n", 0) + 1
    return place.n


def add_to_calls(place: Any) -> int:
    place.calls += 1
    return place.calls


def add_to_item(place: Any) -> int:
    place["n"] = place.get("n", 0) + 1
    return place["n"]


def add_to_array(place: Any) -> Any:
    place[0] += 1
    return place[0]


def append(place: Any) -> int:
    place(1).append(0)
    return len(place(1))


def swap(place: Any) -> float:
    place.a, place.b = place.b, place.a
    return place.a.weight


def turn(place: Any) -> int:
    place.rotate(1)
    return place[0]


def move(place: Any) -> int:
    place.move_to_end(next(iter(place)))
    return next(iter(place.values()))


def push(place: Any) -> int:
    return heapq.heapreplace(place, place[0] + 7)


def put(place: Any) -> int:
    place.put(1)
    return place.qsize()


def write(place: Any) -> int:
    place.write("a")
    return place.tell()


def add_to_variable(place: Any) -> int:
    place.set(place.get() + 1)
    return place.get()


def draw(place: Any) -> float:
    return place.random()


def step_in_tuple(place: Any) -> int:
    return next(place[0])


def call(place: Any) -> int:
    return place()


def draw_of_python(place: Any) -> float:
    return random.random()


def draw_of_numpy(place: Any) -> float:
    return np.random.rand()


def default_counter(place: Any, counter: Any = itertools.count(1)) -> int:
    return next(counter)


def seed() -> None:
    """Set back what all models share."""
    Total.n = REFERRED.n = 0
    random.seed(0)
    np.random.seed(0)
    default_counter.__defaults__ = (itertools.count(1),)


CASES: dict[str, tuple[Callable[[], Any], Callable[[Any], Any]]] = {
    "count": (lambda: itertools.count(1), next),
    "cycle": (lambda: itertools.cycle([1, 2]), next),
    "generator": (generated, next),
    "list iterator": (lambda: iter([3, 4, 5, 6, 7, 8, 9]), next),
    "map": (lambda: map(float, range(1, 99)), next),
    "zip in tuple": (lambda: (map(sum, zip(range(9), range(9), strict=True)),), step_in_tuple),
    "partial": (lambda: functools.partial(next, itertools.count(1)), call),
    "method of an iterator": (lambda: itertools.count(1).__next__, call),
    "own iterator": (Steps, next),
    "random.Random": (lambda: random.Random(0), draw),
    "method of a generator": (lambda: random.Random(0).random, call),
    "numpy.random.Generator": (lambda: np.random.default_rng(0), draw),
    "numpy.random.RandomState": (lambda: np.random.RandomState(0), lambda place: place.rand()),
    "numpy array": (lambda: np.zeros(3), add_to_array),
    "array": (lambda: array.array("i", [0]), add_to_array),
    "bytearray": (lambda: bytearray(1), add_to_array),
    "deque": (lambda: collections.deque([1, 2, 3]), turn),
    "defaultdict": (lambda: collections.defaultdict(int), add_to_item),
    "Counter": (collections.Counter, add_to_item),
    "OrderedDict": (lambda: collections.OrderedDict(a=1, b=2), move),
    "ChainMap": (collections.ChainMap, add_to_item),
    "heap": (lambda: [3, 2, 1], push),
    "queue": (queue.Queue, put),
    "StringIO": (io.StringIO, write),
    "dataclass": (Counts, add_to_attribute),
    "namespace": (types.SimpleNamespace, add_to_attribute),
    "threading.local": (threading.local, add_to_attribute),
    "ContextVar": (lambda: contextvars.ContextVar("n", default=0), add_to_variable),
    "attribute of a list": (Numbers, add_to_calls),
    "attribute of a dict": (Names, add_to_calls),
    "attribute of a function": (lambda: types.FunctionType(call.__code__, globals()), add_to_attribute),
    "attribute of a class": (lambda: type("Own", (), {}), add_to_attribute),
    "module": (settings, add_to_attribute),
    "descriptor": (lambda: with_descriptor(Counting()), lambda place: place.n),
    "descriptor by instance": (lambda: with_descriptor(ByInstance()), add_to_attribute),
    "list in a cache": (lambda: functools.cache(new_list), append),
    "list in a filled cache": (lambda: filled(functools.lru_cache(4)(new_list)), append),
    "submodules": (lambda: nn.ModuleDict({"a": Weighted(2.0), "b": Weighted(3.0)}), swap),
    "random": (lambda: None, draw_of_python),
    "numpy.random": (lambda: None, draw_of_numpy),
    "private attribute": (Private, lambda place: place.next()),
    "class that code names": (lambda: None, lambda place: add_to_attribute(Total)),
    "weak reference": (lambda: weakref.ref(REFERRED), lambda place: add_to_attribute(place())),
    "weak proxy": (lambda: weakref.proxy(REFERRED), lambda place: add_to_attribute(place)),
    "weak set": (lambda: weakref.WeakSet([REFERRED]), lambda place: add_to_attribute(next(iter(place)))),
    "weak values": (lambda: weakref.WeakValueDictionary({1: REFERRED}), lambda place: add_to_attribute(place[1])),
    "default argument": (lambda: None, default_counter),
}


class Tables(nn.Module):
    @staticmethod
    @functools.cache
    def static(count: int) -> torch.Tensor:
        return torch.arange(count).float()

    @classmethod
    @functools.lru_cache(4)
    def of_class(cls, count: int) -> torch.Tensor:
        return torch.arange(count).float() + 1

    @property
    @functools.cache
    def own(self) -> torch.Tensor:
        return torch.arange(3).float() + 2

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x * self.static(x.shape[-1]) + self.of_class(x.shape[-1]) + self.own


@pytest.mark.parametrize("export", EXPORTERS, ids=["fx", "ts"])
def test_caches_of_methods_hold_no_tensors_of_an_export_afterwards(export: Any) -> None:
    model = Tables()
    export(model, (torch.ones(2, 3),))
    result = model(torch.ones(2, 3))
    assert type(result) is torch.Tensor
    torch.testing.assert_close(result, Tables()(torch.ones(2, 3)))


@pytest.mark.parametrize("export", EXPORTERS, ids=["fx", "ts"])
def test_a_model_whose_weights_have_no_shape_yet_is_refused(export: Any) -> None:
    model = nn.Sequential(nn.LazyLinear(3))
    with pytest.raises(OnnxExporterError, match=r"0\.weight has no shape yet: call the model once"):
        export(model, (X,))
    assert isinstance(model[0], nn.LazyLinear)


class Counted(nn.Module):
    """Has state in Python, and is called in a way for which the exporter lends a module hooks and a forward."""

    def __init__(self) -> None:
        super().__init__()
        self.calls = 0
        self.linear = nn.Linear(3, 3)

    def forward(self, x: Tensor, **others: Tensor) -> Tensor:
        self.calls += 1
        return self.linear(x + others["y"]) * self.calls


@pytest.mark.parametrize("export", EXPORTERS, ids=["fx", "ts"])
def test_a_model_with_state_in_python_has_its_own_hooks_and_forward_afterwards(export: Any) -> None:
    model = Counted()
    options = {"kwargs": {"y": X}}
    with torch.autocast("cpu", torch.bfloat16):
        with pytest.raises(OnnxExporterError, match="changes calls"):
            export(model, (X,), **options)
        with pytest.warns(UserWarning, match="changes calls"):
            export(model, (X,), state="ignore", **options)

    assert vars(model).keys() == vars(Counted()).keys()
    assert not any(value for name, value in vars(model).items() if "hooks" in name)


def sums_of_ones() -> Iterator[Tensor]:
    total = torch.zeros(3)
    while True:
        total = total + 1
        yield total


class Adding(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.sums = sums_of_ones()

    def forward(self, x: Tensor) -> Tensor:
        return x * next(self.sums)


@pytest.mark.parametrize("export", EXPORTERS, ids=["fx", "ts"])
def test_a_generator_of_tensors_is_refused_and_goes_on_as_before(export: Any) -> None:
    model = Adding()
    with pytest.raises(OnnxExporterError, match="changes sums"):
        export(model, (X,))

    results = [model(X), model(X)]
    assert [type(result) for result in results] == [Tensor, Tensor]
    torch.testing.assert_close(results, [X, X * 2])


class Shown(nn.Module):
    """Fills the memory that a tensor shows, and the same in each call."""

    def __init__(self, memory: Any, tensor: Callable[[Any], Tensor]) -> None:
        super().__init__()
        self.memory, self.tensor = memory, tensor

    def forward(self, x: Tensor) -> Tensor:
        self.memory[1] = 2
        return x * self.tensor(self.memory).sum()


@pytest.mark.parametrize("export", EXPORTERS, ids=["fx", "ts"])
@pytest.mark.parametrize(
    ("memory", "tensor"),
    [
        (np.zeros(3), torch.from_numpy),
        (np.zeros(6)[::2], lambda array: torch.from_numpy(array[1:])),
        (array.array("i", [0, 0]), lambda items: torch.frombuffer(items, dtype=torch.int32)),
        (bytearray(2), lambda items: torch.frombuffer(items, dtype=torch.uint8)),
    ],
    ids=["array", "strided array", "array.array", "bytearray"],
)
def test_a_tensor_in_memory_that_the_model_fills_is_refused(memory: Any, tensor: Any, export: Any) -> None:
    for state in ("error", "ignore"):
        with pytest.raises(OnnxExporterError, match=rf"changes memory \(at {re.escape(__file__)}:\d+\).* copy"):
            export(Shown(memory, tensor), (X,), state=state)
    assert memory[1] == 0

    program = export(Shown(memory, lambda items: torch.from_numpy(np.array(items))), (X,))
    (output,) = program.run({"x": X}).values()
    torch.testing.assert_close(output, X * 2, check_dtype=False)


@pytest.mark.parametrize("export", EXPORTERS, ids=["fx", "ts"])
@pytest.mark.parametrize("case", CASES)
def test_state_in_an_object_is_refused_and_the_object_goes_on_as_before(case: str, export: Any) -> None:
    make, step = CASES[case]
    model = Kept(make(), step)
    seed()
    expected = [Kept(make(), step)(X)]
    seed()

    with pytest.raises(OnnxExporterError, match=rf"changes \S+ \(at {re.escape(__file__)}:\d+\)"):
        export(model, (X,))
    with pytest.warns(UserWarning, match=rf"changes \S+ \(at {re.escape(__file__)}:\d+\)"):
        program = export(model, (X,), state="ignore")

    (output,) = program.run({"x": X}).values()
    torch.testing.assert_close([output], expected)
    torch.testing.assert_close([model(X)], expected)


class Held:
    __slots__ = ("number",)


class Computed(Held):
    """Computes what its base holds in a slot, another number each time."""

    __slots__ = ("reads",)

    def __init__(self) -> None:
        self.reads = 0

    @property
    def number(self) -> int:
        return time.perf_counter_ns()


@pytest.mark.parametrize("export", EXPORTERS, ids=["fx", "ts"])
def test_what_a_class_computes_in_place_of_a_slot_is_no_state(export: Any) -> None:
    class Model(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.computed = Computed()

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x * (self.computed.reads + 2)

    x = torch.ones(3)
    (result,) = torch.utils._pytree.tree_leaves(export(Model(), (x,))(x))
    torch.testing.assert_close(result, x * 2)


def sums() -> Generator[Any, Any, None]:
    total = 1.0
    while True:
        total = total + (yield total)


class Feeding(torch.nn.Module):
    """Sends to a generator what is added up in its variables."""

    def __init__(self, value: Callable[[torch.Tensor], Any]) -> None:
        super().__init__()
        self.sums, self.value = sums(), value
        next(self.sums)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x * self.sums.send(self.value(x))


@pytest.mark.parametrize("export", EXPORTERS, ids=["fx", "ts"])
@pytest.mark.parametrize("value", [lambda x: 2.0, torch.Tensor.sum], ids=["number", "tensor"])
def test_a_generator_that_is_fed_is_refused_and_not_run(value: Any, export: Any) -> None:
    model, x = Feeding(value), torch.ones(3)
    with pytest.raises(OnnxExporterError, match=r"send\(\) on a generator"):
        export(model, (x,))
    torch.testing.assert_close(model(x), x * (1 + value(x)))


@pytest.mark.parametrize("export", EXPORTERS, ids=["fx", "ts"])
def test_a_generator_that_forward_makes_may_be_fed(export: Any) -> None:
    def fed(x: torch.Tensor) -> torch.Tensor:
        generator = sums()
        next(generator)
        return x * generator.send(x.sum())

    x = torch.ones(3)
    (result,) = torch.utils._pytree.tree_leaves(export(fed, (x,))(x))
    torch.testing.assert_close(result, x * 4)


class CountsData(torch.nn.Module):
    """Counts calls, but not those on tensors without data."""

    def __init__(self) -> None:
        super().__init__()
        self.calls = 0

    def forward(self, x):
        y = x * 2
        if y.device.type != "meta":
            self.calls += 1
        return y + self.calls


class Settling(torch.nn.Module):
    """Sets a number once, which makes no difference to later calls, and draws random numbers."""

    def __init__(self) -> None:
        super().__init__()
        self.size = 0

    def forward(self, x):
        self.size = 7 if self.size == 0 else self.size
        return x + torch.rand(4) * (self.size - 7)


def test_state_that_only_tensors_with_data_change_is_refused() -> None:
    with pytest.raises(onnx_fx_export.MutationError, match="calls"):
        onnx_fx_export.export(CountsData(), (torch.ones(3),))


def test_the_search_for_state_draws_none_of_the_users_random_numbers() -> None:
    torch.manual_seed(5)
    expected = torch.rand(3)
    torch.manual_seed(5)
    onnx_fx_export.export(Settling(), (torch.ones(3, 4),))
    torch.testing.assert_close(torch.rand(3), expected)
