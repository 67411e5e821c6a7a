"""Compares what an engine generates with the model's own ``generate``, token for token."""

from __future__ import annotations

import contextlib
import dataclasses
import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from onnx_fx_export.errors import VerificationError
from onnx_fx_export.generation.adapters import active_adapter
from onnx_fx_export.generation.engines import engine_of
from onnx_fx_export.generation.generator import Generator, Tokens
from onnx_fx_export.generation.kinds import Batch, Kind
from onnx_fx_export.generation.rounding import other_roundings

__all__ = ["Compared", "verify_folder"]

_NEW = 64
_LENGTHS = (1, 7, 100)
_PADDED = (3, 11, 6)
# Engine and PyTorch add up in other orders: so much of the largest logit may differ, by dtype.
_NONE = np.zeros(0, np.int64)
_TOLERANCE = {torch.float32: 1e-3, torch.float16: 3e-2}


@dataclasses.dataclass(frozen=True)
class Compared:
    """One batch of prompts that engine and model have continued alike.

    Attributes:
        prompts: How long each prompt of the batch is.
        tokens: How many tokens were generated for each of them.
        ties: How often two tokens were as likely as rounding can tell, and the engine took the other one.
        unit: What the lengths of prompts count.
        adapter: The adapter that both used, if one.
    """

    prompts: tuple[int, ...]
    tokens: int
    ties: int
    unit: str = "tokens"
    adapter: str | None = None


def verify_folder(
    kind: Kind, folder: Path, engine: str, report: Callable[[str], None], adapters: Sequence[str] = ()
) -> list[Compared]:
    """Generate through the engine and compare with the model.

    Args:
        kind: The model that the folder was written from.
        folder: The folder.
        engine: ``"genai"`` or ``"onnxruntime"``.
        report: Called with what is being compared.
        adapters: Names of the adapters that are files of the folder; without any the model is compared as it is.

    Returns:
        What was compared.

    Raises:
        VerificationError: If the logits of a prompt or one generated token differ.
    """
    generator, most = Generator(folder), kind.context_length()
    generator.forced_start = generator.forced_end = []  # as in the model's own search without its settings
    run = engine_of(engine, folder, generator)
    batch = tuple(min(length, most - 1) for length in _PADDED)
    if kind.reads_padding or (engine == "genai" and _moves(kind, max(batch) + _NEW, behind=generator.pads_behind)):
        batch = (max(batch),) * len(batch)
    alone: list[tuple[int, ...]] = [(length,) for length in _LENGTHS if length < most]
    alone += [lengths for lengths in kind.longer() if max(lengths) < most]
    result: list[Compared] = []
    for adapter in (None, *adapters):
        with active_adapter(kind.model, adapter) if adapters else contextlib.nullcontext():
            # What an adapter changes does not depend on how long prompts are.
            for lengths in [*(alone if adapter is None else alone[1:2]), batch]:
                prompts = kind.batch(lengths)
                new = min(_NEW, most - kind.prefix(prompts))
                found = Compared(prompts.lengths, new, 0, kind.unit, adapter)
                if found in result:
                    continue
                using = "" if adapter is None else f" with {adapter}"
                report(f"prompts of {', '.join(map(str, found.prompts))} {kind.unit}{using}")
                comparison = _Comparison(kind, new, adapter)
                comparison.check_logits(generator, prompts)
                generated = run(prompts, kind.prefix(prompts), new, adapter)
                rows = zip(prompts.rows, prompts.lengths, generated, strict=True)
                ties = sum(comparison.check_row(row, length, tokens) for row, length, tokens in rows)
                result.append(dataclasses.replace(found, ties=ties))
    return result


def _moves(kind: Kind, length: int, *, behind: bool) -> bool:
    """Tell whether padding behind the prompts of a batch changes what follows them.

    Args:
        kind: The model.
        length: The most tokens of a text.
        behind: Whether attention sees none of it, windows included.
    """
    return kind.moved_by_padding if behind else kind.counts_padding(length)


@dataclasses.dataclass(frozen=True)
class _Comparison:
    """What a model itself makes of prompts."""

    kind: Kind
    new: int
    adapter: str | None

    def check_logits(self, generator: Generator, batch: Batch) -> None:
        """Compare the logits after the prompts, row by row without padding.

        Raises:
            VerificationError: If they differ.
        """
        found = next(generator.logits(**batch.inputs, adapter=self.adapter))
        for own, row, length in zip(found, batch.rows, batch.lengths, strict=True):
            wanted = self._logits(row, _NONE)
            if not np.isfinite(wanted).all():
                raise VerificationError(
                    f"After a prompt of {length} {self.kind.unit} the model's own logits are not all finite: there is "
                    "nothing to compare with. Look at its weights."
                )
            difference, most = float(np.abs(own - wanted).max()), self._usual(wanted)
            if difference <= most or any(np.abs(own - run).max() <= most for run in self._roundings(row, _NONE)):
                continue
            raise VerificationError(
                f"After a prompt of {length} {self.kind.unit}{' in a padded batch' if len(found) > 1 else ''}, the "
                f"logits differ from the model's by {difference:.3g}, where rounding explains {most:.3g}."
            )

    def check_row(self, prompt: Mapping[str, npt.NDArray[Any]], length: int, found: Tokens) -> int:
        """Compare what follows a prompt; return how many ties there were.

        Raises:
            VerificationError: If a token differs that is no tie, or there are fewer.
        """
        if len(found) != self.new:
            raise VerificationError(
                f"After a prompt of {length} {self.kind.unit} the engine generated {len(found)} tokens of {self.new}."
            )
        ties, start = 0, 0
        while start < self.new:
            read = found[:start]
            wanted = self.kind.generate(self.kind.extended(prompt, read), self.new - start)
            differ = np.flatnonzero(wanted != found[start:])
            if not differ.size:
                break
            place = int(differ[0])
            before = np.concatenate([read, wanted[:place]])
            one, other = int(wanted[place]), int(found[start + place])
            if not all(self._may_follow(token, prompt, before) for token in (one, other)):
                logits = self._logits(prompt, before)
                raise VerificationError(
                    f"Token {start + place} after a prompt of {length} {self.kind.unit} is {other}, and the model's "
                    f"own generate gives {one}; their logits are {logits[other]:.4g} and {logits[one]:.4g}."
                )
            ties, start = ties + 1, start + place + 1
        return ties

    def _logits(self, prompt: Mapping[str, npt.NDArray[Any]], tokens: Tokens) -> npt.NDArray[np.float32]:
        answer: npt.NDArray[np.float32] = self.kind.logits(self.kind.extended(prompt, tokens))[-1].numpy()
        return answer

    def _usual(self, logits: npt.NDArray[np.float32]) -> float:
        """Return how much logits differ that are added up in another order."""
        return float(_TOLERANCE[next(self.kind.model.parameters()).dtype] * np.abs(logits).max())

    def _roundings(self, prompt: Mapping[str, npt.NDArray[Any]], tokens: Tokens) -> Iterator[npt.NDArray[np.float32]]:
        """Yield what the model's logits are as well where rounding decides what it chooses."""
        return other_roundings(self.kind, self.kind.extended(prompt, tokens))

    def _may_follow(self, token: int, prompt: Mapping[str, npt.NDArray[Any]], before: Tokens) -> bool:
        """Tell whether rounding lets a token be the most likely one, of those that do not end the text."""
        logits, stop = self._logits(prompt, before), self.kind.stop
        most = self._usual(logits)
        runs = itertools.chain([logits], self._roundings(prompt, before))
        return any(np.delete(run, stop).max() - run[token] <= most for run in runs)
