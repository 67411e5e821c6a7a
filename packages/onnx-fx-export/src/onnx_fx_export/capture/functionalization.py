"""Programs without writes: torch's functionalization, held to what is dynamic."""

from __future__ import annotations

import contextlib
import operator
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from torch.export.graph_signature import InputKind
from torch.utils import _pytree as pytree

from onnx_fx_export.capture.aliases import separated_operands
from onnx_fx_export.capture.errors import capture_error
from onnx_fx_export.capture.torch_private import aliases_without_conditions, scans_over_no_rows
from onnx_fx_export.errors import CaptureError, DynamicShapeError, MutationError
from onnx_fx_export.origin import source_line
from onnx_fx_export.torch_private import hint_of, interpreted_nodes
from onnxops_decomp.exporting import (
    hands_through,
    keep_calls,
    restore_calls,
    shown_nodes,
    shows_silently,
    written_arguments,
)

__all__ = ["functionalized"]

aten = torch.ops.aten


def functionalized(program: torch.export.ExportedProgram, *, alike: bool = False) -> torch.export.ExportedProgram:
    """Return a program that computes the same and writes to nothing.

    Args:
        program: The program.
        alike: Whether its calls become the same whatever it writes to, so that it can be compared with another one.

    Raises:
        DynamicShapeError: If torch fixes a dynamic dimension on the way, as it does for writes to some kinds of views.
        MutationError: If elements of a view that is written to share memory, as after ``expand`` or ``unfold``.
        CaptureError: If torch cannot do it for another reason, as for a size that data decides.
    """
    before = dict(_dynamic_axes(program))
    if repeated := [node for node in program.graph.nodes if any(map(_repeats_memory, written_arguments(node)))]:
        raise _overlapping(repeated)
    _leave_out_detaching(program.graph_module)
    try:
        with _plain_views(program.graph_module), separated_operands(program.graph_module), scans_over_no_rows():
            result = _functionalized_on_tuples(program, alike)
    except Exception as error:
        if overlapping := [node for node in program.graph.nodes if any(map(_overlaps, written_arguments(node)))]:
            raise _overlapping(overlapping) from error
        raise capture_error(error, _place(program, error)) from error
    dtypes, new = _output_dtypes(program), _output_dtypes(result)
    if any(before.itemsize < after.itemsize for before, after in zip(dtypes, new, strict=False)):
        raise CaptureError(
            f"Under autocast the model returns {dtypes}, but the graph that torch makes of it returns {new}: autocast "
            "casts inside an operator. Export the model itself, or enter autocast in its forward."
        )
    after = dict(_dynamic_axes(result))
    if fixed := [
        f"dimension {axis} of {name}" for name, axes in before.items() for axis in axes - after.get(name, set())
    ]:
        places = [place for node in program.graph.nodes if written_arguments(node) and (place := source_line(node))]
        raise DynamicShapeError.fixed(
            [
                f"torch writes to a view of another shape for a fixed {' and '.join(fixed)} only",
                *(f"written at {place}" for place in dict.fromkeys(places)),
                "write by an index or a slice instead, as y[0::2] = ... does",
            ]
        )
    return result


def _functionalized_on_tuples(program: torch.export.ExportedProgram, alike: bool) -> torch.export.ExportedProgram:
    """Run torch's functionalization on a program that takes and gives plain tuples of its leaves.

    torch traces the constructors of containers, and loses their constants: a cache of transformers starts with empty
    tensors.
    """
    signature, example = program.module_call_graph[0].signature, program.example_inputs
    names = [spec.arg.name for spec in program.graph_signature.input_specs if spec.kind is InputKind.USER_INPUT]
    tuples = {
        "in_spec": pytree.tree_structure((tuple(names), {})),
        "out_spec": pytree.tree_structure((0,) * signature.out_spec.num_leaves),
        "forward_arg_names": names,
    }
    containers = {name: getattr(signature, name) for name in tuples}
    vars(signature).update(tuples)
    program.example_inputs = None
    keep_calls(program.graph_module)
    try:
        with aliases_without_conditions():
            result: torch.export.ExportedProgram = program.run_decompositions(
                _of_silent_views(_graphs(program.graph_module), alike)
            )
        restore_calls(result.graph_module)
    finally:
        restore_calls(program.graph_module)
        vars(signature).update(containers)
        program.example_inputs = example
    vars(result.module_call_graph[0].signature).update(containers)
    result.example_inputs = example
    return result


def _graphs(module: torch.fx.GraphModule) -> list[torch.fx.Graph]:
    """Return the graph of a module and those of branches and bodies of loops."""
    return [each.graph for each in module.modules() if isinstance(each, torch.fx.GraphModule)]


def _of_silent_views(graphs: Sequence[torch.fx.Graph], alike: bool) -> dict[Any, Callable[..., Any]]:
    """Return torch's definitions of the calls that may show memory which is written to, and whose schema denies it.

    ``einsum`` of one operand and ``meshgrid`` are examples: torch keeps such calls whole, and takes their results for
    new ones. Where programs are to be ``alike``, it does not matter what is written to.
    """
    nodes = [node for graph in graphs for node in graph.nodes]
    written = {shown for node in nodes for one in written_arguments(node) for shown in shown_nodes(one)}
    shown = [node for node in nodes if alike or not written.isdisjoint(shown_nodes(node))]
    silent = {node.target for node in shown if shows_silently(node)}
    if not silent:
        return {}
    definitions = torch.export.default_decompositions()
    return {target: definitions[target] for target in silent if target in definitions}


def _output_dtypes(program: torch.export.ExportedProgram) -> list[torch.dtype]:
    """Return the dtypes of the tensors that the user gets."""
    names = set(program.graph_signature.user_outputs)
    nodes = program.graph.output_node().all_input_nodes
    values = {node.name: node.meta.get("val") for node in nodes if node.name in names}
    return [
        value.dtype
        for name in program.graph_signature.user_outputs
        if isinstance(value := values.get(name), torch.Tensor)
    ]


def _repeats_memory(node: torch.fx.Node) -> bool:
    """Tell whether a tensor was expanded: torch's functionalization loses what is written to it."""
    value = node.meta.get("val")
    if not isinstance(value, torch.Tensor) or value.layout is not torch.strided:
        return False
    return any(stride == 0 and size != 1 for stride, size in zip(value.stride(), value.shape, strict=True))


def _overlaps(node: torch.fx.Node) -> bool:
    """Tell whether elements of a tensor share memory at the sizes of the example, as those of windows do."""
    value = node.meta.get("val")
    if not isinstance(value, torch.Tensor) or value.layout is not torch.strided:
        return False
    layout = [tuple(map(_at_example, pair)) for pair in zip(value.stride(), value.shape, strict=True)]
    reached = 0
    for stride, size in sorted((stride, size) for stride, size in layout if size > 1):
        if stride <= reached:
            return True
        reached += stride * (size - 1)
    return False


def _at_example(size: int | torch.SymInt) -> int:
    """Return a size at the example; 2 stands for what data decides."""
    known = hint_of(size) if isinstance(size, torch.SymInt) else size
    return 2 if known is None else int(known)


def _overlapping(writes: Sequence[torch.fx.Node]) -> MutationError:
    places = "".join(f"\n  {place}" for node in writes if (place := source_line(node)))
    return MutationError(
        "The model writes to a view whose elements share memory, as those of expand and unfold do, and later "
        f"reads that memory through another view:{places}\nWrite to view.clone(), or to the tensor that the view "
        "was taken from."
    )


def _place(program: torch.export.ExportedProgram, error: Exception) -> str:
    """Return the line of the call that torch was at."""
    names = {node.name: node for node in program.graph.nodes}
    own = (names[node.name] for node in interpreted_nodes(error) if node.name in names)
    return next(map(source_line, own), "")


def _dynamic_axes(program: torch.export.ExportedProgram) -> Iterator[tuple[str, set[int]]]:
    """Yield the name of each user input, and which of its dimensions are dynamic."""
    placeholders = program.graph.find_nodes(op="placeholder")
    for node, spec in zip(placeholders, program.graph_signature.input_specs, strict=True):
        value = node.meta.get("val")
        if spec.kind is InputKind.USER_INPUT and isinstance(value, torch.Tensor):
            yield node.name, {axis for axis, size in enumerate(value.shape) if _is_dynamic(size)}


def _is_dynamic(size: int | torch.SymInt) -> bool:
    """Tell whether a size is free; a symbol may have been found to be a number."""
    return isinstance(size, torch.SymInt) and not size.node.expr.is_number


@contextlib.contextmanager
def _plain_views(module: torch.fx.GraphModule) -> Iterator[None]:
    """Read what ``unbind`` gives by ``select`` meanwhile, to which torch can write at any size.

    Calls that give their operand itself, as dropout does that drops nothing, are aliases for torch then.
    """
    parts = [
        part
        for graph in _graphs(module)
        for node in graph.find_nodes(op="call_function", target=aten.unbind.int)
        for part in node.users
        if part.target is operator.getitem
    ]
    put: list[tuple[torch.fx.Node, torch.fx.Node]] = []
    parts += [node for graph in _graphs(module) for node in graph.nodes if hands_through(node)]
    for part in parts:
        source, *others = part.args
        with part.graph.inserting_before(part):
            if part.target is operator.getitem:
                new = part.graph.call_function(aten.select.int, (source.args[0], _axis(source), *others))
            else:
                new = part.graph.call_function(aten.alias.default, (source,))
        new.meta.update(part.meta)
        part.replace_all_uses_with(new)
        put.append((new, part))
    try:
        yield
    finally:
        for new, part in put:
            new.replace_all_uses_with(part)
            new.graph.erase_node(new)


def _leave_out_detaching(module: torch.fx.GraphModule) -> None:
    """Leave out ``detach_``, as of ``torch.tensor([n])``: without gradients it does nothing, and views refuse it."""
    for graph in _graphs(module):
        for node in graph.find_nodes(op="call_function", target=aten.detach_.default):
            node.replace_all_uses_with(node.args[0])
            graph.erase_node(node)


def _axis(unbind: torch.fx.Node) -> Any:
    return unbind.args[1] if len(unbind.args) > 1 else unbind.kwargs.get("dim", 0)
