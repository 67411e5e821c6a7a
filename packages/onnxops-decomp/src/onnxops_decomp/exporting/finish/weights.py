"""How weights are stored."""

from __future__ import annotations

from typing import Any

import onnx_ir as ir
import torch

from onnxops_decomp.exporting.weights.converted import ConvertedTensor
from onnxops_decomp.exporting.weights.initializers import StreamedTensor

__all__ = ["DeduplicateInitializers", "FoldWeightTransposes", "restore_duplicates"]

_MERGED = "onnxops.merged"
_INTEGERS = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}
_HALF = (ir.DataType.FLOAT16, ir.DataType.BFLOAT16)
_SAMPLE = 16
# A weight is compared with no more others than this, so that the pass stays linear whatever the weights are.
_MOST_COMPARISONS = 4


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
            # Without a permutation, Transpose turns the order of the axes round.
            perm = next(iter(perms)) or tuple(reversed(range(len(tensor.shape))))
            self._replace(graph, value, tensor, nodes, perm)
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
        streamed = tensor if isinstance(tensor, StreamedTensor) else StreamedTensor(tensor.raw, value.name)
        name = f"{value.name}.transposed"
        view = streamed.permuted(perm, name)
        transposed = ir.Value(name=name, type=value.type, shape=view.shape, const_value=view)
        transposed.meta.update(value.meta)
        for node in nodes:
            ir.convenience.replace_all_uses_with(node.outputs[0], transposed)
        graph.remove(nodes, safe=True)
        graph.initializers.pop(str(value.name))
        graph.initializers.add(transposed)


class DeduplicateInitializers(ir.passes.InPlacePass):
    """Stores weights of equal contents once.

    Tensors are compared bit by bit, and only with those that agree in dtype, shape and a sample. Which inputs read the
    others is kept in the value's ``meta``, so that :func:`restore_duplicates` can undo it before weights are replaced.

    Weights of half precision stay apart: where a runtime has no kernels for them, it converts a weight that one node
    reads when it loads the model, and one that several read at every call.
    """

    def call(self, model: ir.Model) -> ir.passes.PassResult:
        """Run the pass on the main graph's initializers."""
        graph = model.graph
        modified = False
        groups: dict[Any, list[tuple[ir.Value, torch.Tensor]]] = {}
        for value in list(graph.initializers.values()):
            tensor = value.const_value
            apart = value.dtype in _HALF or value.is_graph_input() or value.is_graph_output()
            bits = None if apart else _bits(tensor)
            if bits is None:
                continue
            kind = value.dtype, tensor.conversion if isinstance(tensor, ConvertedTensor) else None
            group = groups.setdefault((kind, tuple(bits.shape), _sample(bits)), [])
            equal = next((kept for kept, other in group if torch.equal(bits, other)), None)
            if equal is not None:
                self._merge(graph, value, equal)
                modified = True
            elif len(group) < _MOST_COMPARISONS:
                group.append((value, bits))
        return ir.passes.PassResult(model, modified)

    def _merge(self, graph: ir.Graph, value: ir.Value, kept: ir.Value) -> None:
        uses = list(value.uses())
        for node, index in uses:
            node.replace_input_with(index, kept)
        kept.meta.setdefault(_MERGED, []).append((value, uses))
        graph.initializers.pop(str(value.name))


def restore_duplicates(model: ir.Model) -> None:
    """Give each weight that :class:`DeduplicateInitializers` merged into another a place of its own again."""
    for kept in list(model.graph.initializers.values()):
        for value, uses in kept.meta.pop(_MERGED, ()):
            for node, index in uses:
                if node.graph is not None and node.inputs[index] is kept:
                    node.replace_input_with(index, value)
            model.graph.initializers.add(value)


def _bits(tensor: ir.TensorProtocol | None) -> torch.Tensor | None:
    """Return the contents as integers, or what they are converted from, without a copy; None if not in memory."""
    if isinstance(tensor, ConvertedTensor):
        raw = tensor.source
    elif isinstance(tensor, ir.tensor_adapters.TorchTensor):
        raw = tensor.raw
    else:
        return None
    if type(raw) not in (torch.Tensor, torch.nn.Parameter) or raw.is_meta or raw.layout is not torch.strided:
        return None
    width = _INTEGERS.get(raw.element_size())
    return None if width is None or raw.numel() == 0 else raw.detach().view(width)


def _sample(bits: torch.Tensor) -> tuple[int, ...]:
    """Return a few elements of the first and of the last row."""
    rows = [bits.reshape(-1)] if bits.dim() < 2 else [bits[(end,) * (bits.dim() - 1)] for end in (0, -1)]
    return tuple(element for row in rows for part in (row[:_SAMPLE], row[-_SAMPLE:]) for element in part.tolist())
