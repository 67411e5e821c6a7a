"""How the symbols of dynamic sizes are computed from the shapes that the runtime sees."""

from __future__ import annotations

from functools import partial
from typing import Any

import onnx_ir as ir
import sympy
import torch

from onnxops_decomp import OpBuilder
from onnxops_decomp.exporting import ModelContext, SymbolSource, axis_size, number_as_size

__all__ = ["define_new_symbols", "define_symbol"]


def define_symbol(context: ModelContext, expression: sympy.Expr, source: SymbolSource) -> None:
    """Note how a symbol is computed from a size that depends on it alone and linearly, if nothing gives it yet.

    Args:
        context: State of the graph for which the symbol is defined.
        expression: The size in symbols of the model.
        source: Emits the size as an INT64 vector of one element.
    """
    symbols = list(expression.free_symbols)
    if len(symbols) != 1 or str(symbols[0]) in context.symbols:
        return
    symbol = symbols[0]
    slope = sympy.diff(expression, symbol) if expression.is_polynomial(symbol) else None
    if slope is None or not slope.is_Integer or slope == 0:
        return
    offset = int(expression.subs(symbol, 0))
    context.symbols[str(symbol)] = partial(_solved, source, offset, int(slope))


def define_new_symbols(context: ModelContext, val: Any, value: Any) -> None:
    """Note how symbols that stand for sizes that data decides are read from a computed value.

    Args:
        context: State of the graph in which the value is.
        val: What torch says of it: a fake tensor or symbolic number, or a sequence of them.
        value: The value, in the same structure.
    """
    if isinstance(val, list | tuple) and isinstance(value, list | tuple):
        for part, of_part in zip(val, value, strict=False):
            define_new_symbols(context, part, of_part)
    elif isinstance(val, torch.SymInt) and val.node.expr.is_Symbol and isinstance(value, ir.Value):
        context.symbols.setdefault(str(val.node.expr), partial(number_as_size, value))
    elif isinstance(val, torch.Tensor) and isinstance(value, ir.Value):
        for axis, size in enumerate(val.shape):
            if isinstance(size, torch.SymInt) and size.node.expr.is_Symbol:
                context.symbols.setdefault(str(size.node.expr), partial(axis_size, value, axis))


def _solved(source: SymbolSource, offset: int, slope: int, op: OpBuilder) -> ir.Value:
    """Return the symbol s for which ``slope * s + offset`` is the size that ``source`` gives."""
    size = source(op)
    shifted = op.Sub(size, [offset]) if offset else size
    return shifted if slope == 1 else op.Div(shifted, [slope])
