"""Products of transposed and scaled matrices, by ONNX Runtime's ``FusedMatMul``.

Specified in https://github.com/microsoft/onnxruntime/blob/main/docs/ContribOperators.md#com.microsoft.FusedMatMul
"""

from __future__ import annotations

import math

import onnx_ir as ir

from onnxops_decomp.passes.matching import constant, dims, operand, producer, replace_outputs, sole_user, sweep
from onnxops_decomp.runtimes.onnxruntime.domain import DOMAIN, VERSION

__all__ = ["FuseTransposedProducts"]

_FLAGS = ("transA", "transB")


class FuseTransposedProducts(ir.passes.InPlacePass):
    """Lets a product turn the last two dimensions of its operands, and multiply its result by a number."""

    def call(self, model: ir.Model) -> ir.passes.PassResult:
        """Run the pass on the main graph."""
        modified = False
        for node in list(model.graph):
            # The CPU has a kernel for no other dtype.
            if node.op_type == "MatMul" and node.domain == "" and node.outputs[0].dtype == ir.DataType.FLOAT:
                modified |= self._fuse(node)
        if modified:
            model.graph.opset_imports[DOMAIN] = VERSION
        return ir.passes.PassResult(model, modified)

    def _fuse(self, node: ir.Node) -> bool:
        sources = [_turned(value) for value in node.inputs]
        scaling = sole_user(node.outputs[0])
        factor = None if scaling is None or scaling.graph is not node.graph else _factor(scaling, node.outputs[0])
        if factor is None and not any(sources):
            return False
        if any(len(dims(value) or ()) < 2 for value in node.inputs):
            return False
        inputs = [value if source is None else source for value, source in zip(node.inputs, sources, strict=True)]
        flags = [ir.AttrInt64(name, 1) for name, source in zip(_FLAGS, sources, strict=True) if source is not None]
        alpha = [ir.AttrFloat32("alpha", factor)] if factor is not None else []
        new = ir.Node(DOMAIN, "FusedMatMul", inputs, [*flags, *alpha], num_outputs=1, version=None)
        last = node if factor is None or scaling is None else scaling
        replace_outputs(last, new, {0: last.outputs[0]})
        sweep(last)
        return True


def _turned(value: ir.Value | None) -> ir.Value | None:
    """Return what ``value`` is with its last two dimensions exchanged, or None."""
    node = producer(value, "Transpose")
    perm = [] if node is None else [*node.attributes.get_ints("perm", ())]
    rank = len(perm)
    if node is None or rank < 2 or perm != [*range(rank - 2), rank - 1, rank - 2]:
        return None
    return operand(node, 0)


def _factor(node: ir.Node, product: ir.Value) -> float | None:
    """Return the one number that a node multiplies ``product`` by, or None."""
    if node.domain or node.op_type not in ("Mul", "Div"):
        return None
    index = 1 if node.inputs[0] is product else 0
    number, rank = constant(node.inputs[index]), len(dims(product) or ())
    if number is None or number.size != 1 or number.ndim > rank or (node.op_type == "Div" and index == 0):
        return None
    found = float(number.item())
    if node.op_type == "Div":
        found = 1 / found if found else math.inf
    return found if math.isfinite(found) else None
