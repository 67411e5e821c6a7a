"""RotaryEmbedding (opset 23) as a torch operator."""

from __future__ import annotations

import torch

from onnxops_core.native.c_kernels.library import CPU_ROTARY_EMBEDDING
from onnxops_core.native.declaring.arguments import flag
from onnxops_core.native.declaring.checks import check_float, check_same_dtype, invalid
from onnxops_core.native.declaring.declare import declare
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


def _check(
    x: torch.Tensor,
    cos_cache: torch.Tensor,
    sin_cache: torch.Tensor,
    position_ids: torch.Tensor | None = None,
    *,
    interleaved: bool = False,
    num_heads: int = 0,
    rotary_embedding_dim: int = 0,
) -> None:
    check_float(_OP, "X", x)
    head_size = _head_size(x, num_heads)
    if head_size % 2:
        raise invalid(_OP, "X", x, f"an even head size, not {head_size}")
    if rotary_embedding_dim < 0 or rotary_embedding_dim > head_size or rotary_embedding_dim % 2:
        raise invalid(_OP, "rotary_embedding_dim", rotary_embedding_dim, f"an even number from 0 to {head_size}")
    half = (rotary_embedding_dim or head_size) // 2
    rows = (x.shape[0], x.shape[-2])
    for name, cache in (("cos_cache", cos_cache), ("sin_cache", sin_cache)):
        check_same_dtype(_OP, name, cache, "X", x.dtype)
        if position_ids is None:
            if tuple(cache.shape) != (*rows, half):
                raise invalid(_OP, name, cache, f"shape {(*rows, half)} where position_ids are left out")
        elif cache.dim() != 2 or cache.shape[1] != half:
            raise invalid(_OP, name, cache, f"shape (positions, {half}) where position_ids are given")
    if cos_cache.shape != sin_cache.shape:
        raise invalid(_OP, "sin_cache", sin_cache, f"the shape of cos_cache, {tuple(cos_cache.shape)}")
    if position_ids is not None and (position_ids.dtype != torch.int64 or tuple(position_ids.shape) != rows):
        raise invalid(_OP, "position_ids", position_ids, f"shape {rows} and dtype int64")


def _check_values(
    x: torch.Tensor,
    cos_cache: torch.Tensor,
    sin_cache: torch.Tensor,
    position_ids: torch.Tensor | None = None,
    **attributes: object,
) -> None:
    if position_ids is None or position_ids.numel() == 0:
        return
    if position_ids.numel() == 1:
        low = high = int(position_ids.item())
    else:
        low, high = (int(limit) for limit in torch.aminmax(position_ids))
    if low < 0 or high >= cos_cache.shape[0]:
        raise invalid(
            _OP,
            "position_ids",
            (low, high),
            f"positions from 0 to {cos_cache.shape[0] - 1}, the rows of cos_cache (smallest and largest are shown)",
        )


def _select_rows(cache: torch.Tensor, position_ids: torch.Tensor | None, rank: int) -> torch.Tensor:
    rows = cache if position_ids is None else torch.nn.functional.embedding(position_ids, cache)
    return rows.unsqueeze(1 if rank == 4 else 2)


def rotary_reference(
    x: torch.Tensor,
    cos_cache: torch.Tensor,
    sin_cache: torch.Tensor,
    position_ids: torch.Tensor | None = None,
    *,
    interleaved: bool = False,
    num_heads: int = 0,
    rotary_embedding_dim: int = 0,
) -> torch.Tensor:
    flat = x.dim() == 3
    heads = x.unflatten(2, (num_heads, x.shape[2] // num_heads)) if flat else x
    width = rotary_embedding_dim or heads.shape[3]
    dtype = torch.promote_types(x.dtype, torch.float32)
    cos = _select_rows(cos_cache, position_ids, x.dim()).to(dtype)
    sin = _select_rows(sin_cache, position_ids, x.dim()).to(dtype)
    rotated = heads[..., :width].to(dtype)
    if interleaved:
        first, second = rotated[..., 0::2], rotated[..., 1::2]
    else:
        first, second = rotated[..., : width // 2], rotated[..., width // 2 :]
    real = first * cos - second * sin
    imaginary = first * sin + second * cos
    pair = (real, imaginary)
    rotated = torch.stack(pair, -1).flatten(-2) if interleaved else torch.cat(pair, -1)
    rotated = rotated.to(x.dtype)
    if width != heads.shape[3]:
        rotated = torch.cat((rotated, heads[..., width:]), -1)
    return rotated.flatten(2) if flat else rotated


def _kernel(
    x: torch.Tensor,
    cos_cache: torch.Tensor,
    sin_cache: torch.Tensor,
    position_ids: torch.Tensor | None = None,
    *,
    interleaved: bool = False,
    num_heads: int = 0,
    rotary_embedding_dim: int = 0,
) -> torch.Tensor:
    if not x.is_cpu or x.dtype not in (torch.float32, torch.float64):
        return rotary_reference(
            x,
            cos_cache,
            sin_cache,
            position_ids,
            interleaved=interleaved,
            num_heads=num_heads,
            rotary_embedding_dim=rotary_embedding_dim,
        ).contiguous()
    if position_ids is None and x.dim() == 4 and x.shape[0] == 1:
        cos, sin = cos_cache, sin_cache  # the rows of one batch broadcast over the heads as they are
    else:
        cos = _select_rows(cos_cache, position_ids, x.dim())
        sin = _select_rows(sin_cache, position_ids, x.dim())
    width = rotary_embedding_dim
    if x.numel() <= _SMALL and not interleaved and x.dim() == 4 and width in (0, x.shape[3]):
        first, second = x.chunk(2, -1)
        real = (first * cos).addcmul_(second, sin, value=-1.0)
        return torch.cat((real, (second * cos).addcmul_(first, sin)), -1)
    result = x.new_empty(x.shape)
    source, target = x, result
    if x.dim() == 3:
        shape = (x.shape[0], x.shape[1], num_heads, x.shape[2] // num_heads)
        source, target = x.reshape(shape), result.view(shape)
    width = width or source.shape[3]
    if width != source.shape[3]:
        target[..., width:] = source[..., width:]
        source, target = source[..., :width], target[..., :width]
    if interleaved:
        first, second, real, imaginary = source[..., 0::2], source[..., 1::2], target[..., 0::2], target[..., 1::2]
    else:
        (first, second), (real, imaginary) = source.chunk(2, -1), target.chunk(2, -1)
    # No temporaries of the input's size: each half of the result is written, then added to.
    torch.mul(first, cos, out=real).addcmul_(second, sin, value=-1.0)
    torch.mul(second, cos, out=imaginary).addcmul_(first, sin)
    return result


def _fake(x: torch.Tensor, *args: object, **kwargs: object) -> torch.Tensor:
    return x.new_empty(x.shape)


_ROTARY_EMBEDDING = declare(
    _OP,
    23,
    "(Tensor X, Tensor cos_cache, Tensor sin_cache, Tensor? position_ids=None, *, bool interleaved=False, "
    "int num_heads=0, int rotary_embedding_dim=0) -> Tensor",
    reference=rotary_reference,
    kernel=_kernel,
    fake=_fake,
    check=_check,
    check_values=_check_values,
    backends=(CPU_ROTARY_EMBEDDING, ROTARY_EMBEDDING),
    extensions=(torch.float64,),
)


def rotary_embedding(
    X: torch.Tensor,
    cos_cache: torch.Tensor,
    sin_cache: torch.Tensor,
    position_ids: torch.Tensor | None = None,
    *,
    interleaved: bool = False,
    num_heads: int = 0,
    rotary_embedding_dim: int = 0,
) -> torch.Tensor:
    """ONNX RotaryEmbedding: rotates pairs of features by an angle that depends on the position.

    Args:
        X: ``(batch, num_heads, sequence, head_size)`` or ``(batch, sequence, num_heads * head_size)``;
            float16, bfloat16 or float32, and beyond ONNX float64; the head size is even.
        cos_cache: cosines, of X's dtype: ``(positions, dim / 2)`` with ``position_ids``, else
            ``(batch, sequence, dim / 2)``, where ``dim`` is ``rotary_embedding_dim`` or the head size.
        sin_cache: sines, as ``cos_cache``.
        position_ids: ``(batch, sequence)`` int64, rows of the caches.
        interleaved: pairs are neighbours (0, 1), (2, 3) ... rather than (0, dim / 2), (1, dim / 2 + 1) ...
        num_heads: the number of heads; required for a 3-D X.
        rotary_embedding_dim: how many of the first features of a head are rotated; 0 for all.

    Returns:
        The rotated tensor, of X's shape and dtype. float16 and bfloat16 are rounded once.

    Raises:
        ValueError: shapes, dtypes, attributes or positions that the specification forbids.

    Source: https://onnx.ai/onnx/operators/onnx__RotaryEmbedding.html
    """
    result: torch.Tensor = _ROTARY_EMBEDDING(
        X,
        cos_cache,
        sin_cache,
        position_ids,
        interleaved=flag(_OP, "interleaved", interleaved),
        num_heads=num_heads,
        rotary_embedding_dim=rotary_embedding_dim,
    )
    return result
