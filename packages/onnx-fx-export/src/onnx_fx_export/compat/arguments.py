"""The arguments that ``export`` takes because ``torch.onnx.export`` has them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypedDict

import torch

__all__ = ["TorchArguments", "with_defaults"]


class TorchArguments(TypedDict, total=False):
    """Arguments of ``torch.onnx.export`` that calls written for it may hand on.

    Attributes:
        training: The mode that the model is in during the export; by default the one it is in.
        operator_export_type: For the TorchScript exporter; with this one it can only be ``ONNX``.
        do_constant_folding: Whether batch normalization and transposes may go into weights, unless files are to have
            them as inputs; by default they do. Constants that are not weights are folded in any case.
        custom_opsets: Versions of the domains of custom operators, as far as the model uses them.
        autograd_inlining: For the TorchScript exporter; with this one it can only be True.
    """

    training: torch.onnx.TrainingMode | None
    operator_export_type: torch.onnx.OperatorExportTypes | None
    do_constant_folding: bool
    custom_opsets: Mapping[str, int] | None
    autograd_inlining: bool


_DEFAULTS: TorchArguments = {
    "training": None,
    "operator_export_type": None,
    "do_constant_folding": True,
    "custom_opsets": None,
    "autograd_inlining": True,
}


def with_defaults(given: Mapping[str, Any]) -> tuple[TorchArguments, dict[str, Any]]:
    """Return the arguments of torch with their defaults, and the arguments of a call that are not among them."""
    unknown = {name: value for name, value in given.items() if name not in _DEFAULTS}
    known: Any = {**_DEFAULTS, **{name: given[name] for name in given.keys() & _DEFAULTS.keys()}}
    return known, unknown
