"""Puts the parts together: capture, convert until the state is settled, close the model, check it, save it."""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Callable, Collection, Mapping, Sequence
from functools import partial
from typing import Any

import onnx_ir as ir
import torch
from torch.utils import _pytree as pytree

from onnx_ts_legacy._version import __version__
from onnx_ts_legacy.calls.results import check_results
from onnx_ts_legacy.calls.scalars import number_output
from onnx_ts_legacy.calls.size_conditions import decided_conditions
from onnx_ts_legacy.capture.graphs import Captured
from onnx_ts_legacy.conversion.failures import raise_failures
from onnx_ts_legacy.conversion.walker import connect
from onnx_ts_legacy.enumerations import OperatorExportTypes
from onnx_ts_legacy.errors import (
    ArgumentsError,
    OnnxExporterError,
    OnnxExporterWarning,
    ScriptValueError,
    StateError,
    UnsupportedOperatorsError,
)
from onnx_ts_legacy.finish.module_functions import ModuleClass, outline_modules
from onnx_ts_legacy.finish.optional_outputs import optional_output
from onnx_ts_legacy.finish.results import Result, results_of
from onnx_ts_legacy.graph.parts import block_outputs
from onnx_ts_legacy.graph.sources import located
from onnx_ts_legacy.program import TSProgram
from onnx_ts_legacy.registration import Registry, registry
from onnx_ts_legacy.state.attributes import (
    changed_attributes,
    check_memory,
    first_values,
    first_variables,
    is_read_first,
    tie_weight,
    weight_tensor,
)
from onnx_ts_legacy.state.changes import changing_line, differs_apart, is_fixed, is_read, lasting, meetings
from onnx_ts_legacy.state.context import ConversionContext, Failure
from onnx_ts_legacy.state.numbers import runtime_number
from onnx_ts_legacy.state.pairs import held_as, held_dims
from onnx_ts_legacy.state.slot_values import interface_value, state_input
from onnx_ts_legacy.state.slots import StateSlot
from onnx_ts_legacy.state.values import DictRef, ListRef, Maybe, Poison, SequenceState, Tensor, VectorState
from onnx_ts_legacy.state.variables import value_of
from onnxops_core.exporting import warn_user
from onnxops_decomp import LoweringTable, OpBuilder, builtin_table
from onnxops_decomp.exporting import (
    DEFAULT_NAN,
    FoldBatchNormalization,
    Interface,
    Leaf,
    NanHandling,
    Output,
    Reference,
    Saving,
    SizeConstraints,
    axis_size,
    build_model,
    dimension_texts,
    ignored_state,
    is_complex,
    meeting_refusal,
    names_by_leaf,
    needed_state,
    shared_memory,
    state_refusal,
    to_ir,
    warn_of_left_out,
    with_line,
    with_lines,
)

__all__ = ["Options", "convert", "convert_numbers", "convert_partly"]

_ROUNDS = 8
_STATE = (torch.Tensor, bool, int, float)
DynamicAxes = Mapping[str, Mapping[int, str] | Sequence[int]]


@dataclasses.dataclass(frozen=True)
class Options:
    """What an export was asked for; see :func:`onnx_ts_legacy.export`."""

    opset_version: int
    input_names: Sequence[str] = ()
    output_names: Sequence[str] = ()
    dynamic_axes: DynamicAxes = dataclasses.field(default_factory=dict)
    state: str = "error"
    fallback: OperatorExportTypes = OperatorExportTypes.ONNX
    custom_opsets: Mapping[str, int] = dataclasses.field(default_factory=dict)
    inlines_python: bool = True
    saving: Saving = dataclasses.field(default_factory=Saving)
    folds_weights: bool = True
    module_classes: Mapping[str, ModuleClass] = dataclasses.field(default_factory=dict)
    table: LoweringTable = dataclasses.field(default_factory=builtin_table)
    of_torch: Registry | None = None
    target: str | None = None
    widen_bfloat16: bool = False
    nan: NanHandling = DEFAULT_NAN
    name: str = "main_graph"

    def custom(self, operator: str) -> Callable[..., Any] | None:
        """Return the user's conversion of an operator, or None."""
        found = registry.find(operator, self.opset_version)
        return self.of_torch.find(operator, self.opset_version) if found is None and self.of_torch else found

    def axes_of(self, leaves: Sequence[Leaf], absent: Collection[str]) -> list[Sequence[int]]:
        """Return the dynamic axes of the tensors among the leaves of a call, which leaves some parameters out."""
        names = [name for name in self.input_names if name not in absent]
        named = names_by_leaf(names, leaves, ArgumentsError)
        return [
            list(self.dynamic_axes.get(named.get(index, leaf.name), ()))
            for index, leaf in enumerate(leaves)
            if isinstance(leaf.value, torch.Tensor)
        ]


def convert(captured: Captured, options: Options, reference: Reference | None = None) -> TSProgram:
    """Convert a captured model.

    Args:
        captured: The model.
        options: What was asked for.
        reference: What the program is to be compared with later.

    Raises:
        OnnxExporterError: If it cannot be converted; which one says why.
    """
    slots: dict[str, StateSlot] = {}
    for _ in range(_ROUNDS):
        conversion = _Conversion(captured, options, slots)
        changed = conversion.run()
        if _settled(conversion, captured, slots, changed, options):
            break
    else:
        raise StateError("The shapes of the model's state do not settle from one call to the next.")
    conversion.check_inputs()
    needed = conversion.needed(changed)
    lines = {name: conversion.line(name, changed[name]) for name in sorted(needed)}
    others = {name: line for name, line in lines.items() if not isinstance(captured.initial(name), _STATE)}
    if others and options.state != "ignore":
        raise StateError(state_refusal(others))
    if options.state == "io":
        conversion.check_meetings(changed)
    else:
        _refuse_or_warn(lines, options.state)
        needed = set()
    if changed.keys() - needed:
        conversion = _Conversion(captured, options, {name: slot for name, slot in slots.items() if name in needed})
        conversion.context.attributes.ignored = frozenset(changed.keys() - needed)
        conversion.run()
    warn_of_left_out(conversion.left_out)
    return conversion.program(reference)


def convert_numbers(captured: Captured, options: Options, reference: Reference | None = None) -> TSProgram:
    """Convert a captured model whose numbers are inputs, as far as operators do not need them as constants.

    Raises:
        OnnxExporterError: If it cannot be converted; which one says why.

    Warns:
        UserWarning: If a number becomes a constant.
    """
    numbers = [example.name for example in captured.inputs if not example.is_constant and _holds_number(example.value)]
    try:
        return convert(captured, options, reference)
    except OnnxExporterError as error:
        first = last = error
    for names in [*([name] for name in numbers), *([numbers] if len(numbers) > 1 else [])]:
        try:
            program = convert(captured.with_constants(names), _without_names(captured, options, names), reference)
        except OnnxExporterError as error:
            last = error
            continue
        warn_user(f"{', '.join(names)} of the example becomes a constant of the model instead of an input, as {first}")
        return program
    # What fails with constants as well does not fail because of the numbers.
    raise last


def _without_names(captured: Captured, options: Options, constants: Sequence[str]) -> Options:
    """Return the options without the names that the user gives to numbers of some parameters, which are no inputs."""
    kept = [
        name
        for index, name in names_by_leaf(options.input_names, captured.leaves, ArgumentsError).items()
        if isinstance((leaf := captured.leaves[index]).value, torch.Tensor)
        or leaf.name.partition(".")[0] not in constants
    ]
    return dataclasses.replace(options, input_names=tuple(kept))


def _holds_number(value: Any) -> bool:
    return any(isinstance(leaf, bool | int | float) for leaf in pytree.tree_leaves(value))


def convert_partly(captured: Captured, options: Options) -> list[Failure]:
    """Convert as much as possible and return what could not be converted."""
    conversion = _Conversion(captured, options, {})
    with contextlib.suppress(UnsupportedOperatorsError):
        conversion.run()
    return conversion.context.failures


def _settled(
    conversion: _Conversion,
    captured: Captured,
    slots: dict[str, StateSlot],
    changed: dict[str, Any],
    options: Options,
) -> bool:
    """Enter what the program changes as state; tell whether everything was entered before."""
    check_memory(conversion.context)
    before = [(name, tuple(slot.forms)) for name, slot in slots.items()]
    for name, value in changed.items():
        slot = slots.get(name)
        if slot is None:
            initial = captured.initial(name)
            if not isinstance(initial, _STATE):
                continue
            slot = slots[name] = StateSlot(name, initial)
            if isinstance(slot.initial, torch.Tensor):
                slot.add(slot.initial.dtype, tuple(slot.initial.shape))
        for form in value.forms if isinstance(value, Tensor) else ():
            sizes = tuple(size if isinstance(size, int) else None for size in form.shape)
            slot.add(form.dtype, sizes)
    return before == [(name, tuple(slot.forms)) for name, slot in slots.items()]


def _refuse_or_warn(lines: Mapping[str, str], state: str) -> None:
    """Refuse what the program changes, given with the lines that do, or warn of it where it is to be ignored.

    Raises:
        StateError: If there is anything and it is not to be ignored.
    """
    found = dict(sorted(lines.items()))
    if found and state != "ignore":
        raise StateError(
            f"The model changes {with_lines(found)} when it runs. Call eval() on a model in training mode, pass "
            "state='io' to make each of them an input and an output of the ONNX model, or pass state='ignore' for a "
            "model that always computes what the first call does."
        )
    if found:
        warn_user(ignored_state(found), OnnxExporterWarning)


class _Conversion:
    """One pass over a captured graph."""

    def __init__(self, captured: Captured, options: Options, slots: Mapping[str, StateSlot]) -> None:
        self._captured, self._options, self._slots = captured, options, slots
        self.op = OpBuilder(options.opset_version)
        self.op.context.target = options.target
        self.op.context.widen_bfloat16 = options.widen_bfloat16
        self.op.context.nan = options.nan
        self.context = ConversionContext(
            self.op,
            captured.root,
            prefix=captured.prefix,
            slots=slots,
            table=options.table,
            custom=options.custom,
            custom_opsets=options.custom_opsets,
            inlines_python=options.inlines_python,
            fallback=options.fallback,
        )
        connect(self.context)
        self._inputs: list[Tensor] = []
        self._outputs: list[tuple[str, ir.Value]] = []
        self._state: dict[str, str] = {}
        self.left_out = dict(captured.left_out)
        self._interface: Interface

    def run(self) -> dict[str, Any]:
        """Convert the graph; return the attributes that it changes."""
        context = self.context
        self._remaining = iter(self._input_names())
        for name in self._options.output_names:
            self.op.context.names.reserve(name)
        variables = [self._nested(example.value, example.is_constant) for example in self._captured.inputs]
        for slot in self._slots.values():
            state_input(context, slot)
        if self._captured.root is not None:
            variables.insert(0, context.attributes.root)
        variables.extend(weight_tensor(context, name, weight) for name, weight in self._captured.weights)
        for name, weight in self._captured.aliases:
            tie_weight(context, name, weight)
        results = context.run_block(self._captured.graph, variables)
        changed, captured = changed_attributes(context), self._captured
        results, rebound = _cut(results, len(captured.rebound))
        results, _ = _cut(results, len(captured.decisions))
        changed.update(zip(captured.rebound, rebound, strict=True))
        if not context.failures:
            self._close(results)
            self._results = [value for _, value in self._outputs]
            self._close_state(changed)
        raise_failures(context)
        read, _ = _cut(block_outputs(captured.graph), len(captured.rebound))
        self._decided = decided_conditions(context, _cut(read, len(captured.decisions))[1], captured.decisions)
        return changed

    def needed(self, changed: Mapping[str, Any]) -> set[str]:
        """Return what a later call depends on of the things that the program changes."""
        values, starts = dict(self._outputs), first_values(self.context)
        tensors = {name for name in changed if isinstance(self._captured.initial(name), torch.Tensor)}
        others = self._needed_others({name: value for name, value in changed.items() if name not in tensors})
        outputs = [*self._results, *(values[self._state[name]] for name in others & self._state.keys())]
        pairs = {name: (starts.get(name), values.get(self._state.get(name, ""))) for name in tensors}
        return others | needed_state(outputs, pairs, tensors - self._captured.places)

    def _needed_others(self, changed: Mapping[str, Any]) -> set[str]:
        """Return what a later call depends on of the attributes that are not tensors at first."""
        captured, context = self._captured, self.context
        read = {
            name
            for name in changed
            if is_read_first(context, name) and is_read(captured.graph, name.rpartition(".")[2])
        }
        fixed = {name for name in read if not isinstance(captured.initial(name), _STATE) and is_fixed(changed[name])}
        start = f"{captured.prefix}." if captured.prefix else ""
        tried = lasting(captured.root, {start + name for name in fixed}, [x.value for x in captured.inputs])
        return read - fixed | {name.removeprefix(start) for name in tried}

    def check_meetings(self, changed: Mapping[str, Any]) -> None:
        """Refuse attributes of a script that show the same memory in the end, where a later call changes both.

        Raises:
            StateError: If there are any.
        """
        captured, first = self._captured, first_variables(self.context)
        met = meetings(first, changed) if captured.root is not None else []
        start = f"{captured.prefix}." if captured.prefix else ""
        paths, inputs = [start + name for name in {**first, **changed}], [x.value for x in captured.inputs]
        if met and (not met[0].is_certain or differs_apart(captured.root, paths, inputs)):
            name = met[0].path
            raise StateError(meeting_refusal(with_line(name, self.line(name, changed[name])), met[0].other))

    def line(self, name: str, value: Any) -> str:
        """Return the line that changes something of the model; an empty string if it is not known."""
        known = self._captured.rebound.get(name) or (value.storage.line if isinstance(value, Tensor) else "")
        return known or changing_line(self._captured.graph, name.rpartition(".")[2])

    # ---- inputs

    def _input_names(self) -> list[str]:
        leaves = self._captured.leaves
        given = names_by_leaf(self._options.input_names, leaves, ArgumentsError)
        names = [given.get(index, leaf.name) for index, leaf in enumerate(leaves) if leaf.is_input]
        unknown = set(self._options.dynamic_axes) - set(names) - set(self._options.output_names)
        if unknown:
            raise ArgumentsError(f"dynamic_axes names {min(unknown)!r}, which is not an input ({names}) or output.")
        return names

    def _nested(self, value: Any, is_constant: bool) -> Any:
        heap = self.context.heap
        if isinstance(value, torch.Tensor):
            return self._tensor_input(next(self._remaining), value)
        if isinstance(value, list):
            return ListRef(heap, tuple(self._nested(item, is_constant) for item in value))
        if isinstance(value, tuple):
            return tuple(self._nested(item, is_constant) for item in value)
        if isinstance(value, dict):
            return DictRef(heap, {key: self._nested(item, is_constant) for key, item in value.items()})
        if isinstance(value, bool | int | float) and not is_constant:
            dtypes = {bool: ir.DataType.BOOL, int: ir.DataType.INT64, float: ir.DataType.DOUBLE}
            return runtime_number(self.context, self.op.input(next(self._remaining), dtypes[type(value)], ()))
        return value

    def _tensor_input(self, name: str, example: torch.Tensor) -> Tensor:
        metadata = self.context.metadata
        axes = self._named_axes(name, example.dim())
        fake = metadata.input(example, axes)
        dims = metadata.symbols.dims(fake)
        held = self.op.input(name, to_ir(example.dtype), held_dims(dims, example.dtype))
        value = held_as(held, example.dtype)
        for axis, text in axes.items():
            self.op.context.symbols.setdefault(text, partial(axis_size, value, axis))
        variable = self.context.fresh(value, fake, origin=name)
        self._inputs.append(variable)
        return variable

    def check_inputs(self) -> None:
        """Warn of arguments that the program changes in place, which is not part of the model without state="io".

        Raises:
            StateError: If its results are wrong then, because the example shares memory.
        """
        examples = dict(zip((str(x.storage.origin) for x in self._inputs), self._captured.tensors(), strict=True))
        memory = {**dict(self._captured.weights), **examples}
        for variable in self._inputs:
            if not variable.storage.is_changed:
                continue
            name, line = str(variable.storage.origin), variable.storage.line
            place, example = with_line(name, line), examples[name]
            others = {other: tensor for other, tensor in memory.items() if other != name}
            if text := shared_memory(f"its input {place}", example, others, same_counts=True):
                raise StateError(text)
            if self._options.state != "io":
                warn_user(
                    f"The model changes its input {place} in place. The outputs of the ONNX model reflect that, "
                    'but it cannot change its inputs: state="io" makes the new contents an output.',
                    OnnxExporterWarning,
                )

    # ---- outputs

    def _close(self, values: Sequence[Any]) -> None:
        results, leaves, structure = results_of(self._captured, values, self.left_out)
        names = self._output_names([result.name for result in results])
        for name, result in zip(names, results, strict=True):
            try:
                self._outputs.append((name, self._output_value(result.value)))
            except ScriptValueError as error:
                raise ScriptValueError(located(f"Output {name!r} cannot be given: {error}", result.node)) from error
        self._interface = self._described(names, results, leaves, structure)

    def _close_state(self, changed: Mapping[str, Any]) -> None:
        """Make the new contents of inputs and of the state outputs."""
        for variable in self._inputs:
            if variable.storage.is_changed and self._options.state == "io":
                self._add_state(str(variable.storage.origin), value_of(self.context, variable))
        for path, slot in self._slots.items():
            if path in changed:
                self._add_state(path, interface_value(self.context, slot, changed[path]))
        if not self._outputs:
            raise ArgumentsError("The model returns no tensor and no number, so there is nothing to export.")
        pairs = frozenset(name for name, value in self._outputs if is_complex(value))
        self._interface = dataclasses.replace(self._interface, complex_outputs=pairs)

    def _add_state(self, name: str, value: ir.Value) -> None:
        self._state[name] = self.op.context.names.reserve(f"{name}.next")
        self._outputs.append((self._state[name], value))

    def _described(
        self, names: Sequence[str], results: Sequence[Result], leaves: Sequence[Any], structure: pytree.TreeSpec
    ) -> Interface:
        """Return how a call becomes inputs, and how outputs become the result."""
        captured = self._captured
        return Interface(
            dataclasses.replace(captured.structure, outputs=structure),
            [place for place, leaf in enumerate(captured.leaves) if leaf.is_input],
            {place: leaf.value for place, leaf in enumerate(captured.leaves) if not leaf.is_input},
            [Output(names[leaf]) if isinstance(leaf, int) else leaf for leaf in leaves],
            number_outputs=frozenset(name for name, result in zip(names, results, strict=True) if result.is_number),
        )

    def _output_value(self, result: Any) -> ir.Value:
        if isinstance(result, Poison):
            raise result.error()
        if isinstance(result, ListRef):
            state: SequenceState | VectorState = result.state
            return state.value if isinstance(state, SequenceState) else number_output(self.context, state)
        if isinstance(result, Maybe):
            return optional_output(self.context, result)
        if isinstance(result, Tensor):
            value = value_of(self.context, result)
            check_results(self.context, value, result.fake, "An output")
            return value
        return number_output(self.context, result)

    def _output_names(self, names: list[str]) -> list[str]:
        given = list(self._options.output_names)
        if len(given) > len(names):
            raise ArgumentsError(f"{len(given)} output names are given for {len(names)} outputs: {given}.")
        of_trace = self._captured.output_names
        own = of_trace if of_trace is not None and len(of_trace) == len(names) else names
        taken = {*given, *(value.name for value in self.op.scope.inputs)}
        reserve = self.op.context.names.reserve
        return [*given, *(reserve(f"{name}.out" if name in taken else name) for name in own[len(given) :])]

    def program(self, reference: Reference | None) -> TSProgram:
        """Close the model."""
        context = self.context
        conditions = {**context.conditions, **self._decided}
        model = build_model(
            self.op,
            [value for _, value in self._outputs],
            name=self._options.name,
            initializers=context.attributes.initializers,
            functions=tuple(context.functions.values()),
            producer=("onnx-ts-legacy", __version__),
        )
        for (name, _), value in zip(self._outputs, model.graph.outputs, strict=True):
            value.name = name
            self._declare(name, value)
        if self._options.folds_weights:
            FoldBatchNormalization().call(model)
        if self._options.module_classes:
            outline_modules(model, self._options.module_classes, context.attributes.initializers)
        initial = {name: slot.initial_tensor() for name, slot in self._slots.items()}
        program = TSProgram(
            model,
            self._interface,
            state=self._state,
            initial_state=initial,
            constraints=SizeConstraints(conditions, {text: place for text, place in conditions.items() if place}),
            reference=None if reference is None else lambda: reference,
        )
        program.saving, program.folds_weights = self._options.saving, self._options.folds_weights
        return program

    def _named_axes(self, name: str, rank: int) -> dict[int, str]:
        """Return the names of the dynamic dimensions of an input or output by axis.

        Raises:
            ArgumentsError: If there is no such axis.
        """
        declared = {name: _axis_texts(name, axes) for name, axes in self._options.dynamic_axes.items()}
        names = dimension_texts(text for texts in declared.values() for text in texts.values())
        own = declared.get(name, {})
        for axis in own:
            if not -rank <= axis < rank:
                raise ArgumentsError(f"dynamic_axes names axis {axis} of {name!r}, which has rank {rank}.")
        return {axis % rank: names[text] for axis, text in own.items()}

    def _declare(self, name: str, value: ir.Value) -> None:
        """Give the dimensions of an output the names that were asked for."""
        if value.shape is None:
            return
        axes = self._named_axes(name, len(value.shape))
        for axis, text in axes.items():
            dim = value.shape[axis]
            if isinstance(dim, int) or dim.value is None or str(dim.value).startswith("u"):
                value.shape[axis] = text


def _cut(values: list[Any], count: int) -> tuple[list[Any], list[Any]]:
    """Return all values but the last ones, and these."""
    place = len(values) - count
    return values[:place], values[place:]


def _axis_texts(name: str, axes: Mapping[int, str] | Sequence[int]) -> dict[int, str]:
    """Return what the user calls the dynamic dimensions of an input or output by axis, or a text for those unnamed."""
    if isinstance(axes, Mapping):
        return {axis: str(text) for axis, text in axes.items()}
    return {axis: f"{name}_dim_{axis}" for axis in axes}
