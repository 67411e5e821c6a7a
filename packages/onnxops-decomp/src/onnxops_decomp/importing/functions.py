"""How much the functions of a model are when each of their calls is replaced by their nodes."""

from __future__ import annotations

from collections.abc import Collection, Iterable

import onnx_ir as ir

from onnxops_decomp.importing.errors import ModelImportError

__all__ = ["check_size", "without_inputs"]

_MOST_NODES = 1_000_000


def check_size(model: ir.Model) -> None:
    """Refuse a model whose functions become too many nodes when they are inlined: each may call another twice.

    Raises:
        ModelImportError: If they do, or call each other endlessly.
    """
    sizes: dict[ir.OperatorIdentifier, int] = {}

    def size_of(nodes: Iterable[ir.Node], callers: tuple[ir.OperatorIdentifier, ...]) -> int:
        return sum(of_function(node.op_identifier(), callers) for node in nodes)

    def of_function(name: ir.OperatorIdentifier, callers: tuple[ir.OperatorIdentifier, ...]) -> int:
        function = model.functions.get(name)
        if function is None:
            return 1
        if name in callers:
            raise ModelImportError("Functions of the model call each other recursively.")
        if name not in sizes:
            sizes[name] = size_of(function.all_nodes(), (*callers, name))
        return sizes[name]

    if model.functions and (total := size_of(model.graph.all_nodes(), ())) > _MOST_NODES:
        raise ModelImportError(f"The functions of the model stand for {total} nodes; {_MOST_NODES} are read at most.")


def without_inputs(function: ir.Function, given: Collection[int]) -> ir.Function:
    """Return a function whose nodes leave out the inputs that a call leaves out.

    Args:
        function: The function, which is left as it is.
        given: Places of the inputs that the call has.
    """
    if all(place in given for place in range(len(function.inputs))):
        return function
    function = function.clone()
    for place, value in enumerate(function.inputs):
        if place not in given:
            for use in tuple(value.uses()):
                use.node.replace_input_with(use.idx, None)
    return function
