"""What is collected while a call is traced does not go into the graph."""

import gc

import pytest
import torch

from onnxops_decomp.torch_private import trace_graph


@pytest.fixture(autouse=True)
def _collection_by_hand():
    gc.disable()
    yield
    gc.enable()


def collecting(x):
    gc.collect()
    return x * 2


def leave_a_generator_under_no_grad():
    def generator():
        with torch.no_grad():
            yield held

    held = [generator()]
    with torch.enable_grad():
        next(held[0])
    torch.set_grad_enabled(True)


@pytest.mark.parametrize("whole", [True, False])
def test_the_switch_of_a_generator_that_is_collected_is_not_traced(whole):
    leave_a_generator_under_no_grad()

    graph = trace_graph(collecting, [torch.ones(2)], whole=whole).graph

    gc.collect()
    assert [node.op for node in graph.nodes] == ["placeholder", "call_function", "output"]
