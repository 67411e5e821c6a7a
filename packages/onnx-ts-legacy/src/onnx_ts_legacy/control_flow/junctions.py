"""Where paths of the program meet: behind the branches of an if, and behind each iteration of a loop."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, cast

import onnx_ir as ir
import torch

from onnx_ts_legacy.calls.number_lists import kind_of_numbers
from onnx_ts_legacy.control_flow import object_plans, plans
from onnx_ts_legacy.control_flow.plans import Joiner, Optional, Plan, Poisoned, Same, Unset, wide
from onnx_ts_legacy.errors import ControlFlowError, ScriptValueError
from onnx_ts_legacy.state.attributes import attribute_before, read_attribute
from onnx_ts_legacy.state.context import ConversionContext
from onnx_ts_legacy.state.values import (
    DictRef,
    ListRef,
    Maybe,
    Mutable,
    ObjectRef,
    Poison,
    RuntimeBool,
    RuntimeFloat,
    SequenceState,
    Shared,
    Stale,
    Storage,
    Tensor,
    Uninitialized,
    VectorState,
)
from onnxops_decomp.exporting import to_ir

__all__ = ["BranchJunction", "Junction", "LoopJunction", "SharedContents"]

_KNOWN = (bool, int, float, str, torch.device, torch.dtype)
_NUMBERS = (bool, int, float, torch.SymInt, RuntimeBool, RuntimeFloat)


class Junction(Joiner):
    """Plans what the paths of one if or loop leave in the variables and objects of the program.

    It has to be made before the paths are converted: sizes that come up in them are not known beside the node.
    """

    def __init__(self, context: ConversionContext) -> None:
        self._context = context
        self._symbols = context.metadata.symbol_count()
        self._frames = context.heap.frames()
        self._stale: set[Storage] = set()

    def is_outer(self, target: Mutable) -> bool:
        """Tell whether an object is there beside the node, not on one of its paths only."""
        return target.frame in self._frames

    # ---- what a path leaves, as it is on that path

    def of_variable(self, value: Any) -> Same:
        """Return the plan of a variable as a path leaves it."""
        return Same(value, self._wide(value))

    def of_object(self, target: Mutable, state: Any) -> Plan:
        """Return the plan of the contents ``state`` of an object that is older than the node."""
        if isinstance(state, Poison):
            return object_plans.StaleContents(state) if isinstance(target, ListRef | DictRef) else Poisoned(state)
        if isinstance(target, Storage):
            if not isinstance(state, Stale):
                return object_plans.Memory(target)
            self._stale.add(target)
            return object_plans.StaleContents(state)
        if isinstance(target, ObjectRef):
            return object_plans.Attributes(target, {name: self.of_variable(value) for name, value in state.items()})
        if isinstance(target, Tensor):
            return object_plans.Referent(target, state, self.of_variable(object_plans.detached(target, state)))
        return self._contents(state)

    def _contents(self, state: Any) -> Plan:
        if isinstance(state, Poison):
            return Poisoned(state)
        if isinstance(state, SequenceState):
            if isinstance(state.memory.state, Stale):
                return Poisoned(Poison.of_error(state.memory.state.error()))
            return plans.Sequence(self._carried([state.element], state.memory))
        if isinstance(state, VectorState):
            return plans.Vector(self._carried(state.tensor.forms))
        if isinstance(state, dict):
            return plans.Group({key: self.of_variable(item) for key, item in state.items()}, dict)
        return plans.ListItems({key: self.of_variable(item) for key, item in enumerate(state)}, tuple)

    def _carried(self, forms: Sequence[Any], storage: Storage | None = None) -> plans.Carried:
        is_older = self._context.metadata.is_older
        shapes = {
            form.dim(): tuple(size if is_older(size, self._symbols) else None for size in form.shape) for form in forms
        }
        shown = [] if storage is None else [other for other in storage.shown if self.is_outer(other)]
        return plans.Carried(forms[0].dtype, tuple(shapes[rank] for rank in sorted(shapes)), tuple(shown))

    def _wide(self, value: Any) -> Plan | None:
        if isinstance(value, Tensor):
            state = value.storage.state
            if isinstance(state, Stale):
                return Poisoned(Poison.of_error(state.error()))
            return self._carried(value.forms, value.storage)
        if isinstance(value, _NUMBERS):
            kind = kind_of_numbers((value,))
            assert kind is not None
            return plans.Number(to_ir(kind))
        if value is None:
            return Optional(Unset())
        if isinstance(value, Maybe):
            return Optional(self.of_variable(value.value))
        if isinstance(value, Uninitialized):
            return Unset()
        if isinstance(value, Poison):
            return Poisoned(value)
        if isinstance(value, tuple):
            return plans.Group({key: self.of_variable(item) for key, item in enumerate(value)}, tuple)
        if isinstance(value, ListRef | DictRef):
            aliases = tuple(other for other in value.shown if self.is_outer(other))
            return plans.NewContainer(type(value), self._contents(value.state), aliases)
        return None

    # ---- what holds on several paths

    def join(self, first: Plan, second: Plan) -> Plan:
        if isinstance(first, Same) and isinstance(second, Same) and self._is_same(first.value, second.value):
            return first
        a, b = wide(first), wide(second)
        if isinstance(a, object_plans.StaleContents) or isinstance(b, object_plans.StaleContents):
            return a if isinstance(a, object_plans.StaleContents) else second
        if isinstance(a, Poisoned) or isinstance(b, Poisoned):
            raise (a if isinstance(a, Poisoned) else cast(Poisoned, b)).poison.error()
        if isinstance(a, Unset) or isinstance(b, Unset):
            return self.one_sided(second if isinstance(a, Unset) else first)
        if isinstance(a, Optional) or isinstance(b, Optional):
            return _optional(first).joined(_optional(second), self)
        if a is None or b is None or not _is_alike(a, b):
            raise self.mismatch("A variable", first.called, second.called)
        return a.joined(b, self)

    def one_sided(self, plan: Plan) -> Plan:
        if isinstance(plan, Same) and (plan.wider is None or self._is_outer_value(plan.value)):
            return plan
        wider = wide(plan)
        assert wider is not None
        return wider.filled(self)

    def _is_same(self, first: Any, second: Any) -> bool:
        if first is second:
            return True
        if type(first) is not type(second):
            return False
        if isinstance(first, torch.SymInt):
            return str(first) == str(second) and self._context.metadata.is_older(first, self._symbols)
        # As texts: nan is the same as itself, and -0.0 is another number than 0.0.
        return isinstance(first, _KNOWN) and repr(first) == repr(second)

    def _is_outer_value(self, value: Any) -> bool:
        if isinstance(value, Mutable):
            # Behind a path that makes it stale it cannot be read any more, though nothing on that path reads it.
            return self.is_outer(value) and not (isinstance(value, Tensor) and value.storage in self._stale)
        if isinstance(value, torch.SymInt):
            return self._context.metadata.is_older(value, self._symbols)
        if isinstance(value, tuple):
            return all(map(self._is_outer_value, value))
        return not isinstance(value, Maybe | RuntimeBool | RuntimeFloat)


def _optional(plan: Plan) -> Optional:
    wider = wide(plan)
    return wider if isinstance(wider, Optional) else Optional(plan)


def _is_alike(first: Plan, second: Plan) -> bool:
    lists = isinstance(first, plans.ListContents) and isinstance(second, plans.ListContents)
    return lists or type(first) is type(second)


class BranchJunction(Junction):
    """The end of the branches of an if: what ONNX cannot hold matters only if it is read.

    What stands for one pair of variables is one variable, wherever the program has it.
    """

    allows_ranks = True

    def __init__(self, context: ConversionContext) -> None:
        super().__init__(context)
        # The plans are kept with what they are of, so that its identity stays its own.
        self._joined: dict[tuple[int, int], tuple[Plan, Plan, Plan]] = {}

    def join(self, first: Plan, second: Plan) -> Plan:
        if not isinstance(first, Same) or not isinstance(second, Same):
            return self._held(first, second)
        key = (id(first.value), id(second.value))
        if key in self._joined:
            known = self._joined[key][2]
            return _Again(known) if isinstance(known, _First) else known
        plan = self._held(first, second)
        if not isinstance(plan, Same | Poisoned):
            plan = _First(plan)
        self._joined[key] = first, second, plan
        return plan

    def _held(self, first: Plan, second: Plan) -> Plan:
        try:
            return super().join(first, second)
        except ScriptValueError as error:
            return Poisoned(Poison.of_error(error))

    def mismatch(self, what: str, first: object, second: object) -> ScriptValueError:
        return ScriptValueError(f"{what} is {first} or {second}, depending on a condition known only at run time.")

    def attribute_before(self, target: ObjectRef, name: str) -> Plan:
        return self.of_variable(read_attribute(self._context, target, name))


@dataclasses.dataclass(eq=False)
class _First(Plan):
    """A variable at the first of the places where it stands."""

    plan: Plan
    variable: Any = None

    def leave(self, context: ConversionContext, value: Any) -> list[ir.Value]:
        return self.plan.leave(context, value)

    def take(self, context: ConversionContext, values: Iterator[ir.Value]) -> Any:
        self.variable = self.plan.take(context, values)
        return self.variable


@dataclasses.dataclass(eq=False)
class _Again(Plan):
    """The same variable at another place."""

    first: _First

    def take(self, context: ConversionContext, values: Iterator[ir.Value]) -> Any:
        return self.first.variable


class LoopJunction(Junction):
    """The end of the iterations of a loop."""

    allows_ranks = False

    def mismatch(self, what: str, first: object, second: object) -> ScriptValueError:
        return ControlFlowError(
            f"{what} is {first} in one iteration of a loop and {second} in another; ONNX carries only what keeps "
            "its kind, dtype and rank."
        )

    def attribute_before(self, target: ObjectRef, name: str) -> Plan:
        return self.of_variable(attribute_before(self._context, target, name))


# ---- what several variables show

Path = tuple[Any, ...]


class SharedContents:
    """Which of the variables at a junction, by their places, may show one memory, list or dict on some path."""

    def __init__(self) -> None:
        self._pairs: set[tuple[Path, Path]] = set()

    def note(self, variables: Sequence[Any]) -> bool:
        """Note what the variables of a path share, and tell whether that is nothing new."""
        known = len(self._pairs)
        places: dict[Shared, list[Path]] = {}
        for path, shared in _shown(tuple(variables)):
            places.setdefault(shared, []).append(path)
        for shared, paths in places.items():
            others = [other for same in shared.shown for other in places.get(same, ())]
            self._pairs.update((a, b) for a in paths for b in others if a != b)
        return len(self._pairs) == known

    def link(self, variables: Sequence[Any]) -> None:
        """Link what may be one memory, list or dict."""
        found = dict(_shown(tuple(variables)))
        for first, second in self._pairs:
            a, b = _nearest(found, first), _nearest(found, second)
            if a is not None and b is not None:
                a.link(b)


def _shown(value: Any, path: Path = ()) -> Iterator[tuple[Path, Shared]]:
    """Yield the memories, lists and dicts behind a variable, each with its place in it, which begins with its kind."""
    if isinstance(value, Tensor):
        if not isinstance(value.state, Poison):
            yield (Storage, *path), value.storage
    elif isinstance(value, SequenceState):
        yield (Storage, *path), value.memory
    elif isinstance(value, Maybe):
        yield from _shown(value.value, path)
    elif isinstance(value, ListRef | DictRef):
        yield (type(value), *path), value
        yield from _shown(value.state, path)
    elif isinstance(value, tuple | dict):
        for key, item in value.items() if isinstance(value, dict) else enumerate(value):
            yield from _shown(item, (*path, key))


def _nearest(found: Mapping[Path, Shared], path: Path) -> Shared | None:
    """Return what is at a place; a sequence has one memory for all of its items."""
    while path and path not in found and path[0] is Storage:
        path = path[:-1]
    return found.get(path)
