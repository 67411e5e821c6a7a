"""Input sets: what one run of a model is given."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from onnx_verify.errors import InputError
from onnx_verify.values.dtypes import is_float, numpy_dtype, onnx_dtype
from onnx_verify.values.pytree import flatten
from onnx_verify.values.torch_tensors import is_tensor, to_numpy

if TYPE_CHECKING:
    from onnx_verify.models.model import ValueSpec

Array = npt.NDArray[Any]


@dataclass(frozen=True)
class InputSet:
    """The inputs of one run.

    Attributes:
        args: positional arguments, nested as the model takes them; tensors, arrays and Python scalars.
        kwargs: arguments by name. An ONNX model takes those whose name is one of its inputs by that name.
        feeds: the ONNX model's inputs by name, where they are not a plain flattening of the arguments.
        label: how reports call this set.
    """

    args: tuple[Any, ...] = ()
    kwargs: Mapping[str, Any] = field(default_factory=dict)
    feeds: Mapping[str, Any] | None = None
    label: str = ""

    def leaves(self) -> list[Any]:
        """Return the flat inputs in order, without None."""
        return flatten((self.args, dict(self.kwargs)))


def is_leaf(value: object) -> bool:
    """Tell whether a value is one input: a tensor, an array or a Python scalar."""
    return is_tensor(value) or isinstance(value, (np.ndarray, np.generic, bool, int, float, complex))


def as_array(value: Any, where: str) -> Array:
    """Return a leaf as an array.

    Raises:
        InputError: if it is nothing that an ONNX tensor can hold.
    """
    if is_tensor(value):
        return to_numpy(value)
    if isinstance(value, np.ndarray):
        return value
    if isinstance(value, (np.generic, bool, int, float, complex, str)):
        return np.asarray(value)
    raise InputError(f"{where} is a {type(value).__name__}, which is not a tensor")


def bind_feeds(inputs: InputSet, specs: Sequence[ValueSpec], by_name_only: bool = False) -> dict[str, Any]:
    """Assign an input set to the inputs of an ONNX model.

    Keyword arguments go to the input of their name; the other leaves go to the other inputs in order. Python
    scalars are dropped when the tensors alone fill the inputs (an exporter makes constants of scalars), and
    take
    the input's dtype otherwise.

    Args:
        inputs: what the caller gave.
        specs: the model's inputs.
        by_name_only: whether a keyword that is not an input's name is an error.

    Raises:
        InputError: if the number of inputs, a name, dtype or fixed dimension does not fit.
    """
    by_name = {spec.name: spec for spec in specs}
    if inputs.feeds is not None:
        given = dict(inputs.feeds)
        _check_names(given, by_name)
    else:
        given = _assign(inputs, by_name, by_name_only)
    return {name: _fit(value, by_name[name]) for name, value in given.items()}


def _assign(inputs: InputSet, by_name: Mapping[str, ValueSpec], by_name_only: bool) -> dict[str, Any]:
    named = {key: value for key, value in inputs.kwargs.items() if key in by_name and _is_value(value, by_name[key])}
    if by_name_only and inputs.kwargs and not inputs.args:
        _check_names(dict(inputs.kwargs), by_name)
    others = {key: value for key, value in inputs.kwargs.items() if key not in named}
    free = [name for name in by_name if name not in named]
    rest = flatten((inputs.args, others))
    if any(by_name[name].code is None for name in free) and len(inputs.args) == len(free) and not others:
        rest = list(inputs.args)  # a sequence takes a whole list, an optional None
    if len(rest) != len(free):
        rest = [leaf for leaf in rest if not isinstance(leaf, (bool, int, float, complex, str))]
    if len(rest) != len(free):
        raise InputError(
            f"the model takes {len(by_name)} inputs ({', '.join(by_name)}), {len(rest) + len(named)} were given"
        )
    named.update(zip(free, rest, strict=True))
    return {name: named[name] for name in by_name}


def _is_value(value: object, spec: ValueSpec) -> bool:
    return is_leaf(value) or isinstance(value, list) or (value is None and spec.optional)


def _check_names(given: Mapping[str, Any], by_name: Mapping[str, ValueSpec]) -> None:
    unknown, missing = sorted(given.keys() - by_name.keys()), sorted(by_name.keys() - given.keys())
    if unknown or missing:
        raise InputError(
            f"the model takes the inputs {', '.join(by_name)}; not among them: "
            f"{', '.join(unknown) or 'nothing'}; missing: {', '.join(missing) or 'nothing'}"
        )


def _fit(value: Any, spec: ValueSpec) -> Any:
    """Turn one input into what the model declares for it, or say why it does not fit."""
    if spec.optional:
        value = _held(value, spec)
        if value is None:
            return None
    if isinstance(value, list):
        return [as_array(item, f"input {spec.name!r}") for item in value]
    array = as_array(value, f"input {spec.name!r}")
    if spec.code is None:
        return array
    wanted = numpy_dtype(spec.code)
    if not is_tensor(value) and not isinstance(value, np.ndarray):
        array = array.astype(wanted)
    if array.dtype.kind == "c" and is_float(wanted) and array.dtype.itemsize == 2 * wanted.itemsize:
        array = np.stack([array.real, array.imag], axis=-1)
    if onnx_dtype(array.dtype) != spec.code:
        raise InputError(f"input {spec.name!r} is {array.dtype}, the model takes {wanted}")
    _check_shape(array, spec)
    return array


def _held(value: Any, spec: ValueSpec) -> Any:
    """Return what an optional holds, which a file spells as a sequence of one, or of none where it is absent."""
    if not isinstance(value, list):
        return value
    if spec.kind == "optional tensor":
        if len(value) > 1:
            raise InputError(f"input {spec.name!r} is an optional tensor; {len(value)} tensors were given")
        return value[0] if value else None
    return value[0] if len(value) == 1 and isinstance(value[0], list) else value


def _check_shape(array: Array, spec: ValueSpec) -> None:
    if spec.shape is None:
        return
    fits = array.ndim == len(spec.shape) and all(
        not isinstance(dim, int) or dim == size for dim, size in zip(spec.shape, array.shape, strict=True)
    )
    if not fits:
        wanted = ", ".join("?" if dim is None else str(dim) for dim in spec.shape)
        raise InputError(f"input {spec.name!r} has shape {list(array.shape)}, the model takes [{wanted}]")
