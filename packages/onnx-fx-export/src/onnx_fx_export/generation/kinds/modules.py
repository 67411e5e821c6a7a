"""Modules that are called like causal language models of transformers, and are of none of its classes."""

from __future__ import annotations

import inspect
import types
from collections.abc import Mapping
from typing import Any, ClassVar

import torch

from onnx_fx_export.errors import InvalidArgumentError
from onnx_fx_export.generation.caches import layers_of
from onnx_fx_export.generation.config import vocabulary
from onnx_fx_export.generation.requirements import transformers
from onnx_fx_export.generation.trials import check_place, differ, running
from onnxops_decomp.exporting import cache_argument

__all__ = ["CalledModule", "as_model", "is_module"]

# What the calls of transformers have beside, and a module may do without.
_BESIDE = ("use_cache", "return_dict")
_TRIED = 3


def is_module(model: Any) -> bool:
    """Tell whether something is a module that reads tokens, and no model of transformers."""
    others = (transformers().PreTrainedModel, torch.jit.ScriptModule)  # a scripted module cannot be captured
    if not isinstance(model, torch.nn.Module) or isinstance(model, others):
        return False
    return "input_ids" in inspect.signature(model.forward).parameters


def as_model(module: Any) -> CalledModule:
    """Return a module as a model of transformers, under the name of its class.

    Args:
        module: A module whose forward takes ``input_ids``, ``attention_mask`` and a cache.

    Raises:
        InvalidArgumentError: If it is not on the CPU, fails, returns no logits, or reads nothing of its cache.
    """
    check_place(module)
    own = inspect.signature(module.forward)
    named = [parameter for parameter in own.parameters.values() if parameter.kind is not parameter.VAR_KEYWORD]
    beside = [inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=None) for name in _BESIDE]
    added = [parameter for parameter in beside if parameter.name not in own.parameters]
    first = inspect.Parameter("self", inspect.Parameter.POSITIONAL_OR_KEYWORD)

    def forward(self: CalledModule, *args: Any, **given: Any) -> Any:
        return self.called(*args, **given)

    # What is handed to a model follows from the parameters that its forward has.
    forward.__signature__ = own.replace(parameters=[first, *named, *added])  # type: ignore[attr-defined]
    kind: type[CalledModule] = type(type(module).__name__, (CalledModule,), {"forward": forward})
    return kind(module)


class CalledModule(torch.nn.Module):
    """A module, with what models of transformers have beside their forward.

    Attributes:
        module: The module.
        config: Its configuration, with what a look at it tells.
        generation_config: Its settings, or those that follow from the configuration.

    Args:
        module: A module whose forward takes ``input_ids``, ``attention_mask`` and a cache. It returns ``logits`` and
            the cache, by name or in this order, or logits alone if the cache is written in place.

    Raises:
        InvalidArgumentError: If it fails, returns no logits, or reads nothing of its cache.
    """

    main_input_name: ClassVar = "input_ids"

    def __init__(self, module: Any) -> None:
        super().__init__()
        self.module = module
        taken = inspect.signature(module.forward).parameters
        passed_on = any(parameter.kind is parameter.VAR_KEYWORD for parameter in taken.values())
        self._left_out = [] if passed_on else [name for name in _BESIDE if name not in taken]
        self._cache_name = cache_argument(module) or ""
        own: Any = getattr(module, "config", None)
        known = isinstance(own, transformers().PreTrainedConfig)
        self._describes_itself = known and hasattr(own.get_text_config(decoder=True), "num_hidden_layers")
        self._head: torch.nn.Module | None = None
        self.config: Any = own if self._describes_itself else self._described(own)
        settings = getattr(module, "generation_config", None)
        library = transformers().GenerationConfig
        self.generation_config = settings if isinstance(settings, library) else library.from_model_config(self.config)
        self._check_cache()

    def can_generate(self) -> bool:
        """Return true."""
        return True

    def get_output_embeddings(self) -> Any:
        """Return what makes the logits, or None if nothing makes them alone."""
        own = getattr(self.module, "get_output_embeddings", None)
        return self._head if own is None else own()

    def called(self, *args: Any, **given: Any) -> Any:
        """Return what the module makes of a call of transformers, with ``logits`` and the cache by name.

        Raises:
            InvalidArgumentError: If it returns no logits.
        """
        for name in self._left_out:
            given.pop(name, None)
        if not args and given.get(self._cache_name) is None:  # as generate does
            library = transformers().DynamicCache
            given[self._cache_name] = library(config=self.config) if self._describes_itself else library()
            given.setdefault("attention_mask", torch.ones_like(given["input_ids"]))
        result = self.module(*args, **given)
        logits, cache = self._read(result)
        if not isinstance(logits, torch.Tensor):
            raise InvalidArgumentError(
                f"{type(self).__name__} cannot be written as a folder for generation: it returns "
                f"{type(result).__name__}, which has no logits."
            )
        cache = given.get(self._cache_name) if cache is None else cache
        return types.SimpleNamespace(logits=logits, **{self._cache_name: cache})

    def _read(self, result: Any) -> tuple[Any, Any]:
        if isinstance(result, torch.Tensor):
            return result, None
        if isinstance(result, tuple):
            return next(iter(result), None), next(iter(result[1:]), None)
        found = result if isinstance(result, Mapping) else getattr(result, "__dict__", {})
        return found.get("logits"), found.get(self._cache_name)

    def generate(
        self, input_ids: torch.Tensor, attention_mask: torch.Tensor, *, generation_config: Any
    ) -> torch.Tensor:
        """Return a text (1, T) with the most likely tokens behind it, each found by reading all that is before it.

        Args:
            input_ids: Tokens (1, S), int64.
            attention_mask: 1 for each of them (1, S), int64.
            generation_config: How many tokens are added, and which of them would end the text and are not taken.
        """
        for _ in range(generation_config.max_new_tokens):
            scores = self(input_ids=input_ids, attention_mask=attention_mask).logits[:, -1].clone()
            scores[:, generation_config.eos_token_id or []] = -torch.inf
            input_ids = torch.cat([input_ids, scores.argmax(-1, keepdim=True)], 1)
            attention_mask = torch.ones_like(input_ids)
        return input_ids

    def _described(self, own: Any) -> Any:
        """Return a configuration of what a module says of itself, and of what a look at it tells."""
        said = own if isinstance(own, Mapping) else getattr(own, "__dict__", {})
        plain = {name: value for name, value in said.items() if isinstance(value, bool | int | float | str)}
        outputs: list[tuple[torch.nn.Module, Any]] = []
        hooks = [
            module.register_forward_hook(lambda module, _, output: outputs.append((module, output)))
            for module in self.module.modules()
            if module is not self.module
        ]
        try:
            result = self._tried(torch.zeros(1, _TRIED, dtype=torch.int64))
        finally:
            for hook in hooks:
                hook.remove()
        self._head = next((module for module, output in outputs if output is result.logits), None)
        layers = len(getattr(getattr(result, self._cache_name), "layers", ()))
        return transformers().PreTrainedConfig(
            **{**plain, "vocab_size": result.logits.shape[-1], "num_hidden_layers": layers}
        )

    def _tried(self, tokens: torch.Tensor, cache: Any = None) -> Any:
        kept = 0 if cache is None else _TRIED - 1
        mask = torch.ones(1, kept + tokens.shape[1], dtype=torch.int64)
        with running(self):
            return self(input_ids=tokens, attention_mask=mask, use_cache=True, **{self._cache_name: cache})

    def _check_cache(self) -> None:
        """Refuse a module that makes something else of a token behind its cache: a folder would be wrong.

        Raises:
            InvalidArgumentError: If it is one.
        """
        tokens = torch.arange(_TRIED)[None] % vocabulary(self)
        wanted = self._tried(tokens).logits[:, -1]
        before = getattr(self._tried(tokens[:, :-1]), self._cache_name)
        if not isinstance(before, transformers().DynamicCache):
            layers_of(self, before)
        found = self._tried(tokens[:, -1:], before).logits[:, -1]
        if differ(self, found, wanted, much=True):
            raise InvalidArgumentError(
                f"{type(self).__name__} cannot be written as a folder for generation: it makes something else of a "
                f"token behind its {self._cache_name} than of a whole text. Look at how its forward reads the cache."
            )
