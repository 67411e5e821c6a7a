# Triton has no types, and a kernel's parameters are pointers and numbers of its own.
# mypy: disable-error-code="import-not-found,import-untyped,untyped-decorator,no-untyped-def"
"""RMS and layer normalization over the last dimensions, with the sum of a residual in the same pass."""

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl

from onnxops_core.native.declaring.tuning import Settings, autotuned

__all__ = ["LARGEST_ROW", "normalize"]

LARGEST_ROW = 1 << 15
"""Elements of a row that still fit into one program."""


_SETTINGS: list[Settings] = [({"ROWS": rows}, warps, 1) for rows in (1, 2, 4, 8, 16) for warps in (16, 4, 8, 32)]


def _fits(config: triton.Config, arguments: dict[str, Any]) -> bool:
    """Tell whether a thread holds as many elements as registers allow."""
    return bool(config.kwargs["ROWS"] * arguments["COLUMNS"] <= 32 * 32 * config.num_warps)


@autotuned(_SETTINGS, key=["columns", "CENTRE", "HAS_SKIP", "WRITE_STATISTICS"], fits=_fits)
@triton.jit
def _normalize_kernel(
    x,
    skip,
    bias,
    scale,
    shift,
    out,
    total_out,
    mean_out,
    inverse_out,
    rows,
    columns,
    skip_rows,
    epsilon,
    CENTRE: tl.constexpr,
    HAS_SKIP: tl.constexpr,
    HAS_BIAS: tl.constexpr,
    HAS_SHIFT: tl.constexpr,
    WRITE_TOTAL: tl.constexpr,
    WRITE_STATISTICS: tl.constexpr,
    COLUMNS: tl.constexpr,
    ROWS: tl.constexpr,
):
    row = (tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS))[:, None]
    column = tl.arange(0, COLUMNS)[None, :]
    inside = (row < rows) & (column < columns)
    place = row * columns + column
    value = tl.load(x + place, mask=inside, other=0.0).to(tl.float32)
    if HAS_SKIP:
        value += tl.load(skip + (row % skip_rows) * columns + column, mask=inside, other=0.0).to(tl.float32)
    if HAS_BIAS:
        value += tl.load(bias + column, mask=column < columns, other=0.0).to(tl.float32)
    value = tl.where(inside, value, 0.0)
    if WRITE_TOTAL:
        tl.store(total_out + place, value.to(total_out.dtype.element_ty), mask=inside)
    if CENTRE:
        mean = tl.sum(value, 1)[:, None] / columns
        value = tl.where(inside, value - mean, 0.0)
        if WRITE_STATISTICS:
            tl.store(mean_out + row, mean, mask=row < rows)
    inverse = 1.0 / tl.sqrt(tl.sum(value * value, 1)[:, None] / columns + epsilon)
    if WRITE_STATISTICS:
        tl.store(inverse_out + row, inverse, mask=row < rows)
    result = value * inverse * tl.load(scale + column, mask=column < columns, other=0.0).to(tl.float32)
    if HAS_SHIFT:
        result += tl.load(shift + column, mask=column < columns, other=0.0).to(tl.float32)
    tl.store(out + place, result.to(out.dtype.element_ty), mask=inside)


def normalize(
    x: torch.Tensor,
    scale: torch.Tensor,
    columns: int,
    epsilon: float,
    *,
    centre: bool,
    shift: torch.Tensor | None = None,
    skip: torch.Tensor | None = None,
    bias: torch.Tensor | None = None,
    total: bool = False,
    statistics: bool = False,
) -> tuple[torch.Tensor, torch.Tensor | None, torch.Tensor | None, torch.Tensor | None]:
    """Normalize rows of ``columns`` elements of a contiguous tensor.

    Returns:
        The result in scale's dtype; the sum with residual and bias in x's dtype, the mean and the inverse
        deviation of each row in float32, each None unless asked for.
    """
    rows = x.numel() // max(columns, 1)
    out = torch.empty(x.shape, dtype=scale.dtype, device=x.device)
    summed = torch.empty_like(x) if total else None
    mean = torch.empty(rows, dtype=torch.float32, device=x.device) if statistics and centre else None
    inverse = torch.empty(rows, dtype=torch.float32, device=x.device) if statistics else None
    if x.numel() == 0:
        return out, summed, mean, inverse
    _normalize_kernel[lambda meta: (triton.cdiv(rows, meta["ROWS"]),)](
        x,
        x if skip is None else skip,
        x if bias is None else bias,
        scale,
        x if shift is None else shift,
        out,
        x if summed is None else summed,
        x if mean is None else mean,
        x if inverse is None else inverse,
        rows,
        columns,
        1 if skip is None else skip.numel() // columns,
        epsilon,
        CENTRE=centre,
        HAS_SKIP=skip is not None,
        HAS_BIAS=bias is not None,
        HAS_SHIFT=shift is not None,
        WRITE_TOTAL=total,
        WRITE_STATISTICS=statistics,
        COLUMNS=triton.next_power_of_2(columns),
    )
    return out, summed, mean, inverse
