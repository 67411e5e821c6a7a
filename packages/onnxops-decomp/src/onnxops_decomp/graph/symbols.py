"""Symbolic dimensions: what torch calls them, and what the model does."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Protocol

import onnx_ir as ir
import sympy
import torch

from onnxops_decomp.spec.inference import Dim, Dims

if TYPE_CHECKING:
    from onnxops_decomp.builder.op_builder import OpBuilder

__all__ = ["SymbolNames", "dimension_symbol"]


def dimension_symbol(name: str) -> sympy.Symbol:
    """Return the symbol that stands for a dimension of that name in expressions."""
    return sympy.Symbol(name, integer=True, nonnegative=True)


class Shaped(Protocol):
    """A tensor, or what describes one."""

    @property
    def shape(self) -> Sequence[int | torch.SymInt]:
        """Its sizes."""


class SymbolNames:
    """Names and expressions of symbolic dimensions, from torch's symbols to those of the model."""

    def __init__(self, op: OpBuilder, renamed: Mapping[sympy.Symbol, sympy.Expr] | None = None) -> None:
        self._op = op
        self._renamed = dict(renamed or {})
        self._dims: dict[sympy.Expr, ir.SymbolicDim] = {}

    def rename(self, symbol: sympy.Symbol, name: str | sympy.Expr) -> None:
        """Call ``symbol`` ``name`` from now on, or write it as an expression in the symbols of dimensions."""
        self._renamed[symbol] = dimension_symbol(name) if isinstance(name, str) else name
        self._dims.clear()

    def renamed(self, expression: sympy.Expr) -> sympy.Expr:
        """Return what the model calls a symbol of torch's, or an expression in them."""
        return expression.xreplace(self._renamed)

    def expression(self, size: torch.SymInt | torch.SymFloat | torch.SymBool) -> sympy.Expr:
        """Return the expression of a symbolic number in the model's symbols."""
        return self.renamed(size.node.expr)

    def dim(self, size: int | torch.SymInt) -> Dim:
        """Return what a size is called in the model's shapes."""
        if isinstance(size, int):
            return size
        raw = size.node.expr
        known = self._dims.get(raw)
        if known is None:
            expression = self.renamed(raw)
            if expression.is_Integer:
                return int(expression)
            text = str(expression)
            known = self._dims[raw] = ir.SymbolicDim(text)
            self._op.context.expressions[text] = expression
        return known

    def dims(self, value: Shaped) -> Dims:
        """Return the dimensions of a fake tensor, or of what stands for one, in the model's names."""
        return tuple(self.dim(size) for size in value.shape)
