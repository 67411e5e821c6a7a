"""Lists of tensors whose length is known only at run time: ONNX sequences."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import onnx_ir as ir
import sympy
import torch

from onnx_ts_legacy.calls.scalars import from_start
from onnx_ts_legacy.errors import ScriptValueError
from onnx_ts_legacy.state.context import ConversionContext
from onnx_ts_legacy.state.numbers import number_value
from onnx_ts_legacy.state.pairs import held_as
from onnx_ts_legacy.state.values import ListRef, Pieces, SequenceState, Storage, Tensor, VectorState
from onnx_ts_legacy.state.variables import size_of, value_of
from onnxops_decomp.exporting import to_ir

__all__ = [
    "PIECES",
    "as_sequence",
    "common_form",
    "counted_pieces",
    "erased",
    "extended",
    "is_cut_at_run_time",
    "list_of_pieces",
    "own_sequence",
    "position",
    "require_in_body",
    "sequence_at",
    "sequence_insert",
    "sequence_length",
    "sequence_state",
    "sliced",
]

aten = torch.ops.aten


def as_sequence(context: ConversionContext, target: ListRef, element: Any = None) -> SequenceState:
    """Return the contents of a list of tensors as an ONNX sequence.

    Args:
        context: The conversion.
        target: The list.
        element: Form that describes the elements, for an empty list.

    Raises:
        ScriptValueError: If it holds anything but tensors of one dtype.
    """
    if isinstance(target.state, SequenceState):
        return target.state
    op = context.op
    items = target.items
    if not all(isinstance(item, Tensor) for item in items):
        raise ScriptValueError("Only lists of tensors can change their length at run time in ONNX.")
    fakes = [item.fake for item in items]
    described = common_form(context, [*fakes, *([element] if element is not None else [])])
    if items:
        values = [value_of(context, item) for item in items]
        outputs = op.emit_custom("", "SequenceConstruct", values, {}, [to_ir(described.dtype)])
    else:
        outputs = op.emit_custom("", "SequenceEmpty", [], {"dtype": int(to_ir(described.dtype))}, [None])
    return sequence_state(context, outputs[0], described, [item.storage for item in items])


def sequence_state(
    context: ConversionContext,
    value: ir.Value,
    element: Any,
    shown: Iterable[Storage] = (),
    pieces: Pieces | None = None,
) -> SequenceState:
    """Return contents that ``value`` holds, its ONNX type set.

    Args:
        context: The conversion.
        value: The sequence.
        element: Form that describes the elements.
        shown: Memories of the elements.
        pieces: How the list was made, if it was by cutting a tensor.
    """
    context.require_opset(11, "a list whose length is known only at run time")
    value.type = ir.SequenceType(ir.TensorType(to_ir(element.dtype)))
    value.shape = None
    memory = Storage(context.heap, None, context.metadata.empty(torch.bool, []), number=True)
    for storage in shown:
        for other in storage.shown:
            memory.link(other)
    return SequenceState(value, element, memory, pieces)


def own_sequence(context: ConversionContext, target: ListRef, element: Any) -> SequenceState:
    """Return a list as a sequence that the graph being written computes, which is what a branch or body has to give.

    Args:
        context: The conversion.
        target: The list.
        element: Form that describes the elements, for an empty list.

    Raises:
        UnsupportedOpsetError: If the opset has no sequences there.
    """
    require_in_body(context)
    op, state = context.op, as_sequence(context, target, element)
    if op.opset >= 14 or any(state.value is output for node in op.scope.nodes for output in node.outputs):
        return state
    # Identity takes no sequences before opset 14.
    dtype = to_ir(state.element.dtype)
    longer = op.emit_custom("", "SequenceInsert", [state.value, op.constant([0], dtype)], {}, [dtype])[0]
    sequence_state(context, longer, state.element)
    same = op.emit_custom("", "SequenceErase", [longer], {}, [dtype])[0]
    return sequence_state(context, same, state.element, [state.memory])


def require_in_body(context: ConversionContext) -> None:
    """Refuse opsets whose branches and loops cannot have sequences as results.

    Raises:
        UnsupportedOpsetError: If it is one.
    """
    context.require_opset(13, "a list whose length changes in a branch or loop")


def common_form(context: ConversionContext, fakes: list[Any]) -> Any:
    """Return a form that describes all of ``fakes``: sizes that differ become unknown.

    Raises:
        ScriptValueError: If dtypes or ranks differ.
    """
    first = fakes[0]
    if any(fake.dtype != first.dtype or fake.dim() != first.dim() for fake in fakes):
        raise ScriptValueError("The tensors of a list whose length is known only at run time differ in dtype or rank.")
    sizes = [
        sizes[0] if all(str(size) == str(sizes[0]) for size in sizes) else context.metadata.unknown_size()
        for sizes in zip(*(fake.shape for fake in fakes), strict=True)
    ]
    return context.metadata.empty(first.dtype, sizes)


def position(context: ConversionContext, index: Any) -> ir.Value:
    """Return an index as the int64 scalar that operators on sequences take."""
    return number_value(context, index, ir.DataType.INT64)


def sequence_at(context: ConversionContext, target: ListRef, index: Any) -> Tensor:
    """Return the item of a list of tensors at an index that only the runtime may know."""
    state = as_sequence(context, target)
    if state.pieces is not None:
        return _piece(context, state.pieces, index)
    outputs = context.op.emit_custom(
        "", "SequenceAt", [state.value, position(context, index)], {}, [to_ir(state.element.dtype)]
    )
    fake = state.element
    sizes = [s if isinstance(s, int) else context.metadata.unknown_size() for s in fake.shape]
    item = context.fresh(held_as(outputs[0], fake.dtype), context.metadata.empty(fake.dtype, sizes))
    for storage in state.memory.shown:
        item.storage.link(storage)
    return item


def _piece(context: ConversionContext, pieces: Pieces, index: Any) -> Tensor:
    """Return a piece of a tensor as the view that it is."""
    tensor, size, dim = pieces.tensor, pieces.size, pieces.dim
    if size is None:
        selected: Tensor = context.call(aten.select.int, [tensor, dim, index], {})
        return selected
    count = (size_of(context, tensor, dim) + size - 1) // size
    start = from_start(context, index, count) * size
    piece: Tensor = context.call(aten.slice.Tensor, [tensor, dim, start, start + size], {})
    return piece


def sequence_insert(context: ConversionContext, target: ListRef, index: Any, item: Any) -> None:
    """Insert an item into a list of tensors, at its end if the index is None.

    Raises:
        ScriptValueError: If the item is not a tensor.
    """
    if not isinstance(item, Tensor):
        raise ScriptValueError("Only lists of tensors can change their length at run time in ONNX.")
    state = as_sequence(context, target, item.fake)
    inputs = [state.value, value_of(context, item)]
    if index is not None:
        inputs.append(position(context, index))
    element = common_form(context, [state.element, item.fake])
    outputs = context.op.emit_custom("", "SequenceInsert", inputs, {}, [to_ir(element.dtype)])
    shown = [state.memory, item.storage]
    context.heap.write(target, sequence_state(context, outputs[0], element, shown))


def sequence_length(context: ConversionContext, state: SequenceState) -> torch.SymInt:
    """Return the number of elements."""
    op = context.op
    outputs = op.emit_custom("", "SequenceLength", [state.value], {}, [ir.DataType.INT64], shapes=[()])
    return context.metadata.runtime_int(outputs[0])


def erased(context: ConversionContext, state: SequenceState, index: Any) -> SequenceState:
    """Return a sequence without one of its elements."""
    inputs = [state.value, position(context, index)]
    outputs = context.op.emit_custom("", "SequenceErase", inputs, {}, [to_ir(state.element.dtype)])
    return sequence_state(context, outputs[0], state.element, [state.memory])


def extended(context: ConversionContext, state: SequenceState, other: SequenceState, places: Tensor) -> SequenceState:
    """Return a sequence with the elements of another one at its end, those at ``places`` in that order."""
    context.require_opset(13, "a list that is joined with another one or sliced")
    op = context.op
    element = common_form(context, [state.element, other.element])
    dtype = to_ir(element.dtype)
    body = op.subgraph()
    index = body.input("iteration", ir.DataType.INT64, ())
    again = body.input("condition", ir.DataType.BOOL, ())
    carried = sequence_state(context, body.input("carried", None, None), element).value
    place = body.Gather(value_of(context, places), index, axis=0)
    item = body.emit_custom("", "SequenceAt", [other.value, place], {}, [dtype])[0]
    longer = body.emit_custom("", "SequenceInsert", [carried, item], {}, [dtype])[0]
    sequence_state(context, longer, element)
    graph = body.graph([body.Identity(again), longer], name=op.context.names.new("body"))
    count = op.Reshape(op.Shape(value_of(context, places)), op.constant([], ir.DataType.INT64))
    value = op.emit_custom("", "Loop", [count, None, state.value], {"body": graph}, [dtype])[0]
    return sequence_state(context, value, element, [state.memory, other.memory])


def sliced(context: ConversionContext, state: SequenceState, start: Any, end: Any, step: int) -> SequenceState:
    """Return the elements from ``start`` to ``end``, as Python counts them."""
    places = context.call(aten.arange.default, [sequence_length(context, state)], {})
    if step == -1 and start is None and end is None:
        places = context.call(aten.flip.default, [places, [0]], {})
    elif step > 0:
        places = context.call(aten.slice.Tensor, [places, 0, start, end, step], {})
    else:
        raise ScriptValueError("A list whose length is known only at run time is sliced backwards.")
    empty = as_sequence(context, ListRef(context.heap, ()), state.element)
    return extended(context, empty, state, places)


def _pieces(context: ConversionContext, tensor: Tensor, sizes: Any, dim: int) -> SequenceState:
    """Return the pieces of a tensor whose number is known only at run time.

    Args:
        context: The conversion.
        tensor: The tensor.
        sizes: Size of all pieces but the last, or a vector with the size of each; None if they lose the dimension.
        dim: Dimension that is cut.
    """
    kept = sizes is not None
    context.require_opset(11, "pieces of a tensor whose number is known only at run time")
    fake = tensor.fake
    axis = range(fake.dim())[dim]
    inputs = [value_of(context, tensor)]
    inputs += [value_of(context, sizes) if isinstance(sizes, Tensor) else position(context, sizes)] if kept else []
    attributes = {"axis": axis} if kept else {"axis": axis, "keepdims": 0}
    outputs = context.op.emit_custom("", "SplitToSequence", inputs, attributes, [to_ir(fake.dtype)])
    rest = list(fake.shape)
    rest[axis : axis + 1] = [context.metadata.unknown_size()] if kept else []
    # The variable may become another view in place; the pieces stay those of this one.
    cut = None if isinstance(sizes, Tensor) else Pieces(Tensor(context.heap, tensor.node, fake), sizes, axis)
    element = context.metadata.empty(fake.dtype, rest)
    return sequence_state(context, outputs[0], element, [tensor.storage], cut)


def is_cut_at_run_time(args: Sequence[Any]) -> bool:
    """Tell whether the number of pieces into which a call of one of ``PIECES`` cuts is known only at run time."""
    tensor, sizes, dim = args[0], args[1], args[-1]
    if isinstance(sizes, ListRef):
        return isinstance(sizes.state, VectorState)
    rank = tensor.fake.dim()
    if not isinstance(dim, int) or not -rank <= dim < rank:
        return False
    return isinstance(sizes, torch.SymInt) or not isinstance(tensor.fake.shape[dim], int)


def list_of_pieces(context: ConversionContext, overload: torch._ops.OpOverload, args: Sequence[Any]) -> ListRef:
    """Convert a call of :func:`is_cut_at_run_time`.

    Args:
        context: The conversion.
        overload: One of ``PIECES``.
        args: Its arguments.
    """
    tensor, sizes, dim = args[0], args[1], args[-1]
    if isinstance(sizes, ListRef):
        return ListRef(context.heap, _pieces(context, tensor, sizes.state.tensor, dim))
    return ListRef(context.heap, _pieces(context, tensor, sizes if overload is aten.split.Tensor else None, dim))


def counted_pieces(
    context: ConversionContext, overload: torch._ops.OpOverload, args: Sequence[Any], count: int, line: str
) -> ListRef | None:
    """Convert a call of :func:`is_cut_at_run_time` whose pieces are unpacked, for the sizes that give as many.

    Rows would be as many at one size only.

    Args:
        context: The conversion, which notes for which sizes it holds.
        overload: One of ``PIECES``.
        args: Its arguments.
        count: How many pieces there are to be.
        line: Where the program calls it.

    Returns:
        The list; None if it is not by declared sizes alone that their number is decided.
    """
    tensor, step, dim = args[0], args[1], args[-1]
    if overload is not aten.split.Tensor:
        return None
    symbols = context.metadata.symbols
    length, width = (
        symbols.expression(number) if isinstance(number, torch.SymInt) else sympy.Integer(number)
        for number in (tensor.fake.shape[dim], step)
    )
    if not all(map(context.metadata.is_declared, (length, width))):
        return None
    least = [f"{(count - 1) * width} < {length}"] if count > 1 else []
    context.conditions.update(dict.fromkeys([*least, f"{length} <= {count * width}"], line))
    bounds = [(n * step, (n + 1) * step) for n in range(count)]
    return ListRef(
        context.heap, tuple(context.call(aten.slice.Tensor, [tensor, dim, *bound, 1], {}) for bound in bounds)
    )


# They give a list of pieces of a tensor.
PIECES = frozenset((aten.unbind.int, aten.split.Tensor, aten.split.sizes, aten.split_with_sizes.default))
