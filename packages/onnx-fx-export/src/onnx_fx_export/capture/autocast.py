"""Autocast, inside of a model or around its export: the exported model computes in the dtypes that it has there."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Iterator
from typing import Any, cast

import torch
from torch.utils import _pytree as pytree

from onnx_fx_export.inputs.examples import replaced_forward
from onnx_fx_export.torch_private import has_autocast_kernel
from onnxops_core.exporting import active_autocasts, without_autocast
from onnxops_decomp.exporting import fake_mode_of, is_composite, trace_graph

__all__ = ["autocast_inside", "cast_inside_calls"]


@contextlib.contextmanager
def autocast_inside(model: torch.nn.Module) -> Iterator[None]:
    """Let the model's forward enter the autocast that is on around it, and nothing else be under it.

    torch.export records what ``forward`` enters; of what is on around it, it takes the results and not the casts.
    """
    forward = model.forward
    for device, dtype in active_autocasts():
        forward = _under(forward, device, dtype)
    if forward == model.forward:
        yield
        return
    with without_autocast(), replaced_forward(model, forward):
        yield


def _under(forward: Callable[..., Any], device: str, dtype: torch.dtype) -> Callable[..., Any]:
    @functools.wraps(forward)
    def under_autocast(*args: Any, **kwargs: Any) -> Any:
        with torch.autocast(device, dtype=dtype):
            return forward(*args, **kwargs)

    return under_autocast


def cast_inside_calls(graph_module: torch.fx.GraphModule) -> None:
    """Take calls apart, in place, of which autocast casts a part, as the ``bmm`` of einsum.

    torch decomposes a captured region without such casts.
    """
    for module in list(graph_module.modules()):
        if not isinstance(module, torch.fx.GraphModule):
            continue
        for region in module.graph.find_nodes(
            op="call_function", target=torch.ops.higher_order.wrap_with_autocast, sort=False
        ):
            device, dtype, enabled, _, body = region.args[:5]
            if enabled:
                _cast_inside(getattr(module, body.target), device, dtype)


def _cast_inside(body: torch.fx.GraphModule, device: str, dtype: torch.dtype | None) -> None:
    for node in [node for node in body.graph.nodes if node.op == "call_function"]:
        overload = node.target
        if not isinstance(overload, torch._ops.OpOverload) or not is_composite(overload):
            continue
        if has_autocast_kernel(overload, device) or overload._schema.is_mutable:
            continue
        leaves, structure = pytree.tree_flatten((node.args, node.kwargs))
        operands = [leaf for leaf in leaves if isinstance(leaf, torch.fx.Node)]
        fakes = [operand.meta["val"] for operand in operands]

        def call(*values: Any, overload: Any = overload, leaves: Any = leaves, structure: Any = structure) -> Any:
            given = iter(values)
            filled = [next(given) if isinstance(leaf, torch.fx.Node) else leaf for leaf in leaves]
            args, kwargs = pytree.tree_unflatten(filled, structure)
            return overload(*args, **kwargs)

        mode = next((mode for fake in fakes if (mode := fake_mode_of(fake)) is not None), contextlib.nullcontext())
        with mode, torch.autocast(device, dtype=dtype, cache_enabled=False):
            pieces = trace_graph(call, fakes, whole=False)
        if pieces.graph.find_nodes(op="call_function", target=torch.ops.aten._to_copy.default):
            _inline(body.graph, node, operands, pieces.graph)
    body.recompile()


def _inline(graph: torch.fx.Graph, node: torch.fx.Node, operands: list[torch.fx.Node], pieces: torch.fx.Graph) -> None:
    copies: dict[torch.fx.Node, torch.fx.Node] = dict(zip(pieces.find_nodes(op="placeholder"), operands, strict=True))
    known = set(copies.values())
    with graph.inserting_before(node):
        result = graph.graph_copy(pieces, copies)
    for new in set(copies.values()) - known:
        new.meta.update({key: node.meta[key] for key in ("stack_trace", "nn_module_stack") if key in node.meta})
    if isinstance(result, torch.fx.Node):
        node.replace_all_uses_with(result)
    else:
        for part in list(node.users):
            part.replace_all_uses_with(cast(Any, result)[part.args[1]])
            graph.erase_node(part)
    graph.erase_node(node)
