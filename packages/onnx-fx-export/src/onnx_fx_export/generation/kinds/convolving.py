"""Models with short convolutions beside attention, as one graph that reads prompts and goes on from them."""

from __future__ import annotations

import functools
from collections.abc import Iterator
from typing import Any, ClassVar

import onnx_ir as ir
import torch

from onnx_fx_export.errors import OnnxExporterError
from onnx_fx_export.generation.caches import Cache, LayerCache
from onnx_fx_export.generation.config import MODEL_FILE, STATE_NAMES, decoder_config, genai_config
from onnx_fx_export.generation.kinds.base import Part
from onnx_fx_export.generation.kinds.decoder import CachedGraph, Decoder
from onnx_fx_export.generation.operators.convolutions import (
    Kept,
    convolutions_as_operators,
    read_without_mask,
)
from onnx_fx_export.generation.operators.padding import before_padding
from onnx_fx_export.generation.requirements import transformers

__all__ = ["Convolving"]

_BATCH, _NEW, _PAST = 2, 3, 5


class Convolving(Decoder):
    """Models whose layers keep keys and values, or the columns that a short convolution reads (LFM2).

    ONNX Runtime GenAI runs such a graph, with the columns as it keeps them: one fewer than the convolution reads. Where
    padding stands behind a prompt, the columns are those before it.

    Args:
        model: A model of transformers.
        states: What its cache holds after a few tokens.
    """

    genai_type = "lfm2"
    parameters: ClassVar = {"input_ids", "attention_mask"}

    def __init__(self, model: Any, states: Cache) -> None:
        super().__init__(model)
        self._states = states

    @staticmethod
    def takes(states: Cache) -> bool:
        """Tell whether what a cache holds is of this kind: each layer has keys and values, or one convolution."""
        names = [set(layer) for layer in states]
        columns = {tuple(layer["conv"].shape[1:]) for layer in states if "conv" in layer}
        return all(own in ({"conv"}, {"key", "value"}) for own in names) and len(columns) == 1 and len(names) > 1

    @functools.cached_property
    def layers(self) -> list[LayerCache]:
        """The keys and values of layers with attention."""
        return [
            LayerCache((key.shape[1], key.shape[3]), (value.shape[1], value.shape[3]))
            for key, value in ((layer["key"], layer["value"]) for layer in self._states if "key" in layer)
        ]

    @property
    def moved_by_padding(self) -> bool:
        """No: convolutions go on from the last columns that are no padding."""
        return False

    def pad_behind(self, model: ir.Model) -> bool:
        """Let convolutions read what is new without its mask."""
        return read_without_mask(model, "attention_mask")

    def parts(self, *, last_logits: bool) -> list[Part]:
        """Return the one graph, with an example of a step that follows others."""
        tokens = torch.zeros(_BATCH, _NEW, dtype=torch.int64)
        mask = torch.ones(_BATCH, _PAST + _NEW, dtype=torch.int64)
        kept, fixed = {0: "batch_size", 2: "past_sequence_length"}, {0: "batch_size"}
        shapes = (
            {0: "batch_size", 1: "sequence_length"},
            {0: "batch_size", 1: "total_sequence_length"},
            [dict.fromkeys(layer, fixed if "conv" in layer else kept) for layer in self._states],
        )
        past = [{name: _example(name, state) for name, state in layer.items()} for layer in self._states]
        graph = ConvolvingGraph(self.model, last_logits=last_logits, empty=())
        return [Part(MODEL_FILE, graph, (tokens, mask, past), shapes)]

    def config(self) -> dict[str, Any]:
        """Return ``genai_config.json``."""
        decoder = decoder_config(self.model, self.layers, MODEL_FILE)
        decoder["num_hidden_layers"] = len(self._states)
        decoder["layer_types"] = ["conv" if "conv" in layer else "full_attention" for layer in self._states]
        decoder["conv_cache_size"] = next(layer["conv"].shape[2] for layer in self._states if "conv" in layer) - 1
        decoder["inputs"]["past_conv_names"] = f"{STATE_NAMES['past']}.conv"
        decoder["outputs"]["present_conv_names"] = f"{STATE_NAMES['present']}.conv"
        return genai_config(self.model, str(self.genai_type), decoder)


def _example(name: str, state: torch.Tensor) -> torch.Tensor:
    batch, size, length, *rest = (_BATCH, *state.shape[1:])
    length = length - 1 if name == "conv" else _PAST
    return torch.zeros(batch, size, length, *rest, dtype=state.dtype)


class ConvolvingGraph(CachedGraph):
    """The forward of a causal language model on tokens, with keys, values and columns as tensors."""

    def forward(
        self, input_ids: torch.Tensor, attention_mask: torch.Tensor, past_key_values: Cache
    ) -> dict[str, torch.Tensor | Cache]:
        """Return the logits of what is new (B, S), and the cache behind it.

        Args:
            input_ids: Tokens (B, S), int64.
            attention_mask: 1 for a token and 0 for padding (B, P + S), int64.
            past_key_values: ``conv`` (B, channels, columns), or ``key`` and ``value`` (B, heads, P, width), of each
                layer.

        Raises:
            OnnxExporterError: If a layer leaves what it has kept aside.
        """
        mask, kept = attention_mask[:, -input_ids.shape[1] :], Kept()
        cache = _filled(self.model, past_key_values, kept, mask)
        found: list[torch.Tensor] = []

        def pick(hidden: torch.Tensor) -> torch.Tensor:
            found[:] = before_padding([hidden], *_columns_of(cache), attention_mask)
            return found.pop(0)

        with convolutions_as_operators(self.model, kept):
            result = self.read_from(cache, input_ids.shape[1], attention_mask, {"input_ids": input_ids}, pick)
        if len(kept):
            raise OnnxExporterError(f"{type(self.model).__name__} has convolutions that do not read what was kept.")
        columns = iter(found or before_padding([], *_columns_of(cache), attention_mask))
        present = [
            {"conv": next(columns)} if isinstance(layer, _columns()) else {"key": layer.keys, "value": layer.values}
            for layer in cache.layers
        ]
        return {"logits": result.logits, "present": present}


def _columns_of(cache: Any) -> Iterator[list[torch.Tensor]]:
    """Yield what all convolutions leave, what they have read before, and what is new to them."""
    convolutions = [layer for layer in cache.layers if isinstance(layer, _columns())]
    return ([getattr(layer, part) for layer in convolutions] for part in ("last", "past", "new"))


@functools.cache
def _columns() -> Any:
    """Return the layers of a cache that hold columns; transformers is imported where it is used."""

    class Columns(transformers().cache_utils.LinearAttentionLayer):  # type: ignore[misc]
        """What a convolution reads, of which the model itself sees nothing: it reads as at the start of a text."""

        def __init__(self, past: torch.Tensor, kept: Kept, mask: torch.Tensor) -> None:
            super().__init__()
            self.past, self.last, self.new = past, past, past
            self._kept, self._mask = kept, mask

        def update_conv_state(self, conv_states: torch.Tensor, *_: Any, **__: Any) -> torch.Tensor:
            """Let what is new go on to the operator, with zeros for padding."""
            self.new = conv_states * self._mask[:, None].to(conv_states.dtype)
            self._kept.put(self.new, self)
            return self.new

    return Columns


def _filled(model: Any, states: Cache, kept: Kept, mask: torch.Tensor) -> Any:
    """Return a cache of transformers that holds keys, values and columns."""
    library = transformers().cache_utils
    cache = library.DynamicCache(config=model.config)
    for number, held in enumerate(states):
        cache.layers[number] = _columns()(held["conv"], kept, mask) if "conv" in held else library.DynamicLayer()
        if "key" in held:
            cache.layers[number].update(held["key"], held["value"])
    return cache
