"""Models that read images of any size as patches on grids, and count positions in three directions."""

from __future__ import annotations

import contextlib
import functools
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt
import torch

from onnx_fx_export.generation.caches import Cache, past_of
from onnx_fx_export.generation.config import VISION_FILE
from onnx_fx_export.generation.kinds.base import Batch, Part, Tokens
from onnx_fx_export.generation.kinds.decoder import CachedGraph
from onnx_fx_export.generation.kinds.patches import PatchLayout, attention_by_segments, lengths_of_images
from onnx_fx_export.generation.kinds.vision_language import EmbeddingGraph, VisionLanguage
from onnx_fx_export.generation.requirements import transformers
from onnx_fx_export.generation.senses.seeing import Places

__all__ = ["GridVisionLanguage", "placed"]

_IMAGES, _GRIDS, _TYPES, _POSITIONS = "pixel_values", "image_grid_thw", "mm_token_type_ids", "position_ids"
_ADDED = "deepstack_features"
_SEVERAL = 10
# What ONNX Runtime GenAI asks for beside.
_MARKS = ("image_token_id", "video_token_id")
# The token before those of an image, and what models call it.
_START = "vision_start_token_id"
_STARTS = (_START, "image_start_token_id")
_OF_VIDEOS = ("tokens_per_second", "window_size")


class GridVisionLanguage(VisionLanguage):
    """Models like Qwen2-VL, whose images have any size and whose tokens have places in time, height and width."""

    genai_type: str | None = "qwen2_5_vl"
    parameters: ClassVar = VisionLanguage.parameters | {_GRIDS, _TYPES, _POSITIONS}

    def __init__(self, model: Any) -> None:
        super().__init__(model)
        if self._start is None:
            self.genai_type = None

    @property
    def _start(self) -> int | None:
        """The token before the tokens of an image, by which ONNX Runtime GenAI finds them."""
        given = (getattr(self.model.config, name, None) for name in _STARTS)
        return next((token for token in given if token is not None), None)

    def special(self) -> list[int]:
        """Return the tokens that mean something to an engine, or to the model."""
        return [*super().special(), *([] if self._start is None else [self._start])]

    @functools.cached_property
    def _layout(self) -> PatchLayout:
        config = self.model.config.vision_config
        merge, window = config.spatial_merge_size, getattr(config, "window_size", None)
        side = getattr(self.model.get_encoder(modality="image"), "num_grid_per_side", None)
        return PatchLayout(merge, window // merge // config.patch_size if window else None, side)

    @property
    def _sizes(self) -> list[list[int]]:
        """Grids of images: one of a single block, and others that windows cut."""
        merge, window = self._layout.merge, self._layout.window or 1
        return [[1, merge * rows, merge * columns] for rows, columns in ((2, 3), (1, 1), (window + 2, window + 1))]

    @functools.cached_property
    def _trial(self) -> dict[str, torch.Tensor]:
        """A prompt with images of all sizes."""
        (text,) = self.draw((len(self._sizes) + 1,))
        images = {name: value.numpy() for name, value in self._seen(self._sizes).items()}
        return self.extended({"input_ids": self._with_images(text, self._sizes), **images}, np.zeros(0, np.int64))

    def _read_by_model(self) -> list[torch.Tensor]:
        """Return what the model makes of the images of the trial, and its logits."""
        images = {name: self._trial[name] for name in (_IMAGES, _GRIDS)}
        features = _joined(self.model.get_image_features(**images, return_dict=True))
        return [features, self.model(**self._trial).logits]

    def _read_by_graphs(self) -> list[torch.Tensor]:
        """Return the same as the graphs compute it."""
        features = PatchGraph(self.model, self._layout)(self._trial[_IMAGES], self._trial[_GRIDS])["image_features"]
        embeds = EmbeddingGraph(self.model, self._image_token)(self._trial["input_ids"], features)["inputs_embeds"]
        return [features, self._logits_of(embeds, self._trial)]

    def _logits_of(self, embeds: torch.Tensor, trial: Mapping[str, torch.Tensor]) -> torch.Tensor:
        graph = PlacedDecoderGraph(self.model, last_logits=False, empty=self._empty)
        past = past_of(self.layers, 1, 0, self.model.dtype)
        result = graph(embeds, trial["attention_mask"], self._places(trial), past)["logits"]
        assert isinstance(result, torch.Tensor)
        return result

    def _places(self, trial: Mapping[str, torch.Tensor]) -> torch.Tensor:
        """Return where the tokens of a trial stand in time, height and width (3, 1, S), int64."""
        types, mask, grids = (trial[name].numpy() for name in (_TYPES, "attention_mask", _GRIDS))
        return torch.from_numpy(Places(self._layout.merge, 1).read(types, mask, grids))

    def _refused(self, why: str) -> Exception:
        return super()._refused(f"{why} (transformers {transformers().__version__})")

    def _seen(self, grids: list[list[int]]) -> dict[str, torch.Tensor]:
        """Return random images by the names of the model's parameters."""
        config, sizes = self.model.config.vision_config, torch.tensor(grids)
        width = config.in_channels * config.temporal_patch_size * config.patch_size**2
        random = torch.Generator().manual_seed(0)
        patches = torch.rand(int(sizes.prod(1).sum()), width, generator=random) * 2 - 1
        return {_IMAGES: patches.to(self.model.dtype), _GRIDS: sizes}

    def _vision(self) -> Part:
        images = self._seen(self._sizes)
        shapes = ({0: "patch_count"}, {0: "image_count"})
        graph = PatchGraph(self.model, self._layout)
        return Part(VISION_FILE, graph, tuple(images.values()), shapes, reads_steps=False)

    def _decoder(self, decoder: Part, *, last_logits: bool) -> Part:
        tokens, mask, past = decoder.args
        text, total, kept = decoder.dynamic_shapes
        embeds = torch.zeros(*tokens.shape, self._width, dtype=self.model.dtype)
        positions = torch.zeros(3, *embeds.shape[:2], dtype=torch.int64)
        args, shapes = (
            (embeds, mask, positions, past),
            (text, total, {axis + 1: name for axis, name in text.items()}, kept),
        )
        graph = PlacedDecoderGraph(self.model, last_logits=last_logits, empty=self._empty)
        return Part(decoder.file, graph, args, shapes)

    def config(self) -> dict[str, Any]:
        """Return ``genai_config.json``."""
        config = super().config()
        config["model"]["decoder"]["inputs"][_POSITIONS] = _POSITIONS
        config["model"]["decoder"]["hidden_size"] = self._width
        own, eyes = self.model.config, self.model.config.vision_config
        config["model"] |= {
            "type": self.genai_type,
            **{name: getattr(own, name) for name in _MARKS if hasattr(own, name)},
            _START: self._start,
        }
        vision = config["model"]["vision"]
        vision["inputs"][_GRIDS] = _GRIDS
        vision |= {"spatial_merge_size": self._layout.merge, "patch_size": eyes.patch_size}
        vision |= {name: getattr(eyes, name) for name in _OF_VIDEOS if hasattr(eyes, name)}
        return config

    def counts_padding(self, length: int) -> bool:
        """Return true: ONNX Runtime GenAI counts padding among the places of such models."""
        return True

    def batch(self, lengths: tuple[int, ...]) -> Batch:
        """Return random prompts, padded on the left, each with an image, long ones with two, one of 1 with none.

        Texts of one length have images of one size.
        """
        if lengths == (1,):
            return super().batch(lengths)
        shown, rows = [], []
        alike = len(set(lengths)) == 1
        for number, row in enumerate(self.draw(lengths)):
            number = 0 if alike else number
            grids = [self._sizes[(number + k) % len(self._sizes)] for k in range(1 + (len(row) > _SEVERAL))]
            rows.append(self._with_images(row, grids))
            shown.append(grids)
        images = self._seen([grid for grids in shown for grid in grids])
        batch, patches = self.padded(rows), images[_IMAGES].float()
        of_rows = patches.split([sum(map(math.prod, grids)) for grids in shown])
        alone = [
            {**row, _IMAGES: own.numpy(), _GRIDS: np.array(grids)}
            for row, own, grids in zip(batch.rows, of_rows, shown, strict=True)
        ]
        return Batch(batch.lengths, {**batch.inputs, _IMAGES: patches.numpy(), _GRIDS: images[_GRIDS].numpy()}, alone)

    def _with_images(self, text: Tokens, grids: list[list[int]]) -> Tokens:
        """Return a text with the tokens of images behind its first ones, each image behind its mark."""
        mark, pieces = [] if self._start is None else [self._start], []
        for token, grid in zip(text, grids, strict=False):
            pieces += [token, *mark, *[self._image_token] * (math.prod(grid) // self._layout.merge**2)]
        return np.array([*pieces, *text[len(grids) :]])

    def extended(self, row: Mapping[str, npt.NDArray[Any]], tokens: Tokens) -> dict[str, torch.Tensor]:
        """Return prompt and tokens in one, with the images."""
        inputs = super(VisionLanguage, self).extended(row, tokens)
        inputs[_TYPES] = (inputs["input_ids"] == self._image_token).int()
        if _IMAGES in row:
            inputs |= {name: torch.from_numpy(row[name]) for name in (_IMAGES, _GRIDS)}
        return inputs

    def generate(self, inputs: Mapping[str, torch.Tensor], new: int) -> Tokens:
        """Return what the model's own ``generate`` finds: (``new``,), int64."""
        with self._unchanged():
            return super().generate(inputs, new)

    def logits(self, inputs: Mapping[str, torch.Tensor]) -> torch.Tensor:
        """Return the model's own logits (T, vocabulary) for a prompt alone, float32."""
        with self._unchanged():
            return super().logits(inputs)

    @contextlib.contextmanager
    def _unchanged(self) -> Iterator[None]:
        """Let a model forget afterwards how far the positions of the last text lay from the number of its tokens."""
        modules: Iterator[Any] = self.model.modules()
        own = [(module, module.rope_deltas) for module in modules if hasattr(module, "rope_deltas")]
        try:
            yield
        finally:
            for module, deltas in own:
                module.rope_deltas = deltas


class PatchGraph(torch.nn.Module):
    """What a model makes of the patches of images.

    Args:
        model: A model of transformers that reads images as patches on grids.
        layout: How they are laid out.
    """

    def __init__(self, model: Any, layout: PatchLayout) -> None:
        super().__init__()
        self.tower = model.get_encoder(modality="image")
        self._layout = layout

    def forward(self, pixel_values: torch.Tensor, image_grid_thw: torch.Tensor) -> dict[str, torch.Tensor]:
        """Return ``image_features`` (tokens, width).

        Args:
            pixel_values: The patches of all images (patches, numbers).
            image_grid_thw: Frames, rows and columns of each (images, 3), int64.
        """
        places = self._layout.places(image_grid_thw, pixel_values.shape[0])
        with attention_by_segments(self.tower.config), lengths_of_images(self.tower, image_grid_thw.prod(1)):
            result = self.tower(pixel_values, grid_thw=image_grid_thw, return_dict=True, **places)
        return {"image_features": _joined(result)}


def _joined(result: Any) -> torch.Tensor:
    """Return what a model makes of images (tokens, width): what stands for tokens, then what layers add to them."""
    features = [result.pooler_output, *(getattr(result, _ADDED, None) or [])]
    return torch.cat([torch.cat(list(each)) if isinstance(each, tuple | list) else each for each in features], -1)


class PlacedDecoderGraph(CachedGraph):
    """The forward of a causal language model on embeddings, each with a place in three directions."""

    def forward(
        self,
        inputs_embeds: torch.Tensor,
        attention_mask: torch.Tensor,
        position_ids: torch.Tensor,
        past_key_values: Cache,
    ) -> dict[str, torch.Tensor | Cache]:
        """Return what :meth:`read` makes of new embeddings (B, S, width).

        Args:
            inputs_embeds: The embeddings, and beside them what is added behind the first layers, zeros for text.
            attention_mask: 1 for a token and 0 for padding (B, P + S), int64.
            position_ids: Their places in time, height and width (3, B, S), int64.
            past_key_values: Keys and values (B, heads, P, width) of each layer.
        """
        with placed(self.model, inputs_embeds, position_ids) as given:
            return self.read(inputs_embeds.shape[1], attention_mask, past_key_values, **given)


@contextlib.contextmanager
def placed(model: Any, inputs_embeds: torch.Tensor, position_ids: torch.Tensor) -> Iterator[dict[str, torch.Tensor]]:
    """Let layers of a model add what stands beside embeddings, and give what its forward reads.

    Args:
        model: A model of transformers.
        inputs_embeds: The embeddings, and beside them what is added behind the first layers (B, S, width).
        position_ids: Their places in time, height and width (3, B, S), int64.
    """
    embeds, *added = inputs_embeds.split(model.get_input_embeddings().embedding_dim, -1)
    with _adding(model.get_decoder().layers if added else [], added):
        yield {"inputs_embeds": embeds, "position_ids": position_ids}


@contextlib.contextmanager
def _adding(layers: Any, added: Sequence[torch.Tensor]) -> Iterator[None]:
    """Let something (B, S, width) be added behind each of the first layers."""
    own = [layer.forward for layer in layers[: len(added)]]
    for layer, forward, more in zip(layers, own, added, strict=False):
        layer.forward = functools.partial(_plus, forward, more)
    try:
        yield
    finally:
        for layer, _ in zip(layers, own, strict=False):
            del layer.forward


def _plus(forward: Callable[..., torch.Tensor], more: torch.Tensor, *args: Any, **kwargs: Any) -> torch.Tensor:
    return forward(*args, **kwargs) + more
