"""Heads of attention: repeated for grouped queries, split off and joined again."""

from __future__ import annotations

import onnx_ir as ir

from onnxops_decomp.passes.heads import unrepeated
from onnxops_decomp.passes.matching import dims, operand, producer, replace, sole_user, sweep

__all__ = ["FoldAttentionHeads", "FoldRepeatedHeads"]

_FIRST_OPSET = 23
_HEADS_OUT = (0, 2, 1, 3)


def _attentions(model: ir.Model) -> list[ir.Node]:
    if model.opset_imports[""] < _FIRST_OPSET:
        return []
    return [node for node in model.graph if node.op_type == "Attention" and node.domain == ""]


class FoldRepeatedHeads(ir.passes.InPlacePass):
    """Drops the copies of key and value heads that Attention makes by itself.

    Models with grouped queries repeat each key head for the queries of its group: Unsqueeze, Expand, Reshape. ONNX's
    Attention takes keys and values with fewer heads and gives query head ``h`` the key head ``h // (Hq / Hkv)``,
    which is this order.
    """

    def call(self, model: ir.Model) -> ir.passes.PassResult:
        """Run the pass on the main graph."""
        modified = False
        for node in _attentions(model):
            query, key, value = (operand(node, index) for index in range(3))
            plain_key, plain_value = unrepeated(key), unrepeated(value)
            # Cached keys and values would have to be unrepeated as well.
            cached = any(operand(node, index) is not None for index in (4, 5)) or len(node.outputs) > 1
            if query is None or plain_key is None or plain_value is None or cached:
                continue
            heads, fewer, same = dims(query), dims(plain_key), dims(plain_value)
            if heads is None or fewer is None or same is None or fewer[1] != same[1]:
                continue
            if not isinstance(heads[1], int) or not isinstance(fewer[1], int) or heads[1] % fewer[1]:
                continue
            old = [value.producer() for value in (key, value) if value is not None]
            node.replace_input_with(1, plain_key)
            node.replace_input_with(2, plain_value)
            for source in old:
                if source is not None:
                    sweep(source)
            modified = True
        return ir.passes.PassResult(model, modified)


class FoldAttentionHeads(ir.passes.InPlacePass):
    """Lets Attention split and join the heads itself.

    ``Transpose(Reshape(x, [B, S, H, D]))`` before each of query, key and value, and the inverse behind the result,
    are the operator's 3-D form with ``q_num_heads`` and ``kv_num_heads``.
    """

    def call(self, model: ir.Model) -> ir.passes.PassResult:
        """Run the pass on the main graph."""
        modified = False
        for node in _attentions(model):
            modified |= self._fold(node)
        return ir.passes.PassResult(model, modified)

    def _fold(self, node: ir.Node) -> bool:
        sources = [self._joined(operand(node, index)) for index in range(3)]
        split = [dims(operand(node, index)) for index in range(2)]
        final = self._final(node)
        if final is None or len(node.outputs) > 1 or any(source is None for source in sources) or None in split:
            return False
        heads = [shape[1] for shape in split if shape is not None]
        if not all(isinstance(count, int) for count in heads):
            return False
        attributes = {
            **{name: attribute.value for name, attribute in node.attributes.items()},
            "q_num_heads": heads[0],
            "kv_num_heads": heads[1],
        }
        inputs = [*sources, *node.inputs[3:]]
        new = replace(final, "Attention", inputs, attributes, final.outputs[0])
        new.metadata_props.update(node.metadata_props)
        return True

    def _joined(self, value: ir.Value | None) -> ir.Value | None:
        """Return the 3-D value whose heads ``value`` has split off."""
        transposed = producer(value, "Transpose")
        if transposed is None or tuple(transposed.attributes.get_ints("perm", ())) != _HEADS_OUT:
            return None
        split = producer(operand(transposed, 0), "Reshape")
        source = operand(split, 0) if split else None
        before, after = dims(source), dims(operand(transposed, 0))
        if before is None or after is None or len(before) != 3 or len(after) != 4 or None in before[:2]:
            return None
        if before[:2] != after[:2] or not isinstance(after[2], int) or not isinstance(after[3], int):
            return None
        return source if before[2] == after[2] * after[3] else None

    def _final(self, node: ir.Node) -> ir.Node | None:
        """Return the Reshape that joins the heads of the result."""
        transposed = sole_user(node.outputs[0])
        if transposed is None or transposed.op_type != "Transpose":
            return None
        if tuple(transposed.attributes.get_ints("perm", ())) != _HEADS_OUT:
            return None
        joined = sole_user(transposed.outputs[0])
        if joined is None or joined.op_type != "Reshape":
            return None
        before, after = dims(transposed.outputs[0]), dims(joined.outputs[0])
        if before is None or after is None or len(after) != 3 or None in before[:2] or before[:2] != after[:2]:
            return None
        if not isinstance(before[2], int) or not isinstance(before[3], int):
            return None
        return joined if after[2] == before[2] * before[3] else None
