"""Lists, dicts, tuples and strings of the program. A list whose length only the runtime knows is an ONNX sequence."""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import onnx_ir as ir
import torch

from onnx_ts_legacy.errors import ScriptValueError
from onnx_ts_legacy.values import DictRef, ListRef, Poison, SequenceState, Tensor, Uninitialized, is_runtime
from onnxops_decomp.dtypes import to_ir

if TYPE_CHECKING:
    from onnx_ts_legacy.conversion import Interpreter

__all__ = ["CONTAINER_OPERATORS", "as_sequence", "common_form", "own_sequence", "plain", "sequence_state"]

Handler = Callable[..., Any]


def plain(value: Any) -> Any:
    """Return a list or dict of the program as a Python one, for operators that only read it."""
    if isinstance(value, ListRef):
        return [plain(item) for item in value.items]
    if isinstance(value, DictRef):
        return {key: plain(item) for key, item in value.items.items()}
    return tuple(plain(item) for item in value) if isinstance(value, tuple) else value


# ---- sequences


def as_sequence(interpreter: Interpreter, target: ListRef, element: Any = None) -> SequenceState:
    """Return the contents of a list of tensors as an ONNX sequence.

    Args:
        interpreter: The conversion.
        target: The list.
        element: Fake tensor that describes the elements, for an empty list.

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
    return sequence_state(interpreter, outputs[0], described)


def sequence_state(interpreter: Interpreter, value: ir.Value, element: Any) -> SequenceState:
    """Return contents that ``value`` holds, its ONNX type set."""
    interpreter.require_opset(11, "a list whose length only the runtime knows")
    value.type = ir.SequenceType(ir.TensorType(to_ir(element.dtype)))
    value.shape = None
    return SequenceState(value, element)


def own_sequence(interpreter: Interpreter, state: SequenceState) -> ir.Value:
    """Return the sequence as a result of the graph that is written, which is what a branch or body has to give.

    Raises:
        UnsupportedOpsetError: If the opset has no sequences there.
    """
    op = interpreter.op
    interpreter.require_opset(13, "a list whose length changes in a branch or loop")
    if op.opset >= 14 or any(state.value is output for node in op.scope.nodes for output in node.outputs):
        return state.value
    # Identity takes no sequences before opset 14.
    dtype = to_ir(state.element.dtype)
    longer = op.emit_custom("", "SequenceInsert", [state.value, op.constant([0], dtype)], {}, [dtype])[0]
    sequence_state(interpreter, longer, state.element)
    same = op.emit_custom("", "SequenceErase", [longer], {}, [dtype])[0]
    return sequence_state(interpreter, same, state.element).value


def common_form(interpreter: Interpreter, fakes: list[Any]) -> Any:
    """Return a fake tensor that describes all of ``fakes``: sizes that differ become unknown.

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


def _position(interpreter: Interpreter, index: Any) -> ir.Value:
    return interpreter.scalars.to_value(index, ir.DataType.INT64)


def _sequence_at(interpreter: Interpreter, target: ListRef, index: Any) -> Tensor:
    state = as_sequence(interpreter, target)
    outputs = interpreter.op.emit_custom(
        "", "SequenceAt", [state.value, _position(interpreter, index)], {}, [to_ir(state.element.dtype)]
    )
    fake = state.element
    sizes = [s if isinstance(s, int) else interpreter.metadata.unknown_size() for s in fake.shape]
    return interpreter.fresh(outputs[0], interpreter.metadata.empty(fake.dtype, sizes))


def _sequence_insert(interpreter: Interpreter, target: ListRef, index: Any, item: Any) -> None:
    if not isinstance(item, Tensor):
        raise ScriptValueError("Only lists of tensors can change their length at run time in ONNX.")
    state = as_sequence(interpreter, target, item.fake)
    inputs = [state.value, interpreter.value(item)]
    if index is not None:
        inputs.append(_position(interpreter, index))
    element = common_form(interpreter, [state.element, item.fake])
    outputs = interpreter.op.emit_custom("", "SequenceInsert", inputs, {}, [to_ir(element.dtype)])
    interpreter.heap.write(target, sequence_state(interpreter, outputs[0], element))


def _is_dynamic(target: ListRef, *indices: Any) -> bool:
    return isinstance(target.state, SequenceState) or any(is_runtime(index) for index in indices)


# ---- lists


def _length(interpreter: Interpreter, target: Any) -> Any:
    if isinstance(target, ListRef) and isinstance(target.state, SequenceState):
        outputs = interpreter.op.emit_custom(
            "", "SequenceLength", [target.state.value], {}, [ir.DataType.INT64], shapes=[()]
        )
        return interpreter.metadata.runtime_int(outputs[0])
    if isinstance(target, Tensor):
        return interpreter.size(target, 0)
    return len(target.items if isinstance(target, ListRef | DictRef) else target)


def _get_item(interpreter: Interpreter, target: Any, index: Any) -> Any:
    if isinstance(target, DictRef):
        if index not in target.items:
            raise ScriptValueError(f"The program reads key {index!r} of a dict that does not have it.")
        return target.items[index]
    if isinstance(target, ListRef) and isinstance(target.state, SequenceState):
        return _sequence_at(interpreter, target, index)
    items = target.items if isinstance(target, ListRef) else target
    if isinstance(index, torch.SymInt):
        return _pick(interpreter, target, index)
    try:
        return _checked(items[index])
    except IndexError:
        raise ScriptValueError(f"The program reads item {index} of {len(items)} items.") from None


def _pick(interpreter: Interpreter, target: Any, index: torch.SymInt) -> Any:
    """Return the item at an index that only the runtime knows."""
    items = target.items if isinstance(target, ListRef) else target
    if items and all(isinstance(item, Tensor) for item in items):
        return _sequence_at(interpreter, target, index)
    if items and all(isinstance(item, bool | int | float | torch.SymInt) for item in items):
        op = interpreter.op
        kind = ir.DataType.DOUBLE if any(isinstance(item, float) for item in items) else ir.DataType.INT64
        table = op.Concat(*(op.Unsqueeze(interpreter.scalars.to_value(item, kind), [0]) for item in items), axis=0)
        return interpreter.scalars.runtime(op.Gather(table, _position(interpreter, index), axis=0))
    raise ScriptValueError("An item of a list is read at an index that only the runtime knows.")


def _checked(item: Any) -> Any:
    if isinstance(item, Poison):
        raise item.error()
    if isinstance(item, Uninitialized):
        raise ScriptValueError("The program reads a variable that has no value.")
    return item


def _append(interpreter: Interpreter, target: ListRef, item: Any) -> ListRef:
    if _is_dynamic(target):
        _sequence_insert(interpreter, target, None, item)
    else:
        interpreter.heap.write(target, (*target.items, item))
    return target


def _insert(interpreter: Interpreter, target: ListRef, index: Any, item: Any) -> None:
    if _is_dynamic(target, index):
        _sequence_insert(interpreter, target, index, item)
        return
    items = list(target.items)
    items.insert(index, item)
    interpreter.heap.write(target, tuple(items))


def _pop(interpreter: Interpreter, target: ListRef, index: Any = -1) -> Any:
    if _is_dynamic(target, index):
        taken = _sequence_at(interpreter, target, index)
        _delete(interpreter, target, index)
        return taken
    items = list(target.items)
    taken = items.pop(index)
    interpreter.heap.write(target, tuple(items))
    return taken


def _delete(interpreter: Interpreter, target: Any, index: Any) -> None:
    if isinstance(target, DictRef):
        interpreter.heap.write(target, {key: item for key, item in target.items.items() if key != index})
        return
    if _is_dynamic(target, index):
        state = as_sequence(interpreter, target)
        inputs = [state.value, _position(interpreter, index)]
        outputs = interpreter.op.emit_custom("", "SequenceErase", inputs, {}, [to_ir(state.element.dtype)])
        interpreter.heap.write(target, sequence_state(interpreter, outputs[0], state.element))
        return
    items = list(target.items)
    del items[index]
    interpreter.heap.write(target, tuple(items))


def _set_item(interpreter: Interpreter, target: Any, index: Any, item: Any) -> Any:
    if isinstance(target, DictRef):
        interpreter.heap.write(target, {**target.items, index: item})
        return None
    if _is_dynamic(target, index):
        # Inserted before it is erased: a negative index still counts from the same end then.
        state = as_sequence(interpreter, target)
        op = interpreter.op
        position = _position(interpreter, index)
        length = op.emit_custom("", "SequenceLength", [state.value], {}, [ir.DataType.INT64], shapes=[()])[0]
        position = op.Where(op.Less(position, 0), op.Add(position, length), position)
        index = interpreter.metadata.runtime_int(position)
        _delete(interpreter, target, index)
        _sequence_insert(interpreter, target, index, item)
        return target
    items = list(target.items)
    items[index] = item
    interpreter.heap.write(target, tuple(items))
    return target


def _extend(interpreter: Interpreter, target: ListRef, other: ListRef) -> ListRef:
    if _is_dynamic(other):
        raise ScriptValueError("A list is extended by one whose length only the runtime knows.")
    for item in other.items:
        _append(interpreter, target, item)
    return target


def _clear(interpreter: Interpreter, target: Any) -> None:
    interpreter.heap.write(target, () if isinstance(target, ListRef) else {})


def _add(interpreter: Interpreter, a: ListRef, b: ListRef) -> ListRef:
    return ListRef(interpreter.heap, (*a.items, *b.items))


def _multiply(interpreter: Interpreter, a: Any, b: Any) -> ListRef:
    target, count = (a, b) if isinstance(a, ListRef) else (b, a)
    return ListRef(interpreter.heap, target.items * count)


def _slice(interpreter: Interpreter, target: Any, start: Any = None, end: Any = None, step: int = 1) -> Any:
    items = target.items if isinstance(target, ListRef) else target
    part = items[slice(start, end, step)]
    return ListRef(interpreter.heap, part) if isinstance(target, ListRef) else part


def _copy(interpreter: Interpreter, target: Any) -> Any:
    if isinstance(target, DictRef):
        return DictRef(interpreter.heap, target.items)
    return ListRef(interpreter.heap, tuple(target) if isinstance(target, str | tuple) else target.state)


def _reverse(interpreter: Interpreter, target: ListRef) -> None:
    interpreter.heap.write(target, target.items[::-1])


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
    if any(is_runtime(item) or isinstance(item, Tensor) for item in target.items):
        raise ScriptValueError("A list is sorted whose items only the runtime knows.")
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
        result = items[0]
        for item in items[1:]:
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


def _format(interpreter: Interpreter, text: str, *args: Any) -> Any:
    """Return the text, or a poison where a part of it is known at run time only."""
    if any(is_runtime(arg) or isinstance(arg, Tensor | Poison) for arg in args):
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
