"""Questions about the lengths of pieces, of which the code does not use the answers."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

from onnx_fx_export.capture.conditions.answers import answer_mark
from onnx_fx_export.capture.loops.expansion import are_alike, constants_of
from onnx_fx_export.capture.loops.joining import questions_of_pieces
from onnx_fx_export.capture.torch_export import Recorded

__all__ = ["matter_not"]


def matter_not(first: Recorded, second: Recorded) -> bool:
    """Tell whether a model computes the same whatever it is answered about the lengths of pieces.

    Args:
        first: The model with one answer to each question.
        second: The model with the other answers.
    """
    program, other = first.program, second.program
    answers, otherwise = _answers(program), _answers(other)
    if any(otherwise.get(condition, answer) is answer for condition, answer in answers.items()):
        return False
    structures = [each.module_call_graph[0].signature.out_spec for each in (program, other)]
    if first.remembered != second.remembered or structures[0] != structures[1]:
        return False
    if not _same_constants(constants_of(program), constants_of(other)):
        return False
    ones, others = _computed(program), _computed(other)
    inputs = [graph.find_nodes(op="placeholder") for graph in (program.graph, other.graph)]
    if [node.name for node in inputs[0]] != [node.name for node in inputs[1]]:
        return False
    # Other graphs, such as the body of a scan, are not looked into.
    if any(node.op == "get_attr" for node in ones):
        return False
    return are_alike(ones, others, dict(zip(inputs[1], inputs[0], strict=True)), constants_of(program))


def _same_constants(ones: Mapping[str, Any], others: Mapping[str, Any]) -> bool:
    """Tell whether two programs have the same constants by the same names; a NaN is not one of them."""
    if ones.keys() != others.keys():
        return False
    pairs = [(one, others[name]) for name, one in ones.items()]
    tensors = all(isinstance(each, torch.Tensor) for pair in pairs for each in pair)
    return tensors and all(one.dtype == other.dtype and torch.equal(one, other) for one, other in pairs)


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
