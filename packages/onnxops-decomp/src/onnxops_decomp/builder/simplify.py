"""Nodes that need not be emitted: what is known of the operands already gives the result.

Rules see the newest form of an operator. A rule returns the value to use instead, or None. Rules never look further
than one producer back, so emission stays linear.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx_ir as ir

from onnxops_decomp.builder.scope import NodeWriter
from onnxops_decomp.passes.matching import producer
from onnxops_decomp.spec.inference import dims_of, same_dim
from onnxops_decomp.spec.significands import SIGNIFICAND_BITS

__all__ = ["simplified"]

Inputs = Sequence[ir.Value | None]
Attributes = Mapping[str, Any]
Rule = Callable[[NodeWriter, Inputs, Attributes], ir.Value | None]


def _required(value: ir.Value | None) -> ir.Value:
    assert value is not None
    return value


def _known_equal(a: ir.Value, b: ir.Value) -> bool:
    """Tell whether two values are known to have the same shape."""
    left, right = dims_of(a), dims_of(b)
    if left is None or right is None or len(left) != len(right):
        return False
    return all(same_dim(x, y) for x, y in zip(left, right, strict=True))


def _cast(op: NodeWriter, inputs: Inputs, attributes: Attributes) -> ir.Value | None:
    x, target = _required(inputs[0]), ir.DataType(attributes["to"])
    if x.dtype == target:
        return x
    before = producer(x, "Cast")
    if before is None or x.dtype is None:
        return None
    source = _required(before.inputs[0])
    # There and back again is nothing if the way there loses nothing.
    return source if source.dtype == target and _holds(x.dtype, target) else None


def _holds(wide: ir.DataType, narrow: ir.DataType) -> bool:
    """Tell whether every number of ``narrow`` is one of ``wide``."""
    if narrow == ir.DataType.BOOL:
        return wide.is_integer() or wide in SIGNIFICAND_BITS
    if narrow in SIGNIFICAND_BITS:
        halves = (ir.DataType.FLOAT16, ir.DataType.BFLOAT16)
        return wide in SIGNIFICAND_BITS and wide not in halves and SIGNIFICAND_BITS[wide] >= SIGNIFICAND_BITS[narrow]
    if not narrow.is_integer():
        return False
    digits = narrow.bitwidth - narrow.is_signed()
    if wide in SIGNIFICAND_BITS:
        return digits <= SIGNIFICAND_BITS[wide]
    signs = wide.is_signed() or not narrow.is_signed()
    return wide.is_integer() and signs and digits <= wide.bitwidth - wide.is_signed()


def _cast_like(op: NodeWriter, inputs: Inputs, attributes: Attributes) -> ir.Value | None:
    dtype = _required(inputs[1]).dtype
    result: ir.Value | None = None if dtype is None else op.Cast(inputs[0], to=dtype, **attributes)
    return result


def _dropout(op: NodeWriter, inputs: Inputs, attributes: Attributes) -> ir.Value | None:
    training = op.static(inputs[2]) if len(inputs) > 2 and inputs[2] is not None else np.zeros((), np.bool_)
    return inputs[0] if training is not None and not training else None


def _only(op: NodeWriter, inputs: Inputs, attributes: Attributes) -> ir.Value | None:
    """Rule of an operator that leaves its first input as it is when there is no other."""
    return inputs[0] if len(inputs) == 1 else None


def _tile(op: NodeWriter, inputs: Inputs, attributes: Attributes) -> ir.Value | None:
    repeats = op.static(inputs[1])
    return inputs[0] if repeats is not None and (repeats == 1).all() else None


def _flatten(op: NodeWriter, inputs: Inputs, attributes: Attributes) -> ir.Value | None:
    dims = dims_of(inputs[0])
    return inputs[0] if dims is not None and len(dims) == 2 and attributes.get("axis", 1) in (1, -1) else None


def _identity(op: NodeWriter, inputs: Inputs, attributes: Attributes) -> ir.Value | None:
    return inputs[0]


def _transpose(op: NodeWriter, inputs: Inputs, attributes: Attributes) -> ir.Value | None:
    x, perm = _required(inputs[0]), attributes.get("perm")
    if perm is None:
        dims = dims_of(x)
        return x if dims is not None and len(dims) < 2 else None
    if list(perm) == list(range(len(perm))):
        return x
    before = producer(x, "Transpose")
    if before is None or before.attributes.get("perm") is None:
        return None
    first = before.attributes["perm"].as_ints()
    source = _required(before.inputs[0])
    result: ir.Value = op.Transpose(source, perm=[first[axis] for axis in perm])
    return result


def _reshape(op: NodeWriter, inputs: Inputs, attributes: Attributes) -> ir.Value | None:
    x, shape = _required(inputs[0]), op.static(inputs[1])
    if shape is None:
        return None
    dims = dims_of(x)
    if dims is not None and len(dims) == len(shape):
        sizes = [int(size) for size in shape]
        unchanged = [
            dim == size if isinstance(dim, int) and size > 0 else size == 0 and not attributes.get("allowzero", 0)
            for dim, size in zip(dims, sizes, strict=True)
        ]
        if all(unchanged) or (sizes.count(-1) == 1 and unchanged.count(False) == 1 and 0 not in dims):
            return x
    before = producer(x, "Reshape")
    if before is not None and not attributes.get("allowzero", 0) and _copies_the_same(shape, x, before.inputs[0]):
        return op.Reshape(before.inputs[0], inputs[1])
    return None


def _copies_the_same(shape: npt.NDArray[Any], x: ir.Value, other: ir.Value | None) -> bool:
    """Tell whether the sizes that a Reshape copies of one value are those of another."""
    dims, others = dims_of(x) or (), dims_of(other) or ()
    copied = [axis for axis, size in enumerate(shape) if size == 0]
    return all(axis < min(len(dims), len(others)) and same_dim(dims[axis], others[axis]) for axis in copied)


def _expand(op: NodeWriter, inputs: Inputs, attributes: Attributes) -> ir.Value | None:
    x, shape = _required(inputs[0]), op.static(inputs[1])
    dims = dims_of(x)
    if shape is None or dims is None or len(shape) > len(dims):
        return None
    kept = dims[len(dims) - len(shape) :]
    same = all(size == 1 or (isinstance(dim, int) and dim == size) for dim, size in zip(kept, shape, strict=True))
    return x if same else None


def _axes_of(op: NodeWriter, value: ir.Value | None, rank: int) -> list[int] | None:
    array = op.static(value)
    return None if array is None else sorted(int(axis) % rank for axis in array)


def _node_axes(op: NodeWriter, node: ir.Node, rank: int) -> list[int] | None:
    """Return the axes of an emitted Squeeze or Unsqueeze, which are an attribute below opset 13."""
    if "axes" in node.attributes:
        return sorted(axis % rank for axis in node.attributes["axes"].as_ints())
    return _axes_of(op, node.inputs[1], rank) if len(node.inputs) > 1 else None


def _unsqueeze(op: NodeWriter, inputs: Inputs, attributes: Attributes) -> ir.Value | None:
    axes = op.static(inputs[1])
    if axes is not None and axes.size == 0:
        return inputs[0]
    before = producer(inputs[0], "Squeeze")
    if before is not None:
        source = _required(before.inputs[0])
        dims = dims_of(source)
        squeezed = None if dims is None else _node_axes(op, before, len(dims))
        return source if squeezed is not None and squeezed == _axes_of(op, inputs[1], len(dims or ())) else None
    return _unsqueezed_twice(op, inputs)


def _unsqueezed_twice(op: NodeWriter, inputs: Inputs) -> ir.Value | None:
    """Join an Unsqueeze with the one before it."""
    before, dims, axes = producer(inputs[0], "Unsqueeze"), dims_of(inputs[0]), op.static(inputs[1])
    if before is None or dims is None or axes is None:
        return None
    rank = len(dims) + axes.size
    last = [int(axis) % rank for axis in axes]
    first = _node_axes(op, before, len(dims))
    if first is None:
        return None
    remaining = [axis for axis in range(rank) if axis not in last]
    result: ir.Value = op.Unsqueeze(before.inputs[0], sorted([*last, *(remaining[axis] for axis in first)]))
    return result


def _squeeze(op: NodeWriter, inputs: Inputs, attributes: Attributes) -> ir.Value | None:
    if len(inputs) < 2 or inputs[1] is None:
        return None
    x = _required(inputs[0])
    axes, dims = op.static(inputs[1]), dims_of(x)
    if axes is not None and axes.size == 0:
        return x
    before = producer(x, "Unsqueeze")
    if before is None or dims is None:
        return None
    added = _node_axes(op, before, len(dims))
    return before.inputs[0] if added is not None and added == _axes_of(op, inputs[1], len(dims)) else None


def _slice(op: NodeWriter, inputs: Inputs, attributes: Attributes) -> ir.Value | None:
    starts, ends = op.static(inputs[1]), op.static(inputs[2])
    steps = op.static(inputs[4]) if len(inputs) > 4 and inputs[4] is not None else np.ones(1, np.int64)
    if starts is None or ends is None or steps is None:
        return None
    whole = (starts == 0).all() and (ends == np.iinfo(np.int64).max).all() and (steps == 1).all()
    return inputs[0] if whole else None


def _shape(op: NodeWriter, inputs: Inputs, attributes: Attributes) -> ir.Value | None:
    dims = dims_of(inputs[0])
    if dims is None:
        return None
    dims = dims[attributes.get("start", 0) : attributes.get("end", len(dims))]
    if all(isinstance(dim, int) for dim in dims):
        return op.constant(np.array(dims, np.int64))
    return None


def _neutral(element: int, *, right_only: bool = False) -> Rule:
    """Rule for ``x op element == x``, applied to integers, and to floats where signed zeros survive it."""

    def rule(op: NodeWriter, inputs: Inputs, attributes: Attributes) -> ir.Value | None:
        a, b = _required(inputs[0]), _required(inputs[1])
        for x, other in [(a, b)] if right_only else [(a, b), (b, a)]:
            array = op.static(other)
            if array is None or x.dtype is None or (element == 0 and not x.dtype.is_integer()):
                continue
            rank = dims_of(x)
            if array.size == 1 and array.item() == element and rank is not None and array.ndim <= len(rank):
                return x
        return None

    return rule


def _product(op: NodeWriter, inputs: Inputs, attributes: Attributes) -> ir.Value | None:
    """Rule for ``x * 1 == x``, and for a constant of no elements: runtimes took it for a number in fused products."""
    a, b = _required(inputs[0]), _required(inputs[1])
    for x, other in ((a, b), (b, a)):
        array, dims = op.static(x), dims_of(other)
        if array is None or array.size or dims is None or len(dims) > array.ndim:
            continue
        if all(size in (1, own) for size, own in zip(dims[::-1], array.shape[::-1], strict=False)):
            return x
    return _neutral(1)(op, inputs, attributes)


def _decided(element: bool) -> Rule:
    """Rule for ``x op element == x`` on booleans."""

    def rule(op: NodeWriter, inputs: Inputs, attributes: Attributes) -> ir.Value | None:
        a, b = _required(inputs[0]), _required(inputs[1])
        for x, other in ((a, b), (b, a)):
            array, dims = op.static(other), dims_of(x)
            if array is not None and dims is not None and array.ndim <= len(dims) and array.size == 1:
                return x if bool(array.item()) == element else None
        return None

    return rule


def _where(op: NodeWriter, inputs: Inputs, attributes: Attributes) -> ir.Value | None:
    condition = op.static(inputs[0])
    if condition is None or condition.size == 0:
        return None
    x, y = _required(inputs[1]), _required(inputs[2])
    same = _known_equal(x, y) and (condition.ndim == 0 or condition.size == 1)
    return (x if condition.all() else y) if same and condition.ndim <= len(dims_of(x) or ()) else None


def _pad(op: NodeWriter, inputs: Inputs, attributes: Attributes) -> ir.Value | None:
    pads = op.static(inputs[1])
    return inputs[0] if pads is not None and not pads.any() else None


_RULES: dict[str, Rule] = {
    "Add": _neutral(0),
    "And": _decided(True),
    "Cast": _cast,
    "CastLike": _cast_like,
    "Clip": _only,
    "Concat": _only,
    "Div": _neutral(1, right_only=True),
    "Dropout": _dropout,
    "Expand": _expand,
    "Flatten": _flatten,
    "Identity": _identity,
    "Max": _only,
    "Mean": _only,
    "Min": _only,
    "Mul": _product,
    "Or": _decided(False),
    "Pad": _pad,
    "Reshape": _reshape,
    "Shape": _shape,
    "Slice": _slice,
    "Squeeze": _squeeze,
    "Sub": _neutral(0, right_only=True),
    "Sum": _only,
    "Tile": _tile,
    "Transpose": _transpose,
    "Unsqueeze": _unsqueeze,
    "Where": _where,
}


def simplified(op: NodeWriter, op_type: str, inputs: Inputs, attributes: Attributes) -> ir.Value | None:
    """Return the value that ``op_type`` of these operands is known to be, or None if a node is needed."""
    rule = _RULES.get(op_type)
    return None if rule is None else rule(op, inputs, attributes)
