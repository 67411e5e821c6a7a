"""The dimensions of a call of a transformers model that are dynamic, by name."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from transformers import cache_utils

from onnx_fx_export.transformers.names import holds_cache, input_leaves

__all__ = ["named_dims"]

_LENGTH, _PAST, _TOTAL = "sequence_length", "past_sequence_length", "total_sequence_length"
_ENCODER, _DECODER = "encoder_sequence_length", "decoder_sequence_length"
_TEXT = ("input_ids", "inputs_embeds", "token_type_ids", "position_ids", "cache_position", "bbox", "input_values")
_MASKS = ("attention_mask",)
_KV = ("key", "value")


def named_dims(arguments: Mapping[str, Any]) -> dict[str, dict[int, str]]:
    """Return names for the dimensions of a call that differ from call to call: batch, lengths of texts, of a cache.

    Sizes of images and of other features stay as they are. A step of one token stays one, as models often compute it in
    another way than several.

    Args:
        arguments: Arguments of the model by name, whose containers are registered.

    Returns:
        For each leaf of the call, by its name, names by axis.
    """
    roles = _Roles(arguments)
    dims = {}
    for argument, value in arguments.items():
        for name, leaf in input_leaves({argument: value}):
            if isinstance(leaf, torch.Tensor):
                dims[name] = roles.of_cache(value, name, leaf) if holds_cache(value) else roles.of(argument, leaf)
    return dims


class _Roles:
    """What the arguments of one call are to each other."""

    def __init__(self, arguments: Mapping[str, Any]) -> None:
        self.has_encoder = any(name.startswith(("decoder_", "encoder_")) for name in arguments)
        caches = [value for value in arguments.values() if holds_cache(value)]
        self.static = any(isinstance(value, cache_utils.StaticCache) for value in caches)
        self.decodes = any(isinstance(leaf, torch.Tensor) for _, leaf in input_leaves(enumerate_names(caches)))
        texts = [value for name, value in arguments.items() if _is_text(name) and isinstance(value, torch.Tensor)]
        leaves = [leaf for _, leaf in input_leaves(arguments) if isinstance(leaf, torch.Tensor) and leaf.dim()]
        self.batch = int((texts or leaves)[0].shape[0]) if leaves else 0
        lengths = {_length_of(name): _length(name, value) for name, value in arguments.items() if _is_text(name)}
        self.lengths = {name: length for name, length in lengths.items() if length is not None}

    def of(self, argument: str, leaf: torch.Tensor) -> dict[int, str]:
        """Return the names of the dimensions of a leaf that is in no cache."""
        if argument == "cache_position":
            return self._kept(leaf, {0: self._length_name(argument)})
        first = 1 if argument.endswith("position_ids") and leaf.dim() == 3 else 0
        dims = {first: "batch_size"}
        if argument.endswith(_MASKS):
            dims |= self._of_mask(argument, leaf)
        elif _is_text(argument) or argument in ("encoder_outputs", "encoder_hidden_states"):
            dims[first + 1] = _ENCODER if argument.startswith("encoder_") else self._length_name(argument)
        return self._kept(leaf, dims)

    def _of_mask(self, argument: str, leaf: torch.Tensor) -> dict[int, str]:
        length = self._length_name(argument)
        growing = self.decodes and not self.static and length != _ENCODER
        if leaf.dim() == 2:
            return {1: _TOTAL if growing else length}
        return {2: length} | ({3: _TOTAL if self.decodes else length} if not self.static else {})

    def _length_name(self, argument: str) -> str:
        if argument.startswith("decoder_"):
            return _DECODER
        return _ENCODER if self.has_encoder else _LENGTH

    def of_cache(self, cache: Any, name: str, leaf: torch.Tensor) -> dict[int, str]:
        """Return the names of the dimensions of a tensor of a cache."""
        kind = name.rpartition(".")[2]
        dims = {0: "batch_size"}
        if not isinstance(cache, cache_utils.StaticCache):
            past = _ENCODER if ".encoder." in name else _PAST
            dims |= {2: past} if kind in _KV else {1: past} if kind.startswith("indexer_keys") else {}
        return self._kept(leaf, dims)

    def _kept(self, leaf: torch.Tensor, dims: Mapping[int, str]) -> dict[int, str]:
        """Return the names whose sizes fit the example; a single step has none."""
        return {axis: name for axis, name in dims.items() if axis < leaf.dim() and self._fits(name, leaf.shape[axis])}

    def _fits(self, name: str, size: int) -> bool:
        if name == "batch_size":
            return size == self.batch
        if name in (_LENGTH, _DECODER) and self.decodes and size == 1:
            return False
        return name in (_PAST, _TOTAL) or size == self.lengths.get(name, size)


def enumerate_names(values: list[Any]) -> dict[str, Any]:
    """Return values under names of their own."""
    return {str(index): value for index, value in enumerate(values)}


def _is_text(name: str) -> bool:
    return name.removeprefix("decoder_") in _TEXT


def _length_of(name: str) -> str:
    return _DECODER if name.startswith("decoder_") else _LENGTH


def _length(name: str, value: Any) -> int | None:
    plain = name.removeprefix("decoder_")
    if not isinstance(value, torch.Tensor) or plain not in ("input_ids", "inputs_embeds", "input_values"):
        return None
    return int(value.shape[1]) if value.dim() > 1 else None
