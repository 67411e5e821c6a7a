"""One program for sizes at which the code of a model decides otherwise, where it gives the same there.

Code that pads to a multiple mostly asks first whether anything is missing. What it does where something is missing is
right in any case: there is nothing to add otherwise. torch.export records what is done for the example, on a condition.
Here the model is captured a second time, at sizes of other answers. If one of the two programs gives what the model
gives where the other one is right, it is taken for the sizes of both: all that the code asks there is known.
"""

from __future__ import annotations

import contextlib
import itertools
import warnings
from collections.abc import Iterator, Sequence

from onnx_fx_export.capture.request import CapturedProgram, CaptureRequest
from onnx_fx_export.capture.strategies import BLOCKS, NON_STRICT, OPEN, SIZE_WAYS
from onnx_fx_export.size_ways.captures import WAYS_OF_SIZES, CapturedWay, Captures, Convert, count_nodes
from onnx_fx_export.size_ways.comparing import Comparison, is_small, points_of
from onnx_fx_export.size_ways.conditions import holds
from onnx_fx_export.size_ways.points import Point, unlike
from onnx_fx_export.size_ways.rests import Remainder, forms_for_any_rest
from onnx_fx_export.sizes.trial_runs import plain
from onnxops_decomp.exporting import ONNXProgram, Way

__all__ = ["general_way", "may_be_general"]

# Larger programs stay as they are. The model is captured so often again, and less often where it is large.
_MOST_NODES, _MOST_ATTEMPTS, _MOST_NODES_IN_ALL = 3000, 2, 6000
# So many sizes may be such that the model does not take them.
_MOST_REFUSED = 4
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
    if way is None:
        return None
    first = CapturedWay(request, captured, way)
    captures = Captures(convert, first)
    left_out = _left_out(captures)
    if not left_out or not first.trials.possible:
        return None
    with first.request.stage(WAYS_OF_SIZES), warnings.catch_warnings():
        # What is said of the sizes that one capture leaves out is not so of the other one.
        warnings.simplefilter("ignore")
        for point, other in _others(captures, left_out):
            # Each has to be right for what the other one was captured with.
            pairs = ((other, first, captures.present), (first, other, point))
            for chosen, beside, elsewhere in itertools.chain(pairs, _with_any_rest(captures, other, point)):
                comparison = Comparison(captures, chosen, beside)
                if comparison.is_right(elsewhere) and (found := comparison.for_sizes_of_both()) is not None:
                    return found
    return None


def _with_any_rest(
    captures: Captures, other: CapturedWay, point: Point
) -> Iterator[tuple[CapturedWay, CapturedWay, Point]]:
    """Yield both captures in a form that may be right where a division leaves no rest, if they have one.

    Each comes with the other one, and the sizes of that.
    """
    first = captures.first
    for at, beside, elsewhere in ((point, first, captures.present), (captures.present, other, point)):
        chosen = None
        with contextlib.suppress(Exception), forms_for_any_rest() as changed:
            example = captures.example(at)
            chosen = None if example is None else captures.captured(example, Way.alone)
        if chosen is not None and changed and _leave_rests(captures, chosen, changed):
            yield chosen, beside, elsewhere


def _leave_rests(captures: Captures, chosen: CapturedWay, remainders: Sequence[Remainder]) -> bool:
    """Tell whether what is divided leaves a rest at all sizes for which a program was captured."""
    for point in points_of(captures, [captures.first, chosen]):
        if chosen.way.takes(point):
            sizes = captures.symbols(chosen, point)
            rests = [plain(each.dividend).xreplace(sizes) % each.divisor for each in remainders]
            if not all(rest.is_Integer and rest > 0 for rest in rests):
                return False
    return True


def _left_out(captures: Captures) -> list[Point]:
    """Return sizes that the first program refuses as answers are other ones, those of the most other answers first."""
    first = captures.first
    asked = captures.relations([first], cuts=False)
    fractions = [text for text in first.way.conditions if any(sign in text for sign in _OF_FRACTIONS)]

    def differ(point: Point) -> int:
        return len(unlike(asked, point)) + sum(not holds(text, point) for text in fractions)

    points = [point for point in points_of(captures, [first]) if not first.way.takes(point) and differ(point)]

    def order(point: Point) -> tuple[bool, int]:
        # What is computed of smaller sizes may be 0 or 1, which torch takes for special ones.
        return is_small(point, captures.present), -differ(point)

    return sorted(points, key=order)


def _others(captures: Captures, points: Sequence[Point]) -> Iterator[tuple[Point, CapturedWay]]:
    """Yield some of these sizes with what is captured there."""
    attempts = min(_MOST_ATTEMPTS, _MOST_NODES_IN_ALL // count_nodes(captures.first.captured.program))
    refused, found = 0, list[CapturedWay]()
    for point in points:
        if attempts <= 0 or refused >= _MOST_REFUSED:
            return
        if any(other.way.takes(point) for other in found):
            continue
        example = captures.example(point)
        if example is None:
            refused += 1
            continue
        attempts -= 1
        # Whatever fails leaves the first program as it is.
        with contextlib.suppress(Exception):
            other = captures.captured(example, Way.alone)
            # One that has fewer dimensions takes no other sizes.
            if other is not None and len(other.way.dimensions()) == len(captures.present):
                found.append(other)
                yield point, other
