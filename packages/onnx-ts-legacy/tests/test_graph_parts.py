"""The parts of a graph are those that torch's own iterators give, in the same order."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from onnx_ts_legacy.graph import parts as graph_parts


@torch.jit.script
def _program(x: torch.Tensor, n: int) -> tuple[torch.Tensor, torch.Tensor]:
    for i in range(n):
        if i > 2:
            x = x * 2
        else:
            x = x + i
    low, high = x.aminmax()
    return low, high


def _same(found: list[Any], expected: Any) -> bool:
    return list(map(str, found)) == list(map(str, expected))


def _node(block: Any, kind: str) -> Any:
    return next(node for node in block.nodes() if node.kind() == kind)


def test_of_a_graph() -> None:
    graph = _program.graph

    assert len(graph_parts.block_nodes(graph)) > 3
    assert _same(graph_parts.block_nodes(graph), graph.nodes())
    assert _same(graph_parts.block_inputs(graph), graph.inputs())
    assert _same(graph_parts.block_outputs(graph), graph.outputs())


def test_of_a_nested_block() -> None:
    loop = _node(_program.graph, "prim::Loop")
    (block,) = loop.blocks()

    assert _same(graph_parts.block_nodes(block), block.nodes())
    assert _same(graph_parts.block_inputs(block), block.inputs())
    assert _same(graph_parts.block_outputs(block), block.outputs())
    branches = graph_parts.node_branches(_node(block, "prim::If"))
    assert [[node.kind() for node in graph_parts.block_nodes(branch)] for branch in branches] == [
        ["aten::mul"],
        ["aten::add"],
    ]


class _Kinds(torch.nn.Module):
    """Has a node of nearly every kind that a scripted program can have."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = torch.nn.Parameter(torch.ones(2))
        self.count = 0

    def forward(self, x: torch.Tensor, numbers: dict[str, int], pairs: list[tuple[int, float]]) -> torch.Tensor:
        self.count += len(pairs)
        values = [x, x + 1]
        low, high = values
        first = pairs[0]
        if first[0] > 1:
            raise ValueError("large")
        while bool(low.sum() < 0):
            low = low + _program(x, numbers["n"])[0]
        return {"low": low, "high": high}["low"] * self.weight


@pytest.mark.parametrize("inlined", [True, False])
def test_all_nodes_are_those_of_every_block(inlined: bool) -> None:
    def nodes(block: Any) -> list[Any]:
        return [
            each for node in block.nodes() for each in (node, *(n for inner in node.blocks() for n in nodes(inner)))
        ]

    scripted = torch.jit.script(_Kinds())
    graph = scripted.inlined_graph if inlined else scripted.graph
    expected = nodes(graph)

    assert len({node.kind() for node in expected}) > 15
    assert _same(list(graph_parts.all_nodes(graph)), expected)


def test_of_a_node_with_several_results() -> None:
    node = _node(_program.graph, "aten::aminmax")

    assert _same(graph_parts.node_inputs(node), node.inputs())
    assert _same(graph_parts.node_outputs(node), node.outputs())
    assert len(graph_parts.node_outputs(node)) == 2


def test_of_an_empty_block() -> None:
    assert graph_parts.block_nodes(torch._C.Graph()) == []
