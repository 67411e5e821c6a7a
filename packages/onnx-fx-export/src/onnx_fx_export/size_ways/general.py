"""One program for sizes at which the code of a model decides otherwise, where it gives the same there.

Code that pads to a multiple mostly asks first whether anything is missing. What it does where something is missing is
right in any case: there is nothing to add otherwise. torch.export records what is done for the example, on a condition.
Here the model is captured a second time, at sizes of other answers. If one of the two programs gives what the model
gives where the other one is right, it is taken for the sizes of both: all that the code asks there is known.
"""

from __future__ import annotations

import ast
import contextlib
import dataclasses
import functools
import itertools
import warnings
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from onnx_fx_export.capture.request import CapturedProgram, CaptureRequest
from onnx_fx_export.capture.strategies import BLOCKS, NON_STRICT, OPEN, SIZE_WAYS
from onnx_fx_export.size_ways.captures import WAYS_OF_SIZES, CapturedWay, Captures, Convert, count_nodes
from onnx_fx_export.size_ways.points import Point, numbers_of, points_near, unlike
from onnxops_decomp.exporting import (
    ONNXProgram,
    SizeConstraints,
    Way,
    condition_holds,
    either_of,
    names_in_size,
    parsed_size,
    renamed_text,
    truths,
)

__all__ = ["general_way", "may_be_general"]

# Larger programs stay as they are. The model is captured so often again, and less often where it is large.
_MOST_NODES, _MOST_ATTEMPTS, _MOST_NODES_IN_ALL = 3000, 2, 6000
# So many sizes may be such that the model does not take them.
_MOST_REFUSED = 4
# A condition that does not set two ways apart is left out if it does not hold at so many sizes and the program is right
# at all that are tried, or at none but small ones. So many are tried near those of the example, and so many far away,
# the first ones with unusual values as well.
_LEAST_RIGHT, _NEAR, _FAR, _WIDELY = 3, 5, 4, 2
# So many small sizes of each dimension are combined.
_SMALL = 4
# What holds for these sizes holds for all; by how many dimensions it is about.
_ANY = {
    1: (*range(2, 130), *(2**power + step for power in range(8, 18) for step in (-1, 0, 1)), 1009, 5040, 10007),
    2: (*range(2, 50), 127, 128, 1009, 5040),
    3: (2, 3, 4, 6, 8, 12, 16, 24, 30, 36, 49, 1009, 5040),
}
# What code asks of the rest of a division may be no comparison of sizes.
_OF_FRACTIONS = ("%", "floor(", "ceil(", "trunc(")
# torch takes smaller sizes for special ones.
_LEAST = 2
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
            for chosen, elsewhere in ((other, captures.present), (first, point)):
                comparison = _Comparison(captures, chosen, first if chosen is other else other)
                if comparison.is_right(elsewhere) and (found := comparison.for_sizes_of_both()) is not None:
                    return found
    return None


def _left_out(captures: Captures) -> list[Point]:
    """Return sizes that the first program refuses as answers are other ones, those of the most other answers first."""
    first = captures.first
    asked = captures.relations([first], cuts=False)
    fractions = [text for text in first.way.conditions if any(sign in text for sign in _OF_FRACTIONS)]

    def differ(point: Point) -> int:
        return len(unlike(asked, point)) + sum(not _holds(text, point) for text in fractions)

    points = [point for point in _points(captures, [first]) if not first.way.takes(point) and differ(point)]

    def order(point: Point) -> tuple[bool, int]:
        # What is computed of smaller sizes may be 0 or 1, which torch takes for special ones.
        return _is_small(point, captures.present), -differ(point)

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


def _points(captures: Captures, ways: Sequence[CapturedWay]) -> list[Point]:
    """Return sizes near those of the example and beyond them, of the dimensions of which conditions are."""
    numbers = numbers_of(captures.relations(ways))
    trees = [tree for each in ways for text in each.way.conditions if (tree := parsed_size(text)) is not None]
    for tree in trees:
        found = {node.value for node in ast.walk(tree) if isinstance(node, ast.Constant) and type(node.value) is int}
        for name in names_in_size(tree):
            numbers.setdefault(name, set()).update(found)
    points = points_near(numbers, captures.present, captures.bounds)
    return [point for point in (*points, *_small_points(numbers, captures)) if min(point.values()) >= _LEAST]


def _small_points(numbers: Mapping[str, Collection[int]], captures: Captures) -> Iterator[Point]:
    """Yield sizes that are all small ones, at which computed ones may be 1."""
    if len(numbers) > 1:
        own = {name: range(max(_LEAST, captures.bounds[name][0]), captures.present[name]) for name in numbers}
        chosen = [sorted({*numbers[name]} & {*own[name]})[:_SMALL] for name in numbers]
        for sizes in itertools.product(*chosen):
            yield {**captures.present, **dict(zip(numbers, sizes, strict=True))}


def _holds(text: str, point: Point) -> bool:
    tree = parsed_size(text)
    return tree is not None and condition_holds(tree, point)


class _Comparison:
    """Compares a captured program with the model at the sizes of another capture.

    Args:
        captures: What captured both.
        chosen: The capture.
        other: The other one.
    """

    def __init__(self, captures: Captures, chosen: CapturedWay, other: CapturedWay) -> None:
        self._captures, self._chosen, self._other = captures, chosen, other
        self._trials = chosen.trials
        self._points = _points(captures, [chosen, other])
        self._known: dict[tuple[Any, ...], bool | None] = {}
        self._truths: dict[str, list[bool]] = {}

    def for_sizes_of_both(self) -> CapturedWay | None:
        """Return the chosen capture for the sizes of both; None if it is not right for those of the other one."""
        texts, others = self._chosen.way.conditions, self._needed(self._other, self._chosen)
        always = [text for text in texts if _follows(text, ())]
        kept = [*always, *_alternatives(self._needed(self._chosen, self._other), others)]
        taken = [point for point, *held in zip(self._points, *map(self._held, kept), strict=True) if all(held)]
        missed = [point for point in self._points if self._other.way.takes(point)]
        if any(point not in taken for point in missed):
            return None
        more = [point for point in taken if not self._chosen.way.takes(point)]
        if False in self._tried(missed) or False in self._tried(more):
            return None
        program, names = self._chosen.way.program, self._chosen.way.names
        back = {name: own for own, name in names.items()}
        program.constraints = SizeConstraints([renamed_text(text, back) for text in kept], program.constraints.places)
        program.constraints.record(program.model)
        return dataclasses.replace(self._chosen, way=dataclasses.replace(self._chosen.way, conditions=tuple(kept)))

    def _needed(self, way: CapturedWay, beside: CapturedWay) -> list[str]:
        """Return the conditions of one way without those that the chosen program is right without."""
        texts, taken = _simplest(way.way.conditions), [beside.way.takes(point) for point in self._points]
        # What sets the ways apart holds nowhere where the other one is taken.
        apart = [
            text for text in texts if not any(held and it for held, it in zip(self._held(text), taken, strict=True))
        ]
        return [text for text in texts if text in apart or not self._is_needless(text, apart)]

    def _is_needless(self, text: str, apart: Sequence[str]) -> bool:
        """Tell whether the program is right at the sizes of a way at which a condition of it does not hold.

        Args:
            text: The condition.
            apart: Those that set the way apart from the other one.
        """
        held = zip(self._points, self._held(text), *map(self._held, apart), strict=True)
        alone = [point for point, own, *others in held if not own and all(others)]
        found = self._tried(alone)
        is_for_small = all(_is_small(point, self._captures.present) for point in alone)
        return False not in found and found.count(True) >= (1 if is_for_small else _LEAST_RIGHT)

    def _held(self, text: str) -> list[bool]:
        """Tell at each of the points whether a condition holds."""
        if text not in self._truths:
            self._truths[text] = _held(text, self._points)
        return self._truths[text]

    def _tried(self, points: Sequence[Point]) -> list[bool | None]:
        """Tell for some of these sizes whether program and model give the same, up to the first where they do not."""
        found = list[bool | None]()
        for number, point in enumerate(_some(points)):
            found.append(self.is_right(point, widely=number < _WIDELY))
            if found[-1] is False:
                break
        return found

    def is_right(self, point: Point, *, widely: bool = False) -> bool | None:
        """Tell whether program and model give the same; None where the model does not take the sizes."""
        key = (*point.values(), widely)
        if key not in self._known:
            run = self._trials.run_widely if widely else self._trials.run
            expected, right = run(self._captures.symbols(self._chosen, point))
            self._known[key] = None if expected is None else right
        return self._known[key]


def _held(text: str, points: Sequence[Point]) -> list[bool]:
    tree = parsed_size(text)
    if tree is None:
        return [False] * len(points)
    return truths(tree, {name: [point[name] for point in points] for name in names_in_size(tree)})


def _simplest(texts: Sequence[str]) -> list[str]:
    """Return conditions without those that follow from simpler ones, or always hold."""
    found = list[str]()
    for text in sorted(texts, key=lambda text: (len(_names(text)), len(text))):
        if not _follows(text, found):
            found.append(text)
    return found


def _follows(text: str, others: Sequence[str]) -> bool:
    """Tell whether a condition holds wherever some others do, as far as trying sizes shows."""
    names = tuple(sorted(set().union(*map(_names, (text, *others)))))
    if len(names) not in _ANY:
        return False
    given = functools.reduce(np.logical_and, (_truths(other, names) for other in others), np.True_)
    return bool(np.all(_truths(text, names) | ~given))


@functools.lru_cache(maxsize=1024)
def _truths(text: str, names: tuple[str, ...]) -> Any:
    """Tell at all combinations of sizes of some dimensions whether a condition holds."""
    points = itertools.product(_ANY[len(names)], repeat=len(names))
    return np.array(_held(text, [dict(zip(names, sizes, strict=True)) for sizes in points]))


def _alternatives(own: Sequence[str], others: Sequence[str]) -> list[str]:
    """Return what holds where one of two ways is taken, for each group of dimensions that conditions relate."""
    found, left = list[str](), [*own]
    while left:
        names, size = _names(left[0]), 0
        while len(names) > size:
            size = len(names)
            names = names.union(*(_names(text) for text in (*own, *others) if _names(text) & names))
        group, other = ([text for text in texts if _names(text) & names] for texts in (own, others))
        found += either_of([group, other])
        left = [text for text in left if text not in group]
    return found


def _names(text: str) -> set[str]:
    tree = parsed_size(text)
    return set() if tree is None else set(names_in_size(tree))


def _is_small(point: Point, present: Point) -> bool:
    return any(size < present[name] for name, size in point.items())


def _some(points: Sequence[Point]) -> list[Point]:
    """Return the first of some points, and some of the others."""
    others = points[_NEAR:]
    return [*points[:_NEAR], *itertools.islice(others[:: max(1, len(others) // _FAR)], _FAR)]
