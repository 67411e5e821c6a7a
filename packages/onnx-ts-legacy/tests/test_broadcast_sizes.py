"""Sizes of different names that meet: what follows from the result's is right for the sizes that the model takes."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import Tensor
from ts_models import exported, scripted_program

import onnx_ts_legacy
from onnx_ts_legacy.errors import OnnxExporterError

MEETINGS: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "a sum": lambda x, y: x + y,
    "a tensor like a sum": lambda x, y: torch.zeros_like(x + y),
    "the size of a sum": lambda x, y: x.sum() * (x + y).size(0),
    "a choice": lambda x, y: torch.zeros_like(torch.where(x > 0, x, y)),
    "products": lambda x, y: torch.zeros_like(x[:, None] @ y[:, :, None]),
    "a sum of transposed tensors": lambda x, y: torch.zeros_like(x.t() + y.t()),
    "every other column": lambda x, y: torch.zeros_like(torch.where(x[:, ::2] > 0, x[:, ::2], y[:, ::2])),
    "a tensor like the second one of a sum": lambda x, y: (x.t() * y.t()).sum() * torch.ones_like(y.tril()),
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


BROADCASTS: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "broadcast tensors": lambda x, y: torch.ones_like(torch.broadcast_tensors(x, y)[1]),
    "broadcast shapes": lambda x, y: torch.ones(torch.broadcast_shapes(x.shape, y.shape)[0]),
    "a sum of products": lambda x, y: torch.ones_like(torch.einsum("nk,nk->n", x, y)),
    "a cross product": lambda x, y: torch.ones_like(torch.cross(x, y, dim=1)),
    "a loss": lambda x, y: torch.ones_like(torch.nn.functional.mse_loss(x, y, reduction="none")),
    "a sum of products behind a sum": lambda x, y: (x + y).sum() * torch.ones_like(torch.einsum("nk,nk->n", y, x)),
    "a sum of products behind one of transposed tensors": lambda x, y: (
        (x.t() + y.t()).sum() * torch.ones_like(torch.einsum("nk,nk->n", y, x))
    ),
    "a cross product behind every other column": lambda x, y: (
        (x[:, ::2] - y[:, ::2]).sum() * torch.ones_like(torch.cross(x, y, dim=1))
    ),
    "a loss behind an outer product": lambda x, y: (
        (x.t()[:, None] * y.t()).sum() * torch.ones_like(torch.nn.functional.mse_loss(x, y, reduction="none"))
    ),
}


@pytest.mark.filterwarnings("ignore:Using a target size")
@pytest.mark.parametrize("case", BROADCASTS)
def test_sizes_that_operators_take_for_equal_are_a_condition(case: str) -> None:
    model, axes = BROADCASTS[case], {"x": {0: "n"}, "y": {0: "m"}}
    program = onnx_ts_legacy.export(
        model, (torch.randn(4, 3), torch.randn(4, 3)), input_names=["x", "y"], dynamic_axes=axes
    )
    for sizes in SIZES:
        args = tuple(torch.randn(count, 3) for count in sizes)
        try:
            (result,) = program(*args)
        except OnnxExporterError:
            assert sizes in ((5, 1), (1, 5))
        else:
            torch.testing.assert_close(result, model(*args))


def test_sizes_that_are_taken_for_equal_and_differ_in_the_example_are_refused() -> None:
    args, axes = (torch.randn(1, 3), torch.randn(4, 3)), {"x": {0: "n"}, "y": {0: "m"}}
    with pytest.raises(OnnxExporterError, match="takes n and m for the same size, and they differ in the example"):
        onnx_ts_legacy.export(BROADCASTS["a cross product"], args, input_names=["x", "y"], dynamic_axes=axes)


def test_a_fixed_size_decides_what_a_part_is_broadcast_to() -> None:
    def model(x: Tensor) -> Tensor:
        return torch.zeros_like(x[:3] + torch.ones(3, 3))

    program = onnx_ts_legacy.export(model, (torch.randn(4, 3),), input_names=["x"], dynamic_axes={"x": {0: "n"}})

    for rows in (1, 3, 7):
        assert program(torch.randn(rows, 3))[0].shape == (3, 3)
    with pytest.raises(OnnxExporterError, match="captured for"):
        program(torch.randn(2, 3))


@torch.jit.script
def met_in_a_branch(x: Tensor, y: Tensor) -> tuple[Tensor, int, Tensor]:
    z = x
    if bool(x.sum() > -1000):
        z = x + y
    return z * 2, z.size(0), torch.ones_like(z)


@torch.jit.script
def met_in_a_loop(x: Tensor, y: Tensor) -> tuple[Tensor, int, Tensor]:
    z = x
    for _ in range(y.size(0)):
        z = torch.where(z > 0, z, y)
    return z, z.size(0), torch.ones_like(z)


@torch.jit.script
def summed_in_a_branch(x: Tensor, y: Tensor) -> tuple[Tensor, int, Tensor]:
    z = x
    if bool(x.sum() > -1000):
        z = torch.einsum("nk,nk->nk", x, y)
    return z, z.size(0), torch.ones_like(z)


@torch.jit.script
def multiplied_in_a_branch(x: Tensor, y: Tensor) -> tuple[Tensor, int, Tensor]:
    z = x
    if bool(x.sum() > -1000):
        z = (x[:, None] @ y[:, :, None])[:, 0]
    return z, z.size(0), torch.ones_like(z)


@torch.jit.script
def met_with_rows_that_the_data_chooses(x: Tensor, y: Tensor) -> tuple[Tensor, int, Tensor]:
    z = x[x[:, 0] > -1000] + y
    w = torch.einsum("nk,nk->nk", z[z[:, 0] > -1000], y)
    return z, w.size(0), torch.ones_like(w)


@pytest.mark.parametrize("rows", [(4, 4), (4, 1), (1, 4)], ids=str)
@pytest.mark.parametrize(
    "program",
    [
        *(met_in_a_branch, met_in_a_loop, summed_in_a_branch, multiplied_in_a_branch),
        met_with_rows_that_the_data_chooses,
    ],
    ids=lambda program: program.name,
)
def test_sizes_that_meet_on_some_paths_or_by_the_data_are_read_from_the_result(
    program: torch.jit.ScriptFunction, rows: tuple[int, int]
) -> None:
    example = tuple(torch.randn(count, 3) for count in rows)
    examples = [example, *(tuple(torch.randn(count, 3) for count in sizes) for sizes in SIZES)]
    exported(program, *examples, input_names=["x", "y"], dynamic_axes={"x": {0: "n"}, "y": {0: "m"}})


PARTS = {
    "a sum of products": 'torch.einsum("nk,nk->nk", x, y)',
    "a sum of transposed tensors": "(x.t() + y.t()).t()",
    "a product of matrices": "x.t() @ y",
    "a cut": "y.narrow(0, 0, 3)",
    "joined columns": "torch.cat([x, y], 1)",
}
LATER = {
    "the size of the second": "torch.ones_like(y.tril()) * y.size(0)",
    "a cut of the second": "torch.ones_like(y[:3]) * y[:3].size(0)",
    "joined rows": "torch.ones_like(torch.cat([x, y]))",
    "a sum of products": 'torch.ones_like(torch.einsum("nk,nk->nk", x, y))',
    "a comparison": "x.sum() if x.size(0) == y.size(0) else y.sum()",
}


@pytest.mark.parametrize("later", LATER)
@pytest.mark.parametrize("part", PARTS)
def test_what_is_left_out_decides_no_size_of_later_calls(part: str, later: str, tmp_path: Path) -> None:
    body = f"z = x.sum()\nif bool(z > 1000):\n    z = ({PARTS[part]}).sum()\nreturn z + {LATER[later]}"
    function = scripted_program(tmp_path, "x: torch.Tensor, y: torch.Tensor", body)
    program = onnx_ts_legacy.export(
        function,
        (torch.randn(4, 3), torch.randn(4, 3)),
        input_names=["x", "y"],
        dynamic_axes={"x": {0: "n"}, "y": {0: "m"}},
    )
    may_be_refused = ((5, 1), (1, 5)) if later == "a sum of products" else ()
    for sizes in (*SIZES, *(() if may_be_refused else ((5, 7), (2, 3), (7, 2)))):
        args = tuple(torch.randn(count, 3) for count in sizes)
        try:
            (result,) = program(*args)
        except OnnxExporterError:
            assert sizes in may_be_refused
        else:
            torch.testing.assert_close(result, function(*args))
