"""``torch.nn.TransformerEncoder``, captured with what it decides by the contents of its masks.

Without gradients the module takes a shorter way where padding stands at the ends of sequences alone, which leaves zeros
there. While torch.export runs it does not, so what is captured would give other values than the model does.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import torch
import torch.nn.functional as F

from onnx_fx_export.torch_private import causal_mask_detection
from onnxops_core.exporting import original, replaced

__all__ = ["encoders_without_branches"]


@contextlib.contextmanager
def encoders_without_branches() -> Iterator[None]:
    """Replace what decides by masks."""
    detection = causal_mask_detection(_is_causal)
    with replaced([(torch.nn.TransformerEncoder, "forward", _forward), *detection]):
        yield


def _is_causal(mask: torch.Tensor | None, is_causal: bool | None = None, size: int | None = None) -> bool:
    """Return what the caller says: a mask that is given is applied, whether or not it is the causal one."""
    return bool(is_causal)


class _WithoutNorm:
    """A module that has another one's attributes, but no normalization at the end."""

    norm = None

    def __init__(self, module: torch.nn.TransformerEncoder) -> None:
        self._module = module

    def __getattr__(self, name: str) -> Any:
        return getattr(self._module, name)


def _forward(
    self: torch.nn.TransformerEncoder,
    src: torch.Tensor,
    mask: torch.Tensor | None = None,
    src_key_padding_mask: torch.Tensor | None = None,
    is_causal: bool | None = None,
) -> torch.Tensor:
    """Run all layers, and leave zeros behind the ends of sequences where the module does; then normalize."""
    layers = original(torch.nn.TransformerEncoder, "forward")
    output: torch.Tensor = layers(_WithoutNorm(self), src, mask, src_key_padding_mask, is_causal)
    if src_key_padding_mask is not None and mask is None and _leaves_out_padding(self, src):
        # Padding is what a float mask adds a number to.
        padding = src_key_padding_mask if src_key_padding_mask.dtype == torch.bool else src_key_padding_mask != 0
        zeros = padding
        if getattr(self, "mask_check", True):
            at_ends = (F.pad(padding[:, :-1], (1, 0)) <= padding).all()
            zeros = padding & at_ends
        output = output.masked_fill(zeros.unsqueeze(-1), 0.0)
    return output if self.norm is None else self.norm(output)


def _leaves_out_padding(encoder: torch.nn.TransformerEncoder, src: torch.Tensor) -> bool:
    """Tell whether the module runs without what its masks leave out, if gradients are off."""
    return (
        torch.backends.mha.get_fastpath_enabled()
        and bool(getattr(encoder, "use_nested_tensor", False))
        and not encoder.layers[0].training
        and src.dim() == 3
        and not torch.is_autocast_enabled()
    )
