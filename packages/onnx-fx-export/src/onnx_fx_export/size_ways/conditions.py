"""Conditions of ways as texts: where they hold, and which of them say something beside others."""

from __future__ import annotations

import ast
import functools
import itertools
from collections.abc import Sequence
from typing import Any

import numpy as np

from onnx_fx_export.size_ways.points import Point
from onnxops_decomp.exporting import condition_holds, either_of, names_in_size, parsed_size, truths

__all__ = ["alternatives", "follows", "held", "holds", "simplest"]

# What holds for these sizes holds for all; by how many dimensions it is about.
_ANY = {
    1: (*range(2, 130), *(2**power + step for power in range(8, 18) for step in (-1, 0, 1)), 1009, 5040, 10007),
    2: (*range(2, 50), 127, 128, 1009, 5040),
    3: (2, 3, 4, 6, 8, 12, 16, 24, 30, 36, 49, 1009, 5040),
}


def holds(text: str, point: Point) -> bool:
    """Tell whether a condition holds at a point.

    Args:
        text: The condition.
        point: The sizes.
    """
    tree = parsed_size(text)
    return tree is not None and condition_holds(tree, point)


def held(text: str, points: Sequence[Point]) -> list[bool]:
    """Tell at each of some points whether a condition holds.

    Args:
        text: The condition.
        points: The points.
    """
    tree = parsed_size(text)
    if tree is None:
        return [False] * len(points)
    return truths(tree, {name: [point[name] for point in points] for name in names_in_size(tree)})


def simplest(texts: Sequence[str], points: Sequence[Point]) -> list[str]:
    """Return conditions without those that follow from simpler ones, or always hold.

    Args:
        texts: The conditions.
        points: Sizes that are tried beside others.
    """
    found = list[str]()
    for text in sorted(texts, key=lambda text: (len(_names(text)), len(text))):
        if not follows(text, found, points):
            found.append(text)
    return found


def follows(text: str, others: Sequence[str], points: Sequence[Point]) -> bool:
    """Tell whether a condition holds wherever some others do, as far as trying sizes shows.

    Args:
        text: The condition.
        others: The others; none to ask whether it holds anywhere.
        points: Sizes that are tried beside others.
    """
    here = zip(held(text, points), *(held(other, points) for other in others), strict=True)
    if any(all(given) and not own for own, *given in here):
        return False
    names = tuple(sorted(set().union(*map(_names, (text, *others)))))
    if len(names) not in _ANY:
        return False
    numbers = {number + step for each in (text, *others) for number in _numbers(each) for step in (-1, 0, 1)}
    sizes = tuple(sorted({*_ANY[len(names)], *(number for number in numbers if number > 1)}))
    given = functools.reduce(np.logical_and, (_truths(other, names, sizes) for other in others), np.True_)
    return bool(np.all(_truths(text, names, sizes) | ~given))


@functools.lru_cache(maxsize=1024)
def _truths(text: str, names: tuple[str, ...], sizes: tuple[int, ...]) -> Any:
    """Tell at all combinations of sizes of some dimensions whether a condition holds."""
    points = itertools.product(sizes, repeat=len(names))
    return np.array(held(text, [dict(zip(names, point, strict=True)) for point in points]))


def _numbers(text: str) -> set[int]:
    tree = parsed_size(text)
    nodes = [] if tree is None else ast.walk(tree)
    return {node.value for node in nodes if isinstance(node, ast.Constant) and type(node.value) is int}


def alternatives(own: Sequence[str], others: Sequence[str]) -> list[str]:
    """Return what holds where one of two ways is taken, for each group of dimensions that conditions relate.

    Args:
        own: The conditions of one way.
        others: Those of the other one, which counts for dimensions that the first has conditions on.
    """
    found, left = list[str](), [*own]
    while left:
        names, size = _names(left[0]), 0
        while len(names) > size:
            size = len(names)
            names = names.union(*(_names(text) for text in (*own, *others) if _names(text) & names))
        group, other = ([text for text in texts if _names(text) & names] for texts in (own, others))
        found += either_of([group, other])
        left = [text for text in left if text not in group]
    return found


def _names(text: str) -> set[str]:
    tree = parsed_size(text)
    return set() if tree is None else set(names_in_size(tree))
