"""The entry point: :func:`export`."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import IO, Any, Literal, Unpack

import torch

from onnx_fx_export._version import __version__
from onnx_fx_export.compat.arguments import TorchArguments, with_defaults
from onnx_fx_export.errors import ConversionError, InvalidArgumentError
from onnx_fx_export.inputs.arguments import example_call, with_own_description
from onnx_fx_export.lower.convert import ConversionOptions
from onnx_fx_export.origin import captured_calls, source_line
from onnx_fx_export.pipeline import ExportRequest
from onnx_fx_export.repeats.regions import ModuleClasses
from onnxops_core.exporting import exclusive_export
from onnxops_decomp.exporting import (
    DEFAULT_NAN,
    ExportPath,
    ExportRecord,
    Metadata,
    NanHandling,
    ONNXProgram,
    Saving,
    Translations,
    check_options,
    in_mode,
    plain_model,
    recorded,
    translation_table,
)

__all__ = ["DEFAULT_OPSET", "ONNXProgram", "export", "unconvertible_ops"]

DEFAULT_OPSET = 20


def export(
    model: torch.nn.Module | torch.export.ExportedProgram | Callable[..., Any],
    args: Sequence[Any] | torch.Tensor = (),
    f: str | os.PathLike[str] | IO[bytes] | None = None,
    *,
    kwargs: Mapping[str, Any] | None = None,
    verbose: bool | None = None,
    input_names: Sequence[str] | None = None,
    output_names: Sequence[str] | None = None,
    opset_version: int | None = None,
    dynamic_shapes: Any = None,
    dynamic_axes: Mapping[str, Any] | None = None,
    custom_translation_table: Translations | None = None,
    external_data: bool | None = None,
    export_params: bool = True,
    keep_initializers_as_inputs: bool = False,
    state: Literal["error", "io", "ignore"] = "error",
    verify: bool = False,
    optimize: bool | Literal["onnxscript"] = True,
    target: Literal["onnxruntime"] | None = None,
    export_modules_as_functions: ModuleClasses = False,
    capture_repeated_blocks: ModuleClasses | None = None,
    size_checks: bool = False,
    trial_runs: bool = True,
    strategy: Literal[
        "repeated-blocks",
        "non-strict",
        "row-loops",
        "size-loops",
        "measured-kernels",
        "open-sizes",
        "both-ways",
        "known-weights",
        "transforms",
        "strict",
        "size-ways",
    ]
    | None = None,
    widen_bfloat16: bool = False,
    nan: NanHandling = DEFAULT_NAN,
    dynamo: bool = True,
    fallback: bool = False,
    report: bool = False,
    profile: bool = False,
    dump_exported_program: bool = False,
    artifacts_dir: str | os.PathLike[str] = ".",
    progress: Callable[[str], None] | None = None,
    metadata: Metadata = "source",
    **torch_arguments: Unpack[TorchArguments],
) -> ONNXProgram:
    """Export a PyTorch model to ONNX.

    Args:
        model: A module, a function of tensors, or what torch.export captured of one. What TorchScript made goes to
            onnx-ts-legacy if it is installed. A ``torch.onnx.ExportableModule`` may bring its own example, names and
            dynamic shapes.
        args: Positional example arguments; a single tensor may stand alone, and a dictionary at the end gives keyword
            arguments if its keys are parameters of the model. Sizes 0 and 1 of dynamic dimensions are fine: the model
            is captured at larger sizes.
        f: Path to save the model to, or an open binary file.
        kwargs: Keyword example arguments.
        verbose: Whether stages and their times are printed.
        input_names: Names of the model's inputs, in order; the others keep theirs.
        output_names: Names of the model's outputs, in order.
        opset_version: Opset of the model, 7 to 28; default 20. It is delivered exactly or the export fails.
        dynamic_shapes: Dynamic dimensions as torch.export takes them; keys may be names from ``input_names``, and a
            string stands for a dynamic dimension of that name. A number that is declared dynamic becomes an input.
            ``"auto"`` with ``args=[example, another, ...]``, each a tuple, makes dynamic what differs between the
            examples: sizes, and numbers; nothing else may differ.
        dynamic_axes: Dynamic dimensions as the TorchScript exporter takes them, those of outputs included, which only
            give names: the sizes of an output follow from the inputs.
        custom_translation_table: Lowerings of your own by operator: functions of the builder and the operator's
            arguments, functions of the arguments alone that call onnxscript's operators, lists of these, or functions
            of ``onnxscript.script``. They take precedence over everything built in.
        external_data: Whether the weights are saved beside the model; by default if they exceed 1 GiB. Like the next
            two, it holds for ``f`` and for files that the program is saved to later.
        export_params: Whether files contain the weights; the program does in any case.
        keep_initializers_as_inputs: Whether files list the weights as inputs, too.
        state: What to do about buffers and inputs that the model changes in place: ``"error"`` refuses, ``"io"``
            makes each an input and an output named ``<name>.next``.
        verify: Whether the result is compared with PyTorch on the example arguments, and at other sizes of the
            dynamic dimensions (needs onnx-verify).
        optimize: Whether groups of nodes are fused where the opset has one operator for them. ``"onnxscript"`` also
            hands the model to onnxscript's optimizer and rewriter.
        target: ``"onnxruntime"`` for a model that uses operators of ONNX Runtime's own domain ``com.microsoft`` where
            they do the same; other runtimes do not know them.
        export_modules_as_functions: Classes of modules whose calls become calls of ONNX functions, or True for all
            modules; equal ones share a function. By default everything is inlined. Needs opset 15.
        capture_repeated_blocks: Classes of modules of which equal ones are captured once, or True for those members
            of module lists that have an equal. Their forward must do nothing but compute its result. By default
            members of lists of eight or more are captured once if it is certain that they do the same; False
            captures each.
        size_checks: Whether the graph itself refuses sizes that break a condition of ``constraints``, in a node that is
            named after it. The program checks them in any case.
        trial_runs: Whether the model and what was captured of it are run and compared at other sizes, to find out
            whether it is right for those that torch.export takes for special; without that, it refuses them.
        strategy: The only way to capture that may be taken; by default they are tried in order, and
            ``program.capture_strategy`` says which one served. ``"repeated-blocks"`` is for what
            ``capture_repeated_blocks`` names or, by default, what is certain to do the same. ``"non-strict"`` is
            ``torch.export`` running the model. ``"row-loops"`` makes a loop of each Python loop over rows whose number
            the data decides, ``"size-loops"`` a scan of each over a dynamic number of steps, and ``"measured-kernels"``
            measures the shapes that operators give where torch's own kernels fix sizes or need data. ``"open-sizes"``
            keeps symbolic what Python code makes ``int`` or ``float``, and answers conditions on the number of rows
            that the data leaves as if there were many. ``"both-ways"`` captures the model with both answers to each
            condition that the data decides, and writes an If. ``"known-weights"`` answers those on what small weights
            hold, such as ``if self.initialized:``, by their present values. ``"transforms"`` captures gradients and
            ``vmap`` in the model as what they compute. These compare the result with the model. ``"strict"`` is
            ``torch.export`` with Dynamo. ``"size-ways"``, which is taken only on request, captures the model again at
            sizes at which its code decides otherwise, and writes an If on the sizes.
        widen_bfloat16: Whether operators compute in float32 where ONNX Runtime has no bfloat16 kernel for the CPU;
            weights, inputs and outputs stay as they are.
        nan: ``"finite"`` for the plain operators, which leave extrema, positions and orders to the runtime where some
            numbers are NaN, or ``"exact"`` for those of torch, at several times the cost. What is about NaN, such as
            ``isnan`` and ``nan_to_num``, is exact in any case; so is everything about infinities.
        dynamo: False to hand the model to the TorchScript exporter (needs onnx-ts-legacy).
        fallback: Whether a model that cannot be captured or converted is handed to the TorchScript exporter
            (needs onnx-ts-legacy; what comes back then is its program).
        report: Whether a page about the export is written to ``onnx_export_report.html``, of one that fails as well.
        profile: Whether it is measured where the time of the conversion goes. It is written to
            ``onnx_export_profile.txt``, and into the report.
        dump_exported_program: Whether the captured program is written to ``exported_program.pt2``.
        artifacts_dir: Folder for these files; it is created if it is missing.
        progress: Called with the name of each stage as it begins.
        metadata: What nodes and values say of their origin: ``"source"`` is module and line; ``"full"`` has the
            keys of torch's exporter too, such as ``namespace``, which make the file larger; ``"none"`` is nothing.
        torch_arguments: Further arguments of ``torch.onnx.export``, see
            :class:`~onnx_fx_export.compat.arguments.TorchArguments`; any other is refused.

    Returns:
        The program; it runs itself in ONNX Runtime when called like the model.

    Raises:
        OnnxExporterError: Some subclass of it, whatever fails. No file is left behind then.

    Example:
        >>> program = export(torch.nn.Linear(3, 2), (torch.randn(4, 3),))
        >>> program(torch.randn(4, 3)).shape
        torch.Size([4, 2])
    """
    model = plain_model(model, InvalidArgumentError)
    own = {name: value for name, value in locals().items() if name != "torch_arguments"}
    of_torch, unknown = with_defaults(torch_arguments)
    given = {**own, **of_torch}
    given["opset_version"] = opset = DEFAULT_OPSET if opset_version is None else opset_version
    by_torchscript = not dynamo or isinstance(model, torch.jit.ScriptModule | torch.jit.ScriptFunction)
    check_options(ExportPath.TORCHSCRIPT if by_torchscript else ExportPath.FX, given, unknown, InvalidArgumentError)
    table = translation_table(custom_translation_table)
    args, described = with_own_description(model, args, {
        "kwargs": kwargs, "dynamic_shapes": dynamic_shapes, "input_names": input_names, "output_names": output_names,
    })  # fmt: skip
    positional, kwargs, dynamic_shapes = example_call(model, args, described["kwargs"], described["dynamic_shapes"])
    saving = Saving(export_params, bool(keep_initializers_as_inputs), external_data)
    conversion = ConversionOptions(
        opset, table, state, bool(optimize), export_modules_as_functions, widen_bfloat16, target,
        of_torch["do_constant_folding"] and saving.folds_weights, nan,
    )  # fmt: skip
    request = ExportRequest(
        model, positional, kwargs, dynamic_shapes, described["input_names"] or (), described["output_names"] or (),
        given, conversion, saving,
    )  # fmt: skip
    if by_torchscript:
        return request.through_torchscript()
    name = f"onnx-fx-export {__version__}"
    record = ExportRecord(name, progress, verbose=bool(verbose), profile=profile, calls=captured_calls)
    writing = recorded(record, Path(artifacts_dir), page=report, captured=dump_exported_program)
    with exclusive_export(), writing, in_mode(model, of_torch["training"]):
        result = request.run_or_fall_back(record) if fallback else request.run(record)
        result.timings, record.verified = dict(record.seconds), result.verified
    return result


def unconvertible_ops(
    model: torch.nn.Module | torch.export.ExportedProgram | Callable[..., Any],
    args: Sequence[Any] | torch.Tensor = (),
    *,
    kwargs: Mapping[str, Any] | None = None,
    opset_version: int | None = None,
    dynamic_shapes: Any = None,
    dynamic_axes: Mapping[str, Any] | None = None,
    custom_translation_table: Translations | None = None,
) -> dict[str, list[str]]:
    """Tell what keeps a model from being converted, without writing anything.

    Args:
        model: As for :func:`export`, like the other arguments.
        args: Positional example arguments.
        kwargs: Keyword example arguments.
        opset_version: Opset that is asked for.
        dynamic_shapes: Dynamic dimensions.
        dynamic_axes: Dynamic dimensions in the other form.
        custom_translation_table: Lowerings of your own.

    Returns:
        For each operator that cannot be converted, the reasons with the places in the user's code; empty if the
        model can be exported.

    Raises:
        OnnxExporterError: If the model cannot be captured.
    """
    declared = {"dynamic_shapes": dynamic_shapes, "dynamic_axes": dynamic_axes}
    try:
        export(
            model,
            args,
            kwargs=kwargs,
            opset_version=opset_version,
            state="io",
            custom_translation_table=custom_translation_table,
            **declared,
        )
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
