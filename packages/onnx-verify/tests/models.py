"""Small ONNX models that the tests share; each takes the sizes that it is to be run at."""

from __future__ import annotations

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper


def info(name, shape, code=TensorProto.FLOAT):
    return helper.make_tensor_value_info(name, code, shape)


def build(nodes, inputs, outputs, initializers=None, opset=18, functions=(), name="test"):
    """Makes a model from nodes, value infos and a dict of arrays."""
    tensors = [numpy_helper.from_array(value, key) for key, value in (initializers or {}).items()]
    graph = helper.make_graph(nodes, name, inputs, outputs, tensors)
    domains = {node.domain for node in nodes if node.domain} | {function.domain for function in functions}
    opsets = [helper.make_opsetid("", opset), *(helper.make_opsetid(domain, 1) for domain in sorted(domains))]
    return helper.make_model(graph, opset_imports=opsets, functions=list(functions), ir_version=10)


def mlp(seed=0, width=8, layers=3):
    """y = relu(x W + b), ``layers`` times over, on [batch, width]."""
    rng = np.random.default_rng(seed)
    nodes, weights, last = [], {}, "x"
    for i in range(layers):
        weights[f"w{i}"] = (rng.standard_normal((width, width)) / np.sqrt(width)).astype(np.float32)
        weights[f"b{i}"] = rng.standard_normal(width).astype(np.float32)
        nodes.append(helper.make_node("MatMul", [last, f"w{i}"], [f"m{i}"], name=f"matmul{i}"))
        nodes.append(helper.make_node("Add", [f"m{i}", f"b{i}"], [f"a{i}"], name=f"add{i}"))
        nodes.append(helper.make_node("Relu", [f"a{i}"], [f"r{i}"], name=f"relu{i}"))
        last = f"r{i}"
    return build(nodes, [info("x", ["batch", width])], [info(last, ["batch", width])], weights)


def mlp_numpy(model, x):
    """The same function in numpy, from the model's own weights."""
    weights = {tensor.name: numpy_helper.to_array(tensor) for tensor in model.graph.initializer}
    for i in range(len(weights) // 2):
        x = np.maximum(x @ weights[f"w{i}"] + weights[f"b{i}"], 0)
    return x


def clone(model):
    """A deep copy, for planting a fault in."""
    copy = onnx.ModelProto()
    copy.CopyFrom(model)
    return copy


def node_named(model, name):
    """The node of that name."""
    return next(node for node in model.graph.node if node.name == name)


def set_weight(model, name, values):
    """Replaces an initializer's values."""
    for tensor in model.graph.initializer:
        if tensor.name == name:
            tensor.CopyFrom(numpy_helper.from_array(values, name))
            return
    raise KeyError(name)


def weight(model, name):
    """An initializer's values."""
    return next(numpy_helper.to_array(t).copy() for t in model.graph.initializer if t.name == name)


def normal(*shape, seed=0):
    """Standard normal float32 values."""
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)
