"""``int``, ``float`` and ``range`` of sizes, which stay open where Python's would make numbers of the example.

Sizes that are computed from those are left as they are: torch would simplify them for minutes.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from types import ModuleType
from typing import Any

import sympy
import torch
from sympy.core.function import Application
from torch.fx.experimental.proxy_tensor import disable_proxy_modes_tracing
from torch.fx.experimental.symbolic_shapes import statically_known_true
from torch.overrides import TorchFunctionMode

from onnx_fx_export.torch_private import hint_of
from onnxops_core.exporting import original, replaced
from onnxops_decomp.exporting import class_of_numbers

__all__ = ["WrittenSizes", "numbers_of_tensors", "open_conversions"]

_RESHAPES = (torch.Tensor.view, torch.Tensor.reshape, torch.reshape)


@contextlib.contextmanager
def open_conversions(homes: Sequence[ModuleType], counted: _Counted | None = None) -> Iterator[None]:
    """Let ``int``, ``float`` and ``range`` keep symbolic numbers in the body, where a model finds its code.

    Python makes numbers of what ``__int__``, ``__float__`` and ``__index__`` return. What stands in their place is a
    class as well, which differs from them where the code compares it by ``is``.

    Args:
        homes: The modules of Python that hold the code of the model.
        counted: Returns what is iterated over in place of ``range(n)``; None for a number that it leaves alone.
    """
    ranges = _Ranges("_Range", (_Range,), {"counted": staticmethod(counted or _uncounted)})
    with (
        _in_code_of(homes, ((int, _INT), (float, _FLOAT), (range, ranges))),
        replaced([(sympy, "simplify", _simplified)]),
    ):
        yield


def numbers_of_tensors(homes: Sequence[ModuleType]) -> contextlib.AbstractContextManager[None]:
    """Let ``int`` and ``float`` of a tensor be what ``item()`` gives, a number that data decides, and not refused.

    Args:
        homes: The modules of Python that hold the code of the model.
    """
    return _in_code_of(homes, ((int, _INT_OF_TENSOR), (float, _FLOAT_OF_TENSOR)))


def _in_code_of(
    homes: Sequence[ModuleType], stand_ins: Sequence[tuple[type, type]]
) -> contextlib.AbstractContextManager[None]:
    places = [
        (home, kind.__name__, stand_in)
        for home in homes
        for kind, stand_in in stand_ins
        if kind.__name__ not in vars(home)
    ]
    # What dispatches by thread would be a function and no class; other numbers than symbolic ones it leaves alone.
    return replaced(places, in_all_threads=True)


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


def _item_as(dtype: torch.dtype) -> Callable[[Any], Any]:
    """Return what reads a tensor of one element; a number that is known is left to Python."""

    def number(value: Any) -> Any:
        is_one = isinstance(value, torch.Tensor) and isinstance(value.numel(), int) and value.numel() == 1
        found = value.to(dtype).item() if is_one else None
        return found if isinstance(found, torch.SymInt | torch.SymFloat) else None

    return number


_INT_OF_TENSOR = class_of_numbers(int, (torch.SymInt, torch.SymBool), _item_as(torch.int64))
_FLOAT_OF_TENSOR = class_of_numbers(float, (torch.SymFloat,), _item_as(torch.float64))


def _simplified(expression: sympy.Expr, **options: Any) -> sympy.Expr:
    """Simplify with a symbol in place of each call of a function.

    torch simplifies quotients of sizes. SymPy would try each rule that it knows inside each call as well, which
    takes minutes where sizes are computed from numbers that stay open.
    """
    symbols = {call: sympy.Dummy(integer=call.is_integer) for call in expression.atoms(Application)}
    found = original(sympy, "simplify")(expression.xreplace(symbols), **options)
    return found.xreplace({symbol: call for call, symbol in symbols.items()})


class WrittenSizes(TorchFunctionMode):
    """Writes the sizes that reshapes leave to be computed, which cannot be where there are no elements."""

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        """Call a function; of a tensor whose size is symbolic, a reshape is given each size."""
        if func in _RESHAPES and not kwargs and isinstance(args[0].numel(), torch.SymInt):
            sizes = [*args[1]] if len(args) == 2 and isinstance(args[1], Sequence) else [*args[1:]]
            # One comparison of a symbolic size with a number would ask for it.
            computed = [place for place, size in enumerate(sizes) if isinstance(size, int) and size == -1]
            others = math.prod(sizes[: computed[0]] + sizes[computed[0] + 1 :]) if computed else 0
            if isinstance(others, torch.SymInt):
                sizes[computed[0]] = args[0].numel() // others
                args = (args[0], sizes)
        return func(*args, **(kwargs or {}))
