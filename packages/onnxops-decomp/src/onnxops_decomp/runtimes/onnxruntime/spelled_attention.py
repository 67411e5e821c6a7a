"""Attention read off a graph, as an operator or spelled out: products, a soft cap, masks and sinks around a Softmax."""

from __future__ import annotations

import dataclasses

import numpy as np
import onnx_ir as ir

from onnxops_decomp.passes.heads import unrepeated
from onnxops_decomp.passes.matching import constant, dims, operand, producer, sole_user
from onnxops_decomp.runtimes.onnxruntime.domain import DOMAIN

__all__ = ["Attention", "read_attention"]

# What a mask adds where it hides a key is below this, whatever the dtype.
_HIDES = -1e4
_PRECISIONS = {ir.DataType.FLOAT, ir.DataType.FLOAT16}
_KNOWN = ("scale", "softcap", "is_causal")


@dataclasses.dataclass(frozen=True)
class Attention:
    """``softmax(cap(query @ keys.T * scale) + added) @ values`` where a condition holds, with sinks beside the scores.

    Attributes:
        node: What gives the heads (B, N, S, D).
        query: The queries (B, N, S, D).
        key: The keys (B, G, T, D).
        value: The values (B, G, T, D).
        allowed: Condition under which a query sees a key, broadcast to (B, N, S, T).
        scale: What the products are multiplied by.
        softcap: Bound of the scaled products, or 0.
        added: What is added to them, each with its factor.
        sinks: A score for each head (N,) that takes its share and has no value, or None.
    """

    node: ir.Node
    query: ir.Value
    key: ir.Value
    value: ir.Value
    allowed: ir.Value
    scale: float
    softcap: float = 0.0
    added: tuple[tuple[ir.Value, float], ...] = ()
    sinks: ir.Value | None = None


def read_attention(node: ir.Node) -> Attention | None:
    """Return the attention whose heads a node gives, or None if it is none, or has no mask."""
    if node.op_type == "Attention" and not node.domain:
        return _operator(node)
    if node.op_type != "MatMul" or node.domain:
        return None
    weights, value = (_heads(operand(node, place)) for place in (0, 1))
    kept, last = _Rows.of(_uncast(weights)), _result(node)
    softmax, sinks = _softmax(kept.value)
    scores = None if softmax is None else _Scores.of(operand(softmax, 0) if sinks is None else sinks[0])
    if value is None or scores is None or scores.product is None or len(scores.allowed) != 1 or last is None:
        return None
    rows = _Rows.of(last.outputs[0])
    if not kept.are_of(scores.allowed[0]) or not rows.are_of(scores.allowed[0]):
        return None
    query, key, factor = scores.product
    return Attention(
        last, query, unrepeated(key) or key, unrepeated(value) or value, scores.allowed[0],
        factor * scores.factor, scores.cap, tuple(scores.added), None if sinks is None else sinks[1],
    )  # fmt: skip


def _operator(node: ir.Node) -> Attention | None:
    query, key, value, mask = (operand(node, place) for place in range(4))
    if query is None or key is None or value is None or mask is None or len(node.inputs) > 4 or len(node.outputs) > 1:
        return None
    known = all(name in _KNOWN for name in node.attributes)
    width, allowed = (dims(query) or (None,))[-1], _condition(mask)
    if not known or node.attributes.get_int("is_causal", 0) != 0 or not isinstance(width, int) or allowed is None:
        return None
    cap = node.attributes.get_float("softcap", 0.0)
    return Attention(node, query, key, value, allowed, node.attributes.get_float("scale", width**-0.5), cap)


def _uncast(value: ir.Value | None) -> ir.Value | None:
    """Look through a change between half and single precision: the operator computes scores in the latter."""
    node = producer(value, "Cast")
    source = operand(node, 0) if node else None
    both = {None if each is None else each.dtype for each in (value, source)}
    return source if source is not None and both <= _PRECISIONS else value


def _heads(value: ir.Value | None) -> ir.Value | None:
    """Return (B, N, X, Y) where ``value`` is that, or (B * N, X, Y) made of it."""
    shape, node = dims(value), producer(value, "Reshape")
    if value is None or shape is None or len(shape) == 4:
        return value
    source = operand(node, 0) if node else None
    before = dims(source)
    return source if len(shape) == 3 and before is not None and len(before) == 4 and before[2:] == shape[1:] else None


def _stripped(value: ir.Value | None) -> ir.Value | None:
    """Return what scores are before their first axes are joined, or parted, into (B, N)."""
    node = producer(value, "Reshape")
    source = operand(node, 0) if node else None
    before, after = dims(source), dims(value)
    if before is None or after is None or {len(before), len(after)} != {3, 4} or before[-2:] != after[-2:]:
        return value
    return _stripped(source)


def _result(node: ir.Node) -> ir.Node | None:
    """Return the node that gives the heads (B, N, S, D) of a product, the product itself or one behind it."""
    value = node.outputs[0]
    user = sole_user(value)
    if len(dims(value) or ()) == 4:
        return user if user is not None and _Rows.of(user.outputs[0]).value is value else node
    if user is None or user.op_type != "Reshape":
        return None
    return user if _heads_are_parted(dims(value), dims(user.outputs[0])) else None


def _heads_are_parted(before: tuple[object, ...] | None, after: tuple[object, ...] | None) -> bool:
    return before is not None and after is not None and len(after) == 4 and before[1:] == after[2:]


def _softmax(value: ir.Value | None) -> tuple[ir.Node | None, tuple[ir.Value, ir.Value] | None]:
    """Return the Softmax that gives weights, and the scores and sinks that it is of where there are any."""
    node = producer(value, "Softmax")
    if node is not None:
        return (node if _is_last_axis(node, value) else None), None
    cut = producer(value, "Slice")
    node = producer(operand(cut, 0), "Softmax") if cut and _drops_last(cut) else None
    if node is None or not _is_last_axis(node, node.outputs[0]):
        return None, None
    joined = producer(_unshifted(operand(node, 0)), "Concat")
    if joined is None or len(joined.inputs) != 2 or joined.attributes.get_int("axis", 0) not in (3, -1):
        return None, None
    scores, sinks = joined.inputs[0], _per_head(joined.inputs[1])
    return (node, (scores, sinks)) if scores is not None and sinks is not None else (None, None)


def _is_last_axis(node: ir.Node, value: ir.Value | None) -> bool:
    return node.attributes.get_int("axis", -1) in (-1, len(dims(value) or ()) - 1)


@dataclasses.dataclass(frozen=True)
class _Rows:
    """What has zeros for queries that see no key by a mask, if there is one; every query that is kept sees its own."""

    value: ir.Value | None
    mask: ir.Value | None = None

    @classmethod
    def of(cls, value: ir.Value | None) -> _Rows:
        """Look through the choice of zeros."""
        node = producer(value, "Where")
        if node is None:
            return cls(value)
        condition, zeros = operand(node, 0), constant(operand(node, 1))
        compared = producer(condition, "Equal")
        most = producer(operand(compared, 0), "ReduceMax") if compared else None
        lowest = constant(operand(compared, 1)) if compared else None
        if most is None or lowest is None or zeros is None or np.any(zeros) or not np.all(lowest <= _HIDES):
            return cls(value)
        rows = dims(condition)
        return cls(operand(node, 2), operand(most, 0)) if rows is not None and rows[-1] == 1 else cls(value)

    def are_of(self, allowed: ir.Value) -> bool:
        """Tell whether no rows are chosen, or those that a condition leaves without a key."""
        return self.mask is None or _allowed(self.mask) is allowed


def _drops_last(node: ir.Node) -> bool:
    starts, ends, axes = (constant(operand(node, place)) for place in (1, 2, 3))
    step = constant(operand(node, 4)) if len(node.inputs) > 4 else np.array([1])
    given = [starts, ends, axes, step]
    if any(each is None or each.size != 1 for each in given):
        return False
    start, end, axis, by = (int(each.item()) for each in given if each is not None)
    return (start, end, by) == (0, -1, 1) and axis in (-1, 3)


def _unshifted(value: ir.Value | None) -> ir.Value | None:
    """Look through the subtraction of the largest score, which Softmax does not see."""
    node = producer(value, "Sub")
    most = producer(operand(node, 1), "ReduceMax") if node else None
    if node is None or most is None or operand(most, 0) is not operand(node, 0):
        return value
    axes = constant(operand(most, 1))
    last = len(dims(value) or ()) - 1
    return operand(node, 0) if axes is not None and axes.tolist() in ([-1], [last]) else value


def _per_head(value: ir.Value | None) -> ir.Value | None:
    """Return a weight (N,) that is spread to (B, N, S, 1)."""
    spread = producer(value, "Expand")
    apart = producer(operand(spread, 0), "Reshape") if spread else None
    source, shape = (operand(apart, 0), dims(apart.outputs[0])) if apart else (None, None)
    ready = source is not None and source.is_initializer()
    return (
        source if ready and shape is not None and dims(source) == (shape[1],) and shape == (1, shape[1], 1, 1) else None
    )


@dataclasses.dataclass
class _Scores:
    """What a sum of scores is made of."""

    product: tuple[ir.Value, ir.Value, float] | None = None
    cap: float = 0.0
    factor: float = 1.0
    allowed: list[ir.Value] = dataclasses.field(default_factory=list)
    added: list[tuple[ir.Value, float]] = dataclasses.field(default_factory=list)

    @classmethod
    def of(cls, value: ir.Value | None) -> _Scores | None:
        """Read scores; None if they have no product, or two."""
        result = cls()
        return result if result._read(value, 1.0) else None

    def _read(self, value: ir.Value | None, factor: float) -> bool:
        """Read a term; False if it cannot be one."""
        value = _stripped(_uncast(value))
        if value is None:
            return False
        node = value.producer()
        if node is not None and not node.domain and node.op_type == "Add":
            return all(self._read(each, factor) for each in node.inputs)
        scaled = _scaled(value)
        if scaled is not None and _holds_product(scaled[0]):
            return self._read(scaled[0], factor * scaled[1])
        capped = _capped(value)
        if capped is not None:
            inside = _Scores.of(capped[0])
            if inside is None or inside.product is None or inside.allowed or inside.added or inside.cap:
                return False
            query, key, within = inside.product
            # cap * tanh(x / cap) * factor has the operator's form where nothing multiplies it.
            return factor == 1.0 and self._take((query, key, within * inside.factor), capped[1], 1.0)
        found = _product(value)
        if found is not None:
            return self._take(found, 0.0, factor)
        return self._read_mask(value, factor)

    def _take(self, product: tuple[ir.Value, ir.Value, float], cap: float, factor: float) -> bool:
        if self.product is not None:
            return False
        self.product, self.cap, self.factor = product, cap, factor
        return True

    def _read_mask(self, value: ir.Value, factor: float) -> bool:
        allowed = _condition(value)
        if allowed is not None:
            self.allowed.append(allowed)
            return True
        node = producer(value, "Where")
        if node is not None:
            seen, rest = _seen(node), operand(node, 2)
            if seen is not None and rest is not None:
                self.allowed.append(seen)
                self.added.append((rest, factor))
                return True
        self.added.append((value, factor))
        return True


def _allowed(mask: ir.Value) -> ir.Value | None:
    """Return the condition that a mask of numbers holds, alone or beside other terms."""
    node = producer(mask, "Where")
    return _condition(mask) or (_seen(node) if node else None)


def _seen(node: ir.Node) -> ir.Value | None:
    """Return the condition of a mask if a Where hides what the mask does: where it adds less than a limit."""
    below, hidden = producer(operand(node, 0), "Less"), constant(operand(node, 1))
    mask, limit = (operand(below, 0), constant(operand(below, 1))) if below else (None, None)
    if mask is None or limit is None or hidden is None or not np.all(hidden <= _HIDES):
        return None
    return _condition(mask) if np.all((limit > _HIDES) & (limit <= 0)) else None


def _condition(mask: ir.Value) -> ir.Value | None:
    """Return the condition of a mask: itself, or that under which it adds zero and not what hides a key."""
    if mask.dtype == ir.DataType.BOOL:
        return mask
    node = producer(mask, "Where")
    zero, lowest = (constant(operand(node, place)) for place in (1, 2)) if node else (None, None)
    if node is None or zero is None or lowest is None or np.any(zero) or not np.all(lowest <= _HIDES):
        return None
    return operand(node, 0)


def _scaled(value: ir.Value) -> tuple[ir.Value, float] | None:
    """Return what a value is a multiple of, by a constant."""
    node = value.producer()
    if node is None or node.domain or node.op_type not in ("Mul", "Div"):
        return None
    pairs = [(node.inputs[0], node.inputs[1])]
    if node.op_type == "Mul":
        pairs.append((node.inputs[1], node.inputs[0]))
    for x, by in pairs:
        number = constant(by)
        if x is not None and number is not None and number.size == 1 and number.item():
            factor = float(number.item())
            return x, (factor if node.op_type == "Mul" else 1 / factor)
    return None


def _holds_product(value: ir.Value) -> bool:
    """Tell whether scaling applies to a product, so that it is part of the scale."""
    value = _stripped(value) or value
    scaled = _scaled(value)
    return _product(value) is not None or (scaled is not None and _holds_product(scaled[0]))


def _capped(value: ir.Value) -> tuple[ir.Value, float] | None:
    """Return x and the bound if a value is ``cap * tanh(x / cap)``."""
    outer = _scaled(value)
    bend = producer(outer[0], "Tanh") if outer else None
    inner = _scaled(bend.inputs[0]) if bend and bend.inputs[0] is not None else None
    if outer is None or inner is None or not np.isclose(outer[1] * inner[1], 1.0, rtol=1e-6) or outer[1] <= 0:
        return None
    return inner[0], outer[1]


def _product(value: ir.Value) -> tuple[ir.Value, ir.Value, float] | None:
    """Return queries (B, N, S, D), keys (B, N, T, D) and the factor of a product of both."""
    node = value.producer()
    if node is None or (node.domain, node.op_type) not in (("", "MatMul"), (DOMAIN, "FusedMatMul")):
        return None
    factor, right = 1.0, operand(node, 1)
    if node.domain:
        attributes = node.attributes
        if attributes.get_int("transB", 0) != 1 or any(
            attributes.get_int(name, 0) for name in ("transA", "transBatchA", "transBatchB")
        ):
            return None
        factor = attributes.get_float("alpha", 1.0)
    else:
        turned = producer(right, "Transpose")
        perm = tuple(turned.attributes.get_ints("perm", ())) if turned else ()
        if turned is None or perm not in ((0, 1, 3, 2), (0, 2, 1)):
            return None
        right = operand(turned, 0)
    query, key = _heads(operand(node, 0)), _heads(right)
    for _ in range(2):
        scaled = _scaled(query) if query is not None else None
        if scaled is not None:
            query, factor = scaled[0], factor * scaled[1]
    if query is None or key is None or len(dims(query) or ()) != 4 or len(dims(key) or ()) != 4:
        return None
    return query, key, factor
