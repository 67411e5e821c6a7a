"""Runs a TorchScript graph on ONNX values: its nodes in order, each converted as it is reached."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

import torch

from onnx_ts_legacy import _torch_private as private
from onnx_ts_legacy.conversion.dispatch import convert_call, convert_node
from onnx_ts_legacy.conversion.failures import falls_through, reads_stand_in, stand_ins_for
from onnx_ts_legacy.conversion.operator_calls import call
from onnx_ts_legacy.errors import DynamicDimensionError, ScriptValueError
from onnx_ts_legacy.graph.autocast import autocasts_of
from onnx_ts_legacy.graph.parts import block_inputs, block_nodes, block_outputs, node_inputs, node_outputs
from onnx_ts_legacy.graph.sources import located
from onnx_ts_legacy.state.context import ConversionContext
from onnx_ts_legacy.state.values import Tensor
from onnxops_decomp import LoweringError

__all__ = ["connect"]

_HALVES = (torch.float16, torch.bfloat16)


def connect(context: ConversionContext) -> None:
    """Give a new context the ways back into the conversion."""
    context.call = partial(call, context)
    context.run_block = partial(_run_block, context)
    context.convert_call = partial(convert_call, context)


def _run_block(context: ConversionContext, block: Any, inputs: Sequence[Any]) -> list[Any]:
    for variable, value in zip(block_inputs(block), inputs, strict=True):
        context.env[variable.unique()] = value
    for node in block_nodes(block):
        _run_node(context, node)
    return [context.env[variable.unique()] for variable in block_outputs(block)]


def _run_node(context: ConversionContext, node: Any) -> None:
    args = [context.env[variable.unique()] for variable in node_inputs(node)]
    outer, context.node, context.autocasts = context.node, node, autocasts_of(node)
    try:
        result = _converted(context, node, args)
        _check_autocast(node, result)
    except (LoweringError, ScriptValueError, DynamicDimensionError) as error:
        is_reported = falls_through(context, node) or reads_stand_in(context, args)
        if isinstance(error, DynamicDimensionError) and not is_reported:
            raise DynamicDimensionError(located(str(error), node)) from error
        result = stand_ins_for(context, node, args, error)
    finally:
        context.node = outer
    count = node.outputsSize()
    if count == 1:
        context.env[node.output().unique()] = result
        return
    if count:
        for variable, value in zip(node_outputs(node), result, strict=True):
            context.env[variable.unique()] = value


def _converted(context: ConversionContext, node: Any, args: list[Any]) -> Any:
    """Convert a node.

    Raises:
        ScriptValueError: If it depends on a number known only at run time.
    """
    try:
        return convert_node(context, node, args)
    except Exception as error:
        if not private.is_data_dependent(error):
            raise
        raise ScriptValueError(
            "it takes a number that the data decides, but that has to be known at export: choose between calls "
            "with fixed numbers, by an if in a scripted model or by torch.cond"
        ) from error


def _check_autocast(node: Any, result: Any) -> None:
    """Refuse a call that gave another dtype when it was traced: under autocast, parts of it computed in half precision.

    Raises:
        LoweringError: If it is one.
    """
    if not node.kind().startswith("aten::"):
        return
    for place, value in enumerate((result if node.outputsSize() > 1 else (result,)) or ()):
        if not isinstance(value, Tensor):
            continue
        kind = node.outputsAt(place).type()
        traced = kind.dtype() if kind.kind() == "TensorType" else None
        if traced in _HALVES and value.fake.dtype == torch.float32:
            raise LoweringError(
                f"it gives {traced} under torch.autocast, which casts inside it, and float32 in the trace; call "
                "the operators that it consists of, cast its operands, or use onnx-fx-export"
            )
