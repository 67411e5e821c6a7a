"""The values of an ExportedProgram, node by node."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from onnx_verify._torch import is_tensor, require_torch, to_numpy, to_tensor
from onnx_verify.errors import InputError, ModelRunError
from onnx_verify.inputs import InputSet, as_array

if TYPE_CHECKING:
    import torch
    from torch.fx import Node

    from onnx_verify.streaming import Values


class FxStream:
    """Interprets the graph of an ExportedProgram beside an ONNX model; its values are named like its nodes.

    A value is copied when it is computed: what the program later does to it in place does not count.
    """

    def __init__(self, program: torch.export.ExportedProgram, sets: Sequence[InputSet]) -> None:
        """Keeps the program; nothing runs yet."""
        self.program = program
        self.sets = list(sets)

    @property
    def names(self) -> set[str]:
        """The nodes whose result is one tensor."""
        return {node.name for node in self.program.graph.nodes if _is_tensor_node(node)}

    def values(self, wanted: set[str]) -> Iterator[tuple[str, Values]]:
        """Yields the wanted values in the order of the graph, and forgets each after its last use."""
        torch = require_torch("running an ExportedProgram")
        runs = [self._interpreter(each) for each in self.sets]
        left = len(wanted & self.names)
        for node in self.program.graph.nodes:
            if node.op == "output" or not left:
                return
            with torch.no_grad():
                for run in runs:
                    self._step(run, node)
            if node.name in wanted and _is_tensor_node(node):
                left -= 1
                yield node.name, [to_numpy(run.env[node]) for run in runs]
            for run in runs:
                for dead in run.user_to_last_uses.get(node, ()):
                    run.env.pop(dead, None)

    def _step(self, run: Any, node: Node) -> None:
        try:
            run.env[node] = run.run_node(node)
        except InputError:
            raise
        except Exception as error:
            raise ModelRunError(f"fx node {node.name} ({node.target}) failed: {error}") from error

    def _interpreter(self, inputs: InputSet) -> Any:
        torch = require_torch("running an ExportedProgram")
        interpreter = torch.fx.Interpreter(self.program.graph_module)
        interpreter.args_iter = iter(self._placeholders(inputs))
        return interpreter

    def _placeholders(self, inputs: InputSet) -> Iterator[Any]:
        """Yields a value for each placeholder: weights by name, then the flat inputs."""
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
        """Puts keyword arguments in the order of the placeholders, which are named after them."""
        names = [spec.arg.name for spec in self.program.graph_signature.input_specs if spec.kind.name == "USER_INPUT"]

        def place(key: str) -> int:
            fits = (i for i, name in enumerate(names) if name == key or name.startswith(f"{key}_"))
            return next(fits, len(names))

        return replace(inputs, kwargs={key: inputs.kwargs[key] for key in sorted(inputs.kwargs, key=place)})


_MISSING = object()


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
