"""Joins what two branches, or two iterations, leave in the variables of a program."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from typing import Any

import numpy as np
import onnx_ir as ir
import torch

from onnx_ts_legacy.calls.number_lists import as_vector, kind_of_numbers
from onnx_ts_legacy.calls.sequences import common_form, own_sequence, sequence_state
from onnx_ts_legacy.errors import ScriptValueError
from onnx_ts_legacy.state.attributes import read_attribute
from onnx_ts_legacy.state.context import ConversionContext
from onnx_ts_legacy.state.numbers import number_value
from onnx_ts_legacy.state.slots import unnamed, unranked
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
from onnx_ts_legacy.state.variables import content_value, value_of
from onnxops_decomp.exporting import is_complex, mark_complex

__all__ = ["Merge"]

Side = Callable[[], AbstractContextManager[None]]
_NUMBERS = (bool, int, float, torch.SymInt, RuntimeBool, RuntimeFloat)


class Merge:
    """Merges the variables of branches pairwise; what differs becomes an output of the ONNX node.

    Args:
        context: The conversion.
        sides: For each of the two branches, a context in which its values can be written.
        symbols: Number of symbols before the branches, see ``Metadata.symbol_count``.
        condition: Takes the first branch.
    """

    def __init__(self, context: ConversionContext, sides: Sequence[Side], symbols: int, condition: RuntimeBool) -> None:
        self._context = context
        self._sides = sides
        self._symbols = symbols
        self._condition = condition
        self._merged: dict[tuple[int, int], Any] = {}
        self._kept: list[Any] = []
        self.outputs: tuple[list[ir.Value], list[ir.Value]] = ([], [])
        self.merged: list[ir.Value] = []
        self._shared: dict[tuple[int, Storage], list[Storage]] = {}

    # ---- the pieces

    def variable(self, a: Any, b: Any) -> Any:
        """Return the variable that stands for ``a`` after the first branch and ``b`` after the second."""
        key = (id(a), id(b))
        if key not in self._merged:
            self._kept.append((a, b))
            try:
                self._merged[key] = self._variable(a, b)
            except ScriptValueError as error:
                self._merged[key] = Poison.of_error(error)
        return self._merged[key]

    def state(self, target: Mutable, a: Any, b: Any) -> Callable[[], None] | None:
        """Return what writes the merged contents of ``target``, of which the branches left ``a`` and ``b``."""
        heap = self._context.heap
        if isinstance(target, Storage):
            return self._content(target, a, b)
        if isinstance(target, Tensor):
            if isinstance(a, Poison) or isinstance(b, Poison):
                poison = a if isinstance(a, Poison) else b
                return lambda: heap.write(target, poison)
            if a[0] is b[0]:
                possible = {id(form) for form in (*a[1], *b[1])}
                forms = tuple(form for form in target.state[1] if id(form) in possible)
                return lambda: heap.write(target, (a[0], forms or target.state[1]))
            merged = self.variable(_detached(target, a), _detached(target, b))
            return lambda: heap.write(target, merged.state if isinstance(merged, Tensor) else merged)
        if isinstance(target, ObjectRef):
            before, context = target.state, self._context
            attributes = {
                name: self.variable(
                    *(side[name] if name in side else read_attribute(context, target, name) for side in (a, b))
                )
                for name in dict.fromkeys((*a, *b))
            }
            return lambda: heap.write(target, {**before, **attributes})
        if isinstance(target, DictRef):
            entries = self._dict(a, b)
            return lambda: heap.write(target, entries)
        return self._list_state(target, a, b)

    def _list_state(self, target: Mutable, a: Any, b: Any) -> Callable[[], None]:
        heap = self._context.heap
        if isinstance(a, tuple) and isinstance(b, tuple) and len(a) == len(b):
            items = tuple(self.variable(x, y) for x, y in zip(a, b, strict=True))
            return lambda: heap.write(target, items)
        kind = kind_of_numbers(a) or kind_of_numbers(b)
        if kind is not None:
            vector = self._vector(a, b, kind)
            return lambda: heap.write(target, vector)
        try:
            merged = self._sequence(a, b)
        except ScriptValueError as error:
            poison = Poison.of_error(error)
            return lambda: heap.write(target, poison)
        return lambda: heap.write(target, merged)

    def _dict(self, a: Any, b: Any) -> Any:
        if isinstance(a, Poison) or isinstance(b, Poison) or a.keys() != b.keys():
            return Poison("A dict has different keys, depending on a condition that only the runtime knows.")
        return {key: self.variable(a[key], b[key]) for key in a}

    # ---- kinds of variables

    def _variable(self, a: Any, b: Any) -> Any:
        for x in (a, b):
            if isinstance(x, Poison):
                return x
        if isinstance(a, Maybe) or isinstance(b, Maybe) or ((a is None) != (b is None) and not _unset(a, b)):
            return self._optional(a, b)
        if _unset(a, b):
            return self._one_sided(a, b)
        if isinstance(a, Tensor) and isinstance(b, Tensor):
            return self._tensor(a, b)
        if a is b:
            return a
        if isinstance(a, tuple) and isinstance(b, tuple) and len(a) == len(b):
            return tuple(self.variable(x, y) for x, y in zip(a, b, strict=True))
        if isinstance(a, ListRef) and isinstance(b, ListRef):
            merged = ListRef(self._context.heap, ())
            merged.state = self._list_items(a, b, merged)
            return merged
        if isinstance(a, DictRef) and isinstance(b, DictRef):
            return DictRef(self._context.heap, self._dict(self._state_of(a, 0), self._state_of(b, 1)))
        if isinstance(a, _NUMBERS) and isinstance(b, _NUMBERS):
            return self._number(a, b)
        if type(a) is type(b) and isinstance(a, str | torch.device | torch.dtype) and a == b:
            return a
        raise ScriptValueError(
            f"A variable is {_kind(a)} or {_kind(b)}, depending on a condition that only the runtime knows."
        )

    def _state_of(self, target: Mutable, side: int) -> Any:
        with self._sides[side]():
            return target.state

    def _list_items(self, a: ListRef, b: ListRef, merged: ListRef) -> Any:
        left, right = self._state_of(a, 0), self._state_of(b, 1)
        if isinstance(left, Poison) or isinstance(right, Poison):
            return left if isinstance(left, Poison) else right
        if isinstance(left, tuple) and isinstance(right, tuple) and len(left) == len(right):
            return tuple(self.variable(x, y) for x, y in zip(left, right, strict=True))
        kind = kind_of_numbers(left) or kind_of_numbers(right)
        if kind is not None:
            return self._vector(left, right, kind)
        return self._sequence(left, right)

    def _vector(self, a: Any, b: Any, dtype: torch.dtype) -> Any:
        """Merge lists of numbers of different lengths to a vector."""
        vectors = []
        for side, state in enumerate((a, b)):
            if isinstance(state, Poison):
                return state
            with self._sides[side]():
                vectors.append(as_vector(self._context, state, dtype).tensor)
        return VectorState(self._tensor(*vectors))

    def _sequence(self, a: Any, b: Any) -> SequenceState:
        """Merge lists of different lengths to a sequence."""
        context = self._context
        element = self._element(a, b)
        states = []
        for side, state in enumerate((a, b)):
            with self._sides[side]():
                states.append(own_sequence(context, ListRef(context.heap, state), element))
        described = self._outer_form(common_form(context, [states[0].element, states[1].element]))
        merged = sequence_state(context, self._output(states[0].value, states[1].value, None), described)
        for side, state in enumerate(states):
            self._link(merged.memory, state.memory, side)
        return merged

    def _element(self, a: Any, b: Any) -> Any:
        for side, state in enumerate((a, b)):
            if isinstance(state, SequenceState):
                return state.element
            if isinstance(state, tuple) and state and isinstance(state[0], Tensor):
                with self._sides[side]():
                    return state[0].fake
        raise ScriptValueError("A list has different lengths, depending on a condition that only the runtime knows.")

    def _outer_form(self, fake: Any) -> Any:
        metadata = self._context.metadata
        sizes = [s if metadata.is_older(s, self._symbols) else metadata.unknown_size() for s in fake.shape]
        return metadata.empty(fake.dtype, sizes)

    def _one_sided(self, a: Any, b: Any) -> Any:
        """Return a variable that one branch never sets is what the other one sets: the first never reads it."""
        if isinstance(a, Uninitialized) and isinstance(b, Uninitialized):
            return a
        side = 1 if isinstance(a, Uninitialized) else 0
        value = (a, b)[side]
        if isinstance(value, Mutable) and value.frame <= self._context.heap.frame:
            # It was there before the branches: what they did to it is merged as its state.
            return value
        unset = Uninitialized()
        if isinstance(value, tuple):
            return tuple(self.variable(*((x, unset) if side == 0 else (unset, x))) for x in value)
        if isinstance(value, ListRef) and isinstance(state := self._state_of(value, side), tuple):
            items = tuple(self.variable(*((x, unset) if side == 0 else (unset, x))) for x in state)
            return ListRef(self._context.heap, items)
        if not isinstance(value, Tensor | torch.SymInt | RuntimeBool | RuntimeFloat):
            return value
        with self._sides[side]():
            given = value_of(self._context, value)
            forms = value.forms if isinstance(value, Tensor) else ()
        with self._sides[1 - side]():
            filler = self._filler(given)
        pair = (given, filler) if side == 0 else (filler, given)
        if isinstance(value, Tensor):
            merged = [self._outer_form(form) for form in forms]
            return self._output_tensor(*pair, merged, is_complex(given), filled=True)
        return self._output_number(*pair)

    def _optional(self, a: Any, b: Any) -> Any:
        """Return a variable that is None on some path: whether it is, and what it is otherwise."""
        (first, left), (second, right) = presence(a), presence(b)
        present, value = self.variable(first, second), self.variable(left, right)
        if isinstance(present, RuntimeBool):
            return Maybe(present, value)
        return value if present else None

    def _filler(self, like: ir.Value) -> ir.Value:
        assert like.dtype is not None
        dims = [] if like.shape is None else [dim if isinstance(dim, int) else 1 for dim in like.shape.dims]
        return self._context.op.constant(np.zeros(dims, like.dtype.numpy()), like.dtype)

    # ---- tensors

    def _tensor(self, a: Tensor, b: Tensor) -> Any:
        context = self._context
        if a is b and a.frame <= context.heap.frame:
            return a
        values = []
        for side, tensor in enumerate((a, b)):
            with self._sides[side]():
                values.append((value_of(context, tensor), tensor.forms))
        (left, left_forms), (right, right_forms) = values
        if {form.dtype for form in left_forms} != {form.dtype for form in right_forms}:
            raise ScriptValueError(
                f"A tensor is {left_forms[0].dtype} or {right_forms[0].dtype}, depending on a condition that only the "
                "runtime knows."
            )
        if is_complex(left) != is_complex(right):
            raise ScriptValueError("A tensor is complex or real, depending on a condition that only the runtime knows.")
        forms = self._joined_forms(left_forms, right_forms)
        if left is right and len(forms) == 1:
            merged = context.fresh(left, forms[0])
        else:
            merged = self._output_tensor(left, right, forms, is_complex(left))
        for side, tensor in enumerate((a, b)):
            with self._sides[side]():
                storage = tensor.storage
            self._link(merged.storage, storage, side)
        return merged

    def _link(self, merged: Storage, storage: Storage, side: int) -> None:
        """Note with which memories a merged one is the same on some path."""
        for shown in storage.shown:
            for other in self._shared.setdefault((side, shown), []):
                merged.link(other)
            self._shared[side, shown].append(merged)
            if shown.frame <= self._context.heap.frame:
                merged.link(shown)

    def _joined_forms(self, left: Sequence[Any], right: Sequence[Any]) -> list[Any]:
        by_rank: dict[int, list[Any]] = {}
        for form in (*left, *right):
            by_rank.setdefault(form.dim(), []).append(form)
        joined = []
        for forms in by_rank.values():
            joined.append(self._outer_form(common_form(self._context, forms)))
        if len(joined) > 1:
            # Told apart by their ranks, and by a size of 0 that the others do not have.
            joined.sort(key=lambda form: form.dim())
        return joined

    def _output_tensor(
        self, a: ir.Value, b: ir.Value, forms: Sequence[Any], complex: bool, *, filled: bool = False
    ) -> Tensor:
        """Return the variable for two values; one of them is only a filler, of other sizes, if it is ``filled``."""
        context = self._context
        dims = context.metadata.symbols.dims(forms[0]) if len(forms) == 1 else None
        if dims is not None and filled:
            dims = unnamed(dims)
        if dims is not None and complex:
            dims = (*dims, 2)
        a, b = (self._unshaped(value, side, dims) for side, value in enumerate((a, b)))
        value = self._output(a, b, dims)
        return context.fresh(mark_complex(value) if complex else value, *forms)

    def _unshaped(self, value: ir.Value, side: int, dims: tuple[Any, ...] | None) -> ir.Value:
        """Hide a shape that only one branch has: inference took that of the first one for both up to opset 10."""
        context = self._context
        own = None if value.shape is None else tuple(value.shape.dims)
        if context.op.opset >= 11 or (dims is not None and own == dims):
            return value
        with self._sides[side]():
            return unranked(context.op, value, number_value(context, self._condition))

    def _content(self, target: Storage, a: Content | Stale, b: Content | Stale) -> Callable[[], None]:
        context = self._context
        for content in (a, b):
            if isinstance(content, Stale):
                stale = content
                return lambda: context.heap.write(target, stale)
        values = []
        for side, content in enumerate((a, b)):
            with self._sides[side]():
                values.append(content_value(context, content))
        dims = context.metadata.symbols.dims(target.fake) if target.fake is not None else None
        if dims is not None and target.fake.is_complex():
            dims = (*dims, 2)
        merged = Content(self._output(values[0], values[1], dims))
        return lambda: context.heap.write(target, merged)

    # ---- numbers

    def _number(self, a: Any, b: Any) -> Any:
        metadata = self._context.metadata
        if type(a) is type(b) and isinstance(a, bool | int | float) and (a == b or a != a):
            return a
        sizes = isinstance(a, torch.SymInt) and isinstance(b, torch.SymInt)
        if sizes and str(a) == str(b) and metadata.is_older(a, self._symbols):
            return a
        values = []
        for side, number in enumerate((a, b)):
            with self._sides[side]():
                values.append(number_value(self._context, number))
        if values[0].dtype != values[1].dtype:
            raise ScriptValueError(
                f"A number is {_kind(a)} or {_kind(b)}, depending on a condition that only the runtime knows."
            )
        return self._output_number(*values)

    def _output_number(self, a: ir.Value, b: ir.Value) -> Any:
        context = self._context
        value = self._output(a, b, ())
        if a.dtype == ir.DataType.INT64:
            number = context.metadata.unknown_size()
            context.op.context.symbols[str(number.node.expr)] = lambda op: op.Reshape(value, [1])
            return number
        return RuntimeBool(value) if a.dtype == ir.DataType.BOOL else RuntimeFloat(value)

    def _output(self, a: ir.Value, b: ir.Value, dims: tuple[Any, ...] | None) -> ir.Value:
        """Return the value that the node will give for ``a`` of the first and ``b`` of the second branch."""
        merged = ir.Value(type=a.type, shape=None if dims is None else ir.Shape(dims))
        self.outputs[0].append(a)
        self.outputs[1].append(b)
        self.merged.append(merged)
        return merged


def _detached(target: Tensor, state: Any) -> Tensor:
    copy = object.__new__(Tensor)
    copy.state, copy.frame = state, target.frame
    return copy


def _unset(a: object, b: object) -> bool:
    return isinstance(a, Uninitialized) or isinstance(b, Uninitialized)


def _kind(value: object) -> str:
    if value is None:
        return "None"
    if isinstance(value, Tensor):
        return "a tensor"
    names: dict[type, str] = {torch.SymInt: "an int", RuntimeBool: "a bool", RuntimeFloat: "a float"}
    return names.get(type(value), f"a {type(value).__name__}")
