"""``GroupQueryAttention`` in place of attention that joins a cache, for engines whose caches grow in place.

Specified in https://github.com/microsoft/onnxruntime/blob/main/docs/ContribOperators.md#com.microsoft.GroupQueryAttention
"""

from __future__ import annotations

import dataclasses

import numpy as np
import numpy.typing as npt
import onnx_ir as ir

from onnxops_decomp.passes.index_proofs import Affine, Position, Token, Unreadable, read
from onnxops_decomp.passes.matching import (
    dims,
    drop_unused_weights,
    operand,
    producer,
    replace_outputs,
    sole_user,
    sweep,
)
from onnxops_decomp.runtimes.onnxruntime.domain import DOMAIN, DTYPES, VERSION
from onnxops_decomp.runtimes.onnxruntime.packed_products import divided, packed_products, split_products
from onnxops_decomp.runtimes.onnxruntime.position_tables import at_positions, by_head
from onnxops_decomp.runtimes.onnxruntime.spelled_attention import Attention, read_attention

__all__ = ["share_caches"]

_HEADS_OUT = (0, 2, 1, 3)
# The operator refuses heads of other widths.
_WIDTH_STEP = 8
# With the rotary embedding inside it wants this.
_TURNED_WIDTH_STEP = 16
_TURNING = {"interleaved", "rotary_embedding_dim"}
# How many tokens a layer keeps that forgets those before its window.
_KEPT = "window_cache_length"
# Where the operator takes how many of the new tokens of a row are not padding.
_NEW_TOKENS = 16
_NORMALIZATIONS = ("RMSNormalization", "LayerNormalization")
_NEW, _PAST, _BATCH = (Affine.of(symbol) for symbol in ("S", "P", "B"))
Table = npt.NDArray[np.generic]
_ROW, _QUERY, _KEY = (Affine.of(symbol) for symbol in ("b", "i", "j"))


@dataclasses.dataclass(frozen=True)
class _Inputs:
    """The inputs of a decoder, and what the names of their dimensions stand for."""

    tokens: ir.Value
    mask: ir.Value
    sizes: dict[str, Affine]

    @classmethod
    def of(cls, graph: ir.Graph, tokens: str, mask: str) -> _Inputs | None:
        """Find the inputs; the mask is as long as the cache and the new tokens."""
        named = {value.name: value for value in graph.inputs}
        new, kept = dims(named[tokens]), dims(named[mask])
        if new is None or kept is None or not all(isinstance(dim, str) for dim in (*new, *kept)):
            return None
        sizes = {str(new[0]): _BATCH, str(new[1]): _NEW, str(kept[1]): _PAST + _NEW}
        return cls(named[tokens], named[mask], sizes)

    def is_position(self, value: ir.Value) -> bool:
        """Tell whether a value (B, S) is how many tokens the mask keeps before each new one."""
        return self._counts(value, _NEW, _PAST + _QUERY)

    def is_key_position(self, value: ir.Value) -> bool:
        """Tell whether a value (B, P + S) is how many tokens the mask keeps before each that it keeps."""
        return self._counts(value, _PAST + _NEW, _QUERY)

    def _counts(self, value: ir.Value, length: Affine, place: Affine) -> bool:
        if value.dtype != ir.DataType.INT64:
            return False
        try:
            tensor = read(value, self.sizes, self.mask)
            found = tensor.at((_ROW, _QUERY)) if tensor.sizes == (_BATCH, length) else None
        except Unreadable:
            return False
        if not isinstance(found, Position) or found.least not in (None, 0):
            return False
        # Before a token that is kept there are zero or more; what the others have does not matter.
        return found == Position(_ROW, place, -1, found.least, found.zeroed)


@dataclasses.dataclass(frozen=True)
class _Turned:
    """Heads before their rotary embedding, and the cosines and sines that it has at each position."""

    source: ir.Value
    tables: tuple[ir.Value, ir.Value]
    interleaved: bool


@dataclasses.dataclass(frozen=True)
class _Plan:
    """How one attention is written."""

    attention: Attention
    joins: tuple[ir.Node, ir.Node]
    window: int | None
    bias: Table | None
    forgets: bool

    @property
    def query(self) -> ir.Value:
        """The queries (B, N, S, D)."""
        return self.attention.query

    @property
    def heads(self) -> tuple[int, int, int]:
        """Heads of queries and of keys, and their width."""
        q, k = dims(self.query), dims(self.joins[0].outputs[0])
        assert q is not None
        assert k is not None
        assert isinstance(q[1], int)
        assert isinstance(k[1], int)
        assert isinstance(q[3], int)
        return q[1], k[1], q[3]


def share_caches(model: ir.Model, tokens: str, mask: str, length: int, *, forget: bool = False) -> bool:
    """Let ``GroupQueryAttention`` join the keys and values of all layers of a decoder, or change nothing.

    It is put in place of an attention whose mask is proven to let each query see the tokens up to its own place, or
    the last of them where there is a window, that the padding mask keeps. The operator counts the tokens that it keeps
    from the start: padding stands behind the prompts from here on, and each row has the result that it has alone.
    Rotary embeddings become part of it where they follow from the position alone, and products of one value by the
    weights of query, key and value become one.

    Args:
        model: A model without functions whose inputs are new tokens (B, S), a padding mask (B, P + S), and keys and
            values (B, heads, P, width) of each layer; its outputs have those of all tokens.
        tokens: Name of the new tokens.
        mask: Name of the padding mask.
        length: The most tokens of a row, for which cosines and sines are computed.
        forget: Whether layers with a window shorter than ``length`` keep no more than fits into their caches, whose
            length is then one size of its own, at least that of the window.

    Returns:
        Whether the model was changed.
    """
    graph = model.graph
    inputs = _Inputs.of(graph, tokens, mask)
    caches = [value for value in graph.inputs if len(dims(value) or ()) == 4]
    if inputs is None:
        return False
    for cache in caches:
        inputs.sizes.setdefault(str((dims(cache) or ())[2]), _PAST)
    attentions = [found for node in graph if (found := read_attention(node)) is not None]
    plans = [plan for found in attentions if (plan := _planned(found, inputs, length, forget=forget))]
    if not plans or {join.inputs[0] for plan in plans for join in plan.joins} != set(caches):
        return False
    if not all(_is_free(cache, plans) for cache in caches):
        return False
    if not all(_leads_to(join.outputs[0], plan.attention.node) for plan in plans for join in plan.joins):
        return False
    rewriting = _Rewriting(graph, inputs, length)
    for plan in plans:
        rewriting.write(plan)
    rewriting.count_past(caches)
    drop_unused_weights(graph)
    graph.opset_imports[DOMAIN] = VERSION
    return True


def _is_free(cache: ir.Value, plans: list[_Plan]) -> bool:
    """Tell whether a cache is read by one attention alone, its sizes aside."""
    joins = [join for plan in plans for join in plan.joins if join.inputs[0] is cache]
    others = [usage.node for usage in cache.uses() if usage.node not in joins]
    return len(joins) == 1 and all(
        node.op_type == "Shape" and node.domain == "" and _one_size(node) in (0, 2) for node in others
    )


def _leads_to(value: ir.Value, node: ir.Node) -> bool:
    """Tell whether all that is computed of keys or values goes into an attention alone.

    What grows in place is longer than its tokens: whoever else reads it, or the scores, would read what is no token.
    """
    pending, seen = [usage.node for usage in value.uses()], {node}
    while pending:
        user = pending.pop()
        if user in seen:
            continue
        if any(output.is_graph_output() for output in user.outputs):
            return False
        seen.add(user)
        pending.extend(usage.node for output in user.outputs for usage in output.uses())
    return True


def _one_size(node: ir.Node) -> int | None:
    """Return the axis whose size a Shape gives, if it is only one."""
    start, end = node.attributes.get_int("start", 0), node.attributes.get_int("end", 4)
    return start if end == start + 1 else None


def _planned(attention: Attention, inputs: _Inputs, length: int, *, forget: bool) -> _Plan | None:
    query = attention.query
    keys, values = _join(attention.key), _join(attention.value)
    if keys is None or values is None or query.dtype not in DTYPES:
        return None
    if not _fit(dims(query), dims(keys.outputs[0]), dims(values.outputs[0])):
        return None
    try:
        window = _window(attention.allowed, inputs)
    except Unreadable:
        return None
    tables = [_bias_table(value, factor, inputs, attention, length) for value, factor in attention.added]
    known = [table for table in tables if table is not None]
    if len(known) < len(tables):
        return None
    bias = sum(known[1:], known[0]) if known else None
    return _Plan(attention, (keys, values), window, bias, forget and window is not None and window < length)


def _bias_table(value: ir.Value, factor: float, inputs: _Inputs, attention: Attention, length: int) -> Table | None:
    """Return what is added to the scores (heads, T) of a key at each position, if its position alone decides that."""
    heads = (dims(attention.query) or (None, None))[1]
    places = np.arange(length, dtype=np.int64)
    found = at_positions(value, places, inputs.is_key_position)
    table = by_head(found, heads) if found is not None and isinstance(heads, int) else None
    if table is None or table.shape[1] != length or attention.query.dtype is None:
        return None
    return np.asarray(table.astype(np.float64) * factor).astype(attention.query.dtype.numpy())


def _join(value: ir.Value | None) -> ir.Node | None:
    """Return the node that puts new keys or values behind those of the cache, for one reader and as an output."""
    node = producer(value, "Concat")
    if node is None or value is None or len(node.inputs) != 2 or node.attributes.get_int("axis", 0) not in (2, -2):
        return None
    past = operand(node, 0)
    alone = len(value.uses()) == 1 and value.is_graph_output()
    return node if past is not None and past.is_graph_input() and alone else None


def _fit(query: tuple[object, ...] | None, *others: tuple[object, ...] | None) -> bool:
    """Tell whether the operator takes heads of these shapes."""
    if query is None or len(query) != 4 or any(shape is None or len(shape) != 4 for shape in others):
        return False
    heads, width = query[1], query[3]
    groups = {shape[1] for shape in others if shape is not None}
    widths = {shape[3] for shape in others if shape is not None}
    (count,) = groups if len(groups) == 1 else (None,)
    if not isinstance(heads, int) or not isinstance(width, int) or not isinstance(count, int) or count < 1:
        return False
    return widths == {width} and heads % count == 0 and width % _WIDTH_STEP == 0


def _window(mask: ir.Value, inputs: _Inputs) -> int | None:
    """Return how many tokens a query sees, its own included; None for all.

    Raises:
        Unreadable: If the mask is not the usual causal one.
    """
    tensor = read(mask, inputs.sizes, inputs.mask)
    one = Affine.of(1)
    if len(tensor.sizes) != 4 or tensor.sizes[1:] != (one, _NEW, _PAST + _NEW) or tensor.sizes[0] not in (one, _BATCH):
        raise Unreadable("a mask of another shape")
    row = Affine.of(0) if tensor.sizes[0] == one else _ROW
    found = tensor.at((row, Affine.of(0), _QUERY, _KEY))
    back = _PAST + _QUERY - _KEY  # how far the key stands before the query
    usual = {back, Token(_ROW, _KEY)}
    if not isinstance(found, frozenset) or not usual <= found:
        raise Unreadable("another mask")
    others = [atom + back for atom in found - usual if isinstance(atom, Affine)]
    if len(others) != len(found) - len(usual) or any(atom.terms for atom in others) or len(others) > 1:
        raise Unreadable("another mask")
    if not others:
        return None
    if others[0].constant < 0:
        raise Unreadable("a mask that hides the query's own token")
    return others[0].constant + 1


def _attributes(plan: _Plan, turned: _Turned | None) -> list[ir.Attr]:
    heads, groups, _ = plan.heads
    result = [
        ir.AttrInt64("num_heads", heads),
        ir.AttrInt64("kv_num_heads", groups),
        ir.AttrInt64("do_rotary", int(turned is not None)),
        ir.AttrFloat32("scale", plan.attention.scale),
    ]
    if turned is not None and turned.interleaved:
        result.append(ir.AttrInt64("rotary_interleaved", 1))
    if plan.attention.softcap > 0:
        result.append(ir.AttrFloat32("softcap", plan.attention.softcap))
    if plan.window is not None:
        result.append(ir.AttrInt64("local_window_size", plan.window))
    if plan.forgets:
        result.append(ir.AttrInt64("sliding_window_cache", 1))
    return result


def _set_length(cache: ir.Value | None, length: str) -> None:
    """Name the dimension of a cache (B, heads, T, width) that counts tokens."""
    assert cache is not None
    assert cache.shape is not None
    cache.shape = ir.Shape([*cache.shape[:2], length, cache.shape[3]])


class _Rewriting:
    def __init__(self, graph: ir.Graph, inputs: _Inputs, length: int) -> None:
        self._graph, self._inputs, self._length = graph, inputs, length
        self._first = next(iter(graph))
        self._tables: dict[ir.Value, ir.Value | None] = {}
        self._biases: dict[bytes, ir.Value] = {}
        self._kept_now: ir.Value | None = None
        self._lengths = self._counted()
        counted = self._lengths[1].producer()
        assert counted is not None
        self._first = counted  # the other one may go

    def write(self, plan: _Plan) -> None:
        """Put the operator in place of an attention."""
        node, (keys, values) = plan.attention.node, plan.joins
        new_key, new_value = keys.inputs[1], values.inputs[1]
        assert new_key is not None
        assert new_value is not None
        turned = self._turned(plan.query), self._turned(new_key)
        query, key = plan.query, new_key
        tables: tuple[ir.Value, ...] = ()
        first, second = turned
        if first is not None and second is not None and first == dataclasses.replace(second, source=first.source):
            (query, key), tables = (first.source, second.source), first.tables
        flat = [self._flat(node, each) for each in (query, key, new_value)]
        together = tables or turned == (None, None)
        packed = (divided(flat) or packed_products(self._graph, node, flat)) if together else None
        own = flat if packed is None else [packed, None, None]
        cache = [keys.inputs[0], values.inputs[0], *self._lengths]
        inputs: list[ir.Value | None] = [*own, *cache, *(tables or (None, None)), None, self._bias(plan)]
        inputs.append(plan.attention.sinks)
        if plan.forgets:
            inputs += [None] * (_NEW_TOKENS - len(inputs))
            inputs.append(self._new_tokens())
        while inputs[-1] is None:
            inputs.pop()
        operator = ir.Node(
            DOMAIN, "GroupQueryAttention", inputs, _attributes(plan, first if tables else None), num_outputs=3
        )
        result = self._result(node)
        old = [result.producer(), node, keys, values]
        presents = {1: keys.outputs[0], 2: values.outputs[0]}
        if plan.forgets:
            for value in (*cache[:2], *presents.values()):
                _set_length(value, _KEPT)
        replace_outputs(node, operator, {0: result, **presents})
        for each in old:
            if each is not None:
                sweep(each)
        if packed is None:
            split_products(self._graph, flat)

    def _bias(self, plan: _Plan) -> ir.Value | None:
        """Return what is added to the scores, (1, N, S, P + S), or None for nothing."""
        if plan.bias is None:
            return None
        key = plan.bias.tobytes()
        if key not in self._biases:
            name = f"bias_{len(self._biases)}"
            table = self._numbers(f"{name}.table", plan.bias[None, :, None])
            zero, last = self._numbers("zero", np.array([0], np.int64)), self._numbers("last", np.array([3], np.int64))
            total = self._new("Shape", [self._inputs.mask], f"{name}.keys", start=1, end=2)
            seen = self._new("Slice", [table, zero, total, last], f"{name}.seen")
            one = self._numbers("one", np.array([1], np.int64))
            new = self._new("Shape", [self._inputs.tokens], f"{name}.queries", start=1, end=2)
            shape = self._new("Concat", [one, one, new, one], f"{name}.shape", axis=0)
            self._biases[key] = self._new("Expand", [seen, shape], name)
        return self._biases[key]

    def count_past(self, caches: list[ir.Value]) -> None:
        """Take the number of earlier tokens from the mask: a cache that grows in place has room for more."""
        shapes = [usage.node for cache in caches for usage in cache.uses() if usage.node.op_type == "Shape"]
        lengths = [node for node in shapes if _one_size(node) == 2]
        if not lengths:
            return
        total = self._new("Shape", [self._inputs.mask], "total_length", start=1, end=2)
        new = self._new("Shape", [self._inputs.tokens], "new_length", start=1, end=2)
        past = self._new("Sub", [total, new], "past_length")
        for node in lengths:
            ir.convenience.replace_all_uses_with(node.outputs[0], past)
            sweep(node)

    def _counted(self) -> tuple[ir.Value, ir.Value]:
        """Return how many tokens each row keeps, less one, and the length of the mask, as the operator wants them."""
        one = self._numbers("one", np.array([1], np.int64))
        kept = self._new("ReduceSum", [self._inputs.mask, one], "kept_tokens", keepdims=0)
        last = self._new("Sub", [kept, one], "last_tokens")
        total = self._new("Shape", [self._inputs.mask], "mask_length", start=1, end=2)
        scalar = self._new("Squeeze", [total], "total_tokens")
        int32 = int(ir.DataType.INT32)
        return (
            self._new("Cast", [last], "last_tokens_int32", to=int32),
            self._new("Cast", [scalar], "total_tokens_int32", to=int32),
        )

    def _new_tokens(self) -> ir.Value:
        """Return how many of the new tokens each row keeps (B,), int32."""
        if self._kept_now is None:
            length = self._new("Shape", [self._inputs.tokens], "new_length", start=1, end=2)
            zero, one = (self._numbers(name, np.array([n], np.int64)) for n, name in enumerate(("zero", "one")))
            first = self._new("Sub", [zero, length], "first_new")
            end = self._numbers("end", np.array([np.iinfo(np.int64).max], np.int64))
            now = self._new("Slice", [self._inputs.mask, first, end, one], "new_mask")
            kept = self._new("ReduceSum", [now, one], "new_tokens", keepdims=0)
            self._kept_now = self._new("Cast", [kept], "new_tokens_int32", to=int(ir.DataType.INT32))
        return self._kept_now

    def _new(self, op_type: str, inputs: list[ir.Value], name: str, **attributes: int) -> ir.Value:
        """Compute a value before all nodes."""
        attrs = [ir.AttrInt64(key, value) for key, value in attributes.items()]
        node = ir.Node("", op_type, inputs, attrs, num_outputs=1, name=f"shared_caches.{name}")
        node.outputs[0].name = f"shared_caches.{name}"
        self._graph.insert_before(self._first, node)
        return node.outputs[0]

    def _numbers(self, name: str, array: npt.NDArray[np.generic]) -> ir.Value:
        name = f"shared_caches.{name}"
        found = self._graph.initializers.get(name)
        if found is None:
            tensor = ir.tensor(array, name=name)
            found = ir.Value(name=name, type=ir.TensorType(tensor.dtype), const_value=tensor)
            found.shape = ir.Shape(array.shape)
            self._graph.initializers.add(found)
        return found

    def _turned(self, value: ir.Value) -> _Turned | None:
        """Read a rotary embedding whose cosines and sines follow from the position alone."""
        node = producer(value, "RotaryEmbedding")
        source = operand(node, 0) if node else None
        width = (dims(source) or (None,))[-1]
        if node is None or source is None or len(node.inputs) != 3 or not set(node.attributes) <= _TURNING:
            return None
        cosine, sine = (self._table(operand(node, place)) for place in (1, 2))
        turning = node.attributes.get_int("rotary_embedding_dim", 0) or width
        if cosine is None or sine is None or not isinstance(turning, int) or turning % _TURNED_WIDTH_STEP:
            return None
        if not dims(cosine) == dims(sine) == (self._length, turning // 2):
            return None
        return _Turned(source, (cosine, sine), bool(node.attributes.get_int("interleaved", 0)))

    def _table(self, value: ir.Value | None) -> ir.Value | None:
        """Return what a value (B, S, D/2) holds at each position, as an initializer."""
        if value is None:
            return None
        if value not in self._tables:
            array = at_positions(value, np.arange(self._length), self._inputs.is_position)
            self._tables[value] = (
                None if array is None or len(array) != 1 else self._numbers(f"{value.name}.table", array[0])
            )
        return self._tables[value]

    def _flat(self, before: ir.Node, value: ir.Value) -> ir.Value:
        """Bring heads (B, N, S, D) to (B, S, N * D)."""
        shape = dims(value)
        assert shape is not None
        assert isinstance(shape[1], int)
        assert isinstance(shape[3], int)
        width = shape[1] * shape[3]
        apart = self._apart(before, value)
        split = producer(apart, "Reshape")
        source = operand(split, 0) if split else None
        if dims(source) == (shape[0], shape[2], width) and source is not None:
            if split is not None and not apart.uses():
                self._graph.remove(split, safe=True)
            return source
        target = self._numbers(f"flat_{width}", np.array([0, 0, width], np.int64))
        joined = ir.Node("", "Reshape", [apart, target], num_outputs=1)
        return self._insert(before, joined, f"{value.name}.flat", value, ir.Shape([shape[0], shape[2], width]))

    def _apart(self, before: ir.Node, value: ir.Value) -> ir.Value:
        """Bring heads (B, N, S, D) to (B, S, N, D); what works on single heads is done there."""
        shape, node = dims(value), value.producer()
        assert shape is not None
        turned = ir.Shape([shape[0], shape[2], shape[1], shape[3]])
        source = None if node is None or node.domain or len(value.uses()) > 1 else operand(node, 0)
        if node is not None and source is not None and node.op_type == "Transpose":
            if tuple(node.attributes.get_ints("perm", ())) == _HEADS_OUT:
                return source
        elif node is not None and source is not None and node.op_type in _NORMALIZATIONS:
            if len(node.outputs) == 1 and node.attributes.get_int("axis", -1) in (-1, 3):
                inputs = [self._apart(before, source), *node.inputs[1:]]
                new = ir.Node("", node.op_type, inputs, list(node.attributes.values()), num_outputs=1)
                return self._insert(before, new, f"{value.name}.apart", value, turned)
        elif node is not None and source is not None and node.op_type == "RotaryEmbedding" and len(node.inputs) == 3:
            return self._turned_flat(before, node, source)
        new = ir.Node("", "Transpose", [value], [ir.AttrInt64s("perm", _HEADS_OUT)], num_outputs=1)
        return self._insert(before, new, f"{value.name}.turned", value, turned)

    def _turned_flat(self, before: ir.Node, node: ir.Node, source: ir.Value) -> ir.Value:
        """Turn heads where they stand side by side, and return them as (B, S, N, D)."""
        value = node.outputs[0]
        batch, heads, new, width = dims(value) or ()
        assert isinstance(heads, int)
        assert isinstance(width, int)
        inputs = [self._flat(before, source), *node.inputs[1:]]
        attributes = [*node.attributes.values(), ir.AttrInt64("num_heads", heads)]
        turned = ir.Node("", "RotaryEmbedding", inputs, attributes, num_outputs=1)
        flat = self._insert(before, turned, f"{value.name}.flat", value, ir.Shape([batch, new, heads * width]))
        target = self._numbers(f"heads_{heads}_{width}", np.array([0, 0, heads, width], np.int64))
        apart = ir.Node("", "Reshape", [flat, target], num_outputs=1)
        return self._insert(before, apart, f"{value.name}.apart", value, ir.Shape([batch, new, heads, width]))

    def _insert(self, before: ir.Node, node: ir.Node, name: str, like: ir.Value, shape: ir.Shape) -> ir.Value:
        result = node.outputs[0]
        node.name, result.name, result.type, result.shape = name, name, like.type, shape
        node.metadata_props.update(before.metadata_props)
        self._graph.insert_before(before, node)
        return result

    def _result(self, node: ir.Node) -> ir.Value:
        """Return the value (B, S, N * D) that the operator gives, from which the heads follow where they are wanted."""
        value = node.outputs[0]
        shape = dims(value)
        assert shape is not None
        assert isinstance(shape[1], int)
        assert isinstance(shape[3], int)
        width = shape[1] * shape[3]
        turned = sole_user(value)
        if turned is not None and tuple(turned.attributes.get_ints("perm", ())) == _HEADS_OUT:
            joined = sole_user(turned.outputs[0])
            if joined is not None and joined.op_type == "Reshape":
                flat = joined.outputs[0]
                if dims(flat) == (shape[0], shape[2], width):
                    return flat
        flat = ir.Value(name=f"{value.name}.flat", type=value.type, shape=ir.Shape([shape[0], shape[2], width]))
        target = self._numbers(f"heads_{shape[1]}_{shape[3]}", np.array([0, 0, shape[1], shape[3]], np.int64))
        apart = ir.Node("", "Reshape", [flat, target], num_outputs=1)
        heads = ir.Node("", "Transpose", [apart.outputs[0]], [ir.AttrInt64s("perm", _HEADS_OUT)], num_outputs=1)
        ir.convenience.replace_all_uses_with(value, heads.outputs[0])
        for new, name in ((heads, f"{value.name}.heads"), (apart, f"{value.name}.apart")):
            new.name, new.outputs[0].name, new.outputs[0].type = name, name, value.type
            self._graph.insert_after(node, new)
        heads.outputs[0].shape = value.shape
        apart.outputs[0].shape = ir.Shape([shape[0], shape[2], shape[1], shape[3]])
        return flat
