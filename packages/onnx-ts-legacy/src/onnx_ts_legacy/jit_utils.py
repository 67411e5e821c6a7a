"""What published symbolics import as ``jit_utils``: the context of a call, and nodes with blocks."""

from __future__ import annotations

from typing import Any

from onnx_ts_legacy.errors import ArgumentsError
from onnx_ts_legacy.symbolics.graph_context import GraphContext

__all__ = ["GraphContext", "add_op_with_blocks", "is_aten", "is_onnx", "is_prim", "parse_node_kind"]


def add_op_with_blocks(
    graph_context: GraphContext, opname: str, *inputs: Any, outputs: int = 1, n_blocks: int = 1, **attributes: Any
) -> tuple[Any, tuple[GraphContext, ...], Any]:
    """Write an If or Loop, whose blocks are filled through the contexts that are returned.

    Args:
        graph_context: Context of the call.
        opname: ``"If"`` or ``"Loop"``.
        inputs: Operands.
        outputs: How many outputs are wanted.
        n_blocks: How many blocks the node has: 2 of If, 1 of Loop.
        attributes: Attributes, as :meth:`GraphContext.op` takes them.

    Returns:
        The output, or a tuple if several are wanted; the contexts of the blocks; the node. The outputs can be used
        when the blocks are complete.
    """
    values = graph_context.op(opname, *inputs, outputs=outputs, **attributes)
    node = (values[0] if isinstance(values, tuple) else values).node()
    return values, tuple(node.addBlock() for _ in range(n_blocks)), node


def parse_node_kind(kind: str) -> tuple[str, str]:
    """Split the kind of a node into domain and operator.

    Raises:
        ArgumentsError: If it is not of the form ``domain::operator``.
    """
    parts = kind.split("::")
    if len(parts) != 2:
        raise ArgumentsError(f"The kind of a node is domain::operator, got {kind!r}.")
    return parts[0], parts[1]


def is_aten(domain: str) -> bool:
    """Tell whether a domain is that of ATen."""
    return domain == "aten"


def is_prim(domain: str) -> bool:
    """Tell whether a domain is that of TorchScript's own operators."""
    return domain == "prim"


def is_onnx(domain: str) -> bool:
    """Tell whether a domain is that of ONNX."""
    return domain == "onnx"
