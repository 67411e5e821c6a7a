"""A small exporter of TorchScript graphs, enough for the tests; faults can be planted in it."""

from __future__ import annotations

import numpy as np
import onnx
import torch
from onnx import TensorProto, helper, numpy_helper

CODES = {torch.float32: TensorProto.FLOAT, torch.int64: TensorProto.INT64, torch.bool: TensorProto.BOOL}
PLAIN = {
    "aten::relu": "Relu", "aten::sigmoid": "Sigmoid", "aten::tanh": "Tanh", "aten::mul": "Mul",
    "aten::matmul": "MatMul", "aten::exp": "Exp", "aten::neg": "Neg",
}  # fmt: skip


class StandIn:
    """Exports graphs of a few operators; ``faults`` maps a kind to the ONNX operator used instead."""

    def __init__(self, faults=None):
        self.plain = PLAIN | (faults or {})
        self.calls = 0

    def __call__(self, graph, example_inputs, opset_version):
        self.calls += 1
        nodes, constants, lists, initializers = [], {}, {}, []

        def read(given):
            name = given.debugName()
            if name in constants and f"const_{name}" not in {t.name for t in initializers}:
                value = constants[name]
                array = value.numpy() if isinstance(value, torch.Tensor) else np.asarray(value, np.float32)
                initializers.append(numpy_helper.from_array(array, f"const_{name}"))
            return f"const_{name}" if name in constants else name

        inputs = list(graph.inputs())
        infos = [
            helper.make_tensor_value_info(value.debugName(), CODES[example.dtype], list(example.shape))
            for value, example in zip(inputs, example_inputs, strict=True)
        ]
        for node in graph.nodes():
            out = node.output().debugName()
            args = list(node.inputs())
            kind = node.kind()
            if kind == "prim::Constant":
                constants[out] = node.output().toIValue()
            elif kind == "prim::ListConstruct":
                lists[out] = args
            elif kind in ("aten::reshape", "aten::view"):
                nodes.append(self._reshape(out, args, lists, constants, initializers, nodes))
            else:
                nodes += self._nodes(kind, out, args, constants, read)
        return self._model(graph, infos, nodes, initializers, opset_version)

    def _nodes(self, kind, out, args, constants, read):
        if kind in ("aten::add", "aten::sub"):
            assert constants[args[2].debugName()] == 1
            op = self.plain.get(kind, "Add" if kind == "aten::add" else "Sub")
            return [helper.make_node(op, [read(a) for a in args[:2]], [out])]
        if kind == "aten::linear":
            alpha = 0.9 if self.plain.get(kind) == "scaled" else 1.0
            return [helper.make_node("Gemm", [read(a) for a in args], [out], transB=1, alpha=alpha)]
        if kind == "aten::size":
            axis = constants[args[1].debugName()]
            sizes = helper.make_node("Shape", [read(args[0])], [f"{out}_1d"], start=axis, end=axis + 1)
            return [sizes, helper.make_node("Squeeze", [f"{out}_1d"], [out])]
        if kind in ("prim::NumToTensor", "aten::Int"):
            return [helper.make_node("Identity", [read(args[0])], [out])]
        if kind in self.plain:
            return [helper.make_node(self.plain[kind], [read(a) for a in args], [out])]
        raise NotImplementedError(kind)

    @staticmethod
    def _model(graph, infos, nodes, initializers, opset_version):
        outputs = [onnx.ValueInfoProto(name=value.debugName()) for value in graph.outputs()]
        made = helper.make_graph(nodes, "piece", infos, outputs, initializers)
        return helper.make_model(made, opset_imports=[helper.make_opsetid("", opset_version)], ir_version=10)

    @staticmethod
    def _reshape(out, args, lists, constants, initializers, nodes):
        parts = []
        for i, item in enumerate(lists[args[1].debugName()]):
            name = item.debugName()
            if name in constants:
                initializers.append(numpy_helper.from_array(np.array([constants[name]], np.int64), f"dim_{out}_{i}"))
                name = f"dim_{out}_{i}"
            else:
                initializers.append(numpy_helper.from_array(np.array([0], np.int64), f"axis_{out}_{i}"))
                nodes.append(helper.make_node("Unsqueeze", [name, f"axis_{out}_{i}"], [f"dim_{out}_{i}"]))
                name = f"dim_{out}_{i}"
            parts.append(name)
        nodes.append(helper.make_node("Concat", parts, [f"shape_{out}"], axis=0))
        return helper.make_node("Reshape", [args[0].debugName(), f"shape_{out}"], [out])
