"""Models that hear sounds of one length among the tokens of a text (Voxtral, Audio Flamingo 3, Qwen2-Audio)."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Mapping
from typing import Any, ClassVar

import torch

from onnx_fx_export.errors import InvalidArgumentError
from onnx_fx_export.generation.config import SPEECH_FILE
from onnx_fx_export.generation.kinds.base import Part
from onnx_fx_export.generation.kinds.vision_language import Sense, VisionLanguage, body_of, joined

__all__ = ["HEARING", "POSITIONS", "HearingGraph", "HearingLanguage"]

_SOUNDS = "input_features"
# How models call what marks the padding behind sounds.
_MASKS = ("input_features_mask", "feature_attention_mask")
HEARING = Sense(_SOUNDS, "get_audio_features", "audio_token_id", "speech", SPEECH_FILE, "audio_features", "frames")
# How configurations call the positions that a sound has at most, each of them two frames.
POSITIONS = ("max_source_positions", "max_position_embeddings")
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
        known = _parameters(model.forward) & self._taken()
        self.names_of_images = (_SOUNDS, *(name for name in _MASKS if name in known))

    @classmethod
    def is_meant(cls, model: Any) -> bool:
        """Tell whether the parts of a model say that it may be of this kind."""
        return body_of(model, HEARING) is not None and cls.has_parameters(model)

    @classmethod
    def has_parameters(cls, model: Any) -> bool:
        """Tell whether the forward of a model takes what it has to."""
        return cls.parameters <= _parameters(model.forward)

    @classmethod
    def why_not(cls, model: Any) -> str | None:
        """Say why a model is written in another way; None if its sounds are made as here, as a trial tells."""
        try:
            return None if cls(model)._width else "nothing is made of its sounds"
        except InvalidArgumentError as error:
            ears = body_of(model, HEARING)
            others = unread_by(ears) if ears is not None else []
            return f"what makes features of its sounds also reads {', '.join(others)}" if others else str(error)

    def _refused(self, why: str) -> Exception:
        return InvalidArgumentError(why)

    def _taken(self) -> set[str]:
        """Return the parameters of what makes features of sounds."""
        return _parameters(body_of(self.model, HEARING).get_audio_features)

    @functools.cached_property
    def _unread(self) -> list[str]:
        """The parameters of what makes features of sounds that have to be given, and change nothing, as a trial tells.

        MOSS-Transcribe-Diarize takes the mask of the samples that its processor has read, beside that of the frames.
        """
        return unread_by(body_of(self.model, HEARING))

    def _features_by_model(self, images: Mapping[str, torch.Tensor]) -> torch.Tensor:
        """Return what a method of the model makes of sounds (tokens, width), where what it does not read is given."""
        given = {name: torch.zeros(1, 1, dtype=torch.int64) for name in self._unread}
        return super()._features_by_model({**images, **given})

    @property
    def _marks(self) -> str | None:
        """How the model calls what marks the padding behind sounds, if it reads that."""
        return self.names_of_images[1] if self.names_of_images[1:] else None

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
        frames = 2 * next(number for name in POSITIONS if (number := getattr(config, name, None)))
        result = []
        for place in range(count):
            sound = torch.rand(1, config.num_mel_bins, frames, generator=random).to(self.model.dtype)
            upto = int(frames * (1 - _SHORTER[place % len(_SHORTER)]))
            parts = (torch.arange(frames)[None] < upto).long()
            result.append({_SOUNDS: sound} | ({self._marks: parts} if self._marks else {}))
        return result

    def _features_of(self, picture: Mapping[str, torch.Tensor]) -> torch.Tensor:
        return joined(self._graph()(*picture.values())["audio_features"])

    def _graph(self) -> HearingGraph:
        return HearingGraph(self.model, self._marks)

    def config(self) -> dict[str, Any]:
        """Return ``genai_config.json``."""
        config = super().config()
        config["model"]["speech"]["beside"] = self._unread
        return config

    def _vision(self) -> Part:
        (sound,) = self._pictures(1)
        args, names = tuple(sound.values()), list(sound)
        return Part(SPEECH_FILE, self._graph(), args, ({},) * len(args), names, reads_steps=False)


def _parameters(call: Callable[..., object]) -> set[str]:
    return set(inspect.signature(call).parameters)


class HearingGraph(torch.nn.Module):
    """What a model makes of a sound.

    Args:
        model: A model of transformers that hears.
        marks: How it calls what marks the padding behind sounds, if it reads that.
    """

    def __init__(self, model: Any, marks: str | None) -> None:
        super().__init__()
        self._ears, self._marks = body_of(model, HEARING), marks

    def forward(
        self, input_features: torch.Tensor, input_features_mask: torch.Tensor | None = None
    ) -> dict[str, torch.Tensor]:
        """Return ``audio_features`` (tokens, width).

        Args:
            input_features: The sound (1, bands, frames).
            input_features_mask: 1 for its frames and 0 for padding (1, frames), int64, if the model reads it.
        """
        parts: dict[str, torch.Tensor | None] = dict.fromkeys(unread_by(self._ears))
        parts |= {} if self._marks is None else {self._marks: input_features_mask}
        result = self._ears.get_audio_features(input_features, **parts, return_dict=True)
        return {"audio_features": joined(result.pooler_output)}


def unread_by(ears: Any) -> list[str]:
    """Return the parameters of what makes features of sounds that have to be given beside sounds and their masks.

    Args:
        ears: A model of transformers that hears; one with a head may hand all on to the one without.
    """
    body = getattr(ears, "base_model", ears)
    taken = inspect.signature(getattr(body, "get_audio_features", ears.get_audio_features)).parameters.values()
    return [
        parameter.name
        for parameter in taken
        if parameter.default is inspect.Parameter.empty
        and parameter.kind is inspect.Parameter.POSITIONAL_OR_KEYWORD
        and parameter.name not in (_SOUNDS, *_MASKS)
    ]
