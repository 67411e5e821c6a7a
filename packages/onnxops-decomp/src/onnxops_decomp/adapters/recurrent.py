"""Recurrent layers before the layout that has the batch in front."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import onnx_ir as ir

from onnxops_decomp.builder.forms import Adapter, adapter

if TYPE_CHECKING:
    from onnxops_decomp.builder.op_builder import OpBuilder

_FRONT = [1, 0, 2]
_STATES = (5, 6)


def _with_the_sequence_in_front(op_type: str) -> Adapter:
    def function(
        op: OpBuilder, *inputs: ir.Value | None, older: OpBuilder, layout: int = 0, _outputs: int = 1, **attributes: Any
    ) -> tuple[ir.Value, ...]:
        if not layout:
            return older.emit_many(op_type, _outputs, *inputs, **attributes)
        given = list(inputs)
        for place in (0, *_STATES):
            if place < len(given) and given[place] is not None:
                given[place] = op.Transpose(given[place], perm=_FRONT)
        whole, *last = older.emit_many(op_type, _outputs, *given, **attributes)
        # From (length, directions, batch, hidden), and from (directions, batch, hidden).
        turned = op.Transpose(whole, perm=[2, 0, 1, 3])
        return (turned, *(op.Transpose(state, perm=_FRONT) for state in last))

    return function


for _op_type in ("RNN", "GRU", "LSTM"):
    adapter(_op_type, below=14)(_with_the_sequence_in_front(_op_type))
