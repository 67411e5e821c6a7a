"""How torch lays the tensors of a captured program out in memory, which means nothing for most programs."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import sympy
import torch

from onnx_fx_export.sizes.trial_runs import as_plain, plain, user_values
from onnx_fx_export.torch_private import guards_on_layout
from onnxops_decomp.exporting import AtenTrait, at_sizes, has_aten_trait, shared_writes

__all__ = ["depends_on_layout", "gives_view", "layout_guards", "noticed_copies"]

aten = torch.ops.aten


def layout_guards(program: torch.export.ExportedProgram) -> dict[str, sympy.Basic]:
    """Return the guards that torch noted while it laid tensors out in memory, by their texts."""
    shapes: list[Sequence[Any]] = [value.shape for value in user_values(program) if isinstance(value, torch.Tensor)]
    size = next((size for shape in shapes for size in shape if isinstance(size, torch.SymInt)), None)
    return {} if size is None else {text: as_plain(guard) for guard, text in guards_on_layout(size).items()}


def written_copies(program: torch.export.ExportedProgram) -> Iterator[torch.fx.Node]:
    """Yield the calls that copy only if no view serves, where what they copy or give is written and the other read."""
    shared = {node for nodes in shared_writes(program.graph) for node in nodes}
    for node in program.graph.nodes:
        if node in shared and has_aten_trait(node.target, AtenTrait.MAY_COPY):
            yield node


def noticed_copies(program: torch.export.ExportedProgram) -> Iterator[torch.fx.Node]:
    """Yield the calls of which it makes a difference whether they copy: also those whose memory strides address."""
    yield from written_copies(program)
    for node in program.graph.nodes:
        if node.target in (aten.as_strided.default, aten.as_strided_copy.default, aten.as_strided_scatter.default):
            source = node.args[0]
            while _is_view(source):
                source = source.args[0]
            if source.op == "call_function" and has_aten_trait(source.target, AtenTrait.MAY_COPY):
                yield source


def _is_view(node: torch.fx.Node) -> bool:
    schema = getattr(node.target, "_schema", None)
    shown = schema is not None and len(schema.returns) == 1 and schema.returns[0].alias_info is not None
    return shown and not schema.is_mutable and not has_aten_trait(node.target, AtenTrait.MAY_COPY)  # type: ignore[union-attr]


def gives_view(node: torch.fx.Node, sizes: Mapping[sympy.Symbol, int]) -> bool:
    """Tell whether a call that copies only if it has to gives a view where dynamic dimensions have these sizes."""
    source, result = node.args[0].meta["val"], node.meta["val"]  # type: ignore[union-attr]
    numbers = [[at_sizes(plain(n), sizes) for n in part] for part in (source.shape, source.stride(), result.shape)]
    if not all(isinstance(number, sympy.Integer) for part in numbers for number in part):
        return False
    shape, stride, wanted = ([int(number) for number in part if number is not None] for part in numbers)
    if min((*shape, *stride, *wanted), default=0) < 0:
        return False
    tensor = torch.empty_strided(shape, stride, device="meta")
    if node.target is torch.ops.aten.contiguous.default:
        return tensor.is_contiguous()
    try:
        tensor.view(wanted)
    except RuntimeError:
        return False
    return True


def depends_on_layout(program: torch.export.ExportedProgram) -> bool:
    """Tell whether it makes a difference to a program which of its tensors are views."""
    return any(written_copies(program))
