"""Sizes that a model is right for: conditions that are kept with it and checked when the program runs itself."""

from __future__ import annotations

import ast
import functools
import itertools
import json
from collections.abc import Iterable, Mapping, Sequence

import onnx_ir as ir

from onnxops_core.exporting import warn_user
from onnxops_decomp.exporting.errors import InvalidArgumentError
from onnxops_decomp.exporting.sizes.conditions import simplified
from onnxops_decomp.exporting.sizes.deciding import deciding_sizes, truths
from onnxops_decomp.exporting.sizes.dimensions import renamed_text
from onnxops_decomp.exporting.sizes.expressions import condition_holds, names_in_size, parsed_size, size, solved

__all__ = ["CONSTRAINTS_KEY", "SizeConstraints", "warn_of_bounds"]

CONSTRAINTS_KEY = "onnxops.size_constraints"
# Sizes that stand for all of them, where these are too many.
_SOME_SIZES = (*range(2, 65), *(2**power + step for power in range(7, 21) for step in (0, 1)))

# The same for several sizes at once.
_FEW_SIZES = (2, 3, 16, 1024)


class SizeConstraints:
    """Conditions on the sizes of a model's inputs.

    Attributes:
        conditions: Python comparisons over the names of dimensions, such as ``batch >= 2`` or ``3 * length % 4 == 0``,
            without those that follow from others.
        places: Lines of the model's code that need them, as far as these are known, by condition.
        unread: What else has to hold, and cannot be checked.
        remedy: An option of the export that may lift them, as users are told; empty if there is none.

    Args:
        conditions: Texts of the conditions.
        places: Lines by condition.
        simple: Whether the conditions are as simple as they can be, and stay as they are.
    """

    def __init__(
        self, conditions: Iterable[str], places: Mapping[str, str] | None = None, *, simple: bool = False
    ) -> None:
        conditions = list(conditions)
        self.remedy = ""
        self.unread = tuple(text for text in conditions if parsed_size(text) is None)
        _warn_of_unread(self.unread)
        read = [text for text in conditions if text not in self.unread]
        self._simple = simple
        self.conditions = tuple(read if simple else simplified(read))
        self.places = {short: place for text, place in (places or {}).items() for short in simplified([text])}
        self._parsed = [(text, tree) for text in self.conditions if (tree := parsed_size(text)) is not None]

    def renamed(self, names: Mapping[str, str]) -> SizeConstraints:
        """Return the same conditions over dimensions of other names."""
        places = {renamed_text(text, names): place for text, place in self.places.items()}
        texts = (renamed_text(text, names) for text in self.conditions)
        # Two dimensions may be of one name now.
        renamed = SizeConstraints(texts, places, simple=self._simple)
        renamed.remedy = self.remedy
        return renamed

    def record(self, model: ir.Model) -> None:
        """Write the conditions into the model's metadata, in place of those that it has."""
        model.metadata_props.pop(CONSTRAINTS_KEY, None)
        if self.conditions:
            model.metadata_props[CONSTRAINTS_KEY] = json.dumps(list(self.conditions))

    def check(
        self, graph: ir.Graph, shapes: Mapping[str, Sequence[int]], numbers: Mapping[str, int] | None = None
    ) -> None:
        """Compare the shapes of a call with the declared ones and the conditions.

        Args:
            graph: The model's graph, whose inputs say what dimensions are called.
            shapes: Shape of each input by name.
            numbers: Inputs that are numbers, by their symbols.

        Raises:
            InvalidArgumentError: If a size differs from a static one, two dimensions of one name differ, or a
                condition does not hold.
        """
        sizes = dict(numbers or {})
        expressions: list[tuple[str, int, str]] = []
        for value in graph.inputs:
            shape = shapes.get(str(value.name))
            if shape is None or value.shape is None:
                continue
            if len(shape) != len(value.shape):
                raise InvalidArgumentError(f"Input {value.name} has rank {len(shape)}, the model takes {value.shape}.")
            for axis, (present, dim) in enumerate(zip(shape, value.shape.dims, strict=True)):
                name = None if isinstance(dim, int) else dim.value
                wanted = dim if isinstance(dim, int) else sizes.setdefault(name, present) if name else present
                where = f"Input {value.name} has size {present} along axis {axis}"
                if wanted != present:
                    named = f"{name} = {wanted}" if name else wanted
                    raise InvalidArgumentError(f"{where}, not {named}.")
                if name and not name.isidentifier():
                    expressions.append((name, present, where))
        _check_expressions(expressions, sizes)
        for text, tree in self._parsed:
            if not condition_holds(tree, sizes):
                known = ", ".join(f"{name} = {value}" for name, value in sizes.items() if name.isidentifier())
                remedy = f"with {self.remedy}, " if self.remedy else ""
                raise InvalidArgumentError(
                    f"The model was captured for {text}, but is called with {known}. Export it with an example of "
                    f"such sizes, {remedy}or without code that depends on them."
                )


def _warn_of_unread(texts: Sequence[str]) -> None:
    """Report conditions that cannot be checked, instead of dropping them silently."""
    if texts:
        listed = "\n".join(f"  {text}" for text in texts)
        warn_user(f"The model is right only where these conditions hold, which its program cannot check:\n{listed}")


def _check_expressions(expressions: Iterable[tuple[str, int, str]], sizes: dict[str, int]) -> None:
    """Compare sizes that are expressions in others with those, which may follow from them.

    Args:
        expressions: For each size its text, its value, and where it is.
        sizes: Sizes that are known; receives those that follow.

    Raises:
        InvalidArgumentError: If a size is not what its expression gives.
    """
    expressions = list(expressions)
    for text, present, where in expressions:
        if (found := solved(text, present, sizes)) is not None:
            name, value = found
            if value is None:
                raise InvalidArgumentError(f"{where}, which is {text} for no {name}.")
            sizes[name] = value
    for text, present, where in expressions:
        if (wanted := size(text, sizes)) is not None and wanted != present:
            raise InvalidArgumentError(f"{where}, not {text} = {wanted}.")


def warn_of_bounds(constraints: SizeConstraints, declared: Iterable[str]) -> None:
    """Warn of conditions that leave out sizes that the declaration does not leave out.

    Of those on several dimensions, it warns of bounds, and where the line that needs them is known.

    Args:
        constraints: The conditions.
        declared: The bounds of dimensions that are declared, as conditions.

    Warns:
        UserWarning: If there are some.
    """
    bounds = tuple(tree for text in declared if (tree := parsed_size(text)) is not None)
    places = constraints.places
    found = [
        f"{text} (at {places[text]})" if text in places else text
        for text in constraints.conditions
        if _leaves_out(text, bounds, text in places)
    ]
    if found:
        remedy = f"export with {constraints.remedy}, " if constraints.remedy else ""
        warn_user(
            f"The model is right for only some of the declared sizes: {_listed(found)}. Its program refuses the "
            "others. Declare the bounds, as torch.export.Dim('n', min=..., max=...) does, "
            f"{remedy}or change the code that needs them."
        )


# More conditions than this nobody reads.
_MOST_LISTED = 6


def _listed(conditions: Sequence[str]) -> str:
    """Return the shortest conditions, in their order, and how many more there are."""
    shortest = sorted(conditions, key=len)[:_MOST_LISTED]
    more = len(conditions) - len(shortest)
    rest = [f"and {more} more, which the model's metadata lists under {CONSTRAINTS_KEY}"] if more else []
    return "; ".join([*(text for text in conditions if text in shortest), *rest])


# Most models have the same few conditions.
@functools.lru_cache(maxsize=1024)
def _leaves_out(text: str, bounds: tuple[ast.expr, ...], is_placed: bool) -> bool:
    """Tell whether a condition does not hold for some size that is declared.

    Size 1, and several dimensions, count where the line is known that needs the condition, and several also
    where it bounds them: whatever else it says of several, the model says as well.

    Args:
        text: The condition.
        bounds: What is declared.
        is_placed: Whether the line is known.
    """
    tree = parsed_size(text)
    if tree is None:
        return is_placed
    names = sorted(names_in_size(tree))
    if len(names) > 1 and (is_placed or not _is_bound(tree)):
        return is_placed
    decided = deciding_sizes([tree]) if len(names) == 1 else _FEW_SIZES
    some = [size for size in decided or _SOME_SIZES if size >= 2]
    points = [*itertools.product((1, *some) if is_placed else some, repeat=len(names))]
    sizes = dict(zip(names, map(list, zip(*points, strict=True)), strict=True))
    held = truths(tree, sizes) if names else [condition_holds(tree, {})]
    left_out = (dict(zip(names, point, strict=True)) for point, holds in zip(points, held, strict=True) if not holds)
    return any(all(condition_holds(bound, point) for bound in bounds) for point in left_out)


def _is_bound(tree: ast.expr) -> bool:
    """Tell whether a condition says that something is not larger, or not smaller, than a number."""
    bounding = (ast.Lt, ast.LtE, ast.Gt, ast.GtE)
    return (
        isinstance(tree, ast.Compare)
        and isinstance(tree.ops[0], bounding)
        and any(isinstance(side, ast.Constant) for side in (tree.left, *tree.comparators))
    )
