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
from onnxops_decomp.torch_private import is_unbacked

if TYPE_CHECKING:
    from onnxops_decomp.builder.op_builder import OpBuilder
    from onnxops_decomp.graph.symbols import SymbolNames

__all__ = ["STRIDED"]

aten = torch.ops.aten
# By what code usually divides sizes.
_DIVISIBLE = 4096 * 9 * 5 * 7
# Sizes, strides and the offset of a view.
_Numbers = tuple[Sequence[Any], Sequence[Any], Any]


class GraphValues(Protocol):
    """What these operators need of the lowering of a graph."""

    op: OpBuilder
    symbols: SymbolNames
    assumptions: list[sympy.Basic]

    def resolve(self, argument: Any) -> Any:
        """Return an argument of an fx node with values in place of nodes."""


def _memory_order(lowering: GraphValues, tensor: torch.Tensor, name: str) -> list[int]:
    """Return the axes of a tensor that fills its memory without gaps, from the largest stride to the smallest.

    Where that depends on dynamic sizes it is noted as an assumption.

    Raises:
        LoweringError: If it is a part of a larger memory, or it has dynamic sizes and is not contiguous.
    """
    sizes, strides = list(tensor.shape), list(tensor.stride())
    if not all(isinstance(number, int) for number in (*sizes, *strides, tensor.storage_offset())):
        order = _dynamic_order(lowering, sizes, strides) if isinstance(tensor.storage_offset(), int) else None
        if order is None:
            raise LoweringError(
                f"{name} addresses, by strides, the memory of a tensor with dynamic sizes and an unknown layout; call "
                "contiguous() first, or use slicing or unfold."
            )
        return order
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


def _dynamic_order(
    lowering: GraphValues, sizes: Sequence[int | torch.SymInt], strides: Sequence[int | torch.SymInt]
) -> list[int] | None:
    """Return the axes in the order in which the memory has them, and note when it is filled; None if it never is."""
    expressions = [_expression(lowering, number) for number in (*sizes, *strides)]
    symbols = sorted(set().union(*(each.free_symbols for each in expressions)), key=str)
    # Sizes that differ, and of which quotients are whole.
    point = {symbol: sympy.Integer(_DIVISIBLE * (index + 2)) for index, symbol in enumerate(symbols)}
    pairs = [*zip(expressions[: len(sizes)], expressions[len(sizes) :], strict=True)]
    there = [tuple(each.xreplace(point) for each in pair) for pair in pairs]
    axes = sorted(range(len(pairs)), key=lambda axis: (-there[axis][1], -there[axis][0], axis))
    filled, found = sympy.S.One, list[sympy.Basic]()
    for axis in reversed(axes):
        size, stride = pairs[axis]
        if size != 1 and sympy.expand(stride - filled) != 0:
            found.append(sympy.Eq(stride, filled))
            if _decided_by_data(*sizes, *strides) or found[-1].xreplace(point) != sympy.true:
                return None
        filled *= size
    lowering.assumptions.extend(found)
    return axes


def _decided_by_data(*numbers: int | torch.SymInt) -> bool:
    return any(isinstance(number, torch.SymInt) and is_unbacked(number) for number in numbers)


def _expression(lowering: GraphValues, number: int | torch.SymInt) -> sympy.Expr:
    return lowering.symbols.expression(number) if isinstance(number, torch.SymInt) else sympy.Integer(number)


def _positions(
    lowering: GraphValues, numbers: _Numbers, resolved: _Numbers, tensor: torch.Tensor, name: str
) -> ir.Value:
    """Return the place in memory of each element of a strided view, INT64 of its shape.

    Where that depends on dynamic sizes, that the memory is long enough is noted as an assumption.

    Args:
        lowering: What lowers the graph.
        numbers: Sizes, strides and offset in the memory of the tensor as torch has them.
        resolved: The same as the model has them.
        tensor: What torch says of the tensor.
        name: The name of the operator.
    """
    op, length = lowering.op, tensor.numel()
    sizes, strides, offset = numbers
    if _decided_by_data(*sizes, *strides, offset):
        raise LoweringError(
            f"{name} addresses memory by strides, which have to be numbers or follow from sizes of the inputs; use "
            "slicing or unfold."
        )
    first, end, *factors = (_expression(lowering, number) for number in (offset, length, *sizes, *strides))
    last = sum(((n - 1) * step for n, step in zip(factors, factors[len(sizes) :], strict=False)), first)
    for fits in (sympy.Ge(first, 0), sympy.Ge(end, last + 1)) if 0 not in sizes else ():
        if fits == sympy.false:
            raise LoweringError(f"{name} reads memory outside of its tensor, which does not exist in a model.")
        if fits != sympy.true:
            lowering.assumptions.append(fits)
    counts, steps_in_model, start = resolved
    places = op.reshape(op.Add(start, op.constant(np.zeros(1, np.int64))), [1] * len(counts))
    for axis, (count, step) in enumerate(zip(counts, steps_in_model, strict=True)):
        shape = [1] * len(counts)
        shape[axis] = count
        places = op.Add(places, op.reshape(op.Mul(op.Range(0, count, 1), step), shape))
    return places


def _arguments(
    lowering: GraphValues, node: torch.fx.Node, count: int
) -> tuple[list[ir.Value], _Numbers, _Numbers, torch.Tensor]:
    """Return the tensors of a call, its sizes, strides and offset in torch and in the model, and the memory."""
    arguments: Any = [*node.args] + [node.kwargs.get("storage_offset")] * (count - len(node.args))
    first = node.args[0]
    assert isinstance(first, torch.fx.Node)
    tensor = first.meta["val"]
    numbers: Any = torch.fx.map_arg(arguments[-3:], lambda used: used.meta["val"])
    sizes, strides, offset = numbers
    counts, steps, start = lowering.resolve(arguments[-3:])
    # torch counts from the start of the memory, of which the tensor may be the later part.
    before = tensor.storage_offset()
    if offset is None:
        offset = start = 0
    elif not isinstance(before, int):
        raise LoweringError(f"{node.target} addresses the memory of a tensor that starts at a dynamic place in it.")
    else:
        offset, start = offset - before, (start - before if isinstance(start, int) else lowering.op.Sub(start, before))
    return list(lowering.resolve(arguments[:-3])), (sizes, strides, offset), (counts, steps, start), tensor


def _as_strided(lowering: GraphValues, node: torch.fx.Node) -> ir.Value:
    op, name = lowering.op, str(node.target)
    (value,), numbers, resolved, tensor = _arguments(lowering, node, 4)
    order = _memory_order(lowering, tensor, name)
    places = _positions(lowering, numbers, resolved, tensor, name)

    def taken(part: ir.Value) -> ir.Value:
        return op.Gather(op.Reshape(op.Transpose(part, perm=order), [-1]), places, axis=0)

    if is_complex(value):
        return joined(op, *(taken(part) for part in parts(op, value)))
    return taken(value)


def _as_strided_scatter(lowering: GraphValues, node: torch.fx.Node) -> ir.Value:
    op, name = lowering.op, str(node.target)
    (value, source), numbers, resolved, tensor = _arguments(lowering, node, 5)
    order = _memory_order(lowering, tensor, name)
    places = op.Reshape(_positions(lowering, numbers, resolved, tensor, name), [-1])

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
