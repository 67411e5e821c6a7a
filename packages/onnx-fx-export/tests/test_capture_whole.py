"""Operators that torch.export cannot see through are captured whole and stay dynamic."""

import torch
from torch.export import Dim

from onnx_fx_export import export


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
