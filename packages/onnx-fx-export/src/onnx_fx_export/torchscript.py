"""The way to the TorchScript exporter, which is found at run time only: neither exporter depends on the other."""

from __future__ import annotations

import importlib
import warnings
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch.utils import _pytree as pytree

from onnx_fx_export import dynamic_shapes as shapes
from onnx_fx_export.dimension_names import declared_text
from onnx_fx_export.errors import FallbackError, InvalidArgumentError, OnnxExporterError
from onnxops_decomp.exporting.naming import Leaf, example_paths, names_by_leaf
from onnxops_decomp.exporting.options import ExportPath, asked_of_torchscript, refusal

__all__ = ["export_through_torchscript", "fall_back"]

_PRESERVE = 1  # of torch.onnx.TrainingMode


def fall_back(given: Mapping[str, Any], arguments: Mapping[str, Any], error: OnnxExporterError) -> Any:
    """Export with onnx-ts-legacy what the FX exporter cannot.

    Args:
        given: The options of the export by name.
        arguments: The example arguments by parameter name, in the order of the parameters.
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
        names = _in_signature_order(given["input_names"] or (), arguments, list(given["kwargs"] or {}))
        program = export_through_torchscript({**given, "input_names": names}, arguments)
    except OnnxExporterError as other:
        raise FallbackError(error, other) from error
    warnings.warn(
        f"The TorchScript exporter made the model (fallback=True), as the FX exporter failed: {error}",
        stacklevel=4,  # the caller of export
    )
    return program


def export_through_torchscript(given: Mapping[str, Any], arguments: Mapping[str, Any]) -> Any:
    """Export with onnx-ts-legacy.

    Args:
        given: The options of the export by name.
        arguments: The example arguments by parameter name, in the order of the parameters.

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
        options["dynamic_axes"] = _dynamic_axes(declared, arguments, given["input_names"])
    return legacy.export(**options)


def _dynamic_axes(
    dynamic_shapes: Any, arguments: Mapping[str, Any], input_names: Sequence[str] | None
) -> dict[str, dict[int, str]]:
    """Return the declared dimensions as the TorchScript exporter takes them.

    Raises:
        InvalidArgumentError: If a number is declared dynamic, which a trace takes for a constant.
    """
    declared = shapes.normalized(dynamic_shapes, arguments, input_names)
    leaves = _leaves(arguments)
    named = names_by_leaf(input_names or (), leaves, InvalidArgumentError)
    specs = [spec for name, value in arguments.items() for spec in shapes.leaf_specs(value, declared[name])]
    axes: dict[str, dict[int, str]] = {}
    for index, (leaf, spec) in enumerate(zip(leaves, specs, strict=True)):
        if shapes.NUMBER in spec:
            raise InvalidArgumentError(
                f"The TorchScript exporter can make the dimensions of tensors dynamic, not {leaf.name} as declared."
            )
        name = named.get(index, leaf.name)
        if spec:
            axes[name] = {axis: declared_text(dim) or f"{name}_{axis}" for axis, dim in spec.items()}
    return axes


def _leaves(arguments: Mapping[str, Any]) -> list[Leaf]:
    """Return the leaves of a call as the TorchScript exporter calls them."""
    paths = [(name, *path) for name, value in arguments.items() for path in example_paths(value)]
    values = pytree.tree_leaves(list(arguments.values()))
    names = ["_".join(map(str, path)) for path in paths]
    return [Leaf(name, value, isinstance(value, torch.Tensor)) for name, value in zip(names, values, strict=True)]


def _in_signature_order(
    input_names: Sequence[str], arguments: Mapping[str, Any], keywords: Sequence[str]
) -> list[str] | None:
    """Return names that are given in the order of the call in the order of the parameters."""
    if not input_names or not keywords:
        return list(input_names) or None
    order = [*(name for name in arguments if name not in keywords), *keywords]
    leaves = _leaves({name: arguments[name] for name in order})
    named = names_by_leaf(input_names, leaves, InvalidArgumentError)
    by_name = {leaves[index].name: name for index, name in named.items()}
    return [by_name.get(leaf.name, leaf.name) for leaf in _leaves(arguments) if leaf.is_input]
