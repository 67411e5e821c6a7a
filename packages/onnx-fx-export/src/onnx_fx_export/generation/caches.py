"""What the caches of a model hold."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable
from typing import Any

import onnx_ir as ir
import torch

from onnx_fx_export.errors import InvalidArgumentError, RuntimeSupportError
from onnx_fx_export.generation.requirements import transformers
from onnxops_decomp.exporting import installed_release

__all__ = [
    "Cache",
    "LayerCache",
    "as_dynamic",
    "check_windows",
    "empty_layers",
    "kept_by",
    "layers_of",
    "past_of",
    "sliding_window",
]

Cache = list[dict[str, torch.Tensor]]
# Since then GroupQueryAttention takes rows of different lengths where layers keep their windows alone.
_WINDOWS_SINCE = (1, 32)
_NOTHING_SHORTER = (
    "windowed_caches=True would change nothing: {} has no layer that is written as GroupQueryAttention with a window "
    "shorter than the longest text. Leave it out."
)


@dataclasses.dataclass(frozen=True)
class LayerCache:
    """What one layer keeps.

    Attributes:
        key: Heads and width of its keys.
        value: Heads and width of its values.
        window: How many tokens it sees, if not all.
        index: The width of what it chooses by which tokens it attends to, if it keeps that.
    """

    key: tuple[int, int]
    value: tuple[int, int]
    window: int | None = None
    index: int | None = None


def layers_of(model: Any, cache: Any) -> list[LayerCache]:
    """Return what the layers of a cache of keys and values hold.

    Args:
        model: The model whose cache it is.
        cache: A cache that has read at least one token.

    Raises:
        InvalidArgumentError: If it holds something else.
    """
    name, known = type(model).__name__, transformers().cache_utils
    kinds = (known.DynamicLayer, known.DynamicSlidingWindowLayer)
    if cache is None:
        encodes = getattr(model.config, "is_decoder", True) is False
        why = " With config.is_decoder = False it is an encoder, which reads a whole text at once." if encodes else ""
        raise InvalidArgumentError(f"{name} cannot be written as a folder for generation: it returns no cache.{why}")
    if not isinstance(cache, known.DynamicCache):
        raise InvalidArgumentError(
            f"{name} cannot be written as a folder for generation: its cache is {type(cache).__name__}, and so far "
            "only a DynamicCache is supported."
        )
    for number, layer in enumerate(cache.layers):
        if type(layer) not in kinds and not _is_indexed(layer) and not _is_empty(layer):
            raise InvalidArgumentError(
                f"{name} cannot be written as a folder for generation: layer {number} of its cache is "
                f"{type(layer).__name__}, and so far only keys and values are supported ({kinds[0].__name__}, "
                f"{kinds[1].__name__})."
            )
    return [
        LayerCache(
            _heads(layer.keys), _heads(layer.values), getattr(layer, "sliding_window", None), _width_of_index(layer)
        )
        for layer in _holding(cache)
    ]


def _is_indexed(layer: Any) -> bool:
    """Tell whether a layer also keeps an index (DeepSeek V3.2), and nothing else."""
    indexed = getattr(transformers().cache_utils, "DynamicIndexedLayer", ())
    return isinstance(layer, indexed) and layer.indexer_position_ids is None


def _width_of_index(layer: Any) -> int | None:
    index = getattr(layer, "indexer_keys", None)
    return None if index is None else int(index.shape[2])


def _holding(cache: Any) -> list[Any]:
    """Return the layers of a cache that hold something."""
    return [layer for layer in cache.layers if not _is_empty(layer)]


def _is_empty(layer: Any) -> bool:
    if isinstance(layer, getattr(transformers().cache_utils, "DummyLayer", ())):
        return True
    return getattr(layer, "is_initialized", True) is False


def empty_layers(cache: Any) -> tuple[int, ...]:
    """Return the places of layers that keep nothing, as those do that read what another layer keeps (Gemma 3n).

    Args:
        cache: A cache that has read at least one token. Decoders without their encoder have one that may be made for
            the layers of both.
    """
    return tuple(place for place, layer in enumerate(cache.layers) if _is_empty(layer))


def _heads(x: torch.Tensor) -> tuple[int, int]:
    """Return the heads and the width of keys or values (B, heads, T, width)."""
    return x.shape[1], x.shape[3]


def past_of(layers: list[LayerCache], batch: int, length: int, dtype: torch.dtype) -> Cache:
    """Return keys and values of zeros (B, heads, T, width), and indexes (B, T, width), as an example."""

    def past(shape: tuple[int, int]) -> torch.Tensor:
        return torch.zeros(batch, shape[0], length, shape[1], dtype=dtype)

    result = [{"key": past(layer.key), "value": past(layer.value)} for layer in layers]
    for layer, held in zip(layers, result, strict=True):
        if layer.index is not None:
            held["index"] = torch.zeros(batch, length, layer.index, dtype=dtype)
    return result


def as_dynamic(cache: Cache, empty: Iterable[int] = (), *, unread: bool = False) -> Any:
    """Return keys and values as a cache of transformers.

    Without the model's configuration no layer forgets: the masks alone tell how far a sliding window sees.

    Args:
        cache: Keys and values of the layers that keep some.
        empty: The places of those that do not, in ascending order.
        unread: Whether it says that nothing was read yet, as models ask that read types of tokens in first steps alone.
    """
    result = transformers().DynamicCache([(layer["key"], layer["value"]) for layer in cache])
    for place, held in enumerate(cache):
        if "index" in held:
            result.layers[place] = transformers().cache_utils.DynamicIndexedLayer()
            result.layers[place].update(held["key"], held["value"])
            result.layers[place].update_indexer(held["index"])
    for place in empty:
        result.layers.insert(place, transformers().cache_utils.DummyLayer())
    if unread:
        result.__class__ = type("UnreadCache", (type(result),), {"is_initialized": False})
    return result


def kept_by(cache: Any) -> Cache:
    """Return the keys, values and indexes of a cache of transformers, of layers that keep some."""
    return [
        {"key": layer.keys, "value": layer.values}
        | ({} if _width_of_index(layer) is None else {"index": layer.indexer_keys})
        for layer in _holding(cache)
    ]


def check_windows(model: Any, layers: list[LayerCache], length: int) -> None:
    """Refuse to let layers keep their windows alone where nothing would become shorter, or it cannot be run.

    Args:
        model: A model of transformers.
        layers: What its layers keep.
        length: The most tokens of a text.

    Raises:
        InvalidArgumentError: If no layer has a shorter window.
        RuntimeSupportError: If the installed ONNX Runtime is too old.
    """
    if not any(layer.window is not None and layer.window < length for layer in layers):
        raise InvalidArgumentError(_NOTHING_SHORTER.format(type(model).__name__))
    if (installed := installed_release()) is not None and installed < _WINDOWS_SINCE:
        raise RuntimeSupportError(
            "windowed_caches=True needs ONNX Runtime {}.{} or newer; {}.{} is installed.".format(
                *_WINDOWS_SINCE, *installed
            )
        )


def sliding_window(model: Any, graph: ir.Graph) -> dict[str, Any]:
    """Return what an engine has to know of the layers that keep their windows alone.

    Args:
        model: A model of transformers.
        graph: Its decoder, whose ``GroupQueryAttention`` reads caches that are named by layer.

    Raises:
        InvalidArgumentError: If there are none.
    """
    nodes = [node for node in graph if node.attributes.get_int("sliding_window_cache", 0)]
    if not nodes:
        raise InvalidArgumentError(_NOTHING_SHORTER.format(type(model).__name__))
    keys = [str(node.inputs[3].name) for node in nodes if node.inputs[3] is not None]
    return {
        "window_size": max(node.attributes.get_int("local_window_size", 0) for node in nodes),
        "slide_key_value_cache": False,
        "slide_inputs": False,
        "layers": sorted(int(key.split(".")[1]) for key in keys),
        "cache_slack": 0,
    }
