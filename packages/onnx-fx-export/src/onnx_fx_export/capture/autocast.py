"""Autocast, inside a model or around its export: the exported model computes in the dtypes that it has there."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Iterator
from typing import Any, cast

import torch
from torch.utils import _pytree as pytree

from onnx_fx_export.errors import CaptureError
from onnx_fx_export.inputs.examples import replaced_forward
from onnx_fx_export.origin import source_line
from onnxops_core.exporting import active_autocasts, without_autocast
from onnxops_decomp import UnsupportedOperatorError
from onnxops_decomp.exporting import Decomposer, casts_unseen, has_autocast_kernel, is_composite

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
    decomposer, autocasts = Decomposer(), [(device, dtype or torch.get_autocast_dtype(device))]
    for node in [node for node in body.graph.nodes if node.op == "call_function"]:
        overload = node.target
        if not isinstance(overload, torch._ops.OpOverload) or overload._schema.is_mutable:
            continue
        if has_autocast_kernel(overload, device) or not (is_composite(overload) or casts_unseen(overload)):
            continue
        args, kwargs = torch.fx.map_arg((node.args, node.kwargs), lambda operand: operand.meta["val"])
        try:
            pieces = decomposer.decompose_under(autocasts, overload, args, kwargs)
        except UnsupportedOperatorError as error:
            source = source_line(node)
            place = f" at {source}" if source else ""
            raise CaptureError(f"{overload.name()} cannot be converted under torch.autocast{place}: {error}") from error
        if pieces is not None:
            operands = [
                leaf for leaf in pytree.tree_leaves((node.args, node.kwargs)) if isinstance(leaf, torch.fx.Node)
            ]
            _inline(body.graph, node, operands, pieces.graph_module.graph)
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
