"""Attributes of modules: weights become initializers, those that the program changes become model state."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import onnx_ir as ir
import torch

from onnx_ts_legacy import _torch_private as private
from onnx_ts_legacy.errors import ScriptValueError, StateError
from onnx_ts_legacy.state.slots import StateSlot
from onnx_ts_legacy.state.values import DictRef, ListRef, ObjectRef, Tensor
from onnxops_decomp.exporting import TIED_KEY, shared_memory, to_ir, with_line

if TYPE_CHECKING:
    from onnx_ts_legacy.conversion import Interpreter

__all__ = ["Attributes"]

_KEPT_AS_CONSTANT = 16


class Attributes:
    """Reads and writes attributes of the modules of a program.

    Args:
        interpreter: The conversion.
        root: The module itself (``torch._C.ScriptModule``), or None for a function.
        prefix: Start of all qualified names that is left out.
        slots: Attributes that are inputs of the model.
    """

    def __init__(self, interpreter: Interpreter, root: Any, prefix: str, slots: Mapping[str, StateSlot]) -> None:
        self._interpreter = interpreter
        self.prefix = prefix
        self._objects: dict[Any, ObjectRef] = {}
        self._tensors: dict[Any, Tensor] = {}
        self._weights: dict[Any, ir.Value] = {}
        self._kept: list[torch.Tensor] = []
        self._first: dict[tuple[int, str], Any] = {}
        self._containers: dict[str, list[tuple[ListRef | DictRef, Any]]] = {}
        self.slots = dict(slots)
        self.initializers: list[ir.Value] = []
        self.written: dict[str, Any] = {}
        self.root = ObjectRef(interpreter.heap, "", root)

    def read(self, target: Any, name: str) -> Any:
        """Return attribute ``name`` of a module or object."""
        if not isinstance(target, ObjectRef):
            raise ScriptValueError(f"Attribute {name!r} of {type(target).__name__} cannot be read.")
        if name in target.state:
            return target.state[name]
        return self._first_value(target, name)

    def _first_value(self, target: Any, name: str) -> Any:
        if target.source is None:
            raise ScriptValueError(f"Attribute {name!r} is read before it is set.")
        key = (id(target), name)
        if key not in self._first:
            # It was there before the program began, whatever branch reads it first.
            with self._interpreter.heap.outside():
                self._first[key] = self._first_read(target, name)
        return self._first[key]

    def read_before(self, target: Any, name: str) -> Any:
        """Return attribute ``name`` as it was before the innermost branch."""
        before = self._interpreter.heap.pending().get(target, target.state)
        return before[name] if name in before else self._first_value(target, name)

    def write(self, target: ObjectRef, name: str, value: Any) -> None:
        """Set attribute ``name``."""
        if target.path is not None:
            path = self.path(target, name)
            self.written.setdefault(path, (target, name))
        self._interpreter.heap.write(target, {**target.state, name: value})

    def path(self, target: ObjectRef, name: str) -> str:
        """Return the qualified name of an attribute as the user's module knows it."""
        path = f"{target.path}.{name}" if target.path else name
        return "" if path == self.prefix else path.removeprefix(f"{self.prefix}.") if self.prefix else path

    def _first_read(self, target: ObjectRef, name: str) -> Any:
        found = target.source.getattr(name)
        path = self.path(target, name)
        slot = self.slots.get(path)
        if isinstance(found, torch.Tensor):
            return self.tensor(path, found)
        if slot is not None:
            return self._interpreter.state_input(slot)
        if isinstance(found, private.ScriptObject):
            key = hash(found)
            if key not in self._objects:
                self._objects[key] = ObjectRef(self._interpreter.heap, path, found)
            return self._objects[key]
        value = self._interpreter.from_python(found, path)
        self._containers[path] = [(each, each.state) for each in _containers(value)]
        return value

    def tensor(self, path: str, tensor: torch.Tensor) -> Tensor:
        """Return the variable for a weight or buffer; one for all names of the same memory."""
        slot = self.slots.get(path)
        key = _identity(tensor)
        if key in self._tensors:
            self.tie(path, tensor)
            return self._tensors[key]
        if slot is not None:
            variable: Tensor = self._interpreter.state_input(slot)
        else:
            value, fake = self._weight(path, tensor)
            self._weights[key] = value
            variable = self._interpreter.fresh(value, fake, origin=path)
        self._tensors[key] = variable
        # Its memory, and so its address, must not be given to another tensor while the address names it.
        self._kept.append(tensor)
        return variable

    def tie(self, path: str, tensor: torch.Tensor) -> None:
        """Note a further name of a weight, by which other contents may be given later."""
        value = self._weights.get(_identity(tensor))
        if value is not None:
            names = value.meta.setdefault(TIED_KEY, [value.name])
            if path not in names:
                names.append(path)

    def _weight(self, path: str, tensor: torch.Tensor) -> tuple[ir.Value, Any]:
        interpreter = self._interpreter
        tensor = tensor.detach()
        name = interpreter.op.context.names.reserve(path)
        source = torch.view_as_real(tensor) if tensor.is_complex() else tensor
        value = ir.Value(
            name=name,
            shape=ir.Shape(source.shape),
            type=ir.TensorType(to_ir(tensor.dtype)),
            const_value=ir.tensor_adapters.TorchTensor(source.contiguous(), name=name),
        )
        self.initializers.append(value)
        return value, interpreter.metadata.constant(tensor)

    def anonymous(self, tensor: torch.Tensor) -> Tensor:
        """Return the variable for a constant of the program; a small one takes part in constant folding."""
        interpreter = self._interpreter
        if tensor.numel() > _KEPT_AS_CONSTANT or tensor.is_complex():
            value, fake = self._weight("constant", tensor)
            return interpreter.fresh(value, fake)
        array = ir.tensor_adapters.TorchTensor(tensor.detach().contiguous()).numpy()
        value = interpreter.op.constant(array, to_ir(tensor.dtype))
        number = tensor.item() if tensor.dim() == 0 and not tensor.dtype.is_floating_point else None
        return interpreter.fresh(value, interpreter.metadata.constant(tensor), number=number)

    def is_read(self, path: str) -> bool:
        """Tell whether the program reads what an attribute held before it."""
        target, name = self.written.get(path, (None, ""))
        return path in self._containers or (id(target), name) in self._first

    def starts(self) -> dict[str, ir.Value | None]:
        """Return what the tensors among the attributes are at first, by qualified name."""
        return {str(variable.storage.origin): variable.storage.start.value for variable in self._tensors.values()}

    def check_memory(self) -> None:
        """Refuse writes to memory that is shown by another attribute, too, or more than once.

        Raises:
            StateError: If there are any.
        """
        tensors = {str(variable.storage.origin): tensor for variable, tensor in self._read_tensors()}
        for variable, tensor in self._read_tensors():
            name, line = str(variable.storage.origin), variable.storage.line
            if not variable.storage.is_changed:
                continue
            if text := shared_memory(with_line(name, line), tensor, tensors):
                raise StateError(text)

    def _read_tensors(self) -> list[tuple[Tensor, torch.Tensor]]:
        return list(zip(self._tensors.values(), self._kept, strict=True))

    def changed(self) -> dict[str, Any]:
        """Return what the attributes that the program changed hold now, by qualified name."""
        result: dict[str, Any] = {}
        for path, (target, name) in self.written.items():
            result[path] = self.read(target, name)
        for path, containers in self._containers.items():
            for container, before in containers:
                if container.state is not before:
                    result.setdefault(path, container)
        for variable in self._tensors.values():
            origin = variable.storage.origin
            if origin is not None and variable.storage.is_changed:
                result.setdefault(origin, variable)
        return result


def _containers(value: Any) -> list[ListRef | DictRef]:
    """Return the lists and dicts among a variable and its items."""
    own = [value] if isinstance(value, ListRef | DictRef) else []
    items = own[0].items if own else value if isinstance(value, tuple) else ()
    parts = items.values() if isinstance(items, dict) else items
    return [*own, *(each for part in parts for each in _containers(part))]


def _identity(tensor: torch.Tensor) -> Any:
    return (tensor.data_ptr(), tuple(tensor.shape), tensor.stride(), tensor.dtype) if tensor.numel() else id(tensor)
