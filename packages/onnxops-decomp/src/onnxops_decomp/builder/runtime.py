"""What a builder knows of the runtime that its models are made for."""

from __future__ import annotations

import dataclasses
import enum
from collections.abc import Callable, Mapping, Sequence
from typing import Protocol

import onnx_ir as ir

__all__ = ["ComputeDtype", "Deviation", "OwnForm", "Runtime"]

# Called as ``form(op, *inputs, **attributes)`` with the operands of the newest form and a builder that takes such
# calls. It returns the one output, or None where the runtime's operator is not exactly the same.
OwnForm = Callable[..., ir.Value | None]

# Called as ``prepare(op, op_type, operands, attributes)``.
Preparation = Callable[..., None]

# Called as ``refusal(domain, op_type, inputs, attributes)``.
Refusal = Callable[[str, str, Sequence[object], Mapping[str, object]], str]


class ComputeDtype(Protocol):
    """The dtype to compute in instead of ``dtype``, or None if ``dtype`` itself is right."""

    def __call__(
        self, op_type: str, type_key: str, dtype: ir.DataType, *, widen_bfloat16: bool = False
    ) -> ir.DataType | None:
        """Return the dtype for a type variable of an operator of the default domain."""


class Deviation(enum.Enum):
    """Where a runtime computes something else than the specification says, so that another form is written.

    Forms of more than one operator ask for these; what concerns the operands of one is prepared by the runtime.
    """

    BINS_AS_GIVEN = "the inverse DFT of half a spectrum counts the bins that it gets, whatever its length says"
    EMPTY_EINSUM = "Einsum may end the process where a size is 0"
    EMPTY_GEMM = "Gemm ignores beta where the inner size is 0"
    EMPTY_NORMALIZATION = "normalizations fail where there are no elements"
    EMPTY_SIGNAL = "DFT fails, or ends the process, where it lengthens an axis of size 0"
    EMPTY_PRODUCT = "products may stay unwritten where the inner size is 0, and broadcast nothing to a batch of 0"
    HALF_AFFINE_GRID = "AffineGrid of FLOAT16 fails for a batch of 1 at opset 20"
    NAN_BESIDE_INFINITY = "ReduceLogSumExp of NaN and infinity is infinity"
    RESIZED_AXES = "a Transpose is moved over a Resize as if its sizes were those of all dimensions"
    ROUGH_SPECTRUM = "DFT of FLOAT has only about 4 right digits at lengths that are not powers of two"


@dataclasses.dataclass(frozen=True, eq=False)
class Runtime:
    """A runtime, as far as the builder has to know it.

    Attributes:
        compute_dtype: Stand-ins for dtypes that the specification allows and the runtime has no kernel for.
        no_kernel: By operator the first and the last opset at which the runtime cannot run it at all.
        own_forms: How operators of the default domain are written with the runtime's own, for models that may use
            them.
        prepare: Given the builder, an operator, its bound operands and its attributes, replaces in place those
            operands that the runtime gets wrong.
        refusal: Says why the runtime cannot be given a call of one of its own operators; an empty text if it can.
        least_outputs: How many outputs such a call must have, by operator, where some could be left out.
        passes: What is done to a finished model, so that the runtime's own rewriting of it stays right.
        deviations: What it computes otherwise than the specification says.
        no_doubles: By operator the opset from which it takes doubles, which the specification allows; None if at none.
    """

    compute_dtype: ComputeDtype
    no_kernel: Mapping[str, tuple[int, int]]
    own_forms: Mapping[str, OwnForm]
    prepare: Preparation
    refusal: Refusal
    least_outputs: Mapping[str, int]
    passes: tuple[type[ir.passes.InPlacePass], ...] = ()
    deviations: frozenset[Deviation] = frozenset()
    no_doubles: Mapping[str, int | None] = dataclasses.field(default_factory=dict)
