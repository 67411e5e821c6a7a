"""Growth of an export with depth: identical layers inlined, as functions, and captured once, beside ``torch.onnx``.

    python benchmarks/growth.py [--depths 8 16 32 64] [--opset 20] [--json FILE]

The layers are those of BERT, small in width, with a dynamic batch and length: what costs is their number. Seconds are
those of this process alone.
"""

from __future__ import annotations

import copy
import io
import time
from functools import partial
from typing import Any

import torch
from figures import Figure, Plot, by_torch, command, over, quiet, take_turns

import onnx_fx_export

Inputs = dict[str, torch.Tensor]


def layers(depth: int) -> tuple[torch.nn.Module, type[torch.nn.Module], Inputs]:
    """Return BERT with ``depth`` layers of width 64, the class of a layer, and example inputs."""
    from transformers import BertConfig, BertModel
    from transformers.models.bert.modeling_bert import BertLayer

    config = BertConfig(hidden_size=64, num_hidden_layers=depth, num_attention_heads=4, intermediate_size=128)
    ids = torch.randint(0, 1000, (2, 16))
    return BertModel(config).eval(), BertLayer, {"input_ids": ids, "attention_mask": torch.ones_like(ids)}


def dynamic(inputs: Inputs) -> dict[str, dict[int, Any]]:
    """Declare batch and length of every input dynamic."""
    return {name: {0: torch.export.Dim.DYNAMIC, 1: torch.export.Dim.DYNAMIC} for name in inputs}


def export_theirs(model: torch.nn.Module, inputs: Inputs, opset: int) -> None:
    """Export with torch.onnx."""
    by_torch(model, (), kwargs=inputs, dynamic_shapes=dynamic(inputs), opset_version=opset, dynamo=True)


def export_legacy(model: torch.nn.Module, inputs: Inputs, opset: int) -> None:
    """Export with the TorchScript exporter of torch.onnx."""
    axes = {name: {0: "batch", 1: "length"} for name in inputs}
    args = tuple(inputs.values())
    by_torch(model, args, io.BytesIO(), dynamo=False, opset_version=opset, input_names=list(inputs), dynamic_axes=axes)


def measure(depth: int, opset: int, rounds: int) -> dict[str, Any]:
    """Measure one depth, after everything has run once; None is the figure of an export that fails."""
    torch.manual_seed(0)
    model, layer, inputs = layers(depth)
    # Tracing leaves tensors in attributes of some models, which then cannot be captured any more.
    traced = copy.deepcopy(model)
    ours = partial(onnx_fx_export.export, model, (), kwargs=inputs, dynamic_shapes=dynamic(inputs), opset_version=opset)
    sides = {
        "capture": lambda: torch.export.export(model, (), inputs, dynamic_shapes=dynamic(inputs)),
        "inlined": ours,
        "functions": partial(ours, export_modules_as_functions={layer}),
        "once": partial(ours, capture_repeated_blocks={layer}, export_modules_as_functions={layer}),
        "theirs": lambda: export_theirs(model, inputs, opset),
        "legacy": lambda: export_legacy(traced, inputs, opset),
    }
    times = take_turns(list(sides.values()), rounds, warm_up=0, clock=time.process_time)
    seconds = dict(zip(sides, times, strict=True))
    return {"depth": depth, **seconds, "ratio": over(seconds["inlined"], seconds["theirs"])}


COLUMNS = {
    "depth": "layers",
    "capture": "torch.export alone s",
    "inlined": "inlined s",
    "functions": "functions s",
    "once": "captured once s",
    "theirs": "torch.onnx s",
    "ratio": "inlined / torch.onnx",
    "legacy": "legacy s",
}


def main() -> None:
    """Measure all depths and print the table."""
    parser = command(__doc__)
    parser.add_argument("--depths", nargs="*", type=int, default=[8, 16, 32, 64])
    parser.add_argument("--opset", type=int, default=20)
    parser.add_argument("--rounds", type=int, default=1)
    options = parser.parse_args()
    quiet()
    measure(2, options.opset, 1)
    Figure(
        title="Growth with depth",
        caption=f"Seconds of processor time of an export at opset {options.opset} by the number of identical layers: "
        "inlined, as calls of one function, and with the layer captured once; less is better.",
        columns=COLUMNS,
        rows=[measure(depth, options.opset, options.rounds) for depth in options.depths],
        plot=Plot(
            "lines",
            "depth",
            {"once": "captured once", "functions": "functions", "inlined": "inlined", "theirs": "torch.onnx"},
            "seconds of an export",
        ),
    ).finish(options.json)


if __name__ == "__main__":
    main()
