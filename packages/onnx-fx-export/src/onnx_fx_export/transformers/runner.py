"""Runs an exported model in ONNX Runtime, as transformers runs those of its own exporters."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

import onnx_ir as ir
import torch
from transformers.exporters.metadata import ExportMetadata
from transformers.exporters.runners.base import ModelRunner

from onnx_fx_export.errors import InvalidArgumentError
from onnx_fx_export.transformers.names import input_leaves
from onnxops_decomp.exporting import CONSTRAINTS_KEY, ONNXProgram, Session, SizeConstraints, register_containers

__all__ = ["OnnxFxRunner"]


class OnnxFxRunner(ModelRunner):
    """Runs a model on the arguments of the torch model, and returns what that returns.

    Args:
        metadata: What was recorded at the export.
        model: The model.
        options: Arguments of ``onnxruntime.InferenceSession``.
    """

    def __init__(self, metadata: ExportMetadata, model: ir.Model, options: Mapping[str, Any]) -> None:
        super().__init__(metadata)
        self._model, self._session = model, Session(model, None, options)
        self._constraints = SizeConstraints(json.loads(model.metadata_props.get(CONSTRAINTS_KEY, "[]")), simple=True)

    @property
    def device(self) -> torch.device:
        """Where inputs and outputs are."""
        return torch.device("cpu")

    @classmethod
    def from_program(
        cls,
        program: ONNXProgram | ir.Model,
        metadata: ExportMetadata,
        device: Any = None,
        providers: Sequence[Any] | None = None,
        session_options: Any = None,
    ) -> OnnxFxRunner:
        """Return a runner for a program as an export returns it, or as it was loaded.

        Args:
            program: The program.
            metadata: What was recorded at its export.
            device: None or the CPU; for others, give ``providers``.
            providers: Execution providers of ONNX Runtime; by default the CPU.
            session_options: Its ``SessionOptions``.

        Raises:
            InvalidArgumentError: If the device is another than the CPU.
        """
        if device is not None and torch.device(device).type != "cpu":
            raise InvalidArgumentError(
                f"Inputs and outputs are on the CPU, not on {device}: give providers=[...] instead."
            )
        options = {"providers": providers, "sess_options": session_options}
        model = program.model if isinstance(program, ONNXProgram) else program
        return cls(metadata, model, {name: value for name, value in options.items() if value is not None})

    def __call__(self, share_inputs: bool = True, share_outputs: bool = False, **kwargs: Any) -> Any:
        """Run the model.

        Args:
            share_inputs: Without effect: inputs are read where they are.
            share_outputs: Without effect: outputs belong to the caller.
            kwargs: What the torch model takes.

        Returns:
            What the torch model returns; a cache of it holds all tokens.

        Raises:
            InvalidArgumentError: If an input is missing, or the model is not right for the sizes.
        """
        register_containers(kwargs.values())
        given = {name: leaf for name, leaf in input_leaves(kwargs) if isinstance(leaf, torch.Tensor)}
        declared = self._model.graph.inputs
        if missing := [value.name for value in declared if value.name not in given]:
            raise InvalidArgumentError(
                f"The model takes {missing}, which the call does not pass: it has {list(given)}."
            )
        feeds = {str(value.name): given[str(value.name)] for value in declared}
        self._constraints.check(self._model.graph, {name: tuple(tensor.shape) for name, tensor in feeds.items()})
        return self.unflatten(self._session.run(declared, feeds))
