"""RotaryEmbedding on NVIDIA GPUs: what the Triton kernel takes, and how it is called.

Kernel modules are imported when the first call needs one, so that importing the package needs no Triton.
"""

from __future__ import annotations

from typing import Any

from onnxops_core.native.declaring.backends import Backend, first_arguments, triton_refuses

__all__ = ["ROTARY_EMBEDDING"]


def _rotary_refuses(*args: Any, **attributes: Any) -> str | None:
    return triton_refuses(args)


def _rotary_run(*args: Any, interleaved: bool = False, num_heads: int = 0, rotary_embedding_dim: int = 0) -> Any:
    from onnxops_core.native.rotary import triton

    x, cos, sin, positions = first_arguments(args, 4)
    out = x.new_empty(x.shape)
    source, target = x.contiguous() if x.stride(-1) != 1 else x, out
    if x.dim() == 3:
        shape = (x.shape[0], x.shape[1], num_heads, x.shape[2] // num_heads)
        source, target = source.reshape(shape).transpose(1, 2), out.view(shape).transpose(1, 2)
    shape4 = (source.shape[0], source.shape[1], source.shape[2], source.shape[3])
    width = rotary_embedding_dim or source.shape[3]
    triton.launch(source, cos.contiguous(), sin.contiguous(), positions, target, shape4, interleaved, width)
    return out


ROTARY_EMBEDDING = Backend("Triton", _rotary_refuses, _rotary_run)
