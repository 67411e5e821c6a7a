"""Calls of operators on variables: the shared table, views, and operators that change a tensor."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Mapping, Sequence
from typing import Any

import onnx_ir as ir
import torch
from torch.utils import _pytree as pytree

from onnx_ts_legacy.calls.decomposition import lower_by_pieces, lower_under_autocast
from onnx_ts_legacy.calls.fallback import write_aten
from onnx_ts_legacy.calls.masks import with_boolean_masks
from onnx_ts_legacy.calls.packed_sequences import PACKING
from onnx_ts_legacy.calls.recurrent import CELLS
from onnx_ts_legacy.enumerations import OperatorExportTypes
from onnx_ts_legacy.errors import ScriptValueError
from onnx_ts_legacy.graph.autocast import Autocasts, may_cast_inside
from onnx_ts_legacy.graph.dtypes import argument_converters
from onnx_ts_legacy.mutation.hidden_writes import update_running_statistics
from onnx_ts_legacy.mutation.views import VIEWS_IN_PLACE, assign, node_value
from onnx_ts_legacy.mutation.writes import written_value
from onnx_ts_legacy.shapes.shape_functions import SHAPES
from onnx_ts_legacy.shapes.tensor_forms import is_tensor
from onnx_ts_legacy.state.values import (
    Call,
    ListRef,
    Poison,
    RuntimeBool,
    RuntimeFloat,
    SequenceState,
    Tensor,
    VectorState,
    View,
)
from onnx_ts_legacy.state.variables import Variables
from onnxops_decomp import LoweringError, LoweringTable, UnsupportedOperatorError
from onnxops_decomp.exporting import (
    Decomposer,
    apply_lowering,
    check_result,
    find_lowering,
    functional_overload,
    to_ir,
    torch_definition,
)

__all__ = ["OperatorCalls", "frozen", "functional_form", "split_arguments"]

aten = torch.ops.aten
_RUNTIME_SCALARS = (torch.SymInt, RuntimeBool, RuntimeFloat)


class OperatorCalls(Variables):
    """The part of the interpreter that converts calls.

    Attributes:
        table: Lowerings to use.
        decomposer: What takes calls apart that the table has no lowering for.
        fallback: Which operators are written as they are.
        autocasts: Under which autocast the node was traced that is converted now.
    """

    table: LoweringTable
    decomposer: Decomposer
    fallback: OperatorExportTypes
    autocasts: Autocasts = ()

    def call(self, overload: torch._ops.OpOverload, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        """Convert one call of an operator; the result is a variable, or a tuple or list of them."""
        args, kwargs = _without_codes(overload, args, kwargs)
        if self.table.is_own(str(overload.name())) and not overload._schema.is_mutable:
            return self._lowered_call(overload, args, kwargs)
        overload, args, kwargs = _plain_form(overload, args, kwargs)
        if overload is None:
            return args[0]
        args = with_boolean_masks(self._interpreter, overload, args)
        if overload is aten.tensor_split.tensor_indices_or_sections:
            overload, args[1] = self._split_by_numbers(args[1])
        if overload is aten.narrow.Tensor:
            overload, args[2] = aten.narrow.default, self.scalars.of_tensor(args[2])
        if overload._schema.is_mutable:
            # Autocast has no rules for operators that write.
            autocasts, self.autocasts = self.autocasts, ()
            try:
                return self._call_in_place(overload, args, kwargs)
            finally:
                self.autocasts = autocasts
        cell = CELLS.get(overload) or PACKING.get(overload)
        if cell is not None:
            return cell(self._interpreter, args)
        number = self._number_result(overload, args)
        if number is not None:
            return number
        if overload in _DROPOUTS and len(args) == 3 and (args[2] is False or args[1] == 0):
            return args[0]
        return self._lowered_call(overload, args, kwargs)

    def _lowered_call(self, overload: torch._ops.OpOverload, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        """Convert a call with the table, or by pieces, and keep track of the memory of its results."""
        args = [frozen(arg) for arg in args]
        kwargs = {name: frozen(arg) for name, arg in kwargs.items()}
        cast = self._cast_inside(overload, args, kwargs)
        if cast is not None:
            return self.wrapped(*cast, None)
        fake, position = self._recorded_call(overload, args, kwargs)
        if position is not None and overload._schema.name in _RETURNING_SELF and fake is args[position].fake:
            if not self.table.is_own(str(overload.name())):
                return args[position]
            position = None
        values = self._lower(overload, args, kwargs, fake)
        update_running_statistics(self._interpreter, overload, args)
        if position is None:
            result = self.wrapped(values, fake, None)
            self.sometimes_views.note(overload, args, kwargs, result)
            return result
        return self.wrapped(values, fake, (position, Call(overload, tuple(args), kwargs, position, None)))

    def _cast_inside(
        self, overload: torch._ops.OpOverload, args: Sequence[Any], kwargs: Mapping[str, Any]
    ) -> tuple[Any, Any] | None:
        """Convert a call of which autocast casts a part; return the values and forms of its results, else None."""
        if not self.autocasts or not may_cast_inside(overload) or self.table.is_own(str(overload.name())):
            return None
        forms = [self.form(arg) for arg in args], {name: self.form(arg) for name, arg in kwargs.items()}
        if not any(is_tensor(form) and form.dtype.is_floating_point for form in pytree.tree_leaves(forms)):
            return None
        values = [self.operand(arg) for arg in args], {name: self.operand(arg) for name, arg in kwargs.items()}
        return lower_under_autocast(self._interpreter, overload, forms, values)

    def _split_by_numbers(self, tensor: Tensor) -> tuple[torch._ops.OpOverload, Any]:
        """Return the form of ``tensor_split`` that takes the contents of a tensor as numbers."""
        array = self.op.static(self.value(tensor))
        if array is not None:
            number = array.tolist()
            return (aten.tensor_split.indices if isinstance(number, list) else aten.tensor_split.sections), number
        if tensor.fake.dim() == 0 or not isinstance(tensor.fake.shape[0], int):
            raise UnsupportedOperatorError("the model computes into how many parts it splits")
        places = [self.call(aten.select.int, [tensor, 0, index], {}) for index in range(tensor.fake.shape[0])]
        return aten.tensor_split.indices, [self.scalars.of_tensor(place) for place in places]

    def _number_result(self, overload: torch._ops.OpOverload, args: Sequence[Any]) -> Tensor | None:
        """Compute with the numbers inside tensors that were made of sizes, as traced programs do."""
        name = _NUMBER_FUNCTIONS.get(overload._schema.name)
        if name is None or not args or not isinstance(args[0], Tensor):
            return None
        numbers = []
        for arg in args[:2]:
            number = arg.storage.state.number if isinstance(arg, Tensor) and not isinstance(arg.node, View) else arg
            if number is None or isinstance(number, bool) or not isinstance(number, int | torch.SymInt):
                return None
            numbers.append(number)
        rest = [arg for arg in args[2:] if arg is not None]
        if name == "div":
            if len(args) < 3 or args[2] != "floor":
                return None
            name = "floordiv"
        elif any(arg != 1 for arg in rest):
            return None
        if not any(isinstance(number, torch.SymInt) for number in numbers):
            return None
        if name == "neg":
            return self.number_tensor(-numbers[0])
        return self.number_tensor(self.scalars.binary(name, *numbers))

    def fake_call(self, overload: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        """Return the forms of what a call gives."""
        return self._recorded_call(overload, *_without_codes(overload, args, kwargs))[0]

    def view_of(self, overload: torch._ops.OpOverload, args: Sequence[Any]) -> tuple[int, Call] | None:
        """Return the position of the operand whose memory a call gives out, with the call, or None."""
        schema = overload._schema
        if schema.is_mutable or not any(returned.alias_info for returned in schema.returns):
            return None
        given, keyword = split_arguments(overload, [frozen(arg) for arg in args])
        given, keyword = _without_codes(overload, given, keyword)
        position = self._recorded_call(overload, given, keyword)[1]
        return None if position is None else (position, Call(overload, tuple(given), keyword, position, None))

    def _recorded_call(self, overload: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> tuple[Any, int | None]:
        if overload in _JOINS and isinstance(args[0], SequenceState):
            return self._joined_form(args[0].element, args[1] if len(args) > 1 else 0, _JOINS[overload]), None
        fake_args = [self.form(arg) for arg in args]
        fake_kwargs = {name: self.form(arg) for name, arg in kwargs.items()}
        return self.metadata.call(
            SHAPES.get(overload) or torch_definition(overload) or overload, fake_args, fake_kwargs
        )

    def _joined_form(self, element: Any, dim: int, new_axis: int) -> Any:
        """Return the form of the joined elements of a sequence, whose number is not known."""
        sizes = list(element.shape)
        axis = range(len(sizes) + new_axis)[dim]
        sizes[axis : axis + 1 - new_axis] = [self.metadata.unknown_size()]
        return self.metadata.empty(element.dtype, sizes)

    def form(self, arg: Any) -> Any:
        """Return the form of an argument, or what stands for a number that only the runtime knows."""
        if isinstance(arg, Tensor):
            return arg.fake
        if isinstance(arg, RuntimeFloat):
            return self.metadata.unknown_float()
        if isinstance(arg, RuntimeBool):
            return True
        if isinstance(arg, list | tuple):
            return [self.form(item) for item in arg]
        if isinstance(arg, SequenceState):
            return [arg.element]
        if isinstance(arg, VectorState):
            raise ScriptValueError("It takes a list of numbers whose length has to be known here.")
        if isinstance(arg, Poison):
            raise arg.error()
        return arg

    def operand(self, arg: Any) -> Any:
        """Return an argument as lowerings take it."""
        if isinstance(arg, Tensor):
            return self.value(arg)
        if isinstance(arg, list | tuple):
            return [self.operand(item) for item in arg]
        if isinstance(arg, _RUNTIME_SCALARS):
            return self.scalars.to_argument(arg)
        if isinstance(arg, SequenceState):
            raise ScriptValueError(
                "A list whose length only the runtime knows can be stacked, concatenated and indexed, nothing else."
            )
        return arg

    def _lower(self, overload: Any, args: Sequence[Any], kwargs: Mapping[str, Any], fake: Any) -> Any:
        joined = _JOINS.get(overload)
        if joined is not None and isinstance(args[0], SequenceState):
            dim = args[1] if len(args) > 1 else 0
            value = self.op.emit_custom(
                "", "ConcatFromSequence", [args[0].value], {"axis": dim, "new_axis": joined}, [to_ir(fake.dtype)]
            )[0]
            value.shape = ir.Shape(self.metadata.symbols.dims(fake))
            return value
        if self.fallback is OperatorExportTypes.ONNX_ATEN and overload.namespace == "aten" and _is_tensors(fake):
            written = write_aten(self._interpreter, overload, args, kwargs, fake)
            self.check(written, fake, str(overload.name()))
            return written
        values = [self.operand(arg) for arg in args]
        keyword = {name: self.operand(arg) for name, arg in kwargs.items()}
        entry = find_lowering(self.table, overload, values, keyword, self.op.opset)
        if entry is not None:
            result = apply_lowering(self.op, entry, overload, values, keyword)
        else:
            result = self._decomposed(overload, args, kwargs, values, keyword)
        self.check(result, fake, str(overload.name()))
        return result

    def _decomposed(
        self, overload: Any, args: Sequence[Any], kwargs: Mapping[str, Any], values: list[Any], keyword: dict[str, Any]
    ) -> Any:
        fake_args = [self.form(arg) for arg in args]
        fake_kwargs = {name: self.form(arg) for name, arg in kwargs.items()}
        return lower_by_pieces(self._interpreter, overload, (fake_args, fake_kwargs), (values, keyword))

    def check(self, result: Any, fake: Any, name: str) -> None:
        if is_tensor(fake):
            if not isinstance(result, ir.Value):
                raise LoweringError(f"{name} gives a tensor in torch, but its lowering {type(result).__name__}.")
            check_result(result, fake, self.metadata.symbols.dims(fake), name)
        elif isinstance(fake, list | tuple):
            if not isinstance(result, list | tuple) or len(result) < len(fake):
                raise LoweringError(f"{name} gives {len(fake)} results in torch, its lowering fewer.")
            for part, expected in zip(result, fake, strict=False):
                if is_tensor(expected) and part is not None:
                    self.check(part, expected, name)

    def wrapped(self, values: Any, fake: Any, view: tuple[int, Call] | None) -> Any:
        """Turn ONNX values into variables: views of an operand, or tensors of their own."""
        if is_tensor(fake):
            if view is None:
                return self.fresh(values, fake)
            position, call = view
            return self._viewed_tensor(call.args[position], call, values, fake)
        if isinstance(fake, list | tuple):
            parts = []
            for index, (part, expected) in enumerate(zip(values, fake, strict=False)):
                inner = None if view is None else (view[0], dataclasses.replace(view[1], output=index))
                parts.append(self.wrapped(part, expected, inner))
            return ListRef(self.heap, tuple(parts)) if isinstance(fake, list) else tuple(parts)
        if isinstance(values, ir.Value):
            return self.scalars.runtime(values)
        return values

    def _viewed_tensor(self, parent: Tensor, call: Call, value: ir.Value, fake: Any) -> Tensor:
        view = View(parent.node, dataclasses.replace(call, args=_without(call.args, call.position)), fake)
        view.cached = (node_value(self._interpreter, parent.node), value, self.op.scope)
        return Tensor(self.heap, view)

    # ---- calls that change a tensor

    def _call_in_place(self, overload: torch._ops.OpOverload, args: list[Any], kwargs: dict[str, Any]) -> Any:
        replaced = VIEWS_IN_PLACE.get(str(overload.name()))
        if replaced is not None:
            view = self.call(replaced, args, kwargs)
            self.heap.write(args[0], view.state)
            return args[0]
        made = _MADE_ANEW.get(str(overload.name()))
        if made is not None:
            out = kwargs["out"]
            self.heap.write(out, self.call(made, args, {"dtype": out.fake.dtype}).state)
            return out
        targets = [_argument(overload, i, args, kwargs) for i, a in enumerate(overload._schema.arguments) if _writes(a)]
        if overload._schema.name == "aten::copy_":
            self.write(targets[0], args[1])
            return targets[0]
        functional = functional_form(overload)
        if functional is None and self.table.is_own(str(overload.name())):
            value = self._lower(overload, args, kwargs, targets[0].fake)
            self.write(targets[0], self.fresh(value, targets[0].fake))
            return targets[0]
        if functional is None:
            raise UnsupportedOperatorError("it changes a tensor and has no functional form", operator=overload.name())
        outs = {argument.name for argument in overload._schema.arguments if argument.is_out}
        kept = {name: value for name, value in kwargs.items() if name not in outs}
        results = self.call(functional, args[: len(functional._schema.arguments)], kept)
        if not any(returned.alias_info for returned in overload._schema.returns):
            # What it returns is new, and what it writes comes after that in the functional form.
            own, results = results[: -len(targets)], results[-len(targets) :]
            self._write_all(targets, results)
            return own if len(own) > 1 else own[0]
        self._write_all(targets, results if isinstance(results, tuple) else (results,))
        return targets[0] if len(targets) == 1 else tuple(targets)

    def _write_all(self, targets: Sequence[Tensor], results: Sequence[Any]) -> None:
        for target, result in zip(targets, results, strict=False):
            self.write(target, result)

    def write(self, target: Tensor, source: Any) -> None:
        """Write a tensor or number to the memory of ``target``, as ``copy_`` does."""
        if not isinstance(source, Tensor):
            source = self.number_tensor(source)
        assign(self._interpreter, target, written_value(self._interpreter, target, source))


# What fills a given tensor, which takes the size of the result, by what makes a new one.
_MADE_ANEW = {
    "aten::arange.out": aten.arange.default,
    "aten::arange.start_out": aten.arange.start_step,
    "aten::linspace.out": aten.linspace.default,
    "aten::logspace.out": aten.logspace.default,
    "aten::zeros.out": aten.zeros.default,
    "aten::ones.out": aten.ones.default,
    "aten::full.out": aten.full.default,
}
_NUMBER_FUNCTIONS = {
    "aten::add": "add",
    "aten::sub": "sub",
    "aten::mul": "mul",
    "aten::floor_divide": "floordiv",
    "aten::div": "div",
    "aten::remainder": "remainder",
    "aten::neg": "neg",
}
# What gives out the tensor itself, not another view of its memory, where nothing is to be done.
_RETURNING_SELF = frozenset(
    f"aten::{name}"
    for name in (
        *("to", "type_as", "cpu", "contiguous", "flatten", "atleast_1d", "atleast_2d", "atleast_3d", "sum_to_size"),
        *("real", "conj", "resolve_conj", "resolve_neg", "positive", "lift_fresh"),
    )
)
_DROPOUTS = frozenset(
    getattr(aten, name).default for name in ("dropout", "feature_dropout", "alpha_dropout", "feature_alpha_dropout")
)
_JOINS = {aten.cat.default: 0, aten.stack.default: 1}


def _is_tensors(fake: Any) -> bool:
    return all(is_tensor(part) for part in (fake if isinstance(fake, list | tuple) else [fake]))


def _without(args: tuple[Any, ...], position: int) -> tuple[Any, ...]:
    return tuple(None if index == position else arg for index, arg in enumerate(args))


def split_arguments(overload: torch._ops.OpOverload, args: Sequence[Any]) -> tuple[list[Any], dict[str, Any]]:
    """Tell the keyword-only arguments of a node from the others."""
    positional: list[Any] = []
    keyword: dict[str, Any] = {}
    for (name, kwarg_only), value in zip(_parameters(overload), args, strict=False):
        if kwarg_only:
            keyword[name] = value
        else:
            positional.append(value)
    return positional, keyword


@functools.cache
def _parameters(overload: torch._ops.OpOverload) -> tuple[tuple[str, bool], ...]:
    """Return name of each argument and whether it is keyword-only; torch makes the schema's arguments anew."""
    return tuple((argument.name, argument.kwarg_only) for argument in overload._schema.arguments)


def frozen(arg: Any) -> Any:
    """Return a list argument as it is now."""
    if isinstance(arg, ListRef):
        return arg.state if isinstance(arg.state, SequenceState | VectorState) else [frozen(item) for item in arg.items]
    return arg


def _writes(argument: Any) -> bool:
    return argument.alias_info is not None and argument.alias_info.is_write


def _argument(overload: torch._ops.OpOverload, index: int, args: list[Any], kwargs: dict[str, Any]) -> Any:
    return args[index] if index < len(args) else kwargs[overload._schema.arguments[index].name]


def _without_codes(
    overload: torch._ops.OpOverload, args: Sequence[Any], kwargs: Mapping[str, Any]
) -> tuple[list[Any], dict[str, Any]]:
    """Return the arguments of a call with dtypes, layouts and memory formats in place of TorchScript's integers."""
    for value in (*args, *kwargs.values()):
        if isinstance(value, Poison):
            raise value.error()
    converters = argument_converters(overload)
    given = [converters[i](a) if i in converters and a is not None else a for i, a in enumerate(args)]
    if not converters or not kwargs:
        return given, dict(kwargs)
    names = {argument.name: index for index, argument in enumerate(overload._schema.arguments)}
    return given, {
        name: converters[names[name]](value) if names[name] in converters and value is not None else value
        for name, value in kwargs.items()
    }


def functional_form(overload: torch._ops.OpOverload) -> torch._ops.OpOverload | None:
    found = functional_overload(overload)
    if found is not overload:
        return found
    namespace, name = overload._schema.name.split("::")
    if name.startswith("__i") and name.endswith("__"):
        packet = getattr(getattr(torch.ops, namespace), f"__{name[3:]}", None)
        return getattr(packet, overload._overloadname, None)
    packet = getattr(getattr(torch.ops, namespace), f"{name.removesuffix('_')}_functional", None)
    return None if packet is None else packet.default


# Operators whose results share memory with their operand although nobody keeps track of it, and those that tell.
_TRACKED: dict[Any, torch._ops.OpOverload] = {
    aten.unsafe_chunk.default: aten.chunk.default,
    aten.unsafe_split.Tensor: aten.split.Tensor,
    aten.unsafe_split_with_sizes.default: aten.split_with_sizes.default,
}


def _plain_form(
    overload: torch._ops.OpOverload, args: list[Any], kwargs: dict[str, Any]
) -> tuple[Any, list[Any], dict[str, Any]]:
    """Return a call in the form that eager programs use, where TorchScript has one of its own."""
    name = str(overload.name())
    if name in ("aten::to.prim_Device", "aten::to.prim_dtype", "aten::to.device"):
        at = {"aten::to.prim_dtype": 1}.get(name, 2)
        dtype = args[at] if len(args) > at else None
        if dtype is None:
            copy = len(args) > at + 2 and args[at + 2]
            return (aten.clone.default if copy else None), args[:1], {}
        from onnx_ts_legacy.graph.dtypes import dtype_of_code

        return aten.to.dtype, [args[0], dtype_of_code(dtype), *args[at + 1 : at + 3]], {}
    if name == "aten::to.prim_other":
        return None, args, {}
    return _TRACKED.get(overload, overload), args, kwargs
