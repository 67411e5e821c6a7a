"""The forms in which a user may hand over a model."""

from __future__ import annotations

import functools
import inspect
from typing import Any

import torch

from onnxops_core import OnnxExporterError
from onnxops_decomp.exporting.errors import InvalidArgumentError
from onnxops_decomp.torch_private import uncompiled

__all__ = ["check_numbers", "plain_model"]


def plain_model(model: Any, error: type[OnnxExporterError]) -> Any:
    """Return a model without what ``torch.compile`` and ``functools.partial`` put around it.

    Args:
        model: What the user wants to export.
        error: What to raise.

    Raises:
        OnnxExporterError: If it is a class.
    """
    if isinstance(model, type):
        raise error(f"The model is the class {model.__name__}, not an instance: pass {model.__name__}(...).")
    model = uncompiled(model)
    if isinstance(model, functools.partial) and isinstance(uncompiled(model.func), torch.nn.Module):
        return _bound(uncompiled(model.func), model)
    return model


def _bound(module: torch.nn.Module, call: functools.partial[Any]) -> torch.nn.Module:
    """Return a module that calls another one with some arguments given; weights keep their names behind ``func``."""
    signature = inspect.signature(functools.partial(module.forward, *call.args, **call.keywords))

    def forward(self: Any, *args: Any, **kwargs: Any) -> Any:
        return self.func(*call.args, *args, **{**call.keywords, **kwargs})

    own = inspect.Parameter("self", inspect.Parameter.POSITIONAL_OR_KEYWORD)
    first = [p for p in signature.parameters.values() if p.kind is inspect.Parameter.POSITIONAL_ONLY]
    own = own.replace(kind=inspect.Parameter.POSITIONAL_ONLY) if first else own
    parameters = [own, *signature.parameters.values()]
    forward.__signature__ = signature.replace(parameters=parameters)  # type: ignore[attr-defined]
    result: Any = type(type(module).__name__, (torch.nn.Module,), {"forward": forward})()
    result.func, result.training = module, module.training
    wrapped: torch.nn.Module = result
    return wrapped


def check_numbers(kind: str, name: str, tensor: torch.Tensor) -> None:
    """Make sure that ONNX has a form for a tensor.

    Args:
        kind: "Input" or "Weight", for the message.
        name: What it is called.
        tensor: The tensor.

    Raises:
        InvalidArgumentError: If it is sparse, nested or in a layout of a library, or holds two numbers in an element.
    """
    if tensor.is_nested or tensor.layout != torch.strided:
        form = "is nested" if tensor.is_nested else f"is a tensor of layout {tensor.layout}"
        instead = "torch.nested.to_padded_tensor(x, 0.0)" if tensor.is_nested else "to_dense()"
        raise InvalidArgumentError(
            f"{kind} {name} {form}; the operators of ONNX work on dense ones. Call {instead} on it first."
        )
    if tensor.dtype == torch.float4_e2m1fn_x2:
        raise InvalidArgumentError(
            f"{kind} {name} holds two numbers in each element ({tensor.dtype}), and no operator of torch computes with "
            "those. Keep its bytes, tensor.view(torch.uint8), and unpack them in the model."
        )
