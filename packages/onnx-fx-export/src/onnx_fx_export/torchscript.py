"""The way to the TorchScript exporter, which is found at run time only: neither exporter depends on the other."""

from __future__ import annotations

import importlib
import inspect
from collections.abc import Mapping, Sequence
from typing import Any

from onnx_fx_export import dynamic_shapes as shapes
from onnx_fx_export.dimension_names import declared_text
from onnx_fx_export.errors import InvalidArgumentError, OnnxExporterError

__all__ = ["export_through_torchscript"]


def export_through_torchscript(
    model: Any, args: tuple[Any, ...], f: Any, dynamic_shapes: Any, parameters: Sequence[str], **arguments: Any
) -> Any:
    """Export with onnx-ts-legacy.

    Args:
        model: A module, a function, or a scripted one.
        args: Positional example arguments.
        f: Where to save the model.
        dynamic_shapes: Dynamic dimensions as torch.export takes them; None where ``dynamic_axes`` has them.
        parameters: Names of the model's parameters.
        arguments: What else the exporter is to know; what it does not take is left out.

    Raises:
        OnnxExporterError: If it is not installed, or fails as well.
    """
    try:
        legacy = importlib.import_module("onnx_ts_legacy")
    except ImportError as error:
        raise OnnxExporterError("The TorchScript exporter is missing: pip install onnx-ts-legacy.") from error
    accepted = inspect.signature(legacy.export).parameters
    options = {name: value for name, value in arguments.items() if name in accepted}
    if dynamic_shapes is not None:
        named = {**dict(zip(parameters, args, strict=False)), **(arguments["kwargs"] or {})}
        options["dynamic_axes"] = _dynamic_axes(dynamic_shapes, named, arguments["input_names"])
    return legacy.export(model, args, f, **options)


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
