"""The values of writes such as ``x[...] = value``: they are broadcast to the sizes of the place that is written.

Tracing fits the value to the sizes that the example has there, in calls that are left out here: leading dimensions of 1
are dropped, and the rest is expanded to numbers.
"""

from __future__ import annotations

from typing import Any

import onnx_ir as ir
import torch

from onnx_ts_legacy.errors import DynamicDimensionError, ScriptValueError
from onnx_ts_legacy.mutation.views import assign
from onnx_ts_legacy.state.context import ConversionContext
from onnx_ts_legacy.state.pairs import held_as
from onnx_ts_legacy.state.values import Tensor
from onnx_ts_legacy.state.variables import number_tensor, sizes_of, value_of
from onnxops_decomp.exporting import is_one, to_ir

__all__ = ["is_fitted", "unfitted_value", "write_tensor", "written_value"]

aten = torch.ops.aten

# Position of the value among the operands.
_WRITES = {"aten::copy_": 1, "aten::index_put_": 2}


def is_fitted(node: Any) -> bool:
    """Tell whether a traced ``view`` or ``expand`` only fits a value to a place that is written."""
    if not node.output().isCompleteTensor() or not _is_written(node):
        return False
    if node.kind() == "aten::expand":
        return True
    given, kept = node.inputsAt(0).type().sizes(), node.output().type().sizes()
    return given is not None and given == [1] * (len(given) - len(kept)) + kept


def unfitted_value(context: ConversionContext, node: Any, value: Tensor) -> Tensor:
    """Return the value that a call of :func:`is_fitted` fits to a place."""
    leading = range(len(node.inputsAt(0).type().sizes() or ()) - len(node.output().type().sizes()))
    if node.kind() == "aten::expand" or not leading or not all(is_one(value.fake.shape[axis]) for axis in leading):
        # At other sizes a leading dimension may be written.
        return value
    squeezed: Tensor = context.call(aten.squeeze.dims, [value, list(leading)], {})
    return squeezed


def _is_written(node: Any) -> bool:
    uses = node.output().uses()
    return bool(uses) and all(
        _WRITES.get(use.user.kind()) == use.offset
        or (use.user.kind() == "aten::expand" and use.offset == 0 and _is_written(use.user))
        for use in uses
    )


def written_value(context: ConversionContext, target: Tensor, source: Tensor) -> ir.Value:
    """Return what ``source`` writes to ``target``: of its dtype and, if need be, expanded to its sizes.

    Raises:
        ScriptValueError: If the value has more dimensions than the target.
        DynamicDimensionError: If it has a size that a declared one would have to be.
    """
    rank = target.fake.dim()
    if source.fake.dim() > rank:
        raise ScriptValueError(f"A tensor of rank {source.fake.dim()} is written to one of rank {rank}.")
    dtype = target.fake.dtype
    if dtype != source.fake.dtype and (dtype.is_complex or source.fake.is_complex()):
        source = context.call(aten.to.dtype, [source, dtype], {})
    value = held_as(context.op.cast(value_of(context, source), to_ir(dtype)), dtype)
    if str(tuple(source.fake.shape)) == str(tuple(target.fake.shape)):
        return value
    if all(isinstance(size, int) or size.node.expr.is_Symbol for size in target.fake.shape):
        cast = context.fresh(value, context.metadata.empty(dtype, source.fake.shape))
        return value_of(context, context.call(aten.expand.default, [cast, sizes_of(context, target)], {}))
    _check_parts(context, target, source)
    # What torch says of a part of a dimension, such as n - 1, does not hold where that is empty.
    return held_as(context.op.Expand(value, context.op.Shape(value_of(context, target))), dtype)


def _check_parts(context: ConversionContext, target: Tensor, source: Tensor) -> None:
    """Refuse values that fit a part of a declared dimension at one size only."""
    declared = context.metadata.declared_symbols()
    names = context.metadata.symbols.dims(target.fake)
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


def write_tensor(context: ConversionContext, target: Tensor, source: Any) -> None:
    """Write a tensor or number to the memory of ``target``, as ``copy_`` does."""
    if not isinstance(source, Tensor):
        source = number_tensor(context, source)
    assign(context, target, written_value(context, target, source))


# What fills a given tensor, which takes the size of the result, by what makes a new one.
