"""Model-local functions: runs of fx nodes that are lowered once and called wherever they are repeated."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Callable, Hashable, Mapping, Sequence
from functools import partial
from typing import Any

import numpy.typing as npt
import onnx_ir as ir
import torch
from torch.utils import _pytree as pytree

from onnx_fx_export.origin import module_path, origin_of
from onnx_fx_export.repeats.fingerprint import marks_of, nodes_key, operand_key
from onnx_fx_export.sizes.sources import define_symbol
from onnxops_decomp import LoweringError, OpBuilder
from onnxops_decomp.exporting import (
    Dims,
    GraphLowering,
    ModelContext,
    NodeHandler,
    RegionHandler,
    axis_size,
    constants_to_nodes,
    dims_of,
)

__all__ = ["LOWEST_OPSET", "Body", "FunctionStore"]

LOWEST_OPSET = 15
_VERSION = 1
_REGION_DOMAIN = "onnx_fx_export.repeats.regions"


@dataclasses.dataclass(frozen=True)
class Body:
    """What a function computes.

    Attributes:
        domain: Domain of the function.
        name: Wanted name; a number is appended for another body of the same name.
        graph_module: Owner of the nodes.
        nodes: The nodes, in order.
        parameters: Nodes, of the body or outside, that operands are passed for.
        results: What the body gives: nodes, None or Python values, in any structure of lists and tuples.
        written: For each in-place call, the node that stands for the tensor that it writes to.
        regions: Functions inside.
        prefix: Path of the module that the nodes come from; paths inside are relative to it.
    """

    domain: str
    name: str
    graph_module: torch.fx.GraphModule
    nodes: Sequence[torch.fx.Node]
    parameters: Sequence[torch.fx.Node]
    results: Any
    written: Mapping[torch.fx.Node, torch.fx.Node] = dataclasses.field(default_factory=dict)
    regions: Mapping[torch.fx.Node, RegionHandler] = dataclasses.field(default_factory=dict)
    prefix: str = ""

    def key(self) -> Hashable:
        """Return what bodies that are lowered to the same function have in common."""
        inside = set(self.nodes)
        outside = [parameter for parameter in self.parameters if parameter not in inside]
        structure = nodes_key(self.graph_module, self.nodes, outside, self.results, self.written)
        return (self.domain, self.name, structure)


@dataclasses.dataclass(frozen=True)
class _Given:
    """A result that the caller has already: the operand at a position, or the size that a symbol stands for."""

    source: int | str


@dataclasses.dataclass(frozen=True)
class _Constant:
    """A result that is the same in every call."""

    array: npt.NDArray[Any]
    dtype: ir.DataType
    marks: Mapping[str, Any]


@dataclasses.dataclass(frozen=True)
class _Output:
    """A result that the function computes: position, type, shape and marks."""

    index: int
    dtype: ir.DataType
    dims: Dims | None
    marks: Mapping[str, Any]


@dataclasses.dataclass(frozen=True)
class _Function:
    """A body that has been lowered.

    Attributes:
        function: The function, or None if the body computes nothing that the caller does not have.
        inputs: For each input of the function the position of its operand, or the symbol whose value it takes.
        outputs: What is known of each output.
        results: What the body gave, values replaced by what says where they come from.
    """

    function: ir.Function | None
    inputs: Sequence[int | str]
    outputs: Sequence[_Output]
    results: Any


class FunctionStore:
    """The functions of one model; bodies that are lowered to the same nodes are one function."""

    def __init__(self) -> None:
        self.functions: list[ir.Function] = []
        self._known: dict[Hashable, _Function] = {}
        self._taken: set[tuple[str, str]] = set()

    def handlers(self, opset: int) -> dict[Any, NodeHandler]:
        """Return what lowers the operators that call a region: to calls of functions where ``opset`` has them."""
        return {torch.ops.higher_order.invoke_subgraph: self._invoke if opset >= LOWEST_OPSET else _inlined}

    def _invoke(self, lowering: GraphLowering, node: torch.fx.Node) -> Any:
        graph_module, identifier, operands = _region_call(lowering, node)
        nodes = list(graph_module.graph.nodes)
        body = Body(
            domain=_REGION_DOMAIN,
            name=str(identifier or "region"),
            graph_module=graph_module,
            nodes=nodes,
            parameters=[inner for inner in nodes if inner.op == "placeholder"],
            results=graph_module.graph.output_node().args[0],
        )
        return self.call(lowering, body, operands)

    def call(self, lowering: GraphLowering, body: Body, operands: Sequence[Any]) -> Any:
        """Call the function of ``body``, which is lowered if no equal one has been.

        Args:
            lowering: Lowering of the graph that calls.
            body: What is called.
            operands: What each of its parameters stands for.

        Returns:
            The results of the body, nodes replaced by values of the calling graph.
        """
        op = lowering.op
        leaves = pytree.tree_leaves(list(operands))
        key = (body.key(), tuple(operand_key(op, operand) for operand in operands))
        known = self._known.get(key)
        if known is None or any(source not in op.context.symbols for source in known.inputs if isinstance(source, str)):
            known = self._known[key] = _BodyLowering(lowering, body).run(operands, self._reserved)
            if known.function is not None:
                self.functions.append(known.function)

        def given(source: int | str) -> Any:
            return leaves[source] if isinstance(source, int) else op.context.symbols[source](op)

        outputs: Sequence[ir.Value] = ()
        if known.function is not None:
            op.context.domains.update(x for x in known.function.opset_imports.items() if x != ("", op.opset))
            outputs = _emit_call(op, known.function, [given(source) for source in known.inputs], known.outputs)

        def received(result: Any) -> Any:
            if isinstance(result, _Output):
                return outputs[result.index]
            if isinstance(result, _Constant):
                value = op.constant(result.array, result.dtype)
                value.meta.update(result.marks)
                return value
            return given(result.source) if isinstance(result, _Given) else result

        return pytree.tree_map(received, known.results)

    def _reserved(self, body: Body) -> tuple[str, str]:
        """Return a domain and a name that no other function has."""
        domain, count = body.domain, 0
        name = base = re.sub(r"\W", "_", body.name)
        while (domain, name) in self._taken:
            count += 1
            name = f"{base}_{count}"
        self._taken.add((domain, name))
        return domain, name


def _inlined(lowering: GraphLowering, node: torch.fx.Node) -> Any:
    graph_module, _, operands = _region_call(lowering, node)
    return lowering.nested().run(graph_module, operands)


def _region_call(lowering: GraphLowering, node: torch.fx.Node) -> tuple[torch.fx.GraphModule, Any, list[Any]]:
    """Return the graph of an ``invoke_subgraph`` call, its identifier and its operands.

    Raises:
        LoweringError: If torch describes the graph for other sizes than those of the operands.
    """
    graph_module, identifier, *operands = lowering.resolve(node.args)
    for inner, operand in zip(graph_module.graph.find_nodes(op="placeholder"), operands, strict=True):
        val = inner.meta.get("val")
        if isinstance(val, torch.Tensor) and isinstance(operand, ir.Value) and not val.is_complex():
            dims = dims_of(operand)
            if dims is not None and dims != lowering.symbols.dims(val):
                raise LoweringError(f"{node.name} calls a region for {inner.name} of shape {val.shape}, with {dims}.")
    return graph_module, identifier, operands


def _emit_call(
    op: OpBuilder, function: ir.Function, inputs: Sequence[ir.Value], expected: Sequence[_Output]
) -> Sequence[ir.Value]:
    dtypes, shapes = [output.dtype for output in expected], [output.dims for output in expected]
    outputs = op.emit_custom(function.domain, function.name, inputs, {}, dtypes, version=_VERSION, shapes=shapes)
    for output, wanted in zip(outputs, expected, strict=True):
        output.meta.update(wanted.marks)
    return outputs


class _BodyLowering:
    """Lowers one body to a function that sees nothing of the graph that calls it."""

    def __init__(self, outer: GraphLowering, body: Body) -> None:
        self.outer, self.body = outer, body
        shared = outer.op.context
        context = ModelContext(
            shared.opset,
            expressions=shared.expressions,
            widen_bfloat16=shared.widen_bfloat16,
            nan=shared.nan,
        )
        self.op = OpBuilder(shared.opset, context=context)
        self.lowering = outer.nested(self.op)
        self.lowering.origin = partial(_relative_origin, body.prefix)
        self.lowering.regions = body.regions
        self.lowering.written.update(body.written)
        self.sources: dict[ir.Value, int | str] = {}
        self.outputs: dict[ir.Value, _Output] = {}

    def run(self, operands: Sequence[Any], reserve: Callable[[Body], tuple[str, str]]) -> _Function:
        """Lower the body for operands like the given ones; ``reserve`` names the function if it needs one."""
        self._bind(operands)
        self.lowering.run_nodes(self.body.graph_module, self.body.nodes)
        results = pytree.tree_map(self._described, self.lowering.resolve(self.body.results))
        if not self.outputs:
            return _Function(None, (), (), results)
        domain, name = reserve(self.body)
        graph = self.op.graph(list(self.outputs), name=name, constants=True)
        constants_to_nodes(graph)
        for index in reversed(range(len(graph.inputs))):
            if not graph.inputs[index].uses():
                graph.inputs.pop(index)
        inputs = [self.sources[value] for value in graph.inputs]
        function = ir.Function(domain, name, graph=graph, attributes=())
        return _Function(function, inputs, list(self.outputs.values()), results)

    def _bind(self, operands: Sequence[Any]) -> None:
        """Give the parameters their values inside, and every size that the caller knows a source."""
        positions = iter(range(len(pytree.tree_leaves(list(operands)))))
        for parameter, operand in zip(self.body.parameters, operands, strict=True):
            name = self._name(parameter)
            leaves, structure = pytree.tree_flatten(operand)
            inner = [self._parameter(name, leaf, next(positions)) for leaf in leaves]
            self.lowering.env[parameter] = pytree.tree_unflatten(inner, structure)
        for symbol in self.outer.op.context.symbols:
            if symbol not in self.op.context.symbols:
                self.op.context.symbols[symbol] = partial(self._captured_size, symbol)

    def _name(self, parameter: torch.fx.Node) -> str:
        """Return the name of a parameter as the module that the body comes from knows it."""
        path = self.body.prefix.replace(".", "_")
        return re.sub(rf"^[pbc]_{path}_", "", parameter.name) if path else parameter.name

    def _parameter(self, name: str, operand: Any, position: int) -> Any:
        """Return what an operand is inside: constants and Python values are part of the body."""
        if not isinstance(operand, ir.Value):
            return operand
        static = self.outer.op.static(operand)
        if static is not None:
            value = self.op.constant(static, operand.dtype)
        else:
            dims = dims_of(operand)
            value = self.op.input(name, operand.dtype, dims)
            self.sources[value] = position
            for axis, dim in enumerate(dims or ()):
                text = None if isinstance(dim, int) else dim.value
                if text in self.op.context.expressions:
                    define_symbol(self.op.context, self.op.context.expressions[text], partial(axis_size, value, axis))
        value.meta.update(marks_of(operand))
        return value

    def _captured_size(self, symbol: str, op: OpBuilder) -> ir.Value:
        """Make a size that the shapes of the operands do not give an input, when it is first asked for."""
        for value, source in self.sources.items():
            if source == symbol:
                return value
        value = self.op.input(f"size_{symbol}", ir.DataType.INT64, (1,))
        self.sources[value] = symbol
        return value

    def _described(self, result: Any) -> Any:
        if not isinstance(result, ir.Value):
            return result
        if result in self.sources:
            return _Given(self.sources[result])
        marks, static = marks_of(result), self.op.static(result)
        if static is not None:
            return _Constant(static, self.op.dtype(result), marks)
        if result not in self.outputs:
            self.outputs[result] = _Output(len(self.outputs), self.op.dtype(result), dims_of(result), marks)
        return self.outputs[result]


def _relative_origin(prefix: str, node: torch.fx.Node, outer: Mapping[str, str]) -> dict[str, str]:
    """Return the metadata of a node inside a function; one of many modules runs it, so paths start at that one."""
    metadata = origin_of(node, outer)
    path = module_path(node).removeprefix(prefix).removeprefix(".")
    metadata.pop("onnxops.module", None)
    return {**metadata, "onnxops.module": path} if path else metadata
