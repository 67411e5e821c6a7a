"""The parts of a graph are those that torch's own iterators give, in the same order."""

from __future__ import annotations

from typing import Any

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


def test_of_a_node_with_several_results() -> None:
    node = _node(_program.graph, "aten::aminmax")

    assert _same(graph_parts.node_inputs(node), node.inputs())
    assert _same(graph_parts.node_outputs(node), node.outputs())
    assert len(graph_parts.node_outputs(node)) == 2


def test_of_an_empty_block() -> None:
    assert graph_parts.block_nodes(torch._C.Graph()) == []
