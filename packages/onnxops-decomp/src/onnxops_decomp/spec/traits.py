"""What holds for an ONNX operator whatever its operands are: one row for each operator."""

from __future__ import annotations

import enum
import functools
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
        NEVER_NEGATIVE: No real number in the result is negative.
        KEEPS_SHAPE: The result has the shape of the first operand.
        SAME_SHAPES: All results have the same shape.
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
    NEVER_NEGATIVE = enum.auto()
    KEEPS_SHAPE = enum.auto()
    SAME_SHAPES = enum.auto()
    NEGATIVE_AXES = enum.auto()


_REARRANGES = Trait.MOVES | Trait.REARRANGES
_RESHAPES = _REARRANGES | Trait.RESHAPES
_COMPARES = Trait.BROADCASTS | Trait.ORDERS

_TRAITS: Mapping[str, Trait] = {
    "Abs": Trait.KEEPS_SHAPE | Trait.NEVER_NEGATIVE,
    "Acos": Trait.KEEPS_SHAPE,
    "Acosh": Trait.KEEPS_SHAPE,
    "Add": Trait.BROADCASTS,
    "And": Trait.BROADCASTS,
    "ArgMax": Trait.ORDERS | Trait.COUNTS,
    "ArgMin": Trait.ORDERS | Trait.COUNTS,
    "Asin": Trait.KEEPS_SHAPE,
    "Asinh": Trait.KEEPS_SHAPE,
    "Atan": Trait.KEEPS_SHAPE,
    "Atanh": Trait.KEEPS_SHAPE,
    "BatchNormalization": Trait.KEEPS_SHAPE,
    "Bernoulli": Trait.RANDOM | Trait.KEEPS_SHAPE,
    "BitShift": Trait.BROADCASTS,
    "BitwiseAnd": Trait.BROADCASTS,
    "BitwiseNot": Trait.KEEPS_SHAPE,
    "BitwiseOr": Trait.BROADCASTS,
    "BitwiseXor": Trait.BROADCASTS,
    "Cast": Trait.KEEPS_SHAPE,
    "CastLike": Trait.KEEPS_SHAPE,
    "Ceil": Trait.KEEPS_SHAPE,
    "Celu": Trait.KEEPS_SHAPE,
    "Clip": Trait.KEEPS_SHAPE,
    "Cos": Trait.KEEPS_SHAPE,
    "Cosh": Trait.KEEPS_SHAPE,
    "CumProd": Trait.KEEPS_SHAPE,
    "CumSum": Trait.KEEPS_SHAPE,
    "DequantizeLinear": Trait.KEEPS_SHAPE,
    "Div": Trait.BROADCASTS,
    "Dropout": Trait.RANDOM | Trait.KEEPS_SHAPE | Trait.SAME_SHAPES,
    "Elu": Trait.KEEPS_SHAPE,
    "Equal": _COMPARES,
    "Erf": Trait.KEEPS_SHAPE,
    "Exp": Trait.KEEPS_SHAPE | Trait.NEVER_NEGATIVE,
    "Expand": _REARRANGES,
    "Flatten": _RESHAPES,
    "Floor": Trait.KEEPS_SHAPE,
    "Gather": Trait.MOVES | Trait.NEGATIVE_AXES,
    "Gelu": Trait.KEEPS_SHAPE,
    "Greater": _COMPARES,
    "GreaterOrEqual": _COMPARES,
    "GroupNormalization": Trait.KEEPS_SHAPE,
    "HardSigmoid": Trait.KEEPS_SHAPE | Trait.NEVER_NEGATIVE,
    "HardSwish": Trait.KEEPS_SHAPE,
    "Identity": _RESHAPES | Trait.KEEPS_SHAPE,
    "InstanceNormalization": Trait.KEEPS_SHAPE,
    "IsInf": Trait.KEEPS_SHAPE,
    "IsNaN": Trait.KEEPS_SHAPE,
    "LayerNormalization": Trait.KEEPS_SHAPE,
    "LeakyRelu": Trait.KEEPS_SHAPE,
    "Less": _COMPARES,
    "LessOrEqual": _COMPARES,
    "Log": Trait.KEEPS_SHAPE,
    "LogSoftmax": Trait.KEEPS_SHAPE,
    "LpNormalization": Trait.NEGATIVE_AXES,
    "Max": _COMPARES,
    "MaxPool": Trait.ORDERS | Trait.SAME_SHAPES,
    "Mean": Trait.BROADCASTS,
    "Min": _COMPARES,
    "Mish": Trait.KEEPS_SHAPE,
    "Mod": Trait.BROADCASTS,
    "Mul": Trait.BROADCASTS,
    "Multinomial": Trait.RANDOM,
    "Neg": Trait.KEEPS_SHAPE,
    "NonZero": Trait.ORDERS | Trait.COUNTS,
    "Not": Trait.KEEPS_SHAPE,
    "OneHot": Trait.NEGATIVE_AXES,
    "Or": Trait.BROADCASTS,
    "PRelu": Trait.BROADCASTS,
    "Pad": Trait.ORDERS,
    "Pow": Trait.BROADCASTS,
    "QuantizeLinear": Trait.KEEPS_SHAPE,
    "RMSNormalization": Trait.KEEPS_SHAPE,
    "RandomNormal": Trait.RANDOM,
    "RandomNormalLike": Trait.RANDOM | Trait.KEEPS_SHAPE,
    "RandomUniform": Trait.RANDOM,
    "RandomUniformLike": Trait.RANDOM | Trait.KEEPS_SHAPE,
    "Reciprocal": Trait.KEEPS_SHAPE,
    "ReduceL1": Trait.REDUCES | Trait.NEVER_NEGATIVE,
    "ReduceL2": Trait.REDUCES | Trait.NEVER_NEGATIVE,
    "ReduceLogSum": Trait.REDUCES,
    "ReduceLogSumExp": Trait.REDUCES,
    "ReduceMax": Trait.REDUCES | Trait.ORDERS,
    "ReduceMean": Trait.REDUCES,
    "ReduceMin": Trait.REDUCES | Trait.ORDERS,
    "ReduceProd": Trait.REDUCES,
    "ReduceSum": Trait.REDUCES,
    "ReduceSumSquare": Trait.REDUCES | Trait.NEVER_NEGATIVE,
    "Relu": Trait.ORDERS | Trait.KEEPS_SHAPE | Trait.NEVER_NEGATIVE,
    "Reshape": _RESHAPES,
    "RotaryEmbedding": Trait.KEEPS_SHAPE,
    "Round": Trait.KEEPS_SHAPE,
    "ScatterElements": Trait.KEEPS_SHAPE,
    "ScatterND": Trait.KEEPS_SHAPE,
    "Selu": Trait.KEEPS_SHAPE,
    "Shape": Trait.COUNTS,
    "Shrink": Trait.KEEPS_SHAPE,
    "Sigmoid": Trait.KEEPS_SHAPE | Trait.NEVER_NEGATIVE,
    "Sign": Trait.KEEPS_SHAPE,
    "Sin": Trait.KEEPS_SHAPE,
    "Sinh": Trait.KEEPS_SHAPE,
    "Slice": Trait.MOVES,
    "Softmax": Trait.KEEPS_SHAPE | Trait.NEVER_NEGATIVE,
    "Softplus": Trait.KEEPS_SHAPE | Trait.NEVER_NEGATIVE,
    "Softsign": Trait.KEEPS_SHAPE,
    "Sqrt": Trait.KEEPS_SHAPE,
    "Squeeze": _RESHAPES,
    "Sub": Trait.BROADCASTS,
    "Sum": Trait.BROADCASTS,
    "Swish": Trait.KEEPS_SHAPE,
    "Tan": Trait.KEEPS_SHAPE,
    "Tanh": Trait.KEEPS_SHAPE,
    "ThresholdedRelu": Trait.KEEPS_SHAPE,
    "Tile": _REARRANGES,
    "TopK": Trait.ORDERS | Trait.NEGATIVE_AXES,
    "Transpose": _REARRANGES,
    "Trilu": Trait.KEEPS_SHAPE,
    "Unique": Trait.ORDERS,
    "Unsqueeze": _RESHAPES,
    "Where": Trait.BROADCASTS,
    "Xor": Trait.BROADCASTS,
}


@functools.cache
def has_trait(op_type: str, trait: Trait, domain: str = "") -> bool:
    """Tell whether an operator has a property; operators of other domains have none."""
    return not domain and trait in _TRAITS.get(op_type, Trait(0))


def operators_with(trait: Trait) -> list[str]:
    """Return the operators that have a property."""
    return [op_type for op_type, traits in _TRAITS.items() if trait in traits]
