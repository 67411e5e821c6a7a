"""Models whose forward alone hears, by an encoder of sounds and a projector behind it (Qwen2-Audio)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

import torch

from onnx_fx_export.generation.kinds.hearing import HearingGraph, HearingLanguage
from onnx_fx_export.generation.requirements import transformers

__all__ = ["ProjectedHearingLanguage"]

_MASK = "feature_attention_mask"
_PROJECTOR, _TOWER, _LENGTHS = "multi_modal_projector", "audio_tower", "_get_feat_extract_output_lengths"


class ProjectedHearingLanguage(HearingLanguage):
    """Models with a file for sounds of one length, behind which padding is marked."""

    parameters: ClassVar = HearingLanguage.parameters | {_MASK}

    @classmethod
    def is_meant(cls, model: Any) -> bool:
        """Tell whether the parts of a model say that it may be of this kind."""
        body = getattr(model, "base_model", None)
        parts = hasattr(body, _PROJECTOR) and hasattr(getattr(body, _TOWER, None), _LENGTHS)
        return parts and cls.has_parameters(model)

    def _taken(self) -> set[str]:
        return {_MASK}

    @property
    def _unread(self) -> list[str]:
        return []

    def _graph(self) -> HearingGraph:
        return ProjectedHearingGraph(self.model)

    def _features_by_model(self, images: Mapping[str, torch.Tensor]) -> torch.Tensor:
        """Return what the graph makes of a sound: the model has no method for it, and its logits tell more."""
        return self._features_of(images)


class ProjectedHearingGraph(HearingGraph):
    """What the forward of a model makes of a sound.

    Args:
        model: A model of transformers that hears.
    """

    def __init__(self, model: Any) -> None:
        super().__init__(model, _MASK)
        self._tower, self._projector = getattr(model.base_model, _TOWER), getattr(model.base_model, _PROJECTOR)

    def forward(
        self, input_features: torch.Tensor, input_features_mask: torch.Tensor | None = None
    ) -> dict[str, torch.Tensor]:
        """Return ``audio_features`` (tokens, width).

        Args:
            input_features: The sound (1, bands, frames).
            input_features_mask: 1 for its frames and 0 for padding (1, frames), int64.
        """
        assert input_features_mask is not None
        read, made = getattr(self._tower, _LENGTHS)(input_features_mask.sum(-1))
        seen = torch.arange(input_features.shape[2] // 2)[None] < read[:, None]
        like = torch.zeros(*seen.shape, 1, dtype=input_features.dtype)
        mask = transformers().masking_utils.create_bidirectional_mask(
            config=self._tower.config, inputs_embeds=like, attention_mask=seen.long()
        )
        features = self._projector(self._tower(input_features, attention_mask=mask).last_hidden_state)
        return {"audio_features": features[torch.arange(features.shape[1])[None] < made[:, None]]}
