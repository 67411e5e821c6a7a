"""With ``frozen_values="error"`` a trace in which the data decides a Python value is refused, and no other."""

from __future__ import annotations

import ctypes
import io
import operator
from collections.abc import Callable

import numpy as np
import pytest
import torch
from test_frozen_values import FUNCTIONS, OF_SIZES
from torch import Tensor, allclose, equal, is_nonzero, nn, tensor
from torch.utils import _pytree as pytree

import onnx_ts_legacy
from onnx_ts_legacy.errors import CaptureError

X = torch.linspace(-2, 2, 6).reshape(2, 3) + 0.3


class Deciding(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x * 2 if x.max() > 0 else x


class DecidingFunction(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x * 2 if x.sum() > 0 else x


def written_through_a_view(x: Tensor) -> Tensor:
    memory = torch.zeros(2, 3)
    memory[0].copy_(x[0])
    return x * 2 if memory.sum() > 0 else x


def read_through_a_view(x: Tensor) -> Tensor:
    memory = torch.zeros(2, 3)
    row = memory[0]
    memory.copy_(x)
    return x * 2 if row.sum() > 0 else x


def length_of_a_selection(x: Tensor) -> Tensor:
    for _ in range(x[x > 0].shape[0]):
        x = x + 1
    return x


def length_of_a_slice(x: Tensor) -> Tensor:
    return x + 1 if x.reshape(-1)[: x.argmax()].shape[0] > 1 else x


def length_of_a_range(x: Tensor) -> Tensor:
    return x + operator.index(torch.arange(x.argmax()).size(0))


def loop(x: Tensor) -> Tensor:
    while x.sum() < 10:
        x = x + 1
    return x


def swallowed(x: Tensor) -> Tensor:
    try:
        return x + int(x.sum())
    except RuntimeError:
        return x


def largest(x: Tensor) -> Tensor:
    return x if max(x[0, 0], x[0, 1]) > 1 else -x


def asserted(x: Tensor) -> Tensor:
    assert not torch.isnan(x).any()
    return x * 1


def array(x: Tensor) -> Tensor:
    return x + float(np.asarray(x.detach().cpu()).sum())


# Bound before the export.
item, to_list, to_array, to_integer = Tensor.item, Tensor.tolist, Tensor.numpy, Tensor.__index__


def stored(x: Tensor) -> Tensor:
    file = io.BytesIO()
    torch.save(x + 1, file)
    file.seek(0)
    return x * torch.load(file)


WAYS: dict[str, Callable[[Tensor], object]] = {
    "a function imported by name": lambda x: x if equal(x, x.abs()) else -x,
    "another one": lambda x: x if allclose(x, x.abs()) else -x,
    "a third one": lambda x: x if is_nonzero(x.sum()) else -x,
    "a constructor imported by name": lambda x: x * tensor([x[0, 0], x[0, 1], x[1, 1]]),
    "a constructor by keyword": lambda x: x * torch.tensor(data=[x[0, 0], x[0, 1], x[1, 1]]),
    "an old constructor": lambda x: x * torch.FloatTensor([x[0, 0], x[0, 1], x[1, 1]]),
    "a method taken before": lambda x: x * item(x.sum()),
    "a list": lambda x: x * torch.tensor(to_list(x)),
    "an array": lambda x: x * torch.from_numpy(to_array(x + 1)),
    "an array of numpy": lambda x: x * float(np.asarray(x + 1)[0, 0]),
    "an integer": lambda x: x * to_integer(x.argmax()),
    "an index": lambda x: x * [1.0, 2.0, 3.0, 4.0, 5.0, 6.0][x.argmax()],
    "operator.index": lambda x: x * operator.index(x.argmax()),
    "a number of torch's own dispatch": lambda x: x * torch.ops.aten.item(x[0, 0]),
    "an argument that torch does not record": lambda x: torch.layer_norm(x, [3], eps=x[0, 0].abs()),
    "in": lambda x: x if 5 in x else -x,
    "text": lambda x: x * len(str(x)),
    "formatted text": lambda x: x * float(f"{x[0, 0]:.3f}"),
    "the address": lambda x: x * ctypes.c_float.from_address((x + 1).data_ptr()).value,
    "the memory": lambda x: x * (x + 1).untyped_storage()[3],
    "the typed memory": lambda x: x * (x + 1).storage()[3],
    "a file": stored,
    "dlpack": lambda x: x * torch.from_dlpack(np.from_dlpack(x + 1)),
    "rows": lambda x: x * sum(int(v) for v in x.argmax(1)),
    "how many were found": lambda x: x * operator.index((x > 0).nonzero().size(0)),
    "equal shapes of findings": lambda x: x * x[x > 0].is_same_size(x[x < 0]),
}

BY_DATA: list[Callable[[Tensor], Tensor]] = [
    *FUNCTIONS,
    *(written_through_a_view, read_through_a_view, length_of_a_selection, length_of_a_slice, length_of_a_range),
    *(loop, swallowed, largest, asserted, array),
]


@pytest.mark.parametrize("function", BY_DATA, ids=lambda function: function.__name__)
def test_what_the_data_decides_is_refused_with_its_line(function: Callable[[Tensor], Tensor]) -> None:
    code = function.__code__

    with pytest.raises(CaptureError, match=r"torch\.jit\.script.*torch\.cond") as caught:
        onnx_ts_legacy.export(function, (X,), frozen_values="error")

    lines = range(code.co_firstlineno, code.co_firstlineno + 6)
    assert any(f"{code.co_filename}:{line}\n" in str(caught.value) for line in lines)


@pytest.mark.parametrize("way", WAYS)
def test_whichever_way_python_gets_at_the_data_it_is_refused(way: str) -> None:
    with pytest.raises(
        CaptureError, match=rf"the data decides: .* at {__file__}(.|\n)*torch\.jit\.script.*torch\.cond"
    ):
        onnx_ts_legacy.export(WAYS[way], (X,), frozen_values="error")


def test_a_check_of_the_users_own_is_no_check_of_torch() -> None:
    def check_input(x: Tensor) -> Tensor:
        return x * 2 if x.sum() > 0 else x

    with pytest.raises(CaptureError, match="a condition"):
        onnx_ts_legacy.export(check_input, (X,), frozen_values="error")


@pytest.mark.parametrize(
    "model",
    [nn.Sequential(nn.Sequential(Deciding())), lambda x: Deciding()(x), DecidingFunction.apply],
    ids=["submodule", "helper", "autograd function"],
)
def test_a_decision_inside_of_what_the_model_calls_is_refused(model: Callable[[Tensor], Tensor]) -> None:
    with pytest.raises(CaptureError, match=r"the data decides: a condition at .*test_decided_values\.py"):
        onnx_ts_legacy.export(model, (X,), frozen_values="error")


@pytest.mark.filterwarnings("ignore::torch.jit.TracerWarning")
@pytest.mark.parametrize("function", OF_SIZES, ids=lambda f: f.__name__)
def test_a_size_may_decide_as_long_as_it_is_not_dynamic(function: Callable[[Tensor], Tensor]) -> None:
    program = onnx_ts_legacy.export(function, (X,), frozen_values="error")
    torch.testing.assert_close(program(-X)[0], function(-X))

    with pytest.raises(CaptureError, match="a size that is declared dynamic"):
        onnx_ts_legacy.export(function, (X,), frozen_values="error", dynamic_axes={"x": [0]})


class DecidedByWeights(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(3))
        self.register_buffer("scale", torch.ones(1))

    def forward(self, x: Tensor) -> Tensor:
        return x * self.weight if self.weight.sum() > 0 and bool(self.scale > 0) else x


@pytest.mark.filterwarnings("ignore::torch.jit.TracerWarning")
@pytest.mark.parametrize(
    "model",
    [
        DecidedByWeights(),
        lambda x: x * 2 if torch.tensor([1.0, 2.0]).sum() > 0 else x,
        lambda x: x * 2 if torch.zeros_like(x).sum() > 0 else x + torch.ones_like(x).mean().item(),
        lambda x: x + x.new_tensor([1.0, 2.0, 3.0]),
        lambda x: x + torch.as_tensor(x),
        lambda x: x + torch.full((3,), x.sum()),
        lambda x: x if x.is_floating_point() and x.dim() == 2 else -x,
        lambda x: x[: x.argmax()],
        lambda x: x.reshape(x.shape[0], -1) * x.size(1) + x.numel(),
        lambda x: x + tensor(x[0]) + torch.asarray(x[1]),
        lambda x: x.clamp(max=x[0, 1]),
    ],
    ids=[
        *("weights", "constants", "shape alone", "new_tensor", "as_tensor", "filled", "dtype", "recorded", "sizes"),
        *("tensors of tensors", "a recorded number"),
    ],
)
def test_what_the_data_does_not_decide_is_exported(model: Callable[[Tensor], Tensor]) -> None:
    program = onnx_ts_legacy.export(model, (X,), frozen_values="error")

    torch.testing.assert_close(program(X * 2)[0], model(X * 2), check_dtype=False)


@pytest.mark.filterwarnings("ignore::torch.jit.TracerWarning")
def test_by_default_it_is_warned_about() -> None:
    assert len(onnx_ts_legacy.export(Deciding(), (X,))(X)) == 1


LAYERS = [
    *(nn.Conv1d(3, 4, 2), nn.ConvTranspose1d(3, 4, 2), nn.BatchNorm1d(3), nn.LayerNorm(6), nn.GroupNorm(3, 3)),
    *(
        nn.Upsample(scale_factor=2),
        nn.MaxPool1d(2),
        nn.AdaptiveAvgPool1d(2),
        nn.GELU(),
        nn.Softmax(-1),
        nn.Fold((2, 3), 1),
    ),
    *(nn.TransformerEncoderLayer(6, 2, 8, batch_first=True), nn.MultiheadAttention(6, 2), nn.LSTM(6, 2), nn.GRU(6, 2)),
]


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("layer", LAYERS, ids=lambda layer: type(layer).__name__)
def test_layers_are_traced_as_without_the_option(layer: nn.Module) -> None:
    x = (torch.randn(2, 3, 6),) * (3 if isinstance(layer, nn.MultiheadAttention) else 1)
    programs = [onnx_ts_legacy.export(layer.eval(), x, frozen_values=kind) for kind in ("warn", "error")]

    assert programs[0].model_proto == programs[1].model_proto
    torch.testing.assert_close(programs[1](*x)[0], pytree.tree_leaves(layer(*x))[0].detach(), rtol=1e-4, atol=1e-5)
