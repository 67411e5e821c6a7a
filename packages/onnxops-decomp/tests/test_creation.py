"""Tensors made from sizes and numbers equal eager PyTorch."""

import onnx_ir as ir
import pytest
import torch
from decomp_harness import check, compare, run
from torch.utils import _pytree as pytree

from onnxops_decomp.builder.op_builder import OpBuilder
from onnxops_decomp.files.model import build_model
from onnxops_decomp.lowerings import builtin_table

X = torch.randn(3, 4)
LARGER = [(torch.randn(6, 5),)]


@pytest.mark.parametrize("opset", [7, 9, 11, 13, 18, 23, 26, 28])
@pytest.mark.parametrize(
    "function",
    [
        lambda x: torch.arange(x.shape[0]),
        lambda x: x + torch.zeros(3, 4) + torch.ones_like(x),
        lambda x: torch.full((2, 3), 1.5),
        lambda x: torch.eye(3),
    ],
)
def test_creation_at_every_opset(function, opset: int) -> None:
    check(lambda x: (x * 1, function(x)), X, opset=opset)


@pytest.mark.parametrize(
    "function",
    [
        lambda x: torch.arange(x.shape[0]),
        lambda x: torch.arange(1, x.shape[0] * 2, 3),
        lambda x: torch.arange(x.shape[0], 0, -2),
        lambda x: torch.arange(x.shape[0], dtype=torch.float32),
        lambda x: torch.arange(0.5, x.shape[0], 0.25),
        lambda x: torch.arange(x.shape[0], dtype=torch.int32),
        lambda x: torch.zeros(x.shape[0], 2, x.shape[1]),
        lambda x: torch.ones(x.shape[1], dtype=torch.bool),
        lambda x: torch.full((x.shape[0], 1), -1),
        lambda x: torch.full((x.shape[1],), x.shape[0]),
        lambda x: x.new_zeros(x.shape[1], 2),
        lambda x: x.new_full((2,), 3),
        lambda x: x.new_ones((x.shape[0],), dtype=torch.int64),
        lambda x: torch.zeros_like(x, dtype=torch.float64),
        lambda x: torch.full_like(x, float("-inf")),
        lambda x: torch.eye(x.shape[0], x.shape[1]),
        lambda x: torch.eye(x.shape[0], dtype=torch.bool),
    ],
)
def test_creation_runs_at_other_sizes(function) -> None:
    check(lambda x: (x * 1, function(x)), X, others=LARGER)


@pytest.mark.parametrize(
    "arguments",
    [
        {"end": 5},
        {"end": 2.5},
        {"start": -1, "end": 4, "step": 2},
        {"start": 4, "end": -1, "step": -2},
        {"start": 0.0, "end": 1.0, "step": 0.1},
        {"start": 1.0, "end": 0.0, "step": -0.3},
        {"start": 0, "end": 2000, "step": 1, "dtype": torch.float32},
        {"start": 0.0, "end": 300.0, "step": 0.1},
        {"start": 0.5, "end": 3.5, "step": 1, "dtype": torch.int64},
        {"start": 0.5, "end": 5.5, "step": 1.7, "dtype": torch.int64},
        {"start": 0.5, "end": 3.5, "step": 1.7, "dtype": torch.int32},
        {"start": 0.5, "end": 5.9, "step": 1, "dtype": torch.int16},
        {"start": 3, "end": 3},
        {"start": 0, "end": 5, "dtype": torch.float16},
    ],
)
def test_arange(arguments: dict) -> None:
    check(lambda x: (x * 1, torch.arange(**arguments)), X)


@pytest.mark.parametrize("dtype", [torch.int64, torch.bool, torch.float16, torch.int8, torch.float64])
def test_creation_in_a_dtype(dtype: torch.dtype) -> None:
    check(lambda x: (x * 1, torch.zeros(2, dtype=dtype), torch.ones(2000, dtype=dtype), torch.eye(3, dtype=dtype)), X)


def test_default_dtype_follows_the_value() -> None:
    check(lambda x: (x * 1, torch.full((2,), 1), torch.full((2,), True), torch.full((2,), 1.0), torch.tensor(2)), X)


def test_creation_of_empty_and_zero_dim_tensors() -> None:
    check(lambda x: (x * 1, torch.zeros(()), torch.ones(0, 3), torch.arange(0), torch.eye(0), torch.eye(2, 0)), X)


def test_long_sequences_do_not_grow_the_model() -> None:
    lowered = check(lambda x: (x * 1, torch.arange(0.0, 100000.0, 1.0), torch.zeros(300, 300)), X)
    assert lowered.proto.ByteSize() < 2000


@pytest.mark.parametrize("steps", [0, 1, 2, 7, 3000])
@pytest.mark.parametrize("dtype", [None, torch.float64, torch.int64, torch.float16])
def test_evenly_spaced_numbers(steps: int, dtype: torch.dtype | None) -> None:
    check(
        lambda x: (x * 1, torch.linspace(-3, 8.5, steps, dtype=dtype), torch.logspace(0, 1.5, steps, 2, dtype=dtype)),
        X,
    )


def test_evenly_spaced_numbers_between_tensors() -> None:
    check(
        lambda a, b: (torch.linspace(a, b, 5), torch.linspace(a, 3, 4), torch.logspace(1, b, 3)),
        torch.tensor(0.5),
        torch.tensor(2),
    )


@pytest.mark.parametrize(
    "data",
    [[1, 2], [1, 2.5], [[1, 2], [3, 4]], [], [True, False], [[1, "n"], ["n", 3]], [1.5, "n"], ["n"]],
)
def test_tensor_of_a_list_with_numbers_of_the_model(data: list) -> None:
    """Scripted models make tensors of lists of numbers; torch.export has no such call to trace."""
    op = OpBuilder(18)
    number = op.input("n", ir.DataType.INT64, ())
    made = builtin_table()["aten::tensor"].function(op, pytree.tree_map(lambda x: number if x == "n" else x, data))
    proto = ir.to_proto(build_model(op, [made, op.Add(number, 1)], name="test"))
    expected = torch.tensor(pytree.tree_map(lambda x: 7 if x == "n" else x, data))
    compare(run(proto, [torch.tensor(7)])[:1], [expected])
