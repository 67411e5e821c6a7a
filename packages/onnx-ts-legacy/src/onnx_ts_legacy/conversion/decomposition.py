"""Calls that the table has no lowering for: torch takes them apart, and the pieces are lowered."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import torch
from torch.utils import _pytree as pytree

from onnx_ts_legacy import _torch_private as private
from onnx_ts_legacy.calls.forms import fake_call
from onnx_ts_legacy.state.context import ConversionContext
from onnxops_decomp import LoweringError, UnsupportedOperatorError
from onnxops_decomp.exporting import Decomposition, GraphLowering, SymbolNames, axis_size, number_as_size

__all__ = ["lower_by_pieces", "lower_under_autocast"]

_DYNAMIC = (torch.Tensor, torch.SymInt, torch.SymFloat, torch.SymBool)


def lower_by_pieces(
    context: ConversionContext,
    overload: torch._ops.OpOverload,
    fakes: tuple[Sequence[Any], Mapping[str, Any]],
    values: tuple[Sequence[Any], Mapping[str, Any]],
) -> Any:
    """Lower the pieces of a call.

    Args:
        context: The conversion.
        overload: The operator.
        fakes: Positional and keyword arguments, tensors as their forms.
        values: The same, as lowerings take them.

    Raises:
        UnsupportedOperatorError: If torch does not define the operator by others, or only for fixed sizes.
    """
    decompose = _single_call if overload in _BY_STRIDES else context.decomposer.decompose
    pieces, symbols, bound = _taken_apart(context, decompose, overload, fakes, values)
    if pieces is None:
        raise UnsupportedOperatorError("it has no ONNX lowering", operator=str(overload.name()))
    return _lowered(context, pieces, symbols, bound)


# Lowered from the node of a graph, which tells how its operand lies in memory.
_BY_STRIDES = (torch.ops.aten.as_strided.default, torch.ops.aten.as_strided_scatter.default)


def _single_call(overload: torch._ops.OpOverload, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Decomposition:
    """Return a graph that calls an operator, and nothing else."""
    graph = torch.fx.Graph()

    def placeholder(leaf: Any) -> Any:
        if not isinstance(leaf, _DYNAMIC):
            return leaf
        node = graph.placeholder(f"operand_{len(graph.nodes)}")
        node.meta["val"] = leaf
        return node

    node = graph.call_function(overload, *pytree.tree_map(placeholder, (args, kwargs)))
    node.meta["val"] = overload(*args, **kwargs)
    graph.output(node)
    return Decomposition(torch.fx.GraphModule({}, graph), [])


def lower_under_autocast(
    context: ConversionContext,
    overload: torch._ops.OpOverload,
    fakes: tuple[Sequence[Any], Mapping[str, Any]],
    values: tuple[Sequence[Any], Mapping[str, Any]],
) -> tuple[Any, Any] | None:
    """Lower the pieces of a call of which autocast casts a part, which a trace does not hold.

    Args:
        context: The conversion.
        overload: The operator.
        fakes: Positional and keyword arguments, tensors as their forms.
        values: The same, as lowerings take them.

    Returns:
        The values and the forms of the results; None if autocast casts nothing in the call.

    Raises:
        UnsupportedOperatorError: If the pieces are not known, or only for fixed sizes.
    """
    decompose = partial(context.decomposer.decompose_under, context.autocasts)
    pieces, symbols, bound = _taken_apart(context, decompose, overload, fakes, values)
    if pieces is None:
        return None
    results = pieces.graph_module.graph.output_node().args[0]
    found = torch.fx.map_arg(results, lambda node: node.meta["val"])
    if symbols is context.metadata.symbols:
        forms = pytree.tree_map(lambda fake: context.metadata.empty(fake.dtype, fake.shape), found)
    else:
        usual = fake_call(context, overload, *fakes)
        forms = pytree.tree_map(lambda form, fake: context.metadata.empty(fake.dtype, form.shape), usual, found)
    return _lowered(context, pieces, symbols, bound), forms


def _taken_apart(
    context: ConversionContext,
    decompose: Callable[..., Decomposition | None],
    overload: torch._ops.OpOverload,
    fakes: tuple[Sequence[Any], Mapping[str, Any]],
    values: tuple[Sequence[Any], Mapping[str, Any]],
) -> tuple[Decomposition | None, SymbolNames, list[Any]]:
    """Return the pieces of a call, the names of the sizes in them, and the values that they are called with."""
    forms, fakes = fakes, pytree.tree_map(context.metadata.fake, (tuple(fakes[0]), dict(fakes[1])))
    leaves, structure = pytree.tree_flatten(fakes)
    operands, _ = pytree.tree_flatten((tuple(values[0]), dict(values[1])))
    bound = [value for fake, value in zip(leaves, operands, strict=True) if isinstance(fake, _DYNAMIC)]
    symbols = context.metadata.symbols
    try:
        with context.metadata.forgetting(forms), private.quiet_fake_tensors():
            return decompose(overload, *fakes), symbols, bound
    except LoweringError:
        # It is not the same for all sizes: given examples, torch reports what it assumed of them.
        copies, symbols = _with_examples(context, leaves, operands)
        if copies is None:
            raise
        return decompose(overload, *pytree.tree_unflatten(copies, structure)), symbols, bound


def _lowered(context: ConversionContext, pieces: Decomposition, symbols: SymbolNames, operands: list[Any]) -> Any:
    lowering = GraphLowering(context.op, context.table, symbols, decomposer=context.decomposer)
    result = lowering.run(pieces.graph_module, operands)
    if lowering.failures:
        raise lowering.failures[0].error
    return result


def _with_examples(
    context: ConversionContext, leaves: list[Any], operands: list[Any]
) -> tuple[list[Any] | None, SymbolNames]:
    """Copy fake arguments so that each symbol in them has an example value, and can be computed from the operands."""
    mode = private.fake_mode(private.shape_env())
    symbols = SymbolNames(context.op)
    known: dict[str, torch.SymInt] = {}

    def copied(size: Any, source: Any) -> Any:
        if not isinstance(size, torch.SymInt):
            return size
        key = str(size.node.expr)
        if key not in known:
            name = context.op.context.names.new("size")
            hint = context.metadata.hint(size)
            known[key] = private.new_dimension(mode, name, hint if hint > 1 else 5)
            if not known[key].node.expr.is_Symbol:
                return hint
            symbols.rename(known[key].node.expr, name)
            context.op.context.symbols[name] = source
        return known[key]

    result: list[Any] = []
    for fake, value in zip(leaves, operands, strict=True):
        if isinstance(fake, torch.Tensor):
            sizes = [copied(size, partial(axis_size, value, axis)) for axis, size in enumerate(fake.shape)]
            with mode:
                result.append(torch.empty(sizes, dtype=fake.dtype))
        elif isinstance(fake, torch.SymFloat):
            return None, symbols
        else:
            result.append(copied(fake, partial(number_as_size, value)))
    return (result if known else None), symbols
