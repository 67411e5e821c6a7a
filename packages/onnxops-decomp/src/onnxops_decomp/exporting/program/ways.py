"""Programs of one model that are right for different sizes, as one that chooses among them by the sizes of its inputs.

Each program becomes a branch of an If whose condition is what the program says of the sizes that it is right for, so
that the whole takes what one of them takes, and gives what that one gives.
"""

from __future__ import annotations

import ast
import dataclasses
from collections.abc import Iterator, Mapping, Sequence
from functools import partial

import numpy as np
import onnx_ir as ir
import torch

from onnxops_decomp.builder.expressions import emit_expression
from onnxops_decomp.builder.op_builder import OpBuilder
from onnxops_decomp.builder.scope import axis_size, remove_unused
from onnxops_decomp.exporting.calls.interface import Output
from onnxops_decomp.exporting.finish.weights import DeduplicateInitializers, restore_duplicates
from onnxops_decomp.exporting.program.onnx_program import ONNXProgram
from onnxops_decomp.exporting.sizes.conditions import either_of
from onnxops_decomp.exporting.sizes.constraints import SizeConstraints
from onnxops_decomp.exporting.sizes.dimensions import renamed_text
from onnxops_decomp.exporting.sizes.expressions import condition_holds, names_in_size, parsed_size, size, unevaluated
from onnxops_decomp.exporting.weights.initializers import TIED_KEY

__all__ = ["Way", "merge_programs"]

_PREFIX = "way"
# A weight that is not the same memory is compared up to so many elements.
_MOST_COMPARED = 1 << 16
_COMPARISONS = (ast.Eq, ast.NotEq, ast.Lt, ast.LtE, ast.Gt, ast.GtE)


@dataclasses.dataclass(frozen=True)
class Way:
    """A program that is right for some sizes.

    Attributes:
        program: The program.
        conditions: What has to hold of the sizes, over the names that the first way has for the dimensions.
        names: These names by those that the program has.
        fixed: The sizes of dimensions that the program has only one size of.
    """

    program: ONNXProgram
    conditions: tuple[str, ...]
    names: Mapping[str, str] = dataclasses.field(default_factory=dict)
    fixed: Mapping[str, int] = dataclasses.field(default_factory=dict)

    @classmethod
    def of(cls, program: ONNXProgram, first: ONNXProgram) -> Way | None:
        """Return a program as a way beside the first one; None if one model cannot hold both."""
        way = cls.alone(program, first)
        known = {text for _, _, text in _dimensions(first.model.graph)}
        if way is None or program.model.functions or not all(_is_computable(text, known) for text in way.conditions):
            return None
        return way

    @classmethod
    def alone(cls, program: ONNXProgram, first: ONNXProgram) -> Way | None:
        """Return a program that may stand in place of the first one, also where no graph can compute its conditions.

        None if it has other inputs or outputs, changes state, or its conditions cannot be told.
        """
        if not _is_plain(program) or not _are_alike(program, first):
            return None
        names: dict[str, str] = {}
        fixed: dict[str, int] = {}
        equal: list[str] = []
        for value, own in zip(first.model.graph.inputs, program.model.graph.inputs, strict=True):
            for dim, own_dim in zip(value.shape or (), own.shape or (), strict=True):
                found = _relation(dim, own_dim, names)
                if found is None:
                    return None
                equal += [found] if found else []
                if isinstance(own_dim, int) and not isinstance(dim, int):
                    fixed[str(dim.value)] = own_dim
        texts = [*(renamed_text(text, names) for text in program.constraints.conditions), *equal]
        return cls(program, tuple(dict.fromkeys(texts)), names, fixed)

    def dimensions(self) -> dict[str, list[tuple[int, int]]]:
        """Return the places of each named dimension of the program: leaf of a call, and axis."""
        found: dict[str, list[tuple[int, int]]] = {}
        for leaf, value in zip(self.program._interface.input_positions, self.program.model.graph.inputs, strict=True):
            for axis, dim in enumerate(value.shape or ()):
                if not isinstance(dim, int):
                    found.setdefault(str(dim.value), []).append((leaf, axis))
        return found

    def takes(self, sizes: Mapping[str, int]) -> bool:
        """Tell whether the program is right for dimensions of these sizes."""
        trees = (parsed_size(text) for text in self.conditions)
        return all(tree is not None and condition_holds(tree, sizes) for tree in trees)


def merge_programs(ways: Sequence[Way], *, folds_weights: bool = True) -> ONNXProgram:
    """Merge the programs of some ways into that of the first one, in place, and return it.

    Of several programs that are right for the sizes of a call, the first one runs.

    Args:
        ways: The ways, whose programs are used up.
        folds_weights: Whether weights of equal contents may be stored once.
    """
    first = ways[0].program
    model, graph = first.model, first.model.graph
    for way in ways:
        restore_duplicates(way.program.model)
    common = [text for text in ways[0].conditions if all(text in way.conditions for way in ways)]
    own = [[text for text in way.conditions if text not in common] for way in ways]
    outputs = _common_outputs(ways)
    taken = set(_names(graph))
    bodies = [_body(graph, way.program.model.graph, number, taken) for number, way in enumerate(ways, 1)]
    results = _chain(graph, _predicates(graph, own[:-1]), bodies)
    for value, like in zip(results, outputs, strict=True):
        value.name, value.type, value.shape = like.name, like.type, like.shape
        value.meta.update(like.meta)
    graph.outputs.extend(results)
    for way in ways[1:]:
        for domain, version in way.program.model.graph.opset_imports.items():
            graph.opset_imports.setdefault(domain, version)
    if folds_weights:
        DeduplicateInitializers()(model)
    first.constraints = SizeConstraints([*common, *either_of(own)], first.constraints.places, simple=True)
    first.constraints.record(model)
    return first


# ---- what can be merged


def _is_plain(program: ONNXProgram) -> bool:
    """Tell whether a program does nothing but to compute its outputs, at sizes that can be told."""
    interface, graph = program._interface, program.model.graph
    changes = program.state or program.initial_state or program.written_inputs
    computed = all(value.producer() is not None and value.type is not None for value in graph.outputs)
    return not changes and not interface.numbers and not program.constraints.unread and computed


def _are_alike(program: ONNXProgram, first: ONNXProgram) -> bool:
    """Tell whether two programs have the same inputs, and outputs of the same names, dtypes and ranks."""
    one, other = first._interface, program._interface
    graphs = [each.model.graph for each in (first, program)]
    inputs = [_kinds(graph.inputs) for graph in graphs]
    outputs = [_kinds(graph.outputs) for graph in graphs]
    imports, own = (graph.opset_imports for graph in graphs)
    return (
        inputs[0] == inputs[1]
        and outputs[0] == outputs[1]
        and None not in (*inputs[0], *outputs[0])
        and all(own[domain] == version for domain, version in imports.items() if domain in own)
        and list(one.input_positions) == list(other.input_positions)
        and len(one.outputs) == len(other.outputs)
        and all(map(_is_same, one.outputs, other.outputs))
        and one.structure.outputs == other.structure.outputs
        and one.number_outputs == other.number_outputs
        and one.complex_outputs == other.complex_outputs
    )


def _is_same(first: object, second: object) -> bool:
    """Tell whether two programs have the same output for a leaf of the result, or the same number or text."""
    plain = isinstance(first, Output | bool | int | float | str | None)
    return plain and type(first) is type(second) and first == second


def _kinds(values: Sequence[ir.Value]) -> list[tuple[str | None, str, int] | None]:
    kinds = ((value.name, str(value.type), None if value.shape is None else len(value.shape)) for value in values)
    return [None if rank is None else (name, kind, rank) for name, kind, rank in kinds]


def _relation(dim: int | ir.SymbolicDim, own: int | ir.SymbolicDim, names: dict[str, str]) -> str | None:
    """Return what a dimension of a way says of that of the first one, empty if nothing; None if it cannot be told.

    Args:
        dim: That of the first way.
        own: That of the way.
        names: What the first way calls the dimensions of the way.
    """
    if isinstance(dim, int):
        return "" if own == dim else None
    if dim.value is None or not dim.value.isidentifier():
        return None
    if isinstance(own, int):
        return f"{dim.value} == {own}"
    if own.value is None or not own.value.isidentifier():
        return None
    known = names.setdefault(own.value, dim.value)
    return "" if known == dim.value else f"{dim.value} == {known}"


def _is_computable(text: str, names: set[str]) -> bool:
    """Tell whether a condition can be computed from sizes: by integers, without a division by what may be 0."""
    tree = parsed_size(text)
    return tree is not None and names_in_size(tree) <= names and _is_truth(tree)


def _is_truth(tree: ast.expr) -> bool:
    match tree:
        case ast.Compare(left=left, ops=[sign], comparators=[right]):
            return isinstance(sign, _COMPARISONS) and _is_integer(left) and _is_integer(right)
        case ast.BoolOp(values=parts):
            return all(map(_is_truth, parts))
        case ast.UnaryOp(op=ast.Not(), operand=operand):
            return _is_truth(operand)
    return False


def _is_integer(tree: ast.expr) -> bool:
    match tree:
        case ast.Name():
            return True
        case ast.Constant(value=value):
            return type(value) is int
        case ast.BinOp(left=left, op=ast.Add() | ast.Sub() | ast.Mult(), right=right):
            return _is_integer(left) and _is_integer(right)
        case ast.BinOp(left=left, op=ast.FloorDiv() | ast.Mod(), right=ast.Constant(value=int(divisor))):
            return divisor > 0 and _is_integer(left)
        case ast.UnaryOp(op=ast.USub(), operand=operand):
            return _is_integer(operand)
        case ast.Call(func=ast.Name(id="abs" | "min" | "max"), args=parts):
            return all(map(_is_integer, parts))
    return False


# ---- what the ways say together


def _common_outputs(ways: Sequence[Way]) -> list[ir.Value]:
    """Return values like the outputs of all ways: what only some of them say of a shape is left open."""
    found = []
    for values in zip(*(way.program.model.graph.outputs for way in ways), strict=True):
        shapes = [[*(value.shape or ())] for value in values]
        shape = ir.Shape([_common_dim(dims, ways) for dims in zip(*shapes, strict=True)])
        found.append(ir.Value(name=values[0].name, type=values[0].type, shape=shape))
        found[-1].meta.update(values[0].meta)
    return found


def _common_dim(dims: Sequence[int | ir.SymbolicDim], ways: Sequence[Way]) -> int | ir.SymbolicDim:
    first, *others = dims
    same = all(_is_one(first, dim, way) for dim, way in zip(others, ways[1:], strict=True))
    return first if same else ir.SymbolicDim(None)


def _is_one(first: int | ir.SymbolicDim, dim: int | ir.SymbolicDim, way: Way) -> bool:
    """Tell whether a dimension of an output of the first way is that of another one wherever that is taken."""
    if isinstance(first, int) or first.value is None:
        return isinstance(first, int) and dim == first
    if isinstance(dim, int):
        return size(first.value, way.fixed) == dim
    return dim.value is not None and renamed_text(dim.value, way.names) == first.value


# ---- the graph


def _dimensions(graph: ir.Graph) -> Iterator[tuple[ir.Value, int, str]]:
    """Yield the named dimensions of the inputs."""
    for value in graph.inputs:
        for axis, dim in enumerate(value.shape or ()):
            if not isinstance(dim, int) and dim.value is not None:
                yield value, axis, dim.value


def _predicates(graph: ir.Graph, conditions: Sequence[Sequence[str]]) -> list[ir.Value]:
    """Write into a graph whether all conditions of a group hold, for each group."""
    op = OpBuilder(graph.opset_imports[""])
    for value, axis, name in _dimensions(graph):
        op.context.symbols.setdefault(name, partial(axis_size, value, axis))
    chosen = []
    for texts in conditions:
        holds = op.constant([True], ir.DataType.BOOL)
        for index, text in enumerate(texts):
            tree = parsed_size(text)
            assert tree is not None, text
            one = emit_expression(op, unevaluated(tree))
            holds = op.And(holds, one) if index else one
        chosen.append(op.Reshape(holds, op.vector([])))
    nodes = list(remove_unused(op.scope.nodes, set(chosen)))
    constants = list(op.context.constants.used())
    for index, value in enumerate([*constants, *(output for node in nodes for output in node.outputs)]):
        value.name = f"{_PREFIX}_of_sizes_{index}"
    for index, node in enumerate(nodes):
        node.name = f"{_PREFIX}_of_sizes: {node.op_type} {index}"
    for constant in constants:
        graph.register_initializer(constant)
    graph.extend(nodes)
    return chosen


def _body(graph: ir.Graph, source: ir.Graph, number: int, taken: set[str]) -> ir.Graph:
    """Take the nodes of a way out of its graph, and return the graph of a branch with them.

    Args:
        graph: The graph that the branch will be in, which has the inputs.
        source: The graph of the way, which may be the same.
        number: The number of the way.
        taken: The names of values that other branches have.
    """
    prefix = f"{_PREFIX}_{number}"
    if source is not graph:
        for value, own in zip(graph.inputs, source.inputs, strict=True):
            own.replace_all_uses_with(value)
        _move_weights(graph, source, prefix, taken)
    outputs, nodes = [*source.outputs], [*source]
    source.outputs.clear()
    source.remove(nodes)
    body = ir.Graph([], outputs, nodes=nodes, name=prefix, opset_imports=dict(graph.opset_imports))
    if source is graph:
        for value in outputs:
            value.name = f"{prefix}.{value.name}"
    else:
        _rename(body, prefix)
    return body


def _names(graph: ir.Graph) -> Iterator[str]:
    """Yield the names of all values of a graph and of those in it."""
    for each in (graph, *graph.subgraphs()):
        results = (output for node in each for output in node.outputs)
        yield from (str(value.name) for value in (*each.inputs, *each.initializers.values(), *results))


def _rename(body: ir.Graph, prefix: str) -> None:
    """Give all values and nodes of a branch names that those of no other branch have."""
    for each in (body, *body.subgraphs()):
        each.name = each.name if each is body else f"{prefix}.{each.name}"
        own = [*each.initializers.values(), *(value for value in each.inputs if not value.is_initializer())]
        for value in (*own, *(output for node in each for output in node.outputs)):
            value.name = f"{prefix}.{value.name}" if value.name else value.name
        for node in each:
            node.name = f"{prefix}.{node.name}" if node.name else node.name


def _move_weights(graph: ir.Graph, source: ir.Graph, prefix: str, taken: set[str]) -> None:
    """Give a graph the weights of another one that it does not have, under names that are not taken."""
    for name, value in [*source.initializers.items()]:
        present = graph.initializers.get(name)
        if present is not None and _is_equal(present, value):
            tied = dict.fromkeys((*present.meta.get(TIED_KEY, ()), *value.meta.get(TIED_KEY, ())))
            if tied:
                present.meta[TIED_KEY] = [*tied]
            value.replace_all_uses_with(present)
            source.initializers.pop(name)
            continue
        source.initializers.pop(name)
        if name in taken:
            value.name = f"{prefix}.{name}"
        taken.add(str(value.name))
        graph.initializers.add(value)


def _is_equal(first: ir.Value, second: ir.Value) -> bool:
    return first.type == second.type and _are_equal(first.const_value, second.const_value)


def _are_equal(first: ir.TensorProtocol | None, second: ir.TensorProtocol | None) -> bool:
    """Tell whether two weights have the same memory, or are small and equal."""
    if first is None or second is None or tuple(first.shape) != tuple(second.shape) or first.dtype != second.dtype:
        return False
    memory = [_memory(each) for each in (first, second)]
    if None not in memory:
        return memory[0] == memory[1]
    small = type(first) is type(second) is ir.Tensor and first.size <= _MOST_COMPARED
    return small and np.array_equal(first.numpy(), second.numpy())


def _memory(tensor: ir.TensorProtocol) -> tuple[object, ...] | None:
    """Return where the contents of a weight of torch are, and in which order; None for others and empty ones."""
    raw = getattr(tensor, "raw", None)
    if not isinstance(raw, torch.Tensor) or not raw.numel() or raw.device.type != "cpu":
        return None
    return raw.data_ptr(), raw.dtype, tuple(raw.shape), raw.stride(), raw.is_conj(), raw.is_neg()


def _chain(graph: ir.Graph, chosen: Sequence[ir.Value], bodies: Sequence[ir.Graph]) -> list[ir.Value]:
    """Write the Ifs into a graph, the first condition outside, and return their results."""
    imports, branch, results = dict(graph.opset_imports), bodies[-1], list[ir.Value]()
    for number in range(len(chosen), 0, -1):
        attributes = [ir.AttrGraph("then_branch", bodies[number - 1]), ir.AttrGraph("else_branch", branch)]
        name, count = f"{_PREFIX}s_{number}", len(branch.outputs)
        node = ir.Node("", "If", [chosen[number - 1]], attributes, num_outputs=count, name=name)
        results = [*node.outputs]
        for value, like in zip(results, branch.outputs, strict=True):
            value.name, value.type = f"{name}.{like.name}", like.type
            value.shape = ir.Shape([ir.SymbolicDim(None)] * len(like.shape or ()))
        if number == 1:
            graph.append(node)
        else:
            branch = ir.Graph([], results, nodes=[node], name=name, opset_imports=imports)
    return results
