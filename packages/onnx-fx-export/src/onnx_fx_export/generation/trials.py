"""Trials of a model, before it is written."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch.overrides import TorchFunctionMode

from onnx_fx_export.errors import InvalidArgumentError, OnnxExporterError
from onnx_fx_export.generation.caches import Cache, LayerCache, past_of

__all__ = ["Limits", "check_place", "check_windows_of_masks", "differ", "keeping_modes", "running"]

# Numbers that differ in their last places are equal but for the order in which they were added up.
_FEW_PLACES = 64
# So large that one of thousands of values shows in their mean.
_MARK = 1e3
_LONGEST = 300
# Functions of torch that keep numbers within limits.
_LIMITING = ("clamp", "clamp_min", "clamp_max", "clip")


def check_place(model: Any) -> None:
    """Refuse a model whose weights are elsewhere than on the CPU, or nowhere.

    Raises:
        InvalidArgumentError: If it is one.
    """
    if away := sorted({weight.device.type for weight in model.parameters()} - {"cpu"}):
        raise InvalidArgumentError(
            f"The model has weights on {', '.join(away)}, and is run on the CPU to be written: move it there, or pass "
            "the path of its folder."
        )


@contextlib.contextmanager
def running(model: Any) -> Iterator[None]:
    """Run a model without gradients.

    Raises:
        InvalidArgumentError: If its code raises anything.
    """
    try:
        with torch.no_grad():
            yield
    except OnnxExporterError:
        raise
    except Exception as error:  # whatever the code of a model raises
        raise InvalidArgumentError(
            f"{type(model).__name__} cannot be run: its own code raises {type(error).__name__}: {_shortened(error)} "
            "Call its generate with a short prompt to see where; it has to work before a folder can be written."
        ) from error


@contextlib.contextmanager
def keeping_modes(model: Any) -> Iterator[None]:
    """Run a model that has read nothing yet.

    Raises:
        InvalidArgumentError: If it computes in another way from then on than its configuration says.
    """
    before = _modes(model)
    yield
    for (module, name), mode in _modes(model).items():
        wanted = before.get((module, name), mode)
        if wanted != mode and wanted == getattr(model.config, name, mode):
            raise InvalidArgumentError(
                f"{type(model).__name__} cannot be written as a folder for generation: its {name} is {wanted!r}, and "
                f"reading a short text has made it {mode!r} for all that it reads later. Load it anew and set "
                f"config.{name} to {mode!r}, if it may compute all texts so."
            )


def _modes(model: Any) -> dict[tuple[str, str], str]:
    """Return what modules keep that they may read from a configuration: words, by the names of both."""
    known = vars(model.config).keys()
    return {
        (place, name): value
        for place, module in model.named_modules()
        for name, value in vars(module).items()
        if name in known and isinstance(value, str)
    }


def _shortened(error: Exception) -> str:
    """Return the first line of what an error says, as a sentence."""
    line = (str(error).strip().splitlines() or ["nothing more"])[0]
    return f"{line.rstrip('.')[:_LONGEST]}."


def differ(model: Any, found: torch.Tensor, wanted: torch.Tensor, *, much: bool = False) -> bool:
    """Tell whether numbers differ by more than the order in which they were added up explains.

    Args:
        model: The model that has computed them, in the precision of its weights.
        found: Numbers.
        wanted: What they may be.
        much: Whether half of their places have to differ.
    """
    precision = max(torch.finfo(weight.dtype).eps for weight in model.parameters() if weight.is_floating_point())
    rounding = (precision**0.5 if much else _FEW_PLACES * precision) * wanted.abs().max()
    return not bool((found - wanted).abs().max() <= rounding)


class Limits(TorchFunctionMode):
    """Collects the numbers within which code keeps others, whether any of those that it computes are beyond.

    Zero is none of them: about half of the numbers that a random text leads to are beyond, unless none ever is.

    Attributes:
        found: Finite numbers other than zero.
    """

    def __init__(self) -> None:
        super().__init__()
        self.found: set[float] = set()

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Call a function of torch."""
        if getattr(func, "__name__", "").rstrip("_") in _LIMITING:
            given = (*args[1:], *(kwargs or {}).values())
            self.found |= {float(each) for each in given if isinstance(each, int | float) and each}
            self.found = set(filter(math.isfinite, self.found))
        return func(*args, **(kwargs or {}))


def check_windows_of_masks(
    model: Any, layers: list[LayerCache], length: int, read: Callable[[Cache], torch.Tensor]
) -> None:
    """Refuse a model whose cache forgets what its masks let a token see: a graph reads all that is kept.

    Args:
        model: A model of transformers.
        layers: What the layers of its decoder keep.
        length: The most tokens of a text.
        read: Makes logits of a token behind keys and values.

    Raises:
        InvalidArgumentError: If the model has such a window (Moshi).
    """
    window = max((layer.window or 0 for layer in layers), default=0)
    if not window or window >= length:
        return
    with running(model):
        plain, marked = (read(_behind_window(model, layers, window, mark)) for mark in (0.0, _MARK))
    if differ(model, marked, plain):
        raise InvalidArgumentError(
            f"{type(model).__name__} cannot be written as a folder for generation: its cache keeps {window} tokens, "
            "but its masks let a token see those before them, so that its logits for longer texts depend on how they "
            f"are read. Set config.sliding_window to at least {length}, the longest text, if that is what the model "
            "was trained with."
        )


def _behind_window(model: Any, layers: list[LayerCache], window: int, mark: float) -> Cache:
    """Return a window of zeros, the first of which layers with windows have marked."""
    past = past_of(layers, 1, window, next(model.parameters()).dtype)
    for layer, held in zip(layers, past, strict=True):
        if layer.window is not None:
            held["value"][:, :, : window + 1 - layer.window] = mark
    return past
