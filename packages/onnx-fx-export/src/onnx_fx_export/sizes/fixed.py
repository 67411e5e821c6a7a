"""Sizes that the model's code turned into numbers.

``int(x.shape[1] * 0.5)`` gives the number of the example, which torch.export notes as an equation and no more.
An equation that no size far from the example's solves fixes a dimension, whatever was declared.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Collection, Mapping, Sequence
from typing import Any

import sympy
import torch
from torch.export import Dim

from onnx_fx_export.sizes.questions import Sizes
from onnx_fx_export.sizes.trial_runs import plain, user_values
from onnx_fx_export.torch_private import is_of_fractions
from onnxops_decomp.exporting import at_sizes

__all__ = ["dimensions_that_became_static", "equations_that_fix", "numbers_of_the_example"]

# Sizes far away, counted in steps that keep all remainders.
_FAR = (1000, 1001, 1003)
# Factors by which sizes grow together, how many sizes grow with one, and up to which size all sizes are tried.
_FACTORS = (2, 3, 1001)
_MOST_OTHERS = 3
_NEAR = 65


def equations_that_fix(program: torch.export.ExportedProgram, specs: Sequence[Mapping[int, Any]]) -> list[str]:
    """Return the equations under which a program was captured and that fix a dimension declared dynamic.

    Args:
        program: What was captured.
        specs: Declared dimensions of the leaves of the example. Those that are ``Dim.AUTO`` may be fixed.
    """
    sizes = Sizes.of(program, specs)
    free = sizes.hints.keys() - _automatic(program, specs)
    return [
        f"{guard.lhs} == {guard.rhs}"
        for guard in _equations(sizes)
        if (len(guard.free_symbols) == 1 or _has_number(guard))
        and any(_fixes(guard, symbol, sizes.hints) for symbol in guard.free_symbols & free)
    ]


def dimensions_that_became_static(
    program: torch.export.ExportedProgram, specs: Sequence[Mapping[int, Any]]
) -> list[str]:
    """Return the dimensions declared dynamic that a program has as numbers, each with its size.

    torch.export says so of most of them itself; Dynamo loses some of ``vmap`` without a word. Sizes 0 and 1 are left
    to it.

    Args:
        program: What was captured.
        specs: Declared dimensions of the leaves of the example. Those that are ``Dim.AUTO`` may be static.
    """
    inputs = zip(program.graph_signature.user_inputs, user_values(program), specs, strict=False)
    return [
        f"{name}.shape[{axis}] == {value.shape[axis]}"
        for name, value, spec in inputs
        for axis, dim in spec.items()
        if isinstance(value, torch.Tensor) and dim not in (Dim.AUTO, Dim.STATIC)
        if isinstance(value.shape[axis], int) and value.shape[axis] > 1
    ]


def numbers_of_the_example(program: torch.export.ExportedProgram, specs: Sequence[Mapping[int, Any]]) -> list[str]:
    """Return the equations that say what ``int()`` or ``float()`` made of a size computed with fractions.

    Such an equation may hold for many sizes, as that of an image that is scaled to a given height. It says nothing of
    the model nonetheless: its code goes on with the number of the example where others have their own.

    Args:
        program: What was captured.
        specs: Declared dimensions of the leaves of the example.
    """
    sizes = Sizes.of(program, specs)
    free = sizes.hints.keys() - _automatic(program, specs)
    guards = [guard for guard in _equations(sizes) if _has_number(guard) and guard.free_symbols & free]
    numbers = [f"{guard.lhs} == {guard.rhs}" for guard in guards if any(map(is_of_fractions, guard.args))]
    return [*numbers, *_totals(sizes, free)]


def _totals(sizes: Sizes, free: Collection[sympy.Symbol]) -> list[str]:
    """Return the sizes that are a number less others, as ``int(n + m)`` leaves them: torch solves the equation."""
    return [
        f"{symbol} + {constant - rest} == {constant}"
        for symbol, rest in sizes.replaced.items()
        if rest.free_symbols & set(free) and (constant := rest.as_coeff_Add()[0]) > 0
        if rest.could_extract_minus_sign() or (constant - rest).is_Symbol
    ]


def _equations(sizes: Sizes) -> list[sympy.Eq]:
    """Return the equations of sizes of inputs."""
    guards = dict.fromkeys(guard for guard in sizes.final_guards() if isinstance(guard, sympy.Eq))
    return [guard for guard in guards if guard.free_symbols <= sizes.hints.keys()]


def _has_number(equation: sympy.Eq) -> bool:
    return any(side.is_Number for side in equation.args)


def _automatic(program: torch.export.ExportedProgram, specs: Sequence[Mapping[int, Any]]) -> set[sympy.Symbol]:
    values = zip(user_values(program), specs, strict=False)
    return {
        plain(value.shape[axis])
        for value, spec in values
        for axis, dim in spec.items()
        if isinstance(value, torch.Tensor) and dim is Dim.AUTO
    }


def _fixes(guard: sympy.Eq, symbol: sympy.Symbol, hints: Mapping[sympy.Symbol, int]) -> bool:
    """Tell whether an equation is solved by the size of the example and its neighbours alone.

    One that far sizes solve, if need be with other dimensions that grow alike, is a condition; so is one that is solved
    here and there, as by the divisors of a number.
    """
    hint = hints[symbol]
    step = math.lcm(1, *(abs(int(number)) for number in guard.atoms(sympy.Integer) if number != 0))
    others = sorted(guard.free_symbols - {symbol}, key=str)[:_MOST_OTHERS]

    def solves(size: int, factor: int = 1, grown: Collection[sympy.Symbol] = ()) -> bool:
        sizes = {other: hints[other] * (factor if other in grown else 1) for other in guard.free_symbols}
        return bool(at_sizes(guard, {**sizes, symbol: size}) == sympy.true)

    if any(solves(hint + step * count) for count in _FAR):
        return False
    groups = [group for count in range(1, len(others) + 1) for group in itertools.combinations(others, count)]
    if any(solves(hint * factor, factor, group) for group in groups for factor in _FACTORS):
        return False
    near = sorted({*range(1, _NEAR), *(hint * part // 2 for part in (1, 2, 3, 4, 6, 8)), hint - 1, hint + 1})
    answers = [answer for answer, _ in itertools.groupby(solves(size) for size in near if size >= 1)]
    return answers.count(True) == 1 and False in answers
