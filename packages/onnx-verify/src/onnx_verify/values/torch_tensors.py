"""Everything that touches torch, which is optional: nothing here imports it unless the caller already has."""

from __future__ import annotations

import sys
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, TypeGuard, cast

import numpy as np
import numpy.typing as npt

from onnx_verify.errors import InputError, MissingDependencyError

if TYPE_CHECKING:
    from collections.abc import Iterator
    from types import ModuleType

    import torch

Array = npt.NDArray[Any]

_BITS = {"bfloat16": 16, "float8": 8}


def loaded_torch() -> ModuleType | None:
    """Return torch if the program has imported it; an object of torch cannot exist otherwise."""
    return sys.modules.get("torch")


def require_torch(purpose: str) -> ModuleType:
    """Import torch.

    Raises:
        MissingDependencyError: if it is not installed.
    """
    try:
        import torch
    except ImportError as error:
        raise MissingDependencyError(
            f"{purpose} needs PyTorch; install it with: pip install 'onnx-verify[torch]'"
        ) from error
    return torch


def is_tensor(value: object) -> TypeGuard[torch.Tensor]:
    """Tell whether the value is a torch tensor."""
    torch = loaded_torch()
    return torch is not None and isinstance(value, torch.Tensor)


def is_module(value: object) -> TypeGuard[torch.nn.Module]:
    """Tell whether the value is a torch module (script modules included)."""
    torch = loaded_torch()
    return torch is not None and isinstance(value, torch.nn.Module)


def is_exported_program(value: object) -> TypeGuard[torch.export.ExportedProgram]:
    """Tell whether the value is a torch ExportedProgram."""
    export = sys.modules.get("torch.export")
    return export is not None and isinstance(value, export.ExportedProgram)


def is_torch_callable(value: object) -> bool:
    """Tell whether the value is a function made by torch that wants tensors."""
    torch = loaded_torch()
    return torch is not None and isinstance(value, (torch.jit.ScriptFunction, torch.nn.Module))


def to_numpy(tensor: torch.Tensor) -> Array:
    """Copy a tensor of any device and dtype to an array.

    Raises:
        InputError: if it is sparse, or of a dtype that ONNX does not have.
    """
    torch = require_torch("reading a tensor")
    if tensor.layout != torch.strided:
        raise InputError(f"a tensor of layout {tensor.layout} has no ONNX counterpart; pass tensor.to_dense()")
    plain = tensor.detach()
    if plain.is_quantized:
        plain = plain.dequantize()
    plain = plain.cpu().resolve_conj().resolve_neg()
    name = str(plain.dtype).removeprefix("torch.")
    bits = next((bits for prefix, bits in _BITS.items() if name.startswith(prefix)), None)
    if bits is None:
        return np.array(plain.numpy(), copy=True)
    raw = plain.contiguous().view(torch.uint16 if bits == 16 else torch.uint8)
    return np.array(raw.numpy(), copy=True).view(_ml_dtype(name))


def _ml_dtype(name: str) -> np.dtype[np.generic]:
    import ml_dtypes

    known = name if hasattr(ml_dtypes, name) else f"{name}fn"
    if not hasattr(ml_dtypes, known):
        raise InputError(f"torch.{name} has no numpy counterpart")
    found: np.dtype[np.generic] = np.dtype(getattr(ml_dtypes, known))
    return found


def to_tensor(array: Array) -> torch.Tensor:
    """Copy an array to a CPU tensor.

    Raises:
        InputError: if torch has no such dtype.
    """
    module = require_torch("running a torch model")
    if array.dtype.kind in "OSU":
        raise InputError("torch has no string tensors")
    if array.dtype.kind in "biufc":
        # Of the names that numpy has for one integer, torch knows one; ONNX Runtime gives another for UINT64.
        return cast("torch.Tensor", module.from_numpy(np.array(array, copy=True).view(array.dtype.str)))
    dtype = getattr(module, array.dtype.name, None)
    if dtype is None:
        raise InputError(f"torch has no dtype for {array.dtype}")
    raw = np.ascontiguousarray(array).view(np.dtype(f"u{array.dtype.itemsize}"))
    return cast("torch.Tensor", module.from_numpy(np.array(raw, copy=True)).view(dtype))


@contextmanager
def unchanged(module: torch.nn.Module) -> Iterator[None]:
    """Restore the module's buffers afterwards, so that a stateful model gives the same result again.

    Both what a run writes into a buffer and another tensor that it puts in its place are undone. Parameters are not
    copied, for a forward pass does not write to them; tensors kept in plain attributes are not seen.
    """
    torch = require_torch("running a torch model")
    saved = [(*_owner(module, name), buffer, buffer.detach().clone()) for name, buffer in module.named_buffers()]
    try:
        yield
    finally:
        with torch.no_grad():
            for owner, name, buffer, value in saved:
                buffer.copy_(value)
                if getattr(owner, name) is not buffer:
                    setattr(owner, name, buffer)


def _owner(module: torch.nn.Module, path: str) -> tuple[torch.nn.Module, str]:
    """Return the submodule that holds a buffer, and the buffer's name in it."""
    *parents, name = path.split(".")
    for parent in parents:
        module = getattr(module, parent)
    return module, name
