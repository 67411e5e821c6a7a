"""Inputs made from a model's signature."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import ml_dtypes
import numpy as np
import numpy.typing as npt
import onnx
from onnx import inliner

from onnx_verify.errors import InputError
from onnx_verify.inputs.sets import InputSet
from onnx_verify.models.model import LoadedModel, ModelLike, ValueSpec, all_nodes, load_model
from onnx_verify.values.dtypes import is_float, is_int, numpy_dtype

Array = npt.NDArray[Any]

# Operators that hand integers on unchanged, so that a bound on their output bounds their input.
_PASS_ON = frozenset(
    {"Cast", "Identity", "Reshape", "Squeeze", "Unsqueeze", "Flatten", "Transpose", "Expand", "Slice", "Tile"}
)
SIZES = (2, 3, 5)
"""The sizes that dynamic dimensions take where none are given."""
SMALLEST = "dynamic sizes 1"
"""The label of the set in which every dynamic dimension is 1."""
_EDGES = ("zeros", "negative", "large")
_MAX_ELEMENTS = 1 << 28


@dataclass(frozen=True)
class RandomInputs:
    """How inputs are generated.

    Attributes:
        seed: of the random numbers; the same seed gives the same inputs.
        sizes: the sizes that dynamic dimensions take in turn; dimensions of different names take different
            ones in the same set. A mapping gives them by dimension name.
        ranges: lowest and highest value by input name; floats are standard normal, and integers run from 0 to
            9 or to the end of what they index, otherwise.
        edge_cases: whether sets of dynamic size 1, of zeros, of negative and of large values are added.
    """

    seed: int = 0
    sizes: Sequence[int] | Mapping[str, Sequence[int]] = SIZES
    ranges: Mapping[str, tuple[float, float]] = field(default_factory=dict)
    edge_cases: bool = True


def generate_inputs(model: ModelLike | LoadedModel, spec: RandomInputs | None = None) -> list[InputSet]:
    """Make input sets for a model: one per size, then the edge cases.

    Args:
        model: whose graph inputs are filled.
        spec: seed, sizes, ranges; the defaults otherwise.

    Returns:
        Input sets with positional arguments in the order of the graph inputs. A model without dynamic
        dimensions gets one set and the edge cases that do not change sizes.

    Raises:
        InputError: if an input is not a tensor, or a range or size is given for something that does not exist.
    """
    loaded = load_model(model)
    maker = _Maker(loaded, spec or RandomInputs())
    return list(maker.sets())


class _Maker:
    """Makes the sets for one model."""

    def __init__(self, model: LoadedModel, spec: RandomInputs) -> None:
        self.spec = spec
        self.inputs = model.inputs
        self.dims = dynamic_dims(self.inputs)
        self.bounds = index_bounds(model)
        unknown = sorted(spec.ranges.keys() - {value.name for value in self.inputs})
        if isinstance(spec.sizes, Mapping):
            unknown += sorted(spec.sizes.keys() - set(self.dims))
        if unknown:
            raise InputError(f"{', '.join(unknown)} is not an input or dynamic dimension of {model.source}")
        for value in self.inputs:
            if value.code is None:
                raise InputError(f"input {value.name!r} is not a tensor; inputs can only be generated for tensors")

    def sets(self) -> Iterator[InputSet]:
        """Yield the sets."""
        for turn in range(self._turns()):
            sizes = {dim: self._size(dim, index, turn) for index, dim in enumerate(self.dims)}
            text = ", ".join(f"{dim}={size}" for dim, size in sizes.items())
            yield self._make(sizes, "", turn, f"random {text}".strip())
        if not self.spec.edge_cases:
            return
        if self.dims:
            yield self._make(dict.fromkeys(self.dims, 1), "", 100, SMALLEST)
        sizes = {dim: self._size(dim, index, 0) for index, dim in enumerate(self.dims)}
        for position, edge in enumerate(_EDGES):
            yield self._make(sizes, edge, 101 + position, f"{edge} values")

    def _turns(self) -> int:
        if not self.dims:
            return 1
        sizes = self.spec.sizes
        return max(map(len, sizes.values()), default=1) if isinstance(sizes, Mapping) else len(sizes)

    def _size(self, dim: str, index: int, turn: int) -> int:
        sizes = self.spec.sizes
        if isinstance(sizes, Mapping):
            own = sizes.get(dim, SIZES)
            return own[turn % len(own)]
        return sizes[(index + turn) % len(sizes)]

    def _make(self, sizes: Mapping[str, int], edge: str, turn: int, label: str) -> InputSet:
        rng = np.random.default_rng((self.spec.seed, turn))
        values = tuple(self._value(spec, sizes, edge, rng) for spec in self.inputs)
        return InputSet(values, label=label)

    def _value(self, spec: ValueSpec, sizes: Mapping[str, int], edge: str, rng: np.random.Generator) -> Array:
        assert spec.code is not None
        shape = tuple(
            dim if isinstance(dim, int) else sizes[_dim_name(spec, axis)] for axis, dim in enumerate(spec.shape or ())
        )
        if any(dim < 0 for dim in shape) or np.prod(shape, dtype=np.float64) > _MAX_ELEMENTS:
            raise InputError(f"input {spec.name!r} of shape {list(shape)} is too large to generate")
        dtype = numpy_dtype(spec.code)
        if dtype.kind == "O":
            return np.array([f"word{n}" for n in rng.integers(0, 9, int(np.prod(shape)))], object).reshape(shape)
        if dtype.kind == "b":
            return np.zeros(shape, bool) if edge == "zeros" else rng.random(shape) < 0.5
        if is_int(dtype):
            return self._integers(spec.name, shape, dtype, edge, rng)
        return self._floats(spec.name, shape, dtype, edge, rng)

    def _integers(
        self,
        name: str,
        shape: tuple[int, ...],
        dtype: np.dtype[np.generic],
        edge: str,
        rng: np.random.Generator,
    ) -> Array:
        low, high = 0, 9
        if name in self.spec.ranges:
            low, high = (int(end) for end in self.spec.ranges[name])
        elif name in self.bounds:
            high = max(0, self.bounds[name] - 1)
        if edge == "zeros" and low <= 0 <= high:
            return np.zeros(shape, dtype)
        high = min(high, int(ml_dtypes.iinfo(dtype).max))  # type: ignore[no-untyped-call]
        return rng.integers(low, high, shape, endpoint=True).astype(dtype)

    def _floats(
        self,
        name: str,
        shape: tuple[int, ...],
        dtype: np.dtype[np.generic],
        edge: str,
        rng: np.random.Generator,
    ) -> Array:
        if edge == "zeros":
            values: Array = np.zeros(shape)
        elif name in self.spec.ranges:
            values = rng.uniform(*self.spec.ranges[name], size=shape)
        else:
            values = rng.standard_normal(shape)
            if edge == "negative":
                values = -np.abs(values)
            elif edge == "large":
                values = values * (100.0 if dtype.itemsize >= 4 else 10.0)
        if dtype.kind == "c":
            values = values + 1j * rng.standard_normal(shape)
        assert dtype.kind == "c" or is_float(dtype)
        return np.asarray(values).astype(dtype)


def dimension_names(model: LoadedModel) -> list[str]:
    """Return the names of the dynamic dimensions of a model's inputs; an unnamed one is called ``input:axis``."""
    return dynamic_dims(model.inputs)


def dynamic_dims(inputs: Sequence[ValueSpec], first: int = 0) -> list[str]:
    """Return the names of the dynamic dimensions in order; an unnamed one is called ``input:axis``.

    Args:
        inputs: the inputs that have them.
        first: the first axis of each input that counts.
    """
    names: dict[str, None] = {}
    for spec in inputs:
        for axis, dim in enumerate(spec.shape or ()):
            if axis >= first and not isinstance(dim, int):
                names[_dim_name(spec, axis)] = None
    return list(names)


def _dim_name(spec: ValueSpec, axis: int) -> str:
    dim = (spec.shape or ())[axis]
    return dim if isinstance(dim, str) else f"{spec.name}:{axis}"


def index_bounds(model: LoadedModel) -> dict[str, int]:
    """Return, for each integer input that is used as an index, how many entries there are to index.

    Follows the input through casts, reshapes and the like to Gather, GatherElements and OneHot; the smallest
    bound counts. An index into something of dynamic size is bound by 1.
    """
    graph = model.graph
    if model.proto.functions:
        graph = inliner.inline_local_functions(model.proto).graph
    shapes = {tensor.name: tuple(tensor.dims) for tensor in graph.initializer}
    consumers: dict[str, list[onnx.NodeProto]] = {}
    for node in all_nodes(graph):
        for name in node.input:
            consumers.setdefault(name, []).append(node)
    bounds: dict[str, int] = {}
    for spec in model.inputs:
        if spec.code is not None and is_int(numpy_dtype(spec.code)):
            found = list(_bounds_of(spec.name, consumers, shapes, model))
            if found:
                bounds[spec.name] = min(found)
    return bounds


def _bounds_of(
    name: str,
    consumers: Mapping[str, Sequence[onnx.NodeProto]],
    shapes: Mapping[str, tuple[int, ...]],
    model: LoadedModel,
) -> Iterator[int]:
    pending, seen = [name], {name}
    while pending:
        current = pending.pop()
        for node in consumers.get(current, ()):
            if node.op_type in ("Gather", "GatherElements") and node.input[1] == current:
                shape = shapes.get(node.input[0])
                axis = next((a.i for a in node.attribute if a.name == "axis"), 0)
                yield shape[axis] if shape and -len(shape) <= axis < len(shape) else 1
            elif node.op_type == "OneHot" and node.input[0] == current:
                depth = model.initializer_values(node.input[1])
                yield int(np.asarray(depth).reshape(-1)[0]) if depth is not None else 1
            elif node.op_type in _PASS_ON and node.input[0] == current:
                fresh = set(node.output) - seen
                seen |= fresh
                pending.extend(fresh)
