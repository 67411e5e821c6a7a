"""Arguments of ``torch.onnx.export`` that belong to the TorchScript exporter, and what they mean here."""

from __future__ import annotations

import contextlib
import dataclasses
import warnings
from collections.abc import Iterator, Mapping
from typing import Any

import onnx_ir as ir
import torch
from torch.onnx import OperatorExportTypes, TrainingMode

from onnx_fx_export.errors import InvalidArgumentError
from onnx_fx_export.regions import ModuleClasses

__all__ = ["TorchScriptOptions", "in_mode", "set_custom_opsets"]


@dataclasses.dataclass(frozen=True)
class TorchScriptOptions:
    """Arguments that the TorchScript exporter takes as well."""

    training: TrainingMode | None
    operator_export_type: OperatorExportTypes | None
    do_constant_folding: bool
    custom_opsets: Mapping[str, int] | None
    autograd_inlining: bool
    export_modules_as_functions: ModuleClasses
    export_params: bool
    keep_initializers_as_inputs: bool
    opset_version: int | None
    verify: bool
    verbose: bool

    def arguments(self) -> dict[str, Any]:
        """Return them by name, without those that have the exporter's own default."""
        named = {field.name: getattr(self, field.name) for field in dataclasses.fields(self)}
        if not isinstance(self.export_modules_as_functions, bool):
            named["export_modules_as_functions"] = set(self.export_modules_as_functions)
        return {name: value for name, value in named.items() if value is not None}

    def check_with_torchscript(self, custom_translation_table: Any) -> None:
        """Refuse what the TorchScript exporter cannot do.

        Raises:
            InvalidArgumentError: If such a thing is asked for.
        """
        if custom_translation_table:
            raise InvalidArgumentError(
                "The TorchScript exporter takes no custom_translation_table: register a symbolic function with "
                "onnx_ts_legacy.register_custom_op_symbolic."
            )

    def check_without_torchscript(self) -> None:
        """Refuse what only the TorchScript exporter can do.

        Raises:
            InvalidArgumentError: If such a thing is asked for.

        Warns:
            UserWarning: If constants are not to be folded.
        """
        if not self.do_constant_folding:
            warnings.warn(
                "do_constant_folding=False changes nothing: this exporter always folds small constants, and large ones "
                "never. Pass dynamo=False for the TorchScript exporter, which knows the option.",
                stacklevel=3,  # the caller of export
            )
        if self.operator_export_type not in (None, OperatorExportTypes.ONNX):
            raise InvalidArgumentError(
                f"operator_export_type={self.operator_export_type} exists in the TorchScript exporter only: pass "
                "dynamo=False. Operators of your own go into custom_translation_table."
            )
        if not self.autograd_inlining:
            raise InvalidArgumentError(
                "autograd_inlining=False exists in the TorchScript exporter only: pass dynamo=False, or give the "
                "Function a symbolic method, which is honoured."
            )


@contextlib.contextmanager
def in_mode(model: Any, training: TrainingMode | None) -> Iterator[None]:
    """Put a module in the mode that is asked for, and back in the modes that its parts were in."""
    if training in (None, TrainingMode.PRESERVE) or not isinstance(model, torch.nn.Module):
        yield
        return
    before = {module: module.training for module in model.modules()}
    model.train(training == TrainingMode.TRAINING)
    try:
        yield
    finally:
        for module, mode in before.items():
            module.training = mode


def set_custom_opsets(model: ir.Model, custom_opsets: Mapping[str, int]) -> None:
    """Declare versions of the domains of custom operators, as far as the model uses them."""
    for domain, version in custom_opsets.items():
        for imports in (model.opset_imports, *(function.opset_imports for function in model.functions.values())):
            if domain in imports:
                imports[domain] = version
