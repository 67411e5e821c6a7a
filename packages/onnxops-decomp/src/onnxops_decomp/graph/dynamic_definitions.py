"""Functions of torch written by others, where torch's own code takes the sizes of the example for constants.

They stand in for the functions while a model with dynamic sizes is captured, and take the same arguments.
"""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch

from onnxops_decomp.graph.definitions import gradient, kron, multi_dot
from onnxops_decomp.torch_private import PAD_SEQUENCE

__all__ = ["DYNAMIC_DEFINITIONS"]


def _take_along_dim(input: torch.Tensor, indices: torch.Tensor, dim: int | None = None) -> torch.Tensor:
    """Elements at positions along a dimension, the others broadcast; see ``torch.take_along_dim``."""
    if dim is None:
        return input.reshape(-1).gather(0, indices.reshape(-1))
    if input.dim() != indices.dim():
        raise RuntimeError("take_along_dim: input and indices have to have one rank")
    dim = dim % input.dim()
    shapes = [[*x.shape[:dim], 1, *x.shape[dim + 1 :]] for x in (input, indices)]
    sizes = list(torch.broadcast_shapes(*shapes))
    wide = [x.expand(*sizes[:dim], x.shape[dim], *sizes[dim + 1 :]) for x in (input, indices)]
    return wide[0].gather(dim, wide[1])


def _tensor_split(
    input: torch.Tensor, indices_or_sections: Any = None, dim: int = 0, *, sections: int | None = None, **others: Any
) -> tuple[torch.Tensor, ...]:
    """Cut a dimension into parts of about one size, the first of them the longer ones; see ``torch.tensor_split``."""
    count = indices_or_sections if sections is None else sections
    if not isinstance(count, int) or not isinstance(input.shape[dim], torch.SymInt):
        return torch.tensor_split(input, count, dim, **others)
    length, longer = input.shape[dim] // count, input.shape[dim] % count
    starts = [part * length + torch.sym_min(longer, part) for part in range(count + 1)]
    return tuple(input.narrow(dim, start, end - start) for start, end in itertools.pairwise(starts))


def _bilinear(
    input1: torch.Tensor, input2: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None = None
) -> torch.Tensor:
    """See ``torch.nn.functional.bilinear``."""
    if not any(isinstance(size, torch.SymInt) for size in weight.shape):
        return torch.bilinear(input1, input2, weight, bias)
    pairs = (input1.unsqueeze(-1) * input2.unsqueeze(-2)).flatten(-2)
    return torch.nn.functional.linear(pairs, weight.flatten(1), bias)


def _with_points(input: torch.Tensor, dim: int, points: Any) -> torch.Tensor:
    """Cut a dynamic dimension, or fill it with zeros, to the points that a transform is asked for."""
    if not isinstance(input.shape[dim], torch.SymInt) or (isinstance(points, int) and points < 1):
        return input
    axis = dim % input.dim()
    zeros = input.new_zeros([*input.shape[:axis], points, *input.shape[axis + 1 :]])
    return torch.cat([input, zeros], axis).narrow(axis, 0, points)


def _transform(
    function: Callable[..., torch.Tensor],
    halved: bool,
    input: torch.Tensor,
    n: int | None = None,
    dim: int = -1,
    norm: Any = None,
) -> torch.Tensor:
    """See ``torch.fft.fft`` and its kind; ``halved`` ones use ``n // 2 + 1`` points of their input."""
    if n is not None:
        input = _with_points(input, dim, n // 2 + 1 if halved else n)
    # Along the last dimension, where the layout of the result depends on no size.
    return function(input.movedim(dim, -1), n, -1, norm).movedim(-1, dim)


def _transforms(
    function: Callable[..., torch.Tensor],
    halved: bool,
    axes: Sequence[int] | None,
    input: torch.Tensor,
    s: Sequence[int] | None = None,
    dim: Sequence[int] | None = None,
    norm: Any = None,
) -> torch.Tensor:
    """See ``torch.fft.fftn`` and its kind; ``axes`` are those of a call without ``dim``."""
    dim = axes if dim is None else dim
    if s is not None and len(s) <= input.dim():
        over = range(-len(s), 0) if dim is None else dim
        for place, (axis, points) in enumerate(zip(over, s, strict=False), 1):
            input = _with_points(input, axis, points // 2 + 1 if halved and place == len(s) else points)
    return function(input, s, dim, norm)


def _pad_sequence(
    sequences: Sequence[torch.Tensor],
    batch_first: bool = False,
    padding_value: float = 0.0,
    padding_side: str = "right",
) -> torch.Tensor:
    """Stack sequences, each padded to the longest; see ``torch.nn.utils.rnn.pad_sequence``."""
    longest = functools.reduce(torch.sym_max, [sequence.shape[0] for sequence in sequences])
    padded = []
    for sequence in sequences:
        missing = sequence.new_full((longest - sequence.shape[0], *sequence.shape[1:]), padding_value)
        padded.append(torch.cat([sequence, missing] if padding_side == "right" else [missing, sequence]))
    return torch.stack(padded, 0 if batch_first else 1)


def _resize_as_(input: torch.Tensor, other: torch.Tensor, **options: Any) -> torch.Tensor:
    """See ``torch.Tensor.resize_as_``; where the shapes are equal already there is nothing to do."""
    if input.dim() != other.dim() or not all(a == b for a, b in zip(input.shape, other.shape, strict=True)):
        return input.resize_as_(other, **options)
    return input


def _fill_diagonal_(input: torch.Tensor, fill_value: Any, wrap: bool = False) -> torch.Tensor:
    """See ``torch.Tensor.fill_diagonal_``; of a matrix it is the diagonal alone, unless it goes on below."""
    if input.dim() != 2 or wrap:
        return input.fill_diagonal_(fill_value, wrap)
    input.diagonal().fill_(fill_value)
    return input


def _cdist(x1: torch.Tensor, x2: torch.Tensor, p: float = 2.0, compute_mode: str | None = None) -> torch.Tensor:
    """See ``torch.cdist``; where numbers of rows are open, they do not choose how the same distances are computed."""
    by_rows = compute_mode in (None, "use_mm_for_euclid_dist_if_necessary")
    if by_rows and any(isinstance(rows.shape[-2], torch.SymInt) for rows in (x1, x2) if rows.dim() > 1):
        compute_mode = "donot_use_mm_for_euclid_dist"
    return torch.cdist(x1, x2, p, compute_mode or "use_mm_for_euclid_dist_if_necessary")


# ---- pooling


def _adaptive_max_pool(
    function: Callable[..., Any], rank: int, input: torch.Tensor, output_size: Any, return_indices: bool = False
) -> Any:
    """See ``torch.nn.functional.adaptive_max_pool2d`` and its kind.

    The axes whose size ``None`` leaves as it is become channels, which are pooled one by one.
    """
    wanted = list(output_size) if isinstance(output_size, list | tuple) else [output_size]
    if len(wanted) != rank or None not in wanted:
        return function(input, output_size, return_indices)
    kept = [axis for axis in range(rank) if wanted[axis] is None]
    pooled = [axis for axis in range(rank) if wanted[axis] is not None]
    first = input.dim() - rank
    order = [*range(first), *(first + axis for axis in (*kept, *pooled))]
    values = input.permute(order)
    places = torch.zeros_like(values, dtype=torch.int64)
    if pooled:
        front, behind = values.shape[: -len(pooled)], values.shape[-len(pooled) :]
        flat = _MAX_POOLS[len(pooled)](values.reshape(1, -1, *behind), [wanted[axis] for axis in pooled])
        values, places = (x.reshape([*front, *x.shape[2:]]) for x in flat)
    back = [order.index(axis) for axis in range(input.dim())]
    values, places = values.permute(back), places.permute(back)
    return (values, _places_in_plane(places, input.shape[first:], kept, pooled)) if return_indices else values


def _places_in_plane(
    places: torch.Tensor, plane: Sequence[int], kept: Sequence[int], pooled: Sequence[int]
) -> torch.Tensor:
    """Return the places of elements in a whole plane, for those among the axes that are pooled."""
    result = torch.zeros_like(places)
    for axis in reversed(pooled):
        result = result + (places % plane[axis]) * math.prod(plane[axis + 1 :])
        places = places // plane[axis]
    for axis in kept:
        along = torch.arange(plane[axis], device=places.device) * math.prod(plane[axis + 1 :])
        result = result + along.reshape(-1, *[1] * (len(plane) - axis - 1))
    return result


_MAX_POOLS: Mapping[int, Callable[..., tuple[torch.Tensor, torch.Tensor]]] = {
    1: torch.nn.functional.adaptive_max_pool1d_with_indices,
    2: torch.nn.functional.adaptive_max_pool2d_with_indices,
    3: torch.nn.functional.adaptive_max_pool3d_with_indices,
}


def _max_pool_definitions() -> dict[Any, Callable[..., Any]]:
    functional = torch.nn.functional
    found: dict[Any, Callable[..., Any]] = {}
    for rank in (2, 3):
        name = f"adaptive_max_pool{rank}d"
        definition = functools.partial(_adaptive_max_pool, getattr(functional, name), rank)
        found[getattr(functional, name)] = definition
        found[getattr(functional, f"{name}_with_indices")] = functools.partial(definition, return_indices=True)
    return found


def _transform_definitions() -> dict[Any, Callable[..., Any]]:
    found: dict[Any, Callable[..., Any]] = {}
    for name in ("fft", "ifft", "rfft", "irfft", "hfft", "ihfft"):
        halved = name in ("irfft", "hfft")
        function = getattr(torch.fft, name)
        found[function] = functools.partial(_transform, function, halved)
        for suffix, axes in (("n", None), ("2", (-2, -1))):
            function = getattr(torch.fft, name + suffix)
            found[function] = functools.partial(_transforms, function, halved, axes)
    return found


DYNAMIC_DEFINITIONS: Mapping[Any, Callable[..., Any]] = {
    torch.cdist: _cdist,
    torch.kron: kron,
    torch.take_along_dim: _take_along_dim,
    torch.Tensor.take_along_dim: _take_along_dim,
    torch.tensor_split: _tensor_split,
    torch.Tensor.tensor_split: _tensor_split,
    torch.linalg.multi_dot: multi_dot,
    torch.chain_matmul: lambda *matrices: multi_dot(matrices),
    torch.nn.functional.bilinear: _bilinear,
    **_transform_definitions(),
    torch.gradient: gradient,
    PAD_SEQUENCE: _pad_sequence,
    torch.Tensor.fill_diagonal_: _fill_diagonal_,
    torch.resize_as_: _resize_as_,
    torch.Tensor.resize_as_: _resize_as_,
    **_max_pool_definitions(),
}
