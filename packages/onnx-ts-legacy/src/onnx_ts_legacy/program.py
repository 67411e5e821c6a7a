"""The result of an export."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import IO, Any, cast

import numpy as np
import onnx
import onnx_ir as ir
import torch

from onnx_ts_legacy.errors import ArgumentsError, MissingRuntimeError, SaveError
from onnxops_decomp.streaming import write_model

__all__ = ["TSProgram"]

# A protobuf message ends at 2 GiB; beyond this, weights stand in a file of their own.
_LARGEST_FILE = 1_900_000_000
# A larger model is handed to the runtime as a file, which needs no copy of it.
_IN_MEMORY = 1 << 26


class TSProgram:
    """An exported model.

    Attributes:
        model: The model.
        initial_state: For each state input, by name, what the original model holds at the start.
        state_outputs: For each state input, by name, the output that is its value for the next call.
    """

    def __init__(self, model: ir.Model, initial_state: Mapping[str, torch.Tensor], state_outputs: Mapping[str, str]):
        self.model = model
        self.initial_state = dict(initial_state)
        self.state_outputs = dict(state_outputs)
        self._session: Any = None

    @property
    def model_proto(self) -> onnx.ModelProto:
        """The model as a protobuf message."""
        return ir.serde.serialize_model(self.model)

    @property
    def input_names(self) -> list[str]:
        """Names of the inputs, those of the state last."""
        return [str(value.name) for value in self.model.graph.inputs if value.name not in self.model.graph.initializers]

    @property
    def output_names(self) -> list[str]:
        """Names of the outputs, those of the state last."""
        return [str(value.name) for value in self.model.graph.outputs]

    def __call__(self, *inputs: Any, **named: Any) -> list[Any]:
        """Run the model in ONNX Runtime.

        Args:
            inputs: Tensors for the inputs in order. State inputs may be left out: they start as the model did.
            named: Tensors by input name.

        Returns:
            All outputs, in order; None for a result that is None.

        Raises:
            ArgumentsError: If inputs are missing or unknown.
            MissingRuntimeError: If ONNX Runtime is not installed.
        """
        feeds: dict[str, Any] = dict(self.initial_state)
        if len(inputs) > len(self.input_names):
            raise ArgumentsError(f"The model has {len(self.input_names)} inputs, got {len(inputs)}.")
        feeds.update(zip(self.input_names, inputs, strict=False))
        feeds.update(named)
        if set(feeds) != set(self.input_names):
            odd = sorted(set(feeds) ^ set(self.input_names))
            raise ArgumentsError(f"The model takes {self.input_names}; check {odd}.")
        arrays = {name: _array(value) for name, value in feeds.items()}
        return [
            None if result is None else torch.from_numpy(np.array(result))
            for result in self._loaded().run(None, arrays)
        ]

    def _loaded(self) -> Any:
        if self._session is None:
            try:
                import onnxruntime
            except ImportError:
                raise MissingRuntimeError(
                    "Running a program needs ONNX Runtime: pip install onnx-ts-legacy[verify]."
                ) from None
            options = onnxruntime.SessionOptions()
            options.log_severity_level = 3
            with tempfile.TemporaryDirectory() as folder:
                source: Any = Path(folder) / "model.onnx"
                if self._size() > _IN_MEMORY:
                    self.save(source)
                else:
                    source = self.model_proto.SerializeToString()
                self._session = onnxruntime.InferenceSession(source, options, providers=["CPUExecutionProvider"])
        return self._session

    def _size(self) -> int:
        """Return how many bytes the weights have."""
        weights = self.model.graph.initializers.values()
        return sum(value.const_value.nbytes for value in weights if value.const_value is not None)

    def save(self, f: str | os.PathLike[str] | IO[bytes]) -> None:
        """Write the model; a file is written whole or not at all.

        Args:
            f: A path, or a file opened for writing bytes. Weights of more than 1.9 GB go to ``<name>.data`` beside it.

        Raises:
            SaveError: If it cannot be written.
        """
        if hasattr(f, "write"):
            if self._size() > _LARGEST_FILE:
                raise SaveError("A file object cannot take a model of more than 1.9 GB; give a path instead.")
            write_model(self.model, cast(IO[bytes], f))
            return
        path = Path(f)
        try:
            with tempfile.TemporaryDirectory(dir=path.parent, prefix=f".{path.name}.") as folder:
                self._write_beside(Path(folder), path)
        except OSError as error:
            raise SaveError(f"{path} cannot be written: {error.strerror or error}.") from error

    def _write_beside(self, folder: Path, path: Path) -> None:
        if path.is_dir():
            raise IsADirectoryError(f"{path} is a folder")
        if self._size() <= _LARGEST_FILE:
            with (folder / path.name).open("wb") as file:
                write_model(self.model, file)
        else:
            ir.save(self.model, folder / path.name, external_data=f"{path.name}.data")
            os.replace(folder / f"{path.name}.data", path.with_name(f"{path.name}.data"))
        os.replace(folder / path.name, path)


def _array(value: Any) -> Any:
    return value.detach().cpu().numpy() if isinstance(value, torch.Tensor) else np.asarray(value)
