"""What a captured program writes to, and what becomes of it."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping

import torch
from torch.export.graph_signature import InputKind

from onnx_fx_export.capture.functionalization import functionalized
from onnx_fx_export.capture.state import StateNotes
from onnx_fx_export.errors import CaptureError, MutationError
from onnx_fx_export.lower.edits import edited, with_one_name_each
from onnx_fx_export.lower.observers import settled
from onnx_fx_export.lower.view_writes import written_through
from onnx_fx_export.origin import source_line
from onnx_fx_export.torch_private import records_modes
from onnx_fx_export.weights.tensor_subclasses import reads_a_subclass_whole
from onnxops_core.exporting import warn_user
from onnxops_decomp.exporting import (
    ignored_state,
    needs_functionalization,
    shared_memory,
    with_line,
    with_lines,
    written_inputs,
    written_roots,
)

__all__ = ["Mutations", "refuse_assigned_data", "without_hidden_writes"]


# All that torch.export records of ``tensor.data = other``: that the two may be exchanged.
_ASSIGNED_DATA = torch.ops.aten._has_compatible_shallow_copy_type.default


def refuse_assigned_data(program: torch.export.ExportedProgram) -> None:
    """Refuse programs that assign a tensor's ``data``, which torch.export computes with as it was before.

    Raises:
        CaptureError: If there is such a call; it names the line.
    """
    for node in program.graph.find_nodes(op="call_function", target=_ASSIGNED_DATA):
        raise CaptureError(
            f"{with_line('The data of a tensor is assigned', source_line(node))}, which torch.export does not "
            "follow: the captured program computes with the tensor as it was. Use the new tensor under a name of "
            "its own, or write to the old one with copy_."
        )


@dataclasses.dataclass(frozen=True)
class Mutations:
    """What a program writes to.

    Attributes:
        program: The program, in which rebinding names is all that writes need.
        rebound: Placeholders whose last value stands for what was written to them.
        buffers: Names in the program of the buffers that are written to.
        inputs: Names of the placeholders of user inputs that are written to, with the lines.
        notes: What is known of its state.
    """

    program: torch.export.ExportedProgram
    rebound: tuple[torch.fx.Node, ...]
    buffers: frozenset[str]
    inputs: Mapping[str, str]
    notes: StateNotes

    def name(self, buffer: str) -> str:
        """Return what a buffer of the program is called in the model."""
        return self.notes.paths.get(buffer, buffer)

    def refuse(self, buffers: Iterable[str]) -> None:
        """Refuse state that was not asked for.

        Raises:
            MutationError: If there are any such buffers.
        """
        if lines := {self._called(name): self.notes.lines.get(name, "") for name in sorted(buffers)}:
            raise MutationError(
                f"The model changes {with_lines(lines)} when it runs. An ONNX model has no memory of its own: call "
                'eval() on a model in training mode, pass state="io" to make each of them an input and an output, or '
                'pass state="ignore" for a model that always computes what the first call does.'
            )

    def warn_of_ignored(self, buffers: Iterable[str]) -> None:
        """Warn of state that is left out."""
        found = {self._called(name): self.notes.lines.get(name, "") for name in sorted(buffers)}
        if found := {**found, **self.notes.ignored}:
            warn_user(ignored_state(found))

    def warn_of_inputs(self, names: Mapping[str, str]) -> None:
        """Warn of inputs that the torch model changes in place, given by the names of their placeholders."""
        for placeholder, line in self.inputs.items():
            warn_user(
                f"The model changes its input {with_line(names[placeholder], line)} in place. The outputs of the "
                'ONNX model reflect that, but it cannot change its inputs: state="io" makes the new contents an '
                "output."
            )

    def _called(self, buffer: str) -> str:
        kind = "parameter" if buffer in self.program.graph_signature.parameters else "buffer"
        return self.notes.paths.get(buffer) or f"{kind} {buffer}"


def without_hidden_writes(program: torch.export.ExportedProgram, notes: StateNotes) -> Mutations:
    """Functionalize a program if rebinding is not enough, or if it switches modes or works on subclasses of Tensor.

    Args:
        program: What was captured.
        notes: What is known of its state.

    Raises:
        MutationError: If what is written to shares its memory with another weight.
        DynamicShapeError: If torch fixes a dynamic dimension while it functionalizes.
    """
    _check_memory(program)
    program = settled(with_one_name_each(program))
    specs = {getattr(spec.arg, "name", ""): spec for spec in program.graph_signature.input_specs}
    lines = {node.name: source_line(write) for node, write in written_inputs(program.graph).items()}
    if needs_functionalization(program.graph_module):
        program = edited(program, written_through)
    module = program.graph_module
    if needs_functionalization(module) or records_modes(module) or reads_a_subclass_whole(program):
        program = functionalized(program)
        specs = {getattr(spec.arg, "name", ""): spec for spec in program.graph_signature.input_specs}
    roots = written_roots(program.graph).values()
    rebound = tuple(dict.fromkeys(root for root in roots if root.op == "placeholder"))
    inputs = {name for node in rebound if specs[name := node.name].kind is InputKind.USER_INPUT}
    buffers = {str(specs[node.name].target) for node in rebound if node.name not in inputs}
    signature = program.graph_signature
    for written in (signature.buffers_to_mutate, signature.parameters_to_mutate):
        buffers.update(map(str, written.values()))
    inputs.update(map(str, signature.user_inputs_to_mutate.values()))
    targets = {str(spec.target): name for name, spec in specs.items() if spec.target is not None}
    known = {buffer: notes.lines.get(buffer) or lines.get(targets.get(buffer, ""), "") for buffer in buffers}
    notes = dataclasses.replace(notes, lines=known)
    return Mutations(program, rebound, frozenset(buffers), {name: lines.get(name, "") for name in inputs}, notes)


def _check_memory(program: torch.export.ExportedProgram) -> None:
    """Refuse writes to weights that show memory of others.

    Raises:
        MutationError: If there are any.
    """
    weights = {**program.constants, **program.state_dict}
    tensors = {name: weight for name, weight in weights.items() if isinstance(weight, torch.Tensor)}
    specs = {getattr(spec.arg, "name", ""): spec for spec in program.graph_signature.input_specs}
    for node, write in written_inputs(program.graph).items():
        target = str(specs[node.name].target)
        if target in tensors:
            text = shared_memory(with_line(f"buffer {target}", source_line(write)), tensors[target], tensors)
            if text is not None:
                raise MutationError(text)
