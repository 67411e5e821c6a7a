"""Models that ask what their weights hold are captured for the present values, unless they write to them."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from onnx_fx_export import CaptureError, MutationError, export

ROWS = ({0: "rows"},)


class Codebook(nn.Module):
    """Initializes its codes from the first batch, as quantizers do, unless they are."""

    def __init__(self, initialized: bool) -> None:
        super().__init__()
        self.register_buffer("initialized", torch.tensor([initialized]))
        self.register_buffer("counts", torch.tensor([3.0, 0.0, 2.0]))
        self.register_buffer("codes", torch.randn(4, 3))

    @torch.no_grad()
    def initialize(self, x: Tensor) -> None:
        if self.initialized:
            return
        self.codes.copy_(x[:4])
        self.initialized.fill_(True)

    def forward(self, x: Tensor) -> Tensor:
        self.initialize(x)
        found = self.codes[torch.cdist(x, self.codes).argmin(-1)]
        return found / self.counts.sum() if self.counts.sum() > 1 else found


def test_what_weights_hold_decides() -> None:
    model = Codebook(initialized=True)
    with pytest.warns(UserWarning, match=r"asks what weights hold \(initialized"):
        program = export(model, (torch.randn(5, 3),), dynamic_shapes=ROWS)
    assert program.capture_strategy == "known-weights"
    for rows in (4, 9):
        x = torch.randn(rows, 3)
        torch.testing.assert_close(program(x), model(x))
    assert model.initialized.item() is True


def test_weights_that_the_model_writes_decide_nothing() -> None:
    with pytest.raises((CaptureError, MutationError)):
        export(Codebook(initialized=False), (torch.randn(5, 3),), dynamic_shapes=ROWS)


class Counting(nn.Module):
    """Does something else in its first call."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("calls", torch.tensor(0))

    def forward(self, x: Tensor) -> Tensor:
        if self.calls == 0:
            x = x * 2
        self.calls.add_(1)
        return x


@pytest.mark.parametrize("state", ["error", "io", "ignore"])
def test_a_count_of_calls_is_no_constant(state: str) -> None:
    with pytest.raises((CaptureError, MutationError)):
        export(Counting(), (torch.randn(5, 3),), dynamic_shapes=ROWS, strategy="known-weights", state=state)


def test_conditions_on_inputs_are_left_open() -> None:
    class Scaled(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.scale = nn.Parameter(torch.tensor(2.0))

        def forward(self, x: Tensor) -> Tensor:
            return x * 2 if x.sum() > self.scale else x

    with pytest.raises(CaptureError, match="branches on the values of a tensor"):
        export(Scaled(), (torch.randn(5, 3),), dynamic_shapes=ROWS, strategy="known-weights")
