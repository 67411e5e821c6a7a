"""Operators of torch written by others, where torch's own definition looks into its operands.

Each equals the operator on operands that torch accepts; what torch refuses by looking at them, such as weights below
zero, is not looked for.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Sequence
from typing import Any

import torch

__all__ = [
    "corrcoef",
    "cov",
    "gaussian_nll_loss",
    "gradient",
    "kron",
    "masked_index",
    "multi_dot",
    "needs_masked_index",
    "torch_definition",
]


def cov(
    self: torch.Tensor,
    *,
    correction: int = 1,
    fweights: torch.Tensor | None = None,
    aweights: torch.Tensor | None = None,
) -> torch.Tensor:
    """Covariances of variables in rows, observations in columns; see ``torch.cov``."""
    rows = self.view(1, -1) if self.ndim < 2 else self
    weights = [weight for weight in (fweights, aweights) if weight is not None]
    weight = math.prod(weights[1:], start=weights[0]) if weights else None
    total: Any = rows.shape[1] if weight is None else weight.sum()
    average = (rows if weight is None else rows * weight).sum(1) / total
    if isinstance(total, torch.SymInt):
        # A size counts as 2 or more, so that the bound below would go; nothing holds for a number in a tensor.
        dtype = self.dtype.to_real() if self.is_floating_point() or self.is_complex() else torch.get_default_dtype()
        count: Any = total
        total = torch.scalar_tensor(count, dtype=dtype, device=self.device)
    factor = total - correction
    if weight is not None and aweights is not None and correction != 0:
        factor = total - correction * (weight * aweights).sum() / total
    factor = factor.clamp(min=0) if isinstance(factor, torch.Tensor) else max(factor, 0)
    centered = rows - average.unsqueeze(1)
    product = centered @ (centered if weight is None else centered * weight).t().conj()
    return torch.true_divide(product, factor).squeeze()


def corrcoef(self: torch.Tensor) -> torch.Tensor:
    """Correlation coefficients of variables in rows; see ``torch.corrcoef``."""
    covariance = cov(self)
    if covariance.ndim == 0:
        return covariance / covariance
    deviation = covariance.diagonal().real.sqrt() if self.is_complex() else covariance.diagonal().sqrt()
    result = covariance / deviation.view(-1, 1) / deviation.view(1, -1)
    if result.is_complex():
        return torch.complex(result.real.clip(-1, 1), result.imag.clip(-1, 1))
    return result.clip(-1, 1)


_MASKS = (torch.bool, torch.uint8)


def needs_masked_index(indices: Sequence[Any]) -> bool:
    """Tell whether an index holds a mask beside other tensors, for which torch assumes too much of their sizes."""
    tensors = [index for index in indices if isinstance(index, torch.Tensor)]
    masks = [index for index in tensors if index.dtype in _MASKS]
    return len(tensors) > 1 and bool(masks) and all(mask.dim() for mask in masks)


def masked_index(self: torch.Tensor, indices: Sequence[torch.Tensor | None]) -> torch.Tensor:
    """Give a tensor of the shape of ``self[indices]``, however many places each mask selects.

    Tensors without data can be given; what several masks select is broadcast, and so has one new size.
    """
    if not needs_masked_index(indices):
        return torch.ops.aten.index.Tensor(self, indices)  # type: ignore[no-any-return]
    given = [index for index in indices if index is not None]
    mask = next(index for index in given if index.dtype in _MASKS)
    sizes = [index.shape[-1] for index in given if index.dtype not in _MASKS and index.dim()]
    # Beside as many integers as have a size of their own, a mask has to select as many places, or one.
    fixed = any(not isinstance(size, int) or size != 1 for size in sizes)
    places = mask.new_zeros(1, dtype=torch.int64) if fixed else mask.nonzero()[:, 0]
    found: list[torch.Tensor | None] = []
    for index in indices:
        if index is None:
            found.append(None)
        elif index.dtype in _MASKS:
            found.extend([places] * index.dim())
        else:
            # torch forgets the size of another index beside one of rank 0.
            found.append(index if index.dim() else index.reshape(1))
    return torch.ops.aten.index.Tensor(self, found)  # type: ignore[no-any-return]


def kron(input: torch.Tensor, other: torch.Tensor) -> torch.Tensor:
    """Products of all pairs of elements; see ``torch.kron``."""
    rank = max(input.dim(), other.dim())
    left, right = (x.reshape((1,) * (rank - x.dim()) + tuple(x.shape)) for x in (input, other))
    sizes = [a * b for a, b in zip(left.shape, right.shape, strict=True)]
    for axis in range(rank):
        left, right = left.unsqueeze(2 * axis + 1), right.unsqueeze(2 * axis)
    return (left * right).reshape(sizes)


def multi_dot(tensors: Sequence[torch.Tensor]) -> torch.Tensor:
    """Multiply matrices from left to right; see ``torch.linalg.multi_dot``, which takes the cheapest order."""
    return functools.reduce(torch.matmul, tensors)


def gaussian_nll_loss(
    input: torch.Tensor,
    target: torch.Tensor,
    var: Any,
    full: bool = False,
    eps: float = 1e-6,
    reduction: str = "mean",
) -> torch.Tensor:
    """See ``torch.nn.functional.gaussian_nll_loss``; a variance below 0 counts as 0."""
    if not isinstance(var, torch.Tensor):
        var = torch.full_like(input, var)
    if var.shape != input.shape and input.shape[:-1] == var.shape:
        var = var.unsqueeze(-1)
    var = var.clamp(min=eps)
    loss: torch.Tensor = 0.5 * (var.log() + (input - target) ** 2 / var)
    if full:
        loss = loss + 0.5 * math.log(2 * math.pi)
    return loss if reduction == "none" else loss.mean() if reduction == "mean" else loss.sum()


def linear_cross_entropy(
    input: torch.Tensor,
    linear_weight: torch.Tensor,
    target: torch.Tensor,
    linear_bias: torch.Tensor | None,
    weight: torch.Tensor | None,
    reduction: str,
    ignore_index: int,
    label_smoothing: float,
    *options: Any,
) -> tuple[torch.Tensor, ...]:
    """Return the operator of ``torch.nn.functional.linear_cross_entropy`` that goes through the batch in chunks.

    It computes the gradients beside the loss, which a model for inference has none of.
    """
    if any(options[-3:]):
        raise NotImplementedError("gradients are requested; export under torch.no_grad() or in eval() mode")
    logits = torch.nn.functional.linear(input, linear_weight, linear_bias)
    loss = torch.nn.functional.cross_entropy(
        logits, target, weight, ignore_index=ignore_index, reduction=reduction, label_smoothing=label_smoothing
    )
    return loss, input.new_empty(0, 0), input.new_empty(0, 0), input.new_empty(0)


def linear_cross_entropy_of_each(
    input: torch.Tensor,
    linear_weight: torch.Tensor,
    target: torch.Tensor,
    linear_bias: torch.Tensor | None,
    weight: torch.Tensor | None,
    ignore_index: int,
    *options: Any,
) -> torch.Tensor:
    """Return the same without a reduction."""
    logits = torch.nn.functional.linear(input, linear_weight, linear_bias)
    return torch.nn.functional.cross_entropy(logits, target, weight, ignore_index=ignore_index, reduction="none")


def _dim_arange(like: torch.Tensor, dim: int) -> torch.Tensor:
    """Positions along a dimension; see ``torch._dim_arange``."""
    return torch.arange(like.shape[dim])


def _conv_tbc(self: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor, pad: int = 0) -> torch.Tensor:
    """Return a convolution of (time, batch, channels) by (width, in, out); see ``torch.conv_tbc``."""
    wide = torch.nn.functional.conv1d(self.permute(1, 2, 0), weight.permute(2, 1, 0), bias, padding=pad)
    return wide.permute(2, 0, 1)


def _convolution_mode(
    input: torch.Tensor,
    weight: torch.Tensor,
    bias: torch.Tensor | None,
    stride: Sequence[int],
    padding: str,
    dilation: Sequence[int],
    groups: int,
) -> torch.Tensor:
    """See ``torch.nn.functional.conv2d`` with padding "same": where it is odd, the end gets more."""
    rank = weight.dim() - 2
    each = list(dilation) * (rank // len(dilation))
    total = [step * (size - 1) for step, size in zip(each, weight.shape[2:], strict=True)]
    total = total if padding == "same" else [0] * rank
    if any(amount % 2 for amount in total):
        input = torch.constant_pad_nd(input, [pad for amount in reversed(total) for pad in (0, amount % 2)])
    convolution = (torch.nn.functional.conv1d, torch.nn.functional.conv2d, torch.nn.functional.conv3d)[rank - 1]
    around = [amount // 2 for amount in total]
    return convolution(input, weight, bias, stride, around, dilation, groups)


def _vander(x: torch.Tensor, N: Any = None, increasing: bool = False) -> torch.Tensor:
    """Return powers of numbers; see ``torch.vander``."""
    count = x.shape[0] if N is None else N
    powers = torch.arange(count, device=x.device)
    return torch.pow(x.unsqueeze(-1), powers if increasing else count - 1 - powers)


# ---- gradients


def gradient(
    input: torch.Tensor, *, spacing: Any = None, dim: int | Sequence[int] | None = None, edge_order: int = 1
) -> tuple[torch.Tensor, ...]:
    """Differences of neighbours over their distances; see ``torch.gradient``."""
    axes = range(input.dim()) if dim is None else [dim] if isinstance(dim, int) else dim
    given = spacing if isinstance(spacing, list | tuple) else [1.0 if spacing is None else spacing] * len(axes)
    return tuple(_along(input, axis % input.dim(), step, edge_order) for axis, step in zip(axes, given, strict=True))


def _along(x: torch.Tensor, axis: int, spacing: Any, edge_order: int) -> torch.Tensor:
    """Return the gradient along an axis; ``spacing`` is the distance of neighbours, or a vector of positions."""
    length = x.shape[axis]

    def part(start: int, stop: int) -> torch.Tensor:
        """Return what is left without ``start`` elements at the beginning and ``stop`` at the end."""
        return x.narrow(axis, start, length - start - stop)

    def single(index: int) -> torch.Tensor:
        return x.narrow(axis, index if index >= 0 else length + index, 1)

    if isinstance(spacing, torch.Tensor) and spacing.dim():
        steps = spacing[1:] - spacing[:-1]
        shape = [1] * axis + [-1] + [1] * (x.dim() - axis - 1)
        before, after = steps[:-1].reshape(shape), steps[1:].reshape(shape)
        ends: list[Any] = [steps[:2], steps[-2:].flip(0)]
    else:
        before = after = spacing
        ends = [[spacing, spacing]] * 2
    slopes = (part(1, 1) - part(0, 2)) / before, (part(2, 0) - part(1, 1)) / after
    inner = (slopes[0] * after + slopes[1] * before) / (before + after)
    first = _edge([single(i) for i in range(edge_order + 1)], ends[0])
    last = _edge([-single(-1 - i) for i in range(edge_order + 1)], ends[1])
    return torch.cat([first, inner, last], axis)


def _edge(values: Sequence[torch.Tensor], steps: Any) -> torch.Tensor:
    """Return the slope at the first of two values, or of three, that have these distances."""
    slope: torch.Tensor = (values[1] - values[0]) / steps[0]
    if len(values) == 2:
        return slope
    further: torch.Tensor = (values[2] - values[1]) / steps[1]
    change: torch.Tensor = (further - slope) * steps[0] / (steps[0] + steps[1])
    return slope - change


def matrix_sqrth(self: torch.Tensor) -> torch.Tensor:
    """Square root of a Hermitian matrix without negative eigenvalues; see ``torch.linalg.matrix_sqrth``."""
    values, vectors = torch.linalg.eigh(self)
    root: torch.Tensor = (vectors * values.clamp(min=0).sqrt().unsqueeze(-2)) @ vectors.mH
    return root


def polar(A: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Orthonormal columns and the Hermitian matrix that make A; see ``torch.linalg.polar``."""
    left, values, right = torch.linalg.svd(A, full_matrices=False)
    return left @ right, (right.mH * values.unsqueeze(-2)) @ right


def _gradients(self: torch.Tensor, **options: Any) -> list[torch.Tensor]:
    return list(gradient(self, **options))


_GRADIENTS = (
    *("array", "scalararray", "scalarrayarray", "scalarrayint", "scalarint"),
    *("tensorarray", "tensorarrayint"),
)
# By name, for the operators of torch's Python modules exist only once these are imported.
_DEFINITIONS: dict[str, Callable[..., Any]] = {
    "aten::_convolution_mode": _convolution_mode,
    "aten::kron": kron,
    "aten::chain_matmul": multi_dot,
    "aten::linalg_multi_dot": multi_dot,
    **{f"aten::gradient.{kind}": _gradients for kind in _GRADIENTS},
    "aten::linalg_matrix_sqrth": matrix_sqrth,
    "aten::linalg_polar": polar,
    "aten::vander": _vander,
    "aten::_dim_arange": _dim_arange,
    "aten::conv_tbc": _conv_tbc,
    "aten::cov": cov,
    "aten::corrcoef": corrcoef,
    "torch_nn::_linear_cross_entropy_batch_chunked": linear_cross_entropy,
    "torch_nn::_linear_cross_entropy_batch_chunked_no_reduction": linear_cross_entropy_of_each,
}


def torch_definition(overload: torch._ops.OpOverload) -> Callable[..., Any] | None:
    """Return the definition of an operator, or None if torch's is as good."""
    return _DEFINITIONS.get(overload.name())
