"""``int`` and ``float`` of sizes in traces, which record what they make of them where Python would make numbers."""

from __future__ import annotations

import contextlib
import warnings
from collections.abc import Callable, Iterator, Sequence
from types import ModuleType
from typing import Protocol, TypeVar

import torch

from onnx_ts_legacy.capture.number_classes import converted_number, functions_of_numbers
from onnx_ts_legacy.capture.size_decisions import SizeDecision
from onnx_ts_legacy.errors import CaptureError
from onnxops_core.exporting import replaced
from onnxops_decomp.exporting import class_of_numbers, modules_named

__all__ = ["traced_with_conversions"]


class _Traced(Protocol):
    @property
    def decisions(self) -> Sequence[SizeDecision]: ...


Trace = TypeVar("Trace", bound=_Traced)
_INT = class_of_numbers(int, (), lambda value: converted_number(value, int, torch.int64))
_FLOAT = class_of_numbers(float, (), lambda value: converted_number(value, float, torch.float64))


def traced_with_conversions(trace: Callable[[], Trace], homes: Sequence[ModuleType]) -> Trace:
    """Trace a model, and once more with conversions recorded if it makes numbers of sizes that these would be fixed by.

    What stands for ``int`` is not ``int`` to all code, NumPy's for example. So it is there only where it helps.

    Args:
        trace: Traces the model.
        homes: The modules of Python that define it.

    Raises:
        CaptureError: What ``trace`` raises.
    """
    with functions_of_numbers(homes), warnings.catch_warnings(record=True) as warned:
        usual, refusal = _attempt(trace)
    numbers = [each for each in usual.decisions if not isinstance(each.answer, bool | tuple)] if usual else []
    if usual is None or numbers:
        # Functions that those of other files call may make numbers as well.
        homes = [*dict.fromkeys((*homes, *modules_named(each.home for each in numbers)))]
        with functions_of_numbers(homes), _converting(homes), warnings.catch_warnings(record=True) as warned_then:
            recorded, _ = _attempt(trace, Exception)
        if recorded is not None and (usual is None or len(recorded.decisions) < len(usual.decisions)):
            usual, warned = recorded, warned_then
    for each in warned:
        warnings.warn_explicit(each.message, each.category, each.filename, each.lineno, source=each.source)
    if usual is None:
        assert refusal is not None
        raise refusal
    return usual


def _attempt(
    trace: Callable[[], Trace], expected: type[Exception] = CaptureError
) -> tuple[Trace | None, Exception | None]:
    try:
        return trace(), None
    except expected as error:
        return None, error


@contextlib.contextmanager
def _converting(homes: Sequence[ModuleType]) -> Iterator[None]:
    stand_ins = ((int, _INT), (float, _FLOAT))
    places = [
        (home, kind.__name__, new) for home in homes for kind, new in stand_ins if kind.__name__ not in vars(home)
    ]
    # What dispatches by thread would be a function and no class; other numbers it leaves alone.
    with replaced(places, in_all_threads=True):
        yield
