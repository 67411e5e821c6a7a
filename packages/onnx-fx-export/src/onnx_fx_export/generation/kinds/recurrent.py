"""Models whose layers keep states of one size, some or all of them, beside keys and values."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Iterator
from typing import Any, ClassVar

import torch

from onnx_fx_export.errors import InvalidArgumentError
from onnx_fx_export.generation.caches import Cache, LayerCache
from onnx_fx_export.generation.config import MODEL_FILE, STATE_NAMES, genai_config
from onnx_fx_export.generation.kinds.base import Kind, Part
from onnx_fx_export.generation.kinds.convolving import Convolving
from onnx_fx_export.generation.kinds.decoder import Decoder
from onnx_fx_export.generation.operators.convolutions import has_convolutions
from onnx_fx_export.generation.operators.last_token import reading_last
from onnx_fx_export.generation.operators.recurrences import has_recurrences
from onnx_fx_export.generation.requirements import transformers
from onnx_fx_export.generation.trials import Limits, differ, running
from onnxops_decomp.exporting import cache_argument

__all__ = ["PROMPT_FILE", "PromptGraph", "Recurrent", "StepGraph"]

_BATCH, _PAST, _READ = 2, 5, 3
PROMPT_FILE = "prompt.onnx"
_CHUNK_KEYS = ("chunk_size", "mamba_chunk_size")
# For models that keep nothing but what a convolution reads, or whose chunks an operator stands for.
_ANY_CHUNK = 16
# Of an example, and the fewest that a capture is sure of.
_CHUNKS, _FEWEST = 3, 2
_NO_LIMIT = 1 << 20
_GROWING = ("key", "value")


class Recurrent(Decoder):
    """Models that read one token at each step, with states of one size.

    Such models compute prompts and single tokens by different code, which agrees only from the first token on; the
    code of single tokens goes on from any state. A row of a batch keeps its states where a token is padding.

    Those that read prompts in chunks have a graph for prompts beside it. Their code fills up the last chunk, which no
    graph can do for all lengths: the graph takes whole chunks, with the padding before the prompt. Gated delta rules
    and selective scans are left to an operator of ONNX Runtime. Other models, those of which padding changes what
    follows, and those whose code for prompts cannot be captured, read prompts token by token, too, unless that code
    computes something else than single steps do.
    """

    genai_type: str | None = None
    shares_caches = False
    parameters: ClassVar = {"input_ids", "attention_mask"}

    @functools.cached_property
    def _states(self) -> Cache:
        """What the cache of the model itself holds after a few tokens."""
        name = cache_argument(self.model) or ""
        tokens = torch.ones(_BATCH, _READ, dtype=torch.int64)
        with running(self.model):
            result = self.model(input_ids=tokens, use_cache=True, return_dict=True)
        cache: Any = getattr(result, name, None)
        if type(cache) is not transformers().DynamicCache:  # a class of the model's own keeps more, and in other ways
            keeps = f"its cache is {type(cache).__name__}, and so far only a DynamicCache is supported"
            raise InvalidArgumentError(
                f"{type(self.model).__name__} cannot be written as a folder for generation: "
                f"{'its layers keep states to themselves, in no cache' if cache is None else keeps}."
            )
        if not all(isinstance(getattr(layer, "conv_states", {}), dict) for layer in cache.layers):
            raise InvalidArgumentError(
                f"{type(self.model).__name__} cannot be written as a folder for generation with transformers "
                f"{transformers().__version__}, which keeps states in another form: install a newer release."
            )
        return kept_states(cache)

    def for_genai(self) -> Kind:
        """Return how the model is written for ONNX Runtime GenAI, if that is known: with short convolutions alone."""
        if has_convolutions(self.model) and Convolving.takes(self._states):
            return Convolving(self.model, self._states)
        return self

    @property
    def layers(self) -> list[LayerCache]:
        """Nothing that an engine would grow in place."""
        return []

    @property
    def reads_padding(self) -> bool:
        """No: a step leaves states as they are where a token is padding, and prompts are not read at once otherwise."""
        return False

    @functools.cached_property
    def _chunk(self) -> int:
        """How many tokens a chunk has, or 0 if the model reads prompts in another way, or padding before them."""
        if self._is_moved_by(0, much=True):  # by biases, which convolutions read of it
            return 0
        recurrent = any(name.startswith("recurrent") for layer in self._states for name in layer)
        if not recurrent or has_recurrences(self.model):
            return _ANY_CHUNK
        config = self.model.config.get_text_config(decoder=True)
        return int(next((size for key in _CHUNK_KEYS if (size := getattr(config, key, None))), 0))

    @functools.cached_property
    def _steps_differ(self) -> bool:
        """Whether the model makes something else of tokens one by one than of all at once (Zamba 2).

        So it does if it limits time steps in one of the ways alone, whether a few tokens tell or not (Nemotron-H).
        """
        (row,) = self.draw((_READ,))
        with Limits() as of_prompts:
            together = self.logits(self.extended({"input_ids": row}, row[:0]))
        graph, states, alone = StepGraph(self.model), self._no_states(), []
        with Limits() as of_steps:
            for place, token in enumerate(torch.from_numpy(row)):
                with running(self.model):
                    result = graph(token.reshape(1, 1), torch.ones(1, place + 1, dtype=torch.int64), states)
                logits, states = result["logits"], result["present"]
                alone.append(logits[0].float())
        if of_prompts.found != of_steps.found:
            return True
        return bool(together.isfinite().all()) and differ(self.model, torch.cat(alone), together, much=True)

    def check_masks(self) -> None:
        """Refuse a model that has to read prompts at once, and for which there is no such graph.

        Raises:
            InvalidArgumentError: If the model is one.
        """
        if self._steps_differ and not self._chunk:
            raise InvalidArgumentError(
                f"{type(self.model).__name__} cannot be written as a folder for generation: it makes something else of "
                "a prompt than of its tokens one by one, and so far a prompt can be read at once only in chunks of a "
                "known size, by a model of which padding before the prompt changes nothing."
            )

    def longer(self) -> list[tuple[int, ...]]:
        """Return lengths of prompts that a graph for prompts reads."""
        return [(2 * self._chunk + 3, self._chunk)] if self._chunk else []

    def parts(self, *, last_logits: bool) -> list[Part]:
        """Return the graph for steps, behind that for prompts; the logits are of one token."""
        return [*([self._prompts()] if self._chunk else []), self._steps()]

    def _prompts(self) -> Part:
        """Return the graph for prompts, with an example of several chunks."""
        tokens = torch.zeros(_BATCH, _CHUNKS * self._chunk, dtype=torch.int64)
        length = self._chunk * torch.export.Dim("chunk_count", min=_FEWEST, max=_NO_LIMIT // self._chunk)
        shape = {0: torch.export.Dim("batch_size", max=_NO_LIMIT), 1: length}
        graph, args = PromptGraph(self.model), (tokens, torch.ones_like(tokens))
        return Part(PROMPT_FILE, graph, args, (shape, shape), section="prompt", needed=self._steps_differ)

    def _steps(self) -> Part:
        """Return the graph for steps, with an example of one that follows others."""
        mask = torch.ones(_BATCH, _PAST + 1, dtype=torch.int64)
        cache = [{name: self._example(name, state) for name, state in layer.items()} for layer in self._states]
        kept, fixed = {0: "batch_size", 2: "past_sequence_length"}, {0: "batch_size"}
        shapes = (
            {0: "batch_size"},
            {0: "batch_size", 1: "total_sequence_length"},
            [{name: kept if name in _GROWING else fixed for name in layer} for layer in self._states],
        )
        args = (torch.zeros(_BATCH, 1, dtype=torch.int64), mask, cache)
        return Part(MODEL_FILE, StepGraph(self.model), args, shapes)

    def _no_states(self) -> Cache:
        """Return what the cache holds of a text of which nothing was read."""
        return [
            {
                name: torch.zeros_like(state[:1, :, :0] if name in _GROWING else state[:1])
                for name, state in each.items()
            }
            for each in self._states
        ]

    def _example(self, name: str, state: torch.Tensor) -> torch.Tensor:
        if name in _GROWING:
            return torch.zeros(_BATCH, state.shape[1], _PAST, state.shape[3], dtype=state.dtype)
        return torch.zeros_like(state)

    def config(self) -> dict[str, Any]:
        """Return ``genai_config.json``."""
        kinds = sorted({name for layer in self._states for name in layer})
        decoder = {
            "filename": MODEL_FILE,
            "hidden_size": self.model.config.get_text_config(decoder=True).hidden_size,
            "num_hidden_layers": len(self._states),
            "inputs": {
                "input_ids": "input_ids",
                "attention_mask": "attention_mask",
                **{f"past_{kind}_names": f"{STATE_NAMES['past']}.{kind}" for kind in kinds},
            },
            "outputs": {
                "logits": "logits",
                **{f"present_{kind}_names": f"{STATE_NAMES['present']}.{kind}" for kind in kinds},
            },
        }
        config = genai_config(self.model, self.model.config.model_type, decoder)
        if self._chunk:
            config["model"]["prompt"] = {
                "filename": PROMPT_FILE,
                "chunk": self._chunk,
                "fewest_chunks": _FEWEST,
                "shortest": 1 if self._steps_differ else -(-self._chunk // 2),
            }
        return config


class _Graph(torch.nn.Module):
    """A model of transformers, and what its forward is called with."""

    def __init__(self, model: Any) -> None:
        super().__init__()
        self.model = model
        self._cache_name = cache_argument(model) or ""
        self._takes_positions = "position_ids" in inspect.signature(model.forward).parameters


class PromptGraph(_Graph):
    """The model's own way to read a prompt, which leaves its states behind.

    Args:
        model: A model of transformers with a language model head.
    """

    def forward(self, input_ids: torch.Tensor, attention_mask: torch.Tensor) -> dict[str, torch.Tensor | Cache]:
        """Return what :meth:`read` makes of tokens (B, S), int64, whole chunks of them."""
        return self.read(attention_mask, input_ids=input_ids)

    def read(self, attention_mask: torch.Tensor, **given: torch.Tensor) -> dict[str, torch.Tensor | Cache]:
        """Return the logits of the last token, and the states after it.

        Args:
            attention_mask: 1 for a token and 0 for padding on the left (B, S), int64.
            given: The prompt, and what else the model reads of it.

        Returns:
            ``logits`` (B, 1, vocabulary) and ``present``, as :class:`StepGraph` takes it.
        """
        if self._takes_positions and "position_ids" not in given:
            given["position_ids"] = (attention_mask.cumsum(-1) - 1).clamp(min=0)
        cache: dict[str, Any] = {self._cache_name: _remembering(self.model)}
        with reading_last(self.model.get_output_embeddings()):
            result = self.model(attention_mask=attention_mask, use_cache=True, return_dict=True, **cache, **given)
        return {"logits": result.logits, "present": kept_states(getattr(result, self._cache_name))}


class StepGraph(_Graph):
    """One step of a model, with its states as tensors.

    Args:
        model: A model of transformers with a language model head.
    """

    def forward(
        self, input_ids: torch.Tensor, attention_mask: torch.Tensor, past_key_values: Cache
    ) -> dict[str, torch.Tensor | Cache]:
        """Return what :meth:`read` makes of a token of each row (B, 1), int64."""
        return self.read(attention_mask, past_key_values, input_ids=input_ids)

    def read(
        self, attention_mask: torch.Tensor, past_key_values: Cache, **tokens: torch.Tensor
    ) -> dict[str, torch.Tensor | Cache]:
        """Return the logits of a token, and the states after it.

        Args:
            attention_mask: 1 for a token and 0 for padding (B, P + 1), int64.
            past_key_values: States of each layer: ``conv`` and ``recurrent`` of one size, ``key`` and ``value``
                (B, heads, P, width) of attention.
            tokens: The token of each row, and what else the model reads of it.

        Returns:
            ``logits`` (B, 1, vocabulary) and ``present``, of the form of ``past_key_values``.
        """
        given: dict[str, Any] = {**tokens, self._cache_name: _filled(self.model, past_key_values)}
        if any("key" in layer for layer in past_key_values):
            given["attention_mask"] = attention_mask
        if self._takes_positions and "position_ids" not in given:
            given["position_ids"] = (attention_mask.cumsum(-1) - 1).clamp(min=0)[:, -1:]
        result = self.model(use_cache=True, return_dict=True, **given)
        present = kept_states(getattr(result, self._cache_name))
        is_token = attention_mask[:, -1] == 1
        for layer, before in zip(present, past_key_values, strict=True):
            for name in layer.keys() - set(_GROWING):
                rows = is_token.reshape(-1, *[1] * (layer[name].dim() - 1))
                layer[name] = torch.where(rows, layer[name], before[name])
        return {"logits": result.logits, "present": present}


def _remembering(model: Any) -> Any:
    """Return a cache of transformers that has read nothing, and no layer of which forgets keys and values."""
    library = transformers().cache_utils
    cache = library.DynamicCache(config=model.config)
    for number, layer in enumerate(cache.layers):
        if isinstance(layer, library.LinearAttentionAndSlidingWindowAttentionLayer):
            cache.layers[number] = library.LinearAttentionAndFullAttentionLayer(layer.number_of_states)
        elif isinstance(layer, library.DynamicSlidingWindowLayer):
            cache.layers[number] = library.DynamicLayer()
    return cache


def _filled(model: Any, states: Cache) -> Any:
    """Return such a cache that holds states."""
    cache = _remembering(model)
    for layer, held in zip(cache.layers, states, strict=True):
        if "key" in held:
            layer.update(held["key"], held["value"])
        for name in held.keys() - set(_GROWING):
            _fill(layer, name, held[name].clone())  # the layer writes into what it holds
    return cache


def _fill(layer: Any, name: str, state: torch.Tensor) -> None:
    kind, _, index = name.partition("_")
    place = int(index or 0)
    getattr(layer, f"{kind}_states")[place] = state
    getattr(layer, f"is_{kind}_states_initialized")[place] = True
    layer.has_previous_state[place] = True
    layer.device, layer.dtype = state.device, state.dtype
    if kind == "conv":
        layer.conv_kernel_size[place] = state.shape[-1]


def kept_states(cache: Any) -> Cache:
    """Return what each layer of a cache of transformers holds: its states, and its keys and values."""
    return [dict(_states_of(layer)) for layer in cache.layers]


def _states_of(layer: Any) -> Iterator[tuple[str, torch.Tensor]]:
    if getattr(layer, "keys", None) is not None:  # layers without attention hold none
        yield from (("key", layer.keys), ("value", layer.values))
    for kind in ("conv", "recurrent"):
        for place, state in getattr(layer, f"{kind}_states", {}).items():
            if state is not None:
                yield (f"{kind}_{place}" if place else kind), state
