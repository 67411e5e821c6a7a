"""Matrix products and sums of products, composed where ONNX has no operator for them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import onnx_ir as ir

from onnxops_decomp.builder.runtime import Deviation
from onnxops_decomp.builder.sizes import is_zero
from onnxops_decomp.errors import LoweringError
from onnxops_decomp.formulas.operands import arange, rank_of
from onnxops_decomp.spec.inference import dims_of

if TYPE_CHECKING:
    from onnxops_decomp.builder.op_builder import OpBuilder
    from onnxops_decomp.builder.sizes import Size

__all__ = ["Labels", "einsum", "matrix_product", "written_product", "zero_if_empty"]


def matrix_product(op: OpBuilder, a: ir.Value, b: ir.Value) -> ir.Value:
    """Return the matrix product, right where a size is 0, too."""
    if not op.deviates(Deviation.EMPTY_PRODUCT):
        return op.MatMul(a, b)
    dims, ranks = [*(dims_of(a) or ()), *(dims_of(b) or ())], (op.rank(a), op.rank(b))
    if all(isinstance(dim, int) and dim > 0 for dim in dims) or max(ranks) == 1:
        return op.MatMul(a, b)
    if ranks[1] == 1:
        return op.Squeeze(op.MatMul(a, op.Unsqueeze(b, [1])), [-1])
    result: ir.Value = op.MatMul(a, b)
    inner = op.size(a, -1) if isinstance(op.size(a, -1), int) else op.size(b, -2)
    if is_zero(inner) or (isinstance(inner, ir.Value) and (_is_transposed(a) or _is_transposed(b))):
        return zero_if_empty(op, result, inner)
    sizes = [dim for dim in dims_of(result) or () if isinstance(dim, int)]
    return op.filled_with_zeros(sizes, op.dtype(result)) if 0 in sizes and len(sizes) == op.rank(result) else result


def zero_if_empty(op: OpBuilder, product: ir.Value, inner: Size) -> ir.Value:
    """Return zeros where the inner size of a product is 0, as the specification has it.

    A runtime may join a Transpose, from further back, too, and the product, and then leave matrices unwritten.
    """
    if not op.deviates(Deviation.EMPTY_PRODUCT):
        return product
    if is_zero(inner):
        return op.filled_with_zeros(op.sizes(product), op.dtype(product))
    return (
        product if isinstance(inner, int) else op.Where(op.Equal(inner, 0), op.constant(0, op.dtype(product)), product)
    )


def written_product(op: OpBuilder, a: ir.Value, b: ir.Value) -> ir.Value:
    """Return a product of matrices whose inner size is seldom dynamic, and zeros where it is 0."""
    return zero_if_empty(op, op.MatMul(a, b), op.size(a, -1))


def _is_transposed(matrices: ir.Value) -> bool:
    node = matrices.producer()
    if node is None or node.op_type != "Transpose" or "perm" not in node.attributes:
        return False
    perm = list(node.attributes["perm"].as_ints())
    return perm[-2:] == [len(perm) - 1, len(perm) - 2]


Labels = list[str]


def einsum(op: OpBuilder, *inputs: ir.Value, equation: str) -> ir.Value:
    """Return ``Einsum`` of the inputs, composed of products, sums and transpositions, an operand at a time."""
    newest = op.newest
    terms, output = _parsed(op, inputs, equation)
    operands = [_without_repeats(newest, x, labels) for x, labels in zip(inputs, terms, strict=True)]
    value, labels = operands[0]
    for position, (other, other_labels) in enumerate(operands[1:], 1):
        kept = set(output).union(*(later for _, later in operands[position + 1 :]))
        value, labels = _product(newest, value, labels, other, other_labels, kept)
    value, labels = _summed(newest, value, labels, set(output))
    return newest.Transpose(value, perm=[labels.index(label) for label in output])


def _parsed(op: OpBuilder, inputs: Sequence[ir.Value], equation: str) -> tuple[list[Labels], Labels]:
    """Split an equation into labels; the axes of an ellipsis are called by their number from the end."""
    left, arrow, right = equation.replace(" ", "").partition("->")
    terms: list[Labels] = []
    for text, value in zip(left.split(","), inputs, strict=True):
        before, dots, after = text.partition("...")
        free = rank_of(op, value, "Einsum", 12) - len(before) - len(after) if dots else 0
        terms.append([*before, *(str(-number) for number in range(free, 0, -1)), *after])
    spread = sorted({label for term in terms for label in term if len(label) > 1}, key=int)
    if arrow:
        before, dots, after = right.partition("...")
        return terms, [*before, *(spread if dots else []), *after]
    flat = [label for term in terms for label in term]
    return terms, [*spread, *sorted(label for label in set(flat) if len(label) == 1 and flat.count(label) == 1)]


def _without_repeats(op: OpBuilder, x: ir.Value, labels: Labels) -> tuple[ir.Value, Labels]:
    """Take the diagonal over axes that share a label."""
    while True:
        pair = next(((i, j) for i, a in enumerate(labels) for j in range(i + 1, len(labels)) if labels[j] == a), None)
        if pair is None:
            return x, labels
        rest = [axis for axis in range(len(labels)) if axis not in pair]
        size = op.size(x, pair[0])
        moved = op.Transpose(x, perm=[*rest, *pair])
        flat = op.reshape(moved, [*(op.size(x, axis) for axis in rest), op.size_mul(size, size)])
        steps = op.Mul(arange(op, size), op.size_add(size, 1))
        x, labels = op.Gather(flat, steps, axis=len(rest)), [*(labels[axis] for axis in rest), labels[pair[0]]]


def _summed(op: OpBuilder, x: ir.Value, labels: Labels, kept: set[str]) -> tuple[ir.Value, Labels]:
    gone = [axis for axis, label in enumerate(labels) if label not in kept]
    if not gone:
        return x, labels
    return op.ReduceSum(x, gone, keepdims=0), [label for label in labels if label in kept]


def _product(
    op: OpBuilder, a: ir.Value, a_labels: Labels, b: ir.Value, b_labels: Labels, kept: set[str]
) -> tuple[ir.Value, Labels]:
    """Contract two operands by one batched MatMul over the labels that nothing else needs."""
    a, a_labels = _summed(op, a, a_labels, kept | set(b_labels))
    b, b_labels = _summed(op, b, b_labels, kept | set(a_labels))
    shared = [label for label in a_labels if label in b_labels]
    batch = [label for label in shared if label in kept]
    inner = [label for label in shared if label not in kept]
    rows = [label for label in a_labels if label not in shared]
    columns = [label for label in b_labels if label not in shared]
    row_sizes = [op.size(a, a_labels.index(label)) for label in rows]
    column_sizes = [op.size(b, b_labels.index(label)) for label in columns]
    left = _matrix(op, a, a_labels, batch, rows, inner)
    right = _matrix(op, b, b_labels, batch, inner, columns)
    contracted = matrix_product(op, left, right)
    batch_sizes = [op.size(contracted, axis) for axis in range(len(batch))]
    result = op.reshape(contracted, [*batch_sizes, *row_sizes, *column_sizes])
    return result, [*batch, *rows, *columns]


def _matrix(op: OpBuilder, x: ir.Value, labels: Labels, batch: Labels, first: Labels, second: Labels) -> ir.Value:
    """Bring a value to the batch axes and one axis each for the two groups of labels."""
    order = [labels.index(label) for label in (*batch, *first, *second)]
    if len(order) != len(labels):
        raise LoweringError(f"Einsum cannot bring axes {labels} together.")
    sizes: list[Size] = [op.size(x, labels.index(label)) for label in batch]
    groups = [op.size_mul(*(op.size(x, labels.index(label)) for label in group)) for group in (first, second)]
    return op.reshape(op.Transpose(x, perm=order), [*sizes, *groups])
