"""Captured programs with other graphs: the captured one stays as it is, for it may be the user's."""

from __future__ import annotations

import copy
import dataclasses
from collections.abc import Callable, Collection
from typing import Any

import torch
from torch.export.graph_signature import InputKind, OutputSpec

from onnxops_decomp.exporting import place_in_memory, written_inputs

__all__ = ["edited", "with_one_name_each"]


def edited(
    program: torch.export.ExportedProgram, edit: Callable[[torch.fx.Graph], object], without: Collection[str] = ()
) -> torch.export.ExportedProgram:
    """Return a program whose graph is changed.

    Args:
        program: Left as it is.
        edit: Changes a copy of its graph, whose nodes have the same names, in place.
        without: Weights and constants that the changed graph does not take any more, by the names of its inputs.
    """
    graph = program.graph_module.graph
    copied = copy.deepcopy(graph)
    for new, old in zip(copied.nodes, graph.nodes, strict=True):
        # A copy steers clear of Python's builtins, but the signature knows the nodes by their names.
        new.name = old.name
    module = torch.fx.GraphModule(program.graph_module, copied)
    edit(module.graph)
    module.recompile()
    signature, dropped = program.graph_signature, set[str]()
    if without:
        dropped = {str(spec.target) for spec in signature.input_specs if spec.arg.name in without}
        kept = [spec for spec in signature.input_specs if spec.arg.name not in without]
        signature = dataclasses.replace(signature, input_specs=kept)
    signature = dataclasses.replace(signature, output_specs=_output_specs(program, module.graph))
    return torch.export.ExportedProgram(
        root=module,
        graph=module.graph,
        graph_signature=signature,
        state_dict={name: value for name, value in program.state_dict.items() if name not in dropped},
        range_constraints=program.range_constraints,
        module_call_graph=program.module_call_graph,
        example_inputs=program.example_inputs,
        constants={name: value for name, value in program.constants.items() if name not in dropped},
        verifiers=list(program.verifiers),
    )


def _output_specs(program: torch.export.ExportedProgram, graph: torch.fx.Graph) -> list[OutputSpec]:
    """Return what a program returns, called as in a changed graph."""
    results = graph.output_node().args[0]
    assert isinstance(results, list | tuple)
    return [
        dataclasses.replace(spec, arg=dataclasses.replace(spec.arg, name=result.name))
        if isinstance(result, torch.fx.Node)
        else spec
        for spec, result in zip(program.graph_signature.output_specs, results, strict=True)
    ]


def with_one_name_each(program: torch.export.ExportedProgram) -> torch.export.ExportedProgram:
    """Let a tensor be known by one input of the graph, if the program writes to it.

    What a model keeps besides its buffers is an input of its own, also where it is one of them.
    """
    others = _other_names(program)
    if not others or set(others).union(others.values()).isdisjoint(n.name for n in written_inputs(program.graph)):
        return program

    def join(graph: torch.fx.Graph) -> None:
        nodes = {node.name: node for node in graph.find_nodes(op="placeholder")}
        for name, other in others.items():
            nodes[name].replace_all_uses_with(nodes[other])
            graph.erase_node(nodes[name])

    # torch functionalizes no program that takes a tensor twice and writes to it.
    return edited(program, join, without=others)


def _other_names(program: torch.export.ExportedProgram) -> dict[str, str]:
    """Return the inputs that are the same tensor as another one, with that one: no constant if there is another."""
    weights: dict[str, Any] = {**program.constants, **program.state_dict}
    mutated = {spec.target for spec in program.graph_signature.output_specs if spec.target is not None}
    inputs = program.graph_signature.input_specs
    specs = [spec for spec in inputs if spec.target is not None and spec.target not in mutated]
    # Constants come last.
    specs.sort(key=lambda spec: spec.kind is InputKind.CONSTANT_TENSOR)
    known: dict[Any, str] = {}
    others: dict[str, str] = {}
    for spec in specs:
        tensor = weights.get(str(spec.target))
        place = place_in_memory(tensor) if isinstance(tensor, torch.Tensor) else None
        if place is not None:
            first = known.setdefault(place, spec.arg.name)
            if first != spec.arg.name:
                others[spec.arg.name] = first
    return others
