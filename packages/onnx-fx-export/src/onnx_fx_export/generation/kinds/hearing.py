"""Models that hear sounds of one length among the tokens of a text (Voxtral, Audio Flamingo 3)."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Mapping
from typing import Any, ClassVar

import torch

from onnx_fx_export.errors import InvalidArgumentError
from onnx_fx_export.generation.config import SPEECH_FILE
from onnx_fx_export.generation.kinds.base import Part
from onnx_fx_export.generation.kinds.vision_language import Sense, VisionLanguage, body_of, joined

__all__ = ["HEARING", "HearingGraph", "HearingLanguage"]

_SOUNDS, _PARTS = "input_features", "input_features_mask"
HEARING = Sense(_SOUNDS, "get_audio_features", "audio_token_id", "speech", SPEECH_FILE, "audio_features")
# How configurations call the positions that a sound has at most, each of them two frames.
_POSITIONS = ("max_source_positions", "max_position_embeddings")
# By so much the sounds of a batch are shorter.
_SHORTER = (0, 0.4, 0.7)


class HearingLanguage(VisionLanguage):
    """Models with a file for sounds, all of which have one length, behind which padding may be marked."""

    sense: ClassVar[Sense] = HEARING
    parameters: ClassVar = {"input_ids", _SOUNDS, "inputs_embeds", "attention_mask"}
    main_inputs: ClassVar = ("input_ids", _SOUNDS)
    reads: tuple[str, ...] = ("text", "sounds")
    _several = len(_SHORTER)

    def __init__(self, model: Any) -> None:
        super().__init__(model)
        taken = inspect.signature(body_of(model, HEARING).get_audio_features).parameters
        masks = [_PARTS] if _PARTS in taken and _PARTS in inspect.signature(model.forward).parameters else []
        self.names_of_images = (_SOUNDS, *masks)

    @classmethod
    def takes(cls, model: Any) -> bool:
        """Tell whether the sounds that a model reads have one length, and their features stand for their tokens."""
        if not cls.parameters <= inspect.signature(model.forward).parameters.keys():
            return False
        try:
            return cls(model)._width > 0
        except InvalidArgumentError:
            return False

    @functools.cached_property
    def _apart(self) -> bool:
        """No, as a look at one sound tells."""
        try:
            with torch.no_grad():
                self._features_of(self._pictures(1)[0])
        except Exception as error:  # whatever a model raises that reads its sounds in another way
            raise self._refused(str(error)) from error
        return False

    def _pictures(self, count: int) -> list[dict[str, torch.Tensor]]:
        """Return random sounds, each by the names of the model's parameters, with a first axis of 1."""
        config, random = self.model.config.audio_config, torch.Generator().manual_seed(0)
        frames = 2 * next(number for name in _POSITIONS if (number := getattr(config, name, None)))
        result = []
        for place in range(count):
            sound = torch.rand(1, config.num_mel_bins, frames, generator=random).to(self.model.dtype)
            upto = int(frames * (1 - _SHORTER[place % len(_SHORTER)]))
            parts = (torch.arange(frames)[None] < upto).long()
            result.append(
                {name: value for name, value in ((_SOUNDS, sound), (_PARTS, parts)) if name in self.names_of_images}
            )
        return result

    def _features_of(self, picture: Mapping[str, torch.Tensor]) -> torch.Tensor:
        features: torch.Tensor = self._graph()(*picture.values())["audio_features"]
        return features

    def _graph(self) -> HearingGraph:
        return HearingGraph(self.model)

    def _vision(self) -> Part:
        (sound,) = self._pictures(1)
        args, names = tuple(sound.values()), list(sound)
        return Part(SPEECH_FILE, self._graph(), args, ({},) * len(args), names, reads_steps=False)


class HearingGraph(torch.nn.Module):
    """What a model makes of a sound.

    Args:
        model: A model of transformers that hears.
    """

    def __init__(self, model: Any) -> None:
        super().__init__()
        self._ears = body_of(model, HEARING)

    def forward(
        self, input_features: torch.Tensor, input_features_mask: torch.Tensor | None = None
    ) -> dict[str, torch.Tensor]:
        """Return ``audio_features`` (tokens, width).

        Args:
            input_features: The sound (1, bands, frames).
            input_features_mask: 1 for its frames and 0 for padding (1, frames), int64, if the model reads it.
        """
        parts = {} if input_features_mask is None else {_PARTS: input_features_mask}
        result = self._ears.get_audio_features(input_features, **parts, return_dict=True)
        return {"audio_features": joined(result.pooler_output)}
