"""Nodes and latency of whole models beside torch.onnx's, and beside what ONNX Runtime's own optimizer makes of those.

    python benchmarks/models.py [--opset 17] [--half] [--only bert gpt2 ...] [--json FILE]

Each network is exported by both exporters of torch.onnx, each result also goes through the optimizer of
`onnxruntime.transformers`, and by onnx-fx-export, without and with `target="onnxruntime"`. ONNX Runtime runs all of
them on one thread, in turn. The ratios are those to the fastest of the others: without the target to torch.onnx, with
it to the optimizer as well.
"""

from __future__ import annotations

import contextlib
import io
import math
import statistics
from typing import Any

import onnx
import torch
from exporters import sessions_latency
from figures import Cell, Figure, by_torch, command, over, quiet
from workloads.networks import NETWORKS, Network

import onnx_fx_export

Models = dict[str, onnx.ModelProto]


def loaded(file: io.BytesIO) -> onnx.ModelProto:
    """Return the model that was written."""
    return onnx.load_model_from_string(file.getvalue())


def by_others(network: Network, opset: int) -> Models:
    """Return what torch.onnx's exporters write, and what the optimizer of ONNX Runtime makes of each."""
    names, inputs = list(network.inputs), tuple(network.inputs.values())
    options: dict[str, Any] = {"opset_version": opset, "input_names": names}
    shapes = {name: {0: torch.export.Dim.DYNAMIC} for name in names}
    axes = {name: {0: "batch"} for name in names}
    made: Models = {}
    with contextlib.suppress(Exception):
        file = io.BytesIO()
        given = {"kwargs": dict(network.inputs), "dynamic_shapes": shapes}
        by_torch(network.module, (), file, external_data=False, **given, **options)
        made["dynamo"] = loaded(file)
    with contextlib.suppress(Exception):
        file = io.BytesIO()
        by_torch(network.module, inputs, file, dynamo=False, dynamic_axes=axes, **options)
        made["legacy"] = loaded(file)
    for side, model in list(made.items()):
        with contextlib.suppress(Exception):
            made[f"{side} optimized"] = optimized(model, network)
    return made


def optimized(model: onnx.ModelProto, network: Network) -> onnx.ModelProto:
    """Return what the optimizer for transformers makes of a model."""
    from onnxruntime.transformers.fusion_options import FusionOptions
    from onnxruntime.transformers.optimizer import optimize_by_fusion

    copied = onnx.ModelProto()
    copied.CopyFrom(model)
    return optimize_by_fusion(copied, network.kind, network.heads, network.width, FusionOptions(network.kind)).model


def ours(network: Network, opset: int) -> Models:
    """Return what onnx-fx-export writes, without and with the target."""
    shapes = {name: {0: torch.export.Dim.DYNAMIC} for name in network.inputs}
    return {
        side: onnx_fx_export.export(
            network.module, (), kwargs=network.inputs, dynamic_shapes=shapes, opset_version=opset, target=target
        ).model_proto
        for side, target in (("plain", None), ("target", "onnxruntime"))
    }


def runnable(models: Models, feeds: dict[str, Any]) -> Models:
    """Return the models that ONNX Runtime runs at all."""
    found: Models = {}
    for side, model in models.items():
        with contextlib.suppress(Exception):
            sessions_latency([model], feeds, rounds=1)
            found[side] = model
    return found


def nodes(model: onnx.ModelProto) -> int:
    """Return the number of calls of operators, constants left out."""
    return sum(node.op_type not in ("Constant", "Identity") for node in model.graph.node)


def measure(name: str, opset: int, half: bool) -> dict[str, Cell]:
    """Measure one network."""
    torch.manual_seed(0)
    network = NETWORKS[name]()
    network.module.eval()
    if half:
        network = halved(network)
    feeds = {key: value.numpy() for key, value in network.inputs.items()}
    models = runnable({**ours(network, opset), **by_others(network, opset)}, feeds)
    times = dict(zip(models, sessions_latency(list(models.values()), feeds, rounds=15), strict=True))
    counts = {side: nodes(model) for side, model in models.items()}
    exporters = [side for side in ("dynamo", "legacy") if side in models]
    everyone = [side for side in models if side not in ("plain", "target")]
    return {
        "model": name,
        "plain_nodes": counts["plain"],
        "their_nodes": min((counts[side] for side in exporters), default=None),
        "target_nodes": counts["target"],
        "tuned_nodes": min((counts[side] for side in everyone), default=None),
        "plain_ratio": over(times["plain"], min((times[side] for side in exporters), default=None)),
        "target_ratio": over(times["target"], min((times[side] for side in everyone), default=None)),
        **{f"{side}_ms": times.get(side) for side in models},
    }


def halved(network: Network) -> Network:
    """Return a network in half precision, with an example for it."""
    inputs = {key: value.half() if value.is_floating_point() else value for key, value in network.inputs.items()}
    return Network(network.module.half(), inputs, network.kind, network.heads, network.width)


def mean(rows: list[dict[str, Cell]], column: str) -> float:
    """Return the geometric mean of a column of ratios."""
    return math.exp(statistics.mean(math.log(float(row[column] or 1)) for row in rows))


def main() -> None:
    """Measure and print the table."""
    parser = command(__doc__, NETWORKS)
    parser.add_argument("--opset", type=int, default=17)
    parser.add_argument("--half", action="store_true", help="in half precision")
    options = parser.parse_args()
    quiet()
    rows = [measure(name, options.opset, options.half) for name in options.only]
    Figure(
        title="Whole models",
        caption=f"Nodes, and latency over the fastest of the others, at opset {options.opset}; less is better. "
        f"Geometric means {mean(rows, 'plain_ratio'):.2f} and {mean(rows, 'target_ratio'):.2f}.",
        columns={
            "model": "model",
            "plain_nodes": "nodes",
            "their_nodes": "torch.onnx",
            "target_nodes": "with the target",
            "tuned_nodes": "after the optimizer",
            "plain_ratio": "latency over torch.onnx",
            "target_ratio": "with the target, over the optimizer",
        },
        rows=rows,
    ).finish(options.json)


if __name__ == "__main__":
    main()
