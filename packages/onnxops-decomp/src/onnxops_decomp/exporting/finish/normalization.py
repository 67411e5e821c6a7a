"""Normalizations that models spell out."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir

from onnxops_decomp.passes.matching import constant, dims, operand, other_operand, producer, replace, sole_user

__all__ = ["FuseRMSNormalization"]

_FIRST_OPSET = 23
# The operator computes in float32 (stash_type 1), which is less than what a float64 model does.
_DTYPES = frozenset((ir.DataType.FLOAT, ir.DataType.FLOAT16, ir.DataType.BFLOAT16))


class FuseRMSNormalization(ir.passes.InPlacePass):
    """Puts RMSNormalization in the place of ``x * rsqrt(mean(x * x, -1) + eps) * weight``.

    In half precision models compute the mean in float32 and cast back before the weight; that is what the operator's
    ``stash_type`` 1 says, so the casts go too.
    """

    def call(self, model: ir.Model) -> ir.passes.PassResult:
        """Run the pass on the main graph."""
        modified = False
        if model.opset_imports[""] >= _FIRST_OPSET:
            for node in list(model.graph):
                if node.op_type == "Reciprocal" and node.graph is not None:
                    modified |= self._fuse(node)
        return ir.passes.PassResult(model, modified)

    def _fuse(self, reciprocal: ir.Node) -> bool:
        root = producer(operand(reciprocal, 0), "Sqrt")
        shifted = producer(operand(root, 0), "Add") if root else None
        if shifted is None:
            return False
        mean = producer(shifted.inputs[0], "ReduceMean") or producer(shifted.inputs[1], "ReduceMean")
        epsilon = constant(other_operand(shifted, mean.outputs[0])) if mean else None
        x = self._squared(mean) if mean else None
        scaled = sole_user(reciprocal.outputs[0])
        if mean is None or epsilon is None or epsilon.size != 1 or x is None or scaled is None:
            return False
        if scaled.op_type != "Mul" or other_operand(scaled, reciprocal.outputs[0]) is not x:
            return False
        return self._replace(x, scaled, float(epsilon.item()))

    def _squared(self, mean: ir.Node) -> ir.Value | None:
        """Return x if ``mean`` averages its square over the last axis and keeps the dimension."""
        shape = dims(operand(mean, 0))
        axes = constant(operand(mean, 1))
        if shape is None or axes is None or axes.size != 1 or not mean.attributes.get_int("keepdims", 1):
            return None
        if int(axes.item()) % len(shape) != len(shape) - 1:
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
        shape, size = dims(weight), dims(x)
        if weight is None or weight.dtype != x.dtype or x.dtype not in _DTYPES:
            return False
        if shape is None or size is None or shape != size[-1:]:
            return False
        replace(last, "RMSNormalization", [x, weight], {"axis": -1, "epsilon": epsilon}, last.outputs[0])
        return True
