"""Nodes and latency of common calls beside those that torch.onnx's two exporters write, in one run.

    python benchmarks/operators.py [--opset 18] [--static] [--nan exact] [--only "topk" "argmax" ...] [--json FILE]

Each call is a model of its own, its first dimension dynamic unless `--static` is given. ONNX Runtime runs it on one
thread, the exporters' models taking turns. The ratio to a model of the same kinds of nodes is 1. Ours are
exported with `nan="finite"`, as torch.onnx's never look for NaN, or with what `--nan` says.
"""

from __future__ import annotations

import contextlib
import io
import math
import statistics
from collections import Counter
from typing import Any

import onnx
import torch
from exporters import sessions_latency
from figures import Cell, Figure, by_torch, command, over, quiet
from workloads.calls import Call, calls

import onnx_fx_export

SLOW, FASTER = 1.05, 0.97


def declared(call: Call, dynamic: bool) -> tuple[dict[int, Any], ...] | None:
    """Declare the first dimension of the first input, and those of the others that have its size."""
    size = call.inputs[0].shape[0]
    dim = torch.export.Dim.DYNAMIC
    return tuple({0: dim} if each.shape[0] == size else {} for each in call.inputs) if dynamic else None


def exported(side: str, call: Call, opset: int, dynamic: bool, nan: str) -> onnx.ModelProto | None:
    """Return what an exporter writes; None if it fails."""
    file, names = io.BytesIO(), [f"input_{index}" for index in range(len(call.inputs))]
    options: dict[str, Any] = {"opset_version": opset, "input_names": names}
    shapes = declared(call, dynamic)
    with contextlib.suppress(Exception):
        if side == "ours":
            onnx_fx_export.export(call.module, call.inputs, file, dynamic_shapes=shapes, nan=nan, **options)
        elif side == "dynamo":
            by_torch(call.module, call.inputs, file, dynamic_shapes=shapes, external_data=False, **options)
        else:
            axes = {name: dict.fromkeys(dims, "rows") for name, dims in zip(names, shapes or (), strict=False)}
            by_torch(call.module, call.inputs, file, dynamo=False, dynamic_axes=axes, **options)
        return onnx.load_model_from_string(file.getvalue())
    return None


def kinds(model: onnx.ModelProto) -> Counter[str]:
    """Return how often each operator is called, constants left out."""
    return Counter(node.op_type for node in model.graph.node if node.op_type not in ("Constant", "Identity"))


def measure(name: str, call: Call, opset: int, dynamic: bool, nan: str) -> dict[str, Cell]:
    """Measure one call."""
    models = {side: exported(side, call, opset, dynamic, nan) for side in ("ours", "dynamo", "legacy")}
    there = {side: model for side, model in models.items() if model is not None}
    alike = len({frozenset(kinds(model).items()) for model in there.values()}) == 1
    feeds = {f"input_{index}": tensor.numpy() for index, tensor in enumerate(call.inputs)}
    times = dict.fromkeys(there, 1.0)
    if not alike:
        with contextlib.suppress(Exception):
            times = dict(zip(there, sessions_latency(list(there.values()), feeds), strict=True))
    row: dict[str, Cell] = {"call": name}
    for side, model in models.items():
        row[f"{side}_nodes"] = None if model is None else kinds(model).total()
    for side in ("dynamo", "legacy"):
        same = side in there and "ours" in there and kinds(there[side]) == kinds(there["ours"])
        row[f"over_{side}"] = 1.0 if same else over(times.get("ours"), times.get(side))
    return row


def summary(rows: list[dict[str, Cell]], side: str) -> str:
    """Say how the latencies compare with those of one other exporter."""
    ratios = [float(row[f"over_{side}"] or 1) for row in rows if row[f"over_{side}"] is not None]
    mean = math.exp(statistics.mean(map(math.log, ratios))) if ratios else math.nan
    slow = sum(ratio > SLOW for ratio in ratios)
    more = sum(longer(row, side) for row in rows)
    return f"{side}: geometric mean {mean:.2f}, of {len(ratios)} {slow} above {SLOW}, {more} longer and not faster"


def longer(row: dict[str, Cell], side: str) -> bool:
    """Tell whether ours has more nodes than another exporter's, and is no faster for it."""
    ours, theirs, ratio = row["ours_nodes"], row[f"{side}_nodes"], row[f"over_{side}"]
    return ours is not None and theirs is not None and ratio is not None and ours > theirs and float(ratio) > FASTER


def main() -> None:
    known = calls()
    parser = command(__doc__, known)
    parser.add_argument("--opset", type=int, default=18)
    parser.add_argument("--static", action="store_true", help="fix all sizes")
    parser.add_argument("--nan", choices=["exact", "finite"], default="finite", help="how ours is exported")
    options = parser.parse_args()
    quiet()
    rows = [measure(name, known[name], options.opset, not options.static, options.nan) for name in options.only]
    Figure(
        title="Common calls",
        caption=f"Nodes, and latency over that of torch.onnx's models, at opset {options.opset}; less is better. "
        + "; ".join(summary(rows, side) for side in ("dynamo", "legacy")),
        columns={
            "call": "call",
            "ours_nodes": "nodes",
            "dynamo_nodes": "torch.onnx",
            "legacy_nodes": "its TorchScript exporter",
            "over_dynamo": "latency over torch.onnx",
            "over_legacy": "over its TorchScript exporter",
        },
        rows=rows,
    ).finish(options.json)


if __name__ == "__main__":
    main()
