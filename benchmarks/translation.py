"""What one more operator adds to an export, beside ``torch.onnx``, dynamo and legacy, on the same modules in one run.

    python benchmarks/translation.py [--opset 20] [--only NAME ...] [--json FILE]

A module repeats one operator. Each exporter gets it captured already, so that only the way from graph to ONNX is timed:
an ``ExportedProgram`` or a traced module, once with many repetitions and once with few. The difference over the
difference in repetitions is the cost of one, whatever an export costs besides.
"""

from __future__ import annotations

import io
import time
from collections.abc import Callable

import torch
from figures import Cell, Figure, Plot, by_torch, command, over, quiet, take_turns
from torch import Tensor, nn
from torch.nn import functional

import onnx_fx_export
import onnx_ts_legacy

FEW, MANY = 8, 72
X = (2, 4, 8, 16)

# Operator -> the shapes of its other operands, and one call, whose result has the shape of its first.
OPERATORS: dict[str, tuple[list[tuple[int, ...]], Callable[..., Tensor]]] = {
    "add": ([(16,)], torch.add),
    "gelu": ([], functional.gelu),
    "softmax": ([], lambda x: torch.softmax(x, -1)),
    "linear": ([(16, 16), (16,)], functional.linear),
    "layer_norm": ([(16,), (16,)], lambda x, weight, bias: functional.layer_norm(x, (16,), weight, bias)),
    "conv2d": ([(4, 4, 3, 3), (4,)], lambda x, weight, bias: functional.conv2d(x, weight, bias, padding=1)),
    "scaled_dot_product_attention": ([], lambda x: functional.scaled_dot_product_attention(x, x, x)),
}


class Repeated(nn.Module):
    """One operator again and again, each time on the last result."""

    def __init__(self, name: str, times: int) -> None:
        super().__init__()
        shapes, self.call = OPERATORS[name]
        self.times = times
        self.operands = nn.ParameterList(torch.randn(shape) for shape in shapes)

    def forward(self, x: Tensor) -> Tensor:
        for _ in range(self.times):
            x = self.call(x, *self.operands)
        return x


def exports(name: str, times: int, opset: int) -> dict[str, Callable[[], object]]:
    """Return the export of each side, everything before it done."""
    model, x = Repeated(name, times).eval(), torch.randn(X)
    program = torch.export.export(model, (x,))
    traced = torch.jit.trace(model, x)

    return {
        "fx": lambda: onnx_fx_export.export(program, opset_version=opset).save(io.BytesIO()),
        "dynamo": lambda: by_torch(program, (x,), io.BytesIO(), dynamo=True, opset_version=opset),
        "ts": lambda: onnx_ts_legacy.export(traced, (x,), io.BytesIO(), opset_version=opset),
        "legacy": lambda: by_torch(traced, (x,), io.BytesIO(), dynamo=False, opset_version=opset),
    }


def measure(name: str, opset: int, rounds: int) -> dict[str, Cell]:
    """Return the microseconds that one more call of an operator costs by each exporter."""
    torch.manual_seed(0)
    few, many = (exports(name, times, opset) for times in (FEW, MANY))
    seconds = take_turns([*few.values(), *many.values()], rounds, clock=time.process_time)
    row: dict[str, Cell] = {"operator": name}
    cost: dict[str, float | None] = {}
    for side, small, large in zip(few, seconds[: len(few)], seconds[len(few) :], strict=True):
        cost[side] = None if small is None or large is None else (large - small) / (MANY - FEW) * 1e6
    return {**row, **cost, "fx_ratio": over(cost["fx"], cost["dynamo"]), "ts_ratio": over(cost["ts"], cost["legacy"])}


def main() -> None:
    """Measure all operators and print the table."""
    parser = command(__doc__, OPERATORS)
    parser.add_argument("--opset", type=int, default=20)
    parser.add_argument("--rounds", type=int, default=5)
    options = parser.parse_args()
    quiet()
    Figure(
        title="Lowering beside torch.onnx",
        caption=f"Microseconds of processor time that one more call of an operator adds to the export of a captured "
        f"module at opset {options.opset}: of onnx-fx-export and torch.onnx from an `ExportedProgram`, of "
        "onnx-ts-legacy and torch's legacy exporter from a traced module; less is better.",
        columns={
            "operator": "operator",
            "fx": "onnx-fx-export us",
            "dynamo": "torch.onnx us",
            "fx_ratio": "ratio",
            "ts": "onnx-ts-legacy us",
            "legacy": "legacy us",
            "ts_ratio": "ratio",
        },
        rows=[measure(name, options.opset, options.rounds) for name in options.only],
        plot=Plot(
            "bars",
            "operator",
            {"fx": "onnx-fx-export", "ts": "onnx-ts-legacy", "dynamo": "torch.onnx", "legacy": "torch.onnx, legacy"},
            "microseconds of one more call",
            log=True,
        ),
    ).finish(options.json)


if __name__ == "__main__":
    main()
