"""Lists of numbers whose length or contents are known only at run time: vectors in ONNX, changed by making new ones."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch

from onnx_ts_legacy.calls.rows import Row, of_operands, rows
from onnx_ts_legacy.calls.scalars import binary, from_start
from onnx_ts_legacy.errors import ScriptValueError
from onnx_ts_legacy.state.context import ConversionContext
from onnx_ts_legacy.state.numbers import number_value
from onnx_ts_legacy.state.values import ListRef, RuntimeBool, RuntimeFloat, Tensor, VectorState, is_runtime
from onnx_ts_legacy.state.variables import number_in, number_tensor, size_of
from onnxops_decomp.exporting import to_ir

__all__ = ["NUMBER_LIST_ROWS", "are_numbers", "as_vector", "item_of_numbers", "kind_of_numbers"]

aten = torch.ops.aten
_NUMBERS = (bool, int, float, torch.SymInt, RuntimeBool, RuntimeFloat)


def are_numbers(items: Sequence[Any]) -> bool:
    """Tell whether a list holds numbers or truth values only, and at least one."""
    return bool(items) and all(isinstance(item, _NUMBERS) for item in items)


def kind_of_numbers(state: Any) -> torch.dtype | None:
    """Return the dtype of a vector for the contents of a list, or None if they are not numbers."""
    if isinstance(state, VectorState):
        return state.dtype
    if not isinstance(state, tuple) or not are_numbers(state):
        return None
    if all(isinstance(item, bool | RuntimeBool) for item in state):
        return torch.bool
    floats = any(isinstance(item, float | RuntimeFloat) for item in state)
    return torch.float64 if floats else torch.int64


def as_vector(context: ConversionContext, state: Any, dtype: torch.dtype | None = None) -> VectorState:
    """Return the contents of a list of numbers as a vector.

    Args:
        context: The conversion.
        state: Contents of a list.
        dtype: Dtype of the numbers, for an empty list.

    Raises:
        ScriptValueError: If the list holds anything else.
    """
    if isinstance(state, VectorState):
        return state
    kind = kind_of_numbers(state) or dtype
    if kind is None or (state and kind_of_numbers(state) is None):
        raise ScriptValueError("A list of something other than numbers is used where numbers are needed.")
    op = context.op
    element = to_ir(kind)
    parts = [op.Reshape(number_value(context, item, element), [1]) for item in state]
    empty = op.constant(np.zeros(0, element.numpy()), element)
    value = op.Concat(*parts, axis=0) if len(parts) > 1 else parts[0] if parts else empty
    return VectorState(context.fresh(value, context.metadata.empty(kind, [len(parts)])))


def _vector(context: ConversionContext, target: ListRef) -> Tensor:
    tensor: Tensor = as_vector(context, target.state).tensor
    return tensor


def _write(context: ConversionContext, target: ListRef, tensor: Tensor) -> ListRef:
    context.heap.write(target, VectorState(tensor))
    return target


def _joined(context: ConversionContext, parts: Sequence[Tensor]) -> Tensor:
    tensor: Tensor = context.call(aten.cat.default, [list(parts)], {})
    return tensor


def _one(context: ConversionContext, item: Any, like: Tensor) -> Tensor:
    return as_vector(context, (item,), like.fake.dtype).tensor


def _part(context: ConversionContext, vector: Tensor, start: Any, end: Any = None, step: int = 1) -> Tensor:
    tensor: Tensor = context.call(aten.slice.Tensor, [vector, 0, start, end, step], {})
    return tensor


def _place(context: ConversionContext, vector: Tensor, index: Any) -> Any:
    """Return an index counted from the start."""
    return from_start(context, index, size_of(context, vector, 0))


def _number(context: ConversionContext, overload: torch._ops.OpOverload, *args: Any) -> Any:
    return number_in(context, context.call(overload, list(args), {}))


# ---- operators; ``target`` is a list of numbers


def _length(context: ConversionContext, target: ListRef) -> Any:
    return size_of(context, _vector(context, target), 0)


def item_of_numbers(context: ConversionContext, target: ListRef, index: Any) -> Any:
    """Return the number at an index that only the runtime may know."""
    vector = _vector(context, target)
    return _number(context, aten.select.int, vector, 0, _place(context, vector, index))


def _append(context: ConversionContext, target: ListRef, item: Any) -> ListRef:
    vector = _vector(context, target)
    return _write(context, target, _joined(context, [vector, _one(context, item, vector)]))


def _insert(context: ConversionContext, target: ListRef, index: Any, item: Any) -> None:
    vector = _vector(context, target)
    # Unlike elsewhere, an index beyond the end is allowed, and means the end: so it does in a slice.
    before, after = _part(context, vector, 0, index), _part(context, vector, index)
    _write(context, target, _joined(context, [before, _one(context, item, vector), after]))


def _delete(context: ConversionContext, target: ListRef, index: Any) -> None:
    vector = _vector(context, target)
    place = _place(context, vector, index)
    after = binary(context, "add", place, 1) if is_runtime(place) else place + 1
    _write(
        context,
        target,
        _joined(context, [_part(context, vector, 0, place), _part(context, vector, after)]),
    )


def _pop(context: ConversionContext, target: ListRef, index: Any = -1) -> Any:
    taken = item_of_numbers(context, target, index)
    _delete(context, target, index)
    return taken


def _set_item(context: ConversionContext, target: ListRef, index: Any, item: Any) -> ListRef:
    vector = _vector(context, target)
    place = number_tensor(context, _place(context, vector, index))
    places = context.call(aten.arange.default, [size_of(context, vector, 0)], {})
    here = context.call(aten.eq.Tensor, [places, place], {})
    chosen = context.call(aten.where.self, [here, _one(context, item, vector), vector], {})
    return _write(context, target, chosen)


def _extend(context: ConversionContext, target: ListRef, other: ListRef) -> ListRef:
    return _write(context, target, _vector(context, _sum(context, target, other)))


def _sum(context: ConversionContext, a: ListRef, b: ListRef) -> ListRef:
    kind = kind_of_numbers(a.state) or kind_of_numbers(b.state)
    parts = [as_vector(context, side.state, kind).tensor for side in (a, b)]
    return ListRef(context.heap, VectorState(_joined(context, parts)))


def _multiply(context: ConversionContext, a: Any, b: Any) -> ListRef:
    target, count = (a, b) if isinstance(a, ListRef) else (b, a)
    repeated = context.call(aten.repeat.default, [_vector(context, target), [count]], {})
    return ListRef(context.heap, VectorState(repeated))


def _slice(context: ConversionContext, target: ListRef, start: Any = None, end: Any = None, step: int = 1) -> ListRef:
    if not isinstance(step, int) or step < 1:
        raise ScriptValueError("A list of numbers whose length is known only at run time is sliced backwards.")
    return ListRef(context.heap, VectorState(_part(context, _vector(context, target), start, end, step)))


def _copy(context: ConversionContext, target: ListRef) -> ListRef:
    return ListRef(context.heap, target.state)


def _clear(context: ConversionContext, target: ListRef) -> None:
    context.heap.write(target, ())


def _reverse(context: ConversionContext, target: ListRef) -> None:
    _write(context, target, context.call(aten.flip.default, [_vector(context, target), [0]], {}))


def _ordered(context: ConversionContext, target: ListRef, reverse: bool) -> Tensor:
    ordered: Tensor = context.call(aten.sort.default, [_vector(context, target), 0, reverse], {})[0]
    return ordered


def _sort(context: ConversionContext, target: ListRef, reverse: bool = False) -> None:
    _write(context, target, _ordered(context, target, reverse))


def _sorted(context: ConversionContext, target: ListRef) -> ListRef:
    return ListRef(context.heap, VectorState(_ordered(context, target, False)))


def _equal_items(context: ConversionContext, target: ListRef, item: Any) -> Tensor:
    vector = _vector(context, target)
    same: Tensor = context.call(aten.eq.Tensor, [vector, _one(context, item, vector)], {})
    return same


def _contains(context: ConversionContext, target: ListRef, item: Any) -> Any:
    return _number(context, aten.any.default, _equal_items(context, target, item))


def _count(context: ConversionContext, target: ListRef, item: Any) -> Any:
    return _number(context, aten.sum.default, _equal_items(context, target, item))


def _remove(context: ConversionContext, target: ListRef, item: Any) -> None:
    _delete(context, target, _index(context, target, item))


def _index(context: ConversionContext, target: ListRef, item: Any) -> Any:
    same = context.call(aten.to.dtype, [_equal_items(context, target, item), torch.int32], {})
    return _number(context, aten.argmax.default, same)


def _reduced(overload: torch._ops.OpOverload) -> Callable[..., Any]:
    def reduce(context: ConversionContext, target: ListRef) -> Any:
        return _number(context, overload, _vector(context, target))

    return reduce


# What makes another list of one of known length, if the second operand is known at run time only.
_PLACED = frozenset(("aten::insert", "aten::pop", "aten::Delete", "aten::_set_item", "aten::mul", "aten::remove"))
# What depends on how numbers compare.
_COMPARING = frozenset(("aten::sort", "aten::sorted", "aten::all", "aten::any", "aten::index"))


def _is_of_runtime_numbers(context: ConversionContext, node: Any, args: Sequence[Any]) -> bool:
    name = node.kind()
    lists = [arg for arg in args[:2] if isinstance(arg, ListRef)]
    if not lists or isinstance(args[0], Tensor | str):
        return False
    if any(isinstance(target.state, VectorState) for target in lists):
        return True
    items = lists[0].state
    if not isinstance(items, tuple) or not are_numbers(items):
        return False
    if name in _COMPARING:
        return any(map(is_runtime, (*items, *(arg for arg in args if not isinstance(arg, ListRef)))))
    return name in _PLACED and any(is_runtime(arg) for arg in args[:2])


def _refuse(context: ConversionContext, node: Any, args: Sequence[Any]) -> Any:
    raise ScriptValueError(f"{node.kind()} of a list of numbers known only at run time has no ONNX form.")


_OPERATORS: dict[str, Callable[..., Any]] = {
    "aten::len": _length,
    "aten::__getitem__": item_of_numbers,
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
NUMBER_LIST_ROWS = (
    *rows({kind: of_operands(function) for kind, function in _OPERATORS.items()}, _is_of_runtime_numbers),
    Row(None, _refuse, _is_of_runtime_numbers),
)
