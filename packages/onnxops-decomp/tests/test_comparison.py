"""Comparisons, logic, choice, extrema of two tensors and clamp equal eager PyTorch."""

import itertools
from collections.abc import Callable, Sequence
from typing import Any

import onnx_ir as ir
import pytest
import torch
from decomp_harness import check, compare, run

from onnxops_decomp.builder.op_builder import OpBuilder
from onnxops_decomp.files.model import build_model
from onnxops_decomp.lowerings import builtin_table

NAN, INF = float("nan"), float("inf")
SPECIAL = torch.tensor([NAN, INF, -INF, 0.0, -0.0, 1.5, -2.0])


@pytest.mark.parametrize("function", [torch.eq, torch.ne, torch.lt, torch.le, torch.gt, torch.ge])
@pytest.mark.parametrize("opset", [7, 9, 11, 13, 18, 26])
def test_comparison_broadcasts(function: Callable[..., torch.Tensor], opset: int) -> None:
    check(function, torch.tensor([[1.0, 2.0, NAN]]), torch.tensor([[1.0], [2.0]]), opset=opset)


@pytest.mark.parametrize("function", [torch.eq, torch.lt, torch.ge])
def test_comparison_with_a_number_promotes(function: Callable[..., torch.Tensor]) -> None:
    check(lambda x: function(x, 1.5), torch.arange(4))


def test_comparison_of_bools() -> None:
    flags = torch.tensor([True, False])
    check(lambda a, b: (a == b, a < b, a >= b), flags, flags.flip(0), opset=18)


def test_logic_takes_any_dtype_as_truth() -> None:
    check(
        lambda a, b: (a.logical_and(b), a.logical_or(b), a.logical_xor(b), a.logical_not()),
        SPECIAL,
        torch.arange(7, dtype=torch.int32) % 2,
    )


def test_tests_of_special_numbers() -> None:
    check(
        lambda x: (x.isnan(), x.isinf(), x.isposinf(), x.isneginf(), x.isfinite(), x.isreal(), x.signbit()),
        torch.tensor([INF, -INF, 0.0, -0.0, 1.5, -2.0]),
    )


def test_integers_are_never_special() -> None:
    check(lambda x: (x.isnan(), x.isinf(), x.isfinite(), x.signbit()), torch.arange(-2, 2), others=[(torch.arange(5),)])


@pytest.mark.parametrize("opset", [9, 13, 18, 26])
def test_where_promotes_and_broadcasts(opset: int) -> None:
    check(
        lambda c, x: torch.where(c, x, 2.5),
        torch.tensor([[True], [False]]),
        torch.arange(3),
        opset=opset,
        others=[(torch.rand(5, 1) > 0.5, torch.arange(4))],
    )


def test_masked_fill_keeps_the_dtype() -> None:
    check(lambda x, m: x.masked_fill(m, -INF), torch.randn(2, 3, dtype=torch.float16), torch.rand(2, 3) > 0.5)
    check(
        lambda x, m, v: x.masked_fill(m, v), torch.randn(2, 3), torch.rand(3) > 0.5, torch.tensor(2, dtype=torch.int64)
    )


@pytest.mark.parametrize("opset", [7, 11, 13, 18, 26])
def test_extrema_of_two_pass_nan_on(opset: int) -> None:
    other = SPECIAL.flip(0)
    check(lambda a, b: (a.maximum(b), a.minimum(b), torch.max(a, b), torch.min(a, b)), SPECIAL, other, opset=opset)


def test_extrema_of_two_of_integers_and_bools() -> None:
    check(lambda a, b: (a.maximum(b), a.minimum(b)), torch.arange(4), torch.tensor([2], dtype=torch.int32))
    flags = torch.tensor([True, False, True])
    check(lambda a, b: (a.maximum(b), a.minimum(b)), flags, flags.flip(0).logical_not())


def test_fmax_and_fmin_ignore_nan() -> None:
    check(lambda a, b: (a.fmax(b), a.fmin(b)), SPECIAL, torch.tensor([1.0, NAN, NAN, -1.0, 0.0, NAN, -3.0]))


@pytest.mark.parametrize("opset", [7, 11, 12, 13, 18, 26])
@pytest.mark.parametrize("bounds", [(-1, None), (None, 1), (-1, 1), (0.5, -0.5), (-1, NAN), (NAN, 1), (NAN, None)])
def test_clamp_by_numbers_passes_infinity_and_nan_on(opset: int, bounds: tuple[float, float]) -> None:
    check(lambda x: x.clamp(*bounds), SPECIAL, opset=opset)


@pytest.mark.parametrize("opset", [13, 18])
@pytest.mark.parametrize("bounds", [(-1, None), (None, 1)])
def test_clamp_by_one_number_is_one_node(opset: int, bounds: tuple[float, float]) -> None:
    assert check(lambda x: x.clamp(*bounds), SPECIAL, opset=opset).op_types() == ["Clip"]
    assert check(lambda x: x.clamp(*bounds), torch.arange(-3, 3, dtype=torch.int32), opset=opset).op_types() == ["Clip"]


@pytest.mark.parametrize("shape", [(), (1,)])
def test_clamp_by_tensors_that_are_nan(shape: tuple[int, ...]) -> None:
    nan, one = torch.full(shape, NAN), torch.ones(shape)
    check(lambda x, nan, one: (x.clamp(nan, one), x.clamp(-one, nan), x.clamp(-one, one)), SPECIAL, nan, one)


def test_clamp_by_tensors_promotes() -> None:
    check(
        lambda x, low, high: x.clamp(low, high),
        torch.arange(6).reshape(2, 3),
        torch.tensor([[1.5], [2.0]]),
        torch.tensor(3.0),
    )


def test_clamp_of_integers_by_a_fraction() -> None:
    check(lambda x: (x.clamp(min=0.5), x.clamp_max(2), x.clamp_min(1)), torch.arange(-2, 4))


@pytest.mark.parametrize("opset", [10, 13, 20])
@pytest.mark.parametrize("dims", [(("n", 2), ("m", 2)), (("n", "k"), ("n", "l")), (("n", 2), ("n", 2)), ((3, 2), (2,))])
def test_equal_compares_sizes(dims: Sequence[Any], opset: int) -> None:
    op = OpBuilder(opset)
    x, y = (op.input(name, ir.DataType.FLOAT, sizes) for name, sizes in zip("xy", dims, strict=True))
    equal = builtin_table()["aten::equal"].function(op, x, y)
    proto = ir.to_proto(build_model(op, [equal, op.Size(x), op.Size(y)], name="test"))
    ones = [torch.ones(rows, width) for rows, width in itertools.product((0, 1, 3), (1, 2))]
    for a, b in itertools.product(ones, [*ones, torch.ones(3, 2) / 2, torch.ones(2)]):
        sizes: dict[Any, int] = {}
        declared = zip((*dims[0], *dims[1]), (*a.shape, *b.shape), strict=False)
        if (a.dim(), b.dim()) == tuple(map(len, dims)) and all(
            (dim if isinstance(dim, int) else sizes.setdefault(dim, size)) == size for dim, size in declared
        ):
            compare(run(proto, [a, b])[:1], [torch.tensor(torch.equal(a, b))])


@pytest.mark.parametrize("equal_nan", [False, True])
def test_isclose(equal_nan: bool) -> None:
    check(lambda a, b: a.isclose(b, equal_nan=equal_nan), SPECIAL, SPECIAL + 1e-9)
    check(lambda a, b: a.isclose(b, rtol=0.5), torch.tensor([1, 10, -4]), torch.tensor([2, 14, -12]))
