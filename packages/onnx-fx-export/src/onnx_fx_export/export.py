"""The entry point: :func:`export`."""

from __future__ import annotations

import contextlib
import cProfile
import importlib
import inspect
import io
import os
import pstats
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any, Literal

import torch

from onnx_fx_export import dynamic_shapes as shapes
from onnx_fx_export.capture import CaptureRequest, capture
from onnx_fx_export.convert import ModelNames, convert
from onnx_fx_export.errors import CaptureError, ConversionError, InvalidArgumentError, OnnxExporterError
from onnx_fx_export.naming import input_paths, output_paths
from onnx_fx_export.origin import named_forward, source_line
from onnx_fx_export.program import CallStructure, ONNXProgram
from onnx_fx_export.regions import ModuleClasses
from onnx_fx_export.report import write_report
from onnx_fx_export.saving import replaced_file
from onnx_fx_export.verification import verify_program
from onnxops_decomp import builtin_table

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
    custom_translation_table: Mapping[Any, Callable[..., Any]] | None = None,
    external_data: bool | None = None,
    export_params: bool = True,
    keep_initializers_as_inputs: bool = False,
    state: Literal["error", "io"] = "error",
    verify: bool = False,
    optimize: bool = True,
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
        model: A module, a function of tensors, or what torch.export captured of one.
        args: Positional example arguments; a single tensor may stand alone.
        f: Path to save the model to.
        kwargs: Keyword example arguments.
        verbose: Whether stages and their times are printed.
        input_names: Names of the model's inputs, in order; the others keep theirs.
        output_names: Names of the model's outputs, in order.
        opset_version: Opset of the model, 7 to 28; default 20. It is delivered exactly or the export fails.
        dynamic_shapes: Dynamic dimensions as torch.export takes them; keys may be names from ``input_names``, and a
            string stands for a dynamic dimension of that name.
        dynamic_axes: Dynamic dimensions as the TorchScript exporter takes them.
        custom_translation_table: Lowerings of your own by operator overload, plain functions or those of onnxscript;
            they win over the built-in ones.
        external_data: Whether the weights are saved beside the model; by default if they exceed 1 GiB.
        export_params: Whether ``f`` contains the weights.
        keep_initializers_as_inputs: Whether ``f`` lists weights as inputs too.
        state: What to do about buffers and inputs that the model changes in place: ``"error"`` refuses, ``"io"``
            makes each an input and an output named ``<name>.next``.
        verify: Whether the result is compared with PyTorch on the example arguments (needs onnx-verify).
        optimize: Whether groups of nodes are fused where the opset has one operator for them.
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
    positional = (args,) if isinstance(args, torch.Tensor) else tuple(args)
    opset = DEFAULT_OPSET if opset_version is None else opset_version
    _check_state(state)
    by_torchscript: Callable[[], ONNXProgram] = partial(
        _through_torchscript,
        model,
        positional,
        f,
        kwargs=kwargs,
        input_names=input_names,
        output_names=output_names,
        opset_version=opset_version,
        dynamic_axes=dynamic_axes,
        state=state,
        verify=verify,
        export_params=export_params,
        keep_initializers_as_inputs=keep_initializers_as_inputs,
    )
    if not dynamo:
        return by_torchscript()
    timer = _Timer(bool(verbose), progress)
    profiler = cProfile.Profile() if profile else None
    try:
        with timer.stage("capture"):
            program, dims = _captured(
                model, positional, kwargs, dynamic_shapes, dynamic_axes, input_names, capture_repeated_blocks
            )
        names = _names(model, program, dims, input_names, output_names)
        table = builtin_table().extended(custom_translation_table) if custom_translation_table else builtin_table()
        with timer.stage("convert"), profiler or contextlib.nullcontext():
            conversion = convert(program, opset, table, names, state, optimize, export_modules_as_functions)
    except (CaptureError, ConversionError):
        if not fallback:
            raise
        return by_torchscript()
    result = ONNXProgram(conversion, program, CallStructure.of(program), timer.seconds)
    if verify:
        with timer.stage("verify"):
            verify_program(result, _reference(model), positional, dict(kwargs or {}))
    if f is not None:
        with timer.stage("save"):
            _save(result, f, external_data, export_params, keep_initializers_as_inputs)
    result.timings = dict(timer.seconds)
    _write_artifacts(result, program, Path(artifacts_dir), report, dump_exported_program, profiler)
    return result


def _check_state(state: str) -> None:
    if state not in ("error", "io"):
        raise InvalidArgumentError(f'state is "error" or "io", not {state!r}.')


def _save(
    program: ONNXProgram, f: str | os.PathLike[str], external_data: bool | None, weights: bool, as_inputs: bool
) -> None:
    program.save(f, external_data=external_data, include_initializers=weights, keep_initializers_as_inputs=as_inputs)


def _reference(model: Any) -> Callable[..., Any]:
    """Return what a verification runs: the user's own model, or the module of a captured program."""
    callable_model: Callable[..., Any] = model.module() if isinstance(model, torch.export.ExportedProgram) else model
    return callable_model


def _names(
    model: Any,
    program: torch.export.ExportedProgram,
    dims: list[dict[int, str]],
    input_names: Sequence[str] | None,
    output_names: Sequence[str] | None,
) -> ModelNames:
    """Return what the model's inputs, outputs and dimensions are called."""
    return ModelNames(
        inputs=input_paths(program.call_spec.in_spec, _parameter_names(model)),
        outputs=output_paths(program.call_spec.out_spec),
        dims=dims,
        input_overrides=input_names or (),
        output_overrides=output_names or (),
    )


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


def _through_torchscript(model: Any, args: tuple[Any, ...], f: Any, **arguments: Any) -> Any:
    """Export with the TorchScript exporter.

    Raises:
        OnnxExporterError: If it is not installed, or fails as well.
    """
    try:
        # Found at run time only: neither exporter depends on the other.
        legacy = importlib.import_module("onnx_ts_legacy")
    except ImportError as error:
        raise OnnxExporterError("The TorchScript exporter is missing: pip install onnx-ts-legacy.") from error
    accepted = inspect.signature(legacy.export).parameters
    return legacy.export(model, args, f, **{name: value for name, value in arguments.items() if name in accepted})


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


def _captured(
    model: Any,
    args: tuple[Any, ...],
    kwargs: Mapping[str, Any] | None,
    dynamic_shapes: Any,
    dynamic_axes: Any,
    input_names: Sequence[str] | None,
    repeated_blocks: ModuleClasses,
) -> tuple[torch.export.ExportedProgram, list[dict[int, str]]]:
    """Return the captured program, and the names of the dimensions of each flat input."""
    if isinstance(model, torch.export.ExportedProgram):
        if dynamic_shapes is not None or dynamic_axes is not None:
            raise InvalidArgumentError(
                "An ExportedProgram has its dynamic shapes already; declare them at its capture."
            )
        if repeated_blocks:
            raise InvalidArgumentError("An ExportedProgram is captured already: leave out capture_repeated_blocks.")
        return model, []
    module = model if isinstance(model, torch.nn.Module) else _Function(model)
    request = CaptureRequest.of(
        module, args, kwargs, dynamic_shapes=dynamic_shapes, dynamic_axes=dynamic_axes, input_names=input_names
    )
    program = capture(request, repeated_blocks=repeated_blocks)
    declared = request.dynamic_shapes or {}
    specs = [spec for name, value in request.arguments.items() for spec in shapes.leaf_specs(value, declared.get(name))]
    return program, [
        {axis: name for axis, dim in spec.items() if (name := shapes.dim_name(dim)) is not None} for spec in specs
    ]


class _Function(torch.nn.Module):
    """Gives a function the form that torch.export captures."""

    def __init__(self, function: Callable[..., Any]) -> None:
        super().__init__()
        if not callable(function):
            raise InvalidArgumentError(
                f"A model is a module, an ExportedProgram or a function, not {type(function).__name__}."
            )
        self.function = function
        self.forward = named_forward(function)


def _parameter_names(model: Any) -> list[str]:
    if isinstance(model, torch.export.ExportedProgram):
        return []
    forward = model.forward if isinstance(model, torch.nn.Module) else model
    return [name for name in inspect.signature(forward).parameters if name != "self"]


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
