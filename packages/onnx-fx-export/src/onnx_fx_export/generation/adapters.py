"""LoRA adapters as files beside a model, which an engine loads by name.

The layers are those of peft, known by what they hold; peft itself is not loaded.
"""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx_ir as ir
import torch

from onnx_fx_export.api import ONNXProgram
from onnx_fx_export.errors import InvalidArgumentError
from onnx_fx_export.generation.config import ADAPTER_SUFFIX
from onnx_fx_export.generation.requirements import onnxruntime

__all__ = ["Adapters", "active_adapter", "adapters_of", "lora_layers", "without_wrapper"]

_FACTORS = ("lora_A", "lora_B")
_VERSION = 1
# What a layer holds beside the two factors changes how they are used.
_VARIANTS = ("lora_embedding_A", "lora_embedding_B", "lora_magnitude_vector", "lora_variant", "merged_adapters")


def without_wrapper(model: Any) -> Any:
    """Return the model of transformers that a PeftModel holds, with its adapters; another model as it is.

    Raises:
        InvalidArgumentError: If it adapts the model in other ways than by layers of LoRA.
    """
    configs = getattr(model, "peft_config", None)
    if not isinstance(model, torch.nn.Module) or not configs or not hasattr(model, "get_base_model"):
        return model
    kinds = {str(getattr(config.peft_type, "value", config.peft_type)) for config in configs.values()}
    if kinds != {"LORA"}:
        raise InvalidArgumentError(
            f"{type(model).__name__} has adapters of {', '.join(sorted(kinds))}, and only those of LORA can be written."
        )
    wrapper: Any = model
    return wrapper.get_base_model()


def lora_layers(root: torch.nn.Module) -> dict[str, Any]:
    """Return the layers of a module that have LoRA adapters, by their paths."""
    names = ("base_layer", "scaling", "set_adapter", "enable_adapters", *_FACTORS)
    return {path: module for path, module in root.named_modules() if all(hasattr(module, name) for name in names)}


@dataclasses.dataclass(frozen=True)
class Adapters:
    """The adapters of a model.

    Attributes:
        names: What they are called.
    """

    names: tuple[str, ...] = ()

    @contextlib.contextmanager
    def as_factors(self, root: torch.nn.Module) -> Iterator[None]:
        """Let each layer have one adapter of two factors, whichever adapters it has; undo it afterwards."""
        own, random = lora_layers(root) if self.names else {}, torch.Generator().manual_seed(0)
        try:
            for path, layer in own.items():
                _put(root, path, FactoredLinear(layer, random).train(layer.training))
            yield
        finally:
            for path, layer in own.items():
                _put(root, path, layer)

    def make_inputs(self, program: ONNXProgram, root: torch.nn.Module) -> None:
        """Make the factors of a program inputs that are zero where an engine gives no others.

        Raises:
            InvalidArgumentError: If the program has no such weight.
        """
        graph = program.model.graph
        for path in lora_layers(root) if self.names else ():
            for factor in _FACTORS:
                value = graph.initializers.get(f"{path}.{factor}")
                if value is None or value.const_value is None or not value.uses():
                    raise InvalidArgumentError(f"The adapters of {path} did not reach the graph: it has no {factor}.")
                zeros = np.zeros(value.const_value.shape.numpy(), value.const_value.dtype.numpy())
                value.const_value = ir.tensor(zeros, name=value.name)
                graph.inputs.append(value)

    def save(self, root: torch.nn.Module, folder: Path) -> None:
        """Write a file for each adapter, with what the inputs are.

        Args:
            root: The module that was exported.
            folder: Where the files go.
        """
        runtime = onnxruntime()
        for name in self.names:
            values = {
                f"{path}.{factor}": runtime.OrtValue.ortvalue_from_numpy(array)
                for path, layer in lora_layers(root).items()
                for factor, array in zip(_FACTORS, _factors(layer, name), strict=True)
            }
            file = runtime.AdapterFormat()
            file.set_adapter_version(_VERSION)
            file.set_model_version(_VERSION)
            file.set_parameters(values)
            file.export_adapter(str(folder / f"{name}{ADAPTER_SUFFIX}"))


def adapters_of(model: Any) -> Adapters:
    """Return the adapters of a model.

    Raises:
        InvalidArgumentError: If it has none, or their layers compute more than a product of two factors.
    """
    layers = lora_layers(model)
    names = sorted({name for layer in layers.values() for name in layer.lora_A})
    if not names:
        raise InvalidArgumentError(
            f"{type(model).__name__} has no LoRA adapters; load some with peft, or leave adapters out."
        )
    for path, layer in layers.items():
        more = [name for name in _VARIANTS if getattr(layer, name, None)]
        factors = [part for factor in _FACTORS for part in getattr(layer, factor).values()]
        if any(type(part) is not torch.nn.Linear or part.bias is not None for part in factors):
            more.append("factors that are no plain linear layers")
        if more:
            raise InvalidArgumentError(
                f"{path} has adapters of another kind ({', '.join(more)}); "
                "merge them into the model (merge_and_unload), or leave adapters out."
            )
    if copied := [path for path, module in model.named_modules() if getattr(module, "modules_to_save", None)]:
        raise InvalidArgumentError(
            f"The adapters replace whole layers, too ({', '.join(copied[:3])}), which no adapter file holds; merge "
            "them into the model (merge_and_unload), or leave adapters out."
        )
    return Adapters(tuple(names))


class FactoredLinear(torch.nn.Module):
    """A linear layer, and an adapter of it.

    Attributes:
        lora_A: Its first factor (K, R).
        lora_B: Its second factor (R, N).

    Args:
        layer: A layer with LoRA adapters, the largest of which sets the rank.
        random: Makes the adapter's numbers, as equal weights would become one.
    """

    lora_A: torch.nn.Parameter
    lora_B: torch.nn.Parameter

    def __init__(self, layer: Any, random: torch.Generator) -> None:
        super().__init__()
        self.base_layer = layer.base_layer
        for factor, array in zip(_FACTORS, _factors(layer, None), strict=True):
            numbers = torch.rand(array.shape, generator=random, dtype=torch.float32).to(torch.from_numpy(array).dtype)
            self.register_parameter(factor, torch.nn.Parameter(numbers, requires_grad=False))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return what the layer and its adapter make of ``x`` (..., K)."""
        result: torch.Tensor = self.base_layer(x)
        return result + x @ self.lora_A @ self.lora_B


def _factors(layer: Any, name: str | None) -> list[npt.NDArray[Any]]:
    """Return the factors (K, R) and (R, N) of an adapter of a layer, scaled; zeros for an adapter that it has not."""
    known = {other: (layer.lora_A[other].weight, layer.lora_B[other].weight) for other in layer.lora_A}
    rank = max(len(first) for first, _ in known.values())
    first, second = next(iter(known.values()))
    result = [first.new_zeros(first.shape[1], rank), second.new_zeros(rank, len(second))]
    if name in known:
        first, second = known[name]
        result[0][:, : len(first)] = first.detach().T
        result[1][: len(first)] = second.detach().T * layer.scaling[name]
    return [factor.detach().cpu().numpy() for factor in result]


@contextlib.contextmanager
def active_adapter(model: Any, name: str | None) -> Iterator[None]:
    """Let a model compute with one of its adapters, or with none; afterwards it is as it was."""
    layers = list(lora_layers(model).values())
    before = [(layer, list(layer.active_adapters), bool(layer.disable_adapters)) for layer in layers]
    gradients = {weight: weight.requires_grad for weight in model.parameters()}
    try:
        for layer in layers:
            if name is not None:
                layer.set_adapter([name])
            layer.enable_adapters(name is not None)
        yield
    finally:
        for layer, active, disabled in before:
            layer.set_adapter(active)
            layer.enable_adapters(not disabled)
        for weight, wanted in gradients.items():
            weight.requires_grad_(wanted)


def _put(root: torch.nn.Module, path: str, module: torch.nn.Module) -> None:
    parent, _, name = path.rpartition(".")
    setattr(root.get_submodule(parent), name, module)
