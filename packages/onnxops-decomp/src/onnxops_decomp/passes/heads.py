"""Heads of attention that are repeated for the queries of their group."""

from __future__ import annotations

import onnx_ir as ir

from onnxops_decomp.passes.matching import dims, operand, producer

__all__ = ["unrepeated"]


def unrepeated(value: ir.Value | None) -> ir.Value | None:
    """Return the heads (B, G, S, D) that ``value`` (B, G * n, S, D) repeats n times each, or None if it does not.

    Models with grouped queries write it as Unsqueeze, Expand and Reshape.
    """
    joined = producer(value, "Reshape")
    repeated = producer(operand(joined, 0), "Expand") if joined else None
    parted = producer(operand(repeated, 0), "Unsqueeze") if repeated else None
    source = operand(parted, 0) if parted else None
    before, after = dims(source), dims(value)
    single, wide = dims(operand(repeated, 0) if repeated else None), dims(operand(joined, 0) if joined else None)
    if before is None or after is None or single is None or wide is None or len(before) != 4 or len(after) != 4:
        return None
    # Equal dimensions leave only one order of the elements; what is not known is equal to nothing.
    if None in before or single != (*before[:2], 1, *before[2:]) or len(wide) != 5:
        return None
    heads, copies = wide[1], wide[2]
    if wide != (*before[:2], copies, *before[2:]) or not isinstance(heads, int) or not isinstance(copies, int):
        return None
    return source if after == (before[0], heads * copies, *before[2:]) else None
