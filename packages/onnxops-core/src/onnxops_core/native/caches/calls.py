"""The parameters of TensorScatter."""

from __future__ import annotations

from dataclasses import KW_ONLY

import torch

from onnxops_core.native.declaring.call import Call, operator_call

__all__ = ["TensorScatterCall"]


@operator_call
class TensorScatterCall(Call[torch.Tensor]):
    """ONNX TensorScatter: a copy of a cache with an update written at one position per batch row.

    Args:
        past_cache: ``(batch, ..., max_sequence, ...)`` of any dtype.
        update: ``(batch, ..., sequence, ...)``, not longer than the cache, of its dtype.
        write_indices: ``(batch,)`` int64, where each row's update starts; zeros if None.
        axis: the sequence dimension; not 0.
        mode: ``"linear"``, or ``"circular"`` to wrap around at the cache's end.

    Returns:
        The updated cache, of ``past_cache``'s shape and dtype.

    Raises:
        ValueError: shapes, dtypes, attributes or positions that the specification forbids.

    Source: https://onnx.ai/onnx/operators/onnx__TensorScatter.html
    """

    past_cache: torch.Tensor
    update: torch.Tensor
    write_indices: torch.Tensor | None = None
    _: KW_ONLY
    axis: int = -2
    mode: str = "linear"
