"""Export time, node count and latency beside ``torch.onnx.export(dynamo=True)``, on the same models in one run.

    python benchmarks/exporters.py [--opset 23] [--only bert llama] [--json FILE]

For each model: seconds of ``torch.export.export`` alone (the capture that both exporters need), seconds after the
capture, the total as a multiple of the capture, the number of nodes, and the median latency in ONNX Runtime on one
thread, measured turn by turn so that a noisy machine disturbs both sides alike.
"""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import gc
import io
import json
import logging
import statistics
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import onnx
import onnxruntime
import torch
from rich.console import Console
from rich.table import Table

import onnx_fx_export

Example = tuple[torch.nn.Module, dict[str, torch.Tensor]]


def bert() -> Example:
    """BERT with 12 layers of width 384."""
    from transformers import BertConfig, BertModel

    config = BertConfig(hidden_size=384, num_hidden_layers=12, num_attention_heads=6, intermediate_size=1536)
    ids = torch.randint(0, 1000, (1, 64))
    return BertModel(config), {"input_ids": ids, "attention_mask": torch.ones_like(ids)}


def llama() -> Example:
    """Llama with 8 layers of width 512, 8 query heads and 2 key heads."""
    from transformers import LlamaConfig, LlamaForCausalLM

    config = LlamaConfig(
        hidden_size=512,
        num_hidden_layers=8,
        num_attention_heads=8,
        num_key_value_heads=2,
        intermediate_size=1376,
        vocab_size=4096,
        use_cache=False,
    )
    return LlamaForCausalLM(config), {"input_ids": torch.randint(0, 4096, (1, 64))}


def vit() -> Example:
    """ViT-S/16."""
    from transformers import ViTConfig, ViTModel

    config = ViTConfig(hidden_size=384, num_hidden_layers=12, num_attention_heads=6, intermediate_size=1536)
    return ViTModel(config, add_pooling_layer=False), {"pixel_values": torch.randn(1, 3, 224, 224)}


def swin() -> Example:
    """Swin-T."""
    from transformers import SwinConfig, SwinModel

    return SwinModel(SwinConfig(embed_dim=96, depths=[2, 2, 6, 2])), {"pixel_values": torch.randn(1, 3, 224, 224)}


def convnext() -> Example:
    """ConvNeXt-T."""
    from transformers import ConvNextConfig, ConvNextModel

    return ConvNextModel(ConvNextConfig()), {"pixel_values": torch.randn(1, 3, 224, 224)}


def resnet() -> Example:
    """ResNet-50."""
    from transformers import ResNetConfig, ResNetModel

    return ResNetModel(ResNetConfig()), {"pixel_values": torch.randn(1, 3, 224, 224)}


MODELS: dict[str, Callable[[], Example]] = {
    "resnet": resnet,
    "vit": vit,
    "swin": swin,
    "convnext": convnext,
    "bert": bert,
    "llama": llama,
}


@dataclasses.dataclass
class Row:
    """What was measured of one model; seconds are medians, latencies in milliseconds, None where an export fails."""

    model: str
    opset: int
    capture_seconds: float
    ours_after_capture_seconds: float
    theirs_after_capture_seconds: float | None
    ours_over_capture: float
    theirs_over_capture: float | None
    ours_nodes: int
    theirs_nodes: int | None
    ours_latency_ms: float
    theirs_latency_ms: float | None
    max_abs_error: float


def dynamic_batch(inputs: dict[str, torch.Tensor]) -> dict[str, dict[int, Any]]:
    """Declare the first dimension of every input dynamic."""
    return {name: {0: torch.export.Dim.DYNAMIC} for name in inputs}


def doubled(inputs: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """Return the inputs with batch 2: torch.export takes a size of 1 for a constant."""
    return {name: torch.cat([value, value]) for name, value in inputs.items()}


def export_theirs(
    model: torch.nn.Module, inputs: dict[str, torch.Tensor], opset: int, shapes: Any
) -> onnx.ModelProto | None:
    """Export with torch.onnx; return None if it cannot."""
    with contextlib.redirect_stdout(io.StringIO()), contextlib.suppress(Exception):
        program = torch.onnx.export(
            model,
            (),
            kwargs=inputs,
            dynamo=True,
            opset_version=opset,
            dynamic_shapes=shapes,
            verbose=False,
        )
        return None if program is None else program.model_proto
    return None


def timed(action: Callable[[], Any]) -> tuple[float, Any]:
    """Return the seconds that an action takes, and its result."""
    gc.collect()
    start = time.perf_counter()
    result = action()
    return time.perf_counter() - start, result


def sessions_latency(models: list[onnx.ModelProto], feeds: dict[str, Any], rounds: int = 30) -> list[float]:
    """Return the median latency of each model in milliseconds, one call of each in turn."""
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = options.inter_op_num_threads = 1
    options.log_severity_level = 3
    sessions = [
        onnxruntime.InferenceSession(m.SerializeToString(), options, providers=["CPUExecutionProvider"]) for m in models
    ]
    times: list[list[float]] = [[] for _ in models]
    for turn in range(rounds + 3):
        for index, session in enumerate(sessions):
            start = time.perf_counter()
            session.run(None, feeds)
            if turn >= 3:
                times[index].append(time.perf_counter() - start)
    return [1000 * statistics.median(entry) for entry in times]


def measure(name: str, opset: int, repeats: int) -> Row:
    """Measure one model."""
    torch.manual_seed(0)
    model, single = MODELS[name]()
    model.eval()
    inputs = doubled(single)
    shapes = dynamic_batch(inputs)
    captures, ours_seconds, theirs_seconds = [], [], []
    for turn in range(repeats + 1):
        capture, _ = timed(lambda: torch.export.export(model, (), inputs, dynamic_shapes=shapes))
        ours, program = timed(
            lambda: onnx_fx_export.export(model, (), kwargs=inputs, dynamic_shapes=shapes, opset_version=opset)
        )
        theirs, their_proto = timed(lambda: export_theirs(model, inputs, opset, shapes))
        if turn:  # the first turn imports and warms up
            captures.append(capture)
            ours_seconds.append((ours, program.timings["capture"]))
            theirs_seconds.append(theirs)
    our_proto = program.model_proto
    feeds = {key: value.numpy() for key, value in inputs.items()}
    ours_ms, *others = sessions_latency([proto for proto in (our_proto, their_proto) if proto is not None], feeds)
    with torch.no_grad():
        expected = model(**inputs)[0]
    error = (next(iter(program(**inputs).values())) - expected).abs().max().item()
    capture = statistics.median(captures)
    ours_after = statistics.median(total - own for total, own in ours_seconds)
    return Row(
        model=name,
        opset=opset,
        capture_seconds=capture,
        ours_after_capture_seconds=ours_after,
        theirs_after_capture_seconds=statistics.median(theirs_seconds) - capture if their_proto else None,
        ours_over_capture=statistics.median(total for total, _ in ours_seconds) / capture,
        theirs_over_capture=statistics.median(theirs_seconds) / capture if their_proto else None,
        ours_nodes=len(our_proto.graph.node),
        theirs_nodes=len(their_proto.graph.node) if their_proto else None,
        ours_latency_ms=ours_ms,
        theirs_latency_ms=others[0] if others else None,
        max_abs_error=error,
    )


def shown(figure: float | None) -> str:
    """Return a figure of torch.onnx, or that it has none because the export fails."""
    return "fails" if figure is None else f"{figure:.2f}"


def table_of(rows: list[Row]) -> Table:
    """Return the table for a terminal, ours / torch.onnx side by side."""
    table = Table(title="onnx-fx-export / torch.onnx.export(dynamo=True)")
    for title in ("model", "opset", "capture s", "after capture s", "total / capture", "nodes", "latency ms", "error"):
        table.add_column(title, justify="left" if title == "model" else "right", no_wrap=True)
    for r in rows:
        table.add_row(
            r.model,
            str(r.opset),
            f"{r.capture_seconds:.2f}",
            f"{r.ours_after_capture_seconds:.2f} / {shown(r.theirs_after_capture_seconds)}",
            f"{r.ours_over_capture:.2f} / {shown(r.theirs_over_capture)}",
            f"{r.ours_nodes} / {r.theirs_nodes or 'fails'}",
            f"{r.ours_latency_ms:.2f} / {shown(r.theirs_latency_ms)}",
            f"{r.max_abs_error:.1e}",
        )
    return table


def main(argv: list[str] | None = None) -> None:
    """Measure all models and print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--opset", type=int, default=23)
    parser.add_argument("--only", nargs="*", choices=sorted(MODELS), default=list(MODELS))
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--json", type=Path, help="also write the rows here")
    options = parser.parse_args(argv)
    warnings.filterwarnings("ignore")
    logging.disable(logging.WARNING)
    torch.set_num_threads(1)
    rows = []
    console = Console(stderr=True)
    for name in options.only:
        with console.status(f"measuring {name}"):
            rows.append(measure(name, options.opset, options.repeats))
    Console(width=120).print(table_of(rows))
    if options.json:
        options.json.parent.mkdir(parents=True, exist_ok=True)
        options.json.write_text(json.dumps([dataclasses.asdict(entry) for entry in rows], indent=1))


if __name__ == "__main__":
    main()
