"""From an ExportedProgram to an ONNX model."""

from __future__ import annotations

import dataclasses
import warnings
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import onnx_ir as ir
import torch
from torch.export.graph_signature import InputKind, OutputKind, TensorArgument

from onnx_fx_export._version import __version__
from onnx_fx_export.capture.request import CapturedProgram
from onnx_fx_export.errors import InvalidArgumentError, conversion_error
from onnx_fx_export.lower.higher_order import HANDLERS
from onnx_fx_export.lower.mutations import Mutations, refuse_assigned_data, without_hidden_writes
from onnx_fx_export.origin import origin_of
from onnx_fx_export.repeats.functions import LOWEST_OPSET, FunctionStore
from onnx_fx_export.repeats.regions import ModuleClasses, module_regions
from onnx_fx_export.sizes.constraints import size_constraints
from onnx_fx_export.sizes.dimension_names import declared_minimums, name_numbers, name_other_sizes, name_sizes
from onnx_fx_export.sizes.sources import define_symbol
from onnx_fx_export.weights.initializers import WeightStore
from onnx_fx_export.weights.tensor_subclasses import ACCESS, inner_tensor
from onnxops_decomp import LoweringTable, OpBuilder
from onnxops_decomp.exporting import (
    DEFAULT_NAN,
    DYNAMIC_NUMBER,
    MAX_FOLDED_BYTES,
    CallStructure,
    Dims,
    GraphLowering,
    Interface,
    Leaf,
    ModelContext,
    NanHandling,
    ONNXProgram,
    Output,
    Reference,
    SizeConstraints,
    SymbolNames,
    affine_of,
    assumed_conditions,
    axis_size,
    build_model,
    check_names,
    check_numbers,
    finish_model,
    inner_tensors,
    is_complex,
    is_without_data,
    mark_complex,
    mark_number,
    names_by_leaf,
    needed_state,
    to_ir,
    warn_of_left_out,
    warn_of_names,
    warn_of_numbers,
)

__all__ = ["ConversionOptions", "ModelNames", "convert"]


@dataclasses.dataclass(frozen=True)
class ModelNames:
    """What the values at the model's boundary are called.

    Attributes:
        inputs: Name of each user input in flat order, from the structure of the arguments.
        outputs: Name of each user output in flat order.
        dims: For each user input, what is declared of its dimensions by axis.
        input_overrides: Names given by the user for the model's inputs, in order.
        output_overrides: Names given by the user for the model's outputs, in order.
    """

    inputs: Sequence[str]
    outputs: Sequence[str]
    dims: Sequence[Mapping[int, Any]]
    input_overrides: Sequence[str] = ()
    output_overrides: Sequence[str] = ()


@dataclasses.dataclass(frozen=True)
class ConversionOptions:
    """How a captured program is converted.

    Attributes:
        opset: Opset of the model.
        table: Lowerings to use.
        state: ``"error"`` to refuse programs that change what a later call depends on, ``"io"`` to make each of those
            an input and an output, ``"ignore"`` to leave them as they are and warn.
        optimize: Whether the finishing passes fuse nodes.
        functions: Classes of the modules that become functions, or True for all modules.
        widen_bfloat16: Whether operators compute in FLOAT where CPU runtimes have no BFLOAT16 kernel.
        target: The runtime whose own operators may be used.
        folds_weights: Whether the finishing passes may compute other weights from those of the model.
        nan: Whether extrema, positions and orders are torch's among numbers of which some are NaN.
    """

    opset: int
    table: LoweringTable
    state: str = "error"
    optimize: bool = True
    functions: ModuleClasses = False
    widen_bfloat16: bool = False
    target: str | None = None
    folds_weights: bool = True
    nan: NanHandling = DEFAULT_NAN


_INPUTS = (torch.Tensor, torch.SymInt, torch.SymFloat, torch.SymBool)
# What the program writes to and the model keeps.
_STATE_MUTATIONS = (OutputKind.BUFFER_MUTATION, OutputKind.PARAMETER_MUTATION)


class _Converter:
    def __init__(
        self,
        captured: CapturedProgram,
        mutations: Mutations,
        left_out: frozenset[str],
        names: ModelNames,
        options: ConversionOptions,
    ) -> None:
        self.captured, self.mutations, self.names, self.options = captured, mutations, names, options
        self.program = program = mutations.program
        opset = options.opset
        self.carried = mutations.buffers - left_out
        self.before: dict[str, ir.Value] = {}
        self.needed: frozenset[str] = frozenset()
        self.rebound = mutations.rebound
        context = ModelContext(opset, target=options.target, widen_bfloat16=options.widen_bfloat16, nan=options.nan)
        self.op = OpBuilder(opset, context=context)
        self.symbols = SymbolNames(self.op)
        self.weights = WeightStore(self.op)
        self.functions = FunctionStore()
        handlers = {**HANDLERS, ACCESS: inner_tensor, **self.functions.handlers(opset)}
        self.lowering = GraphLowering(self.op, options.table, self.symbols, handlers=handlers, origin=origin_of)
        self.input_positions: list[int] = []
        self.constants: dict[int, Any] = {}
        self.numbers: dict[str, str] = {}
        self.model_inputs: list[str] = []
        self.input_dims: dict[str, Dims] = {}
        self.initial_state: dict[str, torch.Tensor] = {}
        self.state: dict[str, str] = {}
        # Names of the boundary come before those of values inside.
        weights = {*program.state_dict, *program.constants, *mutations.notes.paths.values()}
        check_names(names.input_overrides, names.output_overrides, weights, InvalidArgumentError)
        leaves = _leaves(program, names.inputs)
        self.given = names_by_leaf(names.input_overrides, leaves, InvalidArgumentError)
        warn_of_names(names.input_overrides, self.given, leaves)
        taken = {*names.inputs, *names.input_overrides, *names.output_overrides, *weights}
        own = {name for name, count in Counter(names.outputs).items() if count == 1 and name not in taken}
        self.kept_outputs = frozenset({*names.output_overrides, *own})
        self.kept = self.kept_outputs.union(names.input_overrides)
        for name in self.kept:
            self.op.context.names.reserve(name)

    # ---- inputs

    def inputs(self) -> list[Any]:
        """Create the values of all placeholders, in order."""
        placeholders = [node for node in self.program.graph.nodes if node.op == "placeholder"]
        user = iter(range(len(self.names.inputs)))
        values: list[Any] = []
        self._name_dims(placeholders)
        for node, spec in zip(placeholders, self.program.graph_signature.input_specs, strict=True):
            if spec.kind is InputKind.USER_INPUT:
                values.append(self._user_input(node, spec.arg, next(user)))
            elif spec.kind is InputKind.TOKEN or spec.target is None:
                values.append(None)
            else:
                values.append(self._weight(node, spec.target))
        return values

    def _user_input(self, node: torch.fx.Node, argument: Any, position: int) -> Any:
        val = node.meta.get("val")
        if not isinstance(val, _INPUTS):
            self.constants[position] = getattr(argument, "value", val)
            return self.constants[position]
        name = self.given.get(position, self.names.inputs[position])
        self.input_positions.append(position)
        if not isinstance(val, torch.Tensor):
            return self._number_input(name, val)
        check_numbers("Input", name, val)
        dims = self.input_dims[self.names.inputs[position]] = self.symbols.dims(val)
        value = self._input(name, to_ir(val.dtype), (*dims, 2) if val.is_complex() else dims)
        for axis, size in enumerate(val.shape):
            if isinstance(size, torch.SymInt):
                define_symbol(self.op.context, self.symbols.expression(size), partial(axis_size, value, axis))
        return mark_complex(value) if val.is_complex() else value

    def _input(self, name: str, dtype: ir.DataType, dims: Dims) -> ir.Value:
        position = self.input_positions[-1]
        value = self.op.input(name, dtype, dims)
        if name in self.kept and (position in self.given or name not in self.given.values()):
            value.name = name
        # Another name where a weight has it, which keeps its own, or the user gives it to another input.
        self.model_inputs.append(str(value.name))
        return value

    def _number_input(self, name: str, val: Any) -> ir.Value:
        dtype = {torch.SymInt: ir.DataType.INT64, torch.SymBool: ir.DataType.BOOL}.get(type(val), ir.DataType.DOUBLE)
        value = mark_number(self._input(name, dtype, ()))
        self.numbers[str(value.name)] = str(self.symbols.expression(val))
        define_symbol(self.op.context, self.symbols.expression(val), lambda op: op.Reshape(value, [1]))
        return value

    def _name_dims(self, placeholders: Sequence[torch.fx.Node]) -> None:
        """Give symbols the names that the user gave the dimensions."""
        specs = self.program.graph_signature.input_specs
        user = [n for n, s in zip(placeholders, specs, strict=True) if s.kind is InputKind.USER_INPUT]
        sizes = []
        for node, name, dims in zip(user, self.names.inputs, self.names.dims, strict=False):
            val = node.meta.get("val")
            for axis, dim in dims.items():
                size = val if axis == DYNAMIC_NUMBER else val.shape[axis] if isinstance(val, torch.Tensor) else None
                if isinstance(size, torch.SymInt):
                    sizes.append((name if axis == DYNAMIC_NUMBER else f"{name} (axis {axis})", size, dim))
        name_sizes(self.symbols, sizes)
        shapes = [(name, node.meta.get("val")) for node, name in zip(user, self.names.inputs, strict=True)]
        axes = [(name, *each) for name, x in shapes if isinstance(x, torch.Tensor) for each in enumerate(x.shape)]
        unnamed = [(f"{name}_dim_{axis}", size) for name, axis, size in axes if isinstance(size, torch.SymInt)]
        name_other_sizes(self.symbols, unnamed)
        numbers = ((name, n) for name, n in shapes if isinstance(n, torch.SymInt))
        name_numbers(self.symbols, numbers, (size for _, size in unnamed))

    def _weight(self, node: torch.fx.Node, target: str) -> Any:
        tensor = self.program.state_dict.get(target)
        if tensor is None:
            tensor = self.program.constants.get(target)
        if not isinstance(tensor, torch.Tensor):
            return tensor
        check_numbers("Weight", target, tensor)
        if parts := inner_tensors(tensor):
            return {name: self.weights.value(f"{target}.{name}", part) for name, part in parts.items()}
        if target in self.carried:
            name = self.mutations.name(target)
            self.initial_state[name] = tensor.detach().clone()  # the user may run the model on
            dims = (*tensor.shape, 2) if tensor.is_complex() else tuple(tensor.shape)
            value = self.before[target] = self.op.input(name, to_ir(tensor.dtype), dims)
            return mark_complex(value) if tensor.is_complex() else value
        if target in self.mutations.buffers:
            tensor = tensor.detach().clone()  # as it is before the first call
        # Small constants take part in folding; parameters and persistent buffers stay exchangeable.
        small = tensor.numel() * tensor.element_size() <= MAX_FOLDED_BYTES and not tensor.is_complex()
        if target in self.program.constants and small and not is_without_data(tensor):
            return self.lowering.tensor_constant(tensor)
        return self.weights.value(target, tensor)

    # ---- outputs

    def outputs(self, results: Sequence[Any]) -> tuple[list[ir.Value], list[Any]]:
        """Return the model's outputs, and for each flat user output its model output or constant."""
        if clash := {*self.names.output_overrides}.intersection(self.model_inputs):
            raise InvalidArgumentError(f"output_names gives the name {min(clash)!r}, which is the name of an input.")
        values: list[tuple[ir.Value, str]] = []
        written: list[tuple[ir.Value, str, bool]] = []
        user: list[Any] = []
        numbers: list[int] = []
        left_out: dict[str, Any] = {}
        overrides = iter(self.names.output_overrides)
        names = iter(self.names.outputs)
        for spec, result in zip(self.program.graph_signature.output_specs, results, strict=True):
            if spec.kind in (*_STATE_MUTATIONS, OutputKind.USER_INPUT_MUTATION):
                written.append((result, str(spec.target), spec.kind in _STATE_MUTATIONS))
            elif spec.kind is OutputKind.USER_OUTPUT:
                name = next(names)
                if affine_of(result) is not None:
                    raise InvalidArgumentError(f"Output {name} is a quantized tensor of torch; dequantize it first.")
                if isinstance(result, ir.Value):
                    if not isinstance(spec.arg, TensorArgument):
                        numbers.append(len(values))
                    user.append(_Named(len(values)))
                    values.append((result, next(overrides, self._own_name(name))))
                    continue
                user.append(getattr(spec.arg, "value", result))
                if isinstance(user[-1], bool | int | float):
                    values.append((self._number(user[-1]), next(overrides, self._own_name(name))))
                else:
                    left_out[name] = user[-1]
        state = self._state_values([value for value, _ in values], written)
        if (extra := next(overrides, None)) is not None:
            raise InvalidArgumentError(f"output_names has {extra!r} and more, but the model has no output for it.")
        if not values and not state:
            raise InvalidArgumentError("The model returns no tensor and no number, so there is nothing to export.")
        warn_of_left_out(left_out)
        final = self._with_state(values, state)
        self.number_outputs = {str(final[index].name) for index in numbers}
        leaves = [Output(str(final[entry.index].name)) if isinstance(entry, _Named) else entry for entry in user]
        return final, leaves

    def _own_name(self, name: str) -> str:
        """Return what an output is called that the user gives no name: another one gets its own, maybe."""
        return f"{name}.out" if name in self.names.output_overrides else name

    def _with_state(self, values: list[tuple[ir.Value, str]], state: Mapping[str, ir.Value]) -> list[ir.Value]:
        """Return all outputs under their names: the state comes last, in the order in which it comes in."""
        order = [*self.model_inputs, *self.initial_state]
        sources = sorted(state, key=order.index)
        final = self._named([*values, *((state[source], f"{source}.next") for source in sources)])
        self.state = {source: str(final[len(values) + index].name) for index, source in enumerate(sources)}
        return final

    def _number(self, number: bool | int | float) -> ir.Value:
        """Return a number that the model returns whatever its inputs are, in the precision of Python."""
        dtypes = {bool: ir.DataType.BOOL, int: ir.DataType.INT64, float: ir.DataType.DOUBLE}
        return self.op.constant(number, dtypes[type(number)])

    def _state_values(
        self, results: Sequence[ir.Value], written: list[tuple[ir.Value, str, bool]]
    ) -> dict[str, ir.Value]:
        """Return the next value of each state input and written input by name, and find what is needed of them."""
        specs = {getattr(spec.arg, "name", ""): spec for spec in self.program.graph_signature.input_specs}
        for node in self.rebound:
            buffer = specs[node.name].kind is not InputKind.USER_INPUT
            source = str(specs[node.name].target) if buffer else node.name
            written.append((self.lowering.value_of(node), source, buffer))
        self._find_needed(results, written)
        return {
            self.mutations.name(source) if buffer else self.user_name(source): value
            for value, source, buffer in written
            if (source in self.carried if buffer else self.options.state == "io")
        }

    def _find_needed(self, results: Sequence[ir.Value], written: Sequence[tuple[ir.Value, str, bool]]) -> None:
        """Find the buffers that a later call depends on."""
        after = {source: value for value, source, buffer in written if buffer}
        pairs = {target: (self.before.get(target), after.get(target)) for target in self.carried}
        own = self.carried - self.mutations.notes.paths.keys()
        self.needed = frozenset(needed_state(results, pairs, own))

    def user_name(self, placeholder: str) -> str:
        """Return the name of the model's input that stands for the placeholder of a user input."""
        user = [s.arg.name for s in self.program.graph_signature.input_specs if s.kind is InputKind.USER_INPUT]
        return self.model_inputs[self.input_positions.index(user.index(placeholder))]

    def _named(self, values: Sequence[tuple[ir.Value, str]]) -> list[ir.Value]:
        """Give each output a value of its own that carries its name."""
        result: list[ir.Value] = []
        for value, name in values:
            shared = value.producer() is None or value in result
            output = self.op.copy(value) if shared else value
            if is_complex(value):
                mark_complex(output)
            # A cache goes in and comes out under one structural name.
            taken = name in self.model_inputs or name in self.initial_state
            reserve = self.op.context.names.reserve
            output.name = name if name in self.kept_outputs else reserve(f"{name}.out" if taken else name)
            result.append(output)
        return result

    def lowered(self) -> Sequence[Any]:
        """Return what the graph computes."""
        values = self.inputs()
        # What the user feeds comes first, what the model carries along after it.
        self.op.scope.inputs.sort(key=lambda value: value.name in self.initial_state)
        self.lowering.regions = module_regions(self.program.graph, self.options.functions, self.functions)
        results: Sequence[Any] = self.lowering.run(self.program.graph_module, values)
        if self.lowering.failures:
            raise conversion_error(self.lowering.failures, self.op.opset)
        return results

    def run(self, structure: CallStructure, reference: Callable[[], Reference]) -> ONNXProgram:
        """Convert the program.

        Args:
            structure: Structure of its arguments and of its result.
            reference: Returns what the result is to be compared with later.

        Raises:
            ConversionError: If some operators cannot be converted.
        """
        outputs, user = self.outputs(self.lowered())
        complex_outputs = frozenset(str(value.name) for value in outputs if is_complex(value))
        model = build_model(
            self.op,
            outputs,
            name="main_graph",
            initializers=self.weights.values,
            functions=self.functions.functions,
            producer=("onnx-fx-export", __version__),
        )
        if self.options.optimize:
            finish_model(model, self.options.target, folds_weights=self.options.folds_weights)
        constraints = self.constraints(assumed_conditions(model))
        constraints.record(model)
        interface = Interface(
            structure, self.input_positions, self.constants, user, self.numbers, frozenset(self.number_outputs),
            complex_outputs,
        )  # fmt: skip
        return ONNXProgram(
            model,
            interface,
            state=self.state,
            initial_state=self.initial_state,
            constraints=constraints,
            reference=reference,
            exported_program=self.captured.program,
            lowered_program=self.program,
            target=self.options.target,
            written_inputs=[self.user_name(name) for name in self.mutations.inputs],
        )

    def constraints(self, assumed: Sequence[str]) -> SizeConstraints:
        """Return what capture and decompositions found out about sizes, and what the nodes of the model need."""
        found = size_constraints(
            self.program,
            self.captured.sizes,
            self.symbols,
            self.input_dims,
            self.lowering.assumptions,
            frozenset(self.numbers.values()),
            declared_minimums(dim for dims in self.names.dims for dim in dims.values()),
            self.names.inputs,
        )
        return SizeConstraints([*found.conditions, *assumed])


def _leaves(program: torch.export.ExportedProgram, names: Sequence[str]) -> list[Leaf]:
    """Return the user inputs of a program, constants among them."""
    nodes = {node.name: node for node in program.graph.nodes if node.op == "placeholder"}
    user = [spec.arg for spec in program.graph_signature.input_specs if spec.kind is InputKind.USER_INPUT]
    values = [nodes[arg.name].meta.get("val") for arg in user]
    constants = [getattr(arg, "value", value) for arg, value in zip(user, values, strict=True)]
    kinds = [isinstance(value, _INPUTS) for value in values]
    return [Leaf(*leaf) for leaf in zip(names, constants, kinds, strict=True)]


@dataclasses.dataclass(frozen=True)
class _Named:
    index: int


def convert(
    captured: CapturedProgram,
    names: ModelNames,
    structure: CallStructure,
    options: ConversionOptions,
    reference: Callable[[], Reference],
) -> ONNXProgram:
    """Convert a captured program to an ONNX model.

    Args:
        captured: What torch.export captured.
        names: Names at the model's boundary.
        structure: Structure of the arguments and of the result.
        options: How it is converted.
        reference: Returns what the program is to be compared with later.

    Raises:
        InvalidArgumentError: If the opset has no functions, or a class of ``functions`` is not called.
        CaptureError: If the program assigns a tensor's ``data``.
        MutationError: If the program mutates state and ``state`` is ``"error"``.
        ConversionError: If operators cannot be converted; it lists all of them.
    """
    if options.functions and options.opset < LOWEST_OPSET:
        raise InvalidArgumentError(
            f"Model-local functions exist from opset {LOWEST_OPSET} on, and opset {options.opset} was requested: "
            "give a higher opset_version, or leave out export_modules_as_functions."
        )
    refuse_assigned_data(captured.program)
    mutations = without_hidden_writes(captured.program, captured.state)

    def converted(left_out: frozenset[str]) -> tuple[_Converter, ONNXProgram]:
        converter = _Converter(captured, mutations, left_out, names, options)
        return converter, converter.run(structure, reference)

    converter, result = converted(frozenset())
    needed = converter.needed
    if options.state == "error":
        mutations.refuse(needed)
    if left_out := mutations.buffers if options.state == "ignore" else mutations.buffers - needed:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # all of them were given before
            converter, result = converted(left_out)
    if options.state == "ignore":
        mutations.warn_of_ignored(needed)
    if options.state != "io":
        mutations.warn_of_inputs({name: converter.user_name(name) for name in mutations.inputs})
    constants = {names.inputs[position]: value for position, value in converter.constants.items()}
    warn_of_numbers(constants, "Give a tensor, or declare it dynamic in dynamic_shapes,")
    return result
