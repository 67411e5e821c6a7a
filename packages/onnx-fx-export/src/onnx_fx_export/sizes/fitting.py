"""A formula for a size, found from its values."""

from __future__ import annotations

import dataclasses
import functools
import itertools
import math
from collections.abc import Callable, Mapping, Sequence
from fractions import Fraction
from typing import Any

import torch

__all__ = ["SizeFormula", "fitted"]

# Steps and divisors up to which a quotient is looked for.
_LARGEST = 8


@dataclasses.dataclass(frozen=True)
class SizeFormula:
    """A size computed of others: ``(factor * product + total + offset) // divisor``.

    Attributes:
        positions: The sizes that are multiplied.
        extreme: What takes the place of their product: ``torch.sym_min`` or ``torch.sym_max`` of them.
        factor: What their product is multiplied with.
        offset: What is added.
        divisor: What it is divided by.
        terms: Factors of sizes that are added, by position.
        exact: Whether the quotient has to be whole.
    """

    positions: tuple[int, ...] = ()
    extreme: Callable[[Any, Any], Any] | None = None
    factor: int = 0
    offset: int = 0
    divisor: int = 1
    terms: tuple[tuple[int, int], ...] = ()
    exact: bool = False

    def dividend(self, sizes: Sequence[Any]) -> Any:
        """Return what is divided, of numbers or of symbolic sizes."""
        total: Any = self.offset
        if self.positions:
            chosen = [sizes[position] for position in self.positions]
            total = total + self.factor * (
                functools.reduce(self.extreme, chosen) if self.extreme else math.prod(chosen)
            )
        for position, factor in self.terms:
            total = total + factor * sizes[position]
        return total

    def __call__(self, sizes: Sequence[Any]) -> Any:
        """Return the size for numbers or for symbolic sizes."""
        dividend = self.dividend(sizes)
        return dividend // self.divisor if self.divisor > 1 else dividend

    def holds(self, values: Mapping[tuple[int, ...], int]) -> bool:
        """Tell whether it gives these values at these sizes."""
        return all(
            self(sizes) == value and (not self.exact or self.dividend(sizes) % self.divisor == 0)
            for sizes, value in values.items()
        )


def fitted(values: Mapping[tuple[int, ...], int]) -> SizeFormula | None:
    """Return the formula of a size, or None if none is found that gives all its values.

    Args:
        values: The size by the sizes that it may depend on.
    """
    (base, value), *_ = values.items()
    moved = [i for i in range(len(base)) if any(v != value for sizes, v in values.items() if _only(sizes, base, i))]
    if not moved:
        found = [SizeFormula(offset=value)]
    else:
        ratio = Fraction(value, math.prod(base[i] for i in moved))
        product = SizeFormula((*moved,), factor=ratio.numerator, divisor=ratio.denominator, exact=True)
        found = [*(_quotients(values, base, moved[0]) if len(moved) == 1 else ()), product]
        found += _sums(values, base, moved)
        # The larger of two sizes does not change their minimum.
        pairs = itertools.combinations(range(len(base)), 2)
        found += [SizeFormula(pair, torch.sym_min, factor=1) for pair in pairs if {*pair} & {*moved}]
    # Of sizes that are broadcast, none changes the result by itself.
    groups = (group for count in (2, 3) for group in itertools.combinations(range(len(base)), count))
    found += [SizeFormula(group, torch.sym_max, factor=1) for group in groups if not {*group} & {*moved}]
    return next((formula for formula in found if formula.holds(values)), None)


def _only(sizes: Sequence[int], base: Sequence[int], position: int) -> bool:
    """Tell whether sizes differ from others at one position alone."""
    return all((new != old) == (i == position) for i, (new, old) in enumerate(zip(sizes, base, strict=True)))


def _quotients(values: Mapping[tuple[int, ...], int], base: Sequence[int], position: int) -> list[SizeFormula]:
    """Return ``(factor * size + offset) // divisor`` for each divisor for which the values rise evenly."""
    along = {sizes[position]: value for sizes, value in values.items() if _only(sizes, base, position)}
    along[base[position]] = values[tuple(base)]
    found = []
    for divisor in range(1, _LARGEST + 1):
        rises = {along[size + divisor] - value for size, value in along.items() if size + divisor in along}
        if len(rises) == 1:
            factor = rises.pop()
            offset = max(divisor * value - factor * size for size, value in along.items())
            found.append(SizeFormula((position,), factor=factor, offset=offset, divisor=divisor))
    return found


def _sums(values: Mapping[tuple[int, ...], int], base: Sequence[int], moved: Sequence[int]) -> list[SizeFormula]:
    """Return ``offset + factor * size + ...``, if one is found."""
    factors = {}
    for position in moved:
        changed = next(sizes for sizes in values if _only(sizes, base, position))
        slope = Fraction(values[changed] - values[tuple(base)], changed[position] - base[position])
        if slope.denominator != 1:
            return []
        factors[position] = slope.numerator
    offset = values[tuple(base)] - sum(factor * base[position] for position, factor in factors.items())
    return [SizeFormula(offset=offset, terms=tuple(factors.items()))]
