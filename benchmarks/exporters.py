"""Export time, node count and latency beside ``torch.onnx.export``, dynamo and legacy, on the same models in one run.

    python benchmarks/exporters.py [--opset 23] [--only bert llama] [--json FILE]

For each model: seconds of the processor of ``torch.export.export`` alone (the capture that both newer exporters need),
the whole export as a multiple of it, the number of nodes, and the median latency in ONNX Runtime on one thread, all
measured turn by turn so that a noisy machine disturbs all sides alike. The legacy exporter takes the newest opset that
it has.
"""

from __future__ import annotations

import contextlib
import copy
import gc
import io
import statistics
import time
from collections.abc import Callable
from typing import Any

import onnx
import onnxruntime
import torch
from figures import Figure, Plot, by_torch, command, quiet

import onnx_fx_export

LEGACY_OPSET = 20
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


def dynamic_batch(inputs: dict[str, torch.Tensor]) -> dict[str, dict[int, Any]]:
    """Declare the first dimension of every input dynamic."""
    return {name: {0: torch.export.Dim.DYNAMIC} for name in inputs}


def doubled(inputs: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """Return the inputs with batch 2: torch.export takes a size of 1 for a constant."""
    return {name: torch.cat([value, value]) for name, value in inputs.items()}


def export_dynamo(model: torch.nn.Module, inputs: dict[str, torch.Tensor], opset: int) -> Any:
    """Export with torch.onnx as it is now; return None if it cannot."""
    shapes = dynamic_batch(inputs)
    with contextlib.suppress(Exception):
        return by_torch(model, (), kwargs=inputs, dynamo=True, opset_version=opset, dynamic_shapes=shapes)
    return None


def export_legacy(model: torch.nn.Module, inputs: dict[str, torch.Tensor], opset: int) -> bytes | None:
    """Export with the TorchScript exporter of torch.onnx, which always writes a file; return None if it cannot."""
    axes, file = {name: {0: "batch"} for name in inputs}, io.BytesIO()
    options = {"opset_version": min(opset, LEGACY_OPSET), "input_names": list(inputs), "dynamic_axes": axes}
    with contextlib.suppress(Exception):
        by_torch(model, tuple(inputs.values()), file, dynamo=False, **options)
        return file.getvalue()
    return None


def timed(action: Callable[[], Any]) -> tuple[float, Any]:
    """Return the seconds of the processor that an action takes, and its result."""
    gc.collect()
    start = time.process_time()
    result = action()
    return time.process_time() - start, result


def sessions_latency(models: list[onnx.ModelProto], feeds: dict[str, Any], rounds: int = 30) -> list[float]:
    """Return the median latency of each model in milliseconds of the processor, one call of each in turn."""
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = options.inter_op_num_threads = 1
    options.log_severity_level = 3
    sessions = [
        onnxruntime.InferenceSession(m.SerializeToString(), options, providers=["CPUExecutionProvider"]) for m in models
    ]
    times: list[list[float]] = [[] for _ in models]
    for turn in range(rounds + 3):
        for place in range(len(sessions)):
            index = (turn + place) % len(sessions)  # what runs behind a slow model finds less in the caches
            start = time.process_time()  # one thread, so that other processes of the machine add nothing
            sessions[index].run(None, feeds)
            if turn >= 3:
                times[index].append(time.process_time() - start)
    return [1000 * statistics.median(entry) for entry in times]


def measure(name: str, opset: int, repeats: int) -> dict[str, Any]:
    """Measure one model; None is the figure of an export that fails."""
    torch.manual_seed(0)
    model, single = MODELS[name]()
    model.eval()
    inputs = doubled(single)
    shapes = dynamic_batch(inputs)
    # Tracing leaves tensors in attributes of some models, which then cannot be captured any more.
    traced = copy.deepcopy(model)
    sides: dict[str, Callable[[], Any]] = {
        "capture": lambda: torch.export.export(model, (), inputs, dynamic_shapes=shapes),
        "ours": lambda: onnx_fx_export.export(model, (), kwargs=inputs, dynamic_shapes=shapes, opset_version=opset),
        "dynamo": lambda: export_dynamo(model, inputs, opset),
        "legacy": lambda: export_legacy(traced, inputs, opset),
    }
    times: dict[str, list[float]] = {side: [] for side in sides}
    made: dict[str, Any] = {}
    for turn in range(repeats + 1):
        for side, action in sides.items():
            seconds, made[side] = timed(action)
            if turn:  # the first turn imports and warms up
                times[side].append(seconds)
    program, dynamo, legacy = made["ours"], made["dynamo"], made["legacy"]
    protos = {
        "ours": program.model_proto,
        "dynamo": dynamo and dynamo.model_proto,
        "legacy": legacy and onnx.load_model_from_string(legacy),
    }
    present = {side: proto for side, proto in protos.items() if proto is not None}
    feeds = {key: value.numpy() for key, value in inputs.items()}
    latency = dict(zip(present, sessions_latency(list(present.values()), feeds), strict=True))
    with torch.no_grad():
        expected = model(**inputs)[0]
    capture = statistics.median(times["capture"])
    row: dict[str, Any] = {"model": name, "opset": opset, "capture": capture}
    for side, proto in protos.items():
        row[side] = statistics.median(times[side]) / capture if proto else None
        row[f"{side}_nodes"] = len(proto.graph.node) if proto else None
        row[f"{side}_ms"] = latency.get(side)
    row["error"] = (next(iter(program(**inputs).values())) - expected).abs().max().item()
    return row


COLUMNS = {
    "model": "model",
    "capture": "capture s",
    "ours": "export / capture",
    "dynamo": "of torch.onnx",
    "legacy": "of its legacy exporter",
    "ours_nodes": "nodes",
    "dynamo_nodes": "of torch.onnx",
    "legacy_nodes": "of legacy",
    "ours_ms": "latency ms",
    "dynamo_ms": "of torch.onnx",
    "legacy_ms": "of legacy",
}


def main() -> None:
    """Measure all models and print the table."""
    parser = command(__doc__, MODELS)
    parser.add_argument("--opset", type=int, default=23)
    parser.add_argument("--repeats", type=int, default=5)
    options = parser.parse_args()
    quiet()
    Figure(
        title="Export beside torch.onnx",
        caption=f"Whole exports at opset {options.opset} (the legacy exporter: {LEGACY_OPSET}, its newest) over "
        "`torch.export.export` alone, number of nodes, and latency in ONNX Runtime on one thread; less is better.",
        columns=COLUMNS,
        rows=[measure(name, options.opset, options.repeats) for name in options.only],
        plot=Plot(
            "bars",
            "model",
            {"ours": "onnx-fx-export", "dynamo": "torch.onnx", "legacy": "torch.onnx, legacy"},
            "seconds of the export over seconds of torch.export alone",
        ),
    ).finish(options.json)


if __name__ == "__main__":
    main()
