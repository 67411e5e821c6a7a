"""Small models with loops and recurrent layers, of dynamic lengths, for tests of the importer."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import onnx
import onnxruntime
from onnx import TensorProto, helper, numpy_helper

FLOAT, INT64, BOOL = TensorProto.FLOAT, TensorProto.INT64, TensorProto.BOOL
GATES = {"RNN": 1, "GRU": 3, "LSTM": 4}


def info(name, dtype, shape):
    return helper.make_tensor_value_info(name, dtype, shape)


def _declared(each, dtype):
    """An input or output, given as (name, shape), (name, dtype, shape) or whole."""
    if isinstance(each, onnx.ValueInfoProto):
        return each
    name, *dtypes, shape = each
    return info(name, dtypes[0] if dtypes else dtype, shape)


def model(nodes, inputs, outputs, initializers=(), opset=21, dtype=FLOAT, **options):
    graph = helper.make_graph(
        nodes,
        "graph",
        [_declared(each, dtype) for each in inputs],
        [_declared(each, dtype) for each in outputs],
        [numpy_helper.from_array(array, name) for name, array in dict(initializers).items()],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=9, **options)


def recurrent(op_type, with_lengths=False, peepholes=False, **attributes):
    """Return a recurrent layer over x (length, batch, 4), and over as much of it as lengths say."""
    rng, gates = np.random.default_rng(0), GATES[op_type]
    count = 2 if attributes.get("direction") == "bidirectional" else 1
    outputs = ["y", "last", "cell"] if op_type == "LSTM" else ["y", "last"]
    inputs = ["x", "w", "r", "b", "lengths" if with_lengths else ""]
    node = helper.make_node(op_type, inputs, outputs, hidden_size=5, **attributes)
    constants = {
        "w": rng.standard_normal((count, gates * 5, 4)).astype("f"),
        "r": rng.standard_normal((count, gates * 5, 5)).astype("f"),
        "b": rng.standard_normal((count, gates * 10)).astype("f"),
    }
    given = [("x", ["t", "n", 4]), *([info("lengths", TensorProto.INT32, ["n"])] if with_lengths else [])]
    declared = [("y", ["t", count, "n", 5]), *((name, [count, "n", 5]) for name in outputs[1:])]
    if peepholes:
        node.input.extend([""] * (7 - len(node.input)) + ["p"])
        constants["p"] = rng.standard_normal((count, 15)).astype("f")
    return model([node], given, declared, constants)


def running_sum():
    """Return a Loop with one step for each row of x (t, 3), which collects the sums so far, scaled by a weight."""
    body = helper.make_graph(
        [
            helper.make_node("Gather", ["x", "i"], ["row"], axis=0),
            helper.make_node("Add", ["total", "row"], ["next"]),
            helper.make_node("Mul", ["next", "w"], ["seen"]),
            helper.make_node("Identity", ["going"], ["going_on"]),
        ],
        "body",
        [info("i", INT64, []), info("going", BOOL, []), info("total", FLOAT, [3])],
        [info("going_on", BOOL, []), info("next", FLOAT, [3]), info("seen", FLOAT, [3])],
    )
    nodes = [
        helper.make_node("Shape", ["x"], ["sizes"], start=0, end=1),
        helper.make_node("Squeeze", ["sizes"], ["length"]),
        helper.make_node("Loop", ["length", "", "start"], ["last", "all"], body=body),
    ]
    constants = {"start": np.zeros(3, np.float32), "w": np.array([1, 2, 3], np.float32)}
    return model(nodes, [("x", ["t", 3])], [("last", [3]), ("all", ["t", 3])], constants)


def doubling(collects, counted, conditional):
    """Return a Loop that doubles x (3): for count steps, while its sum is below a limit, or both."""
    body = helper.make_graph(
        [
            helper.make_node("Mul", ["value", "two"], ["next"]),
            helper.make_node("ReduceSum", ["next"], ["sum"], keepdims=0),
            helper.make_node(*(("Less", ["sum", "limit"]) if conditional else ("Identity", ["going"])), ["going_on"]),
            helper.make_node("Add", ["next", "w"], ["seen"]),
        ],
        "body",
        [info("i", INT64, []), info("going", BOOL, []), info("value", FLOAT, [3])],
        [info("going_on", BOOL, []), info("next", FLOAT, [3]), *([info("seen", FLOAT, [3])] if collects else [])],
    )
    outputs = ["last", "all"][: 1 + collects]
    node = helper.make_node("Loop", ["count" if counted else "", "start", "x"], outputs, body=body)
    constants = {
        "two": np.array(2, np.float32),
        "limit": np.array(100, np.float32),
        "start": np.array(True),
        "w": np.array([1, 2, 3], np.float32),
    }
    inputs = [("x", [3]), *([info("count", INT64, [])] if counted else [])]
    return model([node], inputs, [("last", [3]), ("all", ["steps", 3])][: 1 + collects], constants)


def scanned(**attributes):
    """Return a Scan of sums over the second dimension of x (2, t, 3)."""
    body = helper.make_graph(
        [helper.make_node("Add", ["total", "row"], ["next"]), helper.make_node("Mul", ["next", "w"], ["seen"])],
        "body",
        [info("total", FLOAT, [2, 3]), info("row", FLOAT, [2, 3])],
        [info("next", FLOAT, [2, 3]), info("seen", FLOAT, [2, 3])],
    )
    node = helper.make_node(
        "Scan",
        ["start", "x"],
        ["last", "all"],
        body=body,
        num_scan_inputs=1,
        scan_input_axes=[1],
        scan_output_axes=[1],
        **attributes,
    )
    constants = {"start": np.zeros((2, 3), np.float32), "w": np.array([1, 2, 3], np.float32)}
    return model([node], [("x", [2, "t", 3])], [("last", [2, 3]), ("all", [2, "t", 3])], constants)


def wanted(model: onnx.ModelProto, feeds: dict[str, np.ndarray]) -> list[np.ndarray]:
    session = onnxruntime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    return session.run(None, feeds)


def _x(*shape):
    return np.random.default_rng(sum(shape)).standard_normal(shape).astype(np.float32)


def _sequences():
    return [{"x": _x(6, 2, 4)}, {"x": _x(3, 5, 4)}, {"x": _x(9, 1, 4)}]


def _counts(*counts):
    return [{"x": np.array([1, 2, 0.5], np.float32), "count": np.array(count)} for count in counts]


def _lengths():
    return [
        {"x": _x(6, 2, 4), "lengths": np.array([6, 3], np.int32)},
        {"x": _x(4, 3, 4), "lengths": np.array([1, 4, 2], np.int32)},
    ]


# A model, inputs of several sizes, and which dimensions of x are dynamic.
Case = tuple[Callable[[], onnx.ModelProto], list[dict[str, np.ndarray]], dict[int, str]]
_TN = {0: "t", 1: "n"}
DYNAMIC: dict[str, Case] = {
    **{name: (lambda name=name: recurrent(name), _sequences(), _TN) for name in GATES},
    **{
        f"{name} {direction}": (lambda n=name, d=direction: recurrent(n, direction=d), _sequences(), _TN)
        for name, direction in (("RNN", "reverse"), ("GRU", "bidirectional"), ("LSTM", "bidirectional"))
    },
    "GRU reset before the product": (lambda: recurrent("GRU", linear_before_reset=1), _sequences(), _TN),
    "LSTM with clipped gates": (lambda: recurrent("LSTM", clip=0.5), _sequences(), _TN),
    "LSTM with peepholes": (lambda: recurrent("LSTM", peepholes=True), _sequences(), _TN),
    "LSTM of lengths": (lambda: recurrent("LSTM", True, direction="bidirectional"), _lengths(), _TN),
    "Loop over a dimension": (running_sum, [{"x": _x(4, 3)}, {"x": _x(7, 3)}, {"x": _x(2, 3)}], {0: "t"}),
    "Loop of a count": (lambda: doubling(True, True, False), _counts(3, 5, 0), {}),
    "Loop of a count at most": (lambda: doubling(True, True, True), _counts(3, 20), {}),
    "Loop of a count without results of steps": (lambda: doubling(False, True, False), _counts(3, 5, 0), {}),
    "Loop of a condition": (lambda: doubling(False, False, True), [{"x": _x(3)}, {"x": _x(3) * 0 + 9}], {}),
    "Scan": (scanned, [{"x": _x(2, 4, 3)}, {"x": _x(2, 7, 3)}], {1: "t"}),
    "Scan from the end": (
        lambda: scanned(scan_input_directions=[1], scan_output_directions=[1]),
        [{"x": _x(2, 4, 3)}, {"x": _x(2, 7, 3)}],
        {1: "t"},
    ),
}
