"""What the operators of a model need of sizes beyond what capture noted: tables of a fixed length, broadcasting."""

from __future__ import annotations

import ast
import contextlib
from collections.abc import Iterable, Iterator

import onnx_ir as ir

from onnxops_decomp.builder.sizes import DIM_KEY
from onnxops_decomp.exporting.sizes.expressions import names_in_size, parsed_size, value_of_size
from onnxops_decomp.spec.traits import Trait, has_trait

__all__ = ["assumed_conditions"]


def assumed_conditions(model: ir.Model, *, divisions: bool = False) -> list[str]:
    """Return the conditions on named dimensions of a model's inputs without which a node of it fails.

    A Gather that counts up to a size reads no further than its table reaches; sizes that meet in an elementwise
    operator or in a matrix product are equal, or one of them is broadcast; a recurrence has steps.

    Args:
        model: The model.
        divisions: Whether sizes that a node divides are not known to be multiples, as they are of a capture.
    """
    known = {
        dim.value
        for value in model.graph.inputs
        for dim in value.shape or ()
        if not isinstance(dim, int) and dim.value is not None
    }
    found: dict[str, None] = {}
    for node in model.graph if known else ():
        for text in _assumed(node, divisions):
            tree = parsed_size(text)
            if tree is not None and (names := names_in_size(tree)) and names <= known:
                found.setdefault(text)
    return list(found)


def _assumed(node: ir.Node, divisions: bool) -> Iterable[str]:
    """Return what a node needs of sizes, also of those that are no names of inputs."""
    kind = node.op_type
    if has_trait(kind, Trait.BROADCASTS, node.domain):
        return _of_broadcast(node, 1)
    match kind if not node.domain else "":
        case "Gather":
            return _of_table(node)
        case "MatMul":
            # Those that meet are the axes before the matrices.
            return (*_of_broadcast(node, 3), *_of_product(node))
        case "DepthToSpace" | "Reshape":
            return _of_division(node) if divisions else ()
        case "GRU" | "LSTM" | "RNN":
            return _of_steps(node)
    return ()


def _of_table(node: ir.Node) -> Iterator[str]:
    data, indices = node.inputs
    if data is None or indices is None or data.shape is None:
        return
    rows = data.shape[node.attributes["axis"].as_int() if "axis" in node.attributes else 0]
    end = _end(indices)
    if end is not None and (text := _text(rows)) is not None and end != text:
        yield f"{end} <= {text}"


def _end(value: ir.Value) -> str | None:
    """Return the number that the elements of a value, which count up in steps of 1, stay below."""
    node = value.producer()
    if node is None or node.domain:
        return None
    if node.inputs[0] is not None and (node.op_type == "Cast" or has_trait(node.op_type, Trait.REARRANGES)):
        return _end(node.inputs[0])
    if node.op_type == "Range":
        _, limit, step = node.inputs
        return _number(limit) if _number(step) == "1" else None
    if node.op_type == "Add":
        for counted, offset in (node.inputs, node.inputs[::-1]):
            if counted is not None and (end := _end(counted)) is not None and (by := _number(offset)) is not None:
                return f"{end} + {by}"
    return None


def _number(value: ir.Value | None) -> str | None:
    """Return the text of a number of the model: a constant, or a size."""
    if value is None:
        return None
    if value.const_value is not None:
        array = value.const_value.numpy()
        return str(array.item()) if array.size == 1 and array.dtype.kind == "i" else None
    return _text(value.meta.get(DIM_KEY))


def _text(dim: object) -> str | None:
    """Return a size as the text of a condition has it."""
    return str(dim) if isinstance(dim, int) else dim.value if isinstance(dim, ir.SymbolicDim) else None


def _of_broadcast(node: ir.Node, first: int) -> Iterator[str]:
    """Yield which sizes meet: what follows from the result's is right for those alone that give these.

    Args:
        node: The node.
        first: The first axis that is broadcast, counted from the last one.
    """
    present = [value.shape for value in node.inputs if value is not None and value.shape is not None]
    result = node.outputs[0].shape
    for axis in range(first, max(map(len, present)) + 1 if len(present) > 1 else 0):
        dims = dict.fromkeys(_text(shape[-axis]) for shape in present if len(shape) >= axis)
        texts = [text for text in dims if text is not None and text != "1"]
        met = None if result is None or len(result) < axis else _text(result[-axis])
        for other in texts if met in texts else texts[1:]:
            if met not in texts:
                yield _same_or_one(texts[0], other)
            elif other != met:
                yield f"{met} == {other}" if other.isdecimal() else f"{met} == {other} or {other} == 1"


def _of_product(node: ir.Node) -> Iterator[str]:
    left, right = (value.shape if value is not None else None for value in node.inputs)
    if left and right:
        inner, other = _text(left[-1]), _text(right[-2 if len(right) > 1 else -1])
        if inner is not None and other is not None and inner != other:
            yield f"{inner} == {other}"


def _of_steps(node: ir.Node) -> Iterator[str]:
    """Yield that a recurrence has steps, as torch asks of it, and what ONNX Runtime ends the process without: rows."""
    if node.inputs[0] is None:
        return
    needed = 1 if node.op_type == "RNN" else 2
    for dim in (node.inputs[0].shape or ())[:needed]:
        if isinstance(dim, ir.SymbolicDim) and dim.value is not None:
            yield f"{dim.value} >= 1"


def _of_division(node: ir.Node) -> Iterator[str]:
    """Yield that a size is a multiple, where a node that keeps all elements has a quotient among its dimensions."""
    given, made = node.inputs[0], node.outputs[0]
    before, after = (value.shape if value is not None else None for value in (given, made))
    if before is None or after is None:
        return
    for text in map(_text, after):
        tree = None if text is None else parsed_size(text)
        if not isinstance(tree, ast.BinOp) or not isinstance(tree.op, ast.FloorDiv):
            continue
        if not _equal(_product(before), _product(after)):
            yield f"({ast.unparse(tree.left)}) % ({ast.unparse(tree.right)}) == 0"


def _product(shape: ir.Shape) -> ast.expr | None:
    """Return the number of elements of a shape; None if a dimension is not known."""
    texts = list(map(_text, shape))
    return None if None in texts else parsed_size(" * ".join(f"({text})" for text in texts) or "1")


def _equal(left: ast.expr | None, right: ast.expr | None) -> bool:
    """Tell whether two sizes are equal, or not known, whatever their names stand for: by trying some numbers.

    There is no such size where one of them divides by 0.
    """
    if left is None or right is None:
        return True
    names = sorted(names_in_size(left) | names_in_size(right))
    for step in range(1, 14):
        values = {name: step + 5 * place for place, name in enumerate(names)}
        with contextlib.suppress(ZeroDivisionError, ValueError):
            if value_of_size(left, values) != value_of_size(right, values):
                return False
    return True


def _same_or_one(a: str, b: str) -> str:
    ones = [f"{text} == 1" for text in (a, b) if not text.isdecimal()]
    return " or ".join([f"{a} == {b}", *ones])
