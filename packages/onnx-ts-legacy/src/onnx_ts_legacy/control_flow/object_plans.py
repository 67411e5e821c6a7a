"""How the contents of objects that are older than an ONNX If or Loop are carried through it."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from typing import Any

import onnx_ir as ir

from onnx_ts_legacy.control_flow.plans import Joiner, Plan, Same, next_shaped
from onnx_ts_legacy.errors import ControlFlowError
from onnx_ts_legacy.state.attributes import read_attribute
from onnx_ts_legacy.state.context import ConversionContext
from onnx_ts_legacy.state.pairs import held_as, held_dims
from onnx_ts_legacy.state.values import Content, ObjectRef, Poison, Stale, Storage, Tensor, Uninitialized
from onnx_ts_legacy.state.variables import content_value
from onnxops_decomp.exporting import to_ir

__all__ = ["Attributes", "Memory", "Referent", "StaleContents", "detached"]


class Memory(Plan):
    """Contents of the memory of a tensor."""

    def __init__(self, target: Storage) -> None:
        self.target = target

    def _dims(self, context: ConversionContext) -> tuple[Any, ...] | None:
        fake = self.target.fake
        if fake is None:
            return None
        return held_dims(context.metadata.symbols.dims(fake), fake.dtype)

    def _content(self, value: ir.Value) -> Content:
        fake = self.target.fake
        return Content(value if fake is None else held_as(value, fake.dtype))

    def enter(self, context: ConversionContext) -> Any:
        if self.target.fake is None:
            raise ControlFlowError("A tensor that may have several ranks is changed in place in a loop.")
        return self._content(context.op.input("carried", to_ir(self.target.fake.dtype), self._dims(context)))

    def leave(self, context: ConversionContext, value: Any) -> list[ir.Value]:
        return [content_value(context, value)]

    def take(self, context: ConversionContext, values: Iterator[ir.Value]) -> Any:
        return self._content(next_shaped(values, self._dims(context)))


@dataclasses.dataclass(eq=False)
class StaleContents(Plan):
    """Contents of a memory, list or dict that is changed through another one, so that they must not be read."""

    content: Stale | Poison

    def take(self, context: ConversionContext, values: Iterator[ir.Value]) -> Any:
        return self.content


class Attributes(Plan):
    """Attributes of an object that some path changes."""

    def __init__(self, target: ObjectRef, items: dict[str, Plan]) -> None:
        self.target, self.items = target, items

    def enter(self, context: ConversionContext) -> Any:
        return {**self.target.state, **{name: plan.enter(context) for name, plan in self.items.items()}}

    def leave(self, context: ConversionContext, value: Any) -> list[ir.Value]:
        now = {name: read_attribute(context, self.target, name) for name in self.items}
        return [output for name, plan in self.items.items() for output in plan.leave(context, now[name])]

    def take(self, context: ConversionContext, values: Iterator[ir.Value]) -> Any:
        return {**self.target.state, **{name: plan.take(context, values) for name, plan in self.items.items()}}

    def joined(self, other: Attributes, joiner: Joiner) -> Plan:
        names = dict.fromkeys((*self.items, *other.items))
        first, second = (
            {name: plan.items.get(name) or joiner.attribute_before(self.target, name) for name in names}
            for plan in (self, other)
        )
        items = joiner.join_items(first, second)
        return self if items is first and len(names) == len(self.items) else Attributes(self.target, items)


class Referent(Plan):
    """What a tensor variable refers to, of which a path changed the shape in place."""

    def __init__(self, target: Tensor, state: Any, variable: Plan) -> None:
        self.target, self.state, self.variable = target, state, variable

    def leave(self, context: ConversionContext, value: Any) -> list[ir.Value]:
        return self.variable.leave(context, value if isinstance(value, Uninitialized) else detached(self.target, value))

    def take(self, context: ConversionContext, values: Iterator[ir.Value]) -> Any:
        taken = self.variable.take(context, values)
        return taken.state if isinstance(taken, Tensor) else taken

    def joined(self, other: Referent, joiner: Joiner) -> Plan:
        if self.state[0] is not other.state[0]:
            return Referent(self.target, self.state, joiner.join(self.variable, other.variable))
        possible = {id(form) for form in (*self.state[1], *other.state[1])}
        forms = tuple(form for form in self.target.forms if id(form) in possible) or self.target.forms
        state = (self.state[0], forms)
        return Referent(self.target, state, Same(detached(self.target, state), None))


def detached(target: Tensor, state: Any) -> Tensor:
    """Return a variable of its own for what a tensor variable refers to in ``state``."""
    copy = object.__new__(Tensor)
    copy.state, copy.frame = state, target.frame
    return copy
