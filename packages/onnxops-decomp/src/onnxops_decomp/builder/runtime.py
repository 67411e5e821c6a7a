"""What a builder knows of the runtime that its models are made for."""

from __future__ import annotations

import dataclasses
import functools
import importlib
from collections.abc import Callable, Mapping, Sequence
from typing import Protocol, cast

import onnx_ir as ir

__all__ = ["ComputeDtype", "OwnForm", "Runtime", "default_runtime"]

# Called as ``form(op, *inputs, **attributes)`` with the operands of the newest form and a builder that takes such
# calls. It returns the one output, or None where the runtime's operator is not exactly the same.
OwnForm = Callable[..., ir.Value | None]

# Called as ``prepare(op, op_type, operands)``.
Preparation = Callable[..., None]

# Called as ``refusal(op_type, inputs, attributes)``.
Refusal = Callable[[str, Sequence[object], Mapping[str, object]], str]


class ComputeDtype(Protocol):
    """The dtype to compute in instead of ``dtype``, or None if ``dtype`` itself is right."""

    def __call__(
        self, op_type: str, type_key: str, dtype: ir.DataType, *, widen_bfloat16: bool = False
    ) -> ir.DataType | None:
        """Return the dtype for a type variable of an operator of the default domain."""


@dataclasses.dataclass(frozen=True, eq=False)
class Runtime:
    """A runtime, as far as the builder has to know it.

    Attributes:
        compute_dtype: Stand-ins for dtypes that the specification allows and the runtime has no kernel for.
        no_kernel: By operator the first and the last opset at which the runtime cannot run it at all.
        own_forms: How operators of the default domain are written with the runtime's own, for models that may use
            them.
        prepare: Given the builder, an operator and its bound operands, replaces in place those that the runtime gets
            wrong.
        refusal: Says why the runtime cannot be given a call of one of its own operators; an empty text if it can.
        least_outputs: How many outputs such a call must have, by operator, where some could be left out.
        passes: What is done to a finished model, so that the runtime's own rewriting of it stays right.
    """

    compute_dtype: ComputeDtype
    no_kernel: Mapping[str, tuple[int, int]]
    own_forms: Mapping[str, OwnForm]
    prepare: Preparation
    refusal: Refusal
    least_outputs: Mapping[str, int]
    passes: tuple[type[ir.passes.InPlacePass], ...] = ()


@functools.cache
def default_runtime() -> Runtime:
    """Return ONNX Runtime on the CPU; it is found by name, because it writes its compositions with the builder."""
    return cast(Runtime, importlib.import_module("onnxops_decomp.runtimes.onnxruntime.runtime").ONNXRUNTIME)
