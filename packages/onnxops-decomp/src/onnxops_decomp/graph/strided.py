"""Operators that address memory by strides, which ONNX has no notion of.

A value knows its elements, not how torch has them in memory; the fake tensor of the fx node does. These operators are
therefore lowered from the node, and not by an entry of the table.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
import onnx_ir as ir
import sympy
import torch

from onnxops_decomp.dtypes import is_complex
from onnxops_decomp.errors import LoweringError
from onnxops_decomp.lowerings.complex.numbers import joined, parts

if TYPE_CHECKING:
    from onnxops_decomp.builder.op_builder import OpBuilder
    from onnxops_decomp.graph.symbols import SymbolNames

__all__ = ["STRIDED"]

aten = torch.ops.aten


class GraphValues(Protocol):
    """What these operators need of the lowering of a graph."""

    op: OpBuilder
    symbols: SymbolNames
    assumptions: list[sympy.Basic]

    def resolve(self, argument: Any) -> Any:
        """Return an argument of an fx node with values in the place of nodes."""


def _memory_order(tensor: torch.Tensor, name: str) -> list[int]:
    """Return the axes of a tensor that fills its memory without gaps, from the largest stride to the smallest.

    Raises:
        LoweringError: If it is a part of a larger memory, or it has dynamic sizes and is not contiguous.
    """
    sizes, strides = list(tensor.shape), list(tensor.stride())
    if not all(isinstance(number, int) for number in (*sizes, *strides, tensor.storage_offset())):
        if isinstance(tensor.storage_offset(), int) and _is_contiguous(sizes, strides):
            return list(range(len(sizes)))
        raise LoweringError(
            f"{name} addresses, by strides, the memory of a tensor with dynamic sizes and an unknown layout; call "
            "contiguous() first, or use slicing or unfold."
        )
    axes = sorted(range(len(sizes)), key=lambda axis: (-strides[axis], -sizes[axis], axis))
    filled = 1
    for axis in reversed(axes):
        if sizes[axis] != 1 and strides[axis] != filled:
            raise LoweringError(
                f"{name} reads the memory around a tensor that is a view of a larger one, which does not exist in "
                "a model; call contiguous() first, or use slicing or unfold."
            )
        filled *= sizes[axis]
    return axes


def _is_contiguous(sizes: Sequence[int | torch.SymInt], strides: Sequence[int | torch.SymInt]) -> bool:
    """Tell whether a tensor is in row-major order whatever its sizes are."""
    wanted = sympy.S.One
    for size, stride in zip(reversed(sizes), reversed(strides), strict=True):
        if sympy.expand(_expression(stride) - wanted) != 0:
            return False
        wanted *= _expression(size)
    return True


def _expression(number: int | torch.SymInt) -> sympy.Expr:
    return number.node.expr if isinstance(number, torch.SymInt) else sympy.Integer(number)


def _positions(
    lowering: GraphValues, size: Sequence[int], stride: Sequence[int], offset: int, tensor: torch.Tensor, name: str
) -> ir.Value:
    """Return the place in memory of each element of a strided view, INT64 of shape ``size``.

    Where the memory is as long as dynamic sizes say, that it is long enough is noted as an assumption.
    """
    op, length = lowering.op, tensor.numel()
    if not all(isinstance(number, int) for number in (*size, *stride, offset)):
        raise LoweringError(f"{name} addresses memory by strides, which have to be numbers; use slicing or unfold.")
    last = offset + sum((count - 1) * step for count, step in zip(size, stride, strict=True))
    if isinstance(length, torch.SymInt) and 0 not in size and 0 <= offset <= last:
        lowering.assumptions.append(sympy.Ge(lowering.symbols.expression(length), last + 1))
    elif 0 not in size and not 0 <= offset <= last < length:
        raise LoweringError(f"{name} reads memory outside of its tensor, which does not exist in a model.")
    places = op.constant(np.full([1] * len(size), offset))
    for axis, (count, step) in enumerate(zip(size, stride, strict=True)):
        shape = [1] * len(size)
        shape[axis] = count
        places = op.Add(places, op.reshape(op.Mul(op.Range(0, count, 1), step), shape))
    return places


def _arguments(lowering: GraphValues, node: torch.fx.Node, count: int) -> tuple[list[Any], torch.Tensor]:
    values = list(lowering.resolve(node.args))
    values += [node.kwargs.get("storage_offset")] * (count - len(values))
    first = node.args[0]
    assert isinstance(first, torch.fx.Node)
    tensor = first.meta["val"]
    # torch counts from the start of the memory, of which the tensor may be the later part.
    values[-1] = 0 if values[-1] is None else values[-1] - tensor.storage_offset()
    return values, tensor


def _as_strided(lowering: GraphValues, node: torch.fx.Node) -> ir.Value:
    op, name = lowering.op, str(node.target)
    (value, size, stride, offset), tensor = _arguments(lowering, node, 4)
    order = _memory_order(tensor, name)
    places = _positions(lowering, size, stride, offset, tensor, name)

    def taken(part: ir.Value) -> ir.Value:
        return op.Gather(op.Reshape(op.Transpose(part, perm=order), [-1]), places, axis=0)

    if is_complex(value):
        return joined(op, *(taken(part) for part in parts(op, value)))
    return taken(value)


def _as_strided_scatter(lowering: GraphValues, node: torch.fx.Node) -> ir.Value:
    op, name = lowering.op, str(node.target)
    (value, source, size, stride, offset), tensor = _arguments(lowering, node, 5)
    order = _memory_order(tensor, name)
    places = op.Reshape(_positions(lowering, size, stride, offset, tensor, name), [-1])

    def changed(part: ir.Value, new: ir.Value) -> ir.Value:
        moved = op.Transpose(part, perm=order)
        written = op.ScatterElements(op.Reshape(moved, [-1]), places, op.Reshape(new, [-1]), axis=0)
        return op.Transpose(op.reshape(written, op.sizes(moved)), perm=[int(axis) for axis in np.argsort(order)])

    if is_complex(value):
        return joined(op, *map(changed, parts(op, value), parts(op, source)))
    return changed(value, source)


# What to call instead of a table entry, by operator.
STRIDED: dict[Any, Callable[[GraphValues, torch.fx.Node], ir.Value]] = {
    aten.as_strided.default: _as_strided,
    aten.as_strided_copy.default: _as_strided,
    aten.as_strided_scatter.default: _as_strided_scatter,
}
