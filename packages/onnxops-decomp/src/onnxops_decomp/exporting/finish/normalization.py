"""Normalizations that models spell out."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir

from onnxops_decomp.passes.matching import constant, dims, number, operand, other_operand, producer, replace, sole_user
from onnxops_decomp.runtimes import keeps_digits_far_from_zero

__all__ = ["FuseRMSNormalization"]

_FIRST_OPSET, _FIRST_OPSET_OF_LAYERS = 23, 17
# The operator computes in float32 (stash_type 1), which is less than what a float64 model does.
_DTYPES = frozenset((ir.DataType.FLOAT, ir.DataType.FLOAT16, ir.DataType.BFLOAT16))


class FuseRMSNormalization(ir.passes.InPlacePass):
    """Puts RMSNormalization in place of ``x * rsqrt(mean(x * x, -1) + eps) * weight``, or of ``x / sqrt(...)``.

    In half precision models compute the mean in float32 and cast back before the weight; that is what the operator's
    ``stash_type`` 1 says, so the casts go too. Where x is something without its mean, that is LayerNormalization, with
    the bias that is added. Below opset 23 the others become ``x / sqrt(mean(x ** 2, -1) + eps) * weight``
    in FLOAT, which ONNX Runtime takes for one operation.
    """

    def call(self, model: ir.Model) -> ir.passes.PassResult:
        """Run the pass on the main graph."""
        modified = False
        for node in list(model.graph):
            if node.op_type == "Sqrt" and node.graph is not None:
                modified |= self._fuse(node, model.opset_imports[""])
        return ir.passes.PassResult(model, modified)

    def _fuse(self, root: ir.Node, opset: int) -> bool:
        shifted = producer(operand(root, 0), "Add")
        if shifted is None:
            return False
        mean = producer(shifted.inputs[0], "ReduceMean") or producer(shifted.inputs[1], "ReduceMean")
        epsilon = constant(other_operand(shifted, mean.outputs[0])) if mean else None
        x = self._squared(mean) if mean else None
        if mean is None or epsilon is None or epsilon.size != 1 or x is None:
            return False
        scaled = _divided(x, root)
        if scaled is None:
            return False
        centered = _centered(x)
        if centered is not None:
            return _normalized_layer(centered, x, scaled, float(epsilon.item()), opset)
        if opset >= _FIRST_OPSET:
            return self._replace(x, scaled, float(epsilon.item()))
        return _spelled_by_a_power(x, mean, root, scaled)

    def _squared(self, mean: ir.Node) -> ir.Value | None:
        """Return x if ``mean`` averages its square over the last axis and keeps the dimension."""
        if not _is_mean_over_the_last_axis(mean):
            return None
        square = producer(operand(mean, 0), "Mul")
        if square is not None and square.inputs[0] is square.inputs[1]:
            return square.inputs[0]
        power = producer(operand(mean, 0), "Pow")
        exponent = constant(operand(power, 1)) if power else None
        return operand(power, 0) if power and exponent is not None and np.all(exponent == 2) else None

    def _replace(self, x: ir.Value, scaled: ir.Node, epsilon: float) -> bool:
        narrow = sole_user(scaled.outputs[0])
        last = narrow
        wide = producer(x, "Cast")
        if narrow is not None and narrow.op_type == "Cast" and wide is not None:
            if operand(wide, 0) is None or wide.inputs[0].dtype != narrow.outputs[0].dtype:  # type: ignore[union-attr]
                return False
            x, last = wide.inputs[0], sole_user(narrow.outputs[0])  # type: ignore[assignment]
            normalized = narrow.outputs[0]
        else:
            normalized = scaled.outputs[0]
        if last is None or last.op_type != "Mul":
            return False
        weight = other_operand(last, normalized)
        if weight is None or x.dtype not in _DTYPES or not _scales_the_last_axis(weight, x):
            return False
        replace(last, "RMSNormalization", [x, weight], {"axis": -1, "epsilon": epsilon}, last.outputs[0])
        return True


def _is_mean_over_the_last_axis(mean: ir.Node) -> bool:
    """Tell whether a ReduceMean is taken over the last axis, which it keeps."""
    shape, axes = dims(operand(mean, 0)), constant(operand(mean, 1))
    chosen = list(mean.attributes.get_ints("axes", ())) if axes is None else axes.reshape(-1).tolist()
    if shape is None or len(chosen) != 1 or not mean.attributes.get_int("keepdims", 1):
        return False
    return bool(int(chosen[0]) % len(shape) == len(shape) - 1)


def _centered(x: ir.Value) -> ir.Value | None:
    """Return what x is without its mean over the last axis, if it is that."""
    difference = producer(x, "Sub")
    mean = producer(operand(difference, 1), "ReduceMean") if difference is not None else None
    if difference is None or mean is None or operand(mean, 0) is not difference.inputs[0]:
        return None
    return difference.inputs[0] if _is_mean_over_the_last_axis(mean) else None


def _normalized_layer(whole: ir.Value, x: ir.Value, scaled: ir.Node, epsilon: float, opset: int) -> bool:
    """Put LayerNormalization in place of what scales x, which is ``whole`` without its mean, and adds a bias."""
    product = sole_user(scaled.outputs[0])
    weight = other_operand(product, scaled.outputs[0]) if product is not None and product.op_type == "Mul" else None
    fits = opset >= _FIRST_OPSET_OF_LAYERS and x.dtype == ir.DataType.FLOAT and keeps_digits_far_from_zero()
    if not fits or product is None or weight is None or not _scales_the_last_axis(weight, x):
        return False
    total = sole_user(product.outputs[0])
    bias = other_operand(total, product.outputs[0]) if total is not None and total.op_type == "Add" else None
    last, inputs = product, [whole, weight]
    if total is not None and bias is not None and _scales_the_last_axis(bias, x):
        last, inputs = total, [whole, weight, bias]
    replace(last, "LayerNormalization", inputs, {"axis": -1, "epsilon": epsilon}, last.outputs[0])
    return True


def _scales_the_last_axis(weight: ir.Value, x: ir.Value) -> bool:
    shape, size = dims(weight), dims(x)
    return weight.dtype == x.dtype and shape is not None and size is not None and shape == size[-1:]


def _divided(x: ir.Value, root: ir.Node) -> ir.Node | None:
    """Return the node that divides x by a root, or multiplies it by what one over the root is."""
    user = sole_user(root.outputs[0])
    if user is not None and user.op_type == "Div" and user.inputs[0] is x and user.inputs[1] is root.outputs[0]:
        return user
    if user is None or user.op_type != "Reciprocal":
        return None
    scaled = sole_user(user.outputs[0])
    is_product = scaled is not None and scaled.op_type == "Mul" and other_operand(scaled, user.outputs[0]) is x
    return scaled if is_product else None


def _spelled_by_a_power(x: ir.Value, mean: ir.Node, root: ir.Node, scaled: ir.Node) -> bool:
    last, square = sole_user(scaled.outputs[0]), producer(operand(mean, 0), "Mul")
    weight = other_operand(last, scaled.outputs[0]) if last is not None and last.op_type == "Mul" else None
    if weight is None or x.dtype != ir.DataType.FLOAT or not _scales_the_last_axis(weight, x):
        return False
    assert mean.graph is not None
    if square is not None:
        two = number(mean.graph, 2.0, f"{scaled.outputs[0].name}.two")
        replace(square, "Pow", [x, two], {}, square.outputs[0])
    if scaled.op_type == "Mul":
        replace(scaled, "Div", [x, root.outputs[0]], {}, scaled.outputs[0])
    return True
