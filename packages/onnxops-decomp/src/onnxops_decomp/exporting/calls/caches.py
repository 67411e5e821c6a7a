"""The caches of transformers, taken apart into their tensors and put together again."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch.utils import _pytree as pytree

from onnxops_decomp.exporting.errors import InvalidArgumentError

__all__ = ["check_cache", "check_counts", "register_cache"]

_RANK = 4  # batch, heads, sequence, head size
_STATIC_TENSORS = ("keys", "values", "cumulative_length")


def register_cache(caches: Any, value: Any) -> bool:
    """Make the class of a cache known to torch's pytrees; return whether it is one that can be.

    Args:
        caches: The module ``transformers.cache_utils``.
        value: The cache.
    """
    if type(value) is caches.DynamicCache:
        from transformers.integrations import executorch

        register: Callable[[], None] = executorch.register_dynamic_cache_export_support
        register()
        return True
    if type(value) is caches.EncoderDecoderCache:
        _register_encoder_decoder_cache(caches)
        return True
    if type(value) is caches.StaticCache:
        _register_static_cache(caches)
        return True
    return False


def _register_encoder_decoder_cache(caches: Any) -> None:
    names = ("self_attention_cache", "cross_attention_cache")
    pytree.register_pytree_node(
        caches.EncoderDecoderCache,
        lambda cache: ([getattr(cache, name) for name in names], names),
        lambda parts, _: caches.EncoderDecoderCache(*parts),
        serialized_type_name="transformers.cache_utils.EncoderDecoderCache",
        flatten_with_keys_fn=lambda cache: ([(pytree.MappingKey(name), getattr(cache, name)) for name in names], names),
    )


def check_cache(caches: Any, cache: Any) -> None:
    """Make sure that all a cache knows is in its tensors.

    Args:
        caches: The module ``transformers.cache_utils``.
        cache: The cache.

    Raises:
        InvalidArgumentError: If it is a ``StaticCache`` without tensors yet, or with sliding windows.
    """
    if type(cache) is not caches.StaticCache:
        return
    if any(type(layer) is not caches.StaticLayer for layer in cache.layers):
        raise InvalidArgumentError(
            "Of StaticCache only layers without a sliding window can be inputs: the others count tokens in Python. "
            "Use a DynamicCache."
        )
    if not all(layer.is_initialized for layer in cache.layers):
        raise InvalidArgumentError(
            "The StaticCache has no tensors yet. Call its early_initialization(batch_size, num_heads, head_dim, dtype, "
            "device) before the export."
        )


def check_counts(cache: Any) -> None:
    """Make sure that the tensors of a cache tell how many tokens it has seen.

    Raises:
        InvalidArgumentError: If a sliding window has dropped some of them.
    """
    for layer in getattr(cache, "layers", ()):
        seen, keys = getattr(layer, "cumulative_length", None), getattr(layer, "keys", None)
        if type(seen) is int and isinstance(keys, torch.Tensor) and keys.dim() == _RANK and seen > keys.shape[-2]:
            raise InvalidArgumentError(
                f"The {type(cache).__name__} has seen {seen} tokens, and its sliding windows hold {keys.shape[-2]} of "
                "them: a model that is given the tensors alone would take positions for others. Export with a cache "
                "that holds all of its tokens, and make the window of the model large enough for them."
            )


def _register_static_cache(caches: Any) -> None:
    def flatten(cache: Any) -> tuple[list[dict[str, torch.Tensor]], Any]:
        parts = [{name: getattr(layer, name) for name in _STATIC_TENSORS} for layer in cache.layers]
        return parts, tuple(layer.max_cache_len for layer in cache.layers)

    def flatten_with_keys(cache: Any) -> tuple[list[tuple[Any, dict[str, torch.Tensor]]], Any]:
        parts, lengths = flatten(cache)
        return [(pytree.SequenceKey(index), part) for index, part in enumerate(parts)], lengths

    def unflatten(parts: Iterable[Any], lengths: Any) -> Any:
        layers = [_static_layer(caches, part, length) for part, length in zip(parts, lengths, strict=True)]
        cache = caches.StaticCache.__new__(caches.StaticCache)
        # Its own constructor makes new layers from a model's configuration.
        caches.Cache.__init__(cache, layers=layers)
        return cache

    pytree.register_pytree_node(
        caches.StaticCache,
        flatten,
        unflatten,
        serialized_type_name="transformers.cache_utils.StaticCache",
        flatten_with_keys_fn=flatten_with_keys,
    )


def _static_layer(caches: Any, tensors: dict[str, Any], max_cache_len: int) -> Any:
    layer = caches.StaticLayer(max_cache_len)
    for name in _STATIC_TENSORS:
        setattr(layer, name, tensors[name])
    # Whatever a function over the tree gives may stand here.
    if isinstance(layer.keys, torch.Tensor) and layer.keys.dim() == _RANK:
        layer.dtype, layer.device = layer.keys.dtype, layer.keys.device
        layer.batch_size, layer.num_heads, _, layer.k_head_dim = layer.keys.shape
        layer.v_head_dim = layer.values.shape[-1]
    layer.is_initialized = True
    return layer
