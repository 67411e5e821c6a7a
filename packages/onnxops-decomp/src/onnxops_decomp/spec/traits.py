"""What holds for an ONNX operator whatever its operands are: one row for each operator."""

from __future__ import annotations

import enum
from collections.abc import Mapping

__all__ = ["Trait", "has_trait", "operators_with"]


class Trait(enum.Flag):
    """A property of an operator of ONNX's own domain.

    Attributes:
        RANDOM: Equal calls give different results.
        BROADCASTS: Operands of several shapes meet element by element.
        REDUCES: Folds axes into one element each; the axes became an input.
        MOVES: Every element of the result is one of the first operand.
        REARRANGES: Moves, and every element of the first operand is in the result.
        RESHAPES: Rearranges, and neither changes the order of the elements nor repeats any.
        ORDERS: Moves or compares elements, so that any dtype which holds them exactly gives the same result.
        COUNTS: The result holds positions or sizes, none of them negative.
        NEGATIVE_AXES: Has taken axes that count from the end since its first version.
    """

    RANDOM = enum.auto()
    BROADCASTS = enum.auto()
    REDUCES = enum.auto()
    MOVES = enum.auto()
    REARRANGES = enum.auto()
    RESHAPES = enum.auto()
    ORDERS = enum.auto()
    COUNTS = enum.auto()
    NEGATIVE_AXES = enum.auto()


_REARRANGES = Trait.MOVES | Trait.REARRANGES
_RESHAPES = _REARRANGES | Trait.RESHAPES
_COMPARES = Trait.BROADCASTS | Trait.ORDERS

_TRAITS: Mapping[str, Trait] = {
    "Add": Trait.BROADCASTS,
    "And": Trait.BROADCASTS,
    "ArgMax": Trait.ORDERS | Trait.COUNTS,
    "ArgMin": Trait.ORDERS | Trait.COUNTS,
    "Bernoulli": Trait.RANDOM,
    "BitShift": Trait.BROADCASTS,
    "BitwiseAnd": Trait.BROADCASTS,
    "BitwiseOr": Trait.BROADCASTS,
    "BitwiseXor": Trait.BROADCASTS,
    "Div": Trait.BROADCASTS,
    "Dropout": Trait.RANDOM,
    "Equal": _COMPARES,
    "Expand": _REARRANGES,
    "Flatten": _RESHAPES,
    "Gather": Trait.MOVES | Trait.NEGATIVE_AXES,
    "Greater": _COMPARES,
    "GreaterOrEqual": _COMPARES,
    "Identity": _RESHAPES,
    "Less": _COMPARES,
    "LessOrEqual": _COMPARES,
    "LpNormalization": Trait.NEGATIVE_AXES,
    "Max": _COMPARES,
    "MaxPool": Trait.ORDERS,
    "Mean": Trait.BROADCASTS,
    "Min": _COMPARES,
    "Mod": Trait.BROADCASTS,
    "Mul": Trait.BROADCASTS,
    "Multinomial": Trait.RANDOM,
    "NonZero": Trait.ORDERS | Trait.COUNTS,
    "OneHot": Trait.NEGATIVE_AXES,
    "Or": Trait.BROADCASTS,
    "PRelu": Trait.BROADCASTS,
    "Pad": Trait.ORDERS,
    "Pow": Trait.BROADCASTS,
    "RandomNormal": Trait.RANDOM,
    "RandomNormalLike": Trait.RANDOM,
    "RandomUniform": Trait.RANDOM,
    "RandomUniformLike": Trait.RANDOM,
    "ReduceL1": Trait.REDUCES,
    "ReduceL2": Trait.REDUCES,
    "ReduceLogSum": Trait.REDUCES,
    "ReduceLogSumExp": Trait.REDUCES,
    "ReduceMax": Trait.REDUCES | Trait.ORDERS,
    "ReduceMean": Trait.REDUCES,
    "ReduceMin": Trait.REDUCES | Trait.ORDERS,
    "ReduceProd": Trait.REDUCES,
    "ReduceSum": Trait.REDUCES,
    "ReduceSumSquare": Trait.REDUCES,
    "Relu": Trait.ORDERS,
    "Reshape": _RESHAPES,
    "Shape": Trait.COUNTS,
    "Slice": Trait.MOVES,
    "Squeeze": _RESHAPES,
    "Sub": Trait.BROADCASTS,
    "Sum": Trait.BROADCASTS,
    "Tile": _REARRANGES,
    "TopK": Trait.ORDERS | Trait.NEGATIVE_AXES,
    "Transpose": _REARRANGES,
    "Unique": Trait.ORDERS,
    "Unsqueeze": _RESHAPES,
    "Where": Trait.BROADCASTS,
    "Xor": Trait.BROADCASTS,
}


def has_trait(op_type: str, trait: Trait, domain: str = "") -> bool:
    """Tell whether an operator has a property; operators of other domains have none."""
    return not domain and trait in _TRAITS.get(op_type, Trait(0))


def operators_with(trait: Trait) -> list[str]:
    """Return the operators that have a property."""
    return [op_type for op_type, traits in _TRAITS.items() if trait in traits]
