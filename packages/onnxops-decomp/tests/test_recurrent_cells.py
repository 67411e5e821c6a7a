"""Single steps of recurrent networks equal eager PyTorch at any batch size."""

from __future__ import annotations

import pytest
import torch
from decomp_harness import check
from opset_sweep import swept

GATES = {"gru_cell": 3, "lstm_cell": 4}


def example(gates: int, batch: int, biases: bool) -> list[torch.Tensor]:
    torch.manual_seed(batch)
    weights = [torch.randn(gates * 5, 3), torch.randn(gates * 5, 5)]
    states = [torch.randn(batch, 5), torch.randn(batch, 5)]
    return [torch.randn(batch, 3), *states, *weights, *([torch.randn(gates * 5)] * 2 if biases else [])]


@pytest.mark.parametrize("opset", swept(11, 13, 18))
@pytest.mark.parametrize("biases", [False, True])
@pytest.mark.parametrize("kind", GATES)
def test_cells(kind: str, biases: bool, opset: int) -> None:
    cell = getattr(torch, kind)

    def step(x, h, c, *weights):
        return cell(x, (h, c), *weights) if kind == "lstm_cell" else cell(x, h + c, *weights)

    gates = GATES[kind]
    check(step, *example(gates, 4, biases), opset=opset, others=[example(gates, 2, biases)])
