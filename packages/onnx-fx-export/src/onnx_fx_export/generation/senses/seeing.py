"""What a folder's graphs make of images, and of the tokens that stand for them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt

from onnx_fx_export.errors import InvalidArgumentError
from onnx_fx_export.generation.senses.tiles import TileLayout
from onnx_fx_export.generation.sessions import GraphSession

__all__ = ["Eyes", "Places", "Reading"]

Tokens = npt.NDArray[np.int64]
Array = npt.NDArray[Any]
_IMAGES, _GRIDS, _FEATURES, _NEWLINE = "pixel_values", "image_grid_thw", "image_features", "image_newline"
_EMBEDS = "inputs_embeds"
# Rows and columns of pixels of each image that are no padding.
_SIZES = "image_sizes"
# Rows and columns of patches of each image.
_SHAPES = "spatial_shapes"
# How many images each text has.
_COUNTS = "batch_num_images"
# Which parts of images are no padding.
_PARTS = "pixel_attention_mask"
# Texts, images, channels, height, width.
_AXES, _AXES_APART = 4, 5
# What processors say of each token beside images: 1 for one that stands for a part of an image, as here.
_TYPES = ("token_type_ids", "mm_token_type_ids")


class Eyes:
    """The graphs for images and embeddings.

    Attributes:
        names: What a call may hand in beside tokens.
        vision: The graph for images.
        embedding: The graph for embeddings.
        none: What no image is made into.
        merge: How many rows and columns of patches become one token.
        section: What the configuration calls the graph for images.
        token: What it calls the token that stands for a part of them.
        what: What they are.
        reads: What models call them.
        made: What graphs call their features.
        reads_prefix: Whether types of tokens are 0 in a prefix and 1 behind it, and not those of images.

    Args:
        folder: The folder.
        config: What its ``genai_config.json`` says of the model.
        providers: Execution providers of ONNX Runtime, the preferred one first.
    """

    section: ClassVar = "vision"
    token: ClassVar = "image_token_id"
    what: ClassVar = "images"
    reads: ClassVar = _IMAGES
    made: ClassVar = _FEATURES

    def __init__(self, folder: Path, config: Mapping[str, Any], providers: Sequence[str]) -> None:
        vision = config[self.section]
        self.vision = GraphSession(folder / vision["filename"], providers)
        self.embedding = GraphSession(folder / config["embedding"]["filename"], providers)
        self.none = self.embedding.zeros(self.made, 0).numpy()
        self._image_token = config[self.token]
        self.merge = vision.get("spatial_merge_size", 1)
        self.reads_prefix = config["embedding"].get("token_types") == "prefix"
        self._side, self._block = vision.get("side", 0), vision.get("block", 1)
        self._fewest_blocks = vision.get("fewest_blocks", 1)
        tiles = vision.get("tiles")
        self._tiles = TileLayout.of(tiles) if tiles else None
        self._fewest = vision.get("fewest_sides", 1)
        self.names = [*self.vision.declared, *_TYPES, _PARTS, *vision.get("beside", [])]

    def is_image(self, tokens: Tokens) -> Tokens:
        """Return 1 for the tokens (B, S) that stand for a part of an image."""
        result: Tokens = np.asarray(tokens == self._image_token, np.int64)
        return result

    def features(self, tokens: Tokens, given: Mapping[str, Array]) -> Array:
        """Return what stands for the tokens of images (tokens, width).

        Args:
            tokens: Tokens (B, S), int64.
            given: Images, by the names of the inputs.

        Raises:
            InvalidArgumentError: If the tokens of images are more or fewer than their images have.
        """
        result = np.concatenate([self.none, *self._seen(given)])
        if len(result) != (wanted := int(self.is_image(tokens).sum())):
            raise InvalidArgumentError(
                f"The prompts have {wanted} tokens for {self.what}, but the {self.what} in {self.reads} stand for "
                f"{len(result)}."
            )
        return result

    def _seen(self, given: Mapping[str, Array]) -> list[Array]:
        if _IMAGES not in given and _GRIDS not in given:
            return []
        if self._tiles:
            return self._joined(self._tiles, given)
        if _SHAPES in self.vision.declared:
            images = self._shaped(given)
        elif self._side:
            images = [{_IMAGES: image} for image in self._cropped(given)]
        elif _GRIDS not in self.vision.declared:
            images = [{_IMAGES: image[None]} for image in _in_order(given[_IMAGES], given.get(_PARTS))]
        else:
            images = [_checked_grids(given, self.merge)]
        return [self.vision.run(image, {})[_FEATURES].numpy() for image in images]

    def _shaped(self, given: Mapping[str, Array]) -> list[dict[str, Array]]:
        """Return patches of images, each with its rows and columns, without most of the padding of a batch.

        Raises:
            InvalidArgumentError: If there are other patches than rows and columns tell.
        """
        patches, shapes = given.get(_IMAGES, np.zeros((0, 0, 0))), np.asarray(given.get(_SHAPES, ()), np.int64)
        shapes, result = shapes.reshape(-1, 2), []
        counts = shapes.prod(1)
        mask = np.asarray(given.get(_PARTS, np.arange(patches.shape[1]) < counts[:, None]))
        block = self._block**2
        if (
            patches.ndim != _AXES - 1
            or mask.shape != patches.shape[:2]
            or (shapes % self._block).any()
            or (counts > patches.shape[1]).any()
            or not np.array_equal(mask, np.arange(patches.shape[1]) < counts[:, None])
        ):
            raise InvalidArgumentError(
                f"{_SHAPES} has to say how many rows and columns of patches each image in {_IMAGES} (N, patches, "
                f"numbers) has, by {self._block}, and {_PARTS} which of them are no padding: it is {shapes.tolist()} "
                f"for {patches.shape}."
            )
        for image, shape, count in zip(patches, shapes, counts.tolist(), strict=True):
            whole = max(count, self._fewest_blocks * block)
            behind = ((0, max(whole - len(image), 0)), (0, 0))
            parts = (np.arange(whole) < count).astype(np.int64)
            result.append({_IMAGES: np.pad(image, behind)[None, :whole], _SHAPES: shape[None], _PARTS: parts[None]})
        return result

    def _cropped(self, given: Mapping[str, Array]) -> list[Array]:
        """Return images (1, channels, height, width) without the padding that a batch of several sizes has.

        Raises:
            InvalidArgumentError: If they have other sizes than the model reads.
        """
        images = given[_IMAGES]
        sizes = np.asarray(given.get(_SIZES, [images.shape[2:]] * len(images)), np.int64)
        fits = images.ndim == _AXES and sizes.shape == (len(images), 2)
        if (
            not fits
            or (sizes % self._side).any()
            or (sizes < self._fewest * self._side).any()
            or (sizes > images.shape[2:]).any()
        ):
            raise InvalidArgumentError(
                f"{_SIZES} has to say of each image in {_IMAGES} (N, channels, height, width) how high and wide it is, "
                f"by {self._side}, and at least {self._fewest * self._side}: it is {sizes.tolist()} for {images.shape}."
            )
        return [image[None, :, :height, :width] for image, (height, width) in zip(images, sizes, strict=True)]

    def _joined(self, layout: TileLayout, given: Mapping[str, Array]) -> list[Array]:
        """Return what stands for the tokens of images that are read in tiles."""
        sizes = np.asarray(given.get(_SIZES, ()), np.int64).reshape(-1, 2)
        result, several = [], self.vision.declared[_IMAGES].shape[0]
        for tiles, (height, width) in zip(_tiles_of(layout, sizes, given), sizes.tolist(), strict=True):
            whole = np.pad(tiles, ((0, -len(tiles) % several), (0, 0), (0, 0), (0, 0)))
            made = [self.vision.run({_IMAGES: some}, {}) for some in np.split(whole, len(whole) // several)]
            features = np.concatenate([each[_FEATURES].numpy() for each in made])[: len(tiles)]
            result.append(layout.packed(features, made[0][_NEWLINE].numpy(), height, width))
        return result


def _tiles_of(layout: TileLayout, sizes: Tokens, given: Mapping[str, Array]) -> list[Array]:
    """Return the tiles (tiles, channels, height, width) of each image, without those that fill up a batch.

    Where a text has several images, as ``batch_num_images`` says, each of them is one tile.

    Raises:
        InvalidArgumentError: If there are more or fewer.
    """
    images = np.asarray(given.get(_IMAGES, np.zeros((0, 0, 0, 0))))
    texts = np.asarray(given.get(_COUNTS, np.ones(len(sizes))), np.int64).reshape(-1)
    alone = np.repeat(texts == 1, texts)
    if len(alone) == len(sizes) and (sizes > 0).all():
        counts = [layout.count(*size) if one else 1 for size, one in zip(sizes.tolist(), alone, strict=True)]
        if images.ndim == _AXES and len(images) == sum(counts):
            return np.split(images, np.cumsum(counts)[:-1]) if counts else []
        if images.ndim == _AXES_APART and len(images) == len(counts) and images.shape[1] >= max(counts, default=0):
            return [image[:count] for image, count in zip(images, counts, strict=True)]
    raise InvalidArgumentError(
        f"{_SIZES} (N, 2) has to say how high and wide each image was whose tiles are in {_IMAGES} (N, tiles, "
        f"channels, height, width), and {_COUNTS} how many of them each text has: they are {sizes.tolist()} for "
        f"{images.shape} and {texts.tolist()}."
    )


def _in_order(images: Array, parts: Array | None) -> Array:
    """Return images (N, channels, height, width), where processors may hand out those of each text apart.

    A text with fewer images than another has images of zeros behind them then.

    Args:
        images: The images, with those of each text apart or not.
        parts: 1 for what is a part of an image and 0 for padding (texts, images, height, width), if there is padding.

    Raises:
        InvalidArgumentError: If there is padding in an image.
    """
    apart = images.ndim == _AXES_APART
    images = images.reshape(-1, *images.shape[2:]) if apart else images
    shown = images.any((1, 2, 3)) if apart else np.ones(len(images), bool)
    if parts is not None and not parts.reshape(-1, *parts.shape[-2:])[shown].all():
        raise InvalidArgumentError(
            f"{_PARTS} says that images have padding, which the folder does not read: pass images of one size."
        )
    return images[shown]


def _check_types(given: Mapping[str, Array], is_image: Tokens) -> None:
    """Refuse types that mark other tokens than those that stand for a part of an image.

    Raises:
        InvalidArgumentError: If there are some.
    """
    for name in _TYPES:
        if not np.array_equal(given.get(name, is_image), is_image):
            raise InvalidArgumentError(
                f"{name} marks other tokens than those that stand for images: leave it out; videos are not supported."
            )


def _checked_types(given: Any, like: Tokens) -> Tokens:
    """Return the types of the tokens of a prompt, 0 in its prefix and 1 behind it.

    Raises:
        InvalidArgumentError: If they are none.
    """
    types = np.asarray(given)
    if types.shape != like.shape or not np.isin(types, (0, 1)).all():
        raise InvalidArgumentError(
            f"{_TYPES[0]} is 0 for each token of the prefix and 1 behind it, of the shape {like.shape} of the prompts."
        )
    return types.astype(np.int64)


def _checked_grids(given: Mapping[str, Array], merge: int) -> dict[str, Array]:
    """Return patches and grids that fit each other.

    Raises:
        InvalidArgumentError: If they do not.
    """
    patches, grids = given.get(_IMAGES, np.zeros((0, 0))), np.asarray(given.get(_GRIDS, ()), np.int64).reshape(-1, 3)
    if len(patches) != int(grids.prod(1).sum()) or (grids % [1, merge, merge]).any():
        raise InvalidArgumentError(
            f"{_IMAGES} has {len(patches)} patches, and {_GRIDS} has to say of each image how many frames, rows and "
            f"columns of them it has, rows and columns by {merge}: it is {grids.tolist()}."
        )
    return {_IMAGES: patches, _GRIDS: grids}


class Reading:
    """One text with images as it grows.

    Args:
        eyes: The graphs.
        tokens: The prompts (B, S), int64.
        given: Images, by the names of the inputs, and types of the tokens.

    Raises:
        InvalidArgumentError: If types of tokens are of another kind.
    """

    def __init__(self, eyes: Eyes, tokens: Tokens, given: Mapping[str, Array]) -> None:
        self._eyes, self._given, batch = eyes, dict(given), len(tokens)
        self._prefix = self._given.pop(_TYPES[0], None) if eyes.reads_prefix else None
        _check_types(self._given, eyes.is_image(tokens))
        self._types = np.zeros((batch, 0), np.int64)
        self._places = Places(eyes.merge, batch)
        # What the decoder has to read: embeddings (B, S, width), and where they stand (3, B, S).
        self._embeds: Any = None
        self._at: Tokens = np.zeros((3, batch, 0), np.int64)
        self._read = 0

    def read(self, tokens: Tokens, mask: Tokens) -> Reading:
        """Read new tokens, all images of a text being in its first ones; return this text, to be read in parts.

        Args:
            tokens: The tokens (B, S), int64.
            mask: 1 for a token and 0 for padding (B, S), int64.

        Raises:
            InvalidArgumentError: If the tokens of images do not fit the images, or the types of a prefix the tokens.
        """
        is_image = self._eyes.is_image(tokens)
        types = np.ones_like(is_image) if self._eyes.reads_prefix else is_image
        if self._prefix is not None:
            types, self._prefix = _checked_types(self._prefix, types), None
        # What a model generates means no image.
        features = self._eyes.none if self._types.size else self._eyes.features(tokens, self._given)
        self._embeds = self._eyes.embedding.run({"input_ids": tokens, self._eyes.made: features}, {})[_EMBEDS]
        self._at, self._read = self._places.read(is_image, mask, self._given.get(_GRIDS)), self._types.shape[1]
        self._types = np.concatenate([self._types, types], 1)
        self._given = {}  # the images were in these tokens
        return self

    def upto(self, place: int) -> tuple[dict[str, Array], dict[str, Any]]:
        """Return what the decoder reads of the next tokens: arrays, and what is in the runtime's memory.

        Args:
            place: Behind which token of the text they end.
        """
        first, self._read = self._read, place
        seen = {"token_type_ids": self._types[:, :place]}
        behind = self._types.shape[1] - place
        last = self._at.shape[2] - behind
        part = slice(last - (place - first), last)
        seen["position_ids"] = self._at[:, :, part]
        if part == slice(0, self._at.shape[2]):
            return seen, {_EMBEDS: self._embeds}
        return {**seen, _EMBEDS: self._embeds.numpy()[:, part]}, {}


class Places:
    """Where the tokens of a text stand in time, height and width, as the text grows.

    Args:
        merge: How many rows and columns of patches become one token.
        batch: How many rows the text has.
    """

    def __init__(self, merge: int, batch: int) -> None:
        self._merge, self._next = merge, [0] * batch

    def read(self, is_image: Tokens, mask: Tokens, grids: Array | None) -> Tokens:
        """Return the places of new tokens (3, B, S), int64; 0 for padding.

        Those of a text follow each other. A block of an image stands where it is in the image, counted from what comes
        before; what follows comes behind the last row or column.

        Args:
            is_image: 1 for tokens that stand for a part of an image (B, S), int64.
            mask: 1 for a token and 0 for padding (B, S), int64.
            grids: Frames, rows and columns of patches of each image (images, 3), int64, or None where there is none.

        Raises:
            InvalidArgumentError: If an image has another number of tokens.
        """
        result = np.zeros((3, *mask.shape), np.int64)
        blocks = None if grids is None else iter(np.asarray(grids) // [1, self._merge, self._merge])
        for row, kept in enumerate(mask.astype(bool)):
            seen, at = is_image[row, kept].astype(bool), 0
            places = np.empty((3, len(seen)), np.int64)
            while at < len(seen):
                if seen[at] and blocks is not None:
                    grid = next(blocks)
                    block, step = np.indices(grid).reshape(3, -1), int(grid[1:].max())
                else:
                    count = 1 if seen[at] else _run(~seen[at:])
                    block, step = np.arange(count)[None].repeat(3, 0), count
                upto = at + block.shape[1]
                if seen[at:upto].all() != seen[at] or upto > len(seen):
                    raise InvalidArgumentError(
                        f"An image in row {row} has {block.shape[1]} tokens by {_GRIDS}, but the prompt has fewer."
                    )
                places[:, at:upto] = self._next[row] + block
                self._next[row] += step
                at = upto
            result[:, row, kept] = places
        return result


def _run(flags: npt.NDArray[np.bool_]) -> int:
    """Return how many of the first flags are true."""
    return int(flags.argmin()) if not flags.all() else len(flags)
