"""What else rounding lets a model compute: its logits when its layers round otherwise."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from onnx_fx_export.generation.kinds import Kind

__all__ = ["other_roundings"]

_RUNS = 64


def other_roundings(kind: Kind, inputs: Mapping[str, torch.Tensor]) -> Iterator[npt.NDArray[np.float32]]:
    """Yield a model's logits (vocabulary,) for the last position when what its layers return is off in the last place.

    Models that choose, as routers choose experts, may choose otherwise where two of their numbers are as good as
    equal, and no two kernels agree there. What they compute then only the model itself can tell: an engine has to be
    right about one such choice, however far they lie apart.

    Args:
        kind: The model.
        inputs: What it reads.
    """
    random = torch.Generator().manual_seed(0)
    for _ in range(_RUNS):
        with _rounding_otherwise(kind.model, random):
            logits = kind.logits(inputs)[-1].numpy()
        yield logits


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
