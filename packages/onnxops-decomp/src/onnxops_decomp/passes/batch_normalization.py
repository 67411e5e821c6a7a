"""BatchNormalization behind a linear operator whose weights are known."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx_ir as ir

from onnxops_decomp.passes.derived import DerivedTensor
from onnxops_decomp.passes.matching import nodes_in, operand, sole_user

__all__ = ["FoldBatchNormalization"]

Array = npt.NDArray[Any]

_BLOCK_ELEMENTS = 1 << 18


class FoldBatchNormalization(ir.passes.InPlacePass):
    """Scales the weights of Conv, ConvTranspose or Gemm instead of their result.

    In inference BatchNormalization is ``x * s + (bias - mean * s)`` with ``s = scale / sqrt(var + epsilon)`` for each
    channel. Where it is the only reader of a linear operator with constant weights that nothing else reads, ``s`` goes
    into the weights and the rest into the bias. They are computed in float64 when they are read, one at a time.
    """

    def call(self, model: ir.Model) -> ir.passes.PassResult:
        """Run the pass on the main graph and its subgraphs."""
        modified = False
        for node in nodes_in(model.graph):
            if node.op_type in _SCALED and node.domain == "":
                modified |= self._fold(model.graph, node)
        return ir.passes.PassResult(model, modified)

    def _fold(self, main: ir.Graph, linear: ir.Node) -> bool:
        normalization = sole_user(linear.outputs[0])
        if normalization is None or not _is_inference(normalization, linear):
            return False
        weight, bias = operand(linear, 1), operand(linear, 2)
        known = [_tensor(value) for value in (weight, *normalization.inputs[1:5])]
        tensors = [tensor for tensor in known if tensor is not None]
        if len(tensors) != len(known) or weight is None or len(weight.uses()) != 1 or not _takes_bias(linear, bias):
            return False
        old, statistics, old_bias = tensors[0], tensors[1:], _tensor(bias)
        epsilon = normalization.attributes.get_float("epsilon", 1e-5)
        scaled = DerivedTensor(
            partial(_SCALED[linear.op_type](linear), epsilon),
            [old, statistics[0], statistics[3]],
            name=f"{weight.name}.folded",
            dtype=old.dtype,
            shape=old.shape,  # type: ignore[arg-type]
        )
        shifted = DerivedTensor(
            partial(_shifted, epsilon),
            [*statistics, *([old_bias] if old_bias is not None else [])],
            name=f"{weight.name}.folded_bias",
            dtype=old.dtype,
            shape=ir.Shape(statistics[0].shape.numpy()),
        )
        if old.dtype == ir.DataType.FLOAT16 and not _fits(scaled, shifted):
            return False
        self._replace(main, linear, normalization, [scaled, shifted])
        return True

    def _replace(
        self, main: ir.Graph, linear: ir.Node, normalization: ir.Node, parameters: list[DerivedTensor]
    ) -> None:
        read = [*linear.inputs[1:3], *normalization.inputs[1:5]]
        values = [ir.Value(name=t.name, type=ir.TensorType(t.dtype), shape=t.shape, const_value=t) for t in parameters]
        for value in values:
            main.initializers.add(value)
        linear.resize_inputs(3)
        for index, value in enumerate(values, start=1):
            linear.replace_input_with(index, value)
        output, result = normalization.outputs[0], linear.outputs[0]
        result.name, result.shape = output.name, output.shape if output.shape is not None else result.shape
        ir.convenience.replace_all_uses_with(output, result, replace_graph_outputs=True)
        graph = normalization.graph
        assert graph is not None
        graph.remove(normalization, safe=True)
        for old in read:
            if old is not None and old.is_initializer() and not old.uses() and not old.is_graph_output():
                old.graph.initializers.pop(str(old.name), None)  # type: ignore[union-attr]


def _is_inference(node: ir.Node, linear: ir.Node) -> bool:
    """Tell whether a node normalizes what ``linear`` gives with the given statistics, one for each channel."""
    return (
        node.op_type == "BatchNormalization"
        and node.domain == ""
        and node.graph is linear.graph
        and node.inputs[0] is linear.outputs[0]
        and not any(output.uses() or output.is_graph_output() for output in node.outputs[1:])
        and node.attributes.get_int("training_mode", 0) == 0
        and node.attributes.get_int("spatial", 1) == 1
    )


def _tensor(value: ir.Value | None) -> ir.TensorProtocol | None:
    """Return the contents of a constant that no caller can replace, by an input of the model of its name."""
    constant = value is not None and value.is_initializer() and not value.is_graph_input()
    return value.const_value if constant and value is not None else None


def _takes_bias(linear: ir.Node, bias: ir.Value | None) -> bool:
    """Tell whether the bias of a linear operator is known and is one number for each channel, or absent."""
    if linear.op_type == "Gemm":
        alpha, beta = (linear.attributes.get_float(name, 1.0) for name in ("alpha", "beta"))
        if alpha != 1.0 or beta != 1.0 or linear.attributes.get_int("transA", 0) != 0:
            return False
    tensor = _tensor(bias)
    result, shape = linear.outputs[0].shape, None if tensor is None else tuple(tensor.shape)
    channels = None if result is None or len(result) < 2 else result[1]
    return bias is None or (shape is not None and len(shape) == 1 and shape == (channels,))


def _fits(*tensors: DerivedTensor) -> bool:
    """Tell whether what is computed is known to be finite in its dtype; weights without contents are not known."""
    try:
        return all(np.isfinite(tensor.numpy().astype(np.float64)).all() for tensor in tensors)
    except (RuntimeError, TypeError):
        return False


def _factor(epsilon: float, scale: Array, variance: Array) -> Array:
    factor: Array = scale.astype(np.float64) / np.sqrt(variance.astype(np.float64) + epsilon)
    return factor


def _shifted(epsilon: float, scale: Array, offset: Array, mean: Array, variance: Array, *bias: Array) -> Array:
    before = bias[0].astype(np.float64) if bias else 0.0
    shifted: Array = (before - mean.astype(np.float64)) * _factor(epsilon, scale, variance) + offset.astype(np.float64)
    return shifted


def _products(weight: Array, factor: Array) -> Array:
    """Return the products with a factor, computed in float64 and rounded once, in blocks that stay small."""
    result = np.empty_like(weight)
    rows = max(1, _BLOCK_ELEMENTS * len(weight) // max(1, weight.size))
    for start in range(0, len(weight), rows):
        part = slice(start, start + rows)
        factors = factor if len(factor) == 1 else factor[part]
        with np.errstate(over="ignore"):
            result[part] = weight[part].astype(np.float64) * factors
    return result


def _along(axis: int, epsilon: float, weight: Array, scale: Array, variance: Array) -> Array:
    shape = [1] * weight.ndim
    shape[axis] = -1
    return _products(weight, _factor(epsilon, scale, variance).reshape(shape))


def _transposed(groups: int, epsilon: float, weight: Array, scale: Array, variance: Array) -> Array:
    """Scale the weight of a ConvTranspose, [in, out / groups, ...]: each group of inputs has outputs of its own."""
    factor = _factor(epsilon, scale, variance).reshape(groups, 1, weight.shape[1], *[1] * (weight.ndim - 2))
    parted = weight.reshape(groups, weight.shape[0] // groups, *weight.shape[1:])
    return _products(parted, factor).reshape(weight.shape)


_SCALED: dict[str, Callable[[ir.Node], Callable[..., Array]]] = {
    "Conv": lambda node: partial(_along, 0),
    "ConvTranspose": lambda node: partial(_transposed, node.attributes.get_int("group", 1)),
    "Gemm": lambda node: partial(_along, 0 if node.attributes.get_int("transB", 0) else 1),
}
