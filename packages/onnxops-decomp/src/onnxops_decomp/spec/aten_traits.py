"""What holds for an ATen operator whichever overload is called and whatever its operands are: one row for each."""

from __future__ import annotations

import enum
from collections.abc import Mapping

import torch

__all__ = ["AtenTrait", "aten_operators_with", "has_aten_trait"]


class AtenTrait(enum.Flag):
    """A property of an ATen operator that its schema does not tell.

    Attributes:
        FRESH: Composite, and always computes a new tensor. Other composite operators may hand an operand through, as
            dropout does in evaluation.
        DROPOUT: Drops elements at random if its last argument is true, and hands its operand through otherwise.
        STATISTICS: With a true argument 5, writes running statistics to its arguments 3 and 4.
        RESHAPES: Gives the elements of its operand in the same order, in another shape.
        MAY_COPY: Copies its operand where no view has the wanted shape, and gives a view elsewhere.
        PERMUTES: Gives the elements of its operand with its dimensions in another order.
        CONJUGATES: Conjugates complex numbers.
        ARITHMETIC: Computes a number of each number of its operands, as the operators of Python do.
    """

    FRESH = enum.auto()
    DROPOUT = enum.auto()
    STATISTICS = enum.auto()
    RESHAPES = enum.auto()
    MAY_COPY = enum.auto()
    PERMUTES = enum.auto()
    CONJUGATES = enum.auto()
    ARITHMETIC = enum.auto()


_FRESH, _RESHAPES, _PERMUTES = AtenTrait.FRESH, AtenTrait.RESHAPES, AtenTrait.PERMUTES
_COPIES = _RESHAPES | AtenTrait.MAY_COPY
_STATISTICS, _DROPOUT, _ARITHMETIC = AtenTrait.STATISTICS, AtenTrait.DROPOUT, AtenTrait.ARITHMETIC

_TRAITS: Mapping[str, AtenTrait] = {
    "__and__": _ARITHMETIC,
    "__lshift__": _ARITHMETIC,
    "__or__": _ARITHMETIC,
    "__rshift__": _ARITHMETIC,
    "__xor__": _ARITHMETIC,
    "_batch_norm_impl_index": _STATISTICS,
    "_conj": AtenTrait.CONJUGATES,
    "_reshape_alias": _RESHAPES,
    "_unsafe_view": _RESHAPES,
    "abs": _ARITHMETIC,
    "adaptive_avg_pool1d": _FRESH,
    "adaptive_avg_pool2d": _FRESH,
    "adaptive_avg_pool3d": _FRESH,
    "adaptive_max_pool1d": _FRESH,
    "add": _ARITHMETIC,
    "adjoint": _PERMUTES | AtenTrait.CONJUGATES,
    "alpha_dropout": _DROPOUT,
    "atleast_1d": _RESHAPES,
    "atleast_2d": _RESHAPES,
    "atleast_3d": _RESHAPES,
    "avg_pool1d": _FRESH,
    "batch_norm": _FRESH | _STATISTICS,
    "bilinear": _FRESH,
    "bitwise_and": _ARITHMETIC,
    "bitwise_not": _ARITHMETIC,
    "bitwise_or": _ARITHMETIC,
    "bitwise_xor": _ARITHMETIC,
    "ceil": _ARITHMETIC,
    "conj": AtenTrait.CONJUGATES,
    "contiguous": AtenTrait.MAY_COPY,
    "conv1d": _FRESH,
    "conv2d": _FRESH,
    "conv3d": _FRESH,
    "conv_transpose1d": _FRESH,
    "conv_transpose2d": _FRESH,
    "conv_transpose3d": _FRESH,
    "cosine_similarity": _FRESH,
    "cross_entropy_loss": _FRESH,
    "cudnn_batch_norm": _STATISTICS,
    "div": _ARITHMETIC,
    "dropout": _DROPOUT,
    "embedding_bag": _FRESH,
    "eq": _ARITHMETIC,
    "feature_alpha_dropout": _DROPOUT,
    "feature_dropout": _DROPOUT,
    "flatten": _COPIES,
    "floor": _ARITHMETIC,
    "floor_divide": _ARITHMETIC,
    "floordiv": _ARITHMETIC,
    "ge": _ARITHMETIC,
    "group_norm": _FRESH,
    "gru": _FRESH,
    "gt": _ARITHMETIC,
    "instance_norm": _FRESH | _STATISTICS,
    "layer_norm": _FRESH,
    "le": _ARITHMETIC,
    "linear": _FRESH,
    "log_softmax": _FRESH,
    "logical_not": _ARITHMETIC,
    "lstm": _FRESH,
    "lt": _ARITHMETIC,
    "mH": _PERMUTES | AtenTrait.CONJUGATES,
    "mT": _PERMUTES,
    "matmul": _FRESH,
    "max_pool1d": _FRESH,
    "max_pool2d": _FRESH,
    "max_pool3d": _FRESH,
    "miopen_batch_norm": _STATISTICS,
    "moveaxis": _PERMUTES,
    "movedim": _PERMUTES,
    "mul": _ARITHMETIC,
    "native_batch_norm": _STATISTICS,
    "ne": _ARITHMETIC,
    "neg": _ARITHMETIC,
    "numpy_T": _PERMUTES,
    "outer": _FRESH,
    "permute": _PERMUTES,
    "pow": _ARITHMETIC,
    "ravel": _COPIES,
    "reciprocal": _ARITHMETIC,
    "relu6": _FRESH,
    "remainder": _ARITHMETIC,
    "reshape": _COPIES,
    "reshape_as": _COPIES,
    "rms_norm": _FRESH,
    "rnn_relu": _FRESH,
    "rnn_tanh": _FRESH,
    "round": _ARITHMETIC,
    "rsub": _ARITHMETIC,
    "scaled_dot_product_attention": _FRESH,
    "selu": _FRESH,
    "softmax": _FRESH,
    "squeeze": _RESHAPES,
    "std": _FRESH,
    "sub": _ARITHMETIC,
    "swapaxes": _PERMUTES,
    "swapdims": _PERMUTES,
    "t": _PERMUTES,
    "transpose": _PERMUTES,
    "true_divide": _FRESH,
    "trunc": _ARITHMETIC,
    "unflatten": _RESHAPES,
    "unsqueeze": _RESHAPES,
    "upsample_bicubic2d": _FRESH,
    "upsample_bilinear2d": _FRESH,
    "upsample_linear1d": _FRESH,
    "upsample_nearest1d": _FRESH,
    "upsample_nearest2d": _FRESH,
    "upsample_nearest3d": _FRESH,
    "upsample_trilinear3d": _FRESH,
    "var": _FRESH,
    "view": _RESHAPES,
    "view_as": _RESHAPES,
}
# Asked for each node of a graph.
_NAMES = {trait: {name: None for name, traits in _TRAITS.items() if trait in traits} for trait in AtenTrait}


def has_aten_trait(operator: object, trait: AtenTrait) -> bool:
    """Tell whether an operator has a property; what is no operator of ATen has none.

    Args:
        operator: An overload, or the name of an operator without that of an overload, as ``aten::add``.
        trait: The property.
    """
    schema_name = operator._schema.name if isinstance(operator, torch._ops.OpOverload) else str(operator)
    namespace, _, name = schema_name.partition("::")
    return namespace == "aten" and name in _NAMES[trait]


def aten_operators_with(trait: AtenTrait) -> list[str]:
    """Return the operators that have a property, as ``aten::add``."""
    return [f"aten::{name}" for name in _NAMES[trait]]
