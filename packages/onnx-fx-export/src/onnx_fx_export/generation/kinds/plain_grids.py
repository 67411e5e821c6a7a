"""Models that read images as patches on grids, and count positions as in a text (EXAONE 4.5)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

import numpy.typing as npt
import torch

from onnx_fx_export.generation.kinds.base import Part, Tokens
from onnx_fx_export.generation.kinds.grids import GridVisionLanguage
from onnx_fx_export.generation.kinds.vision_language import VisionLanguage

__all__ = ["PlainGridVisionLanguage"]

_GRIDS, _TYPES, _POSITIONS = "image_grid_thw", "mm_token_type_ids", "position_ids"


class PlainGridVisionLanguage(GridVisionLanguage):
    """Models whose images have any size, and whose tokens follow each other whatever they stand for."""

    parameters: ClassVar = VisionLanguage.parameters | {_GRIDS}

    def __init__(self, model: Any) -> None:
        super().__init__(model)
        self.genai_type = None

    def counts_padding(self, length: int) -> bool:
        """Tell whether padding between the tokens of a text of ``length`` tokens changes what follows."""
        return VisionLanguage.counts_padding(self, length)

    def _logits_of(self, embeds: torch.Tensor, trial: Mapping[str, torch.Tensor]) -> torch.Tensor:
        return VisionLanguage._logits_of(self, embeds, trial)

    def _decoder(self, decoder: Part, *, last_logits: bool) -> Part:
        return VisionLanguage._decoder(self, decoder, last_logits=last_logits)

    def config(self) -> dict[str, Any]:
        """Return ``genai_config.json``."""
        config = super().config()
        config["model"]["type"] = self.model.config.model_type
        del config["model"]["decoder"]["inputs"][_POSITIONS]
        return config

    def extended(self, row: Mapping[str, npt.NDArray[Any]], tokens: Tokens) -> dict[str, torch.Tensor]:
        """Return prompt and tokens in one, with the images."""
        inputs = super().extended(row, tokens)
        del inputs[_TYPES]
        return inputs
