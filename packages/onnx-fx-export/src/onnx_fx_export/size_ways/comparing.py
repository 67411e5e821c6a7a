"""Comparisons of a captured program with the model at the sizes of another capture."""

from __future__ import annotations

import ast
import dataclasses
import itertools
import operator
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from typing import Any

from onnx_fx_export.size_ways.captures import CapturedWay, Captures
from onnx_fx_export.size_ways.conditions import alternatives, follows, held, simplest
from onnx_fx_export.size_ways.points import Point, numbers_of, points_near
from onnx_fx_export.size_ways.turning import turning_points
from onnxops_decomp.exporting import SizeConstraints, names_in_size, parsed_size, renamed_text

__all__ = ["Comparison", "is_small", "points_of"]

# A condition that does not set two ways apart is left out if it does not hold at so many sizes and the program is right
# at all that are tried, or at none but small ones. So many are tried near those of the example, and so many far away,
# the first ones with unusual values as well.
_LEAST_RIGHT, _NEAR, _FAR, _WIDELY = 3, 5, 4, 2
# So many small sizes of each dimension are combined.
_SMALL = 4
# torch takes smaller sizes for special ones.
_LEAST = 2


def points_of(captures: Captures, ways: Sequence[CapturedWay]) -> list[Point]:
    """Return sizes near those of the example and beyond them, of the dimensions of which conditions are.

    Args:
        captures: Captures the model.
        ways: The captures whose conditions are meant.
    """
    numbers = numbers_of(captures.relations(ways))
    trees = [tree for each in ways for text in each.way.conditions if (tree := parsed_size(text)) is not None]
    for tree in trees:
        found = {node.value for node in ast.walk(tree) if isinstance(node, ast.Constant) and type(node.value) is int}
        for name in names_in_size(tree):
            numbers.setdefault(name, set()).update(found)
    near = points_near(numbers, captures.present, captures.bounds)
    points = (captures.wanted, *near, *_small_points(numbers, captures))
    return [point for point in points if min(point.values()) >= _LEAST and captures.fits(point)]


def _small_points(numbers: Mapping[str, Collection[int]], captures: Captures) -> Iterator[Point]:
    """Yield sizes that are all small ones, at which computed ones may be 1."""
    if len(numbers) > 1:
        own = {name: range(max(_LEAST, captures.bounds[name][0]), captures.present[name]) for name in numbers}
        chosen = [sorted({*numbers[name]} & {*own[name]})[:_SMALL] or [captures.present[name]] for name in numbers]
        for sizes in itertools.product(*chosen):
            yield {**captures.present, **dict(zip(numbers, sizes, strict=True))}


class Comparison:
    """Compares a captured program with the model at the sizes of another capture.

    Args:
        captures: What captured both.
        chosen: The capture.
        other: The other one.
        is_changed: Whether sizes were computed in another form for the chosen capture than the model's.
    """

    def __init__(
        self, captures: Captures, chosen: CapturedWay, other: CapturedWay, *, is_changed: bool = False
    ) -> None:
        self._captures, self._chosen, self._other, self._is_changed = captures, chosen, other, is_changed
        self._trials = chosen.trials
        self._points = points_of(captures, [chosen, other])
        self._known: dict[tuple[Any, ...], bool | None] = {}
        self._truths: dict[str, list[bool]] = {}

    def for_sizes_of_both(self) -> CapturedWay | None:
        """Return the chosen capture for the sizes of both; None if it is not right for those of the other one."""
        texts, others = self._chosen.way.conditions, self._needed(self._other, self._chosen)
        always = [text for text in texts if follows(text, (), self._points)]
        kept = [*always, *alternatives(self._needed(self._chosen, self._other), others)]
        taken = [point for point, *here in zip(self._points, *map(self._held, kept), strict=True) if all(here)]
        missed = [point for point in self._points if self._other.way.takes(point)]
        if any(point not in taken for point in missed):
            return None
        more = [point for point in taken if not self._chosen.way.takes(point)]
        if False in self._tried(missed) or False in self._tried(more) or not self._is_right_where_it_turns(kept):
            return None
        program, names = self._chosen.way.program, self._chosen.way.names
        back = {name: own for own, name in names.items()}
        program.constraints = SizeConstraints([renamed_text(text, back) for text in kept], program.constraints.places)
        program.constraints.record(program.model)
        return dataclasses.replace(self._chosen, way=dataclasses.replace(self._chosen.way, conditions=tuple(kept)))

    def _is_right_where_it_turns(self, kept: Sequence[str]) -> bool:
        """Tell whether the program is right at the sizes that it takes and at which either of the two turns."""
        groups = turning_points(self._captures, [self._chosen, self._other])
        for group in groups or ():
            here = zip(group, *(held(text, group) for text in kept), strict=True)
            taken = [point for point, *all_held in here if all(all_held)]
            own, others = _parted(self._chosen.way.takes, taken)
            # What it was captured for is right but where it was captured in another form.
            points = (*others[:1], *(own[:1] if self._is_changed else ()))
            if any(self.is_right(point) is False for point in points):
                return False
        return groups is not None

    def _needed(self, way: CapturedWay, beside: CapturedWay) -> list[str]:
        """Return the conditions of one way without those that the chosen program is right without."""
        texts, taken = simplest(way.way.conditions, self._points), [beside.way.takes(point) for point in self._points]
        # What sets the ways apart holds nowhere where the other one is taken.
        apart = [text for text in texts if not any(map(operator.and_, self._held(text), taken))]
        return [text for text in texts if text in apart or not self._is_needless(text, apart)]

    def _is_needless(self, text: str, apart: Sequence[str]) -> bool:
        """Tell whether the program is right at the sizes of a way at which a condition of it does not hold.

        Args:
            text: The condition.
            apart: Those that set the way apart from the other one.
        """
        here = zip(self._points, self._held(text), *map(self._held, apart), strict=True)
        alone = [point for point, own, *others in here if not own and all(others)]
        found = self._tried(alone)
        is_for_small = all(is_small(point, self._captures.present) for point in alone)
        return False not in found and found.count(True) >= (1 if is_for_small else _LEAST_RIGHT)

    def _held(self, text: str) -> list[bool]:
        """Tell at each of the points whether a condition holds."""
        if text not in self._truths:
            self._truths[text] = held(text, self._points)
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
        """Tell whether program and model give the same; None where the model does not take the sizes.

        Args:
            point: The sizes.
            widely: Whether that is tried with unusual values as well.
        """
        key = (*point.values(), widely)
        if key not in self._known:
            run = self._trials.run_widely if widely else self._trials.run
            expected, right = run(self._captures.symbols(self._chosen, point))
            self._known[key] = None if expected is None else right
        return self._known[key]


def _parted(condition: Callable[[Point], bool], points: Sequence[Point]) -> tuple[list[Point], list[Point]]:
    found: tuple[list[Point], list[Point]] = ([], [])
    for point in points:
        found[not condition(point)].append(point)
    return found


def is_small(point: Point, present: Point) -> bool:
    """Tell whether one of some sizes is smaller than in the example.

    Args:
        point: The sizes.
        present: Those of the example.
    """
    return any(size < present[name] for name, size in point.items())


def _some(points: Sequence[Point]) -> list[Point]:
    """Return the first of some points, and some of the others."""
    others = points[_NEAR:]
    return [*points[:_NEAR], *itertools.islice(others[:: max(1, len(others) // _FAR)], _FAR)]
