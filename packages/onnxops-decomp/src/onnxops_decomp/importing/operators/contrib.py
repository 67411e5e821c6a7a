"""ONNX Runtime's own operators on floats, which its optimizers and ``target="onnxruntime"`` write.

Specified in https://github.com/microsoft/onnxruntime/blob/main/docs/ContribOperators.md
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from onnxops_core import native
from onnxops_decomp.importing.operators.layout import trilu
from onnxops_decomp.importing.operators.nn import conv
from onnxops_decomp.importing.operators.pointwise import (
    clip_to_numbers,
    gelu,
    hard_sigmoid,
    leaky_relu,
    relu,
    swish,
)
from onnxops_decomp.importing.operators.products import gemm
from onnxops_decomp.importing.operators.vision import grid_sample
from onnxops_decomp.importing.registry import onnx_op

__all__ = ["DOMAIN"]

DOMAIN = "com.microsoft"

# They came into ONNX later, as they were.
onnx_op("GridSample", domain=DOMAIN)(grid_sample)


@onnx_op("Trilu", domain=DOMAIN)
def triangle(X: Tensor, k: Tensor | None = None, upper: int = 1) -> Tensor:
    return trilu(X, 0 if k is None else int(k), upper)


@onnx_op("Inverse", domain=DOMAIN)
def inverse(X: Tensor) -> Tensor:
    result: Tensor = torch.linalg.inv(X)
    return result


@onnx_op("Gelu", domain=DOMAIN)
def exact_gelu(X: Tensor) -> Tensor:
    return gelu(X)


@onnx_op("BiasGelu", domain=DOMAIN)
def bias_gelu(A: Tensor, B: Tensor) -> Tensor:
    return gelu(A + B)


@onnx_op("FastGelu", domain=DOMAIN)
def fast_gelu(X: Tensor, bias: Tensor | None = None) -> Tensor:
    return gelu(X if bias is None else X + bias, "tanh")


@onnx_op("QuickGelu", domain=DOMAIN)
def quick_gelu(X: Tensor, alpha: float = 1.702) -> Tensor:
    return swish(X, alpha)


@onnx_op("SimplifiedLayerNormalization")
def simplified_layer_normalization(
    X: Tensor, scale: Tensor, axis: int = -1, epsilon: float = 1e-5, stash_type: int = 1
) -> tuple[Tensor, Tensor]:
    """Compute ``RMSNormalization`` under the name that ONNX Runtime gave it before, in ONNX's own domain."""
    wide = X.float() if stash_type == 1 else X
    axes = list(range(axis % X.dim(), X.dim()))
    inverse = torch.rsqrt(wide.square().mean(axes, keepdim=True) + epsilon)
    return native.rms_normalization(X, scale, axis=axis, epsilon=epsilon), inverse


@onnx_op("TransposeMatMul", domain=DOMAIN)
@onnx_op("FusedMatMul", domain=DOMAIN)
def fused_matmul(
    A: Tensor,
    B: Tensor,
    alpha: float = 1.0,
    transA: int = 0,
    transB: int = 0,
    transBatchA: int = 0,
    transBatchB: int = 0,
) -> Tensor:
    left, right = _turned(A, transA, transBatchA), _turned(B, transB, transBatchB)
    product = torch.matmul(left, right)
    return product if alpha == 1 else product * alpha


def _turned(value: Tensor, last_two: int, batch: int) -> Tensor:
    """Return an operand with its first dimension behind the batch, and its last two exchanged; vectors as they are."""
    if value.dim() < 2:
        return value
    value = value.movedim(0, -2) if batch else value
    return value.transpose(-1, -2) if last_two else value


_ACTIVATIONS: dict[str, Callable[..., Tensor]] = {
    "Relu": relu,
    "Tanh": torch.tanh,
    "Sigmoid": torch.sigmoid,
    "LeakyRelu": leaky_relu,
    "Clip": clip_to_numbers,
    "HardSigmoid": hard_sigmoid,
}


def _activated(value: Tensor, activation: str, parameters: list[float]) -> Tensor:
    if not activation:
        return value
    if activation not in _ACTIVATIONS:
        raise NotImplementedError(f"the importer does not support the activation {activation!r}")
    return _ACTIVATIONS[activation](value, *parameters)


@onnx_op("FusedGemm", domain=DOMAIN, rest=gemm)
def fused_gemm(
    A: Tensor,
    B: Tensor,
    C: Tensor | None = None,
    activation: str = "",
    activation_alpha: float | None = None,
    activation_beta: float | None = None,
    activation_gamma: float | None = None,
    **product: Any,
) -> Tensor:
    parameters = [each for each in (activation_alpha, activation_beta, activation_gamma) if each is not None]
    return _activated(gemm(A, B, C, **product), activation, parameters)


@onnx_op("FusedConv", domain=DOMAIN, rest=conv)
def fused_conv(
    X: Tensor,
    W: Tensor,
    B: Tensor | None = None,
    Z: Tensor | None = None,
    activation: str = "",
    activation_params: list[float] | None = None,
    **window: Any,
) -> Tensor:
    made = conv(X, W, B, **window)
    return _activated(made if Z is None else made + Z, activation, activation_params or [])


@onnx_op("RotaryEmbedding", domain=DOMAIN)
def rotary_embedding(
    input: Tensor,
    position_ids: Tensor,
    cos_cache: Tensor,
    sin_cache: Tensor,
    interleaved: int = 0,
    is_packed_batching: int = 0,
    num_heads: int = 0,
    rotary_embedding_dim: int = 0,
    scale: float = 1.0,
) -> Tensor:
    if is_packed_batching or scale != 1:
        raise NotImplementedError("packed batches and scales need kernels for GPUs")
    length = input.shape[-2]
    if position_ids.dim() < 2:  # the first position, the same in the whole batch
        steps = torch.arange(length, device=position_ids.device)
        position_ids = (position_ids.reshape(1, 1) + steps).expand(input.shape[0], length)
    if input.dim() == 3 and not num_heads:  # heads are as long as what the caches rotate
        num_heads = input.shape[2] // (2 * cos_cache.shape[1])
    return native.rotary_embedding(
        input,
        cos_cache,
        sin_cache,
        position_ids,
        interleaved=bool(interleaved),
        num_heads=num_heads,
        rotary_embedding_dim=rotary_embedding_dim,
    )


@onnx_op("EmbedLayerNormalization", domain=DOMAIN, like="gamma")
def embed_layer_normalization(
    input_ids: Tensor,
    segment_ids: Tensor | None,
    word_embedding: Tensor,
    position_embedding: Tensor,
    segment_embedding: Tensor | None,
    gamma: Tensor,
    beta: Tensor,
    mask: Tensor | None = None,
    position_ids: Tensor | None = None,
    epsilon: float = 1e-12,
    mask_index_type: int = 0,
) -> tuple[Tensor, Tensor, Tensor]:
    batch, length = input_ids.shape
    total = functional.embedding(input_ids, word_embedding)
    total = total + (position_embedding[:length] if position_ids is None else position_embedding[position_ids])
    if segment_ids is not None and segment_embedding is not None:
        total = total + functional.embedding(segment_ids, segment_embedding)
    counts = input_ids.new_zeros(batch) if mask is None else mask.sum(1, dtype=input_ids.dtype)
    return functional.layer_norm(total, total.shape[-1:], gamma, beta, epsilon), counts.to(torch.int32), total


def attended(
    projected: Tensor,
    mask_index: Tensor | None,
    past: Tensor | None,
    attention_bias: Tensor | None = None,
    *,
    do_rotary: int = 0,
    mask_filter_value: float = -10000.0,
    num_heads: int = 0,
    past_present_share_buffer: int = 0,
    qkv_hidden_sizes: list[int] | None = None,
    rotary_embedding_dim: int = 0,
    scale: float = 0.0,
    unidirectional: int = 0,
) -> tuple[Tensor, Tensor | None]:
    """Return what Attention makes of its three projections, which are one tensor, and the keys and values it saw."""
    if do_rotary or past_present_share_buffer:
        raise NotImplementedError("rotation and shared buffers in Attention need kernels for GPUs")
    third = projected.shape[2] // 3
    parts = projected.split(qkv_hidden_sizes or [third, third, third], 2)
    query, key, value = (each.unflatten(2, (num_heads, -1)).transpose(1, 2) for each in parts)
    if past is not None:
        key, value = torch.cat([past[0], key], 2), torch.cat([past[1], value], 2)
    scores = query @ key.transpose(-1, -2) * (scale or query.shape[3] ** -0.5)
    added = _added(scores, mask_index, mask_filter_value, bool(unidirectional))
    scores = scores + added if attention_bias is None else scores + added + attention_bias
    made = torch.softmax(scores, -1) @ value
    # Keys and values of different sizes have no common tensor.
    present = torch.stack([key, value]) if key.shape == value.shape else None
    return made.transpose(1, 2).flatten(2), present


@onnx_op("Attention", domain=DOMAIN, rest=attended)
def attention(
    input: Tensor,
    weights: Tensor,
    bias: Tensor | None = None,
    mask_index: Tensor | None = None,
    past: Tensor | None = None,
    attention_bias: Tensor | None = None,
    past_sequence_length: Tensor | None = None,
    **heads: Any,
) -> tuple[Tensor, Tensor | None]:
    """Compute attention whose three projections are one product, as optimized models of BERT and GPT-2 hold it."""
    projected = torch.matmul(input, weights)
    projected = projected if bias is None else projected + bias
    return attended(projected, mask_index, past, attention_bias, **heads)


def _added(scores: Tensor, mask_index: Tensor | None, filled: float, causal: bool) -> Tensor:
    """Return what is added to scores of queries for keys they do not see."""
    batch, _, queries, keys = scores.shape
    place = torch.arange(keys, device=scores.device)
    seen: Any = torch.ones(1, 1, queries, keys, dtype=torch.bool, device=scores.device)
    if mask_index is not None:
        seen = seen & _seen(mask_index, batch, queries, place)
    added = torch.where(seen, 0.0, filled).to(scores.dtype)
    if causal:
        ends = torch.arange(keys - queries, keys, device=scores.device).unsqueeze(1)
        added = torch.where(place > ends, torch.finfo(scores.dtype).min, added)
    return added


def _seen(mask_index: Tensor, batch: int, queries: int, place: Tensor) -> Tensor:
    """Return which keys a mask lets be seen: ends, ends and starts, or one number for each key (and each query)."""
    if mask_index.dim() == 1:
        ends, starts = mask_index[:batch].view(-1, 1), mask_index[batch:].view(-1, 1)
        inside = place < ends
        inside = inside & (place >= starts) if mask_index.shape[0] == 2 * batch else inside
        return inside.view(batch, 1, 1, -1)
    if mask_index.dim() == 4:  # the last rows of a square of all places
        raise NotImplementedError("a mask of rank 4 needs kernels for GPUs")
    made = mask_index > 0
    return made[:, None, None, :] if made.dim() == 2 else made[:, None]
