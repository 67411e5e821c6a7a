"""Imported models beside those of onnx2torch, and beside the modules that they came from.

    python benchmarks/importing.py [--only bert resnet yolo-like] [--no-compile] [--json FILE]

Each network is exported at the newest opset that onnx2torch reads it at, imported by both, and run on one thread in
turn with the module that it came from. Then ours and that module are compiled by `torch.compile` and run in turn again.
"""

from __future__ import annotations

import contextlib
import importlib
from collections.abc import Callable
from time import process_time
from typing import Any

import onnx
import torch
from figures import Cell, Figure, command, over, quiet, take_turns
from workloads.networks import NETWORKS, Network

import onnx_fx_export
from onnxops_decomp import to_torch

OPSETS = (18, 17, 16, 13, 11)
ROUNDS = 15
Importer = Callable[[onnx.ModelProto], torch.nn.Module]


def onnx2torch() -> Importer | None:
    """Return what imports a model by onnx2torch, or None if it is not installed."""
    for name in ("nms", "qnms"):
        with contextlib.suppress(RuntimeError):  # it is defined: the kernels of torchvision fit this torch
            # Only detectors call them, but torchvision, which onnx2torch imports, describes them on its import.
            torch.library.define(f"torchvision::{name}", "(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
    try:
        convert: Importer = importlib.import_module("onnx2torch").convert
    except ImportError:
        return None
    return convert


def exported(network: Network, theirs: Importer | None) -> tuple[onnx.ModelProto, torch.nn.Module | None]:
    """Return a network at the newest opset at which it runs in what onnx2torch makes of it, and that."""
    inputs = tuple(network.inputs.values())
    models = [
        onnx_fx_export.export(network.module, (), kwargs=network.inputs, opset_version=opset).model_proto
        for opset in OPSETS
    ]
    for model in models if theirs else []:
        with contextlib.suppress(Exception):
            assert theirs is not None
            made = theirs(model)
            made(*inputs)
            return model, made
    return models[0], None


def first(result: Any) -> torch.Tensor:
    """Return the first tensor of what a network returns."""
    return (
        result
        if isinstance(result, torch.Tensor)
        else next(iter(result.values() if hasattr(result, "values") else result))
    )


def turns(modules: list[torch.nn.Module | None], network: Network) -> list[float | None]:
    """Return the milliseconds of a call of each module; the first of them takes the inputs by name."""
    inputs = tuple(network.inputs.values())

    def call(module: torch.nn.Module | None, by_name: bool) -> None:
        if module is None:
            raise ValueError("nothing to call")
        module(**network.inputs) if by_name else module(*inputs)

    actions = [lambda m=module, n=not place: call(m, n) for place, module in enumerate(modules)]
    return [
        None if seconds is None else seconds * 1e3
        for seconds in take_turns(actions, ROUNDS, warm_up=3, clock=process_time)
    ]


@torch.no_grad()
def measure(name: str, theirs: Importer | None, compiles: bool) -> dict[str, Cell]:
    """Measure one network."""
    torch.manual_seed(0)
    network = NETWORKS[name]()
    network.module.eval()
    model, other = exported(network, theirs)
    ours = to_torch(model)
    difference = (first(ours(*network.inputs.values())) - first(network.module(**network.inputs))).abs().max()
    imports = take_turns([lambda: to_torch(model), lambda: theirs(model) if theirs else 1 / 0], 5, clock=process_time)
    original_ms, ours_ms, other_ms = turns([network.module, ours, other], network)
    compiled: list[float | None] = [None, None]
    if compiles:
        compiled = turns([torch.compile(network.module), torch.compile(ours, fullgraph=True)], network)
    return {
        "model": name,
        "opset": model.opset_import[0].version,
        "import_s": imports[0],
        "other_import_s": imports[1],
        "ours_ms": ours_ms,
        "other_ms": other_ms,
        "other_ratio": over(ours_ms, other_ms),
        "original_ms": original_ms,
        "ratio": over(ours_ms, original_ms),
        "compiled_ms": compiled[1],
        "compiled_ratio": over(compiled[1], compiled[0]),
        "difference": float(difference),
    }


def main() -> None:
    """Measure and print the table."""
    parser = command(__doc__, NETWORKS, default=["resnet", "bert", "yolo-like"])
    parser.add_argument("--no-compile", action="store_true", help="leave torch.compile out")
    options = parser.parse_args()
    quiet()
    theirs = onnx2torch()
    rows = [measure(name, theirs, not options.no_compile) for name in options.only]
    compiled = {"compiled_ms": "compiled ms", "compiled_ratio": "over the original compiled"}
    Figure(
        title="Imported models",
        caption="Processor time of an import and of a call on one thread, of `to_torch`, of onnx2torch, and of the "
        "module that was exported; the last ratio is between both compiled by `torch.compile`; less is better.",
        columns={
            "model": "model",
            "import_s": "import s",
            "other_import_s": "of onnx2torch",
            "ours_ms": "call ms",
            "other_ms": "of onnx2torch",
            "other_ratio": "ratio",
            "original_ms": "of the original",
            "ratio": "ratio",
            **({} if options.no_compile else compiled),
        },
        rows=rows,
    ).finish(options.json)


if __name__ == "__main__":
    main()
