"""Weights of quantized programs that are floats."""

from __future__ import annotations

import onnx_ir as ir

from onnxops_decomp.passes.matching import hand_through, nodes_in, operand, producer

__all__ = ["KeepFloatWeights"]

# The operand that holds the weight.
_WEIGHTED = {"Conv": 1, "ConvTranspose": 1, "Gemm": 1, "MatMul": 1}
# ONNX Runtime moves DequantizeLinear through these.
_MOVING = ("Flatten", "Identity", "MaxPool", "Reshape", "Slice", "Squeeze", "Transpose", "Unsqueeze")
# The first opset with the Round that it quantizes biases with.
_ROUND_OPSET = 11


class KeepFloatWeights(ir.passes.InPlacePass):
    """Keeps ONNX Runtime from quantizing weights and biases that the model holds as floats.

    Where the input of Conv, ConvTranspose, Gemm or MatMul comes from DequantizeLinear, ONNX Runtime (seen in 1.31)
    rounds a constant weight to 8 bits, and the bias to 32; at opset 10 it writes a ``Round`` for that, which the opset
    does not have, and loads no such model. It leaves a node alone whose input went through a Sum of one operand.
    """

    def call(self, model: ir.Model) -> ir.passes.PassResult:
        """Run the pass on the main graph, its subgraphs and the functions."""
        modified = False
        for graph in (model.graph, *(function.graph for function in model.functions.values())):
            opset = graph.opset_imports.get("", model.opset_imports.get("", 0))
            for node in nodes_in(graph):
                if node.domain == "" and node.op_type in _WEIGHTED and _is_dequantized(operand(node, 0)):
                    weight = operand(node, _WEIGHTED[node.op_type])
                    if _is_float_constant(weight) or (opset < _ROUND_OPSET and _is_constant(weight)):
                        hand_through(node, "Sum")
                        modified = True
        return ir.passes.PassResult(model, modified)


def _is_dequantized(value: ir.Value | None) -> bool:
    """Tell whether a value is one of DequantizeLinear, moved or not."""
    while value is not None and producer(value, "DequantizeLinear") is None:
        node = value.producer()
        value = operand(node, 0) if node is not None and node.domain == "" and node.op_type in _MOVING else None
    return value is not None


def _is_constant(value: ir.Value | None) -> bool:
    """Tell whether a value is an initializer, or computed from nothing else."""
    if value is None or value.const_value is not None:
        return value is not None
    node = value.producer()
    return node is not None and all(_is_constant(part) for part in node.inputs if part is not None)


def _is_float_constant(value: ir.Value | None) -> bool:
    """Tell whether a value is constant, and not that of DequantizeLinear."""
    return _is_constant(value) and not _is_dequantized(value)
