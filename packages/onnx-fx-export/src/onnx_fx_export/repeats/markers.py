"""The operators that mark a block in a graph while it is captured."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Sequence
from typing import Any

import torch

__all__ = ["RESULTS", "FreshResult", "marker_operators"]

_NAMESPACE = "onnx_fx_export_blocks"


@dataclasses.dataclass(frozen=True)
class FreshResult:
    """Position, shape, stride, dtype and device of a result."""

    index: int
    metadata: tuple[Any, ...]

    def like(self) -> torch.Tensor:
        """Return a tensor of this kind."""
        shape, stride, dtype, device = self.metadata
        return torch.empty_strided(shape, stride, dtype=dtype, device=device)


# Result metadata by the number of the recorded call, for the operator that stands in for its repetitions.
RESULTS: dict[int, list[FreshResult]] = {}


def _repeat_fake(operands: Sequence[torch.Tensor], recorded: int, call: int) -> list[torch.Tensor]:
    return [entry.like() for entry in RESULTS[recorded]]


@functools.cache
def marker_operators() -> tuple[Any, Any, Any]:
    """Define the operators on first use: begin and end of a recorded call, and what stands for a repeated one."""
    library = torch.library.Library(_NAMESPACE, "DEF")
    library.define("begin(Tensor[] operands, int call) -> ()")
    library.define("end(Tensor[] results, int call) -> ()")
    library.define("repeat(Tensor[] operands, int recorded, int call) -> Tensor[]")
    for name in ("begin", "end"):
        library.impl(name, lambda tensors, call: None, "CompositeExplicitAutograd")
        torch.library.register_fake(f"{_NAMESPACE}::{name}", lambda tensors, call: None, lib=library)
    torch.library.register_fake(f"{_NAMESPACE}::repeat", _repeat_fake, lib=library)
    _LIBRARIES.append(library)
    operators = getattr(torch.ops, _NAMESPACE)
    for operator in (operators.begin.default, operators.end.default):
        torch.fx.node.has_side_effect(operator)
    return operators.begin.default, operators.end.default, operators.repeat.default


_LIBRARIES: list[torch.library.Library] = []
