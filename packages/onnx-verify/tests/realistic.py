"""Realistic models, built at a small width: a CNN, a decoder block with a cache, recurrent and quantized
nets."""

from __future__ import annotations

from functools import cache
from pathlib import Path

import numpy as np
import onnx
from models import build, info
from onnx import TensorProto, helper, numpy_helper


def _node(kind, inputs, outputs, **attributes):
    outputs = [outputs] if isinstance(outputs, str) else outputs
    return helper.make_node(kind, inputs, outputs, name=f"{kind}_{outputs[0]}", **attributes)


def cnn(seed=0):
    """Two convolution blocks with a skip, pooling, a concat and a classifier on [n, 3, 12, 12]."""
    rng = np.random.default_rng(seed)
    w = {
        "w1": rng.standard_normal((6, 3, 3, 3)) * 0.3, "w2": rng.standard_normal((6, 6, 3, 3)) * 0.2,
        "s1": rng.uniform(0.5, 2, 6), "b1": rng.standard_normal(6), "m1": rng.standard_normal(6),
        "v1": rng.uniform(0.001, 0.02, 6), "fc": rng.standard_normal((12, 12)) * 0.3, "fb": rng.standard_normal(12),
        "lo": np.asarray(-1.5), "hi": np.asarray(1.5),
    }  # fmt: skip
    weights = {key: np.asarray(value, np.float32) for key, value in w.items()}
    nodes = [
        _node("Conv", ["x", "w1"], "c1", pads=[1, 1, 1, 1], strides=[1, 1], kernel_shape=[3, 3]),
        _node("BatchNormalization", ["c1", "s1", "b1", "m1", "v1"], "n1", epsilon=1e-5),
        _node("LeakyRelu", ["n1"], "r1", alpha=0.1),
        _node("Conv", ["r1", "w2"], "c2", pads=[2, 2, 2, 2], dilations=[2, 2], kernel_shape=[3, 3]),
        _node("Add", ["c2", "r1"], "skip"),
        _node("Clip", ["skip", "lo", "hi"], "k"),
        _node("AveragePool", ["k"], "p1", kernel_shape=[2, 2], strides=[2, 2], pads=[1, 1, 1, 1]),
        _node("MaxPool", ["k"], "p2", kernel_shape=[2, 2], strides=[2, 2], pads=[1, 1, 1, 1]),
        _node("Concat", ["p1", "p2"], "cat", axis=1),
        _node("GlobalAveragePool", ["cat"], "g"),
        _node("Flatten", ["g"], "f", axis=1),
        _node("Cast", ["f"], "half", to=TensorProto.FLOAT16),
        _node("Cast", ["half"], "full", to=TensorProto.FLOAT),
        _node("Gemm", ["full", "fc", "fb"], "logits", transB=1, alpha=1.0, beta=1.0),
        _node("LogSoftmax", ["logits"], "y", axis=1),
    ]
    return build(nodes, [info("x", ["n", 3, 12, 12])], [info("y", ["n", 12])], weights)


def _decoder_weights(rng, width, heads, vocabulary):
    head = width // heads
    weights = {
        name: (rng.standard_normal((width, width)) / np.sqrt(width)).astype(np.float32)
        for name in ("wq", "wk", "wv", "wo")
    }
    weights |= {
        "table": rng.standard_normal((vocabulary, width)).astype(np.float32) * 0.02,
        "gamma": rng.uniform(0.5, 1.5, width).astype(np.float32), "beta": rng.standard_normal(width).astype(np.float32),
        "up": rng.standard_normal((width, 24)).astype(np.float32) * 0.3,
        "down": rng.standard_normal((24, width)).astype(np.float32) * 0.3,
        "scale": np.asarray(1 / np.sqrt(head), np.float32), "low": np.asarray(-1e4, np.float32),
        "split": np.array([0, -1, heads, head], np.int64), "merge": np.array([0, -1, width], np.int64),
        "zero": np.asarray(0, np.int64), "one": np.asarray(1, np.int64), "axis1": np.array([1], np.int64),
        "first": np.array([0], np.int64), "twelve": np.array([12], np.int64), "end": np.array([2**31], np.int64),
        "axis2": np.array([2], np.int64),
    }  # fmt: skip
    return weights


def _attention():
    """Embedding, normalization and causal attention with a cache, up to the residual sum."""
    nodes = [
        _node("Gather", ["table", "ids"], "e"),
        _node("LayerNormalization", ["e", "gamma", "beta"], "h", axis=-1, epsilon=1e-5),
    ]
    for letter in "qkv":
        nodes += [
            _node("MatMul", ["h", f"w{letter}"], f"{letter}0"),
            _node("Reshape", [f"{letter}0", "split"], f"{letter}1"),
            _node("Transpose", [f"{letter}1"], f"{letter}2", perm=[0, 2, 1, 3]),
        ]
    nodes += [
        _node("Concat", ["past_k", "k2"], "present_k", axis=2),
        _node("Concat", ["past_v", "v2"], "present_v", axis=2),
        _node("Transpose", ["present_k"], "kt", perm=[0, 1, 3, 2]),
        _node("MatMul", ["q2", "kt"], "s0"),
        _node("Mul", ["s0", "scale"], "s1"),
        _node("Shape", ["ids"], "len", start=1, end=2),
        _node("Shape", ["present_k"], "total", start=2, end=3),
        _node("Squeeze", ["len"], "len0"),
        _node("Squeeze", ["total"], "total0"),
        _node("Range", ["zero", "total0", "one"], "cols"),
        _node("Sub", ["total0", "len0"], "offset"),
        _node("Range", ["offset", "total0", "one"], "rows0"),
        _node("Unsqueeze", ["rows0", "axis1"], "rows"),
        _node("Greater", ["cols", "rows"], "future"),
        _node("Where", ["future", "low", "s1"], "s2"),
        _node("Softmax", ["s2"], "p", axis=-1),
        _node("MatMul", ["p", "present_v"], "a0"),
        _node("Transpose", ["a0"], "a1", perm=[0, 2, 1, 3]),
        _node("Reshape", ["a1", "merge"], "a2"),
        _node("MatMul", ["a2", "wo"], "a3"),
        _node("Add", ["a3", "e"], "res"),
    ]
    return nodes


def _gated():
    """The gated part of the block and the normalization of its result, up to the logits."""
    return [
        _node("MatMul", ["res", "up"], "u"),
        _node("Slice", ["u", "first", "twelve", "axis2"], "gate"),
        _node("Slice", ["u", "twelve", "end", "axis2"], "value"),
        _node("Sigmoid", ["gate"], "sig"),
        _node("Mul", ["gate", "sig"], "silu"),
        _node("Mul", ["silu", "value"], "glu"),
        _node("Slice", ["down", "first", "twelve", "first"], "down0"),
        _node("MatMul", ["glu", "down0"], "mlp"),
        _node("Sub", ["res", "mlp"], "out"),
        _node("Cast", ["out"], "wide", to=TensorProto.DOUBLE),
        _node("ReduceMean", ["wide", "axis2"], "mean", keepdims=1),
        _node("Cast", ["mean"], "narrow", to=TensorProto.FLOAT),
        _node("Div", ["out", "narrow"], "logits"),
    ]


def decoder(seed=0, width=16, heads=2, vocabulary=11):
    """One decoder block with a key-value cache: ids, past_k, past_v -> logits, present_k, present_v."""
    weights = _decoder_weights(np.random.default_rng(seed), width, heads, vocabulary)
    nodes = [*_attention(), *_gated()]
    head = width // heads
    past = ["batch", heads, "past", head]
    inputs = [info("ids", ["batch", "seq"], TensorProto.INT64), info("past_k", past), info("past_v", past)]
    now = ["batch", heads, "total_len", head]
    outputs = [info("logits", ["batch", "seq", width]), info("present_k", now), info("present_v", now)]
    return build(nodes, inputs, outputs, weights)


def decoder_inputs(batch=2, seq=3, past=4, seed=0):
    """Inputs of the decoder by name."""
    rng = np.random.default_rng(seed)
    return {
        "ids": rng.integers(0, 11, (batch, seq)),
        "past_k": rng.standard_normal((batch, 2, past, 8)).astype(np.float32),
        "past_v": rng.standard_normal((batch, 2, past, 8)).astype(np.float32),
    }


def recurrent(seed=0, size=5, hidden=4):
    """A bidirectional LSTM, a GRU and a Scan that sums up, on [s, n, 5]."""
    rng = np.random.default_rng(seed)

    def random(*shape):
        return rng.standard_normal(shape).astype(np.float32) * 0.5

    weights = {
        "lw": random(2, 4 * hidden, size), "lr": random(2, 4 * hidden, hidden), "lb": random(2, 8 * hidden),
        "gw": random(1, 3 * hidden, 2 * hidden), "gr": random(1, 3 * hidden, hidden), "gb": random(1, 6 * hidden),
        "flat": np.array([0, 0, -1], np.int64), "axis1": np.array([1], np.int64), "decay": np.asarray(0.9, np.float32),
        "start": np.zeros((2, hidden), np.float32), "zero_axis": np.array([0], np.int64),
    }  # fmt: skip
    body = helper.make_graph(
        [
            _node("Mul", ["state", "decay"], "decayed"),
            _node("Add", ["decayed", "item"], "next"),
            _node("Tanh", ["next"], "seen"),
        ],
        "body",
        [info("state", [2, hidden]), info("item", [2, hidden])],
        [info("next", [2, hidden]), info("seen", [2, hidden])],
    )
    nodes = [
        _node("LSTM", ["x", "lw", "lr", "lb"], ["l", "lh", "lc"], hidden_size=hidden, direction="bidirectional"),
        _node("Transpose", ["l"], "lt", perm=[0, 2, 1, 3]),
        _node("Reshape", ["lt", "flat"], "lf"),
        _node("GRU", ["lf", "gw", "gr", "gb"], ["g", "gh"], hidden_size=hidden, linear_before_reset=1),
        _node("Squeeze", ["g", "axis1"], "gs"),
        _node("Scan", ["start", "gs"], ["last", "ys"], body=body, num_scan_inputs=1),
        _node("ReduceSum", ["ys", "axis1"], "y", keepdims=0),
    ]
    return build(nodes, [info("x", ["s", 2, size])], [info("y", ["s", hidden]), info("last", [2, hidden])], weights)


def quantized(seed=0):
    """A linear layer in QDQ form, on [n, 8]."""
    rng = np.random.default_rng(seed)
    weights = {
        "xs": np.asarray(0.05, np.float32), "xz": np.asarray(3, np.uint8),
        "wq": rng.integers(-100, 100, (8, 6)).astype(np.int8), "ws": rng.uniform(0.01, 0.02, 6).astype(np.float32),
        "wz": np.zeros(6, np.int8), "ys": np.asarray(0.02, np.float32), "yz": np.asarray(128, np.uint8),
    }  # fmt: skip
    nodes = [
        _node("QuantizeLinear", ["x", "xs", "xz"], "xq"),
        _node("DequantizeLinear", ["xq", "xs", "xz"], "xd"),
        _node("DequantizeLinear", ["wq", "ws", "wz"], "wd", axis=1),
        _node("MatMul", ["xd", "wd"], "m"),
        _node("QuantizeLinear", ["m", "ys", "yz"], "mq"),
        _node("DequantizeLinear", ["mq", "ys", "yz"], "y"),
    ]
    return build(nodes, [info("x", ["n", 8])], [info("y", ["n", 6])], weights, opset=19)


def integer(seed=0):
    """Two linear layers in integer arithmetic, quantized as the data comes, on [n, 8]."""
    rng = np.random.default_rng(seed)
    weights = {
        "w0": rng.integers(-100, 100, (8, 6)).astype(np.int8), "w1": rng.integers(-100, 100, (6, 4)).astype(np.int8),
        "z0": np.asarray(3, np.int8), "s0": np.asarray(0.02, np.float32), "s1": np.asarray(0.01, np.float32),
        "ys": np.asarray(0.05, np.float32), "yz": np.asarray(120, np.uint8),
    }  # fmt: skip
    nodes = [
        _node("DynamicQuantizeLinear", ["x"], ["xq", "xs", "xz"]),
        _node("MatMulInteger", ["xq", "w0", "xz", "z0"], "sum0"),
        _node("Cast", ["sum0"], "wide0", to=TensorProto.FLOAT),
        _node("Mul", ["xs", "s0"], "step0"),
        _node("Mul", ["wide0", "step0"], "h"),
        _node("Relu", ["h"], "r"),
        _node("DynamicQuantizeLinear", ["r"], ["rq", "rs", "rz"]),
        _node("MatMulInteger", ["rq", "w1", "rz"], "sum1"),
        _node("Cast", ["sum1"], "wide1", to=TensorProto.FLOAT),
        _node("Mul", ["rs", "s1"], "step1"),
        _node("Mul", ["wide1", "step1"], "logits"),
        _node("QuantizeLinear", ["logits", "ys", "yz"], "yq"),
        _node("DequantizeLinear", ["yq", "ys", "yz"], "y"),
    ]
    return build(nodes, [info("x", ["n", 8])], [info("y", ["n", 4])], weights)


def half(seed=0):
    """Attention and a gated layer in half precision, on [n, s, 8]."""
    rng = np.random.default_rng(seed)
    weights = {name: (rng.standard_normal((8, 8)) / 2).astype(np.float16) for name in ("wq", "wk", "wv", "wo", "wg")}
    weights |= {
        "gamma": rng.uniform(0.5, 1.5, 8).astype(np.float16), "beta": rng.standard_normal(8).astype(np.float16),
        "root": np.asarray(8**-0.5, np.float16), "axes": np.array([-1], np.int64),
    }  # fmt: skip
    code = TensorProto.FLOAT16
    nodes = [
        _node("LayerNormalization", ["x", "gamma", "beta"], "h", epsilon=1e-3),
        _node("MatMul", ["h", "wq"], "q"),
        _node("MatMul", ["h", "wk"], "k"),
        _node("MatMul", ["h", "wv"], "v"),
        _node("Transpose", ["k"], "kt", perm=[0, 2, 1]),
        _node("MatMul", ["q", "kt"], "scores"),
        _node("Mul", ["scores", "root"], "scaled"),
        _node("Softmax", ["scaled"], "p", axis=-1),
        _node("MatMul", ["p", "v"], "mixed"),
        _node("MatMul", ["mixed", "wo"], "o"),
        _node("Add", ["o", "x"], "res"),
        _node("MatMul", ["res", "wg"], "gate"),
        _node("Sigmoid", ["gate"], "open"),
        _node("Mul", ["res", "open"], "gated"),
        _node("Cast", ["gated"], "wide", to=TensorProto.FLOAT),
        _node("ReduceMean", ["wide", "axes"], "mean", keepdims=1),
        _node("Cast", ["mean"], "narrow", to=code),
        _node("Sub", ["gated", "narrow"], "y"),
    ]
    return build(nodes, [info("x", ["n", "s", 8], code)], [info("y", ["n", "s", 8], code)], weights)


def functions(seed=0):
    """Two layers that are calls of one local function, which calls another, on [n, 6]."""
    rng = np.random.default_rng(seed)
    weights = {name: (rng.standard_normal((6, 6)) / 2).astype(np.float32) for name in ("w0", "w1")}
    opsets = [helper.make_opsetid("", 18), helper.make_opsetid("local", 1)]
    gate = [_node("Sigmoid", ["a"], "s"), _node("Mul", ["a", "s"], "g")]
    layer = [
        _node("MatMul", ["a", "w"], "m"),
        helper.make_node("Gate", ["m"], ["silu"], domain="local", name="Gate_silu"),
        _node("Add", ["silu", "a"], "c"),
    ]
    local = [
        helper.make_function("local", "Gate", ["a"], ["g"], gate, opsets),
        helper.make_function("local", "Layer", ["a", "w"], ["c"], layer, opsets),
    ]
    nodes = [
        helper.make_node("Layer", ["x", "w0"], ["h"], domain="local", name="Layer_h"),
        _node("Neg", ["h"], "turned"),
        helper.make_node("Layer", ["turned", "w1"], ["y"], domain="local", name="Layer_y"),
    ]
    return build(nodes, [info("x", ["n", 6])], [info("y", ["n", 6])], weights, functions=local)


def control_flow():
    """A Loop whose body holds an If, and an If around a captured value."""
    then = helper.make_graph([_node("Mul", ["acc", "two"], "t")], "then", [], [info("t", None)])
    other = helper.make_graph([_node("Sub", ["acc", "x"], "o")], "else", [], [info("o", None)])
    body = helper.make_graph(
        [
            _node("Mod", ["i", "two_i"], "odd"),
            _node("Cast", ["odd"], "flag", to=TensorProto.BOOL),
            _node("If", ["flag"], "stepped", then_branch=then, else_branch=other),
            _node("Tanh", ["stepped"], "acc_out"),
            _node("Identity", ["go"], "go_out"),
            _node("Exp", ["acc_out"], "scan"),
        ],
        "body",
        [info("i", [], TensorProto.INT64), info("go", [], TensorProto.BOOL), info("acc", ["n"])],
        [info("go_out", [], TensorProto.BOOL), info("acc_out", ["n"]), info("scan", ["n"])],
    )
    nodes = [
        _node("Add", ["x", "half"], "start"),
        _node("Loop", ["count", "yes", "start"], ["final", "trace"], body=body),
        _node("ReduceSum", ["trace"], "y", keepdims=0),
    ]
    weights = {
        "two": np.asarray(2, np.float32), "two_i": np.asarray(2, np.int64), "half": np.asarray(0.5, np.float32),
        "count": np.asarray(5, np.int64), "yes": np.asarray(True),
    }  # fmt: skip
    return build(nodes, [info("x", ["n"])], [info("y", []), info("final", ["n"])], weights)


LIGHT = Path(onnx.__file__).parent / "backend" / "test" / "data" / "light"


@cache
def light_model(name, seed=0):
    """A well-known vision network that onnx ships without its weights, with random weights and unique node
    names."""
    model = onnx.load(LIGHT / f"light_{name}.onnx")
    rng = np.random.default_rng(seed)
    fills = {node.output[0]: node for node in model.graph.node if node.op_type == "ConstantOfShape"}
    shapes = {tensor.name: numpy_helper.to_array(tensor) for tensor in model.graph.initializer}
    kept, tensors = [], []
    for node in model.graph.node:
        if node.output[0] in fills:
            shape = tuple(int(dim) for dim in shapes[node.input[0]])
            tensors.append(numpy_helper.from_array(_random_weight(rng, shape), node.output[0]))
        else:
            kept.append(node)
    used = {name for node in kept for name in node.input}
    tensors += [tensor for tensor in model.graph.initializer if tensor.name in used]
    for index, node in enumerate(kept):
        node.name = f"{node.op_type}_{index}"
    del model.graph.node[:], model.graph.initializer[:]
    model.graph.node.extend(kept)
    model.graph.initializer.extend(tensors)
    del model.graph.value_info[:]
    inputs = [
        value for value in model.graph.input if value.name in used and value.name not in {t.name for t in tensors}
    ]
    del model.graph.input[:]
    model.graph.input.extend(inputs)
    return model


def _random_weight(rng, shape):
    """He-scaled for kernels and matrices; between 0.5 and 1 for vectors, which may be variances."""
    if len(shape) < 2:
        return rng.uniform(0.5, 1, shape).astype(np.float32)
    fan = np.prod(shape[1:])
    return (rng.standard_normal(shape) * np.sqrt(2 / fan)).astype(np.float32)


def mutated(rng, samples):
    """One of ``samples`` with some of its bytes changed, taken away or added."""
    data = bytearray(rng.choice(samples))
    for _ in range(rng.randint(1, 4)):
        place = rng.randrange(len(data))
        kind = rng.random()
        if kind < 0.6:
            data[place] = rng.randrange(256)
        elif kind < 0.8:
            del data[place : place + rng.randint(1, 4)]
        else:
            data[place:place] = bytes(rng.randrange(256) for _ in range(rng.randint(1, 4)))
    return bytes(data)
