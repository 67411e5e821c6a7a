"""Indexing by several masks, each of which selects some places or one, and by masks of dtype uint8."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

from onnx_fx_export import OnnxExporterError, export

X = torch.arange(36.0).reshape(3, 4, 3)
ONE = torch.tensor([True, False, False])
TWO = torch.tensor([True, False, True, False])


def write(x, a, b):
    x = x.clone()
    x[a, b] = torch.tensor([5.0])
    return x


@pytest.mark.parametrize(
    "function",
    [
        lambda x, a, b: x[a, b],
        lambda x, a, b: x.transpose(1, 2)[a, :, b],
        lambda x, a, b: x.permute(2, 0, 1)[:, a, b],
        write,
        lambda x, a, b: x.index_put((a, b), torch.arange(3.0), accumulate=True),
    ],
    ids="beside apart behind write add".split(),
)
def test_masks_that_select_one_place_and_several(function: Callable) -> None:
    program = export(function, (X, ONE, TWO))
    for a, b in (
        (ONE, TWO),
        (~ONE, TWO),
        (~ONE, torch.tensor([False, True, False, False])),
        (ONE, ~TWO),
        (ONE, TWO & False),
    ):
        torch.testing.assert_close(program(X, a, b), function(X, a, b), check_stride=False)


@pytest.mark.parametrize("places", [torch.tensor([2]), torch.tensor([0, 3]), torch.tensor(1)])
def test_a_mask_beside_integers(places: torch.Tensor) -> None:
    program = export(lambda x, a, i: x[a, i], (X, ONE, places))
    for a in (ONE, ONE.roll(1)):
        torch.testing.assert_close(program(X, a, places), X[a, places])


@pytest.mark.parametrize(
    "function",
    [
        lambda x, a: x[a],
        lambda x, a: x[:, a],
        lambda x, a: torch.where(a, x, -x),
        lambda x, a: x.where(a, 1.5),
        lambda x, a: torch.where(a, 1.0, 2.0),
        lambda x, a: x.index_put((a,), torch.tensor(2.0), accumulate=True),
    ],
    ids="rows columns where where_number where_numbers index_put".split(),
)
@pytest.mark.filterwarnings("ignore:indexing with dtype", "ignore:where received a uint8")
def test_masks_of_uint8_are_as_in_torch(function: Callable) -> None:
    x = X[:, 0]
    program = export(function, (x, torch.tensor([0, 1, 2], dtype=torch.uint8)))
    for numbers in ([0, 1, 2], [3, 0, 0], [0, 0, 0]):
        a = torch.tensor(numbers, dtype=torch.uint8)
        torch.testing.assert_close(program(x, a), function(x, a))


@pytest.mark.parametrize("name", ["masked_select", "masked_scatter"])
def test_masks_of_uint8_are_refused_where_torch_does(name: str) -> None:
    rest = (torch.arange(9.0),) if name == "masked_scatter" else ()
    with pytest.raises(OnnxExporterError, match="mask of dtype bool, not uint8"):
        export(lambda x, a: getattr(x, name)(a, *rest), (X[:, 0], torch.tensor([0, 1, 2], dtype=torch.uint8)))
