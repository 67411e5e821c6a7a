"""``fallback=True``: what the FX exporter cannot take goes through TorchScript, honestly or not at all."""

from __future__ import annotations

import warnings
from pathlib import Path

import onnx
import pytest
import torch
from torch import nn

import onnx_fx_export
from onnx_fx_export import CaptureError, FallbackError, export

X = torch.linspace(-2, 2, 6).reshape(2, 3) + 0.3


class Packed(nn.Module):
    """torch.export cannot capture it, and a trace holds all of it."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.LSTM(3, 4, batch_first=True)

    def forward(self, x, lengths):
        if torch.compiler.is_exporting():
            raise NotImplementedError("not for torch.export")
        packed = nn.utils.rnn.pack_padded_sequence(x, lengths, batch_first=True, enforce_sorted=False)
        return nn.utils.rnn.pad_packed_sequence(self.layer(packed)[0], batch_first=True)[0]


ARGS = (torch.randn(2, 6, 3), torch.tensor([6, 3]))


class PackedLayer(nn.Module):
    """A recurrent layer of any kind, whose own checks of its arguments ask for numbers."""

    def __init__(self, kind: type[nn.RNNBase], total: bool, **options) -> None:
        super().__init__()
        self.layer, self.total = kind(3, 4, batch_first=True, **options), total

    def forward(self, x, lengths):
        packed = nn.utils.rnn.pack_padded_sequence(x, lengths.cpu(), batch_first=True, enforce_sorted=False)
        output, hidden = self.layer(packed)
        total = x.shape[1] if self.total else None
        return nn.utils.rnn.pad_packed_sequence(output, batch_first=True, total_length=total), hidden


class Branch(nn.Module):
    def forward(self, x):
        return torch.relu(x) if bool(x.sum() > -99) else x[:1]


class ScriptedPart(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = torch.jit.script(nn.Linear(3, 2))

    def forward(self, x):
        return self.layer(x) * 2


@pytest.mark.filterwarnings("ignore")
def test_a_scripted_part_is_refused_with_its_path_and_taken_by_the_fallback() -> None:
    model = ScriptedPart()
    with pytest.raises(CaptureError, match=r"'layer' is scripted.*dynamo=False"):
        export(model, (X,))
    program = export(model, (X,), fallback=True, dynamic_shapes={"x": {0: "n"}})
    other = torch.randn(5, 3)
    torch.testing.assert_close(program(other), model(other))


class Loop(nn.Module):
    def forward(self, x):
        for _ in range(int(x[0, 0].abs())):
            x = x + 1
        return x


class PackedNumber(Packed):
    def forward(self, x, lengths):
        return super().forward(x * x.sum().item(), lengths)


class PackedList(Packed):
    def forward(self, x, lengths):
        return super().forward(x + torch.tensor(x.tolist()), lengths)


class PackedArray(Packed):
    def forward(self, x, lengths):
        return super().forward(x + torch.from_numpy(x.detach().numpy() * 2), lengths)


def helper(x):
    return x * 2 if x.max() > 0 else x


class Nested(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Sequential(nn.Linear(3, 3), Branch())

    def forward(self, x):
        return helper(self.inner(x))


def test_a_fallback_warns_with_the_reason_and_keeps_the_opset() -> None:
    model = Packed().eval()
    with pytest.warns(UserWarning, match=r"fallback=True(.|\n)*not for torch.export") as caught:
        program = export(model, ARGS, fallback=True, dynamic_shapes=({0: "batch", 1: "time"}, {0: "batch"}))

    assert program.model.opset_imports[""] == export(nn.ReLU(), (X,)).model.opset_imports[""] == 20
    assert __file__ in [warning.filename for warning in caught]
    other = (torch.randn(3, 7, 3), torch.tensor([2, 7, 5]))
    torch.testing.assert_close(program(*other), model(*other).detach())


@pytest.mark.parametrize("total", [False, True])
@pytest.mark.parametrize("options", [{}, {"num_layers": 2, "bidirectional": True}], ids=["one layer", "two layers"])
@pytest.mark.parametrize("kind", [nn.LSTM, nn.GRU, nn.RNN])
def test_packed_sequences_are_exported(kind: type[nn.RNNBase], options: dict, total: bool) -> None:
    model = PackedLayer(kind, total, **options).eval()
    program = export(model, ARGS, dynamo=False, dynamic_shapes=({0: "batch", 1: "time"}, {0: "batch"}))

    for other in ((torch.randn(3, 7, 3), torch.tensor([2, 7, 5])), (torch.randn(4, 8, 3), torch.tensor([1, 6, 6, 2]))):
        torch.testing.assert_close(program(*other), model(*other), rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("model", [Branch, Loop, Nested, PackedNumber, PackedList, PackedArray])
def test_what_the_data_decides_is_never_traced_away(model: type[nn.Module], tmp_path: Path) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", torch.jit.TracerWarning)
        with pytest.raises(FallbackError, match=r"the data decides.*test_fallback\.py:\d+") as caught:
            export(model(), ARGS if issubclass(model, Packed) else (X,), tmp_path / "model.onnx", fallback=True)

    assert "Script the model (torch.jit.script), or use torch.cond" in str(caught.value)
    assert list(tmp_path.iterdir()) == []


def test_an_error_tells_the_reasons_of_both() -> None:
    with pytest.raises(CaptureError) as alone:
        export(Branch(), (X,))
    with pytest.raises(FallbackError) as both:
        export(Branch(), (X,), fallback=True)

    assert str(alone.value) in str(both.value)
    assert str(both.value.torchscript) in str(both.value)
    assert isinstance(both.value.fx, CaptureError)


@pytest.mark.parametrize(
    "option",
    [
        {"capture_repeated_blocks": True},
        {"dump_exported_program": True},
        {"opset_version": 28},
    ],
    ids=lambda option: next(iter(option)),
)
def test_what_a_fallback_cannot_honour_is_refused_with_both_reasons(option: dict, tmp_path: Path) -> None:
    with pytest.raises(FallbackError, match=rf"not for torch.export(.|\n)*{next(iter(option))}=.*is refused"):
        export(Packed().eval(), ARGS, tmp_path / "m.onnx", fallback=True, artifacts_dir=tmp_path, **option)
    assert not (tmp_path / "m.onnx").exists()


def test_an_export_that_needs_no_fallback_does_not_warn(recwarn: pytest.WarningsRecorder, tmp_path: Path) -> None:
    export(nn.ReLU(), (X,), fallback=True, dump_exported_program=True, artifacts_dir=tmp_path)
    assert not [warning for warning in recwarn if "fallback" in str(warning.message)]


def test_a_model_in_training_mode_stays_in_it() -> None:
    model = nn.Sequential(Packed(), nn.Dropout(0.5))
    model.forward = lambda x, lengths: model[1](model[0](x, lengths))
    program = export(model.train(), ARGS, fallback=True)

    assert "Dropout" in [node.op_type for node in program.model.graph]
    assert model.training


@pytest.mark.parametrize("options", [{"dynamo": False}, {"fallback": True}], ids=lambda options: next(iter(options)))
def test_bounds_of_dimensions_are_kept(options: dict, tmp_path: Path) -> None:
    rows, model = torch.export.Dim("rows", min=2, max=8), Packed().eval()
    program = export(model, ARGS, tmp_path / "m.onnx", dynamic_shapes=({0: rows}, {0: rows}), **options)

    assert set(program.constraints.conditions) == {"rows >= 2", "rows <= 8"}
    assert "rows <= 8" in onnx.load(tmp_path / "m.onnx").metadata_props[0].value
    program(torch.randn(8, 6, 3), torch.tensor([6, 3] * 4))
    with pytest.raises(onnx_fx_export.InvalidArgumentError, match="rows <= 8"):
        program(torch.randn(9, 6, 3), torch.tensor([6] * 9))
