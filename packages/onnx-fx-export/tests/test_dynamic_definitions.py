"""Functions whose own code in torch takes sizes for constants keep them dynamic."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

from onnx_fx_export import export

Inputs = Callable[[int, int], tuple[torch.Tensor, ...]]
BOTH = {0: "n", 1: "m"}


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
    "irfft": (lambda x: torch.fft.irfft(x, 10, 1), matrix, (BOTH,)),
    "hfft": (lambda x: torch.fft.hfft(x, 10, 0, "ortho"), matrix, (BOTH,)),
    "gradient": (lambda x: torch.gradient(x), matrix, (BOTH,)),
    "gradient of order 2": (lambda x: torch.gradient(x, spacing=2.0, dim=1, edge_order=2), matrix, (BOTH,)),
    "gradient at positions": (
        lambda x, at: torch.gradient(x, spacing=(at,), dim=1, edge_order=2),
        lambda n, m: (torch.randn(n, m), torch.arange(float(m)) ** 2),
        (BOTH, {0: "m"}),
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
