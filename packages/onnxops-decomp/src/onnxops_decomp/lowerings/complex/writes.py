"""Complex forms of operators that write into a tensor, pick by a mask, or make new tensors."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import onnx_ir as ir
import torch

from onnxops_decomp.dtypes import is_complex, mark_complex
from onnxops_decomp.errors import LoweringError
from onnxops_decomp.lowerings.complex.functions import power
from onnxops_decomp.lowerings.complex.numbers import add, bare, complex_operands, joined, mul
from onnxops_decomp.lowerings.complex.structure import builtin_function, created, matmul, partwise
from onnxops_decomp.lowerings.pointwise.conversions import as_complex, complex_truth, type_as
from onnxops_decomp.lowerings.registry import PLACEMENT_ARGUMENTS, Function, lowering

if TYPE_CHECKING:
    from collections.abc import Sequence

    from onnxops_decomp.builder.op_builder import OpBuilder
    from onnxops_decomp.builder.sizes import Size
    from onnxops_decomp.dtypes import Operand

aten = torch.ops.aten


def _with_numbers(name: str, *positions: int) -> Function:
    """Lowering of an operator that is linear in its tensor and the numbers at ``positions``."""
    by_parts = partwise(name)

    def apply(op: OpBuilder, *args: Any, **kwargs: Any) -> Any:
        arguments = list(args)
        for position in positions:
            value = arguments[position]
            # A real one has an imaginary part among complex ones, which is 0.
            arguments[position] = as_complex(op, value) if isinstance(value, ir.Value) else complex(value)
        kwargs = {key: value for key, value in kwargs.items() if key not in PLACEMENT_ARGUMENTS}
        return by_parts(op, *arguments, **kwargs)

    return apply


# Each is linear in all its complex operands together: what goes where depends on indices and masks alone.
for _name in (
    "_unsafe_index_put",
    "_unsafe_masked_index_put_accumulate",
    "combinations",
    "index_add",
    "index_copy",
    "index_put",
    "index_put.hacked_twin",
    "masked_scatter",
    "masked_select",
    "put",
    "scatter.src",
    "scatter_add",
    "take",
    "tensor_split.indices",
    "tensor_split.sections",
    "tensor_split.tensor_indices_or_sections",
):
    lowering(f"aten::{_name}", complex=True)(partwise(f"aten::{_name}"))


def _in_dtype_of_target(name: str) -> Function:
    """Lowering of an operator that writes tensors of any dtype: a real one has an imaginary part, which is 0."""
    function = builtin_function(name)
    by_parts = partwise(name)

    def apply(op: OpBuilder, self: ir.Value, src: ir.Value, *args: Any, **kwargs: Any) -> Any:
        source = type_as(op, src, self)
        return (by_parts if is_complex(self) else function)(op, self, source, *args, **kwargs)

    return apply


for _name in ("copy", "diagonal_scatter", "select_scatter", "slice_scatter"):
    lowering(f"aten::{_name}", complex=True)(_in_dtype_of_target(f"aten::{_name}"))
for _name, _position in (
    ("_unsafe_masked_index", 3),
    ("fill.Scalar", 1),
    ("fill.Tensor", 1),
    ("index_fill.int_Scalar", 3),
    ("index_fill.int_Tensor", 3),
    ("scatter.value", 3),
):
    lowering(f"aten::{_name}", complex=True)(_with_numbers(f"aten::{_name}", _position))
for _name in ("linspace", "linspace.Tensor_Tensor", "linspace.Tensor_Scalar", "linspace.Scalar_Tensor"):
    lowering(f"aten::{_name}", complex=True)(_with_numbers(f"aten::{_name}", 0, 1))


def _of_sums(function: Function) -> Function:
    """Lowering of a scatter that combines elements: by its function for the real and imaginary parts, if it adds."""

    def apply(op: OpBuilder, *args: Any, reduce: str | None = None, **kwargs: Any) -> Any:
        reduction = reduce or args[-1]
        if reduction not in ("add", "sum", "mean"):
            raise LoweringError(
                f"ONNX cannot multiply complex elements that meet in one place, as {reduction!r} of a complex tensor "
                "needs; scatter their logarithms with 'sum' and take the exponential, or scatter one at a time."
            )
        return function(op, *args, **({} if reduce is None else {"reduce": reduce}), **kwargs)

    return apply


lowering(aten.scatter.reduce, complex=True)(_of_sums(partwise("aten::scatter.reduce")))
lowering(aten.scatter.value_reduce, complex=True)(_of_sums(_with_numbers("aten::scatter.value_reduce", 3)))
lowering(aten.scatter_reduce.two, complex=True)(_of_sums(partwise("aten::scatter_reduce.two")))


@lowering(aten.meshgrid.default, aten.meshgrid.indexing, complex=True)
def meshgrid(op: OpBuilder, tensors: Sequence[ir.Value], *, indexing: str = "ij") -> list[ir.Value]:
    operands = complex_operands(op, *tensors)
    grid: list[ir.Value] = partwise("aten::meshgrid.indexing")(op, operands, indexing=indexing)
    return grid


@lowering(aten._assert_tensor_metadata.default, complex=True)
def assert_tensor_metadata(op: OpBuilder, *args: object, **kwargs: object) -> None:
    return None


# ---- by what is not zero


def _truth(op: OpBuilder, value: ir.Value) -> ir.Value:
    return complex_truth(op, value) if is_complex(value) else value


def _of_truths(name: str) -> Function:
    """Lowering of an operator to which a number only is zero or is not."""

    def apply(op: OpBuilder, *args: Any, **kwargs: Any) -> Any:
        return builtin_function(name)(op, *(_truth(op, arg) for arg in args), **kwargs)

    return apply


for _name in (
    "all",
    "all.dim",
    "all.dims",
    "any",
    "any.dim",
    "any.dims",
    "argwhere",
    "count_nonzero",
    "count_nonzero.dim_IntList",
    "logical_and",
    "logical_or",
    "logical_xor",
    "nonzero",
    "nonzero_numpy",
    "nonzero_static",
):
    lowering(f"aten::{_name}", complex=True)(_of_truths(f"aten::{_name}"))


# ---- products


@lowering(aten.addbmm.default, complex=True)
def addbmm(
    op: OpBuilder, self: ir.Value, batch1: ir.Value, batch2: ir.Value, *, beta: Operand = 1, alpha: Operand = 1
) -> ir.Value:
    total = mark_complex(op.ReduceSum(matmul(op, batch1, batch2), [0], keepdims=0))
    scaled = total if alpha == 1 else mul(op, total, alpha)
    if beta == 0:
        return mark_complex(op.expand(scaled, op.sizes(scaled)))
    return add(op, self if beta == 1 else mul(op, self, beta), scaled)


# ---- new tensors

for _name in ("eye.m", "empty_permuted", "empty_strided", "new_empty_strided"):
    lowering(f"aten::{_name}", complex=True)(created(f"aten::{_name}"))


@lowering(
    aten.logspace.default,
    aten.logspace.Tensor_Tensor,
    aten.logspace.Tensor_Scalar,
    aten.logspace.Scalar_Tensor,
    complex=True,
)
def logspace(
    op: OpBuilder, start: Operand, end: Operand, steps: Size, base: float = 10.0, *, dtype: torch.dtype | None = None
) -> ir.Value:
    return power(op, base, _with_numbers("aten::linspace", 0, 1)(op, start, end, steps, dtype=dtype))


def _random(name: str, scale: float) -> Function:
    """Lowering of a generator of numbers whose parts are drawn one by one."""

    def apply(op: OpBuilder, *args: Any, dtype: torch.dtype | None = None) -> ir.Value:
        arguments = [op.Gather(arg, 0, axis=-1) if is_complex(arg) else arg for arg in args]
        if dtype is not None and not dtype.is_complex:
            return bare(op, builtin_function(name)(op, *arguments, dtype=dtype))
        real = None if dtype is None else dtype.to_real()
        drawn = [builtin_function(name)(op, *arguments, dtype=real) for _ in range(2)]
        return joined(op, *(part if scale == 1 else op.Mul(part, scale) for part in drawn))

    return apply


for _name, _scale in (("rand", 1.0), ("rand_like", 1.0), ("randn", math.sqrt(0.5)), ("randn_like", math.sqrt(0.5))):
    for _overload in (_name, f"{_name}.generator"):
        lowering(f"aten::{_overload}", complex=True)(_random(f"aten::{_overload}", _scale))


@lowering(aten.uniform.default, complex=True)
def uniform(op: OpBuilder, self: ir.Value, start: float = 0.0, end: float = 1.0) -> ir.Value:
    part = op.Gather(self, 0, axis=-1)
    return joined(op, *(builtin_function("aten::uniform")(op, part, start, end) for _ in range(2)))
