"""The variables of a program that is converted: made, read as ONNX values, and asked for their sizes."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, cast

import numpy as np
import onnx_ir as ir
import torch

from onnx_ts_legacy.calls.prims import ProgramRaisesError
from onnx_ts_legacy.calls.scalars import Scalars
from onnx_ts_legacy.errors import ScriptValueError
from onnx_ts_legacy.mutation.sometimes_views import SometimesViews
from onnx_ts_legacy.mutation.views import node_value
from onnx_ts_legacy.shapes.metadata import Metadata
from onnx_ts_legacy.shapes.tensor_forms import TensorForm
from onnx_ts_legacy.state.attributes import Attributes
from onnx_ts_legacy.state.slots import StateSlot, program_value
from onnx_ts_legacy.state.values import (
    Content,
    DictRef,
    Heap,
    ListRef,
    Poison,
    RuntimeBool,
    RuntimeFloat,
    Storage,
    Tensor,
    View,
)
from onnxops_decomp import OpBuilder
from onnxops_decomp.exporting import axis_size, to_ir

if TYPE_CHECKING:
    from onnx_ts_legacy.conversion import Interpreter

__all__ = ["Variables"]


class Variables:
    """The part of the interpreter that deals with variables.

    Attributes:
        op: Builder of the graph that is written now.
        main: Builder of the main graph.
        heap: What writes the contents of mutable objects.
        metadata: Source of dtypes and sizes.
        scalars: What moves numbers between program and model.
        sometimes_views: What follows copies that are views at some sizes.
        attributes: Attributes of modules.
        state_values: Variables of the state inputs by name.
        cases: For symbols that tell the forms of a tensor apart, the tensor and the number that each form has.
    """

    op: OpBuilder
    main: OpBuilder
    heap: Heap
    metadata: Metadata
    scalars: Scalars
    sometimes_views: SometimesViews
    attributes: Attributes
    state_values: dict[str, Any]
    cases: dict[str, tuple[Tensor, tuple[Any, ...]]]

    @property
    def _interpreter(self) -> Interpreter:
        return cast("Interpreter", self)

    def fresh(self, value: ir.Value | None, *forms: Any, origin: str | None = None, number: Any = None) -> Tensor:
        """Return a new tensor variable with memory of its own."""
        fake = forms[0] if len(forms) == 1 else None
        return Tensor(self.heap, Storage(self.heap, value, fake, origin=origin, number=number), *forms)

    def number_tensor(self, number: Any) -> Tensor:
        """Return a 0-d tensor that holds a number."""
        if isinstance(number, Tensor):
            return number
        dtype = torch.int64
        if isinstance(number, bool | RuntimeBool):
            dtype = torch.bool
        elif isinstance(number, float | RuntimeFloat):
            dtype = torch.get_default_dtype()
            return self.fresh(self.scalars.to_value(number, to_ir(dtype)), self.metadata.empty(dtype, []))
        return self.fresh(None, self.metadata.empty(dtype, []), number=number)

    def tensor_constant(self, tensor: torch.Tensor) -> Tensor:
        """Return a variable for a tensor that stands in the program."""
        return self.attributes.anonymous(tensor)

    def from_python(self, value: Any, path: str = "constant") -> Any:
        """Return a Python value as a variable of the program."""
        if isinstance(value, torch.Tensor):
            return self.attributes.tensor(path, value) if path != "constant" else self.tensor_constant(value)
        if isinstance(value, list):
            items = tuple(self.from_python(item, f"{path}.{index}") for index, item in enumerate(value))
            return ListRef(self.heap, items)
        if isinstance(value, dict):
            return DictRef(self.heap, {key: self.from_python(item, f"{path}.{key}") for key, item in value.items()})
        if isinstance(value, tuple):
            return tuple(self.from_python(item, f"{path}.{index}") for index, item in enumerate(value))
        if isinstance(value, torch.dtype | torch.layout | torch.memory_format):
            return value
        return value

    def state_input(self, slot: StateSlot) -> Any:
        """Return the variable for an attribute that is an input of the model."""
        if slot.name in self.state_values:
            return self.state_values[slot.name]
        if isinstance(slot.initial, torch.Tensor):
            result: Any = self._state_tensor(slot)
        else:
            kind = {bool: ir.DataType.BOOL, int: ir.DataType.INT64, float: ir.DataType.DOUBLE}.get(type(slot.initial))
            if kind is None:
                raise ScriptValueError(
                    f"Attribute {slot.name!r} is changed by the program and holds a {type(slot.initial).__name__}; "
                    "only tensors and numbers can be state of an ONNX model."
                )
            result = self.scalars.runtime(self.main.input(slot.name, kind, ()))
        self.state_values[slot.name] = result
        return result

    def _state_tensor(self, slot: StateSlot) -> Tensor:
        forms = [self._state_form(dtype, sizes) for dtype, sizes in slot.forms]
        given = forms[0] if len(forms) == 1 else self._state_form(slot.forms[0][0], slot.interface)
        value = self.main.input(slot.name, to_ir(given.dtype), self.metadata.symbols.dims(given))
        return self.fresh(program_value(self._interpreter, slot, value), *forms, origin=slot.name)

    def _state_form(self, dtype: torch.dtype, sizes: tuple[int | None, ...]) -> TensorForm:
        named = [self.metadata.unknown_size() if size is None else size for size in sizes]
        return self.metadata.empty(dtype, named)

    def is_visible(self, scope: Any) -> bool:
        """Tell whether values of ``scope`` can be used in the graph that is being written."""
        here: Any = self.op.scope
        while here is not None:
            if here is scope:
                return True
            here = here.outer
        return False

    def value(self, tensor: Any) -> ir.Value:
        """Return the ONNX value of what a tensor variable holds now."""
        if isinstance(tensor, Poison):
            raise tensor.error()
        if not isinstance(tensor, Tensor):
            return self.scalars.to_value(tensor)
        value = node_value(self._interpreter, tensor.node)
        if value.shape is None and len(tensor.forms) == 1:
            dims = self.metadata.symbols.dims(tensor.fake)
            assert value.dtype is not None
            value = self.op.emit_custom("", "Identity", [value], {}, [value.dtype], shapes=[dims])[0]
        return value

    def content_value(self, content: Content) -> ir.Value:
        """Return the ONNX value of what a storage holds."""
        return self.scalars.to_value(content.number) if content.value is None else content.value

    def zeros(self, dtype: torch.dtype, sizes: Sequence[int]) -> ir.Value:
        """Return a constant, to stand where a variable has no value and is never read."""
        return self.op.constant(np.zeros(sizes, to_ir(dtype).numpy()), to_ir(dtype))

    def any_value(self, variable: Tensor) -> ir.Value:
        """Return the ONNX value of a tensor variable, of whatever rank it is."""
        return node_value(self._interpreter, variable.node) if len(variable.forms) > 1 else self.value(variable)

    # ---- sizes, also of tensors that may have several ranks

    def rank(self, tensor: Tensor) -> Any:
        """Return ``tensor.dim()``."""
        ranks = tuple(form.dim() for form in tensor.forms)
        if len(set(ranks)) == 1:
            return ranks[0]
        value = node_value(self._interpreter, tensor.node)
        return self._case(tensor, self.op.Size(self.op.Shape(value)), ranks)

    def size(self, tensor: Tensor, axis: Any) -> Any:
        """Return ``tensor.size(axis)``."""
        if len(tensor.forms) == 1:
            shape = tensor.fake.shape
            if not -len(shape) <= axis < len(shape):
                raise ProgramRaisesError(f"Dimension {axis} of a tensor of rank {len(shape)} is read.")
            size = shape[axis]
            return size if isinstance(size, int) else self._sized(tensor, size, range(len(shape))[axis])
        sizes = tuple(form.shape[axis] if -form.dim() <= axis < form.dim() else None for form in tensor.forms)
        value = node_value(self._interpreter, tensor.node)
        return self._case(tensor, self.op.Gather(self.op.Shape(value), [axis]), sizes)

    def _sized(self, tensor: Tensor, size: torch.SymInt, axis: int) -> torch.SymInt:
        """Give symbols that only this tensor knows a source, so that they can be computed."""
        expression = self.metadata.symbols.expression(size)
        context = self.op.context
        unknown = [symbol for symbol in expression.free_symbols if symbol.name not in context.symbols]
        if not unknown:
            return size
        source = partial(self._read_size, tensor.node, axis, self.value(tensor), self.op.scope)
        if expression.is_Symbol:
            context.symbols[str(expression)] = source
            return size
        return self.metadata.runtime_int(source(self.op.newest))

    def _read_size(self, node: Storage | View, axis: int, value: ir.Value, scope: Any, op: OpBuilder) -> ir.Value:
        """Write a size of a tensor, which was ``value`` in the graph of ``scope``; other graphs compute it anew."""
        return axis_size(value if self.is_visible(scope) else node_value(self._interpreter, node), axis, op)

    def sizes(self, tensor: Tensor) -> list[Any]:
        """Return ``tensor.size()``."""
        return [self.size(tensor, axis) for axis in range(tensor.fake.dim())]

    def count(self, tensor: Tensor) -> Any:
        """Return ``tensor.numel()``."""
        if len(tensor.forms) > 1:
            counts = tuple(form.numel() for form in tensor.forms)
            return self._case(tensor, self.op.Size(node_value(self._interpreter, tensor.node)), counts)
        total: Any = 1
        for size in self.sizes(tensor):
            total = total * size
        return total

    def _case(self, tensor: Tensor, value: ir.Value, numbers: tuple[Any, ...]) -> Any:
        """Return a number that tells which of its possible forms a tensor has."""
        number = self.metadata.runtime_int(value)
        self.cases[str(number.node.expr)] = (tensor, numbers)
        return number
