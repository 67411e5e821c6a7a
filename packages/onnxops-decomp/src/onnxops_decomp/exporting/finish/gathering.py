"""Rows that a graph gathers element by element."""

from __future__ import annotations

import onnx_ir as ir

from onnxops_decomp.passes.matching import dims, operand, producer, replace

__all__ = ["FuseGatheredRows"]

_FIRST_OPSET = 12
_RANK = 3


class FuseGatheredRows(ir.passes.InPlacePass):
    """Gathers one row of each batch entry with GatherND where an index (B, 1, 1) is spread over the row.

    ``x.gather(1, index.expand(-1, 1, x.shape[2]))`` reads all elements of a row by an index each.
    """

    def call(self, model: ir.Model) -> ir.passes.PassResult:
        """Run the pass on the main graph."""
        modified = False
        if model.opset_imports[""] >= _FIRST_OPSET:
            for node in list(model.graph):
                if node.op_type == "GatherElements" and not node.domain:
                    modified |= self._fuse(node)
        return ir.passes.PassResult(model, modified)

    def _fuse(self, node: ir.Node) -> bool:
        x, places = operand(node, 0), operand(node, 1)
        spread = producer(places, "Expand")
        index = operand(spread, 0) if spread else None
        rows, shape, whole = dims(x), dims(index), dims(places)
        if x is None or rows is None or shape is None or whole is None or len(rows) != _RANK:
            return False
        if node.attributes.get_int("axis", 0) not in (1, 1 - _RANK) or None in rows or shape != (rows[0], 1, 1):
            return False
        if whole != (rows[0], 1, rows[2]):
            return False
        replace(node, "GatherND", [x, index], {"batch_dims": 1}, node.outputs[0])
        return True
