"""A call at other sizes of the dynamic dimensions than the example's."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import torch

from onnxops_decomp.exporting.errors import InvalidArgumentError
from onnxops_decomp.exporting.sizes.expressions import size

if TYPE_CHECKING:
    from onnxops_decomp.exporting.program.callable_program import CallableProgram

__all__ = ["Example", "fitted_lengths", "other_sizes", "resampled"]

Example = tuple[tuple[Any, ...], dict[str, Any]]


def other_sizes(
    program: CallableProgram, args: Sequence[Any], kwargs: Mapping[str, Any], smallest: int
) -> Iterator[Iterator[tuple[dict[str, int], Example]]]:
    """Yield calls at other sizes: a group of larger ones, of which one is enough, and a group of the smallest.

    Larger sizes differ between dimensions, so that one which was taken for another shows; as a model may ask for
    multiples, they are doubled next. The contents are those of the example in their order, some of them several times
    or left out; where integers are lengths in another input, they follow next what becomes of its size.

    Args:
        program: The exported program, which says what the dimensions are called; sizes that it refuses are left out.
        args: Positional arguments of the example.
        kwargs: Its keyword arguments.
        smallest: The size of the last group.

    Yields:
        For each group its calls: the sizes by name of the dimension, and the arguments.
    """
    inputs = {name: value for name, value in program.flat_inputs(*args, **kwargs).items() if _is_dynamic(program, name)}
    present = {
        text: int(inputs[name].shape[axis])
        for name in inputs
        for axis, text in _dimensions(program, name).items()
        if text.isidentifier()
    }
    if not present:
        return
    larger = [
        {name: old + 1 + index for index, (name, old) in enumerate(present.items())},
        {name: 2 * old for name, old in present.items()},
    ]
    for group in (larger, [dict.fromkeys(present, smallest)]):
        yield _calls(program, inputs, args, kwargs, [sizes for sizes in group if sizes != present])


def _calls(
    program: CallableProgram,
    inputs: Mapping[str, torch.Tensor],
    args: Sequence[Any],
    kwargs: Mapping[str, Any],
    candidates: Sequence[dict[str, int]],
) -> Iterator[tuple[dict[str, int], Example]]:
    for sizes in candidates:
        resized = {name: _resized(value, _dimensions(program, name), sizes) for name, value in inputs.items()}
        known = {name: value for name, value in resized.items() if value is not None}
        try:
            program.check_sizes(known)
        except InvalidArgumentError:
            continue
        if len(known) == len(resized):
            yield sizes, program.call_with(known, args, kwargs)
            fitted = fitted_lengths(list(inputs.values()), list(known.values()))
            if fitted is not None:
                yield sizes, program.call_with(dict(zip(known, fitted, strict=True)), args, kwargs)


def fitted_lengths(before: Sequence[Any], after: Sequence[Any]) -> list[Any] | None:
    """Return tensors at other sizes with lengths that fit these; None where nothing is known to be a length.

    Integers that go up to a size of another tensor, and reach it, are lengths in it, or places: a model that pads by
    them takes no others.

    Args:
        before: The tensors of the example; anything else is left as it is.
        after: The same at other sizes.
    """
    pairs = [
        {(old, new) for old, new in zip(x.shape, y.shape, strict=True) if old != new} if _is_tensor(x) else set()
        for x, y in zip(before, after, strict=True)
    ]
    fitted, found = list(after), False
    for index, (old_tensor, tensor) in enumerate(zip(before, after, strict=True)):
        if not _is_tensor(tensor) or not tensor.numel() or not old_tensor.numel() or not _holds_integers(tensor):
            continue
        others = set().union(*(each for place, each in enumerate(pairs) if place != index)) - pairs[index]
        largest = int(old_tensor.max())
        for old, new in sorted(others):
            if old == largest and int(old_tensor.min()) >= 0:
                scaled = ((tensor * new + old - 1) // old).contiguous()
                # The longest one may have been left out.
                scaled.view(-1)[int(tensor.argmax())] = new
                fitted[index], found = scaled, True
                break
    return fitted if found else None


def _is_tensor(value: object) -> bool:
    return isinstance(value, torch.Tensor)


def _holds_integers(tensor: torch.Tensor) -> bool:
    return tensor.dtype in (torch.int32, torch.int64)


def _resized(tensor: torch.Tensor, dimensions: Mapping[int, str], sizes: Mapping[str, int]) -> torch.Tensor | None:
    """Return the tensor at other sizes, or None where they are unknown or negative."""
    for axis, text in dimensions.items():
        wanted = size(text, sizes)
        if wanted is None or wanted < 0:
            return None
        tensor = resampled(tensor, axis, wanted)
    return tensor


def _is_dynamic(program: CallableProgram, name: str) -> bool:
    return name not in program.initial_state and bool(_dimensions(program, name))


def _dimensions(program: CallableProgram, name: str) -> dict[int, str]:
    """Return what the dynamic dimensions of an input are called, by axis."""
    shape = next(value.shape for value in program.model.graph.inputs if value.name == name)
    dims = () if shape is None else shape.dims
    return {axis: str(dim.value) for axis, dim in enumerate(dims) if not isinstance(dim, int)}


def resampled(tensor: torch.Tensor, axis: int, size: int) -> torch.Tensor:
    """Return a tensor with that many entries along an axis, its own ones in their order: what is sorted stays so."""
    present = tensor.shape[axis]
    if size == present:
        return tensor
    if present == 0:
        return tensor.new_zeros([*tensor.shape[:axis], size, *tensor.shape[axis + 1 :]])
    positions = torch.arange(size, device=tensor.device) * present // size
    return tensor.detach().index_select(axis, positions)
