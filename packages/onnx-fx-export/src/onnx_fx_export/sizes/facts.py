"""What is known of the sizes that a captured program is right for, beside the guards that torch noted in it.

It is found out between capture and conversion, and :class:`SizeFacts` carries it from one to the other.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Collection, Mapping, Sequence
from typing import Any

import sympy
import torch

from onnx_fx_export.sizes.asked_in_code import warn_of_small_sizes
from onnx_fx_export.sizes.layout_guards import answers_without_guards, conditions_on_layout
from onnx_fx_export.sizes.questions import SizeQuestion
from onnx_fx_export.sizes.small import TriedSizes, least_sizes, sizes_tried
from onnx_fx_export.sizes.trial_runs import TrialRuns, user_values
from onnx_fx_export.sizes.zero_and_one import conditions_for_small_sizes

__all__ = ["SizeFacts"]


@dataclasses.dataclass(frozen=True)
class SizeFacts:
    """What is known of the sizes that a captured program is right for. Symbols are called as in the program.

    Attributes:
        conditions: What has to hold, sizes 0 and 1 considered; None if it was not noted what the model's code asks.
        apart: The lines of the model's code that treat size 1 of a dynamic dimension apart.
        layout: Texts of the guards that say only how torch lays tensors out, and mean nothing for the model.
        least: The least size of a dimension by symbol, where that is not what torch takes for granted.
        tried: Sizes by symbol that contradict what torch took for granted, and at which the program is right.
        right_for_one: Whether the guards that exclude size 1 mean nothing for the model.
    """

    conditions: Sequence[sympy.Rel] | None = None
    apart: Sequence[str] = ()
    layout: Collection[str] = ()
    least: Mapping[str, int] = dataclasses.field(default_factory=dict)
    tried: TriedSizes = dataclasses.field(default_factory=TriedSizes)
    right_for_one: bool = False

    @classmethod
    def of_graph(cls, program: torch.export.ExportedProgram) -> SizeFacts:
        """Find out what the calls of a program that the user captured take for granted.

        What the code of the model asked is not known any more, but for what its source shows.

        Warns:
            UserWarning: If the program is not right for size 1 of a dynamic dimension, or may not be.
        """
        shapes = [value.shape for value in user_values(program) if isinstance(value, torch.Tensor)]
        if any(isinstance(size, torch.SymInt) for shape in shapes for size in shape):
            warn_of_small_sizes(program)
        trials = TrialRuns(program, torch.nn.Module(), ((), {}), wanted=False)
        conditions, apart = conditions_for_small_sizes(trials, [{} for _ in user_values(program)], ())
        return cls(conditions, apart)

    @classmethod
    def found(
        cls, trials: TrialRuns, specs: Sequence[Mapping[int, Any]], questions: Collection[SizeQuestion] | None
    ) -> SizeFacts:
        """Find out what trial runs tell.

        Args:
            trials: Runs the model and what was captured of it.
            specs: Declared dimensions of each leaf of the example.
            questions: What the model's code asked about sizes; None if that was not noted.

        Warns:
            UserWarning: If the program is not right for size 1 of a dynamic dimension.
        """
        if questions is None:
            # One agreement shows nothing where the code may have asked.
            return cls()
        conditions, apart = conditions_for_small_sizes(trials, specs, questions)
        layout = conditions_on_layout(trials, specs, questions)
        conditions += answers_without_guards(trials.program, specs, questions, layout)
        # Without lines apart both were compared at size 1.
        asked = [question for question in questions if apart or not question.is_about_small_sizes]
        return cls(conditions, apart, layout, least_sizes(trials, specs, questions), sizes_tried(trials, specs, asked))
