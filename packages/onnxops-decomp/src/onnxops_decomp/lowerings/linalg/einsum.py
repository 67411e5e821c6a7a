"""Sums of products by index."""

from __future__ import annotations

import functools
import string
from collections.abc import Sequence
from typing import TYPE_CHECKING

import onnx_ir as ir
import torch

from onnxops_decomp.builder.runtime import Deviation
from onnxops_decomp.builder.sizes import is_zero
from onnxops_decomp.dtypes import result_dtype
from onnxops_decomp.errors import LoweringError
from onnxops_decomp.formulas.products import einsum as composed
from onnxops_decomp.lowerings.registry import lowering

if TYPE_CHECKING:
    from onnxops_decomp.builder.op_builder import OpBuilder

aten = torch.ops.aten


def _explicit(op: OpBuilder, equation: str, tensors: Sequence[ir.Value]) -> tuple[list[str], str]:
    """Return the labels of the operands and of the output, with letters for what an ellipsis stands for."""
    inputs, arrow, output = equation.replace(" ", "").partition("->")
    operands = inputs.split(",")
    free = [letter for letter in string.ascii_letters if letter not in equation]
    widest = 0
    for labels, tensor in zip(operands, tensors, strict=True):
        if "..." in labels:
            widest = max(widest, op.rank(tensor) - len(labels.replace("...", "")))
    if widest > len(free):
        raise LoweringError("einsum has more dimensions than letters.")
    covered = "".join(free[:widest])
    spelled = []
    for labels, tensor in zip(operands, tensors, strict=True):
        count = op.rank(tensor) - len(labels.replace("...", ""))
        spelled.append(labels.replace("...", covered[widest - count :] if count else ""))
    if not arrow:
        letters = inputs.replace(",", "").replace("...", "")
        # torch orders upper case before lower case.
        output = covered + "".join(sorted(letter for letter in set(letters) if letters.count(letter) == 1))
    return spelled, output.replace("...", covered)


def _broadcast(op: OpBuilder, tensors: Sequence[ir.Value], operands: Sequence[str]) -> tuple[list[ir.Value], list[str]]:
    """Drop dimensions of 1 whose label has another size elsewhere: torch broadcasts them, ONNX does not."""
    wide = {
        label
        for tensor, labels in zip(tensors, operands, strict=True)
        for label, size in zip(labels, op.sizes(tensor), strict=True)
        if not isinstance(size, int) or size != 1
    }
    values, spelled = [], []
    for tensor, labels in zip(tensors, operands, strict=True):
        axes = [
            axis
            for axis, (label, size) in enumerate(zip(labels, op.sizes(tensor), strict=True))
            if isinstance(size, int) and size == 1 and label in wide
        ]
        values.append(op.Squeeze(tensor, axes) if axes else tensor)
        spelled.append("".join(label for axis, label in enumerate(labels) if axis not in axes))
    return values, spelled


def _computed_dtype(tensors: Sequence[ir.Value], operands: Sequence[str], output: str) -> ir.DataType:
    """Return the common dtype; torch sums over a dimension of one operand alone as ``sum`` does, integers in INT64."""
    dtype = result_dtype(*tensors)
    labels = [label for spelled in operands for label in set(spelled)]
    is_summed = any(labels.count(label) == 1 and label not in output for label in labels)
    return ir.DataType.INT64 if is_summed and not dtype.is_floating_point() else dtype


def _is_product_of_matrices(left: str, right: str, output: str) -> bool:
    """Tell whether MatMul does it: (batch, m, k) times (batch, k, n) is (batch, m, n)."""
    if min(len(left), len(right), len(output)) < 2 or len({*left, *right}) != len(left) + 1:
        return False
    batch, m, k, n = left[:-2], left[-2], left[-1], right[-1]
    return right == batch + k + n and output == batch + m + n and n not in left


@lowering(aten.einsum.default)
def einsum(op: OpBuilder, equation: str, tensors: Sequence[ir.Value], *, path: Sequence[int] | None = None) -> ir.Value:
    operands, output = _explicit(op, equation, tensors)
    dtype = _computed_dtype(tensors, operands, output)
    tensors = [op.cast(tensor, dtype) for tensor in tensors]
    values, operands = _broadcast(op, tensors, operands)
    pairs = zip(values, operands, strict=True)
    sizes = {label: size for value, labels in pairs for label, size in zip(labels, op.sizes(value), strict=True)}
    if any(is_zero(size) for size in sizes.values()):
        return op.filled_with_zeros([sizes[label] for label in output], dtype)
    scalars = [value for value, labels in zip(values, operands, strict=True) if not labels]
    terms = [(value, labels) for value, labels in zip(values, operands, strict=True) if labels]
    if not terms:
        result, *scalars = scalars
    elif len(terms) == 1 and len(set(terms[0][1])) == len(terms[0][1]):
        result = _of_one(op, *terms[0], output)
    elif len(terms) == 2 and _is_product_of_matrices(terms[0][1], terms[1][1], output):
        result = op.MatMul(terms[0][0], terms[1][0])
    else:
        spelled = ",".join(labels for _, labels in terms) + "->" + output
        # Sizes known only at run time may be 0 there.
        known = all(isinstance(size, int) for size in sizes.values())
        emitted = op.Einsum if known or not op.deviates(Deviation.EMPTY_EINSUM) else functools.partial(composed, op)
        result = emitted(*(value for value, _ in terms), equation=spelled)
    for scalar in scalars:
        result = op.Mul(result, scalar)
    return result


def _of_one(op: OpBuilder, value: ir.Value, labels: str, output: str) -> ir.Value:
    axes = [axis for axis, label in enumerate(labels) if label not in output]
    if axes:
        value = op.ReduceSum(value, axes, keepdims=0)
    kept = [label for label in labels if label in output]
    return op.Transpose(value, perm=[kept.index(label) for label in output]) if kept else value
