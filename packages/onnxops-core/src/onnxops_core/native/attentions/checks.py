"""What ONNX's Attention forbids (opsets 23 to 25)."""

from __future__ import annotations

import math

import torch

from onnxops_core.native.attentions.calls import AttentionCall
from onnxops_core.native.declaring.checks import FLOATS, check_choice, check_not_negative, invalid

__all__ = ["check_attention", "check_attention_values", "mask_shape_is_valid"]

_PRECISIONS = (1, 10, 11, 16)


def _check_ranks(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> int:
    """Return the rank of all three."""
    rank = q.dim()
    if rank not in (3, 4):
        raise invalid("Attention", "Q", q, "rank 4 (batch, heads, sequence, head_size) or rank 3")
    if k.dim() != rank or v.dim() != rank:
        wrong = ("K", k) if k.dim() != rank else ("V", v)
        raise invalid("Attention", *wrong, f"rank {rank} as Q")
    dtype = q.dtype
    if dtype not in FLOATS or v.dtype not in FLOATS:
        wrong = ("Q", q) if dtype not in FLOATS else ("V", v)
        raise invalid("Attention", *wrong, "dtype float16, bfloat16, float32 or float64")
    if k.dtype != dtype:
        raise invalid("Attention", "K", k, f"the dtype of Q, {dtype}")
    return rank


def _heads(call: AttentionCall, strict: bool) -> tuple[int, int]:
    """Return the numbers of query and key heads, after comparing them with the tensors."""
    q, k, v, q_num_heads, kv_num_heads = call.Q, call.K, call.V, call.q_num_heads, call.kv_num_heads
    if q_num_heads < 0 or kv_num_heads < 0:
        raise invalid("Attention", "q_num_heads, kv_num_heads", (q_num_heads, kv_num_heads), "no negative number")
    if q.dim() == 4:
        heads, kv_heads = q.shape[1], k.shape[1]
        if q_num_heads or kv_num_heads:
            _check_redundant_heads(
                (("q_num_heads", q_num_heads, heads), ("kv_num_heads", kv_num_heads, kv_heads)), strict
            )
        if v.shape[1] != kv_heads:
            raise invalid("Attention", "V", v, f"{kv_heads} heads as K")
        return heads, kv_heads
    if not q_num_heads or not kv_num_heads:
        raise invalid("Attention", "q_num_heads, kv_num_heads", (q_num_heads, kv_num_heads), "both for 3-D inputs")
    for name, tensor, heads_of in (("Q", q, q_num_heads), ("K", k, kv_num_heads), ("V", v, kv_num_heads)):
        if tensor.shape[2] % heads_of:
            raise invalid("Attention", name, tensor, f"a last dimension divisible by its {heads_of} heads")
    return q_num_heads, kv_num_heads


def _check_redundant_heads(counts: tuple[tuple[str, int, int], ...], strict: bool) -> None:
    """Compare numbers of heads with those that 4-D inputs have themselves."""
    for name, given, found in counts:
        if given and (strict or given != found):
            expected = "to be left out for 4-D inputs" if strict else f"{found}, as the 4-D inputs have"
            raise invalid("Attention", name, given, expected)


def _check_mask(mask: torch.Tensor, dtype: torch.dtype, shape: tuple[int, int, int, int]) -> None:
    if mask.dtype not in (torch.bool, dtype):
        raise invalid("Attention", "attn_mask", mask, f"dtype bool or that of Q, {dtype}")
    if not mask_shape_is_valid(mask, shape):
        raise invalid("Attention", "attn_mask", mask, f"a shape that broadcasts to {tuple(shape)}")


def mask_shape_is_valid(mask: torch.Tensor, shape: tuple[int, int, int, int]) -> bool:
    """Tell whether a mask broadcasts to the scores; its last dimension may be shorter."""
    if not 1 <= mask.dim() <= 4 or mask.shape[-1] > shape[3]:
        return False
    return all(size in (1, full) for size, full in zip(mask.shape[-2::-1], shape[2::-1], strict=False))


def _check_past(call: AttentionCall, heads: int) -> int:
    """Return the length of the past."""
    k, v, past_key, past_value = call.K, call.V, call.past_key, call.past_value
    if past_key is None and past_value is None:
        return 0
    if past_key is None or past_value is None:
        missing = "past_key" if past_key is None else "past_value"
        raise invalid("Attention", missing, None, "past_key and past_value together")
    length = past_key.shape[2] if past_key.dim() == 4 else 0
    for name, past, current in (("past_key", past_key, k), ("past_value", past_value, v)):
        size = current.shape[3] if current.dim() == 4 else current.shape[2] // heads
        expected = (current.shape[0], heads, length, size)
        if past.dim() != 4 or tuple(past.shape) != expected or past.dtype != current.dtype:
            raise invalid(
                "Attention",
                name,
                past,
                f"(batch {expected[0]}, kv_num_heads {heads}, past length, head size {size}) in {current.dtype}",
            )
    return length


def _check_attributes(call: AttentionCall) -> None:
    scale, windows = call.scale, (call.left_window_size, call.right_window_size)
    if call.qk_matmul_output_mode not in (0, 1, 2, 3):
        check_choice("Attention", "qk_matmul_output_mode", call.qk_matmul_output_mode, (0, 1, 2, 3))
    check_not_negative("Attention", "softcap", call.softcap)
    if scale is not None and not 0 <= scale < math.inf:
        raise invalid("Attention", "scale", scale, "a finite number that is not negative (its square root is used)")
    if call.softmax_precision is not None:
        check_choice("Attention", "softmax_precision", call.softmax_precision, _PRECISIONS)
    if windows[0] < -1 or windows[1] < -1:
        raise invalid("Attention", "left_window_size, right_window_size", windows, "-1 or more")


def check_attention(call: AttentionCall, *, strict_heads: bool) -> None:
    """Raise ValueError for what the specification forbids; see :func:`onnxops_core.attention`."""
    q, k, v, attn_mask, nonpad_kv_seqlen = call.Q, call.K, call.V, call.attn_mask, call.nonpad_kv_seqlen
    rank = _check_ranks(q, k, v)
    heads, kv_heads = _heads(call, strict_heads)
    if kv_heads == 0 or heads % kv_heads:
        raise invalid("Attention", "Q", q, f"a number of heads ({heads}) divisible by the {kv_heads} heads of K")
    q_shape, k_shape, v_shape = q.shape, k.shape, v.shape
    batch, sequence = k_shape[0], k_shape[-2]
    if q_shape[0] != batch:
        raise invalid("Attention", "K", k, f"batch {q_shape[0]} as Q")
    if v_shape[0] != batch or v_shape[-2] != sequence:
        raise invalid("Attention", "V", v, f"batch {batch} and sequence length {sequence} as K")
    size, k_size = (q_shape[3], k_shape[3]) if rank == 4 else (q_shape[2] // heads, k_shape[2] // kv_heads)
    if size != k_size or size == 0:
        raise invalid("Attention", "K", k, f"head size {size} as Q, and not zero")
    past = _check_past(call, kv_heads)
    if attn_mask is not None:
        _check_mask(attn_mask, q.dtype, (batch, heads, q_shape[-2], past + sequence))
    if nonpad_kv_seqlen is not None:
        if call.past_key is not None:
            raise invalid("Attention", "nonpad_kv_seqlen", nonpad_kv_seqlen, "none together with past_key")
        if nonpad_kv_seqlen.dtype != torch.int64 or tuple(nonpad_kv_seqlen.shape) != (batch,):
            raise invalid("Attention", "nonpad_kv_seqlen", nonpad_kv_seqlen, f"shape ({batch},) and dtype int64")
    _check_attributes(call)
    if call.num_outputs not in (1, 2, 3, 4):
        check_choice("Attention", "num_outputs", call.num_outputs, (1, 2, 3, 4))


def check_attention_values(k: torch.Tensor, nonpad_kv_seqlen: torch.Tensor) -> list[int]:
    """Refuse numbers of valid keys outside ``[0, sequence length of K]``, and return them."""
    length = k.shape[-2]
    counts: list[int] = nonpad_kv_seqlen.tolist()
    if counts and not (min(counts) >= 0 and max(counts) <= length):
        raise invalid("Attention", "nonpad_kv_seqlen", counts, f"numbers from 0 to K's sequence length {length}")
    return counts
