"""The functions that users call, with the signatures that they know."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path
from typing import IO, Any, Literal, NoReturn

import torch

from onnx_ts_legacy._globals import DEFAULT_OPSET, running_export
from onnx_ts_legacy._version import __version__
from onnx_ts_legacy.capture.declared_shapes import axes_and_bounds
from onnx_ts_legacy.capture.graphs import Captured, capture, positional_list
from onnx_ts_legacy.enumerations import OperatorExportTypes, TrainingMode
from onnx_ts_legacy.errors import ArgumentsError
from onnx_ts_legacy.finish.module_functions import check_opset, module_classes
from onnx_ts_legacy.finish.tool_metadata import apply_metadata
from onnx_ts_legacy.pipeline import Options, convert_numbers, convert_partly
from onnx_ts_legacy.program import TSProgram
from onnx_ts_legacy.symbolics.registered_with_torch import symbolics_of_torch
from onnx_ts_legacy.utils import is_log_enabled, pretty_model, select_model_mode_for_export
from onnxops_core import is_in_onnx_export
from onnxops_core.exporting import conversion_settings, exclusive_export, is_torch_onnx_call
from onnxops_decomp import LoweringTable
from onnxops_decomp.exporting import (
    DEFAULT_NAN,
    ExportPath,
    ExportRecord,
    Metadata,
    NanHandling,
    Reference,
    Saving,
    SizeConstraints,
    Translations,
    add_size_checks,
    assumed_conditions,
    check_names,
    check_options,
    finish_model,
    names_by_leaf,
    number_of,
    plain_model,
    recorded,
    set_custom_opsets,
    smallest_declared,
    translation_table,
    verify_program,
    warn_of_bounds,
    warn_of_names,
    without_absent,
)

__all__ = ["export", "export_to_pretty_string", "is_in_onnx_export", "unconvertible_ops"]


def export(
    model: Any,
    args: Any = (),
    f: str | os.PathLike[str] | IO[bytes] | None = None,
    *,
    kwargs: Mapping[str, Any] | None = None,
    export_params: bool = True,
    verbose: bool | None = False,
    training: TrainingMode | Any = TrainingMode.EVAL,
    input_names: Sequence[str] | None = None,
    output_names: Sequence[str] | None = None,
    operator_export_type: OperatorExportTypes | Any = OperatorExportTypes.ONNX,
    opset_version: int | None = None,
    do_constant_folding: bool = True,
    dynamic_axes: Mapping[str, Mapping[int, str] | Sequence[int]] | None = None,
    keep_initializers_as_inputs: bool | None = None,
    custom_opsets: Mapping[str, int] | None = None,
    export_modules_as_functions: bool | Collection[type[torch.nn.Module]] = False,
    autograd_inlining: bool = True,
    state: Literal["error", "io", "ignore"] = "error",
    verify: bool = False,
    dynamic_shapes: Any = None,
    custom_translation_table: Translations | None = None,
    external_data: bool | None = None,
    optimize: bool | Literal["onnxscript"] = False,
    target: Literal["onnxruntime"] | None = None,
    capture_repeated_blocks: bool | Collection[type[torch.nn.Module]] | None = None,
    size_checks: bool = False,
    trial_runs: bool = True,
    strategy: str | None = None,
    widen_bfloat16: bool = False,
    nan: NanHandling = DEFAULT_NAN,
    dynamo: bool = False,
    fallback: bool = False,
    report: bool = False,
    profile: bool = False,
    dump_exported_program: bool = False,
    artifacts_dir: str | os.PathLike[str] = ".",
    progress: Callable[[str], None] | None = None,
    metadata: Metadata = "source",
    frozen_values: Literal["warn", "error"] = "warn",
    **unknown: NoReturn,
) -> TSProgram:
    """Export a model through TorchScript.

    It takes every argument of ``torch.onnx.export`` and of ``onnx_fx_export.export``; what TorchScript cannot do is
    refused.

    Args:
        model: A scripted or traced program, which is taken as it is, or a module or function, which is traced.
        args: Example arguments, a tuple, a list or a single one; a dict at the end holds keyword arguments.
        f: Where to save the model: a path or a file opened for writing bytes; None to keep it in memory only.
        kwargs: Further keyword arguments.
        export_params: Whether files contain the weights, ``f`` and those that the program is saved to later; without
            them they are inputs there. The program has them in any case.
        verbose: Whether to print the readable graph.
        training: Mode in which a module is exported; evaluation by default.
        input_names: Names of the tensor inputs, in order.
        output_names: Names of the outputs, in order.
        operator_export_type: What becomes of operators that cannot be converted.
        opset_version: Opset to write, 7 to 26; 17 if left out.
        do_constant_folding: Whether batch normalization goes into the weights before it, unless in training mode or
            where weights are inputs. Constants that are not weights are folded in any case.
        dynamic_axes: For inputs by name, the axes whose size may change, with or without names for them. Equal names
            are one size. Declared axes of an output get the name in its shape.
        keep_initializers_as_inputs: Whether files list weights as inputs too, so that they can be overridden.
        custom_opsets: Versions of the domains that custom symbolics write to.
        export_modules_as_functions: Whether modules become functions of the model, with their weights as inputs:
            all of them, or those of the given classes. Needs opset 15.
        autograd_inlining: Whether an ``autograd.Function`` without a symbolic is converted as what its forward does.
        state: What to do if the model changes something that a later call depends on: ``"error"`` refuses, ``"io"``
            makes it inputs and outputs of the model, and ``"ignore"`` exports what the first call computes and warns.
        verify: Whether to compare the model with the original on the example inputs; needs ``onnx-verify``.
        dynamic_shapes: Dynamic dimensions as torch.export takes them, in place of ``dynamic_axes``.
        custom_translation_table: Lowerings of your own by operator: functions of the builder and the operator's
            arguments, functions of the arguments alone that call onnxscript's operators, lists of these, or functions
            of ``onnxscript.script``. They take precedence over everything built in, and over registered symbolics.
        external_data: Whether the weights are saved beside the model; by default if they exceed 1 GiB.
        optimize: Whether groups of nodes are fused where the opset has one operator for them.
        target: ``"onnxruntime"`` for operators of its own domain ``com.microsoft``.
        capture_repeated_blocks: Refused: TorchScript has no such blocks.
        size_checks: Whether the graph itself refuses sizes that break a condition of ``constraints``, in a node that is
            named after it. The program checks them in any case.
        trial_runs: Changes nothing: a TorchScript program is not captured for sizes larger than 1.
        strategy: Refused: it chooses how torch.export captures the model.
        widen_bfloat16: Whether operators compute in float32 where ONNX Runtime has no bfloat16 kernel for the CPU.
        nan: ``"finite"`` for the plain operators, which leave extrema, positions and orders to the runtime where some
            numbers are NaN, or ``"exact"`` for those of torch, at several times the cost. What is about NaN, such as
            ``isnan`` and ``nan_to_num``, is exact in any case; so is everything about infinities.
        dynamo: True is refused: that is onnx-fx-export.
        fallback: Changes nothing: this is what others fall back to.
        report: Whether a page about the export is written.
        profile: Whether it is measured where the time goes.
        dump_exported_program: Refused: there is no ExportedProgram.
        artifacts_dir: Folder for these files.
        progress: Called with the name of each stage as it begins.
        metadata: What nodes and values say of their origin: ``"source"`` is module and line; ``"full"`` has the
            keys of torch's exporter too, such as ``namespace``, which make the file larger; ``"none"`` is nothing.
        frozen_values: What to do where a trace would keep what the example's data, or its size along a dynamic axis,
            decides in Python: ``"warn"``, or ``"error"`` to refuse it with the lines.
        unknown: Nothing: any other argument is refused.

    Returns:
        The program; its ``initial_state`` holds what the state inputs start with.

    Raises:
        OnnxExporterError: If the export fails; nothing is written then.
    """
    model = plain_model(model, ArgumentsError)
    given = {name: value for name, value in locals().items() if name != "unknown"}
    given["opset_version"] = DEFAULT_OPSET if opset_version is None else opset_version
    check_options(ExportPath.LEGACY, given, unknown, ArgumentsError)
    given["args"] = args = positional_list(model, args)
    options, bounds = _options(given)
    asked = running_export(
        export_onnx_opset_version=options.opset_version,
        training_mode=TrainingMode(number_of(training)),
        export_training=bool(getattr(model, "training", False)),
        operator_export_type=options.fallback,
        autograd_inlining=autograd_inlining,
    )
    record = ExportRecord(f"onnx-ts-legacy {__version__}", progress, profile=profile)
    writing = recorded(record, Path(artifacts_dir), page=report, captured=False)
    with asked, exclusive_export(), writing, select_model_mode_for_export(model, training):
        reference = Reference.of(model, by_definition=True)
        with record.stage("capture"):
            captured = capture(model, args, kwargs, state, options.axes_of, frozen_values == "error")
        options = _named(options, captured, model)
        with record.stage("convert"), record.profiled(), torch.no_grad(), conversion_settings():
            record.program = program = convert_numbers(captured, options, reference)
            _finish(program, given, bounds)
            apply_metadata(program.model, model, metadata)
        if verify:
            with record.stage("verify"):
                smallest = smallest_declared(dynamic_shapes)
                program.verified = verify_program(program, reference, *captured.call(), smallest_size=smallest)
                record.verified = program.verified
        if verbose or is_log_enabled():
            print(pretty_model(program.model))
        if f is not None:
            with record.stage("save"):
                program.save(f)
    program.timings = dict(record.seconds)
    return program


def _finish(program: TSProgram, given: Mapping[str, Any], bounds: Sequence[str]) -> None:
    """Fuse nodes, if that is asked for, and note versions of domains and the sizes that the model is right for."""
    if given["optimize"]:
        finish_model(program.model, given["target"], folds_weights=_folds_weights(given))
    set_custom_opsets(program.model, given["custom_opsets"] or {})
    conditions = [*program.constraints.conditions, *bounds, *assumed_conditions(program.model, divisions=True)]
    program.constraints = SizeConstraints(conditions, program.constraints.places)
    program.constraints.record(program.model)
    warn_of_bounds(program.constraints, bounds)
    if given["size_checks"]:
        add_size_checks(program.model, program.constraints)


def _options(given: Mapping[str, Any]) -> tuple[Options, list[str]]:
    """Return what the conversion needs of the arguments of an export, and the bounds of dynamic dimensions."""
    opset: int = given["opset_version"]
    if given["export_modules_as_functions"]:
        check_opset(opset)
    axes, bounds = dict(given["dynamic_axes"] or {}), list[str]()
    if given["dynamic_shapes"] is not None:
        names = given["input_names"] or ()
        axes, bounds = axes_and_bounds(given["model"], given["args"], given["kwargs"], names, given["dynamic_shapes"])
    options = Options(
        opset_version=opset,
        input_names=tuple(given["input_names"] or ()),
        output_names=tuple(given["output_names"] or ()),
        dynamic_axes=axes,
        state=given["state"],
        fallback=OperatorExportTypes(number_of(given["operator_export_type"])),
        custom_opsets=dict(given["custom_opsets"] or {}),
        inlines_python=given["autograd_inlining"],
        saving=_saving(given),
        folds_weights=_folds_weights(given),
        module_classes=module_classes(given["model"], given["export_modules_as_functions"]),
        table=_table(given["custom_translation_table"]),
        of_torch=symbolics_of_torch() if is_torch_onnx_call() else None,
        target=given["target"],
        widen_bfloat16=given["widen_bfloat16"],
        nan=given["nan"],
    )
    return options, bounds


def _saving(given: Mapping[str, Any]) -> Saving:
    return Saving(given["export_params"], bool(given["keep_initializers_as_inputs"]), given["external_data"])


def _folds_weights(given: Mapping[str, Any]) -> bool:
    """Tell whether the weights may be other ones than those of the torch model."""
    in_evaluation = number_of(given["training"]) == TrainingMode.EVAL
    return given["do_constant_folding"] and in_evaluation and _saving(given).folds_weights


def _named(options: Options, captured: Captured, model: Any) -> Options:
    """Return the options with the names of the inputs that the model has.

    Raises:
        ArgumentsError: If the names cannot stand in one model.

    Warns:
        UserWarning: If a name seems to be meant for another argument.
    """
    given = without_absent(options.input_names, captured.absent)
    weights = [*model.named_parameters(), *model.named_buffers()] if isinstance(model, torch.nn.Module) else []
    check_names(given, options.output_names, {name for name, _ in weights}, ArgumentsError)
    named = names_by_leaf(given, captured.leaves, ArgumentsError)
    inputs = {named.get(index, leaf.name) for index, leaf in enumerate(captured.leaves) if leaf.is_input}
    if clash := inputs.intersection(options.output_names):
        raise ArgumentsError(f"output_names gives the name {min(clash)!r}, which is the name of an input.")
    warn_of_names(given, named, captured.leaves)
    return dataclasses.replace(options, input_names=tuple(given))


def export_to_pretty_string(model: Any, args: Any, **options: Any) -> str:
    """Return the readable graph of the model that :func:`export` would write; it takes the same options."""
    return pretty_model(export(model, args, None, **options).model)


def unconvertible_ops(
    model: Any,
    args: Any,
    training: TrainingMode | Any = TrainingMode.EVAL,
    opset_version: int | None = None,
    custom_translation_table: Translations | None = None,
) -> tuple[Any, list[str]]:
    """Return what :func:`export` could not convert.

    Args:
        model: The model.
        args: Example arguments.
        training: Mode in which a module is captured.
        opset_version: Opset to write.
        custom_translation_table: Lowerings of your own.

    Returns:
        The TorchScript graph, and the qualified names of the operators, one for each call.
    """
    opset = DEFAULT_OPSET if opset_version is None else opset_version
    check_options(ExportPath.LEGACY, {"opset_version": opset}, {}, ArgumentsError)
    options = Options(opset_version=opset, state="io", table=_table(custom_translation_table))
    with exclusive_export(), select_model_mode_for_export(model, training):
        captured = capture(model, args)
        with torch.no_grad(), conversion_settings():
            failures = convert_partly(captured, options)
    return captured.graph, [failure.operator for failure in failures]


def _table(custom: Translations | None) -> LoweringTable:
    table = translation_table(custom)
    if table.numbers:
        name = getattr(next(iter(table.numbers)), "__name__", "")
        raise ArgumentsError(
            f"custom_translation_table has the key {name}: TorchScript computes with numbers by operators of its own. "
            "Leave it out, or export with onnx-fx-export."
        )
    return table
