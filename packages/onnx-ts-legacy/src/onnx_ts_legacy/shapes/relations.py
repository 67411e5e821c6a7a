"""What relations between sizes say of the sizes."""

from __future__ import annotations

import sympy

__all__ = ["equations"]


def equations(relation: sympy.Basic | None, truth: bool) -> dict[sympy.Basic, sympy.Basic]:
    """Return the symbols that a relation of this truth makes equal to numbers."""
    match relation:
        case sympy.Not():
            return equations(relation.args[0], not truth)
        case sympy.And() if truth:
            return {symbol: number for part in relation.args for symbol, number in equations(part, True).items()}
        case sympy.Or() if not truth:
            return {symbol: number for part in relation.args for symbol, number in equations(part, False).items()}
        case sympy.Eq() | sympy.Ne() if isinstance(relation, sympy.Eq) is truth:
            symbols = [side for side in relation.args if side.is_Symbol]
            numbers = [side for side in relation.args if side.is_Integer]
            return dict(zip(symbols, numbers, strict=True)) if len(symbols) == len(numbers) == 1 else {}
    return {}
