"""The exporter and its configuration, in the forms that transformers gives its own."""

from __future__ import annotations

import copy
import dataclasses
from collections.abc import MutableMapping
from pathlib import Path
from typing import Any, Literal

import onnx_ir as ir
import torch
from transformers import cache_utils
from transformers.exporters.auto import EXPORT_BACKENDS, register_backend
from transformers.exporters.base import HfExporter
from transformers.exporters.configs import ExportConfigMixin
from transformers.exporters.metadata import ExportMetadata, build_export_metadata, record_output_structure
from transformers.exporters.utils import prepare_for_export

from onnx_fx_export.api import export
from onnx_fx_export.errors import InvalidArgumentError
from onnx_fx_export.transformers.calls import FlatCall
from onnx_fx_export.transformers.runner import OnnxFxRunner
from onnxops_decomp.exporting import ONNXProgram, register_class

__all__ = ["OnnxFxConfig", "OnnxFxExporter", "register"]

FORMAT = "onnx-fx"


@dataclasses.dataclass
class OnnxFxConfig(ExportConfigMixin):
    """How a model of transformers is exported.

    Attributes:
        export_format: The name of this back-end.
        dynamic: Whether the dimensions that differ from call to call are dynamic: the batch, the lengths of texts and
            masks, and what a cache holds. Each has a name, and none becomes static without an error.
        dynamic_shapes: Dimensions by argument, in the form of torch.export, or by input (``past_key_values.0.key``); it
            comes before ``dynamic``.
        opset_version: Opset of the model; by default the one of :func:`onnx_fx_export.export`.
        optimize: Whether groups of nodes are fused.
        target: The runtime whose own operators may be used, or None.
        verify: Whether the result is compared with PyTorch at the sizes of the example and others; needs onnx-verify.
        quantizer: None: quantize the model before the export, or the file after it.
    """

    export_format: str = FORMAT
    dynamic: bool = False
    dynamic_shapes: dict[str, Any] | None = None
    opset_version: int | None = None
    optimize: bool = True
    target: Literal["onnxruntime"] | None = None
    verify: bool = False
    quantizer: None = None


class OnnxFxExporter(HfExporter):
    """Exports a model of transformers with :func:`onnx_fx_export.export`, without patches of torch or of the model.

    Inputs are called ``input_ids``, ``attention_mask``, ``past_key_values.0.key``, and outputs ``logits``,
    ``present.0.key``. Caches with sliding windows hold all tokens in the exported model, whose mask has the window.

    Example:
        >>> exported = OnnxFxExporter().export(model, inputs, OnnxFxConfig(dynamic=True))  # doctest: +SKIP
        >>> exported.save_pretrained("folder")  # doctest: +SKIP
    """

    export_format = FORMAT
    config_class = OnnxFxConfig
    program_suffix = ".onnx"
    required_packages = ["torch", "onnx"]  # noqa: RUF012 - the type that transformers gives it

    def export_program(  # type: ignore[override]
        self, model: torch.nn.Module, sample_inputs: MutableMapping[str, Any], config: OnnxFxConfig
    ) -> tuple[ONNXProgram, ExportMetadata]:
        """Export one graph.

        Args:
            model: The model, or a part of one.
            sample_inputs: What its ``forward`` is called with, by name; caches may be among it.
            config: How it is exported.

        Returns:
            The program, and what transformers records of it.

        Raises:
            OnnxExporterError: Some subclass of it, whatever fails.
        """
        if config.quantizer is not None:
            raise InvalidArgumentError(
                "onnx-fx takes no quantizer: quantize the model before the export, or the exported file."
            )
        model, inputs, flags = prepare_for_export(model, copy.deepcopy(dict(sample_inputs)))
        call = FlatCall(model, inputs, flags)
        dims = call.declared(config.dynamic, config.dynamic_shapes)
        with torch.no_grad(), call.in_place():
            program = export(
                model,
                kwargs={"tensors": call.tensors},
                dynamic_shapes=None if dims is None else {"tensors": dims},
                input_names=list(call.tensors),
                opset_version=config.opset_version,
                optimize=config.optimize,
                target=config.target,
                verify=config.verify,
            )
            call.call_once()
        metadata = build_export_metadata(model, inputs, program.exported_program, self.required_packages)
        record_output_structure(metadata, call.result)
        return program, metadata

    @classmethod
    def save_program(cls, program: ONNXProgram | ir.Model, path: str | Path) -> None:
        """Write a program to a file, whole or not at all, and its weights to ``<path>.data`` beside it.

        Raises:
            SaveError: If it cannot be written.
        """
        if isinstance(program, ONNXProgram):
            program.save(str(path), external_data=True)
        else:
            ir.save(program, str(path), external_data=f"{Path(path).name}.data")

    @classmethod
    def load_program(cls, path: str | Path) -> ir.Model:
        """Return a saved model with its weights."""
        return ir.external_data.load_to_model(ir.load(str(path)))

    @classmethod
    def program_files(cls, filename: str) -> list[str]:
        """Return the files of a saved program: the model, and its weights."""
        return [filename, f"{filename}.data"]


def register() -> None:
    """Tell transformers of this back-end, and torch of the caches that a saved export may name."""
    if FORMAT not in EXPORT_BACKENDS:
        register_backend(OnnxFxExporter, OnnxFxRunner)
    for kind in (cache_utils.DynamicCache, cache_utils.StaticCache, cache_utils.EncoderDecoderCache):
        register_class(cache_utils, kind)
