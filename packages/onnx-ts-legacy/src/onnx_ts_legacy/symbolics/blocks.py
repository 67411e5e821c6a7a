"""If and Loop nodes of custom symbolics, whose blocks are written after the call that asks for the node."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

import onnx_ir as ir

from onnx_ts_legacy.errors import ScriptValueError
from onnx_ts_legacy.symbolics.values import SymbolicNode, SymbolicValue
from onnxops_decomp import OpBuilder, UnsupportedOpsetError

__all__ = ["BLOCKS", "BlockNode"]

# Attributes that hold the blocks, in the order in which symbolics write them.
BLOCKS = {"If": ("then_branch", "else_branch"), "Loop": ("body",)}
# What a Loop passes to its body, and gets from it, beside the carried values.
_COUNT_AND_CONDITION = 2
_CONDITION = 1
_SEQUENCES_OPSET = 11


class Writer(Protocol):
    """What a block is written with.

    Attributes:
        builder: Builder of the block's graph.
        inputs: Inputs of the block.
        outputs: Outputs of the block.
    """

    builder: OpBuilder
    inputs: list[SymbolicValue]
    outputs: list[ir.Value]

    def nested(self, owner: BlockNode) -> Writer:
        """Return what writes to a new block of a node."""

    def value(self, argument: Any) -> ir.Value | None:
        """Return the ONNX value of an argument."""


class BlockNode(SymbolicNode):
    """An If or Loop that is emitted as soon as its blocks have all their outputs.

    Args:
        g: Context that the node is written in.
        op_type: ``"If"`` or ``"Loop"``.
        inputs: Operands.
        outputs: How many outputs are wanted.
    """

    def __init__(self, g: Writer, op_type: str, inputs: Sequence[ir.Value | None], outputs: int) -> None:
        super().__init__(f"onnx::{op_type}", inputs=[SymbolicValue(value) for value in inputs])
        self._g, self._op_type, self._operands = g, op_type, list(inputs)
        self._results = [_BlockOutput(self) for _ in range(outputs)]
        self._blocks: list[Writer] = []
        self._emitted = False

    def outputs(self) -> list[SymbolicValue]:
        """Return the outputs."""
        return list(self._results)

    def blocks(self) -> list[Writer]:
        """Return the blocks."""
        return list(self._blocks)

    def addBlock(self) -> Writer:
        """Add a block and return the context that writes to it.

        Raises:
            ScriptValueError: If the node has all its blocks.
        """
        if len(self._blocks) == len(BLOCKS[self._op_type]):
            raise ScriptValueError(f"{self._op_type} has no more than {len(self._blocks)} block(s).")
        self._blocks.append(self._g.nested(self))
        return self._blocks[-1]

    def add_input(self, block: Writer) -> SymbolicValue:
        """Add the next input of a Loop's body, in the type of the operand that it starts with.

        Raises:
            ScriptValueError: If there is no such operand.
        """
        index = len(block.inputs)
        if self._op_type != "Loop" or index >= max(len(self._operands), _COUNT_AND_CONDITION):
            raise ScriptValueError(f"The block of {self._op_type} has no more than {index} input(s).")
        if index < _COUNT_AND_CONDITION:
            dtype = (ir.DataType.INT64, ir.DataType.BOOL)[index]
            value = block.builder.input(("iteration", "condition")[index], dtype, ())
        else:
            operand = self._operands[index]
            value = block.builder.input("carried", None, None)
            if operand is not None:
                value.type = operand.type
                value.shape = None if operand.shape is None else ir.Shape([None] * len(operand.shape))
        block.inputs.append(SymbolicValue(value))
        return block.inputs[-1]

    def add_output(self, block: Writer, value: Any) -> int:
        """Add the next output of a block and return its place; the last one makes the node complete.

        Raises:
            ScriptValueError: If the block has all its outputs.
        """
        wanted = self._wanted()
        if len(block.outputs) == wanted:
            raise ScriptValueError(f"The blocks of this {self._op_type} have {wanted} output(s).")
        output = block.value(value)
        if output is None:
            raise ScriptValueError(f"An output of a block of {self._op_type} is None.")
        block.outputs.append(output)
        full = len(self._blocks) == len(BLOCKS[self._op_type])
        if full and all(len(filled.outputs) == wanted for filled in self._blocks):
            self._emit()
        return len(block.outputs) - 1

    def require_emitted(self) -> None:
        """Raise an error if the node is not complete.

        Raises:
            ScriptValueError: If blocks or their outputs are missing.
        """
        if not self._emitted:
            count = ", ".join(str(len(block.outputs)) for block in self._blocks) or "no blocks"
            raise ScriptValueError(
                f"{self._op_type} is used before its blocks are complete: it needs {len(BLOCKS[self._op_type])} "
                f"block(s) of {self._wanted()} output(s), got {count}."
            )

    def _wanted(self) -> int:
        return len(self._results) + (_CONDITION if self._op_type == "Loop" else 0)

    def _emit(self) -> None:
        op = self._g.builder
        if self._op_type == "Loop":
            while len(self._blocks[0].inputs) < max(len(self._operands), _COUNT_AND_CONDITION):
                self.add_input(self._blocks[0])
        types = [self._type_of(index) for index in range(len(self._results))]
        if any(isinstance(kind, ir.SequenceType) for kind, _ in types) and op.opset < _SEQUENCES_OPSET:
            raise UnsupportedOpsetError("Sequence types", op.opset, lowest=_SEQUENCES_OPSET)
        graphs = {
            name: block.builder.graph([_own(block, value) for value in block.outputs], name=op.context.names.new(name))
            for name, block in zip(BLOCKS[self._op_type], self._blocks, strict=True)
        }
        values = op.emit_custom("", self._op_type, self._operands, graphs, [None] * len(types))
        for result, value, (kind, shape) in zip(self._results, values, types, strict=True):
            value.type, value.shape = kind, shape
            result.value = value
        self._emitted = True

    def _type_of(self, index: int) -> tuple[ir.TypeProtocol | None, ir.Shape | None]:
        """Return the type and the shape of an output.

        Raises:
            ScriptValueError: If the blocks give different types.
        """
        if self._op_type == "If":
            sides = [block.outputs[index] for block in self._blocks]
            if None not in (sides[0].type, sides[1].type) and sides[0].type != sides[1].type:
                raise ScriptValueError(f"The branches of an If give {sides[0].type} and {sides[1].type}.")
            return sides[0].type or sides[1].type, _common(sides[0].shape, sides[1].shape)
        given = self._blocks[0].outputs[index + _CONDITION]
        place = index + _COUNT_AND_CONDITION
        if place >= len(self._operands):
            return given.type, None if given.shape is None else ir.Shape([None, *given.shape])
        operand = self._operands[place]
        if operand is None or (None not in (operand.type, given.type) and operand.type != given.type):
            raise ScriptValueError(
                f"A Loop starts with {None if operand is None else operand.type} and goes on with {given.type}."
            )
        if operand.shape is not None and given.shape is not None and len(operand.shape) != len(given.shape):
            raise ScriptValueError(
                f"A Loop starts with a value of rank {len(operand.shape)} and goes on with one of {len(given.shape)}."
            )
        return operand.type or given.type, _common(operand.shape, given.shape)


class _BlockOutput(SymbolicValue):
    """An output of a node whose blocks may still be written."""

    def __init__(self, node: BlockNode) -> None:
        self._node = node
        self.value: ir.Value | None = None
        super().__init__(None)

    @property
    def variable(self) -> Any:
        """The ONNX value, once there is one."""
        self._node.require_emitted()
        return self.value

    @variable.setter
    def variable(self, variable: Any) -> None:
        assert variable is None

    def node(self) -> BlockNode:
        """Return the node that the value comes from."""
        return self._node


def _own(block: Writer, value: ir.Value) -> ir.Value:
    """Return an output that the block's graph makes itself, as those of ONNX's bodies have to be."""
    return block.builder.copy(value) if value.producer() is None else value


def _common(a: ir.Shape | None, b: ir.Shape | None) -> ir.Shape | None:
    """Return the shape that covers both; what differs is unknown."""
    if a is None or b is None or len(a) != len(b):
        return None
    return ir.Shape([x if isinstance(x, int) and x == y else None for x, y in zip(a, b, strict=True)])
