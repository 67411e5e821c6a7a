"""Questions about the lengths of pieces, of which the code does not use the answers."""

from __future__ import annotations

from typing import Any

import torch

from onnx_fx_export.capture.answers import answer_mark
from onnx_fx_export.capture.loops.expansion import are_alike, constants_of
from onnx_fx_export.capture.loops.joining import questions_of_pieces

__all__ = ["matter_not"]


def matter_not(program: torch.export.ExportedProgram, other: torch.export.ExportedProgram) -> bool:
    """Tell whether a model computes the same whatever it is answered about the lengths of pieces.

    Args:
        program: The model with one answer to each question.
        other: The model with the other answers.
    """
    answers, otherwise = _answers(program), _answers(other)
    if any(otherwise.get(condition, answer) is answer for condition, answer in answers.items()):
        return False
    ones, others = _computed(program), _computed(other)
    inputs = [graph.find_nodes(op="placeholder") for graph in (program.graph, other.graph)]
    if [node.name for node in inputs[0]] != [node.name for node in inputs[1]]:
        return False
    return are_alike(ones, others, dict(zip(inputs[1], inputs[0], strict=True)), constants_of(program))


def _answers(program: torch.export.ExportedProgram) -> dict[Any, Any]:
    """Return the answer to each condition on the lengths of pieces."""
    marks = questions_of_pieces(program)
    return {mark.args[0].args[0].meta["val"].node.expr: mark.args[1] for mark in marks}  # type: ignore[union-attr]


def _computed(program: torch.export.ExportedProgram) -> list[torch.fx.Node]:
    """Return the nodes of a program in order, without its inputs and what it asks."""
    asking: set[torch.fx.Node] = set()
    for node in reversed(program.graph.nodes):
        is_mark = node.target is answer_mark()
        if is_mark or (node.users and node.op == "call_function" and asking.issuperset(node.users)):
            asking.add(node)
    return [node for node in program.graph.nodes if node not in asking and node.op != "placeholder"]
