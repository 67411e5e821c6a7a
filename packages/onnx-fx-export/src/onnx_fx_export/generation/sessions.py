"""The graphs of a folder in plain ONNX Runtime, whose caches stay in the runtime's memory."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from onnx_fx_export.errors import RuntimeSupportError
from onnx_fx_export.generation.config import TOKENS
from onnx_fx_export.generation.requirements import onnxruntime

__all__ = ["DecoderSession", "GraphSession", "PromptSession"]

# Room behind a window, so that what is in it is not moved at each step.
_SLACK = 16
_DTYPES = {"tensor(float)": np.float32, "tensor(float16)": np.float16, "tensor(int64)": np.int64}


class GraphSession:
    """One graph.

    Attributes:
        declared: What ONNX Runtime says of each input.

    Args:
        path: The file of the graph.
        providers: Execution providers, the preferred one first.

    Raises:
        RuntimeSupportError: If ONNX Runtime cannot load it.
    """

    def __init__(self, path: Path, providers: Sequence[str]) -> None:
        self._path, runtime = path, onnxruntime()
        options = runtime.SessionOptions()
        options.log_severity_level = 3
        try:
            self._session = runtime.InferenceSession(path, options, providers=list(providers))
        except Exception as error:  # whatever the runtime raises
            raise RuntimeSupportError(f"ONNX Runtime cannot load {path}: {error}") from error
        inputs = [*self._session.get_inputs(), *self._session.get_overridable_initializers()]
        self.declared = {value.name: value for value in inputs}
        self.outputs = [value.name for value in self._session.get_outputs()]

    def run(self, given: Mapping[str, npt.NDArray[Any]], kept: Mapping[str, Any]) -> dict[str, Any]:
        """Run the graph.

        Args:
            given: Inputs; what the graph has no input for is left out, and numbers get its dtypes.
            kept: Inputs that are in the runtime's memory.

        Returns:
            The outputs by name, in the runtime's memory.

        Raises:
            RuntimeSupportError: If ONNX Runtime fails.
        """
        binding = self._session.io_binding()
        for name, value in given.items():
            if name in self.declared:
                binding.bind_cpu_input(name, np.ascontiguousarray(self.cast(name, value)))
        for name, value in kept.items():
            if name in self.declared:
                binding.bind_ortvalue_input(name, value)
        for name in self.outputs:
            binding.bind_output(name)
        try:
            self._session.run_with_iobinding(binding)
        except Exception as error:  # whatever the runtime raises
            raise RuntimeSupportError(f"ONNX Runtime cannot run {self._path}: {error}") from error
        return dict(zip(self.outputs, binding.get_outputs(), strict=True))

    def cast(self, name: str, value: npt.NDArray[Any]) -> npt.NDArray[Any]:
        """Return an input in the dtype that the graph reads."""
        kind = self.declared[name].type
        return value.astype(_DTYPES[kind], copy=False) if kind in _DTYPES else value

    def zeros(self, name: str, batch: int, length: int = 0) -> Any:
        """Return zeros for an input whose first axis is the batch, and whose other dynamic axes have one length."""
        declared = self.declared[name]
        shape = [batch, *(size if isinstance(size, int) else length for size in declared.shape[1:])]
        return onnxruntime().OrtValue.ortvalue_from_numpy(np.zeros(shape, _DTYPES[declared.type]))


class DecoderSession(GraphSession):
    """The graph that goes on from what it has read.

    Attributes:
        reads_one: Whether it reads one token at each step.

    Args:
        path: The file of the graph.
        providers: Execution providers, the preferred one first.
        names: What ``genai_config.json`` says of the graph.

    Raises:
        RuntimeSupportError: If ONNX Runtime cannot load it.
    """

    def __init__(self, path: Path, providers: Sequence[str], names: Mapping[str, Any]) -> None:
        super().__init__(path, providers)
        pairs = [
            (template, names["outputs"][f"present{key.removeprefix('past')}"])
            for key, template in names["inputs"].items()
            if key.startswith("past_") and key.endswith("_names")
        ]
        layers = range(names["num_hidden_layers"])
        self.reads_one = any(self.declared[name].shape[1] == 1 for name in TOKENS if name in self.declared)
        window = names.get("sliding_window", {"window_size": 0, "layers": []})
        self._kept = window["window_size"] + _SLACK
        self._forgetting = {past % i for i in window["layers"] for past, _ in pairs}
        self._states = {past % i: present % i for i in layers for past, present in pairs if past % i in self.declared}

    def start(self, batch: int) -> dict[str, Any]:
        """Return the states of a batch that has read nothing."""
        return {past: self.zeros(past, batch, self._kept if past in self._forgetting else 0) for past in self._states}

    def step(
        self, given: Mapping[str, npt.NDArray[Any]], states: Mapping[str, Any], encoded: Mapping[str, Any]
    ) -> tuple[npt.NDArray[np.float32], dict[str, Any]]:
        """Read tokens.

        Args:
            given: Tokens and masks, by the names of the inputs.
            states: What was returned by the step before, or by :meth:`start`.
            encoded: What is the same in all steps.

        Returns:
            The logits (B, vocabulary) of the token that follows, and the states.
        """
        mask = given.get("attention_mask")
        return self.read(self.run(given, {**states, **encoded}), None if mask is None else np.asarray(mask))

    def read(
        self, result: Mapping[str, Any], mask: npt.NDArray[Any] | None = None
    ) -> tuple[npt.NDArray[np.float32], dict[str, Any]]:
        """Return the logits (B, vocabulary) of the last token that was read, and the states that the next step reads.

        Args:
            result: The outputs of a graph, by the names of this graph's.
            mask: 1 for a token and 0 for padding, the last of them for what was read, if there may be padding.
        """
        logits = result["logits"].numpy()
        if mask is None:
            last = np.full(len(logits), logits.shape[1] - 1)
        else:  # a graph that has them for the last token of each row alone has no others
            last = logits.shape[1] - 1 - mask[:, ::-1][:, : logits.shape[1]].argmax(1)
        chosen: npt.NDArray[np.float32] = logits[np.arange(len(logits)), last].astype(np.float32)
        return chosen, {past: result[present] for past, present in self._states.items()}


class PromptSession(GraphSession):
    """The graph that reads whole prompts where :class:`DecoderSession` reads one token at each step.

    Args:
        path: The file of the graph.
        providers: Execution providers, the preferred one first.
        chunk: Of how many tokens its inputs are multiples.
        fewest: How many chunks they have at least.
        shortest: From how many tokens on prompts are read by it.

    Raises:
        RuntimeSupportError: If ONNX Runtime cannot load it.
    """

    def __init__(self, path: Path, providers: Sequence[str], chunk: int, fewest: int, shortest: int) -> None:
        super().__init__(path, providers)
        self._chunk, self._fewest, self._shortest = chunk, fewest, shortest

    def serves(self, length: int) -> bool:
        """Tell whether prompts of such a length are read at once: faster than token by token, or as the model does."""
        return length >= self._shortest

    def padding(self, length: int) -> int:
        """Return how many tokens have to stand before prompts of such a length."""
        return max(self._fewest, -(-length // self._chunk)) * self._chunk - length
