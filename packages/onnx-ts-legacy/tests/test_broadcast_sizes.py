"""Sizes of different names that meet: what follows from the result's is right for the sizes that the model takes."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

import onnx_ts_legacy
from onnx_ts_legacy.errors import OnnxExporterError

MEETINGS: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "a sum": lambda x, y: x + y,
    "a tensor like a sum": lambda x, y: torch.zeros_like(x + y),
    "the size of a sum": lambda x, y: x.sum() * (x + y).size(0),
    "a choice": lambda x, y: torch.zeros_like(torch.where(x > 0, x, y)),
    "products": lambda x, y: torch.zeros_like(x[:, None] @ y[:, :, None]),
}
SIZES = ((4, 4), (7, 7), (1, 1), (5, 1), (1, 5))


@pytest.mark.parametrize("rows", [(4, 4), (4, 1), (1, 4)], ids=str)
@pytest.mark.parametrize("case", MEETINGS)
def test_the_result_of_sizes_that_meet_is_right_or_refused(case: str, rows: tuple[int, int]) -> None:
    model, axes = MEETINGS[case], {"x": {0: "n"}, "y": {0: "m"}}
    example = tuple(torch.randn(count, 3) for count in rows)
    program = onnx_ts_legacy.export(model, example, input_names=["x", "y"], dynamic_axes=axes)
    torch.testing.assert_close(program(*example)[0], model(*example))
    refused = []
    for sizes in SIZES:
        args = tuple(torch.randn(count, 3) for count in sizes)
        try:
            (result,) = program(*args)
        except OnnxExporterError:
            refused.append(sizes)
        else:
            torch.testing.assert_close(result, model(*args))
    assert refused == [(5, 1)] if rows == (1, 4) else refused == [(1, 5)]


def test_a_fixed_size_decides_what_a_part_is_broadcast_to() -> None:
    def model(x: Tensor) -> Tensor:
        return torch.zeros_like(x[:3] + torch.ones(3, 3))

    program = onnx_ts_legacy.export(model, (torch.randn(4, 3),), input_names=["x"], dynamic_axes={"x": {0: "n"}})

    for rows in (1, 3, 7):
        assert program(torch.randn(rows, 3))[0].shape == (3, 3)
    with pytest.raises(OnnxExporterError, match="captured for"):
        program(torch.randn(2, 3))
