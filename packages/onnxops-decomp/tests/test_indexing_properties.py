"""Slicing, indexing and assignment equal eager PyTorch for any expression."""

from __future__ import annotations

from typing import Any

import hypothesis.strategies as st
import torch
from decomp_harness import check
from hypothesis import assume, given, settings

SHAPES = st.lists(st.integers(1, 4), min_size=1, max_size=4)
BOUND = st.none() | st.integers(-6, 6)


@st.composite
def sliced(draw: st.DrawFn) -> tuple[torch.Tensor, tuple[Any, ...]]:
    """A tensor and a subscript of slices, integers, new axes and an ellipsis."""
    shape = draw(SHAPES)
    parts: list[Any] = []
    for size in shape[: draw(st.integers(0, len(shape)))]:
        parts.append(draw(st.builds(slice, BOUND, BOUND, st.integers(1, 3)) | st.integers(-size, size - 1)))
        if draw(st.booleans()):
            parts.append(None)
    if draw(st.booleans()):
        parts.append(...)
    return torch.arange(1.0, torch.tensor(shape).prod() + 1).reshape(shape), tuple(parts)


@st.composite
def picked(draw: st.DrawFn) -> tuple[torch.Tensor, list[torch.Tensor | None]]:
    """A tensor and indices for some of its axes, integers that broadcast and masks."""
    shape = draw(SHAPES)
    common = draw(st.lists(st.integers(1, 3), max_size=3))
    # torch cannot trace a mask beside an index without dimensions, so a mask stands alone.
    masked = draw(st.none() | st.integers(0, len(shape) - 1))
    indices: list[torch.Tensor | None] = []
    for axis, size in enumerate(shape):
        if masked == axis:
            indices.append(torch.tensor(draw(st.lists(st.booleans(), min_size=size, max_size=size))))
        elif masked is None and draw(st.booleans()):
            own = [draw(st.sampled_from([1, dim])) for dim in common[draw(st.integers(0, len(common))) :]]
            count = int(torch.tensor(own).prod())
            numbers = draw(st.lists(st.integers(-size, size - 1), min_size=count, max_size=count))
            indices.append(torch.tensor(numbers, dtype=torch.int64).reshape(own))
        else:
            indices.append(None)
    # torch itself fails on a subscript without a tensor.
    assume(any(index is not None for index in indices))
    return torch.arange(1.0, torch.tensor(shape).prod() + 1).reshape(shape), indices


@settings(max_examples=40, deadline=None, derandomize=True)
@given(sliced())
def test_any_subscript_of_slices(case: tuple[torch.Tensor, tuple[Any, ...]]) -> None:
    x, subscript = case
    check(lambda x: x[subscript] * 2, x)


@settings(max_examples=50, deadline=None, derandomize=True)
@given(picked())
def test_any_indices(case: tuple[torch.Tensor, list[torch.Tensor | None]]) -> None:
    x, indices = case
    given_ones = [index for index in indices if index is not None]

    def index(x: torch.Tensor, *tensors: torch.Tensor) -> torch.Tensor:
        remaining = iter(tensors)
        return torch.ops.aten.index(x, [None if i is None else next(remaining) for i in indices]) * 2

    check(index, x, *given_ones)


@settings(max_examples=50, deadline=None, derandomize=True)
@given(picked(), st.booleans())
def test_any_accumulating_assignment(case: tuple[torch.Tensor, list[torch.Tensor | None]], scalar: bool) -> None:
    """Without accumulation the result is undefined where an element is written twice."""
    x, indices = case
    given_ones = [index for index in indices if index is not None]
    values = torch.tensor(0.5) if scalar else torch.ops.aten.index(x, indices) * 3

    def assign(x: torch.Tensor, values: torch.Tensor, *tensors: torch.Tensor) -> torch.Tensor:
        remaining = iter(tensors)
        return torch.ops.aten.index_put(x, [None if i is None else next(remaining) for i in indices], values, True)

    check(assign, x, values, *given_ones)
