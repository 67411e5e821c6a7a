"""Window functions of a fixed length (Hann, Hamming, Bartlett, Blackman, Kaiser), which are constants."""

from __future__ import annotations

from typing import TYPE_CHECKING

import onnx_ir as ir
import torch

from onnxops_decomp.dtypes import to_ir
from onnxops_decomp.lowerings.registry import Function, lowering

if TYPE_CHECKING:
    from onnxops_decomp.builder.op_builder import OpBuilder

aten = torch.ops.aten


def _window(name: str) -> Function:
    def window(
        op: OpBuilder,
        window_length: int,
        *arguments: bool | float,
        dtype: torch.dtype | None = None,
    ) -> ir.Value:
        wanted = dtype or torch.get_default_dtype()
        computed = wanted if wanted in (torch.float32, torch.float64) else torch.float32
        values = getattr(torch, name)(window_length, *arguments, dtype=computed, device="cpu")
        return op.constant(values.numpy(), to_ir(wanted))

    return window


for _name in ("bartlett_window", "blackman_window", "hamming_window", "hann_window", "kaiser_window"):
    _packet = getattr(aten, _name)
    _overloads = [_overload for _overload in _packet.overloads() if "out" not in _overload]
    lowering(*(getattr(_packet, _overload) for _overload in _overloads))(_window(_name))
