"""Models that hear sounds of any length among the tokens of a text, and attend to them in windows (Qwen3-ASR)."""

from __future__ import annotations

from typing import Any, ClassVar

import torch

from onnx_fx_export.generation.config import SPEECH_FILE
from onnx_fx_export.generation.kinds.base import Part
from onnx_fx_export.generation.kinds.hearing import HEARING, HearingGraph, HearingLanguage
from onnx_fx_export.generation.kinds.patches import attention_by_segments
from onnx_fx_export.generation.kinds.vision_language import body_of, joined

__all__ = ["WindowedHearingLanguage"]

_SOUNDS, _PARTS = "input_features", "input_features_mask"
# Half of the frames that are read together, and how many of them see each other.
_HALF, _SEEN = "n_window", "n_window_infer"
# Frames of the sounds that are tried, in blocks.
_TRIED = (2.6, 1.0, 3.3)
# A capture takes a sound of one block for another case; it has padding behind it.
_FEWEST, _MOST = 2, 1 << 16
# Layers halve the number of frames so often.
_HALVINGS = 3


class WindowedHearingLanguage(HearingLanguage):
    """Models whose sounds have any length. Their graph reads one of them, without most of the padding of a batch."""

    parameters: ClassVar = HearingLanguage.parameters | {_PARTS}

    @classmethod
    def is_meant(cls, model: Any) -> bool:
        """Tell whether the parts of a model say that it may be of this kind."""
        config = getattr(model.config, "audio_config", None)
        return all(isinstance(getattr(config, name, None), int) for name in (_HALF, _SEEN)) and super().is_meant(model)

    @property
    def _block(self) -> int:
        """How many frames are read together."""
        return 2 * int(getattr(self.model.config.audio_config, _HALF))

    def _pictures(self, count: int) -> list[dict[str, torch.Tensor]]:
        """Return random sounds, each by the names of the model's parameters, with a first axis of 1."""
        bands, random, result = self.model.config.audio_config.num_mel_bins, torch.Generator().manual_seed(0), []
        for place in range(count):
            blocks = _TRIED[place % len(_TRIED)]
            frames = max(-int(-blocks // 1), _FEWEST) * self._block
            sound = torch.rand(1, bands, frames, generator=random).to(self.model.dtype)
            parts = (torch.arange(frames)[None] < int(blocks * self._block)).long()
            result.append({_SOUNDS: sound, _PARTS: parts})
        return result

    def _graph(self) -> HearingGraph:
        config = self.model.config.audio_config
        tokens = self._block
        for _ in range(_HALVINGS):
            tokens = (tokens - 1) // 2 + 1
        return WindowedHearingGraph(self.model, tokens * (getattr(config, _SEEN) // self._block))

    def _vision(self) -> Part:
        (sound,) = self._pictures(1)
        frames = self._block * torch.export.Dim("block_count", min=_FEWEST, max=_MOST)
        shapes = ({2: frames}, {1: frames})
        return Part(SPEECH_FILE, self._graph(), tuple(sound.values()), shapes, list(sound), reads_steps=False)

    def config(self) -> dict[str, Any]:
        """Return ``genai_config.json``."""
        config = super().config()
        config["model"]["speech"] |= {"block": self._block, "fewest_blocks": _FEWEST}
        return config


class WindowedHearingGraph(HearingGraph):
    """What a model makes of a sound of any length.

    Args:
        model: A model of transformers that hears.
        window: How many of what is made of frames see each other.
    """

    def __init__(self, model: Any, window: int) -> None:
        super().__init__(model, _PARTS)
        self._tower = body_of(model, HEARING).get_encoder(modality="audio")
        self._window = window

    def forward(
        self, input_features: torch.Tensor, input_features_mask: torch.Tensor | None = None
    ) -> dict[str, torch.Tensor]:
        """Return ``audio_features`` (tokens, width).

        Args:
            input_features: The sound (1, bands, frames), whole blocks of frames.
            input_features_mask: 1 for its frames and 0 for padding behind them (1, frames), int64.
        """
        bounds = {"cu_seqlens": torch.tensor(self._window), "max_seqlen": 1}
        with attention_by_segments(self._tower.config):
            result = self._ears.get_audio_features(input_features, input_features_mask, return_dict=True, **bounds)
        return {"audio_features": joined(result.pooler_output)}
