"""Models that read images among the tokens of a text."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import inspect
import re
from collections.abc import Mapping
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt
import torch

from onnx_fx_export.errors import InvalidArgumentError
from onnx_fx_export.generation.caches import Cache, as_dynamic, kept_by, past_of
from onnx_fx_export.generation.config import EMBEDDING_FILE, VISION_FILE
from onnx_fx_export.generation.kinds.base import Batch, Part, Tokens
from onnx_fx_export.generation.kinds.decoder import CachedGraph, Decoder
from onnx_fx_export.generation.trials import differ

__all__ = [
    "OTHERWISE",
    "SIGHT",
    "EmbeddingGraph",
    "OwnSizesVisionLanguage",
    "Sense",
    "VisionLanguage",
    "body_of",
    "joined",
]

_IMAGES, _TYPES = "pixel_values", "token_type_ids"
# What is said of a model whose code fails where it is run as here.
OTHERWISE = "read in another way"
_BATCH, _NEW = 2, 3
# So many tokens has the text that is read by model and graphs.
_TRIED = 5
_ROUNDING = {torch.float32: 1e-3, torch.float16: 3e-2}
_NAME_OF_TOKENS = re.compile("token_(id|ids|index)$")
_STANDS_FOR = re.compile("(image|video|audio)_token_")
# Tokens that mean something to the model itself.
_MARKS = ("image_token_id", "audio_token_id", "video_token_id", "vision_start_token_id", "vision_end_token_id")


@dataclasses.dataclass(frozen=True)
class Sense:
    """What a model reads beside text.

    Attributes:
        reads: What its forward calls it.
        method: What makes features of it.
        token: What its configuration calls the token that stands for a part of it.
        section: What ``genai_config.json`` calls the graph that makes features of it.
        file: The name of its file.
        features: What the graphs call the features.
        pieces: What it consists of.
    """

    reads: str
    method: str
    token: str
    section: str
    file: str
    features: str
    pieces: str


SIGHT = Sense(_IMAGES, "get_image_features", "image_token_id", "vision", VISION_FILE, "image_features", "patches")


def body_of(model: Any, sense: Sense) -> Any:
    """Return what makes features for a sense: the model, or the one without its head; None if neither does."""
    bodies = (model, getattr(model, "base_model", None))
    return next((body for body in bodies if hasattr(body, sense.method)), None)


class VisionLanguage(Decoder):
    """Models with a file for images, one for embeddings, and one that reads what is embedded and goes on from it."""

    genai_type: str | None = None
    shares_caches = False
    parameters: ClassVar = {"input_ids", _IMAGES, "inputs_embeds", "attention_mask"}
    main_inputs: ClassVar = ("input_ids", _IMAGES)
    reads: tuple[str, ...] = ("text", "images")
    sense: ClassVar[Sense] = SIGHT
    names_of_images: tuple[str, ...] = (_IMAGES,)
    # How many images are tried.
    _several = 1

    def __init__(self, model: Any) -> None:
        super().__init__(model)
        token = getattr(model.config, self.sense.token, None)
        if not isinstance(token, int):
            what = f"config.{self.sense.token}, the token that stands for {self.reads[-1]}"
            raise self._refused(f"its {what}, is {token!r}")
        self._image_token = token
        self._takes_types = _TYPES in inspect.signature(model.forward).parameters

    @functools.cached_property
    def _apart(self) -> bool:
        """Whether the model takes the images of each text apart, as a look at one image tells."""
        first: Exception | None = None
        for apart in (False, True):
            try:
                with torch.no_grad():
                    VisionGraph(self.model, apart=apart)(self._images(1))
                return apart
            except Exception as error:  # whatever a model raises that needs more than images
                first = first or error
        raise self._refused(str(first)) from first

    @functools.cached_property
    def _width(self) -> int:
        """The width of what is made of images, found by a trial of the graphs beside the model.

        Raises:
            InvalidArgumentError: If the model makes something else of images.
        """
        try:
            with torch.no_grad(), self._unchanged():
                wanted, found = self._read_by_model(), self._read_by_graphs()
        except Exception as error:  # whatever a model raises that reads its images in another way
            why = f"its {self.reads[-1]} are {OTHERWISE} ({type(error).__name__})"
            raise self._refused(why) from error
        for own, other in zip(wanted, found, strict=True):
            rounding = _ROUNDING.get(self.model.dtype, 1e-3) * own.abs().max()
            if own.shape != other.shape or (own - other).abs().max() > rounding:
                what, pieces = self.reads[-1], self.sense.pieces
                raise self._refused(f"what it makes of {what} is not what their {pieces} alone give")
        return int(found[0].shape[1])

    @property
    def _trials(self) -> list[dict[str, torch.Tensor]]:
        """Prompts with an image, and with all tokens that mean something to the model beside it."""
        nothing = np.zeros(0, np.int64)
        rows = self._shown((_TRIED,) * self._several, self._pictures(self._several)).rows
        return [self.extended({**row, "input_ids": np.append(row["input_ids"], self._named)}, nothing) for row in rows]

    @property
    def _named(self) -> Tokens:
        """The tokens that the configuration names, but for those that stand for what is seen or heard."""
        config, count = vars(self.model.config), self.model.get_input_embeddings().num_embeddings
        named = {name: np.atleast_1d(ids) for name, ids in config.items() if _NAME_OF_TOKENS.search(name) and ids}
        known = [int(token) for name, ids in named.items() if not _STANDS_FOR.match(name) for token in ids]
        return np.array([token for token in known if 0 <= token < count and token != self._image_token], np.int64)

    def _read_by_model(self) -> list[torch.Tensor]:
        """Return what the model makes of the images of the trials, and its logits."""
        result = []
        for trial in self._trials:
            images = {name: trial[name] for name in self.names_of_images}
            result += [self._features_by_model(images), self.model(**trial).logits]
        return result

    def _features_by_model(self, images: Mapping[str, torch.Tensor]) -> torch.Tensor:
        """Return what a method of the model makes of images (tokens, width)."""
        made = getattr(body_of(self.model, self.sense), self.sense.method)(**images, return_dict=True)
        return joined(made.pooler_output)

    def _read_by_graphs(self) -> list[torch.Tensor]:
        """Return the same as the graphs compute it."""
        result = []
        for trial, picture in zip(self._trials, self._pictures(self._several), strict=True):
            features = self._features_of(picture)
            embeds = EmbeddingGraph(self.model, self._image_token)(trial["input_ids"], features)["inputs_embeds"]
            result += [features, self._logits_of(embeds, trial)]
        return result

    def _logits_of(self, embeds: torch.Tensor, trial: Mapping[str, torch.Tensor]) -> torch.Tensor:
        """Return what the decoder's graph makes of a trial, embedded."""
        graph = EmbeddedDecoderGraph(self.model, last_logits=False, empty=self._empty)
        past = past_of(self.layers, 1, 0, self.model.dtype)
        logits = graph(embeds, trial["attention_mask"], trial.get(_TYPES), past)["logits"]
        assert isinstance(logits, torch.Tensor)
        return logits

    def _features_of(self, picture: Mapping[str, torch.Tensor]) -> torch.Tensor:
        """Return what the graph for images makes of one (tokens, width)."""
        features: torch.Tensor = VisionGraph(self.model, apart=self._apart)(picture[_IMAGES])["image_features"]
        return features

    def _pictures(self, count: int) -> list[dict[str, torch.Tensor]]:
        """Return random images, each by the names of the model's parameters, with a first axis of 1."""
        return [{_IMAGES: image[None]} for image in self._images(count)]

    def _together(self, count: int) -> list[dict[str, torch.Tensor]]:
        """Return random images of texts that are read together."""
        return self._pictures(count)

    def _count(self, picture: Mapping[str, torch.Tensor]) -> int:
        """Return how many tokens stand for an image."""
        with torch.no_grad():
            return len(self._features_of(picture))

    def _unchanged(self) -> contextlib.AbstractContextManager[None]:
        """Let a model forget afterwards what it keeps of the last text."""
        return contextlib.nullcontext()

    def _refused(self, why: str) -> Exception:
        return InvalidArgumentError(
            f"{type(self.model).__name__} cannot be written: so far only models are supported that read pixels of "
            "images, of one size, with their sizes as Pixtral does or in tiles as LLaVA-NeXT does, or patches on grids "
            f"as Qwen2-VL does or in rows as LFM2-VL does: {why}."
        )

    def _images(self, count: int) -> torch.Tensor:
        config = self.model.config.vision_config
        sizes = config.image_size
        height, width = (sizes, sizes) if isinstance(sizes, int) else sizes
        generator = torch.Generator().manual_seed(0)
        images = torch.rand(count, getattr(config, "num_channels", 3), height, width, generator=generator)
        return images.to(self.model.dtype)

    def parts(self, *, last_logits: bool) -> list[Part]:
        """Return the three graphs, and that for prompts if there is one."""
        *prompts, decoder = super().parts(last_logits=last_logits)
        ids = torch.full((_BATCH, _NEW), self._image_token)
        embedding = Part(
            EMBEDDING_FILE,
            EmbeddingGraph(self.model, self._image_token),
            (ids, torch.zeros(ids.numel(), self._width, dtype=self.model.dtype)),
            ({0: "batch_size", 1: "sequence_length"}, {0: "image_token_count"}),
            ["input_ids", self.sense.features],
        )
        readers = [self._decoder(part, last_logits=last_logits) for part in (*prompts, decoder)]
        return [self._vision(), embedding, *readers]

    def _vision(self) -> Part:
        # Models make a list of the images that they are given, whose length no graph can leave open.
        graph = VisionGraph(self.model, apart=self._apart)
        return Part(VISION_FILE, graph, (self._images(1),), ({},), reads_steps=False)

    def _decoder(self, decoder: Part, *, last_logits: bool) -> Part:
        """Return the graph that reads embeddings (B, S, width) where a decoder, or one of prompts, reads tokens."""
        tokens, mask, past = decoder.args
        embeds = torch.zeros(*tokens.shape, self._width, dtype=self.model.dtype)
        text, total, kept = decoder.dynamic_shapes
        types = (torch.zeros_like(mask), total) if self._takes_types else (None, None)
        graph = EmbeddedDecoderGraph(self.model, last_logits=last_logits, empty=self._empty)
        return Part(decoder.file, graph, (embeds, mask, types[0], past), (text, total, types[1], kept))

    def config(self) -> dict[str, Any]:
        """Return ``genai_config.json``."""
        config, features = super().config(), self.sense.features
        inputs = config["model"]["decoder"]["inputs"]
        del inputs["input_ids"]
        inputs |= {"inputs_embeds": "inputs_embeds"} | ({_TYPES: _TYPES} if self._takes_types else {})
        config["model"] |= {
            "type": self.model.config.model_type,
            self.sense.token: self._image_token,
            self.sense.section: {
                "filename": self.sense.file,
                "inputs": {self.sense.reads: self.sense.reads},
                "outputs": {features: features},
            },
            "embedding": {
                "filename": EMBEDDING_FILE,
                "inputs": {"input_ids": "input_ids", features: features},
                "outputs": {"inputs_embeds": "inputs_embeds"},
            },
        }
        if self._reads_prefix:
            config["model"]["embedding"]["token_types"] = "prefix"
        return config

    def special(self) -> list[int]:
        """Return the tokens that mean something to an engine, or to the model."""
        marks = (getattr(self.model.config, name, None) for name in _MARKS)
        return [*super().special(), *(mark for mark in marks if mark is not None)]

    def batch(self, lengths: tuple[int, ...]) -> Batch:
        """Return random prompts, padded on the left, each with an image; one of a single token has none."""
        if lengths == (1,):
            return self._with_types(super().batch(lengths))
        return self._shown(lengths, self._together(len(lengths)))

    def _shown(self, lengths: tuple[int, ...], pictures: list[dict[str, torch.Tensor]]) -> Batch:
        """Return random prompts, padded on the left, each with one of these images."""
        images = [np.full(self._count(picture), self._image_token) for picture in pictures]
        rows = [
            np.concatenate([row[:1], image, row[1:]]) for row, image in zip(self.draw(lengths), images, strict=True)
        ]
        batch = self._with_types(self.padded(rows))
        shown = [
            {**row, **{name: image.numpy() for name, image in picture.items()}}
            for row, picture in zip(batch.rows, pictures, strict=True)
        ]
        together = {name: _padded([row[name] for row in shown]) for name in self.names_of_images}
        return Batch(batch.lengths, {**batch.inputs, **together}, shown)

    def _with_types(self, batch: Batch) -> Batch:
        """Say of prompts what processors say of them, if the model reads it: that all of a prompt is prefix."""
        if not self._reads_prefix:
            return batch
        return Batch(batch.lengths, {**batch.inputs, _TYPES: np.zeros_like(batch.inputs["input_ids"])}, batch.rows)

    def extended(self, row: Mapping[str, npt.NDArray[Any]], tokens: Tokens) -> dict[str, torch.Tensor]:
        """Return prompt and tokens in one, with the image."""
        inputs = super().extended(row, tokens)
        if self.sense.reads in row:
            inputs |= {name: torch.from_numpy(row[name]) for name in self.names_of_images}
            if self._apart:
                inputs[self.sense.reads] = inputs[self.sense.reads][None]
        if self._takes_types:
            inputs[_TYPES] = (inputs["input_ids"] == self._image_token).long()
        if self._reads_prefix:
            inputs[_TYPES] = (torch.arange(inputs[_TYPES].shape[1])[None] >= len(row["input_ids"])).long()
        return inputs

    @functools.cached_property
    def _reads_prefix(self) -> bool:
        """Whether a token of type 0 sees what follows it: types mark a prefix then (PaliGemma), and not images."""
        if not self._takes_types:
            return False
        tokens = torch.from_numpy(self.draw((_TRIED,))[0])[None]
        types, others = torch.zeros_like(tokens), torch.cat([tokens[:, :-1], tokens[:, :1]], 1)
        one, other = (self.logits({"input_ids": ids, _TYPES: types})[0] for ids in (tokens, others))
        return differ(self.model, one, other, much=True)


class OwnSizesVisionLanguage(VisionLanguage):
    """Models whose images each have a size of their own, which they are told. Their graph reads one of them."""

    @functools.cached_property
    def _apart(self) -> bool:
        """No, as a look at one image tells."""
        try:
            with torch.no_grad():
                self._features_of(self._pictures(1)[0])
        except Exception as error:  # whatever a model raises that needs more than images
            raise self._refused(str(error)) from error
        return False


class VisionGraph(torch.nn.Module):
    """What a model makes of an image.

    Args:
        model: A model of transformers that reads images.
        apart: Whether it takes the images of each text apart, as (texts, images, channels, height, width).
    """

    def __init__(self, model: Any, *, apart: bool) -> None:
        super().__init__()
        self._eyes = body_of(model, SIGHT)
        self._apart = apart

    def forward(self, pixel_values: torch.Tensor) -> dict[str, torch.Tensor]:
        """Return ``image_features`` (tokens, width) of images (N, channels, height, width)."""
        images = pixel_values[:, None] if self._apart else pixel_values
        features = self._eyes.get_image_features(pixel_values=images, return_dict=True).pooler_output
        return {"image_features": joined(features)}


def joined(features: Any) -> torch.Tensor:
    """Return what a model makes of images (tokens, width), whether it has it by image or not."""
    together: torch.Tensor = torch.cat(list(features), 0) if isinstance(features, tuple | list) else features
    return together.reshape(-1, together.shape[-1])


def _padded(arrays: list[npt.NDArray[Any]]) -> npt.NDArray[Any]:
    """Return arrays (1, ...) as one (N, ...), with zeros behind what is smaller."""
    shape = np.max([array.shape for array in arrays], axis=0)
    return np.concatenate([
        np.pad(array, [(0, most - size) for most, size in zip(shape, array.shape, strict=True)]) for array in arrays
    ])  # fmt: skip


class EmbeddingGraph(torch.nn.Module):
    """Embeddings of tokens, with what was made of images in place of theirs.

    Args:
        model: A model of transformers that reads images, or sounds in the same way.
        token: The token that stands for a part of them.
    """

    def __init__(self, model: Any, token: int) -> None:
        super().__init__()
        self.embeddings = model.get_input_embeddings()
        self._image_token = token
        self._is_known = self._image_token < self.embeddings.num_embeddings

    def forward(self, input_ids: torch.Tensor, image_features: torch.Tensor) -> dict[str, torch.Tensor]:
        """Return ``inputs_embeds`` (B, S, width).

        Args:
            input_ids: Tokens (B, S), int64.
            image_features: What the tokens of images stand for (T, width), in the order of the tokens, row by row. If
                that is wider than embeddings, zeros stand behind those of text.
        """
        is_image = input_ids == self._image_token
        embeds = self.embeddings(input_ids if self._is_known else torch.where(is_image, 0, input_ids))
        # A row behind them, which other tokens read, lets there be no image; a token without one is a token of text.
        embeds = torch.nn.functional.pad(embeds, (0, image_features.shape[1] - embeds.shape[2]))
        rows = torch.cat([image_features, torch.zeros_like(embeds[:1, 0])]).to(embeds.dtype)
        places, count = is_image.reshape(-1).cumsum(0).reshape(input_ids.shape) - 1, image_features.shape[0]
        shown = is_image & (places < count)
        return {"inputs_embeds": torch.where(shown.unsqueeze(-1), rows[torch.where(shown, places, count)], embeds)}


class EmbeddedDecoderGraph(CachedGraph):
    """The forward of a causal language model on embeddings."""

    def forward(
        self,
        inputs_embeds: torch.Tensor,
        attention_mask: torch.Tensor,
        token_type_ids: torch.Tensor | None,
        past_key_values: Cache,
    ) -> dict[str, torch.Tensor | Cache]:
        """Return what :meth:`read` makes of new embeddings (B, S, width).

        Args:
            inputs_embeds: The embeddings.
            attention_mask: 1 for a token and 0 for padding (B, P + S), int64.
            token_type_ids: 1 for a token of an image and 0 for another (B, P + S), int64, if the model takes them; of
                models that read a prefix 0 for its tokens and 1 for those behind it.
            past_key_values: Keys and values (B, heads, P, width) of each layer.
        """
        given = {"inputs_embeds": inputs_embeds}
        if token_type_ids is not None:
            given[_TYPES] = token_type_ids
        cache = as_dynamic(past_key_values, self._empty, unread=token_type_ids is not None)
        result = self.read_from(cache, inputs_embeds.shape[1], attention_mask, given)
        return {"logits": result.logits, "present": kept_by(getattr(result, self._cache_name))}
