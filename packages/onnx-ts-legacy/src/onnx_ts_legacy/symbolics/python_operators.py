"""``prim::PythonOp``: calls of ``torch.autograd.Function`` in traced programs."""

from __future__ import annotations

import inspect
from collections.abc import Sequence
from typing import Any

from onnx_ts_legacy.state.context import ConversionContext
from onnx_ts_legacy.state.values import Tensor
from onnx_ts_legacy.symbolics.graph_context import GraphContext, run_symbolic
from onnxops_decomp import UnsupportedOperatorError

__all__ = ["SymbolicContext", "convert_python_operator"]


class SymbolicContext:
    """First argument of symbolics that are written as ``symbolic(ctx, g, ...)``.

    Attributes:
        cur_node: The TorchScript node.
        params_dict: Kept for compatibility; empty.
        env: Kept for compatibility; empty.
        onnx_block: Kept for compatibility; the graph context.
    """

    def __init__(self, g: GraphContext) -> None:
        self.cur_node = g.original_node
        self.params_dict: dict[str, Any] = {}
        self.env: dict[Any, Any] = {}
        self.onnx_block = g


def convert_python_operator(context: ConversionContext, node: Any, args: Sequence[Any]) -> Any:
    """Convert a call of an ``autograd.Function``.

    Its static ``symbolic`` method is used if it has one, then a symbolic registered for ``prim::PythonOp``, then what
    its ``forward`` does.

    Raises:
        UnsupportedOperatorError: If there is none of them.
    """
    with context.op.origin(operator=f"prim::PythonOp {node.pyname()}"):
        symbolic = getattr(getattr(node.pyobj(), "__self__", None), "symbolic", None)
        arguments, plain = _all_arguments(node, args), [i for i, kind in enumerate(node.cconv()) if kind != "d"]
        if symbolic is not None and callable(symbolic):
            return run_symbolic(context, node, arguments, _with_context(symbolic), plain=plain)
        registered = context.custom("prim::PythonOp")
        if registered is not None:
            name = str(node.pyname())
            return run_symbolic(context, node, arguments, lambda g, *rest: registered(g, *rest, name=name), plain=plain)
        if context.inlines_python and node.hasAttribute("Subgraph"):
            return _inlined(context, node, args)
    raise UnsupportedOperatorError(
        "it is a Python function without a symbolic method", operator=f"prim::PythonOp {node.pyname()}"
    )


def _all_arguments(node: Any, tensors: Sequence[Any]) -> list[Any]:
    """Put tensors and Python arguments in the order of the call."""
    given, plain = iter(tensors), iter(node.scalar_args())
    return [next(given) if kind == "d" else next(plain) for kind in node.cconv()]


def _with_context(symbolic: Any) -> Any:
    parameters = list(inspect.signature(symbolic).parameters)
    if len(parameters) > 1 and parameters[0] == "ctx":
        return lambda g, *args: symbolic(SymbolicContext(g), g, *args)
    return symbolic


def _inlined(context: ConversionContext, node: Any, args: Sequence[Any]) -> Any:
    # The numbers of variables repeat across such graphs.
    outer, context.env = context.env, {}
    try:
        with context.heap.watching() as written:
            results = context.run_block(node.g("Subgraph"), args)
    finally:
        context.env = outer
    if any(isinstance(arg, Tensor) and arg.storage in written for arg in args):
        # The trace holds such a write a second time, around the call.
        raise UnsupportedOperatorError(
            "its forward changes its argument in place, which a trace does not record faithfully; let it return a "
            "new tensor, or give it a symbolic method",
            operator=f"prim::PythonOp {node.pyname()}",
        )
    return results[0] if len(results) == 1 else tuple(results)
