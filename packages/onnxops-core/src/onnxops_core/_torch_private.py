"""The few places where native operators need what torch offers only under private names.

``tests/test_torch_private.py`` fails when torch changes one of them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypeVar

import torch
from torch.autograd import forward_ad

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

__all__ = [
    "below_autograd",
    "differentiates",
    "forward_mode_is_active",
    "has_values",
    "is_mapped",
    "is_plain_eager",
    "without_autocast",
]

Result = TypeVar("Result")

# torch.library's own kernels use this guard to call the next kernel below autograd.
below_autograd = torch._C._AutoDispatchBelowAutograd

_modes = torch._C._len_torch_dispatch_stack
_function_modes = torch._C._len_torch_function_stack
_functorch_level = torch._C._functorch.peek_interpreter_stack
_tracing = torch._C._get_tracing_state
_autocasts = torch._C._is_any_autocast_enabled
_STRIDED = torch.strided


def forward_mode_is_active() -> bool:
    """Tell whether some forward-mode derivative is being computed, of whatever tensors."""
    return forward_ad._current_level >= 0


def is_plain_eager(arguments: Iterable[object]) -> bool:
    """Tell whether a call need not go through the dispatcher.

    Nothing records, transforms, casts or differentiates it then, and all its tensors are dense and on one device that
    has memory.
    """
    if _modes() or _function_modes() or _tracing() is not None or _functorch_level() is not None:
        return False
    if forward_mode_is_active() or _autocasts():
        return False
    grad = torch.is_grad_enabled()
    device = None
    for value in arguments:
        if value is None:
            continue
        kind = type(value)
        if kind is torch.Tensor or kind is torch.nn.Parameter:
            if (grad and value.requires_grad) or value.layout is not _STRIDED:  # type: ignore[attr-defined]
                return False
            if value.device != device:  # type: ignore[attr-defined]
                if device is not None or value.is_meta:  # type: ignore[attr-defined]
                    return False
                device = value.device  # type: ignore[attr-defined]
        elif isinstance(value, torch.Tensor):
            return False
    return True


def without_autocast(function: Callable[..., Result]) -> Callable[..., Result]:
    """Return a function that computes in the dtypes it is given, also where autocast is on.

    An ONNX operator has no other: a part of it in a half precision would be neither what its fake kernel says of the
    result nor what a runtime computes.
    """

    def run(*args: Any, **kwargs: Any) -> Result:
        device = args[0].device.type if _autocasts() else "meta"
        if device == "meta":
            return function(*args, **kwargs)
        with torch.autocast(device, enabled=False):
            return function(*args, **kwargs)

    return run


def differentiates(arguments: Iterable[object]) -> bool:
    """Tell whether the call is part of a reverse-mode or forward-mode derivative."""
    tensors = [value for value in arguments if isinstance(value, torch.Tensor)]
    if torch.is_grad_enabled() and any(tensor.requires_grad for tensor in tensors):
        return True
    if not forward_mode_is_active():
        return False
    return any(forward_ad.unpack_dual(tensor).tangent is not None for tensor in tensors)


def has_values(tensor: torch.Tensor | None) -> bool:
    """Tell whether a tensor's elements may be looked at without a device round trip: plain, on the CPU, not wrapped."""
    return (
        tensor is not None
        and type(tensor) in (torch.Tensor, torch.nn.Parameter)
        and tensor.device.type == "cpu"
        and _modes() == 0
        and not is_wrapped(tensor)
    )


def is_wrapped(tensor: torch.Tensor) -> bool:
    """Tell whether a functorch transform (vmap, grad, jvp) wraps the tensor."""
    wrapped: Any = torch._C._functorch.is_functorch_wrapped_tensor(tensor)
    return bool(wrapped)


def is_mapped(tensor: torch.Tensor) -> bool:
    """Tell whether vmap maps over the tensor, on whatever level of nested transforms."""
    while is_wrapped(tensor):
        if torch._C._functorch.is_batchedtensor(tensor):
            return True
        tensor = torch._C._functorch.get_unwrapped(tensor)
    return False
