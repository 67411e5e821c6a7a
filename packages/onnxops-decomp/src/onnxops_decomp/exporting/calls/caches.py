"""The caches of transformers, taken apart into their tensors and put together again.

A cache is a list of layers, and a layer is whatever its class keeps: keys and values, states of linear
attention, keys of an indexer. All tensors of a layer become leaves; what it keeps besides is in the structure.
"""

from __future__ import annotations

import collections
import dataclasses
import importlib
import inspect
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

import torch
from torch.utils import _pytree as pytree

from onnxops_core import is_in_onnx_export
from onnxops_decomp.exporting.errors import InvalidArgumentError
from onnxops_decomp.torch_private import taken_over_node

__all__ = [
    "by_kind_of_tensor",
    "cache_argument",
    "check_cache",
    "check_counts",
    "is_registered",
    "layer_tensors",
    "register_cache",
    "register_class",
    "tensor_places",
]

_RANK = 4  # batch, heads, sequence, head size
_LABELS = {"keys": "key_cache", "values": "value_cache"}
_COUNT = "cumulative_length"
_UNKNOWN_COUNT = "_dropped_tokens_are_unknown"
# Numbers that follow from the tensors of a layer, and change with them.
_DERIVED = {_COUNT, "batch_size", "num_heads", "k_head_dim", "v_head_dim", "_sliding_window_tensor", _UNKNOWN_COUNT}
_PLAIN = (bool, int, float, str, type(None))
_PARTS = ("self_attention_cache", "cross_attention_cache")
# What models call their cache: since transformers 5.24, before it, and before it where all states are of one size.
_ARGUMENTS = ("cache", "past_key_values", "cache_params")

Place = tuple[str, int | None]


def cache_argument(model: torch.nn.Module) -> str | None:
    """Return the parameter of ``forward`` by which a model of transformers takes its cache, which its result has too.

    Args:
        model: The model.

    Returns:
        The name; None if it takes no cache.
    """
    taken = inspect.signature(model.forward).parameters
    return next((name for name in _ARGUMENTS if name in taken), None)


@dataclasses.dataclass(frozen=True, eq=False)
class LayerForm:
    """What a layer of a cache keeps besides its tensors.

    Attributes:
        kind: Its class.
        places: Where its tensors are: an attribute, and the key if that is a dict.
        state: Its other attributes.
    """

    kind: type
    places: tuple[Place, ...]
    state: Mapping[str, Any]

    def alike(self) -> tuple[Any, ...]:
        """Return what makes two layers the same for a captured model."""
        return self.places, self.state.get("has_previous_state")


@dataclasses.dataclass(frozen=True, eq=False)
class CacheForm:
    """What a cache keeps besides the tensors of its layers; two are equal if one captured model takes both.

    Attributes:
        layers: Its layers.
        state: Its other attributes.
    """

    layers: tuple[LayerForm, ...]
    state: Mapping[str, Any]

    def __eq__(self, other: object) -> bool:
        """Compare what a captured model depends on."""
        return isinstance(other, CacheForm) and self._alike() == other._alike()

    def __hash__(self) -> int:
        """Return a hash for what is compared."""
        return hash(len(self.layers))

    def _alike(self) -> list[Any]:
        return [self.state.get("is_updated"), *(layer.alike() for layer in self.layers)]

    @property
    def keys_of_children(self) -> list[str]:
        """Names of its tensors, by kind and number: ``key_cache.0``; layer by layer, as transformers orders them."""
        numbers: collections.Counter[str] = collections.Counter()
        names = []
        for column in (_column(place) for layer in self.layers for place in layer.places):
            names.append(f"{column}.{numbers[column]}")
            numbers[column] += 1
        return names

    def restored(self, kind: type, tensors: Sequence[Sequence[Any]]) -> Any:
        """Return a cache of this form.

        Args:
            kind: Its class.
            tensors: What stands at the places of each layer: tensors, or what a function over the tree made of them.
        """
        cache: Any = object.__new__(kind)
        vars(cache).update({name: _copied(value) for name, value in self.state.items()})
        cache.layers = [_layer(form, items) for form, items in zip(self.layers, tensors, strict=True)]
        return cache


def tensor_places(cache: Any) -> list[tuple[int, str]]:
    """Return for each tensor of a cache, in the order of its leaves, its layer and what it is called there."""
    form = cache_form(cache)
    return [(index, _row(place)) for index, layer in enumerate(form.layers) for place in layer.places]


def cache_form(cache: Any) -> CacheForm:
    """Return what a cache keeps besides its tensors."""
    state = {name: value for name, value in vars(cache).items() if name != "layers"}
    return CacheForm(tuple(_layer_form(layer) for layer in cache.layers), state)


def layer_tensors(layer: Any) -> Iterator[tuple[Place, torch.Tensor]]:
    """Yield the tensors of a layer and where they are."""
    for name, value in vars(layer).items():
        if name == "_sliding_window_tensor":
            continue
        if isinstance(value, torch.Tensor):
            yield (name, None), value
        elif isinstance(value, dict):
            yield from (((name, key), item) for key, item in value.items() if isinstance(item, torch.Tensor))


def register_cache(caches: Any, value: Any) -> bool:
    """Make the class of a cache known to torch's pytrees; return whether it is one that can be.

    Args:
        caches: The module ``transformers.cache_utils``.
        value: The cache.
    """
    known = all(type(layer).__module__ == caches.__name__ for layer in getattr(value, "layers", ()))
    return known and register_class(caches, type(value))


def register_class(caches: Any, kind: type) -> bool:
    """Make a class of caches known to torch's pytrees; return whether it is one that can be.

    A registration by another tool, such as transformers' own exporters, makes way; what that one took apart can still
    be put together.

    Args:
        caches: The module ``transformers.cache_utils``.
        kind: The class.
    """
    if kind in _OURS or issubclass(kind, caches.QuantizedCache):
        return kind in _OURS
    is_static, in_parts = issubclass(kind, caches.StaticCache), issubclass(kind, caches.EncoderDecoderCache)
    with_keys, restore = _WAYS["parts" if in_parts else "layers" if is_static else "tensors"]
    earlier = taken_over_node(kind)

    def unflatten(items: Iterable[Any], context: Any) -> Any:
        if earlier is not None and not isinstance(context, CacheForm | _Parts):
            return earlier(items, context)
        return restore(kind, list(items), context)

    def flatten(cache: Any) -> tuple[list[Any], Any]:
        entries, context = with_keys(cache)
        return [item for _, item in entries], context

    _OURS.add(kind)
    pytree.register_pytree_node(
        kind,
        flatten,
        unflatten,
        serialized_type_name=f"{kind.__module__}.{kind.__qualname__}",
        to_dumpable_context=_dumped,
        from_dumpable_context=_undumped,
        flatten_with_keys_fn=with_keys,
    )
    return True


_OURS: set[type] = set()


def is_registered(value: Any) -> bool:
    """Tell whether the class of a cache is registered by this module, and not by another tool or not at all."""
    return type(value) in _OURS


def check_cache(caches: Any, cache: Any) -> None:
    """Make sure that all a cache knows is in its tensors.

    Args:
        caches: The module ``transformers.cache_utils``.
        cache: The cache.

    Raises:
        InvalidArgumentError: If it is a ``StaticCache`` without tensors yet, or with sliding windows.
    """
    if not isinstance(cache, caches.StaticCache):
        return
    if any(isinstance(layer, caches.StaticSlidingWindowLayer) for layer in cache.layers):
        raise InvalidArgumentError(
            "Only layers of a StaticCache without a sliding window can be inputs: the others count tokens in Python. "
            "Use a DynamicCache."
        )
    if not all(getattr(layer, "is_initialized", True) for layer in cache.layers):
        raise InvalidArgumentError(
            "The StaticCache has no tensors yet. Call its early_initialization(batch_size, num_heads, head_dim, dtype, "
            "device) before the export."
        )


def check_counts(cache: Any) -> None:
    """Make sure that the tensors of a cache tell how many tokens it has seen.

    Raises:
        InvalidArgumentError: If a sliding window has dropped some of them, or may have.
    """
    for layer in getattr(cache, "layers", ()):
        seen, keys = getattr(layer, _COUNT, None), getattr(layer, "keys", None)
        if not isinstance(keys, torch.Tensor) or keys.dim() != _RANK or type(seen) is not int:
            continue
        unknown = getattr(layer, _UNKNOWN_COUNT, False)
        if unknown or seen > keys.shape[-2]:
            count = "an unknown number of" if unknown else seen
            raise InvalidArgumentError(
                f"The {type(cache).__name__} has seen {count} tokens, and its sliding windows hold "
                f"{keys.shape[-2]} of them: a model that gets only the tensors would confuse positions. Export "
                "with a cache that holds all of its tokens, and make the window of the model large enough for "
                "them."
            )


# ---- layers


def _layer_form(layer: Any) -> LayerForm:
    places = tuple(sorted((place for place, _ in layer_tensors(layer)), key=_order))
    taken = {name for name, _ in places}
    state = {
        name: _copied(value)
        for name, value in vars(layer).items()
        if name not in _DERIVED and not isinstance(value, torch.Tensor | torch.SymInt)
    }
    for name in taken & state.keys():
        state[name] = {key: None if isinstance(item, torch.Tensor) else item for key, item in state[name].items()}
    return LayerForm(type(layer), places, state)


def _copied(value: Any) -> Any:
    return dict(value) if type(value) is dict else value


def _layer(form: LayerForm, items: Sequence[Any]) -> Any:
    """Return a layer of a form; inside an export, one that nothing but its tensors has a say in."""
    layer: Any = object.__new__(form.kind)
    vars(layer).update({name: _copied(value) for name, value in form.state.items()})
    exporting = is_in_onnx_export()
    for (name, key), item in zip(form.places, items, strict=True):
        if key is None:
            setattr(layer, name, item)
        else:
            # Linear attention writes its states in place. What the caller sees of that is the cache that comes back.
            getattr(layer, name)[key] = item.clone() if exporting and isinstance(item, torch.Tensor) else item
    _add_derived(layer, form, exporting)
    return layer


def _add_derived(layer: Any, form: LayerForm, exporting: bool) -> None:
    """Set the numbers of a layer that follow from its tensors."""
    keys: Any = getattr(layer, "keys", None)
    values: Any = getattr(layer, "values", None)
    window = form.state.get("sliding_window")
    held = keys.shape[-2] if isinstance(keys, torch.Tensor) and keys.dim() == _RANK else 0
    if window is not None:
        if exporting and (full := _without_window(form.kind)) is not None:
            # It counts in Python what it has dropped. The cache of the graph drops nothing: the mask has the window.
            layer.__class__ = full
            del layer.sliding_window
            return
        layer.cumulative_length = held
        layer._sliding_window_tensor = torch.tensor(window, dtype=torch.long)
        vars(layer)[_UNKNOWN_COUNT] = type(held) is int and held >= window - 1
    elif held is not None and (_COUNT, None) in form.places and isinstance(values, torch.Tensor):
        layer.batch_size, layer.num_heads, _, layer.k_head_dim = keys.shape
        layer.v_head_dim = values.shape[-1]


def _without_window(kind: type) -> type | None:
    """Return the class of layers that keep all tokens where a class keeps those of a window."""
    caches = importlib.import_module(kind.__module__)
    both = getattr(caches, "LinearAttentionAndFullAttentionLayer", None)
    pairs = {
        caches.DynamicSlidingWindowLayer: caches.DynamicLayer,
        getattr(caches, "LinearAttentionAndSlidingWindowAttentionLayer", None): both,
    }
    return pairs.get(kind)


# ---- the ways in which caches are taken apart


@dataclasses.dataclass(frozen=True)
class _Parts:
    """What an encoder-decoder cache keeps besides its two caches."""

    is_updated: tuple[tuple[int, bool], ...]
    keys_of_children: tuple[str, str] = _PARTS


def _by_tensor(cache: Any) -> tuple[list[tuple[Any, Any]], CacheForm]:
    """Take a cache apart into its tensors."""
    form = cache_form(cache)
    found = [dict(layer_tensors(layer)) for layer in cache.layers]
    tensors = [found[index][place] for index, layer in enumerate(form.layers) for place in layer.places]
    return list(zip(map(pytree.MappingKey, form.keys_of_children), tensors, strict=True)), form


def _column(place: Place) -> str:
    name, key = place
    return _LABELS.get(name, name if not key else f"{name}_{key}")


def _from_tensors(kind: type, tensors: list[Any], form: CacheForm) -> Any:
    items = iter(tensors)
    return form.restored(kind, [[next(items) for _ in layer.places] for layer in form.layers])


def by_kind_of_tensor(cache: Any, entries: Any) -> list[Any] | None:
    """Return one entry for each tensor of a cache, of entries that are given for each kind of tensor.

    Args:
        cache: A cache that is registered.
        entries: For each kind, or by its name, a list with an entry for each of them.

    Returns:
        The entries in the order of the tensors; None if they are given in another form, or the value is no such cache.
    """
    if not is_registered(cache) or not hasattr(cache, "layers"):
        return None
    names = cache_form(cache).keys_of_children
    kinds = list(dict.fromkeys(name.rpartition(".")[0] for name in names))
    if not isinstance(entries, Mapping):
        if len(entries) != len(kinds):
            return None
        entries = dict(zip(kinds, entries, strict=True))
    counts = collections.Counter(name.rpartition(".")[0] for name in names)
    if any(not isinstance(entries.get(kind), list | tuple) or len(entries[kind]) != counts[kind] for kind in kinds):
        return None
    if not any(isinstance(entry, Mapping) for kind in kinds for entry in entries[kind]):
        return None
    return [entries[kind][int(number)] for kind, _, number in (name.rpartition(".") for name in names)]


def _by_layer(cache: Any) -> tuple[list[tuple[Any, Any]], CacheForm]:
    """Take a cache apart into one dict of tensors for each layer."""
    form = cache_form(cache)
    tensors = [dict(layer_tensors(layer)) for layer in cache.layers]
    parts = [{_row(p): found[p] for p in layer.places} for layer, found in zip(form.layers, tensors, strict=True)]
    return [(pytree.SequenceKey(index), part) for index, part in enumerate(parts)], form


def _row(place: Place) -> str:
    name, key = place
    return name if not key else f"{name}_{key}"


def _order(place: Place) -> tuple[int, str]:
    """Return where a tensor of a layer stands among the others: keys, values, then by name."""
    name = _row(place)
    return {"keys": 0, "values": 1}.get(name, 2), name


def _from_layers(kind: type, parts: list[Any], form: CacheForm) -> Any:
    tensors = [[part[_row(place)] for place in layer.places] for part, layer in zip(parts, form.layers, strict=True)]
    return form.restored(kind, tensors)


def _by_part(cache: Any) -> tuple[list[tuple[Any, Any]], _Parts]:
    """Take a cache apart into those of the decoder itself and of its encoder."""
    entries: list[tuple[Any, Any]] = [(pytree.MappingKey(name), getattr(cache, name)) for name in _PARTS]
    return entries, _Parts(tuple((key, bool(value)) for key, value in cache.is_updated.items()))


def _from_parts(kind: type, parts: list[Any], context: _Parts) -> Any:
    cache: Any = object.__new__(kind)
    for name, part in zip(_PARTS, parts, strict=True):
        setattr(cache, name, part)
    cache.is_updated = dict(context.is_updated)
    return cache


_WAYS: dict[str, tuple[Callable[[Any], tuple[list[tuple[Any, Any]], Any]], Callable[[type, list[Any], Any], Any]]] = {
    "tensors": (_by_tensor, _from_tensors),
    "layers": (_by_layer, _from_layers),
    "parts": (_by_part, _from_parts),
}


# ---- contexts as JSON, which torch.export.save writes


def _dumped(context: Any) -> Any:
    if isinstance(context, _Parts):
        return {"is_updated": [list(entry) for entry in context.is_updated]}
    layers = [
        {"kind": _path(form.kind), "places": [list(place) for place in form.places], "state": _plain_state(form.state)}
        for form in context.layers
    ]
    return {"layers": layers, "state": _plain_state(context.state)}


def _plain_state(state: Mapping[str, Any]) -> dict[str, Any]:
    """Return the attributes that JSON can hold; the others are those of a device."""
    result: dict[str, Any] = {}
    for name, value in state.items():
        if isinstance(value, _PLAIN):
            result[name] = value
        elif isinstance(value, dict) and all(isinstance(item, _PLAIN) for item in value.values()):
            result[name] = {"items": [[key, item] for key, item in value.items()]}
        elif isinstance(value, type):
            result[name] = {"class": _path(value)}
        elif isinstance(value, torch.dtype | torch.device):
            result[name] = {type(value).__name__: str(value).removeprefix("torch.")}
    return result


_READERS: dict[str, Callable[[Any], Any]] = {
    "items": dict,
    "class": lambda path: _class_at(path),
    "dtype": lambda name: getattr(torch, name),
    "device": torch.device,
}


def _undumped(values: Any) -> Any:
    if "is_updated" in values:
        return _Parts(tuple((key, value) for key, value in values["is_updated"]))
    layers = tuple(
        LayerForm(_class_at(layer["kind"]), tuple((name, key) for name, key in layer["places"]), _read(layer["state"]))
        for layer in values["layers"]
    )
    return CacheForm(layers, _read(values["state"]))


def _read(state: Mapping[str, Any]) -> dict[str, Any]:
    result = dict(state)
    for name, value in state.items():
        if isinstance(value, dict):
            ((form, content),) = value.items()
            result[name] = _READERS[form](content)
    return result


def _path(kind: type) -> str:
    return f"{kind.__module__}:{kind.__qualname__}"


def _class_at(path: str) -> type:
    """Return a class of transformers; a file may name no other."""
    module, name = path.split(":")
    if module.split(".")[0] != "transformers":
        raise InvalidArgumentError(f"{path} is not a class of transformers.")
    found: type = getattr(importlib.import_module(module), name)
    return found
