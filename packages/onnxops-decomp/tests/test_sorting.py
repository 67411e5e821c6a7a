"""Sorting and selection by rank equal eager PyTorch."""

import pytest
import torch
from decomp_harness import check, lower, run

NAN, INF = float("nan"), float("inf")
OPSETS = [9, 11, 13, 18, 26]

torch.manual_seed(0)
X = torch.randn(3, 5)
OTHERS = [(torch.randn(2, 8),)]
WITH_NAN = torch.tensor([[INF, NAN, 1.0, -INF, NAN, 0.0], [2.0, 1.0, 3.0, 1.0, INF, -1.0], [NAN] * 6])


@pytest.mark.parametrize("opset", OPSETS)
@pytest.mark.parametrize("descending", [False, True])
def test_sort_and_argsort(opset: int, descending: bool) -> None:
    check(
        lambda x: (*x.sort(descending=descending), *x.sort(0, descending), x.argsort(-1, descending), x.msort()),
        X,
        opset=opset,
    )


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.float64])
@pytest.mark.parametrize("descending", [False, True])
def test_nan_is_the_largest(dtype: torch.dtype, descending: bool) -> None:
    check(lambda x: x.sort(stable=True, descending=descending), WITH_NAN.to(dtype))
    check(lambda x: x.topk(3, largest=descending).values, WITH_NAN.to(dtype))


def test_equal_elements_keep_their_order() -> None:
    x = torch.tensor([3, 1, 3, 1, 2, 2, 3, 1] * 5)
    check(lambda x: (*x.sort(stable=True), *x.sort(stable=True, descending=True)), x)
    check(lambda x: x.sort(stable=True), x > 1)


@pytest.mark.parametrize("opset", [9, 10, 11, 18])
def test_topk(opset: int) -> None:
    check(lambda x: (*x.topk(2), *x.topk(2, dim=0), *x.topk(3, largest=False)), X, opset=opset)
    check(lambda x: x.topk(2), torch.tensor([4, 7, 1, 9]), opset=opset)


def test_sorting_at_other_sizes() -> None:
    check(lambda x: (*x.sort(0), *x.topk(2), x.argsort(), *x.kthvalue(2), *x.median(1)), X, others=OTHERS)
    check(lambda x: x.topk(x.shape[1] // 2), X, others=OTHERS)


def test_sorting_a_number_and_nothing() -> None:
    check(lambda x: (*x.sort(), *x.topk(1), x.argsort(), *x.kthvalue(1), *x.median(0), *x.mode()), torch.tensor(2.0))
    check(lambda x: (*x.sort(1), x.argsort(0)), torch.ones(2, 0))


@pytest.mark.parametrize("opset", OPSETS)
def test_kthvalue(opset: int) -> None:
    check(lambda x: (*x.kthvalue(2), *x.kthvalue(3, dim=0, keepdim=True)), X, opset=opset)


@pytest.mark.parametrize("opset", OPSETS)
def test_median(opset: int) -> None:
    check(lambda x: (x.median(), *x.median(1), *x.median(0, keepdim=True), x.nanmedian()), X, opset=opset)


def test_median_with_nan() -> None:
    check(lambda x: (x.median(1), x.nanmedian(1).values, x.median(), x.nanmedian()), WITH_NAN)
    check(lambda x: (*x.median(1), *x.nanmedian(0)), torch.tensor([[3, 1, 2, 5], [9, 7, 8, 6]]))


@pytest.mark.parametrize("opset", [9, 11, 13, 16, 18])
def test_mode_is_the_smallest_of_the_most_frequent(opset: int) -> None:
    x = torch.tensor([[3, 1, 3, 1, 2], [5, 5, 4, 5, 4], [1, 2, 3, 4, 5]])
    check(lambda x: (*x.mode(), *x.mode(0), *x.mode(1, keepdim=True)), x, opset=opset)
    check(lambda x: x.mode(), x.float(), others=[(x.float()[:2, :3],)])


@pytest.mark.parametrize("interpolation", ["linear", "lower", "higher", "midpoint", "nearest"])
def test_quantile(interpolation: str) -> None:
    q = torch.tensor([0.0, 0.3, 0.5, 1.0])
    check(lambda x, q: torch.quantile(x, q, dim=1, interpolation=interpolation), X, q)
    check(lambda x: torch.nanquantile(x, 0.4, dim=1, interpolation=interpolation), WITH_NAN[1:])
    check(lambda x: torch.quantile(x, 0.4), WITH_NAN)


# ---- equal elements

TIES = torch.randint(0, 4, (6, 40), generator=torch.Generator().manual_seed(0))
TIED_DTYPES = [torch.float32, torch.float64, torch.float16, torch.int64, torch.int32, torch.uint8]


@pytest.mark.parametrize("opset", [7, 9, 10, 11, 12, 13, 18, 24, 26])
@pytest.mark.parametrize("dtype", TIED_DTYPES)
def test_torch_defines_which_of_equal_elements_is_found(dtype: torch.dtype, opset: int) -> None:
    x = TIES.to(dtype)
    if dtype.is_floating_point:
        x[::2, ::7] = NAN
    check(lambda x: (x.argmax(-1), x.argmin(0), x.argmax(), x.max(1).indices, x.min(0).indices), x, opset=opset)
    check(lambda x: (x.sort(stable=True), x.argsort(descending=True, stable=True)), x, opset=opset)
    check(lambda x: (x.median(1).indices, x.median(0).indices), x, opset=opset)
    if opset >= 9:
        check(lambda x: (x.cummax(1).indices, x.cummin(0).indices), x, opset=opset)


@pytest.mark.parametrize("opset", [9, 10, 11, 13, 18, 24, 26])
@pytest.mark.parametrize("dtype", TIED_DTYPES)
@pytest.mark.parametrize(
    "function",
    [
        lambda x: x.sort(),
        lambda x: x.sort(descending=True),
        lambda x: x.topk(5),
        lambda x: x.topk(5, largest=False),
        lambda x: x.kthvalue(7, keepdim=True),
        lambda x: x.mode(keepdim=True),
    ],
)
def test_torch_leaves_open_which_of_equal_elements_is_found(function, dtype: torch.dtype, opset: int) -> None:
    # The order depends on torch's sorting algorithm: the values are equal, the index is that of such a value.
    x = TIES.to(dtype)
    values, indices = run(lower(function, (x,), opset=opset).proto, (x,))
    expected = function(x)
    torch.testing.assert_close(values, expected.values, rtol=0, atol=0)
    assert torch.equal(x.gather(1, indices), values)
