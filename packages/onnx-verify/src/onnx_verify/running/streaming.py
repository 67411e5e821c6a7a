"""All intermediate values of a model, in order, in bounded memory."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt
import onnx
from onnx import shape_inference

from onnx_verify.inputs.sets import InputSet, bind_feeds
from onnx_verify.models.model import LoadedModel, ValueSpec
from onnx_verify.models.slicing import Graph, piece
from onnx_verify.models.weights import weight_bytes
from onnx_verify.running.runtimes import Backend, Outputs, Runtime
from onnx_verify.values.dtypes import is_known, numpy_dtype

Array = npt.NDArray[Any]
Feeds = Mapping[str, Any]
Values = list[Any]
"""One value per sample: an array, or a list of arrays for a sequence."""

DEFAULT_MEMORY_LIMIT = 1 << 30
_MAX_WINDOW = 256


class ValueStream(Protocol):
    """Something that computes named values in order."""

    @property
    def names(self) -> set[str]:
        """The values that it can compute."""

    def values(self, wanted: set[str]) -> Iterator[tuple[str, Values]]:
        """Yield each wanted value once, in the order in which it is computed."""


def value_bytes(value: Any) -> int:
    """Return the size of a value in memory."""
    if isinstance(value, list):
        return sum(value_bytes(item) for item in value)
    return int(np.asarray(value).nbytes)


class OnnxStream:
    """Runs an ONNX model window by window.

    A window is a run of nodes whose weights and values fit into a share of the memory limit; it is executed
    as a
    model of its own, with all wanted values as outputs, and only what later windows need is kept.
    """

    def __init__(
        self,
        graph: Graph,
        samples: Sequence[Feeds],
        backend: Backend,
        memory_limit: int = DEFAULT_MEMORY_LIMIT,
    ) -> None:
        """Prepare the windows; nothing runs yet."""
        self.graph = graph
        self.samples = list(samples)
        self.backend = backend
        self.budget = max(memory_limit // 4, 1)
        self.windows = 0
        self._guess = max((value_bytes(v) for feeds in samples for v in feeds.values()), default=1 << 20)

    @property
    def names(self) -> set[str]:
        """The values that the nodes make."""
        return set(self.graph.producer)

    def values(self, wanted: set[str]) -> Iterator[tuple[str, Values]]:
        """Yield the wanted values; the stream stops once the last of them is there."""
        graph = self.graph
        sizes = self._sizes()
        last = max((graph.producer[name] for name in wanted if name in graph.producer), default=-1)
        live: dict[str, Values] = {}
        start = 0
        while start <= last:
            stop = self._window(start, last + 1, sizes)
            made = self._run(start, stop, live, wanted)
            for index in range(start, stop):
                for name in graph.nodes[index].output:
                    if name in wanted:
                        yield name, made[name]
            live.update(made)
            live = {name: held for name, held in live.items() if self._needed(name, stop)}
            start = stop

    def _needed(self, name: str, stop: int) -> bool:
        return any(reader >= stop for reader in self.graph.readers.get(name, ()))

    def _window(self, start: int, end: int, sizes: Mapping[str, int]) -> int:
        """Return where the window that begins at ``start`` ends."""
        used = 0
        for index in range(start, min(end, start + _MAX_WINDOW)):
            used += self.graph.weight_bytes(index)
            names = self.graph.nodes[index].output
            used += sum(sizes.get(name, self._guess) for name in names) * len(self.samples)
            if used > self.budget and index > start:
                return index
        return min(end, start + _MAX_WINDOW)

    def _run(self, start: int, stop: int, live: Mapping[str, Values], wanted: set[str]) -> dict[str, Values]:
        graph = self.graph
        nodes = range(start, stop)
        outputs = [
            name
            for index in nodes
            for name in graph.nodes[index].output
            if name and (name in wanted or self._needed(name, stop))
        ]
        if not outputs:
            return {}
        reads = {name for index in nodes for name in graph.uses[index]}
        held = {name: live[name] for name in reads if name in live}
        feeds = [
            {name: values[position] for name, values in held.items()}
            | {name: sample[name] for name in reads if name in sample}
            for position, sample in enumerate(self.samples)
        ]
        self.windows += 1
        model = piece(graph, nodes, outputs, feeds[0])
        results = run_piece(model, outputs, feeds, self.backend)
        self._learn(results)
        return results

    def _learn(self, results: Mapping[str, Values]) -> None:
        """Take the mean size of what a window gave as the guess for values of unknown size."""
        sizes = [value_bytes(values[0]) for values in results.values()]
        if sizes:
            self._guess = max(1, sum(sizes) // len(sizes))

    def _sizes(self) -> dict[str, int]:
        """Return the bytes of the values whose shape can be inferred from the first sample."""
        if not self.samples:
            return {}
        proto = onnx.ModelProto()
        proto.CopyFrom(self.graph.model.proto)
        for value in proto.graph.input:
            array = self.samples[0].get(value.name)
            if isinstance(array, np.ndarray):
                shape = value.type.tensor_type.shape
                del shape.dim[:]
                shape.dim.extend(onnx.TensorShapeProto.Dimension(dim_value=dim) for dim in array.shape)
        del proto.graph.value_info[:]
        try:
            inferred = shape_inference.infer_shapes(proto, data_prop=True).graph
        except Exception:  # an operator that inference does not know only costs the estimate
            return {}
        return {
            value.name: size
            for value in (*inferred.value_info, *inferred.output)
            if (size := _static_bytes(value)) is not None
        }


def _static_bytes(value: onnx.ValueInfoProto) -> int | None:
    tensor = value.type.tensor_type
    if not tensor.HasField("shape") or not is_known(tensor.elem_type):
        return None
    count = 1
    for dim in tensor.shape.dim:
        if dim.WhichOneof("value") != "dim_value":
            return None
        count *= dim.dim_value
    return count * numpy_dtype(tensor.elem_type).itemsize


def run_piece(
    model: LoadedModel, outputs: Sequence[str], feeds: Sequence[Feeds], backend: Backend
) -> dict[str, Values]:
    """Run a piece on each sample.

    Returns:
        One value per sample by output name; a sequence output is a list of arrays, an absent optional None.

    Raises:
        ModelRunError: if the runtime refuses it.
    """
    runtime = backend.load(model)
    results = [runtime.run_values(each) for each in feeds]
    return {name: [result[i] for result in results] for i, name in enumerate(outputs)}


def bind_samples(model: LoadedModel, sets: Sequence[InputSet]) -> list[dict[str, Any]]:
    """Assign each input set to the inputs of a model."""
    return [bind_feeds(each, model.inputs) for each in sets]


class StreamedRuntime:
    """Runs a model window by window, for models whose weights a session would copy beyond the memory limit."""

    def __init__(self, model: LoadedModel, backend: Backend, memory_limit: int = DEFAULT_MEMORY_LIMIT) -> None:
        """Index the model; nothing is loaded yet."""
        self.graph = Graph(model)
        self.backend = backend
        self.memory_limit = memory_limit
        self.name = f"{model.source} in {backend.label}, in windows"
        self.inputs: tuple[ValueSpec, ...] | None = model.inputs

    def run(self, inputs: InputSet) -> Outputs:
        """Bind the inputs by name or position and run once."""
        feeds = bind_feeds(inputs, self.inputs or ())
        stream = OnnxStream(self.graph, [feeds], self.backend, self.memory_limit)
        made = {name: values[0] for name, values in stream.values(set(self.graph.outputs))}
        outputs: Outputs = []
        for name in self.graph.outputs:
            value = made.get(name, feeds.get(name))
            if value is None:
                value = self.graph.model.initializer_values(name)
            if isinstance(value, list):
                outputs.extend((f"{name}[{index}]", item) for index, item in enumerate(value))
            elif value is not None:
                outputs.append((name, value))
        return outputs


def bounded_runtime(model: LoadedModel, backend: Backend, memory_limit: int) -> Runtime:
    """Return one session for the whole model, or windows where its weights alone would take half of the limit."""
    total = sum(weight_bytes(weight) for weight in model.weights.values())
    if 2 * total > memory_limit:
        return StreamedRuntime(model, backend, memory_limit)
    return backend.load(model)
