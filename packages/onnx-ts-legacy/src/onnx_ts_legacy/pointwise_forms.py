"""Dtypes and sizes of pointwise calls, found without running them on symbolic sizes, which is slow.

The sizes are those of the operands, broadcast; the dtype is that of the same call on tensors of one element.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch.utils import _pytree as pytree

__all__ = ["pointwise_form"]

Form = tuple[torch.dtype, tuple[int | torch.SymInt, ...]]
_dtypes: dict[Any, torch.dtype] = {}


def pointwise_form(
    function: Any, args: Sequence[Any], kwargs: Mapping[str, Any], is_contiguous: Callable[[torch.Tensor], bool]
) -> Form | None:
    """Return dtype and sizes of the result of a pointwise operator, which is contiguous; None if it is not so simple.

    Args:
        function: The operator.
        args: Its arguments, tensors as fake tensors.
        kwargs: Its keyword arguments.
        is_contiguous: Tells whether a fake tensor is contiguous.
    """
    if not isinstance(function, torch._ops.OpOverload) or torch.Tag.pointwise not in function.tags:
        return None
    if function._schema.is_mutable or len(function._schema.returns) != 1:
        return None
    if function._schema.returns[0].alias_info is not None:
        return None
    leaves, structure = pytree.tree_flatten((tuple(args), dict(kwargs)))
    tensors = [leaf for leaf in leaves if isinstance(leaf, torch.Tensor)]
    sizes = _broadcast([tuple(tensor.shape) for tensor in tensors])
    if sizes is None or not all(map(is_contiguous, tensors)):
        return None
    if not any(len(tensor.shape) == len(sizes) and _same(tensor.shape, sizes) for tensor in tensors):
        return None
    key = (function, structure, tuple(_kind(leaf) for leaf in leaves))
    if key not in _dtypes:
        dtype = _dtype(function, leaves, structure)
        if dtype is None:
            return None
        _dtypes[key] = dtype
    return _dtypes[key], sizes


def _broadcast(shapes: list[tuple[Any, ...]]) -> tuple[Any, ...] | None:
    rank = max((len(shape) for shape in shapes), default=0)
    result: list[Any] = []
    for axis in range(-rank, 0):
        found = [shape[axis] for shape in shapes if len(shape) >= -axis]
        wide = [size for size in found if not (isinstance(size, int) and size == 1)]
        if any(not _equal(size, wide[0]) for size in wide):
            return None
        result.append(wide[0] if wide else 1)
    return tuple(result) if shapes else None


def _equal(a: Any, b: Any) -> bool:
    if isinstance(a, int) or isinstance(b, int):
        return isinstance(a, int) and isinstance(b, int) and a == b
    return bool(a.node.expr == b.node.expr)


def _same(a: Sequence[Any], b: Sequence[Any]) -> bool:
    return all(_equal(x, y) for x, y in zip(a, b, strict=True))


def _kind(leaf: Any) -> Any:
    if isinstance(leaf, torch.Tensor):
        return (leaf.dtype, leaf.dim())
    # The value of a number does not decide the dtype, but texts (rounding modes) and dtypes do.
    return type(leaf) if isinstance(leaf, int | float | torch.SymInt | torch.SymFloat) else leaf


def _dtype(function: Any, leaves: list[Any], structure: Any) -> torch.dtype | None:
    small: list[Any] = []
    for leaf in leaves:
        if isinstance(leaf, torch.Tensor):
            small.append(torch.empty([1] * leaf.dim(), dtype=leaf.dtype, device="meta"))
        else:
            small.append(2 if isinstance(leaf, torch.SymInt) else 2.0 if isinstance(leaf, torch.SymFloat) else leaf)
    args, kwargs = pytree.tree_unflatten(small, structure)
    try:
        result = function(*args, **kwargs)
    except Exception:
        return None
    return result.dtype if isinstance(result, torch.Tensor) else None
