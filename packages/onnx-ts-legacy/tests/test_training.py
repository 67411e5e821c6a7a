"""Models exported in training mode: what dropout drops and how it scales the rest, and running statistics as state."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import Tensor, nn
from ts_models import over_opsets

import onnx_ts_legacy
from onnx_ts_legacy import TrainingMode
from onnx_ts_legacy.errors import CaptureError

AXES = {"x": {0: "n"}}


class Wrapped(nn.Module):
    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner = inner

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        return self.inner(x.clone()), self.inner(x.clone())


# So many draws that their rates are nearer to each other than the tolerance by six standard deviations.
DROPPING = {
    "Dropout": (nn.Dropout(0.3), (15000, 5)),
    "Dropout in place": (nn.Dropout(0.3, inplace=True), (15000, 5)),
    "Dropout1d": (nn.Dropout1d(0.4), (15000, 5, 3)),
    "Dropout2d": (nn.Dropout2d(0.4), (15000, 5, 3, 2)),
    "Dropout3d": (nn.Dropout3d(0.4), (15000, 5, 2, 1, 2)),
    "AlphaDropout": (nn.AlphaDropout(0.2), (15000, 5)),
    "FeatureAlphaDropout": (nn.FeatureAlphaDropout(0.2), (15000, 5, 3)),
}


@pytest.mark.parametrize("scripted", [False, True], ids=["traced", "scripted"])
@pytest.mark.parametrize(("case", "_", "opset"), over_opsets(DROPPING))
def test_dropout_drops_as_often_and_scales_as_torch_does(
    case: tuple[nn.Module, tuple[int, ...]], _: int, opset: int, scripted: bool
) -> None:
    inner, sizes = case
    model = Wrapped(inner).train()
    callee = torch.jit.script(model) if scripted else model
    example = torch.ones(4, *sizes[1:])
    program = onnx_ts_legacy.export(
        callee, (example,), training=TrainingMode.TRAINING, opset_version=opset, dynamic_axes=AXES
    )

    x = torch.ones(sizes)
    first, second = program(x)
    expected = model(x.clone())[0]

    torch.testing.assert_close(first.unique(), expected.unique(), rtol=1e-4, atol=1e-5)
    dropped = first == first.min()
    torch.testing.assert_close(dropped.float().mean(), (expected == expected.min()).float().mean(), rtol=0, atol=0.02)
    assert not torch.equal(first, second)
    if first.dim() > 2:
        # Whole channels are dropped.
        assert (dropped.flatten(2).sum(2) % dropped[0, 0].numel() == 0).all()


NORMALIZING = {
    "exponential average": {"momentum": 0.3, "eps": 1e-2},
    "without affine": {"affine": False},
    "cumulative average": {"momentum": None},
}


@pytest.mark.parametrize(("options", "_", "opset"), over_opsets(NORMALIZING))
@pytest.mark.parametrize(
    ("kind", "sizes"), [(nn.BatchNorm1d, ()), (nn.BatchNorm2d, (4, 2)), (nn.BatchNorm3d, (2, 1, 3))]
)
def test_running_statistics_are_those_of_torch_batch_after_batch(
    kind: type[nn.Module], sizes: tuple[int, ...], options: dict[str, float], _: int, opset: int
) -> None:
    model = kind(3, **options).train()
    program = onnx_ts_legacy.export(
        torch.jit.script(copy.deepcopy(model)),
        (torch.randn(4, 3, *sizes),),
        training=TrainingMode.PRESERVE,
        state="io",
        opset_version=opset,
        input_names=["x"],
        dynamic_axes=AXES,
    )

    state = dict(program.initial_state)
    assert set(state) == {"running_mean", "running_var", "num_batches_tracked"}
    for count in (5, 2, 9):
        x = torch.randn(count, 3, *sizes) * 3 + 1
        outputs = dict(zip(program.output_names, program(x, **state), strict=True))
        torch.testing.assert_close(outputs["output"], model(x).detach(), rtol=1e-4, atol=1e-4)
        state = {name: outputs[output] for name, output in program.state_outputs.items()}
        for name, expected in model.named_buffers():
            torch.testing.assert_close(state[name], expected, rtol=1e-4, atol=1e-5)


def test_a_cumulative_average_that_a_trace_would_fix_is_refused() -> None:
    with pytest.raises(CaptureError, match=r"num_batches_tracked, which the model changes, decides: float\(\)"):
        onnx_ts_legacy.export(
            nn.BatchNorm1d(3, momentum=None), (torch.randn(4, 3),), training=TrainingMode.TRAINING, state="io"
        )
