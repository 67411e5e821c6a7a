"""``int``, ``float`` and ``range`` of sizes, which stay open where Python's would make numbers of the example."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import torch
from torch.fx.experimental.proxy_tensor import disable_proxy_modes_tracing
from torch.fx.experimental.symbolic_shapes import statically_known_true

from onnx_fx_export.torch_private import hint_of
from onnxops_core.exporting import replaced
from onnxops_decomp.exporting import class_of_numbers, homes_of

__all__ = ["open_conversions"]


@contextlib.contextmanager
def open_conversions(model: torch.nn.Module, counted: _Counted | None = None) -> Iterator[None]:
    """Let ``int``, ``float`` and ``range`` keep symbolic numbers in the body, where a model's classes are defined.

    Python makes numbers of what ``__int__``, ``__float__`` and ``__index__`` return. What stands in their place is a
    class as well, which differs from them where the code compares it by ``is``.

    Args:
        model: The model; the files that define its modules, and the classes that these extend, are its code.
        counted: Returns what is iterated over in the place of ``range(n)``; None for a number that it leaves alone.
    """
    ranges = _Ranges("_Range", (_Range,), {"counted": staticmethod(counted or _uncounted)})
    stand_ins: tuple[tuple[type, type], ...] = ((int, _INT), (float, _FLOAT), (range, ranges))
    places = [
        (home, kind.__name__, stand_in)
        for home in homes_of(model)
        for kind, stand_in in stand_ins
        if kind.__name__ not in vars(home)
    ]
    # What dispatches by thread would be a function and no class; other numbers than symbolic ones it leaves alone.
    with replaced(places, in_all_threads=True):
        yield


_Counted = Callable[[torch.SymInt], Iterable[Any] | None]


def _uncounted(count: torch.SymInt) -> None:
    return None


def _int(value: Any) -> Any:
    return torch.sym_int(value) if isinstance(value, torch.SymInt | torch.SymFloat) else None


def _float(value: Any) -> Any:
    return torch.sym_float(value) if isinstance(value, torch.SymInt | torch.SymFloat) else None


class _Ranges(type):
    """What makes a class stand for ``range``, which cannot be extended."""

    def __instancecheck__(cls, instance: object) -> bool:
        return isinstance(instance, range)

    def __eq__(cls, other: object) -> bool:
        return other is cls or other is range

    def __hash__(cls) -> int:
        return hash(range)


class _Range(metaclass=_Ranges):
    counted: _Counted

    def __new__(cls, *numbers: Any) -> Any:
        if not any(isinstance(number, torch.SymInt) for number in numbers):
            return range(*numbers)
        if len(numbers) == 1 and (found := cls.counted(numbers[0])) is not None:
            return found
        start, stop, step = (0, numbers[0], 1) if len(numbers) == 1 else (*numbers, 1)[:3]
        # The example says how many there may be; then it has to hold for every size.
        hints = [hint_of(one) if isinstance(one, torch.SymInt) else one for one in (start, stop, step)]
        if None in hints:
            return range(*numbers)
        count = len(range(*hints))
        # What is asked is not part of the graph.
        with disable_proxy_modes_tracing():
            span = stop - start
            conditions = (step > 0, (count - 1) * step < span, span <= count * step)
        if count <= _MOST_STEPS and all(holds is True or statically_known_true(holds) for holds in conditions):
            return [start + place * step for place in range(count)]
        return range(*numbers)


# More steps than this are hardly the same number for every size.
_MOST_STEPS = 16
_INT = class_of_numbers(int, (torch.SymInt, torch.SymBool), _int)
_FLOAT = class_of_numbers(float, (torch.SymFloat,), _float)
