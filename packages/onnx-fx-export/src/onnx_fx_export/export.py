"""The entry point: :func:`export`."""

from __future__ import annotations

import contextlib
import cProfile
import dataclasses
import inspect
import io
import os
import pstats
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Literal

import torch

from onnx_fx_export import dynamic_shapes as shapes
from onnx_fx_export.capture import CaptureRequest, capture
from onnx_fx_export.convert import ModelNames, convert
from onnx_fx_export.dimension_names import name_output_axes
from onnx_fx_export.errors import CaptureError, ConversionError, DynamicShapeError, InvalidArgumentError
from onnx_fx_export.examples import inferred_dimensions, several_examples
from onnx_fx_export.finish.rewriting import rewrite_with_onnxscript
from onnx_fx_export.naming import input_paths, output_paths
from onnx_fx_export.origin import named_forward, source_line
from onnx_fx_export.program import CallStructure, ONNXProgram
from onnx_fx_export.regions import ModuleClasses
from onnx_fx_export.report import write_report
from onnx_fx_export.saving import replaced_file
from onnx_fx_export.torchscript import export_through_torchscript
from onnx_fx_export.verification import verify_program
from onnxops_decomp import LoweringTable, builtin_table

__all__ = ["DEFAULT_OPSET", "export", "unconvertible_ops"]

DEFAULT_OPSET = 20


def export(
    model: torch.nn.Module | torch.export.ExportedProgram | Callable[..., Any],
    args: Sequence[Any] | torch.Tensor = (),
    f: str | os.PathLike[str] | None = None,
    *,
    kwargs: Mapping[str, Any] | None = None,
    verbose: bool | None = None,
    input_names: Sequence[str] | None = None,
    output_names: Sequence[str] | None = None,
    opset_version: int | None = None,
    dynamic_shapes: Any = None,
    dynamic_axes: Mapping[str, Any] | None = None,
    custom_translation_table: Mapping[Any, Callable[..., Any]] | LoweringTable | None = None,
    external_data: bool | None = None,
    export_params: bool = True,
    keep_initializers_as_inputs: bool = False,
    state: Literal["error", "io"] = "error",
    verify: bool = False,
    optimize: bool | Literal["onnxscript"] = True,
    export_modules_as_functions: ModuleClasses = False,
    capture_repeated_blocks: ModuleClasses = False,
    dynamo: bool = True,
    fallback: bool = False,
    report: bool = False,
    profile: bool = False,
    dump_exported_program: bool = False,
    artifacts_dir: str | os.PathLike[str] = ".",
    progress: Callable[[str], None] | None = None,
) -> ONNXProgram:
    """Export a PyTorch model to ONNX.

    Args:
        model: A module, a function of tensors, or what torch.export captured of one. What TorchScript made goes to
            onnx-ts-legacy if it is installed.
        args: Positional example arguments; a single tensor may stand alone. Sizes 0 and 1 of dynamic dimensions are
            fine: the model is captured in larger sizes.
        f: Path to save the model to.
        kwargs: Keyword example arguments.
        verbose: Whether stages and their times are printed.
        input_names: Names of the model's inputs, in order; the others keep theirs.
        output_names: Names of the model's outputs, in order.
        opset_version: Opset of the model, 7 to 28; default 20. It is delivered exactly or the export fails.
        dynamic_shapes: Dynamic dimensions as torch.export takes them; keys may be names from ``input_names``, and a
            string stands for a dynamic dimension of that name. A number that is declared dynamic becomes an input.
            ``"auto"`` with ``args=[example, another, ...]``, each a tuple, makes dynamic what differs between the
            examples: sizes, and numbers; nothing else may differ.
        dynamic_axes: Dynamic dimensions as the TorchScript exporter takes them.
        custom_translation_table: Lowerings of your own by operator overload, plain functions or those of onnxscript;
            they win over the built-in ones.
        external_data: Whether the weights are saved beside the model; by default if they exceed 1 GiB.
        export_params: Whether ``f`` contains the weights.
        keep_initializers_as_inputs: Whether ``f`` lists weights as inputs too.
        state: What to do about buffers and inputs that the model changes in place: ``"error"`` refuses, ``"io"``
            makes each an input and an output named ``<name>.next``.
        verify: Whether the result is compared with PyTorch on the example arguments, and at other sizes of the
            dynamic dimensions (needs onnx-verify).
        optimize: Whether groups of nodes are fused where the opset has one operator for them. ``"onnxscript"`` also
            hands the model to onnxscript's optimizer and rewriter.
        export_modules_as_functions: Classes of modules whose calls become calls of ONNX functions, or True for all
            modules; equal ones share a function. By default everything is inlined. Needs opset 15.
        capture_repeated_blocks: Classes of modules of which equal ones are captured once, or True for those members
            of module lists that have an equal. Their forward must do nothing but compute its result.
        dynamo: False to hand the model to the TorchScript exporter (needs onnx-ts-legacy).
        fallback: Whether a model that cannot be captured or converted is handed to the TorchScript exporter
            (needs onnx-ts-legacy; what comes back then is its program).
        report: Whether a page about the export is written to ``onnx_export_report.html``.
        profile: Whether the report says where the time of the conversion went.
        dump_exported_program: Whether the captured program is written to ``exported_program.pt2``.
        artifacts_dir: Folder for the report and the captured program.
        progress: Called with the name of each stage as it begins.

    Returns:
        The program; it runs itself in ONNX Runtime when called like the model.

    Raises:
        OnnxExporterError: Some subclass of it, whatever fails. No file is left behind then.

    Example:
        >>> program = export(torch.nn.Linear(3, 2), (torch.randn(4, 3),))
        >>> program(torch.randn(4, 3)).shape
        torch.Size([4, 2])
    """
    positional, kwargs, dynamic_shapes = _example(model, args, kwargs, dynamic_shapes)
    opset = DEFAULT_OPSET if opset_version is None else opset_version
    if state not in ("error", "io"):
        raise InvalidArgumentError(f'state is "error" or "io", not {state!r}.')
    request = _Request(
        model, positional, kwargs, dynamic_shapes, dynamic_axes, input_names or (), output_names or (), opset, state
    )
    weights = {"export_params": export_params, "keep_initializers_as_inputs": keep_initializers_as_inputs}
    if not dynamo or isinstance(model, torch.jit.ScriptModule | torch.jit.ScriptFunction):
        return request.through_torchscript(f, opset_version=opset_version, verify=verify, **weights)
    timer = _Timer(bool(verbose), progress)
    profiler = cProfile.Profile() if profile else None
    try:
        with timer.stage("capture"):
            captured = request.captured(capture_repeated_blocks)
        with timer.stage("convert"), profiler or contextlib.nullcontext():
            table = _table(custom_translation_table)
            result = request.converted(captured, table, optimize, export_modules_as_functions)
    except (CaptureError, ConversionError):
        if not fallback:
            raise
        return request.through_torchscript(f, opset_version=opset_version, verify=verify, **weights)
    if verify:
        with timer.stage("verify"):
            smallest = shapes.smallest_declared(dynamic_shapes)
            verify_program(result, _reference(model), positional, dict(kwargs or {}), smallest_size=smallest)
    if f is not None:
        with timer.stage("save"):
            weights["include_initializers"] = weights.pop("export_params")
            result.save(f, external_data=external_data, **weights)
    result.timings = dict(timer.seconds)
    _write_artifacts(result, captured.program, Path(artifacts_dir), report, dump_exported_program, profiler)
    return result


@dataclasses.dataclass(frozen=True)
class _Request:
    """What is to be exported, of all the arguments of :func:`export`."""

    model: Any
    args: tuple[Any, ...]
    kwargs: Mapping[str, Any] | None
    dynamic_shapes: Any
    dynamic_axes: Any
    input_names: Sequence[str]
    output_names: Sequence[str]
    opset: int
    state: str

    def through_torchscript(self, f: Any, **arguments: Any) -> ONNXProgram:
        """Export with onnx-ts-legacy, whose program has the same methods."""
        program: ONNXProgram = export_through_torchscript(
            self.model,
            self.args,
            f,
            self.dynamic_shapes,
            [name.removeprefix("*") for name in _parameter_names(self.model)],
            kwargs=self.kwargs,
            input_names=self.input_names or None,
            output_names=self.output_names or None,
            dynamic_axes=self.dynamic_axes,
            state=self.state,
            **arguments,
        )
        return program

    def captured(self, repeated_blocks: ModuleClasses) -> _Captured:
        """Capture the model, unless that has been done."""
        if isinstance(self.model, torch.export.ExportedProgram):
            if self.dynamic_shapes is not None or self.dynamic_axes is not None:
                raise InvalidArgumentError(
                    "An ExportedProgram has its dynamic shapes already; declare them at its capture."
                )
            if repeated_blocks:
                raise InvalidArgumentError("An ExportedProgram is captured already: leave out capture_repeated_blocks.")
            return _Captured(self.model)
        request = CaptureRequest.of(
            self.model if isinstance(self.model, torch.nn.Module) else _Function(self.model),
            self.args,
            self.kwargs,
            dynamic_shapes=self.dynamic_shapes,
            dynamic_axes=self.dynamic_axes,
            input_names=self.input_names,
        )
        return _Captured(capture(request, repeated_blocks=repeated_blocks), request.call_specs, request.output_axes)

    def converted(
        self, captured: _Captured, table: LoweringTable, optimize: bool | str, functions: ModuleClasses
    ) -> ONNXProgram:
        """Return the ONNX program of a captured one."""
        program = captured.program
        names = ModelNames(
            inputs=input_paths(program.call_spec.in_spec, _parameter_names(self.model)),
            outputs=output_paths(program.call_spec.out_spec),
            dims=captured.dims,
            input_overrides=self.input_names,
            output_overrides=self.output_names,
        )
        conversion = convert(program, self.opset, table, names, self.state, bool(optimize), functions)
        if optimize == "onnxscript":
            rewrite_with_onnxscript(conversion.model)
        elif isinstance(optimize, str):
            raise InvalidArgumentError(f'optimize is True, False or "onnxscript", not {optimize!r}.')
        name_output_axes(conversion.model, captured.output_axes)
        result = ONNXProgram(conversion, program, CallStructure.of(program))
        if not isinstance(self.model, torch.export.ExportedProgram):
            _check_example(result, self.args, self.kwargs or {})
        return result


@dataclasses.dataclass(frozen=True)
class _Captured:
    """A captured program, what is declared of the dimensions of each flat input, and of axes of outputs."""

    program: torch.export.ExportedProgram
    dims: Sequence[Mapping[int, Any]] = ()
    output_axes: Mapping[str, Any] = dataclasses.field(default_factory=dict)


def _example(
    model: Any, args: Any, kwargs: Any, dynamic_shapes: Any
) -> tuple[tuple[Any, ...], Mapping[str, Any] | None, Any]:
    """Return the example to capture, and the declared dimensions, which may follow from several examples."""
    if not isinstance(dynamic_shapes, str):
        return (args,) if isinstance(args, torch.Tensor) else tuple(args), kwargs, dynamic_shapes
    if dynamic_shapes != "auto":
        raise InvalidArgumentError(f'dynamic_shapes describes dimensions, or is "auto"; not {dynamic_shapes!r}.')
    if isinstance(model, torch.export.ExportedProgram):
        raise InvalidArgumentError("An ExportedProgram has its dynamic shapes already; declare them at its capture.")
    forward = model.forward if isinstance(model, torch.nn.Module) else _with_signature(model)
    (positional, keyword), declared = inferred_dimensions(forward, several_examples(args, kwargs))
    return positional, keyword, declared


def _check_example(result: ONNXProgram, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> None:
    """Hold the example, which may have been captured in other sizes, against what the model is right for.

    Raises:
        DynamicShapeError: If the model does not take it.
    """
    try:
        result.check_sizes(result.flat_inputs(*args, **kwargs))
    except InvalidArgumentError as error:
        raise DynamicShapeError(
            f"The model could be captured with dynamic dimensions, but not for the sizes of the example: {error}"
        ) from error


def _reference(model: Any) -> Callable[..., Any]:
    """Return what a verification runs: the user's own model, or the module of a captured program."""
    callable_model: Callable[..., Any] = model.module() if isinstance(model, torch.export.ExportedProgram) else model
    return callable_model


def _table(custom: Mapping[Any, Callable[..., Any]] | LoweringTable | None) -> LoweringTable:
    if isinstance(custom, LoweringTable):
        return custom
    return builtin_table().extended(custom) if custom else builtin_table()


def _write_artifacts(
    result: ONNXProgram,
    program: torch.export.ExportedProgram,
    folder: Path,
    report: bool,
    dump: bool,
    profiler: cProfile.Profile | None,
) -> None:
    """Write what was asked for besides the model."""
    if dump:
        with replaced_file(folder / "exported_program.pt2") as beside:
            torch.export.save(program, beside)
    if report:
        write_report(result, folder, _profile_text(profiler))


def _profile_text(profiler: cProfile.Profile | None) -> str | None:
    """Return the functions that took most of the time."""
    if profiler is None:
        return None
    text = io.StringIO()
    pstats.Stats(profiler, stream=text).sort_stats("cumulative").print_stats(40)
    return text.getvalue()


def unconvertible_ops(
    model: torch.nn.Module | torch.export.ExportedProgram | Callable[..., Any],
    args: Sequence[Any] | torch.Tensor = (),
    *,
    kwargs: Mapping[str, Any] | None = None,
    opset_version: int | None = None,
    dynamic_shapes: Any = None,
    dynamic_axes: Mapping[str, Any] | None = None,
) -> dict[str, list[str]]:
    """Tell what keeps a model from being converted, without writing anything.

    Args:
        model: As for :func:`export`, like the other arguments.
        args: Positional example arguments.
        kwargs: Keyword example arguments.
        opset_version: Opset that is asked for.
        dynamic_shapes: Dynamic dimensions.
        dynamic_axes: Dynamic dimensions in the other form.

    Returns:
        For each operator that cannot be converted, the reasons with the places in the user's code; empty if the
        model can be exported.

    Raises:
        OnnxExporterError: If the model cannot be captured.
    """
    arguments = {"kwargs": kwargs, "dynamic_shapes": dynamic_shapes, "dynamic_axes": dynamic_axes}
    try:
        export(model, args, opset_version=opset_version, state="io", **arguments)
    except ConversionError as error:
        found: dict[str, list[str]] = {}
        for failure in error.failures:
            place = source_line(failure.node)
            reason = f"{failure.error} ({place})" if place else str(failure.error)
            reasons = found.setdefault(str(failure.node.target), [])
            if reason not in reasons:
                reasons.append(reason)
        return found
    return {}


class _Function(torch.nn.Module):
    """Gives a function the form that torch.export captures."""

    def __init__(self, function: Callable[..., Any]) -> None:
        super().__init__()
        self.function = function
        self.forward = named_forward(_with_signature(function))


def _with_signature(function: Callable[..., Any]) -> Callable[..., Any]:
    """Return a function whose parameters can be told; those of a builtin are its positional arguments."""
    try:
        inspect.signature(function)
    except TypeError as error:
        raise InvalidArgumentError(
            f"A model is a module, an ExportedProgram or a function, not {type(function).__name__}."
        ) from error
    except ValueError:
        return lambda *args: function(*args)
    return function


def _parameter_names(model: Any) -> list[str]:
    """Return the names of the positional parameters; one that collects further arguments begins with an asterisk."""
    if isinstance(model, torch.export.ExportedProgram):
        return []
    if isinstance(model, torch.jit.ScriptModule | torch.jit.ScriptFunction):
        scripted: Any = model.forward if isinstance(model, torch.jit.ScriptModule) else model
        return [argument.name for argument in scripted.schema.arguments if argument.name != "self"]
    forward = model.forward if isinstance(model, torch.nn.Module) else _with_signature(model)
    parameters = [p for name, p in inspect.signature(forward).parameters.items() if name != "self"]
    collects = inspect.Parameter.VAR_POSITIONAL
    return [f"*{p.name}" if p.kind is collects else p.name for p in parameters if p.kind <= collects]


class _Timer:
    """Times the stages of an export and prints them if asked to."""

    def __init__(self, verbose: bool, progress: Callable[[str], None] | None) -> None:
        self.seconds: dict[str, float] = {}
        self._verbose = verbose
        self._progress = progress

    @contextmanager
    def stage(self, name: str) -> Iterator[None]:
        start = time.perf_counter()
        if self._progress is not None:
            self._progress(name)
        yield
        self.seconds[name] = time.perf_counter() - start
        if self._verbose:
            print(f"{name:>8}  {self.seconds[name]:.2f} s", flush=True)
