"""Programs for the sizes at which the code of a model decides otherwise than for the example.

What is captured with an example is right for the sizes at which the model's code answers its questions in the same way.
Here the model is captured again at sizes that this leaves out, and all programs become one that chooses among them.
Each has its own conditions, as if it had been exported alone, so that the whole takes no size that none of them takes.
"""

from __future__ import annotations

import collections
import contextlib
import dataclasses
import sys
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence

import sympy
import torch

from onnx_fx_export.capture.exported_program import capture_example
from onnx_fx_export.capture.request import CapturedProgram, CaptureRequest
from onnx_fx_export.capture.strategies import NON_STRICT, SIZE_WAYS
from onnx_fx_export.size_ways.points import Point, is_alone, meet, points_around, unlike
from onnx_fx_export.sizes.questions import Sizes, answered, sliced
from onnx_fx_export.sizes.trial_runs import TrialRuns, calls_at, plain, user_values
from onnx_fx_export.torch_private import hint_of
from onnxops_decomp import LoweringError
from onnxops_decomp.exporting import Example, ONNXProgram, Way, at_sizes, merge_programs

__all__ = ["WAYS_OF_SIZES", "WaysOfSizes", "may_have_ways", "other_ways"]

#: The stage in which the model is captured at sizes of other answers.
WAYS_OF_SIZES = "ways of sizes"
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
Convert = Callable[[CapturedProgram], ONNXProgram]


def other_ways(
    request: CaptureRequest, captured: CapturedProgram, program: ONNXProgram, convert: Convert
) -> WaysOfSizes | None:
    """Return what looks for the ways that a model goes at the sizes that its program leaves out; None if none is.

    Args:
        request: What was captured.
        captured: The captured program.
        program: Its ONNX program.
        convert: Makes the ONNX program of a captured one.
    """
    if request.strategy != SIZE_WAYS.name or not may_have_ways(request, captured):
        return None
    first = Way.of(program, program)
    if first is None or not first.conditions:
        return None
    search = WaysOfSizes(convert, _Captured(request, captured, first))
    return search if search.has_other_answers() else None


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
        and _size(captured.program) <= _MOST_NODES
    )


def _size(program: torch.export.ExportedProgram) -> int:
    modules = (module for module in program.graph_module.modules() if isinstance(module, torch.fx.GraphModule))
    return sum(len(module.graph.nodes) for module in modules)


@dataclasses.dataclass(frozen=True)
class _Captured:
    """A way that was captured.

    Attributes:
        request: What was captured, with its example.
        captured: The captured program.
        way: Its ONNX program, with its conditions.
    """

    request: CaptureRequest
    captured: CapturedProgram
    way: Way

    @property
    def trials(self) -> TrialRuns:
        """Runs the model and what was captured of it."""
        return TrialRuns(self.captured.program, self.request.model, self.request.example)


class WaysOfSizes:
    """Looks for the ways that a model goes at sizes of other answers.

    Args:
        convert: Makes the ONNX program of a captured one.
        first: The way that the example takes.
    """

    def __init__(self, convert: Convert, first: _Captured) -> None:
        self._convert, self._first, self._found = convert, first, [first]
        self._dimensions = first.way.dimensions()
        values = user_values(first.captured.program)
        places = {name: several[0] for name, several in self._dimensions.items()}
        self._present = {name: hint_of(values[leaf].shape[axis]) for name, (leaf, axis) in places.items()}
        self._bounds = {name: _declared(first.request, several) for name, several in self._dimensions.items()}
        self._attempts = min(_MOST_ATTEMPTS, _MOST_NODES_IN_ALL // _size(first.captured.program))
        self._asked = self._relations([first], cuts=False)
        # Dimensions that fit each other in the example, as a mask and what it masks do, are meant to.
        self._fitting = [sympy.Eq(*each.args) for each in self._asked if meet(each, self._present)]
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
                return self._convert(first.captured)

    def _ways(self) -> list[Way]:
        """Capture the model at sizes that are left out, as long as some are found."""
        if self._first.trials.possible and self._is_right(self._first):
            for fixes in (False, True):
                while len(self._found) < _MOST_WAYS and (added := self._next(fixes)) is not None:
                    self._found.append(added)
        return [each.way for each in self._found]

    def _next(self, fixes: bool) -> _Captured | None:
        """Return another way; None if none is found.

        Args:
            fixes: Whether it is to be one for a single size of a dimension.
        """
        relations = self._relations(self._found)
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

    def _at(self, point: Point, fixed: Sequence[tuple[str, ...]]) -> _Captured | None:
        """Return a way that takes a point; None if the model does not, or cannot be captured there.

        Args:
            point: The sizes.
            fixed: Groups of dimensions that become static, one after the other.
        """
        example = self._example(point)
        if example is None:
            self._refused += 1
            return None
        for names in fixed:
            self._attempts -= 1
            # Whatever fails leaves the other ways as they are.
            with contextlib.suppress(Exception):
                found = self._captured(example, names)
                if found is not None and found.way.takes(point) and self._is_right(found):
                    return found
        return None

    def _captured(self, example: Example, fixed: tuple[str, ...]) -> _Captured | None:
        places = {place for name in fixed for place in self._dimensions[name]}
        request = self._first.request.at(example, places)
        captured = capture_example(request)
        way = Way.of(self._convert(captured), self._first.way.program)
        return None if way is None else _Captured(request, captured, way)

    def _example(self, point: Point) -> Example | None:
        """Return the example at other sizes; None if the model does not take it."""
        first, program = self._first, self._first.captured.program
        sizes = self._symbols(first.captured, point)
        expected, _ = first.trials.run(sizes, values=_kept)
        return None if expected is None else next(calls_at(program, first.request.example, sizes, _kept))

    def _is_right(self, chosen: _Captured) -> bool:
        """Tell whether a way gives what the model gives, as far as the model takes the sizes for which it is chosen."""
        before = [each for each in self._found if each is not chosen]
        points = [
            point
            for point in self._around(self._relations([*before, chosen]))
            if chosen.way.takes(point) and not any(each.way.takes(point) for each in before)
        ]
        for point in points[:: max(1, len(points) // _COMPARED)]:
            expected, right = chosen.trials.run(self._symbols(chosen.captured, point))
            if expected is not None and not right:
                return False
        return True

    # ---- sizes

    def _around(self, relations: Sequence[sympy.Basic]) -> list[Point]:
        points = points_around(relations, self._present, self._bounds)
        return [point for point in points if not unlike(self._fitting, point)]

    def _names(self, captured: CapturedProgram) -> dict[sympy.Symbol, str]:
        """Return what the first way calls the symbols of a captured program."""
        values = user_values(captured.program)
        places = ((name, place) for name, several in self._dimensions.items() for place in several)
        found = {plain(values[leaf].shape[axis]): name for name, (leaf, axis) in places}
        return {symbol: name for symbol, name in found.items() if symbol.is_Symbol}

    def _symbols(self, captured: CapturedProgram, point: Point) -> Mapping[sympy.Symbol, sympy.Integer]:
        return {symbol: sympy.Integer(point[name]) for symbol, name in self._names(captured).items()}

    def _relations(self, ways: Sequence[_Captured], *, cuts: bool = True) -> list[sympy.Basic]:
        """Return the answers that the code of the model was given, over symbols that are called as the dimensions.

        Args:
            ways: The ways of which they are wanted.
            cuts: Whether what slices took for granted counts as well.
        """
        found: dict[sympy.Basic, None] = {}
        for captured in (each.captured for each in ways):
            sizes = Sizes.of(captured.program, [{} for _ in user_values(captured.program)])
            called = {symbol: sympy.Symbol(name, integer=True) for symbol, name in self._names(captured).items()}
            asked = answered(captured.program, captured.questions or ())
            if cuts:
                cut = sliced(captured.program)
                asked += [each for each in cut if at_sizes(each.relation, sizes.hints) == sympy.true]
            known = (each.relation for each in sizes.known(asked))
            found |= dict.fromkeys(each.xreplace(called) for each in known if each.free_symbols <= called.keys())
        return [*found]


def _kept(tensor: torch.Tensor) -> torch.Tensor:
    return tensor


def _alone(point: Point, other: frozenset[sympy.Basic]) -> Iterator[tuple[str, ...]]:
    """Yield dimensions of which other answers allow but the one size that they have at a point."""
    own = {name: [each for each in other if name in map(str, each.free_symbols)] for name in point}
    names = [name for name in point if any(is_alone(each, name, point) for each in own[name])]
    yield from ((name,) for name in names)
    if len(names) > 1:
        yield tuple(names)


def _declared(request: CaptureRequest, places: Sequence[tuple[int, int]]) -> tuple[int, int]:
    """Return the least and the largest size that is declared of a dimension."""
    dims = [request.specs[leaf].get(axis) for leaf, axis in places]
    largest = (getattr(dim, "max", None) for dim in dims)
    return (
        max(int(getattr(dim, "min", None) or 0) for dim in dims),
        min(int(most) if isinstance(most, int) else sys.maxsize for most in largest),
    )
