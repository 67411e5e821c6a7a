"""Numbers that data decides and that choose something in Python: a module of a list, an entry of a dict, a text.

``self.experts[row]`` needs a number. Where it is known how large that may be, as of what ``nonzero`` finds in a tensor
of 8, it is asked for by halves, so that each number becomes a way of its own through the code.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import sympy
import torch

__all__ = ["Bound", "Bounds", "chosen"]

_MARK = "_onnx_fx_export_bound"
# The numbers that these find are places along all dimensions, or along one: the argument at this place, or this one.
_EVERYWHERE = ("argwhere", "nonzero", "where")
_ALONG: Mapping[str, tuple[int | None, int | None]] = {
    **dict.fromkeys(("argmax", "argmin", "max", "min"), (1, None)),
    **dict.fromkeys(("argsort", "sort"), (1, -1)),
    "multinomial": (None, -1),
    "topk": (2, -1),
}
# Others wrap around what is larger.
_DTYPES = (torch.int32, torch.int64)
# These give numbers that are among those that they get.
_KEEPING = frozenset(
    (
        *("__getitem__", "clone", "contiguous", "cpu", "detach", "flatten", "index_select", "int", "long", "permute"),
        *("reshape", "select", "squeeze", "t", "to", "transpose", "unbind", "unique", "unsqueeze", "view"),
    )
)


@dataclasses.dataclass(frozen=True)
class Bound:
    """What is known of the elements of a tensor, or of a symbolic number: they are not negative.

    Attributes:
        end: The first number that none of them is.
        origin: Tells numbers apart that may differ; tensors of one element have one of each element.
    """

    end: int
    origin: object = dataclasses.field(default_factory=object)

    def part(self, index: object = None) -> Bound:
        """Return what is known of a part of the tensor, which is another one for each index, if that is known."""
        return Bound(self.end) if index is None else Bound(self.end, (self.origin, index))


class Bounds:
    """Knows bounds of tensors and of symbolic numbers."""

    def __init__(self) -> None:
        self._of_symbols: dict[Any, Bound] = {}

    def of(self, value: Any) -> Bound | None:
        """Return the bound of a tensor or of a symbolic number; None if none is known."""
        if isinstance(value, torch.SymInt):
            return self._of_symbols.get(value.node.expr)
        found: tuple[Bound, int] | None = getattr(value, _MARK, None)
        # What was written to it since may be anything.
        return found[0] if found is not None and found[1] == value._version else None

    def numbers(self, chosen: Mapping[object, int]) -> dict[Any, Any]:
        """Return what symbols are taken for, given the numbers by their origins."""
        known = {symbol: chosen.get(bound.origin) for symbol, bound in self._of_symbols.items()}
        return {symbol: sympy.Integer(number) for symbol, number in known.items() if number is not None}

    def note(self, value: Any, bound: Bound | None) -> None:
        """Note the bound of a tensor, of each in a tuple, or of a symbolic number."""
        if bound is None:
            return
        if isinstance(value, torch.SymInt):
            self._of_symbols[value.node.expr] = bound
        elif isinstance(value, tuple | list):
            for index, part in enumerate(value):
                self.note(part, bound.part(index))
        elif isinstance(value, torch.Tensor) and value.dtype in _DTYPES:
            setattr(value, _MARK, (bound, value._version))

    def note_call(self, func: Any, args: Sequence[Any], kwargs: Mapping[str, Any], result: Any) -> None:
        """Note the bound of what a function has given."""
        name = getattr(func, "__name__", "")
        first = args[0] if args else None
        if not isinstance(first, torch.Tensor):
            return
        if name == "item" or name in _KEEPING:
            self.note(result, self._kept(name, args, result))
        elif name in _EVERYWHERE and len(args) == 1:
            self.note(result, _largest(first.shape))
        elif name in _ALONG:
            place, usual = _ALONG[name]
            given = args[place] if place is not None and len(args) > place else kwargs.get("dim", usual)
            if type(given) is int and first.dim():
                # Of values and places, these come last.
                places = result[-1] if isinstance(result, tuple) else result
                self.note(places, _largest((first.shape[given],)))

    def _kept(self, name: str, args: Sequence[Any], result: Any) -> Bound | None:
        bound = self.of(args[0])
        if bound is None or (isinstance(result, tuple) and name != "unbind"):
            return None
        if name == "view" and result.dtype != args[0].dtype:
            return None
        if _is_one(args[0]) or isinstance(result, tuple):
            return bound
        is_entry = name == "__getitem__" and args[0].dim() == 1 and type(args[1]) is int
        size = args[0].shape[0]
        return bound.part(args[1] % size if is_entry and type(size) is int else None)


def _is_one(tensor: torch.Tensor) -> bool:
    return all(type(size) is int and size == 1 for size in tensor.shape)


def _largest(sizes: Sequence[Any]) -> Bound | None:
    return Bound(max(sizes)) if sizes and all(type(size) is int for size in sizes) else None


def chosen(number: torch.SymInt, end: int, answer: Callable[[torch.Tensor], bool]) -> int:
    """Return the number that answers tell, by asking whether it is in the lower half of what it may be.

    Args:
        number: A symbolic number from 0 on.
        end: The first number that it cannot be.
        answer: Answers a condition.
    """
    least = 0
    while end - least > 1:
        middle = (least + end) // 2
        if answer(torch.scalar_tensor(number < middle, dtype=torch.bool)):
            end = middle
        else:
            least = middle
    return least
