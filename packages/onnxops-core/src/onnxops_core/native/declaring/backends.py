"""Which implementation computes a call: each backend says whether it can, and if not why.

A call goes to the first backend for its device that does not refuse it, and to the operator's own kernel, which
consists of torch operators, if all do.
"""

from __future__ import annotations

import dataclasses
import functools
import importlib.util
from collections.abc import Callable, Iterable
from typing import Any

import torch

__all__ = ["Backend", "dispatching", "triton_refuses"]


@dataclasses.dataclass(frozen=True)
class Backend:
    """An implementation of an operator for some of its calls.

    Attributes:
        name: what it is, as :meth:`onnxops_core.native.NativeOp.explain` shows it.
        refuses: takes a call and returns why it cannot be computed, or None if it can.
        run: computes a call.
        device: the type of the devices whose calls are its own.
    """

    name: str
    refuses: Callable[[Any], str | None]
    run: Callable[[Any], Any]
    device: str = "cuda"


def dispatching(
    backends: tuple[Backend, ...], kernel: Callable[[Any], Any], first: Callable[[Any], torch.Tensor]
) -> Callable[[Any], Any]:
    """Return a function that sends a call to the first backend that takes it, or to the kernel.

    Args:
        backends: those of all devices, in order of preference.
        kernel: computes what they refuse.
        first: returns a call's first input, whose device is the call's.
    """
    on_cpu = [backend for backend in backends if backend.device == "cpu"]
    on_cuda = [backend for backend in backends if backend.device == "cuda"]

    def run(call: Any) -> Any:
        tensor = first(call)
        if tensor.is_cpu:
            for backend in on_cpu:
                if backend.refuses(call) is None:
                    return backend.run(call)
        elif tensor.is_cuda:
            for backend in on_cuda:
                if backend.refuses(call) is None:
                    # Triton launches on the current device, which need not be the tensors'.
                    with torch.cuda.device_of(tensor):
                        return backend.run(call)
        return kernel(call)

    return run


@functools.cache
def _triton_is_installed() -> bool:
    return importlib.util.find_spec("triton") is not None


def triton_refuses(tensors: Iterable[torch.Tensor | None]) -> str | None:
    """Return why Triton kernels, which compute in float32 on NVIDIA GPUs, cannot take some tensors, or None."""
    for tensor in tensors:
        if tensor is None:
            continue
        if not tensor.is_cuda:
            return f"a tensor is on {tensor.device}, not on a CUDA device"
        if tensor.dtype == torch.float64:
            return "float64 would be computed in float32"
        if tensor.is_neg():
            return "memory holds the negative of a tensor"
    return None if _triton_is_installed() else "Triton is not installed"


def contiguous_or_none(tensor: torch.Tensor | None) -> torch.Tensor | None:
    """Return a contiguous tensor of the same values, or None for one that is left out."""
    return None if tensor is None else tensor.contiguous()
