"""The sizes that a captured program is right for, where torch took more for granted than it had to.

torch takes every size for 2 or more. Where code computes with sizes, as a shift by one place does with ``length - 1``,
this makes 3 the least length, though nothing in the graph depends on it. Here both the model and the graph run at the
sizes left out, and those at which they agree are left in. The same goes for what is taken for granted of sizes that
``min``, ``max`` or ``int`` give.
"""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from typing import Any

import sympy
import torch
from torch.export import Dim
from torch.utils import _pytree as pytree

from onnx_fx_export.sizes.layout import depends_on_layout, layout_guards
from onnx_fx_export.sizes.questions import LARGE, SizeQuestion, Sizes, answered, of_one_name
from onnx_fx_export.sizes.size_one import computed_one
from onnx_fx_export.sizes.trial_runs import TrialRuns, as_plain
from onnxops_core.exporting import warn_user
from onnxops_decomp.exporting import at_sizes

__all__ = [
    "TriedSizes",
    "as_hints",
    "calls_function",
    "larger_sizes",
    "least_sizes",
    "sizes_tried",
    "takes_declared_sizes",
]

# SymPy functions that are operators of Python.
_ARITHMETIC = (
    "And",
    "Not",
    "Or",
    "FloorDiv",
    "FloatTrueDiv",
    "IntTrueDiv",
    "Mod",
    "ModularIndexing",
    "PythonMod",
    "ToFloat",
)
# Larger sizes are not left out by torch's assumption alone.
MOST_LEFT_OUT = 3
# Sizes up to which one is looked for that makes a computed size 1, and how many such points are tried.
_MOST_NEAR = 33
_MOST_TRIED = 3
_MOST_TOGETHER = 3
# So many small sizes of each are combined.
_MOST_NUMBERS = 6
# How many larger sizes contradict a guard.
_MOST_FAR = 2
# What torch takes for the least size by itself.
_ASSUMED = 2

# A size from here on is as good as none.
_UNBOUNDED = 1 << 20


def larger_sizes() -> Sequence[int]:
    """Return sizes that stand for all those that are not small."""
    return (*range(MOST_LEFT_OUT + 1, 2 * MOST_LEFT_OUT + 4), LARGE)


@dataclasses.dataclass(frozen=True)
class TriedSizes:
    """Sizes by symbol at which the program is right although a guard of torch does not hold.

    Attributes:
        near: Those at which a computed size is 0 or 1, or two are equal. They say nothing of other sizes.
        far: Larger ones than those of the example.
    """

    near: Sequence[Mapping[str, int]] = ()
    far: Sequence[Mapping[str, int]] = ()


def calls_function(guard: sympy.Basic) -> bool:
    """Tell whether a condition has more than arithmetic in it."""
    functions = guard.atoms(sympy.core.function.Application)
    return any(type(function).__name__ not in _ARITHMETIC for function in functions)


def as_hints(declared: Any) -> Any:
    """Return declared dimensions without the promise that torch can prove the model right for each of their sizes.

    Args:
        declared: Dimensions as torch.export takes them.

    Returns:
        The same with a hint for each ``Dim``; None if there is none, or one is derived from another.
    """
    leaves = [leaf for leaf in pytree.tree_leaves(declared) if isinstance(leaf, Dim)]
    if not leaves or any(hasattr(leaf, "root") for leaf in leaves):
        return None
    return pytree.tree_map(lambda leaf: _as_hint(leaf) if isinstance(leaf, Dim) else leaf, declared)


def _as_hint(dim: Any) -> Any:
    return Dim.DYNAMIC(min=dim.min or None, max=dim.max if _is_bounded(dim) else None)


def _is_bounded(dim: Any) -> bool:
    return isinstance(dim.max, int) and dim.max < _UNBOUNDED


def least_sizes(
    trials: TrialRuns, specs: Sequence[Mapping[int, Any]], questions: Collection[SizeQuestion] = ()
) -> dict[str, int]:
    """Return for each symbol of which small sizes were left out needlessly the least size that is right.

    Args:
        trials: Runs the model and what was captured of it.
        specs: Declared dimensions of each leaf of the example.
        questions: What the model's code asked. Where it is answered otherwise and there are other dimensions, an
            agreement shows nothing for other sizes of these.

    Warns:
        UserWarning: If the model takes smaller sizes than the program.
    """
    program, sizes = trials.program, Sizes.of(trials.program, specs)
    dimensions = of_one_name(program, specs)
    left_out = _left_out(program, sizes, dimensions)
    if not left_out or not trials.possible:
        return {}
    trial = _Nearby(trials, sizes)
    known = sizes.known(answered(program, questions))
    relations = [each.relation for each in known if len(dimensions) > 1 and len(each.relation.free_symbols) == 1]

    def asked(symbols: Collection[sympy.Symbol], size: int) -> bool:
        return any(at_sizes(relation, dict.fromkeys(symbols, size)) == sympy.false for relation in relations)

    result: dict[sympy.Symbol, int] = {}
    for symbols, assumed in left_out.items():
        least, lowest = assumed, max(1, *(sizes.smallest[symbol] for symbol in symbols))
        while least > lowest and not asked(symbols, least - 1) and trial.agrees(dict.fromkeys(symbols, least - 1)):
            least -= 1
        if least < assumed:
            result.update(dict.fromkeys(symbols, least))
    if len(left_out) > 1 and result and not trial.agrees(result):
        return {}
    return {str(symbol): least for symbol, least in result.items()}


def sizes_tried(
    trials: TrialRuns, specs: Sequence[Mapping[int, Any]], questions: Collection[SizeQuestion] = ()
) -> TriedSizes:
    """Return sizes that contradict what was taken for granted, and are right.

    Tried is what concerns ``min``, ``max`` or ``int``, and what says that a size computed from others is not 1, or that
    two sizes are not equal. Where the model's code itself asks and would be answered otherwise, one agreement shows
    nothing for the other sizes with that answer.

    Args:
        trials: Runs the model and what was captured of it.
        specs: Declared dimensions of each leaf of the example.
        questions: What the model's code asked about sizes.
    """
    program, sizes = trials.program, Sizes.of(trials.program, specs)
    known = list(dict.fromkeys(sizes.final_guards()))
    if not any(map(_may_be_refuted, known)) or not trials.possible:
        return TriedSizes()
    trial, dimensions = _Nearby(trials, sizes, warns=False), of_one_name(program, specs)
    about_layout = {*layout_guards(program).values()}
    lasting = [guard for guard in known if guard not in about_layout or _may_be_refuted(guard)]
    near = [] if depends_on_layout(program) else _right_for_one(lasting, sizes, dimensions, trial)
    far = [
        point
        for guard in filter(calls_function, known)
        for symbols in dimensions
        for point in _right_far_away(guard, sizes, symbols, trial)
    ]
    relations = [question.relation for question in sizes.known(questions)]

    def asked(point: Mapping[str, int]) -> bool:
        at = {sympy.Symbol(name, integer=True): size for name, size in point.items()}
        return any(at_sizes(each, at) == sympy.false for each in relations)

    return TriedSizes([point for point in near if not asked(point)], [point for point in far if not asked(point)])


def _right_far_away(
    guard: sympy.Basic, sizes: Sizes, symbols: tuple[sympy.Symbol, ...], trial: _Nearby
) -> list[dict[str, int]]:
    """Return sizes of a dimension that contradict a guard, larger ones at best; none if the model differs there."""
    if not guard.free_symbols & {*symbols}:
        return []
    hint = sizes.hints[symbols[0]]
    others = {symbol: sizes.hints[symbol] for symbol in guard.free_symbols & sizes.hints.keys()}
    larger, smaller = (
        [point for size in chosen if _is_false(guard, {**others, **(point := dict.fromkeys(symbols, size))})]
        for chosen in ((2 * hint + 1, 4 * hint + 3, hint + 1), (3, 2, hint // 2))
    )
    contradicting = larger[:_MOST_FAR] or smaller
    if not all(map(trial.agrees, contradicting)):
        return []
    return [{str(symbol): size for symbol, size in {**others, **point}.items()} for point in contradicting]


def _right_for_one(
    guards: Sequence[sympy.Basic], sizes: Sizes, dimensions: Iterable[tuple[sympy.Symbol, ...]], trial: _Nearby
) -> list[dict[str, int]]:
    """Return sizes at which computed sizes are 1 or equal, which torch excludes, and program and model agree."""
    others = [guard for guard in guards if not _may_be_refuted(guard)]
    points: list[dict[sympy.Symbol, int]] = []
    dimensions = list(dimensions)
    # Several conditions are about one size.
    for excluded in dict.fromkeys(equation for guard in guards if (equation := _excluded(guard)) is not None):
        own = [symbols for symbols in dimensions if excluded.free_symbols & {*symbols}]
        # One dimension by itself, or a few together.
        near = [[(symbols, n)] for symbols in own for n in range(1, _MOST_NEAR)]
        if 1 < len(own) <= _MOST_TOGETHER:
            for longest, n in itertools.product(own, range(2, _MOST_NEAR)):
                near.append([(symbols, n if symbols is longest else 1) for symbols in own])
            # Windows of a number of pixels are one where the image has as many.
            numbers = sorted(
                {1, 2, 3, *(int(number) for number in excluded.atoms(sympy.Integer) if 3 < number < _MOST_NEAR)}
            )
            several = itertools.product(numbers[:_MOST_NUMBERS], repeat=len(own))
            near += [[*zip(own, small, strict=True)] for small in several]
        for chosen in near:
            point = {**sizes.hints, **{symbol: n for symbols, n in chosen for symbol in symbols}}
            if at_sizes(excluded, point) == sympy.true and not any(_is_false(other, point) for other in others):
                if point not in points:
                    points.append(point)
                break
    return [{str(s): n for s, n in point.items()} for point in points[:_MOST_TRIED] if trial.agrees(point)]


def _may_be_refuted(guard: sympy.Basic) -> bool:
    return calls_function(guard) or _excluded(guard) is not None


def _excluded(guard: sympy.Basic) -> sympy.Basic | None:
    """Return what a condition excludes: that a computed size is 1, or that two sizes are equal."""
    size = computed_one(guard)
    if size is not None:
        return sympy.Eq(size, 1)
    return sympy.Eq(*guard.args) if isinstance(guard, sympy.Ne) and len(guard.free_symbols) > 1 else None


def _is_false(guard: sympy.Basic, sizes: Mapping[sympy.Symbol, int]) -> bool:
    """Tell whether a condition does not hold at these sizes, or is undefined there."""
    return at_sizes(guard, sizes) in (sympy.false, None)


def takes_declared_sizes(
    program: torch.export.ExportedProgram,
    specs: Sequence[Mapping[int, Any]],
    known: Mapping[str, int],
    right: TriedSizes,
) -> bool:
    """Tell whether a program captured with hints is right for the sizes that the user declared.

    Sizes that are smaller than the user asked for, and that the program is known not to take, do not count.

    Args:
        program: What was captured.
        specs: Declared dimensions of each leaf of the example.
        known: What :func:`least_sizes` found.
        right: What :func:`sizes_tried` found.
    """
    sizes = Sizes.of(program, specs)
    near, far = (
        [{sympy.Symbol(name, integer=True): size for name, size in point.items()} for point in points]
        for points in (right.near, right.far)
    )

    def is_refuted(guard: sympy.Basic) -> bool:
        points = [*far, *(near if _excluded(guard) is not None else ())]
        return calls_function(guard) and any(_is_false(guard, point) for point in points)

    guards: list[sympy.Basic] = [guard for guard in dict.fromkeys(sizes.final_guards()) if not is_refuted(guard)]
    for symbols, dim in of_one_name(program, specs).items():
        least = max(known.get(str(symbol), _ASSUMED) for symbol in symbols)
        small = all(str(symbol) in known for symbol in symbols)
        own = [
            guard
            for guard in guards
            if guard.free_symbols & {*symbols}
            and not (small and guard.free_symbols <= {*symbols} and _holds_for_larger(guard))
        ]
        if getattr(dim, "min", 0) and least > max(_ASSUMED, dim.min):
            return False
        for size in _declared_sizes(dim, least):
            point = {**sizes.hints, **dict.fromkeys(symbols, size)}
            if any(_is_false(guard, point) for guard in own):
                return False
    return True


def _declared_sizes(dim: Any, least: int) -> Iterator[int]:
    """Yield sizes of a declared dimension, of a wide range those that stand for the others."""
    highest = dim.max if hasattr(dim, "max") and _is_bounded(dim) else _UNBOUNDED - 1
    lowest = max(least, getattr(dim, "min", 0) or 0)
    some = (power + step for power in (2**n for n in range(8, 17)) for step in (-1, 0, 1))
    yield from (size for size in (*range(lowest, 256), *some, LARGE, highest) if lowest <= size <= highest)


def _left_out(
    program: torch.export.ExportedProgram, sizes: Sizes, dimensions: Iterable[tuple[sympy.Symbol, ...]]
) -> dict[tuple[sympy.Symbol, ...], int]:
    """Return the least size of each dimension for which all holds that capture took for granted of it.

    Left out are dimensions of which nothing was taken for granted but that they are 2 or more, and those that cannot
    have some larger sizes either.
    """
    lower = {as_plain(key): found.lower for key, found in program.range_constraints.items() if key.is_Symbol}
    result = {}
    for symbols in dimensions:
        guards = [
            guard
            for guard in sizes.final_guards()
            if guard.free_symbols and guard.free_symbols <= {*symbols} and _holds_for_larger(guard)
        ]
        bounds = [lower[symbol] for symbol in symbols if symbol in lower]
        least = max([_ASSUMED, *(int(bound) for bound in bounds if bound.is_Integer)])
        failing = [
            size
            for size in range(1, MOST_LEFT_OUT + 1)
            if _ASSUMED <= size < least or any(_fails(guard, size) for guard in guards)
        ]
        if failing and least <= MOST_LEFT_OUT + 1:
            result[symbols] = max(failing) + 1
    return result


def _fails(guard: sympy.Basic, size: int) -> bool:
    return _is_false(guard, dict.fromkeys(guard.free_symbols, size))


def _holds_for_larger(guard: sympy.Basic) -> bool:
    return not any(_fails(guard, size) for size in larger_sizes())


@dataclasses.dataclass(frozen=True)
class _Nearby:
    """Runs a model and what was captured of it at sizes near those of the example.

    Attributes:
        trials: Runs both.
        sizes: The sizes of the program.
        warns: Whether to warn of a size that the model takes and the program does not.
        known: What was found by sizes: whether the model takes them, and whether the program is right. Many conditions
            are tried at the same ones.
    """

    trials: TrialRuns
    sizes: Sizes
    warns: bool = True
    known: dict[frozenset[tuple[sympy.Symbol, sympy.Integer]], tuple[bool, bool]] = dataclasses.field(
        default_factory=dict
    )

    def agrees(self, small: Mapping[sympy.Symbol, int]) -> bool:
        """Tell whether both give the same where some sizes are small, and those that follow from them are as well.

        Warns:
            UserWarning: If the model takes the sizes and the program gives something else.
        """
        related = [guard for guard in self.sizes.relations() if not _may_be_refuted(guard)]
        wanted = self.sizes.near(small, related)
        if wanted is None:
            return False
        key = frozenset(wanted.items())
        if key not in self.known:
            expected, right = self.trials.run_widely(wanted)
            self.known[key] = expected is not None, right
        taken, right = self.known[key]
        # What leaves out larger sizes is a condition, of which the user is warned as such.
        if taken and not right and self.warns and min(small.values()) == 1:
            warn_user(
                "The model takes size 1 of a dynamic dimension, and its capture is right for larger sizes only; the "
                "exported model's program refuses it. Export it a second time for size 1, or declare "
                "torch.export.Dim(..., min=2) if it does not occur."
            )
        return right
