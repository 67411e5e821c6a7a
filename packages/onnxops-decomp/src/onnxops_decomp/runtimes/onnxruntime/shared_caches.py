"""``GroupQueryAttention`` in the place of attention that joins a cache, for engines whose caches grow in place.

Specified in https://github.com/microsoft/onnxruntime/blob/main/docs/ContribOperators.md#com.microsoft.GroupQueryAttention
"""

from __future__ import annotations

import dataclasses
from functools import partial

import numpy as np
import numpy.typing as npt
import onnx_ir as ir

from onnxops_decomp.passes.derived import DerivedTensor
from onnxops_decomp.passes.index_proofs import Affine, Position, Token, Unreadable, read
from onnxops_decomp.passes.matching import constant, dims, operand, producer, replace_outputs, sole_user, sweep
from onnxops_decomp.runtimes.onnxruntime.domain import DOMAIN, DTYPES, VERSION

__all__ = ["share_caches"]

_HEADS_OUT = (0, 2, 1, 3)
# The operator refuses heads of other widths.
_WIDTH_STEP = 8
# With the rotary embedding inside it wants this.
_TURNED_WIDTH_STEP = 16
_KNOWN = ("scale", "softcap", "is_causal")
_NEW, _PAST, _BATCH = (Affine.of(symbol) for symbol in ("S", "P", "B"))
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


@dataclasses.dataclass(frozen=True)
class _Turned:
    """Heads before their rotary embedding, and the cosines and sines that it has at each position."""

    source: ir.Value
    tables: tuple[ir.Value, ir.Value]


@dataclasses.dataclass(frozen=True)
class _Plan:
    """How one attention is written."""

    node: ir.Node
    query: ir.Value
    joins: tuple[ir.Node, ir.Node]
    window: int | None

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


def share_caches(model: ir.Model, tokens: str, mask: str, length: int) -> bool:
    """Let ``GroupQueryAttention`` join the keys and values of all layers of a decoder, or change nothing.

    It is put in the place of an attention whose mask is proven to let each query see the tokens up to its own place, or
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
    attentions = [node for node in graph if node.op_type == "Attention" and node.domain == ""]
    plans = [plan for node in attentions if (plan := _planned(node, inputs)) is not None]
    if not plans or {join.inputs[0] for plan in plans for join in plan.joins} != set(caches):
        return False
    if not all(_is_free(cache, plans) for cache in caches):
        return False
    rewriting = _Rewriting(graph, inputs, length)
    for plan in plans:
        rewriting.write(plan)
    rewriting.count_past(caches)
    graph.opset_imports[DOMAIN] = VERSION
    return True


def _is_free(cache: ir.Value, plans: list[_Plan]) -> bool:
    """Tell whether a cache is read by one attention alone, its sizes aside."""
    joins = [join for plan in plans for join in plan.joins if join.inputs[0] is cache]
    others = [usage.node for usage in cache.uses() if usage.node not in joins]
    return len(joins) == 1 and all(
        node.op_type == "Shape" and node.domain == "" and _one_size(node) in (0, 2) for node in others
    )


def _one_size(node: ir.Node) -> int | None:
    """Return the axis whose size a Shape gives, if it is only one."""
    start, end = node.attributes.get_int("start", 0), node.attributes.get_int("end", 4)
    return start if end == start + 1 else None


def _planned(node: ir.Node, inputs: _Inputs) -> _Plan | None:
    query, mask = operand(node, 0), operand(node, 3)
    joins = [_join(operand(node, place), node) for place in (1, 2)]
    if query is None or mask is None or query.dtype not in DTYPES or len(node.inputs) > 4 or len(node.outputs) > 1:
        return None
    known = all(name in _KNOWN for name in node.attributes)
    if not known or node.attributes.get_int("is_causal", 0) != 0:
        return None
    keys, values = joins
    if keys is None or values is None or not _fit(dims(query), dims(keys.outputs[0]), dims(values.outputs[0])):
        return None
    try:
        window = _window(mask, inputs)
    except Unreadable:
        return None
    return _Plan(node, query, (keys, values), window)


def _join(value: ir.Value | None, reader: ir.Node) -> ir.Node | None:
    """Return the node that puts new keys or values behind those of the cache, for one reader and as an output."""
    node = producer(value, "Concat")
    if node is None or value is None or len(node.inputs) != 2 or node.attributes.get_int("axis", 0) not in (2, -2):
        return None
    past = operand(node, 0)
    alone = all(usage.node is reader for usage in value.uses()) and len(value.uses()) == 1
    return node if past is not None and past.is_graph_input() and value.is_graph_output() and alone else None


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


class _Rewriting:
    def __init__(self, graph: ir.Graph, inputs: _Inputs, length: int) -> None:
        self._graph, self._inputs, self._length = graph, inputs, length
        self._first = next(iter(graph))
        self._tables: dict[ir.Value, ir.Value | None] = {}
        self._lengths = self._counted()
        counted = self._lengths[1].producer()
        assert counted is not None
        self._first = counted  # the other one may go

    def write(self, plan: _Plan) -> None:
        """Put the operator in the place of an attention."""
        node, (keys, values) = plan.node, plan.joins
        heads, groups, width = plan.heads
        new_key, new_value = keys.inputs[1], values.inputs[1]
        assert new_key is not None
        assert new_value is not None
        turned = self._turned(plan.query), self._turned(new_key)
        query, key = plan.query, new_key
        tables: tuple[ir.Value, ...] = ()
        if turned[0] is not None and turned[1] is not None and turned[0].tables == turned[1].tables:
            (query, key), tables = (turned[0].source, turned[1].source), turned[0].tables
        flat = [self._flat(node, each) for each in (query, key, new_value)]
        packed = self._packed(node, flat) if tables or turned == (None, None) else None
        own = flat if packed is None else [packed, None, None]
        inputs = [*own, keys.inputs[0], values.inputs[0], *self._lengths, *tables]
        attributes = [
            ir.AttrInt64("num_heads", heads),
            ir.AttrInt64("kv_num_heads", groups),
            ir.AttrInt64("do_rotary", int(bool(tables))),
            ir.AttrFloat32("scale", node.attributes.get_float("scale", width**-0.5)),
        ]
        if (cap := node.attributes.get_float("softcap", 0.0)) > 0:
            attributes.append(ir.AttrFloat32("softcap", cap))
        if plan.window is not None:
            attributes.append(ir.AttrInt64("local_window_size", plan.window))
        operator = ir.Node(DOMAIN, "GroupQueryAttention", inputs, attributes, num_outputs=3, version=None)
        result = self._result(node)
        old = [result.producer(), node, keys, values]
        presents = {1: keys.outputs[0], 2: values.outputs[0]}
        replace_outputs(node, operator, {0: result, **presents})
        for each in old:
            if each is not None:
                sweep(each)

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
        if node is None or source is None or node.attributes or len(node.inputs) != 3:
            return None
        cosine, sine = (self._table(operand(node, place)) for place in (1, 2))
        width = (dims(source) or (None,))[-1]
        if cosine is None or sine is None or not isinstance(width, int) or width % _TURNED_WIDTH_STEP:
            return None
        if not dims(cosine) == dims(sine) == (self._length, width // 2):
            return None
        return _Turned(source, (cosine, sine))

    def _table(self, value: ir.Value | None) -> ir.Value | None:
        """Return what a value (B, S, D/2) holds at each position, as an initializer."""
        if value is None:
            return None
        if value not in self._tables:
            array = self._at_positions(value, np.arange(self._length))
            self._tables[value] = None if array is None else self._numbers(f"{value.name}.table", array[0])
        return self._tables[value]

    def _at_positions(self, value: ir.Value, places: npt.NDArray[np.int64]) -> npt.NDArray[np.generic] | None:
        """Compute a function of positions element by element; None if it is none that is known."""
        if self._is_position(value):
            return places[None]
        node = value.producer()
        if node is None or node.domain:
            return None
        weights = [each for each in node.inputs if each is not None and each.is_initializer()]
        others = [each for each in node.inputs if each is not None and not each.is_initializer()]
        x = self._at_positions(others[0], places) if len(others) == 1 else None
        if x is None:
            return None
        if node.op_type == "Unsqueeze" and (axes := constant(weights[0])) is not None and axes.tolist() == [2]:
            return x[..., None] if x.ndim == 2 else None
        if node.op_type == "Cast":
            return x.astype(ir.DataType(node.attributes.get_int("to", 0)).numpy())
        if node.op_type == "Mul" and len(weights) == 1 and len(dims(weights[0]) or ()) <= 1:
            tensor = weights[0].const_value
            return None if tensor is None else np.asarray(x * tensor.numpy())
        if node.op_type in ("Cos", "Sin"):
            return np.asarray(np.cos(x) if node.op_type == "Cos" else np.sin(x))
        return None

    def _is_position(self, value: ir.Value) -> bool:
        """Tell whether a value (B, S) is how many tokens the mask keeps before each new one."""
        if value.dtype != ir.DataType.INT64:
            return False
        try:
            tensor = read(value, self._inputs.sizes, self._inputs.mask)
            if tensor.sizes != (_BATCH, _NEW):
                return False
            return tensor.at((_ROW, _QUERY)) == Position(_ROW, _PAST + _QUERY, -1, 0)
        except Unreadable:
            return False

    def _flat(self, before: ir.Node, value: ir.Value) -> ir.Value:
        """Bring heads (B, N, S, D) to (B, S, N * D)."""
        shape = dims(value)
        assert shape is not None
        assert isinstance(shape[1], int)
        assert isinstance(shape[3], int)
        width = shape[1] * shape[3]
        turned = producer(value, "Transpose")
        apart = operand(turned, 0) if turned else None
        if turned is None or tuple(turned.attributes.get_ints("perm", ())) != _HEADS_OUT or apart is None:
            turned = ir.Node("", "Transpose", [value], [ir.AttrInt64s("perm", _HEADS_OUT)], num_outputs=1)
            apart = turned.outputs[0]
            self._insert(before, turned, f"{value.name}.turned", value, ir.Shape([shape[0], shape[2], *shape[1::2]]))
        split = producer(apart, "Reshape")
        source = operand(split, 0) if split else None
        if dims(source) == (shape[0], shape[2], width) and source is not None:
            return source
        target = self._numbers(f"flat_{width}", np.array([0, 0, width], np.int64))
        joined = ir.Node("", "Reshape", [apart, target], num_outputs=1)
        self._insert(before, joined, f"{value.name}.flat", value, ir.Shape([shape[0], shape[2], width]))
        return joined.outputs[0]

    def _insert(self, before: ir.Node, node: ir.Node, name: str, like: ir.Value, shape: ir.Shape) -> None:
        result = node.outputs[0]
        node.name, result.name, result.type, result.shape = name, name, like.type, shape
        node.metadata_props.update(before.metadata_props)
        self._graph.insert_before(before, node)

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

    def _packed(self, before: ir.Node, flat: list[ir.Value]) -> ir.Value | None:
        """Return one product by the joined weights in the place of three of the same value."""
        products = [each for value in flat if (each := _product(value)) is not None]
        if len(products) != len(flat) or len({each.kind for each in products}) != 1:
            return None
        first, like, shape = products[0].node, flat[0], dims(flat[0])
        assert shape is not None
        joined = [self._joined(list(each), first.op_type) for each in zip(*(p.weights for p in products), strict=True)]
        inputs = list(first.inputs)
        for place, weight in zip(products[0].places, joined, strict=False):
            inputs[place] = weight
        widths = [(dims(value) or (None,))[-1] for value in flat]
        if not all(isinstance(width, int) for width in widths):
            return None
        total = sum(width for width in widths if isinstance(width, int))
        attributes = [
            ir.AttrInt64("N", total) if name == "N" else attribute for name, attribute in first.attributes.items()
        ]
        node = ir.Node(first.domain, first.op_type, inputs, attributes, num_outputs=1, version=first.version)
        wide = ir.Shape([*shape[:2], total])
        self._insert(before, node, f"{like.name}.packed", like, wide)
        if products[0].bias is None:
            return node.outputs[0]
        add = ir.Node("", "Add", [node.outputs[0], joined[-1]], num_outputs=1)
        self._insert(before, add, f"{like.name}.packed.biased", like, wide)
        return add.outputs[0]

    def _joined(self, values: list[ir.Value], op_type: str) -> ir.Value:
        """Return weights beside each other, put together when they are written."""
        axis = -1 if op_type == "MatMul" else 0
        name = f"{values[0].name}.packed"
        tensors = [value.const_value for value in values if value.const_value is not None]
        sizes = [list(tensor.shape.numpy()) for tensor in tensors]
        whole = list(sizes[0])
        whole[axis] = sum(each[axis] for each in sizes)
        tensor = DerivedTensor(
            partial(_beside, axis), tensors, name=name, dtype=tensors[0].dtype, shape=ir.Shape(whole)
        )
        value = ir.Value(name=name, type=values[0].type, shape=ir.Shape(whole), const_value=tensor)
        self._graph.initializers.add(value)
        return value


def _beside(axis: int, *arrays: npt.NDArray[np.generic]) -> npt.NDArray[np.generic]:
    return np.concatenate(arrays, axis)


@dataclasses.dataclass(frozen=True)
class _Product:
    """A product with weights that nothing else reads, and a bias behind it."""

    node: ir.Node
    places: tuple[int, ...]
    bias: ir.Value | None

    @property
    def weights(self) -> list[ir.Value]:
        """The weights of the node, and the bias."""
        found = [self.node.inputs[place] for place in self.places]
        return [value for value in (*found, self.bias) if value is not None]

    @property
    def kind(self) -> tuple[object, ...]:
        """What is the same for products that can become one."""
        own = {name: attribute.value for name, attribute in self.node.attributes.items() if name != "N"}
        return (self.node.op_type, id(self.node.inputs[0]), self.places, self.bias is None, tuple(sorted(own.items())))


def _product(value: ir.Value) -> _Product | None:
    bias, add = None, producer(value, "Add")
    if add is not None:
        biases = [each for each in add.inputs if each is not None and each.is_initializer()]
        others = [each for each in add.inputs if each is not None and not each.is_initializer()]
        if len(biases) != 1 or dims(biases[0]) != ((dims(value) or (None,))[-1],):
            return None
        bias, value = biases[0], others[0]
    node = value.producer()
    if node is None or (node.domain, node.op_type) not in (("", "MatMul"), (DOMAIN, "MatMulNBits")):
        return None
    places = tuple(place for place, each in enumerate(node.inputs) if place and each is not None)
    result = _Product(node, places, bias)
    # Zeros of four bits are packed in pairs, which do not join where their number is odd.
    if node.op_type == "MatMulNBits" and not set(places) <= {1, 2, 5}:
        return None
    ready = all(w.is_initializer() and w.const_value is not None and len(w.uses()) == 1 for w in result.weights)
    is_matrix = node.op_type != "MatMul" or len(dims(result.weights[0]) or ()) == 2
    return result if ready and is_matrix else None
