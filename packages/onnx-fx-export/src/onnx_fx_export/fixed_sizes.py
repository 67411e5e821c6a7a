"""Sizes that the model's code turned into numbers.

``int(x.shape[1] * 0.5)`` gives the number of the example, which torch.export notes as an equation and no more.
An equation that no size far from the example's solves fixes a dimension, whatever was declared.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import sympy
import torch
from torch.export import Dim

from onnx_fx_export.size_questions import Sizes
from onnx_fx_export.trial_runs import plain, user_values
from onnxops_decomp.expressions import at_sizes

__all__ = ["equations_that_fix"]

# Sizes far away, counted in steps that keep all remainders.
_FAR = (1000, 1001, 1003)


def equations_that_fix(program: torch.export.ExportedProgram, specs: Sequence[Mapping[int, Any]]) -> list[str]:
    """Return the equations under which a program was captured and that fix a dimension declared dynamic.

    Args:
        program: What was captured.
        specs: Declared dimensions of the leaves of the example. Those that are ``Dim.AUTO`` may be fixed.
    """
    sizes = Sizes.of(program, specs)
    free = sizes.hints.keys() - _automatic(program, specs)
    guards = [guard for guard in sizes.final_guards() if isinstance(guard, sympy.Eq)]
    with_number = [guard for guard in guards if any(side.is_Number for side in guard.args)]
    return [
        f"{guard.lhs} == {guard.rhs}"
        for guard in dict.fromkeys(with_number)
        if guard.free_symbols <= sizes.hints.keys()
        and any(_fixes(guard, symbol, sizes.hints) for symbol in guard.free_symbols & free)
    ]


def _automatic(program: torch.export.ExportedProgram, specs: Sequence[Mapping[int, Any]]) -> set[sympy.Symbol]:
    values = zip(user_values(program), specs, strict=False)
    return {
        plain(value.shape[axis])
        for value, spec in values
        for axis, dim in spec.items()
        if isinstance(value, torch.Tensor) and dim is Dim.AUTO
    }


def _fixes(guard: sympy.Eq, symbol: sympy.Symbol, hints: Mapping[sympy.Symbol, int]) -> bool:
    """Tell whether an equation holds for no size far from that of the example, and not for all near it either."""
    hint = hints[symbol]
    near = (2, 3, hint // 2, hint - 1, hint + 1, 2 * hint, 3 * hint + 1, 4 * hint)
    step = math.lcm(1, *(abs(int(number)) for number in guard.atoms(sympy.Integer) if number != 0))

    def fails(size: int) -> bool:
        point = {other: size if other == symbol else number for other, number in hints.items()}
        return at_sizes(guard, point) in (sympy.false, None)

    return all(fails(hint + step * count) for count in _FAR) and any(fails(size) for size in near if size > 1)
