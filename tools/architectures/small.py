"""Small random models of published classes, and inputs for them."""

from __future__ import annotations

import contextlib
import importlib
import inspect
from collections.abc import Iterator
from typing import Any

import torch

__all__ = ["NotBuiltError", "class_names", "inputs_of", "small_model"]

# What attributes of configurations become, by what their names contain; the first one counts.
_SIZES: tuple[tuple[tuple[str, ...], int], ...] = (
    (("kv_heads", "key_value_heads", "kv_n_heads", "num_kv"), 2),
    (("attention_heads", "num_heads", "n_head", "n_heads"), 4),
    (("num_experts_per_tok", "moe_top_k", "experts_top_k", "num_experts_per_token"), 2),
    (("num_experts", "num_local_experts", "n_routed_experts", "moe_num_experts"), 4),
    (("n_group", "topk_group", "n_shared_experts"), 1),
    (("head_dim", "kv_channels", "head_size", "v_head_dim", "qk_rope_head_dim", "qk_nope_head_dim"), 8),
    (("num_hidden_layers", "num_layers", "n_layer", "encoder_layers", "decoder_layers", "depth", "n_layers"), 2),
    (("intermediate_size", "ffn_dim", "d_ff", "d_inner", "n_inner", "inner_dim", "ffn_hidden"), 64),
    (("kv_lora_rank", "q_lora_rank"), 16),
    (("embedding_size", "embed_dim", "hidden_size", "d_model", "n_embd", "hidden_dim", "dim_model"), 32),
    (("vocab_size",), 128),
    (("image_size", "input_size"), 32),
    (("patch_size",), 8),
    (("sliding_window",), 64),
)
# Names that contain one of the above and mean something else.
_KEPT = ("_id", "dropout", "layer_norm", "rate", "type", "_prob", "std", "eps", "scale", "factor", "ratio", "theta")
_TEXT_LENGTH, _AUDIO_LENGTH = 12, 4000


class NotBuiltError(Exception):
    """No small model of a class, or no inputs for it."""


def class_names(library: str) -> list[str]:
    """Return the names of the model classes of an installed library, each kind once."""
    if library == "transformers":
        from transformers.models.auto import modeling_auto

        names = modeling_auto.MODEL_MAPPING_NAMES.values()
        return sorted({name for entry in names for name in ([entry] if isinstance(entry, str) else entry)})
    if library == "timm":
        timm = importlib.import_module("timm")
        # One of each module, the one with the shortest name.
        found = {module: min(timm.list_models(module=module), key=len, default="") for module in timm.list_modules()}
        return sorted(filter(None, found.values()))
    models = importlib.import_module("torchvision.models")
    return [str(name) for name in models.list_models(module=models)]


def small_model(library: str, name: str) -> torch.nn.Module:
    """Build a model with random weights.

    Raises:
        NotBuiltError: If its class does not take a small configuration.
    """
    torch.manual_seed(0)
    try:
        if library == "transformers":
            return _of_transformers(name)
        if library == "timm":
            made: torch.nn.Module = importlib.import_module("timm").create_model(name, pretrained=False, num_classes=8)
        else:
            made = importlib.import_module("torchvision.models").get_model(name, weights=None)
        return made.eval()
    except Exception as error:
        raise NotBuiltError(_first_line(error)) from error


def _of_transformers(name: str) -> torch.nn.Module:
    import transformers

    kind: Any = getattr(transformers, name)
    config = kind.config_class()
    _shrink(config)
    model: torch.nn.Module = kind(config).eval()
    if sum(parameter.numel() for parameter in model.parameters()) > 60_000_000:
        raise NotBuiltError("more than 60 million parameters")
    with torch.no_grad():
        for parameter in model.parameters():
            # Initial weights that are nearly zero hide every error.
            if parameter.dim() > 1 and parameter.is_floating_point() and parameter.std() < 0.05:
                parameter.normal_(std=0.1)
    return model


def _shrink(config: Any) -> None:
    """Make a configuration of transformers small, and those inside of it, in place."""
    for key, value in list(vars(config).items()):
        if key.startswith("_"):
            continue
        if hasattr(value, "to_dict") and hasattr(value, "model_type"):
            _shrink(value)
        elif isinstance(value, bool) or any(part in key for part in _KEPT):
            continue
        elif isinstance(value, int):
            for parts, size in _SIZES:
                if any(part in key for part in parts):
                    setattr(config, key, min(value, size))
                    break
    layers = getattr(config, "num_hidden_layers", None)
    kinds = getattr(config, "layer_types", None)
    if isinstance(kinds, list) and isinstance(layers, int):
        # One layer of each kind, unless the configuration computes them.
        with contextlib.suppress(AttributeError):
            config.layer_types = [*dict.fromkeys(kinds), *kinds][:layers]
    for key in ("pad_token_id", "bos_token_id", "eos_token_id", "decoder_start_token_id"):
        if isinstance(getattr(config, key, None), int) and getattr(config, key) >= 100:
            setattr(config, key, 1)
    config.use_cache = False


def inputs_of(
    library: str, model: torch.nn.Module, batch: int, length: int = _TEXT_LENGTH
) -> tuple[dict[str, torch.Tensor], dict[str, dict[int, str]]]:
    """Return inputs of a model, and their dynamic dimensions.

    Masks leave out what stands at the end of the last row.

    Raises:
        NotBuiltError: If it is not known what the model takes.
    """
    generator = torch.Generator().manual_seed(batch * 1000 + length)
    if library != "transformers":
        size = int(getattr(model, "default_cfg", {}).get("input_size", (3, 224, 224))[-1])
        name = next(iter(inspect.signature(model.forward).parameters))
        return {name: torch.randn(batch, 3, size, size, generator=generator)}, {name: {0: "batch"}}
    inputs = dict(_of_signature(model, batch, length, generator))
    if not inputs:
        raise NotBuiltError(f"inputs {getattr(model, 'main_input_name', '?')} are not known")
    return inputs, {name: _dims(name, value) for name, value in inputs.items()}


def _of_signature(
    model: Any, batch: int, length: int, generator: torch.Generator
) -> Iterator[tuple[str, torch.Tensor]]:
    """Yield the inputs that a class of transformers takes first of all."""
    takes = inspect.signature(model.forward).parameters
    config, main = model.config, model.main_input_name
    if main == "pixel_values":
        part = getattr(config, "vision_config", config)
        size = _number(part, ("image_size", "input_size"), 32)
        yield (
            main,
            torch.randn(batch, _number(part, ("num_channels", "in_channels"), 3), size, size, generator=generator),
        )
    elif main == "input_values":
        yield main, torch.randn(batch, _AUDIO_LENGTH + 400 * length, generator=generator)
    elif main == "input_features":
        bins = _number(config, ("num_mel_bins", "input_feat_per_channel", "feature_size"), 80)
        # Encoders like that of Whisper take one number of frames.
        frames = 2 * _number(config, ("max_source_positions",), 0)
        yield main, torch.randn(*((batch, bins, frames) if frames else (batch, 40, bins)), generator=generator)
    elif main == "input_ids":
        text = getattr(config, "text_config", config)
        vocabulary = _number(text, ("vocab_size",), 128)
        yield main, torch.randint(3, min(vocabulary, 100), (batch, length), generator=generator)
        if "attention_mask" in takes:
            mask = torch.ones(batch, length, dtype=torch.int64)
            mask[-1, -length // 3 :] = 0
            yield "attention_mask", mask
        if "pixel_values" in takes and not hasattr(config, "image_token_id"):
            size = _number(getattr(config, "vision_config", config), ("image_size",), 32)
            yield "pixel_values", torch.randn(batch, 3, size, size, generator=generator)
    if getattr(config, "is_encoder_decoder", False) and "decoder_input_ids" in takes:
        vocabulary = _number(config, ("vocab_size",), 128)
        yield "decoder_input_ids", torch.randint(3, min(vocabulary, 100), (batch, length - 3), generator=generator)


def _number(config: Any, names: tuple[str, ...], default: int) -> int:
    found = (getattr(config, name, None) for name in names)
    value = next((value for value in found if value is not None), default)
    return int(value[0] if isinstance(value, list | tuple) else value)


def _dims(name: str, value: torch.Tensor) -> dict[int, str]:
    if name in ("pixel_values", "input_features"):
        return {0: "batch"}
    return {0: "batch", 1: "decoder_length" if name.startswith("decoder_") else "length"}


def _first_line(error: BaseException) -> str:
    lines = str(error).strip().splitlines()
    return f"{type(error).__name__}: {lines[0] if lines else ''}"[:160]
