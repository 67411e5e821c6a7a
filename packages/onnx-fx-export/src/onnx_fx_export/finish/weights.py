"""How weights are stored."""

from __future__ import annotations

import onnx_ir as ir

__all__ = ["FoldWeightTransposes"]


class FoldWeightTransposes(ir.passes.InPlacePass):
    """Stores a weight the way its only readers want it.

    ``linear`` multiplies by the transpose of its weight. Where every use of a weight is the same Transpose, the
    transposed view of the torch tensor becomes the initializer, and the nodes go. Nothing is copied; a weight with
    other uses, such as a tied embedding, stays as it is, so that it is stored once.
    """

    def call(self, model: ir.Model) -> ir.passes.PassResult:
        """Run the pass on the main graph."""
        graph = model.graph
        modified = False
        for value in list(graph.initializers.values()):
            nodes = [usage.node for usage in value.uses()]
            tensor = value.const_value
            if not nodes or value.is_graph_output() or not isinstance(tensor, ir.tensor_adapters.TorchTensor):
                continue
            perms = {tuple(node.attributes.get_ints("perm", ())) for node in nodes if node.op_type == "Transpose"}
            if len(perms) != 1 or any(node.op_type != "Transpose" or node.graph is not graph for node in nodes):
                continue
            if any(node.outputs[0].is_graph_output() for node in nodes):
                continue
            self._replace(graph, value, tensor, nodes, next(iter(perms)))
            modified = True
        return ir.passes.PassResult(model, modified)

    def _replace(
        self,
        graph: ir.Graph,
        value: ir.Value,
        tensor: ir.tensor_adapters.TorchTensor,
        nodes: list[ir.Node],
        perm: tuple[int, ...],
    ) -> None:
        name = f"{value.name}.transposed"
        view = ir.tensor_adapters.TorchTensor(tensor.raw.permute(perm), name=name)
        transposed = ir.Value(name=name, type=value.type, shape=view.shape, const_value=view)
        for node in nodes:
            ir.convenience.replace_all_uses_with(node.outputs[0], transposed)
        graph.remove(nodes, safe=True)
        graph.initializers.pop(str(value.name))
        graph.initializers.add(transposed)
