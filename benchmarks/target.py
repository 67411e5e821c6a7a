"""Node count and latency of models for ONNX Runtime alone, beside those of ONNX's operators, in one run.

    python benchmarks/target.py [--only bert llama] [--json FILE]

Each model is exported with and without ``target="onnxruntime"`` and run on one thread, the two taking turns. The error
is against eager PyTorch, at a batch size other than the example's.
"""

from __future__ import annotations

import logging
import warnings

import torch
from exporters import MODELS, doubled, dynamic_batch, sessions_latency
from figures import Cell, Figure, command

import onnx_fx_export

OPSETS = (20, 23)


def measure(name: str, opset: int, dtype: torch.dtype) -> dict[str, Cell]:
    """Measure one model at one opset, in one dtype."""
    torch.manual_seed(0)
    model, single = MODELS[name]()
    model = model.eval().to(dtype)
    inputs = {key: value.to(dtype) if value.is_floating_point() else value for key, value in doubled(single).items()}
    plain, own = (
        onnx_fx_export.export(
            model, (), kwargs=inputs, dynamic_shapes=dynamic_batch(inputs), opset_version=opset, target=target
        )
        for target in (None, "onnxruntime")
    )
    larger = {key: torch.cat([value, value[:1]]) for key, value in inputs.items()}
    with torch.no_grad():
        expected = model(**larger)[0]
    feeds = {key: value.numpy() for key, value in inputs.items()}
    latency = sessions_latency([plain.model_proto, own.model_proto], feeds)
    return {
        "model": name,
        "opset": opset,
        "dtype": str(dtype).removeprefix("torch."),
        "plain_nodes": len(plain.model.graph),
        "own_nodes": len(own.model.graph),
        "plain_ms": latency[0],
        "own_ms": latency[1],
        "plain_error": (next(iter(plain(**larger).values())) - expected).abs().max().item(),
        "own_error": (next(iter(own(**larger).values())) - expected).abs().max().item(),
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


def main(argv: list[str] | None = None) -> None:
    """Measure and print the table."""
    parser = command(__doc__)
    parser.add_argument("--only", nargs="*", choices=sorted(MODELS), default=["bert", "llama"])
    options = parser.parse_args(argv)
    warnings.filterwarnings("ignore")
    logging.disable(logging.WARNING)
    torch.set_num_threads(1)
    rows = [
        measure(name, opset, dtype)
        for name in options.only
        for opset in OPSETS
        for dtype in (torch.float32, torch.float16)
    ]
    Figure(
        title="Models for ONNX Runtime alone",
        caption='Nodes, latency on one thread and error without and with `target="onnxruntime"`; less is better.',
        columns=COLUMNS,
        rows=rows,
    ).finish(options.json)


if __name__ == "__main__":
    main()
