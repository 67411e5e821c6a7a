"""Attributes of modules: weights become initializers, those that the program changes become model state."""

from __future__ import annotations

from typing import Any

import onnx_ir as ir
import torch

from onnx_ts_legacy import _torch_private as private
from onnx_ts_legacy.errors import ScriptValueError, StateError
from onnx_ts_legacy.state.context import ConversionContext
from onnx_ts_legacy.state.pairs import held_as
from onnx_ts_legacy.state.slot_values import state_input
from onnx_ts_legacy.state.values import DictRef, ListRef, ObjectRef, Tensor
from onnxops_decomp.exporting import (
    TIED_KEY,
    place_in_memory,
    real_contents,
    shared_memory,
    to_ir,
    with_line,
)

__all__ = [
    "attribute_before",
    "attribute_path",
    "changed_attributes",
    "check_memory",
    "first_values",
    "first_variables",
    "from_python",
    "is_read_first",
    "read_attribute",
    "tensor_constant",
    "tie_weight",
    "weight_tensor",
    "write_attribute",
]

_KEPT_AS_CONSTANT = 16


def read_attribute(context: ConversionContext, target: Any, name: str) -> Any:
    """Return attribute ``name`` of a module or object."""
    if not isinstance(target, ObjectRef):
        raise ScriptValueError(f"Attribute {name!r} of {type(target).__name__} cannot be read.")
    if name in target.state:
        return target.state[name]
    return _first_value(context, target, name)


def _first_value(context: ConversionContext, target: Any, name: str) -> Any:
    if target.source is None:
        raise ScriptValueError(f"Attribute {name!r} is read before it is set.")
    key = (id(target), name)
    if key not in context.attributes.first:
        # It was there before the program began, whatever branch reads it first.
        with context.heap.outside():
            context.attributes.first[key] = _first_read(context, target, name)
    return context.attributes.first[key]


def attribute_before(context: ConversionContext, target: Any, name: str) -> Any:
    """Return attribute ``name`` as it was before the innermost branch."""
    before = context.heap.pending().get(target, target.state)
    return before[name] if name in before else _first_value(context, target, name)


def write_attribute(context: ConversionContext, target: ObjectRef, name: str, value: Any) -> None:
    """Set attribute ``name``."""
    if target.path is not None:
        path = attribute_path(context, target, name)
        context.attributes.written.setdefault(path, (target, name))
    context.heap.write(target, {**target.state, name: value})


def attribute_path(context: ConversionContext, target: ObjectRef, name: str) -> str:
    """Return the qualified name of an attribute as the user's module knows it."""
    path = f"{target.path}.{name}" if target.path else name
    prefix = context.attributes.prefix
    return "" if path == prefix else path.removeprefix(f"{prefix}.") if prefix else path


def _first_read(context: ConversionContext, target: ObjectRef, name: str) -> Any:
    found = target.source.getattr(name)
    path = attribute_path(context, target, name)
    slot = context.attributes.slots.get(path)
    if isinstance(found, torch.Tensor):
        return weight_tensor(context, path, found)
    if slot is not None:
        return state_input(context, slot)
    if isinstance(found, private.ScriptObject):
        key = hash(found)
        if key not in context.attributes.objects:
            context.attributes.objects[key] = ObjectRef(context.heap, path, found)
        return context.attributes.objects[key]
    value = from_python(context, found, path)
    context.attributes.containers[path] = [(each, each.state) for each in _containers(value)]
    return value


def from_python(context: ConversionContext, value: Any, path: str = "constant") -> Any:
    """Return a Python value as a variable of the program."""
    if isinstance(value, torch.Tensor):
        return weight_tensor(context, path, value) if path != "constant" else tensor_constant(context, value)
    if isinstance(value, list):
        items = tuple(from_python(context, item, f"{path}.{index}") for index, item in enumerate(value))
        return ListRef(context.heap, items)
    if isinstance(value, dict):
        return DictRef(context.heap, {key: from_python(context, item, f"{path}.{key}") for key, item in value.items()})
    if isinstance(value, tuple):
        return tuple(from_python(context, item, f"{path}.{index}") for index, item in enumerate(value))
    return value


def weight_tensor(context: ConversionContext, path: str, tensor: torch.Tensor) -> Tensor:
    """Return the variable for a weight or buffer; one for all names of the same memory."""
    slot = context.attributes.slots.get(path)
    key = _identity(tensor)
    if key in context.attributes.tensors:
        tie_weight(context, path, tensor)
        return context.attributes.tensors[key]
    if slot is not None:
        variable: Tensor = state_input(context, slot)
    else:
        value, fake = _weight(context, path, tensor)
        context.attributes.weights[key] = value
        variable = context.fresh(value, fake, origin=path)
    context.attributes.tensors[key] = variable
    # Its memory, and so its address, must not be given to another tensor while the address names it.
    context.attributes.kept.append(tensor)
    return variable


def tie_weight(context: ConversionContext, path: str, tensor: torch.Tensor) -> None:
    """Note a further name of a weight, by which other contents may be given later."""
    value = context.attributes.weights.get(_identity(tensor))
    if value is not None:
        names = value.meta.setdefault(TIED_KEY, [value.name])
        if path not in names:
            names.append(path)


def _weight(context: ConversionContext, path: str, tensor: torch.Tensor) -> tuple[ir.Value, Any]:
    tensor = tensor.detach()
    name = context.op.context.names.reserve(path)
    if path in context.attributes.ignored:
        # The user may run the model on, which changes it.
        tensor = tensor.clone()
    source = real_contents(tensor)
    value = ir.Value(
        name=name,
        shape=ir.Shape(source.shape),
        type=ir.TensorType(to_ir(tensor.dtype)),
        const_value=ir.tensor_adapters.TorchTensor(source.contiguous(), name=name),
    )
    if name != path:
        # An input has that name; the weight is still replaced under its own.
        value.meta[TIED_KEY] = [path]
    context.attributes.initializers.append(value)
    return held_as(value, tensor.dtype), context.metadata.constant(tensor)


def tensor_constant(context: ConversionContext, tensor: torch.Tensor) -> Tensor:
    """Return the variable for a constant of the program; a small one takes part in constant folding."""
    if tensor.numel() > _KEPT_AS_CONSTANT or tensor.is_complex():
        value, fake = _weight(context, "constant", tensor)
        return context.fresh(value, fake)
    array = ir.tensor_adapters.TorchTensor(real_contents(tensor).contiguous()).numpy()
    value = context.op.constant(array, to_ir(tensor.dtype))
    number = tensor.item() if tensor.dim() == 0 and not tensor.dtype.is_floating_point else None
    return context.fresh(value, context.metadata.constant(tensor), number=number)


def is_read_first(context: ConversionContext, path: str) -> bool:
    """Tell whether the program reads what an attribute held before it."""
    target, name = context.attributes.written.get(path, (None, ""))
    return path in context.attributes.containers or (id(target), name) in context.attributes.first


def first_values(context: ConversionContext) -> dict[str, ir.Value | None]:
    """Return what the tensors among the attributes are at first, by qualified name."""
    return {name: variable.storage.start.value for name, variable in first_variables(context).items()}


def first_variables(context: ConversionContext) -> dict[str, Any]:
    """Return the variables of the tensors that the program found in attributes, by qualified name."""
    return {str(variable.storage.origin): variable for variable in context.attributes.tensors.values()}


def check_memory(context: ConversionContext) -> None:
    """Refuse writes to memory that is shown by another attribute, too, or more than once.

    Raises:
        StateError: If there are any.
    """
    read = [(variable.storage, tensor) for variable, tensor in _read_tensors(context)]
    changed = [(storage, tensor) for storage, tensor in read if storage.is_changed]
    tensors = {str(storage.origin): tensor for storage, tensor in read} if changed else {}
    for storage, tensor in changed:
        name, line = str(storage.origin), storage.line
        if text := shared_memory(with_line(name, line), tensor, tensors):
            raise StateError(text)


def _read_tensors(context: ConversionContext) -> list[tuple[Tensor, torch.Tensor]]:
    return list(zip(context.attributes.tensors.values(), context.attributes.kept, strict=True))


def changed_attributes(context: ConversionContext) -> dict[str, Any]:
    """Return what the attributes that the program changed hold now, by qualified name."""
    result: dict[str, Any] = {}
    for path, (target, name) in context.attributes.written.items():
        result[path] = read_attribute(context, target, name)
    for path, containers in context.attributes.containers.items():
        for container, before in containers:
            if container.state is not before:
                result.setdefault(path, container)
    for variable in context.attributes.tensors.values():
        storage = variable.storage
        if storage.origin is not None and storage.is_changed:
            result.setdefault(storage.origin, variable)
    return result


def _containers(value: Any) -> list[ListRef | DictRef]:
    """Return the lists and dicts among a variable and its items."""
    own = [value] if isinstance(value, ListRef | DictRef) else []
    items = own[0].items if own else value if isinstance(value, tuple) else ()
    parts = items.values() if isinstance(items, dict) else items
    return [*own, *(each for part in parts for each in _containers(part))]


def _identity(tensor: torch.Tensor) -> Any:
    return place_in_memory(tensor) or id(tensor)
