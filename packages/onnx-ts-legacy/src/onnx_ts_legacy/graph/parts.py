"""The parts of TorchScript graphs and blocks, as lists.

torch's own iterators end with an exception in C++, which takes as long as converting a node: none is run to its end
here.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice
from typing import Any

from onnxops_decomp.exporting import AtenTrait, has_aten_trait

__all__ = [
    "all_nodes",
    "block_inputs",
    "block_nodes",
    "block_outputs",
    "is_number_of_trace",
    "mark_number_of_trace",
    "node_blocks",
    "node_branches",
    "node_inputs",
    "node_outputs",
]

# Attribute of nodes that stand for functions of Python.
_NUMBER = "onnxops_number"
_COUNTS_OF_BLOCKS = {"prim::If": 2, "prim::Loop": 1}
# Nearly all nodes of a graph that are no operators.
_WITHOUT_BLOCKS = frozenset(
    f"prim::{name}"
    for name in (
        *("CallFunction", "CallMethod", "Constant", "GetAttr", "SetAttr", "NumToTensor", "RaiseException"),
        *("DictConstruct", "ListConstruct", "ListUnpack", "TupleConstruct", "TupleIndex", "TupleUnpack"),
    )
)


def node_inputs(node: Any) -> list[Any]:
    """Return the operands of a node."""
    return [node.inputsAt(index) for index in range(node.inputsSize())]


def node_outputs(node: Any) -> list[Any]:
    """Return the results of a node."""
    return [node.outputsAt(index) for index in range(node.outputsSize())]


def node_branches(node: Any) -> list[Any]:
    """Return the two blocks of a ``prim::If``."""
    return list(islice(node.blocks(), 2))


def node_blocks(node: Any) -> list[Any]:
    """Return the blocks of a node of any kind."""
    kind = node.kind()
    if kind.startswith("aten::") or kind in _WITHOUT_BLOCKS:
        return []
    return list(islice(node.blocks(), _COUNTS_OF_BLOCKS.get(kind)))


def block_inputs(block: Any) -> list[Any]:
    """Return the parameters of a graph or block."""
    return node_outputs(block.param_node() if hasattr(block, "param_node") else block.paramNode())


def block_outputs(block: Any) -> list[Any]:
    """Return what a graph or block returns."""
    return node_inputs(_return_node(block))


def block_nodes(block: Any) -> list[Any]:
    """Return the nodes of a graph or block, in order."""
    nodes = []
    node = _return_node(block).prev()
    while node.kind() != "prim::Param":
        nodes.append(node)
        node = node.prev()
    return nodes[::-1]


def all_nodes(block: Any) -> Iterator[Any]:
    """Yield the nodes of a graph or block and of the blocks in it, in order."""
    for node in block_nodes(block):
        yield node
        for inner in node_blocks(node):
            yield from all_nodes(inner)


def _return_node(block: Any) -> Any:
    return block.return_node() if hasattr(block, "return_node") else block.returnNode()


def mark_number_of_trace(value: Any) -> None:
    """Let a tensor of a trace be taken for a number of the program, which a function of Python makes of numbers."""
    value.node().i_(_NUMBER, 1)


def is_number_of_trace(value: Any) -> bool:
    """Tell whether a tensor of a trace is a size, or what arithmetic makes of sizes: a number in the program."""
    node = value.node()
    kind = str(node.kind())
    if kind in ("prim::NumToTensor", "aten::size") or node.hasAttribute(_NUMBER):
        return True
    if not has_aten_trait(kind, AtenTrait.ARITHMETIC):
        return False
    tensors = [operand for operand in node_inputs(node) if operand.type().kind() == "TensorType"]
    operands = [operand for operand in tensors if operand.node().kind() != "prim::Constant"]
    return bool(operands) and all(map(is_number_of_trace, operands))
