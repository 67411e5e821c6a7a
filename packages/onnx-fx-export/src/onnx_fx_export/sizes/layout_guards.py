"""Guards of torch that only lay tensors out in memory, and mean nothing for the model."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any

import sympy
import torch
from sympy.core.function import Application

from onnx_fx_export.sizes.questions import SizeQuestion, Sizes, depends_on_layout
from onnx_fx_export.sizes.trial_runs import TrialRuns, as_plain, user_values
from onnx_fx_export.torch_private import guards_on_layout
from onnxops_decomp.exporting import at_sizes

__all__ = ["conditions_on_layout"]


def conditions_on_layout(
    trials: TrialRuns, specs: Sequence[Mapping[int, Any]], questions: Collection[SizeQuestion]
) -> list[str]:
    """Return the conditions that say only how torch lays tensors out, and that the model's code did not ask about.

    What an equation or a range says, torch computes with from there on, so that those are tried.

    Args:
        trials: Runs the model and what was captured of it.
        specs: Declared dimensions of each leaf of the example.
        questions: What the model's code asked: torch answers it from what it took for granted before.
    """
    program = trials.program
    if depends_on_layout(program):
        return []
    shapes: list[Sequence[Any]] = [value.shape for value in user_values(program) if isinstance(value, torch.Tensor)]
    size = next((size for shape in shapes for size in shape if isinstance(size, torch.SymInt)), None)
    asked = {_canonical(relation) for q in questions for relation in (q.relation, sympy.Not(q.relation))}
    found = {} if size is None else guards_on_layout(size)
    kept = {text: as_plain(guard) for guard, text in found.items() if _canonical(as_plain(guard)) not in asked}
    if not any(map(_may_fix, kept.values())):
        return [*kept]
    sizes = Sizes.of(program, specs)
    others = [guard for guard in sizes.final_guards() if guard not in kept.values()]
    return [text for text, guard in kept.items() if not _may_fix(guard) or _means_nothing(guard, others, trials, sizes)]


def _may_fix(guard: sympy.Basic) -> bool:
    """Tell whether torch may compute with a number or another size from a guard on: an equation or a narrow range."""
    is_equation = isinstance(guard, sympy.Eq)
    return is_equation or bool(guard.atoms(Application)) or isinstance(guard, sympy.Lt | sympy.Le)


def _means_nothing(guard: sympy.Basic, others: Sequence[sympy.Basic], trials: TrialRuns, sizes: Sizes) -> bool:
    """Tell whether program and model agree where a guard does not hold, as far as there are such sizes."""
    for symbol in sorted(guard.free_symbols & sizes.hints.keys(), key=str):
        for size in (sizes.hints[symbol] + 1, 2 * sizes.hints[symbol] + 1, sizes.hints[symbol] - 1):
            point = sizes.near({symbol: size}, others) if size >= 1 else None
            if point is not None and at_sizes(guard, point) == sympy.false:
                if not trials.possible or not trials.run(point)[1]:
                    return False
                break
    return True


def _canonical(condition: sympy.Basic) -> sympy.Basic:
    """Return the canonical form of a relation; what joins several has none."""
    return condition.canonical if isinstance(condition, sympy.Rel) else condition
