"""Concatenation, repetition and broadcasting of several tensors equal eager PyTorch."""

import onnx_ir as ir
import pytest
import torch
from decomp_harness import check, compare, run

from onnxops_decomp.builder.op_builder import OpBuilder
from onnxops_decomp.files.model import build_model
from onnxops_decomp.lowerings import builtin_table

A, B = torch.randn(2, 3), torch.randn(2, 3)
LARGER = [(torch.randn(4, 5), torch.randn(4, 5))]


@pytest.mark.parametrize("opset", [7, 9, 13, 18, 23, 26, 28])
@pytest.mark.parametrize(
    "function",
    [
        lambda a, b: torch.cat((a, b, a), -1),
        lambda a, b: torch.stack((a, b), 1),
        lambda a, b: a.repeat(2, 1, 3),
        lambda a, b: a.repeat_interleave(3, 1),
    ],
)
def test_join_at_every_opset(function, opset: int) -> None:
    check(function, A, B, opset=opset)


@pytest.mark.parametrize(
    "function",
    [
        lambda a, b: torch.cat((a, b[:1])),
        lambda a, b: torch.stack((a, b), -1),
        lambda a, b: torch.hstack((a, b)),
        lambda a, b: torch.vstack((a, b, a)),
        lambda a, b: torch.dstack((a, b)),
        lambda a, b: torch.column_stack((a, b[:, 0])),
        lambda a, b: a.repeat(a.shape[0], 2),
        lambda a, b: a.unsqueeze(1).repeat(1, b.shape[1], 1),
        lambda a, b: a.tile(2),
        lambda a, b: a.repeat_interleave(2),
        lambda a, b: a.repeat_interleave(b.shape[0], 1),
        lambda a, b: torch.block_diag(a, b, a[0]),
        lambda a, b: torch.meshgrid(a[0], b[:, 0], indexing="xy"),
        lambda a, b: torch.meshgrid(a[0], b[:, 0], a[1], indexing="ij"),
        lambda a, b: torch.cartesian_prod(a[0], b[:, 0]),
        lambda a, b: torch.broadcast_tensors(a.unsqueeze(1), b),
    ],
)
def test_join_runs_at_other_sizes(function) -> None:
    check(function, A, B, others=LARGER)


def test_cat_promotes_dtypes() -> None:
    check(lambda a, b, c: torch.cat((a, b, c)), torch.arange(3), torch.randn(2), torch.tensor([True]))


def test_cat_leaves_out_empty_vectors() -> None:
    check(lambda a, b: (torch.cat((a, b), 1), torch.cat((a, a))), torch.zeros(0), A)


def test_stack_promotes_dtypes() -> None:
    check(lambda a, b: torch.stack((a, b)), torch.arange(3), torch.randn(3, dtype=torch.float64))


def test_repeat_of_sizes_of_one_expands() -> None:
    lowered = check(lambda x: x.repeat(3, 1, 4, 1), torch.randn(5, 1, 2))
    assert lowered.op_types() == ["Expand"]


def test_repeat_zero_times() -> None:
    check(lambda x: (x.repeat(0, 1), x.repeat(2, 0), x.repeat(0, 2, 3)), A)


@pytest.mark.parametrize("counts", [[1, 0, 3], [0, 0, 0], [2]])
def test_repeat_interleave_by_a_tensor(counts: list[int]) -> None:
    check(lambda x, n: x.repeat_interleave(n, 1), A, torch.tensor(counts))


def test_repeat_interleave_of_counts_alone() -> None:
    check(torch.repeat_interleave, torch.tensor([1, 0, 3], dtype=torch.int32))


@pytest.mark.parametrize("replacement", [False, True])
def test_combinations_are_gathered(replacement: bool) -> None:
    # torch cannot trace this operator with fake tensors, so it is lowered here by hand.
    op = OpBuilder(18)
    x = op.input("x", ir.DataType.FLOAT, (4,))
    chosen = builtin_table()["aten::combinations"].function(op, x, 2, replacement)
    proto = ir.to_proto(build_model(op, [chosen], name="test"))
    example = torch.randn(4)
    compare(run(proto, [example]), [torch.combinations(example, 2, replacement)])


def test_zero_dim_tensors_join() -> None:
    check(lambda a, b: (torch.stack((a, b)), torch.hstack((a, b)), torch.vstack((a, b))), A[0, 0], B[0, 0])
