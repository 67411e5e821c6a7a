"""Models that encode what they are given, and generate text about it."""

from __future__ import annotations

import functools
import inspect
import math
from collections.abc import Callable, Mapping
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt
import torch

from onnx_fx_export.errors import InvalidArgumentError
from onnx_fx_export.generation.caches import Cache, LayerCache, as_dynamic, kept_by, layers_of, past_of
from onnx_fx_export.generation.config import CROSS_NAMES, decoder_config, genai_config, graph_config
from onnx_fx_export.generation.kinds.base import Batch, Kind, Part, Tokens
from onnx_fx_export.generation.operators.last_token import reading_last
from onnx_fx_export.generation.requirements import transformers
from onnx_fx_export.generation.trials import check_windows_of_masks, differ, keeping_modes, running
from onnxops_decomp.exporting import cache_argument

__all__ = ["EncoderDecoder"]

ENCODER_FILE, DECODER_FILE = "encoder.onnx", "decoder.onnx"
_BATCH, _NEW, _PAST, _READ = 2, 3, 5, 7
# ONNX Runtime GenAI reads sounds of one length.
_GENAI_POSITIONS = 1500
_AUDIO, _IMAGES, _SAMPLES, _PATCHES = "input_features", "pixel_values", "input_values", "flattened_patches"
_MASK = "attention_mask"
# What is read beside text: what its sizes count, what it is, and how the graph calls it.
_SENSES = {
    _AUDIO: ("frames", "sounds", "audio_features"),
    _IMAGES: ("pixels", "images", _IMAGES),
    _SAMPLES: ("samples", "sounds", _SAMPLES),
    _PATCHES: ("patches", "images", _PATCHES),
}
# As many samples as some tenths of a second have stand for a token of a text.
_SAMPLES_OF_TOKEN, _LEAST_SAMPLES = 160, 4000
# All models of Whisper read sounds of so many seconds, 16,000 samples each, by such steps.
_AUDIO_SETTINGS, _SECONDS, _STEPS = "audio_processor_config.json", 30, {"n_fft": 400, "hop_length": 160}
# Which tokens all others attend to: encoders that are told so decide by its values.
_GLOBAL_MASK = "global_attention_mask"
_GLOBAL_BLOCK, _ATTENTION = "global_block_size", "encoder_attention_type"
# How configurations call the sizes of the blocks that encoders divide long texts into, and what is added to each.
_BLOCK_KEYS = {"block_size": 0, _GLOBAL_BLOCK: 0, "local_radius": 1}
# Of an example, and the fewest that a capture is sure of.
_BLOCKS, _FEWEST = 3, 2
_NO_LIMIT = 1 << 20


class EncoderDecoder(Kind):
    """Models with a file that encodes a text, a sound or an image, and one that goes on from it.

    The encoder's file computes the keys and values by which the decoder attends to what was encoded, once; the
    decoder's file reads them in the first step as in all others. Encoders of long texts that attend by blocks (LongT5,
    PEGASUS-X) fill up the last block, which no graph can do for all lengths: the graph takes whole blocks, with
    the padding behind the text. Decoders that read several tokens at once in no other way than at the start of a text
    (FSMT, ProphetNet) have a graph for one token.
    """

    parameters: ClassVar = {"encoder_outputs", "decoder_input_ids", "use_cache"}
    main_inputs: ClassVar = ("input_ids", *_SENSES)

    def __init__(self, model: Any) -> None:
        super().__init__(model)
        self._sense = None if model.main_input_name == "input_ids" else str(model.main_input_name)
        if self._sense:
            self.unit, reads, _ = _SENSES[self._sense]
            self.reads = (reads,)
        # Texts and patches of images, of which there are fewer and more, have padding.
        self._is_masked = self._sense in (None, _PATCHES)
        is_whisper = model.config.model_type == "whisper" and model.config.max_source_positions == _GENAI_POSITIONS
        self.genai_type = "whisper" if is_whisper else None

    @property
    def _is_sized(self) -> bool:
        """Whether all that the encoder reads has one size."""
        return self._sense in (_AUDIO, _IMAGES)

    @functools.cached_property
    def _size(self) -> tuple[int, ...]:
        """The one size of what is read beside text: bands and frames, or channels, height and width.

        Raises:
            InvalidArgumentError: If the model does not say.
        """
        config = self.model.config
        if self._sense == _AUDIO:
            bands, half = (getattr(config, name, None) for name in ("num_mel_bins", "max_source_positions"))
            size = [bands, half and 2 * half]
        else:
            eyes = getattr(config, "encoder", config)
            sides = getattr(eyes, "image_size", None)
            size = [getattr(eyes, "num_channels", None), *(sides if isinstance(sides, list | tuple) else [sides] * 2)]
        known = tuple(length for length in size if isinstance(length, int))
        if len(known) != len(size):
            raise InvalidArgumentError(
                f"{type(self.model).__name__} cannot be written as a folder for generation: its configuration does not "
                f"say of which one size the {self.reads[0]} are that it reads."
            )
        return known

    @functools.cached_property
    def _first(self) -> Any:
        """What the model returns for one prompt."""
        (row,) = self.batch((_READ,)).rows
        with keeping_modes(self.model), running(self.model):
            return self.model(**self.extended(row, np.zeros(0, np.int64)), use_cache=True, return_dict=True)

    @functools.cached_property
    def _cache(self) -> Any:
        cache = getattr(self._first, cache_argument(self.model) or "")
        if not isinstance(cache, transformers().EncoderDecoderCache):
            raise InvalidArgumentError(
                f"{type(self.model).__name__} cannot be written as a folder for generation: its cache is "
                f"{type(cache).__name__}, not an EncoderDecoderCache."
            )
        return cache

    @functools.cached_property
    def _block(self) -> int:
        """Of how many tokens the texts are multiples that the encoder reads, or 0 if it reads any number."""
        if self._sense == _PATCHES:
            return 1  # of which one alone is filled up
        config = self.model.config
        sizes = [(getattr(config, key, None), more) for key, more in _BLOCK_KEYS.items()]
        known = [max(np.atleast_1d(size)) + more for size, more in sizes if size is not None]
        return 0 if self._sense or not known else math.lcm(*map(int, known))

    @functools.cached_property
    def layers(self) -> list[LayerCache]:
        """Keys and values of the tokens that the decoder has read."""
        return layers_of(self.model, self._cache.self_attention_cache)

    @functools.cached_property
    def _cross(self) -> list[LayerCache]:
        return layers_of(self.model, self._cache.cross_attention_cache)

    def parts(self, *, last_logits: bool) -> list[Part]:
        """Return encoder and decoder, with an example of a step that follows others."""
        return [self._encoder(), self._decoder(last_logits)]

    def _encoder(self) -> Part:
        inputs = self.batch((_BLOCKS * self._block or _READ,) * _BATCH).inputs
        shape: dict[int, Any] = {0: "batch_size"}
        if self._block:
            blocks = torch.export.Dim("block_count", min=_FEWEST, max=_NO_LIMIT // self._block)
            shape[1] = self._block * blocks if self._block > 1 else blocks
            shape[0] = torch.export.Dim("batch_size", max=_NO_LIMIT)
        elif not self._is_sized:
            shape[1] = "encoder_sequence_length" if self._is_masked else "sample_count"
        names = [_SENSES[name][2] if name in _SENSES else name for name in inputs]
        args = tuple(torch.from_numpy(value) for value in inputs.values())
        if self._sense:
            args = (args[0].to(self.model.dtype), *args[1:])
        graph, shapes = EncoderGraph(self.model, list(inputs)), (((shape,) * len(args)),)
        return Part(ENCODER_FILE, graph, args, shapes, names, reads_steps=False)

    @functools.cached_property
    def _reads_one(self) -> bool:
        """Whether the decoder reads behind its cache one token at a time, and several not or not as one by one."""
        (tokens,) = map(torch.from_numpy, self.draw((_NEW,)))
        began = kept_by(self._cache.self_attention_cache)
        try:
            with torch.no_grad():
                together, _ = self._read(tokens, began)
        except Exception:  # whatever the code of a model raises that reads one token at a time
            return True
        alone = []
        for token in tokens:
            with running(self.model):
                logits, began = self._read(token[None], began)
            alone.append(logits)
        return differ(self.model, together, torch.cat(alone), much=True)

    def _read(self, tokens: torch.Tensor, past: Cache) -> tuple[torch.Tensor, Cache]:
        """Return the logits (S, vocabulary) of new tokens (S,) behind a cache, and the cache behind them."""
        states = self._first.encoder_last_hidden_state
        mask = torch.ones(states.shape[:2], dtype=torch.int64) if self._is_masked else None
        graph = CrossDecoderGraph(self.model, last_logits=False)
        result = graph(tokens[None], states, mask, past, kept_by(self._cache.cross_attention_cache))
        logits, present = result["logits"], result["present"]
        assert isinstance(logits, torch.Tensor)
        assert isinstance(present, list)
        return logits[0], present

    def check_masks(self) -> None:
        """Refuse a model whose cache forgets what its masks let a token see, or whose tokens see what follows.

        Raises:
            InvalidArgumentError: If the model is one of them.
        """
        self._check_encoder()
        token = torch.zeros(1, dtype=torch.int64)
        length = self.context_length()
        check_windows_of_masks(self.model, self.layers, length, lambda past: self._read(token, past)[0])
        self._check_blocks()
        (row,) = self.batch((_READ,)).rows
        before, after = self._first.logits[0, 0].float(), self.logits(self.extended(row, *self.draw((_NEW,))))[0]
        if before.isfinite().all() and differ(self.model, after, before, much=True):
            raise InvalidArgumentError(
                f"{type(self.model).__name__} cannot be written as a folder for generation: its logits for a token "
                "depend on those behind it, so that they are others when texts are read at once."
            )

    def _check_encoder(self) -> None:
        """Refuse a model whose encoder divides texts in a way that no graph holds, or that runtimes round otherwise.

        Raises:
            InvalidArgumentError: If the model is one of them (LED, LongT5 with odd blocks).
        """
        name, config = type(self.model).__name__, self.model.config
        if _GLOBAL_MASK in inspect.signature(self.model.forward).parameters:
            raise InvalidArgumentError(
                f"{name} cannot be written as a folder for generation: its encoder decides by the values of "
                f"{_GLOBAL_MASK} which tokens all others attend to, and no graph holds that."
            )
        size = getattr(config, _GLOBAL_BLOCK, 1) if getattr(config, _ATTENTION, "") == "transient-global" else 1
        if size & (size - 1):
            raise InvalidArgumentError(
                f"{name} cannot be written as a folder for generation: its encoder finds the blocks of a text by adding"
                f" up fractions of config.{_GLOBAL_BLOCK}, which is {size}, and runtimes round them in another way than"
                " PyTorch, where it is no power of two."
            )

    def _check_blocks(self) -> None:
        """Refuse a model that makes something else of a text in whole blocks, with masked padding behind it.

        Raises:
            InvalidArgumentError: If the model does (LongT5 with local attention in half precision, whose masks are
                infinite there).
        """
        if not self._block or self._sense:
            return
        (row,) = self.batch((_READ,)).rows
        inputs = self.extended(row, np.zeros(0, np.int64))
        alone, behind = self.logits(inputs), (0, -_READ % (_FEWEST * self._block))
        for name, fill in (("input_ids", self.pad), (_MASK, 0)):
            inputs[name] = torch.nn.functional.pad(inputs[name], behind, value=fill)
        if alone.isfinite().all() and differ(self.model, self.logits(inputs), alone, much=True):
            raise InvalidArgumentError(
                f"{type(self.model).__name__} cannot be written as a folder for generation in {self.model.dtype}: its "
                "encoder reads whole blocks of tokens, and makes something else of a text that has padding behind it."
            )

    def vocabulary(self) -> int:
        """Return how many tokens both encoder and decoder know."""
        try:
            read = self.model.get_encoder().get_input_embeddings().num_embeddings
        except (AttributeError, NotImplementedError):  # encoders of sounds, and those that hide their tables
            read = self.model.get_input_embeddings().num_embeddings
        return min(super().vocabulary(), int(read))

    def logits(self, inputs: Mapping[str, torch.Tensor]) -> torch.Tensor:
        """Return the model's own logits (T, vocabulary) for a prompt alone, float32.

        With a cache, models that read one token at a time would leave out the others.
        """
        return super().logits({**inputs, "use_cache": False})  # type: ignore[dict-item]

    def _decoder(self, last_logits: bool) -> Part:
        dtype, states = self.model.dtype, self._first.encoder_last_hidden_state
        read = {0: "batch_size", 1: "encoder_sequence_length"}
        cross = {0: "batch_size", 2: "encoder_sequence_length"}
        if self._is_sized:
            del read[1], cross[2]
        kept = {0: "batch_size", 2: "past_sequence_length"}
        length, new = states.shape[1], 1 if self._reads_one else _NEW
        args = (
            torch.zeros(_BATCH, new, dtype=torch.int64),
            torch.zeros(_BATCH, length, states.shape[2], dtype=dtype),
            torch.ones(_BATCH, length, dtype=torch.int64) if self._is_masked else None,
            past_of(self.layers, _BATCH, _PAST, dtype),
            past_of(self._cross, _BATCH, length, dtype),
        )
        shapes = (
            {0: "batch_size"} if self._reads_one else {0: "batch_size", 1: "sequence_length"},
            read,
            read if self._is_masked else None,
            [{"key": kept, "value": kept}] * len(self.layers),
            [{"key": cross, "value": cross}] * len(self._cross),
        )
        optional = frozenset({"encoder_hidden_states", "encoder_attention_mask"})
        graph = CrossDecoderGraph(self.model, last_logits=last_logits)
        return Part(DECODER_FILE, graph, args, shapes, optional=optional)

    def config(self) -> dict[str, Any]:
        """Return ``genai_config.json``."""
        decoder = decoder_config(self.model, self.layers, DECODER_FILE)
        del decoder["inputs"]["attention_mask"]
        decoder["inputs"] |= {f"cross_past_{kind}_names": name for kind, name in CROSS_NAMES.items()}
        width, heads = self._first.encoder_last_hidden_state.shape[-1], self._cross[0].key[0]
        inputs = [_SENSES[self._sense][2] if self._sense else "input_ids", *([_MASK] if self._is_masked else [])]
        encoder = {
            **graph_config(self._cross, ENCODER_FILE, width, heads),
            "inputs": {name: name for name in inputs},
            "outputs": {
                "encoder_hidden_states": "encoder_hidden_states",
                **{f"cross_present_{kind}_names": name for kind, name in CROSS_NAMES.items()},
            },
        }
        if self._block:
            encoder |= {"block": self._block, "fewest_blocks": _FEWEST}
        kind = self.genai_type or self.model.config.model_type
        config = genai_config(self.model, kind, decoder, encoder=encoder)
        config["model"]["decoder_start_token_id"] = self._start()
        if self.genai_type is None and self._adds_start():  # GenAI refuses what it does not know
            config["model"]["adds_decoder_start"] = True
        return config

    def _adds_start(self) -> bool:
        """Tell whether ``generate`` lets the decoder start with its token where a call says another one."""
        (row,), start = self.batch((_READ,)).rows, self._start()
        inputs = self.extended(row, np.zeros(0, np.int64))
        inputs["decoder_input_ids"] = torch.full((1, 1), int(start == 0))
        return int(self.continued(inputs, 1)[0, 0]) == start

    def settings(self) -> dict[str, dict[str, Any]]:
        """Return how ONNX Runtime GenAI makes what Whisper reads of the samples of a sound."""
        if self.genai_type != "whisper":
            return {}
        spectrum = {**_STEPS, "chunk_size": _SECONDS, "n_mel": self.model.config.num_mel_bins}
        operations = [
            {"name": "audio_decoder", "type": "AudioDecoder"},
            {"name": "STFT", "type": "STFTNorm", "attrs": {**_STEPS, "frame_length": _STEPS["n_fft"]}},
            {"name": "log_mel_spectrogram", "type": "LogMelSpectrum", "attrs": spectrum},
        ]
        sequence = [{"operation": operation} for operation in operations]
        return {_AUDIO_SETTINGS: {"feature_extraction": {"sequence": sequence}}}

    def _start(self) -> int:
        given = self.model.generation_config
        own = self.model.config.get_text_config(decoder=True)
        for start in (given.decoder_start_token_id, getattr(own, "decoder_start_token_id", None), given.bos_token_id):
            if start is not None:
                break
        if not isinstance(start, int):
            raise InvalidArgumentError(
                f"{type(self.model).__name__} does not say which one token the decoder starts with: set "
                f"generation_config.decoder_start_token_id, which is {start!r}."
            )
        return start

    def batch(self, lengths: tuple[int, ...]) -> Batch:
        """Return random prompts, padded on the right as encoders are used to; sounds and images have one size."""
        if self._sense:
            return self._patches(lengths) if self._is_masked else self._sensed(lengths, self._sense)
        rows, longest, pad = self.draw(lengths), max(lengths), self.pad
        tokens = np.stack([np.pad(row, (0, longest - len(row)), constant_values=pad) for row in rows])
        mask = np.stack([np.pad(np.ones_like(row), (0, longest - len(row))) for row in rows])
        return Batch(lengths, {"input_ids": tokens, "attention_mask": mask}, [{"input_ids": row} for row in rows])

    def _patches(self, lengths: tuple[int, ...]) -> Batch:
        """Return random patches with their rows and columns before them, counted from 1, and padding behind them."""
        width, random = int(self.model.config.vision_config.patch_embed_hidden_size), np.random.default_rng(0)
        rows, longest = [], max(lengths)
        for length in lengths:
            place, side = np.arange(length), math.isqrt(length)
            places = np.stack([place // side, place % side], 1).astype(np.float32) + 1
            rows.append(np.concatenate([places, random.standard_normal((length, width), np.float32)], 1))
        patches = np.stack([np.pad(row, ((0, longest - len(row)), (0, 0))) for row in rows])
        mask = (np.arange(longest)[None] < np.array(lengths)[:, None]).astype(np.int64)
        return Batch(lengths, {_PATCHES: patches, _MASK: mask}, [{_PATCHES: row} for row in rows])

    def _sensed(self, lengths: tuple[int, ...], name: str) -> Batch:
        size = self._size if self._is_sized else (_LEAST_SAMPLES + _SAMPLES_OF_TOKEN * max(lengths),)
        values = np.random.default_rng(0).standard_normal((len(lengths), *size), np.float32)
        length = math.prod(size[1:]) if name == _IMAGES else size[-1]
        return Batch((length,) * len(lengths), {name: values}, [{name: row} for row in values])

    def extended(self, row: Mapping[str, npt.NDArray[Any]], tokens: Tokens) -> dict[str, torch.Tensor]:
        """Return what is encoded, and the tokens behind the one that the decoder starts with."""
        inputs = {name: torch.from_numpy(value)[None] for name, value in row.items()}
        if self._sense:
            inputs[self._sense] = inputs[self._sense].to(self.model.dtype)
        if self._is_masked:
            read = next(iter(inputs.values()))
            inputs[_MASK] = torch.ones(read.shape[:2], dtype=torch.int64)
        return inputs | {"decoder_input_ids": torch.from_numpy(np.concatenate([[self._start()], tokens]))[None]}

    def prefix(self, batch: Batch) -> int:
        """Return 1, as results begin with the token that the decoder starts with."""
        return 1

    def _search(self, inputs: dict[str, torch.Tensor], settings: Any) -> torch.Tensor:
        """Return what ``generate`` of all models finds; that of Whisper cuts sounds and joins texts, too."""
        settings.decoder_start_token_id = self._start()
        search = transformers().GenerationMixin.generate if self._sense else type(self.model).generate
        begun, forced = inputs["decoder_input_ids"], {}
        if self._reads_one and (more := begun.shape[1] - 1):  # of which it would read the last one alone
            inputs["decoder_input_ids"] = begun[:, :1]
            settings.update(
                max_new_tokens=settings.max_new_tokens + more, min_new_tokens=settings.min_new_tokens + more
            )
            forced = {"logits_processor": transformers().LogitsProcessorList([_begins_with(begun[0])])}
        result: torch.Tensor = search(self.model, **inputs, generation_config=settings, **forced)
        return result


def _begins_with(tokens: torch.Tensor) -> Callable[[torch.Tensor, torch.Tensor], torch.Tensor]:
    """Return what lets a search find tokens (T,) before it is free."""

    def force(read: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
        if read.shape[1] >= len(tokens):
            return scores
        result = torch.full_like(scores, -torch.inf)
        result[:, tokens[read.shape[1]]] = 0
        return result

    return force


class EncoderGraph(torch.nn.Module):
    """What a model makes of its input before the first token: the keys and values that its decoder attends to.

    They are those of one step of the whole model; what else that step computes is in no graph that returns them alone.

    Args:
        model: A model of transformers with encoder and decoder.
        names: Parameters of its forward.
    """

    def __init__(self, model: Any, names: list[str]) -> None:
        super().__init__()
        self.model = model
        self._cache_name = cache_argument(model) or ""
        self._names = names

    def forward(self, *inputs: torch.Tensor) -> dict[str, torch.Tensor | Cache]:
        """Return ``encoder_hidden_states`` (B, T, width) and ``cross_key_values`` (B, heads, T, width) by layer."""
        token = torch.zeros(inputs[0].shape[0], 1, dtype=torch.int64)
        given = dict(zip(self._names, inputs, strict=True))
        result = self.model(**given, decoder_input_ids=token, use_cache=True, return_dict=True)
        cross = kept_by(getattr(result, self._cache_name).cross_attention_cache)
        return {"encoder_hidden_states": result.encoder_last_hidden_state, "cross_key_values": cross}


class CrossDecoderGraph(torch.nn.Module):
    """The decoder of a model, with both of its caches as tensors.

    Args:
        model: A model of transformers with encoder and decoder.
        last_logits: Whether logits are computed for the last token alone.
    """

    def __init__(self, model: Any, *, last_logits: bool) -> None:
        super().__init__()
        self.model = model
        self._cache_name = cache_argument(model) or ""
        self._takes_mask = "attention_mask" in inspect.signature(model.forward).parameters
        self._head = model.get_output_embeddings() if last_logits else None

    def forward(
        self,
        input_ids: torch.Tensor,
        encoder_hidden_states: torch.Tensor,
        encoder_attention_mask: torch.Tensor | None,
        past_key_values: Cache,
        cross_key_values: Cache,
    ) -> dict[str, torch.Tensor | Cache]:
        """Return the logits of the new tokens, and the cache with their keys and values behind those of before.

        Args:
            input_ids: New tokens (B, S), int64.
            encoder_hidden_states: What was encoded (B, T, width); models whose caches hold all of it do not read it.
            encoder_attention_mask: 1 for what was encoded and 0 for padding (B, T), int64, if there may be padding.
            past_key_values: Keys and values (B, heads, P, width) of each layer.
            cross_key_values: Those of what was encoded (B, heads, T, width).

        Returns:
            ``logits`` (B, S or 1, vocabulary) and ``present``, of the form of ``past_key_values``.
        """
        library = transformers()
        cache = library.EncoderDecoderCache(as_dynamic(past_key_values), as_dynamic(cross_key_values))
        cache.is_updated = dict.fromkeys(range(len(cross_key_values)), True)
        states = library.modeling_outputs.BaseModelOutput(last_hidden_state=encoder_hidden_states)
        states.attention_mask = None  # some encoders return one
        mask = {"attention_mask": encoder_attention_mask} if self._takes_mask else {}
        with reading_last(self._head):
            result = self.model(
                encoder_outputs=states,
                decoder_input_ids=input_ids,
                use_cache=True,
                return_dict=True,
                **{self._cache_name: cache},
                **mask,
            )
        return {"logits": result.logits, "present": kept_by(getattr(result, self._cache_name).self_attention_cache)}
