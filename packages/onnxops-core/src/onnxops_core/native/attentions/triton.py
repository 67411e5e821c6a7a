# Triton has no types, and a kernel's parameters are pointers and numbers of its own.
# mypy: disable-error-code="import-not-found,import-untyped,untyped-decorator,no-untyped-def"
"""Attention with an online softmax, for what torch's fused kernels lack: soft caps, windows, valid lengths."""

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl

from onnxops_core.native.declaring.tuning import Settings, autotuned, size_class

__all__ = ["attend"]


# What a block may use on a GPU of compute capability 9.0; settings that exceed a smaller one's are passed over.
_SHARED_MEMORY = 227 * 1024
# The first settings fit into the shared memory of every GPU at every head size, in float32 too.
_SETTINGS: list[Settings] = [
    ({"BLOCK_Q": q, "BLOCK_K": k}, warps, stages)
    for q, k, warps, stages in (
        (16, 16, 4, 1),
        (16, 64, 4, 3),
        (32, 32, 4, 2),
        (64, 32, 4, 3),
        (64, 64, 4, 3),
        (128, 64, 8, 3),
        (128, 32, 8, 2),
    )
]


def _fits(config: triton.Config, arguments: dict[str, Any]) -> bool:
    """Tell whether tiles fit into a block's shared memory, and do not take minutes to compile for nothing."""
    width = max(arguments["BLOCK_SIZE"], arguments["BLOCK_V"])
    rows = 2 * config.kwargs["BLOCK_Q"] + 2 * config.num_stages * config.kwargs["BLOCK_K"]
    return bool(rows * width * arguments["q"].element_size() <= _SHARED_MEMORY)


@autotuned(_SETTINGS, key=["q_class", "SIZE", "V_SIZE", "MASK"], fits=_fits)
@triton.jit(do_not_specialize=["q_class"])
def _attend_kernel(
    q,
    k,
    v,
    mask,
    lengths,
    out,
    q_length,
    total,
    heads,
    group,
    past,
    q_batch,
    q_head,
    q_token,
    k_batch,
    k_head,
    k_token,
    v_batch,
    v_head,
    v_token,
    mask_batch,
    mask_head,
    mask_row,
    scale,
    softcap,
    left,
    right,
    q_class,
    SIZE: tl.constexpr,
    V_SIZE: tl.constexpr,
    HAS_LENGTHS: tl.constexpr,
    MASK: tl.constexpr,
    CAUSAL: tl.constexpr,
    LEFT: tl.constexpr,
    RIGHT: tl.constexpr,
    SOFTCAP: tl.constexpr,
    BLOCK_SIZE: tl.constexpr,
    BLOCK_V: tl.constexpr,
    BLOCK_Q: tl.constexpr,
    BLOCK_K: tl.constexpr,
):
    # One dimension of programs: the others of a grid end at 65535, fewer than heads of a large batch.
    tiles = tl.cdiv(q_length, BLOCK_Q)
    start = (tl.program_id(0) % tiles) * BLOCK_Q
    pair = (tl.program_id(0) // tiles).to(tl.int64)
    batch = pair // heads
    head = pair % heads
    valid = total
    offset = past
    if HAS_LENGTHS:
        valid = tl.load(lengths + batch).to(tl.int32)
        offset = valid - q_length
    row = start + tl.arange(0, BLOCK_Q)
    wide_row = row.to(tl.int64)
    feature = tl.arange(0, BLOCK_SIZE)
    v_feature = tl.arange(0, BLOCK_V)
    in_rows = row < q_length
    query = tl.load(
        q + batch * q_batch + head * q_head + wide_row[:, None] * q_token + feature[None, :],
        mask=in_rows[:, None] & (feature[None, :] < SIZE),
        other=0.0,
    )
    keys = k + batch * k_batch + (head // group) * k_head
    values = v + batch * v_batch + (head // group) * v_head
    position = row + offset
    # The keys that some query of this tile can see.
    high = valid
    if CAUSAL:
        high = tl.minimum(high, start + BLOCK_Q + offset)
    if RIGHT:
        high = tl.minimum(high, start + BLOCK_Q + offset + right)
    low = 0
    if LEFT:
        low = tl.maximum(0, (start + offset - left) // BLOCK_K * BLOCK_K)
    largest = tl.full((BLOCK_Q,), -float("inf"), dtype=tl.float32)
    weight = tl.zeros((BLOCK_Q,), dtype=tl.float32)
    result = tl.zeros((BLOCK_Q, BLOCK_V), dtype=tl.float32)
    for block in range(low, high, BLOCK_K):
        key = block + tl.arange(0, BLOCK_K)
        wide_key = key.to(tl.int64)
        in_keys = key < valid
        key_tile = tl.load(
            keys + wide_key[None, :] * k_token + feature[:, None],
            mask=in_keys[None, :] & (feature[:, None] < SIZE),
            other=0.0,
        )
        scores = tl.dot(query, key_tile, input_precision="tf32x3") * scale
        if SOFTCAP:
            # tanh(x) = 1 - 2 / (exp(2 x) + 1), exact at both ends.
            scores = softcap * (1.0 - 2.0 / (tl.exp(2.0 * scores / softcap) + 1.0))
        allowed = in_keys[None, :] & in_rows[:, None]
        if CAUSAL:
            allowed = allowed & (key[None, :] <= position[:, None])
        if LEFT:
            allowed = allowed & (key[None, :] >= position[:, None] - left)
        if RIGHT:
            allowed = allowed & (key[None, :] <= position[:, None] + right)
        if MASK != 0:
            place = mask + batch * mask_batch + head * mask_head + wide_row[:, None] * mask_row + wide_key[None, :]
            in_mask = in_rows[:, None] & (key[None, :] < total)
            if MASK == 1:
                allowed = allowed & (tl.load(place, mask=in_mask, other=0) != 0)
            else:
                scores += tl.load(place, mask=in_mask, other=0.0).to(tl.float32)
        scores = tl.where(allowed, scores, -float("inf"))
        new_largest = tl.maximum(largest, tl.max(scores, 1))
        # Rows without any key so far keep an infinite maximum; their exponentials must be zero, not NaN.
        safe = tl.where(new_largest == -float("inf"), 0.0, new_largest)
        shrink = tl.exp(largest - safe)
        probability = tl.exp(scores - safe[:, None])
        weight = weight * shrink + tl.sum(probability, 1)
        value_tile = tl.load(
            values + wide_key[:, None] * v_token + v_feature[None, :],
            mask=in_keys[:, None] & (v_feature[None, :] < V_SIZE),
            other=0.0,
        )
        result = result * shrink[:, None]
        result += tl.dot(probability.to(value_tile.dtype), value_tile, input_precision="tf32x3")
        largest = new_largest
    result = result / tl.where(weight == 0.0, 1.0, weight)[:, None]
    place = (pair * q_length + wide_row[:, None]) * V_SIZE + v_feature[None, :]
    tl.store(out + place, result.to(out.dtype.element_ty), mask=in_rows[:, None] & (v_feature[None, :] < V_SIZE))


def attend(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    mask: torch.Tensor | None,
    lengths: torch.Tensor | None,
    *,
    past: int,
    causal: bool,
    left: int,
    right: int,
    scale: float,
    softcap: float,
) -> torch.Tensor:
    """Compute ``(batch, heads, q_length, v_size)`` without a score matrix.

    Args:
        q: ``(batch, heads, q_length, size)``, features dense.
        k: ``(batch, kv_heads, total, size)``, features dense.
        v: ``(batch, kv_heads, total, v_size)``, features dense.
        mask: boolean or float, broadcastable to ``(batch, heads, q_length, total)``, or None.
        lengths: ``(batch,)`` int64 numbers of valid keys, or None.
        past: how many keys precede the queries, without ``lengths``.
        causal: whether keys behind a query's position are hidden from it.
        left: how many keys before its position a query sees; -1 for all.
        right: how many keys behind its position a query sees; -1 for all.
        scale: factor of the scores.
        softcap: bound of the scores; 0 for none.
    """
    batch, heads, q_length, size = q.shape
    total, v_size = k.shape[2], v.shape[3]
    out = torch.empty((batch, heads, q_length, v_size), dtype=q.dtype, device=q.device)
    if out.numel() == 0:
        return out
    full = q if mask is None else mask.expand(batch, heads, q_length, total)
    full = full if mask is None or full.stride(3) == 1 else full.contiguous()
    kind = 0 if mask is None else 1 if mask.dtype == torch.bool else 2
    strides = [stride for x in (q, k, v, full) for stride in x.stride()[:3]]
    tensors = (q, k, v, full.view(torch.uint8) if kind == 1 else full, q if lengths is None else lengths, out)
    sizes = (q_length, total, heads, heads // k.shape[1], past, *strides)
    arguments = (*tensors, *sizes, scale, softcap, left, right, size_class(q_length, 256))
    options = {
        "SIZE": size,
        "V_SIZE": v_size,
        "HAS_LENGTHS": lengths is not None,
        "MASK": kind,
        "CAUSAL": causal,
        "LEFT": left >= 0,
        "RIGHT": right >= 0,
        "SOFTCAP": softcap > 0,
        "BLOCK_SIZE": max(16, triton.next_power_of_2(size)),
        "BLOCK_V": max(16, triton.next_power_of_2(v_size)),
    }
    _attend_kernel[lambda meta: (triton.cdiv(q_length, meta["BLOCK_Q"]) * batch * heads,)](*arguments, **options)
    return out
