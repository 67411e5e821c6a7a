"""``genai_config.json``, by which ONNX Runtime GenAI and :class:`Generator` know the model file of a folder.

Described in https://onnxruntime.ai/docs/genai/reference/config.html
"""

from __future__ import annotations

import copy
from typing import Any

import torch

from onnx_fx_export.errors import InvalidArgumentError
from onnx_fx_export.generation.caches import LayerCache

__all__ = [
    "ADAPTER_SUFFIX",
    "CONFIG_FILE",
    "CROSS_NAMES",
    "EMBEDDING_FILE",
    "MODEL_FILE",
    "SPEECH_BLOCKS_FILE",
    "SPEECH_FILE",
    "STATE_NAMES",
    "TOKENS",
    "VISION_FILE",
    "context_length",
    "decoder_config",
    "first_context",
    "genai_config",
    "graph_config",
    "stop_tokens",
    "unapplied_settings",
    "vocabulary",
]

# What a graph reads of each token: its number, or what stands for it.
TOKENS = ("input_ids", "inputs_embeds")
CONFIG_FILE, MODEL_FILE = "genai_config.json", "model.onnx"
ADAPTER_SUFFIX = ".onnx_adapter"
VISION_FILE, SPEECH_FILE, EMBEDDING_FILE = "vision.onnx", "speech.onnx", "embedding.onnx"
# Where a model tells how many positions it has; those without such a limit take as many as memory holds.
_CONTEXT_KEYS = (
    "max_target_positions",
    "max_decoder_position_embeddings",
    "max_text_positions",
    "max_position_embeddings",
    "n_positions",
    "max_sequence_length",
    "max_seq_len",
    "seq_length",
)
STATE_NAMES = {"past": "past_key_values.%d", "present": "present.%d"}
# Beside that for sounds, a graph for those of whole blocks of frames.
SPEECH_BLOCKS_FILE = "speech_blocks.onnx"
CROSS_NAMES = {"key": "cross_key_values.%d.key", "value": "cross_key_values.%d.value"}
_NO_LIMIT = 32768
_SETTINGS = {
    "do_sample": False,
    "num_beams": 1,
    "num_return_sequences": 1,
    "temperature": 1.0,
    "top_k": 50,
    "top_p": 1.0,
    "repetition_penalty": 1.0,
    "length_penalty": 1.0,
    "diversity_penalty": 0.0,
    "no_repeat_ngram_size": 0,
}
# What else of a generation_config changes the text, each with the value that changes nothing beside None.
_UNAPPLIED: dict[str, Any] = {
    "bad_words_ids": [], "begin_suppress_tokens": [], "constraints": [], "dola_layers": None,
    "encoder_no_repeat_ngram_size": 0, "encoder_repetition_penalty": 1.0, "epsilon_cutoff": 0.0, "eta_cutoff": 0.0,
    "exponential_decay_length_penalty": None, "force_words_ids": [],
    "guidance_scale": 1.0, "min_new_tokens": 0, "min_p": 0.0,
    "num_beams": 1,  # GenAI has such a search, which weighs lengths otherwise
    "penalty_alpha": 0.0, "sequence_bias": {},
    "stop_strings": [], "suppress_tokens": [], "token_healing": False, "top_h": None, "typical_p": 1.0,
    "watermarking_config": None,
}  # fmt: skip
# What GenAI applies, and a search for the most likely token at each step does not.
_OF_GENAI = {"do_sample": False, "min_length": 0, "no_repeat_ngram_size": 0, "repetition_penalty": 1.0}
# What the search of this package applies, and GenAI does not.
_OF_GENERATOR: dict[str, Any] = {"forced_bos_token_id": None, "forced_eos_token_id": None}
# Caches that round keys and values; the others hold them as they are.
_CACHE, _ROUNDING_CACHES = "cache_implementation", ("quantized",)
_NAMES = {
    "inputs": {
        "input_ids": "input_ids",
        "attention_mask": "attention_mask",
        "past_key_names": "past_key_values.%d.key",
        "past_value_names": "past_key_values.%d.value",
    },
    "outputs": {
        "logits": "logits",
        "present_key_names": "present.%d.key",
        "present_value_names": "present.%d.value",
    },
}


def decoder_config(model: Any, layers: list[LayerCache], file: str) -> dict[str, Any]:
    """Return what an engine has to know of the graph that goes on from what it has read.

    Args:
        model: A model of transformers.
        layers: What its cache holds.
        file: Where the graph is.
    """
    config = model.config.get_text_config(decoder=True)
    names = copy.deepcopy(_NAMES)
    if any(layer.index is not None for layer in layers):
        names["inputs"]["past_index_names"] = f"{STATE_NAMES['past']}.index"
        names["outputs"]["present_index_names"] = f"{STATE_NAMES['present']}.index"
    hidden, queries = (getattr(config, name, None) for name in ("hidden_size", "num_attention_heads"))
    return graph_config(layers, file, hidden, queries) | names


def graph_config(layers: list[LayerCache], file: str, hidden: int | None, queries: int | None) -> dict[str, Any]:
    """Return what an engine has to know of a graph of layers with attention.

    Args:
        layers: The keys and values of each layer.
        file: Where the graph is.
        hidden: The width of what is between layers, if the model says it.
        queries: How many heads the queries have, if it does.
    """
    shapes = {shape for layer in layers for shape in (layer.key, layer.value)}
    # Where there are several, only an engine that asks the graph can run it.
    heads, width = shapes.pop() if len(shapes) == 1 else (None, None)
    return {
        "session_options": {"log_id": "onnxruntime-genai", "provider_options": []},
        "filename": file,
        "head_size": width,
        "hidden_size": hidden,
        "num_attention_heads": queries,
        "num_hidden_layers": len(layers),
        "num_key_value_heads": heads,
    }


def genai_config(model: Any, kind: str, decoder: dict[str, Any], **graphs: dict[str, Any]) -> dict[str, Any]:
    """Return what an engine has to know of a model.

    Args:
        model: A model of transformers.
        kind: What the engine calls such models.
        decoder: What it has to know of the graph that goes on from what it has read.
        graphs: The same of other graphs.
    """
    length = context_length(model)
    stop, pad = stop_tokens(model)
    given = model.generation_config
    settings = {
        key: default if getattr(given, key, None) is None else getattr(given, key) for key, default in _SETTINGS.items()
    }
    config = {
        "model": {
            "type": kind,
            "bos_token_id": given.bos_token_id,
            "eos_token_id": stop[0] if len(stop) == 1 else stop,
            "pad_token_id": pad,
            "vocab_size": vocabulary(model),
            "context_length": length,
            "decoder": decoder,
            **graphs,
        },
        "search": {
            **settings,
            "early_stopping": given.early_stopping is True,
            "max_length": length,
            "min_length": given.min_length or 0,
            "past_present_share_buffer": False,
        },
    }
    return _without_none(config)


def _without_none(config: dict[str, Any]) -> dict[str, Any]:
    """Leave out what a model does not say: engines take a number or nothing."""
    return {
        key: _without_none(value) if isinstance(value, dict) else value
        for key, value in config.items()
        if value is not None
    }


def vocabulary(model: Any) -> int:
    """Return how many tokens a model has logits for, whatever its configuration says.

    Raises:
        InvalidArgumentError: If neither its head nor its configuration tells.
    """
    size = getattr(model.get_output_embeddings(), "out_features", None)
    size = getattr(model.config.get_text_config(decoder=True), "vocab_size", None) if size is None else size
    if not isinstance(size, int):
        raise InvalidArgumentError(f"{type(model).__name__} does not say how many tokens it knows: config.vocab_size.")
    return size


def context_length(model: Any) -> int:
    """Return the most tokens, prompt included, that a model takes from one cache."""
    config = model.config.get_text_config(decoder=True)
    known = [value for key in _CONTEXT_KEYS if isinstance(value := getattr(config, key, None), int)]
    return min(known[0] if known else _NO_LIMIT, first_context(model) or _NO_LIMIT)


def first_context(model: Any) -> int | None:
    """Return how long a text may be before all its positions get other frequencies, or None if none of them change.

    Models with ``longrope`` have two sets of them, and ``generate`` reads a text anew that outgrows the first one: what
    a cache holds by then is of the other set.
    """
    scaling = getattr(model.config.get_text_config(decoder=True), "rope_parameters", None) or {}
    kinds = [scaling] if "rope_type" in scaling else [kind for kind in scaling.values() if isinstance(kind, dict)]
    lengths = [
        int(kind["original_max_position_embeddings"])
        for kind in kinds
        if kind.get("rope_type") == "longrope" and "original_max_position_embeddings" in kind
    ]
    return min(lengths, default=None)


def unapplied_settings(model: Any, engine: str) -> list[str]:
    """Return the settings of a model's generation that change the text and that an engine applies otherwise or not."""
    neutral = _UNAPPLIED | (_OF_GENAI if engine == "onnxruntime" else _OF_GENERATOR)
    given = {name: getattr(model.generation_config, name, None) for name in neutral}
    names = [name for name, value in given.items() if value is not None and value != neutral[name]]
    rounds = getattr(model.generation_config, _CACHE, None) in _ROUNDING_CACHES
    return sorted([*names, *([_CACHE] if rounds else [])])


def stop_tokens(model: Any) -> tuple[list[int], int]:
    """Return the tokens that end a sequence, and the one that fills up a batch.

    What a model has no logits for never ends a sequence, and engines refuse it.

    Raises:
        InvalidArgumentError: If something else than numbers is given for them.
    """
    given, count = model.generation_config, vocabulary(model)
    stop = given.eos_token_id
    stop = [] if stop is None else stop.tolist() if isinstance(stop, torch.Tensor) else stop
    stop = list(stop) if isinstance(stop, list | tuple) else [stop]
    pad = given.pad_token_id if given.pad_token_id is not None else (stop or [0])[0]
    if other := [token for token in (*stop, pad) if not isinstance(token, int)]:
        raise InvalidArgumentError(
            f"The generation_config of {type(model).__name__} has the token {other[0]!r}, and tokens are numbers: set "
            "its eos_token_id and pad_token_id."
        )
    stop = [token for token in stop if 0 <= token < count]
    return stop, pad if 0 <= pad < count else (stop or [0])[0]
