"""How torch lays the tensors of a captured program out in memory, which means nothing for most programs."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import sympy
import torch

from onnx_fx_export.sizes.trial_runs import as_plain, user_values
from onnx_fx_export.torch_private import guards_on_layout
from onnxops_decomp.exporting import AtenTrait, has_aten_trait, shared_writes

__all__ = ["depends_on_layout", "layout_guards", "written_copies"]


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


def depends_on_layout(program: torch.export.ExportedProgram) -> bool:
    """Tell whether it makes a difference to a program which of its tensors are views."""
    return any(written_copies(program))
