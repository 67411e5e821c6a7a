"""One call of an overload as a graph, also where torch records something else for it, or nothing."""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Any

import torch
from decomp_harness import trace
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx.experimental.symbolic_shapes import ShapeEnv
from torch.utils import _pytree as pytree

__all__ = ["recorded"]


def recorded(
    call: Any, *, dynamic: bool = False, reference: Callable[..., Any] | None = None, first_alone: bool = False
) -> torch.fx.GraphModule:
    """Record a call of an overload; its graph holds that overload, and one result for each tensor that it gives.

    ``reference`` computes what the overload does, where this torch has no kernel for it.
    With ``dynamic`` every size other than 0 and 1 is symbolic, and what no fake kernel tells is of unknown size.
    With ``first_alone`` the graph gives the first result alone.
    """
    traced = _recorded(call, dynamic, reference or call)
    if first_alone:
        output = traced.graph.output_node()
        output.args = (_results(traced)[:1],)
        traced.recompile()
    return traced


def _recorded(call: Any, dynamic: bool, eager: Callable[..., Any]) -> torch.fx.GraphModule:
    try:
        traced = trace(call, call.tensors, dynamic=dynamic)
    except Exception:
        return _written(call, dynamic, eager)
    targets = {node.target for node in traced.graph.nodes}
    return traced if call.function in targets and _results(traced) else _written(call, dynamic, eager)


def _results(graph_module: torch.fx.GraphModule) -> list[torch.fx.Node]:
    leaves = pytree.tree_leaves(graph_module.graph.output_node().args[0])
    return [leaf for leaf in leaves if isinstance(leaf, torch.fx.Node)]


def _written(call: Any, dynamic: bool, eager: Callable[..., Any]) -> torch.fx.GraphModule:
    """Write the graph of a call by hand, the results of eager PyTorch in place of those of a fake kernel."""
    graph = torch.fx.Graph()
    env = ShapeEnv() if dynamic else None
    mode = FakeTensorMode(shape_env=env, static_shapes=not dynamic)

    def unknown(tensor: torch.Tensor) -> torch.Tensor:
        if env is None:
            return mode.from_tensor(tensor)
        with mode:
            return torch.empty([env.create_unbacked_symint() for _ in tensor.shape], dtype=tensor.dtype)

    operands = []
    for position, tensor in enumerate(call.tensors):
        operands.append(graph.placeholder(f"x{position}"))
        operands[-1].meta["val"] = mode.from_tensor(tensor)
    args, kwargs = call.arguments(operands)
    node = graph.call_function(call.function, tuple(args), dict(kwargs))
    result = eager(*call.tensors)
    node.meta["val"] = pytree.tree_map_only(torch.Tensor, unknown, result)
    parts = [node]
    if isinstance(result, list | tuple):
        parts = [graph.call_function(operator.getitem, (node, index)) for index in range(len(result))]
        for part, value in zip(parts, node.meta["val"], strict=True):
            part.meta["val"] = value
    graph.output(tuple(parts))
    return torch.fx.GraphModule(torch.nn.Module(), graph)
