"""Models of several layers, traced and scripted, at sizes other than the example's."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn
from ts_models import exported

import onnx_ts_legacy
from onnx_ts_legacy.errors import CaptureError


class Convolutional(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(
            nn.Conv2d(3, 8, 3, stride=2, padding=1),
            nn.BatchNorm2d(8),
            nn.ReLU(inplace=True),
            nn.MaxPool2d(2),
            nn.Conv2d(8, 8, 3, padding=1, groups=2),
            nn.GroupNorm(2, 8),
            nn.SiLU(),
            nn.AdaptiveAvgPool2d(1),
            nn.Flatten(),
            nn.Dropout(),
            nn.Linear(8, 5),
        )

    def forward(self, x: Tensor) -> Tensor:
        return self.body(x).softmax(-1)


class Recurrent(nn.Module):
    def __init__(self, kind: type) -> None:
        super().__init__()
        self.embedding = nn.Embedding(20, 6)
        self.network = kind(6, 5, num_layers=2, bidirectional=True, batch_first=True)

    def forward(self, tokens: Tensor) -> Tensor:
        return self.network(self.embedding(tokens))[0]


class Cells(nn.Module):
    def __init__(self, kind: type) -> None:
        super().__init__()
        self.cell = kind(4, 3)

    def forward(self, x: Tensor) -> Tensor:
        state = self.cell(x)
        return self.cell(x, state)[0] if isinstance(state, tuple) else self.cell(x, state)


class Encoder(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        layer = nn.TransformerEncoderLayer(8, 2, 16, batch_first=True, activation="gelu")
        self.encoder = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)

    def forward(self, x: Tensor) -> Tensor:
        return self.encoder(x)


def built(kind: type, *args: object) -> nn.Module:
    torch.manual_seed(0)
    return kind(*args).eval()


IMAGES = (torch.randn(2, 3, 32, 32),), (torch.randn(5, 3, 32, 32),)
TOKENS = (torch.randint(0, 20, (2, 7)),), (torch.randint(0, 20, (3, 4)),)
ROWS = (torch.randn(2, 4),), (torch.randn(5, 4),)
SEQUENCES = (torch.randn(2, 5, 8),), (torch.randn(3, 9, 8),)


@pytest.mark.parametrize("opset", [7, 11, 18, 24])
@pytest.mark.parametrize("scripted", [False, True], ids=["traced", "scripted"])
def test_a_convolutional_network(opset: int, scripted: bool) -> None:
    model = built(Convolutional)

    exported(torch.jit.script(model) if scripted else model, *IMAGES, opset=opset, dynamic_axes={"x": {0: "n"}})


@pytest.mark.parametrize("kind", [nn.LSTM, nn.GRU, nn.RNN])
@pytest.mark.parametrize("scripted", [False, True], ids=["traced", "scripted"])
def test_a_recurrent_network_with_dynamic_batch_and_length(kind: type, scripted: bool) -> None:
    model = built(Recurrent, kind)

    exported(
        torch.jit.script(model) if scripted else model, *TOKENS, opset=14, dynamic_axes={"tokens": {0: "n", 1: "t"}}
    )


@pytest.mark.parametrize("kind", [nn.LSTMCell, nn.GRUCell, nn.RNNCell])
@pytest.mark.parametrize("scripted", [False, True], ids=["traced", "scripted"])
def test_recurrent_cells(kind: type, scripted: bool) -> None:
    model = built(Cells, kind)

    exported(torch.jit.script(model) if scripted else model, *ROWS, dynamic_axes={"x": {0: "n"}})


@pytest.mark.parametrize("opset", [9, 13, 17, 23])
def test_a_transformer_encoder(opset: int) -> None:
    exported(built(Encoder), *SEQUENCES, opset=opset, dynamic_axes={"x": {0: "n", 1: "t"}})


class CastsItsLayer(nn.Module):
    """Casts a layer in each call, as the routers of some mixtures of experts do."""

    def __init__(self, dtype):
        super().__init__()
        self.linear = nn.Linear(4, 3, dtype=dtype)

    def forward(self, x):
        return self.linear.to(torch.float32)(x)


def test_a_layer_may_be_cast_to_the_dtype_that_it_has():
    model, x = CastsItsLayer(torch.float32), torch.randn(2, 4)
    (found,) = onnx_ts_legacy.export(model, (x,))(x)
    torch.testing.assert_close(found, model(x).detach())
    with pytest.raises(CaptureError, match=r"Tensor\.data"):
        onnx_ts_legacy.export(CastsItsLayer(torch.float64), (x,))
