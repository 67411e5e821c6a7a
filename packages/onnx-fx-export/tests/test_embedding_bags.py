"""Bags of embeddings whose last offset is given, and which may end before the indices do."""

import pytest
import sympy
import torch

from onnx_fx_export import export
from onnx_fx_export.sizes.questions import Sizes
from onnx_fx_export.sizes.trial_runs import TrialRuns


@pytest.mark.parametrize("opset", [9, 18])
@pytest.mark.parametrize("padding", [None, 3])
@pytest.mark.parametrize("mode", ["sum", "mean", "max"])
def test_the_last_offset_ends_the_last_bag(mode: str, padding: int | None, opset: int) -> None:
    model = torch.nn.EmbeddingBag(10, 2, mode=mode, include_last_offset=True, padding_idx=padding).eval()
    program = export(
        model,
        (torch.arange(7), torch.tensor([0, 2, 5, 6])),
        dynamic_shapes=({0: torch.export.Dim("n")}, {0: torch.export.Dim("bags")}),
        opset_version=opset,
    )
    for count, ends in ((7, [0, 2, 5, 6]), (5, [0, 0, 4]), (9, [0, 9, 9]), (4, [0, 3])):
        call = (torch.arange(count), torch.tensor(ends))
        torch.testing.assert_close(program(*call), model(*call).detach())


class FewBags(torch.nn.Module):
    """Looks up bags at sizes other than those of the example."""

    def __init__(self) -> None:
        super().__init__()
        self.bag = torch.nn.EmbeddingBag(10, 2, include_last_offset=True)

    def looked_up(self, x, offsets):
        return self.bag(x, offsets)

    def forward(self, x, offsets):
        return x.sum() + offsets.sum() if offsets.shape[0] > 2 else self.looked_up(x, offsets)


class FewBagsByFunction(FewBags):
    def __init__(self) -> None:
        super().__init__()
        del self.bag
        self.weight = torch.nn.Parameter(torch.randn(10, 2))

    def looked_up(self, x, offsets):
        return torch.nn.functional.embedding_bag(x, self.weight, offsets, include_last_offset=True)


@pytest.mark.parametrize("model", [FewBags(), FewBagsByFunction()], ids=lambda model: type(model).__name__)
def test_a_trial_run_makes_no_call_that_ends_the_process(model: torch.nn.Module) -> None:
    """PyTorch writes to memory that is not there where the one offset is the last one: such a call is refused."""
    example, offsets = (torch.arange(4), torch.tensor([0, 2, 3, 4])), torch.export.Dim.DYNAMIC
    program = torch.export.export(model, example, dynamic_shapes=({}, {0: offsets}))
    trials = TrialRuns(program, model, (example, {}))
    (symbol,) = Sizes.of(program, [{}, {}]).hints

    assert trials.run({symbol: sympy.Integer(2)})[0] is not None
    assert trials.run({symbol: sympy.Integer(1)}) == (None, False)
