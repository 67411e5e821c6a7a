"""The values of an fx graph, node by node: of an ExportedProgram, or of a graph nested in one."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np

from onnx_verify.errors import InputError, ModelRunError
from onnx_verify.inputs.sets import InputSet, as_array
from onnx_verify.values.torch_tensors import is_tensor, require_torch, to_numpy, to_tensor

if TYPE_CHECKING:
    import torch
    from torch.fx import GraphModule, Node

    from onnx_verify.running.streaming import Values

Arguments = Callable[[], Iterable[Any]]
"""Gives a value for each placeholder, anew for each run."""

Mode = Callable[[], AbstractContextManager[Any]]
"""Sets the mode that a node is run in."""


class GraphStream:
    """Interprets an fx graph beside an ONNX model; its values are named like its nodes.

    A value is copied when it is computed: what the graph later does to it in place does not count. Complex values
    are given as ONNX holds them, with the real and imaginary parts in a last dimension of two. The values of a region
    that runs in another mode, such as autocast, are named ``region/node``.
    """

    def __init__(self, module: GraphModule, arguments: Sequence[Arguments], mode: Mode = nullcontext) -> None:
        """Keep the graph and what it is run on, once per sample; nothing runs yet."""
        self.module = module
        self.arguments = list(arguments)
        self.mode = mode

    def only(self, sample: int) -> GraphStream:
        """Return the graph on one sample."""
        return GraphStream(self.module, [self.arguments[sample]], self.mode)

    @property
    def names(self) -> set[str]:
        """The nodes whose result is one tensor, in regions too."""
        return tensor_names(self.module)

    def values(self, wanted: set[str]) -> Iterator[tuple[str, Values]]:
        """Yield the wanted values in the order of the graph, and forget each after its last use."""
        left = len(wanted & self.names)
        for node, runs in self._steps():
            if node.op == "output" or not left:
                return
            if node.target in _regions():
                for name, values in self._within(node, runs, wanted):
                    left -= 1
                    yield name, values
            self._compute(runs, node)
            if node.name in wanted and _is_tensor_node(node):
                left -= 1
                yield node.name, [onnx_form(to_numpy(run.env[node])) for run in runs]

    def _within(self, node: Node, runs: Sequence[Any], wanted: set[str]) -> Iterator[tuple[str, Values]]:
        """Yield the wanted values of a region, which is run once more for them."""
        prefix = f"{node.name}/"
        inner = {name.removeprefix(prefix) for name in wanted if name.startswith(prefix)}
        if inner:
            region = self._region(node, [run.fetch_args_kwargs_from_env(node)[0] for run in runs])
            yield from ((prefix + name, values) for name, values in region.values(inner))

    def _region(self, node: Node, operands: Sequence[tuple[Any, ...]]) -> GraphStream:
        place, mode = _regions()[node.target]
        settings = operands[0][:place]
        arguments = [copies(each[place + 1 :]) for each in operands]
        return GraphStream(operands[0][place], arguments, lambda: mode(*settings))

    def enter(self, name: str) -> GraphStream:
        """Return a region as a graph of its own."""
        node = next(node for node in self.module.graph.nodes if node.name == name)
        return self._region(node, self.operands(name))

    def operands(self, name: str) -> list[tuple[Any, ...]]:
        """Return the positional arguments that a node is called with, one tuple per sample."""
        for node, runs in self._steps():
            if node.name == name:
                return [run.fetch_args_kwargs_from_env(node)[0] for run in runs]
            self._compute(runs, node)
        raise InputError(f"the graph has no node {name!r}")

    def results(self) -> list[list[Any]]:
        """Return what the graph returns, flat, one list per sample."""
        for node, runs in self._steps():
            if node.op == "output":
                found = [run.fetch_args_kwargs_from_env(node)[0][0] for run in runs]
                return [list(each) if isinstance(each, (list, tuple)) else [each] for each in found]
            self._compute(runs, node)
        return []

    def _steps(self) -> Iterator[tuple[Node, list[Any]]]:
        """Yield each node with the interpreters, which forget what no later node reads."""
        torch = require_torch("running an fx graph")
        runs = []
        for arguments in self.arguments:
            interpreter = torch.fx.Interpreter(self.module)
            interpreter.args_iter = iter(arguments())
            runs.append(interpreter)
        for node in self.module.graph.nodes:
            yield node, runs
            for run in runs:
                for dead in run.user_to_last_uses.get(node, ()):
                    run.env.pop(dead, None)

    def _compute(self, runs: Sequence[Any], node: Node) -> None:
        torch = require_torch("running an fx graph")
        try:
            with torch.no_grad(), self.mode():
                for run in runs:
                    run.env[node] = run.run_node(node)
        except InputError:
            raise
        except Exception as error:
            raise ModelRunError(f"fx node {node.name} ({node.target}) failed: {error}") from error


class FxStream(GraphStream):
    """Interprets an ExportedProgram."""

    def __init__(self, program: torch.export.ExportedProgram, sets: Sequence[InputSet]) -> None:
        """Keep the program; nothing runs yet."""
        self.program = program
        super().__init__(program.graph_module, [self._arguments(each) for each in sets])

    def _arguments(self, inputs: InputSet) -> Arguments:
        return lambda: self._placeholders(inputs)

    def _placeholders(self, inputs: InputSet) -> Iterator[Any]:
        """Yield a value for each placeholder: weights by name, then the flat inputs."""
        leaves = iter(_tensors(self._ordered(inputs)))
        held: Mapping[str, Any] = {**self.program.state_dict, **self.program.constants}
        for spec in self.program.graph_signature.input_specs:
            kind = spec.kind.name
            if kind == "USER_INPUT":
                fixed = getattr(spec.arg, "value", None)
                leaf = next(leaves, _MISSING)
                if leaf is _MISSING:
                    raise InputError(f"the program takes more inputs than the {len(inputs.leaves())} given")
                yield leaf if not isinstance(fixed, (int, float, bool)) else fixed
            elif spec.target in held:
                value = held[spec.target]
                yield value.detach().clone() if kind == "BUFFER" else value
            else:
                raise InputError(f"the program's input {spec.arg.name} ({kind}) has no value")

    def _ordered(self, inputs: InputSet) -> InputSet:
        """Put keyword arguments in the order of the placeholders, which are named after them."""
        names = [spec.arg.name for spec in self.program.graph_signature.input_specs if spec.kind.name == "USER_INPUT"]

        def place(key: str) -> int:
            fits = (i for i, name in enumerate(names) if name == key or name.startswith(f"{key}_"))
            return next(fits, len(names))

        return replace(inputs, kwargs={key: inputs.kwargs[key] for key in sorted(inputs.kwargs, key=place)})


_MISSING = object()


def copies(values: Sequence[Any]) -> Arguments:
    """Give values to a nested graph, which may write to them."""
    return lambda: [value.detach().clone() if is_tensor(value) else value for value in values]


def _regions() -> dict[Any, tuple[int, Callable[..., AbstractContextManager[Any]]]]:
    """Return the operators that run a graph in some mode, with the position of the graph and what sets the mode."""
    torch = require_torch("running an fx graph")
    operators = torch.ops.higher_order
    return {
        operators.wrap_with_set_grad_enabled: (1, lambda _: nullcontext()),
        operators.wrap_with_autocast: (4, torch.autocast),
    }


def regions(module: GraphModule) -> dict[str, GraphModule]:
    """Return the graphs that a graph runs in another mode, by the name of the node."""
    places = _regions()
    return {
        node.name: getattr(module, node.args[places[node.target][0]].target)
        for node in module.graph.nodes
        if node.target in places
    }


def tensor_names(module: GraphModule) -> set[str]:
    """Return the names of the nodes of a graph and of its regions whose result is one tensor."""
    names = {node.name for node in module.graph.nodes if _is_tensor_node(node)}
    for region, inner in regions(module).items():
        names |= {f"{region}/{name}" for name in tensor_names(inner)}
    return names


def onnx_form(array: Any) -> Any:
    """Return an array as an exporter writes it: complex numbers as pairs in a last dimension."""
    return np.stack([array.real, array.imag], axis=-1) if array.dtype.kind == "c" else array


def _tensors(inputs: InputSet) -> Iterator[Any]:
    for leaf in inputs.leaves():
        if is_tensor(leaf):
            yield leaf.detach().clone()
        elif isinstance(leaf, (bool, int, float, str)):
            yield leaf
        else:
            yield to_tensor(as_array(leaf, "an input"))


def _is_tensor_node(node: Any) -> bool:
    return node.op != "output" and is_tensor(node.meta.get("val"))
