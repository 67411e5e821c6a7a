"""Writing a folder that reproduces a mismatch, in ONNX Runtime with onnxruntime and numpy alone."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx
from onnx import helper

from onnx_verify.models.model import LoadedModel
from onnx_verify.models.storage import save_model
from onnx_verify.values.dtypes import is_float, is_int, onnx_dtype
from onnx_verify.values.metrics import element_text
from onnx_verify.values.tolerance import Tolerance

Array = npt.NDArray[Any]

# The script is fixed text: nothing of the model, not even a name, is written into it.
SCRIPT = '''"""Runs model.onnx on inputs.npz and compares with reference.npz; exits with 1 if they differ.

The runtime that settings.json names runs it. ONNX Runtime needs onnxruntime and numpy, any other one onnx-verify, too.
candidate.npz holds what the runtime gave when this folder was written.
"""

import json
import sys
from pathlib import Path

import numpy as np


def load(path):
    with np.load(path, allow_pickle=False) as archive:
        return [archive[f"value_{i}"] for i in range(len(archive.files))]


def flat(values):
    for value in values:
        yield from value if isinstance(value, list) else [value]


def run(model, values, runtime):
    name, _, level = runtime.partition(":")
    if not name.startswith("ort"):
        from onnx_verify import Backend, InputSet

        return [value for _, value in Backend.parse(runtime).load(model).run(InputSet(tuple(values)))]
    import onnxruntime

    levels = {"disabled": "DISABLE_ALL", "basic": "ENABLE_BASIC", "extended": "ENABLE_EXTENDED", "all": "ENABLE_ALL"}
    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = getattr(onnxruntime.GraphOptimizationLevel, f"ORT_{levels[level]}")
    session = onnxruntime.InferenceSession(model, options, providers=["CPUExecutionProvider"])
    names = [each.name for each in session.get_inputs()]
    return list(flat(session.run(None, dict(zip(names, values)))))


def main():
    folder = Path(__file__).resolve().parent
    settings = json.loads((folder / "settings.json").read_text())
    outputs = run(str(folder / "model.onnx"), load(folder / "inputs.npz"), settings["runtime"])
    expected = load(folder / "reference.npz")
    wrong = len(outputs) != len(expected)
    for index, (output, right) in enumerate(zip(outputs, expected)):
        rtol, atol = settings["tolerances"][index] if index < len(settings["tolerances"]) else (0.0, 0.0)
        output = np.asarray(output)
        if output.shape != right.shape:
            print(f"output {index}: shape {output.shape}, should be {right.shape}")
            wrong = True
        elif output.dtype.kind not in "fciub":
            wrong |= not np.array_equal(output.astype(str), right.astype(str))
        else:
            near = np.isclose(output, right, rtol=rtol, atol=atol, equal_nan=True)
            print(f"output {index}: {np.count_nonzero(~near)} of {near.size} elements differ")
            wrong |= not near.all()
    print("MISMATCH" if wrong else "agrees")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
'''


@dataclass(frozen=True)
class Reproduction:
    """What a folder that reproduces a mismatch holds.

    Attributes:
        piece: the piece as a model.
        feeds: right values for its inputs.
        reference: the right outputs by name.
        candidate: the outputs that the piece gives.
        tolerances: by output, how far they may be apart; an output that is missing must be equal.
        runtime: what the piece was run in, as :meth:`Backend.parse` reads it.
        finding: the mismatch in words.
    """

    piece: LoadedModel
    feeds: Mapping[str, Any]
    reference: Mapping[str, Any]
    candidate: Mapping[str, Any]
    tolerances: Mapping[str, Tolerance]
    runtime: str
    finding: str


def write_repro(repro: Reproduction, folder: Path) -> Path:
    """Write the sub-model, its inputs, both outputs and the script; return the script's path.

    Values of types that numpy lacks (bfloat16, float8, 4-bit) are stored as float32 or int8, which hold them exactly;
    the model casts them back.
    """
    folder.mkdir(parents=True, exist_ok=True)
    model, feeds = _plain_model(repro.piece, repro.feeds, repro.reference)
    save_model(model, folder / "model.onnx")
    _save(folder / "inputs.npz", list(feeds.values()))
    _save(folder / "reference.npz", _flat(repro.reference))
    _save(folder / "candidate.npz", _flat(repro.candidate))
    tolerances = [repro.tolerances.get(name) for name in repro.reference]
    settings = {
        "runtime": repro.runtime,
        "tolerances": [(each.rtol, each.atol) if each else (0.0, 0.0) for each in tolerances],
    }
    (folder / "settings.json").write_text(json.dumps(settings, indent=2) + "\n")
    (folder / "finding.txt").write_text(repro.finding + "\n")
    script = folder / "repro.py"
    script.write_text(SCRIPT)
    return script


def _save(path: Path, values: list[Array]) -> None:
    arrays: dict[str, Any] = {f"value_{index}": _storable(value) for index, value in enumerate(values)}
    np.savez(path, **arrays)


def _flat(values: Mapping[str, Any]) -> list[Array]:
    return [item for value in values.values() for item in (value if isinstance(value, list) else [value])]


def _storable(value: Array) -> Array:
    """Return the value in a dtype that ``.npz`` holds without pickling."""
    if value.dtype.kind in "OT":
        return np.asarray([element_text(item) for item in value.reshape(-1)], dtype=str).reshape(value.shape)
    if value.dtype.kind in "biufcSU" and value.dtype.name in np.sctypeDict:
        return value
    return value.astype(np.float32 if is_float(value.dtype) else np.int8)


def _plain_model(
    piece: LoadedModel, feeds: Mapping[str, Any], outputs: Mapping[str, Any]
) -> tuple[LoadedModel, dict[str, Array]]:
    """Give a piece inputs and outputs of dtypes that numpy has, and no sequences as inputs."""
    proto = onnx.ModelProto()
    proto.CopyFrom(piece.proto)
    graph = proto.graph
    head: list[onnx.NodeProto] = []
    plain: dict[str, Array] = {}
    del graph.input[:]
    for name, value in feeds.items():
        if isinstance(value, list):
            parts = [f"{name}.{index}" for index in range(len(value))]
            head.append(helper.make_node("SequenceConstruct", parts, [name]))
            plain.update(zip(parts, value, strict=True))
        elif _needs_cast(value):
            head.append(helper.make_node("Cast", [f"{name}.stored"], [name], to=onnx_dtype(value.dtype)))
            plain[f"{name}.stored"] = _storable(value)
        else:
            plain[name] = value
    for name, value in plain.items():
        graph.input.append(helper.make_tensor_value_info(name, onnx_dtype(value.dtype), value.shape))
    nodes = [*head, *graph.node, *_output_casts(graph, outputs)]
    del graph.node[:]
    graph.node.extend(nodes)
    return LoadedModel(proto, piece.weights, piece.source), plain


def _needs_cast(value: Any) -> bool:
    return isinstance(value, np.ndarray) and value.dtype.kind not in "OSUT" and _storable(value) is not value


def _output_casts(graph: onnx.GraphProto, outputs: Mapping[str, Any]) -> list[onnx.NodeProto]:
    casts = []
    del graph.output[:]
    for name, value in outputs.items():
        if not _needs_cast(value):
            graph.output.append(onnx.ValueInfoProto(name=name))
            continue
        code = onnx.TensorProto.INT8 if is_int(value.dtype) else onnx.TensorProto.FLOAT
        casts.append(helper.make_node("Cast", [name], [f"{name}.stored"], to=code))
        graph.output.append(onnx.ValueInfoProto(name=f"{name}.stored"))
    return casts
