"""Shapes of what operators return that torch finds with data only, or by fixing dynamic sizes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from onnx_ts_legacy.shapes.tensor_forms import is_tensor
from onnxops_decomp.exporting import masked_index

__all__ = ["SHAPES"]

aten = torch.ops.aten


def _spaced(start: Any, end: Any, steps: Any, *_: Any, dtype: torch.dtype | None = None, **placement: Any) -> Any:
    """As many numbers as asked for, even if how many is known only at run time."""
    usual = torch.get_default_dtype()
    is_complex = any(value.is_complex() if is_tensor(value) else isinstance(value, complex) for value in (start, end))
    return torch.empty((steps,), dtype=dtype or (usual.to_complex() if is_complex else usual))


def _counted(*numbers: Any, dtype: torch.dtype | None = None, **placement: Any) -> Any:
    """Return as many numbers as fit between numbers known only at run time.

    Of such numbers torch asks too much if they are floats.
    """
    floating = [_is_floating(number) for number in numbers]
    known = not any(is_tensor(number) or isinstance(number, torch.SymFloat) for number in numbers)
    if known or not any(floating):
        overload = {1: "default", 2: "start", 3: "start_step"}[len(numbers)]
        return getattr(aten.arange, overload)(*numbers, dtype=dtype, **placement)
    return torch.empty((_any_size(),), dtype=dtype or torch.get_default_dtype())


def _any_size() -> Any:
    """Return a size known only at run time."""
    return torch.empty(2, dtype=torch.bool).nonzero().shape[0]


def _repeated(self: Any, repeats: Any, dim: int | None = None, *, output_size: Any = None) -> Any:
    """As many entries as the counts say, of which there may be one for all."""
    count = _any_size() if output_size is None else output_size
    if dim is None or self.dim() == 0:
        return torch.empty((count,), dtype=self.dtype)
    sizes = list(self.shape)
    sizes[dim] = count
    return torch.empty(sizes, dtype=self.dtype)


def _bilinear(input1: Any, input2: Any, weight: Any, bias: Any = None) -> Any:
    """Return the operands' leading sizes, and as many features as there are matrices of weights."""
    return torch.empty((*input1.shape[:-1], weight.shape[0]), dtype=input1.dtype)


def _tensordot(self: Any, other: Any, dims_self: Any, dims_other: Any) -> Any:
    """Return what is left of the sizes, those of the first operand first."""
    left = [size for axis, size in enumerate(self.shape) if axis not in {dim % self.dim() for dim in dims_self}]
    right = [size for axis, size in enumerate(other.shape) if axis not in {dim % other.dim() for dim in dims_other}]
    return torch.empty((*left, *right), dtype=self.dtype)


def _inner(self: Any, other: Any) -> Any:
    """Return the products of what lies along the last axes; a number scales the other operand."""
    if not self.dim() or not other.dim():
        return torch.mul(self, other)
    return torch.empty((*self.shape[:-1], *other.shape[:-1]), dtype=self.dtype)


def _diagonal(self: Any, offset: int = 0, dim1: int = 0, dim2: int = 1) -> Any:
    """Return the other sizes, and as many elements as the diagonal of a plane has."""
    plane = [dim % self.dim() for dim in (dim1, dim2)]
    rows, columns = (self.shape[axis] for axis in plane)
    length = torch.sym_max(torch.sym_min(rows + min(offset, 0), columns - max(offset, 0)), 0)
    return torch.empty((*(size for axis, size in enumerate(self.shape) if axis not in plane), length), dtype=self.dtype)


def _diag(self: Any, diagonal: int = 0) -> Any:
    """Return a matrix for a diagonal, or the diagonal of a matrix."""
    if self.dim() != 1:
        return _diagonal(self, diagonal)
    count = self.shape[0] + abs(diagonal)
    return torch.empty((count, count), dtype=self.dtype)


def _trace(self: Any) -> Any:
    """Return one number; integers add up in 64 bits."""
    return torch.empty((), dtype=self.dtype if self.is_floating_point() or self.is_complex() else torch.int64)


def _is_floating(number: Any) -> bool:
    return bool(number.dtype.is_floating_point) if is_tensor(number) else isinstance(number, float | torch.SymFloat)


SHAPES: dict[Any, Callable[..., Any]] = {
    aten.index.Tensor: masked_index,
    aten.repeat_interleave.self_Tensor: _repeated,
    aten.arange.default: _counted,
    aten.arange.start: _counted,
    aten.arange.start_step: _counted,
    aten.bilinear.default: _bilinear,
    aten.diag.default: _diag,
    aten.diagonal_copy.default: _diagonal,
    aten.trace.default: _trace,
    aten.tensordot.default: _tensordot,
    aten.inner.default: _inner,
    # Their own kernels end in an internal assertion of torch where a size is symbolic.
    aten._is_all_true.default: torch.all,
    aten._is_any_true.default: torch.any,
    **{
        getattr(packet, overload): _spaced
        for packet in (aten.linspace, aten.logspace)
        for overload in ("default", "Tensor_Tensor", "Tensor_Scalar", "Scalar_Tensor")
    },
}
