"""Zeros around the input of MaxPool and AveragePool."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir

from onnxops_decomp.passes.matching import hand_through, nodes_in, operand, producer, sole_user

__all__ = ["KeepPaddingApart"]

# From this opset Pad takes axes.
_AXES_OPSET = 18
# From this opset AveragePool has other kernels.
_DILATIONS_OPSET = 19
_AXES = 3
_TRANSPARENT = ("Cast", "Dropout", "Identity")


class KeepPaddingApart(ir.passes.InPlacePass):
    """Keeps ONNX Runtime from moving zeros that are written around an input into the ``pads`` of a pooling.

    Those of MaxPool are not zeros: they never are the maximum. ONNX Runtime up to 1.31 merges a Pad of zeros with the
    MaxPool behind it anyway, and gives another maximum where all of a window is negative. Those of AveragePool
    are counted wrongly by the kernels for opset 19 and later before ONNX Runtime 1.25. It leaves a Pad that names its
    axes alone; below opset 18, which has none, a Sum of one operand stands between the two, a Max for integers.
    """

    def call(self, model: ir.Model) -> ir.passes.PassResult:
        """Run the pass on the main graph, its subgraphs and the functions."""
        modified = False
        for graph in (model.graph, *(function.graph for function in model.functions.values())):
            opset = graph.opset_imports.get("", model.opset_imports.get("", 0))
            for node in nodes_in(graph):
                pooled = node.op_type == "MaxPool" or (node.op_type == "AveragePool" and opset >= _DILATIONS_OPSET)
                pad = _padding_of(node) if pooled and node.domain == "" else None
                if pad is not None and _is_zeros(pad):
                    if opset >= _AXES_OPSET:
                        _name_axes(pad, in_function=graph is not model.graph)
                    else:
                        hand_through(node, "Sum" if _is_floating(node) else "Max")
                    modified = True
        return ir.passes.PassResult(model, modified)


def _padding_of(pool: ir.Node) -> ir.Node | None:
    """Return the Pad in front of a pooling that ONNX Runtime finds, through nodes that it moves or drops."""
    value = operand(pool, 0)
    while value is not None and sole_user(value) is not None:
        if (pad := producer(value, "Pad")) is not None:
            return pad
        between = value.producer()
        value = operand(between, 0) if between is not None and between.op_type in _TRANSPARENT else None
    return None


def _is_zeros(pad: ir.Node) -> bool:
    """Tell whether a Pad without axes writes zeros."""
    if pad.attributes.get_string("mode", "constant") != "constant" or operand(pad, _AXES) is not None:
        return False
    value = operand(pad, 2)
    fill = None if value is None else ir.convenience.get_const_tensor(value)
    return bool((pad.attributes.get_float("value", 0.0) if fill is None else fill.numpy().item()) == 0)


def _name_axes(pad: ir.Node, *, in_function: bool) -> None:
    """Give a Pad all axes; one whose rank is unknown has computed pads, which are not merged."""
    pads = ir.convenience.get_const_tensor(pad.inputs[1]) if pad.inputs[1] is not None else None
    graph = pad.graph
    if pads is None or graph is None:
        return
    rank = pads.size // 2
    tensor = ir.tensor(np.arange(rank), name=f"{pad.outputs[0].name}.axes")
    if in_function:
        node = ir.node("Constant", [], {"value": tensor}, name=f"{pad.name}_axes")
        graph.insert_before(pad, node)
        axes = node.outputs[0]
        axes.name, axes.type, axes.shape = tensor.name, ir.TensorType(tensor.dtype), ir.Shape([rank])
    else:
        axes = ir.Value(name=tensor.name, type=ir.TensorType(tensor.dtype), shape=ir.Shape([rank]), const_value=tensor)
        graph.initializers.add(axes)
    pad.resize_inputs(_AXES + 1)
    pad.replace_input_with(_AXES, axes)


def _is_floating(pool: ir.Node) -> bool:
    value = operand(pool, 0)
    return value is None or value.dtype is None or value.dtype.is_floating_point()
