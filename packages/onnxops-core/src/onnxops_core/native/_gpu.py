"""The backends of native operators on NVIDIA GPUs: what Triton kernels take, and how they are called.

Kernel modules are imported when the first call needs one, so that importing the package needs no Triton.
"""

from __future__ import annotations

import math
from typing import Any

import torch

from onnxops_core.dtypes import torch_dtype
from onnxops_core.native._attention_reference import AttentionCall, Outputs, contiguous, finish_outputs, sdpa_expresses
from onnxops_core.native._backends import Backend, triton_refuses

__all__ = [
    "LAYER_NORMALIZATION",
    "MATMUL_NBITS",
    "RMS_NORMALIZATION",
    "ROTARY_EMBEDDING",
    "SKIP_LAYER_NORMALIZATION",
    "SKIP_SIMPLIFIED_LAYER_NORMALIZATION",
    "SWIGLU",
    "TENSOR_SCATTER",
    "attention_on_gpu",
    "fused_attention",
    "fused_attention_refuses",
    "triton_attention",
    "triton_attention_refuses",
    "write_cache",
]

_LARGEST_ROW = 1 << 15
_LARGEST_HEAD = 256


def _first(args: tuple[Any, ...], count: int) -> list[Any]:
    """Returns the first arguments, None for those left out."""
    return [*args[:count], *([None] * (count - len(args)))]


def _rotary_refuses(*args: Any, **attributes: Any) -> str | None:
    return triton_refuses(args)


def _rotary_run(*args: Any, interleaved: bool = False, num_heads: int = 0, rotary_embedding_dim: int = 0) -> Any:
    from onnxops_core.native.kernels import rotary

    x, cos, sin, positions = _first(args, 4)
    out = x.new_empty(x.shape)
    source, target = x.contiguous() if x.stride(-1) != 1 else x, out
    if x.dim() == 3:
        shape = (x.shape[0], x.shape[1], num_heads, x.shape[2] // num_heads)
        source, target = source.reshape(shape).transpose(1, 2), out.view(shape).transpose(1, 2)
    shape4 = (source.shape[0], source.shape[1], source.shape[2], source.shape[3])
    width = rotary_embedding_dim or source.shape[3]
    rotary.launch(source, cos.contiguous(), sin.contiguous(), positions, target, shape4, interleaved, width)
    return out


ROTARY_EMBEDDING = Backend("Triton", _rotary_refuses, _rotary_run)


def _columns(x: torch.Tensor, axis: int) -> int:
    return math.prod(x.shape[axis:] if axis >= 0 else x.shape[x.dim() + axis :])


def _norm_refuses(*args: Any, axis: int = -1, stash_type: int = 1, **attributes: Any) -> str | None:
    reason = triton_refuses(args)
    if reason is not None:
        return reason
    x = args[0]
    columns = _columns(x, axis)
    if columns > _LARGEST_ROW:
        return f"a row of {columns} elements does not fit into one program"
    if stash_type == 11:
        return "statistics in float64 would be computed in float32"
    if any(parameter is not None and parameter.numel() != columns for parameter in args[1:]):
        return "a parameter is broadcast"
    return None


def _rms_run(
    x: torch.Tensor, scale: torch.Tensor, *, axis: int = -1, epsilon: float = 1e-5, stash_type: int = 1
) -> torch.Tensor:
    from onnxops_core.native.kernels import normalization

    columns = _columns(x, axis)
    return normalization.normalize(x.contiguous(), scale.contiguous(), columns, epsilon, centre=False)[0]


RMS_NORMALIZATION = Backend("Triton", _norm_refuses, _rms_run)


def _layer_run(*args: Any, axis: int = -1, epsilon: float = 1e-5, stash_type: int = 1) -> Any:
    from onnxops_core.native.kernels import normalization

    x, scale, bias = _first(args, 3)
    y, _, mean, inverse = normalization.normalize(
        x.contiguous(),
        scale.contiguous(),
        _columns(x, axis),
        epsilon,
        centre=True,
        shift=None if bias is None else bias.contiguous(),
        statistics=True,
    )
    assert mean is not None
    assert inverse is not None
    first = axis % x.dim()
    shape = [*x.shape[:first], *([1] * (x.dim() - first))]
    stash = torch_dtype(stash_type)
    return y, mean.view(shape).to(stash), inverse.view(shape).to(stash)


LAYER_NORMALIZATION = Backend("Triton", _norm_refuses, _layer_run)


def _skip_refuses(*args: Any, **attributes: Any) -> str | None:
    reason = triton_refuses(args)
    if reason is None and args[0].shape[-1] > _LARGEST_ROW:
        reason = f"a row of {args[0].shape[-1]} elements does not fit into one program"
    return reason


def _contiguous(tensor: torch.Tensor | None) -> torch.Tensor | None:
    return None if tensor is None else tensor.contiguous()


def _skip_run(centre: bool, args: tuple[Any, ...], epsilon: float) -> Any:
    from onnxops_core.native.kernels import normalization

    if centre:
        x, skip, gamma, beta, bias = _first(args, 5)
    else:
        x, skip, gamma, bias = _first(args, 4)
        beta = None
    y, total, _, _ = normalization.normalize(
        x.contiguous(),
        gamma.contiguous(),
        x.shape[-1],
        epsilon,
        centre=centre,
        shift=_contiguous(beta),
        skip=skip.contiguous(),
        bias=_contiguous(bias),
        total=True,
    )
    return y, total


def _skip_layer_run(*args: Any, epsilon: float = 1e-12) -> Any:
    return _skip_run(True, args, epsilon)


def _skip_simplified_run(*args: Any, epsilon: float = 1e-12) -> Any:
    return _skip_run(False, args, epsilon)


SKIP_LAYER_NORMALIZATION = Backend("Triton", _skip_refuses, _skip_layer_run)
SKIP_SIMPLIFIED_LAYER_NORMALIZATION = Backend("Triton", _skip_refuses, _skip_simplified_run)


def _swiglu_refuses(*args: Any, **attributes: Any) -> str | None:
    return triton_refuses(args)


def _swiglu_run(a: torch.Tensor, b: torch.Tensor, *, alpha: float = 1.0) -> torch.Tensor:
    from onnxops_core.native.kernels import elementwise

    return elementwise.swiglu(a.contiguous(), b.contiguous(), alpha)


SWIGLU = Backend("Triton", _swiglu_refuses, _swiglu_run)


def _scatter_refuses(*args: Any, **attributes: Any) -> str | None:
    # Bits are moved, nothing is computed, so that float64 is as good as any dtype; 16-byte numbers have no
    # carrier.
    if args[0].is_complex():
        return "complex numbers have no integer of their width"
    return triton_refuses(tensor for tensor in args if tensor is None or tensor.dtype != torch.float64)


def write_cache(
    cache: torch.Tensor, update: torch.Tensor, starts: torch.Tensor | None, axis: int, mode: str
) -> torch.Tensor:
    """Writes an update into a contiguous CUDA cache in place."""
    from onnxops_core.native.kernels import elementwise

    with torch.cuda.device_of(cache):
        elementwise.write_update(cache, update.contiguous(), starts, axis % cache.dim(), mode == "circular")
    return cache


def _scatter_run(*args: Any, axis: int = -2, mode: str = "linear") -> torch.Tensor:
    cache, update, starts = _first(args, 3)
    return write_cache(cache.clone(memory_format=torch.contiguous_format), update, starts, axis, mode)


TENSOR_SCATTER = Backend("Triton", _scatter_refuses, _scatter_run)


def _nbits_refuses(*args: Any, **attributes: Any) -> str | None:
    return triton_refuses(args)


def _nbits_run(*args: Any, K: int, N: int, block_size: int, bits: int = 4, **hints: Any) -> torch.Tensor:
    from onnxops_core.native.kernels import matmul_nbits

    a, b, scales, zero_points, _, bias = _first(args, 6)
    y = matmul_nbits.matmul_nbits(
        a.reshape(-1, K).contiguous(),
        b.contiguous(),
        scales.contiguous(),
        _contiguous(zero_points),
        _contiguous(bias),
        block_size,
        bits,
    )
    return y.view(*a.shape[:-1], N)


MATMUL_NBITS = Backend("Triton", _nbits_refuses, _nbits_run)


def fused_attention_refuses(call: AttentionCall) -> str | None:
    """Says why torch's fused attention cannot compute a call."""
    if call.num_outputs > 3:
        return "the score matrix is wanted"
    if not sdpa_expresses(call):
        return "a soft cap, window, length, precision, or causal with a past or mask is beyond fused attention"
    if call.group != 1 and (call.mask is not None or call.q.dtype not in (torch.float16, torch.bfloat16)):
        return "grouped heads with a mask, or in float32, would go through the score matrix"
    if call.k.shape[2] == 0:
        return "there are no keys"
    return None


def fused_attention(call: AttentionCall) -> Outputs:
    """Computes a call with torch's fused attention, which picks among flash, cuDNN and memory-efficient
    kernels."""
    mask = call.mask
    y = torch.nn.functional.scaled_dot_product_attention(
        call.q, call.k, call.v, mask, 0.0, call.causal, scale=call.scale, enable_gqa=call.group != 1
    )
    if mask is not None:
        # What a query without any key gets is not the same in all of torch's kernels.
        allowed = mask if mask.dtype == torch.bool else mask != -math.inf
        y = y.masked_fill(~allowed.any(-1, keepdim=True), 0.0)
    return contiguous(finish_outputs(call, y, None, call.past_length == 0))


def triton_attention_refuses(call: AttentionCall) -> str | None:
    """Says why the tiled kernel cannot compute a call."""
    if call.num_outputs > 3:
        return "the score matrix is wanted"
    if call.precision not in (None, 1):
        return "the softmax is computed in float32"
    if call.sink is not None:
        return "a score without a value takes part in the softmax"
    if call.v.dtype != call.q.dtype:
        return "Q and V have different dtypes"
    if max(call.q.shape[3], call.v.shape[3]) > _LARGEST_HEAD:
        return f"a head is larger than {_LARGEST_HEAD}"
    return triton_refuses((call.q, call.k, call.v, call.mask, call.nonpad))


def triton_attention(call: AttentionCall) -> Outputs:
    """Computes a call tile by tile with an online softmax."""
    from onnxops_core.native.kernels import attention

    q, k, v = (x if x.stride(3) == 1 else x.contiguous() for x in (call.q, call.k, call.v))
    y = attention.attend(
        q,
        k,
        v,
        call.mask,
        _contiguous(call.nonpad),
        past=call.past_length,
        causal=call.causal,
        left=call.left,
        right=call.right,
        scale=call.scale,
        softcap=call.softcap,
    )
    return contiguous(finish_outputs(call, y, None, call.past_length == 0))


def attention_on_gpu(call: AttentionCall) -> Outputs | None:
    """Computes a CUDA call by the first implementation that takes it; None if none does."""
    if fused_attention_refuses(call) is None:
        return fused_attention(call)
    if triton_attention_refuses(call) is not None:
        return None
    with torch.cuda.device_of(call.q):
        return triton_attention(call)
