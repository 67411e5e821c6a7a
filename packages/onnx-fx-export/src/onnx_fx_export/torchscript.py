"""The way to the TorchScript exporter, which is found at run time only: neither exporter depends on the other."""

from __future__ import annotations

import importlib
from collections.abc import Mapping, Sequence
from typing import Any

import torch

from onnx_fx_export.errors import FallbackError, InvalidArgumentError, OnnxExporterError
from onnxops_core.exporting import warn_user
from onnxops_decomp.exporting import ExportPath, asked_of_torchscript, call_leaves, names_by_leaf, option_refusal

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
    text = option_refusal(ExportPath.FALLBACK, given)
    if text is not None:
        raise FallbackError(error, InvalidArgumentError(text)) from error
    # The FX exporter writes the page and the profile, of the whole export.
    given = {**given, "frozen_values": "error", "report": False, "profile": False}
    modules = given["model"].modules() if isinstance(given["model"], torch.nn.Module) else ()
    if given["training"] is None and any(module.training for module in modules):
        given["training"] = _PRESERVE
    try:
        names = _in_signature_order(given["input_names"] or (), arguments, list(given["kwargs"] or {}))
        program = export_through_torchscript({**given, "input_names": names})
    except OnnxExporterError as other:
        raise FallbackError(error, other) from error
    warn_user(f"The TorchScript exporter made the model (fallback=True), as the FX exporter failed: {error}")
    return program


def export_through_torchscript(given: Mapping[str, Any]) -> Any:
    """Export with onnx-ts-legacy.

    Args:
        given: The options of the export by name.

    Raises:
        OnnxExporterError: If it is not installed, or fails as well.
    """
    try:
        legacy = importlib.import_module("onnx_ts_legacy")
    except ImportError as error:
        raise OnnxExporterError("The TorchScript exporter is missing: pip install onnx-ts-legacy.") from error
    return legacy.export(**asked_of_torchscript(given))


def _in_signature_order(
    input_names: Sequence[str], arguments: Mapping[str, Any], keywords: Sequence[str]
) -> list[str] | None:
    """Return names that are given in the order of the call in the order of the parameters."""
    if not input_names or not keywords:
        return list(input_names) or None
    order = [*(name for name in arguments if name not in keywords), *keywords]
    leaves = call_leaves({name: arguments[name] for name in order})
    named = names_by_leaf(input_names, leaves, InvalidArgumentError)
    by_name = {leaves[index].name: name for index, name in named.items()}
    return [by_name.get(leaf.name, leaf.name) for leaf in call_leaves(arguments) if leaf.is_input]
