"""Example arguments: several at once, with sizes that capture can tell apart, with numbers that stay variable."""

from __future__ import annotations

import contextlib
import functools
import inspect
import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import torch
from torch.export import Dim
from torch.utils import _pytree as pytree

from onnx_fx_export.errors import InvalidArgumentError
from onnxops_decomp.exporting import DYNAMIC_NUMBER, Example, bound_arguments, resampled

__all__ = [
    "broadcastable",
    "enlarged",
    "has_special_sizes",
    "inferred_dimensions",
    "named_keywords",
    "of_size_one",
    "replaced_forward",
    "separated",
    "several_examples",
    "unmarked",
    "variable_numbers",
]

# Sizes that torch.export takes for constants.
_SPECIAL_SIZES = (0, 1)
_FEWEST = 2
# At most so many sums of sizes are distinguished.
_MOST_SUMS = 4


def several_examples(args: Any, kwargs: Any) -> list[Example]:
    """Take apart what ``dynamic_shapes="auto"`` comes with.

    Args:
        args: A list with the positional arguments of each example: a tuple, or a single tensor.
        kwargs: A list with the keyword arguments of each example; or None.

    Raises:
        InvalidArgumentError: If there are fewer than two examples, or not as many of the one as of the other.
    """
    count = max((len(part) for part in (args, kwargs) if isinstance(part, list)), default=0)
    positional = args if isinstance(args, list) and args else [()] * count
    keyword = kwargs if isinstance(kwargs, list) else [kwargs or {}] * count
    same = len(positional) == len(keyword) == count and (not kwargs or isinstance(kwargs, list))
    if count < _FEWEST or not same:
        raise InvalidArgumentError(
            'dynamic_shapes="auto" compares examples: give args=[example, another], each a tuple of positional '
            "arguments, and with keyword arguments kwargs=[...] of the same length."
        )
    return [
        (tuple(one) if isinstance(one, tuple | list) else (one,), dict(more))
        for one, more in zip(positional, keyword, strict=True)
    ]


def inferred_dimensions(forward: Callable[..., Any], examples: Sequence[Example]) -> tuple[Example, dict[str, Any]]:
    """Declare every dimension dynamic that differs between examples, and every number.

    Returns:
        The example to capture, the largest one, and the declarations by parameter name.

    Raises:
        InvalidArgumentError: If examples differ in anything else.
    """
    bound = [bound_arguments(forward, *example) for example in examples]
    flat = [pytree.tree_flatten(arguments) for arguments in bound]
    if any(structure != flat[0][1] for _, structure in flat):
        raise InvalidArgumentError("The examples differ in their structure; only sizes and numbers may differ.")
    specs = [_varying(values) for values in zip(*(leaves for leaves, _ in flat), strict=True)]
    largest = max(range(len(flat)), key=lambda index: _elements(flat[index][0]))
    remaining = iter(specs)
    declared = {name: [next(remaining) for _ in pytree.tree_leaves(value)] for name, value in bound[largest].items()}
    single = {name for name, value in bound[largest].items() if pytree.tree_structure(value).is_leaf()}
    return examples[largest], {name: spec[0] if name in single else spec for name, spec in declared.items()}


def _elements(leaves: Sequence[Any]) -> int:
    return sum(leaf.numel() for leaf in leaves if isinstance(leaf, torch.Tensor))


def _varying(values: Sequence[Any]) -> Any:
    first = values[0]
    if isinstance(first, torch.Tensor):
        kinds = {(v.dtype, v.dim()) if isinstance(v, torch.Tensor) else None for v in values}
        if len(kinds) > 1:
            raise InvalidArgumentError(f"The examples differ in the dtype or rank of a tensor: {kinds}.")
        sizes = zip(*(value.shape for value in values), strict=True)
        return {axis: Dim.DYNAMIC for axis, along in enumerate(sizes) if len(set(along)) > 1}
    if all(type(value) is type(first) and value == first for value in values):
        return None
    if type(first) in (bool, int, float) and all(type(value) is type(first) for value in values):
        return Dim.DYNAMIC
    raise InvalidArgumentError(f"The examples differ in an argument that is neither a tensor nor a number: {values}.")


def separated(args: Sequence[Any], kwargs: Mapping[str, Any]) -> Example:
    """Return the example with a tensor of its own for each argument.

    Capture tells inputs apart by the tensors: one that is passed twice would be one input, and the other one unused.
    """
    example: Example = tuple(args), dict(kwargs)
    leaves, structure = pytree.tree_flatten(example)
    seen: set[int] = set()
    for index, leaf in enumerate(leaves):
        if isinstance(leaf, torch.Tensor):
            leaves[index] = leaf.detach().clone().requires_grad_(leaf.requires_grad) if id(leaf) in seen else leaf
            seen.add(id(leaf))
    repeated = len(seen) < sum(isinstance(leaf, torch.Tensor) for leaf in leaves)
    return pytree.tree_unflatten(leaves, structure) if repeated else example


def enlarged(example: Example, specs: Sequence[Mapping[int, Any]]) -> Iterator[Example]:
    """Yield the example in other sizes, which capture does not take for constants.

    Dimensions of size 0 and 1 become 2. A size that is the sum of two others, as the length of a mask is that of a
    cache and of what is new, grows with them; as that may be by chance, it is tried without that too. Last, all dynamic
    sizes are doubled. Sizes stay within the bounds of their dimension.

    Args:
        example: Positional and keyword arguments.
        specs: Declared dimensions of each of its leaves.
    """
    sizes = _sizes(example, specs)
    for grown in _grown(sizes):
        yield _resized(example, specs, lambda key, size, grown=grown: grown[key])  # type: ignore[misc]
    yield _resized(example, specs, lambda _, size: 2 * size or 2)


def _sizes(example: Example, specs: Sequence[Mapping[int, Any]]) -> dict[Any, int]:
    """Return the sizes of dynamic dimensions by their key."""
    leaves = pytree.tree_leaves(example)
    return {key: leaves[index].shape[axis] for (index, axis), key in _keys(example, specs).items()}


def _keys(example: Example, specs: Sequence[Mapping[int, Any]]) -> dict[tuple[int, int], Any]:
    """Return by leaf and axis a key that dimensions share that are alike: those of one name, or of one argument."""
    return {
        (index, axis): dim if isinstance(dim, str) else getattr(dim, "__name__", (path[:2], axis, leaf.shape[axis]))
        for index, ((path, leaf), spec) in enumerate(zip(pytree.tree_flatten_with_path(example)[0], specs, strict=True))
        for axis, dim in spec.items()
        if axis != DYNAMIC_NUMBER
    }


def _grown(sizes: Mapping[Any, int]) -> Iterator[dict[Any, int]]:
    """Yield the sizes with those of 0 and 1 made 2, and with those grown that are sums with them: later ones first."""
    special = {key: 2 for key, size in sizes.items() if size in _SPECIAL_SIZES}
    sums = {
        total: special.get(part, sizes[part]) + special.get(other, sizes[other])
        for total, part, other in itertools.permutations(sizes, 3)
        if part in special and sizes[total] == sizes[part] + sizes[other]
    }
    totals = [*reversed(sums)][:_MOST_SUMS]
    for count in (1, 2, 0):
        for chosen in itertools.combinations(totals, count):
            yield {**sizes, **special, **{key: sums[key] for key in chosen}}


def broadcastable(example: Example, specs: Sequence[Mapping[int, Any]]) -> Iterator[Example]:
    """Yield the example with dimensions of size 1 as large as those that they are aligned with in other arguments.

    Args:
        example: Positional and keyword arguments.
        specs: Declared dimensions of each of its leaves.
    """
    sizes, leaves = _sizes(example, specs), pytree.tree_leaves(example)
    aligned: dict[int, dict[Any, int]] = {}
    for (index, axis), key in _keys(example, specs).items():
        aligned.setdefault(axis - leaves[index].dim(), {})[key] = sizes[key]
    matched = {
        key: max(others.values())
        for others in aligned.values()
        for key, size in others.items()
        if size in _SPECIAL_SIZES
    }
    if any(size not in _SPECIAL_SIZES for size in matched.values()):
        wanted = {**sizes, **{key: max(size, 2) for key, size in matched.items()}}
        yield _resized(example, specs, lambda key, _: wanted[key])


def of_size_one(example: Example, specs: Sequence[Mapping[int, Any]]) -> Example:
    """Return the example with every dynamic dimension of size 1."""
    return _resized(example, specs, lambda _, size: 1)


def has_special_sizes(example: Example, specs: Sequence[Mapping[int, Any]]) -> bool:
    """Tell whether a dimension that is declared dynamic has size 0 or 1."""
    pairs = zip(pytree.tree_leaves(example), specs, strict=True)
    return any(leaf.shape[axis] in _SPECIAL_SIZES for leaf, spec in pairs for axis in spec if axis != DYNAMIC_NUMBER)


def _resized(example: Example, specs: Sequence[Mapping[int, Any]], size_for: Callable[[Any, int], int]) -> Example:
    leaves, structure = pytree.tree_flatten(example)
    for (index, axis), key in _keys(example, specs).items():
        size = size_for(key, leaves[index].shape[axis])
        most = getattr(specs[index][axis], "max", None) or size
        leaves[index] = resampled(leaves[index], axis, min(size, most))
    result: Example = pytree.tree_unflatten(leaves, structure)
    return result


@contextlib.contextmanager
def unmarked(example: Example) -> Iterator[None]:
    """Take back what torch.export notes on the example's tensors: it would count as declared in the next capture."""
    before = [(leaf, dict(vars(leaf))) for leaf in pytree.tree_leaves(example) if isinstance(leaf, torch.Tensor)]
    try:
        yield
    finally:
        for leaf, attributes in before:
            vars(leaf).clear()
            vars(leaf).update(attributes)


@contextlib.contextmanager
def variable_numbers(model: torch.nn.Module, example: Example, specs: Sequence[Mapping[int, Any]]) -> Iterator[Example]:
    """Let floats and bools that are declared dynamic reach the model's forward through tensors.

    torch.export takes such numbers for constants, whatever is declared. Integers it can leave variable.

    Args:
        model: The module.
        example: Its arguments.
        specs: Declared dimensions of each of its leaves.
    """
    leaves, structure = pytree.tree_flatten(example)
    positions = [index for index, spec in enumerate(specs) if spec and isinstance(leaves[index], float | bool)]
    if not positions:
        yield example
        return
    forward = model.forward

    @functools.wraps(forward)
    def with_numbers(*args: Any, **kwargs: Any) -> Any:
        parts, inner = pytree.tree_flatten((args, kwargs))
        for position in positions:
            parts[position] = parts[position].item()
        args, kwargs = pytree.tree_unflatten(parts, inner)
        return forward(*args, **kwargs)

    with replaced_forward(model, with_numbers):
        for position in positions:
            number = leaves[position]
            leaves[position] = torch.tensor(
                number, dtype=torch.bool if isinstance(number, bool) else torch.float64, device="cpu"
            )
        yield pytree.tree_unflatten(leaves, structure)


@contextlib.contextmanager
def named_keywords(model: torch.nn.Module, kwargs: Mapping[str, Any]) -> Iterator[None]:
    """Make a parameter of each keyword argument that ``**kwargs`` collects: others cannot be dynamic in torch.

    Args:
        model: The module.
        kwargs: The keyword arguments.
    """
    forward = model.forward
    signature = inspect.signature(forward)
    own = [p for p in signature.parameters.values() if p.kind is not inspect.Parameter.VAR_KEYWORD]
    collected = [name for name in kwargs if name not in {parameter.name for parameter in own}]
    if not collected:
        yield
        return

    @functools.wraps(forward)
    def with_names(*args: Any, **kwargs: Any) -> Any:
        return forward(*args, **kwargs)

    named = [inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY) for name in collected]
    with_names.__signature__ = signature.replace(parameters=[*own, *named])  # type: ignore[attr-defined]
    with replaced_forward(model, with_names):
        yield


@contextlib.contextmanager
def replaced_forward(model: torch.nn.Module, forward: Callable[..., Any]) -> Iterator[None]:
    """Let a module have another forward meanwhile."""
    before, own = model.forward, "forward" in vars(model)
    object.__setattr__(model, "forward", forward)
    try:
        yield
    finally:
        if own:
            object.__setattr__(model, "forward", before)
        else:
            del model.forward
