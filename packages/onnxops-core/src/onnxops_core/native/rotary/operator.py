"""RotaryEmbedding (opset 23) as a torch operator."""

from __future__ import annotations

import torch

from onnxops_core.native.declaring.call import public
from onnxops_core.native.declaring.checks import check_float, check_same_dtype, invalid
from onnxops_core.native.declaring.declare import declare, like_first_input
from onnxops_core.native.rotary.calls import RotaryEmbeddingCall
from onnxops_core.native.rotary.cpu import CPU_ROTARY_EMBEDDING
from onnxops_core.native.rotary.gpu import ROTARY_EMBEDDING

__all__ = ["rotary_embedding"]

_OP = "RotaryEmbedding"
# Below this number of elements the calls of torch cost more than the work, and the fewest calls win.
_SMALL = 1 << 14


def _head_size(x: torch.Tensor, num_heads: int) -> int:
    if x.dim() == 4:
        if num_heads not in (0, x.shape[1]):
            raise invalid(_OP, "num_heads", num_heads, f"{x.shape[1]}, as the 4-D X has, or none")
        return x.shape[3]
    if x.dim() != 3:
        raise invalid(_OP, "X", x, "rank 4 (batch, heads, sequence, head_size) or 3 (batch, sequence, hidden_size)")
    if num_heads <= 0:
        raise invalid(_OP, "num_heads", num_heads, "the number of heads, which a 3-D X needs")
    if x.shape[2] % num_heads:
        raise invalid(_OP, "X", x, f"a last dimension divisible by num_heads, {num_heads}")
    return x.shape[2] // num_heads


def _check(call: RotaryEmbeddingCall) -> None:
    x, position_ids, rotary_embedding_dim = call.X, call.position_ids, call.rotary_embedding_dim
    check_float(_OP, "X", x)
    head_size = _head_size(x, call.num_heads)
    if head_size % 2:
        raise invalid(_OP, "X", x, f"an even head size, not {head_size}")
    if rotary_embedding_dim < 0 or rotary_embedding_dim > head_size or rotary_embedding_dim % 2:
        raise invalid(_OP, "rotary_embedding_dim", rotary_embedding_dim, f"an even number from 0 to {head_size}")
    half = (rotary_embedding_dim or head_size) // 2
    rows = (x.shape[0], x.shape[-2])
    for name, cache in (("cos_cache", call.cos_cache), ("sin_cache", call.sin_cache)):
        check_same_dtype(_OP, name, cache, "X", x.dtype)
        if position_ids is None:
            if tuple(cache.shape) != (*rows, half):
                raise invalid(_OP, name, cache, f"shape {(*rows, half)} where position_ids are left out")
        elif cache.dim() != 2 or cache.shape[1] != half:
            raise invalid(_OP, name, cache, f"shape (positions, {half}) where position_ids are given")
    if call.cos_cache.shape != call.sin_cache.shape:
        raise invalid(_OP, "sin_cache", call.sin_cache, f"the shape of cos_cache, {tuple(call.cos_cache.shape)}")
    if position_ids is not None and (position_ids.dtype != torch.int64 or tuple(position_ids.shape) != rows):
        raise invalid(_OP, "position_ids", position_ids, f"shape {rows} and dtype int64")


def _check_values(call: RotaryEmbeddingCall) -> None:
    position_ids = call.position_ids
    if position_ids is None or position_ids.numel() == 0:
        return
    if position_ids.numel() == 1:
        low = high = int(position_ids.item())
    else:
        low, high = (int(limit) for limit in torch.aminmax(position_ids))
    if low < 0 or high >= call.cos_cache.shape[0]:
        rows = f"positions from 0 to {call.cos_cache.shape[0] - 1}, the rows of cos_cache"
        raise invalid(_OP, "position_ids", (low, high), f"{rows} (smallest and largest are shown)")


def _select_rows(cache: torch.Tensor, position_ids: torch.Tensor | None, rank: int) -> torch.Tensor:
    rows = cache if position_ids is None else torch.nn.functional.embedding(position_ids, cache)
    return rows.unsqueeze(1 if rank == 4 else 2)


def rotary_reference(call: RotaryEmbeddingCall) -> torch.Tensor:
    x = call.X
    flat = x.dim() == 3
    heads = x.unflatten(2, (call.num_heads, x.shape[2] // call.num_heads)) if flat else x
    width = call.rotary_embedding_dim or heads.shape[3]
    dtype = torch.promote_types(x.dtype, torch.float32)
    cos = _select_rows(call.cos_cache, call.position_ids, x.dim()).to(dtype)
    sin = _select_rows(call.sin_cache, call.position_ids, x.dim()).to(dtype)
    rotated = heads[..., :width].to(dtype)
    if call.interleaved:
        first, second = rotated[..., 0::2], rotated[..., 1::2]
    else:
        first, second = rotated[..., : width // 2], rotated[..., width // 2 :]
    real = first * cos - second * sin
    imaginary = first * sin + second * cos
    pair = (real, imaginary)
    rotated = torch.stack(pair, -1).flatten(-2) if call.interleaved else torch.cat(pair, -1)
    rotated = rotated.to(x.dtype)
    if width != heads.shape[3]:
        rotated = torch.cat((rotated, heads[..., width:]), -1)
    return rotated.flatten(2) if flat else rotated


def _kernel(call: RotaryEmbeddingCall) -> torch.Tensor:
    x = call.X
    if not x.is_cpu or x.dtype not in (torch.float32, torch.float64):
        return rotary_reference(call).contiguous()
    if call.position_ids is None and x.dim() == 4 and x.shape[0] == 1:
        cos, sin = call.cos_cache, call.sin_cache  # the rows of one batch broadcast over the heads as they are
    else:
        cos = _select_rows(call.cos_cache, call.position_ids, x.dim())
        sin = _select_rows(call.sin_cache, call.position_ids, x.dim())
    width = call.rotary_embedding_dim
    if x.numel() <= _SMALL and not call.interleaved and x.dim() == 4 and width in (0, x.shape[3]):
        first, second = x.chunk(2, -1)
        real = (first * cos).addcmul_(second, sin, value=-1.0)
        return torch.cat((real, (second * cos).addcmul_(first, sin)), -1)
    result = x.new_empty(x.shape)
    source, target = x, result
    if x.dim() == 3:
        shape = (x.shape[0], x.shape[1], call.num_heads, x.shape[2] // call.num_heads)
        source, target = x.reshape(shape), result.view(shape)
    width = width or source.shape[3]
    if width != source.shape[3]:
        target[..., width:] = source[..., width:]
        source, target = source[..., :width], target[..., :width]
    if call.interleaved:
        first, second, real, imaginary = source[..., 0::2], source[..., 1::2], target[..., 0::2], target[..., 1::2]
    else:
        (first, second), (real, imaginary) = source.chunk(2, -1), target.chunk(2, -1)
    # No temporaries of the input's size: each half of the result is written, then added to.
    torch.mul(first, cos, out=real).addcmul_(second, sin, value=-1.0)
    torch.mul(second, cos, out=imaginary).addcmul_(first, sin)
    return result


_ROTARY_EMBEDDING = declare(
    _OP,
    23,
    RotaryEmbeddingCall,
    reference=rotary_reference,
    kernel=_kernel,
    fake=like_first_input,
    check=_check,
    check_values=_check_values,
    backends=(CPU_ROTARY_EMBEDDING, ROTARY_EMBEDDING),
    extensions=(torch.float64,),
)


rotary_embedding = public("rotary_embedding", RotaryEmbeddingCall, _ROTARY_EMBEDDING)
