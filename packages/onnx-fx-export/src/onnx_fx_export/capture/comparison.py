"""What leaves the guarantees of torch.export, compared with the model."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import sympy
import torch
from torch.utils import _pytree as pytree

from onnx_fx_export.capture.request import CaptureRequest
from onnx_fx_export.capture.torch_export import Recorded, Run
from onnx_fx_export.errors import CaptureError
from onnx_fx_export.sizes.questions import Sizes
from onnx_fx_export.sizes.trial_runs import TrialRuns, in_order, plain, user_values
from onnxops_decomp.exporting import Example, at_sizes

__all__ = [
    "agree_at_each_size",
    "agree_at_other_sizes",
    "agrees_on_example",
    "compare_at_other_sizes",
    "holds_for_example",
]

# Model and program are compared where sizes are so many times as large, and larger by so much.
_COMPARED = ((1, 1), (1, 3), (2, 0), (3, 0))
# More elements of inputs than this are compared for one size at a time, that many times as large.
_MOST_ELEMENTS, _LEAST_FACTOR = 1 << 18, 2
_SMALL = ((0, 2), (0, 3))
# Sizes up to so much larger ones are compared where it is not known what the model's code asked.
_MOST_MORE = 6
# So many sizes are compared in all, and fewer of large programs: so many operators in all.
_MOST_POINTS, _MOST_OPERATORS = 64, 1 << 14


def compare_at_other_sizes(recorded: Recorded, run: Run) -> None:
    """Run model and program at other sizes.

    Raises:
        CaptureError: If they differ, or cannot be compared.
    """
    request = run.request
    trials = TrialRuns(recorded.program, request.model, run.example, request.trial_runs)
    sizes, compared = Sizes.of(recorded.program, request.specs), 0
    for point, agrees in _compared(trials, sizes, _COMPARED):
        if not agrees:
            raise CaptureError(f"The captured program differs from the model at the sizes {point}.")
        compared += 1
    if not compared:
        raise CaptureError("The captured program cannot be compared with the model at other sizes.")


def agree_at_other_sizes(trials: TrialRuns, sizes: Sizes) -> bool:
    """Tell whether a model and what was captured of it agree wherever both can be run."""
    return not sizes.hints or all(agrees for _, agrees in _compared(trials, sizes, (*_COMPARED, *_SMALL)))


def agree_at_each_size(trials: TrialRuns, sizes: Sizes) -> bool:
    """Tell whether both agree at each of the sizes around the example's, of one dimension at a time.

    What code asks about sizes in another interpreter than Python's leaves no note, and not always a guard.
    """
    most = max(1, min(_MOST_POINTS, _MOST_OPERATORS // len(trials.program.graph.nodes)) // max(1, len(sizes.hints)))
    wanted = [
        {symbol: size}
        for symbol, hint in sizes.hints.items()
        for size in sorted({*range(1, hint + _MOST_MORE), 3 * hint}, key=lambda size: abs(size - hint))[:most]
    ]
    return all(agrees for _, agrees in _agreements(trials, sizes, wanted))


def _compared(
    trials: TrialRuns, sizes: Sizes, changes: Sequence[tuple[int, int]]
) -> Iterator[tuple[Mapping[sympy.Symbol, sympy.Integer], bool]]:
    """Yield the sizes that the model takes, and whether the program gives the same there."""
    wanted = [point for factor, more in changes for point in _changed(trials, sizes.hints, factor, more)]
    return _agreements(trials, sizes, wanted)


def _changed(
    trials: TrialRuns, hints: Mapping[sympy.Symbol, int], factor: int, more: int
) -> Iterator[dict[sympy.Symbol, int]]:
    """Yield sizes that are so many times as large and larger by so much: all at once, or one by one where they grow.

    Three sizes of an image, or four of a volume, that are all twice as large take many times as long.
    """
    leaves = pytree.tree_leaves(trials.example)
    elements = sum(leaf.numel() for leaf in leaves if isinstance(leaf, torch.Tensor))
    if factor < 2 or elements * factor ** len(hints) <= _MOST_ELEMENTS:
        yield {symbol: factor * hint + more for symbol, hint in hints.items()}
    elif factor == _LEAST_FACTOR:
        for symbol, hint in hints.items():
            yield {**hints, symbol: factor * hint + more}


def _agreements(
    trials: TrialRuns, sizes: Sizes, wanted: Iterable[Mapping[sympy.Symbol, int]]
) -> Iterator[tuple[Mapping[sympy.Symbol, sympy.Integer], bool]]:
    """Yield the sizes near those wanted that the model takes, and whether the program gives the same there."""
    guards = sizes.final_guards()
    for near in wanted:
        point = sizes.near(near, guards)
        expected, right = trials.run(point) if point is not None else (None, False)
        if point is not None and expected is not None:
            yield point, right


def holds_for_example(program: torch.export.ExportedProgram, example: Example, specs: Sequence[Any]) -> bool:
    """Tell whether the relations that were found between sizes hold for those of an example, which may be smaller."""
    sizes, present = Sizes.of(program, specs), _sizes_of(program, example)
    if any(len(found) > 1 for found in present.values()):
        return False
    known = {symbol: size for symbol, (size,) in present.items() if symbol in sizes.hints}
    return not any(at_sizes(guard, known) in (sympy.false, None) for guard in sizes.relations())


def agrees_on_example(program: torch.export.ExportedProgram, request: CaptureRequest) -> bool | None:
    """Tell whether a program that was captured at other sizes gives the model's values on the example.

    None where that cannot be tried.
    """
    trials = TrialRuns(program, request.model, request.example, request.trial_runs)
    present = _sizes_of(program, request.example)
    known = {size: sympy.Integer(next(iter(found))) for size, found in present.items() if size.is_Symbol}
    if not trials.possible or request.has_dynamic_numbers:
        return None
    expected, right = trials.run(known, values=lambda tensor: tensor)
    return None if expected is None else right


def _sizes_of(program: torch.export.ExportedProgram, example: Example) -> dict[sympy.Expr, set[int]]:
    """Return what the sizes of a program's inputs are for an example."""
    leaves = pytree.tree_leaves(in_order(program, example))
    present: dict[sympy.Expr, set[int]] = {}
    for leaf, value in zip(leaves, user_values(program), strict=True):
        for axis, size in enumerate(value.shape if isinstance(value, torch.Tensor) else ()):
            present.setdefault(plain(size), set()).add(leaf.shape[axis])
    return present
