"""What is to be exported, and the steps from there to a program."""

from __future__ import annotations

import contextlib
import dataclasses
import inspect
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import torch
from torch.export import Dim
from torch.utils import _pytree as pytree

from onnx_fx_export.capture.exported_program import capture
from onnx_fx_export.capture.request import CapturedProgram, CaptureRequest, Stage
from onnx_fx_export.capture.strategies import SIZE_WAYS
from onnx_fx_export.errors import (
    CaptureError,
    ConversionError,
    DynamicShapeError,
    InvalidArgumentError,
    MutationError,
    OnnxExporterError,
)
from onnx_fx_export.finish.onnxscript import rewrite_with_onnxscript
from onnx_fx_export.finish.tool_metadata import apply_metadata
from onnx_fx_export.inputs.arguments import (
    FunctionModule,
    arguments_by_name,
    check_devices,
    parameter_defaults,
    parameter_names,
)
from onnx_fx_export.lower.convert import ConversionOptions, ModelNames, convert
from onnx_fx_export.size_ways.search import for_more_sizes, may_have_ways, may_take_more
from onnx_fx_export.sizes.dimension_names import name_output_axes
from onnx_fx_export.sizes.facts import SizeFacts
from onnx_fx_export.sizes.torch_private import shared_bounds, short_divisions, whole_bounds
from onnx_fx_export.torchscript import export_through_torchscript, fall_back
from onnxops_core.exporting import conversion_settings, warn_user
from onnxops_decomp.exporting import (
    AtenTrait,
    CallStructure,
    ExportRecord,
    ONNXProgram,
    Reference,
    Saving,
    Verified,
    add_size_checks,
    argument_paths,
    declared_bounds,
    example_paths,
    has_aten_trait,
    left_out,
    output_name,
    path_name,
    set_custom_opsets,
    shared_memory,
    smallest_declared,
    structure_paths,
    verify_program,
    warn_of_bounds,
    without_absent,
)

__all__ = ["Captured", "ExportRequest"]


@dataclasses.dataclass(frozen=True)
class ExportRequest:
    """What is to be exported, of all the arguments of :func:`export`.

    Attributes:
        given: All arguments by name, for the TorchScript exporter.
        conversion: How the captured program is converted.
        saving: How the program is saved.
    """

    model: Any
    args: tuple[Any, ...]
    kwargs: Mapping[str, Any] | None
    dynamic_shapes: Any
    input_names: Sequence[str]
    output_names: Sequence[str]
    given: Mapping[str, Any]
    conversion: ConversionOptions
    saving: Saving

    def run(self, record: ExportRecord) -> ONNXProgram:
        """Go through the stages of an export, each with its time in ``record``.

        Raises:
            OnnxExporterError: If one of them fails.
        """
        given, reference = self.given, self._reference()
        with record.stage("capture"), _arithmetic():
            # Trial runs, which compare the model and what was captured of it, are a stage inside this one.
            captured = self.captured(record.stage)
            record.captured = captured.program
        with self._converting(record):
            result = self.converted(captured, reference)
            more = captured.request
            if more is not None and not may_take_more(more, captured.found, result):
                more = None
            if more is None:
                self._complete(result, captured, record)
        if more is not None:
            result, captured = self._for_more_sizes(more, result, captured, reference)
            with self._converting(record):
                self._complete(result, captured, record)
        if given["verify"]:
            with record.stage("verify"):
                result.verified = self._verified(result, reference())
        if given["f"] is not None:
            with record.stage("save"):
                result.save(given["f"])
        return result

    def run_or_fall_back(self, record: ExportRecord) -> ONNXProgram:
        """Go through the stages; where capture or conversion fails, let the TorchScript exporter make the program.

        Raises:
            OnnxExporterError: If that fails as well.
        """
        try:
            return self.run(record)
        except (CaptureError, ConversionError) as error:
            with record.stage("fallback"), record.profiled():
                record.program = result = self.through_torchscript(error)
            record.replaced = error
            return result

    def through_torchscript(self, failure: OnnxExporterError | None = None) -> ONNXProgram:
        """Export with onnx-ts-legacy, whose program has the same methods.

        Args:
            failure: Why the FX exporter failed, if this is its fallback.
        """
        # A dictionary at the end is taken for keyword arguments; of a Python model it is known here not to be that.
        scripted = isinstance(self.model, torch.jit.ScriptModule | torch.jit.ScriptFunction)
        args = (*self.args, {}) if self.args and isinstance(self.args[-1], dict) and not scripted else self.args
        example = {"args": args, "kwargs": self.kwargs, "dynamic_shapes": self.dynamic_shapes}
        names = {"input_names": self.input_names or None, "output_names": self.output_names or None}
        options = {**self.given, **example, **names}
        if failure is None:
            program: ONNXProgram = export_through_torchscript(options)
        else:
            program = fall_back(options, arguments_by_name(self.model, self.args, self.kwargs or {}), failure)
        program.answer = "structure"
        return program

    def captured(self, stage: Stage) -> Captured:
        """Capture the model, unless that has been done.

        Args:
            stage: Times a part of the capture under a name.
        """
        repeated_blocks = self.given["capture_repeated_blocks"]
        if isinstance(self.model, torch.export.ExportedProgram):
            if self.dynamic_shapes is not None or self.given["dynamic_axes"] is not None:
                raise InvalidArgumentError(
                    "An ExportedProgram already has its dynamic shapes; declare them in its capture."
                )
            for name in ("capture_repeated_blocks", "strategy"):
                if self.given[name]:
                    raise InvalidArgumentError(f"An ExportedProgram is already captured: leave out {name}.")
            _warn_of_one_tensor(self.model)
            return Captured(CapturedProgram(self.model, SizeFacts.of_graph(self.model)), self.input_names)
        module = self.model if isinstance(self.model, torch.nn.Module) else FunctionModule(self.model)
        check_devices(module, self.args, self.kwargs or {})
        absent = left_out(inspect.signature(module.forward), self.args, self.kwargs or {})
        input_names = without_absent(self.input_names, absent)
        request = CaptureRequest.of(
            module,
            self.args,
            self.kwargs,
            dynamic_shapes=self.dynamic_shapes,
            dynamic_axes=self.given["dynamic_axes"],
            input_names=input_names,
            state=self.conversion.state,
            repeated_blocks=repeated_blocks,
            trial_runs=self.given["trial_runs"],
            strategy=self.given["strategy"],
            stage=stage,
        )
        found = capture(request)
        _warn_of_dropout(found.program)
        return Captured(found, input_names, request.specs, request.output_axes, request)

    def converted(self, captured: Captured, reference: Callable[[], Reference]) -> ONNXProgram:
        """Return the ONNX program of a captured one, with what it is to be compared with later."""
        program = captured.program
        parameters = parameter_names(self.model)
        structure = CallStructure.of(program, parameters, parameter_defaults(self.model))
        names = ModelNames(
            inputs=[path_name(path) for path in argument_paths(_call_paths(program), parameters)],
            outputs=[output_name(path) for path in structure_paths(program.call_spec.out_spec)],
            dims=captured.dims,
            input_overrides=captured.input_names,
            output_overrides=self.output_names,
        )
        result = convert(captured.found, names, structure, self.conversion, reference)
        result.folds_weights = self.conversion.folds_weights
        return result

    def _for_more_sizes(
        self, request: CaptureRequest, result: ONNXProgram, captured: Captured, reference: Callable[[], Reference]
    ) -> tuple[ONNXProgram, Captured]:
        """Return a program that takes what this one leaves out, if there is one, and what was captured for it."""

        def convert(found: CapturedProgram) -> ONNXProgram:
            with conversion_settings():
                return self.converted(dataclasses.replace(captured, found=found), reference)

        with _arithmetic():
            program, found = for_more_sizes(request, captured.found, result, convert)
        return program, dataclasses.replace(captured, found=found)

    def _complete(self, result: ONNXProgram, captured: Captured, record: ExportRecord) -> None:
        """Bring a program into the form in which it is returned."""
        record.program = result
        result.capture_strategy = captured.found.strategy
        if self.given["optimize"] == "onnxscript":
            rewrite_with_onnxscript(result.model)
        self._finish(result, captured)
        apply_metadata(result.model, captured.program, self.given["metadata"])

    @contextlib.contextmanager
    def _converting(self, record: ExportRecord) -> Iterator[None]:
        with record.stage("convert"), conversion_settings(), _arithmetic(), record.profiled():
            yield

    def _finish(self, result: ONNXProgram, captured: Captured) -> None:
        """Write into a program what the user asked for besides its nodes, and check that it takes the example."""
        dims = [dim for by_axis in captured.dims for dim in by_axis.values()]
        if not self.given["strategy"] and captured.request and may_have_ways(captured.request, captured.found):
            result.constraints.remedy = f'strategy="{SIZE_WAYS.name}"'
        # Dim.AUTO promises nothing.
        if not any(dim is Dim.AUTO for dim in dims):
            warn_of_bounds(result.constraints, [bound for dim in dims for bound in declared_bounds(dim)])
        name_output_axes(result.model, captured.output_axes, dims)
        if self.given["size_checks"]:
            add_size_checks(result.model, result.constraints)
        set_custom_opsets(result.model, self.given["custom_opsets"] or {})
        if not isinstance(self.model, torch.export.ExportedProgram):
            _check_example(result, self.args, self.kwargs or {}, captured.found.sizes.apart)
        result.saving = self.saving

    def _verified(self, result: ONNXProgram, reference: Reference) -> list[Verified]:
        """Compare with PyTorch on the example; a captured program may carry its own."""
        model, args, kwargs = self.model, self.args, self.kwargs
        if isinstance(model, torch.export.ExportedProgram) and not args and not kwargs and model.example_inputs:
            args, kwargs = model.example_inputs
        smallest = smallest_declared(self.dynamic_shapes)
        return verify_program(result, reference, tuple(args), dict(kwargs or {}), smallest_size=smallest)

    def _reference(self) -> Callable[[], Reference]:
        """Return what gives the model to compare with, which is loaded only then if it came captured."""
        if isinstance(self.model, torch.export.ExportedProgram):
            return lambda: Reference.of(self.model.module())
        found = Reference.of(self.model)
        return lambda: found


@contextlib.contextmanager
def _arithmetic() -> Iterator[None]:
    """Compute with sizes as torch does, without its errors and where it takes long."""
    with whole_bounds(), shared_bounds(), short_divisions():
        yield


@dataclasses.dataclass(frozen=True)
class Captured:
    """A captured program, and what the user declared of it.

    Attributes:
        found: The program, with what is known of it.
        input_names: Names that the user gives its inputs, in order.
        dims: What is declared of the dimensions of each flat input.
        output_axes: What is declared of axes of outputs.
        request: What was captured; None if it came captured.
    """

    found: CapturedProgram
    input_names: Sequence[str]
    dims: Sequence[Mapping[int, Any]] = ()
    output_axes: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    request: CaptureRequest | None = None

    @property
    def program(self) -> torch.export.ExportedProgram:
        """The program of torch.export."""
        return self.found.program


def _call_paths(program: torch.export.ExportedProgram) -> list[tuple[Any, ...]]:
    """Return the paths of the arguments: in the example where the program has one, else in what it says of them."""
    spec, example = program.call_spec.in_spec, program.example_inputs
    if example is not None:
        args, kwargs = example
        in_order = args, {name: kwargs[name] for name in spec.child(1).context}
        paths = example_paths(in_order)
        if len(paths) == spec.num_leaves:
            return paths
    return structure_paths(spec)


def _warn_of_one_tensor(program: torch.export.ExportedProgram) -> None:
    """Warn of inputs for which one tensor was passed at the capture: torch.export reads all of them from one."""
    names: dict[int, list[str]] = {}
    leaves = pytree.tree_leaves(program.example_inputs)
    for leaf, name in zip(leaves, program.graph_signature.user_inputs, strict=False):
        if isinstance(leaf, torch.Tensor):
            names.setdefault(id(leaf), []).append(str(name))
    for same in names.values():
        if len(same) > 1:
            warn_user(
                f"The inputs {', '.join(same)} were one tensor when the program was captured, and only one of them "
                "is read. Capture it with separate tensors, or pass the model itself to export."
            )


def _warn_of_dropout(program: torch.export.ExportedProgram) -> None:
    """Warn of dropout that is on: the results of the model are random then."""
    count = sum(
        has_aten_trait(node.target, AtenTrait.DROPOUT) and True in node.args[1:]
        for module in program.graph_module.modules()
        if isinstance(module, torch.fx.GraphModule)
        for node in module.graph.nodes
    )
    if count:
        warn_user(
            f"The model is in training mode: {count} call(s) of dropout stay random in the ONNX model. Call "
            "model.eval() before the export if that is not intended."
        )


def _check_memory(inputs: Mapping[str, Any], weights: Mapping[str, torch.Tensor], written: Sequence[str]) -> None:
    """Refuse an example in which an input that the model writes to is seen in another way, too."""
    tensors = {name: x for name, x in inputs.items() if isinstance(x, torch.Tensor)}
    for name in written:
        others = {other: x for other, x in tensors.items() if other != name}
        if text := shared_memory(f"input {name}", tensors[name], {**weights, **others}, same_counts=True):
            raise MutationError(text)


def _check_example(result: ONNXProgram, args: tuple[Any, ...], kwargs: Mapping[str, Any], lines: Sequence[str]) -> None:
    """Compare the example, which may have been captured in other sizes, with what the model is right for.

    Args:
        result: The program.
        args: Positional arguments of the example.
        kwargs: Its keyword arguments.
        lines: The lines that treat size 1 apart.

    Raises:
        DynamicShapeError: If the model does not take it.
        MutationError: If the model writes to memory that two inputs share in the example.
    """
    inputs = result.flat_inputs(*args, **kwargs)
    weights = result.exported_program.state_dict if result.exported_program is not None else {}
    _check_memory(inputs, weights, result.written_inputs)
    try:
        result.check_sizes(inputs)
    except InvalidArgumentError as error:
        apart = f"\nSize 1 is treated differently at {', '.join(lines)}." if lines else ""
        raise DynamicShapeError(
            f"The model could be captured with dynamic dimensions, but not for the sizes of the example: {error}{apart}"
        ) from error
