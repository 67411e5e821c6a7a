"""The migration report beside the FX exporter itself, on models that it takes and on one that it does not."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from onnx_ts_legacy import migration_report

pytest.importorskip("onnx_fx_export", reason="the report is about onnx-fx-export, which need not be installed")

X = torch.randn(2, 3)


class Named(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(3, 4)

    def forward(self, x: Tensor, scale: Tensor) -> dict[str, Tensor]:
        return {"scaled": self.linear(x) * scale, "sum": x.sum(1)}


def deciding(x: Tensor) -> Tensor:
    return x.relu() if x.mean() > 0 else x[:1]


def test_a_model_that_is_taken_is_ready_with_its_names_and_opset() -> None:
    report = migration_report(Named(), (X, torch.ones(4)), opset_version=18)

    assert report.ready
    assert report.reason == ""
    assert report.input_names[0] == ["x", "scale"]
    assert report.output_names[0] == ["scaled", "sum"]
    assert len(report.input_names[1]) == len(report.output_names[1]) == 2
    assert report.opsets == (18, 18)
    for line in ("takes the model", "inputs: ['x', 'scale']", "opset: 18"):
        assert line in str(report)


def test_names_that_were_asked_for_are_the_same_there() -> None:
    report = migration_report(nn.Linear(3, 2), (X,), input_names=["a"], output_names=["b"], opset_version=18)

    assert report.input_names == (["a"], ["a"])
    assert report.output_names == (["b"], ["b"])
    assert "become" not in str(report)


def test_without_an_opset_the_one_of_each_exporter_is_shown() -> None:
    report = migration_report(nn.LayerNorm(3), (X,))

    assert report.ready
    assert report.opsets[0] == 17
    assert (f"opset: 17 becomes {report.opsets[1]}" in str(report)) is (report.opsets[1] != 17)


def test_dynamic_axes_go_to_both() -> None:
    def fixed(x: Tensor) -> Tensor:
        return torch.cat([x, x]).relu()

    report = migration_report(fixed, (X,), dynamic_axes={"x": {0: "n"}}, opset_version=9)

    assert report.ready
    assert report.opsets == (9, 9)


def test_operators_that_become_others_are_counted() -> None:
    report = migration_report(nn.Sequential(nn.Linear(3, 3), nn.GELU()), (X,), opset_version=20)

    assert report.ready
    for here, there in report.operators.values():
        assert here != there


@pytest.mark.filterwarnings("ignore::torch.jit.TracerWarning")
def test_a_condition_on_values_is_why_a_model_is_not_taken() -> None:
    report = migration_report(deciding, (X,))

    assert not report.ready
    assert report.reason
    assert "does not take the model yet" in str(report)


def test_state_goes_to_both() -> None:
    class Counting(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("count", torch.zeros(1))

        def forward(self, x: Tensor) -> Tensor:
            self.count += 1
            return x * self.count

    report = migration_report(Counting(), (X,), state="io", opset_version=18)

    assert report.ready
    assert report.input_names[0] == ["x", "count"]
    assert len(report.input_names[1]) == 2
