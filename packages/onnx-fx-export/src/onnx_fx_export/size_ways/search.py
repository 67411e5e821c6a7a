"""Programs for the sizes at which the code of a model decides otherwise than for the example.

What is captured with an example is right for the sizes at which the model's code answers its questions in the same way.
Here the model is captured again at sizes that this leaves out, and all programs become one that chooses among them.
Each has its own conditions, as if it had been exported alone, so that the whole takes no size that none of them takes.
"""

from __future__ import annotations

import collections
import contextlib
import warnings
from collections.abc import Iterator, Sequence

import sympy

from onnx_fx_export.capture.request import CapturedProgram, CaptureRequest
from onnx_fx_export.capture.strategies import NON_STRICT, SIZE_WAYS
from onnx_fx_export.size_ways.captures import WAYS_OF_SIZES, CapturedWay, Captures, Convert, count_nodes
from onnx_fx_export.size_ways.general import general_way, may_be_general
from onnx_fx_export.size_ways.points import Point, is_alone, points_around, unlike
from onnxops_decomp import LoweringError
from onnxops_decomp.exporting import ONNXProgram, Way, merge_programs

__all__ = ["for_more_sizes", "may_have_ways", "may_take_more"]

# Programs of more nodes, or with more questions, stay as they are.
_MOST_NODES, _MOST_QUESTIONS = 2000, 8
# So many ways are merged. So often the model is captured, and less often where it is large: so many nodes in all.
_MOST_WAYS, _MOST_ATTEMPTS, _MOST_NODES_IN_ALL = 8, 16, 5000
# The model is captured so often for the same other answers, and so many sizes may be such that it does not take.
_MOST_TRIES, _MOST_REFUSED = 2, 16
# So many sizes of each way are compared.
_COMPARED = 5
# torch takes smaller sizes for special ones.
_LEAST = 2


def may_take_more(request: CaptureRequest, captured: CapturedProgram, program: ONNXProgram) -> bool:
    """Tell whether a program has conditions on sizes, and it can be looked for one with fewer.

    Args:
        request: What was captured.
        captured: The captured program.
        program: Its ONNX program.
    """
    merges = request.strategy == SIZE_WAYS.name and may_have_ways(request, captured)
    return bool(program.constraints.conditions) and (merges or may_be_general(request, captured))


def for_more_sizes(
    request: CaptureRequest, captured: CapturedProgram, program: ONNXProgram, convert: Convert
) -> tuple[ONNXProgram, CapturedProgram]:
    """Return a program that takes sizes which a program leaves out, and what was captured for it.

    It is the same program if none is found: one that was captured with other sizes, if it is right for those of the
    example too, or what merges programs for several ways, if that is asked for.

    Args:
        request: What was captured.
        captured: The captured program.
        program: Its ONNX program.
        convert: Makes the ONNX program of a captured one.
    """
    if may_be_general(request, captured) and (general := general_way(request, captured, program, convert)) is not None:
        return general.way.program, general.captured
    if request.strategy == SIZE_WAYS.name and may_have_ways(request, captured):
        first = Way.of(program, program)
        search = None if first is None else _WaysOfSizes(Captures(convert, CapturedWay(request, captured, first)))
        if search is not None and search.has_other_answers():
            return search.merged(), captured
    return program, captured


def may_have_ways(request: CaptureRequest, captured: CapturedProgram) -> bool:
    """Tell whether the ways of a model can be looked for, if that is asked for.

    Args:
        request: What was captured.
        captured: The captured program.
    """
    return bool(
        captured.questions
        and captured.strategy in {NON_STRICT.name, SIZE_WAYS.name}
        and request.trial_runs
        and not request.has_dynamic_numbers
        and count_nodes(captured.program) <= _MOST_NODES
    )


class _WaysOfSizes:
    """Looks for the ways that a model goes at sizes of other answers.

    Args:
        captures: Captures the model again.
    """

    def __init__(self, captures: Captures) -> None:
        first = captures.first
        self._captures, self._first, self._found = captures, first, [first]
        self._attempts = min(_MOST_ATTEMPTS, _MOST_NODES_IN_ALL // count_nodes(first.captured.program))
        self._asked = captures.asked
        self._refused, self._tries = 0, collections.Counter[tuple[frozenset[sympy.Basic], bool]]()

    def has_other_answers(self) -> bool:
        """Tell whether what the model's code asked has other answers at sizes that are refused, and not too often."""
        left = [point for point in self._around(self._asked) if not self._first.way.takes(point)]
        asked = [relation for relation in self._asked if any(unlike([relation], point) for point in left)]
        return 0 < len(asked) <= _MOST_QUESTIONS

    def merged(self) -> ONNXProgram:
        """Return a program of all ways that are found, which is that of the first way if there is no other one."""
        first = self._first
        with first.request.stage(WAYS_OF_SIZES), warnings.catch_warnings():
            # What is said of the sizes that one way leaves out is not so of the whole.
            warnings.simplefilter("ignore")
            ways = self._ways()
            if len(ways) == 1:
                return first.way.program
            try:
                return merge_programs(ways, folds_weights=first.way.program.folds_weights)
            except (LoweringError, ValueError):
                return self._captures.convert(first.captured)

    def _ways(self) -> list[Way]:
        """Capture the model at sizes that are left out, as long as some are found."""
        if self._first.trials.possible and self._is_right(self._first):
            for fixes in (False, True):
                while len(self._found) < _MOST_WAYS and (added := self._next(fixes)) is not None:
                    self._found.append(added)
        return [each.way for each in self._found]

    def _next(self, fixes: bool) -> CapturedWay | None:
        """Return another way; None if none is found.

        Args:
            fixes: Whether it is to be one for a single size of a dimension.
        """
        relations = self._captures.relations(self._found)
        for point in self._around(relations):
            if self._attempts <= 0 or self._refused >= _MOST_REFUSED:
                return None
            other = frozenset(unlike(relations, point))
            if not other or min(point.values()) < _LEAST or any(each.way.takes(point) for each in self._found):
                continue
            fixed = [*_alone(point, other)] if fixes else [()]
            if self._tries[other, fixes] >= _MOST_TRIES or not fixed:
                continue
            self._tries[other, fixes] += 1
            found = self._at(point, fixed)
            if found is not None:
                self._tries[other, fixes] = 0
                return found
        return None

    def _at(self, point: Point, fixed: Sequence[tuple[str, ...]]) -> CapturedWay | None:
        """Return a way that takes a point; None if the model does not, or cannot be captured there.

        Args:
            point: The sizes.
            fixed: Groups of dimensions that become static, one after the other.
        """
        example = self._captures.example(point)
        if example is None:
            self._refused += 1
            return None
        for names in fixed:
            self._attempts -= 1
            # Whatever fails leaves the other ways as they are.
            with contextlib.suppress(Exception):
                found = self._captures.captured(example, Way.of, names)
                if found is not None and found.way.takes(point) and self._is_right(found):
                    return found
        return None

    def _is_right(self, chosen: CapturedWay) -> bool:
        """Tell whether a way gives what the model gives, as far as the model takes the sizes for which it is chosen."""
        before = [each for each in self._found if each is not chosen]
        points = [
            point
            for point in self._around(self._captures.relations([*before, chosen]))
            if chosen.way.takes(point) and not any(each.way.takes(point) for each in before)
        ]
        for point in points[:: max(1, len(points) // _COMPARED)]:
            expected, right = chosen.trials.run(self._captures.symbols(chosen, point))
            if expected is not None and not right:
                return False
        return True

    def _around(self, relations: Sequence[sympy.Basic]) -> list[Point]:
        points = points_around(relations, self._captures.present, self._captures.bounds)
        return [point for point in points if self._captures.fits(point)]


def _alone(point: Point, other: frozenset[sympy.Basic]) -> Iterator[tuple[str, ...]]:
    """Yield dimensions of which other answers allow but the one size that they have at a point."""
    own = {name: [each for each in other if name in map(str, each.free_symbols)] for name in point}
    names = [name for name in point if any(is_alone(each, name, point) for each in own[name])]
    yield from ((name,) for name in names)
    if len(names) > 1:
        yield tuple(names)
