"""Sizes at which a tensor lies in memory in another order."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence

import sympy
import torch

from onnxops_decomp.builder.expressions import at_sizes

__all__ = ["order_relations"]

# Sizes of which none divides another.
_PRIMES = (7, 11, 13, 17, 19, 23)
# Sizes below are tried.
_SMALL = 17


def order_relations(
    sizes: Sequence[sympy.Expr],
    strides: Sequence[sympy.Expr],
    answer: bool,
    memory_format: torch.memory_format = torch.contiguous_format,
) -> list[tuple[sympy.Basic, int]] | None:
    """Return what has to hold of sizes so that a tensor is contiguous where it is in the example, and nowhere else.

    Args:
        sizes: Those of the tensor.
        strides: Its strides.
        answer: Whether it is contiguous in the example.
        memory_format: The order that is asked about.

    Returns:
        A relation for each size of a dimension that gives another answer than other sizes do, and that size; None if
        other sizes give another answer than those of the example, whose order is a special one.
    """
    symbols = sorted(set().union(*(number.free_symbols for number in (*sizes, *strides))), key=str)
    usual = dict(zip(symbols, _PRIMES, strict=False))

    def differs(at: Mapping[sympy.Symbol, int]) -> bool:
        shape, steps = _known(sizes, at), _known(strides, at)
        if len(shape) < len(sizes) or len(steps) < len(strides):
            return False
        shown = torch.empty_strided(shape, steps, device="meta")
        return shown.is_contiguous(memory_format=memory_format) is not answer

    if differs(usual):
        return None
    return [
        (sympy.Ne(symbol, size) if size else sympy.Ge(symbol, 1), size)
        for symbol, size in itertools.product(symbols, range(_SMALL))
        if differs({**usual, symbol: size})
    ]


def _known(numbers: Sequence[sympy.Expr], at: Mapping[sympy.Symbol, int]) -> list[int]:
    """Return what numbers are at some sizes, those left out that no tensor can have there."""
    values = (at_sizes(number, at) for number in numbers)
    return [int(value) for value in values if isinstance(value, sympy.Integer) and value >= 0]
