"""Calls that cannot be converted: stand-ins take their place, so that all of them are found at once."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from functools import partial
from typing import Any

import onnx_ir as ir
import torch
from torch.utils import _pytree as pytree

from onnx_ts_legacy import _torch_private as private
from onnx_ts_legacy.calls.forms import fake_call, result_forms
from onnx_ts_legacy.calls.results import check_results, wrapped
from onnx_ts_legacy.enumerations import OperatorExportTypes
from onnx_ts_legacy.errors import (
    DependentCallError,
    DynamicDimensionError,
    ScriptValueError,
    UnsupportedCall,
    UnsupportedOperatorsError,
)
from onnx_ts_legacy.graph.sources import source_line
from onnx_ts_legacy.shapes.tensor_forms import is_tensor
from onnx_ts_legacy.state.arguments import frozen, split_arguments
from onnx_ts_legacy.state.context import ConversionContext, Failure
from onnx_ts_legacy.state.pairs import held_as, held_dims
from onnx_ts_legacy.state.values import ListRef, Poison, Tensor
from onnx_ts_legacy.symbolics.unconverted import write_as_it_is
from onnxops_decomp import UnsupportedOperatorError, UnsupportedOpsetError
from onnxops_decomp.exporting import functional_overload, to_ir

__all__ = ["falls_through", "raise_failures", "reads_stand_in", "stand_ins_for"]


def stand_ins_for(context: ConversionContext, node: Any, args: list[Any], error: Exception) -> Any:
    """Note a call that cannot be converted and go on with stand-ins, so that all of them are found."""
    operator = getattr(error, "operator", "") or node.kind()
    overload = private.overload_of_schema(node.schema())
    if overload is not None:
        operator = str(overload.name())
    fakes = None if overload is None else _forms_of_failed(context, overload, args)
    if fakes is None and falls_through(context, node):
        fakes = _traced_forms(context, node, args)
    written = write_as_it_is(context, node, args, fakes)
    if written is not None:
        check_results(context, written, fakes, operator)
        return wrapped(context, written, fakes, None)
    # What torch or a lowering says of a stand-in is no news; that an operator cannot be converted at all is.
    unsupported = isinstance(error, UnsupportedOperatorError | UnsupportedOpsetError)
    if unsupported or context.custom(node.kind()) is not None or not reads_stand_in(context, args):
        depends = isinstance(error, DependentCallError)
        context.failures.append(Failure(operator, str(error), source_line(node), depends))
    results = None if fakes is None else _stand_ins(context, fakes)
    if results is None:
        results = (Poison.unconverted(operator),) * node.outputsSize()
        return results[0] if len(results) == 1 else results
    return results


def falls_through(context: ConversionContext, node: Any) -> bool:
    """Tell whether a node is a call of a custom operator that is to be written as it is."""
    custom = node.kind().partition("::")[0] not in ("aten", "prim")
    return custom and context.fallback is OperatorExportTypes.ONNX_FALLTHROUGH


def _traced_forms(context: ConversionContext, node: Any, args: Sequence[Any]) -> Any:
    """Return the forms that the trace noted of what a node gives; None if it did not note all of them."""
    forms = result_forms(context, node, args)
    if any(form is None for form in forms):
        return None
    return forms[0] if node.outputsSize() == 1 and len(forms) == 1 else tuple(forms)


def _forms_of_failed(context: ConversionContext, overload: torch._ops.OpOverload, args: list[Any]) -> Any:
    functional = functional_overload(overload)
    try:
        bound, keyword = split_arguments(functional, [frozen(arg) for arg in args])
        return fake_call(context, functional, bound, keyword)
    except (ScriptValueError, DynamicDimensionError):
        return None


def _stand_ins(context: ConversionContext, fakes: Any) -> Any:
    return wrapped(context, pytree.tree_map(partial(_stand_in_value, context), fakes), fakes, None)


def _stand_in_value(context: ConversionContext, fake: Any) -> Any:
    if not is_tensor(fake):
        return fake
    shape = held_dims(context.metadata.symbols.dims(fake), fake.dtype)
    name = context.op.context.names.new("unconverted")
    value = ir.Value(name=name, type=ir.TensorType(to_ir(fake.dtype)), shape=ir.Shape(shape))
    context.stand_ins.add(value)
    return held_as(value, fake.dtype)


def reads_stand_in(context: ConversionContext, args: Sequence[Any]) -> bool:
    """Tell whether a tensor among the arguments is computed from what a failed call was replaced by."""
    leaves = [
        leaf
        for arg in args
        for leaf in (arg.items if isinstance(arg, ListRef) and isinstance(arg.state, tuple) else [arg])
    ]
    waiting = [leaf.storage.state.value for leaf in leaves if isinstance(leaf, Tensor)]
    seen: set[ir.Value] = set()
    while waiting:
        value = waiting.pop()
        if value is None or value in seen:
            continue
        seen.add(value)
        if value in context.stand_ins:
            return True
        producer = value.producer()
        waiting.extend(producer.inputs if producer is not None else ())
    return False


def raise_failures(context: ConversionContext) -> None:
    """Raise one exception for everything that could not be converted.

    Raises:
        UnsupportedOperatorsError: If there was anything.
    """
    if not context.failures:
        return
    grouped: dict[tuple[str, str], list[str]] = defaultdict(list)
    for failure in context.failures:
        if not failure.depends:
            grouped[failure.operator, failure.reason].append(failure.source)
    calls = [
        UnsupportedCall(operator, reason, tuple(dict.fromkeys(filter(None, sources))), len(sources))
        for (operator, reason), sources in grouped.items()
    ]
    raise UnsupportedOperatorsError(calls)
