"""What a folder's graphs make of sounds, and of the tokens that stand for them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt

from onnx_fx_export.errors import InvalidArgumentError
from onnx_fx_export.generation.senses.seeing import Eyes
from onnx_fx_export.generation.sessions import GraphSession

__all__ = ["Ears", "OpenEars", "senses_of"]

Array = npt.NDArray[Any]
# Which frames of sounds are no padding; of models that do not read it, which of what is made of them stands for tokens.
_FRAMES = "input_features_mask"
# Sounds, frames, bands; of what is made of sounds: sounds, tokens, width.
_AXES = 3


class Ears(Eyes):
    """The graphs for sounds and embeddings."""

    section: ClassVar = "speech"
    token: ClassVar = "audio_token_id"
    what: ClassVar = "sounds"
    reads: ClassVar = "input_features"
    made: ClassVar = "audio_features"

    def _seen(self, given: Mapping[str, Array]) -> list[Array]:
        if self._block > 1:
            return [self.vision.run(sound, {})[self.made].numpy() for sound in self._in_blocks(given)]
        declared = {name: value.shape for name, value in self.vision.declared.items()}
        shapes = {name: list(given[name].shape) for name in declared if name in given}
        if not shapes:
            return []
        count = next(iter(shapes.values()))[0]
        if shapes != {name: [count, *shape[1:]] for name, shape in declared.items()}:
            raise InvalidArgumentError(
                f"Sounds have the shapes {declared}, with as many in each as there are, and these have {shapes}."
            )
        sounds = [{name: given[name][place, None] for name in declared} for place in range(count)]
        return [self.vision.run(sound, {})[self.made].numpy() for sound in sounds]

    def _in_blocks(self, given: Mapping[str, Array]) -> list[dict[str, Array]]:
        """Return sounds of any length, each without most of the padding of a batch.

        Raises:
            InvalidArgumentError: If they have no whole blocks, or padding before or between their frames.
        """
        if self.reads not in given and _FRAMES not in given:
            return []
        sounds = np.asarray(given.get(self.reads, np.zeros((0, 0, 0))))
        frames = np.asarray(given.get(_FRAMES, np.ones((len(sounds), sounds.shape[-1]), np.int64)))
        counts = frames.sum(-1).astype(np.int64)
        if (
            sounds.ndim != _AXES
            or frames.shape != (len(sounds), sounds.shape[2])
            or sounds.shape[2] % self._block
            or not np.array_equal(frames, np.arange(sounds.shape[2]) < counts[:, None])
        ):
            raise InvalidArgumentError(
                f"Sounds are {self.reads} (N, bands, frames) with frames by {self._block}, and {_FRAMES} (N, frames) "
                f"is 1 for them and 0 for padding behind them: the shapes are {sounds.shape} and {frames.shape}."
            )
        result = []
        for sound, count in zip(sounds, counts.tolist(), strict=True):
            whole = max(-(-count // self._block), self._fewest_blocks) * self._block
            behind = max(whole - sound.shape[1], 0)
            parts = (np.arange(whole) < count).astype(np.int64)
            result.append({self.reads: np.pad(sound, ((0, 0), (0, behind)))[None, :, :whole], _FRAMES: parts[None]})
        return result


class OpenEars(Ears):
    """The graphs for sounds of any length, which are read together, and embeddings."""

    def __init__(self, folder: Path, config: Mapping[str, Any], providers: Sequence[str]) -> None:
        super().__init__(folder, config, providers)
        together = config[self.section]["together"]
        self._size = together.get("block", 0)
        # A graph that has no blocks reads sounds of whole ones, too.
        self._whole = GraphSession(folder / together["filename"], providers) if self._size else self.vision

    def _seen(self, given: Mapping[str, Array]) -> list[Array]:
        if self.reads not in given:
            return []
        sounds, bands = np.asarray(given[self.reads]), self.vision.declared[self.reads].shape[2]
        if sounds.ndim != _AXES or not sounds.size or sounds.shape[2] != bands:
            raise InvalidArgumentError(
                f"Sounds are {self.reads} (N, frames, bands) with {bands} bands, and these have the shape "
                f"{sounds.shape}."
            )
        marks = {name: given[name] for name in self.vision.declared if name != self.reads and name in given}
        for name in self.vision.declared.keys() - {self.reads}:
            marks[name] = _checked_marks(marks.get(name), name, sounds.shape[:2])
        made = self._made({self.reads: sounds, **marks})
        if made.ndim < _AXES:
            return [made]
        return [made[_checked_marks(given.get(_FRAMES), _FRAMES, made.shape[:2]).astype(bool)]]

    def _made(self, given: Mapping[str, Array]) -> Array:
        """Return what the graphs make of sounds, which read two blocks at least: one alone is read twice."""
        count, frames = given[self.reads].shape[:2]
        alone = self._size and count == 1 and frames <= self._size
        graph = self._whole if self._size and frames % self._size == 0 else self.vision
        twice = {name: np.concatenate([value, value]) if alone else value for name, value in given.items()}
        made: Array = graph.run(twice, {})[self.made].numpy()
        return made[:1] if alone else made


def _checked_marks(given: Array | None, name: str, shape: tuple[int, ...]) -> Array:
    """Return which frames, or what is made of them, are no padding; all of them, if nothing is given.

    Raises:
        InvalidArgumentError: If something else is given.
    """
    marks = np.ones(shape, np.int64) if given is None else np.asarray(given)
    if marks.shape != shape or not np.isin(marks, (0, 1)).all():
        raise InvalidArgumentError(
            f"{name} is 1 for what is heard and 0 for padding, of the shape {shape} for these sounds: it has the shape "
            f"{marks.shape}."
        )
    return marks.astype(np.int64)


def senses_of(folder: Path, config: Mapping[str, Any], providers: Sequence[str]) -> Eyes | None:
    """Return what reads images or sounds among the tokens of a text, if a folder has graphs for them."""
    if Eyes.section in config:
        return Eyes(folder, config, providers)
    if Ears.section not in config:
        return None
    kind = OpenEars if "together" in config[Ears.section] else Ears
    return kind(folder, config, providers)
