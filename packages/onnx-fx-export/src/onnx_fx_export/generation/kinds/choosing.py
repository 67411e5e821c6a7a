"""Which kind a model is of."""

from __future__ import annotations

import inspect
from typing import Any

import torch

from onnx_fx_export.errors import InvalidArgumentError
from onnx_fx_export.generation.kinds.base import Kind
from onnx_fx_export.generation.kinds.decoder import Decoder
from onnx_fx_export.generation.kinds.encoder_decoder import EncoderDecoder
from onnx_fx_export.generation.kinds.grids import GridVisionLanguage
from onnx_fx_export.generation.kinds.hearing import HEARING, HearingLanguage
from onnx_fx_export.generation.kinds.modules import as_model, is_module
from onnx_fx_export.generation.kinds.open_hearing import OpenHearingLanguage
from onnx_fx_export.generation.kinds.plain_grids import PlainGridVisionLanguage
from onnx_fx_export.generation.kinds.projected_hearing import ProjectedHearingLanguage
from onnx_fx_export.generation.kinds.recurrent import Recurrent
from onnx_fx_export.generation.kinds.recurrent_senses import RecurrentGridVisionLanguage, RecurrentShapedVisionLanguage
from onnx_fx_export.generation.kinds.shaped import ShapedVisionLanguage
from onnx_fx_export.generation.kinds.sized import SizedVisionLanguage
from onnx_fx_export.generation.kinds.tiled import TiledVisionLanguage
from onnx_fx_export.generation.kinds.vision_language import OTHERWISE, SIGHT, VisionLanguage, body_of
from onnx_fx_export.generation.kinds.windowed_hearing import WindowedHearingLanguage
from onnx_fx_export.generation.requirements import transformers
from onnxops_decomp.exporting import cache_argument

__all__ = ["kind_of", "senses_of"]

# Kinds that hear; those whose models say more of themselves come first.
_HEARING = (WindowedHearingLanguage, HearingLanguage, ProjectedHearingLanguage, OpenHearingLanguage)
# What a forward may leave to the model inside, which it hands all that it has no name for.
_PASSED_ON = frozenset(("use_cache",))
# How models that see or hear call what they read, with these words at the end, and what makes features of it.
_SENSES = {
    "images": ("pixel_values", "flattened_patches", "get_image_features"),
    "sounds": ("input_features", "input_values", "audio_input_ids", "get_audio_features"),
}
# What a module has to take that is none of transformers.
_OF_MODULES = {"input_ids", "attention_mask"}
_WRAPPER = " If it wraps a model of transformers, as torch.compile does, pass that."


def kind_of(model: Any) -> Kind:
    """Return the kind of a model.

    Raises:
        InvalidArgumentError: If it cannot generate, or is of no kind that can be written.
    """
    name = type(model).__name__
    if is_module(model):
        _check_parameters(model, _OF_MODULES)
        model = as_model(model)
    can = getattr(model, "can_generate", None)
    if not isinstance(model, torch.nn.Module) or can is None or not can():
        raise InvalidArgumentError(
            f"{name} cannot generate. Pass a model of transformers with a language model head, such as "
            "AutoModelForCausalLM loads, or a module whose forward takes input_ids, attention_mask and past_key_values."
        )
    for part, says in (("config", "what it is like"), ("generation_config", "how it generates")):
        if getattr(model, part, None) is None:
            raise InvalidArgumentError(f"{name} has no {part}, which says {says}.")
    _check_made(model)
    _check_switched(model)
    if cache_argument(model) is None:
        _check_parameters(model, Decoder.parameters)
    kind, unheard = _kind(model)
    if str(model.main_input_name) not in kind.main_inputs:
        raise InvalidArgumentError(
            f"{name} reads {model.main_input_name}, and so far only models that read "
            f"{' or '.join(kind.main_inputs)} can be written."
        )
    _check_parameters(model, kind.parameters)
    result = kind(model)
    result.unheard = unheard
    return result


def _check_made(model: Any) -> None:
    """Refuse a model that generates something else than tokens of text, one at each step.

    Raises:
        InvalidArgumentError: If it is one (MusicGen, CSM).
    """
    made, usual = getattr(model, "output_modalities", None) or ("text",), transformers().GenerationMixin
    # What the loop over steps is called in transformers; classes with another one generate several tokens in each.
    steps = getattr(type(model), "_sample", None)
    if "text" in made and steps in (None, getattr(usual, "_sample", None)):
        return
    raise InvalidArgumentError(
        f"{type(model).__name__} cannot be written as a folder for generation: it generates {' and '.join(made)} by "
        "steps of its own, and so far only models are supported that generate tokens of text, one at each step."
    )


def _check_switched(model: Any) -> None:
    """Refuse a model whose own ``generate`` switches its adapters on and off by what it reads.

    Raises:
        InvalidArgumentError: If it is one (Granite Speech with its adapters).
    """
    if getattr(model, "peft_config", None) and getattr(model.config, "has_lora_adapter", False):
        raise InvalidArgumentError(
            f"{type(model).__name__} uses its LoRA adapters for prompts with sounds alone, and a folder uses them for "
            "all prompts or for none: merge them into the weights for a model of sounds, or delete them for text."
        )


def _check_parameters(model: Any, wanted: set[str]) -> None:
    """Refuse a model whose forward does not take what it has to, or no cache.

    Raises:
        InvalidArgumentError: If it is one.
    """
    taken = inspect.signature(model.forward).parameters
    passed_on = _PASSED_ON if any(p.kind is inspect.Parameter.VAR_KEYWORD for p in taken.values()) else frozenset()
    missing = sorted(wanted - taken.keys() - passed_on)
    if cache_argument(model) is None:
        missing.append("past_key_values")
    if missing:
        raise InvalidArgumentError(
            f"{type(model).__name__} cannot be written as a folder for generation: its forward has no "
            f"{', '.join(missing)}.{_WRAPPER if len(missing) > 1 else ''}"
        )


def senses_of(model: Any) -> list[str]:
    """Return what a model reads beside text: images, sounds."""
    taken = inspect.signature(model.forward).parameters
    return [
        sense
        for sense, (*endings, method) in _SENSES.items()
        if hasattr(model, method) or any(name.endswith(tuple(endings)) for name in taken)
    ]


def _kind(model: Any) -> tuple[type[Kind], str]:
    """Return the kind of a model, and why it is none that hears where it reads sounds.

    That of a decoder is the one of its cache, with states of one size or without, unless it sees or hears.
    """
    if getattr(model.config, "is_encoder_decoder", False):
        return EncoderDecoder, ""
    if body_of(model, SIGHT) is not None:
        return _seeing(model), ""
    reasons = []
    for kind in filter(lambda kind: kind.is_meant(model), _HEARING):
        if (why := kind.why_not(model)) is None:
            return kind, ""
        reasons.append(why)
    # What differs says more than code that fails where sounds have another form.
    unheard = min(reasons, key=lambda why: OTHERWISE in why, default=_other_sounds(model))
    return Recurrent if _has_states(model) else Decoder, unheard


def _other_sounds(model: Any) -> str:
    """Say what sounds are to a model that reads them in another form than those that can be written."""
    *endings, _ = _SENSES["sounds"]
    names = [name for name in inspect.signature(model.forward).parameters if name.endswith(tuple(endings))]
    return "" if not names or HEARING.reads in names else f"its sounds are {', '.join(names)}, not {HEARING.reads}"


def _has_states(model: Any) -> bool:
    """Tell whether layers of a model keep states of one size."""
    if cache_argument(model) == "cache_params":
        return True
    # Releases of transformers without such layers give models with states caches of their own.
    states = getattr(transformers().cache_utils, "LinearAttentionCacheLayerMixin", ())
    cache = transformers().DynamicCache(config=model.config)
    return any(isinstance(layer, states) for layer in cache.layers)


def _seeing(model: Any) -> type[VisionLanguage]:
    """Return the kind of a model that sees, by what its features of images are made of."""
    bodies = (body for body in (model, model.base_model) if hasattr(body, "get_image_features"))
    taken = {name: p for body in bodies for name, p in inspect.signature(body.get_image_features).parameters.items()}
    if "image_grid_thw" in taken:
        placed = "mm_token_type_ids" in inspect.signature(model.forward).parameters
        if placed and _has_states(model):
            return RecurrentGridVisionLanguage
        return GridVisionLanguage if placed else PlainGridVisionLanguage
    if "spatial_shapes" in taken:
        return RecurrentShapedVisionLanguage if _has_states(model) else ShapedVisionLanguage
    if (sizes := taken.get("image_sizes")) is not None:
        if getattr(model.config, "image_grid_pinpoints", None):
            return TiledVisionLanguage
        # Models with one of several towers hand the sizes on to those that read them.
        tower = inspect.signature(model.get_encoder(modality="image").forward).parameters
        if "image_sizes" in tower or sizes.default is inspect.Parameter.empty:
            return SizedVisionLanguage
    return VisionLanguage
