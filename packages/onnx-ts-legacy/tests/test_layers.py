"""Models of several layers, traced and scripted, at sizes other than the example's."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn
from ts_models import exported, n

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


class Masked(nn.Module):
    """Calls a layer with padding, of which only the rows that are not padding are compared."""

    def __init__(self, layer: nn.Module) -> None:
        super().__init__()
        self.layer = layer

    def forward(self, x: Tensor, padding: Tensor) -> Tensor:
        result = self.layer(x, src_key_padding_mask=padding)
        return result.masked_fill(padding.unsqueeze(-1), 0.0)


class Attends(nn.Module):
    """Attention without weights, which is fused in evaluation."""

    def __init__(self) -> None:
        super().__init__()
        self.attention = nn.MultiheadAttention(8, 2, batch_first=True)

    def forward(self, x: Tensor, padding: Tensor) -> Tensor:
        return self.attention(x, x, x, key_padding_mask=padding, need_weights=False)[0]


def encoder_layer(**options: Any) -> nn.Module:
    return nn.TransformerEncoderLayer(8, 2, 16, batch_first=True, **options)


SIZES = ((2, 6), (3, 9))
SCRIPTED_LAYERS = {
    "layer": lambda: Masked(encoder_layer()),
    "normalized first": lambda: Masked(encoder_layer(norm_first=True, activation="gelu")),
    "encoder of nested tensors": lambda: Masked(nn.TransformerEncoder(encoder_layer(), 2)),
    "attention": Attends,
}


@pytest.mark.parametrize("trained", [False, True])
@pytest.mark.parametrize("make", SCRIPTED_LAYERS.values(), ids=SCRIPTED_LAYERS)
def test_scripted_layers_of_transformers_use_no_fused_operators(make: Any, trained: bool) -> None:
    model = torch.jit.script(make().eval().requires_grad_(trained))
    padding = [torch.arange(steps) >= torch.tensor([[steps], [steps - 2], [steps]])[:rows] for rows, steps in SIZES]
    examples = [(n(rows, steps, 8), mask) for (rows, steps), mask in zip(SIZES, padding, strict=True)]
    axes = {name: {0: "rows", 1: "steps"} for name in ("x", "padding")}
    exported(model, *examples, dynamic_axes=axes, input_names=["x", "padding"])


class Translates(nn.Module):
    """A whole transformer, whose target is masked causally."""

    def __init__(self) -> None:
        super().__init__()
        self.transformer = nn.Transformer(8, 2, 1, 1, 16, batch_first=True)

    def forward(self, src: Tensor, tgt: Tensor, padding: Tensor) -> Tensor:
        steps = tgt.size(1)
        mask = torch.triu(torch.full((steps, steps), float("-inf")), 1)
        return self.transformer(src, tgt, tgt_mask=mask, src_key_padding_mask=padding, memory_key_padding_mask=padding)


@pytest.mark.parametrize("scripted", [False, True], ids=["traced", "scripted"])
def test_a_whole_transformer(scripted: bool) -> None:
    model = Translates().eval()
    sizes = [(2, 6, 5), (3, 9, 4), (2, 5, 9)]
    calls = [
        (n(rows, read, 8), n(rows, written, 8), torch.arange(read) > n(rows, 1) + read - 2)
        for rows, read, written in sizes
    ]
    axes = {"src": {0: "rows", 1: "read"}, "tgt": {0: "rows", 1: "written"}, "padding": {0: "rows", 1: "read"}}
    exported(torch.jit.script(model) if scripted else model, *calls, dynamic_axes=axes, input_names=list(axes))


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
