"""Models that hear the sounds of a batch together, of any length (Granite Speech, Fun-ASR-Nano)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

from onnx_fx_export.generation.config import SPEECH_BLOCKS_FILE, SPEECH_FILE
from onnx_fx_export.generation.kinds.base import Part
from onnx_fx_export.generation.kinds.hearing import POSITIONS, HearingGraph, HearingLanguage

__all__ = ["OpenHearingLanguage"]

_SOUNDS, _CHOSEN = "input_features", "input_features_mask"
# How models call the configuration of what encodes sounds, and how that calls the numbers of each frame.
_ENCODERS, _BANDS = ("encoder_config", "audio_config"), ("input_dim", "input_size", "num_mel_bins")
# How configurations call the frames that see each other; encoders fill up the last ones in another way than the others.
_BLOCK = "context_size"
# Frames of the sounds that are tried, in blocks or by this number.
_TRIED, _UNIT = (2.4, 3.0, 1.3), 10
_MOST = 1 << 16
# Of sounds that one graph reads, in frames.
_LENGTHS: tuple[int, ...] = (1, 2, 3, 40, 1001)


class OpenHearingLanguage(HearingLanguage):
    """Models whose sounds have any length. What they make of one may depend on the padding behind it in a batch.

    Encoders that divide sounds into blocks of frames have two graphs: one for sounds of whole blocks, and one for the
    others. Both read at least two blocks.
    """

    @property
    def _encoder(self) -> Any:
        """The configuration of what encodes sounds."""
        return next(found for name in _ENCODERS if (found := getattr(self.model.config, name, None)) is not None)

    @property
    def _block(self) -> int:
        """How many frames see each other, or 0 if all of them do."""
        return int(getattr(self._encoder, _BLOCK, 0))

    def _pictures(self, count: int) -> list[dict[str, torch.Tensor]]:
        """Return random sounds, each by the names of the model's parameters, with a first axis of 1."""
        unit = self._block or _UNIT
        return self._sounds([int(_TRIED[place % len(_TRIED)] * unit) for place in range(count)])

    def _together(self, count: int) -> list[dict[str, torch.Tensor]]:
        """Return random sounds of one length, so that there is no padding behind any; several have whole blocks."""
        return self._sounds([int(_TRIED[count > 1] * (self._block or _UNIT))] * count)

    def _sounds(self, lengths: list[int]) -> list[dict[str, torch.Tensor]]:
        bands = next(number for name in _BANDS if isinstance(number := getattr(self._encoder, name, None), int))
        random, result = torch.Generator().manual_seed(0), []
        for frames in lengths:
            sound = torch.rand(1, frames, bands, generator=random).to(self.model.dtype)
            parts = torch.ones(1, frames, dtype=torch.int64)
            result.append({_SOUNDS: sound} | ({self._marks: parts} if self._marks else {}))
        return result

    def _graph(self) -> HearingGraph:
        return OpenHearingGraph(self.model, self._marks)

    def parts(self, *, last_logits: bool) -> list[Part]:
        """Return the graphs, with one for sounds of whole blocks if the encoder divides them into blocks."""
        whole: list[Part] = []
        if block := self._block:
            blocks = block * torch.export.Dim("block_count", max=_MOST)
            sizes = [(1, 2), (1, 3), (1, 40), (2, 1), (2, 2), (2, 7), (5, 1), (7, 12)]
            named = [{"sound_count": sounds, "block_count": count} for sounds, count in sizes]
            whole = [self._part(SPEECH_BLOCKS_FILE, 3 * block, blocks, named)]
        return [*whole, *super().parts(last_logits=last_logits)]

    def _vision(self) -> Part:
        block = self._block
        alone = several = _LENGTHS
        if block:  # sounds of whole blocks have their own graph, and one sound of one block is read twice
            alone = (block + 1, 2 * block - 1, 2 * block + 1, 9 * block - 1)
            several = (1, block - 1, block + 1, 3 * block - 1)
        sizes = [(1, frames) for frames in alone] + [(count, frames) for count in (2, 5) for frames in several]
        most = min((size for name in POSITIONS if (size := getattr(self._encoder, name, None))), default=_MOST)
        named = [
            {"sound_count": sounds, "frame_count": frames}
            for sounds, frames in sizes
            if 0 < frames < most and (not block or frames % block)
        ]
        return self._part(SPEECH_FILE, int(_TRIED[0] * (block or _UNIT)), "frame_count", named)

    def _part(self, file: str, frames: int, length: Any, sizes: list[dict[str, int]]) -> Part:
        sounds = self._sounds([frames] * 2)
        together = {name: torch.cat([sound[name] for sound in sounds]) for name in sounds[0]}
        shapes = ({0: "sound_count", 1: length},) * len(together)
        return Part(
            file, self._graph(), tuple(together.values()), shapes, list(together), reads_steps=False, sizes=tuple(sizes)
        )

    def config(self) -> dict[str, Any]:
        """Return ``genai_config.json``."""
        config = super().config()
        blocks = {"block": self._block, "filename": SPEECH_BLOCKS_FILE} if self._block else {}
        config["model"]["speech"]["together"] = blocks
        config["model"]["speech"]["beside"] += [] if self._marks else [_CHOSEN]
        return config


class OpenHearingGraph(HearingGraph):
    """What a model makes of the sounds of a batch."""

    def forward(
        self, input_features: torch.Tensor, input_features_mask: torch.Tensor | None = None
    ) -> dict[str, torch.Tensor]:
        """Return ``audio_features`` (N, tokens, width), or (tokens, width) where the model leaves out those of padding.

        Args:
            input_features: The sounds (N, frames, bands).
            input_features_mask: 1 for their frames and 0 for padding (N, frames), int64, if the model reads it.
        """
        parts: Mapping[str, Any] = {} if self._marks is None else {self._marks: input_features_mask}
        made = self._ears.get_audio_features(input_features, **parts, return_dict=True).pooler_output
        return {"audio_features": made}
