"""Conditions on sizes under which a converted graph is right: branches of a trace, dimensions that are squeezed."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import onnx_ir as ir
import sympy
import torch

from onnx_ts_legacy import _torch_private as private
from onnx_ts_legacy.capture.size_decisions import SizeDecision, SizeTerm, conditions_of, evaluated, term_of
from onnx_ts_legacy.errors import CaptureError, DynamicDimensionError
from onnx_ts_legacy.graph.parts import is_number_of_trace, node_inputs
from onnx_ts_legacy.graph.sources import source_line
from onnx_ts_legacy.shapes.metadata import Metadata
from onnx_ts_legacy.shapes.simple_calls import is_pointwise, same_sizes
from onnx_ts_legacy.shapes.tensor_forms import TensorForm
from onnx_ts_legacy.state.arguments import frozen
from onnx_ts_legacy.state.context import ConversionContext
from onnx_ts_legacy.state.numbers import truth_of_relation
from onnx_ts_legacy.state.pairs import held_dims
from onnx_ts_legacy.state.values import Tensor, View
from onnx_ts_legacy.state.variables import size_of, value_of
from onnxops_core.exporting import warn_user
from onnxops_decomp.exporting import at_sizes, order_relations

# Their results show their first operand, with strides that follow from its own.
_VIEWS = frozenset(
    f"aten::{name}"
    for name in (
        *("alias", "detach", "diagonal", "expand", "expand_as", "movedim", "narrow", "numpy_T", "permute", "select"),
        *("slice", "swapaxes", "swapdims", "t", "transpose", "unsqueeze", "view", "view_as"),
    )
)

_SQUEEZES = frozenset(("aten::squeeze", "aten::squeeze_", "aten::squeeze_copy"))
# They give a number where their operand has one row.
_SQUEEZED_RESULTS = frozenset(("aten::corrcoef", "aten::cov"))
SQUEEZING = _SQUEEZES | _SQUEEZED_RESULTS
"""The kinds of nodes for which :func:`squeeze_conditions` may give some."""

__all__ = [
    "SQUEEZING",
    "chunk_conditions",
    "decided_conditions",
    "power_conditions",
    "squeeze_conditions",
    "with_equal_sizes",
    "with_known_sizes",
    "with_met_sizes",
    "with_sliced_rows",
]


def chunk_conditions(metadata: Metadata, args: Sequence[Any]) -> list[str]:
    """Return for which sizes ``chunk`` gives as many parts as it is asked for: a graph has a fixed number of them.

    Raises:
        DynamicDimensionError: If the data decides that.
    """
    self, chunks, dim = (*args, 0)[:3]
    size = self.fake.shape[dim] if isinstance(dim, int) else 0
    if isinstance(size, int) or not isinstance(chunks, int) or chunks == 1:
        return []
    expression = metadata.resolved(metadata.symbols.expression(size))
    if not metadata.is_declared(expression):
        raise DynamicDimensionError(
            f"The data decides how many parts this is split into: {chunks} only if it has {chunks} or more rows. "
            "Split it at given places, or script the model (torch.jit.script)."
        )
    if chunks == 2:
        return [f"{expression} != 1"]
    return [f"({expression} + {chunks - 1}) // {chunks} * {chunks - 1} < {expression} or {expression} == 0"]


def with_sliced_rows(context: ConversionContext, args: Sequence[Any], result: Any) -> Any:
    """Return the result of a slice, with the one row that it was given for all sizes: ``x[:1]`` may have none.

    That it has one is a condition. In an ``if`` or a loop, which may be left out, the number is read from the result.
    """
    self, dim, start, end, step = (*args, 0, None, None, 1)[:5]
    dims = (dim, start, end, step)
    if not isinstance(self, Tensor) or not isinstance(result, Tensor) or len(self.forms) > 1:
        return result
    if not all(part is None or isinstance(part, int) for part in dims):
        return result
    size, rows = self.fake.shape[dim], result.fake.shape[dim]
    least = None if isinstance(size, int) else _at_zeros(context.metadata, size)
    if least is None or not isinstance(rows, int):
        return result
    if len(range(*slice(start, end, step).indices(max(least, 0)))) == rows:
        return result
    if _is_inside(context):
        return _with_read_sizes(context, result, {dim % result.fake.dim()})
    context.conditions[f"{_resolved(context.metadata, size)} >= 1"] = source_line(context.node)
    return result


def with_met_sizes(
    context: ConversionContext, overload: torch._ops.OpOverload, args: Sequence[Any], result: Any
) -> Any:
    """Return the result of a call with the sizes that its operands give where they meet.

    It is taken to have the size of one of them. Of declared sizes, that is a condition. In an ``if`` or a loop, which
    may be left out, and of sizes that the data decides, it is read from the result.
    """
    first = 2 if overload is torch.ops.aten.matmul.default else 0
    if not isinstance(result, Tensor) or len(result.forms) > 1 or not (first or is_pointwise(overload)):
        return result
    metadata, read = context.metadata, set[int]()
    shapes = [arg.fake.shape[::-1] for arg in args if isinstance(arg, Tensor) and len(arg.forms) == 1]
    met = list(enumerate(result.fake.shape[::-1]))[first:]
    pairs = [(axis, size, other) for shape in shapes for (axis, size), other in zip(met, shape[first:], strict=False)]
    for axis, size, other in pairs:
        if isinstance(other, int) and (other == 1 or isinstance(size, int)):
            continue
        if same_sizes([size], [other]):
            continue
        a, b = (each if isinstance(each, int) else _resolved(metadata, each) for each in (size, other))
        is_declared = all(isinstance(each, int) or metadata.is_declared(each) for each in (a, b))
        if is_declared and not _is_inside(context):
            context.conditions.setdefault(f"{a} == {b}" if isinstance(b, int) else f"{a} == {b} or {b} == 1", "")
        elif not isinstance(size, int):
            read.add(result.fake.dim() - 1 - axis)
    is_new = not any(isinstance(arg, Tensor) and arg.storage is result.storage for arg in args)
    return _with_read_sizes(context, result, read) if read and is_new else result


def _with_read_sizes(context: ConversionContext, result: Tensor, axes: set[int]) -> Tensor:
    """Return a tensor of which only the graph knows the sizes along some axes."""
    metadata, form, node, value = context.metadata, result.fake, result.node, value_of(context, result)
    sizes = [metadata.unknown_size() if axis in axes else size for axis, size in enumerate(form.shape)]
    if isinstance(node, View):
        laid_out = [form, sizes, list(form.stride()), form.storage_offset()]
        view = View(node.parent, node.call, metadata.call(torch.ops.aten.as_strided.default, laid_out, {})[0])
        view.cached, tensor = node.cached, Tensor(context.heap, view)
    else:
        tensor = context.fresh(value, metadata.empty(form.dtype, sizes))
    value.shape = ir.Shape(held_dims(metadata.symbols.dims(tensor.fake), form.dtype))
    for axis in sorted(axes):
        size_of(context, tensor, axis)
    return tensor


def with_equal_sizes(context: ConversionContext, overload: torch._ops.OpOverload, result: Any) -> Any:
    """Return the result of a call in which torch took sizes for equal, as operators do that broadcast by themselves.

    Of declared sizes, that is a condition; others are read from the result, as by :func:`with_met_sizes`. What each run
    of the program takes for granted so is known in later calls.

    Args:
        context: The conversion.
        overload: The operator, of whose kind :func:`with_met_sizes` may know more.
        result: The result.

    Raises:
        DynamicDimensionError: If the sizes differ in the example.
    """
    metadata, read = context.metadata, set[sympy.Basic]()
    is_broadcast = is_pointwise(overload) or overload is torch.ops.aten.matmul.default
    for check in sorted(metadata.taken, key=str):
        taken = metadata.resolved(metadata.symbols.renamed(check))
        # What is a quotient divides elements among sizes, which torch checks at each call.
        if not isinstance(taken, sympy.Eq) or not all(
            side.free_symbols and not side.atoms(sympy.Function) for side in taken.args
        ):
            if not _is_inside(context):
                private.take_for_granted(metadata.shape_env, check)
            continue
        if is_broadcast or f"{taken.lhs} == {taken.rhs}" in context.conditions:
            continue
        if _is_inside(context) or not metadata.is_declared(taken):
            read |= check.free_symbols
            continue
        if metadata.in_example(check) == sympy.false:
            raise DynamicDimensionError(
                f"{overload} takes {taken.lhs} and {taken.rhs} for the same size, and they differ in the example. "
                "Export the model with an example in which they do not, or expand the operand before the call."
            )
        context.conditions.setdefault(f"{taken.lhs} == {taken.rhs}", "")
        private.take_for_granted(metadata.shape_env, check)
    if not read or not isinstance(result, Tensor) or isinstance(result.node, View) or len(result.forms) > 1:
        return result
    sizes = list(enumerate(result.fake.shape))
    axes = {axis for axis, size in sizes if not isinstance(size, int) and size.node.expr.free_symbols & read}
    return _with_read_sizes(context, result, axes)


def with_known_sizes(context: ConversionContext, tensor: Any) -> Any:
    """Return a tensor whose sizes are right for all inputs, as those of ``x[1:]`` are not where ``x`` has no row.

    That they are what they are computed as is a condition. In an ``if`` or a loop, which may be left out, they are read
    from the tensor.

    Args:
        context: The conversion.
        tensor: What the node that is converted asks for its sizes.
    """
    if not isinstance(tensor, Tensor) or len(tensor.forms) > 1:
        return tensor
    metadata, read = context.metadata, set[int]()
    for axis, size in enumerate(tensor.fake.shape):
        # A symbol alone is never negative.
        least = None if isinstance(size, int) or size.node.expr.is_Symbol else _at_zeros(metadata, size)
        if least is None or least >= 0:
            continue
        if _is_inside(context):
            read.add(axis)
        else:
            context.conditions[f"{_resolved(metadata, size)} >= 0"] = source_line(context.node)
    return _with_read_sizes(context, tensor, read) if read else tensor


def _at_zeros(metadata: Metadata, size: torch.SymInt) -> int | None:
    """Return what a size would be by its expression if the declared ones were 0; None if others are in it."""
    expression = size.node.expr
    if expression.is_Symbol:
        return 0 if expression in metadata.declared_symbols() else None
    zeros = dict.fromkeys(metadata.declared_symbols(), 0)
    value = at_sizes(expression, zeros) if expression.free_symbols <= zeros.keys() else None
    return int(value) if isinstance(value, sympy.Integer) else None


def _is_inside(context: ConversionContext) -> bool:
    return context.op.scope.outer is not None


def _resolved(metadata: Metadata, size: torch.SymInt) -> sympy.Basic:
    return metadata.resolved(metadata.symbols.expression(size))


def power_conditions(context: ConversionContext, node: Any, number: TensorForm) -> list[str]:
    """Return for which sizes an exponent that a trace computes of them is not negative.

    Python makes a fraction of ``2 ** (n - 2)`` where ``n`` is 1, and a tensor, which the number is in a trace, 0.

    Args:
        context: The conversion.
        node: The power.
        number: The form of its result.

    Raises:
        CaptureError: If it is always negative, or it is not known when.
    """
    base, exponent = node_inputs(node)[:2]
    computed = [value for value in (base, exponent) if value.node().kind() != "prim::Constant"]
    if number.dtype != torch.int64 or number.shape or not all(map(is_number_of_trace, computed)):
        return []
    term, relation = term_of(exponent), None
    if term is not None and type(evaluated(term)) is bool:
        return []
    if term is not None:
        zero = SizeTerm(None, (0,))
        relation = _truth(context, evaluated(SizeTerm("ge", (term, zero)), lambda tensor: _form(context, tensor).shape))
    if relation == sympy.true:
        return []
    if isinstance(relation, sympy.Rel) and context.metadata.is_declared(relation):
        return [f"{relation.lhs} {relation.rel_op} {relation.rhs}"]
    place = source_line(node) or "an unknown line"
    raise CaptureError(
        f"An integer is raised to a power that sizes decide and that may be negative, at {place}. Python makes a "
        "fraction of it there, and a trace an integer. Raise a real number, as in 2.0 ** n or (1.0 * n) ** m."
    )


def squeeze_conditions(metadata: Metadata, node: Any, args: Sequence[Any]) -> list[str]:
    """Return on which sizes it depends that a dimension may be squeezed: the rank of the model's result is fixed.

    Raises:
        DynamicDimensionError: If it is 1 in the example, which would have another rank than the model's result.

    Warns:
        UserWarning: If it is larger there, or not known.
    """
    self, *dims = map(frozen, args)
    if not isinstance(self, Tensor):
        return []
    sizes, asked = self.fake.shape, _squeezed_dims(node.kind(), dims, len(self.fake.shape))
    dynamic = [sizes[dim] for dim in asked if sizes and isinstance(dim, int) and not isinstance(sizes[dim], int)]
    if not dynamic:
        return []
    # A trace knows the rank that the result has in the example.
    rank = node.output().type().dim() if node.output().type().kind() == "TensorType" else None
    asked_axes = {dim % len(sizes) for dim in asked if isinstance(dim, int)}
    left = len(sizes) - sum(isinstance(sizes[axis], int) and sizes[axis] == 1 for axis in asked_axes)
    if any(metadata.in_example(size.node.expr) == 1 for size in dynamic) or (rank is not None and rank < left):
        raise DynamicDimensionError(
            "A dynamic dimension that is 1 in the example is squeezed: the rank of the result would depend on its "
            "size. Declare it static, or do not squeeze a dimension that can have other sizes."
        )
    source = source_line(node)
    relations = [sympy.Ne(metadata.resolved(metadata.symbols.expression(size)), 1) for size in dynamic]
    checked = all(metadata.is_declared(relation) for relation in relations)
    refused = "The program refuses its size 1" if checked else "The model keeps it, also where its size is 1"
    warn_user(
        f"A dynamic dimension is squeezed{f' at {source}' if source else ''}. {refused}; name the dimensions "
        "that are always 1 in squeeze(), or declare this one static."
    )
    return [f"{relation.lhs} != {relation.rhs}" for relation in relations] if checked else []


def _squeezed_dims(kind: str, dims: Sequence[Any], rank: int) -> Sequence[Any]:
    """Return the dimensions that a call squeezes where they are 1."""
    if kind in _SQUEEZES:
        return dims[0] if dims and isinstance(dims[0], list) else dims or range(rank)
    return range(1) if kind in _SQUEEZED_RESULTS and rank == 2 else ()


def decided_conditions(
    context: ConversionContext, values: Sequence[Any], decisions: Sequence[SizeDecision]
) -> dict[str, str]:
    """Return the conditions under which what sizes decided in a trace is right, each with its line.

    Args:
        context: The conversion of the trace.
        values: What was read, in the trace.
        decisions: What it was in the example.

    Raises:
        DynamicDimensionError: If the data decides it, by sizes that follow from no input's.
    """
    conditions: dict[str, str] = {}
    refused: dict[str, None] = {}
    for value, decision in zip(values, decisions, strict=True):
        for relation in _relations(context, value, decision):
            if relation == sympy.true:
                continue
            if isinstance(relation, sympy.Rel) and context.metadata.is_declared(relation):
                conditions.setdefault(f"{relation.lhs} {relation.rel_op} {relation.rhs}", decision.place)
            else:
                refused[f"  a size that the data decides {decision.use} at {decision.place}"] = None
    if refused:
        raise DynamicDimensionError(
            "A trace would fix, for all inputs, what the example decided:\n"
            + "\n".join(refused)
            + "\nScript the model "
            "(torch.jit.script), or use torch.cond where the size chooses a branch."
        )
    return conditions


def _relations(context: ConversionContext, value: Any, decision: SizeDecision) -> Iterator[sympy.Basic | None]:
    """Yield what holds where Python reads the same as in the example; None where that is not known."""
    if decision.is_of_order:
        yield from _order_relations(context, value, decision) if decision.matters else ()
        return
    if decision.of_strides:
        found = zip(_form(context, value.unique()).stride(), decision.answer, strict=True)
        yield from (_truth(context, stride == answer) for stride, answer in found)
        if _is_laid_out_by_sizes(context, value):
            symbols = set().union(*(_expression(context, n).free_symbols for n in _form(context, value.unique()).shape))
            yield from (sympy.Ge(symbol, 2) for symbol in sorted(symbols, key=str))
        return
    conditions = conditions_of(value, decision)
    if not conditions:
        yield None
    for term, is_true in conditions:
        number = evaluated(term, lambda tensor: _form(context, tensor).shape)
        relation = _truth(context, number if isinstance(number, torch.SymBool | bool) else number != 0)
        yield relation if is_true or relation is None else sympy.Not(relation)


def _is_laid_out_by_sizes(context: ConversionContext, value: Any) -> bool:
    """Tell whether a tensor has other strides than those known of it where a size is 0 or 1.

    These are taken for larger ones. ``x.t().contiguous()`` is no copy where a size of ``x`` is 1, and has the strides
    of ``x`` there.
    """
    node = value.node()
    while node.kind() in _VIEWS:
        value = node.inputsAt(0)
        node = value.node()
    if node.kind() == "prim::Param":
        return False
    read = [context.env.get(operand.unique()) for operand in (value, *node_inputs(node))]
    forms = [tensor.fake for tensor in read if isinstance(tensor, Tensor)]
    return not all(map(context.metadata.is_contiguous, forms))


def _order_relations(context: ConversionContext, value: Any, decision: SizeDecision) -> Iterator[sympy.Basic]:
    """Yield the relations without which a tensor would be contiguous where it is not in the example, or the reverse."""
    form, example = _form(context, value.unique()), (*value.type().sizes(), *value.type().strides())
    sizes, strides = ([_expression(context, number) for number in part] for part in (form.shape, form.stride()))
    relations = order_relations(sizes, strides, bool(decision.answer), decision.memory_format)
    if relations is None:
        # The order of the example is a special one.
        yield from (sympy.Eq(size, number) for size, number in zip((*sizes, *strides), example, strict=True))
        return
    yield from (relation for relation, _ in relations)


def _expression(context: ConversionContext, number: int | torch.SymInt) -> sympy.Expr:
    if isinstance(number, int):
        return sympy.Integer(number)
    return context.metadata.resolved(context.metadata.symbols.expression(number))


def _form(context: ConversionContext, value: int) -> TensorForm:
    """Return the form of a tensor of the trace."""
    form: TensorForm = context.env[value].fake
    return form


def _truth(context: ConversionContext, answer: torch.SymBool | bool) -> sympy.Basic | None:
    """Return a truth value as a relation."""
    truth = truth_of_relation(context, answer)
    if isinstance(truth, bool):
        return sympy.sympify(truth)
    return None if truth.relation is None else context.metadata.resolved(truth.relation)
