"""Sizes at which what programs compute of sizes turns: multiples of what they divide by, bounds of cuts and extrema.

Two ways through a model may give the same near the example, and something else where one of them divides by a thousand.
"""

from __future__ import annotations

import functools
import itertools
import operator
from collections.abc import Iterator, Sequence
from typing import Any

import sympy
import torch
from torch.utils import _pytree as pytree

from onnx_fx_export.size_ways.captures import CapturedWay, Captures
from onnx_fx_export.size_ways.points import Point, numbers_of

__all__ = ["turning_points"]

_DIVISIONS, _EXTREMA = ("FloorDiv", "Mod", "ModularIndexing", "PythonMod"), ("Max", "Min")
# Larger sizes are not tried. What is larger than the second number stands for no bound at all.
_LARGEST, _UNBOUNDED = 4096, 2**31 - 2
_TIMES = (1, 2)
# Of so many sizes behind a bound, the first one is tried that a program is to be taken for.
_BEHIND = 128


def turning_points(captures: Captures, ways: Sequence[CapturedWay]) -> list[list[Point]] | None:
    """Return groups of sizes, of each of which one is to be tried; None if some are too large for that.

    Args:
        captures: What captured the programs.
        ways: The programs.
    """
    exact: dict[str, set[int]] = {}
    bounds: dict[str, set[int]] = {name: set(numbers) for name, numbers in numbers_of(captures.relations(ways)).items()}
    for kinds, found in ((_DIVISIONS, exact), (_EXTREMA, bounds)):
        for part in (part for way in ways for part in _parts(captures, way, kinds)):
            for symbol in part.free_symbols:
                found.setdefault(str(symbol), set()).update(_scaled(part))
    own = [_literals(way.captured.program) for way in ways]
    # What only one of them does with a number may have to do with sizes.
    for name in captures.present:
        bounds.setdefault(name, set()).update(
            functools.reduce(operator.or_, own) - functools.reduce(operator.and_, own)
        )
    if any(_LARGEST < size < _UNBOUNDED for found in (exact, bounds) for sizes in found.values() for size in sizes):
        return None
    groups = [(name, [times * size]) for name, sizes in exact.items() for size in sizes for times in _TIMES]
    for name, sizes in bounds.items():
        groups += [(name, [size]) for number in sizes for size in (number - 1, number)]
        groups += [(name, [*range(number + 1, number + 1 + _BEHIND)]) for number in sizes]
    return [_points(captures, name, sizes) for name, sizes in groups]


def _scaled(part: sympy.Basic) -> set[int]:
    """Return the numbers in a computation of sizes, and products of two, as where a quotient is divided again."""
    numbers = {abs(int(number)) for number in part.atoms(sympy.Integer)} - {0, 1}
    return numbers | {first * second for first, second in itertools.combinations(numbers, 2)}


def _parts(captures: Captures, way: CapturedWay, kinds: tuple[str, ...]) -> Iterator[sympy.Basic]:
    for expression in captures.sizes_in(way):
        yield from (part for part in sympy.preorder_traversal(expression) if type(part).__name__ in kinds)


def _literals(program: torch.export.ExportedProgram) -> set[int]:
    """Return the integers that calls of a program have among their arguments."""
    leaves: Iterator[Any] = (
        leaf
        for module in program.graph_module.modules()
        if isinstance(module, torch.fx.GraphModule)
        for node in module.graph.nodes
        for leaf in pytree.tree_leaves((node.args, node.kwargs))
    )
    return {leaf for leaf in leaves if type(leaf) is int and leaf > 1}


def _points(captures: Captures, name: str, sizes: Sequence[int]) -> list[Point]:
    least, most = captures.bounds[name]
    points = [{**captures.present, name: size} for size in sizes if max(2, least) <= size <= min(most, 2 * _LARGEST)]
    return [point for point in points if captures.fits(point)]
