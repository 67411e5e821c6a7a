"""A language model as one graph that reads prompts and goes on from them."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Mapping
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt
import torch

from onnx_fx_export.generation.caches import Cache, LayerCache, as_dynamic, empty_layers, kept_by, layers_of, past_of
from onnx_fx_export.generation.config import MODEL_FILE, decoder_config, genai_config
from onnx_fx_export.generation.kinds.base import Batch, Kind, Part, Tokens
from onnx_fx_export.generation.operators.last_token import of_last_kept, reading_last
from onnx_fx_export.generation.trials import check_windows_of_masks, differ, keeping_modes, running
from onnxops_decomp.exporting import cache_argument

__all__ = ["CachedGraph", "Decoder"]

_BATCH, _NEW, _PAST = 2, 3, 5
_KEPT = "past_sequence_length"


class Decoder(Kind):
    """Models that read text and go on from it."""

    genai_type: str | None = "decoder"
    shares_caches = True
    parameters: ClassVar = {"input_ids", "attention_mask", "use_cache"}
    main_inputs: ClassVar[tuple[str, ...]] = ("input_ids",)

    @functools.cached_property
    def layers(self) -> list[LayerCache]:
        """Keys and values, as one token leaves them."""
        return layers_of(self.model, self._cache)

    @property
    def _empty(self) -> tuple[int, ...]:
        """The places of layers that keep nothing."""
        return empty_layers(self._cache)

    @functools.cached_property
    def _cache(self) -> Any:
        """The cache of the model itself, as one token leaves it."""
        with keeping_modes(self.model), running(self.model):
            token = torch.zeros(1, 1, dtype=torch.int64)
            mask = torch.ones_like(token)
            result = self.model(input_ids=token, attention_mask=mask, use_cache=True, return_dict=True)
        return getattr(result, cache_argument(self.model) or "", None)

    def counts_padding(self, length: int) -> bool:
        """Tell whether padding between the tokens of a text of ``length`` tokens changes what follows."""
        return super().counts_padding(length) or self.moved_by_padding

    @functools.cached_property
    def reads_padding(self) -> bool:
        """Whether padding before a text changes its logits, in one call or with a cache.

        Positions may be places in the cache (decoders of BART), or masks may not be those of what it holds (GIT).
        """
        if not self._takes_positions:
            return self._is_moved_by(0)
        return self.shares_caches and self._is_moved_by(0, in_steps=True)

    @functools.cached_property
    def moved_by_padding(self) -> bool:
        """Whether the logits of a token change with padding before it, as by biases that count all that is kept."""
        return self._is_moved_by(_PAST - 1)

    @property
    def _takes_positions(self) -> bool:
        return "position_ids" in inspect.signature(self.model.forward).parameters

    def _is_moved_by(self, place: int, *, in_steps: bool = False, much: bool = False) -> bool:
        """Tell whether the logits of the last token of a short text change with padding at a place before it.

        Args:
            place: Where the padding is.
            in_steps: Whether the last token is read behind a cache of the others.
            much: Whether they have to change by more than code does that adds up in another order.
        """
        (row,) = self.draw((_PAST,))
        together = torch.from_numpy(row)[None]
        padding = torch.full((1, _NEW), self.pad)
        apart = torch.cat([together[:, :place], padding, together[:, place:]], 1)
        mask = torch.ones_like(apart)
        mask[:, place : place + _NEW] = 0
        inputs = {"input_ids": apart, "attention_mask": mask}
        if self._takes_positions:
            inputs["position_ids"] = (mask.cumsum(-1) - 1).clamp(min=0)
        wanted = self.logits({"input_ids": together})[-1]
        found = self._in_steps(inputs) if in_steps else self.logits(inputs)[-1]
        return differ(self.model, found, wanted, much=much)

    def _in_steps(self, inputs: Mapping[str, torch.Tensor]) -> torch.Tensor:
        """Return the model's own logits (vocabulary,) for the last token, behind a cache of those before it."""
        before, last = ({name: each[:, part] for name, each in inputs.items()} for part in (slice(-1), slice(-1, None)))
        last["attention_mask"], name = inputs["attention_mask"], cache_argument(self.model) or ""
        with running(self.model):
            result = self.model(**before, use_cache=True, return_dict=True)
        return self.logits({**last, name: getattr(result, name)})[-1]

    def check_masks(self) -> None:
        """Refuse a model whose cache forgets what its masks let a token see.

        Raises:
            InvalidArgumentError: If the model has such a window (Moshi).
        """
        check_windows_of_masks(self.model, self.layers, self.context_length(), self._read_behind)

    def _read_behind(self, past: Cache) -> torch.Tensor:
        """Return the logits of a token behind keys and values (1, heads, P, width)."""
        graph = DecoderGraph(self.model, last_logits=False, empty=self._empty)
        mask = torch.ones(1, past[0]["key"].shape[2] + 1, dtype=torch.int64)
        logits = graph(torch.zeros(1, 1, dtype=torch.int64), mask, past)["logits"]
        assert isinstance(logits, torch.Tensor)
        return logits

    def parts(self, *, last_logits: bool) -> list[Part]:
        """Return the one graph, with an example of a step that follows others."""
        dtype = next(self.model.parameters()).dtype
        tokens = torch.zeros(_BATCH, _NEW, dtype=torch.int64)
        mask = torch.ones(_BATCH, _PAST + _NEW, dtype=torch.int64)
        past = past_of(self.layers, _BATCH, _PAST, dtype)
        shapes = (
            {0: "batch_size", 1: "sequence_length"},
            {0: "batch_size", 1: "total_sequence_length"},
            [{name: {0: "batch_size", held.dim() - 2: _KEPT} for name, held in layer.items()} for layer in past],
        )
        args = (tokens, mask, past)
        graph = DecoderGraph(self.model, last_logits=last_logits, empty=self._empty)
        return [Part(MODEL_FILE, graph, args, shapes)]

    def config(self) -> dict[str, Any]:
        """Return ``genai_config.json``."""
        return genai_config(self.model, "decoder", decoder_config(self.model, self.layers, MODEL_FILE))

    def batch(self, lengths: tuple[int, ...]) -> Batch:
        """Return random prompts, padded on the left."""
        return self.padded(self.draw(lengths))

    def padded(self, rows: list[Tokens]) -> Batch:
        """Return prompts as a batch, padded on the left."""
        lengths, pad = tuple(map(len, rows)), self.pad
        longest = max(lengths)
        tokens = np.stack([np.pad(row, (longest - len(row), 0), constant_values=pad) for row in rows])
        mask = np.stack([np.pad(np.ones_like(row), (longest - len(row), 0)) for row in rows])
        return Batch(lengths, {"input_ids": tokens, "attention_mask": mask}, [{"input_ids": row} for row in rows])

    def extended(self, row: Mapping[str, npt.NDArray[Any]], tokens: Tokens) -> dict[str, torch.Tensor]:
        """Return prompt and tokens in one."""
        ids = torch.from_numpy(np.concatenate([row["input_ids"], tokens]))[None]
        return {"input_ids": ids, "attention_mask": torch.ones_like(ids)}

    def prefix(self, batch: Batch) -> int:
        """Return the length of the padded prompts."""
        return int(batch.inputs["input_ids"].shape[1])


class CachedGraph(torch.nn.Module):
    """What the forwards of causal language models have in common whose cache is tensors.

    Args:
        model: A model of transformers with a language model head.
        last_logits: Whether logits are computed for the last token of each row alone.
        empty: The places of layers that keep nothing.
    """

    def __init__(self, model: Any, *, last_logits: bool, empty: tuple[int, ...]) -> None:
        super().__init__()
        self.model = model
        self._cache_name = cache_argument(model) or ""
        self._takes_positions = "position_ids" in inspect.signature(model.forward).parameters
        self._head = model.get_output_embeddings() if last_logits else None
        self._empty = empty

    def read(
        self, new: int, attention_mask: torch.Tensor, past_key_values: Cache, **given: torch.Tensor
    ) -> dict[str, torch.Tensor | Cache]:
        """Return the logits of what is new, and the cache with its keys and values behind those of before.

        Args:
            new: How many tokens are new.
            attention_mask: 1 for a token and 0 for padding (B, P + S), int64.
            past_key_values: Keys and values (B, heads, P, width) of each layer.
            given: What is new, and what else the model reads.

        Returns:
            ``logits`` (B, S or 1, vocabulary) and ``present``, of the form of ``past_key_values``.
        """
        result = self.read_from(as_dynamic(past_key_values, self._empty), new, attention_mask, given)
        return {"logits": result.logits, "present": kept_by(getattr(result, self._cache_name))}

    def read_from(
        self,
        cache: Any,
        new: int,
        attention_mask: torch.Tensor,
        given: dict[str, torch.Tensor],
        pick: Callable[[torch.Tensor], torch.Tensor] | None = None,
    ) -> Any:
        """Return what the model returns of what is new, behind a cache of transformers.

        Where logits of the last tokens alone are wanted, ``pick`` takes their states (B, 1, width) from all
        (B, S, width); without it, those of the last tokens that are no padding.
        """
        if self._takes_positions and "position_ids" not in given:
            given = given | {"position_ids": (attention_mask.cumsum(-1) - 1).clamp(min=0)[:, -new:]}
        with reading_last(self._head, pick or of_last_kept(attention_mask[:, -new:])):
            return self.model(
                attention_mask=attention_mask,
                use_cache=True,
                return_dict=True,
                **{self._cache_name: cache},
                **given,
            )


class DecoderGraph(CachedGraph):
    """The forward of a causal language model on tokens."""

    def forward(
        self, input_ids: torch.Tensor, attention_mask: torch.Tensor, past_key_values: Cache
    ) -> dict[str, torch.Tensor | Cache]:
        """Return what :meth:`read` makes of new tokens (B, S), int64."""
        return self.read(input_ids.shape[1], attention_mask, past_key_values, input_ids=input_ids)
