"""What becomes of models at other opsets, in `convert_opset` and in ONNX's own converter."""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import onnx
import test_convert_opset as conversions
import test_importing_node_cases as nodes
import torch
from onnx import version_converter

import onnxops_core
from onnxops_decomp.exporting import OLDEST_OPSET

sys.path.insert(0, str(Path(__file__).parents[3] / "benchmarks"))

# Name, what converts, what it raises when it refuses.
CONVERTERS: dict[str, tuple[Callable[[onnx.ModelProto, int], onnx.ModelProto], type[Exception]]] = {
    "convert_opset": (conversions.by_this_package, onnxops_core.OnnxExporterError),
    "onnx.version_converter": (version_converter.convert_version, Exception),
}
FATES = ("right", "refused", "wrong")
Each = Callable[[Callable[[Any], str], Sequence[Any]], list[str]]


def source(model: onnx.ModelProto) -> int:
    """Return the opset of a model, 0 if it uses no operator of ONNX's own domain."""
    return next((each.version for each in model.opset_import if each.domain in ("", "ai.onnx")), 0)


def fate(case: Any, opset: int, converter: str) -> str:
    """Return what becomes of a case: one of `FATES`, or that the original does not run."""
    said = conversions.outcome(case, opset, *CONVERTERS[converter])
    return said if said in conversions.HARMLESS else "wrong"


def suite(opset: int, each: Each, every: int = 1) -> dict[str, dict[str, Counter[str]]]:
    """Return how often each fate is met at an opset, by direction and converter.

    Args:
        opset: the wanted opset.
        each: what calls a function with each of several items, in processes that may die.
        every: of so many cases one is taken.
    """
    all_cases = [case for case in (*nodes.onnx_cases(), *nodes.model_cases()) if conversions.checked(case)]
    found: dict[str, dict[str, Counter[str]]] = {}
    for direction, sign in (("down", -1), ("up", 1)):
        cases = [case for case in all_cases[::every] if (opset - source(case.model)) * sign > 0]
        cases = [case for case in cases if source(case.model) >= OLDEST_OPSET]
        said = {name: each(lambda case, name=name: fate(case, opset, name), cases) for name in CONVERTERS}
        runs = [
            not any(fates[place] == "the original does not run" for fates in said.values())
            for place in range(len(cases))
        ]
        found[direction] = {
            name: Counter("wrong" if one == "crash" else one for one, run in zip(fates, runs, strict=True) if run)
            for name, fates in said.items()
        }
    return found


def networks(
    names: Sequence[str], opsets: Sequence[int], each: Each, exported_at: int = 18
) -> dict[str, dict[str, list[int]]]:
    """Return for each network, exported at one opset, the opsets at which each converter gives a right model."""
    from workloads.networks import NETWORKS

    import onnx_fx_export

    found: dict[str, dict[str, list[int]]] = {}
    for name in names:
        torch.manual_seed(0)
        network = NETWORKS[name]()
        model = onnx_fx_export.export(
            network.module.eval(), (), kwargs=network.inputs, opset_version=exported_at
        ).model_proto
        feeds = {
            given.name: value.numpy() for given, value in zip(model.graph.input, network.inputs.values(), strict=True)
        }
        outputs = conversions.run(model, feeds)
        case = SimpleNamespace(model=model, data_sets=[(list(feeds.values()), outputs)], rtol=1e-3, atol=1e-4)
        found[name] = {}
        for converter in CONVERTERS:
            said = each(lambda opset, case=case, name=converter: fate(case, opset, name), opsets)
            found[name][converter] = [opset for opset, one in zip(opsets, said, strict=True) if one == "right"]
    return found
