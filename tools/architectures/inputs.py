"""Inputs for models of published classes."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from typing import Any

import torch

__all__ = ["FORMS", "NotBuiltError", "inputs_of"]

_AUDIO_LENGTH = 4000
# Classes disagree on the layout of images, videos and sound: how often they are asked, each time with the next one.
FORMS = 3


class NotBuiltError(Exception):
    """No small model of a class, or no inputs for it."""


def inputs_of(
    library: str, model: torch.nn.Module, batch: int, length: int, form: int = 0
) -> tuple[dict[str, torch.Tensor], dict[str, dict[int, str]]]:
    """Return inputs of a model, and their dynamic dimensions.

    Masks leave out what stands at the end of the last row.

    Args:
        library: Where its class is from.
        model: The model.
        batch: The first size of all inputs.
        length: The second size of texts and series.
        form: Which of the layouts is taken.

    Raises:
        NotBuiltError: If it is not known what the model takes.
    """
    generator = torch.Generator().manual_seed(batch * 1000 + length)
    if library != "transformers":
        size = int(getattr(model, "default_cfg", {}).get("input_size", (3, 224, 224))[-1])
        name = next(iter(inspect.signature(model.forward).parameters))
        shape = (batch, 3, size, size) if form == 0 else (batch, 3, 4 * form, size, size)
        return {name: torch.randn(*shape, generator=generator)}, {name: {0: "batch"}}
    inputs = _Inputs(model, batch, length, form, generator).made()
    if not inputs:
        raise NotBuiltError(f"inputs {getattr(model, 'main_input_name', '?')} are not known")
    dims = {name: _dims(name, value) for name, value in inputs.items()}
    # All images in one row of patches.
    rows = [name for name in _PATCHES if name in inputs and "grid_thw" in inputs]
    return inputs, dims | {name: {0: "patches"} for name in rows}


class _Inputs:
    """Inputs of a class of transformers: what comes first, what it cannot do without, and masks."""

    def __init__(self, model: Any, batch: int, length: int, form: int, generator: torch.Generator) -> None:
        self.takes: Mapping[str, inspect.Parameter] = inspect.signature(model.forward).parameters
        self.config, self.main = model.config, model.main_input_name
        self.batch, self.length, self.form, self.generator = batch, length, form, generator

    def made(self) -> dict[str, torch.Tensor]:
        wanted = [self.main] if self.main in self.takes else []
        wanted += [name for name, parameter in self.takes.items() if self._is_required(name, parameter)]
        if self.main == "input_ids" and "pixel_values" in self.takes and not hasattr(self.config, "image_token_id"):
            wanted.append("pixel_values")
        if getattr(self.config, "is_encoder_decoder", False) and "decoder_input_ids" in self.takes:
            wanted.append("decoder_input_ids")
        if "input_ids" in wanted and "attention_mask" in self.takes:
            wanted.insert(wanted.index("input_ids") + 1, "attention_mask")
        for name in wanted:
            if name not in _MAKERS:
                raise NotBuiltError(f"inputs {name} are not known")
        return {name: _MAKERS[name](self) for name in dict.fromkeys(wanted)}

    def _is_required(self, name: str, parameter: inspect.Parameter) -> bool:
        named = parameter.kind not in (inspect.Parameter.VAR_KEYWORD, inspect.Parameter.VAR_POSITIONAL)
        return named and (parameter.default is inspect.Parameter.empty or name in _NEEDED)

    def random(self, *shape: int) -> torch.Tensor:
        return torch.randn(*shape, generator=self.generator)

    def number(self, names: tuple[str, ...], default: int, part: str = "") -> int:
        """Return a size that the configuration, or a part of it, gives under one of these names."""
        for config in (getattr(self.config, part, None), self.config):
            for name in names:
                if (value := getattr(config, name, None)) is not None:
                    return int(value[0] if isinstance(value, list | tuple) else value)
        return default

    def tokens(self, length: int) -> torch.Tensor:
        vocabulary = self.number(("vocab_size",), 128, "text_config")
        return torch.randint(3, max(5, min(vocabulary, 100)), (self.batch, length), generator=self.generator)

    def mask(self) -> torch.Tensor:
        mask = torch.ones(self.batch, self.length, dtype=torch.int64)
        mask[-1, -self.length // 3 :] = 0
        return mask

    def image(self) -> torch.Tensor:
        size = self.number(("image_size", "input_size", "img_size"), 32, "vision_config")
        channels = self.number(("num_channels", "in_channels", "in_chans"), 3, "vision_config")
        if self.form:
            frames = self.number(("num_frames", "frames_per_clip"), 4, "vision_config")
            return self.random(self.batch, frames, channels, size, size)
        return self.random(self.batch, channels, size, size)

    def waveform(self) -> torch.Tensor:
        samples = _AUDIO_LENGTH + 400 * self.length
        bins = self.number(("num_mel_bins",), 80)
        shapes = [(self.batch, samples), (self.batch, 1, samples), (self.batch, 40, bins)]
        return self.random(*shapes[self.form])

    def features(self) -> torch.Tensor:
        names = ("feature_projection_input_dim", "input_dim", "num_mel_bins", "input_feat_per_channel", "feature_size")
        bins = self.number(names, 80, "audio_config" if self.form < 2 else "encoder_config")
        # Encoders like that of Whisper take one number of frames.
        frames = 2 * self.number(("max_source_positions",), 0, "audio_config") or 64
        layouts = [(frames, bins), (bins, frames)]
        fixed = hasattr(self.config, "max_source_positions")
        return self.random(self.batch, *layouts[(self.form + fixed) % 2])

    def feature_mask(self) -> torch.Tensor:
        return torch.ones(self.batch, 64, dtype=torch.int64)

    def grids(self) -> torch.Tensor:
        """Return the frames, rows and columns of images that are given as their patches, one image each."""
        side = 2 * self.number(("spatial_merge_size", "merge_size"), 2)
        rows = [(1, side, side * (2 if image % 2 else 1)) for image in range(self.batch)]
        return torch.tensor(rows)

    def patches(self) -> torch.Tensor:
        """Return the patches of all images, each a row of numbers or a small image."""
        channels = self.number(("in_channels", "num_channels", "in_chans"), 3)
        frames, side = self.number(("temporal_patch_size",), 1), self.number(("patch_size",), 14)
        shapes = [(channels * frames * side * side,), (channels, side, side)]
        return self.random(int(self.grids().prod(dim=1).sum()), *shapes[self.form % 2])

    def pixels(self) -> torch.Tensor:
        return self.patches() if "grid_thw" in self.takes else self.image()

    def series(self, width: str = "input_size") -> torch.Tensor:
        """Return as many past values as a model of time series looks back at."""
        lags = max(getattr(self.config, "lags_sequence", None) or [0])
        length = self.number(("context_length",), 32) + lags
        channels = self.number((width,), 1)
        return self.random(self.batch, length, *([channels] if channels > 1 or self.form else []))

    def times(self, steps: int) -> torch.Tensor:
        return self.random(self.batch, steps, self.number(("num_time_features",), 0))

    def steps(self, width: str) -> torch.Tensor:
        return self.random(self.batch, self.length, self.number((width,), 1))


_Maker = Callable[[_Inputs], torch.Tensor]
_MAKERS: dict[str, _Maker] = {
    "input_ids": lambda inputs: inputs.tokens(inputs.length),
    "decoder_input_ids": lambda inputs: inputs.tokens(inputs.length - 3),
    "attention_mask": _Inputs.mask,
    "pixel_values": _Inputs.pixels,
    "hidden_states": _Inputs.patches,
    "grid_thw": _Inputs.grids,
    "prompt_pixel_values": _Inputs.image,
    "prompt_masks": _Inputs.image,
    "pixel_values_videos": _Inputs.image,
    "input_values": _Inputs.waveform,
    "input_features": _Inputs.features,
    "input_features_mask": _Inputs.feature_mask,
    "past_values": _Inputs.series,
    "past_observed_mask": lambda inputs: torch.ones_like(inputs.series()),
    "past_time_features": lambda inputs: inputs.times(inputs.series().shape[1]),
    "states": lambda inputs: inputs.steps("state_dim"),
    "actions": lambda inputs: inputs.steps("act_dim"),
    "rewards": lambda inputs: inputs.random(inputs.batch, inputs.length, 1),
    "returns_to_go": lambda inputs: inputs.random(inputs.batch, inputs.length, 1),
    "timesteps": lambda inputs: inputs.tokens(inputs.length),
    "visual_feats": lambda inputs: inputs.random(inputs.batch, 5, inputs.number(("visual_feat_dim",), 32)),
    "visual_pos": lambda inputs: inputs.random(inputs.batch, 5, inputs.number(("visual_pos_dim",), 4)),
}
# Not all that a class cannot do without is written without a default.
_NEEDED = ("visual_feats", "visual_pos", "states", "actions", "rewards", "returns_to_go", "timesteps")


# Where patches of images are, for models that take their grids besides.
_PATCHES = ("hidden_states", "pixel_values")
# Those whose second size is that of the text or series.
_TEXTS = ("input_ids", "attention_mask", "states", "actions", "rewards", "returns_to_go", "timesteps")


def _dims(name: str, value: torch.Tensor) -> dict[int, str]:
    if name == "decoder_input_ids":
        return {0: "batch", 1: "decoder_length"}
    if name == "input_values" and (value.dim() == 2 or value.shape[1] == 1):
        # Beside a text, sound has a length of its own.
        return {0: "batch", value.dim() - 1: "samples"}
    if name in _TEXTS:
        return {0: "batch", 1: "length"}
    return {0: "batch"}
