"""What custom symbolics get in place of graph values: they ask it for its type, its node and its contents."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx_ir as ir
import torch

from onnx_ts_legacy import _torch_private as private
from onnx_ts_legacy.errors import ScriptValueError
from onnx_ts_legacy.state.values import DictRef, ListRef, Tensor, View, is_runtime
from onnxops_decomp.exporting import to_torch

__all__ = ["SymbolicNode", "SymbolicValue", "WrittenNode", "tensor_type"]


def tensor_type(dtype: torch.dtype | None, sizes: Any) -> private.TensorType:
    """Return a TorchScript tensor type; None stands for what is not known."""
    kind: Any = private.TensorType.get()
    if dtype is not None:
        kind = kind.with_dtype(dtype)
    described: private.TensorType = kind if sizes is None else kind.with_sizes(list(sizes))
    return described


class SymbolicNode:
    """The node that a value comes from, as far as custom symbolics ask for it."""

    def __init__(self, kind: str, value: Any = None, inputs: Any = (), outputs: Any = ()) -> None:
        self._kind, self._value, self._inputs, self._outputs = kind, value, list(inputs), list(outputs)

    def kind(self) -> str:
        """Return the kind, such as ``"prim::Constant"`` or ``"onnx::Relu"``."""
        return self._kind

    def inputs(self) -> list[SymbolicValue]:
        """Return the inputs; parameters and constants have none."""
        return list(self._inputs)

    def inputsSize(self) -> int:
        """Return the number of inputs."""
        return len(self.inputs())

    def inputsAt(self, index: int) -> SymbolicValue:
        """Return one of the inputs."""
        return self.inputs()[index]

    def input(self, place: int | None = None) -> SymbolicValue:
        """Return the only input, or the one at a place."""
        return _one(self.inputs(), place)

    def outputs(self) -> list[SymbolicValue]:
        """Return the outputs."""
        return list(self._outputs)

    def outputsSize(self) -> int:
        """Return the number of outputs."""
        return len(self.outputs())

    def outputsAt(self, index: int) -> SymbolicValue:
        """Return one of the outputs."""
        return self.outputs()[index]

    def output(self) -> SymbolicValue:
        """Return the only output."""
        return _one(self.outputs(), None)

    def mustBeNone(self) -> bool:
        """Tell whether the value is None."""
        return self._kind == "prim::Constant" and self._value is None

    def hasAttribute(self, name: str) -> bool:
        """Tell whether there is an attribute; a constant has ``value``."""
        return name in self.attributeNames()

    def attributeNames(self) -> list[str]:
        """Return the names of the attributes."""
        return ["value"] if "Constant" in self._kind and self._value is not None else []

    def kindOf(self, name: str) -> str:
        """Return the kind letter of an attribute."""
        value = self[name]
        kinds: dict[type, str] = {bool: "i", int: "i", float: "f", str: "s", torch.Tensor: "t"}
        return next((letter for kind, letter in kinds.items() if isinstance(value, kind)), "ival")

    def __getitem__(self, name: str) -> Any:
        if name != "value" or self._value is None:
            raise KeyError(name)
        return self._value

    def t(self, name: str) -> torch.Tensor:
        """Return a tensor attribute."""
        return torch.as_tensor(self[name])

    def i(self, name: str) -> int:
        """Return an integer attribute."""
        return int(self[name])

    def f(self, name: str) -> float:
        """Return a float attribute."""
        return float(self[name])

    def s(self, name: str) -> str:
        """Return a string attribute."""
        return str(self[name])

    def sourceRange(self) -> str:
        """Return where in the user's program the node comes from."""
        return ""

    def scopeName(self) -> str:
        """Return the module that the node comes from."""
        return ""


class WrittenNode(SymbolicNode):
    """A node of the ONNX model.

    Args:
        node: The node.
        op_type: Operator that was asked for, where an adapter wrote another one.
    """

    def __init__(self, node: ir.Node, op_type: str) -> None:
        super().__init__(f"{node.domain or 'onnx'}::{op_type or node.op_type}")
        self._node = node

    def inputs(self) -> list[SymbolicValue]:
        """Return the operands; omitted ones are None values."""
        return [SymbolicValue(value) for value in self._node.inputs]

    def outputs(self) -> list[SymbolicValue]:
        """Return the outputs."""
        return [SymbolicValue(value) for value in self._node.outputs]

    def attributeNames(self) -> list[str]:
        """Return the names of the attributes."""
        return list(self._node.attributes)

    def kindOf(self, name: str) -> str:
        """Return the kind letter of an attribute."""
        return _KINDS.get(self._attribute(name).type, "ival")

    def __getitem__(self, name: str) -> Any:
        value = self._attribute(name).value
        return torch.from_numpy(np.array(value.numpy())) if isinstance(value, ir.TensorProtocol) else value

    def _attribute(self, name: str) -> ir.Attr:
        return self._node.attributes[name]

    def sourceRange(self) -> str:
        """Return where in the user's program the node comes from."""
        return self._node.metadata_props.get("onnxops.source", "")

    def scopeName(self) -> str:
        """Return the module that the node comes from."""
        return self._node.metadata_props.get("onnxops.module", "")


_KINDS = {
    ir.AttributeType.INT: "i",
    ir.AttributeType.FLOAT: "f",
    ir.AttributeType.STRING: "s",
    ir.AttributeType.TENSOR: "t",
    ir.AttributeType.GRAPH: "g",
    ir.AttributeType.INTS: "is",
    ir.AttributeType.FLOATS: "fs",
    ir.AttributeType.STRINGS: "ss",
    ir.AttributeType.TENSORS: "ts",
}


def _one(values: list[SymbolicValue], place: int | None) -> SymbolicValue:
    if place is not None:
        return values[place]
    if len(values) != 1:
        raise ScriptValueError(f"The node has {len(values)} values here, not one.")
    return values[0]


class SymbolicValue:
    """An input or result of a custom symbolic.

    Attributes:
        variable: What it stands for in the program: a tensor variable, a list, or a Python value; for results of
            ``g.op`` an ONNX value.
    """

    def __init__(self, variable: Any, op_type: str = "", static: Any = None) -> None:
        self.variable = variable
        self._op_type, self._static = op_type, static
        self._type: Any = None

    def node(self) -> SymbolicNode:
        """Return the node that the value comes from."""
        variable = self.variable
        if isinstance(variable, ListRef):
            items = [SymbolicValue(item) for item in variable.items]
            numbers = bool(items) and all(isinstance(item, bool | int | float) for item in variable.items)
            value = torch.tensor(variable.items) if numbers else None
            return SymbolicNode("prim::ListConstruct", value, items, [self])
        if isinstance(variable, tuple):
            items = [SymbolicValue(item) for item in variable]
            return SymbolicNode("prim::TupleConstruct", inputs=items, outputs=[self])
        if self._static is not None:
            return SymbolicNode("onnx::Constant", self._static, outputs=[self])
        written = self._written()
        producer = None if written is None else written.producer()
        if producer is not None:
            return WrittenNode(producer, self._op_type)
        if isinstance(variable, ir.Value | Tensor | DictRef) or is_runtime(variable):
            return SymbolicNode(f"onnx::{self._op_type}" if self._op_type else "prim::Param", outputs=[self])
        if isinstance(variable, bool | int | float):
            # Numbers of the program are constants of the model, as what g.op makes of them is.
            return SymbolicNode("onnx::Constant", torch.tensor(variable), outputs=[self])
        return SymbolicNode("prim::Constant", variable, outputs=[self])

    def _written(self) -> ir.Value | None:
        """Return the ONNX value, if it is one already: not for views, lists and Python values."""
        value = self.variable
        if isinstance(value, Tensor) and not isinstance(value.node, View):
            value = value.storage.state.value
        return value if isinstance(value, ir.Value) else None

    def type(self) -> Any:
        """Return the TorchScript type."""
        return self._type if self._type is not None else self._own_type()

    def _own_type(self) -> Any:
        variable = self.variable
        if isinstance(variable, Tensor):
            fake = variable.fake
            return tensor_type(fake.dtype, [size if isinstance(size, int) else None for size in fake.shape])
        if isinstance(variable, ir.Value) and isinstance(variable.type, ir.SequenceType):
            return private.ListType(tensor_type(None if variable.dtype is None else to_torch(variable.dtype), None))
        if isinstance(variable, ir.Value):
            dtype = None if variable.dtype is None else to_torch(variable.dtype)
            sizes = None if variable.shape is None else [d if isinstance(d, int) else None for d in variable.shape.dims]
            return tensor_type(dtype, sizes)
        if isinstance(variable, ListRef):
            element = SymbolicValue(variable.items[0]).type() if variable.items else private.TensorType.get()
            return private.ListType(element)
        kinds: dict[type, Any] = {
            bool: private.BoolType,
            int: private.IntType,
            torch.SymInt: private.IntType,
            float: private.FloatType,
            str: private.StringType,
        }
        found = next((kind for python, kind in kinds.items() if isinstance(variable, python)), private.NoneType)
        return found.get()

    def setType(self, kind: Any) -> SymbolicValue:
        """Declare the type of a result; its dtype and sizes are taken over."""
        self._type = kind
        if isinstance(self.variable, ir.Value) and kind.kind() == "TensorType":
            _declare(self.variable, kind)
        return self

    def setTypeAs(self, other: SymbolicValue) -> SymbolicValue:
        """Declare that the value has the type of another one."""
        return self.setType(other.type())

    def inferTypeFrom(self, tensor: torch.Tensor) -> None:
        """Declare the dtype and sizes of a result by an example."""
        self.setType(tensor_type(tensor.dtype, list(tensor.shape)))

    def toIValue(self) -> Any:
        """Return the Python value of a constant, or None."""
        if isinstance(self.variable, bool | int | float):
            return self.variable
        node = self.node()
        return node["value"] if "Constant" in node.kind() and node.hasAttribute("value") else None

    def isCompleteTensor(self) -> bool:
        """Tell whether dtype and all sizes are known."""
        kind = self.type()
        return kind.kind() == "TensorType" and kind.sizes() is not None and kind.dtype() is not None

    def debugName(self) -> str:
        """Return the name in the model; views, lists and Python values have none."""
        value = self._written()
        return "" if value is None else str(value.name)

    def setDebugName(self, name: str) -> SymbolicValue:
        """Kept for compatibility: names of values are those of the model's interface, or made up."""
        return self

    def unique(self) -> int:
        """Return a number that tells the value from others."""
        return id(self.variable)

    def requires_grad(self) -> bool:
        """Return False: exported values have no gradients."""
        return False

    requiresGrad = requires_grad

    @property
    def static(self) -> Any:
        """Contents of a constant that was made by ``g.op``, or None."""
        return self._static


def _declare(value: ir.Value, kind: Any) -> None:
    from onnxops_decomp.exporting import to_ir

    dtype = kind.dtype()
    if dtype is not None and value.dtype is None:
        value.type = ir.TensorType(to_ir(dtype))
    sizes = kind.varyingSizes() if hasattr(kind, "varyingSizes") else kind.sizes()
    if sizes is not None and value.shape is None:
        value.shape = ir.Shape(sizes)
