"""What is missing to a multiple, in a form that is right where nothing is missing as well.

``if length % 8: x = pad(x, 8 - length % 8)`` would pad by a whole window where the condition does not hold. Where it
does, ``8 - length % 8`` is ``(8 - length % 8) % 8``.
"""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Iterator
from typing import Any

import torch

from onnxops_core.exporting import original, replaced

__all__ = ["Remainder", "forms_for_any_rest"]


@dataclasses.dataclass(frozen=True)
class Remainder:
    """The remainder of a division in the code of a model.

    Attributes:
        dividend: What is divided.
        divisor: The number that it is divided by.
        rest: What is left.
    """

    dividend: torch.SymInt
    divisor: int
    rest: torch.SymInt


@contextlib.contextmanager
def forms_for_any_rest() -> Iterator[list[Remainder]]:
    """Compute what is missing to a multiple in a form that is right for any rest, while a model is captured.

    Yields:
        The remainders for which that was done. It is the same where there is a rest.
    """
    changed: list[Remainder] = []
    # A size keeps its number as long as it is kept.
    noted = dict[int, Remainder]()
    remainder, subtracted_from = (original(torch.SymInt, name) for name in ("__mod__", "__rsub__"))

    def __mod__(self: torch.SymInt, other: Any) -> Any:
        rest = remainder(self, other)
        if type(other) is int and isinstance(rest, torch.SymInt):
            noted[id(rest)] = Remainder(self, other, rest)
        return rest

    def __rsub__(self: torch.SymInt, other: Any) -> Any:
        missing, found = subtracted_from(self, other), noted.get(id(self))
        if found is None or type(other) is not int or other != found.divisor:
            return missing
        changed.append(found)
        return missing % other

    with replaced([(torch.SymInt, "__mod__", __mod__), (torch.SymInt, "__rsub__", __rsub__)]):
        yield changed
