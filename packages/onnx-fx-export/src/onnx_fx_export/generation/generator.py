"""Greedy generation by plain ONNX Runtime, for folders that :func:`onnx_fx_export.generation.export_folder` wrote."""

from __future__ import annotations

import json
import os
from collections.abc import Generator as Steps
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from onnx_fx_export.errors import InvalidArgumentError
from onnx_fx_export.generation.config import ADAPTER_SUFFIX, CONFIG_FILE
from onnx_fx_export.generation.requirements import onnxruntime
from onnx_fx_export.generation.senses.listening import senses_of
from onnx_fx_export.generation.senses.seeing import Reading
from onnx_fx_export.generation.sessions import DecoderSession, GraphSession, PromptSession

__all__ = ["Generator"]

Tokens = npt.NDArray[np.int64]
Array = npt.NDArray[Any]
_SETTINGS_FILE = "generation_config.json"
# What transformers calls inputs that ONNX Runtime GenAI has other names for.
_GENAI_NAMES = {"input_features": "audio_features"}


class Generator:
    """Generates tokens with ONNX Runtime, the most likely one at each step.

    The keys and values of earlier steps stay in the runtime's memory; no step copies them through Python.

    Attributes:
        config: What ``genai_config.json`` says.
        eyes: What reads images or sounds among the tokens of a text, if the model does.
        forced_start: Tokens of which the first one follows a text of one token, if the settings force one: behind an
            encoder, what they say of the language.
        forced_end: Tokens of which the first one ends a text that has become as long as was asked for, if the settings
            force one.
        pads_behind: Whether the model counts the tokens of each row from the start, with padding behind the prompts.
        window: How many tokens the layers keep that forget those before their windows, if any do.

    Args:
        folder: A folder with ``genai_config.json`` and the model files that it names.
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
        if not isinstance(folder, str | os.PathLike):
            raise InvalidArgumentError(f"folder={type(folder).__name__} is no path.")
        path = Path(folder)
        if not (path / CONFIG_FILE).is_file():
            raise InvalidArgumentError(f"{path} is not a folder for generation: it has no {CONFIG_FILE}.")
        self._folder = path
        self.config: dict[str, Any] = _read(path / CONFIG_FILE)
        if "decoder" not in self.config.get("model", {}):
            raise InvalidArgumentError(f"{path / CONFIG_FILE} names no decoder. Write the folder anew.")
        decoder, encoder = self.config["model"]["decoder"], self.config["model"].get("encoder")
        self._encoder = GraphSession(path / encoder["filename"], providers) if encoder else None
        self.eyes = senses_of(path, self.config["model"], providers)
        self._decoder = DecoderSession(path / decoder["filename"], providers, decoder)
        prompt = self.config["model"].get("prompt")
        self._prompt = prompt and PromptSession(
            path / prompt["filename"],
            providers,
            prompt["chunk"],
            prompt["fewest_chunks"],
            prompt.get("shortest", prompt["chunk"] // 2),
        )
        settings = _read(path / _SETTINGS_FILE) if (path / _SETTINGS_FILE).is_file() else {}
        self.forced_start = _several(settings.get("forced_bos_token_id"))
        self.forced_end = _several(settings.get("forced_eos_token_id"))
        self.pads_behind = bool(self.config["search"]["past_present_share_buffer"])
        self.window: int | None = decoder.get("sliding_window", {}).get("window_size")

    def generate(
        self,
        input_ids: Tokens | None = None,
        attention_mask: Tokens | None = None,
        *,
        max_new_tokens: int = 64,
        min_new_tokens: int = 0,
        adapter: str | None = None,
        **inputs: Array,
    ) -> Tokens:
        """Return prompts with what follows them.

        Args:
            input_ids: Prompts (B, S), int64. A decoder takes padding on the left; text for an encoder has it on the
                right.
            attention_mask: 1 for a token and 0 for padding (B, S), int64; by default there is no padding.
            max_new_tokens: The most tokens to add; the settings may force the last of them (``forced_eos_token_id``).
            min_new_tokens: How many tokens are added before one may end a sequence.
            adapter: The name of an adapter whose file is in the folder; by default none is used.
            inputs: Other inputs, by the names that transformers has for them. A model that hears reads
                ``input_features`` (B, bands, frames), float32, or ``input_values`` (B, samples), float32, and one
                that sees ``pixel_values`` (N, channels, height, width), float32: the images in the order of their
                tokens, or (B, N, channels, height, width) with zeros for those that a text does not have. A model whose
                images have any size reads their patches (patches, numbers) instead, and ``image_grid_thw`` (N, 3),
                int64: frames, rows and columns of each; or patches (N, patches, numbers) and ``spatial_shapes`` (N, 2),
                int64: rows and columns of each; or ``image_sizes`` (N, 2), int64, beside the pixels: height and
                width of each, whose tiles (N, tiles, channels, height, width) it reads then if it was made for them.
                ``flattened_patches`` (B, patches, numbers), float32, come with an ``attention_mask``.
                ``decoder_input_ids`` (B, T), int64, are what is generated after an encoder begins with, behind the
                start token, which they may contain; by default that is the start token alone.

        Returns:
            Tokens (B, S + at most ``max_new_tokens``), int64; with an encoder, those of the decoder alone. A row that
            has ended is filled up with the padding token.

        Raises:
            InvalidArgumentError: If prompts are missing or empty, the mask has another shape, or there would be more
                tokens than the model takes.
        """
        if isinstance(max_new_tokens, bool) or not isinstance(max_new_tokens, int | np.integer) or max_new_tokens < 0:
            raise InvalidArgumentError(f"max_new_tokens={max_new_tokens!r} is no number of tokens.")
        stop = np.atleast_1d(np.asarray(self.config["model"]["eos_token_id"], np.int64))
        given = self._named(input_ids, attention_mask, inputs)
        logits = self.logits(**given, adapter=adapter)
        prompt = given["input_ids"] if self._encoder is None else self._first_tokens(given)
        self._check_length(prompt.shape[1] + max_new_tokens)
        steps, ended = [prompt], np.zeros(len(prompt), bool)
        scores = next(logits)
        for step in range(max_new_tokens):
            if step < min_new_tokens:
                scores[:, stop] = -np.inf
            if forced := self._forced(prompt.shape[1] + step, last=step + 1 == max_new_tokens):
                scores = np.tile(np.isin(np.arange(scores.shape[1]), forced), (len(prompt), 1))
            chosen = np.where(ended, self.config["model"]["pad_token_id"], scores.argmax(-1))
            steps.append(chosen[:, None])
            ended |= np.isin(chosen, stop)
            if ended.all() or step + 1 == max_new_tokens:
                break
            scores = logits.send(chosen[:, None])
        return np.concatenate(steps, 1)

    def _forced(self, read: int, *, last: bool) -> list[int]:
        """Return the tokens of which the settings force one behind ``read`` tokens of a text."""
        if last and self.forced_end:
            return self.forced_end
        return self.forced_start if read == 1 else []

    def logits(
        self,
        input_ids: Tokens | None = None,
        attention_mask: Tokens | None = None,
        *,
        adapter: str | None = None,
        **inputs: Array,
    ) -> Steps[npt.NDArray[np.float32], Tokens, None]:
        """Yield the logits of the token after those read; each ``send`` hands in the next tokens.

        Args:
            input_ids: Prompts (B, S), int64.
            attention_mask: 1 for a token and 0 for padding (B, S), int64; by default there is no padding.
            adapter: The name of an adapter, as :meth:`generate` takes it.
            inputs: Other inputs, as :meth:`generate` takes them.

        Yields:
            Logits (B, vocabulary), float32.

        Raises:
            InvalidArgumentError: If prompts are missing or empty, or the mask has another shape.
        """
        given = self._named(input_ids, attention_mask, inputs)
        if self._encoder is None:
            factors = {} if adapter is None else self._factors(adapter)
            yield from self._steps(given["input_ids"], given["attention_mask"], given, factors)
            return
        tokens, given = self._first_tokens(given), self._in_blocks(given)
        encoded = self._encoder.run(given, {})
        mask = {"encoder_attention_mask": given["attention_mask"]} if "attention_mask" in given else {}
        yield from self._steps(tokens, np.ones_like(tokens), mask, encoded)

    def _in_blocks(self, given: dict[str, Array]) -> dict[str, Array]:
        """Fill up what the encoder reads to whole blocks, with padding behind it, if it reads nothing else."""
        encoder = self.config["model"]["encoder"]
        if not (block := encoder.get("block")):
            return given
        (name,) = encoder["inputs"].keys() - {"attention_mask"}
        read, mask = given[name], given["attention_mask"]
        length = max(encoder["fewest_blocks"], -(-read.shape[1] // block)) * block
        behind = ((0, 0), (0, length - read.shape[1]))
        fill = self.config["model"]["pad_token_id"] if name == "input_ids" else 0
        read = np.pad(read, (*behind, *((0, 0),) * (read.ndim - 2)), constant_values=fill)
        return {**given, name: read, "attention_mask": np.pad(mask, behind)}

    def _factors(self, adapter: str) -> dict[str, Any]:
        """Return the inputs that a file of the folder holds.

        Raises:
            InvalidArgumentError: If there is no such file.
        """
        known = {path.name.removesuffix(ADAPTER_SUFFIX): path for path in self._folder.glob(f"*{ADAPTER_SUFFIX}")}
        if adapter not in known:
            raise InvalidArgumentError(
                f"The folder has no adapter {adapter!r}; it has {', '.join(sorted(known)) or 'none'}."
            )
        factors: dict[str, Any] = onnxruntime().AdapterFormat.read_adapter(str(known[adapter])).get_parameters()
        return factors

    def _named(
        self, input_ids: Tokens | None, attention_mask: Tokens | None, inputs: Mapping[str, Array]
    ) -> dict[str, Array]:
        """Return what a call gives by the names of inputs, with the mask that it leaves out."""
        wanted = ["input_ids"] if self._encoder is None else list(self.config["model"]["encoder"]["inputs"])
        names = _GENAI_NAMES if self._encoder else {}
        others = {names.get(name, name): np.asarray(value) for name, value in inputs.items()}
        optional = ["decoder_input_ids"] if self._encoder else self.eyes.names if self.eyes else []
        known = {*wanted, *optional}
        if unknown := sorted(others.keys() - known):
            raise InvalidArgumentError(f"The model has no input {', '.join(unknown)}; it has {', '.join(known)}.")
        if "input_ids" in wanted:
            if input_ids is None:
                raise InvalidArgumentError("The model continues a prompt of tokens: pass input_ids.")
            others |= _checked(input_ids, attention_mask)
        elif "attention_mask" in wanted and attention_mask is not None:
            others["attention_mask"] = _mask_of(attention_mask, others)
        elif "input_values" in wanted and attention_mask is not None and not np.all(attention_mask):
            raise InvalidArgumentError(
                "The sounds have padding, which the folder does not read: pass sounds of one length."
            )
        if missing := sorted(set(wanted) - others.keys()):
            raise InvalidArgumentError(f"The model also reads {', '.join(missing)}, which the call does not pass.")
        return others

    def _check_length(self, length: int) -> None:
        if length > (most := self.config["model"]["context_length"]):
            raise InvalidArgumentError(
                f"The prompt and what follows it would have {length} tokens, but the model takes {most} at most: pass "
                "a shorter prompt, or a smaller max_new_tokens."
            )

    def _first_tokens(self, given: Mapping[str, Array]) -> Tokens:
        """Return the tokens (B, T) that a decoder starts with."""
        batch = len(next(value for name, value in given.items() if name != "decoder_input_ids"))
        if "decoder_input_ids" not in given:
            return self.first_tokens(batch)
        tokens = _checked(given["decoder_input_ids"], None)["input_ids"]
        if len(tokens) != batch:
            raise InvalidArgumentError(f"decoder_input_ids has {len(tokens)} rows, and what is encoded has {batch}.")
        start = self.first_tokens(batch)
        if not self.config["model"].get("adds_decoder_start") or (tokens[:, :1] == start).any():
            return tokens
        return np.concatenate([start, tokens], 1)

    def first_tokens(self, batch: int) -> Tokens:
        """Return the token (B, 1) that the decoder of a model with an encoder starts with, int64."""
        return np.full((batch, 1), self.config["model"]["decoder_start_token_id"], np.int64)

    def _steps(
        self, tokens: Tokens, mask: Tokens, given: Mapping[str, Array], encoded: Mapping[str, Any]
    ) -> Steps[npt.NDArray[np.float32], Tokens, None]:
        reading = Reading(self.eyes, tokens, given) if self.eyes else None
        if self.pads_behind or self._decoder.reads_one:
            # What reads one token at each step has to read a token of each row last.
            order = np.argsort(1 - mask if self.pads_behind else mask, axis=1, kind="stable")
            tokens, mask = np.take_along_axis(tokens, order, 1), np.take_along_axis(mask, order, 1)
        states, read = self._decoder.start(len(tokens)), 0
        if self._prompt and self._prompt.serves(tokens.shape[1]):
            padding = ((0, 0), (self._prompt.padding(tokens.shape[1]), 0))
            tokens, mask = np.pad(tokens, padding), np.pad(mask, padding)
            seen, embedded = reading.read(tokens, mask).upto(mask.shape[1]) if reading else ({}, {})
            result = self._prompt.run({"input_ids": tokens, "attention_mask": mask, **seen}, embedded)
            logits, states = self._decoder.read(result)
            read = mask.shape[1]
            tokens = yield logits
            mask = np.concatenate([mask, np.ones_like(tokens)], 1)
        new = reading and reading.read(tokens, mask[:, read:])
        while True:
            # With padding behind, the operator takes several tokens behind a cache for one row only.
            single = self._decoder.reads_one or (self.pads_behind and len(tokens) > 1 and read)
            upto = read + 1 if single else mask.shape[1]
            seen, embedded = new.upto(upto) if new else ({}, {})
            step = {**given, "input_ids": tokens[:, : upto - read], "attention_mask": mask[:, :upto], **seen}
            logits, states = self._decoder.step(step, states, {**encoded, **embedded})
            tokens, read = tokens[:, upto - read :], upto
            if not tokens.size:
                tokens = yield logits
                mask = np.concatenate([mask, np.ones_like(tokens)], 1)
                new = reading and reading.read(tokens, mask[:, read:])


def _several(tokens: int | list[int] | None) -> list[int]:
    """Return tokens that settings give as one, as several, or not."""
    return [] if tokens is None else [tokens] if isinstance(tokens, int) else tokens


def _checked(input_ids: Tokens, attention_mask: Tokens | None) -> dict[str, Tokens]:
    """Return prompts and their mask.

    Raises:
        InvalidArgumentError: If the prompts are empty, or the mask has another shape.
    """
    tokens = _numbers("input_ids", input_ids)
    mask = np.ones_like(tokens) if attention_mask is None else _numbers("attention_mask", attention_mask)
    if tokens.ndim != 2 or not tokens.size or mask.shape != tokens.shape:
        raise InvalidArgumentError(
            f"Prompts are (batch, tokens) with at least one token, and a mask has the same shape; these are "
            f"{tokens.shape} and {mask.shape}."
        )
    if tokens.min() < 0 or not np.isin(mask, (0, 1)).all():
        raise InvalidArgumentError("Tokens are 0 or more, and a mask is 1 for a token and 0 for padding.")
    if not mask.any(1).all():
        raise InvalidArgumentError("A prompt has at least one token, and one of these has padding alone.")
    return {"input_ids": tokens, "attention_mask": mask}


def _mask_of(mask: Array, given: Mapping[str, Array]) -> Tokens:
    """Return which of what is encoded is no padding, as whole numbers.

    Raises:
        InvalidArgumentError: If it is none, or has another shape.
    """
    numbers = np.asarray(mask)
    if any(value.shape[:2] != numbers.shape for value in given.values()) or not np.isin(numbers, (0, 1)).all():
        raise InvalidArgumentError(
            f"A mask is 1 for what is read and 0 for padding behind it, and has the first two axes of "
            f"{', '.join(given)}: its shape is {numbers.shape}."
        )
    return numbers.astype(np.int64)


def _numbers(name: str, given: Any) -> Tokens:
    """Return whole numbers as int64.

    Raises:
        InvalidArgumentError: If they are something else.
    """
    try:
        numbers = np.asarray(given)
    except ValueError as error:  # rows of different lengths
        raise InvalidArgumentError(f"{name} is (batch, tokens), with rows of one length: {error}") from error
    if numbers.size and numbers.dtype.kind not in "iub":
        raise InvalidArgumentError(f"{name} are whole numbers, such as a tokenizer makes; these are {numbers.dtype}.")
    return numbers.astype(np.int64)


def _read(path: Path) -> dict[str, Any]:
    """Return what a file of settings says.

    Raises:
        InvalidArgumentError: If it says nothing.
    """
    try:
        result = json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise InvalidArgumentError(f"{path} cannot be read: {error}. Write the folder anew.") from error
    if not isinstance(result, dict):
        raise InvalidArgumentError(f"{path} holds no settings. Write the folder anew.")
    return result
