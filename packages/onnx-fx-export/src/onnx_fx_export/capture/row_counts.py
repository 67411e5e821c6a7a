"""Runs in which operators find a given number of rows, whatever their data are."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

from onnx_fx_export.torch_private import TorchDispatchMode

__all__ = ["GivenCounts"]

aten = torch.ops.aten
# Where the operand stands that decides how many rows there are.
_DECIDING = {
    aten.nonzero.default: 0,
    aten.nonzero_numpy.default: 0,
    aten.argwhere.default: 0,
    aten.masked_select.default: 1,
}


class GivenCounts(TorchDispatchMode):
    """Lets operators find as many rows as they are told, one call after the other, while it is active.

    Attributes:
        met: How many such calls there were.
    """

    # A loop looks for its rows before it begins.
    supports_higher_order_operators = True

    def __init__(self, usual: int | None, apart: Mapping[int, int], cutting: frozenset[Any] = frozenset()) -> None:
        """Set the numbers.

        Args:
            usual: How many rows a call finds; None for what its data give.
            apart: Other numbers for single calls, by their position.
            cutting: Operators of other libraries whose results may be cut off.
        """
        super().__init__()  # type: ignore[no-untyped-call]
        self._usual, self._apart, self._cutting = usual, apart, cutting
        self.met = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Run an operator, with a mask of so many places where it looks for them."""
        kwargs, args = kwargs or {}, list(args)
        if func in _DECIDING:
            place = _DECIDING[func]
            args[place] = self._mask(args[place])
        elif func is aten.index.Tensor:
            args[1] = [self._mask(x) if x is not None and x.dtype is torch.bool else x for x in args[1]]
        elif func in self._cutting:
            result = func(*args, **kwargs)
            count = self._next()
            return result if count is None else result[:count]
        return func(*args, **kwargs)

    def _next(self) -> int | None:
        count = self._apart.get(self.met, self._usual)
        self.met += 1
        return count

    def _mask(self, found: torch.Tensor) -> torch.Tensor:
        """Return a mask with a given number of places, spread over all of it."""
        count = self._next()
        if count is None:
            return found
        mask = torch.zeros(found.numel(), dtype=torch.bool, device=found.device)
        if found.numel() and count:
            mask[torch.linspace(0, found.numel() - 1, min(count, found.numel())).long()] = True
        return mask.view(found.shape)
