"""How precise floating-point dtypes are."""

from __future__ import annotations

from collections.abc import Mapping

import onnx_ir as ir

__all__ = ["SIGNIFICAND_BITS"]

SIGNIFICAND_BITS: Mapping[ir.DataType, int] = {
    ir.DataType.FLOAT16: 11,
    ir.DataType.BFLOAT16: 8,
    ir.DataType.FLOAT: 24,
    ir.DataType.DOUBLE: 53,
}
"""Bits of the significand, the leading one included: integers up to two to their power are exact."""
