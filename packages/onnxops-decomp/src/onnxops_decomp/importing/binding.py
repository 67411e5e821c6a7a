"""The arguments of a node, by the names that the function has for them."""

from __future__ import annotations

import dataclasses
from typing import Any

import onnx_ir as ir

from onnxops_decomp.importing.errors import ModelImportError
from onnxops_decomp.importing.registry import Implementation, Kind
from onnxops_decomp.spec.schemas import OpSpec

__all__ = ["FROM_THE_GRAPH", "Bound", "Given", "attribute_value", "bind", "plain"]

FROM_THE_GRAPH = ("num_outputs", "input_types", "quantized_from")
"""Parameters that are neither an input nor an attribute of the operator."""


@dataclasses.dataclass(frozen=True)
class Given:
    """An input of a node on its way to a parameter."""

    value: ir.Value
    kind: str


@dataclasses.dataclass(frozen=True)
class Bound:
    """The arguments of a call: :class:`Given` inputs, and plain values of attributes."""

    args: tuple[Any, ...]
    kwargs: dict[str, Any]


def attribute_value(attribute: ir.Attr) -> Any:
    """Return what an attribute holds; strings as ``str``, and types as text, which no operator reads."""
    value = attribute.value
    if attribute.type in (ir.AttributeType.TYPE_PROTO, ir.AttributeType.TYPE_PROTOS):
        return str(value)
    return plain(list(value) if isinstance(value, tuple) else value)


def bind(entry: Implementation, spec: OpSpec, node: ir.Node, attributes: dict[str, Any]) -> Bound:
    """Return the arguments that a node gives to the function of its operator.

    Raises:
        ModelImportError: If the node does not have the form of its operator.
    """
    inputs = _present(spec, node)
    _check_attributes(spec, node, attributes)
    if entry.parameters is None:
        return Bound(tuple(Given(value, Kind.TENSOR) for value in inputs if value is not None), {})
    arguments: dict[str, Any] = _attributes(entry, spec, attributes)
    rest: list[Any] = []
    order = list(entry.parameters)
    for index, value in enumerate(inputs):
        formal = spec.formal_input(index)
        name = entry.renamed.get(formal.name, formal.name)
        name = name if name in entry.parameters else order[min(index, len(order) - 1)]
        given = None if value is None else Given(value, entry.parameters[name])
        if name == entry.variadic:
            rest.append(given)
        elif given is not None:
            arguments[name] = given
    return _ordered(entry, arguments, rest)


def _ordered(entry: Implementation, arguments: dict[str, Any], rest: list[Any]) -> Bound:
    """Return required parameters by position and the others by name."""
    assert entry.parameters is not None
    args: list[Any] = []
    names = list(entry.parameters)
    if entry.variadic is not None:
        before = names[: names.index(entry.variadic)]
        return Bound((*(arguments.pop(name, None) for name in before), *rest), arguments)
    for name in names:
        if name in entry.defaults or name in FROM_THE_GRAPH or name in entry.keywords:
            break
        if name not in arguments and name not in entry.nullable:
            raise ModelImportError(f"{name!r} is missing.")
        args.append(arguments.pop(name, None))
    return Bound(tuple(args), arguments)


def _present(spec: OpSpec, node: ir.Node) -> list[ir.Value | None]:
    inputs = list(node.inputs)
    written = len(inputs)  # an empty name at the end is there, too
    while inputs and inputs[-1] is None:
        inputs.pop()
    if written < spec.min_inputs or len(inputs) > spec.max_inputs:
        raise ModelImportError(
            f"It has {len(inputs)} inputs, and takes {spec.min_inputs} to {spec.max_inputs} at this opset."
        )
    return inputs


def _check_attributes(spec: OpSpec, node: ir.Node, attributes: dict[str, Any]) -> None:
    for name, attribute in node.attributes.items():
        if name not in spec.attributes:
            raise ModelImportError(f"It has an attribute {name!r}, which its operator does not have at this opset.")
        if attribute.type != spec.attributes[name]:
            raise ModelImportError(f"Its attribute {name!r} is of type {attribute.type.name}.")
    for name in spec.required - set(attributes):
        raise ModelImportError(f"Its attribute {name!r} is missing.")


def plain(value: Any) -> Any:
    """Return strings as ``str``, also in lists, and other values as they are."""
    if isinstance(value, list):
        return [plain(each) for each in value]
    return value.decode() if isinstance(value, bytes) else value


def _attributes(entry: Implementation, spec: OpSpec, attributes: dict[str, Any]) -> dict[str, Any]:
    """Return the attributes by parameter: those of the node, and the schema's defaults where the function's differ."""
    assert entry.parameters is not None
    result = {}
    for name in spec.attributes:
        default = spec.defaults.get(name)
        default = plain(default)
        value = attributes.get(name, default)
        parameter = entry.renamed.get(name, name)
        if parameter in entry.parameters:
            if value is not None and value != entry.defaults.get(parameter):
                result[parameter] = value
        elif name in attributes and attributes[name] != default:
            raise ModelImportError(f"Its attribute {name!r} is not supported by the importer.")
    return result
