"""Models that read images among the tokens of a text, and whose layers keep states of one size (Qwen3.5, LFM2-VL)."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any, ClassVar

import torch

from onnx_fx_export.generation.caches import Cache
from onnx_fx_export.generation.kinds.base import Kind, Part
from onnx_fx_export.generation.kinds.grids import GridVisionLanguage, placed
from onnx_fx_export.generation.kinds.recurrent import PROMPT_FILE, PromptGraph, Recurrent, StepGraph
from onnx_fx_export.generation.kinds.shaped import ShapedVisionLanguage
from onnx_fx_export.generation.kinds.vision_language import VisionLanguage

__all__ = ["RecurrentGridVisionLanguage", "RecurrentShapedVisionLanguage"]


class _RecurrentSenses(VisionLanguage, Recurrent):
    """Files for images and embeddings, one for prompts of these, and one for steps."""

    genai_type: str | None = None
    prompt_graph: ClassVar[Any]
    step_graph: ClassVar[Any]

    def __init__(self, model: Any) -> None:
        super().__init__(model)
        self.genai_type = None

    def for_genai(self) -> Kind:
        """Return the same: ONNX Runtime GenAI runs no such model."""
        return self

    def _logits_of(self, embeds: torch.Tensor, trial: Mapping[str, torch.Tensor]) -> torch.Tensor:
        graph, beside, logits, states = self.step_graph(self.model), self._beside(trial), [], self._no_states()
        for place in range(embeds.shape[1]):
            now = [each[..., place : place + 1] for each in beside]
            mask = trial["attention_mask"][:, : place + 1]
            result = graph(embeds[:, place : place + 1], mask, *now, states)
            logits.append(result["logits"])
            states = result["present"]
        return torch.cat(logits, 1)

    def _beside(self, trial: Mapping[str, torch.Tensor]) -> list[torch.Tensor]:
        """Return what graphs read of a trial beside embeddings, the last axis of which is that of the tokens."""
        del trial
        return []

    def _embedded(self, tokens: torch.Tensor, text: Any) -> tuple[list[torch.Tensor], list[Any]]:
        """Return an example of embeddings for tokens (B, S), and of what is read beside them, and their axes."""
        del text
        return [torch.zeros(*tokens.shape, self._width, dtype=self.model.dtype)], []

    def _decoder(self, decoder: Part, *, last_logits: bool) -> Part:
        del last_logits  # a step reads one token
        graph = self.prompt_graph if decoder.file == PROMPT_FILE else self.step_graph
        return self._part(decoder, graph(self.model))

    def _part(self, part: Part, graph: torch.nn.Module) -> Part:
        """Return a part that reads embeddings where it reads tokens."""
        tokens, mask, *states = part.args
        text, total, *kept = part.dynamic_shapes
        (embeds, *beside), axes = self._embedded(tokens, text)
        args, shapes = (embeds, mask, *beside, *states), (text, total, *axes, *kept)
        return dataclasses.replace(part, module=graph, args=args, dynamic_shapes=shapes)

    def config(self) -> dict[str, Any]:
        """Return ``genai_config.json``."""
        config = super().config()
        config["model"]["type"] = self.model.config.model_type
        return config


class EmbeddedPromptGraph(PromptGraph):
    """The model's own way to read a prompt of embeddings."""

    def forward(self, inputs_embeds: torch.Tensor, attention_mask: torch.Tensor) -> dict[str, torch.Tensor | Cache]:
        """Return what :meth:`read` makes of embeddings (B, S, width), whole chunks of them."""
        return self.read(attention_mask, inputs_embeds=inputs_embeds)


class EmbeddedStepGraph(StepGraph):
    """One step of a model on an embedding."""

    def forward(
        self, inputs_embeds: torch.Tensor, attention_mask: torch.Tensor, past_key_values: Cache
    ) -> dict[str, torch.Tensor | Cache]:
        """Return what :meth:`read` makes of an embedding of each row (B, 1, width)."""
        return self.read(attention_mask, past_key_values, inputs_embeds=inputs_embeds)


class RecurrentShapedVisionLanguage(_RecurrentSenses, ShapedVisionLanguage):
    """Models like LFM2-VL."""

    parameters: ClassVar = ShapedVisionLanguage.parameters - {"use_cache"}
    prompt_graph: ClassVar = EmbeddedPromptGraph
    step_graph: ClassVar = EmbeddedStepGraph


class PlacedPromptGraph(PromptGraph):
    """The model's own way to read a prompt of embeddings, each with a place in three directions."""

    def forward(  # type: ignore[override]
        self, inputs_embeds: torch.Tensor, attention_mask: torch.Tensor, position_ids: torch.Tensor
    ) -> dict[str, torch.Tensor | Cache]:
        """Return what :meth:`read` makes of embeddings (B, S, width), whole chunks of them.

        Args:
            inputs_embeds: The embeddings.
            attention_mask: 1 for a token and 0 for padding on the left (B, S), int64.
            position_ids: Their places in time, height and width (3, B, S), int64.
        """
        with placed(self.model, inputs_embeds, position_ids) as given:
            return self.read(attention_mask, **given)


class PlacedStepGraph(StepGraph):
    """One step of a model on an embedding, which has a place in three directions."""

    def forward(  # type: ignore[override]
        self,
        inputs_embeds: torch.Tensor,
        attention_mask: torch.Tensor,
        position_ids: torch.Tensor,
        past_key_values: Cache,
    ) -> dict[str, torch.Tensor | Cache]:
        """Return what :meth:`read` makes of an embedding of each row (B, 1, width).

        Args:
            inputs_embeds: The embeddings.
            attention_mask: 1 for a token and 0 for padding (B, P + 1), int64.
            position_ids: Their places in time, height and width (3, B, 1), int64.
            past_key_values: The states of each layer.
        """
        with placed(self.model, inputs_embeds, position_ids) as given:
            return self.read(attention_mask, past_key_values, **given)


class RecurrentGridVisionLanguage(_RecurrentSenses, GridVisionLanguage):
    """Models like Qwen3.5."""

    parameters: ClassVar = GridVisionLanguage.parameters - {"use_cache"}
    prompt_graph: ClassVar = PlacedPromptGraph
    step_graph: ClassVar = PlacedStepGraph

    def _beside(self, trial: Mapping[str, torch.Tensor]) -> list[torch.Tensor]:
        return [self._places(trial)]

    def _embedded(self, tokens: torch.Tensor, text: Any) -> tuple[list[torch.Tensor], list[Any]]:
        (embeds,), _ = super()._embedded(tokens, text)
        places = torch.zeros(3, *tokens.shape, dtype=torch.int64)
        return [embeds, places], [{axis + 1: name for axis, name in text.items()}]
