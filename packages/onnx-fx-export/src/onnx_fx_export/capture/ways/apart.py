"""Conditions that have nothing to do with each other, as ``if hit.any():`` for each of many experts.

All combinations of their answers are far too many ways. Each is captured with its other answer alone, all others
answered as usual, and becomes a condition of the graph where the code behind it does the same: it asks the same
questions, Python's variables hold the same at each of them, and the graph goes on alike from what the branch gives.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import torch

from onnx_fx_export.capture.conditions.answers import answer_mark
from onnx_fx_export.capture.state import StateNotes
from onnx_fx_export.capture.torch_export import Recorded
from onnx_fx_export.capture.ways.merging import Join
from onnx_fx_export.capture.ways.python_state import may_agree
from onnx_fx_export.errors import CaptureError
from onnx_fx_export.torch_private import add_guards, is_decided_by_data, replacements_of, size_of_inputs

__all__ = ["Way", "beside", "joined_apart"]


@dataclasses.dataclass(frozen=True)
class Way:
    """A way through a model.

    Attributes:
        recorded: What was captured; None where the model raises.
        taken: The answers to all questions.
        given: To how many of them the answer was given.
        states: What Python's variables held at each.
    """

    recorded: Recorded | None
    taken: tuple[bool, ...]
    given: int
    states: list[list[dict[str, Any]]]


def joined_apart(record: Callable[[tuple[bool, ...]], Way]) -> Recorded:
    """Capture each question with its other answer alone, and return the program that decides each.

    Args:
        record: Captures the way of some answers to the first questions, and the usual answer to all others.

    Raises:
        Exception: What torch.export raises.
        CaptureError: If the questions have to do with each other, or one program cannot hold both answers.
    """
    usual, joins = record(()), list[Join]()
    if usual.recorded is None:
        raise CaptureError("The model raises an exception where all conditions have the same answer.")
    found = usual.recorded
    for number, answer in enumerate(usual.taken):
        other = record((*usual.taken[:number], not answer))
        if other.recorded is None or not _goes_on_alike(usual, other, number):
            raise CaptureError("What data decides at one place in the model's code changes what it asks later.")
        found = beside(found, other.recorded)
        joins.append(_joined(found.program, other.recorded.program, number))
    # What one condition gives is used by later ones.
    for join in reversed(joins):
        own = {*join.inside[0]}
        for (node, _), result in join.insert().items():
            node.replace_all_uses_with(result, delete_user_cb=lambda user, own=own: user not in own)  # type: ignore[misc]
        join.erase()
    found.program.graph.lint()
    found.program.graph_module.recompile()
    return found


def _goes_on_alike(usual: Way, other: Way, number: int) -> bool:
    """Tell whether the same is asked behind a question, and Python's variables hold the same there."""
    if usual.taken[number + 1 :] != other.taken[number + 1 :]:
        return False
    pairs = zip(usual.states[number + 1 :], other.states[number + 1 :], strict=True)
    return all(may_agree(one, another) for one, another in pairs)


def _joined(program: torch.export.ExportedProgram, other: torch.export.ExportedProgram, number: int) -> Join:
    join = Join.of(program, other, number)
    if any(node.target is answer_mark() for nodes in join.inside for node in nodes):
        raise CaptureError("The paths through the model do not do the same before a later condition.")
    results, own = [node for node, _ in join.ending.results], {*join.inside[0]}
    # A later branch may mean another variable by what this one left as it was.
    if len({*results}) < len(results) or not own.issuperset(results):
        raise CaptureError("A path through the model gives what another variable holds as well.")
    return join


def beside(first: Recorded, second: Recorded) -> Recorded:
    """Return what is known of two ways together; the program is that of the first.

    Raises:
        CaptureError: If one program cannot hold both.
    """
    if first.remembered != second.remembered:
        raise CaptureError("The data decides what the model stores in Python objects.")
    if _equal_sizes(first.program) != _equal_sizes(second.program):
        raise CaptureError("The paths through the model make different assumptions about which of its sizes are equal.")
    add_guards(first.program, second.program)
    questions = None if first.questions is None or second.questions is None else [*first.questions, *second.questions]
    doubts = [*dict.fromkeys((*first.doubts, *second.doubts))]
    notes = {
        field.name: {**getattr(second.state, field.name), **getattr(first.state, field.name)}
        for field in dataclasses.fields(StateNotes)
    }
    return dataclasses.replace(first, questions=questions, doubts=doubts, state=StateNotes(**notes))


def _equal_sizes(program: torch.export.ExportedProgram) -> dict[Any, Any]:
    size = size_of_inputs(program)
    found = {} if size is None else replacements_of(size)
    return {key: value for key, value in found.items() if not is_decided_by_data(key)}
