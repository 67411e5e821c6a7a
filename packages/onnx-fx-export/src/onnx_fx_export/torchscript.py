"""The way to the TorchScript exporter, which is found at run time only: neither exporter depends on the other."""

from __future__ import annotations

import importlib
import warnings
from collections.abc import Mapping, Sequence
from typing import Any

from onnx_fx_export import dynamic_shapes as shapes
from onnx_fx_export.dimension_names import declared_text
from onnx_fx_export.errors import FallbackError, InvalidArgumentError, OnnxExporterError
from onnxops_decomp.exporting.options import ExportPath, asked_of_torchscript, refusal

__all__ = ["export_through_torchscript", "fall_back"]

_PRESERVE = 1  # of torch.onnx.TrainingMode


def fall_back(given: Mapping[str, Any], parameters: Sequence[str], error: OnnxExporterError) -> Any:
    """Export with onnx-ts-legacy what the FX exporter cannot.

    Args:
        given: The options of the export by name.
        parameters: Names of the model's parameters.
        error: Why the FX exporter failed.

    Raises:
        FallbackError: If the TorchScript exporter cannot take the options, or fails as well.

    Warns:
        UserWarning: That the model is one of the TorchScript exporter, and why.
    """
    text = refusal(ExportPath.FALLBACK, given)
    if text is not None:
        raise FallbackError(error, InvalidArgumentError(text)) from error
    if given["training"] is None:
        given = {**given, "training": _PRESERVE}
    try:
        program = export_through_torchscript(given, parameters)
    except OnnxExporterError as other:
        raise FallbackError(error, other) from error
    warnings.warn(
        f"The TorchScript exporter made the model (fallback=True), as the FX exporter failed: {error}",
        stacklevel=4,  # the caller of export
    )
    return program


def export_through_torchscript(given: Mapping[str, Any], parameters: Sequence[str]) -> Any:
    """Export with onnx-ts-legacy.

    Args:
        given: The options of the export by name.
        parameters: Names of the model's parameters.

    Raises:
        OnnxExporterError: If it is not installed, or fails as well.
    """
    try:
        legacy = importlib.import_module("onnx_ts_legacy")
    except ImportError as error:
        raise OnnxExporterError("The TorchScript exporter is missing: pip install onnx-ts-legacy.") from error
    options = asked_of_torchscript(given)
    declared = options.pop("dynamic_shapes", None)
    if declared is not None:
        named = {**dict(zip(parameters, given["args"], strict=False)), **(given["kwargs"] or {})}
        options["dynamic_axes"] = _dynamic_axes(declared, named, given["input_names"])
    return legacy.export(**options)


def _dynamic_axes(
    dynamic_shapes: Any, arguments: Mapping[str, Any], input_names: Sequence[str] | None
) -> dict[str, dict[int, str]]:
    """Return the declared dimensions as the TorchScript exporter takes them.

    Raises:
        InvalidArgumentError: If they are declared of something that it has no name for.
    """
    declared = shapes.normalized(dynamic_shapes, arguments, input_names)
    called = [*(input_names or ()), *list(arguments)[len(input_names or ()) :]]
    axes: dict[str, dict[int, str]] = {}
    for input_name, (parameter, value) in zip(called, arguments.items(), strict=True):
        specs = shapes.leaf_specs(value, declared[parameter])
        if not any(specs):
            continue
        if len(specs) > 1 or shapes.NUMBER in specs[0]:
            raise InvalidArgumentError(
                f"The TorchScript exporter can make the dimensions of tensors dynamic, not {parameter} as declared; "
                "give dynamic_axes by the names of its inputs."
            )
        axes[input_name] = {axis: declared_text(dim) or f"{input_name}_{axis}" for axis, dim in specs[0].items()}
    return axes
