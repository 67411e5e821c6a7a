"""The values of writes such as ``x[...] = value``: they are broadcast to the sizes of the place that is written.

Tracing fits the value to the sizes that the example has there, in calls that are left out here: leading dimensions of 1
are dropped, and the rest is expanded to numbers.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import onnx_ir as ir
import torch

from onnx_ts_legacy.errors import DynamicDimensionError, ScriptValueError
from onnx_ts_legacy.state.values import Tensor
from onnxops_decomp.exporting import is_one, to_ir

if TYPE_CHECKING:
    from onnx_ts_legacy.conversion import Interpreter

__all__ = ["unfitted_value", "written_value"]

aten = torch.ops.aten

# Position of the value among the operands.
_WRITES = {"aten::copy_": 1, "aten::index_put_": 2}


def unfitted_value(interpreter: Interpreter, node: Any, value: Tensor) -> Tensor | None:
    """Return the value that a traced ``view`` or ``expand`` fits to a place that is written; None if it does more."""
    if not node.output().isCompleteTensor() or not _is_written(node):
        return None
    if node.kind() == "aten::expand":
        return value
    given, kept = node.inputsAt(0).type().sizes(), node.output().type().sizes()
    if given is None or given != [1] * (len(given) - len(kept)) + kept:
        return None
    leading = range(len(given) - len(kept))
    if not leading or not all(is_one(value.fake.shape[axis]) for axis in leading):
        # At other sizes a leading dimension may be written.
        return value
    squeezed: Tensor = interpreter.call(aten.squeeze.dims, [value, list(leading)], {})
    return squeezed


def _is_written(node: Any) -> bool:
    uses = node.output().uses()
    return bool(uses) and all(
        _WRITES.get(use.user.kind()) == use.offset
        or (use.user.kind() == "aten::expand" and use.offset == 0 and _is_written(use.user))
        for use in uses
    )


def written_value(interpreter: Interpreter, target: Tensor, source: Tensor) -> ir.Value:
    """Return what ``source`` writes to ``target``: of its dtype and, if need be, expanded to its sizes.

    Raises:
        ScriptValueError: If the value has more dimensions than the target.
        DynamicDimensionError: If it has a size that a declared one would have to be.
    """
    rank = target.fake.dim()
    if source.fake.dim() > rank:
        raise ScriptValueError(f"A tensor of rank {source.fake.dim()} is written to one of rank {rank}.")
    value = interpreter.op.cast(interpreter.value(source), to_ir(target.fake.dtype))
    if str(tuple(source.fake.shape)) == str(tuple(target.fake.shape)):
        return value
    if all(isinstance(size, int) or size.node.expr.is_Symbol for size in target.fake.shape):
        cast = interpreter.fresh(value, interpreter.metadata.empty(target.fake.dtype, source.fake.shape))
        return interpreter.value(interpreter.call(aten.expand.default, [cast, interpreter.sizes(target)], {}))
    _check_parts(interpreter, target, source)
    # What torch says of a part of a dimension, such as n - 1, does not hold where that is empty.
    return interpreter.op.Expand(value, interpreter.op.Shape(interpreter.value(target)))


def _check_parts(interpreter: Interpreter, target: Tensor, source: Tensor) -> None:
    """Refuse values that fit a part of a declared dimension at one size only."""
    declared = interpreter.metadata.declared_symbols()
    names = interpreter.metadata.symbols.dims(target.fake)
    for given, wanted, name in zip(
        reversed(source.fake.shape), reversed(target.fake.shape), reversed(names), strict=False
    ):
        if not isinstance(given, int) or is_one(given):
            continue
        if isinstance(wanted, int):
            if given != wanted:
                raise ScriptValueError(f"A value of size {given} is written to a place of size {wanted}.")
        elif wanted.node.expr.free_symbols <= declared:
            raise DynamicDimensionError(
                f"A value of size {given} is written to a place of size {name}, which was declared dynamic; the model "
                f"would work only where that is {given}."
            )
