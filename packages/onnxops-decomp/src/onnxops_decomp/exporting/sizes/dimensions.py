"""Names of dynamic dimensions."""

from __future__ import annotations

import keyword
import re
from collections.abc import Collection, Iterable, Mapping

import onnx_ir as ir

from onnxops_decomp.exporting.errors import InvalidArgumentError
from onnxops_decomp.exporting.sizes.expressions import names_in_size, parsed_size

__all__ = [
    "dimension_name",
    "dimension_texts",
    "distinct_name",
    "is_dimension_name",
    "rename_dimensions",
    "renamed_text",
]


def is_dimension_name(text: str) -> bool:
    """Tell whether conditions on sizes can call a dimension so."""
    return text.isidentifier() and not keyword.iskeyword(text)


def dimension_name(text: str) -> str:
    """Return the name of a dimension that conditions can use: ``batch_size`` for ``batch size``."""
    cleaned = re.sub(r"\W", "_", text)
    return cleaned if is_dimension_name(cleaned) else f"dim_{cleaned}"


def distinct_name(text: str, taken: set[str]) -> str:
    """Return a name like :func:`dimension_name` that is not taken yet, and take it."""
    name = dimension_name(text)
    while name in taken:
        name += "_"
    taken.add(name)
    return name


def dimension_texts(declared: Iterable[str]) -> dict[str, str]:
    """Return what stands in a model for each dimension, by what the user calls it.

    That is a name, another one for each dimension, or an expression in other dimensions.

    Args:
        declared: What the user calls the dimensions.
    """
    texts = list(dict.fromkeys(declared))
    names = set(filter(is_dimension_name, texts))
    taken = set(names)
    return {
        text: text if text in names or _is_expression(text, names) else distinct_name(text, taken) for text in texts
    }


def _is_expression(text: str, names: Collection[str]) -> bool:
    tree = parsed_size(text)
    used = frozenset[str]() if tree is None else names_in_size(tree)
    return bool(used) and (used <= {*names} or _is_derived(text))


def _is_derived(text: str) -> bool:
    """Tell whether a text is what torch calls a derived dimension, such as ``2*d + 1``."""
    return re.fullmatch(r"(-?\d+\*)?[A-Za-z_]\w*( [+-] \d+)?", text) is not None


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
        if not is_dimension_name(new):
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
