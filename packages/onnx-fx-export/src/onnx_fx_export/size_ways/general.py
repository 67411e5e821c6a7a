"""One program for sizes at which the code of a model decides otherwise, where it gives the same there.

Code that pads to a multiple mostly asks first whether anything is missing. What it does where something is missing is
right in any case: there is nothing to add otherwise. torch.export records what is done for the example, on a condition.
Here the model is captured a second time, at sizes of other answers. If one of the two programs gives what the model
gives where the other one is right, it is taken for the sizes of both: all that the code asks there is known.
"""

from __future__ import annotations

import collections
import contextlib
import itertools
import warnings
from collections.abc import Iterator, Sequence
from typing import Any

from onnx_fx_export.capture.request import CapturedProgram, CaptureRequest
from onnx_fx_export.capture.strategies import BLOCKS, NON_STRICT, OPEN, SIZE_WAYS
from onnx_fx_export.size_ways.captures import WAYS_OF_SIZES, CapturedWay, Captures, Convert, count_nodes
from onnx_fx_export.size_ways.comparing import Comparison, is_small, points_of
from onnx_fx_export.size_ways.conditions import holds
from onnx_fx_export.size_ways.points import Point, is_alone, unlike
from onnx_fx_export.size_ways.rests import Remainder, forms_for_any_rest
from onnx_fx_export.sizes.trial_runs import plain
from onnxops_decomp.exporting import Example, ONNXProgram, Way

__all__ = ["general_way", "may_be_general"]

# Larger programs stay as they are. The model is captured so often again, and less often where it is large.
_MOST_NODES, _MOST_ATTEMPTS, _MOST_NODES_IN_ALL = 3000, 6, 6000
# Sizes whose conditions are longer texts take minutes for another capture.
_LONGEST = 20000
# So many sizes may be such that the model does not take them, and so many of the same answers are tried.
_MOST_REFUSED, _MOST_TRIES = 8, 2
# What code asks of the rest of a division may be no comparison of sizes.
_OF_FRACTIONS = ("%", "floor(", "ceil(", "trunc(")
_STRATEGIES = {BLOCKS.name, NON_STRICT.name, OPEN.name, SIZE_WAYS.name}


def may_be_general(request: CaptureRequest, captured: CapturedProgram) -> bool:
    """Tell whether a program for more sizes than those of the example's answers can be looked for.

    Args:
        request: What was captured.
        captured: The captured program.
    """
    return bool(
        captured.strategy in _STRATEGIES
        and request.strategy in (None, SIZE_WAYS.name)
        and request.trial_runs
        and not request.has_dynamic_numbers
        and count_nodes(captured.program) <= _MOST_NODES
    )


def general_way(
    request: CaptureRequest, captured: CapturedProgram, program: ONNXProgram, convert: Convert
) -> CapturedWay | None:
    """Return a capture that is right for sizes of other answers too; None if there are none, or none is found.

    Args:
        request: What was captured.
        captured: The captured program.
        program: Its ONNX program.
        convert: Makes the ONNX program of a captured one.
    """
    way = Way.alone(program, program)
    if way is None or sum(map(len, way.conditions)) > _LONGEST:
        return None
    first = CapturedWay(request, captured, way)
    search = _Search(Captures(convert, first))
    if not search.left_out() or not first.trials.possible:
        return None
    with request.stage(WAYS_OF_SIZES), warnings.catch_warnings():
        # What is said of the sizes that one capture leaves out is not so of the other one.
        warnings.simplefilter("ignore")
        return search.found()


class _Search:
    """Looks for a program that is right for the sizes that a first one leaves out.

    Args:
        captures: Captures the model again.
    """

    def __init__(self, captures: Captures) -> None:
        self._captures, self._present = captures, captures.first
        self._attempts = min(_MOST_ATTEMPTS, _MOST_NODES_IN_ALL // count_nodes(captures.first.captured.program))
        self._asked = captures.asked
        self._tried = collections.Counter[frozenset[Any]]()

    def left_out(self) -> list[Point]:
        """Return sizes that the program refuses as answers are other ones, those of the most other answers first."""
        captures, way = self._captures, self._present.way
        fractions = [text for text in captures.first.way.conditions if any(sign in text for sign in _OF_FRACTIONS)]

        def order(point: Point) -> tuple[bool, bool, bool, int, int]:
            other = len(unlike(self._asked, point))
            # What is computed of smaller sizes may be 0 or 1, which torch takes for special ones.
            failing = sum(not holds(text, point) for text in way.conditions)
            return point is not captures.wanted, other == 0, is_small(point, captures.present), -other, failing

        left = (point for point in points_of(captures, [captures.first]) if not way.takes(point))
        differing = (
            point for point in left if unlike(self._asked, point) or not all(holds(text, point) for text in fractions)
        )
        return sorted(differing, key=order)

    def found(self) -> CapturedWay | None:
        """Return a capture for more sizes; None if there is none."""
        refused = 0
        for point in self.left_out():
            if self._attempts <= 0 or refused >= _MOST_REFUSED:
                break
            key = frozenset(unlike(self._asked, point))
            if self._present.way.takes(point) or self._tried[key] >= _MOST_TRIES:
                continue
            example = self._captures.example(point)
            if example is None:
                refused += 1
                continue
            self._tried[key] += 1
            if (other := self._at(example, point)) is not None:
                self._present = self._right_for_both(other, point) or self._present
        return None if self._present is self._captures.first else self._present

    def _at(self, example: Example, point: Point) -> CapturedWay | None:
        """Return what is captured at some sizes; where no dimension can be left open, for these sizes alone."""
        other = unlike(self._asked, point)
        names = sorted({str(symbol) for relation in other for symbol in relation.free_symbols})
        alone = [name for name in names if any(is_alone(relation, name, point) for relation in other)]
        for fixed in dict.fromkeys(((), *((name,) for name in alone), tuple(alone), tuple(names))):
            self._attempts -= 1
            # Whatever fails leaves the program as it is.
            with contextlib.suppress(Exception):
                found = self._captures.captured(example, Way.alone, fixed)
                if found is not None and found.way.takes(point):
                    return found
        return None

    def _right_for_both(self, other: CapturedWay, point: Point) -> CapturedWay | None:
        """Return one of two captures, or what is captured in another form, for the sizes of both; None if none is.

        Args:
            other: The other capture.
            point: What it was captured with.
        """
        captures, present = self._captures, self._present
        # Each has to be right for what the other one was captured with. One of fewer dimensions takes no other sizes.
        pairs = [(present, other, point)]
        if len(other.way.dimensions()) == len(captures.present):
            pairs.insert(0, (other, present, captures.present))
        comparisons = itertools.chain(
            ((Comparison(captures, chosen, beside), elsewhere) for chosen, beside, elsewhere in pairs),
            self._with_any_rest(other, point),
        )
        for comparison, elsewhere in comparisons:
            if comparison.is_right(elsewhere) and (found := comparison.for_sizes_of_both()) is not None:
                return found
        return None

    def _with_any_rest(self, other: CapturedWay, point: Point) -> Iterator[tuple[Comparison, Point]]:
        """Yield both captures in a form that may be right where a division leaves no rest, if they have one.

        Each is compared with the other one, and comes with the sizes of that.
        """
        captures = self._captures
        places = ((point, self._present, captures.present), (captures.present, other, point))
        for at, beside, elsewhere in places if self._has_fractions() else ():
            chosen = None
            with contextlib.suppress(Exception), forms_for_any_rest() as changed:
                example = captures.example(at)
                chosen = None if example is None else captures.captured(example, Way.alone)
            if chosen is not None and changed and _leave_rests(captures, chosen, changed):
                yield Comparison(captures, chosen, beside, is_changed=True), elsewhere

    def _has_fractions(self) -> bool:
        return any("%" in text for text in self._captures.first.way.conditions)


def _leave_rests(captures: Captures, chosen: CapturedWay, remainders: Sequence[Remainder]) -> bool:
    """Tell whether what is divided leaves a rest at all sizes for which a program was captured."""
    for point in points_of(captures, [captures.first, chosen]):
        if chosen.way.takes(point):
            sizes = captures.symbols(chosen, point)
            rests = [plain(each.dividend).xreplace(sizes) % each.divisor for each in remainders]
            if not all(rest.is_Integer and rest > 0 for rest in rests):
                return False
    return True
