"""How a variable is carried through an ONNX If or Loop: not at all, as a number, a tensor, a sequence, or in parts.

A plan says which values of ONNX stand for a variable. Where paths of the program meet, the plans of what they leave are
joined to one that fits all of them (:mod:`~onnx_ts_legacy.control_flow.junctions`); each path then gives its values,
and the results of the node become the variable that the program goes on with.
"""

from __future__ import annotations

import dataclasses
import enum
from abc import ABC, abstractmethod
from collections.abc import Iterator
from typing import Any, ClassVar

import onnx_ir as ir
import torch

from onnx_ts_legacy.calls.number_lists import as_vector
from onnx_ts_legacy.calls.sequences import own_sequence, require_in_body, sequence_state
from onnx_ts_legacy.errors import ControlFlowError, ScriptValueError
from onnx_ts_legacy.state.context import ConversionContext
from onnx_ts_legacy.state.numbers import number_value, runtime_number
from onnx_ts_legacy.state.pairs import held_as, held_dims
from onnx_ts_legacy.state.slots import unnamed
from onnx_ts_legacy.state.values import (
    DictRef,
    ListRef,
    Maybe,
    ObjectRef,
    Poison,
    RuntimeBool,
    Storage,
    Tensor,
    Uninitialized,
    VectorState,
    presence,
)
from onnx_ts_legacy.state.variables import size_of, value_of, zeros
from onnxops_decomp.exporting import to_ir

__all__ = [
    "Carried",
    "Group",
    "Joiner",
    "ListContents",
    "ListItems",
    "NewContainer",
    "Number",
    "Optional",
    "Plan",
    "Poisoned",
    "Same",
    "Sequence",
    "Unset",
    "Vector",
    "next_shaped",
    "wide",
]


class Plan(ABC):
    """How one variable, or the contents of one object, is carried.

    Attributes:
        called: What messages call it.
    """

    called = "a value"

    def enter(self, context: ConversionContext) -> Any:
        """Return the variable at the start of an iteration; adds the inputs of the body that it needs."""
        return self.take(context, iter(()))

    def leave(self, context: ConversionContext, value: Any) -> list[ir.Value]:
        """Return the values that stand for ``value``, which may be uninitialized."""
        return []

    @abstractmethod
    def take(self, context: ConversionContext, values: Iterator[ir.Value]) -> Any:
        """Return the variable behind the node, whose outputs ``values`` are."""

    def joined(self, other: Any, joiner: Joiner) -> Plan:
        """Return this plan if it also fits what ``other``, of the same type, is for; else a wider one.

        Raises:
            ScriptValueError: If ONNX has nothing that holds both.
        """
        return self

    def filled(self, joiner: Joiner) -> Plan:
        """Return the plan for a variable that has no value on some paths."""
        return self


class Joiner(ABC):
    """Joins plans where paths of the program meet.

    Attributes:
        allows_ranks: Whether a tensor may have several ranks there.
    """

    allows_ranks: ClassVar[bool]

    @abstractmethod
    def join(self, first: Plan, second: Plan) -> Plan:
        """Return ``first`` if it also fits what ``second`` is for, else a wider plan."""

    @abstractmethod
    def mismatch(self, what: str, first: object, second: object) -> ScriptValueError:
        """Return the exception for something that is ``first`` on one path and ``second`` on another."""

    @abstractmethod
    def one_sided(self, plan: Plan) -> Plan:
        """Return the plan of a variable, or of an item, that has no value on some paths: nothing reads it there."""

    @abstractmethod
    def attribute_before(self, target: ObjectRef, name: str) -> Plan:
        """Return the plan of an attribute as it was before the paths parted."""

    def join_items(self, first: dict[Any, Plan], second: dict[Any, Plan]) -> dict[Any, Plan]:
        """Return the joined plans of items that stand at the same keys; ``first`` itself if it fits."""
        items = {key: self.join(plan, second[key]) for key, plan in first.items()}
        return first if all(items[key] is first[key] for key in first) else items


class Same(Plan):
    """The variable stays what it was before.

    Attributes:
        value: What it is.
        wider: The plan that carries it; None for what ONNX has no values for.
    """

    def __init__(self, value: Any, wider: Plan | None) -> None:
        self.value, self.wider = value, wider
        is_member = isinstance(value, enum.Enum)
        named = str(value) if is_member else repr(value) if isinstance(value, str) else f"a {type(value).__name__}"
        self.called = named if wider is None else wider.called

    def take(self, context: ConversionContext, values: Iterator[ir.Value]) -> Any:
        return self.value


def wide(plan: Plan) -> Plan | None:
    """Return a plan for a variable that does not stay what it was."""
    return plan.wider if isinstance(plan, Same) else plan


class Unset(Plan):
    """The variable has no value on any path so far."""

    def take(self, context: ConversionContext, values: Iterator[ir.Value]) -> Any:
        return Uninitialized()


@dataclasses.dataclass(eq=False)
class Poisoned(Plan):
    """The variable, or the contents of an object, cannot be held; that matters only if they are read."""

    poison: Poison

    def take(self, context: ConversionContext, values: Iterator[ir.Value]) -> Any:
        return self.poison


@dataclasses.dataclass(eq=False)
class Number(Plan):
    """A number or truth value."""

    dtype: ir.DataType

    def __post_init__(self) -> None:
        names = {ir.DataType.INT64: "an int", ir.DataType.DOUBLE: "a float", ir.DataType.BOOL: "a bool"}
        self.called = names[self.dtype]

    def enter(self, context: ConversionContext) -> Any:
        return runtime_number(context, context.op.input("carried", self.dtype, ()))

    def leave(self, context: ConversionContext, value: Any) -> list[ir.Value]:
        if isinstance(value, Uninitialized):
            return [context.op.constant(0, self.dtype)]
        return [number_value(context, value)]

    def take(self, context: ConversionContext, values: Iterator[ir.Value]) -> Any:
        return runtime_number(context, next_shaped(values, ()))

    def joined(self, other: Number, joiner: Joiner) -> Plan:
        if other.dtype != self.dtype:
            raise joiner.mismatch("A number", self.called, other.called)
        return self


Sizes = tuple[Any, ...]


@dataclasses.dataclass(eq=False)
class Carried(Plan):
    """A tensor.

    Attributes:
        dtype: Its dtype.
        shapes: The sizes that it may have, for each rank; None where they differ from path to path.
        aliases: Memories beside the node that it may show.
        filled_in: Whether zeros of other sizes stand for it where it has no value, and nothing reads it.
    """

    dtype: torch.dtype
    shapes: tuple[Sizes, ...]
    aliases: tuple[Storage, ...] = ()
    filled_in: bool = False
    called = "a tensor"

    def forms(self, context: ConversionContext) -> list[Any]:
        """Return the forms that the tensor may have, with new symbols for sizes that are not known."""
        metadata = context.metadata
        return [
            metadata.empty(self.dtype, [metadata.unknown_size() if size is None else size for size in sizes])
            for sizes in self.shapes
        ]

    def _dims(self, context: ConversionContext, forms: list[Any]) -> tuple[Any, ...] | None:
        if len(forms) > 1:
            return None
        dims = context.metadata.symbols.dims(forms[0])
        if self.filled_in:
            dims = unnamed(dims)
        return held_dims(dims, self.dtype)

    def _variable(self, context: ConversionContext, value: ir.Value, forms: list[Any]) -> Tensor:
        tensor = context.fresh(held_as(value, self.dtype), *forms)
        for storage in self.aliases:
            tensor.storage.link(storage)
        if len(forms) == 1:
            for axis in (axis for axis, size in enumerate(self.shapes[0]) if size is None):
                size_of(context, tensor, axis)
        return tensor

    def enter(self, context: ConversionContext) -> Any:
        forms = self.forms(context)
        return self._variable(
            context, context.op.input("carried", to_ir(self.dtype), self._dims(context, forms)), forms
        )

    def leave(self, context: ConversionContext, value: Any) -> list[ir.Value]:
        if not isinstance(value, Uninitialized):
            return [value_of(context, value)]
        sizes = [size if isinstance(size, int) else 1 for size in self.shapes[0]]
        return [zeros(context, self.dtype, held_dims(tuple(sizes), self.dtype))]

    def take(self, context: ConversionContext, values: Iterator[ir.Value]) -> Any:
        forms = self.forms(context)
        return self._variable(context, next_shaped(values, self._dims(context, forms)), forms)

    def joined(self, other: Carried, joiner: Joiner) -> Plan:
        if self.dtype != other.dtype:
            raise joiner.mismatch("A tensor", self.dtype, other.dtype)
        ranks, others = ({len(sizes): sizes for sizes in plan.shapes} for plan in (self, other))
        if ranks.keys() != others.keys() and not joiner.allows_ranks:
            raise joiner.mismatch("A tensor", *(f"of rank {' or '.join(map(str, known))}" for known in (ranks, others)))
        shapes = {**others, **ranks}
        for rank in ranks.keys() & others.keys():
            shapes[rank] = _common_sizes(ranks[rank], others[rank])
        aliases = tuple(dict.fromkeys((*self.aliases, *other.aliases)))
        filled = self.filled_in or other.filled_in
        fits = shapes.keys() == ranks.keys() and all(shapes[rank] is ranks[rank] for rank in ranks)
        if fits and len(aliases) == len(self.aliases) and filled == self.filled_in:
            return self
        # Told apart by their ranks, and by a size of 0 that the others do not have.
        return Carried(self.dtype, tuple(shapes[rank] for rank in sorted(shapes)), aliases, filled)

    def filled(self, joiner: Joiner) -> Plan:
        return self if self.filled_in else dataclasses.replace(self, filled_in=True)


def _common_sizes(first: Sizes, second: Sizes) -> Sizes:
    """Return the sizes that are the same in both; ``first`` itself if all of its known ones are."""
    same = [a is None or (b is not None and str(a) == str(b)) for a, b in zip(first, second, strict=True)]
    return first if all(same) else tuple(a if kept else None for a, kept in zip(first, same, strict=True))


def next_shaped(values: Iterator[ir.Value], dims: tuple[Any, ...] | None) -> ir.Value:
    """Return the next output of a node, its shape set; what all paths share has one already."""
    value = next(values)
    if value.shape is None and dims is not None:
        value.shape = ir.Shape(dims)
    return value


@dataclasses.dataclass(eq=False)
class Optional(Plan):
    """A variable that is None on some paths."""

    value: Plan
    called = "None"

    def enter(self, context: ConversionContext) -> Any:
        present = RuntimeBool(context.op.input("present", ir.DataType.BOOL, ()))
        return Maybe(present, self.value.enter(context))

    def leave(self, context: ConversionContext, value: Any) -> list[ir.Value]:
        present, inner = presence(value)
        return [number_value(context, present), *self.value.leave(context, inner)]

    def take(self, context: ConversionContext, values: Iterator[ir.Value]) -> Any:
        present = RuntimeBool(next_shaped(values, ()))
        return Maybe(present, self.value.take(context, values))

    def joined(self, other: Optional, joiner: Joiner) -> Plan:
        value = joiner.join(self.value, other.value)
        return self if value is self.value else Optional(value)

    def filled(self, joiner: Joiner) -> Plan:
        value = joiner.one_sided(self.value)
        return self if value is self.value else Optional(value)


# ---- containers


class Group(Plan):
    """A tuple, or the contents of a dict: each item by itself."""

    def __init__(self, items: dict[Any, Plan], make: type[tuple[Any, ...]] | type[dict[Any, Any]]) -> None:
        self.items, self.make = items, make
        self.called = f"a {make.__name__}"

    def _made(self, items: dict[Any, Any]) -> Any:
        return items if self.make is dict else tuple(items.values())

    def enter(self, context: ConversionContext) -> Any:
        return self._made({key: plan.enter(context) for key, plan in self.items.items()})

    def leave(self, context: ConversionContext, value: Any) -> list[ir.Value]:
        given = dict.fromkeys(self.items, value) if isinstance(value, Uninitialized) else value
        return [output for key, plan in self.items.items() for output in plan.leave(context, given[key])]

    def take(self, context: ConversionContext, values: Iterator[ir.Value]) -> Any:
        return self._made({key: plan.take(context, values) for key, plan in self.items.items()})

    def joined(self, other: Group, joiner: Joiner) -> Plan:
        if self.items.keys() != other.items.keys():
            what = "A dict" if self.make is dict else "A tuple"
            raise joiner.mismatch(what, f"of {_keys(self)}", f"of {_keys(other)}")
        items = joiner.join_items(self.items, other.items)
        return self if items is self.items else type(self)(items, self.make)

    def filled(self, joiner: Joiner) -> Plan:
        items = {key: joiner.one_sided(plan) for key, plan in self.items.items()}
        return self if all(items[key] is self.items[key] for key in items) else type(self)(items, self.make)


def _keys(plan: Group) -> str:
    return f"keys {list(plan.items)}" if plan.make is dict else f"{len(plan.items)} items"


class ListContents(Plan):
    """Contents of a list."""

    @abstractmethod
    def varying(self, joiner: Joiner) -> Vector | Sequence | None:
        """Return the plan for a list whose length varies; None for an empty one, which fits all of them."""

    def joined(self, other: ListContents, joiner: Joiner) -> Plan:
        first, second = self.varying(joiner), other.varying(joiner)
        if first is None or second is None:
            found = first or second
            assert found is not None
            return found
        if type(first) is not type(second):
            raise joiner.mismatch("A list", "one of numbers", "one of tensors")
        return first.widened(second, joiner)  # type: ignore[arg-type]


class ListItems(Group, ListContents):
    """Contents of a list that keeps its length."""

    def joined(self, other: ListContents, joiner: Joiner) -> Plan:  # type: ignore[override]
        if isinstance(other, ListItems) and len(self.items) == len(other.items):
            return Group.joined(self, other, joiner)
        return ListContents.joined(self, other, joiner)

    def varying(self, joiner: Joiner) -> Vector | Sequence | None:
        items = [wide(item) for item in self.items.values()]
        numbers = {item.dtype for item in items if isinstance(item, Number)}
        tensors = [item for item in items if isinstance(item, Carried)]
        if not items:
            return None
        if all(isinstance(item, Number) for item in items):
            kinds = ((ir.DataType.DOUBLE, torch.float64), (ir.DataType.INT64, torch.int64))
            dtype = next((dtype for kind, dtype in kinds if kind in numbers), torch.bool)
            return Vector(Carried(dtype, ((len(items),),)))
        if len(tensors) < len(items):
            raise ControlFlowError(
                "A list of something other than tensors or numbers changes its length in a branch or loop."
            )
        sequence = Sequence(tensors[0])
        for tensor in tensors[1:]:
            sequence = sequence.widened(Sequence(tensor), joiner)
        return sequence


class Vector(ListContents):
    """Contents of a list of numbers that changes its length."""

    def __init__(self, tensor: Carried) -> None:
        self._tensor = tensor

    def enter(self, context: ConversionContext) -> Any:
        return VectorState(self._tensor.enter(context))

    def leave(self, context: ConversionContext, value: Any) -> list[ir.Value]:
        state = () if isinstance(value, Uninitialized) else value
        return self._tensor.leave(context, as_vector(context, state, self._tensor.dtype).tensor)

    def take(self, context: ConversionContext, values: Iterator[ir.Value]) -> Any:
        return VectorState(self._tensor.take(context, values))

    def varying(self, joiner: Joiner) -> Vector | Sequence | None:
        return self

    def widened(self, other: Vector, joiner: Joiner) -> Vector:
        """Return the plan that also fits another such list."""
        tensor = self._tensor.joined(other._tensor, joiner)
        assert isinstance(tensor, Carried)
        return self if tensor is self._tensor else Vector(tensor)

    def filled(self, joiner: Joiner) -> Plan:
        return Vector(dataclasses.replace(self._tensor, shapes=((None,),)))


class Sequence(ListContents):
    """Contents of a list of tensors that changes its length.

    Attributes:
        element: The plan of an element; its aliases are the memories that elements may show.
    """

    def __init__(self, element: Carried) -> None:
        self.element = element

    def enter(self, context: ConversionContext) -> Any:
        require_in_body(context)
        return self._state(context, context.op.input("carried", None, None))

    def leave(self, context: ConversionContext, value: Any) -> list[ir.Value]:
        holder = ListRef(context.heap, () if isinstance(value, Uninitialized) else value)
        return [own_sequence(context, holder, self.element.forms(context)[0]).value]

    def take(self, context: ConversionContext, values: Iterator[ir.Value]) -> Any:
        return self._state(context, next(values))

    def _state(self, context: ConversionContext, value: ir.Value) -> Any:
        return sequence_state(context, value, self.element.forms(context)[0], self.element.aliases)

    def varying(self, joiner: Joiner) -> Vector | Sequence | None:
        return self

    def widened(self, other: Sequence, joiner: Joiner) -> Sequence:
        """Return the plan that also fits another such list."""
        a, b = self.element, other.element
        if a.dtype != b.dtype or len({len(sizes) for plan in (a, b) for sizes in plan.shapes}) > 1:
            raise ControlFlowError("The tensors of a list change their dtype or rank in a branch or loop.")
        element = a.joined(b, joiner)
        assert isinstance(element, Carried)
        return self if element is self.element else Sequence(element)


class NewContainer(Plan):
    """A list or dict that is not the same one on all paths.

    Attributes:
        kind: Which of the two.
        contents: What it holds.
        aliases: Lists or dicts beside the node that it may be.
    """

    def __init__(
        self, kind: type[ListRef] | type[DictRef], contents: Plan, aliases: tuple[ListRef | DictRef, ...] = ()
    ) -> None:
        self.kind, self.contents, self.aliases = kind, contents, aliases
        self.called = "a list" if kind is ListRef else "a dict"

    def _made(self, context: ConversionContext, state: Any) -> Any:
        made: Any = self.kind(context.heap, state)
        for other in self.aliases:
            made.link(other)
        return made

    def enter(self, context: ConversionContext) -> Any:
        return self._made(context, self.contents.enter(context))

    def leave(self, context: ConversionContext, value: Any) -> list[ir.Value]:
        return self.contents.leave(context, value if isinstance(value, Uninitialized) else value.state)

    def take(self, context: ConversionContext, values: Iterator[ir.Value]) -> Any:
        return self._made(context, self.contents.take(context, values))

    def joined(self, other: NewContainer, joiner: Joiner) -> Plan:
        if self.kind is not other.kind:
            raise joiner.mismatch("A variable", self.called, other.called)
        contents = joiner.join(self.contents, other.contents)
        if isinstance(contents, Poisoned):
            return contents
        aliases = tuple(dict.fromkeys((*self.aliases, *other.aliases)))
        fits = contents is self.contents and len(aliases) == len(self.aliases)
        return self if fits else NewContainer(self.kind, contents, aliases)

    def filled(self, joiner: Joiner) -> Plan:
        contents = self.contents.filled(joiner)
        return self if contents is self.contents else NewContainer(self.kind, contents, self.aliases)
