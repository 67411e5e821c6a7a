"""Gelu where models spell out its approximation by tanh."""

from __future__ import annotations

import onnx_ir as ir

from onnxops_decomp.passes.matching import number, replace_outputs, sweep
from onnxops_decomp.passes.spelled_gelu import CUBIC, SLOPE, spelled_gelu

__all__ = ["FuseGelu"]

_FIRST_OPSET = 20


class FuseGelu(ir.passes.InPlacePass):
    """Puts Gelu in place of ``x / 2 * (1 + tanh(sqrt(2 / pi) * (x + 0.044715 * x ** 3)))``, in FLOAT.

    Below opset 20 it becomes the polynomial in the order that runtimes take for one operation.
    """

    def call(self, model: ir.Model) -> ir.passes.PassResult:
        """Run the pass on the main graph."""
        numbers: dict[float, ir.Value] = {}
        modified = False
        for bend in [node for node in model.graph if node.op_type == "Tanh" and not node.domain]:
            found = None if bend.graph is None else spelled_gelu(bend)
            if found is None or found[0].dtype != ir.DataType.FLOAT:
                continue
            x, last = found
            if model.opset_imports[""] >= _FIRST_OPSET:
                new = ir.node("Gelu", [x], {"approximate": "tanh"})
            else:
                new = _spelled(model.graph, x, last, numbers)
            replace_outputs(last, new, {0: last.outputs[0]})
            sweep(last)
            modified = True
        return ir.passes.PassResult(model, modified)


def _spelled(graph: ir.Graph, x: ir.Value, before: ir.Node, numbers: dict[float, ir.Value]) -> ir.Node:
    """Insert all nodes of the polynomial but the last one, which is returned; its numbers are those of the others."""
    name = before.outputs[0].name

    def fixed(value: float) -> ir.Value:
        if value not in numbers:
            numbers[value] = number(graph, value, f"{name}.number_{len(numbers)}")
        return numbers[value]

    def node(op_type: str, role: str, *inputs: ir.Value) -> ir.Value:
        made = ir.node(op_type, inputs)
        (result,) = made.outputs
        result.name, result.type, result.shape = f"{name}.{role}", x.type, x.shape
        made.metadata_props.update(before.metadata_props)
        graph.insert_before(before, made)
        return result

    square = node("Mul", "square", node("Mul", "part", x, fixed(CUBIC)), x)
    factor = node("Add", "factor", square, fixed(1.0))
    inside = node("Mul", "inside", node("Mul", "slope", x, fixed(SLOPE)), factor)
    bell = node("Add", "bell", node("Tanh", "tanh", inside), fixed(1.0))
    return ir.node("Mul", [node("Mul", "half", x, fixed(0.5)), bell])
