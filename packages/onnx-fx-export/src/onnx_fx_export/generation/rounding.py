"""How much of a difference rounding explains: what a model computes when its layers round otherwise."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from onnx_fx_export.generation.kinds import Kind

__all__ = ["effect_of_rounding"]

_RUNS = 16


def effect_of_rounding(kind: Kind, inputs: Mapping[str, torch.Tensor], logits: npt.NDArray[np.float32]) -> float:
    """Return the largest change of a model's logits when what its layers return changes in the last place.

    Models that choose, as routers choose experts, may choose otherwise where two of their numbers are as good as
    equal, and no two kernels agree there. How far such choices reach only the model itself can tell.

    Args:
        kind: The model.
        inputs: What it reads.
        logits: What it makes of them (vocabulary,), for the last position.
    """
    random = torch.Generator().manual_seed(0)
    with _rounding_otherwise(kind.model, random):
        runs = (kind.logits(inputs)[-1].numpy() for _ in range(_RUNS))
        return max(float(np.abs(run - logits).max()) for run in runs)


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
