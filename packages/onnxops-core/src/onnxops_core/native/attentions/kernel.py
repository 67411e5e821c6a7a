"""The fast implementation of Attention: never a whole score matrix unless that is asked for.

GPU calls go to the backends for GPUs. On the CPU, what torch's flash attention can express goes there. The
rest (soft cap, windows, causal with a past, masks together with causal) is computed in tiles of query rows,
each against only the keys that some row of the tile can see.
"""

from __future__ import annotations

import dataclasses
import math

import torch

from onnxops_core.native.attentions.gpu import attention_on_gpu
from onnxops_core.native.attentions.one_query import attend_one_query
from onnxops_core.native.attentions.reference import (
    Outputs,
    SplitAttention,
    attention_reference,
    contiguous,
    finish_outputs,
    sdpa_expresses,
)

__all__ = ["attention_kernel"]

# A tile's scores should stay in the second-level cache.
_TILE_ELEMENTS = 1 << 19


def attention_kernel(call: SplitAttention) -> Outputs:
    """Compute the outputs that are wanted; the reference does so where the whole score matrix is one of them."""
    if not call.q.is_cpu:
        # Tiles by Python loops, and lengths read back one by one, are for the CPU.
        return attention_on_gpu(call) or contiguous(attention_reference(call))
    if call.num_outputs > 3 or call.precision not in (None, 1) or call.v.dtype != call.q.dtype or call.sink is not None:
        return contiguous(attention_reference(call))
    y = _by_batch(call) if call.nonpad is not None else _one_length(call)
    return contiguous(finish_outputs(call, y, None, call.past_length == 0))


def _by_batch(call: SplitAttention) -> torch.Tensor:
    """Rows with different numbers of valid keys are computed apart, each on its own keys."""
    assert call.nonpad is not None
    counts = call.nonpad.tolist()
    q_length = call.q.shape[2]
    if counts and counts == counts[:1] * len(counts):
        return _one_length(_slice_keys(call, slice(None), counts[0], q_length))
    rows = [_one_length(_slice_keys(call, slice(b, b + 1), count, q_length)) for b, count in enumerate(counts)]
    return torch.cat(rows) if rows else call.q.new_empty((*call.q.shape[:3], call.v.shape[3]))


def _slice_keys(call: SplitAttention, batch: slice, count: int, q_length: int) -> SplitAttention:
    mask = call.mask
    if mask is not None:
        mask = mask[..., :count]
        if mask.dim() == 4 and mask.shape[0] != 1:
            mask = mask[batch]
    return dataclasses.replace(
        call,
        q=call.q[batch],
        k=call.k[batch, :, :count],
        v=call.v[batch, :, :count],
        mask=mask,
        past_length=count - q_length,
        nonpad=None,
    )


def _one_length(call: SplitAttention) -> torch.Tensor:
    call = _drop_idle_bounds(call)
    if not sdpa_expresses(call):
        return _tiled(call)
    mask = call.mask
    if mask is None and not call.causal and call.q.shape[2] == 1:
        return attend_one_query(call.q, call.k, call.v, call.k.shape[2], call.scale)
    return torch.nn.functional.scaled_dot_product_attention(
        call.q, call.k, call.v, mask, 0.0, call.causal, scale=call.scale, enable_gqa=call.group != 1
    )


def _drop_idle_bounds(call: SplitAttention) -> SplitAttention:
    """Remove causal and window bounds that forbid nothing, as in a decoding step."""
    q_length, total = call.q.shape[2], call.k.shape[2]
    last = call.past_length + q_length - 1
    causal = call.causal and call.past_length < total - 1
    right = call.right if 0 <= call.right < total - 1 - call.past_length else -1
    left = call.left if 0 <= call.left < last else -1
    if (causal, left, right) == (call.causal, call.left, call.right):
        return call
    return dataclasses.replace(call, causal=causal, left=left, right=right)


def _tiled(call: SplitAttention) -> torch.Tensor:
    batch, heads, q_length, size = call.q.shape
    kv_heads, total = call.k.shape[1:3]
    dtype = torch.promote_types(call.q.dtype, torch.float32)
    k = call.k.to(dtype).transpose(2, 3)
    v = call.v.to(dtype)
    y = torch.zeros((batch, heads, q_length, v.shape[3]), dtype=call.q.dtype, device=call.q.device)
    rows = max(16, min(256, _TILE_ELEMENTS // max(1, batch * heads * total)))
    for start in range(0, q_length, rows):
        stop = min(start + rows, q_length)
        low, high = _visible(call, start, stop, total)
        if low >= high:
            continue
        q = (call.q[:, :, start:stop].to(dtype) * call.scale).reshape(batch, kv_heads, -1, size)
        scores = (q @ k[..., low:high]).view(batch, heads, stop - start, high - low)
        if call.softcap > 0:
            scores.div_(call.softcap).tanh_().mul_(call.softcap)
        probabilities = _masked_softmax(call, scores, start, low)
        tile = probabilities.view(batch, kv_heads, -1, high - low) @ v[:, :, low:high]
        y[:, :, start:stop] = tile.view(batch, heads, stop - start, -1)
    return y


def _visible(call: SplitAttention, start: int, stop: int, total: int) -> tuple[int, int]:
    """Return the range of keys that the queries ``start .. stop - 1`` can see together."""
    first, last = start + call.past_length, stop - 1 + call.past_length
    high = total
    if call.causal:
        high = min(high, last + 1)
    if call.right >= 0:
        high = min(high, last + call.right + 1)
    low = max(0, first - call.left) if call.left >= 0 else 0
    return low, max(high, 0)


def _masked_softmax(call: SplitAttention, scores: torch.Tensor, start: int, low: int) -> torch.Tensor:
    """Softmax over the allowed keys of a tile of scores, which it overwrites; zero for rows without any."""
    rows, columns = scores.shape[2:]
    forbidden = _forbidden(call, start, low, rows, columns)
    mask = call.mask
    if mask is not None:
        mask = mask[..., low : low + columns]
        if mask.shape[-2] != 1:
            mask = mask[..., start : start + rows, :]
        if mask.dtype == torch.bool:
            forbidden = ~mask if forbidden is None else forbidden | ~mask
        else:
            scores.add_(mask)
    if forbidden is not None:
        scores.masked_fill_(forbidden, -math.inf)
    probabilities = torch.softmax(scores, -1)
    if forbidden is None and mask is None:
        return probabilities
    # A row without any key became NaN in all its columns; one column tells, and few calls have such rows.
    if bool(probabilities[..., 0].isnan().any()):
        dead = _dead_rows(forbidden, mask)
        probabilities.masked_fill_(dead, 0.0)
    return probabilities


def _dead_rows(forbidden: torch.Tensor | None, mask: torch.Tensor | None) -> torch.Tensor:
    if mask is not None and mask.dtype != torch.bool:
        masked = mask == -math.inf
        forbidden = masked if forbidden is None else forbidden | masked
    assert forbidden is not None
    return forbidden.all(-1, keepdim=True)


def _forbidden(call: SplitAttention, start: int, low: int, rows: int, columns: int) -> torch.Tensor | None:
    """Return which keys of a tile each query may not attend by position; None if none is forbidden."""
    if not call.causal and call.left < 0 and call.right < 0:
        return None
    position = torch.arange(start, start + rows, device=call.q.device).unsqueeze(1) + call.past_length
    keys = torch.arange(low, low + columns, device=call.q.device)
    reach = 0 if call.causal else call.right
    if call.causal and call.right >= 0:
        reach = min(0, call.right)
    ahead = keys > position + reach if reach >= 0 else None
    if call.left < 0:
        return ahead
    behind = keys < position - call.left
    return behind if ahead is None else ahead | behind
