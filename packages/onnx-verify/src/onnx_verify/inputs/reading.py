"""Reading input sets, however the caller wrote them down."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from onnx_verify.errors import InputError
from onnx_verify.inputs.datafiles import read_inputs
from onnx_verify.inputs.sets import InputSet, is_leaf

InputsLike = Any
"""An InputSet, a tuple (positional), a dict (by name), a tensor or array, a path, or a list of those."""


_SET_TYPES = (InputSet, tuple, Mapping, str, Path)


def input_sets(inputs: InputsLike) -> list[InputSet]:
    """Read input sets in any of their spellings.

    Args:
        inputs: one set - an :class:`InputSet`, a tuple of positional inputs, a dict by name, a single tensor
            or
            array - or a list of sets, or the path of ``.npz``, ``.npy``, ``.pb`` or test data folder.

    Raises:
        InputError: if there are none, or a list holds bare tensors, which could mean two things.
    """
    if isinstance(inputs, list):
        bare = [item for item in inputs if not isinstance(item, _SET_TYPES)]
        if bare:
            raise InputError(
                "a list holds several input sets; write (x, y) for one set of two inputs, and [(x,), (y,)] "
                "for two sets of one"
            )
        sets = [found for item in inputs for found in _one_set(item)]
    else:
        sets = list(_one_set(inputs))
    if not sets:
        raise InputError("there are no inputs to run; give at least one input set")
    return [
        each if each.label else InputSet(each.args, each.kwargs, each.feeds, f"inputs {index}")
        for index, each in enumerate(sets)
    ]


def _one_set(inputs: Any) -> Iterator[InputSet]:
    if isinstance(inputs, InputSet):
        yield inputs
    elif isinstance(inputs, tuple):
        yield InputSet(inputs)
    elif isinstance(inputs, Mapping):
        yield InputSet(kwargs=dict(inputs))
    elif isinstance(inputs, (str, Path)):
        yield from read_inputs(Path(inputs))
    elif is_leaf(inputs):
        yield InputSet((inputs,))
    else:
        raise InputError(f"cannot read inputs from {type(inputs).__name__}; give a tuple, a dict or an InputSet")
