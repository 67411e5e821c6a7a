"""The TorchScript exporter beside torch's legacy one, on the same small models in one run.

    python benchmarks/ts_legacy.py [--opset 17] [--repeat 3] [--only NAME ...] [--json FILE]

For each model, traced and, where it says so, scripted: whether the exported model agrees with eager PyTorch in ONNX
Runtime at a size other than the example's, seconds of the export (the median of several, taken in turn), and the number
of nodes, those of subgraphs included.
"""

from __future__ import annotations

import dataclasses
import io
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import onnx
import onnxruntime
import torch
from figures import Figure, Plot, by_torch, command, over, quiet, take_turns
from torch import Tensor, nn

import onnx_ts_legacy

Inputs = tuple[Tensor, ...]


@dataclasses.dataclass
class Case:
    """A model with an example and other inputs; ``axes`` are its dynamic axes by input name."""

    model: Any
    example: Inputs
    other: Inputs
    axes: dict[str, dict[int, str]]


class Residual(nn.Module):
    """Two convolutions with batch norm beside a skip connection."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.body = nn.Sequential(
            *(nn.Conv2d(width, width, 3, padding=1), nn.BatchNorm2d(width), nn.ReLU()),
            *(nn.Conv2d(width, width, 3, padding=1), nn.BatchNorm2d(width)),
        )

    def forward(self, x: Tensor) -> Tensor:
        return torch.relu(self.body(x) + x)


def residual_network() -> Case:
    """A residual network of 16 blocks."""
    blocks = [Residual(32) for _ in range(16)]
    model = nn.Sequential(nn.Conv2d(3, 32, 7, 2, 3), *blocks, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(32, 10))
    return Case(model.eval(), (torch.randn(2, 3, 64, 64),), (torch.randn(5, 3, 64, 64),), {"input": {0: "n"}})


def encoder() -> Case:
    """A transformer encoder of 6 layers."""
    layer = nn.TransformerEncoderLayer(64, 4, 128, batch_first=True)
    model = nn.TransformerEncoder(layer, 6, enable_nested_tensor=False).eval()
    return Case(model, (torch.randn(2, 10, 64),), (torch.randn(3, 7, 64),), {"src": {0: "n", 1: "t"}})


def recurrent() -> Case:
    """Two bidirectional LSTM layers."""
    model = nn.LSTM(8, 16, 2, batch_first=True, bidirectional=True)
    return Case(model, (torch.randn(2, 10, 8),), (torch.randn(3, 7, 8),), {"input": {0: "n", 1: "t"}})


class Floor(nn.Module):
    """Floor division, also of negative numbers."""

    def forward(self, x: Tensor) -> Tensor:
        return x // 3


def floor_division() -> Case:
    """Integer floor division."""
    return Case(Floor(), (torch.arange(-4, 4),), (torch.arange(-9, 7),), {"x": {0: "n"}})


class Indexed(nn.Module):
    """Reads and writes with several index tensors, negative ones among them."""

    def forward(self, x: Tensor) -> Tensor:
        y = x.clone()
        y[torch.tensor([[0, -1], [1, 0]]), :, torch.tensor([[0, 1], [-1, 2]])] = 5.0
        return y[:, torch.tensor([-1, 0])]


def indexing() -> Case:
    """Assignments through index tensors."""
    return Case(Indexed(), (torch.randn(3, 4, 5),), (torch.randn(6, 4, 5),), {"x": {0: "n"}})


@torch.jit.script
def scripted_loop(x: Tensor) -> Tensor:
    """A loop over rows with a break."""
    total = torch.zeros_like(x[0])
    for i in range(x.size(0)):
        if bool(x[i].sum() > 6):
            break
        total = total * 0.5 + x[i]
    return total


def loop() -> Case:
    """A scripted loop over a dynamic size."""
    return Case(scripted_loop, (torch.randn(3, 4),), (torch.randn(9, 4),), {"x": {0: "n"}})


@torch.jit.script
def scripted_assignment(x: Tensor) -> Tensor:
    """Rows assigned in a loop."""
    y = torch.zeros_like(x)
    for i in range(x.size(0)):
        y[i] = x[i] * i
    return y


def assignment_in_loop() -> Case:
    """A scripted loop that assigns slices."""
    return Case(scripted_assignment, (torch.randn(3, 4),), (torch.randn(9, 4),), {"x": {0: "n"}})


class Wrapped(nn.Module):
    """A recurrent network inside a module of its own, as scripting needs it."""

    def __init__(self, network: nn.Module) -> None:
        super().__init__()
        self.network = network

    def forward(self, x: Tensor) -> Tensor:
        return self.network(x)[0]


def scripted_gru() -> Case:
    """A scripted GRU."""
    model = torch.jit.script(Wrapped(nn.GRU(4, 6, batch_first=True)))
    return Case(model, (torch.randn(2, 5, 4),), (torch.randn(3, 8, 4),), {"x": {0: "n", 1: "t"}})


CASES: dict[str, Callable[[], Case]] = {
    function.__name__: function
    for function in (
        *(residual_network, encoder, recurrent, floor_division, indexing),
        *(loop, assignment_in_loop, scripted_gru),
    )
}


def _ours(case: Case, opset: int) -> bytes:
    file = io.BytesIO()
    onnx_ts_legacy.export(case.model, case.example, file, opset_version=opset, dynamic_axes=case.axes)
    return file.getvalue()


def _theirs(case: Case, opset: int) -> bytes:
    file = io.BytesIO()
    options = {"opset_version": opset, "input_names": list(case.axes), "dynamic_axes": case.axes}
    by_torch(case.model, case.example, file, dynamo=False, **options)
    return file.getvalue()


def _agrees(model: bytes, case: Case) -> bool:
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    session = onnxruntime.InferenceSession(model, options, providers=["CPUExecutionProvider"])
    for inputs in (case.example, case.other):
        with torch.no_grad():
            expected = case.model(*(tensor.clone() for tensor in inputs))
        first = expected[0] if isinstance(expected, tuple) else expected
        feeds = {i.name: tensor.numpy() for i, tensor in zip(session.get_inputs(), inputs, strict=True)}
        result = session.run(None, feeds)[0]
        if result.shape != tuple(first.shape) or not np.allclose(result, first.numpy(), rtol=1e-3, atol=1e-4):
            return False
    return True


def _nodes(graph: onnx.GraphProto) -> int:
    inner = [a.g for node in graph.node for a in node.attribute if a.type == onnx.AttributeProto.GRAPH]
    return len(graph.node) + sum(map(_nodes, inner))


def judge(export: Callable[[Case, int], bytes], case: Case, opset: int) -> tuple[str, int | None]:
    """Return whether an exporter's model is right, and its number of nodes."""
    try:
        model = export(case, opset)
    except Exception:
        return "fails", None
    try:
        verdict = "passes" if _agrees(model, case) else "wrong"
    except Exception:
        verdict = "does not run"
    return verdict, _nodes(onnx.load_model_from_string(model).graph)


def measure(name: str, opset: int, repeat: int) -> dict[str, Any]:
    """Measure one model by both exporters."""
    torch.manual_seed(0)
    case = CASES[name]()
    sides = {"ours": _ours, "theirs": _theirs}
    times = take_turns([partial(export, case, opset) for export in sides.values()], repeat)
    row: dict[str, Any] = {"model": name}
    for (side, export), seconds in zip(sides.items(), times, strict=True):
        row[side] = seconds
        row[f"{side}_result"], row[f"{side}_nodes"] = judge(export, case, opset)
    return {**row, "ratio": over(row["ours"], row["theirs"])}


def main() -> None:
    """Measure all models and print the table."""
    parser = command(__doc__, CASES)
    parser.add_argument("--opset", type=int, default=17)
    parser.add_argument("--repeat", type=int, default=30)
    options = parser.parse_args()
    quiet()
    Figure(
        title="TorchScript export beside torch.onnx's legacy exporter",
        caption=f"At opset {options.opset}: whether the model agrees with eager PyTorch at other sizes too, seconds of "
        "the export, and nodes with those of subgraphs; less is better.",
        columns={
            "model": "model",
            "ours_result": "onnx-ts-legacy",
            "theirs_result": "torch.onnx",
            "ours": "s",
            "theirs": "torch.onnx s",
            "ratio": "ratio",
            "ours_nodes": "nodes",
            "theirs_nodes": "torch.onnx",
        },
        rows=[measure(name, options.opset, options.repeat) for name in options.only],
        plot=Plot("bars", "model", {"ours": "onnx-ts-legacy", "theirs": "torch.onnx, legacy"}, "seconds of an export"),
    ).finish(options.json)


if __name__ == "__main__":
    main()
