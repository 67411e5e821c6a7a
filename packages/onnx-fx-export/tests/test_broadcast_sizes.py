"""Which of two dynamic sizes is broadcast is left open, also where one of them is 1 in the example."""

from __future__ import annotations

import pytest
import torch
from torch.export import Dim

from onnx_fx_export import InvalidArgumentError, export
from onnx_fx_export.inputs.arguments import FunctionModule

FORMS = {
    "sum": lambda x, y: x + y,
    "sizes of both": lambda x, y: (x + y) * x.shape[0] + y.shape[0],
    "broadcast twice": lambda x, y: torch.relu(x * y) + x,
    "reshape": lambda x, y: (x - y).reshape(-1),
    "where": lambda x, y: torch.where(x > y, x, y),
    "size of the result": lambda x, y: torch.zeros((x + y).shape[0], 3) + 1,
    "mean": lambda x, y: torch.maximum(x, y).mean(0),
}


@pytest.mark.parametrize("form, sizes", [*((form, (4, 1)) for form in FORMS), ("broadcast twice", (1, 4))], ids=str)
def test_a_size_of_one_is_as_dynamic_as_what_it_is_broadcast_to(form: str, sizes: tuple[int, int]) -> None:
    model = FunctionModule(FORMS[form])
    example = tuple(torch.randn(size, 3) for size in sizes)
    program = export(model, example, dynamic_shapes=({0: Dim.DYNAMIC}, {0: Dim.DYNAMIC}))
    for rows in ((4, 1), (1, 4), (5, 5), (1, 1), (1, 7), (2, 1)):
        x, y = (torch.randn(size, 3) for size in rows)
        torch.testing.assert_close(program(x, y), model(x, y))


def test_sizes_that_cannot_be_broadcast_are_refused_by_the_condition() -> None:
    program = export(
        FunctionModule(FORMS["sum"]),
        (torch.randn(4, 3), torch.randn(1, 3)),
        dynamic_shapes=({0: Dim.DYNAMIC}, {0: Dim.DYNAMIC}),
    )
    assert any(text.count("== 1") == 2 for text in program.constraints.conditions)
    with pytest.raises(InvalidArgumentError, match="x_dim_0 = 2, y_dim_0 = 3"):
        program(torch.randn(2, 3), torch.randn(3, 3))


def test_no_size_of_nothing_is_broadcast_to_something() -> None:
    program = export(
        FunctionModule(FORMS["mean"]),
        (torch.randn(4, 3), torch.randn(1, 3)),
        dynamic_shapes=({0: Dim.DYNAMIC}, {0: Dim.DYNAMIC}),
    )
    with pytest.raises(InvalidArgumentError, match="x_dim_0 >= 1"):
        program(torch.randn(0, 3), torch.randn(1, 3))
