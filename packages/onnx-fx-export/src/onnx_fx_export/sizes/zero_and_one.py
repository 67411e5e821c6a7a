"""The conditions under which a captured program is the model at sizes 0 and 1, which torch takes for special.

What the model's code asked of its sizes has another answer there. Both run at such sizes, and where they agree, the
sizes are left in.
"""

from __future__ import annotations

import itertools
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from typing import Any

import sympy
import torch

from onnx_fx_export.origin import source_line
from onnx_fx_export.sizes.layout import gives_view, layout_guards, noticed_copies
from onnx_fx_export.sizes.questions import LARGE, SizeQuestion, Sizes, of_one_name, sliced, squeezed
from onnx_fx_export.sizes.trial_runs import TrialRuns, plain
from onnxops_core.exporting import warn_user
from onnxops_decomp.exporting import at_sizes

__all__ = ["conditions_for_small_sizes"]

# Sizes below are tried where a copy may be a view.
_SMALL = 17
# Beside a small size, the others are so many times as large as in the example, and larger by so much.
_BESIDE = ((1, 1), (1, -1), (1, 2), (2, 1), (3, 8))


def _recurrent(program: torch.export.ExportedProgram) -> Iterator[SizeQuestion]:
    """Yield that recurrent networks have sequences to read: ONNX Runtime ends the process where they have none."""
    for node in program.graph.nodes:
        if node.op == "call_function" and str(node.target).endswith((".lstm.input", ".gru.input")):
            for size in node.args[0].meta["val"].shape:
                if isinstance(size, torch.SymInt):
                    yield SizeQuestion(sympy.Ge(plain(size), 1), source_line(node) or str(node))


def _copied(program: torch.export.ExportedProgram, sizes: Sizes) -> Iterator[SizeQuestion]:
    """Yield the sizes at which what was captured as a copy is a view, where that makes a difference.

    A part of a tensor becomes a view of it where some size is 1, as ``length - 1`` is at length 2.
    """
    for node in noticed_copies(program):
        if not gives_view(node, sizes.hints):
            for symbol, size in itertools.product(sizes.hints, range(1, _SMALL)):
                if gives_view(node, {**sizes.hints, symbol: size}):
                    yield SizeQuestion(sympy.Ne(symbol, size), source_line(node) or str(node))


def conditions_for_small_sizes(
    trials: TrialRuns, specs: Sequence[Mapping[int, Any]], questions: Iterable[SizeQuestion]
) -> tuple[list[sympy.Rel], list[str]]:
    """Find the conditions under which a captured program is the model, sizes 0 and 1 considered.

    Where an answer differs at size 1 or 0, both run there; if they agree, the size is left in.

    Args:
        trials: Runs the model, and what was captured of it with an example of sizes 2 and more.
        specs: Declared dimensions of each leaf of the example.
        questions: What the model's code asked.

    Returns:
        The conditions, and the lines that treat size 1 of a dynamic dimension apart.

    Warns:
        UserWarning: If size 1 is left out.
    """
    program, sizes = trials.program, Sizes.of(trials.program, specs)
    about_layout = set(layout_guards(program).values())
    lasting = [guard for guard in sizes.final_guards() if guard not in about_layout]
    asked = [
        question
        for question in sizes.decisive((*questions, *squeezed(program, used=False)))
        # What torch decides is of no matter at sizes that the program refuses.
        if question.is_of_model or any(sizes.near({symbol: 1}, lasting) for symbol in question.relation.free_symbols)
    ]
    unguarded = [question for question in sizes.known(questions) if not question.is_guarded]
    assumed = [
        *(question for question in unguarded if not _agrees_elsewhere(trials, sizes, question)),
        *sizes.decisive((*squeezed(program), *sliced(program), *_recurrent(program))),
        *_copied(program, sizes),
    ]
    at_one = [question for question in asked if not question.holds(sizes.smallest, 1)]
    # That computed sizes differ is tried apart, unless the model's code asks.
    own = {question.relation.canonical for question in sizes.known(questions)}
    taken = [guard for guard in sizes.final_guards() if not isinstance(guard, sympy.Ne) or guard.canonical in own]
    possible = [guard for guard in taken if guard not in about_layout]
    dimensions = of_one_name(program, specs)
    if not at_one or _agrees_at_one(trials, sizes, at_one, dimensions, (taken, possible)):
        # What only 0 beside 1 answers otherwise stays as it is.
        mixed = [q for q in asked if q.holds(sizes.smallest, 1) and q.holds(sizes.smallest, 0)]
        at_zero = [question for question in asked if not question.holds(sizes.smallest, 0)]
        asked = mixed + _left_at_zero(trials, sizes, at_zero, dimensions)
        at_one = []
    at_one += [question for question in assumed if not question.holds(sizes.smallest, 1)]
    lines = list(dict.fromkeys(question.place for question in at_one))
    if lines:
        places = "\n".join(f"  {line}" for line in lines)
        warn_user(
            f"The model treats size 1 of a dynamic dimension differently, at\n{places}\nThe exported model is "
            "right for larger sizes only, and its program refuses size 1. Declare torch.export.Dim(..., min=2) if "
            "it does not occur; otherwise export the model a second time for size 1."
        )
    return [question.relation for question in (*asked, *assumed)], lines


def _left_at_zero(
    trials: TrialRuns,
    sizes: Sizes,
    questions: Sequence[SizeQuestion],
    dimensions: Collection[tuple[sympy.Symbol, ...]],
) -> list[SizeQuestion]:
    """Return what is left of questions with another answer at size 0, after a try of each dimension at 0.

    A question that no try answered otherwise, because it takes several sizes of 0 for that, is left as it is.
    """
    symbols = {symbol for question in questions for symbol in question.relation.free_symbols}
    points = {
        group: point
        for group in dimensions
        if {*group} & symbols and (point := _right_at_zero(trials, sizes, group)) is not None
    }
    allowed = {symbol for group in points for symbol in group}
    refused = [SizeQuestion(sympy.Ge(symbol, 1), "") for symbol in sorted(symbols - allowed, key=str)]
    return refused + [
        question
        for question in questions
        if question.relation.free_symbols & allowed
        and not any(at_sizes(question.relation, point) == sympy.false for point in points.values())
    ]


def _right_at_zero(
    trials: TrialRuns, sizes: Sizes, symbols: Collection[sympy.Symbol]
) -> Mapping[sympy.Symbol, int] | None:
    """Run both where sizes are 0, as those of an empty cache are, and return the sizes if they agree.

    Results that are empty themselves show nothing.
    """
    wanted = sizes.near(dict.fromkeys(symbols, 0), sizes.relations())
    if wanted is None or not trials.possible:
        return None
    expected, right = trials.run(wanted)
    shown = any(isinstance(leaf, torch.Tensor) and leaf.numel() for leaf in expected or ())
    right = right and shown and _agrees_beside(trials, sizes, dict.fromkeys(symbols, 0), sizes.relations())
    return {symbol: int(size) for symbol, size in wanted.items()} if right else None


def _agrees_elsewhere(trials: TrialRuns, sizes: Sizes, question: SizeQuestion) -> bool:
    """Run both at a size at which an answer differs, and compare; sizes that the program refuses need none."""
    wanted = next(
        ({symbol: size} for symbol in question.relation.free_symbols for size in (*range(2, _SMALL), LARGE)
         if at_sizes(question.relation, {symbol: size}) == sympy.false),
        {},
    )  # fmt: skip
    point = sizes.near(wanted, sizes.final_guards())
    return point is None or (trials.possible and trials.run(point)[1])


def _of_several(
    sizes: Sizes, questions: Sequence[SizeQuestion], guards: Sequence[sympy.Basic]
) -> Iterator[Mapping[sympy.Symbol, sympy.Integer]]:
    """Yield the small sizes at which questions about two of them have another answer."""
    for relation in dict.fromkeys(each.relation for each in questions if len(each.relation.free_symbols) == 2):
        for pair in itertools.product((1, 2, 3), repeat=2):
            wanted = dict(zip(sorted(relation.free_symbols, key=str), pair, strict=True))
            point = sizes.near(wanted, guards)
            if point is not None and at_sizes(relation, point) == sympy.false:
                yield point


def _agrees_at_one(
    trials: TrialRuns,
    sizes: Sizes,
    questions: Sequence[SizeQuestion],
    dimensions: Collection[tuple[sympy.Symbol, ...]],
    guards: Sequence[Sequence[sympy.Basic]],
) -> bool:
    """Run both where each of the sizes is 1, one by one and all together, and compare.

    ``dimensions`` are the symbols of one name together, and ``guards`` what the program takes for granted, and that
    without what only lays tensors out.
    """
    if not trials.possible:
        return False
    run = trials.run if all(question.is_of_torch for question in questions) else trials.run_widely
    asked = {symbol for question in questions for symbol in question.relation.free_symbols}
    every = {symbol for symbol in sizes.hints if sizes.smallest[symbol] <= 1}
    together = sizes.near(dict.fromkeys(every, 1), guards[0])
    # Sizes that the program refuses need no comparison, but a size that was asked about needs one.
    if together is not None and not run(together)[1]:
        return False
    if not all(run(point)[1] for point in _of_several(sizes, questions, guards[0]) if point != together):
        return False
    for group in (group for group in dimensions if {*group} & asked & every):
        taken, possible = (sizes.near(dict.fromkeys(group, 1), each) for each in guards)
        point = taken or possible
        known = point is not None and point == together
        expected, right = (None, True) if known else run(point) if point else ([], False)
        # The model may refuse what the program does.
        if not right and (taken or expected is not None):
            return False
        if run == trials.run_widely and not _agrees_beside(trials, sizes, dict.fromkeys(group, 1), guards[0], together):
            return False
    return True


def _agrees_beside(
    trials: TrialRuns,
    sizes: Sizes,
    small: Mapping[sympy.Symbol, int],
    guards: Sequence[sympy.Basic],
    compared: Mapping[sympy.Symbol, sympy.Integer] | None = None,
) -> bool:
    """Run both where some sizes are small and all others are not those of the example, and compare.

    What the model's code does at small sizes alone may make no difference at one size of another dimension.
    ``compared`` are sizes that need it no more.
    """
    others = {symbol: hint for symbol, hint in sizes.hints.items() if symbol not in small}
    for factor, more in _BESIDE if others else ():
        at = {symbol: max(1, factor * hint + more) for symbol, hint in others.items()}
        point = sizes.near({**at, **small}, guards)
        expected, right = (None, True) if point in (None, compared) else trials.run(point)
        if expected is not None and not right:
            return False
    return True
