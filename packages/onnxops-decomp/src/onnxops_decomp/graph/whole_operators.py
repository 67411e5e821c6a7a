"""Operators that are kept whole while a model is captured: which calls, and the shapes of their results.

Shapes follow from those of the operands alone, where torch's own code looks into them.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch

from onnxops_decomp.graph.definitions import corrcoef, cov, masked_index

__all__ = [
    "RECURRENT_SHAPES",
    "WHOLE_OPERATORS",
    "Args",
    "Kwargs",
    "affine_grid_arguments",
    "ctc_arguments",
    "fractional_max_pool3d_arguments",
    "grouped_mm_form",
    "narrow_shape",
]

Args = tuple[Any, ...]
Kwargs = dict[str, Any]


# ---- result shapes


def _recurrent(
    input: torch.Tensor,
    hx: Any,
    params: Sequence[torch.Tensor],
    has_biases: bool,
    num_layers: int,
    dropout: float,
    train: bool,
    bidirectional: bool,
    batch_first: bool,
) -> tuple[torch.Tensor, ...]:
    """Return the output follows the input, the states keep their shapes."""
    states = tuple(hx) if isinstance(hx, list | tuple) else (hx,)
    # With a projection the first state has its size, and so has the output.
    width = states[0].shape[-1] * (2 if bidirectional else 1)
    return (input.new_empty((*input.shape[:-1], width)), *(torch.empty_like(state) for state in states))


def _recurrent_packed(
    data: torch.Tensor,
    batch_sizes: torch.Tensor,
    hx: Any,
    params: Sequence[torch.Tensor],
    has_biases: bool,
    num_layers: int,
    dropout: float,
    train: bool,
    bidirectional: bool,
) -> tuple[torch.Tensor, ...]:
    return _recurrent(data, hx, params, has_biases, num_layers, dropout, train, bidirectional, False)


def _ctc_loss(
    log_probs: torch.Tensor,
    targets: torch.Tensor,
    input_lengths: Any,
    target_lengths: Any,
    blank: int = 0,
    reduction: int = 1,
    zero_infinity: bool = False,
) -> torch.Tensor:
    return log_probs.new_empty(log_probs.shape[1:-1] if reduction == 0 else ())


def _ctc_loss_and_alpha(
    log_probs: torch.Tensor,
    targets: torch.Tensor,
    input_lengths: Any,
    target_lengths: Any,
    blank: int = 0,
    zero_infinity: bool = False,
) -> tuple[torch.Tensor, torch.Tensor]:
    listed = not isinstance(target_lengths, torch.Tensor)
    states = 2 * max(target_lengths, default=0) + 1 if listed else torch.library.get_ctx().new_dynamic_size()
    steps, batch = log_probs.shape[:2]
    return log_probs.new_empty(batch), log_probs.new_empty((batch, steps, states))


def ctc_arguments(
    log_probs: torch.Tensor,
    targets: torch.Tensor,
    input_lengths: Any,
    target_lengths: Any,
    blank: int = 0,
    reduction: str = "mean",
    zero_infinity: bool = False,
) -> Args:
    """Return the arguments of ``torch.ctc_loss`` for those of ``torch.nn.functional.ctc_loss``."""
    kind = ("none", "mean", "sum").index(reduction)
    return log_probs, targets, input_lengths, target_lengths, blank, kind, zero_infinity


def _affine_grid_generator(theta: torch.Tensor, size: Sequence[Any], align_corners: bool) -> torch.Tensor:
    rank = len(size) - 2
    if theta.dim() != 3 or tuple(theta.shape[1:]) != (rank, rank + 1):
        raise ValueError(f"affine_grid to size {tuple(size)} needs theta of shape (N, {rank}, {rank + 1})")
    return theta.new_empty((size[0], *size[2:], rank))


def affine_grid_arguments(theta: torch.Tensor, size: Sequence[Any], align_corners: bool | None = None) -> Args:
    """Return the arguments of ``torch.affine_grid_generator`` for those of ``torch.nn.functional.affine_grid``."""
    return theta, list(size), bool(align_corners)


def _combinations(self: torch.Tensor, r: int = 2, with_replacement: bool = False) -> torch.Tensor:
    size = self.shape[0]
    if r == 0:
        return self.new_empty(0)
    top: Any = size + r - 1 if with_replacement else size
    count: Any = 1
    for factor in range(r):
        count = count * (top - factor)
    return self.new_empty((count // math.factorial(r), r))


def narrow_shape(self: torch.Tensor, dim: int, start: torch.Tensor, length: Any) -> torch.Tensor:
    """Return a tensor of the shape of a part that starts where data says."""
    sizes = list(self.shape)
    sizes[dim] = length
    return self.new_empty(sizes)


def _one_hot(self: torch.Tensor, num_classes: int = -1) -> torch.Tensor:
    classes: Any = torch.library.get_ctx().new_dynamic_size() if num_classes == -1 else num_classes
    return self.new_empty((*self.shape, classes))


def _istft(
    self: torch.Tensor,
    n_fft: int,
    hop_length: int | None = None,
    win_length: int | None = None,
    window: torch.Tensor | None = None,
    center: bool = True,
    normalized: bool = False,
    onesided: bool | None = None,
    length: Any = None,
    return_complex: bool = False,
) -> torch.Tensor:
    """Return as many samples as the frames cover, or as are asked for; torch looks whether a window leaves gaps."""
    samples = n_fft + (n_fft // 4 if hop_length is None else hop_length) * (self.shape[-1] - 1)
    usual = samples - 2 * (n_fft // 2) if center else samples
    dtype = self.dtype if return_complex else self.dtype.to_real()
    return self.new_empty((*self.shape[:-2], usual if length is None else length), dtype=dtype)


def _lstsq(
    self: torch.Tensor, b: torch.Tensor, rcond: float | None = None, *, driver: str | None = None
) -> tuple[torch.Tensor, ...]:
    """Return no residuals, except for the driver that assumes full rank: the others determine the rank first."""
    m, n = self.shape[-2:]
    if driver in ("gelsd", "gelss") and m > n:
        raise NotImplementedError(
            f"linalg.lstsq with driver={driver!r} gives residuals only if the rank is full, which decides the shape "
            "of a result; use the default driver"
        )
    vector = b.ndim == 1 or (self.ndim - 1 == b.ndim and b.shape == self.shape[:-1])
    right = b.unsqueeze(-1) if vector else b
    batch = torch.broadcast_shapes(self.shape[:-2], right.shape[:-2])
    solution = self.new_empty((*batch, n, *([] if vector else right.shape[-1:])))
    real = self.dtype.to_real()
    residuals = self.new_empty((*batch, right.shape[-1]) if driver == "gels" and m > n else (0,), dtype=real)
    rank = self.new_empty(self.shape[:-2] if driver != "gels" else (0,), dtype=torch.int64)
    values = (*self.shape[:-2], min(m, n)) if driver in ("gelsd", "gelss") else (0,)
    return solution, residuals, rank, self.new_empty(values, dtype=real)


def _histogram(
    self: torch.Tensor, bins: Any = 100, *, range: Any = None, weight: Any = None, density: bool = False
) -> tuple[torch.Tensor, torch.Tensor]:
    edges = bins.shape[0] if isinstance(bins, torch.Tensor) else bins + 1
    return self.new_empty(edges - 1), self.new_empty(edges)


def _histogramdd(
    self: torch.Tensor, bins: Any, range: Any = None, weight: Any = None, density: bool = False
) -> tuple[torch.Tensor, list[torch.Tensor]]:
    given = bins if isinstance(bins, list | tuple) else [bins] * int(self.shape[-1])
    edges = [each.shape[0] if isinstance(each, torch.Tensor) else each + 1 for each in given]
    return self.new_empty([edge - 1 for edge in edges]), [self.new_empty(edge) for edge in edges]


def _fractional_max_pool3d(
    self: torch.Tensor, kernel_size: Sequence[int], output_size: Sequence[int], random_samples: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    shape = (*self.shape[:-3], *(output_size if len(output_size) == 3 else [*output_size] * 3))
    return self.new_empty(shape), self.new_empty(shape, dtype=torch.int64)


def fractional_max_pool3d_arguments(
    input: torch.Tensor,
    kernel_size: Any,
    output_size: Any = None,
    output_ratio: Any = None,
    return_indices: bool = False,
    _random_samples: torch.Tensor | None = None,
) -> Args:
    """Return the arguments of the operator for those of ``torch.nn.functional.fractional_max_pool3d``."""

    def three(value: Any) -> list[Any]:
        return list(value) if isinstance(value, list | tuple) else [value] * 3

    if output_size is None:
        pairs = zip(input.shape[-3:], three(output_ratio), strict=True)
        output_size = [int(size * ratio) for size, ratio in pairs]
    if _random_samples is None:
        batch = 1 if input.dim() == 4 else input.shape[0]
        _random_samples = torch.rand(batch, input.shape[-4], 3, dtype=input.dtype, device=input.device)
    return input, three(kernel_size), three(output_size), _random_samples


def grouped_mm_form(
    input: Any, mat2: Any, offs: Any = None, bias: Any = None, out_dtype: torch.dtype | None = None
) -> tuple[torch.dtype, tuple[Any, ...]] | None:
    """Return dtype and sizes of a product of groups in FLOAT or FLOAT16: torch's fake kernel takes bfloat16 alone.

    Args:
        input: Of shape (M, K), or (groups, M, K).
        mat2: Of shape (K, N), or (groups, K, N).
        offs: The ends of the groups, where one operand is two-dimensional.
        bias: None, as kernels know none yet.
        out_dtype: That of the operands, or None.

    Returns:
        None for calls that torch's fake kernel judges.
    """
    dtype, left, right = input.dtype, input.shape, mat2.shape
    if dtype not in (torch.float32, torch.float16) or mat2.dtype != dtype or out_dtype not in (None, dtype):
        return None
    two = (len(left) == 2) + (len(right) == 2)
    if bias is not None or (offs is None) != (two == 0):
        return None
    groups = ((left[0],), (), (offs.shape[0],) if two else ())[two]
    return dtype, (*groups, left[-2], right[-1])


def _grouped_mm(self: torch.Tensor, mat2: torch.Tensor, *options: Any) -> torch.Tensor:
    torch._check(
        self.shape[-1] == mat2.shape[-2], lambda: "the inner sizes of the operands of a grouped product differ"
    )
    form = grouped_mm_form(self, mat2, *options)
    assert form is not None, "other calls are not kept whole"
    return self.new_empty(form[1])


# ---- which calls


def _always(args: Args, kwargs: Kwargs) -> bool:
    return True


def _without_keywords(args: Args, kwargs: Kwargs) -> bool:
    return not kwargs and len(args) == 9


def _starts_at_tensor(args: Args, kwargs: Kwargs) -> bool:
    return isinstance(args[2] if len(args) > 2 else kwargs.get("start"), torch.Tensor)


def _counts_classes(args: Args, kwargs: Kwargs) -> bool:
    count = args[1] if len(args) > 1 else kwargs.get("num_classes", -1)
    return isinstance(count, int) and count == -1


def _has_length_of_sizes(args: Args, kwargs: Kwargs) -> bool:
    return isinstance(args[8] if len(args) > 8 else kwargs.get("length"), torch.SymInt)


def _multiplies_floats(args: Args, kwargs: Kwargs) -> bool:
    return grouped_mm_form(*args, **kwargs) is not None


_Fake = Callable[..., Any]
_Condition = Callable[[Args, Kwargs], bool]

RECURRENT_SHAPES: Mapping[str, _Fake] = {"input": _recurrent, "data": _recurrent_packed}

# By ATen name: the result shapes of the overloads that stand in, and which calls they are for.
WHOLE_OPERATORS: dict[str, tuple[Mapping[str, _Fake], _Condition]] = {
    "lstm": (RECURRENT_SHAPES, _without_keywords),
    "gru": (RECURRENT_SHAPES, _without_keywords),
    "rnn_tanh": (RECURRENT_SHAPES, _without_keywords),
    "rnn_relu": (RECURRENT_SHAPES, _without_keywords),
    "ctc_loss": ({"IntList": _ctc_loss, "Tensor": _ctc_loss}, _always),
    "_ctc_loss": ({"default": _ctc_loss_and_alpha, "Tensor": _ctc_loss_and_alpha}, _always),
    "cov": ({"default": cov}, _always),
    "corrcoef": ({"default": corrcoef}, _always),
    "affine_grid_generator": ({"default": _affine_grid_generator}, _always),
    "combinations": ({"default": _combinations}, _always),
    "narrow": ({"Tensor": narrow_shape}, _starts_at_tensor),
    "one_hot": ({"default": _one_hot}, _counts_classes),
    "istft": ({"default": _istft}, _has_length_of_sizes),
    "linalg_lstsq": ({"default": _lstsq}, _always),
    "index": ({"Tensor": masked_index}, _always),
    "_grouped_mm": ({"default": _grouped_mm}, _multiplies_floats),
    "histogram": ({"bins_tensor": _histogram, "bin_ct": _histogram}, _always),
    "histogramdd": ({"default": _histogramdd, "int_bins": _histogramdd, "TensorList_bins": _histogramdd}, _always),
    "fractional_max_pool3d": ({"default": _fractional_max_pool3d}, _always),
}
