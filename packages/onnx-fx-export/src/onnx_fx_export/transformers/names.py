"""Names of the inputs and outputs of a transformers model, as the tools for its ONNX files expect them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from torch.utils import _pytree as pytree
from transformers import cache_utils

from onnxops_decomp.exporting import key_of, tensor_places

__all__ = ["holds_cache", "input_leaves", "output_leaves"]

_PAST = "past_key_values"
_LABELS = {"keys": "key", "values": "value"}
_SIDES = {"self_attention_cache": "decoder", "cross_attention_cache": "encoder"}


def input_leaves(arguments: Mapping[str, Any]) -> list[tuple[str, Any]]:
    """Return the leaves of a call and what they are called: ``input_ids``, ``past_key_values.0.key``.

    Args:
        arguments: Arguments of a model by name, whose containers are registered. A cache is called
            ``past_key_values`` whatever the installed transformers calls the argument.
    """
    return [leaf for name, value in arguments.items() for leaf in _leaves(name, _PAST, value)]


def output_leaves(result: Any) -> list[tuple[str, Any]]:
    """Return the leaves of a result and what they are called: ``logits``, ``present.0.key``.

    Args:
        result: What a model returns; its containers are registered.
    """
    return list(_leaves("", "present", result))


def holds_cache(value: Any) -> bool:
    """Tell whether a value is a cache of transformers."""
    return isinstance(value, cache_utils.Cache)


def _leaves(name: str, cache_name: str, value: Any) -> Iterator[tuple[str, Any]]:
    """Yield the leaves of a value in the order of torch's pytrees.

    Args:
        name: What the value is called.
        cache_name: What it is called if it is a cache.
        value: The value.
    """
    if isinstance(value, cache_utils.EncoderDecoderCache):
        for attribute, side in _SIDES.items():
            yield from _cache_leaves(cache_name, f"{side}.", getattr(value, attribute))
        return
    if holds_cache(value):
        yield from _cache_leaves(cache_name, "", value)
        return
    children, structure = pytree.tree_flatten_with_path(value, is_leaf=lambda node: node is not value)
    if structure.is_leaf():
        yield name or "output", value
        return
    for path, child in children:
        key = str(key_of(path[0]))
        inner = f"{name}.{key}" if name else f"output_{key}" if key.isdecimal() else key
        yield from _leaves(inner, inner if name else cache_name, child)


def _cache_leaves(name: str, side: str, cache: Any) -> Iterator[tuple[str, Any]]:
    tensors = pytree.tree_leaves(cache)
    for (layer, place), tensor in zip(tensor_places(cache), tensors, strict=True):
        yield f"{name}.{layer}.{side}{_LABELS.get(place, place)}", tensor
