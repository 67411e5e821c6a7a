"""Greedy generation by plain ONNX Runtime, for folders that :func:`onnx_fx_export.generation.export_folder` wrote."""

from __future__ import annotations

import json
import os
from collections.abc import Generator as Steps
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from onnx_fx_export.errors import InvalidArgumentError, RuntimeSupportError
from onnx_fx_export.generation.config import CONFIG_FILE
from onnx_fx_export.generation.requirements import onnxruntime

__all__ = ["Generator"]

Tokens = npt.NDArray[np.int64]
_FLOATS = {"tensor(float)": np.float32, "tensor(float16)": np.float16}


class Generator:
    """Generates tokens with ONNX Runtime, the most likely one at each step.

    The keys and values of earlier steps stay in the runtime's memory; no step copies them through Python.

    Attributes:
        config: What ``genai_config.json`` says.
        pads_behind: Whether the model counts the tokens of each row from the start, with padding behind the prompts.

    Args:
        folder: A folder with ``genai_config.json`` and the model file that it names.
        providers: Execution providers of ONNX Runtime, the preferred one first.

    Raises:
        InvalidArgumentError: If there is no such folder.
        MissingRuntimeError: If ONNX Runtime is not installed.
        RuntimeSupportError: If it cannot load the model.

    Example:
        >>> generator = Generator("llama")  # doctest: +SKIP
        >>> generator.generate(np.array([[1, 5, 7]]), max_new_tokens=20)  # doctest: +SKIP
    """

    def __init__(self, folder: str | os.PathLike[str], providers: Sequence[str] = ("CPUExecutionProvider",)) -> None:
        path = Path(folder)
        if not (path / CONFIG_FILE).is_file():
            raise InvalidArgumentError(f"{path} is not a folder for generation: it has no {CONFIG_FILE}.")
        self.config: dict[str, Any] = json.loads((path / CONFIG_FILE).read_text(encoding="utf-8"))
        runtime = onnxruntime()
        options = runtime.SessionOptions()
        options.log_severity_level = 3
        model = path / self.config["model"]["decoder"]["filename"]
        try:
            self._session = runtime.InferenceSession(model, options, providers=list(providers))
        except Exception as error:  # whatever the runtime raises
            raise RuntimeSupportError(f"ONNX Runtime cannot load {model}: {error}") from error
        names = self.config["model"]["decoder"]
        layers = range(names["num_hidden_layers"])
        kinds = "key", "value"
        self._past = [names["inputs"][f"past_{kind}_names"] % i for i in layers for kind in kinds]
        self._present = [names["outputs"][f"present_{kind}_names"] % i for i in layers for kind in kinds]
        self.pads_behind = bool(self.config["search"]["past_present_share_buffer"])
        self._declared = {value.name: value for value in self._session.get_inputs()}

    def generate(
        self,
        input_ids: Tokens,
        attention_mask: Tokens | None = None,
        *,
        max_new_tokens: int = 64,
        min_new_tokens: int = 0,
    ) -> Tokens:
        """Return prompts with what follows them.

        Args:
            input_ids: Prompts (B, S), int64, padded on the left.
            attention_mask: 1 for a token and 0 for padding (B, S), int64; by default there is no padding.
            max_new_tokens: The most tokens to add.
            min_new_tokens: How many tokens are added before one may end a sequence.

        Returns:
            Tokens (B, S + at most ``max_new_tokens``), int64. A row that has ended is filled up with the padding token.

        Raises:
            InvalidArgumentError: If the prompts are empty, or the mask has another shape.
        """
        prompt = np.asarray(input_ids, np.int64)
        stop = np.atleast_1d(np.asarray(self.config["model"]["eos_token_id"], np.int64))
        steps, ended = [prompt], np.zeros(len(prompt), bool)
        logits = self.logits(prompt, attention_mask)
        scores = next(logits)
        for step in range(max_new_tokens):
            if step < min_new_tokens:
                scores[:, stop] = -np.inf
            chosen = np.where(ended, self.config["model"]["pad_token_id"], scores.argmax(-1))
            steps.append(chosen[:, None])
            ended |= np.isin(chosen, stop)
            if ended.all() or step + 1 == max_new_tokens:
                break
            scores = logits.send(chosen[:, None])
        return np.concatenate(steps, 1)

    def logits(
        self, input_ids: Tokens, attention_mask: Tokens | None = None
    ) -> Steps[npt.NDArray[np.float32], Tokens, None]:
        """Yield the logits of the token after those read; each ``send`` hands in the next tokens.

        Args:
            input_ids: Prompts (B, S), int64, padded on the left.
            attention_mask: 1 for a token and 0 for padding (B, S), int64; by default there is no padding.

        Yields:
            Logits (B, vocabulary), float32.

        Raises:
            InvalidArgumentError: If the prompts are empty, or the mask has another shape.
        """
        tokens = np.asarray(input_ids, np.int64)
        mask = np.ones_like(tokens) if attention_mask is None else np.asarray(attention_mask, np.int64)
        if tokens.ndim != 2 or not tokens.size or mask.shape != tokens.shape:
            raise InvalidArgumentError(
                f"Prompts are (batch, tokens) with at least one token, and a mask has the same shape; these are "
                f"{tokens.shape} and {mask.shape}."
            )
        left = tokens[:, :0]
        if self.pads_behind:
            order = np.argsort(1 - mask, axis=1, kind="stable")
            tokens, mask = np.take_along_axis(tokens, order, 1), np.take_along_axis(mask, order, 1)
        binding, cache = self._session.io_binding(), self._empty_cache(len(tokens))
        while True:
            binding.clear_binding_inputs()
            binding.clear_binding_outputs()
            binding.bind_cpu_input("input_ids", tokens)
            binding.bind_cpu_input("attention_mask", mask)
            for name, value in zip(self._past, cache, strict=True):
                binding.bind_ortvalue_input(name, value)
            for name in ("logits", *self._present):
                binding.bind_output(name)
            self._session.run_with_iobinding(binding)
            result, *cache = binding.get_outputs()
            tokens = left[:, :1] if left.size else (yield result.numpy()[:, -1].astype(np.float32))
            left = left[:, 1:]
            if self.pads_behind and len(tokens) > 1 and tokens.shape[1] > 1:
                # The operator takes several tokens behind a cache for one row only.
                tokens, left = tokens[:, :1], tokens[:, 1:]
            mask = np.concatenate([mask, np.ones_like(tokens)], 1)

    def _empty_cache(self, batch: int) -> list[Any]:
        """Return keys and values of no token."""
        result = []
        for name in self._past:
            declared = self._declared[name]
            shape = [batch, declared.shape[1], 0, declared.shape[3]]
            result.append(onnxruntime().OrtValue.ortvalue_from_numpy(np.zeros(shape, _FLOATS[declared.type])))
        return result
