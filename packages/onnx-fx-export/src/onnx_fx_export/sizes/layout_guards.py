"""Guards of torch that only lay tensors out in memory, and mean nothing for the model."""

from __future__ import annotations

import itertools
from collections.abc import Collection, Mapping, Sequence
from typing import Any

import sympy
import torch

from onnx_fx_export.sizes.layout import depends_on_layout, layout_guards
from onnx_fx_export.sizes.questions import SizeQuestion, Sizes, answered, sliced
from onnx_fx_export.sizes.small import calls_function
from onnx_fx_export.sizes.trial_runs import TrialRuns, plain
from onnx_fx_export.torch_private import FloorDiv
from onnxops_decomp.exporting import AtenTrait, at_sizes, has_aten_trait

__all__ = ["answers_without_guards", "conditions_on_layout"]

# What says itself which sizes it gives.
_RESHAPING = ("reshape", "view", "_unsafe_view")
# Sizes up to so many more are tried.
_MOST_MORE = 6
# So many of each are tried where two change.
_MOST_OF_TWO = 8


def conditions_on_layout(
    trials: TrialRuns, specs: Sequence[Mapping[int, Any]], questions: Collection[SizeQuestion]
) -> list[str]:
    """Return the conditions that say only how torch lays tensors out, and that the model's code did not ask about.

    What an equation or a range says, torch computes with from there on, so that those are tried.

    Args:
        trials: Runs the model and what was captured of it.
        specs: Declared dimensions of each leaf of the example.
        questions: What the model's code asked: torch answers it from what it took for granted before.
    """
    program = trials.program
    if depends_on_layout(program):
        return []
    asked = {_canonical(relation) for q in questions for relation in (q.relation, sympy.Not(q.relation))}
    kept = {text: guard for text, guard in layout_guards(program).items() if _canonical(guard) not in asked}
    tried, equal = ({*filter(test, kept.values())} for test in (_may_fix, lambda guard: isinstance(guard, sympy.Eq)))
    if not equal <= tried and _computes_with_quotients(program):
        tried |= equal
    if not tried:
        return [*kept]
    sizes = Sizes.of(program, specs)
    about_layout = {*kept.values()}
    others = [guard for guard in sizes.final_guards() if guard not in about_layout]
    return [text for text, guard in kept.items() if guard not in tried or _means_nothing(guard, others, trials, sizes)]


def answers_without_guards(
    program: torch.export.ExportedProgram,
    specs: Sequence[Mapping[int, Any]],
    questions: Collection[SizeQuestion],
    meaningless: Collection[str],
) -> list[sympy.Rel]:
    """Return the answers to what code asked, and slices left, that do not follow from what a program takes for granted.

    ``x = pad(x, [0, -n % 3])[:n]`` lets torch note that ``-n % 3`` is 0, as it is for the example, which only says how
    tensors lie in memory; an ``if -n % 3:`` behind it is answered from that, without a guard of its own. So is
    ``n * m > 6`` where ``n`` is 4 or more, as torch takes ``m`` for 2 or more.

    Args:
        program: The program.
        specs: Declared dimensions of each leaf of the example.
        questions: What the model's code asked.
        meaningless: Texts of the guards that mean nothing for the model.
    """
    sizes, about_layout = Sizes.of(program, specs), layout_guards(program)
    dropped = {about_layout[text] for text in meaningless}
    left = [guard for guard in sizes.final_guards() if guard not in dropped]
    own = {_canonical(guard) for guard in left}
    # What small sizes alone answer otherwise is tried with the model.
    of_model = answered(program, questions)
    given = [question for question in sliced(program) if at_sizes(question.relation, sizes.hints) == sympy.true]
    known = sizes.known([*of_model, *given])
    small = {question.relation for question in sizes.decisive(known)}
    asked = {_canonical(question.relation): question.relation for question in known if question.relation not in small}
    return [relation for key, relation in asked.items() if key not in own and _fails(relation, left, sizes)]


def _fails(relation: sympy.Rel, guards: Sequence[sympy.Basic], sizes: Sizes) -> bool:
    """Tell whether a relation does not hold at some sizes that keep conditions.

    One or two are changed, and the others are those of the example or the smallest ones.
    """
    numbers = {int(number) for number in relation.atoms(sympy.Integer)}
    compared = {number + step for number in numbers for step in (-1, 0, 1)}
    tried: dict[sympy.Symbol, list[int]] = {}
    for symbol in sorted(relation.free_symbols, key=str):
        hint, least = sizes.hints[symbol], max(1, sizes.smallest[symbol])
        chosen = {*range(1, hint + _MOST_MORE), 2 * hint + 1, 3 * hint, *compared}
        tried[symbol] = sorted(size for size in chosen if size >= least)
    changes = [{symbol: size} for symbol, several in tried.items() for size in several]
    if len(tried) == 2:
        short = (several[:_MOST_OF_TWO] for several in tried.values())
        changes += [dict(zip(tried, pair, strict=True)) for pair in itertools.product(*short)]
    smallest = {symbol: max(1, size) for symbol, size in sizes.smallest.items()}
    for changed, others in itertools.product(changes, ({}, smallest)):
        wanted = {**others, **changed}
        if at_sizes(relation, {**sizes.hints, **wanted}) == sympy.false:
            point = sizes.near(wanted, guards)
            if point is not None and at_sizes(relation, point) == sympy.false:
                return True
    return False


def _computes_with_quotients(program: torch.export.ExportedProgram) -> bool:
    """Tell whether a call that may ask for the sizes of its operands is given one whose size is a quotient.

    Such a size may be one only where the division has no rest.
    """
    for node in program.graph.nodes:
        if node.op != "call_function" or has_aten_trait(node.target, AtenTrait.ARITHMETIC) or _name(node) in _RESHAPING:
            continue
        shapes = (operand.meta["val"].shape for operand in node.all_input_nodes if _is_tensor(operand))
        if any(plain(size).has(FloorDiv) for shape in shapes for size in shape):
            return True
    return False


def _name(node: torch.fx.Node) -> str:
    return getattr(node.target, "_opname", "")


def _is_tensor(node: torch.fx.Node) -> bool:
    return isinstance(node.meta.get("val"), torch.Tensor)


def _may_fix(guard: sympy.Basic) -> bool:
    """Tell whether torch may compute with a number or another size from a guard on.

    That is so where it says what a size is, and where it bounds what ``min`` and its like give.
    """
    if isinstance(guard, sympy.Eq):
        return any(side.is_Symbol or (side.is_Integer and side != 0) for side in guard.args)
    return not isinstance(guard, sympy.Ne) and calls_function(guard)


def _means_nothing(guard: sympy.Basic, others: Sequence[sympy.Basic], trials: TrialRuns, sizes: Sizes) -> bool:
    """Tell whether program and model agree where a guard does not hold, as far as sizes are found that the model takes.

    One comparison for each symbol is enough.
    """
    for symbol in sorted(guard.free_symbols & sizes.hints.keys(), key=str):
        hint = sizes.hints[symbol]
        for size in (hint + 1, 2 * hint + 1, hint - 1, *range(hint + 2, hint + _MOST_MORE), 3 * hint):
            point = sizes.near({symbol: size}, others) if size >= 1 else None
            if point is None or at_sizes(guard, point) != sympy.false:
                continue
            expected, right = trials.run(point) if trials.possible else (None, False)
            if not trials.possible or (expected is not None and not right):
                return False
            if expected is not None:
                break
    return True


def _canonical(condition: sympy.Basic) -> sympy.Basic:
    """Return the canonical form of a relation; what joins several has none."""
    return condition.canonical if isinstance(condition, sympy.Rel) else condition
