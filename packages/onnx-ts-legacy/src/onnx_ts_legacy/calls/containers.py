"""Lists, dicts, tuples and strings of the program. A list of a length known only at run time is an ONNX sequence."""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch

from onnx_ts_legacy.calls.number_lists import are_numbers, item_of_numbers
from onnx_ts_legacy.calls.rows import of_operands, rows
from onnx_ts_legacy.calls.scalars import as_int, binary, from_start
from onnx_ts_legacy.calls.sequences import (
    as_sequence,
    erased,
    extended,
    sequence_at,
    sequence_insert,
    sequence_length,
    sliced,
)
from onnx_ts_legacy.calls.size_conditions import with_known_sizes
from onnx_ts_legacy.errors import ScriptValueError
from onnx_ts_legacy.state.context import ConversionContext
from onnx_ts_legacy.state.numbers import negated
from onnx_ts_legacy.state.values import (
    DictRef,
    ListRef,
    Poison,
    SequenceState,
    Tensor,
    Uninitialized,
    is_runtime,
)
from onnx_ts_legacy.state.variables import size_of

__all__ = ["CONTAINER_ROWS", "is_unknown_text", "known_key", "plain"]


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


def _length(context: ConversionContext, target: Any) -> Any:
    if isinstance(target, ListRef) and isinstance(target.state, SequenceState):
        return sequence_length(context, target.state)
    if isinstance(target, Tensor):
        return size_of(context, with_known_sizes(context, target), 0)
    return len(target.items if isinstance(target, ListRef | DictRef) else target)


def _get_item(context: ConversionContext, target: Any, index: Any) -> Any:
    if isinstance(target, DictRef):
        if is_runtime(index):
            return _pick(context, _values(context, target), _place_of_key(context, target, index))
        if index not in target.items:
            raise ScriptValueError(f"The program reads key {index!r} of a dict that does not have it.")
        return target.items[index]
    if isinstance(target, ListRef) and isinstance(target.state, SequenceState):
        return sequence_at(context, target, index)
    items = target.items if isinstance(target, ListRef) else target
    if isinstance(index, torch.SymInt):
        return _pick(context, target, index)
    with _existing(index, items):
        return _checked(items[index])


@contextmanager
def _existing(index: Any, items: Any) -> Iterator[None]:
    """Raise the error for an index that a list or tuple does not have."""
    try:
        yield
    except IndexError:
        raise ScriptValueError(f"The program reads item {index} of {len(items)} items.") from None


def _pick(context: ConversionContext, target: Any, index: torch.SymInt) -> Any:
    """Return the item at an index known only at run time."""
    items = target.items if isinstance(target, ListRef) else target
    if items and all(isinstance(item, Tensor) for item in items):
        return sequence_at(context, target, index)
    if are_numbers(items):
        numbers = ListRef(context.heap, tuple(items))
        return item_of_numbers(context, numbers, index)
    raise ScriptValueError("An item of a list is read at an index known only at run time.")


def _place_of_key(context: ConversionContext, target: DictRef, key: Any) -> Any:
    """Return which item of a dict has a key known only at run time; a key that it does not have is past the end."""
    place: Any = len(target.items)
    for before, candidate in enumerate(target.items):
        same = equals(context, candidate, key)
        place = place + (before - len(target.items)) * as_int(context, same)
    return place


def known_key(key: Any) -> Any:
    """Return a key at which the program makes, changes or looks through a dict.

    Raises:
        ScriptValueError: If it is known only at run time.
    """
    if is_runtime(key):
        raise ScriptValueError("A dict is made, changed or looked through at a key known only at run time.")
    return key


def _checked(item: Any) -> Any:
    if isinstance(item, Poison):
        raise item.error()
    if isinstance(item, Uninitialized):
        raise ScriptValueError("The program reads a variable that has no value.")
    return item


def _append(context: ConversionContext, target: ListRef, item: Any) -> ListRef:
    if _is_dynamic(target):
        sequence_insert(context, target, None, item)
    else:
        context.heap.write(target, (*target.items, item))
    return target


def _insert(context: ConversionContext, target: ListRef, index: Any, item: Any) -> None:
    if _is_dynamic(target, index):
        sequence_insert(context, target, index, item)
        return
    items = list(target.items)
    items.insert(index, item)
    context.heap.write(target, tuple(items))


def _pop(context: ConversionContext, target: ListRef, index: Any = -1) -> Any:
    if _is_dynamic(target, index):
        taken = sequence_at(context, target, index)
        _delete(context, target, index)
        return taken
    items = list(target.items)
    with _existing(index, items):
        taken = items.pop(index)
    context.heap.write(target, tuple(items))
    return taken


def _delete(context: ConversionContext, target: Any, index: Any) -> None:
    if isinstance(target, DictRef):
        context.heap.write(target, {key: item for key, item in target.items.items() if key != known_key(index)})
        return
    if _is_dynamic(target, index):
        context.heap.write(target, erased(context, as_sequence(context, target), index))
        return
    items = list(target.items)
    with _existing(index, items):
        del items[index]
    context.heap.write(target, tuple(items))


def _set_item(context: ConversionContext, target: Any, index: Any, item: Any) -> Any:
    if isinstance(target, DictRef):
        context.heap.write(target, {**target.items, known_key(index): item})
        return None
    if _is_dynamic(target, index):
        # Inserted before it is erased: a negative index still counts from the same end then.
        state = as_sequence(context, target)
        index = from_start(context, index, sequence_length(context, state))
        _delete(context, target, index)
        sequence_insert(context, target, index, item)
        return target
    items = list(target.items)
    with _existing(index, items):
        items[index] = item
    context.heap.write(target, tuple(items))
    return target


def _extend(context: ConversionContext, target: ListRef, other: ListRef) -> ListRef:
    if isinstance(other.state, SequenceState):
        places = context.call(torch.ops.aten.arange.default, [sequence_length(context, other.state)], {})
        state = as_sequence(context, target, other.state.element)
        context.heap.write(target, extended(context, state, other.state, places))
        return target
    for item in other.items:
        _append(context, target, item)
    return target


def _clear(context: ConversionContext, target: Any) -> None:
    context.heap.write(target, () if isinstance(target, ListRef) else {})


def _add(context: ConversionContext, a: ListRef, b: ListRef) -> ListRef:
    return _extend(context, ListRef(context.heap, a.state), b)


def _multiply(context: ConversionContext, a: Any, b: Any) -> ListRef:
    target, count = (a, b) if isinstance(a, ListRef) else (b, a)
    return ListRef(context.heap, target.items * count)


def _slice(context: ConversionContext, target: Any, start: Any = None, end: Any = None, step: int = 1) -> Any:
    if isinstance(target, ListRef) and _is_dynamic(target, start, end):
        state = as_sequence(context, target)
        return ListRef(context.heap, sliced(context, state, start, end, step))
    items = target.items if isinstance(target, ListRef) else target
    part = items[slice(start, end, step)]
    return ListRef(context.heap, part) if isinstance(target, ListRef) else part


def _copy(context: ConversionContext, target: Any) -> Any:
    if isinstance(target, DictRef):
        return DictRef(context.heap, target.items)
    return ListRef(context.heap, tuple(target) if isinstance(target, str | tuple) else target.state)


def _reverse(context: ConversionContext, target: ListRef) -> None:
    backwards = _slice(context, target, step=-1)
    context.heap.write(target, backwards.state)


def _contains(context: ConversionContext, target: Any, item: Any) -> Any:
    items = target.items if isinstance(target, ListRef | DictRef) else target
    found: Any = False
    for candidate in items:
        same = equals(context, candidate, item)
        if same is True:
            return True
        found = same if found is False else binary(context, "__or__", found, same) if same else found
    return found


def _sort(context: ConversionContext, target: ListRef, reverse: bool = False) -> None:
    if any(isinstance(item, Tensor) for item in target.items):
        raise ScriptValueError("A list of tensors is sorted in an order that is known only at run time.")
    context.heap.write(target, tuple(sorted(target.items, reverse=reverse)))


def _remove(context: ConversionContext, target: ListRef, item: Any) -> None:
    _delete(context, target, _index(context, target, item))


def _repeat(context: ConversionContext, target: ListRef, count: int) -> ListRef:
    context.heap.write(target, target.items * count)
    return target


def _index(context: ConversionContext, target: ListRef, item: Any, *bounds: Any) -> Any:
    """Return the place of the first equal item, which has to be known here."""
    for place, candidate in enumerate(target.items):
        same = equals(context, candidate, item)
        if same is True:
            return place
        if same is not False:
            raise ScriptValueError("The index of a number in a list depends on values that are computed at run time.")
    raise ScriptValueError(f"The program looks for {item!r} in a list that does not contain it.")


def _count(context: ConversionContext, target: ListRef, item: Any) -> Any:
    total: Any = 0
    for candidate in target.items:
        same = equals(context, candidate, item)
        total = total + int(same) if isinstance(same, bool) else total + as_int(context, same)
    return total


def equals(context: ConversionContext, a: Any, b: Any) -> Any:
    """Return ``a == b`` of numbers, strings, lists and tuples."""
    if is_runtime(a) or is_runtime(b):
        return binary(context, "eq", a, b)
    left, right = (list(x.items if isinstance(x, ListRef) else x) for x in (a, b)) if _both_lists(a, b) else ([], [])
    if not _both_lists(a, b):
        return a == b
    if len(left) != len(right):
        return False
    result: Any = True
    for x, y in zip(left, right, strict=True):
        same = equals(context, x, y)
        if same is False:
            return False
        if same is not True:
            result = same if result is True else binary(context, "__and__", result, same)
    return result


def _both_lists(a: Any, b: Any) -> bool:
    return isinstance(a, ListRef | tuple) and isinstance(b, ListRef | tuple)


def _not_equals(context: ConversionContext, a: Any, b: Any) -> Any:
    return negated(context, equals(context, a, b))


_REDUCTIONS: dict[str, Callable[[Any, Any], Any]] = {"min": min, "max": max, "add": operator.add}


def _reduced(name: str) -> Callable[..., Any]:
    def reduce(context: ConversionContext, target: ListRef, other: Any = None) -> Any:
        items = target.items
        if isinstance(other, ListRef):
            raise ScriptValueError(f"{name} of two lists has no ONNX form.")
        result = _checked(items[0])
        for item in map(_checked, items[1:]):
            runtime = is_runtime(result) or is_runtime(item)
            result = binary(context, name, result, item) if runtime else _REDUCTIONS[name](result, item)
        return result

    return reduce


# ---- dicts


def _keys(context: ConversionContext, target: DictRef) -> ListRef:
    return ListRef(context.heap, tuple(target.items))


def _values(context: ConversionContext, target: DictRef) -> ListRef:
    return ListRef(context.heap, tuple(target.items.values()))


def _items(context: ConversionContext, target: DictRef) -> ListRef:
    return ListRef(context.heap, tuple(target.items.items()))


def _get(context: ConversionContext, target: DictRef, key: Any, default: Any = None) -> Any:
    return target.items.get(known_key(key), default)


def _set_default(context: ConversionContext, target: DictRef, key: Any, default: Any) -> Any:
    if known_key(key) not in target.items:
        context.heap.write(target, {**target.items, key: default})
    return target.items[key]


def _update(context: ConversionContext, target: DictRef, other: DictRef) -> None:
    context.heap.write(target, {**target.items, **other.items})


def _new_dict(context: ConversionContext, pairs: Any = None) -> DictRef:
    if isinstance(pairs, DictRef):
        return DictRef(context.heap, pairs.items)
    return DictRef(context.heap, {known_key(key): item for key, item in (pairs.items if pairs is not None else ())})


def _dict_pop(context: ConversionContext, target: Any, *rest: Any) -> Any:
    if isinstance(target, ListRef):
        return _pop(context, target, *rest)
    taken = target.items.get(known_key(rest[0]), rest[1] if len(rest) > 1 else None)
    if rest[0] not in target.items and len(rest) == 1:
        raise ScriptValueError(f"The program takes key {rest[0]!r} out of a dict that does not have it.")
    _delete(context, target, rest[0])
    return taken


def is_unknown_text(value: Any) -> bool:
    """Tell whether the text of a value depends on what the runtime computes."""
    if isinstance(value, ListRef):
        return not isinstance(value.state, tuple) or any(map(is_unknown_text, value.state))
    if isinstance(value, tuple):
        return any(map(is_unknown_text, value))
    return is_runtime(value) or isinstance(value, Tensor | Poison)


def _format(context: ConversionContext, text: str, *args: Any) -> Any:
    """Return the text, or a poison where a part of it is known at run time only."""
    if any(map(is_unknown_text, args)):
        return Poison(_UNKNOWN_TEXT)
    # Braces with something between them are text: TorchScript has put the values of an f-string behind it.
    first, *others = text.split("{}")
    if len(args) != len(others):
        raise ScriptValueError(f"A text with {len(others)} places is given {len(args)} values.")
    return first + "".join(str(plain(arg)) + rest for arg, rest in zip(args, others, strict=True))


def _percent_format(context: ConversionContext, text: str, *given: Any) -> Any:
    """Return ``text % given``, or a poison where a part of it is known at run time only."""
    args = given[0] if len(given) == 1 and isinstance(given[0], tuple) else given
    if any(map(is_unknown_text, args)):
        return Poison(_UNKNOWN_TEXT)
    if any(type(arg) not in (str, int) for arg in args):
        raise ScriptValueError("A text is formatted with something other than texts and integers.")
    try:
        return text % args
    except (TypeError, ValueError) as error:
        raise ScriptValueError(f"The program fails here: {error}") from error


_UNKNOWN_TEXT = "The program uses a string that depends on values computed at run time."


def _is_of_container(context: ConversionContext, node: Any, args: Sequence[Any]) -> bool:
    """Tell whether a call is of a container: its first argument, but for some operators."""
    kind = node.kind()
    if not args:
        return bool(kind == "aten::dict")
    if isinstance(args[0], ListRef | DictRef | tuple) or kind in ("aten::len", "aten::dict"):
        return True
    return (kind in ("aten::format", "aten::percentFormat") and isinstance(args[0], str)) or (
        kind == "aten::mul" and isinstance(args[1], ListRef)
    )


_OPERATORS: dict[str, Callable[..., Any]] = {
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
    "aten::percentFormat": _percent_format,
    "prim::min": _reduced("min"),
    "prim::max": _reduced("max"),
    "aten::sum": _reduced("add"),
}
CONTAINER_ROWS = rows({kind: of_operands(function) for kind, function in _OPERATORS.items()}, _is_of_container)
