"""How a variable goes through a loop: unchanged, as a number, as a tensor, as a sequence, or made up of such."""

from __future__ import annotations

import dataclasses
from abc import ABC, abstractmethod
from collections.abc import Iterator
from typing import Any

import onnx_ir as ir
import torch

from onnx_ts_legacy.calls.number_lists import as_vector, kind_of_numbers
from onnx_ts_legacy.calls.sequences import common_form, own_sequence, require_in_body, sequence_state
from onnx_ts_legacy.errors import ControlFlowError, ScriptValueError
from onnx_ts_legacy.state.attributes import attribute_before, read_attribute
from onnx_ts_legacy.state.context import ConversionContext
from onnx_ts_legacy.state.numbers import number_value, runtime_number
from onnx_ts_legacy.state.slots import unnamed
from onnx_ts_legacy.state.values import (
    Content,
    DictRef,
    ListRef,
    Maybe,
    Mutable,
    ObjectRef,
    Poison,
    RuntimeBool,
    RuntimeFloat,
    SequenceState,
    Stale,
    Storage,
    Tensor,
    Uninitialized,
    VectorState,
    presence,
)
from onnx_ts_legacy.state.variables import content_value, value_of, zeros
from onnxops_decomp.exporting import is_complex, mark_complex, to_ir, to_torch

__all__ = ["Carried", "Number", "Plan", "Same", "joined", "plan_of_state"]

_NUMBERS = (bool, int, float, torch.SymInt, RuntimeBool, RuntimeFloat)


class Plan(ABC):
    """How one variable, or the contents of one object, is carried."""

    @abstractmethod
    def enter(self, context: ConversionContext) -> Any:
        """Return the variable at the start of an iteration; adds the inputs of the body that it needs."""

    @abstractmethod
    def leave(self, context: ConversionContext, value: Any) -> list[ir.Value]:
        """Return the values that carry ``value``."""

    @abstractmethod
    def take(self, context: ConversionContext, initial: Any, values: Iterator[ir.Value]) -> Any:
        """Return the variable after the loop, whose outputs ``values`` are."""

    # The same for the contents of an object.

    def enter_state(self, context: ConversionContext, target: Mutable) -> None:
        """Set the contents of ``target`` at the start of an iteration."""
        context.heap.write(target, self.enter(context))

    def leave_state(self, context: ConversionContext, target: Mutable) -> list[ir.Value]:
        """Return the values that carry the contents of ``target``."""
        return self.leave(context, target.state)

    def take_state(self, context: ConversionContext, target: Mutable, values: Iterator[ir.Value]) -> None:
        """Set the contents of ``target`` after the loop."""
        context.heap.write(target, self.take(context, target.state, values))

    def joined_state(self, context: ConversionContext, target: Mutable, symbols: int) -> Plan:
        """Return the plan that also fits what ``target`` holds now."""
        return joined(context, self, target.state, symbols)


class Same(Plan):
    """The variable stays what it was before the loop."""

    def __init__(self, value: Any) -> None:
        self.value = value

    def enter(self, context: ConversionContext) -> Any:
        return self.value

    def leave(self, context: ConversionContext, value: Any) -> list[ir.Value]:
        return []

    def take(self, context: ConversionContext, initial: Any, values: Iterator[ir.Value]) -> Any:
        return self.value


class Number(Plan):
    """A number or truth value."""

    def __init__(self, dtype: ir.DataType) -> None:
        self.dtype = dtype

    def enter(self, context: ConversionContext) -> Any:
        return runtime_number(context, context.op.input("carried", self.dtype, ()))

    def leave(self, context: ConversionContext, value: Any) -> list[ir.Value]:
        if isinstance(value, Uninitialized):
            return [context.op.constant(0, self.dtype)]
        return [number_value(context, value)]

    def take(self, context: ConversionContext, initial: Any, values: Iterator[ir.Value]) -> Any:
        value = next(values)
        value.shape = ir.Shape(())
        return runtime_number(context, value)


@dataclasses.dataclass(eq=False)
class Carried(Plan):
    """A tensor.

    Attributes:
        dtype: Its dtype.
        sizes: Its sizes, None where they change from one iteration to the next.
        complex: Whether it is complex.
        aliases: Memories older than the loop that it may show.
        filled: Whether zeros of other sizes stand for it where it has no value, and nothing reads it.
    """

    dtype: torch.dtype
    sizes: tuple[Any, ...]
    complex: bool
    aliases: tuple[Storage, ...]
    filled: bool = False

    def _form(self, context: ConversionContext) -> tuple[Any, tuple[Any, ...]]:
        metadata = context.metadata
        fake = metadata.empty(self.dtype, [metadata.unknown_size() if size is None else size for size in self.sizes])
        dims = metadata.symbols.dims(fake)
        if self.filled:
            dims = unnamed(dims)
        return fake, ((*dims, 2) if self.complex else dims)

    def _variable(self, context: ConversionContext, value: ir.Value, fake: Any) -> Tensor:
        tensor = context.fresh(mark_complex(value) if self.complex else value, fake)
        for storage in self.aliases:
            tensor.storage.link(storage)
        return tensor

    def enter(self, context: ConversionContext) -> Any:
        fake, dims = self._form(context)
        return self._variable(context, context.op.input("carried", to_ir(self.dtype), dims), fake)

    def leave(self, context: ConversionContext, value: Any) -> list[ir.Value]:
        if isinstance(value, Uninitialized):
            return [zeros(context, self.dtype, [1 if not isinstance(s, int) else s for s in self.sizes])]
        return [value_of(context, value)]

    def take(self, context: ConversionContext, initial: Any, values: Iterator[ir.Value]) -> Any:
        value = next(values)
        fake, dims = self._form(context)
        value.shape = ir.Shape(dims)
        return self._variable(context, value, fake)

    def enter_state(self, context: ConversionContext, target: Mutable) -> None:
        context.heap.write(target, Content(self._value(self.enter(context))))

    def leave_state(self, context: ConversionContext, target: Mutable) -> list[ir.Value]:
        content: Content = target.state
        return [content_value(context, content)]

    def take_state(self, context: ConversionContext, target: Mutable, values: Iterator[ir.Value]) -> None:
        context.heap.write(target, Content(self._value(self.take(context, None, values))))

    def joined_state(self, context: ConversionContext, target: Mutable, symbols: int) -> Plan:
        return StaleContents(target.state) if isinstance(target.state, Stale) else self

    def _value(self, tensor: Tensor) -> ir.Value:
        value = tensor.storage.state.value
        assert value is not None
        return value  # type: ignore[no-any-return]


class StaleContents(Same):
    """Contents of a memory that is written through another one in the body, so that they must not be read."""

    def joined_state(self, context: ConversionContext, target: Mutable, symbols: int) -> Plan:
        return self


class Sequence(Plan):
    """Contents of a list that changes its length."""

    def __init__(self, element: Any, shown: tuple[Storage, ...]) -> None:
        self.element, self.shown = element, shown

    def enter(self, context: ConversionContext) -> Any:
        require_in_body(context)
        value = context.op.input("carried", None, None)
        return sequence_state(context, value, self.element, self.shown)

    def leave(self, context: ConversionContext, value: Any) -> list[ir.Value]:
        holder = ListRef(context.heap, value)
        return [own_sequence(context, holder, self.element).value]

    def take(self, context: ConversionContext, initial: Any, values: Iterator[ir.Value]) -> Any:
        return sequence_state(context, next(values), self.element, self.shown)


class Vector(Plan):
    """Contents of a list of numbers that changes its length."""

    def __init__(self, dtype: torch.dtype) -> None:
        self.dtype = dtype
        self._tensor = Carried(dtype, (None,), False, ())

    def enter(self, context: ConversionContext) -> Any:
        return VectorState(self._tensor.enter(context))

    def leave(self, context: ConversionContext, value: Any) -> list[ir.Value]:
        return self._tensor.leave(context, as_vector(context, value, self.dtype).tensor)

    def take(self, context: ConversionContext, initial: Any, values: Iterator[ir.Value]) -> Any:
        return VectorState(self._tensor.take(context, None, values))


class Group(Plan):
    """A tuple, or the contents of a list or dict that keeps its length: each item by itself."""

    def __init__(self, items: dict[Any, Plan], make: Any) -> None:
        self.items, self.make = items, make

    def enter(self, context: ConversionContext) -> Any:
        return self.make({key: plan.enter(context) for key, plan in self.items.items()})

    def leave(self, context: ConversionContext, value: Any) -> list[ir.Value]:
        items = dict.fromkeys(self.items, value) if isinstance(value, Uninitialized) else _items(value)
        return [x for key, plan in self.items.items() for x in plan.leave(context, items.get(key))]

    def take(self, context: ConversionContext, initial: Any, values: Iterator[ir.Value]) -> Any:
        before = _items(initial)
        return self.make({k: plan.take(context, before.get(k), values) for k, plan in self.items.items()})


class Object(Group):
    """Attributes of an object."""

    def leave_state(self, context: ConversionContext, target: Mutable) -> list[ir.Value]:
        return self.leave(context, _attributes(context, target, self.items))

    def joined_state(self, context: ConversionContext, target: Mutable, symbols: int) -> Plan:
        now = _attributes(context, target, target.state)
        fits = all(key in self.items for key in now)
        items: dict[Any, Plan] = {}
        for key, value in now.items():
            before = self.items.get(key) or Same(attribute_before(context, target, key))
            items[key] = joined(context, before, value, symbols)
            fits &= items[key] is before
        return self if fits else Object(items, dict)


def _attributes(context: ConversionContext, target: Mutable, names: Any) -> dict[str, Any]:
    return {name: read_attribute(context, target, name) for name in names}


class Optional(Plan):
    """A variable that is None in some iterations."""

    def __init__(self, value: Plan) -> None:
        self.value = value

    def enter(self, context: ConversionContext) -> Any:
        present = RuntimeBool(context.op.input("present", ir.DataType.BOOL, ()))
        return Maybe(present, self.value.enter(context))

    def leave(self, context: ConversionContext, value: Any) -> list[ir.Value]:
        present, inner = presence(value)
        return [number_value(context, present), *self.value.leave(context, inner)]

    def take(self, context: ConversionContext, initial: Any, values: Iterator[ir.Value]) -> Any:
        present = next(values)
        present.shape = ir.Shape(())
        return Maybe(RuntimeBool(present), self.value.take(context, presence(initial)[1], values))


class NewList(Plan):
    """A list that the body replaces by another one."""

    def __init__(self, contents: Plan) -> None:
        self.contents = contents

    def enter(self, context: ConversionContext) -> Any:
        return ListRef(context.heap, self.contents.enter(context))

    def leave(self, context: ConversionContext, value: Any) -> list[ir.Value]:
        return self.contents.leave(context, value.state)

    def take(self, context: ConversionContext, initial: Any, values: Iterator[ir.Value]) -> Any:
        return ListRef(context.heap, self.contents.take(context, initial.state, values))


def _items(value: Any) -> dict[Any, Any]:
    if isinstance(value, dict):
        return value
    return dict(enumerate(value)) if isinstance(value, tuple) else {}


def _tuple(items: dict[Any, Any]) -> tuple[Any, ...]:
    return tuple(items.values())


def plan_of_state(context: ConversionContext, target: Mutable, before: Any) -> Plan | None:
    """Return the first plan for the contents of an object that a loop changes; None if it need not be carried."""
    if isinstance(target, Storage):
        fake = target.fake
        if fake is None:
            raise ControlFlowError("A tensor of several possible ranks is changed in place in a loop.")
        return Carried(fake.dtype, tuple(fake.shape), fake.is_complex(), ())
    if isinstance(target, Tensor):
        if target.state[0] is before[0]:
            return None
        raise ControlFlowError("The shape of a tensor that is older than a loop is changed in place in it.")
    if isinstance(target, ObjectRef):
        return Object({}, dict)
    return _state_plan(context, before)


def _state_plan(context: ConversionContext, state: Any) -> Plan:
    if isinstance(state, SequenceState):
        return Sequence(state.element, _older(context, [state.memory]))
    if isinstance(state, VectorState):
        return Vector(state.dtype)
    make = dict if isinstance(state, dict) else _tuple
    return Group({key: Same(value) for key, value in _items(state).items()}, make)


def joined(context: ConversionContext, plan: Plan, value: Any, symbols: int) -> Plan:
    """Return ``plan`` if it fits what an iteration leaves in a variable, else a wider one.

    Raises:
        ControlFlowError: If ONNX has nothing that holds both.
    """
    if isinstance(value, Poison):
        raise value.error()
    if isinstance(plan, Same):
        if _unchanged(plan.value, value):
            return plan
        return _widened(context, plan.value, value, symbols)
    if isinstance(plan, Optional):
        inner = joined(context, plan.value, presence(value)[1], symbols)
        return plan if inner is plan.value else Optional(inner)
    if isinstance(value, Uninitialized):
        return _filled(plan)
    if value is None or isinstance(value, Maybe):
        inner = joined(context, plan, presence(value)[1], symbols)
        return Optional(inner)
    if isinstance(plan, Number):
        kind = kind_of_numbers((value,))
        if kind is None or to_ir(kind) != plan.dtype:
            raise ControlFlowError("A variable of a loop holds numbers of different types.")
        return plan
    if isinstance(plan, Carried):
        return _wider_tensor(context, plan, value, symbols)
    if isinstance(plan, NewList):
        contents = joined(context, plan.contents, value.state, symbols)
        return plan if contents is plan.contents else NewList(contents)
    if isinstance(plan, Group):
        return _wider_group(context, plan, value, symbols)
    if isinstance(plan, Sequence):
        return _wider_sequence(context, plan, value, symbols)
    if isinstance(plan, Vector) and kind_of_numbers(value) in (plan.dtype, None) and _is_list(value):
        return plan
    raise ControlFlowError("A variable of a loop changes its type.")


def _filled(plan: Plan) -> Plan:
    """Return the plan for a variable that has no value in some iterations."""
    if isinstance(plan, Carried) and not plan.filled:
        return dataclasses.replace(plan, filled=True)
    if isinstance(plan, Group):
        items = {key: _filled(item) for key, item in plan.items.items()}
        return plan if all(items[key] is plan.items[key] for key in items) else Group(items, plan.make)
    return plan


def _unchanged(before: Any, after: Any) -> bool:
    if before is after:
        return True
    if isinstance(before, torch.SymInt) or isinstance(after, torch.SymInt):
        return type(before) is type(after) and str(before) == str(after)
    return type(before) is type(after) and isinstance(before, bool | int | float | str) and before == after


def _widened(context: ConversionContext, before: Any, after: Any, symbols: int) -> Plan:
    if before is None or after is None or isinstance(before, Maybe) or isinstance(after, Maybe):
        left, right = presence(before)[1], presence(after)[1]
        return Optional(_widened(context, left, right, symbols))
    if isinstance(after, Uninitialized):
        before, after = after, before
    if isinstance(before, Uninitialized) and isinstance(after, Tensor):
        return _filled(_tensor_plan(context, [after], symbols))
    if isinstance(before, Uninitialized) and isinstance(after, _NUMBERS):
        dtype = number_value(context, after).dtype
        assert dtype is not None
        return Number(dtype)
    if isinstance(before, Uninitialized) and isinstance(after, tuple):
        before = (before,) * len(after)
    if isinstance(before, Tensor) and isinstance(after, Tensor):
        return _tensor_plan(context, [before, after], symbols)
    if isinstance(before, _NUMBERS) and isinstance(after, _NUMBERS):
        first, second = number_value(context, before).dtype, number_value(context, after).dtype
        if first != second or first is None:
            raise ControlFlowError("A variable of a loop holds numbers of different types.")
        return Number(first)
    if isinstance(before, tuple) and isinstance(after, tuple) and len(before) == len(after):
        start = Group({key: Same(item) for key, item in enumerate(before)}, _tuple)
        return _wider_group(context, start, after, symbols)
    if isinstance(before, ListRef) and isinstance(after, ListRef):
        return NewList(joined(context, _state_plan(context, before.state), after.state, symbols))
    if isinstance(before, DictRef) and isinstance(after, DictRef):
        raise ControlFlowError("A loop replaces a dict by another one; change the entries of one dict instead.")
    kinds = " and ".join(type(x).__name__ for x in (before, after))
    raise ControlFlowError(f"A variable of a loop changes its type ({kinds}); ONNX carries tensors and numbers only.")


def _tensor_plan(context: ConversionContext, tensors: list[Tensor], symbols: int) -> Carried:
    forms = [tensor.fake for tensor in tensors]
    try:
        form = common_form(context, forms)
    except ScriptValueError:
        kinds = ", ".join(f"{form.dtype} of rank {form.dim()}" for form in forms)
        raise ControlFlowError(f"A tensor changes its dtype or rank from one iteration to the next: {kinds}.") from None
    sizes = tuple(size if context.metadata.is_older(size, symbols) else None for size in form.shape)
    aliases = _older(context, [tensor.storage for tensor in tensors])
    return Carried(form.dtype, sizes, is_complex(value_of(context, tensors[0])), aliases)


def _wider_tensor(context: ConversionContext, plan: Carried, value: Any, symbols: int) -> Plan:
    if not isinstance(value, Tensor):
        raise ControlFlowError("A variable of a loop is a tensor in one iteration and not in the next.")
    fake = value.fake
    if fake.dtype != plan.dtype or fake.dim() != len(plan.sizes):
        raise ControlFlowError(
            f"A tensor changes from {plan.dtype} of rank {len(plan.sizes)} to {fake.dtype} of rank {fake.dim()} "
            "from one iteration to the next."
        )
    sizes = tuple(
        size if size is not None and str(size) == str(now) else None
        for size, now in zip(plan.sizes, fake.shape, strict=True)
    )
    same = all((a is None) == (b is None) for a, b in zip(sizes, plan.sizes, strict=True))
    aliases = tuple(dict.fromkeys((*plan.aliases, *_older(context, [value.storage]))))
    fits = same and len(aliases) == len(plan.aliases)
    return plan if fits else dataclasses.replace(plan, sizes=sizes, aliases=aliases)


def _wider_group(context: ConversionContext, plan: Group, value: Any, symbols: int) -> Plan:
    items = _items(value) if not isinstance(value, SequenceState | VectorState) else None
    if items is None or items.keys() != plan.items.keys():
        if plan.make is not _tuple:
            raise ControlFlowError("A loop adds keys to a dict or takes some away; ONNX has no dicts.")
        return _as_list_plan(context, plan, value, symbols)
    new = {key: joined(context, plan.items[key], item, symbols) for key, item in items.items()}
    return plan if all(new[key] is plan.items[key] for key in new) else Group(new, plan.make)


def _is_list(state: Any) -> bool:
    return isinstance(state, VectorState | tuple)


def _as_list_plan(context: ConversionContext, plan: Group, value: Any, symbols: int) -> Plan:
    """Return the plan for a list that changes its length: a vector of numbers, or a sequence of tensors."""
    known = [item.value for item in plan.items.values() if isinstance(item, Same)]
    numbers = {item.dtype for item in plan.items.values() if isinstance(item, Number)}
    kind = kind_of_numbers(value) or kind_of_numbers(tuple(known)) or next(map(to_torch, numbers), None)
    if kind is not None:
        return Vector(kind)
    forms = [item.fake for item in known if isinstance(item, Tensor)]
    if isinstance(value, SequenceState):
        forms.append(value.element)
    else:
        forms.extend(item.fake for item in value if isinstance(item, Tensor))
        if not all(isinstance(item, Tensor) for item in value):
            raise ControlFlowError("A list of other things than tensors or numbers changes its length in a loop.")
    tensors = [item for item in known if isinstance(item, Tensor)]
    shown = _older(context, [*(item.storage for item in tensors), *_memories(value)])
    return Sequence(_outer(context, common_form(context, forms), symbols), shown)


def _memories(state: SequenceState | tuple[Tensor, ...]) -> list[Storage]:
    return [state.memory] if isinstance(state, SequenceState) else [item.storage for item in state]


def _older(context: ConversionContext, storages: list[Storage]) -> tuple[Storage, ...]:
    """Return the memories older than the body that others may be the same as."""
    shown = dict.fromkeys(other for storage in storages for other in storage.shown)
    return tuple(filter(context.heap.is_older, shown))


def _outer(context: ConversionContext, form: Any, symbols: int) -> Any:
    metadata = context.metadata
    sizes = [size if metadata.is_older(size, symbols) else metadata.unknown_size() for size in form.shape]
    return metadata.empty(form.dtype, sizes)


def _wider_sequence(context: ConversionContext, plan: Sequence, value: Any, symbols: int) -> Plan:
    if isinstance(value, SequenceState):
        forms = [plan.element, value.element]
    else:
        forms = [plan.element, *(item.fake for item in value)]
    if len({(form.dtype, form.dim()) for form in forms}) > 1:
        raise ControlFlowError("The tensors of a list change their dtype or rank from one iteration to the next.")
    sizes = tuple(zip(*(form.shape for form in forms), strict=True))
    shown = tuple(dict.fromkeys((*plan.shown, *_older(context, _memories(value)))))
    wanted = [s[0] if all(isinstance(x, int) and x == s[0] for x in s) else None for s in sizes]
    if all((w is None) == (not isinstance(s, int)) for w, s in zip(wanted, plan.element.shape, strict=True)):
        return plan if len(shown) == len(plan.shown) else Sequence(plan.element, shown)
    return Sequence(_outer(context, common_form(context, forms), symbols), shown)
