"""Parts of a transposed tensor whose gated result is transposed back: fewer and smaller transpositions."""

from __future__ import annotations

from collections.abc import Sequence

import onnx_ir as ir

from onnxops_decomp.passes.matching import dims, other_operand, producer, replace_outputs, sole_user, sweep

__all__ = ["TransposePartsLater"]

_BINARY = ("Add", "Mul")


class TransposePartsLater(ir.passes.InPlacePass):
    """Splits before a transposition, where a part of it only gates what is transposed back afterwards.

    A layer with a short convolution transposes its whole projection, splits it, and transposes its result: the part
    that gates the result need not be transposed, and what is left of the others is smaller.
    """

    def call(self, model: ir.Model) -> ir.passes.PassResult:
        """Run the pass on the main graph."""
        modified = False
        for node in list(model.graph):
            if (node.domain, node.op_type) == ("", "Transpose"):
                modified |= _rewrite(node)
        return ir.passes.PassResult(model, modified)


def _rewrite(back: ir.Node) -> bool:
    gated = back.inputs[0]
    gate = next((node for op_type in _BINARY if (node := producer(gated, op_type))), None)
    if gated is None or gate is None or sole_user(gated) is not back:
        return False
    for part in gate.inputs:
        split = producer(part, "Split")
        there = None if split is None else producer(split.inputs[0], "Transpose")
        if part is None or split is None or there is None or sole_user(part) is not gate:
            continue
        other = other_operand(gate, part)
        if other is None or dims(other) != dims(part) or not _undoes(back, there) or not _read_by(there, split):
            continue
        reader = _reader([each for each in split.outputs if each is not part])
        if reader is not None:
            _divide(there, split, reader)
            _gate(back, gate, part, other)
            return True
    return False


def _read_by(node: ir.Node, user: ir.Node) -> bool:
    return sole_user(node.outputs[0]) is user


def _undoes(back: ir.Node, there: ir.Node) -> bool:
    first, second = _permutation(there), _permutation(back)
    return len(first) == len(second) > 0 and [first[axis] for axis in second] == [*range(len(first))]


def _permutation(node: ir.Node) -> list[int]:
    return [*node.attributes.get_ints("perm", ())]


def _reader(parts: Sequence[ir.Value]) -> ir.Node | None:
    """Return the one node that makes one tensor of the parts, elementwise."""
    users = {sole_user(part) for part in parts}
    user = next(iter(users)) if len(users) == 1 else None
    if user is None or len(parts) != 2 or user.op_type not in _BINARY or user.domain:
        return None
    if user.outputs[0].is_graph_output():
        return None
    return user if dims(parts[0]) == dims(parts[1]) and {*user.inputs} == {*parts} else None


def _divide(there: ir.Node, split: ir.Node, reader: ir.Node) -> None:
    """Split what is transposed instead of the transposed, and transpose what ``reader`` makes of two parts."""
    perm, graph, result = _permutation(there), split.graph, reader.outputs[0]
    assert graph is not None
    split.replace_input_with(0, there.inputs[0])
    split.attributes["axis"] = ir.AttrInt64("axis", perm[split.attributes.get_int("axis", 0)])
    for value in (*split.outputs, result):
        value.shape = _permuted(value.shape, _inverse(perm))
    readers = [(use.node, use.idx) for use in result.uses()]
    turned = _transpose(result, perm, f"{result.name}.turned", graph, behind=reader)
    for node, index in readers:
        node.replace_input_with(index, turned)
    sweep(there)


def _gate(back: ir.Node, gate: ir.Node, part: ir.Value, other: ir.Value) -> None:
    """Gate what is transposed back, instead of transposing back what is gated."""
    graph = gate.graph
    assert graph is not None
    turned = _transpose(other, _permutation(back), f"{gate.outputs[0].name}.back", graph, behind=gate)
    result = ir.Node("", gate.op_type, [turned, part], num_outputs=1, metadata_props=dict(gate.metadata_props))
    replace_outputs(back, result, {0: back.outputs[0]})
    sweep(back)


def _transpose(value: ir.Value, perm: list[int], name: str, graph: ir.Graph, *, behind: ir.Node) -> ir.Value:
    node = ir.node("Transpose", [value], {"perm": perm}, name=name)
    node.metadata_props.update(behind.metadata_props)
    turned = node.outputs[0]
    turned.name, turned.type, turned.shape = name, value.type, _permuted(value.shape, perm)
    graph.insert_after(behind, node)
    return turned


def _permuted(shape: ir.Shape | None, perm: Sequence[int]) -> ir.Shape | None:
    return None if shape is None else ir.Shape([shape[axis] for axis in perm])


def _inverse(perm: Sequence[int]) -> list[int]:
    return [perm.index(axis) for axis in range(len(perm))]
