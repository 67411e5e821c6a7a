"""What it costs to find a planted fault in a model of 500 nodes.

    python benchmarks/verify_search.py [--nodes 500] [--faults 5]

Plants faults at several depths and finds each twice: by one instrumented run between two models, and by bisection
between two ways of running one model. Counts the runs beside how many a search by halving needs at most (two for the
whole, ceil(log2(nodes)) + 2 for one node), and takes the time beside that of one plain run.
"""

from __future__ import annotations

import math
import time
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import onnx
from figures import Figure, command
from onnx import TensorProto, helper, numpy_helper

import onnx_verify
from onnx_verify import Backend, LoadedModel, load_model

WIDTH = 64


def build(nodes: int, wrong: int | None = None) -> onnx.ModelProto:
    """Returns a chain of MatMul, Add, Tanh; the node at ``wrong`` is another operator."""
    rng = np.random.default_rng(0)
    made, tensors, last = [], [], "x"
    for index in range(nodes):
        kind = ("MatMul", "Add", "Mul")[index % 3]
        # Every step keeps lengths, so that an error shows at the end wherever it was made.
        values = {
            "MatMul": np.linalg.qr(rng.standard_normal((WIDTH, WIDTH)))[0],
            "Add": rng.standard_normal(WIDTH) / 10,
            "Mul": rng.choice([-1.0, 1.0], WIDTH),
        }[kind]
        tensors.append(numpy_helper.from_array(values.astype(np.float32), f"w{index}"))
        inputs = [last, f"w{index}"]
        if index == wrong:
            kind, inputs = "Neg", [last]
        made.append(helper.make_node(kind, inputs, [f"v{index}"], name=f"n{index}"))
        last = f"v{index}"
    ends = [helper.make_tensor_value_info(name, TensorProto.FLOAT, ["n", WIDTH]) for name in ("x", last)]
    graph = helper.make_graph(made, "chain", ends[:1], ends[1:], tensors)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=10)


@dataclass(frozen=True)
class Faulty(Backend):
    """A runtime that gets one node wrong, wherever it meets it."""

    node: str = ""

    def load(self, model: object, by_name_only: bool = False) -> Any:
        """Replaces the node's operator before it loads the model."""
        loaded = load_model(model)  # type: ignore[arg-type]
        proto = onnx.ModelProto()
        proto.CopyFrom(loaded.proto)
        for node in proto.graph.node:
            if node.name == self.node:
                node.op_type = "Neg"
                del node.input[1:]
        return super().load(LoadedModel(proto, loaded.weights, loaded.source), by_name_only)


def search(place: int, strategy: str, nodes: int, sound: onnx.ModelProto, plain: float) -> dict[str, Any]:
    """Find the fault at a place, and return what it took."""
    inputs = (np.random.default_rng(1).standard_normal((4, WIDTH)).astype(np.float32),)
    begin = time.perf_counter()
    if strategy == "instrumented":
        report = onnx_verify.find_mismatch(build(nodes, place), inputs, reference=sound)
    else:
        backend = replace(Faulty(prepack=False), node=f"n{place}")
        report = onnx_verify.find_mismatch(
            sound, inputs, backend=backend, reference_backend=Backend(prepack=False), strategy="bisect"
        )
    seconds = time.perf_counter() - begin
    right = report.first is not None and report.first.node.name == f"n{place}" and len(report.first.nodes) == 1
    return {
        "fault": f"n{place}, {strategy}",
        "found": "yes" if right else "no",
        "runs": report.runs,
        "bound": 4 if strategy == "instrumented" else 4 + math.ceil(math.log2(nodes)),
        "seconds": seconds,
        "worth": seconds / plain,
    }


def main() -> None:
    """Search each fault both ways."""
    parser = command(__doc__)
    parser.add_argument("--nodes", type=int, default=500)
    parser.add_argument("--faults", type=int, default=3)
    options = parser.parse_args()
    sound = build(options.nodes)
    inputs = (np.random.default_rng(1).standard_normal((4, WIDTH)).astype(np.float32),)
    begin = time.perf_counter()
    onnx_verify.compare(sound, sound, inputs)
    plain = (time.perf_counter() - begin) / 2
    places = map(int, np.linspace(0, options.nodes - 1, options.faults))
    strategies = ("instrumented", "bisect")
    Figure(
        title=f"Finding a planted fault among {options.nodes} nodes",
        caption="Runs of the model beside the most that a search by halving needs, and seconds, also as a multiple of "
        "one plain run; torch.onnx offers no such search.",
        columns={
            "fault": "fault, strategy",
            "found": "found",
            "runs": "runs",
            "bound": "at most",
            "seconds": "s",
            "worth": "plain runs",
        },
        rows=[search(place, each, options.nodes, sound, plain) for place in places for each in strategies],
    ).finish(options.json)


if __name__ == "__main__":
    main()
