"""What a program returns, as a structure of Python containers with the model's outputs as leaves."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

from torch.utils import _pytree as pytree

from onnx_ts_legacy.capture import Captured, is_left_out, joined
from onnx_ts_legacy.graph_parts import node_inputs
from onnx_ts_legacy.values import DictRef, ListRef, SequenceState, VectorState
from onnxops_decomp.exporting.naming import key_of

__all__ = ["Result", "results_of"]


@dataclasses.dataclass
class Result:
    """A value that becomes an output of the model.

    Attributes:
        path: Keys and places that lead to it, joined by underscores.
        value: What the program returns there.
        node: The node that gives it.
    """

    path: str
    value: Any
    node: Any


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
    variables = list(captured.graph.outputs())
    tree = tuple(map(_plain, values)) if len(values) > 1 else _plain(values[0])
    found, structure = pytree.tree_flatten_with_path(tree)
    results: list[Result] = []
    leaves: list[Any] = []
    for path, leaf in found:
        keys = [str(key_of(entry)) for entry in path]
        leaves.append(leaf if is_left_out(leaf) else len(results))
        if is_left_out(leaf):
            left_out[joined(("result", *keys))] = leaf
        else:
            variable, rest = (variables[int(keys[0])], keys[1:]) if len(values) > 1 else (variables[0], keys)
            results.append(Result("_".join(keys), leaf.value, _giver(variable, rest)))
    if captured.result:
        # A trace returns what the result holds one by one.
        places = iter(range(len(results)))
        return (
            results,
            [kind if is_left_out(kind) else next(places) for kind in captured.result],
            captured.structure.outputs,
        )
    return results, leaves, structure


@dataclasses.dataclass(frozen=True)
class _Leaf:
    value: Any


def _plain(value: Any) -> Any:
    """Return a value as containers of Python with leaves that pytree does not look into."""
    if value is None or isinstance(value, str):
        return value
    if isinstance(value, tuple):
        return tuple(map(_plain, value))
    if isinstance(value, ListRef) and not isinstance(value.state, SequenceState | VectorState):
        return list(map(_plain, value.items))
    if isinstance(value, DictRef):
        return {key: _plain(item) for key, item in value.items.items()}
    return _Leaf(value)


def _giver(variable: Any, path: Sequence[str]) -> Any:
    """Return the node that gives an output, also where the graph gives a tuple of several."""
    node = variable.node()
    if node.kind() == "prim::TupleConstruct" and path and path[0].isdigit():
        return node_inputs(node)[int(path[0])].node()
    return node
