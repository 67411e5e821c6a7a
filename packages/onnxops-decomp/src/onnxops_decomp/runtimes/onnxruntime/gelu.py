"""The approximation of Gelu by tanh as one node of ONNX Runtime's domain."""

from __future__ import annotations

import onnx_ir as ir

from onnxops_decomp.passes.matching import dims, operand, replace_outputs, sweep
from onnxops_decomp.passes.spelled_gelu import spelled_gelu
from onnxops_decomp.runtimes.onnxruntime.domain import DOMAIN, DTYPES, VERSION

__all__ = ["FuseFastGelu"]


class FuseFastGelu(ir.passes.InPlacePass):
    """Puts FastGelu in place of the approximation by tanh, as one node or spelled out."""

    def call(self, model: ir.Model) -> ir.passes.PassResult:
        """Run the pass on the main graph."""
        modified = False
        for node in [node for node in model.graph if node.op_type in ("Gelu", "Tanh") and not node.domain]:
            found = None if node.graph is None else _approximated(node)
            if found is None or found[0].dtype not in DTYPES or dims(found[0]) is None:
                continue
            x, last = found
            new = ir.Node(DOMAIN, "FastGelu", [x], num_outputs=1, version=None)
            replace_outputs(last, new, {0: last.outputs[0]})
            sweep(last)
            modified = True
        if modified:
            model.graph.opset_imports[DOMAIN] = VERSION
        return ir.passes.PassResult(model, modified)


def _approximated(node: ir.Node) -> tuple[ir.Value, ir.Node] | None:
    """Return what the approximation is taken of, and the node that gives it."""
    if node.op_type == "Tanh":
        return spelled_gelu(node)
    x = operand(node, 0)
    return None if x is None or node.attributes.get_string("approximate", "none") != "tanh" else (x, node)
