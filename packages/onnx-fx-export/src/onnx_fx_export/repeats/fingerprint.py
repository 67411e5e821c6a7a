"""What two runs of fx nodes have in common exactly if they are lowered to the same ONNX nodes."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from types import MappingProxyType
from typing import Any

import onnx_ir as ir
import torch

from onnxops_decomp import OpBuilder
from onnxops_decomp.exporting import dims_of

__all__ = ["marks_of", "nodes_key", "operand_key"]

_MAX_BYTES = 4096


def nodes_key(
    graph_module: torch.fx.GraphModule,
    nodes: Iterable[torch.fx.Node],
    parameters: Sequence[torch.fx.Node] = (),
    results: Any = (),
    written: Mapping[torch.fx.Node, torch.fx.Node] = MappingProxyType({}),
) -> Hashable:
    """Return the structure of some nodes: operators, arguments, and what torch knows of every result.

    Names, source lines and module paths do not count.

    Args:
        graph_module: Owner of the nodes, and of the tensors and graphs that they refer to.
        nodes: The nodes, in order.
        parameters: Nodes outside that they use, in the order in which operands are passed for them.
        results: Nodes that are used elsewhere, in any structure.
        written: For each in-place call, the node that stands for the tensor that it writes to.
    """
    numbers = {node: index for index, node in enumerate(parameters)}

    def number(node: torch.fx.Node) -> int:
        return numbers[written.get(node, node)]

    rows: list[Hashable] = [tuple(_metadata(node.meta.get("val")) for node in parameters)]
    for node in nodes:
        numbers.setdefault(node, len(numbers))
        target: Hashable = None if node.op in ("placeholder", "output") else node.target
        if node.op == "get_attr":
            target = _attribute_key(graph_module, str(node.target))
        rows.append((node.op, target, _argument_key((node.args, node.kwargs), number), _metadata(node.meta.get("val"))))
    return (*rows, _argument_key(results, number))


def operand_key(op: OpBuilder, operand: Any) -> Hashable:
    """Return what the lowering of a function's body can see of an operand that it is called with."""
    if isinstance(operand, ir.Value):
        static = op.static(operand)
        marks = tuple(sorted((key, str(mark)) for key, mark in marks_of(operand).items()))
        contents = None if static is None else (static.shape, static.tobytes())
        dims = dims_of(operand)
        sizes = None if dims is None else tuple(dim if isinstance(dim, int) else dim.value for dim in dims)
        return ("value", operand.dtype, sizes, contents, marks)
    if isinstance(operand, torch.fx.GraphModule):
        return nodes_key(operand, operand.graph.nodes)
    if isinstance(operand, list | tuple):
        return tuple(operand_key(op, item) for item in operand)
    return _constant_key(operand)


def marks_of(value: ir.Value) -> dict[str, Any]:
    """Return what lowerings have noted of a value besides its type and shape: complex, a number, a named size."""
    return {key: mark for key, mark in value.meta.items() if key.startswith("onnxops_decomp.")}


def _attribute_key(graph_module: torch.fx.GraphModule, target: str) -> Hashable:
    found: Any = graph_module
    for part in target.split("."):
        found = getattr(found, part)
    if isinstance(found, torch.fx.GraphModule):
        return nodes_key(found, found.graph.nodes)
    if isinstance(found, torch.Tensor) and found.nbytes <= _MAX_BYTES:
        return (_metadata(found), bytes(found.detach().reshape(-1).contiguous().view(torch.uint8).tolist()))
    return id(found)


def _argument_key(argument: Any, number: Callable[[torch.fx.Node], int]) -> Hashable:
    if isinstance(argument, torch.fx.Node):
        return ("node", number(argument))
    if isinstance(argument, list | tuple):
        return tuple(_argument_key(item, number) for item in argument)
    if isinstance(argument, dict):
        return tuple((name, _argument_key(item, number)) for name, item in sorted(argument.items()))
    if isinstance(argument, slice):
        return ("slice", *(_argument_key(part, number) for part in (argument.start, argument.stop, argument.step)))
    return _constant_key(argument)


def _constant_key(value: Any) -> Hashable:
    # 1, 1.0 and True are equal to each other but not to an operator; -0.0 and 0.0 differ too.
    return (type(value).__name__, repr(value))


def _metadata(val: Any) -> Hashable:
    if isinstance(val, torch.Tensor):
        sizes = tuple(map(_size_key, val.shape))
        if val.layout is not torch.strided:
            return (val.dtype, sizes, val.layout)
        return (val.dtype, sizes, tuple(map(_size_key, val.stride())), _size_key(val.storage_offset()))
    if isinstance(val, torch.SymInt | torch.SymFloat | torch.SymBool):
        return _size_key(val)
    if isinstance(val, list | tuple):
        return tuple(map(_metadata, val))
    return _constant_key(val)


def _size_key(size: Any) -> Hashable:
    return size if isinstance(size, int) else size.node.expr
