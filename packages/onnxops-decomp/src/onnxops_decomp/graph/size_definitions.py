"""Functions of torch that take numbers alone where programs give them sizes, written with operators that take sizes.

They stand in for calls whose numbers follow from dynamic sizes, which are symbols in a capture, and tensors in a trace.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch.utils import _pytree as pytree

__all__ = ["defined_for_sizes"]


class _NotSized(Exception):
    """The arguments are not those that a definition is written for."""


def defined_for_sizes(
    func: Any, args: Sequence[Any], kwargs: Mapping[str, Any], is_size: Callable[[Any], bool]
) -> torch.Tensor | None:
    """Call what stands in for a function that takes sizes as numbers.

    Args:
        func: The function.
        args: Its arguments by position.
        kwargs: Its arguments by name.
        is_size: Tells whether an argument, or an element of a list, follows from dynamic sizes.

    Returns:
        The result, of the shape and dtype that the function itself gives; None if there is no such call to replace.
    """
    definition = _DEFINITIONS.get(func)
    if definition is None or not any(map(is_size, pytree.tree_leaves((args, kwargs)))):
        return None
    try:
        return definition(*args, **kwargs)
    except _NotSized:
        return None


# ---- sequences


def _places(
    n: Any, *, dtype: torch.dtype | None = None, device: Any = None, **others: Any
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return a length as a tensor of shape (1,), and the indices up to it, of shape (n,); both of one dtype."""
    dtype = dtype or torch.get_default_dtype()
    if not dtype.is_floating_point or any(others.values()):
        raise _NotSized
    index = torch.arange(n, dtype=dtype, device=device)
    return torch.ones_like(index).sum(0, keepdim=True), index


def _linspace(start: Any, end: Any, steps: Any, **options: Any) -> torch.Tensor:
    """Return evenly spaced numbers, counted from the nearer end as torch does; see ``torch.linspace``."""
    if isinstance(start, complex) or isinstance(end, complex):
        raise _NotSized
    count, index = _places(steps, **options)
    last = count - 1 - index
    step = (torch.ones_like(index) * end - start) / (count - 1).clamp(min=1)
    return torch.where(index <= last, start + index * step, end - last * step)


def _logspace(start: Any, end: Any, steps: Any, base: float = 10.0, **options: Any) -> torch.Tensor:
    """Return powers of a base; see ``torch.logspace``."""
    return torch.pow(base, _linspace(start, end, steps, **options))


def _fftfreq(n: Any, d: float = 1.0, **options: Any) -> torch.Tensor:
    """See ``torch.fft.fftfreq``: the second half counts from below."""
    count, index = _places(n, **options)
    return torch.where(2 * index < count, index, index - count) / (count * d)


def _rfftfreq(n: Any, d: float = 1.0, **options: Any) -> torch.Tensor:
    """See ``torch.fft.rfftfreq``."""
    count, _ = _places(n, **options)
    return torch.arange(n // 2 + 1, dtype=count.dtype, device=count.device) / (count * d)


def _triangle(
    is_inside: Callable[[Any, Any], torch.Tensor], row: Any, col: Any, offset: Any = 0, **options: Any
) -> Any:
    """Return the places of the elements of a matrix on one side of a diagonal; see ``torch.tril_indices``."""
    dtype = options.pop("dtype", None) or torch.int64
    rows, columns = (torch.arange(count, device=options.get("device")) for count in (row, col))
    inside = is_inside(columns - offset, rows.unsqueeze(-1))
    return inside.nonzero().t().to(dtype)


# ---- windows


def _window(weights: Sequence[float], window_length: Any, periodic: bool = True, **options: Any) -> torch.Tensor:
    """Return a sum of cosines, of which the k-th turns k times; one of a single element is 1."""
    count, index = _places(window_length, **options)
    turns = 2 * math.pi * index / (count if periodic else (count - 1).clamp(min=1))
    terms = [weight * torch.cos(turns * k) for k, weight in enumerate(weights[1:], 1)]
    return torch.where(count == 1, 1.0, functools.reduce(torch.add, terms, weights[0] * torch.ones_like(index)))


def _hamming_window(
    window_length: Any, periodic: bool = True, alpha: float = 0.54, beta: float = 0.46, **options: Any
) -> torch.Tensor:
    return _window([alpha, -beta], window_length, periodic, **options)


def _bartlett_window(window_length: Any, periodic: bool = True, **options: Any) -> torch.Tensor:
    """Return a triangle; see ``torch.bartlett_window``."""
    count, index = _places(window_length, **options)
    reach = count if periodic else (count - 1).clamp(min=1)
    return torch.where(count == 1, 1.0, 1 - (2 * index / reach - 1).abs())


# ---- classes


def _one_hot(input: torch.Tensor, num_classes: Any = -1) -> torch.Tensor:
    """See ``torch.nn.functional.one_hot``."""
    if isinstance(num_classes, int):
        raise _NotSized
    return (input.unsqueeze(-1) == torch.arange(num_classes, device=input.device)).to(torch.int64)


# ---- pooling


def _pooled(
    reduce: Callable[[torch.Tensor, list[int]], torch.Tensor],
    rank: int,
    input: torch.Tensor,
    kernel_size: Any,
    stride: Any = None,
    **options: Any,
) -> torch.Tensor:
    """Reduce windows that lie side by side, as ``avg_pool2d(x, n)`` does."""
    kernel = _repeated(kernel_size, rank)
    given = [value for value in _repeated(stride, rank) if value is not None]
    if (given and stride is not kernel_size) or any(
        value != default for key, default in _PLAIN.items() for value in _repeated(options.get(key, default), rank)
    ):
        raise _NotSized
    first = input.dim() - rank
    for axis, width in enumerate(kernel):
        count = input.shape[first + axis] // width
        input = input.narrow(first + axis, 0, count * width)
    sizes = [each for axis, width in enumerate(kernel) for each in (input.shape[first + axis] // width, width)]
    return reduce(input.reshape([*input.shape[:first], *sizes]), [first + 2 * axis + 1 for axis in range(rank)])


_PLAIN: Mapping[str, Any] = {"padding": 0, "dilation": 1, "ceil_mode": False, "return_indices": False}
_AFTER_STRIDE = {
    "avg": ("padding", "ceil_mode", "count_include_pad", "divisor_override"),
    "max": ("padding", "dilation", "ceil_mode", "return_indices"),
}


def _repeated(value: Any, rank: int) -> list[Any]:
    return list(value) if isinstance(value, list | tuple) else [value] * rank


def _pool(
    kind: str, rank: int, input: torch.Tensor, kernel_size: Any, stride: Any = None, *others: Any, **options: Any
) -> torch.Tensor:
    """See ``torch.nn.functional.avg_pool2d``, ``max_pool2d`` and their kind."""
    options |= dict(zip(_AFTER_STRIDE[kind], others, strict=False))
    if options.get("divisor_override") is not None:
        raise _NotSized
    reduce = torch.mean if kind == "avg" else torch.amax
    return _pooled(reduce, rank, input, kernel_size, stride, **options)


def _adaptive_avg_pool1d(input: torch.Tensor, output_size: Any) -> torch.Tensor:
    """Pool a plane of one row; see ``torch.nn.functional.adaptive_avg_pool1d``."""
    size = output_size[0] if isinstance(output_size, list | tuple) else output_size
    return torch.nn.functional.adaptive_avg_pool2d(input.unsqueeze(-2), (1, size)).squeeze(-2)


def _pools() -> dict[Any, Callable[..., torch.Tensor]]:
    functional = torch.nn.functional
    found: dict[Any, Callable[..., torch.Tensor]] = {}
    for rank in (1, 2, 3):
        found[getattr(functional, f"avg_pool{rank}d")] = functools.partial(_pool, "avg", rank)
        for home in (functional, torch):
            found[getattr(home, f"max_pool{rank}d")] = functools.partial(_pool, "max", rank)
    return found


_BLACKMAN = (0.42, -0.5, 0.08)
_DEFINITIONS: Mapping[Any, Callable[..., torch.Tensor]] = {
    torch.linspace: _linspace,
    torch.logspace: _logspace,
    torch.fft.fftfreq: _fftfreq,
    torch.fft.rfftfreq: _rfftfreq,
    torch.tril_indices: functools.partial(_triangle, torch.le),
    torch.triu_indices: functools.partial(_triangle, torch.ge),
    torch.hann_window: functools.partial(_window, (0.5, -0.5)),
    torch.blackman_window: functools.partial(_window, _BLACKMAN),
    torch.hamming_window: _hamming_window,
    torch.bartlett_window: _bartlett_window,
    torch.nn.functional.one_hot: _one_hot,
    torch.nn.functional.adaptive_avg_pool1d: _adaptive_avg_pool1d,
    **_pools(),
}
