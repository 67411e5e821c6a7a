"""TorchScript graphs: capturing, cutting and running them.

torch offers no public way to any of this; all uses of ``torch._C`` and ``torch.jit`` are in this module, and
``tests/test_torchscript.py`` notices when one of them changes.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from onnx_verify.errors import InputError, OnnxVerifyError
from onnx_verify.values.pytree import flatten
from onnx_verify.values.torch_tensors import require_torch

Graph = Any
"""A ``torch._C.Graph``, which has no public name."""

NOT_ESSENTIAL = frozenset(
    {
        "prim::Constant",
        "prim::ListConstruct",
        "prim::ListUnpack",
        "prim::TupleConstruct",
        "prim::TupleUnpack",
        "aten::ScalarImplicit",
    }
)
"""Kinds of nodes that compute nothing."""


def capture(model: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Graph, list[Any]]:
    """Return the flat graph of a module and a value for each of its inputs, weights last.

    A scripted module's own graph is used; any other module is traced.

    Raises:
        InputError: if the module cannot be traced, or a scripted one sets attributes.
    """
    torch = require_torch("reading a TorchScript graph")
    with warnings.catch_warnings():
        # Tracing is deprecated in favour of torch.export, but it is what is being verified here.
        warnings.simplefilter("ignore")
        try:
            scripted = isinstance(model, torch.jit.ScriptModule)
            graph, weights = _frozen(model) if scripted else _traced(model, args, kwargs)
            torch._C._jit_pass_lower_all_tuples(graph)
            torch._C._jit_pass_dce(graph)
        except InputError:
            raise
        except Exception as error:
            raise InputError(f"no TorchScript graph can be made of {type(model).__name__}: {error}") from error
    inputs = [*flatten((args, kwargs)), *weights]
    if len(inputs) != len(list(graph.inputs())):
        raise InputError(
            f"the graph takes {len(list(graph.inputs()))} inputs, {len(inputs)} were given; pass every input that "
            "the forward method has, in its order"
        )
    return graph, inputs


def _traced(model: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Graph, list[Any]]:
    """Trace a module; its weights become inputs of the graph."""
    torch = require_torch("tracing")
    traced = torch.jit.trace(model, args or None, example_kwarg_inputs=kwargs or None, check_trace=False, strict=False)
    graph = traced.graph.copy()
    torch._C._jit_pass_inline(graph)
    lowered, weights = torch._C._jit_pass_lower_graph(graph, traced._c)
    return lowered, list(weights)


def _frozen(model: Any) -> tuple[Graph, list[Any]]:
    """Freeze a scripted module; its weights become constants, for its graph also reads attributes of other types."""
    torch = require_torch("freezing")
    if model.training:
        raise InputError("a scripted module must be in evaluation mode; call model.eval() first")
    graph = torch.jit.freeze(model).graph.copy()
    torch._C._jit_pass_inline(graph)
    itself = next(graph.inputs())
    if itself.uses():
        raise InputError("the scripted module keeps state in its attributes, which a graph of its own cannot hold")
    graph.eraseInput(0)
    return graph, []


def run_graph(graph: Graph, inputs: Sequence[Any]) -> list[Any]:
    """Run a graph on copies of its inputs and return its flat outputs.

    Raises:
        OnnxVerifyError: if torch cannot run it.
    """
    torch = require_torch("running a TorchScript graph")
    runnable = graph.copy()
    runnable.makeMultiOutputIntoTuple()
    own = [value.detach().clone() if isinstance(value, torch.Tensor) else value for value in inputs]
    try:
        with torch.no_grad():
            return flatten(torch._C._create_function_from_graph("forward", runnable)(*own))
    except RuntimeError as error:
        raise OnnxVerifyError(f"torch cannot run a piece of the graph: {error}") from error


def essential_nodes(graph: Graph) -> list[Any]:
    """Return the nodes of the main block that compute something."""
    return [node for node in graph.nodes() if node.kind() not in NOT_ESSENTIAL]


def is_tensor_value(value: Any) -> bool:
    """Tell whether a value is a tensor, which is what may cross the border between two pieces."""
    return bool(value.type().kind() == "TensorType")


def _crosses(value: Any) -> bool:
    """Tell whether a value is handed from the upper to the lower part: a tensor that is computed."""
    return is_tensor_value(value) and value.node().kind() != "prim::Constant"


def split(graph: Graph, inputs: Sequence[Any], pivot: int) -> tuple[_Part, _Part] | None:
    """Cut a graph after its first ``pivot`` essential nodes.

    Only tensors cross the cut: a size, list or scalar that the lower part needs is computed there once more
    from
    the tensors that it comes from.

    Returns:
        The upper and the lower part, or None if the cut leaves one of them without a tensor to give or
        compute.
    """
    nodes = list(graph.nodes())
    essential = [i for i, node in enumerate(nodes) if node.kind() not in NOT_ESSENTIAL]
    border = essential[pivot]
    owner = {value.debugName(): i for i, node in enumerate(nodes) for value in node.outputs()}
    below = _closure(nodes, range(border, len(nodes)), owner, list(graph.outputs()))
    crossing = [
        value
        for i, node in enumerate(nodes)
        if i < border
        for value in node.outputs()
        if _crosses(value) and _is_read(value, below, graph, border, owner)
    ]
    above = _closure(nodes, range(border), owner, ())
    if not crossing:
        return None
    finals = [value for value in graph.outputs() if owner.get(value.debugName(), -1) >= border]
    upper = _Part(graph, sorted(above), crossing, inputs)
    lower = _Part(graph, sorted(below), finals, inputs, crossing)
    return (upper, lower) if finals else None


def _closure(nodes: Sequence[Any], start: Iterable[int], owner: dict[str, int], outputs: Iterable[Any]) -> set[int]:
    """Add to some nodes those before them whose result is not a tensor, for that cannot cross the border."""
    found = set(start)
    pending = [value for i in found for value in _reads(nodes[i])]
    pending += [value for value in outputs if not _crosses(value)]
    while pending:
        value = pending.pop()
        made = owner.get(value.debugName())
        if made is not None and made not in found and not _crosses(value):
            found.add(made)
            pending.extend(_reads(nodes[made]))
    return found


def _reads(node: Any) -> list[Any]:
    """Return what a node reads, its blocks included."""
    values = list(node.inputs())
    for block in node.blocks():
        for inner in block.nodes():
            values.extend(_reads(inner))
        values.extend(block.outputs())
    return values


def _is_read(value: Any, below: set[int], graph: Graph, border: int, owner: dict[str, int]) -> bool:
    name = value.debugName()
    nodes = list(graph.nodes())
    if any(read.debugName() == name for i in below if i != owner[name] for read in _reads(nodes[i])):
        return owner[name] not in below or owner[name] < border
    return any(output.debugName() == name for output in graph.outputs())


class _Part:
    """Some nodes of a graph as a graph of their own.

    Attributes:
        graph: the new graph.
        given: for each of its inputs, the position among the whole graph's inputs, or the name of a crossing
            value.
        names: the names of its outputs in the whole graph.
    """

    def __init__(
        self,
        source: Graph,
        nodes: Sequence[int],
        outputs: Sequence[Any],
        inputs: Sequence[Any],
        crossing: Sequence[Any] = (),
    ) -> None:
        """Clone the nodes, with the values that they read from outside as inputs."""
        torch = require_torch("cutting a TorchScript graph")
        del inputs
        self.graph = torch._C.Graph()
        self.given: list[int | str] = []
        self.names = [value.debugName() for value in outputs]
        taken = list(source.nodes())
        wanted = {value.debugName() for i in nodes for value in _reads(taken[i])} | set(self.names)
        mapped: dict[str, Any] = {}
        cut = {value.debugName() for value in crossing}
        for position, value in enumerate(source.inputs()):
            self._input(value, position, wanted, mapped)
        for value in crossing:
            self._input(value, value.debugName(), wanted, mapped)
        for i in nodes:
            clone = self.graph.createClone(taken[i], _lookup(mapped))
            self.graph.appendNode(clone)
            for old, new in zip(taken[i].outputs(), clone.outputs(), strict=True):
                if old.debugName() not in cut:
                    mapped[old.debugName()] = new
        for name in self.names:
            self.graph.registerOutput(mapped[name])
        torch._C._jit_pass_dce(self.graph)

    def _input(self, value: Any, origin: int | str, wanted: set[str], mapped: dict[str, Any]) -> None:
        if value.debugName() not in wanted:
            return
        added = self.graph.addInput()
        added.setType(value.type())
        mapped[value.debugName()] = added
        self.given.append(origin)


def _lookup(mapped: dict[str, Any]) -> Callable[[Any], Any]:
    """Return the function by which a clone finds what it reads; values of its own blocks map to themselves."""
    return lambda value: mapped.get(value.debugName(), value)


def node_kinds(graph: Graph) -> list[str]:
    """Return the kinds of the essential nodes in order."""
    return [str(node.kind()) for node in essential_nodes(graph)]
