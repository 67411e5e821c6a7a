"""Compares what an engine generates with the model's own ``generate``, token for token."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

from onnx_fx_export.errors import RuntimeSupportError, VerificationError
from onnx_fx_export.generation.config import context_length, stop_tokens
from onnx_fx_export.generation.decoder import LayerCache
from onnx_fx_export.generation.generator import Generator, Tokens
from onnx_fx_export.generation.requirements import genai, transformers

__all__ = ["Compared", "counts_padding", "verify_folder"]

_NEW = 64
_LENGTHS = (1, 7, 100)
_PADDED = (3, 11, 6)
# Engine and PyTorch add up in other orders: so much of the largest logit may differ, by dtype.
_TOLERANCE = {torch.float32: 1e-3, torch.float16: 3e-2}

Engine = Callable[[Tokens, Tokens, int], Tokens]


@dataclasses.dataclass(frozen=True)
class Compared:
    """One batch of prompts that engine and model have continued alike.

    Attributes:
        prompts: How many tokens each prompt of the batch has.
        tokens: How many tokens were generated for each of them.
        ties: How often two tokens were as likely as rounding can tell, and the engine took the other one.
    """

    prompts: tuple[int, ...]
    tokens: int
    ties: int


def verify_folder(
    model: Any, folder: Path, engine: str, layers: Sequence[LayerCache], report: Callable[[str], None]
) -> list[Compared]:
    """Generate through the engine and compare with the model.

    Args:
        model: The model of transformers that the folder was written from.
        folder: The folder.
        engine: ``"genai"`` or ``"onnxruntime"``.
        layers: What the model's cache holds.
        report: Called with what is being compared.

    Returns:
        What was compared.

    Raises:
        VerificationError: If the logits of a prompt or one generated token differ.
    """
    generator, most = Generator(folder), context_length(model)
    run = _genai(folder) if engine == "genai" else _onnxruntime(generator)
    batch = tuple(min(length, most - 1) for length in _PADDED)
    if engine == "genai" and not generator.pads_behind and counts_padding(layers, max(batch) + _NEW):
        batch = (max(batch),) * len(batch)
    batches = [(length,) for length in _LENGTHS if length < most] + [batch]
    result = []
    for lengths_of_batch in batches:
        report(f"prompts of {', '.join(map(str, lengths_of_batch))} tokens")
        new = min(_NEW, most - max(lengths_of_batch))
        tokens, mask = _prompts(model, lengths_of_batch)
        comparison = _Comparison(model, new)
        comparison.check_logits(generator, tokens, mask)
        generated = run(tokens, mask, new)
        ties = sum(
            comparison.check_row(tokens[row][mask[row] == 1], generated[row, tokens.shape[1] :])
            for row in range(len(tokens))
        )
        result.append(Compared(lengths_of_batch, new, ties))
    return result


def counts_padding(layers: Sequence[LayerCache], length: int) -> bool:
    """Tell whether a window is so short that padding between the tokens of a text of ``length`` tokens counts in it."""
    return any(layer.window is not None and layer.window < length for layer in layers)


def _prompts(model: Any, lengths: tuple[int, ...]) -> tuple[Tokens, Tokens]:
    """Return prompts of these lengths, padded on the left, without tokens that mean something to an engine."""
    stop, pad = stop_tokens(model)
    size = model.config.get_text_config().vocab_size
    usual = np.setdiff1d(np.arange(size), [*stop, pad])
    random, longest = np.random.default_rng(0), max(lengths)
    tokens = np.full((len(lengths), longest), pad, np.int64)
    mask = np.zeros_like(tokens)
    for row, length in enumerate(lengths):
        tokens[row, longest - length :] = random.choice(usual, length)
        mask[row, longest - length :] = 1
    return tokens, mask


@dataclasses.dataclass(frozen=True)
class _Comparison:
    """What a model itself makes of prompts."""

    model: Any
    new: int

    def check_logits(self, generator: Generator, tokens: Tokens, mask: Tokens) -> None:
        """Compare the logits after the prompts, row by row without padding.

        Raises:
            VerificationError: If they differ.
        """
        found = next(generator.logits(tokens, mask))
        for row, (ids, kept) in enumerate(zip(tokens, mask, strict=True)):
            wanted = self._logits(ids[kept == 1])
            difference, most = np.abs(found[row] - wanted).max(), self._tolerance(wanted)
            if not difference <= most:
                raise VerificationError(
                    f"After a prompt of {kept.sum()} tokens{' in a padded batch' if len(tokens) > 1 else ''}, the "
                    f"logits differ from the model's by {difference:.3g}, where rounding explains {most:.3g}."
                )

    def check_row(self, prompt: Tokens, found: Tokens) -> int:
        """Compare what follows a prompt; return how many ties there were.

        Raises:
            VerificationError: If a token differs that is no tie.
        """
        ties, start = 0, 0
        while start < self.new:
            read = np.concatenate([prompt, found[:start]])
            wanted = self._generate(read, self.new - start)
            differ = np.flatnonzero(wanted != found[start : self.new])
            if len(wanted) != len(found[start : self.new]) or not differ.size:
                break
            place = int(differ[0])
            logits = self._logits(np.concatenate([read, wanted[:place]]))
            one, other = int(wanted[place]), int(found[start + place])
            if not abs(logits[one] - logits[other]) <= self._tolerance(logits):
                raise VerificationError(
                    f"Token {start + place} after a prompt of {len(prompt)} tokens is {other}, and the model's own "
                    f"generate gives {one}; their logits are {logits[other]:.4g} and {logits[one]:.4g}."
                )
            ties, start = ties + 1, start + place + 1
        return ties

    def _generate(self, tokens: Tokens, new: int) -> Tokens:
        stop, pad = stop_tokens(self.model)
        settings = transformers().GenerationConfig(
            do_sample=False, max_new_tokens=new, min_new_tokens=new, eos_token_id=stop or None, pad_token_id=pad,
            use_cache=True,
        )  # fmt: skip
        ids = torch.from_numpy(tokens)[None]
        with torch.no_grad():
            result = self.model.generate(ids, attention_mask=torch.ones_like(ids), generation_config=settings)
        answer: Tokens = result[0, ids.shape[1] :].numpy()
        return answer

    def _logits(self, tokens: Tokens) -> np.ndarray[Any, np.dtype[np.float32]]:
        ids = torch.from_numpy(tokens)[None]
        with torch.no_grad():
            result = self.model(input_ids=ids, attention_mask=torch.ones_like(ids)).logits
        answer: np.ndarray[Any, np.dtype[np.float32]] = result[0, -1].float().numpy()
        return answer

    def _tolerance(self, logits: np.ndarray[Any, np.dtype[np.float32]]) -> float:
        return float(_TOLERANCE[self.model.dtype] * np.abs(logits).max())


def _onnxruntime(generator: Generator) -> Engine:
    return lambda tokens, mask, new: generator.generate(tokens, mask, max_new_tokens=new, min_new_tokens=new)


def _genai(folder: Path) -> Engine:
    og = genai()
    try:
        model = og.Model(str(folder))
    except Exception as error:  # whatever the engine raises
        raise RuntimeSupportError(f"ONNX Runtime GenAI cannot load the folder: {error}") from error

    def run(tokens: Tokens, mask: Tokens, new: int) -> Tokens:
        """Generate with ONNX Runtime GenAI, which pads on the right and knows padding by its token."""
        parameters = og.GeneratorParams(model)
        total = tokens.shape[1] + new
        parameters.set_search_options(
            do_sample=False, num_beams=1, repetition_penalty=1.0, no_repeat_ngram_size=0,
            max_length=total, min_length=total, batch_size=len(tokens),
        )  # fmt: skip
        on_the_right = np.take_along_axis(tokens, np.argsort(1 - mask, axis=1, kind="stable"), 1)
        try:
            generator = og.Generator(model, parameters)
            generator.append_tokens(on_the_right.astype(np.int32))
            while not generator.is_done():
                generator.generate_next_token()
        except Exception as error:  # whatever the engine raises
            raise RuntimeSupportError(f"ONNX Runtime GenAI cannot run the folder: {error}") from error
        return np.stack([generator.get_sequence(row) for row in range(len(tokens))]).astype(np.int64)

    return run
