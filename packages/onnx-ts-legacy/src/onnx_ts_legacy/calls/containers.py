"""Lists, dicts, tuples and strings of the program. A list whose length only the runtime knows is an ONNX sequence."""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import torch

from onnx_ts_legacy.calls.number_lists import NUMBER_LIST_OPERATORS, are_numbers
from onnx_ts_legacy.calls.sequences import (
    as_sequence,
    erased,
    extended,
    sequence_at,
    sequence_insert,
    sequence_length,
    sliced,
)
from onnx_ts_legacy.errors import ScriptValueError
from onnx_ts_legacy.state.values import (
    DictRef,
    ListRef,
    Poison,
    SequenceState,
    Tensor,
    Uninitialized,
    VectorState,
    is_runtime,
)

if TYPE_CHECKING:
    from onnx_ts_legacy.conversion import Interpreter

__all__ = ["CONTAINER_OPERATORS", "container_operator", "is_unknown_text", "plain"]

Handler = Callable[..., Any]


def plain(value: Any) -> Any:
    """Return a list or dict of the program as a Python one, for operators that only read it."""
    if isinstance(value, ListRef):
        return [plain(item) for item in value.items]
    if isinstance(value, DictRef):
        return {key: plain(item) for key, item in value.items.items()}
    return tuple(plain(item) for item in value) if isinstance(value, tuple) else value


def _is_dynamic(target: ListRef, *indices: Any) -> bool:
    return isinstance(target.state, SequenceState) or any(is_runtime(index) for index in indices)


# ---- lists


def _length(interpreter: Interpreter, target: Any) -> Any:
    if isinstance(target, ListRef) and isinstance(target.state, SequenceState):
        return sequence_length(interpreter, target.state)
    if isinstance(target, Tensor):
        return interpreter.size(target, 0)
    return len(target.items if isinstance(target, ListRef | DictRef) else target)


def _get_item(interpreter: Interpreter, target: Any, index: Any) -> Any:
    if isinstance(target, DictRef):
        if index not in target.items:
            raise ScriptValueError(f"The program reads key {index!r} of a dict that does not have it.")
        return target.items[index]
    if isinstance(target, ListRef) and isinstance(target.state, SequenceState):
        return sequence_at(interpreter, target, index)
    items = target.items if isinstance(target, ListRef) else target
    if isinstance(index, torch.SymInt):
        return _pick(interpreter, target, index)
    with _existing(index, items):
        return _checked(items[index])


@contextmanager
def _existing(index: Any, items: Any) -> Iterator[None]:
    """Tell of an index that a list or tuple does not have."""
    try:
        yield
    except IndexError:
        raise ScriptValueError(f"The program reads item {index} of {len(items)} items.") from None


def _pick(interpreter: Interpreter, target: Any, index: torch.SymInt) -> Any:
    """Return the item at an index that only the runtime knows."""
    items = target.items if isinstance(target, ListRef) else target
    if items and all(isinstance(item, Tensor) for item in items):
        return sequence_at(interpreter, target, index)
    if are_numbers(items):
        numbers = ListRef(interpreter.heap, tuple(items))
        return NUMBER_LIST_OPERATORS["aten::__getitem__"](interpreter, numbers, index)
    raise ScriptValueError("An item of a list is read at an index that only the runtime knows.")


def _checked(item: Any) -> Any:
    if isinstance(item, Poison):
        raise item.error()
    if isinstance(item, Uninitialized):
        raise ScriptValueError("The program reads a variable that has no value.")
    return item


def _append(interpreter: Interpreter, target: ListRef, item: Any) -> ListRef:
    if _is_dynamic(target):
        sequence_insert(interpreter, target, None, item)
    else:
        interpreter.heap.write(target, (*target.items, item))
    return target


def _insert(interpreter: Interpreter, target: ListRef, index: Any, item: Any) -> None:
    if _is_dynamic(target, index):
        sequence_insert(interpreter, target, index, item)
        return
    items = list(target.items)
    items.insert(index, item)
    interpreter.heap.write(target, tuple(items))


def _pop(interpreter: Interpreter, target: ListRef, index: Any = -1) -> Any:
    if _is_dynamic(target, index):
        taken = sequence_at(interpreter, target, index)
        _delete(interpreter, target, index)
        return taken
    items = list(target.items)
    with _existing(index, items):
        taken = items.pop(index)
    interpreter.heap.write(target, tuple(items))
    return taken


def _delete(interpreter: Interpreter, target: Any, index: Any) -> None:
    if isinstance(target, DictRef):
        interpreter.heap.write(target, {key: item for key, item in target.items.items() if key != index})
        return
    if _is_dynamic(target, index):
        interpreter.heap.write(target, erased(interpreter, as_sequence(interpreter, target), index))
        return
    items = list(target.items)
    with _existing(index, items):
        del items[index]
    interpreter.heap.write(target, tuple(items))


def _set_item(interpreter: Interpreter, target: Any, index: Any, item: Any) -> Any:
    if isinstance(target, DictRef):
        interpreter.heap.write(target, {**target.items, index: item})
        return None
    if _is_dynamic(target, index):
        # Inserted before it is erased: a negative index still counts from the same end then.
        state = as_sequence(interpreter, target)
        index = interpreter.scalars.from_start(index, sequence_length(interpreter, state))
        _delete(interpreter, target, index)
        sequence_insert(interpreter, target, index, item)
        return target
    items = list(target.items)
    with _existing(index, items):
        items[index] = item
    interpreter.heap.write(target, tuple(items))
    return target


def _extend(interpreter: Interpreter, target: ListRef, other: ListRef) -> ListRef:
    if isinstance(other.state, SequenceState):
        places = interpreter.call(torch.ops.aten.arange.default, [sequence_length(interpreter, other.state)], {})
        state = as_sequence(interpreter, target, other.state.element)
        interpreter.heap.write(target, extended(interpreter, state, other.state, places))
        return target
    for item in other.items:
        _append(interpreter, target, item)
    return target


def _clear(interpreter: Interpreter, target: Any) -> None:
    interpreter.heap.write(target, () if isinstance(target, ListRef) else {})


def _add(interpreter: Interpreter, a: ListRef, b: ListRef) -> ListRef:
    return _extend(interpreter, ListRef(interpreter.heap, a.state), b)


def _multiply(interpreter: Interpreter, a: Any, b: Any) -> ListRef:
    target, count = (a, b) if isinstance(a, ListRef) else (b, a)
    return ListRef(interpreter.heap, target.items * count)


def _slice(interpreter: Interpreter, target: Any, start: Any = None, end: Any = None, step: int = 1) -> Any:
    if isinstance(target, ListRef) and _is_dynamic(target, start, end):
        state = as_sequence(interpreter, target)
        return ListRef(interpreter.heap, sliced(interpreter, state, start, end, step))
    items = target.items if isinstance(target, ListRef) else target
    part = items[slice(start, end, step)]
    return ListRef(interpreter.heap, part) if isinstance(target, ListRef) else part


def _copy(interpreter: Interpreter, target: Any) -> Any:
    if isinstance(target, DictRef):
        return DictRef(interpreter.heap, target.items)
    return ListRef(interpreter.heap, tuple(target) if isinstance(target, str | tuple) else target.state)


def _reverse(interpreter: Interpreter, target: ListRef) -> None:
    backwards = _slice(interpreter, target, step=-1)
    interpreter.heap.write(target, backwards.state)


def _contains(interpreter: Interpreter, target: Any, item: Any) -> Any:
    items = target.items if isinstance(target, ListRef | DictRef) else target
    found: Any = False
    for candidate in items:
        same = equals(interpreter, candidate, item)
        if same is True:
            return True
        found = same if found is False else interpreter.scalars.binary("__or__", found, same) if same else found
    return found


def _sort(interpreter: Interpreter, target: ListRef, reverse: bool = False) -> None:
    if any(isinstance(item, Tensor) for item in target.items):
        raise ScriptValueError("A list of tensors is sorted, whose order only the runtime knows.")
    interpreter.heap.write(target, tuple(sorted(target.items, reverse=reverse)))


def _remove(interpreter: Interpreter, target: ListRef, item: Any) -> None:
    _delete(interpreter, target, _index(interpreter, target, item))


def _repeat(interpreter: Interpreter, target: ListRef, count: int) -> ListRef:
    interpreter.heap.write(target, target.items * count)
    return target


def _index(interpreter: Interpreter, target: ListRef, item: Any, *bounds: Any) -> Any:
    """Return the place of the first equal item, which has to be known here."""
    for place, candidate in enumerate(target.items):
        same = equals(interpreter, candidate, item)
        if same is True:
            return place
        if same is not False:
            raise ScriptValueError("The place of a number in a list depends on what the runtime computes.")
    raise ScriptValueError(f"The program looks for {item!r} in a list that does not have it.")


def _count(interpreter: Interpreter, target: ListRef, item: Any) -> Any:
    total: Any = 0
    for candidate in target.items:
        same = equals(interpreter, candidate, item)
        total = total + int(same) if isinstance(same, bool) else total + interpreter.scalars.as_int(same)
    return total


def equals(interpreter: Interpreter, a: Any, b: Any) -> Any:
    """Return ``a == b`` of numbers, strings, lists and tuples."""
    if is_runtime(a) or is_runtime(b):
        return interpreter.scalars.binary("eq", a, b)
    left, right = (list(x.items if isinstance(x, ListRef) else x) for x in (a, b)) if _both_lists(a, b) else ([], [])
    if not _both_lists(a, b):
        return a == b
    if len(left) != len(right):
        return False
    result: Any = True
    for x, y in zip(left, right, strict=True):
        same = equals(interpreter, x, y)
        if same is False:
            return False
        if same is not True:
            result = same if result is True else interpreter.scalars.binary("__and__", result, same)
    return result


def _both_lists(a: Any, b: Any) -> bool:
    return isinstance(a, ListRef | tuple) and isinstance(b, ListRef | tuple)


def _not_equals(interpreter: Interpreter, a: Any, b: Any) -> Any:
    return interpreter.scalars.negated(equals(interpreter, a, b))


_REDUCTIONS: dict[str, Callable[[Any, Any], Any]] = {"min": min, "max": max, "add": operator.add}


def _reduced(name: str) -> Handler:
    def reduce(interpreter: Interpreter, target: ListRef, other: Any = None) -> Any:
        items = target.items
        if isinstance(other, ListRef):
            raise ScriptValueError(f"{name} of two lists has no ONNX form.")
        result = _checked(items[0])
        for item in map(_checked, items[1:]):
            runtime = is_runtime(result) or is_runtime(item)
            result = interpreter.scalars.binary(name, result, item) if runtime else _REDUCTIONS[name](result, item)
        return result

    return reduce


# ---- dicts


def _keys(interpreter: Interpreter, target: DictRef) -> ListRef:
    return ListRef(interpreter.heap, tuple(target.items))


def _values(interpreter: Interpreter, target: DictRef) -> ListRef:
    return ListRef(interpreter.heap, tuple(target.items.values()))


def _items(interpreter: Interpreter, target: DictRef) -> ListRef:
    return ListRef(interpreter.heap, tuple(target.items.items()))


def _get(interpreter: Interpreter, target: DictRef, key: Any, default: Any = None) -> Any:
    return target.items.get(key, default)


def _set_default(interpreter: Interpreter, target: DictRef, key: Any, default: Any) -> Any:
    if key not in target.items:
        interpreter.heap.write(target, {**target.items, key: default})
    return target.items[key]


def _update(interpreter: Interpreter, target: DictRef, other: DictRef) -> None:
    interpreter.heap.write(target, {**target.items, **other.items})


def _new_dict(interpreter: Interpreter, pairs: Any = None) -> DictRef:
    if isinstance(pairs, DictRef):
        return DictRef(interpreter.heap, pairs.items)
    return DictRef(interpreter.heap, dict(pairs.items) if pairs is not None else {})


def _dict_pop(interpreter: Interpreter, target: Any, *rest: Any) -> Any:
    if isinstance(target, ListRef):
        return _pop(interpreter, target, *rest)
    taken = target.items.get(rest[0], rest[1] if len(rest) > 1 else None)
    if rest[0] not in target.items and len(rest) == 1:
        raise ScriptValueError(f"The program takes key {rest[0]!r} out of a dict that does not have it.")
    _delete(interpreter, target, rest[0])
    return taken


def is_unknown_text(value: Any) -> bool:
    """Tell whether the text of a value depends on what the runtime computes."""
    if isinstance(value, ListRef):
        return not isinstance(value.state, tuple) or any(map(is_unknown_text, value.state))
    return is_runtime(value) or isinstance(value, Tensor | Poison)


def _format(interpreter: Interpreter, text: str, *args: Any) -> Any:
    """Return the text, or a poison where a part of it is known at run time only."""
    if any(map(is_unknown_text, args)):
        return Poison("A text that depends on what the runtime computes is used.")
    return text.format(*(plain(arg) for arg in args))


# By the name of the packet; used if the first argument is a list, dict, tuple or string.
CONTAINER_OPERATORS: dict[str, Handler] = {
    "aten::len": _length,
    "aten::__getitem__": _get_item,
    "aten::append": _append,
    "aten::insert": _insert,
    "aten::pop": _dict_pop,
    "aten::Delete": _delete,
    "aten::_set_item": _set_item,
    "aten::extend": _extend,
    "aten::clear": _clear,
    "aten::add": _add,
    "aten::add_": _extend,
    "aten::mul": _multiply,
    "aten::slice": _slice,
    "aten::list": _copy,
    "aten::copy": _copy,
    "aten::reverse": _reverse,
    "aten::index": _index,
    "aten::sort": _sort,
    "aten::remove": _remove,
    "aten::mul_": _repeat,
    "aten::count": _count,
    "aten::__contains__": _contains,
    "aten::eq": equals,
    "aten::ne": _not_equals,
    "aten::keys": _keys,
    "aten::values": _values,
    "aten::items": _items,
    "aten::get": _get,
    "aten::setdefault": _set_default,
    "aten::update": _update,
    "aten::dict": _new_dict,
    "aten::format": _format,
    "prim::min": _reduced("min"),
    "prim::max": _reduced("max"),
    "aten::sum": _reduced("add"),
}


# What makes another list of one of known length, if the second operand is known at run time only.
_PLACED = frozenset(("aten::insert", "aten::pop", "aten::Delete", "aten::_set_item", "aten::mul", "aten::remove"))
# What depends on how numbers compare.
_COMPARING = frozenset(("aten::sort", "aten::sorted", "aten::all", "aten::any", "aten::index"))


def container_operator(name: str, args: Sequence[Any]) -> Handler | None:
    """Return what converts a call whose first argument may be a list, dict, tuple or string; None if it is none.

    Raises:
        ScriptValueError: If it takes numbers that only the runtime knows, and has no form for them.
    """
    if not _is_of_runtime_numbers(name, args):
        return CONTAINER_OPERATORS.get(name) if isinstance(args[0], ListRef | DictRef | tuple) else None
    if name not in NUMBER_LIST_OPERATORS:
        raise ScriptValueError(f"{name} of a list of numbers that only the runtime knows has no ONNX form.")
    return NUMBER_LIST_OPERATORS[name]


def _is_of_runtime_numbers(name: str, args: Sequence[Any]) -> bool:
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
