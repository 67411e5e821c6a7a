"""Groups of nodes that ONNX Runtime has one operator for, in the ``com.microsoft`` domain."""

from __future__ import annotations

import onnx_ir as ir

from onnxops_decomp.passes.matching import dims, producer, replace_outputs, sole_user, sweep
from onnxops_decomp.runtimes.onnxruntime.attention import JOINED_CACHE
from onnxops_decomp.runtimes.onnxruntime.domain import DOMAIN, DTYPES, VERSION
from onnxops_decomp.runtimes.onnxruntime.gelu import FuseFastGelu
from onnxops_decomp.runtimes.onnxruntime.products import FuseTransposedProducts
from onnxops_decomp.runtimes.onnxruntime.transposed_parts import TransposePartsLater
from onnxops_decomp.runtimes.onnxruntime.weights import FuseQuantizedProducts

__all__ = ["PASSES", "FuseBiasGelu", "FuseSkipNormalization", "KeepResidualsApart", "ReturnOperatorCaches"]

_NORMALIZATIONS = {
    "LayerNormalization": "SkipLayerNormalization",
    "RMSNormalization": "SkipSimplifiedLayerNormalization",
}
_RANK = 3


def _new(op_type: str, inputs: list[ir.Value | None], attributes: dict[str, float], outputs: int) -> ir.Node:
    attrs = [ir.AttrFloat32(name, value) for name, value in attributes.items()]
    return ir.Node(DOMAIN, op_type, inputs, attrs, num_outputs=outputs, version=None)


def _is_vector(value: ir.Value | None, width: int | str | None) -> bool:
    """Tell whether a value is a weight along the last axis, which stands ready before all nodes."""
    ready = value is not None and (value.is_initializer() or value.is_graph_input())
    return ready and isinstance(width, int) and dims(value) == (width,)


def _added_bias(value: ir.Value | None) -> tuple[ir.Node, ir.Value, ir.Value] | None:
    """Return the Add that gives ``value``, which nothing else reads, with its operands: the other one, the bias."""
    add = producer(value, "Add")
    shape = dims(value)
    if value is None or add is None or not shape or sole_user(value) is None:
        return None
    for x, bias in (add.inputs, reversed(add.inputs)):
        if x is not None and bias is not None and dims(x) == shape and _is_vector(bias, shape[-1]):
            return add, x, bias
    return None


class FuseBiasGelu(ir.passes.InPlacePass):
    """Lets Gelu and FastGelu add the bias of the product before them."""

    def call(self, model: ir.Model) -> ir.passes.PassResult:
        """Run the pass on the main graph."""
        modified = False
        for node in list(model.graph):
            if node.domain != DOMAIN or node.op_type not in ("Gelu", "FastGelu") or len(node.inputs) != 1:
                continue
            found = _added_bias(node.inputs[0])
            if found is not None:
                op_type = "BiasGelu" if node.op_type == "Gelu" else "FastGelu"
                replace_outputs(node, _new(op_type, [*found[1:]], {}, 1), {0: node.outputs[0]})
                sweep(node)
                modified = True
        return ir.passes.PassResult(model, modified)


class FuseSkipNormalization(ir.passes.InPlacePass):
    """Lets a normalization over the last axis add the residual before it, and the bias before that.

    The target leaves it out, see :class:`KeepResidualsApart`. It is for graphs that read a token at a time, for the
    sake of fewer nodes.
    """

    def call(self, model: ir.Model) -> ir.passes.PassResult:
        """Run the pass on the main graph."""
        modified = False
        for node in list(model.graph):
            if node.domain == "" and node.op_type in _NORMALIZATIONS and len(node.outputs) == 1:
                modified |= self._fuse(node)
        if modified:
            model.graph.opset_imports[DOMAIN] = VERSION
        return ir.passes.PassResult(model, modified)

    def _fuse(self, node: ir.Node) -> bool:
        total, weights = node.inputs[0], list(node.inputs[1:])
        add, shape = producer(total, "Add") or producer(total, "Sum"), dims(total)
        if total is None or add is None or shape is None or len(shape) != _RANK or total.dtype not in DTYPES:
            return False
        if node.attributes.get_int("axis", -1) not in (-1, _RANK - 1) or None in shape or add.graph is not node.graph:
            return False
        if len(add.inputs) != 2 or any(dims(value) != shape for value in add.inputs):
            return False
        if not all(_is_vector(weight, shape[-1]) for weight in weights):
            return False
        if any(weight is None or weight.dtype != total.dtype for weight in weights):
            return False
        terms, last, bias = list(add.inputs), add, None
        for index, term in enumerate(terms):
            if (found := _added_bias(term)) is not None:
                terms[index], bias = found[1], found[2]
                break
        op_type = _NORMALIZATIONS[node.op_type]
        optional = [None] * (2 - len(weights)) if op_type == "SkipLayerNormalization" else []
        epsilon = node.attributes.get_float("epsilon", 1e-5)
        inputs = [*terms, *weights, *optional, *([bias] if bias is not None else [])]
        keeps_sum = len(total.uses()) > 1 or total.is_graph_output()
        new = _new(op_type, inputs, {"epsilon": epsilon}, 4 if keeps_sum else 1)
        taken = {0: node.outputs[0], 3: total} if keeps_sum else {0: node.outputs[0]}
        replace_outputs(last, new, taken)
        sweep(node)
        sweep(add)
        return True


class KeepResidualsApart(ir.passes.InPlacePass):
    """Keeps ONNX Runtime from adding a residual inside the normalization behind it, by a Sum in place of an Add.

    Where nothing else reads the sum, ONNX Runtime writes a SkipLayerNormalization when it loads the model. On a CPU
    this takes as long as the two nodes for one token, and up to eight times as long for many.
    """

    def call(self, model: ir.Model) -> ir.passes.PassResult:
        """Run the pass on the main graph."""
        modified = False
        for node in model.graph:
            add = producer(node.inputs[0], "Add") if (node.domain, node.op_type) == ("", "LayerNormalization") else None
            if add is None or add.outputs[0].dtype not in DTYPES or sole_user(add.outputs[0]) is not node:
                continue
            shape = dims(add.outputs[0])
            if shape is not None and len(shape) == _RANK and all(dims(value) == shape for value in add.inputs):
                add.op_type, modified = "Sum", True
        return ir.passes.PassResult(model, modified)


class ReturnOperatorCaches(ir.passes.InPlacePass):
    """Return the keys and values that an operator has joined in place of those that the model joins once more."""

    def call(self, model: ir.Model) -> ir.passes.PassResult:
        """Run the pass on the main graph."""
        modified = False
        for node in list(model.graph):
            for output in node.outputs if node.domain == DOMAIN else ():
                joined = output.meta.pop(JOINED_CACHE, None)
                concat = None if joined is None else joined.producer()
                if concat is None or concat.graph is not node.graph or joined.uses() or not joined.is_graph_output():
                    continue
                output.shape, name = joined.shape, joined.name
                ir.convenience.replace_all_uses_with(joined, output, replace_graph_outputs=True)
                joined.name, output.name = None, name
                sweep(concat)
                modified = True
        return ir.passes.PassResult(model, modified)


PASSES: tuple[type[ir.passes.InPlacePass], ...] = (
    FuseQuantizedProducts,
    TransposePartsLater,
    FuseTransposedProducts,
    FuseFastGelu,
    FuseBiasGelu,
    KeepResidualsApart,
    ReturnOperatorCaches,
)
