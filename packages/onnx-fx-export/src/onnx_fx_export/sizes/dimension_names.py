"""What the user calls dynamic dimensions, written into the expressions of sizes that torch found."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import onnx_ir as ir
import sympy
import torch
from torch.export import Dim

from onnx_fx_export.errors import InvalidArgumentError
from onnxops_core.exporting import warn_user
from onnxops_decomp.exporting import (
    SymbolNames,
    axes_by_number,
    declared_text,
    dimension_symbol,
    dimension_texts,
    distinct_name,
    is_dimension_name,
    parsed_size,
    symbolic_size,
)

__all__ = ["declared_minimums", "name_numbers", "name_other_sizes", "name_output_axes", "name_sizes"]


def declared_minimums(dims: Iterable[Any]) -> list[str]:
    """Return the lower bounds that ``Dim`` objects declare: torch does not tell its own from them."""
    roots = [getattr(dim, "root", dim) for dim in dims if isinstance(dim, Dim)]
    return [f"{dim.__name__} >= {dim.min}" for dim in roots if isinstance(dim, Dim) and dim.min > 1]


def name_sizes(symbols: SymbolNames, sizes: Iterable[tuple[str, torch.SymInt, Any]]) -> None:
    """Write the sizes of inputs in the names that they were declared with.

    Args:
        symbols: Receives the names.
        sizes: Sizes as torch knows them, each with where it is and its declaration.

    Warns:
        UserWarning: If two names were given to what the model takes for one size; the first one is used.
    """
    declared = [(place, size, text) for place, size, dim in sizes if (text := declared_text(dim)) is not None]
    texts = dimension_texts(text for _, _, text in declared)
    # A derived dimension is an expression in another one, which gives a symbol its name if it is there itself. A name
    # for what the model finds to be a sum of sizes comes after the names of these.
    order = sorted(declared, key=lambda entry: (not is_dimension_name(entry[2]), not entry[1].node.expr.is_Symbol))
    for _, size, text in order:
        _name_size(symbols, size, _expression(texts[text]))
    _warn_of_lost_names(symbols, declared)


def name_other_sizes(symbols: SymbolNames, sizes: Iterable[tuple[str, Any]]) -> None:
    """Give the sizes of inputs that have no name yet one that says where they are, such as ``x_dim_0``.

    Args:
        symbols: Receives the names.
        sizes: Sizes as torch knows them, each with its name.
    """
    known = list(sizes)
    taken = {str(symbol) for _, size in known for symbol in symbols.renamed(size.node.expr).free_symbols}
    for name, size in known:
        symbol = size.node.expr
        if symbol.is_Symbol and symbols.renamed(symbol) == symbol:
            symbols.rename(symbol, distinct_name(name, taken))


def name_numbers(symbols: SymbolNames, numbers: Iterable[tuple[str, torch.SymInt]], sizes: Iterable[Any]) -> None:
    """Call whole numbers among the arguments, which may be negative, by the names of these.

    Args:
        symbols: Receives the names.
        numbers: The numbers as torch knows them, each with the name of its argument.
        sizes: The sizes of the other arguments, which have their names.
    """
    taken = {str(symbol) for size in sizes for symbol in symbols.renamed(size.node.expr).free_symbols}
    for name, number in numbers:
        symbol = number.node.expr
        if symbol.is_Symbol and symbols.renamed(symbol) == symbol:
            symbols.rename(symbol, sympy.Symbol(distinct_name(name, taken), integer=True))


def _warn_of_lost_names(symbols: SymbolNames, declared: Iterable[tuple[str, torch.SymInt, str]]) -> None:
    """Warn of names that appear nowhere in the model, because the code wants their dimension to equal another one."""
    lost: dict[tuple[str, str], list[str]] = {}
    for place, size, text in declared:
        used = symbols.renamed(size.node.expr)
        if is_dimension_name(text) and used.is_Symbol and str(used) != text:
            lost.setdefault((text, str(used)), []).append(place)
    for (text, used), places in lost.items():
        warn_user(
            f"The model only works where {text} equals {used}: the dimension of {', '.join(places)} is called "
            f"{used}. Give both the same name."
        )


def _expression(text: str) -> sympy.Expr:
    tree = None if is_dimension_name(text) else parsed_size(text)
    return dimension_symbol(text) if tree is None else symbolic_size(tree)


def _name_size(symbols: SymbolNames, size: torch.SymInt, wanted: sympy.Expr) -> None:
    """Choose what the one unnamed symbol of a size is called, so that the size is as the user wants it."""
    raw = size.node.expr
    unnamed = [symbol for symbol in raw.free_symbols if symbols.renamed(symbol) == symbol]
    if len(unnamed) != 1:
        return
    symbol, current = unnamed[0], symbols.renamed(raw)
    slope = sympy.diff(current, symbol) if current.is_polynomial(symbol) else sympy.S.Zero
    if not slope.is_Integer or slope == 0:
        return
    solution = sympy.expand((wanted - current.subs(symbol, 0)) / slope)
    if all(part.is_Integer for part in solution.as_coefficients_dict().values()):
        symbols.rename(symbol, solution)


def name_output_axes(
    model: ir.Model, dynamic_axes: Mapping[str, Mapping[int, str] | Sequence[int]], declared: Iterable[Any]
) -> None:
    """Give dimensions of outputs the names that the user wants; sizes of outputs follow from those of the inputs.

    Args:
        model: The model.
        dynamic_axes: Axes by the name of the output.
        declared: The declarations of the inputs' dimensions.

    Raises:
        InvalidArgumentError: If there is no such output, or no such axis.
    """
    wanted_texts = [text for axes in dynamic_axes.values() if isinstance(axes, Mapping) for text in axes.values()]
    texts = dimension_texts([*(text for text in map(declared_text, declared) if text is not None), *wanted_texts])
    inputs = {str(dim) for value in model.graph.inputs for dim in value.shape or ()}
    outputs = {str(value.name): value for value in model.graph.outputs}
    for name, axes in dynamic_axes.items():
        if name not in outputs:
            known = [str(value.name) for value in model.graph.inputs]
            raise InvalidArgumentError(
                f"dynamic_axes names {name!r}, which is neither an input ({', '.join(known)}) nor an output "
                f"({', '.join(outputs)}) of the model."
            )
        dims = list(outputs[name].shape or ())
        for axis, text in axes_by_number(name, axes, len(dims)).items():
            present, wanted = dims[axis], texts.get(text, text)
            if isinstance(present, int) or (wanted in inputs and wanted != str(present)):
                warn_user(f"Dimension {axis} of output {name} is {present}, not {wanted}.")
            elif isinstance(axes, Mapping):
                dims[axis] = ir.SymbolicDim(wanted)
        outputs[name].shape = ir.Shape(dims)
