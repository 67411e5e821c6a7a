"""A language model as one graph that reads prompts and goes on from them."""

from __future__ import annotations

import contextlib
import dataclasses
import inspect
from collections.abc import Iterator
from typing import Any

import torch

from onnx_fx_export.errors import InvalidArgumentError
from onnx_fx_export.generation.requirements import transformers

__all__ = ["DecoderGraph", "Example", "LayerCache", "cache_layers", "example", "parameter_names"]

Cache = list[dict[str, torch.Tensor]]

_BATCH, _NEW, _PAST = 2, 3, 5


@dataclasses.dataclass(frozen=True)
class LayerCache:
    """What one layer keeps.

    Attributes:
        key: Heads and width of its keys.
        value: Heads and width of its values.
        window: How many tokens it sees, if not all.
    """

    key: tuple[int, int]
    value: tuple[int, int]
    window: int | None = None


@dataclasses.dataclass(frozen=True)
class Example:
    """A call of :class:`DecoderGraph`, and which of its dimensions are dynamic."""

    args: tuple[torch.Tensor, torch.Tensor, Cache]
    dynamic_shapes: tuple[Any, ...]


class DecoderGraph(torch.nn.Module):
    """The forward of a causal language model, with its cache as tensors.

    Args:
        model: A model of transformers with a language model head.
        last_logits: Whether logits are computed for the last token of each row alone.
    """

    def __init__(self, model: Any, *, last_logits: bool) -> None:
        super().__init__()
        self.model = model
        self._takes_positions = "position_ids" in parameter_names(model)
        self._head = model.get_output_embeddings() if last_logits else None

    def forward(
        self, input_ids: torch.Tensor, attention_mask: torch.Tensor, past_key_values: Cache
    ) -> dict[str, torch.Tensor | Cache]:
        """Return the logits of the new tokens, and the cache with their keys and values behind those of before.

        Args:
            input_ids: New tokens (B, S), int64.
            attention_mask: 1 for a token and 0 for padding (B, P + S), int64.
            past_key_values: Keys and values (B, heads, P, width) of each layer.

        Returns:
            ``logits`` (B, S or 1, vocabulary) and ``present``, of the form of ``past_key_values``.
        """
        # Without the model's configuration no layer forgets: the masks alone tell how far a sliding window sees.
        cache = transformers().DynamicCache([(layer["key"], layer["value"]) for layer in past_key_values])
        new = attention_mask[:, -input_ids.shape[1] :]
        positions = {}
        if self._takes_positions:
            counted = (attention_mask.cumsum(-1) - 1).clamp(min=0)
            positions["position_ids"] = counted[:, -input_ids.shape[1] :]
        with _reading_last(self._head, new):
            result = self.model(
                input_ids=input_ids,
                attention_mask=attention_mask,
                past_key_values=cache,
                use_cache=True,
                return_dict=True,
                **positions,
            )
        present = [{"key": layer.keys, "value": layer.values} for layer in result.past_key_values.layers]
        return {"logits": result.logits, "present": present}


@contextlib.contextmanager
def _reading_last(head: torch.nn.Module | None, mask: torch.Tensor) -> Iterator[None]:
    """Let the head of a model see of each row the last token that is not padding; of padding alone, some token."""
    if head is None:
        yield
        return
    places = torch.arange(1, mask.shape[1] + 1, device=mask.device) * mask
    last = places.argmax(-1)

    def picked(_: torch.nn.Module, args: tuple[torch.Tensor, ...]) -> tuple[torch.Tensor, ...]:
        hidden, *others = args
        index = last.reshape(-1, 1, 1).expand(-1, 1, hidden.shape[-1])
        return hidden.gather(1, index), *others

    handle = head.register_forward_pre_hook(picked)
    try:
        yield
    finally:
        handle.remove()


def parameter_names(model: torch.nn.Module) -> set[str]:
    """Return the names of the parameters of a model's forward."""
    return set(inspect.signature(model.forward).parameters)


def cache_layers(model: torch.nn.Module) -> list[LayerCache]:
    """Run a model on one token and see what its cache holds.

    Raises:
        InvalidArgumentError: If it has no cache of keys and values.
    """
    with torch.no_grad():
        token = torch.zeros(1, 1, dtype=torch.int64)
        result = model(input_ids=token, attention_mask=torch.ones_like(token), use_cache=True, return_dict=True)
    cache, name = getattr(result, "past_key_values", None), type(model).__name__
    known = transformers().cache_utils
    kinds = (known.DynamicLayer, known.DynamicSlidingWindowLayer)
    if not isinstance(cache, known.DynamicCache):
        raise InvalidArgumentError(
            f"{name} cannot be written as a folder for generation: its cache is {type(cache).__name__}, and so far "
            "only a DynamicCache is known."
        )
    for number, layer in enumerate(cache.layers):
        if type(layer) not in kinds:
            raise InvalidArgumentError(
                f"{name} cannot be written as a folder for generation: layer {number} of its cache is "
                f"{type(layer).__name__}, and so far only keys and values are known ({kinds[0].__name__}, "
                f"{kinds[1].__name__})."
            )
    return [
        LayerCache(_heads(layer.keys), _heads(layer.values), getattr(layer, "sliding_window", None))
        for layer in cache.layers
    ]


def _heads(x: torch.Tensor) -> tuple[int, int]:
    """Return the heads and the width of keys or values (B, heads, T, width)."""
    return x.shape[1], x.shape[3]


def example(model: torch.nn.Module, layers: list[LayerCache]) -> Example:
    """Return an example of a step that follows others, all of whose sizes are dynamic."""
    dtype = next(model.parameters()).dtype

    def past(shape: tuple[int, int]) -> torch.Tensor:
        return torch.zeros(_BATCH, shape[0], _PAST, shape[1], dtype=dtype)

    tokens = torch.zeros(_BATCH, _NEW, dtype=torch.int64)
    mask = torch.ones(_BATCH, _PAST + _NEW, dtype=torch.int64)
    cache = [{"key": past(layer.key), "value": past(layer.value)} for layer in layers]
    kept = {0: "batch_size", 2: "past_sequence_length"}
    shapes = (
        {0: "batch_size", 1: "sequence_length"},
        {0: "batch_size", 1: "total_sequence_length"},
        [{"key": kept, "value": kept}] * len(layers),
    )
    return Example((tokens, mask, cache), shapes)
