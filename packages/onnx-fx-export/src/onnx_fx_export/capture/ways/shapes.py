"""Whether the ways through a model give results of one shape, whose sizes they may compute in different steps."""

from __future__ import annotations

import dataclasses
import random
from collections.abc import Sequence

import sympy
import torch

from onnx_fx_export.sizes.questions import Sizes
from onnx_fx_export.sizes.trial_runs import plain
from onnxops_decomp.exporting import at_sizes

__all__ = ["SameShapes"]

# Sizes are compared where each of those of the inputs is so many times as large, and larger by so much, or small.
_FACTORS, _MORE = (0, 1, 1, 2, 3, 7, 90), (1, 2, 3, 4, 5, 8, 13, 29, 64, 255, 512)
_TRIALS, _FEWEST = 120, 20


@dataclasses.dataclass(frozen=True)
class SameShapes:
    """Compares shapes in two programs over the same symbols.

    Attributes:
        sizes: The sizes of the inputs.
        guards: What either program takes for granted of them.
    """

    sizes: Sizes
    guards: Sequence[sympy.Basic]

    @classmethod
    def of(cls, *programs: torch.export.ExportedProgram) -> SameShapes:
        """Return the comparison for programs of one model."""
        known = [Sizes.of(program, [{}] * len(program.graph_signature.input_specs)) for program in programs]
        return cls(known[0], [*dict.fromkeys(guard for sizes in known for guard in sizes.final_guards())])

    def alike(self, ours: torch.Tensor, theirs: torch.Tensor) -> bool:
        """Tell whether two captured values have one dtype, device and, wherever the programs hold, one shape."""
        if ours.dtype != theirs.dtype or ours.device != theirs.device or ours.dim() != theirs.dim():
            return False
        return all(map(self._agree, ours.shape, theirs.shape))

    def _agree(self, first: int | torch.SymInt, second: int | torch.SymInt) -> bool:
        ours, theirs = plain(first), plain(second)
        if ours == theirs:
            return True
        if not (ours.free_symbols | theirs.free_symbols) <= self.sizes.hints.keys():
            return False
        agreed, drawn = 0, random.Random(0)
        for _ in range(_TRIALS):
            point = {
                symbol: sympy.Integer(drawn.choice(_FACTORS) * hint + drawn.choice(_MORE))
                for symbol, hint in self.sizes.hints.items()
            }
            found = at_sizes(ours, point), at_sizes(theirs, point)
            if found[0] == found[1] and isinstance(found[0], sympy.Integer):
                agreed += 1
            elif all(at_sizes(guard, point) not in (sympy.false, None) for guard in self.guards):
                return False
        return agreed >= _FEWEST
