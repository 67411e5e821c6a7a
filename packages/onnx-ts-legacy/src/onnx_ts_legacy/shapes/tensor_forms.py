"""What is known of a tensor of the program: its dtype, sizes and strides."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import sympy
import torch
from torch.utils import _pytree as pytree

__all__ = ["TensorForm", "contiguous_strides", "forget_fakes", "free_symbols", "is_tensor", "size_at"]


class TensorForm:
    """Dtype, sizes and strides of a tensor; sizes known only at run time are symbols.

    It answers what a fake tensor would, but is made without asking torch, which is slow with symbolic sizes.

    Attributes:
        dtype: The dtype.
        shape: The sizes.
        layout: The layout.
        fake: The fake tensor of this form, once one was needed.
    """

    __slots__ = ("_offset", "_strides", "dtype", "fake", "layout", "shape")

    def __init__(self, dtype: torch.dtype, sizes: Sequence[Any], strides: Sequence[Any]) -> None:
        self.dtype, self.shape, self._strides = dtype, tuple(sizes), tuple(strides)
        self.layout: torch.layout = torch.strided
        self.fake: torch.Tensor | None = None
        self._offset: Any = 0

    @classmethod
    def of(cls, fake: torch.Tensor) -> TensorForm:
        """Return the form of a fake tensor."""
        strided = fake.layout == torch.strided
        form = cls(fake.dtype, fake.shape, fake.stride() if strided else ())
        # Of a conjugate that torch puts off the value has the numbers, so that calls must not ask for them first.
        is_put_off = fake.is_conj() or fake.is_neg()
        form.layout, form.fake = fake.layout, None if is_put_off else fake
        form._offset = fake.storage_offset() if strided else None
        return form

    def dim(self) -> int:
        """Return the rank."""
        return len(self.shape)

    def stride(self, dim: int | None = None) -> Any:
        """Return the strides, or that of one dimension; a sparse tensor has none."""
        return self._strides if dim is None else self._strides[dim]

    def storage_offset(self) -> Any:
        """Return the offset of the first element in its memory; None for a sparse tensor."""
        return self._offset

    def numel(self) -> Any:
        """Return the number of elements."""
        return math.prod(self.shape)

    def is_complex(self) -> bool:
        """Tell whether the elements are complex."""
        return self.dtype.is_complex


def is_tensor(value: object) -> bool:
    """Tell whether a value is a tensor, or stands for one."""
    return isinstance(value, TensorForm | torch.Tensor)


def size_at(size: int | torch.SymInt, values: Mapping[str, int], unknown: int) -> int:
    """Return what a size is where symbols have values by name; ``unknown`` stands for those without one."""
    if isinstance(size, int):
        return size
    expression = size.node.expr
    return int(expression.xreplace({s: values.get(str(s), unknown) for s in expression.free_symbols}))


def contiguous_strides(sizes: Sequence[Any]) -> tuple[Any, ...]:
    """Return the strides of a contiguous tensor."""
    if not sizes:
        return ()
    strides: list[Any] = [1]
    for size in reversed(sizes[1:]):
        # Dimensions of size 0 count as 1; symbolic ones are taken to be neither. Their products cost time.
        factor = max(size, 1) if isinstance(size, int) else size
        last = strides[-1]
        strides.append(factor if isinstance(last, int) and last == 1 else last * factor)
    return tuple(reversed(strides))


def free_symbols(values: Any) -> set[sympy.Symbol]:
    """Return the symbols in numbers and in the sizes of tensors, however nested."""
    leaves = pytree.tree_leaves(values)
    sizes = [size for leaf in leaves for size in (leaf.shape if is_tensor(leaf) else [leaf])]
    return {symbol for size in sizes if isinstance(size, torch.SymInt) for symbol in size.node.expr.free_symbols}


def forget_fakes(values: Any) -> None:
    """Take the fake tensors from forms: they remember the symbols that stand for what is in them, such as its nonzeros.

    The next tensor of such a form holds something else.
    """
    for leaf in pytree.tree_leaves(values):
        if isinstance(leaf, TensorForm) and leaf.layout == torch.strided:
            leaf.fake = None
