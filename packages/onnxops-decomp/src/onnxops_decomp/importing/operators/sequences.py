"""Sequences, which are lists, and optionals, which are values or None."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from onnxops_decomp.importing.registry import onnx_op
from onnxops_decomp.importing.values import of_strings


@onnx_op("SequenceEmpty")
def sequence_empty(dtype: int = 1) -> Any:
    return []


@onnx_op("SequenceConstruct")
def sequence_construct(*inputs: Any) -> Any:
    return list(inputs)


def _place(position: int, length: int, count: int) -> int:
    """Return which of ``count`` places of a sequence of some length a position is."""
    if not -length <= position < count:
        raise IndexError(f"position {position} lies outside of a sequence of length {length}")
    return position + length if position < 0 else position


@onnx_op("SequenceInsert")
def sequence_insert(input_sequence: Any, tensor: Any, position: int | None = None) -> Any:
    length = len(input_sequence)
    place = length if position is None else _place(position, length, length + 1)
    return [*input_sequence[:place], tensor, *input_sequence[place:]]


@onnx_op("SequenceErase")
def sequence_erase(input_sequence: Any, position: int = -1) -> Any:
    place = _place(position, len(input_sequence), len(input_sequence))
    return [*input_sequence[:place], *input_sequence[place + 1 :]]


@onnx_op("SequenceAt")
def sequence_at(input_sequence: Any, position: int) -> Any:
    return input_sequence[position]


@onnx_op("SequenceLength")
def sequence_length(input_sequence: Any) -> int:
    return len(input_sequence)


@onnx_op("ConcatFromSequence")
@of_strings
def concat_from_sequence(input_sequence: Any, axis: int, new_axis: int = 0) -> Tensor:
    return torch.stack(input_sequence, axis) if new_axis else torch.cat(input_sequence, axis)


@onnx_op("SplitToSequence")
@of_strings
def split_to_sequence(
    input: Tensor, split: Tensor | int | list[int] | None = None, axis: int = 0, keepdims: int = 1
) -> Any:
    sizes = split.tolist() if isinstance(split, Tensor) else split
    if sizes is None:
        parts = torch.split(input, 1, axis)
        return list(parts) if keepdims else [part.squeeze(axis) for part in parts]
    return list(torch.split(input, sizes, axis))


@onnx_op("Optional")
def optional(input: Any = None, type: Any = None) -> Any:
    return input


@onnx_op("OptionalGetElement")
def optional_get_element(input: Any) -> Any:
    if input is None:
        raise ValueError("OptionalGetElement takes the element of an optional that has none.")
    return input


@onnx_op("OptionalHasElement")
def optional_has_element(input: Any = None) -> Tensor:
    return torch.tensor(input is not None)
