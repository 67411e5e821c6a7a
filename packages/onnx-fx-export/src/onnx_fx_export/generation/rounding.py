"""What else rounding lets a model compute: its logits when its layers round otherwise."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch.overrides import TorchFunctionMode

from onnx_fx_export.generation.kinds import Kind

__all__ = ["other_roundings"]

_RUNS = 64


def other_roundings(kind: Kind, inputs: Mapping[str, torch.Tensor]) -> Iterator[npt.NDArray[np.float32]]:
    """Yield a model's logits (vocabulary,) for the last position when what its layers return is off in the last place.

    First they are those of a model that chooses the earlier ones of equal numbers, as ``TopK`` of ONNX has to.
    PyTorch leaves that open.

    Models that choose, as routers choose experts, may choose otherwise where two of their numbers are as good as
    equal, and no two kernels agree there. What they compute then only the model itself can tell: an engine has to be
    right about one such choice, however far they lie apart.

    Args:
        kind: The model.
        inputs: What it reads.
    """
    random = torch.Generator().manual_seed(0)
    for run in range(_RUNS + 1):
        with _EarlierOfEquals(), _rounding_otherwise(kind.model, random) if run else contextlib.nullcontext():
            logits = kind.logits(inputs)[-1].numpy()
        yield logits


class _EarlierOfEquals(TorchFunctionMode):
    """Lets ``topk`` take the earlier ones of equal numbers."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Call a function of torch."""
        call = _first_ones if func in (torch.topk, torch.Tensor.topk) else func
        return call(*args, **(kwargs or {}))


def _first_ones(x: torch.Tensor, k: int, dim: int = -1, largest: bool = True, sorted: bool = True) -> Any:
    """Return the ``k`` largest or smallest numbers of ``x``, sorted in any case, and where they are."""
    values, places = torch.sort(x, dim=dim, descending=largest, stable=True)
    return torch.return_types.topk((values.narrow(dim, 0, k), places.narrow(dim, 0, k)))


@contextlib.contextmanager
def _rounding_otherwise(model: torch.nn.Module, random: torch.Generator) -> Iterator[None]:
    """Let the innermost modules of a model return numbers that are off by at most one in the last place."""

    def changed(_: torch.nn.Module, __: Any, result: Any) -> Any:
        if not isinstance(result, torch.Tensor) or not result.is_floating_point():
            return None
        share = torch.empty(result.shape).uniform_(-1, 1, generator=random) * torch.finfo(result.dtype).eps
        return (result.float() * (1 + share)).to(result.dtype)

    innermost = [module for module in model.modules() if next(module.children(), None) is None]
    handles = [module.register_forward_hook(changed) for module in innermost]
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()
