"""Sizes at which the code of a model may answer its questions in another way."""

from __future__ import annotations

import itertools
from collections.abc import Collection, Iterator, Mapping, Sequence

import sympy

from onnxops_decomp.exporting import at_sizes

__all__ = ["Point", "is_alone", "meet", "numbers_of", "points_around", "points_near", "unlike"]

#: Sizes by the name of the dimension.
Point = Mapping[str, int]

# Sizes up to so many more are looked at, and so many of each where two change.
_MOST_MORE, _MOST_OF_TWO = 8, 12
# A size is no larger than this, or than so many times that of the example.
_LARGEST, _TIMES = 128, 2
# From here on, torch takes no size for a special one.
_USUAL = 3


def points_around(
    relations: Collection[sympy.Basic], present: Point, bounds: Mapping[str, tuple[int, int]]
) -> list[Point]:
    """Return sizes among which the answers to questions differ, those near the example's first.

    Args:
        relations: What code asked, over symbols that are called as the dimensions.
        present: The sizes of the example.
        bounds: The least and the largest declared size.
    """
    return points_near(numbers_of(relations), present, bounds)


def numbers_of(relations: Collection[sympy.Basic]) -> dict[str, set[int]]:
    """Return the numbers in what code asked of each dimension that it asked about.

    Args:
        relations: What code asked, over symbols that are called as the dimensions.
    """
    found: dict[str, set[int]] = {}
    for relation in relations:
        numbers = {abs(int(number)) for number in relation.atoms(sympy.Integer)}
        for symbol in relation.free_symbols:
            found.setdefault(str(symbol), set()).update(numbers)
    return found


def points_near(
    numbers: Mapping[str, Collection[int]], present: Point, bounds: Mapping[str, tuple[int, int]]
) -> list[Point]:
    """Return sizes of some dimensions, those near the example's first.

    Args:
        numbers: What the sizes of the dimensions may be compared with.
        present: The sizes of the example.
        bounds: The least and the largest declared size.
    """
    tried = {
        name: _sizes(size, numbers[name], bounds[name]) if name in numbers else [size] for name, size in present.items()
    }
    found: dict[tuple[int, ...], Point] = {}
    for point in _changes(tried):
        sizes = {**present, **point}
        found.setdefault(tuple(sizes.values()), sizes)
    return _nearest(found.values(), present)


def _nearest(points: Collection[Point], present: Point) -> list[Point]:
    """Return points in the order in which they are tried: usual sizes near those of the example first."""

    def distance(point: Point) -> tuple[bool, int]:
        return min(point.values()) < _USUAL, sum(abs(size - present[name]) for name, size in point.items())

    return sorted(points, key=distance)


def _sizes(present: int, numbers: Collection[int], bounds: tuple[int, int]) -> list[int]:
    chosen = {*range(1, present + _MOST_MORE), 2 * present, 2 * present + 1, 3 * present}
    chosen |= {number + step for number in numbers for step in (-1, 0, 1)}
    least, most = max(1, bounds[0]), min(max(_LARGEST, _TIMES * present + 1), bounds[1])
    return sorted(
        (size for size in chosen if least <= size <= most), key=lambda size: (size < _USUAL, abs(size - present))
    )


def _changes(tried: Mapping[str, Sequence[int]]) -> Iterator[Point]:
    yield from ({name: size} for name, several in tried.items() for size in several)
    asked = [name for name, several in tried.items() if len(several) > 1]
    for pair in itertools.combinations(asked, 2):
        short = (tried[name][:_MOST_OF_TWO] for name in pair)
        yield from (dict(zip(pair, sizes, strict=True)) for sizes in itertools.product(*short))
    if len(asked) > 2:
        together = zip(*(tried[name] for name in asked), strict=False)
        yield from (dict(zip(asked, sizes, strict=True)) for sizes in together)


def unlike(relations: Collection[sympy.Basic], point: Point) -> list[sympy.Basic]:
    """Return the answers that are other ones at these sizes."""
    at = {sympy.Symbol(name, integer=True): size for name, size in point.items()}
    return [relation for relation in relations if at_sizes(relation, at) == sympy.false]


def is_alone(relation: sympy.Basic, name: str, point: Point) -> bool:
    """Tell whether an answer that is another one at some sizes is not so where one of them is larger or smaller."""
    around = ({**point, name: point[name] + step} for step in (-1, 1))
    return not any(unlike([relation], each) for each in around)


def meet(relation: sympy.Basic, point: Point) -> bool:
    """Tell whether both sides of an answer about several dimensions are equal at some sizes, and may be."""
    if not isinstance(relation, sympy.Eq | sympy.Ge | sympy.Le) or len(relation.free_symbols) < 2:
        return False
    return not unlike([sympy.Eq(*relation.args, evaluate=False)], point)
