"""Attention by ONNX Runtime's own operators, below the opset that has ONNX's Attention."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any, NamedTuple

import onnx_ir as ir

from onnxops_decomp.passes.heads import unrepeated
from onnxops_decomp.passes.matching import operand, producer
from onnxops_decomp.runtimes.onnxruntime.domain import DOMAIN, DTYPES, VERSION, emit
from onnxops_decomp.spec.inference import Dims, dims_of, same_dim

if TYPE_CHECKING:
    from onnxops_decomp.builder.op_builder import OpBuilder

__all__ = ["JOINED_CACHE", "attention"]

# From here on ONNX has Attention, whose kernel is as fast and takes grouped heads and caches.
_ATTENTION_OPSET = 23
_HEADS_OUT = (0, 2, 1, 3)
# GroupQueryAttention refuses heads of other widths.
_WIDTH_STEP = 8

# Key in the ``meta`` of a cache that an operator gives, of the value that the model joins of its parts.
JOINED_CACHE = "onnxops_decomp.joined_cache"


class _Call(NamedTuple):
    """Attention of (B, N, S, D) heads, as ONNX has it."""

    query: ir.Value
    key: ir.Value
    value: ir.Value
    mask: ir.Value | None
    is_causal: int
    scale: float | None


def attention(
    op: OpBuilder,
    Q: ir.Value,
    K: ir.Value,
    V: ir.Value,
    attn_mask: ir.Value | None = None,
    *,
    is_causal: int = 0,
    scale: float | None = None,
    **others: Any,
) -> ir.Value | None:
    """``GroupQueryAttention`` or ``MultiHeadAttention`` of (B, N, S, D) heads."""
    if op.opset >= _ATTENTION_OPSET or Q.dtype not in DTYPES or others:
        return None
    shapes = [dims_of(value) for value in (Q, K, V)]
    if any(shape is None or len(shape) != 4 for shape in shapes):
        return None
    call = _Call(Q, K, V, attn_mask, is_causal, scale)
    found = _grouped_queries(op, call)
    return _heads_alike(op, call) if found is None else found


def _heads_alike(op: OpBuilder, call: _Call) -> ir.Value | None:
    """``MultiHeadAttention`` of as many keys and values as queries.

    Masks of numbers are left alone: whether they have rows that let nothing through is known only at run time.
    """
    query, key, value, mask, is_causal, scale = call
    q, k = _dims(query), _dims(key)
    if not _have_equal_heads([q, k, _dims(value)]):
        return None
    if mask is not None and (is_causal or not _is_mask(mask, q, k)):
        return None
    if is_causal and not same_dim(q[2], k[2]):
        # With fewer queries than keys, the last ones are meant here and the first ones in torch.
        return None
    flat = [_flat(op, x) for x in (query, key, value)]
    attributes = {"num_heads": q[1], "unidirectional": int(is_causal), "scale": scale}
    inputs = [*flat, None, None, _bias(op, mask, query)]
    result = emit(op, "MultiHeadAttention", inputs, attributes, dims_of(flat[0]))
    return _heads_of(op, _without_hidden_rows(op, result, mask), q)


@dataclasses.dataclass(frozen=True)
class _Cache:
    """Keys or values of earlier steps, and those of this one behind them."""

    past: ir.Value
    present: ir.Value
    joined: ir.Value

    @classmethod
    def of(cls, value: ir.Value) -> _Cache | None:
        """Find the parts of (B, G, T, D) keys or values; those of this step are one for each head."""
        node = producer(value, "Concat")
        if node is None or len(node.inputs) != 2 or node.attributes.get_int("axis", 0) not in (2, -2):
            return None
        past, present = operand(node, 0), operand(node, 1)
        before, after = dims_of(past), dims_of(present)
        if past is None or present is None or before is None or after is None or len(before) != 4 or after[2] != 1:
            return None
        return cls(past, present, value)


def _grouped_queries(op: OpBuilder, call: _Call) -> ir.Value | None:
    """``GroupQueryAttention`` of queries that share keys and values, or of one query and a cache.

    The operator is causal, the last query seeing all keys. Without a cache that is what ``is_causal`` says where there
    are as many keys as queries; with one it says nothing for the one query of a step. For several queries and a cache
    the CPU's kernel takes a batch of one only.
    """
    query, key, value, mask, is_causal, scale = call
    plain = unrepeated(key), unrepeated(value)
    if plain[0] is not None and plain[1] is not None:
        key, value = plain[0], plain[1]
    q, k, v = _dims(query), _dims(key), _dims(value)
    if not _have_groups(q, k, v):
        return None
    keys, values = _Cache.of(key), _Cache.of(value)
    if q[2] == 1 and not is_causal and keys is not None and values is not None:
        if mask is not None and not _is_mask(mask, q, k):
            return None
        return _step(op, query, keys, values, mask, scale)
    if is_causal and mask is None and same_dim(q[2], k[2]) and q[1] != k[1]:
        inputs: list[ir.Value | None] = [*(_flat(op, x) for x in (query, key, value)), None, None]
        result, *_ = _emit_grouped(op, query, inputs, key, None, scale)
        return _heads_of(op, result, q)
    return None


def _step(
    op: OpBuilder, query: ir.Value, keys: _Cache, values: _Cache, mask: ir.Value | None, scale: float | None
) -> ir.Value:
    """One query for each head, with the cache as the operator's own."""
    flat = [_flat(op, x) for x in (query, keys.present, values.present)]
    result, *joined = _emit_grouped(op, query, [*flat, keys.past, values.past], keys.joined, mask, scale)
    for present, cache in zip(joined, (keys, values), strict=True):
        present.meta[JOINED_CACHE] = cache.joined
    return _heads_of(op, _without_hidden_rows(op, result, mask), _dims(query))


def _emit_grouped(
    op: OpBuilder,
    query: ir.Value,
    inputs: list[ir.Value | None],
    key: ir.Value,
    mask: ir.Value | None,
    scale: float | None,
) -> tuple[ir.Value, ...]:
    """Emit the operator for (B, H, S, D) queries and (B, G, T, D) keys, all of which are in use."""
    int32 = ir.DataType.INT32
    q, k = _dims(query), _dims(key)
    batch, total = op.size(query, 0), op.size(key, 2)
    last = op.number(op.size_sub(total, 1), int32)
    lengths = [op.expand(op.Reshape(last, [1]), [batch]), op.number(total, int32)]
    bias = _bias(op, mask, query)
    attributes = {"num_heads": q[1], "kv_num_heads": k[1], "scale": scale}
    inputs = [*inputs, *lengths, *([None, None, None, bias] if bias is not None else [])]
    flat = dims_of(inputs[0])
    dtypes = [query.dtype] * 3
    return op.emit_custom(
        DOMAIN, "GroupQueryAttention", inputs, attributes, dtypes, version=VERSION, shapes=[flat, k, k]
    )


def _dims(value: ir.Value) -> Dims:
    dims = dims_of(value)
    assert dims is not None
    return dims


def _flat(op: OpBuilder, x: ir.Value) -> ir.Value:
    """Bring (B, N, S, D) to (B, S, N * D)."""
    dims = _dims(x)
    result: ir.Value = op.Reshape(op.Transpose(x, perm=_HEADS_OUT), [0, 0, dims[1] * dims[3]])
    return result


def _heads_of(op: OpBuilder, flat: ir.Value, query: Dims) -> ir.Value:
    """Bring (B, S, N * D) to (B, N, S, D)."""
    result: ir.Value = op.Transpose(op.Reshape(flat, [0, 0, query[1], query[3]]), perm=_HEADS_OUT)
    return result


def _bias(op: OpBuilder, mask: ir.Value | None, query: ir.Value) -> ir.Value | None:
    """Return a boolean mask as numbers that are added."""
    if mask is None or query.dtype is None:
        return None
    lowest = op.constant(ir.DataType(query.dtype).min, query.dtype)
    result: ir.Value = op.Where(mask, op.constant(0.0, query.dtype), lowest)
    return result


def _without_hidden_rows(op: OpBuilder, flat: ir.Value, mask: ir.Value | None) -> ir.Value:
    """Give a query that may see no key zeros, as torch does, where the operator has a mean of all values."""
    if mask is None:
        return flat
    seen = op.Squeeze(op.cast(op.ReduceMax(op.cast(mask, ir.DataType.INT32), [-1]), ir.DataType.BOOL), [1])
    result: ir.Value = op.Where(seen, flat, op.constant(0.0, flat.dtype))
    return result


def _is_static(*dims: int | ir.SymbolicDim) -> bool:
    return all(isinstance(dim, int) and dim > 0 for dim in dims)


def _have_equal_heads(shapes: list[Dims]) -> bool:
    """Tell whether query, key and value have the same batch, and heads of the same static number and width."""
    first = shapes[0]
    return _is_static(first[1], first[3]) and all(
        same_dim(shape[0], first[0]) and shape[1] == first[1] and shape[3] == first[3] for shape in shapes
    )


def _have_groups(query: Dims, key: Dims, value: Dims) -> bool:
    """Tell whether the queries of each key are a whole number, and the heads of a width that the operator takes."""
    if not _is_static(query[1], query[3], key[1]) or not all(map(same_dim, key, value)):
        return False
    heads, groups, width = query[1], key[1], query[3]
    assert isinstance(heads, int)
    assert isinstance(groups, int)
    assert isinstance(width, int)
    fits = heads % groups == 0 and width % _WIDTH_STEP == 0
    return fits and key[3] == width and same_dim(query[0], key[0])


def _is_mask(mask: ir.Value, query: Dims, key: Dims) -> bool:
    """Tell whether a mask is boolean and has the shape (1 or B, 1, S, T)."""
    dims = dims_of(mask)
    return (
        mask.dtype == ir.DataType.BOOL
        and dims is not None
        and len(dims) == 4
        and (dims[0] == 1 or same_dim(dims[0], query[0]))
        and dims[1] == 1
        and same_dim(dims[2], query[2])
        and same_dim(dims[3], key[2])
    )
