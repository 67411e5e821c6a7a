"""Products with matrices that are stored as integers, by ONNX Runtime's ``MatMulNBits``.

Specified in https://github.com/microsoft/onnxruntime/blob/main/docs/ContribOperators.md#com.microsoft.MatMulNBits
"""

from __future__ import annotations

import dataclasses
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx_ir as ir

from onnxops_decomp.errors import LoweringError
from onnxops_decomp.passes.derived import DerivedTensor
from onnxops_decomp.passes.matching import dims, operand, producer, replace_outputs, sweep
from onnxops_decomp.runtimes.onnxruntime.domain import DOMAIN, DTYPES, VERSION
from onnxops_decomp.runtimes.onnxruntime.kernel_gaps import refusal
from onnxops_decomp.spec.traits import Trait, has_trait

__all__ = ["FuseQuantizedProducts"]

Array = npt.NDArray[Any]

_SMALLEST_BLOCK, _LARGEST_BLOCK = 16, 128
_SIGNED = frozenset((ir.DataType.INT4, ir.DataType.INT8))
_UNSIGNED = frozenset((ir.DataType.UINT4, ir.DataType.UINT8))
# Where the bias stands among the operands.
_BIAS = 5


@dataclasses.dataclass(frozen=True)
class _Quantized:
    """A matrix (rows, columns): ``(numbers - zeros) * scales``, with a zero and a scale for each group of columns."""

    numbers: ir.Value
    scales: ir.Value
    zeros: ir.Value | None
    rows: int
    columns: int
    groups: int

    @property
    def offset(self) -> int:
        """What is added to numbers of four bits that have a sign; those of eight get 16 times as much."""
        return 8 if self.numbers.dtype in _SIGNED else 0

    @property
    def block(self) -> int | None:
        """How many columns of a row share a scale in the operator, or None if it does not take so few."""
        size = self.columns // self.groups
        if self.groups == 1:
            return min(_LARGEST_BLOCK, max(_SMALLEST_BLOCK, 1 << (self.columns - 1).bit_length()))
        power = min(_LARGEST_BLOCK, size & -size)
        return power if power >= _SMALLEST_BLOCK else None


class FuseQuantizedProducts(ir.passes.InPlacePass):
    """Multiplies by stored integers of four or eight bits, which the operator turns into floats block by block.

    The integers are packed when they are read. Their number of bits is that of the values at hand; weights that are put
    in later have to fit it.
    """

    def call(self, model: ir.Model) -> ir.passes.PassResult:
        """Run the pass on the main graph."""
        modified = False
        for node in list(model.graph):
            if node.domain == "" and node.op_type in ("MatMul", "Gemm"):
                modified |= self._fuse(model.graph, node)
        if modified:
            model.graph.opset_imports[DOMAIN] = VERSION
        return ir.passes.PassResult(model, modified)

    def _fuse(self, graph: ir.Graph, node: ir.Node) -> bool:
        x, weight, bias = operand(node, 0), _rows_first(node), operand(node, 2)
        matrix = None if weight is None else _quantized(weight)
        if x is None or x.dtype not in DTYPES or matrix is None or matrix.scales.dtype != x.dtype:
            return False
        if bias is not None and dims(bias) != (matrix.rows,):
            return False
        block, bits = matrix.block, _bits(matrix)
        if block is None or bits is None or not dims(x) or refusal(DOMAIN, "MatMulNBits", (), {"bits": bits}):
            return False
        names = ("K", "N", "bits", "block_size")
        sizes = (matrix.columns, matrix.rows, bits, block)
        attributes = [ir.AttrInt64(name, value) for name, value in zip(names, sizes, strict=True)]
        inputs = [x, *_operands(graph, matrix, block, bits)]
        if bias is not None:
            inputs = [*inputs, *[None] * (_BIAS - len(inputs)), bias]
        new = ir.Node(DOMAIN, "MatMulNBits", inputs, attributes, num_outputs=1, version=None)
        replace_outputs(node, new, {0: node.outputs[0]})
        sweep(node)
        return True


def _rows_first(node: ir.Node) -> ir.Value | None:
    """Return the matrix (N, K) whose transpose a product multiplies by, or None."""
    attributes = node.attributes
    factors = attributes.get_float("alpha", 1.0), attributes.get_float("beta", 1.0)
    if factors != (1.0, 1.0) or attributes.get_int("transA", 0) != 0:
        return None
    if attributes.get_int("transB", 0) != 0:
        return operand(node, 1)
    turned = producer(operand(node, 1), "Transpose")
    if turned is None or tuple(turned.attributes.get_ints("perm", ())) != (1, 0):
        return None
    return operand(turned, 0)


def _quantized(weight: ir.Value) -> _Quantized | None:
    """Find the stored numbers that a matrix is computed of."""
    shape = dims(weight)
    if shape is None or len(shape) != 2 or not all(isinstance(dim, int) and dim > 0 for dim in shape):
        return None
    rows, columns = (dim for dim in shape if isinstance(dim, int))
    found = _dequantized(weight) or _spelt_out(weight)
    if found is None:
        return None
    (numbers, scales, zeros), groups = found
    if numbers is None or scales is None or numbers.dtype not in _SIGNED | _UNSIGNED:
        return None
    sizes = [numbers, scales, *([zeros] if zeros is not None else [])]
    if columns % groups or [_size(value) for value in sizes] != [rows * columns, *[rows * groups] * (len(sizes) - 1)]:
        return None
    return _Quantized(numbers, scales, zeros, rows, columns, groups)


_Parts = tuple[tuple[ir.Value | None, ir.Value | None, ir.Value | None], int]


def _dequantized(weight: ir.Value) -> _Parts | None:
    """Read ``DequantizeLinear`` along rows, or in blocks of columns."""
    node = producer(weight, "DequantizeLinear")
    scale = None if node is None else operand(node, 1)
    by = dims(scale)
    if node is None or by is None:
        return None
    axis, block = node.attributes.get_int("axis", 1) % 2, node.attributes.get_int("block_size", 0)
    columns = (dims(weight) or (0, 0))[1]
    blocks = axis == 1 and len(by) == 2 and isinstance(by[1], int) and block and columns == by[1] * block
    if not blocks and (axis != 0 or len(by) != 1 or block):
        return None
    zeros = operand(node, 2)
    stored = _stored(operand(node, 0)), _stored(scale), _stored(zeros)
    if zeros is not None and stored[2] is None:
        return None
    return stored, int(by[1]) if blocks and isinstance(by[1], int) else 1


def _spelt_out(weight: ir.Value) -> _Parts | None:
    """Read ``(numbers - zeros) * scales`` of (N, K), or of (N, groups, K / groups) that is made one again."""
    joined = producer(weight, "Reshape")
    product = producer(operand(joined, 0) if joined is not None else weight, "Mul")
    for index in (0, 1) if product is not None else ():
        assert product is not None
        shape, scale = dims(product.outputs[0]), operand(product, 1 - index)
        if shape is None or dims(scale) != (*shape[:-1], 1) or len(shape) not in (2, 3):
            continue
        difference, zeros = producer(operand(product, index), "Sub"), None
        numbers = operand(product, index) if difference is None else operand(difference, 0)
        if difference is not None:
            zeros = _stored(operand(difference, 1), casts=True)
            if zeros is None or dims(operand(difference, 1)) != (*shape[:-1], 1):
                continue
        stored = _stored(numbers, casts=True)
        same = dims(numbers) == shape and shape[0] == (dims(weight) or (None,))[0]
        groups = 1 if len(shape) == 2 else shape[1]
        if stored is not None and same and isinstance(groups, int):
            return (stored, _stored(scale), zeros), groups
    return None


def _stored(value: ir.Value | None, *, casts: bool = False) -> ir.Value | None:
    """Return the weight whose elements a value has, in their order; from integers to floats where ``casts`` allows."""
    while value is not None and (node := value.producer()) is not None:
        is_cast = casts and node.op_type == "Cast" and not node.domain
        if not is_cast and not has_trait(node.op_type, Trait.RESHAPES, node.domain):
            return None
        value = operand(node, 0)
    if value is None or not value.is_initializer() or value.is_graph_input() or value.const_value is None:
        return None
    # A cast of what is stored as floats may round.
    return None if casts and value.dtype not in _SIGNED | _UNSIGNED else value


def _size(value: ir.Value) -> int:
    assert value.const_value is not None
    return value.const_value.size


def _bits(matrix: _Quantized) -> int | None:
    """Return how many bits the numbers and their zeros need, or None if they are not there to be read."""
    if matrix.zeros is not None and matrix.zeros.dtype not in (_SIGNED if matrix.offset else _UNSIGNED):
        return None
    tensors = [value.const_value for value in (matrix.numbers, matrix.zeros) if value is not None]
    try:
        arrays = [_integers(tensor.numpy()) for tensor in tensors if tensor is not None]
    except (RuntimeError, TypeError):
        # The weights of a model that was never allocated.
        return None
    low, high = min(array.min() for array in arrays), max(array.max() for array in arrays)
    return 4 if low >= -matrix.offset and high < 16 - matrix.offset else 8


def _operands(graph: ir.Graph, matrix: _Quantized, block: int, bits: int) -> list[ir.Value | None]:
    """Return the numbers, scales and zeros in the operator's layout, each of which is computed when it is read."""
    blocks = -(-matrix.columns // block)
    offset = matrix.offset * (1 if bits == 4 else 16)
    per_byte = 8 // bits
    copies = blocks // matrix.groups
    numbers = partial(_packed_numbers, (matrix.rows, matrix.columns, block), offset, bits)
    scales = partial(_spread, (matrix.rows, matrix.groups), copies)
    result: list[ir.Value | None] = [
        _weight(graph, matrix.numbers, "packed", numbers, ir.DataType.UINT8, (matrix.rows, blocks, block // per_byte)),
        _weight(graph, matrix.scales, "blocks", scales, matrix.scales.dtype, (matrix.rows, blocks)),
    ]
    shape = (matrix.rows, -(-blocks // per_byte))
    if matrix.zeros is not None:
        zeros = partial(_packed_zeros, (matrix.rows, matrix.groups), copies, offset, bits)
        result.append(_weight(graph, matrix.zeros, "packed", zeros, ir.DataType.UINT8, shape))
    elif not matrix.offset:
        # The operator's own zero is in the middle.
        result.append(_weight(graph, matrix.numbers, "zeros", lambda _: np.zeros(shape), ir.DataType.UINT8, shape))
    return result


def _weight(
    graph: ir.Graph, source: ir.Value, suffix: str, derive: Any, dtype: ir.DataType | None, shape: tuple[int, ...]
) -> ir.Value:
    """Return the initializer that holds what is derived of another one; several products may share it."""
    assert source.const_value is not None
    assert dtype is not None
    name = f"{source.name}.{suffix}_{'x'.join(map(str, shape))}"
    if name not in graph.initializers:
        tensor = DerivedTensor(derive, [source.const_value], name=name, dtype=dtype, shape=ir.Shape(shape))
        graph.initializers.add(
            ir.Value(name=name, type=ir.TensorType(dtype), shape=ir.Shape(shape), const_value=tensor)
        )
    return graph.initializers[name]


def _integers(array: Array) -> Array:
    return np.asarray(array).astype(np.int16)


def _unsigned(array: Array, offset: int, bits: int) -> Array:
    shifted: Array = _integers(array) + offset
    if shifted.size and (shifted.min() < 0 or shifted.max() >= 1 << bits):
        raise LoweringError(
            f"A quantized weight needs integers from {shifted.min() - offset} to {shifted.max() - offset}, but "
            f"those of the exported model have {bits} bits. Export the model again with these weights."
        )
    return shifted.astype(np.uint8)


def _packed(numbers: Array, bits: int) -> Array:
    """Pack the numbers of the last axis into bytes, the first one in the low bits."""
    if bits == 8:
        return numbers
    pairs = np.pad(numbers, [*[(0, 0)] * (numbers.ndim - 1), (0, numbers.shape[-1] % 2)])
    packed: Array = pairs[..., 0::2] | pairs[..., 1::2] << 4
    return packed


def _packed_numbers(sizes: tuple[int, int, int], offset: int, bits: int, array: Array) -> Array:
    rows, columns, block = sizes
    numbers = _unsigned(array, offset, bits).reshape(rows, columns)
    whole = np.pad(numbers, [(0, 0), (0, -columns % block)])
    return _packed(whole.reshape(rows, -1, block), bits)


def _spread(shape: tuple[int, int], copies: int, array: Array) -> Array:
    return np.repeat(array.reshape(shape), copies, axis=1)


def _packed_zeros(shape: tuple[int, int], copies: int, offset: int, bits: int, array: Array) -> Array:
    return _packed(_spread(shape, copies, _unsigned(array, offset, bits)), bits)
