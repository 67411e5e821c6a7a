"""Matrix products."""

from __future__ import annotations

import onnx_ir as ir

from onnxops_decomp.passes.matching import dims, other_operand, producer, replace, sole_user

__all__ = ["FuseGemm"]

_DTYPES = frozenset((ir.DataType.FLOAT, ir.DataType.FLOAT16, ir.DataType.DOUBLE))
_MATRIX = 2


class FuseGemm(ir.passes.InPlacePass):
    """Puts Gemm in place of a product of two matrices and the addition of a bias.

    Products of more dimensions stay as they are: they would need to be reshaped first, which saves nothing.
    """

    def call(self, model: ir.Model) -> ir.passes.PassResult:
        """Run the pass on the main graph."""
        modified = False
        for node in list(model.graph):
            if node.op_type == "Add" and node.domain == "" and node.graph is not None:
                modified |= self._fuse(node)
        return ir.passes.PassResult(model, modified)

    def _fuse(self, add: ir.Node) -> bool:
        for value in add.inputs:
            product = producer(value, "MatMul")
            if value is None or product is None or sole_user(value) is not add or value.dtype not in _DTYPES:
                continue
            bias, factors = other_operand(add, value), [dims(factor) for factor in product.inputs]
            if bias is None or any(shape is None or len(shape) != _MATRIX for shape in factors):
                continue
            if _broadcasts(dims(bias), (factors[0][0], factors[1][1])):  # type: ignore[index]
                new = replace(add, "Gemm", [*product.inputs, bias], {}, add.outputs[0])
                new.metadata_props.update(product.metadata_props)
                return True
        return False


def _broadcasts(bias: tuple[int | str | None, ...] | None, result: tuple[int | str | None, ...]) -> bool:
    """Tell whether a bias is known to stretch to the shape of the product, and not the other way round."""
    if bias is None or len(bias) > _MATRIX:
        return False
    pairs = zip(reversed(bias), reversed(result), strict=False)
    return all(size == 1 or (size is not None and size == wanted) for size, wanted in pairs)
