"""Small random models of published classes."""

from __future__ import annotations

import contextlib
import dataclasses
import importlib
import time
from collections.abc import Callable, Iterator
from typing import Any

import torch

from tools.architectures.inputs import NotBuiltError

__all__ = ["class_names", "small_model"]

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
    (("num_queries", "num_object_queries", "num_proposals"), 8),
    (("max_source_positions",), 32),
)
# Rows of the table that set the width of a model, and those that its attention divides the width by.
_WIDTHS, _HEADS, _IMAGES = (3, 5, 7, 8, 9), (0, 1, 5), (11, 12)
# Names that contain one of the above and mean something else.
_KEPT = ("_id", "dropout", "layer_norm", "rate", "type", "_prob", "std", "eps", "scale", "factor", "ratio", "theta")
# What some configurations leave open, though their models do not.
_OPEN = {"prediction_length": 6, "context_length": 12, "rope_theta": 10000.0, "head_dim": 8}
_SECONDS = 40
_MOST_PARAMETERS = 130_000_000


@dataclasses.dataclass(frozen=True)
class _Change:
    """A new value of an attribute: of which configuration, and by which row of the table."""

    path: tuple[str, ...]
    key: str
    value: int | list[int]
    row: int


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


def small_model(library: str, name: str, runs: Callable[[torch.nn.Module], object] = lambda model: None) -> Any:
    """Build a model with random weights.

    A configuration of transformers whose sizes are all made small often contradicts itself. Then fewer of them are:
    the first choice counts with which the model can be built, and runs.

    Args:
        library: Where the class is from.
        name: Its name.
        runs: A trial of a model, which raises what the model does.

    Raises:
        NotBuiltError: If its class does not take a small configuration.
    """
    try:
        if library == "transformers":
            return _of_transformers(name, runs)
        torch.manual_seed(0)
        if library == "timm":
            made: torch.nn.Module = importlib.import_module("timm").create_model(name, pretrained=False, num_classes=8)
        else:
            made = importlib.import_module("torchvision.models").get_model(name, weights=None)
        runs(made.eval())
        return made
    except NotBuiltError:
        raise
    except Exception as error:
        raise NotBuiltError(_first_line(error)) from error


def _of_transformers(name: str, runs: Callable[[torch.nn.Module], object]) -> torch.nn.Module:
    import transformers

    kind: Any = getattr(transformers, name)
    everything = [*_changes(kind.config_class())]
    first: Exception | None = None
    end = time.monotonic() + _SECONDS
    for chosen in _choices(everything):
        if time.monotonic() > end:
            break
        try:
            model = _built(kind, chosen)
            runs(model)
        except Exception as error:
            # The first choice is the one that is meant to be right.
            first = first or error
        else:
            return model
    raise first or NotBuiltError(f"not in {_SECONDS} s")


def _built(kind: Any, chosen: list[_Change]) -> torch.nn.Module:
    torch.manual_seed(0)
    config = kind.config_class()
    for change in chosen:
        part = config
        for key in change.path:
            part = getattr(part, key)
        setattr(part, change.key, change.value)
    _complete(config)
    with torch.device("meta"):
        size = sum(parameter.numel() for parameter in kind(config).parameters())
    if size > _MOST_PARAMETERS:
        raise NotBuiltError(f"{size // 1_000_000} million parameters")
    model: torch.nn.Module = kind(config).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            # Initial weights that are nearly zero hide every error.
            if parameter.dim() > 1 and parameter.is_floating_point() and parameter.std() < 0.05:
                parameter.normal_(std=0.1)
    return model


def _choices(everything: list[_Change]) -> Iterator[list[_Change]]:
    """Yield which changes are made, the most first."""
    yield everything
    rows = sorted({change.row for change in everything})
    yield from _without(everything, [lambda change, row=row: change.row == row for row in rows])  # type: ignore[misc]
    groups = [_IMAGES, _HEADS, _WIDTHS, (*_WIDTHS, *_HEADS), (*_WIDTHS, *_HEADS, *_IMAGES)]
    yield from _without(everything, [lambda change, group=group: change.row in group for group in groups])  # type: ignore[misc]
    parts = sorted({change.path for change in everything if change.path})
    yield from _without(everything, [lambda change, part=part: change.path == part for part in parts])  # type: ignore[misc]


def _without(everything: list[_Change], leave: list[Callable[[_Change], bool]]) -> Iterator[list[_Change]]:
    for left in leave:
        rest = [change for change in everything if not left(change)]
        if len(rest) < len(everything):
            yield rest


def _changes(config: Any, path: tuple[str, ...] = ()) -> Iterator[_Change]:
    """Yield what makes a configuration of transformers small, and those inside it."""
    for key, value in list(vars(config).items()):
        if key.startswith("_"):
            continue
        if _is_config(value):
            yield from _changes(value, (*path, key))
        elif not any(part in key for part in _KEPT):
            row = next(
                (row for row, (parts, _) in enumerate(_SIZES) if any(_is_part(part, key) for part in parts)), None
            )
            if row is not None and (smaller := _smaller(value, row)) is not None:
                yield _Change(path, key, smaller, row)


def _smaller(value: object, row: int) -> int | list[int] | None:
    """Return what a value becomes by a row of the table; None if it stays. Images may have a height and a width."""
    if isinstance(value, list) and row in _IMAGES:
        sizes = [_smaller(size, row) for size in value]
        return sizes if sizes and all(isinstance(size, int) for size in sizes) else None  # type: ignore[return-value]
    if not isinstance(value, int) or isinstance(value, bool):
        return None
    return _SIZES[row][1] if value > _SIZES[row][1] else None


def _is_part(part: str, key: str) -> bool:
    """Return whether a name is made of words of which these are some, in one number or the other."""
    return f"_{part}_" in f"_{key}_" or f"_{part}s_" in f"_{key}_"


def _is_config(value: object) -> bool:
    return hasattr(value, "to_dict") and hasattr(value, "model_type")


def _complete(config: Any) -> None:
    """Make the rest of a configuration fit to its sizes, in place."""
    for key, value in list(vars(config).items()):
        if _is_config(value) and not key.startswith("_"):
            _complete(value)
        elif value is None and key in _OPEN:
            setattr(config, key, _OPEN[key])
    layers = getattr(config, "num_hidden_layers", None)
    for name, kinds in list(vars(config).items()):
        # One layer of each kind, unless the configuration computes them.
        if isinstance(kinds, list) and isinstance(layers, int) and len(kinds) > layers and _is_by_layer(name):
            with contextlib.suppress(AttributeError):
                setattr(config, name, [*dict.fromkeys(kinds), *kinds][:layers])
    for key in ("pad_token_id", "bos_token_id", "eos_token_id", "decoder_start_token_id"):
        if isinstance(getattr(config, key, None), int) and getattr(config, key) >= 100:
            setattr(config, key, 1)
    _fit_heads(config)
    _fit_rotary_sections(config)
    config.use_cache = False


# Names of the width of an inner part over that of the model, of its heads, and of the width of one.
_EXPANDED = (
    ("expand", "num_heads", "head_dim"),
    ("mamba_expand", "mamba_n_heads", "mamba_d_head"),
    ("mamba_expand", "n_mamba_heads", "mamba_headdim"),
)


def _fit_heads(config: Any) -> None:
    """Give the heads the width that the rest of a configuration leaves them, in place."""
    known = vars(config)
    for expand, heads, width in _EXPANDED:
        if all(isinstance(known.get(name), int) for name in (expand, heads)) and width in known:
            setattr(config, width, known[expand] * config.hidden_size // known[heads])
    if isinstance(known.get("mamba_d_ssm"), int):
        config.mamba_d_ssm = config.mamba_expand * config.hidden_size
    if "qk_head_dim" in known and "qk_nope_head_dim" in known:
        config.qk_head_dim = config.qk_nope_head_dim + config.qk_rope_head_dim


_AXES = ("time", "height", "width")


def _fit_rotary_sections(config: Any) -> None:
    """Divide the rotated part of a head among time, height and width, in place."""
    rope = vars(config).get("rope_parameters")
    if not isinstance(rope, dict) or "rope_type" not in rope or not hasattr(config, "num_attention_heads"):
        return
    head = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
    pairs, parts = int(head * rope.get("partial_rotary_factor", 1.0)) // 2, len(rope.get("mrope_section", _AXES))
    rope["mrope_section"] = [pairs // parts + (part < pairs % parts) for part in range(parts)]


def _is_by_layer(name: str) -> bool:
    return name.startswith("layer") or name.endswith(("layer_types", "_per_layer", "_layers_type", "_pattern"))


def _first_line(error: BaseException) -> str:
    lines = str(error).strip().splitlines()
    return f"{type(error).__name__}: {lines[0] if lines else ''}"[:160]
