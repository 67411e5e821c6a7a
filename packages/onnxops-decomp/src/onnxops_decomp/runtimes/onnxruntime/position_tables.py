"""What values that follow from positions alone hold at each position."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx_ir as ir

from onnxops_decomp.passes.matching import constant, dims, producer

__all__ = ["at_positions", "by_head"]

Array = npt.NDArray[Any]
# Frequencies and slopes have no more elements.
_LARGEST_WEIGHT = 4096


def at_positions(
    value: ir.Value, places: npt.NDArray[np.int64], is_position: Callable[[ir.Value], bool]
) -> Array | None:
    """Compute a function of positions, element by element; None if it is none that is known.

    Args:
        value: The value, of a batch whose rows have the same positions.
        places: The positions (T,).
        is_position: Tells which values (B, T) are the positions.

    Returns:
        What the value holds, for a batch of one.
    """
    if is_position(value):
        return places[None]
    node = value.producer()
    if node is None or node.domain:
        return None
    weights = [_weight(each) for each in node.inputs]
    others = [each for each, weight in zip(node.inputs, weights, strict=True) if weight is None and each is not None]
    x = at_positions(others[0], places, is_position) if others else None
    if x is None:
        return None
    if node.op_type == "Reshape":
        return _reshaped(x, dims(others[0]), dims(value))
    known = [weight for weight in weights if weight is not None]
    if len(others) > 1:
        return None
    if node.op_type == "Unsqueeze":
        return np.expand_dims(x, tuple(known[0].tolist()))
    return _pointwise(node, x, known)


def _weight(value: ir.Value | None) -> Array | None:
    """Return the contents of a small initializer, with axes of one element put in or not."""
    if value is None:
        return None
    if not value.is_initializer():
        node = producer(value, "Unsqueeze")
        axes = constant(node.inputs[1]) if node else None
        inner = _weight(node.inputs[0]) if node else None
        return None if inner is None or axes is None else np.expand_dims(inner, tuple(axes.tolist()))
    tensor = value.const_value
    return None if tensor is None or tensor.size > _LARGEST_WEIGHT else np.asarray(tensor.numpy())


def _pointwise(node: ir.Node, x: Array, weights: list[Array]) -> Array | None:
    if node.op_type == "Cast":
        return x.astype(ir.DataType(node.attributes.get_int("to", 0)).numpy())
    if node.op_type in ("Cos", "Sin"):
        return np.asarray(np.cos(x) if node.op_type == "Cos" else np.sin(x))
    if len(weights) != 1 or weights[0].ndim > x.ndim:
        return None
    if node.op_type == "Mul":
        return np.asarray(x * weights[0])
    if node.op_type == "Div" and node.inputs[1] is not None and _weight(node.inputs[1]) is not None:
        return np.asarray(x / weights[0])
    return None


def _reshaped(x: Array, before: tuple[object, ...] | None, after: tuple[object, ...] | None) -> Array | None:
    """Move what stands before the last axis, which stays; sizes that are not static are those of the batch."""
    if before is None or after is None or before[-1] != after[-1]:
        return None
    whole = len([size for size in after if not isinstance(size, int)]) <= 2
    return x.reshape(*[size if isinstance(size, int) else -1 for size in after[:-1]], x.shape[-1]) if whole else None


def by_head(table: Array, heads: int) -> Array | None:
    """Return a table as (heads, T), or None if it has other axes."""
    return table.reshape(heads, -1) if table.ndim > 1 and table.size == heads * table.shape[-1] else None
