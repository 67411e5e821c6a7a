"""Constant folding of small ONNX nodes while they are emitted.

Folding exists for shape arithmetic, masks and scalars, not for weights: only constants of the pool take part, and only
up to :data:`MAX_FOLDED_BYTES`, of operands and of results, so that a model hardly grows by it. Each function computes
one operator in its newest form exactly as the specification says, in the dtype of its inputs.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx_ir as ir

__all__ = ["MAX_FOLDED_BYTES", "fold", "is_foldable"]

Array = npt.NDArray[Any]
Attributes = Mapping[str, Any]
Folder = Callable[[Sequence[Array | None], Attributes], Array | None]

MAX_FOLDED_BYTES = 64 * 1024


def _is_large(elements: float) -> bool:
    """Tell whether so many elements take too much, be they of a byte each; what :func:`fold` returns is measured."""
    return elements > MAX_FOLDED_BYTES


def _div(a: Array, b: Array) -> Array | None:
    if a.dtype.kind in "iu":
        if (b == 0).any():
            return None
        quotient = np.abs(a) // np.abs(b)
        return np.asarray(np.sign(a) * np.sign(b) * quotient).astype(a.dtype)
    return np.asarray(a / b)


def _mod(a: Array, b: Array, fmod: int) -> Array | None:
    if a.dtype.kind in "iu" and (b == 0).any():
        return None
    return np.asarray(np.fmod(a, b) if fmod else np.mod(a, b))


def _pow(a: Array, b: Array) -> Array | None:
    if a.dtype.kind in "iu" and (b < 0).any():
        return None
    return np.asarray(np.power(a, b)).astype(a.dtype)


def _slice(data: Array, starts: Array, ends: Array, axes: Array | None, steps: Array | None) -> Array:
    index: list[slice] = [slice(None)] * data.ndim
    for position, axis in enumerate(range(len(starts)) if axes is None else [int(axis) for axis in axes]):
        step = 1 if steps is None else int(steps[position])
        start, end = int(starts[position]), int(ends[position])
        dim = data.shape[axis]
        # Backwards, before the first element counts as the first, for the end as the place before it.
        index[axis] = (
            slice(start, end, step) if step > 0 else slice(max(start, -dim), None if end < -dim else end, step)
        )
    return data[tuple(index)]


def _reshape(data: Array, shape: Array, allowzero: int) -> Array | None:
    target = [int(size) for size in shape]
    if not allowzero:
        target = [data.shape[axis] if size == 0 else size for axis, size in enumerate(target)]
    if -1 in target and math.prod(size for size in target if size != -1) == 0:
        return None
    return data.reshape(target)


def _reduce(function: Callable[..., Any]) -> Folder:
    def folder(inputs: Sequence[Array | None], attributes: Attributes) -> Array | None:
        data = inputs[0]
        assert data is not None
        axes = inputs[1] if len(inputs) > 1 else None
        if data.size == 0:
            return None
        if axes is None or axes.size == 0:
            if attributes.get("noop_with_empty_axes", 0):
                return data
            axis = tuple(range(data.ndim))
        else:
            axis = tuple(int(axis) for axis in axes)
        return np.asarray(function(data, axis=axis, keepdims=bool(attributes.get("keepdims", 1)))).astype(data.dtype)

    return folder


def _cast(data: Array, to: int) -> Array | None:
    target = ir.DataType(to)
    if data.dtype.kind in "fV" and target.is_integer() and not np.isfinite(data.astype(np.float64)).all():
        return None
    if target in (ir.DataType.STRING, ir.DataType.UNDEFINED) or target.bitwidth < 8:
        return None
    return data.astype(target.numpy())


def _unsqueeze(data: Array, axes: Array) -> Array:
    rank = data.ndim + axes.size
    return np.expand_dims(data, tuple(int(axis) % rank for axis in axes))


def _squeeze(data: Array, axes: Array | None) -> Array:
    return np.squeeze(data) if axes is None else np.squeeze(data, tuple(int(axis) for axis in axes))


def _trilu(data: Array, k: Array | None, upper: int) -> Array:
    diagonal = 0 if k is None else int(k)
    return np.triu(data, diagonal) if upper else np.tril(data, diagonal)


def _constant_of_shape(shape: Array, value: ir.TensorProtocol | None) -> Array | None:
    if _is_large(math.prod(int(size) for size in shape)):
        return None
    fill = np.zeros((1,), np.float32) if value is None else value.numpy()
    return np.full([int(size) for size in shape], fill.item(), fill.dtype)


def _expand(data: Array, shape: Array) -> Array | None:
    target = np.broadcast_shapes(data.shape, tuple(int(size) for size in shape))
    return None if _is_large(math.prod(target)) else np.broadcast_to(data, target).copy()


def _tile(data: Array, repeats: Array) -> Array | None:
    if _is_large(data.size * math.prod(int(count) for count in repeats)):
        return None
    return np.tile(data, [int(count) for count in repeats])


def _range(start: Array, limit: Array, delta: Array) -> Array | None:
    if delta == 0 or _is_large(abs(float(limit) - float(start)) / abs(float(delta))):
        return None
    if start.dtype.kind in "iu":
        return np.arange(int(start), int(limit), int(delta), dtype=start.dtype)
    count = max(math.ceil((float(limit) - float(start)) / float(delta)), 0)
    return (np.arange(count) * float(delta) + float(start)).astype(start.dtype)


def _simple(function: Callable[..., Any]) -> Folder:
    """Fold an operator without attributes by a NumPy function of its inputs."""
    return lambda inputs, attributes: function(*inputs)


def _broadcast(function: Callable[..., Any]) -> Folder:
    """Fold an operator without attributes that broadcasts its inputs: small ones may give what is large."""

    def folder(inputs: Sequence[Array | None], attributes: Attributes) -> Array | None:
        shape = np.broadcast_shapes(*(_present(array).shape for array in inputs))
        return None if _is_large(math.prod(shape)) else function(*inputs)

    return folder


def _where(condition: Array, x: Array, y: Array) -> Array:
    return np.where(condition, x, y).astype(x.dtype)


def _variadic(function: Callable[[Array, Array], Any]) -> Folder:
    return _broadcast(lambda *inputs: np.asarray(functools.reduce(function, inputs)))


_FOLDERS: dict[str, Folder] = {
    "Abs": _simple(np.abs),
    "Add": _broadcast(np.add),
    "And": _broadcast(np.logical_and),
    "Cast": lambda inputs, attributes: _cast(_present(inputs[0]), attributes["to"]),
    "Ceil": _simple(np.ceil),
    "Concat": lambda inputs, attributes: np.concatenate([_present(x) for x in inputs], axis=attributes["axis"]),
    "ConstantOfShape": lambda inputs, attributes: _constant_of_shape(_present(inputs[0]), attributes.get("value")),
    "Cos": _simple(np.cos),
    "Div": _broadcast(_div),
    "Equal": _broadcast(np.equal),
    "Exp": _simple(np.exp),
    "Expand": _simple(_expand),
    "Floor": _simple(np.floor),
    "Gather": lambda inputs, attributes: np.take(
        _present(inputs[0]), _present(inputs[1]), axis=attributes.get("axis", 0), mode="raise"
    ),
    "Greater": _broadcast(np.greater),
    "GreaterOrEqual": _broadcast(np.greater_equal),
    "Less": _broadcast(np.less),
    "LessOrEqual": _broadcast(np.less_equal),
    "Log": _simple(np.log),
    "Max": _variadic(np.maximum),
    "Min": _variadic(np.minimum),
    "Mod": lambda inputs, attributes: _broadcast(functools.partial(_mod, fmod=attributes.get("fmod", 0)))(inputs, {}),
    "Mul": _broadcast(np.multiply),
    "Neg": _simple(np.negative),
    "Not": _simple(np.logical_not),
    "Or": _broadcast(np.logical_or),
    "Pow": _broadcast(_pow),
    "Range": _simple(_range),
    "ReduceMax": _reduce(np.max),
    "ReduceMin": _reduce(np.min),
    "ReduceProd": _reduce(np.prod),
    "ReduceSum": _reduce(np.sum),
    "Reshape": lambda inputs, attributes: _reshape(
        _present(inputs[0]), _present(inputs[1]), attributes.get("allowzero", 0)
    ),
    "Sin": _simple(np.sin),
    "Slice": lambda inputs, attributes: _slice(
        _present(inputs[0]),
        _present(inputs[1]),
        _present(inputs[2]),
        inputs[3] if len(inputs) > 3 else None,
        inputs[4] if len(inputs) > 4 else None,
    ),
    "Sqrt": _simple(np.sqrt),
    "Squeeze": lambda inputs, attributes: _squeeze(_present(inputs[0]), inputs[1] if len(inputs) > 1 else None),
    "Sub": _broadcast(np.subtract),
    "Tile": _simple(_tile),
    "Transpose": lambda inputs, attributes: np.transpose(_present(inputs[0]), attributes.get("perm")),
    "Trilu": lambda inputs, attributes: _trilu(
        _present(inputs[0]), inputs[1] if len(inputs) > 1 else None, attributes.get("upper", 1)
    ),
    "Unsqueeze": _simple(_unsqueeze),
    "Where": _broadcast(_where),
}


def _present(array: Array | None) -> Array:
    assert array is not None
    return array


def is_foldable(op_type: str) -> bool:
    """Tell whether constants of ``op_type`` can be folded at all."""
    return op_type in _FOLDERS


def fold(op_type: str, inputs: Sequence[Array | None], attributes: Attributes) -> Array | None:
    """Compute a node whose inputs are all constants.

    Args:
        op_type: ONNX operator of the default domain, in its newest form.
        inputs: Contents of the inputs; None for an omitted optional one.
        attributes: Attributes of the node, defaults left out.

    Returns:
        The result in the dtype that the specification gives it, or None if the node is not folded: too large,
        not one of the operators known here, or undefined on these values.
    """
    folder = _FOLDERS.get(op_type)
    if folder is None or sum(array.nbytes for array in inputs if array is not None) > MAX_FOLDED_BYTES:
        return None
    try:
        with np.errstate(all="ignore"):
            result = folder(inputs, attributes)
    except (IndexError, ValueError, AssertionError):
        # The node is invalid on these values; emitted as it is, the runtime or checker reports it in context.
        return None
    if result is None or result.nbytes > MAX_FOLDED_BYTES:
        return None
    # 0-d results of NumPy functions are scalars; a copy also drops views on larger arrays and keeps rank 0.
    return np.array(result, copy=True, order="C")
