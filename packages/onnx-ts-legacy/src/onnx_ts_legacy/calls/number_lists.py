"""Lists of numbers whose length or contents only the runtime knows: vectors in ONNX, changed by making new ones."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from onnx_ts_legacy.errors import ScriptValueError
from onnx_ts_legacy.state.values import ListRef, RuntimeBool, RuntimeFloat, Tensor, VectorState, is_runtime
from onnxops_decomp.exporting import to_ir

if TYPE_CHECKING:
    from onnx_ts_legacy.conversion import Interpreter

__all__ = ["NUMBER_LIST_OPERATORS", "are_numbers", "as_vector", "kind_of_numbers"]

aten = torch.ops.aten
_NUMBERS = (bool, int, float, torch.SymInt, RuntimeBool, RuntimeFloat)


def are_numbers(items: Sequence[Any]) -> bool:
    """Tell whether a list holds numbers or truth values only, and at least one."""
    return bool(items) and all(isinstance(item, _NUMBERS) for item in items)


def kind_of_numbers(state: Any) -> torch.dtype | None:
    """Return the dtype of a vector for the contents of a list, or None if they are no numbers."""
    if isinstance(state, VectorState):
        return state.dtype
    if not isinstance(state, tuple) or not are_numbers(state):
        return None
    if all(isinstance(item, bool | RuntimeBool) for item in state):
        return torch.bool
    floats = any(isinstance(item, float | RuntimeFloat) for item in state)
    return torch.float64 if floats else torch.int64


def as_vector(interpreter: Interpreter, state: Any, dtype: torch.dtype | None = None) -> VectorState:
    """Return the contents of a list of numbers as a vector.

    Args:
        interpreter: The conversion.
        state: Contents of a list.
        dtype: Dtype of the numbers, for an empty list.

    Raises:
        ScriptValueError: If the list holds anything else.
    """
    if isinstance(state, VectorState):
        return state
    kind = kind_of_numbers(state) or dtype
    if kind is None or (state and kind_of_numbers(state) is None):
        raise ScriptValueError("A list of other things than numbers is used where numbers are needed.")
    op = interpreter.op
    element = to_ir(kind)
    parts = [op.Reshape(interpreter.scalars.to_value(item, element), [1]) for item in state]
    empty = op.constant(np.zeros(0, element.numpy()), element)
    value = op.Concat(*parts, axis=0) if len(parts) > 1 else parts[0] if parts else empty
    return VectorState(interpreter.fresh(value, interpreter.metadata.empty(kind, [len(parts)])))


def _vector(interpreter: Interpreter, target: ListRef) -> Tensor:
    tensor: Tensor = as_vector(interpreter, target.state).tensor
    return tensor


def _write(interpreter: Interpreter, target: ListRef, tensor: Tensor) -> ListRef:
    interpreter.heap.write(target, VectorState(tensor))
    return target


def _joined(interpreter: Interpreter, parts: Sequence[Tensor]) -> Tensor:
    tensor: Tensor = interpreter.call(aten.cat.default, [list(parts)], {})
    return tensor


def _one(interpreter: Interpreter, item: Any, like: Tensor) -> Tensor:
    return as_vector(interpreter, (item,), like.fake.dtype).tensor


def _part(interpreter: Interpreter, vector: Tensor, start: Any, end: Any = None, step: int = 1) -> Tensor:
    tensor: Tensor = interpreter.call(aten.slice.Tensor, [vector, 0, start, end, step], {})
    return tensor


def _place(interpreter: Interpreter, vector: Tensor, index: Any) -> Any:
    """Return an index counted from the start."""
    return interpreter.scalars.from_start(index, interpreter.size(vector, 0))


def _number(interpreter: Interpreter, overload: torch._ops.OpOverload, *args: Any) -> Any:
    return interpreter.scalars.of_tensor(interpreter.call(overload, list(args), {}))


# ---- operators; ``target`` is a list of numbers


def _length(interpreter: Interpreter, target: ListRef) -> Any:
    return interpreter.size(_vector(interpreter, target), 0)


def _get_item(interpreter: Interpreter, target: ListRef, index: Any) -> Any:
    vector = _vector(interpreter, target)
    return _number(interpreter, aten.select.int, vector, 0, _place(interpreter, vector, index))


def _append(interpreter: Interpreter, target: ListRef, item: Any) -> ListRef:
    vector = _vector(interpreter, target)
    return _write(interpreter, target, _joined(interpreter, [vector, _one(interpreter, item, vector)]))


def _insert(interpreter: Interpreter, target: ListRef, index: Any, item: Any) -> None:
    vector = _vector(interpreter, target)
    # Unlike elsewhere, an index beyond the end is allowed, and means the end: so it does in a slice.
    before, after = _part(interpreter, vector, 0, index), _part(interpreter, vector, index)
    _write(interpreter, target, _joined(interpreter, [before, _one(interpreter, item, vector), after]))


def _delete(interpreter: Interpreter, target: ListRef, index: Any) -> None:
    vector = _vector(interpreter, target)
    place = _place(interpreter, vector, index)
    after = interpreter.scalars.binary("add", place, 1) if is_runtime(place) else place + 1
    _write(
        interpreter,
        target,
        _joined(interpreter, [_part(interpreter, vector, 0, place), _part(interpreter, vector, after)]),
    )


def _pop(interpreter: Interpreter, target: ListRef, index: Any = -1) -> Any:
    taken = _get_item(interpreter, target, index)
    _delete(interpreter, target, index)
    return taken


def _set_item(interpreter: Interpreter, target: ListRef, index: Any, item: Any) -> ListRef:
    vector = _vector(interpreter, target)
    place = interpreter.number_tensor(_place(interpreter, vector, index))
    places = interpreter.call(aten.arange.default, [interpreter.size(vector, 0)], {})
    here = interpreter.call(aten.eq.Tensor, [places, place], {})
    chosen = interpreter.call(aten.where.self, [here, _one(interpreter, item, vector), vector], {})
    return _write(interpreter, target, chosen)


def _extend(interpreter: Interpreter, target: ListRef, other: ListRef) -> ListRef:
    return _write(interpreter, target, _vector(interpreter, _sum(interpreter, target, other)))


def _sum(interpreter: Interpreter, a: ListRef, b: ListRef) -> ListRef:
    kind = kind_of_numbers(a.state) or kind_of_numbers(b.state)
    parts = [as_vector(interpreter, side.state, kind).tensor for side in (a, b)]
    return ListRef(interpreter.heap, VectorState(_joined(interpreter, parts)))


def _multiply(interpreter: Interpreter, a: Any, b: Any) -> ListRef:
    target, count = (a, b) if isinstance(a, ListRef) else (b, a)
    repeated = interpreter.call(aten.repeat.default, [_vector(interpreter, target), [count]], {})
    return ListRef(interpreter.heap, VectorState(repeated))


def _slice(interpreter: Interpreter, target: ListRef, start: Any = None, end: Any = None, step: int = 1) -> ListRef:
    if not isinstance(step, int) or step < 1:
        raise ScriptValueError("A list of numbers is sliced backwards whose length only the runtime knows.")
    return ListRef(interpreter.heap, VectorState(_part(interpreter, _vector(interpreter, target), start, end, step)))


def _copy(interpreter: Interpreter, target: ListRef) -> ListRef:
    return ListRef(interpreter.heap, target.state)


def _clear(interpreter: Interpreter, target: ListRef) -> None:
    interpreter.heap.write(target, ())


def _reverse(interpreter: Interpreter, target: ListRef) -> None:
    _write(interpreter, target, interpreter.call(aten.flip.default, [_vector(interpreter, target), [0]], {}))


def _ordered(interpreter: Interpreter, target: ListRef, reverse: bool) -> Tensor:
    ordered: Tensor = interpreter.call(aten.sort.default, [_vector(interpreter, target), 0, reverse], {})[0]
    return ordered


def _sort(interpreter: Interpreter, target: ListRef, reverse: bool = False) -> None:
    _write(interpreter, target, _ordered(interpreter, target, reverse))


def _sorted(interpreter: Interpreter, target: ListRef) -> ListRef:
    return ListRef(interpreter.heap, VectorState(_ordered(interpreter, target, False)))


def _equal_items(interpreter: Interpreter, target: ListRef, item: Any) -> Tensor:
    vector = _vector(interpreter, target)
    same: Tensor = interpreter.call(aten.eq.Tensor, [vector, _one(interpreter, item, vector)], {})
    return same


def _contains(interpreter: Interpreter, target: ListRef, item: Any) -> Any:
    return _number(interpreter, aten.any.default, _equal_items(interpreter, target, item))


def _count(interpreter: Interpreter, target: ListRef, item: Any) -> Any:
    return _number(interpreter, aten.sum.default, _equal_items(interpreter, target, item))


def _remove(interpreter: Interpreter, target: ListRef, item: Any) -> None:
    _delete(interpreter, target, _index(interpreter, target, item))


def _index(interpreter: Interpreter, target: ListRef, item: Any) -> Any:
    same = interpreter.call(aten.to.dtype, [_equal_items(interpreter, target, item), torch.int32], {})
    return _number(interpreter, aten.argmax.default, same)


def _reduced(overload: torch._ops.OpOverload) -> Callable[..., Any]:
    def reduce(interpreter: Interpreter, target: ListRef) -> Any:
        return _number(interpreter, overload, _vector(interpreter, target))

    return reduce


# By the name of the packet, as in ``containers``.
NUMBER_LIST_OPERATORS: dict[str, Callable[..., Any]] = {
    "aten::len": _length,
    "aten::__getitem__": _get_item,
    "aten::append": _append,
    "aten::insert": _insert,
    "aten::pop": _pop,
    "aten::Delete": _delete,
    "aten::_set_item": _set_item,
    "aten::extend": _extend,
    "aten::add_": _extend,
    "aten::add": _sum,
    "aten::mul": _multiply,
    "aten::slice": _slice,
    "aten::list": _copy,
    "aten::copy": _copy,
    "aten::clear": _clear,
    "aten::reverse": _reverse,
    "aten::sort": _sort,
    "aten::sorted": _sorted,
    "aten::__contains__": _contains,
    "aten::count": _count,
    "aten::index": _index,
    "aten::remove": _remove,
    "aten::sum": _reduced(aten.sum.default),
    "aten::all": _reduced(aten.all.default),
    "aten::any": _reduced(aten.any.default),
    "prim::min": _reduced(aten.min.default),
    "prim::max": _reduced(aten.max.default),
}
