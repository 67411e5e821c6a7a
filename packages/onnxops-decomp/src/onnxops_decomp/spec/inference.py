"""Result dtypes and shapes of ONNX nodes, worked out while they are emitted.

Only the operators that lowerings emit in long chains have a rule here; ONNX's own inference answers for the others.
A dimension is an int, a symbolic dimension that carries a name or expression, or ``UNKNOWN``.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx
import onnx_ir as ir

from onnxops_decomp.spec.traits import Trait, operators_with

__all__ = [
    "FIRST_ALONE",
    "UNKNOWN_DIM",
    "Dim",
    "Dims",
    "ShapeRule",
    "broadcast_dims",
    "dims_of",
    "infer_by_onnx",
    "is_nonnegative",
    "mark_nonnegative",
    "same_dim",
    "shape_rule",
]

Dim = int | ir.SymbolicDim
Dims = tuple[Dim, ...]
Attributes = Mapping[str, Any]
ConstantOf = Callable[[ir.Value | None], npt.NDArray[Any] | None]
ShapeRule = Callable[[Sequence[ir.Value | None], Attributes, ConstantOf], Dims | None]

UNKNOWN_DIM = ir.SymbolicDim(None)


_NONNEGATIVE_KEY = "onnxops_decomp.nonnegative"


def mark_nonnegative(value: ir.Value) -> ir.Value:
    """Note that ``value`` holds no negative number, as indices where torch refuses them; old opsets profit from it."""
    value.meta[_NONNEGATIVE_KEY] = True
    return value


def is_nonnegative(value: ir.Value) -> bool:
    """Tell whether ``value`` was marked as holding no negative number."""
    return _NONNEGATIVE_KEY in value.meta


def dims_of(value: ir.Value | None) -> Dims | None:
    """Return the dimensions of ``value``, or None when its rank is unknown."""
    return None if value is None or value.shape is None else tuple(value.shape.dims)


def same_dim(a: Dim, b: Dim) -> bool:
    """Tell whether two dimensions are known to be equal."""
    if isinstance(a, int) or isinstance(b, int):
        return isinstance(a, int) and isinstance(b, int) and a == b
    return a.value is not None and a.value == b.value


def broadcast_dims(*shapes: Dims | None) -> Dims | None:
    """Broadcast shapes as ONNX does; a dimension that cannot be decided is ``UNKNOWN``."""
    known = [shape for shape in shapes if shape is not None]
    if len(known) != len(shapes):
        return None
    # Classes are compared first: to compare an int with a dimension is slow.
    if all(shape is known[0] or shape == known[0] for shape in known) and all(
        dim.__class__ is int or dim != UNKNOWN_DIM for dim in known[0]
    ):
        return known[0]
    rank = max((len(shape) for shape in known), default=0)
    return tuple(_broadcast_dim([dims[axis] for dims in known if len(dims) >= -axis]) for axis in range(-rank, 0))


def _broadcast_dim(dims: Sequence[Dim]) -> Dim:
    """Return what dimensions at one place broadcast to: a number other than 1 decides, for all have to be it or 1."""
    result: Dim = 1
    for dim in dims:
        if type(dim) is int:
            if dim != 1:
                return dim
        elif type(result) is int:
            result = dim
        elif not same_dim(dim, result):
            result = UNKNOWN_DIM
    return result


def _first(inputs: Sequence[ir.Value | None], attributes: Attributes, constant: ConstantOf) -> Dims | None:
    return dims_of(inputs[0])


def _broadcast(inputs: Sequence[ir.Value | None], attributes: Attributes, constant: ConstantOf) -> Dims | None:
    return broadcast_dims(*(dims_of(value) for value in inputs))


def _axes(inputs: Sequence[ir.Value | None], attributes: Attributes, constant: ConstantOf) -> list[int] | None:
    if "axes" in attributes:
        return [int(axis) for axis in attributes["axes"]]
    if len(inputs) > 1 and inputs[1] is not None:
        array = constant(inputs[1])
        return None if array is None else [int(axis) for axis in array.ravel()]
    return []


def _reduce(inputs: Sequence[ir.Value | None], attributes: Attributes, constant: ConstantOf) -> Dims | None:
    dims, axes = dims_of(inputs[0]), _axes(inputs, attributes, constant)
    if dims is None or axes is None:
        return None
    if not axes and attributes.get("noop_with_empty_axes", 0):
        return dims
    reduced = {axis % len(dims) for axis in axes} if axes else set(range(len(dims)))
    if attributes.get("keepdims", 1):
        return tuple(1 if axis in reduced else dim for axis, dim in enumerate(dims))
    return tuple(dim for axis, dim in enumerate(dims) if axis not in reduced)


def _arg_reduce(inputs: Sequence[ir.Value | None], attributes: Attributes, constant: ConstantOf) -> Dims | None:
    return _reduce(
        inputs[:1], {"axes": [attributes.get("axis", 0)], "keepdims": attributes.get("keepdims", 1)}, constant
    )


def _matmul(inputs: Sequence[ir.Value | None], attributes: Attributes, constant: ConstantOf) -> Dims | None:
    a, b = dims_of(inputs[0]), dims_of(inputs[1])
    if a is None or b is None or not a or not b:
        return None
    batch = broadcast_dims(a[:-2], b[:-2])
    if batch is None:
        return None
    return batch + (a[-2:-1] if len(a) > 1 else ()) + (b[-1:] if len(b) > 1 else ())


def _gemm(inputs: Sequence[ir.Value | None], attributes: Attributes, constant: ConstantOf) -> Dims | None:
    a, b = dims_of(inputs[0]), dims_of(inputs[1])
    if a is None or b is None:
        return None
    return (a[1 if attributes.get("transA") else 0], b[0 if attributes.get("transB") else 1])


def _transpose(inputs: Sequence[ir.Value | None], attributes: Attributes, constant: ConstantOf) -> Dims | None:
    dims = dims_of(inputs[0])
    if dims is None:
        return None
    return tuple(dims[axis] for axis in attributes.get("perm", range(len(dims) - 1, -1, -1)))


def _unsqueeze(inputs: Sequence[ir.Value | None], attributes: Attributes, constant: ConstantOf) -> Dims | None:
    dims, axes = dims_of(inputs[0]), _axes(inputs, attributes, constant)
    if dims is None or axes is None:
        return None
    rank = len(dims) + len(axes)
    new, old = {axis % rank for axis in axes}, iter(dims)
    return tuple(1 if axis in new else next(old) for axis in range(rank))


def _squeeze(inputs: Sequence[ir.Value | None], attributes: Attributes, constant: ConstantOf) -> Dims | None:
    dims, axes = dims_of(inputs[0]), _axes(inputs, attributes, constant)
    if dims is None or not axes:
        return None
    gone = {axis % len(dims) for axis in axes}
    return tuple(dim for axis, dim in enumerate(dims) if axis not in gone)


def _reshape(inputs: Sequence[ir.Value | None], attributes: Attributes, constant: ConstantOf) -> Dims | None:
    target = constant(inputs[1])
    if target is None:
        length = dims_of(inputs[1])
        return (UNKNOWN_DIM,) * length[0] if length and isinstance(length[0], int) else None
    source = dims_of(inputs[0])
    dims: list[Dim] = []
    for axis, size in enumerate(int(size) for size in target):
        if size == 0 and not attributes.get("allowzero", 0):
            dims.append(source[axis] if source is not None else UNKNOWN_DIM)
        else:
            dims.append(UNKNOWN_DIM if size == -1 else size)
    if -1 in target and source is not None and all(isinstance(dim, int) for dim in source):
        rest = [dim for dim in dims if isinstance(dim, int)]
        known = int(np.prod(rest, dtype=np.int64))
        if len(rest) == len(dims) - 1 and known:
            total = int(np.prod([dim for dim in source if isinstance(dim, int)], dtype=np.int64))
            dims[[int(size) for size in target].index(-1)] = total // known
    return tuple(dims)


def _from_vector(index: int) -> ShapeRule:
    """Rule of an operator whose result shape stands in a 1-D integer input."""

    def rule(inputs: Sequence[ir.Value | None], attributes: Attributes, constant: ConstantOf) -> Dims | None:
        target = constant(inputs[index])
        if target is not None:
            return tuple(int(size) for size in target)
        length = dims_of(inputs[index])
        return (UNKNOWN_DIM,) * length[0] if length and isinstance(length[0], int) else None

    return rule


def _expand(inputs: Sequence[ir.Value | None], attributes: Attributes, constant: ConstantOf) -> Dims | None:
    return broadcast_dims(dims_of(inputs[0]), _from_vector(1)(inputs, attributes, constant))


def _shape(inputs: Sequence[ir.Value | None], attributes: Attributes, constant: ConstantOf) -> Dims | None:
    dims = dims_of(inputs[0])
    if dims is None:
        return (UNKNOWN_DIM,)
    return (len(range(len(dims))[attributes.get("start", 0) : attributes.get("end", len(dims))]),)


def _concat(inputs: Sequence[ir.Value | None], attributes: Attributes, constant: ConstantOf) -> Dims | None:
    shapes = [dims_of(value) for value in inputs]
    first = shapes[0]
    if first is None or any(shape is None for shape in shapes):
        return None
    axis = attributes["axis"] % len(first)
    sizes = [shape[axis] for shape in shapes if shape is not None]
    total: Dim = (
        sum(size for size in sizes if isinstance(size, int))
        if all(isinstance(size, int) for size in sizes)
        else UNKNOWN_DIM
    )
    return (*first[:axis], total, *first[axis + 1 :])


def _gather(inputs: Sequence[ir.Value | None], attributes: Attributes, constant: ConstantOf) -> Dims | None:
    data, indices = dims_of(inputs[0]), dims_of(inputs[1])
    if data is None or indices is None:
        return None
    axis = attributes.get("axis", 0) % len(data)
    return data[:axis] + indices + data[axis + 1 :]


def _second(inputs: Sequence[ir.Value | None], attributes: Attributes, constant: ConstantOf) -> Dims | None:
    return dims_of(inputs[1])


def _slice(inputs: Sequence[ir.Value | None], attributes: Attributes, constant: ConstantOf) -> Dims | None:
    dims = dims_of(inputs[0])
    if dims is None:
        return None
    if "starts" in attributes:
        over = np.asarray(attributes.get("axes", range(len(attributes["starts"]))))
        return _sliced(dims, np.asarray(attributes["starts"]), np.asarray(attributes["ends"]), over, None)
    starts, ends = constant(inputs[1]), constant(inputs[2])
    axes = constant(inputs[3]) if len(inputs) > 3 and inputs[3] is not None else np.arange(len(dims))
    steps = constant(inputs[4]) if len(inputs) > 4 and inputs[4] is not None else None
    if axes is None or (len(inputs) > 4 and inputs[4] is not None and steps is None):
        return (UNKNOWN_DIM,) * len(dims)
    return _sliced(dims, starts, ends, axes, steps)


def _sliced(
    dims: Dims,
    starts: npt.NDArray[Any] | None,
    ends: npt.NDArray[Any] | None,
    axes: npt.NDArray[Any],
    steps: npt.NDArray[Any] | None,
) -> Dims:
    result = list(dims)
    for position, axis in enumerate(int(axis) % len(dims) for axis in axes):
        dim = dims[axis]
        if starts is None or ends is None or not isinstance(dim, int) or position >= len(starts):
            result[axis] = UNKNOWN_DIM
            continue
        step = int(steps[position]) if steps is not None else 1
        start, end = int(starts[position]), int(ends[position])
        if step < 0 and end < -dim:
            result[axis] = len(range(dim)[start::step])
        else:
            result[axis] = len(range(dim)[start:end:step])
    return tuple(result)


def _range(inputs: Sequence[ir.Value | None], attributes: Attributes, constant: ConstantOf) -> Dims | None:
    return (UNKNOWN_DIM,)


def _scalar(inputs: Sequence[ir.Value | None], attributes: Attributes, constant: ConstantOf) -> Dims | None:
    return ()


def _tile(inputs: Sequence[ir.Value | None], attributes: Attributes, constant: ConstantOf) -> Dims | None:
    dims, repeats = dims_of(inputs[0]), constant(inputs[1])
    if dims is None:
        return None
    if repeats is None:
        return (UNKNOWN_DIM,) * len(dims)
    return tuple(
        dim * int(count) if isinstance(dim, int) else (dim if count == 1 else UNKNOWN_DIM)
        for dim, count in zip(dims, repeats, strict=True)
    )


def _pad(inputs: Sequence[ir.Value | None], attributes: Attributes, constant: ConstantOf) -> Dims | None:
    dims = dims_of(inputs[0])
    pads = np.asarray(attributes["pads"]) if "pads" in attributes else constant(inputs[1])
    if dims is None:
        return None
    over: Sequence[int] | None = range(len(dims))
    if len(inputs) > 3 and inputs[3] is not None:
        axes = constant(inputs[3])
        over = None if axes is None else [int(axis) for axis in axes]
    if over is None:
        return (UNKNOWN_DIM,) * len(dims)
    result = list(dims)
    for place, axis in enumerate(over):
        dim, added = dims[axis], None if pads is None else (int(pads[place]), int(pads[place + len(over)]))
        if added != (0, 0):
            result[axis] = UNKNOWN_DIM if added is None or not isinstance(dim, int) else dim + sum(added)
    return tuple(result)


def _dft(inputs: Sequence[ir.Value | None], attributes: Attributes, constant: ConstantOf) -> Dims | None:
    signal, length = dims_of(inputs[0]), inputs[1] if len(inputs) > 1 else None
    given = constant(inputs[2]) if len(inputs) > 2 else np.asarray(attributes["axis"]) if "axis" in attributes else None
    if signal is None or given is None:
        return None
    axis, result = int(given) % len(signal), list(signal)
    if length is not None:
        points = constant(length)
        result[axis] = UNKNOWN_DIM if points is None else int(points)
    is_half, is_inverse = bool(attributes.get("onesided")), bool(attributes.get("inverse"))
    if is_half and not is_inverse:
        size = result[axis]
        result[axis] = size // 2 + 1 if isinstance(size, int) else UNKNOWN_DIM
    if is_half and is_inverse and length is None:
        return None
    result[-1] = 1 if is_half and is_inverse else 2
    return tuple(result)


def _windows(dims: Dims, kernel: Sequence[int], attributes: Attributes) -> list[Dim]:
    """Count windows over the spatial axes; ONNX's own rule counts some that start behind the input in ceil_mode."""
    rank = len(kernel)
    ones = [1] * rank
    strides, dilations = attributes.get("strides") or ones, attributes.get("dilations") or ones
    pads = attributes.get("pads") or [0] * (2 * rank)
    result: list[Dim] = []
    for axis, dim in enumerate(dims[2:]):
        if not isinstance(dim, int):
            result.append(UNKNOWN_DIM)
            continue
        span = dim + pads[axis] + pads[axis + rank] - (kernel[axis] - 1) * dilations[axis] - 1
        count = (-(-span // strides[axis]) if attributes.get("ceil_mode") else span // strides[axis]) + 1
        if attributes.get("ceil_mode") and (count - 1) * strides[axis] >= dim + pads[axis]:
            count -= 1
        result.append(count)
    return result


def _pool(inputs: Sequence[ir.Value | None], attributes: Attributes, constant: ConstantOf) -> Dims | None:
    dims = dims_of(inputs[0])
    if dims is None or attributes.get("auto_pad", "NOTSET") != "NOTSET":
        return None
    return (*dims[:2], *_windows(dims, attributes["kernel_shape"], attributes))


def _conv(inputs: Sequence[ir.Value | None], attributes: Attributes, constant: ConstantOf) -> Dims | None:
    dims, weight = dims_of(inputs[0]), dims_of(inputs[1])
    if dims is None or weight is None or attributes.get("auto_pad", "NOTSET") != "NOTSET":
        return None
    kernel = [dim for dim in weight[2:] if isinstance(dim, int)]
    return (dims[0], weight[0], *_windows(dims, kernel, attributes)) if len(kernel) == len(dims) - 2 else None


def _attention(inputs: Sequence[ir.Value | None], attributes: Attributes, constant: ConstantOf) -> Dims | None:
    query, value = dims_of(inputs[0]), dims_of(inputs[2])
    if query is None or value is None or len(query) != 4 or len(value) != 4:
        return None
    return (*query[:3], value[3])


_RULES: dict[str, ShapeRule] = {
    **dict.fromkeys(operators_with(Trait.KEEPS_SHAPE), _first),
    **dict.fromkeys(operators_with(Trait.BROADCASTS), _broadcast),
    **dict.fromkeys(operators_with(Trait.REDUCES), _reduce),
    "Attention": _attention,
    "AveragePool": _pool,
    "Conv": _conv,
    "LpPool": _pool,
    "MaxPool": _pool,
    "ArgMax": _arg_reduce,
    "ArgMin": _arg_reduce,
    "Concat": _concat,
    "ConstantOfShape": _from_vector(0),
    "Expand": _expand,
    "Gather": _gather,
    "GatherElements": _second,
    "Gemm": _gemm,
    "MatMul": _matmul,
    "DFT": _dft,
    "Pad": _pad,
    "Range": _range,
    "Reshape": _reshape,
    "Shape": _shape,
    "Size": _scalar,
    "Slice": _slice,
    "Squeeze": _squeeze,
    "Tile": _tile,
    "Transpose": _transpose,
    "Unsqueeze": _unsqueeze,
}


# Operators whose rule is used only where nothing but the first output is wanted.
FIRST_ALONE = frozenset(("Attention",))


def shape_rule(op_type: str) -> ShapeRule | None:
    """Return the rule for the first output of ``op_type``, or None if ONNX's inference has to answer."""
    return _RULES.get(op_type)


def infer_by_onnx(node: ir.Node, opset: int, constant: ConstantOf) -> dict[str, onnx.TypeProto]:
    """Return the types that ONNX's own inference gives the outputs of ``node``, by output name.

    An empty result means that ONNX has no answer either; the values then stay without a shape.
    """
    schema = onnx.defs.get_schema(node.op_type, opset, node.domain)
    proto = ir.serde.serialize_node(node)
    types: dict[str, onnx.TypeProto] = {}
    data: dict[str, onnx.TensorProto] = {}
    for value in node.inputs:
        if value is None or value.name is None:
            continue
        if value.type is None:
            return {}
        types[value.name] = ir.serde.serialize_value(value).type
        array = constant(value)
        if array is not None and array.size <= 64 and value.dtype is not None:
            data[value.name] = ir.to_proto(ir.Tensor(array, name=value.name))
    try:
        inferred: dict[str, onnx.TypeProto] = onnx.shape_inference.infer_node_outputs(
            schema, proto, types, data, opset_imports=[onnx.helper.make_opsetid(node.domain, opset)]
        )
    except onnx.shape_inference.InferenceError:
        return {}
    return inferred
