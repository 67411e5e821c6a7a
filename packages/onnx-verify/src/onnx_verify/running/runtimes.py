"""The runtimes behind one small protocol."""

from __future__ import annotations

import ctypes
import enum
import math
import re
import threading
from abc import ABC, abstractmethod
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

import numpy as np
import numpy.typing as npt
import onnx
import onnx_ir as ir
import onnxruntime as ort
from onnx.reference import ReferenceEvaluator

from onnx_verify.errors import InputError, ModelRunError
from onnx_verify.inputs.sets import InputSet, as_array, bind_feeds
from onnx_verify.models.model import LoadedModel, ModelLike, ValueSpec, is_model_like, load_model, used_names
from onnx_verify.running.arena import share_arena, unbounded_optimizers
from onnx_verify.running.engines import engine, engine_names
from onnx_verify.values.dtypes import PACKED_BITS, numpy_dtype, onnx_dtype
from onnx_verify.values.packing import pack, raw_size, unpack
from onnx_verify.values.pytree import flatten
from onnx_verify.values.torch_tensors import (
    is_exported_program,
    is_module,
    is_tensor,
    is_torch_callable,
    require_torch,
    to_numpy,
    to_tensor,
    unchanged,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

Array = npt.NDArray[Any]
Outputs = list[tuple[str, Array]]
"""The flat outputs of one run, with names; an absent optional output is left out."""


@runtime_checkable
class Runtime(Protocol):
    """Something that can be run on an input set.

    Attributes:
        name: how reports call it.
        inputs: the flat inputs that it declares, None where it declares none.
    """

    name: str
    inputs: tuple[ValueSpec, ...] | None

    def run(self, inputs: InputSet) -> Outputs:
        """Run once.

        Raises:
            ModelRunError: if the model cannot be run on these inputs.
        """


class OnnxBackend(enum.Enum):
    """The runtimes for ONNX models."""

    ONNX_RUNTIME_CPU = "CPUExecutionProvider"
    ONNX_RUNTIME_CUDA = "CUDAExecutionProvider"
    REFERENCE = "ONNXReferenceEvaluator"

    @classmethod
    def available(cls) -> list[OnnxBackend]:
        """Return the backends that work on this machine."""
        providers = set(ort.get_available_providers())
        return [backend for backend in cls if backend is cls.REFERENCE or backend.value in providers]


OPTIMIZATION_LEVELS: dict[str, Any] = {
    "disabled": ort.GraphOptimizationLevel.ORT_DISABLE_ALL,
    "basic": ort.GraphOptimizationLevel.ORT_ENABLE_BASIC,
    "extended": ort.GraphOptimizationLevel.ORT_ENABLE_EXTENDED,
    "all": ort.GraphOptimizationLevel.ORT_ENABLE_ALL,
}
"""ONNX Runtime's graph optimization levels by name."""

# Types that session.run cannot hand over as arrays; they pass as OrtValues.
_FOREIGN = re.compile(r"\((bfloat16|float8\w+|float[46]\w+|u?int4|u?int2)\)")

_SHORT = {
    "ort": OnnxBackend.ONNX_RUNTIME_CPU,
    "ort-cuda": OnnxBackend.ONNX_RUNTIME_CUDA,
    "reference": OnnxBackend.REFERENCE,
}


@dataclass(frozen=True)
class Backend:
    """A way to run ONNX models: a runtime and its settings.

    Attributes:
        kind: the runtime; the name of an engine (see :func:`onnx_verify.usable_engines`) for another one.
        optimization: one of :data:`OPTIMIZATION_LEVELS`; ignored by the reference evaluator.
        threads: threads inside an operator; 0 lets the runtime choose.
        prepack: whether weights may be rearranged, which copies them.
        timeout: seconds after which a run in ONNX Runtime is stopped; 0 lets it run.
        bounded: whether values are kept within the memory limit (see :func:`onnx_verify.set_memory_limit`) and given
            back after each run, which costs time.
    """

    kind: OnnxBackend | str = OnnxBackend.ONNX_RUNTIME_CPU
    optimization: str = "all"
    threads: int = 0
    prepack: bool = True
    bounded: bool = True
    timeout: float = 0.0

    def __post_init__(self) -> None:
        """Refuse an unknown optimization level."""
        if self.optimization not in OPTIMIZATION_LEVELS:
            raise InputError(
                f"unknown optimization level {self.optimization!r}; one of {', '.join(OPTIMIZATION_LEVELS)}"
            )

    @classmethod
    def parse(cls, text: str) -> Backend:
        """Read ``ort``, ``ort:disabled``, ``ort-cuda:basic``, ``reference``, or the name of an engine.

        Raises:
            InputError: if the text is not one of them.
            MissingDependencyError: if the engine is not installed.
        """
        name, _, level = text.partition(":")
        if name not in _SHORT and (level or name not in engine_names()):
            names = ", ".join([*_SHORT, *engine_names()])
            raise InputError(f"unknown runtime {text!r}; write one of {names}, with :LEVEL after ort")
        if name not in _SHORT:
            engine(name)
        return cls(_SHORT.get(name, name), level or "all")

    @classmethod
    def of(cls, choice: BackendLike) -> Backend:
        """Return the backend that was meant: itself, a kind of runtime, or the text that :meth:`parse` reads.

        Raises:
            InputError: if it is not one of them.
        """
        if isinstance(choice, Backend):
            return choice
        if isinstance(choice, OnnxBackend):
            return cls(choice)
        return cls.parse(choice)

    @property
    def label(self) -> str:
        """The text that :meth:`parse` reads."""
        if isinstance(self.kind, str):
            return self.kind
        short = next(text for text, kind in _SHORT.items() if kind is self.kind)
        return short if self.kind is OnnxBackend.REFERENCE else f"{short}:{self.optimization}"

    def load(self, model: ModelLike | LoadedModel, by_name_only: bool = False) -> OnnxRuntime:
        """Make the model ready to run.

        Raises:
            ModelLoadError: if the model is broken or unsafe.
            ModelRunError: if the runtime refuses it, or is not available here.
        """
        loaded = load_model(model)
        if isinstance(self.kind, str):
            return EngineRuntime(loaded, self, by_name_only)
        if self.kind is OnnxBackend.REFERENCE:
            return ReferenceRuntime(loaded, self, by_name_only)
        if self.kind not in OnnxBackend.available():
            raise ModelRunError(
                f"{self.kind.value} is not in this build of onnxruntime ({ort.get_available_providers()})"
            )
        return OrtRuntime(loaded, self, by_name_only)


BackendLike = Backend | OnnxBackend | str
"""A backend, a kind of runtime with its default settings, or text such as ``"ort:disabled"``."""


class OnnxRuntime(ABC):
    """What the runtimes of ONNX models share: binding inputs by name or position."""

    def __init__(self, model: LoadedModel, backend: Backend, by_name_only: bool = False) -> None:
        """Keep the model's signature."""
        self.model = model
        self.backend = backend
        self.name = f"{model.source} in {backend.label}"
        self.inputs: tuple[ValueSpec, ...] | None = model.inputs
        self.output_names = [value.name for value in model.outputs]
        self.by_name_only = by_name_only

    def run(self, inputs: InputSet) -> Outputs:
        """Bind the inputs and run once."""
        return self.run_feeds(bind_feeds(inputs, self.inputs or (), self.by_name_only))

    def run_feeds(self, feeds: Mapping[str, Any]) -> Outputs:
        """Run on inputs by name; the parts of a sequence become outputs of their own."""
        outputs: Outputs = []
        for name, value in zip(self.output_names, self.run_values(feeds), strict=True):
            if isinstance(value, list):
                outputs.extend((f"{name}[{index}]", item) for index, item in enumerate(value))
            elif value is not None:
                outputs.append((name, value))
        return outputs

    def run_values(self, feeds: Mapping[str, Any]) -> list[Any]:
        """Run on inputs by name.

        Returns:
            One value per graph output: an array, a list of arrays for a sequence, None for an absent
            optional.

        Raises:
            ModelRunError: if the run fails.
        """
        try:
            values = self._execute(feeds)
        except Exception as error:
            raise ModelRunError(f"{self.name} failed: {_first_lines(error)}") from error
        return [_as_arrays(value) for value in values]

    @abstractmethod
    def _execute(self, feeds: Mapping[str, Any]) -> Sequence[Any]:
        """Return what the runtime gives for the inputs."""


class OrtRuntime(OnnxRuntime):
    """An ONNX Runtime session whose large weights are views, not copies."""

    def __init__(self, model: LoadedModel, backend: Backend, by_name_only: bool = False) -> None:
        """Create the session.

        Raises:
            ModelRunError: if ONNX Runtime refuses the model.
        """
        super().__init__(model, backend, by_name_only)
        options = ort.SessionOptions()
        options.graph_optimization_level = OPTIMIZATION_LEVELS[backend.optimization]
        options.log_severity_level = 4
        options.intra_op_num_threads = backend.threads
        options.inter_op_num_threads = 1
        self._shrink = backend.bounded and backend.kind is OnnxBackend.ONNX_RUNTIME_CPU
        if self._shrink:
            share_arena()
            options.add_session_config_entry("session.use_env_allocators", "1")
        if not backend.prepack:
            options.add_session_config_entry("session.disable_prepacking", "1")
        proto = _without_unused(model)
        kept = {tensor.name for tensor in proto.graph.initializer} & model.weights.keys()
        # The session reads this memory as long as it lives.
        self._weights = {name: to_ort_value(model.weights[name].load()) for name in sorted(kept)}
        if self._weights:
            options.add_external_initializers(list(self._weights), list(self._weights.values()))
        assert isinstance(backend.kind, OnnxBackend)
        providers = [backend.kind.value]
        if backend.kind is not OnnxBackend.ONNX_RUNTIME_CPU:
            providers.append(OnnxBackend.ONNX_RUNTIME_CPU.value)
        try:
            self._session = ort.InferenceSession(
                proto.SerializeToString(),
                options,
                providers=providers,
                disabled_optimizers=unbounded_optimizers() if self._shrink else [],
            )
        except Exception as error:
            raise ModelRunError(f"{self.name} cannot be loaded: {_first_lines(error)}") from error
        # A provider that fails to start is left out with a line in the log, and the model would run on the CPU.
        if backend.kind.value not in self._session.get_providers():
            raise ModelRunError(
                f"{self.name}: {backend.kind.value} did not start; its libraries (CUDA, cuDNN) may be missing"
            )
        ends = (*self._session.get_inputs(), *self._session.get_outputs())
        self._plain = not any(_FOREIGN.search(end.type) for end in ends)

    def _execute(self, feeds: Mapping[str, Any]) -> Sequence[Any]:
        options = ort.RunOptions()
        if self._shrink:
            # The shared arena outlives the session; without this it would keep the most that any run has needed.
            options.add_run_config_entry("memory.enable_memory_arena_shrinkage", "cpu:0")
        with _stopped_after(options, self.backend.timeout):
            if self._plain:
                return list(self._session.run(self.output_names, dict(feeds), options))
            values = {name: to_ort_value(value) for name, value in feeds.items()}
            results = self._session.run_with_ort_values(self.output_names, values, options)
        return [from_ort_value(value) for value in results]


@contextmanager
def _stopped_after(options: Any, seconds: float) -> Iterator[None]:
    """End a run with these options after some seconds, which a model can otherwise make last for ever."""
    if not seconds:
        yield
        return

    def stop() -> None:
        options.terminate = True

    timer = threading.Timer(seconds, stop)
    timer.daemon = True
    timer.start()
    try:
        yield
    except Exception as error:
        if options.terminate:
            raise TimeoutError(f"it did not finish within {seconds:g} seconds") from error
        raise
    finally:
        timer.cancel()


class ReferenceRuntime(OnnxRuntime):
    """ONNX's own reference evaluator."""

    def __init__(self, model: LoadedModel, backend: Backend, by_name_only: bool = False) -> None:
        """Build the evaluator; large weights are fed as inputs, so that none is copied into a proto.

        Raises:
            ModelRunError: if an operator is unknown to the evaluator.
        """
        super().__init__(model, backend, by_name_only)
        # Before release 1.19, which brought FLOAT8E8M0, bits of BFLOAT16 went for integers.
        if not hasattr(onnx.TensorProto, "FLOAT8E8M0") and onnx.TensorProto.BFLOAT16 in _element_types(model):
            raise ModelRunError(
                f"{self.name} cannot be loaded: The evaluator of onnx {onnx.__version__} has no BFLOAT16; "
                "install onnx 1.19 or newer"
            )
        proto = onnx.ModelProto()
        proto.CopyFrom(model.proto)
        kept = [tensor for tensor in proto.graph.initializer if tensor.name not in model.weights]
        del proto.graph.initializer[:]
        proto.graph.initializer.extend(kept)
        declared = {value.name for value in proto.graph.input}
        for name, weight in model.weights.items():
            if name not in declared:
                proto.graph.input.append(onnx.helper.make_tensor_value_info(name, weight.code, weight.shape))
        try:
            self._evaluator = ReferenceEvaluator(proto)
        except Exception as error:
            raise ModelRunError(f"{self.name} cannot be loaded: {_first_lines(error)}") from error

    def _execute(self, feeds: Mapping[str, Any]) -> Sequence[Any]:
        given = {name: weight.load() for name, weight in self.model.weights.items()}
        with np.errstate(all="ignore"):
            return list(self._evaluator.run(self.output_names, given | dict(feeds)))


def _element_types(model: LoadedModel) -> set[int]:
    """Return the element types that a model names."""
    found = {weight.code for weight in model.weights.values()}
    for graph in (model.proto.graph, *model.proto.functions):
        _collect_element_types(graph, found)
    return found


def _collect_element_types(graph: onnx.GraphProto | onnx.FunctionProto, found: set[int]) -> None:
    found.update(value.type.tensor_type.elem_type for value in graph.value_info)
    if isinstance(graph, onnx.GraphProto):
        found.update(value.type.tensor_type.elem_type for value in (*graph.input, *graph.output))
        found.update(tensor.data_type for tensor in graph.initializer)
    for node in graph.node:
        for attribute in node.attribute:
            if attribute.name in ("to", "dtype", "output_dtype"):
                found.add(attribute.i)
            if attribute.HasField("t"):
                found.add(attribute.t.data_type)
            for inner in (attribute.g, *attribute.graphs):
                _collect_element_types(inner, found)


class EngineRuntime(OnnxRuntime):
    """Another engine, found by its name."""

    def __init__(self, model: LoadedModel, backend: Backend, by_name_only: bool = False) -> None:
        """Hand the whole model to the engine.

        Raises:
            ModelRunError: if it refuses the model.
        """
        super().__init__(model, backend, by_name_only)
        try:
            self._run = engine(backend.label)(model.to_proto())
        except Exception as error:
            raise ModelRunError(f"{self.name} cannot be loaded: {_first_lines(error)}") from error

    def _execute(self, feeds: Mapping[str, Any]) -> Sequence[Any]:
        return self._run(feeds)


class CallableRuntime:
    """A torch module, ExportedProgram, script function, or any other callable."""

    def __init__(self, function: Callable[..., Any], flat: bool = False, output_names: Sequence[str] = ()) -> None:
        """Keep the callable.

        Args:
            function: what to call; torch programs get tensors, others get what the caller gave.
            flat: whether it takes the flattened inputs instead of the nested ones.
            output_names: names for its outputs; ``output_0``, ... otherwise.
        """
        self.inputs: tuple[ValueSpec, ...] | None = None
        self._module = function if is_module(function) else None
        self._wants_tensors = is_torch_callable(function) or is_exported_program(function)
        self._flat = flat and not self._wants_tensors
        self.name = getattr(function, "__qualname__", type(function).__name__)
        self._function: Callable[..., Any] = function.module() if is_exported_program(function) else function
        if is_exported_program(function):
            self._module = self._function  # type: ignore[assignment]
        self._output_names = tuple(output_names)
        self._watched: tuple[str, ...] = ()

    def watch(self, names: Sequence[str]) -> dict[str, Array]:
        """Make each run return what these buffers of the module hold after it, behind the other outputs.

        Returns:
            What they hold now; empty, with nothing watched, if the callable is not a module that has all of them.
        """
        held = dict(self._module.named_buffers()) if self._module is not None else {}
        if not all(name in held for name in names):
            return {}
        self._watched = tuple(names)
        return {name: to_numpy(held[name]) for name in names}

    def run(self, inputs: InputSet) -> Outputs:
        """Call once, on copies of the inputs, without gradients; a module's buffers are restored."""
        args, kwargs = (tuple(inputs.leaves()), {}) if self._flat else (inputs.args, dict(inputs.kwargs))
        try:
            leaves = self._call(self._own(args), self._own(kwargs))
        except InputError:
            raise
        except Exception as error:
            raise ModelRunError(f"{self.name} failed: {_first_lines(error)}") from error
        names = [*self._output_names, *(f"output_{i}" for i in range(len(self._output_names), len(leaves)))]
        return list(zip(names, leaves, strict=False))

    def _call(self, args: Any, kwargs: Any) -> list[Array]:
        if not self._wants_tensors:
            if any(is_tensor(leaf) for leaf in flatten((args, kwargs))):
                with require_torch("running on tensors").no_grad():
                    return self._arrays(self._function(*args, **kwargs))
            return self._arrays(self._function(*args, **kwargs))
        torch = require_torch("running a torch model")
        with torch.no_grad():
            if self._module is None:
                return self._arrays(self._function(*args, **kwargs))
            with unchanged(self._module):
                outputs = self._arrays(self._function(*args, **kwargs))
                held = dict(self._module.named_buffers())
                return [*outputs, *(to_numpy(held[name]) for name in self._watched)]

    def _arrays(self, outputs: Any) -> list[Array]:
        # Copies: an output may be a view of a buffer that is restored, or of memory that a later call reuses.
        return [
            to_numpy(leaf) if is_tensor(leaf) else np.array(as_array(leaf, f"output {index} of {self.name}"))
            for index, leaf in enumerate(flatten(outputs))
        ]

    def _own(self, tree: Any) -> Any:
        """Copy all tensors of a tree, as tensors if the callable wants them."""
        if isinstance(tree, np.ndarray):
            return to_tensor(tree) if self._wants_tensors else tree.copy()
        if is_tensor(tree):
            return tree.detach().clone()
        if type(tree) is dict:
            return {key: self._own(value) for key, value in tree.items()}
        if type(tree) in (tuple, list):
            return type(tree)(self._own(value) for value in tree)
        if hasattr(tree, "_fields") and isinstance(tree, tuple):
            return type(tree)(*(self._own(value) for value in tree))
        return _map_tensors(tree)


def _map_tensors(tree: Any) -> Any:
    """Copy a container that is not builtin (a cache, for one), which a run may change."""
    import copy

    if isinstance(tree, (bool, int, float, complex, str, type(None), np.generic)):
        return tree
    try:
        return copy.deepcopy(tree)
    except Exception:
        return tree


def as_runtime(
    model: Any, backend: BackendLike | None = None, flat: bool = False, by_name_only: bool = False
) -> Runtime:
    """Return the runtime for anything that can be compared.

    Args:
        model: a Runtime, an ONNX model in any form, an object with a ``model`` that is one (an ONNXProgram),
            a
            torch module, ExportedProgram or script function, or any callable.
        backend: how ONNX models are run; ONNX Runtime on the CPU by default.
        flat: whether a plain callable gets the flattened inputs.
        by_name_only: whether an input by a name that the model does not have is an error.

    Raises:
        InputError: if it is not one of them.
    """
    if is_model_like(model):
        return Backend.of(backend or Backend()).load(model, by_name_only)
    if is_exported_program(model) or is_torch_callable(model):
        return CallableRuntime(model)
    if isinstance(model, Runtime):
        return model
    inner = getattr(model, "model", None)
    if isinstance(inner, (onnx.ModelProto, ir.Model)):
        return Backend.of(backend or Backend()).load(inner, by_name_only)
    if callable(model):
        return CallableRuntime(model, flat)
    raise InputError(f"cannot run a {type(model).__name__}; give an ONNX model, its path, or something callable")


def to_ort_value(array: Array) -> Any:
    """Wrap an array as an OrtValue; the memory is shared, not copied, where numpy knows the dtype."""
    contiguous = np.ascontiguousarray(array).reshape(array.shape)
    if contiguous.dtype.kind in "biufc" and contiguous.dtype.name in np.sctypeDict:
        return ort.OrtValue.ortvalue_from_numpy(contiguous)
    if contiguous.dtype.kind in "OSUT":
        return ort.OrtValue.ortvalue_from_numpy(contiguous.astype(object))
    code = onnx_dtype(contiguous.dtype)
    if code in PACKED_BITS:
        value = ort.OrtValue.ortvalue_from_shape_and_type(list(array.shape), code)
        packed = pack(contiguous, code)
        ctypes.memmove(value.data_ptr(), packed.ctypes.data, packed.nbytes)
        return value
    raw = contiguous.view(np.dtype(f"u{contiguous.dtype.itemsize}"))
    return ort.OrtValue.ortvalue_from_numpy_with_onnx_type(raw, code)


def from_ort_value(value: Any) -> Any:
    """Return an OrtValue as an array, a list of arrays for a sequence, None for an absent optional."""
    if not value.has_value():
        return None
    if not value.is_tensor():
        return [np.asarray(item) for item in value.numpy()] if value.is_tensor_sequence() else value.numpy()
    code = int(value.element_type())
    dtype = numpy_dtype(code)
    if (dtype.kind in "biufcO" and dtype.name in np.sctypeDict) or code == onnx.TensorProto.STRING:
        return value.numpy()
    shape = tuple(value.shape())
    count = math.prod(shape)
    raw = np.frombuffer(ctypes.string_at(value.data_ptr(), raw_size(code, count)), np.uint8)
    return unpack(raw, code, shape) if code in PACKED_BITS else raw.view(dtype).reshape(shape)


def _without_unused(model: LoadedModel) -> onnx.ModelProto:
    """Return the graph without large initializers that nothing reads: ONNX Runtime drops them, then misses them."""
    read = {name for node in model.graph.node for name in used_names(node)}
    read |= {value.name for value in model.graph.output}
    if model.weights.keys() <= read:
        return model.proto
    proto = onnx.ModelProto()
    proto.CopyFrom(model.proto)
    kept = [t for t in proto.graph.initializer if t.name not in model.weights or t.name in read]
    del proto.graph.initializer[:]
    proto.graph.initializer.extend(kept)
    return proto


def _as_arrays(value: Any) -> Any:
    if isinstance(value, list):
        return [np.asarray(item) for item in value]
    return None if value is None else np.asarray(value)


def _first_lines(error: BaseException) -> str:
    """Return the start of an error's text: a runtime's own message may run to pages."""
    text = str(error).strip() or type(error).__name__
    return text if len(text) <= 600 else text[:600] + " ..."
