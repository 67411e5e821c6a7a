"""Functions whose own code in torch takes sizes for constants keep them dynamic."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F

from onnx_fx_export import export

Inputs = Callable[[int, int], tuple[torch.Tensor, ...]]
BOTH = {0: "n", 1: "m"}


IMAGES = ({0: "n", 3: "n", 4: "m"},)


def images(n: int, m: int) -> tuple[torch.Tensor, ...]:
    return (torch.randn(n, 2, 4, n, m),)


def matrix(n: int, m: int) -> tuple[torch.Tensor, ...]:
    return (torch.randn(n, m),)


CASES: dict[str, tuple[Callable[..., Any], Inputs, Any]] = {
    "kron": (torch.kron, lambda n, m: (torch.randn(n, m), torch.randn(2, n, 3)), (BOTH, {1: "n"})),
    "take_along_dim": (
        lambda x, i: x.take_along_dim(i, 1),
        lambda n, m: (torch.randn(n, m), torch.randint(m, (1, 2 * m))),
        (BOTH, {1: "k"}),
    ),
    "take_along_no_dim": (
        torch.take_along_dim,
        lambda n, m: (torch.randn(n, m), torch.randint(n * m, (m,))),
        (BOTH, {0: "m"}),
    ),
    "tensor_split": (lambda x: torch.tensor_split(x, 3), matrix, (BOTH,)),
    "tensor_split of columns": (lambda x: x.tensor_split(sections=2, dim=-1), matrix, (BOTH,)),
    "fill_diagonal_": (lambda x: x.clone().fill_diagonal_(2.0), matrix, (BOTH,)),
    "fill_diagonal_ of a square": (lambda x: (x @ x.T).fill_diagonal_(0) + 1, matrix, (BOTH,)),
    "multi_dot": (
        lambda *x: torch.linalg.multi_dot(x),
        lambda n, m: (torch.randn(n, 3), torch.randn(3, m), torch.randn(m)),
        ({0: "n"}, {1: "m"}, {0: "m"}),
    ),
    "bilinear": (
        torch.nn.functional.bilinear,
        lambda n, m: (torch.randn(n, 3), torch.randn(n, 4), torch.randn(m, 3, 4), torch.randn(m)),
        ({0: "n"}, {0: "n"}, {0: "m"}, {0: "m"}),
    ),
    "cdist": (torch.cdist, lambda n, m: (torch.randn(5 * n, 3), torch.randn(m, 3)), ({0: "k"}, {0: "m"})),
    "cdist by products": (
        lambda x, y: torch.cdist(x, y, compute_mode="use_mm_for_euclid_dist"),
        lambda n, m: (torch.randn(5 * n, 3), torch.randn(m, 3)),
        ({0: "k"}, {0: "m"}),
    ),
    "irfft": (lambda x: torch.fft.irfft(x, 10, 1), matrix, (BOTH,)),
    "hfft": (lambda x: torch.fft.hfft(x, 10, 0, "ortho"), matrix, (BOTH,)),
    "fft": (lambda x: torch.view_as_real(torch.fft.fft(x, 5, 0)), matrix, (BOTH,)),
    "ihfft": (lambda x: torch.view_as_real(torch.fft.ihfft(x, 6).resolve_conj()), matrix, (BOTH,)),
    "rfftn": (lambda x: torch.view_as_real(torch.fft.rfftn(x, (5, 4), (1, 0))), matrix, (BOTH,)),
    "irfft2": (lambda x: torch.fft.irfft2(x, (5, 6)), matrix, (BOTH,)),
    "fft2 of one length": (lambda x: torch.view_as_real(torch.fft.fft2(x, (-1, 5))), matrix, (BOTH,)),
    "gradient": (lambda x: torch.gradient(x), matrix, (BOTH,)),
    "gradient of order 2": (lambda x: torch.gradient(x, spacing=2.0, dim=1, edge_order=2), matrix, (BOTH,)),
    "gradient at positions": (
        lambda x, at: torch.gradient(x, spacing=(at,), dim=1, edge_order=2),
        lambda n, m: (torch.randn(n, m), torch.arange(float(m)) ** 2),
        (BOTH, {0: "m"}),
    ),
    "resize_as_": (lambda x, y: x.clone().resize_as_(y) + 1, lambda n, m: (torch.randn(n, m),) * 2, (BOTH, BOTH)),
    "view_copy": (lambda x: torch.view_copy(torch.cat([x] * 6), (3, -1, 2)), matrix, (BOTH,)),
    "histogram of edges": (
        lambda x, edges: torch.histogram(x, edges, density=True),
        lambda n, m: (torch.randn(n), torch.arange(float(m)) - m / 2),
        ({0: "n"}, {0: "m"}),
    ),
    "histogram": (lambda x: torch.histogram(x, 5, weight=x.abs()), matrix, (BOTH,)),
    "histogramdd": (
        lambda x: torch.histogramdd(x, [3, 4], density=True),
        lambda n, m: (torch.randn(n * m, 2),),
        ({0: "n"},),
    ),
    "histogramdd of edges": (
        lambda x, edges: torch.histogramdd(x, (edges, edges))[0],
        lambda n, m: (torch.randn(n, 2), torch.arange(float(m)) - m / 2),
        ({0: "n"}, {0: "m"}),
    ),
    "adaptive_max_pool2d": (lambda x: F.adaptive_max_pool2d(x[1], (2, None)), images, IMAGES),
    "adaptive_max_pool2d with indices": (
        lambda x: F.adaptive_max_pool2d(x[0], (None, 3), return_indices=True),
        images,
        IMAGES,
    ),
    "adaptive_max_pool3d": (torch.nn.AdaptiveMaxPool3d((None, 2, None), True), images, IMAGES),
    "adaptive_max_pool3d of nothing": (lambda x: F.adaptive_max_pool3d(x, (None,) * 3, True), images, IMAGES),
    "adaptive_max_pool3d of two": (lambda x: F.adaptive_max_pool3d(x, (2, None, 3), True), images, IMAGES),
    "fractional_max_pool3d": (
        lambda x, u: F.fractional_max_pool3d(x, 2, (2, 3, 2), _random_samples=u),
        lambda n, m: (torch.randn(2, n, 5, n + 2, m + 2), torch.full((2, n, 3), 0.4)),
        ({1: "n", 3: "h", 4: "m"}, {1: "n"}),
    ),
    "combinations": (lambda x: torch.combinations(x[:, 0]), matrix, (BOTH,)),
    "combinations of three": (lambda x: torch.combinations(x[:, 0], 3, True), matrix, (BOTH,)),
}


@pytest.mark.parametrize("name", CASES)
@pytest.mark.filterwarnings("ignore:The model treats size 1")
def test_sizes_stay_dynamic(name: str) -> None:
    function, inputs, dims = CASES[name]
    program = export(lambda *x: function(*x), inputs(6, 6), dynamic_shapes=(dims,))
    for sizes in ((6, 6), (4, 9), (7, 5)):
        example = inputs(*sizes)
        torch.testing.assert_close(program(*example), function(*example), rtol=1e-4, atol=1e-5)


def test_random_windows_have_dynamic_sizes() -> None:
    pool = torch.nn.FractionalMaxPool3d(2, output_ratio=(0.5, 0.5, 0.5), return_indices=True)
    program = export(pool, (torch.randn(2, 3, 8, 8, 8),), dynamic_shapes=({0: "n", 1: "c"},))
    assert [tuple(result.shape) for result in program(torch.randn(5, 4, 8, 8, 8))] == [(5, 4, 4, 4, 4)] * 2


@pytest.mark.parametrize(("size", "kernel"), [(3, 3), (4, 3), (3, 2)])
def test_a_window_of_the_whole_example_leaves_its_size_dynamic(size: int, kernel: int) -> None:
    def pool(x: torch.Tensor) -> torch.Tensor:
        return F.max_pool1d(x, kernel, 2, ceil_mode=True)

    program = export(pool, (torch.randn(1, 2, size),), dynamic_shapes=({2: "length"},))
    for length in (kernel, kernel + 1, size, 8, 11):
        x = torch.randn(1, 2, length)
        torch.testing.assert_close(program(x), pool(x))


@pytest.mark.parametrize("rows", [25, 26])
def test_many_rows_are_multiplied_where_their_number_is_fixed(rows: int) -> None:
    """As torch does for more than 25, which takes a tenth of the time."""
    batch = {0: "batch"}
    example = (torch.randn(2, rows, 4), torch.randn(2, 20, 4))
    program = export(lambda *x: torch.cdist(*x), example, dynamic_shapes=((batch, batch),))
    assert ("MatMul" in {node.op_type for node in program.model.graph}) == (rows > 25)
    for count in (1, 3):
        args = (torch.randn(count, rows, 4), torch.randn(count, 20, 4))
        torch.testing.assert_close(program(*args), torch.cdist(*args), rtol=1e-4, atol=1e-4)
