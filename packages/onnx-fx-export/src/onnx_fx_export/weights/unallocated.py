"""Models whose weights were never allocated: made, captured, and given their weights later."""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Iterator

import torch
from torch.nn.parameter import is_lazy

from onnx_fx_export.torch_private import fake_like
from onnxops_core.exporting import original, replaced

__all__ = ["FakeContext", "allocated_on_paper", "enable_fake_mode"]


class FakeContext:
    """What was made inside :func:`enable_fake_mode`.

    Attributes:
        parameter_bytes: Size of the parameters that were not allocated.
    """

    def __init__(self) -> None:
        self.parameter_bytes = 0


@contextlib.contextmanager
def enable_fake_mode() -> Iterator[FakeContext]:
    """Make modules without memory for their parameters.

    Each parameter is put on the meta device as soon as a module registers it, before it is initialized; buffers are
    computed as ever, as a checkpoint does not hold all of them. The model can be exported, and its program be given
    weights from a state dict, a checkpoint or a ``.safetensors`` file with ``apply_weights``.

    Example:
        >>> with enable_fake_mode():
        ...     model = torch.nn.Linear(1_000_000, 1_000_000)
        >>> model.weight.device.type
        'meta'
    """
    context = FakeContext()
    register = original(torch.nn.Module, "register_parameter")

    def registered(module: torch.nn.Module, name: str, param: torch.nn.Parameter | None) -> None:
        register(module, name, param)
        if param is not None and not is_lazy(param) and not param.is_meta:
            context.parameter_bytes += param.numel() * param.element_size()
            # The parameter keeps its class and its attributes, on which initializers rely.
            kept = type(param)(param.to("meta"), requires_grad=param.requires_grad)
            kept.__dict__.update(param.__dict__)
            module._parameters[name] = kept

    with replaced([(torch.nn.Module, "register_parameter", registered)]):
        yield context


@contextlib.contextmanager
def allocated_on_paper(model: torch.nn.Module) -> Iterator[None]:
    """Let the parameters and buffers of a model that are on the meta device look as if they were on the CPU.

    A model with both would mix devices, which capture refuses.
    """
    if not any(tensor.is_meta for tensor in itertools.chain(model.parameters(), model.buffers())):
        yield
        return
    replaced = [
        (module, name, tensor)
        for module in model.modules()
        for name, tensor in (*module.named_parameters(recurse=False), *module.named_buffers(recurse=False))
        if tensor.is_meta
    ]
    stand_ins = fake_like([tensor for _, _, tensor in replaced])
    known: dict[int, torch.Tensor] = {}
    try:
        for (module, name, tensor), stand_in in zip(replaced, stand_ins, strict=True):
            setattr(module, name, known.setdefault(id(tensor), stand_in))
        yield
    finally:
        for module, name, tensor in replaced:
            setattr(module, name, tensor)
