"""Peak memory of finding a planted fault in a model that is larger than 2 GB.

    python benchmarks/verify_memory.py [--gib 2.5] [--limit-mib 1024] [--json FILE]

The model's weights lie in a sparse file beside it; the fault is an Abs for a Relu in the middle. Takes the peak of the
process beyond what it held before the search: of its own memory (RssAnon) and of all resident pages (RssAnon and
the mapped file, which the system can drop at any time).
"""

from __future__ import annotations

import tempfile
import time
from pathlib import Path

import numpy as np
import onnx
from figures import Figure, Peak, command
from onnx import TensorProto, helper

import onnx_verify

WIDTH = 4096


def build(folder: Path, layers: int, broken: bool) -> Path:
    """Writes a chain of MatMul, Add, LayerNormalization, Relu and Add; returns the model's path."""
    nodes, tensors = [], []
    last, offset = "x", 0
    for layer in range(layers):
        tensor = TensorProto(name=f"w{layer}", data_type=TensorProto.FLOAT, dims=[WIDTH, WIDTH])
        tensor.data_location = TensorProto.EXTERNAL
        for key, value in (("location", "weights.bin"), ("offset", offset), ("length", 4 * WIDTH * WIDTH)):
            tensor.external_data.add(key=key, value=str(value))
        offset += 4 * WIDTH * WIDTH
        tensors.append(tensor)
        kind = "Abs" if broken and layer == layers // 2 else "Relu"
        nodes += [
            helper.make_node("MatMul", [last, f"w{layer}"], [f"m{layer}"], name=f"matmul{layer}"),
            helper.make_node("Add", [f"m{layer}", last], [f"a{layer}"], name=f"add{layer}"),
            helper.make_node(
                "LayerNormalization", [f"a{layer}", "g"], [f"n{layer}"], name=f"norm{layer}", epsilon=1e-5
            ),
            helper.make_node(kind, [f"n{layer}"], [f"r{layer}"], name=f"relu{layer}"),
            helper.make_node("Add", [f"r{layer}", last], [f"s{layer}"], name=f"skip{layer}"),
        ]
        last = f"s{layer}"
    ones = np.ones(WIDTH, np.float32).tobytes()
    tensors.append(helper.make_tensor("g", TensorProto.FLOAT, [WIDTH], ones, raw=True))
    value = helper.make_tensor_value_info("x", TensorProto.FLOAT, ["n", WIDTH])
    graph = helper.make_graph(nodes, "large", [value], [onnx.ValueInfoProto(name=last)], tensors)
    graph.output[0].CopyFrom(helper.make_tensor_value_info(last, TensorProto.FLOAT, ["n", WIDTH]))
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=10)
    path = folder / ("broken.onnx" if broken else "sound.onnx")
    path.write_bytes(model.SerializeToString())
    weights = folder / "weights.bin"
    if not weights.exists():
        with weights.open("wb") as file:
            file.truncate(offset)
            for layer in range(layers):
                file.seek(layer * 4 * WIDTH * WIDTH)
                file.write(np.eye(64, WIDTH, dtype=np.float32).tobytes())
    return path


def main() -> None:
    """Build, search, and report the peak."""
    parser = command(__doc__)
    parser.add_argument("--gib", type=float, default=2.5)
    parser.add_argument("--limit-mib", type=int, default=1024)
    options = parser.parse_args()
    layers = max(2, round(options.gib * 2**30 / (4 * WIDTH * WIDTH)))
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        sound, broken = build(folder, layers, False), build(folder, layers, True)
        inputs = (np.random.default_rng(0).standard_normal((2, WIDTH)).astype(np.float32),)
        with Peak() as peak:
            begin = time.perf_counter()
            report = onnx_verify.find_mismatch(broken, inputs, reference=sound, memory_limit=options.limit_mib << 20)
            seconds = time.perf_counter() - begin
    found = report.first.node.name if report.first else None
    row = {
        "model": f"{layers * 4 * WIDTH * WIDTH >> 20} MiB, {5 * layers} nodes",
        "limit": options.limit_mib,
        "own": peak.own >> 20,
        "resident": peak.resident >> 20,
        "seconds": seconds,
        "found": "yes" if found == f"relu{layers // 2}" else "no",
    }
    Figure(
        title="Memory of finding a fault in a large model",
        caption="Peak MiB beyond what the process held before the search, under a limit, of its own memory and of all "
        "resident pages, mapped files included, which the system can drop at any time.",
        columns={
            "model": "model",
            "limit": "limit MiB",
            "own": "own MiB",
            "resident": "resident MiB",
            "seconds": "s",
            "found": "found",
        },
        rows=[row],
    ).finish(options.json)


if __name__ == "__main__":
    main()
