"""Guards of torch that only lay tensors out in memory, and mean nothing for the model."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any

import sympy

from onnx_fx_export.sizes.layout import depends_on_layout, layout_guards
from onnx_fx_export.sizes.questions import SizeQuestion, Sizes, calls_function
from onnx_fx_export.sizes.trial_runs import TrialRuns
from onnxops_decomp.exporting import at_sizes

__all__ = ["conditions_on_layout"]

# Sizes up to so many more are tried.
_MOST_MORE = 6


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
    asked = {_canonical(relation) for q in questions for relation in (q.relation, sympy.Not(q.relation))}
    kept = {text: guard for text, guard in layout_guards(program).items() if _canonical(guard) not in asked}
    if not any(map(_may_fix, kept.values())):
        return [*kept]
    sizes = Sizes.of(program, specs)
    others = [guard for guard in sizes.final_guards() if guard not in kept.values()]
    return [text for text, guard in kept.items() if not _may_fix(guard) or _means_nothing(guard, others, trials, sizes)]


def _may_fix(guard: sympy.Basic) -> bool:
    """Tell whether torch may compute with a number or another size from a guard on.

    That is so where it says what a size is, and where it bounds what ``min`` and its like give.
    """
    if isinstance(guard, sympy.Eq):
        return any(side.is_Symbol or (side.is_Integer and side != 0) for side in guard.args)
    return not isinstance(guard, sympy.Ne) and calls_function(guard)


def _means_nothing(guard: sympy.Basic, others: Sequence[sympy.Basic], trials: TrialRuns, sizes: Sizes) -> bool:
    """Tell whether program and model agree where a guard does not hold, as far as sizes are found that the model takes.

    One comparison for each symbol is enough.
    """
    for symbol in sorted(guard.free_symbols & sizes.hints.keys(), key=str):
        hint = sizes.hints[symbol]
        for size in (hint + 1, 2 * hint + 1, hint - 1, *range(hint + 2, hint + _MOST_MORE), 3 * hint):
            point = sizes.near({symbol: size}, others) if size >= 1 else None
            if point is None or at_sizes(guard, point) != sympy.false:
                continue
            expected, right = trials.run(point) if trials.possible else (None, False)
            if not trials.possible or (expected is not None and not right):
                return False
            if expected is not None:
                break
    return True


def _canonical(condition: sympy.Basic) -> sympy.Basic:
    """Return the canonical form of a relation; what joins several has none."""
    return condition.canonical if isinstance(condition, sympy.Rel) else condition
