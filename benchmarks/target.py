"""Node count and latency of models for ONNX Runtime alone, beside those of ONNX's operators, in one run.

    python benchmarks/target.py [--only bert llama] [--residuals] [--json FILE]

Each model is exported with and without ``target="onnxruntime"`` and run on one thread, the two taking turns. The error
is against eager PyTorch, at a batch size other than the example's. Besides the networks, a product with a weight of
four bits, for one row and for many: without the target ONNX Runtime computes the weight in float when it loads it.
With ``--residuals`` the figure is why the target writes no ``SkipLayerNormalization``: that node beside the two whose
place it takes.
"""

from __future__ import annotations

from typing import Any

import torch
from exporters import MODELS, Example, doubled, dynamic_batch, sessions_latency
from figures import Cell, Figure, command, quiet
from torch import Tensor, nn

import onnx_fx_export
from onnxops_decomp.exporting import FuseSkipNormalization

OPSETS = (20, 23)
ROWS = (1, 64)
RESIDUALS = ((1, 1, 512), (2, 64, 384), (2, 197, 384), (2, 128, 768))


class FourBits(nn.Module):
    """A linear layer whose weight is stored as integers of four bits and a scale for each group of 32 columns."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.register_buffer("numbers", torch.randint(-8, 8, (width, width), dtype=torch.int8))
        self.register_buffer("scales", torch.rand(width, width // 32) / width)

    def forward(self, x: Tensor) -> Tensor:
        weight = self.numbers.unflatten(1, (-1, 32)).to(x.dtype) * self.scales.unsqueeze(-1)
        return nn.functional.linear(x, weight.flatten(1))


def product(rows: int) -> dict[str, Cell]:
    """Measure a product of some rows with a weight of four bits."""
    torch.manual_seed(0)
    model, x = FourBits(2048), torch.randn(rows, 2048)
    return measure(f"weight of 4 bits, {rows} x 2048", (model, {"x": x}), {"x": x}, 20, torch.float32)


def network(name: str, opset: int, dtype: torch.dtype) -> dict[str, Cell]:
    """Measure one network at one opset, in one dtype."""
    torch.manual_seed(0)
    model, single = MODELS[name]()
    single = {key: value.to(dtype) if value.is_floating_point() else value for key, value in single.items()}
    return measure(name, (model.eval().to(dtype), single), doubled(single), opset, dtype)


def measure(name: str, example: Example, timed: dict[str, Tensor], opset: int, dtype: torch.dtype) -> dict[str, Cell]:
    """Measure one model, the latency with the inputs `timed`."""
    model, inputs = example[0], doubled(example[1])
    plain, own = (
        onnx_fx_export.export(
            model, (), kwargs=inputs, dynamic_shapes=dynamic_batch(inputs), opset_version=opset, target=target
        )
        for target in (None, "onnxruntime")
    )
    larger = {key: torch.cat([value, value[:1]]) for key, value in inputs.items()}
    with torch.no_grad():
        result = model(**larger)
    expected = result if isinstance(result, Tensor) else result[0]
    feeds = {key: value.numpy() for key, value in timed.items()}
    latency = sessions_latency([plain.model_proto, own.model_proto], feeds)
    return {
        "model": name,
        "opset": opset,
        "dtype": str(dtype).removeprefix("torch."),
        "plain_nodes": len(plain.model.graph),
        "own_nodes": len(own.model.graph),
        "plain_ms": latency[0],
        "own_ms": latency[1],
        "plain_error": difference(plain(**larger), expected),
        "own_error": difference(own(**larger), expected),
    }


def difference(result: Any, expected: Tensor) -> float:
    """Return the largest difference of a program's first output."""
    first = result if isinstance(result, Tensor) else next(iter(result.values()))
    return (first - expected).abs().max().item()


class Residual(nn.Module):
    """A residual, and the normalization behind it."""

    def __init__(self, norm: type[nn.LayerNorm | nn.RMSNorm], width: int) -> None:
        super().__init__()
        self.norm = norm(width)

    def forward(self, x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        total = x + y
        return total, self.norm(total)


def residual(norm: type[nn.LayerNorm | nn.RMSNorm], shape: tuple[int, int, int]) -> dict[str, Cell]:
    """Measure a residual and a normalization, as two nodes and as one."""
    torch.manual_seed(0)
    inputs = {"x": torch.randn(shape), "y": torch.randn(shape)}
    programs = [
        onnx_fx_export.export(Residual(norm, shape[-1]), (), kwargs=inputs, opset_version=23, target="onnxruntime")
        for _ in range(2)
    ]
    FuseSkipNormalization()(programs[1].model)
    apart, one = sessions_latency(
        [program.model_proto for program in programs], {key: value.numpy() for key, value in inputs.items()}, 300
    )
    (node,) = programs[1].model.graph
    return {
        "name": f"{node.op_type}, {'x'.join(map(str, shape))}",
        "apart_us": 1000 * apart,
        "one_us": 1000 * one,
        "ratio": one / apart,
    }


COLUMNS = {
    "model": "model",
    "opset": "opset",
    "dtype": "dtype",
    "plain_nodes": "nodes",
    "own_nodes": "with the target",
    "plain_ms": "latency ms",
    "own_ms": "with the target",
    "plain_error": "error",
    "own_error": "with the target",
}


def main() -> None:
    """Measure and print the table."""
    parser = command(__doc__, MODELS, default=["bert", "llama"])
    parser.add_argument("--residuals", action="store_true", help="measure residuals before normalizations alone")
    options = parser.parse_args()
    quiet()
    if options.residuals:
        Figure(
            title="Residuals before normalizations",
            caption="Latency on one thread of two nodes, and of the one for both; less is better.",
            columns={"name": "operator", "apart_us": "Add and norm us", "one_us": "one node us", "ratio": "ratio"},
            rows=[residual(norm, shape) for norm in (nn.LayerNorm, nn.RMSNorm) for shape in RESIDUALS],
        ).finish(options.json)
        return
    networks = [
        network(name, opset, dtype)
        for name in options.only
        for opset in OPSETS
        for dtype in (torch.float32, torch.float16)
    ]
    Figure(
        title="Models for ONNX Runtime alone",
        caption='Nodes, latency on one thread and error without and with `target="onnxruntime"`; less is better.',
        columns=COLUMNS,
        rows=[*networks, *map(product, ROWS)],
    ).finish(options.json)


if __name__ == "__main__":
    main()
