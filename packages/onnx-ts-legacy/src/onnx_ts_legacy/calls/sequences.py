"""Lists of tensors whose length only the runtime knows: ONNX sequences."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

import onnx_ir as ir
import torch

from onnx_ts_legacy.errors import ScriptValueError
from onnx_ts_legacy.state.values import ListRef, Pieces, SequenceState, Storage, Tensor, VectorState
from onnxops_decomp.exporting import to_ir

if TYPE_CHECKING:
    from onnx_ts_legacy.conversion import Interpreter

__all__ = [
    "PIECES",
    "as_sequence",
    "common_form",
    "erased",
    "extended",
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


def as_sequence(interpreter: Interpreter, target: ListRef, element: Any = None) -> SequenceState:
    """Return the contents of a list of tensors as an ONNX sequence.

    Args:
        interpreter: The conversion.
        target: The list.
        element: Form that describes the elements, for an empty list.

    Raises:
        ScriptValueError: If it holds anything but tensors of one dtype.
    """
    if isinstance(target.state, SequenceState):
        return target.state
    op = interpreter.op
    items = target.items
    if not all(isinstance(item, Tensor) for item in items):
        raise ScriptValueError("Only lists of tensors can change their length at run time in ONNX.")
    fakes = [item.fake for item in items]
    described = common_form(interpreter, [*fakes, *([element] if element is not None else [])])
    if items:
        values = [interpreter.value(item) for item in items]
        outputs = op.emit_custom("", "SequenceConstruct", values, {}, [to_ir(described.dtype)])
    else:
        outputs = op.emit_custom("", "SequenceEmpty", [], {"dtype": int(to_ir(described.dtype))}, [None])
    return sequence_state(interpreter, outputs[0], described, [item.storage for item in items])


def sequence_state(
    interpreter: Interpreter,
    value: ir.Value,
    element: Any,
    shown: Iterable[Storage] = (),
    pieces: Pieces | None = None,
) -> SequenceState:
    """Return contents that ``value`` holds, its ONNX type set.

    Args:
        interpreter: The conversion.
        value: The sequence.
        element: Form that describes the elements.
        shown: Memories of the elements.
        pieces: How the list was made, if it was by cutting a tensor.
    """
    interpreter.require_opset(11, "a list whose length only the runtime knows")
    value.type = ir.SequenceType(ir.TensorType(to_ir(element.dtype)))
    value.shape = None
    memory = Storage(interpreter.heap, None, interpreter.metadata.empty(torch.bool, []), number=True)
    for storage in shown:
        for other in storage.shown:
            memory.link(other)
    return SequenceState(value, element, memory, pieces)


def own_sequence(interpreter: Interpreter, target: ListRef, element: Any) -> SequenceState:
    """Return a list as a sequence that the graph being written computes, which is what a branch or body has to give.

    Args:
        interpreter: The conversion.
        target: The list.
        element: Form that describes the elements, for an empty list.

    Raises:
        UnsupportedOpsetError: If the opset has no sequences there.
    """
    require_in_body(interpreter)
    op, state = interpreter.op, as_sequence(interpreter, target, element)
    if op.opset >= 14 or any(state.value is output for node in op.scope.nodes for output in node.outputs):
        return state
    # Identity takes no sequences before opset 14.
    dtype = to_ir(state.element.dtype)
    longer = op.emit_custom("", "SequenceInsert", [state.value, op.constant([0], dtype)], {}, [dtype])[0]
    sequence_state(interpreter, longer, state.element)
    same = op.emit_custom("", "SequenceErase", [longer], {}, [dtype])[0]
    return sequence_state(interpreter, same, state.element, [state.memory])


def require_in_body(interpreter: Interpreter) -> None:
    """Refuse opsets whose branches and loops cannot have sequences as results.

    Raises:
        UnsupportedOpsetError: If it is one.
    """
    interpreter.require_opset(13, "a list whose length changes in a branch or loop")


def common_form(interpreter: Interpreter, fakes: list[Any]) -> Any:
    """Return a form that describes all of ``fakes``: sizes that differ become unknown.

    Raises:
        ScriptValueError: If dtypes or ranks differ.
    """
    first = fakes[0]
    if any(fake.dtype != first.dtype or fake.dim() != first.dim() for fake in fakes):
        raise ScriptValueError("The tensors of a list whose length only the runtime knows differ in dtype or rank.")
    sizes = [
        sizes[0] if all(str(size) == str(sizes[0]) for size in sizes) else interpreter.metadata.unknown_size()
        for sizes in zip(*(fake.shape for fake in fakes), strict=True)
    ]
    return interpreter.metadata.empty(first.dtype, sizes)


def position(interpreter: Interpreter, index: Any) -> ir.Value:
    return interpreter.scalars.to_value(index, ir.DataType.INT64)


def sequence_at(interpreter: Interpreter, target: ListRef, index: Any) -> Tensor:
    state = as_sequence(interpreter, target)
    if state.pieces is not None:
        return _piece(interpreter, state.pieces, index)
    outputs = interpreter.op.emit_custom(
        "", "SequenceAt", [state.value, position(interpreter, index)], {}, [to_ir(state.element.dtype)]
    )
    fake = state.element
    sizes = [s if isinstance(s, int) else interpreter.metadata.unknown_size() for s in fake.shape]
    item = interpreter.fresh(outputs[0], interpreter.metadata.empty(fake.dtype, sizes))
    for storage in state.memory.shown:
        item.storage.link(storage)
    return item


def _piece(interpreter: Interpreter, pieces: Pieces, index: Any) -> Tensor:
    """Return a piece of a tensor as the view that it is."""
    tensor, size, dim = pieces.tensor, pieces.size, pieces.dim
    if size is None:
        selected: Tensor = interpreter.call(aten.select.int, [tensor, dim, index], {})
        return selected
    count = (interpreter.size(tensor, dim) + size - 1) // size
    start = interpreter.scalars.from_start(index, count) * size
    piece: Tensor = interpreter.call(aten.slice.Tensor, [tensor, dim, start, start + size], {})
    return piece


def sequence_insert(interpreter: Interpreter, target: ListRef, index: Any, item: Any) -> None:
    if not isinstance(item, Tensor):
        raise ScriptValueError("Only lists of tensors can change their length at run time in ONNX.")
    state = as_sequence(interpreter, target, item.fake)
    inputs = [state.value, interpreter.value(item)]
    if index is not None:
        inputs.append(position(interpreter, index))
    element = common_form(interpreter, [state.element, item.fake])
    outputs = interpreter.op.emit_custom("", "SequenceInsert", inputs, {}, [to_ir(element.dtype)])
    shown = [state.memory, item.storage]
    interpreter.heap.write(target, sequence_state(interpreter, outputs[0], element, shown))


def sequence_length(interpreter: Interpreter, state: SequenceState) -> torch.SymInt:
    """Return the number of elements."""
    op = interpreter.op
    outputs = op.emit_custom("", "SequenceLength", [state.value], {}, [ir.DataType.INT64], shapes=[()])
    return interpreter.metadata.runtime_int(outputs[0])


def erased(interpreter: Interpreter, state: SequenceState, index: Any) -> SequenceState:
    """Return a sequence without one of its elements."""
    inputs = [state.value, position(interpreter, index)]
    outputs = interpreter.op.emit_custom("", "SequenceErase", inputs, {}, [to_ir(state.element.dtype)])
    return sequence_state(interpreter, outputs[0], state.element, [state.memory])


def extended(interpreter: Interpreter, state: SequenceState, other: SequenceState, places: Tensor) -> SequenceState:
    """Return a sequence with the elements of another one at its end, those at ``places`` in that order."""
    interpreter.require_opset(13, "a list that is joined with another one or sliced")
    op = interpreter.op
    element = common_form(interpreter, [state.element, other.element])
    dtype = to_ir(element.dtype)
    body = op.subgraph()
    index = body.input("iteration", ir.DataType.INT64, ())
    again = body.input("condition", ir.DataType.BOOL, ())
    carried = sequence_state(interpreter, body.input("carried", None, None), element).value
    place = body.Gather(interpreter.value(places), index, axis=0)
    item = body.emit_custom("", "SequenceAt", [other.value, place], {}, [dtype])[0]
    longer = body.emit_custom("", "SequenceInsert", [carried, item], {}, [dtype])[0]
    sequence_state(interpreter, longer, element)
    graph = body.graph([body.Identity(again), longer], name=op.context.names.new("body"))
    count = op.Reshape(op.Shape(interpreter.value(places)), op.constant([], ir.DataType.INT64))
    value = op.emit_custom("", "Loop", [count, None, state.value], {"body": graph}, [dtype])[0]
    return sequence_state(interpreter, value, element, [state.memory, other.memory])


def sliced(interpreter: Interpreter, state: SequenceState, start: Any, end: Any, step: int) -> SequenceState:
    """Return the elements from ``start`` to ``end``, as Python counts them."""
    places = interpreter.call(aten.arange.default, [sequence_length(interpreter, state)], {})
    if step == -1 and start is None and end is None:
        places = interpreter.call(aten.flip.default, [places, [0]], {})
    elif step > 0:
        places = interpreter.call(aten.slice.Tensor, [places, 0, start, end, step], {})
    else:
        raise ScriptValueError("A list is sliced backwards whose length only the runtime knows.")
    empty = as_sequence(interpreter, ListRef(interpreter.heap, ()), state.element)
    return extended(interpreter, empty, state, places)


def _pieces(interpreter: Interpreter, tensor: Tensor, sizes: Any, dim: int) -> SequenceState:
    """Return the pieces of a tensor whose number only the runtime knows.

    Args:
        interpreter: The conversion.
        tensor: The tensor.
        sizes: Size of all pieces but the last, or a vector with the size of each; None if they lose the dimension.
        dim: Dimension that is cut.
    """
    kept = sizes is not None
    interpreter.require_opset(11, "pieces of a tensor whose number only the runtime knows")
    fake = tensor.fake
    axis = range(fake.dim())[dim]
    inputs = [interpreter.value(tensor)]
    inputs += [interpreter.value(sizes) if isinstance(sizes, Tensor) else position(interpreter, sizes)] if kept else []
    attributes = {"axis": axis} if kept else {"axis": axis, "keepdims": 0}
    outputs = interpreter.op.emit_custom("", "SplitToSequence", inputs, attributes, [to_ir(fake.dtype)])
    rest = list(fake.shape)
    rest[axis : axis + 1] = [interpreter.metadata.unknown_size()] if kept else []
    # The variable may become another view in place; the pieces stay those of this one.
    cut = None if isinstance(sizes, Tensor) else Pieces(Tensor(interpreter.heap, tensor.node, fake), sizes, axis)
    element = interpreter.metadata.empty(fake.dtype, rest)
    return sequence_state(interpreter, outputs[0], element, [tensor.storage], cut)


def list_of_pieces(interpreter: Interpreter, overload: torch._ops.OpOverload, args: list[Any]) -> ListRef | None:
    """Convert a call that cuts a tensor to a list whose length only the runtime knows; None if it is known.

    Args:
        interpreter: The conversion.
        overload: One of ``PIECES``.
        args: Its arguments.
    """
    tensor, sizes, dim = args[0], args[1], args[-1]
    if isinstance(sizes, ListRef):
        if not isinstance(sizes.state, VectorState):
            return None
        return ListRef(interpreter.heap, _pieces(interpreter, tensor, sizes.state.tensor, dim))
    if not -tensor.fake.dim() <= dim < tensor.fake.dim() or isinstance(tensor.fake.shape[dim], int):
        return None
    size = sizes if overload is aten.split.Tensor else None
    return ListRef(interpreter.heap, _pieces(interpreter, tensor, size, dim))


# They give a list of pieces of a tensor.
PIECES = frozenset((aten.unbind.int, aten.split.Tensor, aten.split.sizes, aten.split_with_sizes.default))
