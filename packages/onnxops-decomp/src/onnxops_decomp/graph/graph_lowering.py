"""Writes an fx graph of ATen calls in ONNX, node by node, in one pass.

This is the core of the FX exporter and the way in which decomposed operators are lowered in both exporters.
"""

from __future__ import annotations

import dataclasses
import math
import operator
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence, Set
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
import onnx_ir as ir
import sympy
import torch

from onnxops_core.exporting import without_collection
from onnxops_core.native import find_native_op
from onnxops_decomp.builder.expressions import emit_expression, is_computable
from onnxops_decomp.dtypes import affine_of, is_complex, mark_complex, mark_number, promote, real_contents, to_ir
from onnxops_decomp.errors import LoweringError, UnsupportedOperatorError, UnsupportedOpsetError
from onnxops_decomp.graph.assertions import unneeded_nodes
from onnxops_decomp.graph.calls import apply_lowering, check_result, find_lowering, functional_overload, not_given
from onnxops_decomp.graph.decompose import Decomposer
from onnxops_decomp.graph.mutation import written_arguments
from onnxops_decomp.graph.strided import STRIDED
from onnxops_decomp.graph.symbols import SymbolNames
from onnxops_decomp.spec.inference import UNKNOWN_DIM
from onnxops_decomp.torch_private import grad_mode_switch

if TYPE_CHECKING:
    from onnxops_decomp.builder.op_builder import OpBuilder
    from onnxops_decomp.lowerings.registry import LoweringTable

__all__ = ["Failure", "GraphLowering"]

_SYMBOLIC = (torch.SymInt, torch.SymFloat, torch.SymBool)
_NUMBER_DTYPES = {
    (torch.SymBool, bool): ir.DataType.BOOL,
    (torch.SymInt, int): ir.DataType.INT64,
    (torch.SymFloat, float): ir.DataType.DOUBLE,
}

NodeHandler = Callable[["GraphLowering", torch.fx.Node], Any]
# Lowers a run of nodes as a whole and returns those that it took care of; none where it leaves them to the caller.
RegionHandler = Callable[["GraphLowering", torch.fx.GraphModule], Collection[torch.fx.Node]]


@dataclasses.dataclass(frozen=True)
class Failure:
    """A node that could not be lowered.

    Attributes:
        node: The fx node.
        error: Why.
    """

    node: torch.fx.Node
    error: LoweringError


class GraphLowering:
    """Lowers the nodes of fx graphs into one builder.

    Args:
        op: Builder to write to.
        table: Lowerings to use.
        symbols: Names of the symbolic dimensions.
        decomposer: Source of decompositions; pass one along to share its results between graphs.
        handlers: What to do with call targets that are not ATen overloads, such as higher-order operators.
        origin: Called with a node and the metadata of the node whose nested graph it is in (empty in the outermost),
            returns the metadata to stamp its ONNX nodes with.

    Attributes:
        env: What each fx node was lowered to.
        written: For each in-place call, the node that stands for the tensor it writes to.
        failures: Nodes that could not be lowered; nested lowerings add theirs.
        assumptions: Facts about symbolic sizes that decompositions rely on.
        regions: Runs of nodes that are lowered as a whole, by their first node.
    """

    def __init__(
        self,
        op: OpBuilder,
        table: LoweringTable,
        symbols: SymbolNames,
        *,
        decomposer: Decomposer | None = None,
        handlers: Mapping[Any, NodeHandler] | None = None,
        origin: Callable[[torch.fx.Node, Mapping[str, str]], dict[str, str]] | None = None,
    ) -> None:
        self.op, self.table, self.symbols = op, table, symbols
        self.decomposer = decomposer or Decomposer()
        self.handlers: dict[Any, NodeHandler] = {**STRIDED, **(handlers or {})}
        self.origin = origin
        self.env: dict[torch.fx.Node, Any] = {}
        self.written: dict[torch.fx.Node, torch.fx.Node] = {}
        self.failures: list[Failure] = []
        self.assumptions: list[sympy.Basic] = []
        self.regions: Mapping[torch.fx.Node, RegionHandler] = {}
        self._unneeded: Set[torch.fx.Node] = frozenset()
        self._depth = 0

    def nested(self, op: OpBuilder | None = None) -> GraphLowering:
        """Return a lowering for a graph inside this one, into ``op`` or the same builder, with its own values."""
        inner = GraphLowering(
            op or self.op, self.table, self.symbols, decomposer=self.decomposer, handlers=self.handlers
        )
        inner.origin, inner.failures, inner.assumptions = self.origin, self.failures, self.assumptions
        inner._depth = self._depth
        return inner

    def run(self, graph_module: torch.fx.GraphModule, inputs: Sequence[Any]) -> Any:
        """Lower all nodes of a graph.

        Args:
            graph_module: Module whose graph is lowered; its attributes are the graph's constants and subgraphs.
            inputs: For each placeholder, the value or static argument that it stands for.

        Returns:
            What the output node returns, fx nodes replaced by values or static results.
        """
        placeholders = graph_module.graph.find_nodes(op="placeholder")
        self.env.update(zip(placeholders, inputs, strict=True))
        self._unneeded = unneeded_nodes(graph_module.graph)
        with without_collection():
            self.run_nodes(graph_module, graph_module.graph.nodes)
        return self.resolve(graph_module.graph.output_node().args[0])

    def run_nodes(self, graph_module: torch.fx.GraphModule, nodes: Iterable[torch.fx.Node]) -> None:
        """Lower some nodes of a graph, in order; what they use from outside has to have a value already."""
        done: set[torch.fx.Node] = set()
        for node in nodes:
            if node in done or node in self._unneeded or node.op in ("placeholder", "output"):
                continue
            region = self.regions.get(node)
            if region is not None and (lowered := region(self, graph_module)):
                done.update(lowered)
            elif node.op == "get_attr":
                self.env[node] = self.attribute(graph_module, str(node.target))
            elif node.op == "call_function":
                self._lower_node(node)
            else:
                raise LoweringError(
                    f"fx node {node.format_node()} is not an ATen call; capture the model with torch.export."
                )

    def resolve(self, argument: Any) -> Any:
        """Replace the fx nodes inside an argument by what they were lowered to."""
        return torch.fx.node.map_arg(argument, self.value_of)

    def value_of(self, node: torch.fx.Node) -> Any:
        """Return what a node stands for now: in-place operators give the node that they write to a new value."""
        return self.env[self.written.get(node, node)]

    def attribute(self, graph_module: torch.fx.GraphModule, target: str) -> Any:
        """Return an attribute of the graph module: a tensor as a constant value, anything else as it is."""
        found: Any = graph_module
        for part in target.split("."):
            found = getattr(found, part)
        return self.tensor_constant(found) if isinstance(found, torch.Tensor) else found

    def tensor_constant(self, tensor: torch.Tensor) -> ir.Value:
        """Return a value that holds a real tensor."""
        numpy = ir.tensor_adapters.TorchTensor(real_contents(tensor).contiguous()).numpy()
        value = self.op.constant(np.asarray(numpy), to_ir(tensor.dtype))
        return mark_complex(value) if tensor.is_complex() else value

    # ---- nodes

    def _lower_node(self, node: torch.fx.Node) -> None:
        outer = self.op.context.origin
        if self.origin is not None and self._depth == 0:
            self.op.context.origin = self.origin(node, outer)
        try:
            self.env[node] = self._result(node)
            if self._depth == 0:
                self.name_value(node)
        except LoweringError as error:
            self.failures.append(Failure(node, error))
            self.env[node] = self._stand_in(node.meta.get("val"))
        finally:
            self.op.context.origin = outer

    def _result(self, node: torch.fx.Node) -> Any:
        val = node.meta.get("val")
        target = node.target
        if self.table.numbers and target in self.table.numbers:
            return self._own_number(node, self.table.numbers[target])
        overload = target if isinstance(target, torch._ops.OpOverload) else None
        if overload and self.table.has_own and self.table.is_own(functional_overload(overload).name()):
            return self._call(node, overload)
        if isinstance(val, _SYMBOLIC) and is_computable(self.op, expression := self.symbols.expression(val)):
            return self.number(val, expression)
        if target is operator.getitem:
            container, index = self.resolve(node.args)
            return container[index]
        handler = self.handlers.get(target)
        if handler is not None:
            return handler(self, node)
        if overload:
            return self._call(node, overload)
        if isinstance(target, type) and issubclass(target, tuple):
            return tuple(self.resolve(node.args[0] if len(node.args) == 1 else node.args))
        scalar = _SCALAR_FUNCTIONS.get(target)
        if scalar is not None:
            return scalar(self, *self.resolve(node.args))
        raise UnsupportedOperatorError(f"{target} has no ONNX form.", operator=str(target))

    def _own_number(self, node: torch.fx.Node, function: Callable[..., Any]) -> Any:
        """Return a number that a function of the user's computes, as a 0-d value of the dtype that torch gives it."""
        result = function(self.op, *self.resolve(node.args))
        wanted = next(dtype for kind, dtype in _NUMBER_DTYPES.items() if isinstance(node.meta.get("val"), kind))
        if not isinstance(result, ir.Value):
            result = self.op.constant(result, wanted)
        floats = result.dtype is not None and result.dtype.is_floating_point() and wanted.is_floating_point()
        if result.dtype not in (None, wanted) and not floats:
            raise LoweringError(
                f"{node.target} returns {wanted.name} in torch, but its lowering returns {result.dtype.name}."
            )
        return mark_number(self.op.cast(result, wanted))

    def number(self, val: Any, expression: sympy.Expr) -> Any:
        """Return a symbolic number as a 0-d value that promotes like a Python number, or the number itself."""
        if isinstance(val, torch.SymInt):
            size = self.op.size_of_expression(expression, self._dim_or_unknown(val))
            return mark_number(size) if isinstance(size, ir.Value) else size
        return mark_number(self.op.Squeeze(emit_expression(self.op, expression), [0]))

    def _dim_or_unknown(self, val: torch.SymInt) -> ir.SymbolicDim:
        # A symbol that torch has since found to be a number is not one of the model's dimensions.
        dim = self.symbols.dim(val)
        return dim if isinstance(dim, ir.SymbolicDim) else UNKNOWN_DIM

    def _call(self, node: torch.fx.Node, overload: torch._ops.OpOverload) -> Any:
        args, kwargs = self.resolve(node.args), self.resolve(node.kwargs)
        entry = find_lowering(self.table, overload, args, kwargs, self.op.opset)
        val, written = node.meta.get("val"), written_arguments(node)
        with self.op.call_of(overload.name(), len(val) if isinstance(val, list | tuple) else None):
            if entry is not None:
                result = apply_lowering(self.op, entry, overload, args, kwargs)
            else:
                result = self._decomposed(node, overload, args, kwargs)
            if written and isinstance(result, ir.Value) and isinstance(val, torch.Tensor):
                # What is written to a tensor gets its dtype.
                result = self._of_dtype(result, val.dtype)
        self.check(result, _of_read_results(node), overload.name())
        self._bind_unbacked(node, result)
        for operand in written:
            self.written[node] = root = self.written.get(operand, operand)
            self.env[root] = result
        return result

    def _of_dtype(self, result: ir.Value, dtype: torch.dtype) -> ir.Value:
        is_known = not (dtype.is_complex or is_complex(result)) and affine_of(result) is None
        return self.op.cast(result, to_ir(dtype)) if is_known else result

    def _decomposed(self, node: torch.fx.Node, overload: torch._ops.OpOverload, args: Any, kwargs: Any) -> Any:
        fake_args = torch.fx.node.map_arg(node.args, _meta_value)
        fake_kwargs = torch.fx.node.map_arg(node.kwargs, _meta_value)
        try:
            pieces = self.decomposer.decompose(overload, fake_args, fake_kwargs) if self._depth < 16 else None
        except UnsupportedOperatorError as refusal:
            native = find_native_op(overload)
            if native is None:
                raise
            lowest = native.onnx_call(args, kwargs).min_opset
            raise UnsupportedOpsetError(
                native.op_type, self.op.opset, lowest=lowest, reason=str(refusal), operator=overload.name()
            ) from refusal
        if pieces is None:
            raise UnsupportedOperatorError(f"{overload.name()} has no ONNX lowering.", operator=overload.name())
        self.assumptions.extend(map(self.symbols.renamed, pieces.assumptions))
        fakes, _ = torch.utils._pytree.tree_flatten((tuple(fake_args), dict(fake_kwargs)))
        values, _ = torch.utils._pytree.tree_flatten((tuple(args), dict(kwargs)))
        operands = [
            value
            for fake, value in zip(fakes, values, strict=True)
            if isinstance(fake, torch.Tensor | torch.SymInt | torch.SymFloat | torch.SymBool)
        ]
        inner = self.nested()
        inner._depth, inner.failures = self._depth + 1, []
        result = inner.run(pieces.graph_module, operands)
        if inner.failures:
            error = inner.failures[0].error
            raise (
                type(error)(f"{overload.name()} decomposes, but {error}")
                if type(error)
                in (
                    LoweringError,
                    UnsupportedOperatorError,
                )
                else error
            )
        return result

    def check(self, result: Any, val: Any, name: str) -> None:
        """Compare the results of a lowering with what torch says of them; see :func:`check_result`."""
        if isinstance(val, torch.Tensor):
            if not isinstance(result, ir.Value):
                kind = type(result).__name__
                raise LoweringError(f"{name} returns a tensor in torch, but its lowering returns {kind}.")
            check_result(result, val, self.symbols.dims(val), name)
        elif isinstance(val, list | tuple):
            if not isinstance(result, list | tuple) or len(result) < len(val):
                raise LoweringError(f"{name} returns {len(val)} results in torch, but its lowering returns fewer.")
            for index, (part, expected) in enumerate(zip(result, val, strict=False)):
                if isinstance(expected, torch.Tensor):
                    if part is None:
                        raise LoweringError(f"{name}: {not_given(index)}")
                    self.check(part, expected, name)

    def _bind_unbacked(self, node: torch.fx.Node, result: Any) -> None:
        """Let later size expressions find the sizes that only this node's data decides."""
        for symbol, path in (node.meta.get("unbacked_bindings") or {}).items():
            source: Any = result
            axis: int | None = None
            for key in path:
                index = getattr(key, "idx", None)
                if index is not None and isinstance(source, ir.Value):
                    axis = index
                elif index is not None:
                    source = source[index]
            if isinstance(source, ir.Value):
                self.op.context.symbols[str(symbol)] = partial(_size_source, source, axis)

    def name_value(self, node: torch.fx.Node) -> None:
        """Call the result like the fx node, unless it is a value that has its name already."""
        value = self.env[node]
        if isinstance(value, ir.Value) and value.producer() is not None and (value.name or "").startswith("val_"):
            value.name = self.op.context.names.reserve(node.name)

    def _stand_in(self, val: Any) -> Any:
        """Return values of the right dtype and shape for a node that failed, so that the others can be tried."""
        if isinstance(val, torch.Tensor):
            dims = self.symbols.dims(val)
            value = ir.Value(
                name=self.op.context.names.new("failed"),
                type=ir.TensorType(to_ir(val.dtype)),
                shape=ir.Shape((*dims, 2) if val.is_complex() else dims),
            )
            return mark_complex(value) if val.is_complex() else value
        if isinstance(val, list | tuple):
            return [self._stand_in(part) for part in val]
        if isinstance(val, _SYMBOLIC):
            name = self.op.context.names.new("failed")
            return ir.Value(name=name, type=ir.TensorType(ir.DataType.INT64), shape=ir.Shape(()))
        return val


def _of_read_results(node: torch.fx.Node) -> Any:
    """Return what torch says of a node's results, with None for those of several that nothing reads."""
    val = node.meta.get("val")
    if not isinstance(val, list | tuple) or any(user.target is not operator.getitem for user in node.users):
        return val
    read = {user.args[1] for user in node.users if user.users}
    return [part if index in read else None for index, part in enumerate(val)]


def _size_source(value: ir.Value, axis: int | None, op: OpBuilder) -> ir.Value:
    """Return one size of ``value``, or ``value`` itself where it is a number, as a vector of one element.

    Expressions have reals as DOUBLE, and all other numbers as INT64.
    """
    if axis is None:
        is_real = value.dtype is not None and value.dtype.is_floating_point()
        return op.Reshape(op.cast(value, ir.DataType.DOUBLE if is_real else ir.DataType.INT64), [1])
    return op.Shape(value, start=axis, end=axis + 1)


def _meta_value(node: torch.fx.Node) -> Any:
    return node.meta["val"]


def _binary(op_type: str) -> Callable[..., Any]:
    """Return a Python operator on numbers that the model computes."""

    def emit(lowering: GraphLowering, a: Any, b: Any) -> Any:
        left, right = promote(lowering.op, a, b)
        return mark_number(lowering.op.emit(op_type, left, right))

    return emit


def _of_bits(op_type: str, logical: str) -> Callable[..., Any]:
    """Return a Python operator that takes numbers bit by bit, and truth values as they are."""

    def emit(lowering: GraphLowering, a: Any, b: Any) -> Any:
        left, right = promote(lowering.op, a, b)
        return mark_number(lowering.op.emit(logical if left.dtype == ir.DataType.BOOL else op_type, left, right))

    return emit


def _rounded(lowering: GraphLowering, a: Any, digits: int | None = None) -> Any:
    if digits is not None:
        raise LoweringError(
            "round() to a number of decimal digits has no ONNX form for a number that the model computes."
        )
    return _cast_to(ir.DataType.INT64, "Round")(lowering, a)


def _floor_div(lowering: GraphLowering, a: Any, b: Any) -> Any:
    left, right = promote(lowering.op, a, b)
    return mark_number(lowering.op.floor_div(left, right))


def _true_div(lowering: GraphLowering, a: Any, b: Any) -> Any:
    left, right = promote(lowering.op, a, b, dtype=ir.DataType.DOUBLE)
    return mark_number(lowering.op.Div(left, right))


def _power(lowering: GraphLowering, a: Any, b: Any) -> Any:
    """Return a power; that of integers is one, as Python takes none below 0 that is not."""
    left, right = promote(lowering.op, a, b)
    power = lowering.op.Pow(lowering.op.cast(left, ir.DataType.DOUBLE), lowering.op.cast(right, ir.DataType.DOUBLE))
    is_whole = left.dtype == ir.DataType.INT64
    return mark_number(lowering.op.cast(lowering.op.Round(power), ir.DataType.INT64) if is_whole else power)


def _cast_to(dtype: ir.DataType, rounding: str | None = None) -> Callable[..., Any]:
    def emit(lowering: GraphLowering, a: Any) -> Any:
        if not isinstance(a, ir.Value):
            return {ir.DataType.INT64: int, ir.DataType.DOUBLE: float, ir.DataType.BOOL: bool}[dtype](a)
        value = lowering.op.emit(rounding, a) if rounding and a.dtype is not None and a.dtype.is_floating_point() else a
        return mark_number(lowering.op.cast(value, dtype))

    return emit


def _not(lowering: GraphLowering, a: Any) -> Any:
    return mark_number(lowering.op.Not(a)) if isinstance(a, ir.Value) else not a


def _if_else(lowering: GraphLowering, condition: Any, a: Any, b: Any) -> Any:
    if not isinstance(condition, ir.Value):
        return a if condition else b
    return mark_number(lowering.op.Where(condition, a, b))


def _ignore(lowering: GraphLowering, *args: Any) -> None:
    """Return an assertion or a switch of the autograd mode: the graph computes nothing for it."""


_SCALAR_FUNCTIONS: dict[Any, Callable[..., Any]] = {
    operator.add: _binary("Add"),
    operator.sub: _binary("Sub"),
    operator.mul: _binary("Mul"),
    operator.mod: _binary("Mod"),
    operator.floordiv: _floor_div,
    operator.truediv: _true_div,
    operator.pow: _power,
    operator.eq: _binary("Equal"),
    operator.lt: _binary("Less"),
    operator.gt: _binary("Greater"),
    operator.le: _binary("LessOrEqual"),
    operator.ge: _binary("GreaterOrEqual"),
    operator.and_: _of_bits("BitwiseAnd", "And"),
    operator.or_: _of_bits("BitwiseOr", "Or"),
    torch.sym_max: _binary("Max"),
    torch.sym_min: _binary("Min"),
    torch.sym_int: _cast_to(ir.DataType.INT64),
    torch.sym_float: _cast_to(ir.DataType.DOUBLE),
    torch.sym_not: _not,
    torch.sym_ite: _if_else,
    math.floor: _cast_to(ir.DataType.INT64, "Floor"),
    math.ceil: _cast_to(ir.DataType.INT64, "Ceil"),
    math.trunc: _cast_to(ir.DataType.INT64),
    round: _rounded,
    torch._check: _ignore,
    grad_mode_switch: _ignore,
}
