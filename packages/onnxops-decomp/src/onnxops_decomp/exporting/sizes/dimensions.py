"""Names of dynamic dimensions."""

from __future__ import annotations

import re
from collections.abc import Mapping

import onnx_ir as ir

from onnxops_decomp.exporting.errors import InvalidArgumentError

__all__ = ["rename_dimensions", "renamed_text"]


def renamed_text(text: str, names: Mapping[str, str]) -> str:
    """Replace the identifiers in an expression."""
    return re.sub(r"[A-Za-z_]\w*", lambda match: names.get(match[0], match[0]), text)


def rename_dimensions(model: ir.Model, names: Mapping[str, str]) -> None:
    """Rename symbolic dimensions in all shapes of a model.

    Raises:
        InvalidArgumentError: If a name is not a dimension of an input or output, or a new one is not an identifier.
    """
    ends = [*model.graph.inputs, *model.graph.outputs]
    known = {dim.value for value in ends for dim in value.shape or () if not isinstance(dim, int)}
    for old, new in names.items():
        if old not in known:
            raise InvalidArgumentError(f"The model has no dimension {old!r}; it has {sorted(filter(None, known))}.")
        if not new.isidentifier():
            raise InvalidArgumentError(f"{new!r} is not a name for a dimension.")
    graphs = [model.graph, *(function.graph for function in model.functions.values())]
    values = [value for graph in graphs for value in graph.inputs]
    values += [output for graph in graphs for node in graph.all_nodes() for output in node.outputs]
    for value in values:
        if value.shape is not None and not value.shape.is_static():
            value.shape = ir.Shape(
                dim if isinstance(dim, int) or dim.value is None else renamed_text(dim.value, names)
                for dim in value.shape.dims
            )
