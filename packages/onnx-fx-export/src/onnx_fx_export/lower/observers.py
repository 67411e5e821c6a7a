"""Fake quantization whose observer is off: it changes nothing, and its parameters are known."""

from __future__ import annotations

import operator
from collections.abc import Sequence
from typing import Any

import torch

from onnx_fx_export.lower.edits import edited

__all__ = ["settled"]

aten = torch.ops.aten

_OBSERVED = aten.fused_moving_avg_obs_fake_quant.default


def settled(program: torch.export.ExportedProgram) -> torch.export.ExportedProgram:
    """Replace observing fake quantizations by plain ones where the observer is switched off.

    The switches are buffers of the module. Where one is off, the operator writes to its buffers what they are made of,
    which no result depends on. Scale and zero point follow from the observed range.

    Args:
        program: Left as it is.

    Returns:
        A program without the calls whose observer is off, or ``program`` itself if it has none.
    """
    graph = program.graph_module.graph
    if not any(node.target is _OBSERVED for node in graph.nodes):
        return program
    tensors = _Buffers(program)

    def settle(graph: torch.fx.Graph) -> None:
        for node in list(graph.find_nodes(op="call_function", target=_OBSERVED)):
            if (switch := tensors.of(node.args[1])) is not None and not switch.any():
                _settle(graph, node, tensors)

    return edited(program, settle)


class _Buffers:
    """Contents of the buffers of a program by the name of their placeholder."""

    def __init__(self, program: torch.export.ExportedProgram) -> None:
        self._targets = program.graph_signature.inputs_to_buffers
        self._contents = {**program.constants, **program.state_dict}

    def of(self, node: Any) -> torch.Tensor | None:
        target = self._targets.get(getattr(node, "name", ""))
        found = self._contents.get(target) if target is not None else None
        return found if isinstance(found, torch.Tensor) else None


def _settle(graph: torch.fx.Graph, node: torch.fx.Node, tensors: _Buffers) -> None:
    x, _, quantizing, *state = node.args[:7]
    contents = [found for part in (quantizing, *state) if (found := tensors.of(part)) is not None]
    if len(contents) != 5:
        return
    with graph.inserting_before(node):
        if not contents[0].any():
            result = graph.call_function(aten.alias.default, (x,))
        else:
            result = _quantized(graph, node, contents[1:])
    name = node.name
    result.meta.update(node.meta)
    node.replace_all_uses_with(result)
    graph.erase_node(node)
    # The signature knows the results of the program by their names.
    result.name = name


def _quantized(graph: torch.fx.Graph, node: torch.fx.Node, state: Sequence[torch.Tensor]) -> torch.fx.Node:
    options: tuple[Any, ...] = (*node.args[8:], False, False)
    low, high, axis, per_row, symmetric = options[:5]
    scale, zero_point = _parameters(state, low, high, per_row, symmetric)
    if not per_row:
        known = (node.args[0], scale.item(), zero_point.item(), low, high)
        return graph.call_function(aten.fake_quantize_per_tensor_affine.default, known)
    if torch.equal(scale, state[2]) and torch.equal(zero_point, state[3]):
        arguments = (node.args[0], *node.args[5:7], axis, low, high)
        return graph.call_function(aten.fake_quantize_per_channel_affine.default, arguments)
    # The model's own buffers hold other numbers, which the call would replace: the graph computes them.
    whole = graph.call_function(aten._fused_moving_avg_obs_fq_helper_functional.default, node.args)
    whole.meta["val"] = [node.meta["val"]]
    return graph.call_function(operator.getitem, (whole, 0))


def _parameters(
    state: Sequence[torch.Tensor], low: int, high: int, per_row: bool, symmetric: bool
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the scale and zero point that the operator quantizes with, by its own rule."""
    x = torch.zeros(len(state[0]) if per_row else 1, 1)
    switches = torch.zeros(1, dtype=torch.int64), torch.ones(1, dtype=torch.int64)
    found = aten._fused_moving_avg_obs_fq_helper_functional(x, *switches, *state, 0.0, low, high, 0, per_row, symmetric)
    return found[4], found[5]
