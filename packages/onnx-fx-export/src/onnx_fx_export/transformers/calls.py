"""A call of a transformers model as one of named tensors."""

from __future__ import annotations

import contextlib
import inspect
from collections.abc import Iterator, Mapping
from typing import Any

import torch
from torch.utils import _pytree as pytree
from transformers import cache_utils

from onnx_fx_export.errors import InvalidArgumentError
from onnx_fx_export.transformers.dims import named_dims
from onnx_fx_export.transformers.names import holds_cache, input_leaves, output_leaves
from onnxops_core import onnx_export
from onnxops_decomp.exporting import cache_argument, leaf_specs, register_containers

__all__ = ["FlatCall"]


class FlatCall:
    """A model whose ``forward`` takes and returns named tensors, for the length of an export.

    The caches of the model are put together inside: those of a sliding window hold all tokens there, as do those that
    the model would make itself, and what is written in place is a copy.

    Attributes:
        tensors: The tensors of the example, by name.
        result: What the model returned last.
    """

    def __init__(self, model: torch.nn.Module, arguments: Mapping[str, Any], flags: Mapping[str, Any]) -> None:
        self._model, self._forward = model, model.forward
        self._flags = _accepted(model, flags)
        self.arguments = {**arguments, **_windowed_cache(model, arguments, self._flags)}
        register_containers(self.arguments.values())
        self._leaves = input_leaves(self.arguments)
        self._structure = pytree.tree_structure(self.arguments)
        self.tensors = {name: leaf for name, leaf in self._leaves if isinstance(leaf, torch.Tensor)}
        self._writes = any(isinstance(value, cache_utils.StaticCache) for value in _caches(self.arguments))
        self.result: Any = None
        if len(self.tensors) != sum(isinstance(leaf, torch.Tensor) for _, leaf in self._leaves):
            raise InvalidArgumentError(f"Two inputs would have the same name: {[name for name, _ in self._leaves]}.")

    @contextlib.contextmanager
    def in_place(self) -> Iterator[None]:
        """Let the model take and return named tensors in the body."""

        def forward(tensors: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
            return self._named_result(tensors)

        before = dict(vars(self._model))
        self._model.forward = forward
        try:
            yield
        finally:
            if "forward" in before:
                self._model.forward = before["forward"]
            else:
                del self._model.forward

    def call_once(self) -> None:
        """Call the model with the example, so that the result is one of plain tensors."""
        self._named_result(self.tensors)

    def declared(self, dynamic: bool, dynamic_shapes: Mapping[str, Any] | None) -> dict[str, dict[int, Any]] | None:
        """Return the dynamic dimensions by input.

        Args:
            dynamic: Whether those that differ from call to call get names of their own.
            dynamic_shapes: What the user says of arguments or of inputs, which comes first.

        Raises:
            InvalidArgumentError: If it names what is neither.
        """
        dims: dict[str, dict[int, Any]] = dict(named_dims(self.arguments)) if dynamic else {}
        for name, spec in (dynamic_shapes or {}).items():
            if name in self.arguments:
                leaves = input_leaves({name: self.arguments[name]})
                specs = leaf_specs(self.arguments[name], spec)
                dims |= {
                    leaf: dict(axes) for (leaf, _), axes in zip(leaves, specs, strict=True) if leaf in self.tensors
                }
            elif name in self.tensors:
                dims[name] = leaf_specs(self.tensors[name], spec)[0]
            else:
                known = ", ".join({**self.arguments, **self.tensors})
                raise InvalidArgumentError(
                    f"dynamic_shapes names {name!r}, which is neither an argument nor an input ({known})."
                )
        return {name: dims.get(name, {}) for name in self.tensors} if dims else None

    def _named_result(self, tensors: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        leaves = [tensors[name] if name in self.tensors else leaf for name, leaf in self._leaves]
        if self._writes:
            leaves = [leaf.clone() if isinstance(leaf, torch.Tensor) else leaf for leaf in leaves]
        with onnx_export():  # caches drop nothing then
            arguments = pytree.tree_unflatten(leaves, self._structure)
        self.result = self._forward(**arguments, **self._flags)
        register_containers([self.result], results=True)
        return {name: leaf for name, leaf in output_leaves(self.result) if isinstance(leaf, torch.Tensor)}


def _caches(arguments: Mapping[str, Any]) -> Iterator[Any]:
    """Yield the caches among arguments, those of an encoder and its decoder one by one."""
    for value in arguments.values():
        if isinstance(value, cache_utils.EncoderDecoderCache):
            yield from (value.self_attention_cache, value.cross_attention_cache)
        elif isinstance(value, cache_utils.Cache):
            yield value


def _accepted(model: torch.nn.Module, flags: Mapping[str, Any]) -> dict[str, Any]:
    """Return the flags that are given, and that a model takes as arguments."""
    parameters = inspect.signature(model.forward).parameters
    takes_all = any(p.kind is inspect.Parameter.VAR_KEYWORD for p in parameters.values())
    return {name: value for name, value in flags.items() if value is not None and (takes_all or name in parameters)}


def _windowed_cache(
    model: torch.nn.Module, arguments: Mapping[str, Any], flags: Mapping[str, Any]
) -> dict[str, cache_utils.DynamicCache]:
    """Return the cache that a model with sliding windows would make itself, so that it can hold all tokens."""
    name, config = cache_argument(model), getattr(model, "config", None)
    if name is None or config is None or getattr(config, "is_encoder_decoder", False):
        return {}
    if any(map(holds_cache, arguments.values())):
        return {}
    if not flags.get("use_cache", getattr(config, "use_cache", False)):
        return {}
    cache = cache_utils.DynamicCache(config=config)
    return {name: cache} if any(cache.is_sliding) else {}
