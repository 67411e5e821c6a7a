"""What calls give of which no schema says that it shows their operands."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeVar

__all__ = ["einsum_axes", "grid_views"]

Vector = TypeVar("Vector")


def einsum_axes(equation: str, rank: int) -> tuple[list[tuple[int, int]], list[int]] | None:
    """Return how ``einsum`` of one tensor is a view of it: diagonals, taken in turn, and the order of what is left.

    Args:
        equation: The equation.
        rank: The rank of the tensor.

    Returns:
        The pairs of axes and the permutation; None where elements are added up, or the equation does not fit.
    """
    before, arrow, after = equation.replace(" ", "").partition("->")
    rest = "".join(map(str, range(rank - len(before.replace("...", "")))))
    labels, wanted = list(before.replace("...", rest)), after.replace("...", rest)
    if not arrow:
        wanted = rest + "".join(sorted(label for label in {*labels} - {*rest} if labels.count(label) == 1))
    diagonals: list[tuple[int, int]] = []
    while twice := next((label for label in labels if labels.count(label) > 1), None):
        first = labels.index(twice)
        second = labels.index(twice, first + 1)
        diagonals.append((first, second))
        labels = [label for axis, label in enumerate(labels) if axis not in (first, second)] + [twice]
    if len(labels) + len(diagonals) != rank or sorted(labels) != sorted(wanted):
        return None
    return diagonals, [labels.index(label) for label in wanted]


def grid_views(
    tensors: Sequence[Vector],
    sizes: Sequence[Any],
    indexing: str,
    view: Callable[[Vector, list[int]], Vector],
    expand: Callable[[Vector, list[Any]], Vector],
) -> list[Vector]:
    """Return what ``meshgrid`` gives, views of the tensors.

    Args:
        tensors: Tensors of rank 0 or 1.
        sizes: How many elements each has.
        indexing: ``"ij"`` or ``"xy"``, which exchanges the first two dimensions.
        view: Gives a tensor another shape.
        expand: Expands a tensor to sizes.
    """
    order = list(range(len(tensors)))
    if indexing == "xy":
        order[:2] = reversed(order[:2])
    shape = [sizes[index] for index in order]
    return [
        expand(view(tensor, [-1 if index == own else 1 for index in order]), shape)
        for own, tensor in enumerate(tensors)
    ]
