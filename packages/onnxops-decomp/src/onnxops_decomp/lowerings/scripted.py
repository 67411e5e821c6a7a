"""Lowerings from functions of ``onnxscript``.

The nodes of such a function go through the builder like those of any lowering: they are written at the opset of the
model, whatever opset the function was written for, and no model-local function is left that a runtime has to know.
"""

from __future__ import annotations

import dataclasses
import inspect
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import onnx_ir as ir
import torch

from onnxops_decomp.builder.forms import other_meanings
from onnxops_decomp.dtypes import to_ir
from onnxops_decomp.errors import LoweringError, UnsupportedOpsetError
from onnxops_decomp.spec.inference import UNKNOWN_DIM, Dims, dims_of
from onnxops_decomp.spec.schemas import NEWEST_OPSET, first_opset, op_spec

if TYPE_CHECKING:
    from onnxops_decomp.builder.op_builder import OpBuilder

__all__ = ["ScriptFunction", "constant_of", "emit_at", "script_lowering"]

Library = Mapping[tuple[str, str], ir.Function]


@dataclasses.dataclass(frozen=True)
class ScriptFunction:
    """A function of ``onnxscript`` that the builder can write.

    Attributes:
        body: The function.
        library: The functions that it calls, directly or through others, by domain and name.
        parameters: Names of its inputs and attributes in the order of its signature.
    """

    body: ir.Function
    library: Library
    parameters: tuple[str, ...]

    @classmethod
    def of(cls, function: Any) -> ScriptFunction:
        """Read an ``onnxscript.OnnxFunction``, as the decorator ``onnxscript.script`` makes it."""
        called = function.function_ir.get_called_functions().values()
        library = [ir.from_proto(each.to_function_proto()) for each in called]
        return cls(
            ir.from_proto(function.to_function_proto()),
            {(each.domain, each.name): each for each in library},
            tuple(parameter.name for parameter in function.op_signature.params),
        )

    def inline(self, op: OpBuilder, operands: Sequence[Any], attributes: Mapping[str, Any]) -> list[ir.Value]:
        """Write the nodes of the function and return its results.

        Args:
            op: Builder.
            operands: Inputs: values, None for an omitted one, or Python numbers, which take the dtype that the
                operators of the body ask for.
            attributes: Values of its attributes; those that are left out, or None, have their defaults.

        Raises:
            LoweringError: If an attribute is missing, or an operator of the body cannot be written at the opset of
                the model.
        """
        return _inline(op, self.body, operands, attributes, self.library)


def script_lowering(function: Any) -> Callable[..., Any]:
    """Return a lowering that writes the nodes of a function of ``onnxscript``.

    The arguments of the ATen call go to the parameters of the function in order, keyword-only ones by name. A
    parameter that is an attribute of the function wants a value known while the model is written.

    Args:
        function: An ``onnxscript.OnnxFunction``.
    """
    script = ScriptFunction.of(function)
    inputs = [value.name or "" for value in script.body.inputs]
    builder = inspect.Parameter("_op", inspect.Parameter.POSITIONAL_ONLY)
    kind = inspect.Parameter.POSITIONAL_OR_KEYWORD
    signature = inspect.Signature([builder, *(inspect.Parameter(n, kind, default=None) for n in script.parameters)])

    def lower(op: OpBuilder, /, *args: Any, **kwargs: Any) -> Any:
        given = signature.bind(op, *args, **kwargs).arguments
        operands = [_operand(op, function.name, name, given.get(name)) for name in inputs]
        attributes = {name: _static(op, function.name, name, given[name]) for name in given.keys() - {"_op", *inputs}}
        results = script.inline(op, operands, attributes)
        return results[0] if len(results) == 1 else results

    lower.__name__ = lower.__qualname__ = function.name
    lower.__signature__ = signature  # type: ignore[attr-defined]
    lower.__doc__ = f"The onnxscript function {function.domain}::{function.name}."
    return lower


def emit_at(
    op: OpBuilder, op_type: str, version: int, inputs: Sequence[Any], attributes: Mapping[str, Any], count: int
) -> Sequence[ir.Value]:
    """Write a call that stands in the form of another opset than that of the model.

    Args:
        op: Builder.
        op_type: Operator of the default domain.
        version: Opset in whose form the call stands.
        inputs: Operands, as the builder takes them.
        attributes: Attributes.
        count: How many outputs are wanted.

    Returns:
        The outputs.

    Raises:
        LoweringError: If the operator means something else in the opset of the model.
        UnsupportedOpsetError: If the opset of the model has no way to write it.
    """
    if version < op.opset:
        inputs, attributes = _raised(op_type, version, op.opset, list(inputs), dict(attributes))
        version = op.opset
    if count == 1:
        return [op.at(version).emit(op_type, *inputs, **attributes)]
    return op.at(version).emit_many(op_type, count, *inputs, **attributes)


def constant_of(op: OpBuilder, attributes: Mapping[str, Any]) -> ir.Value:
    """Return what a Constant node with these attributes holds."""
    ((name, value),) = attributes.items()
    if isinstance(value, ir.TensorProtocol):
        return op.constant(value.numpy(), value.dtype)
    dtypes = {"value_int": ir.DataType.INT64, "value_ints": ir.DataType.INT64}
    return op.constant(value, dtypes.get(name, ir.DataType.FLOAT))


def _inline(
    op: OpBuilder, function: ir.Function, operands: Sequence[Any], attributes: Mapping[str, Any], library: Library
) -> list[ir.Value]:
    given = {name: value for name, value in attributes.items() if value is not None}
    known = {**{name: attribute.value for name, attribute in function.attributes.items()}, **given}
    missing = sorted(name for name, value in known.items() if value is None)
    if missing:
        raise LoweringError(f"{function.name} needs its attribute {missing[0]!r}.")
    padded = [*operands, *[None] * (len(function.inputs) - len(operands))]
    body = _Body(op, dict(zip(function.inputs, padded, strict=True)), known, function.opset_imports, library)
    body.run(function)
    return [body.tensor(output) for output in function.outputs]


def _operand(op: OpBuilder, function: str, name: str | None, value: Any) -> Any:
    """Return an argument of the ATen call as what stands for an input of the function."""
    if isinstance(value, list | tuple) and any(_is_tensor(part) for part in value):
        raise LoweringError(f"{function} takes one tensor as {name!r}, the call has a list of them.")
    if isinstance(value, list | tuple):
        return op.vector(value) if any(isinstance(part, ir.Value) for part in value) else list(value)
    if value is None or isinstance(value, ir.Value | bool | int | float):
        return value
    raise LoweringError(f"{function} takes a tensor as {name!r}, the call has a {type(value).__name__}.")


def _is_tensor(value: Any) -> bool:
    return value is None or (isinstance(value, ir.Value) and (value.shape is None or len(value.shape) > 0))


def _static(op: OpBuilder, function: str, name: str, value: Any) -> Any:
    """Return an argument of the ATen call as the value of an attribute.

    Raises:
        LoweringError: If the model computes it.
    """
    if isinstance(value, list | tuple):
        return [_static(op, function, name, part) for part in value]
    if isinstance(value, torch.dtype):
        return int(to_ir(value))
    if isinstance(value, ir.Value):
        array = op.static(value)
        if array is None:
            raise LoweringError(f"{name!r} is an attribute of {function}, but the model computes it; make it an input.")
        return array.tolist()
    return value


class _Body:
    """Writes the nodes of a function, or of a graph inside one.

    Args:
        op: Builder.
        env: What each value of the function stands for.
        attributes: Values of the function's attributes.
        versions: Opset versions that the function is written for.
        library: Other functions that it calls.
    """

    def __init__(
        self,
        op: OpBuilder,
        env: dict[ir.Value, Any],
        attributes: Mapping[str, Any],
        versions: Mapping[str, int],
        library: Library,
    ) -> None:
        self.op, self.env, self.attributes, self.versions, self.library = op, env, attributes, versions, library

    def tensor(self, value: ir.Value) -> ir.Value:
        """Return what a value of the function stands for as a value of the model."""
        found = self.env[value]
        return found if isinstance(found, ir.Value) else self.op.constant(found)

    def run(self, nodes: Iterable[ir.Node]) -> None:
        """Write nodes, in order."""
        for node in nodes:
            results = self._node(node)
            self.env.update(zip(node.outputs, results, strict=True))

    def _node(self, node: ir.Node) -> Sequence[ir.Value]:
        inputs = [None if value is None else self.env[value] for value in node.inputs]
        plain = {name: self._attribute(attribute) for name, attribute in node.attributes.items()}
        attributes = {name: value for name, value in plain.items() if value is not None}
        called = self.library.get((node.domain, node.op_type))
        if called is not None:
            return _inline(self.op, called, inputs, attributes, self.library)
        count = len(node.outputs)
        if node.domain not in ("", "ai.onnx"):
            values = [None if value is None else self.tensor(value) for value in node.inputs]
            version = self.versions.get(node.domain, 1)
            return self.op.emit_custom(node.domain, node.op_type, values, attributes, [None] * count, version=version)
        if node.op_type == "Constant":
            return [constant_of(self.op, attributes)]
        if any(isinstance(value, ir.Graph) for value in attributes.values()):
            inputs = [None if value is None else self.tensor(value) for value in node.inputs]
            attributes = self._with_subgraphs(node, inputs, attributes)
        return emit_at(self.op, node.op_type, self.versions.get(node.domain, NEWEST_OPSET), inputs, attributes, count)

    def _attribute(self, attribute: ir.Attr) -> Any:
        return self.attributes[attribute.ref_attr_name or ""] if attribute.is_ref() else attribute.value

    # ---- graphs inside the function

    def _with_subgraphs(self, node: ir.Node, inputs: Sequence[Any], attributes: dict[str, Any]) -> dict[str, Any]:
        forms = _GRAPH_INPUTS.get(node.op_type)
        if forms is None:
            raise LoweringError(f"A function with ONNX {node.op_type} cannot be written; If, Loop and Scan can.")
        described = forms(inputs, attributes)
        return {
            name: self._subgraph(value, described) if isinstance(value, ir.Graph) else value
            for name, value in attributes.items()
        }

    def _subgraph(self, graph: ir.Graph, described: Sequence[Described]) -> ir.Graph:
        op = self.op.subgraph()
        inner = _Body(op, dict(self.env), self.attributes, self.versions, self.library)
        for value, (dtype, dims) in zip(graph.inputs, described, strict=True):
            inner.env[value] = op.input(value.name or "input", dtype, dims)
        inner.run(graph)
        outputs = [inner.tensor(output) for output in graph.outputs]
        carried = len(described) - 1 if described and described[0] == _ITERATION else 0
        for (_, dims), output in zip(described[1:], outputs[:carried], strict=False):
            if dims is not None and (output.shape is None or len(output.shape) != len(dims)):
                raise LoweringError("A value that a Loop carries has to keep its rank.")
        return op.graph(outputs, name=graph.name or "body")


Described = tuple[ir.DataType | None, Dims | None]
_ITERATION: Described = (ir.DataType.INT64, ())


def _form(value: ir.Value | None, *, dims: Dims | None = None) -> Described:
    """Return the dtype and the rank of a value that a body sees, whose sizes may change between iterations."""
    known = dims_of(value) if dims is None else dims
    return (None if value is None else value.dtype), (None if known is None else (UNKNOWN_DIM,) * len(known))


def _loop_inputs(inputs: Sequence[ir.Value | None], attributes: Mapping[str, Any]) -> list[Described]:
    return [_ITERATION, (ir.DataType.BOOL, ()), *(_form(value) for value in inputs[2:])]


def _scan_inputs(inputs: Sequence[ir.Value | None], attributes: Mapping[str, Any]) -> list[Described]:
    states = len(inputs) - attributes["num_scan_inputs"]
    slices = [(value, dims_of(value)) for value in inputs[states:]]
    return [
        *(_form(value) for value in inputs[:states]),
        *(_form(value, dims=None if dims is None else dims[1:]) for value, dims in slices),
    ]


_GRAPH_INPUTS: dict[str, Callable[[Sequence[ir.Value | None], Mapping[str, Any]], list[Described]]] = {
    "If": lambda inputs, attributes: [],
    "Loop": _loop_inputs,
    "Scan": _scan_inputs,
}


def _raised(
    op_type: str, older: int, newer: int, inputs: list[Any], attributes: dict[str, Any]
) -> tuple[list[Any], dict[str, Any]]:
    """Bring a call from the form of opset ``older`` into that of ``newer``: attributes that became inputs move.

    Raises:
        LoweringError: If the call would not mean the same.
    """
    old, new = op_spec(op_type, older), op_spec(op_type, newer)
    changed = other_meanings(op_type, older, newer)
    if op_type == "Split" and (len(inputs) > 1 or "split" in attributes):
        changed = []
    if old is None:
        raise UnsupportedOpsetError(op_type, older, lowest=first_opset(op_type))
    if new is None:
        raise LoweringError(
            f"ONNX {op_type} was removed by opset {newer}: ask for opset {older}, or write it otherwise."
        )
    if changed:
        raise LoweringError(
            f"ONNX {op_type} means something else in opset {newer} than in {older}: ask for opset {older}, or write it "
            f"as of opset {max(changed)} or a newer one, which the builder brings down to where it is needed."
        )
    places = {formal.name: index for index, formal in enumerate(new.inputs)}
    kept = {name: value for name, value in attributes.items() if name in new.attributes}
    moved = list(inputs)
    for name in old.attributes.keys() - new.attributes.keys():
        value = attributes.get(name, old.defaults[name])
        if value is None:
            continue
        if name not in places:
            raise LoweringError(f"ONNX {op_type} has no {name!r} in opset {newer}: write the function for it.")
        moved.extend([None] * (places[name] + 1 - len(moved)))
        moved[places[name]] = list(value) if isinstance(value, tuple) else value
    return moved, kept
