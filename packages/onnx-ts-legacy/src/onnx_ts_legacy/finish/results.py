"""What a program returns, as a structure of Python containers with the model's outputs as leaves."""

from __future__ import annotations

import collections
import dataclasses
import re
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from torch.utils import _pytree as pytree

from onnx_ts_legacy.capture.flat_model import is_left_out
from onnx_ts_legacy.capture.graphs import Captured
from onnx_ts_legacy.graph.parts import block_outputs, is_number_of_trace, node_inputs
from onnx_ts_legacy.state.values import DictRef, ListRef, Maybe, SequenceState, Tensor, VectorState
from onnxops_decomp.exporting import key_of, output_name

__all__ = ["Result", "results_of"]


@dataclasses.dataclass
class Result:
    """A value that becomes an output of the model.

    Attributes:
        name: What the keys and places that lead to it call it.
        value: What the program returns there.
        node: The node that gives it.
        is_number: Whether it is a number of Python in the program, or a list of them.
    """

    name: str
    value: Any
    node: Any
    is_number: bool


def results_of(
    captured: Captured, values: Sequence[Any], left_out: dict[str, Any]
) -> tuple[list[Result], list[Any], pytree.TreeSpec]:
    """Return the results of a program.

    Args:
        captured: The program.
        values: What its graph returns.
        left_out: Receives what has no value in ONNX, by its place in the result.

    Returns:
        The outputs of the model; the leaves of the result, each the number of its output or a constant; its structure.
    """
    variables = block_outputs(captured.graph)
    kinds = [variable.type() for variable in variables]
    several = len(values) > 1
    plain, named = (
        tuple(map(partial(_plain, names=names), values, kinds)) if several else _plain(values[0], kinds[0], names)
        for names in (False, True)
    )
    found, structure = pytree.tree_flatten_with_path(named)
    results: list[Result] = []
    leaves: list[Any] = []
    for (path, leaf), (plain_path, _) in zip(found, pytree.tree_flatten_with_path(plain)[0], strict=True):
        keys = tuple(map(key_of, path))
        numbers = [str(key_of(entry)) for entry in plain_path]
        leaves.append(leaf if is_left_out(leaf) else len(results))
        if is_left_out(leaf):
            left_out[output_name(keys)] = leaf
        else:
            variable, rest = (variables[int(numbers[0])], numbers[1:]) if several else (variables[0], numbers)
            given = _given(variable, rest)
            results.append(Result(output_name(keys), leaf.value, given.node(), _is_number(leaf.value)))
            if captured.result:
                results[-1].is_number = is_number_of_trace(given)
    if captured.result:
        # A trace returns what the result holds one by one.
        places = iter(range(len(results)))
        leaves = [kind if is_left_out(kind) else next(places) for kind in captured.result]
        for kind, place in zip(captured.result, leaves, strict=True):
            if kind in (bool, int, float):
                results[place].is_number = True
        structure = captured.structure.outputs
    return results, leaves, structure


@dataclasses.dataclass(frozen=True)
class _Leaf:
    value: Any


def _plain(value: Any, kind: Any, names: bool) -> Any:
    """Return a value as containers of Python with leaves that pytree does not look into.

    Args:
        value: The value.
        kind: What TorchScript calls its type; None if that is not known.
        names: Whether the fields of tuples have their names.
    """
    if kind is not None and kind.kind() == "OptionalType":
        kind = kind.getElementType()
    known = kind.kind() if kind is not None else ""
    if value is None or isinstance(value, str):
        return value
    if isinstance(value, tuple):
        kinds = kind.elements() if known == "TupleType" else [None] * len(value)
        parts = tuple(_plain(part, each, names) for part, each in zip(value, kinds, strict=True))
        made = _named_tuple(kind) if names and known == "TupleType" else None
        return made(*parts) if made is not None else parts
    if isinstance(value, ListRef) and not isinstance(value.state, SequenceState | VectorState):
        of_parts = kind.getElementType() if known == "ListType" else None
        return [_plain(part, of_parts, names) for part in value.items]
    if isinstance(value, DictRef):
        of_parts = kind.getValueType() if known == "DictType" else None
        return {key: _plain(item, of_parts, names) for key, item in value.items.items()}
    return _Leaf(value)


def _named_tuple(kind: Any) -> Callable[..., Any] | None:
    """Return a class with the fields of a NamedTuple of TorchScript, which torch makes anew too; None for a tuple."""
    fields = ", ".join(rf"(\w+) : {re.escape(part.str())}" for part in kind.elements())
    match = re.fullmatch(rf"NamedTuple\({fields}\)", kind.str())
    if match is None:
        return None
    return collections.namedtuple(kind.annotation_str.rpartition(".")[2], match.groups())


def _given(variable: Any, path: Sequence[str]) -> Any:
    """Return the value that is an output, also where the graph gives a tuple of several."""
    node = variable.node()
    if node.kind() == "prim::TupleConstruct" and path and path[0].isdigit():
        return node_inputs(node)[int(path[0])]
    return variable


def _is_number(value: Any) -> bool:
    """Tell whether a scripted program returns a number or a list of numbers."""
    if isinstance(value, ListRef):
        return isinstance(value.state, VectorState)
    return not isinstance(value, Tensor | Maybe)
