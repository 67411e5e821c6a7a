"""Operators that torch.export cannot see through are captured whole and stay dynamic."""

from collections.abc import Callable

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch.export import Dim

from onnx_fx_export import CaptureError, export


def _lengths(batch: int, steps: int) -> tuple[torch.Tensor, ...]:
    targets = torch.randint(1, 5, (batch, 3))
    return torch.randn(steps, batch, 5), targets, torch.full((batch,), steps), torch.randint(1, 4, (batch,))


def test_ctc_loss_runs_at_other_lengths_and_batches() -> None:
    class Loss(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.ctc = torch.nn.CTCLoss()

        def forward(self, x, targets, steps, lengths):
            return self.ctc(x.log_softmax(-1), targets, steps, lengths)

    steps, batch = Dim("steps"), Dim("batch")
    shapes = ({0: steps, 1: batch}, {0: batch}, {0: batch}, {0: batch})
    program = export(Loss(), _lengths(2, 9), dynamic_shapes=shapes)
    for example in (_lengths(3, 7), _lengths(5, 12)):
        torch.testing.assert_close(program(*example), Loss()(*example))


def test_the_covariance_keeps_its_dimensions_dynamic() -> None:
    def function(x: torch.Tensor) -> torch.Tensor:
        return x.cov()

    program = export(function, (torch.randn(3, 6),), dynamic_shapes=({0: "variables", 1: "observations"},))
    x = torch.randn(4, 9)
    torch.testing.assert_close(program(x), function(x))


def test_a_slice_that_starts_where_a_tensor_says() -> None:
    def window(x: torch.Tensor, start: torch.Tensor) -> torch.Tensor:
        return torch.narrow(x, 0, start, 2) * 2

    program = export(window, (torch.randn(6, 3), torch.tensor(1)), dynamic_shapes=({0: "rows"}, None))
    x = torch.randn(9, 3)
    torch.testing.assert_close(program(x, torch.tensor(7)), window(x, torch.tensor(7)))


def rest_of_each_row(x: torch.Tensor, counts: torch.Tensor) -> torch.Tensor:
    most = counts.max()
    return torch.cat([x.narrow(-1, most, x.size(-1) - most), x.narrow(-1, 0, most) * 2], -1)


def rest_by_names(x: torch.Tensor, counts: torch.Tensor) -> torch.Tensor:
    most = counts.max()
    return torch.narrow(x, dim=1, start=most, length=most)


@pytest.mark.parametrize("function", [rest_of_each_row, rest_by_names])
def test_the_length_of_a_slice_may_be_a_tensor_as_well(function: Callable[..., torch.Tensor]) -> None:
    shapes = ({0: "rows", 1: "columns"}, None)
    program = export(function, (torch.randn(2, 8), torch.tensor([1, 3])), dynamic_shapes=shapes)
    for counts in ([1, 3], [0, 0], [5, 2]):
        example = torch.randn(3, 12), torch.tensor(counts)
        torch.testing.assert_close(program(*example), function(*example))


def rest_beside_writes(x: torch.Tensor, mask: torch.Tensor) -> tuple[torch.Tensor, ...]:
    most = mask.sum(1).max()
    kept = x * 2
    rest = kept.narrow(-1, most, kept.size(-1) - most).clone()
    kept[mask] = 0.0
    kept[:, 1:] += 1
    return rest, kept


def rest_that_is_written(x: torch.Tensor, mask: torch.Tensor) -> tuple[torch.Tensor, ...]:
    most = mask.sum(1).max()
    kept = x * 2
    rest = kept.narrow(-1, most, kept.size(-1) - most)
    rest.mul_(5)
    return rest, kept


def rest_one_way(x: torch.Tensor, mask: torch.Tensor) -> tuple[torch.Tensor, ...]:
    return rest_beside_writes(x, mask)[1:] if mask.any() else (x + 0,)


@pytest.mark.parametrize("function", [rest_beside_writes, rest_that_is_written, rest_one_way])
def test_a_slice_that_starts_where_a_tensor_says_stands_beside_writes(
    function: Callable[..., tuple[torch.Tensor, ...]],
) -> None:
    def inputs(*counts: int) -> tuple[torch.Tensor, torch.Tensor]:
        return torch.randn(len(counts), 8 + len(counts)), torch.arange(8 + len(counts)) < torch.tensor(counts)[:, None]

    program = export(function, inputs(1, 3), dynamic_shapes=({0: "rows", 1: "columns"},) * 2)
    for example in (inputs(0, 0, 0), inputs(4, 0, 2), inputs(9)):
        torch.testing.assert_close(program(*example), function(*example))


@pytest.mark.parametrize("rank", [2, 3])
def test_an_affine_grid_follows_the_size_of_the_image(rank: int) -> None:
    def warped(image: torch.Tensor, theta: torch.Tensor) -> torch.Tensor:
        grid = F.affine_grid(theta, image.shape, align_corners=True)
        return F.grid_sample(image, grid, padding_mode="reflection", align_corners=True)

    def inputs(*sizes: int) -> tuple[torch.Tensor, torch.Tensor]:
        return torch.randn(sizes[0], 3, *sizes[1 : 1 + rank]), torch.randn(sizes[0], rank, rank + 1) / 2

    dynamic = {0: "batch"} | {2 + axis: f"size_{axis}" for axis in range(rank)}
    program = export(warped, inputs(2, 5, 6, 4), dynamic_shapes=(dynamic, {0: "batch"}))
    for example in (inputs(3, 7, 4, 9), inputs(1, 2, 8, 3), inputs(2, 1, 4, 3), inputs(1, 1, 1, 1)):
        torch.testing.assert_close(program(*example), warped(*example), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("opset", [16, 20, 22])
@pytest.mark.parametrize("align_corners", [False, True])
def test_an_affine_grid_of_half_precision_has_any_batch(opset: int, align_corners: bool) -> None:
    def grid(theta: torch.Tensor) -> torch.Tensor:
        return F.affine_grid(theta, [theta.shape[0], 1, 4, 3], align_corners)

    thetas = [torch.randn(batch, 2, 3).half() for batch in (2, 1, 5)]
    program = export(grid, (thetas[0],), dynamic_shapes=({0: "batch"},), opset_version=opset)
    for theta in thetas:
        torch.testing.assert_close(program(theta), grid(theta), rtol=1e-2, atol=1e-2)


def test_an_affine_grid_of_another_rank_is_refused() -> None:
    with pytest.raises(CaptureError, match=r"theta of shape \(N, 2, 3\)"):
        export(lambda theta: F.affine_grid(theta, [2, 3, 4, 5], False), (torch.randn(2, 3, 4),))


GROUPED = {
    "rows": (lambda tokens: ((tokens, 8), (2, 8, 16)), ({0: "tokens"}, None, None)),
    "columns": (lambda tokens: ((2, 4, 8), (8, tokens)), (None, {1: "tokens"}, None)),
    "inner": (lambda tokens: ((8, tokens), (tokens, 16)), ({1: "tokens"}, {0: "tokens"}, None)),
    "batch": (lambda tokens: ((2, tokens, 8), (2, 8, 16)), ({1: "tokens"}, None)),
}


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
@pytest.mark.parametrize("name", GROUPED)
def test_products_of_groups_take_floats(name: str, dtype: torch.dtype) -> None:
    shapes, dynamic = GROUPED[name]

    def function(x: torch.Tensor, weight: torch.Tensor, ends: torch.Tensor | None = None) -> torch.Tensor:
        return F.grouped_mm(x, weight, offs=ends)

    def args(tokens: int) -> tuple[torch.Tensor, ...]:
        operands = [torch.randn(shape).to(dtype) for shape in shapes(tokens)]
        return (*operands, *([] if name == "batch" else [torch.tensor([tokens // 4, tokens], dtype=torch.int32)]))

    program, other = export(function, args(8), dynamic_shapes=dynamic), args(24)
    torch.testing.assert_close(program(*other), function(*other))


@pytest.mark.parametrize("wrap", [lambda x: x, lambda x: {"x": x}, lambda x: [x]], ids=["array", "dict", "list"])
def test_an_array_as_an_argument_is_refused_with_what_to_give(wrap: Callable) -> None:
    with pytest.raises(CaptureError, match=r"torch\.from_numpy"):
        export(lambda x: x, (wrap(np.ones((2, 3), np.float32)),))
