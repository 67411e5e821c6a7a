"""The result of an export."""

from __future__ import annotations

import ctypes
import dataclasses
import os
import tempfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import IO, Any

import numpy as np
import numpy.typing as npt
import onnx
import onnx_ir as ir
import torch
from torch.utils import _pytree as pytree

from onnx_fx_export.call_structure import CallStructure
from onnx_fx_export.convert import Conversion
from onnx_fx_export.errors import InvalidArgumentError, OnnxExporterError, RuntimeSupportError
from onnx_fx_export.finish import finish
from onnx_fx_export.finish.functions import inline_functions
from onnx_fx_export.finish.weights import restore_duplicates
from onnx_fx_export.naming import rename_dimensions
from onnx_fx_export.runtime_support import refused_node
from onnx_fx_export.saving import MAX_SINGLE_FILE_BYTES, check_data, save_model
from onnx_fx_export.verification import verify_program
from onnx_fx_export.weight_loading import apply_weights, load_state_dict

__all__ = ["ONNXProgram"]


class ONNXProgram:
    """An exported model that can be saved, run and verified.

    Attributes:
        model: The model as onnx_ir sees it; its weights are views of the torch tensors.
        exported_program: What torch.export captured, or None once released.
        lowered_program: What the nodes' metadata refers to: the captured program, functionalized where that was
            needed; None once released.
        initial_state: First value of each state input (see ``state="io"`` of :func:`onnx_fx_export.export`).
        state: Name of the output that holds the next value of each state input.
        constraints: Sizes that the model is right for; calls outside them are refused.
        timings: Seconds spent in each stage of the export.
    """

    def __init__(
        self,
        conversion: Conversion,
        exported_program: torch.export.ExportedProgram | None,
        structure: CallStructure,
        timings: dict[str, float] | None = None,
    ) -> None:
        self.model = conversion.model
        self.exported_program = exported_program
        self.initial_state = dict(conversion.initial_state)
        self.state = dict(conversion.state)
        self.constraints = conversion.constraints
        self.timings = dict(timings or {})
        self.lowered_program = conversion.program
        self._conversion = dataclasses.replace(conversion, program=None)
        self._structure = structure
        self._session: Any = None
        self._folder: tempfile.TemporaryDirectory[str] | None = None

    @property
    def model_proto(self) -> onnx.ModelProto:
        """The model as a protobuf message; this copies the weights, which have to have contents."""
        check_data(self.model)
        return ir.to_proto(self.model)

    @property
    def input_names(self) -> list[str]:
        """Names of the model's inputs, in order."""
        return [str(value.name) for value in self.model.graph.inputs]

    @property
    def output_names(self) -> list[str]:
        """Names of the model's outputs, in order."""
        return [str(value.name) for value in self.model.graph.outputs]

    def __repr__(self) -> str:
        graph = self.model.graph
        return (
            f"ONNXProgram(opset {graph.opset_imports['']}, {len(graph)} nodes, "
            f"inputs {self.input_names}, outputs {self.output_names})"
        )

    def save(
        self,
        destination: str | os.PathLike[str] | IO[bytes],
        *,
        include_initializers: bool = True,
        keep_initializers_as_inputs: bool = False,
        external_data: bool | None = None,
    ) -> None:
        """Write the model to a file, whole or not at all.

        Args:
            destination: Path of the file, or an open binary file, which takes a model without external data.
            include_initializers: Whether the weights are written; without them the model is a skeleton.
            keep_initializers_as_inputs: Whether weights are listed as inputs too, as IR version 3 wanted it.
            external_data: Whether weights go to ``<destination>.data``; by default above 1 GiB.

        Raises:
            SaveError: If the file cannot be written; nothing is left behind.
        """
        save_model(
            self.model,
            destination,
            include_initializers=include_initializers,
            keep_initializers_as_inputs=keep_initializers_as_inputs,
            external_data=external_data,
        )

    # ---- changing the model

    def optimize(self) -> None:
        """Run the finishing passes again, after a change of the model; an export has run them already."""
        finish(self.model, self._conversion.target)
        self._session = None

    def inline_functions(self) -> None:
        """Replace the calls of functions by what the functions compute, and drop the functions.

        The finishing passes run again, as they see more then. The module paths of nodes are complete afterwards.
        """
        restore_duplicates(self.model)
        inline_functions(self.model)
        finish(self.model, self._conversion.target)
        self._session = None

    def rename_axes(self, rename_mapping: Mapping[str | ir.SymbolicDim, str]) -> None:
        """Call symbolic dimensions otherwise.

        Args:
            rename_mapping: New name of each dimension. A dimension that is an expression is renamed inside.

        Raises:
            InvalidArgumentError: If a name is no dimension of the model, or a new one is no identifier.
        """
        names = {str(old.value if isinstance(old, ir.SymbolicDim) else old): new for old, new in rename_mapping.items()}
        rename_dimensions(self.model, names)
        self.constraints = self.constraints.renamed(names)
        self.constraints.record(self.model)
        self._session = None

    def apply_weights(self, weights: Mapping[str, torch.Tensor] | str | os.PathLike[str]) -> list[str]:
        """Replace weights by tensors of the same names, without a copy.

        Args:
            weights: A state dict, or the path of a checkpoint or ``.safetensors`` file.

        Returns:
            Names that the model has no weight for.

        Raises:
            InvalidArgumentError: If a tensor does not fit; then none is replaced.
        """
        self._session = None
        return apply_weights(self.model, load_state_dict(weights))

    # ---- running

    def initialize_inference_session(
        self, initializer: Callable[[str | bytes], Any] | None = None, **session_arguments: Any
    ) -> None:
        """Create the ONNX Runtime session that calls use.

        Args:
            initializer: Makes the session from the model's bytes, or from its path if its weights exceed 1 GiB; by
                default ``onnxruntime.InferenceSession`` on the CPU.
            session_arguments: Passed on to it.

        Raises:
            OnnxExporterError: If ONNX Runtime is not installed.
            RuntimeSupportError: If it has no kernel for some node.
        """
        make: Any = initializer or _runtime().InferenceSession
        if initializer is None:
            session_arguments.setdefault("providers", ["CPUExecutionProvider"])
        size = sum(v.const_value.nbytes for v in self.model.graph.initializers.values() if v.const_value is not None)
        if size < MAX_SINGLE_FILE_BYTES:
            self._session = self._made(make, self.model_proto.SerializeToString(), session_arguments)
            return
        self._folder = tempfile.TemporaryDirectory(prefix="onnx_fx_export_")
        path = Path(self._folder.name) / "model.onnx"
        self.save(path)
        self._session = self._made(make, str(path), session_arguments)

    def _made(self, make: Callable[..., Any], source: str | bytes, arguments: Mapping[str, Any]) -> Any:
        """Make a session; a node that the runtime has no kernel for is told of as the user knows it."""
        try:
            return make(source, **arguments)
        except Exception as error:  # ONNX Runtime's errors have no common base but this
            if (refusal := refused_node(self.model, str(error))) is None:
                raise
            raise RuntimeSupportError(refusal) from error

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Run the model in ONNX Runtime.

        Args:
            args: What the torch model takes.
            kwargs: What the torch model takes by keyword. Each parameter may be given by position or by keyword, as
                in torch, whichever way the example gave it.

        Returns:
            What the torch model returns, in the same structure. With ``state="io"``, state inputs start from
            :attr:`initial_state`, and :attr:`initial_state` is left as it is: use :meth:`run` to carry state along.

        Raises:
            InvalidArgumentError: If the arguments have another structure than the exported ones.
        """
        return self.structured(self.run(self.flat_inputs(*args, **kwargs)))

    def structured(self, outputs: Mapping[str, torch.Tensor]) -> Any:
        """Return named outputs in the structure that the torch model returns."""
        numbers = self._conversion.number_outputs
        found = {name: value.item() if name in numbers else value for name, value in outputs.items()}
        leaves = [found[e] if isinstance(e, str) and e in found else e for e in self._conversion.outputs]
        return pytree.tree_unflatten(leaves, self._structure.outputs)

    def flat_inputs(self, *args: Any, **kwargs: Any) -> dict[str, torch.Tensor]:
        """Return the model's inputs by name for a call in torch's form; state inputs get their initial values."""
        leaves = self._structure.leaves(args, kwargs)
        for position, constant in self._conversion.constants.items():
            if not _is_same(leaves[position], constant):
                raise InvalidArgumentError(
                    f"The model was exported for {constant!r} where this call has {leaves[position]!r}. Declare the "
                    "number dynamic, or export again."
                )
        feeds = {name: leaves[position] for name, position in self._positions().items()}
        return {**feeds, **self.initial_state}

    def call_with(
        self, inputs: Mapping[str, Any], args: Sequence[Any], kwargs: Mapping[str, Any]
    ) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """Return the positional and keyword arguments of a call in which some inputs of the model are others.

        Args:
            inputs: The new values by input name.
            args: Positional arguments of the call that is changed.
            kwargs: Its keyword arguments.

        Raises:
            InvalidArgumentError: If the call has another structure than the exported one.
        """
        leaves, positions = self._structure.leaves(args, kwargs), self._positions()
        for name, value in inputs.items():
            leaves[positions[name]] = value
        call: tuple[tuple[Any, ...], dict[str, Any]] = pytree.tree_unflatten(leaves, self._structure.inputs)
        return call

    def _positions(self) -> dict[str, int]:
        """Return the place of each input among the leaves of a call."""
        names = [name for name in self.input_names if name not in self.initial_state]
        return dict(zip(names, self._conversion.input_positions, strict=True))

    def run(self, inputs: dict[str, Any]) -> dict[str, torch.Tensor]:
        """Run the model on named inputs and return its outputs by name, state outputs included.

        Raises:
            InvalidArgumentError: If the sizes are none that the model is right for, or the dtypes others.
        """
        self.check_sizes(inputs)
        if self._session is None:
            self.initialize_inference_session()
        wanted = {value.name for value in self._session.get_inputs()}
        declared = [value for value in self.model.graph.inputs if value.name in wanted and value.name in inputs]
        feeds = {str(value.name): _to_ort(_fitting(value, inputs[str(value.name)])) for value in declared}
        values = self._session.run_with_ort_values(None, feeds)
        return self._with_complex(dict(zip(self.output_names, map(_from_ort, values), strict=True)))

    def _with_complex(self, outputs: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        """Return the outputs with those complex that hold pairs."""
        pairs = self._conversion.complex_outputs
        return {name: torch.view_as_complex(value) if name in pairs else value for name, value in outputs.items()}

    def check_sizes(self, inputs: Mapping[str, Any]) -> None:
        """Tell whether the model is right for inputs of such sizes.

        Raises:
            InvalidArgumentError: If it is not.
        """
        tensors = {name: value for name, value in inputs.items() if isinstance(value, torch.Tensor)}
        shapes = {name: (*t.shape, 2) if t.is_complex() else tuple(t.shape) for name, t in tensors.items()}
        numbers = {symbol: inputs[name] for name, symbol in self._conversion.numbers.items() if name in inputs}
        self.constraints.check(self.model.graph, shapes, {s: int(n) for s, n in numbers.items() if type(n) is int})

    def verify(self, *args: Any, **kwargs: Any) -> None:
        """Compare with PyTorch on the given arguments, or on others than those of the export.

        Raises:
            VerificationError: If an output differs.
            InvalidArgumentError: If the sizes are none that the model is right for.
            OnnxExporterError: If onnx-verify is not installed, or the captured program was released.
        """
        if self.exported_program is None:
            raise OnnxExporterError("The captured program was released; there is nothing to compare with.")
        self.check_sizes(self.flat_inputs(*args, **kwargs))
        verify_program(self, self.exported_program.module(), *self.call_with({}, args, kwargs))

    def compute_values(
        self, value_names: Sequence[str], args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None
    ) -> list[torch.Tensor]:
        """Run the model and return values inside it, in the order of their names.

        Args:
            value_names: Names of values of the main graph, of inputs and outputs too.
            args: Positional arguments of the model.
            kwargs: Keyword arguments of the model.

        Raises:
            InvalidArgumentError: If the main graph has no value of a name, or the sizes are none that the model is
                right for.
        """
        proto = self.model_proto
        values = {**{i.name: i for i in proto.graph.input}, **{o.name: o for o in proto.graph.output}}
        values.update({name: onnx.ValueInfoProto(name=name) for node in proto.graph.node for name in node.output})
        for name in value_names:
            if name not in values:
                raise InvalidArgumentError(f"The model has no value {name!r}.")
        feeds = self.flat_inputs(*args, **(kwargs or {}))
        self.check_sizes(feeds)
        inputs = {name: feeds[name] for name in value_names if name in feeds}
        inside = list(dict.fromkeys(name for name in value_names if name not in feeds))
        del proto.graph.output[:]
        proto.graph.output.extend(values[name] for name in inside)
        found = dict(inputs)
        if inside:
            session = _runtime().InferenceSession(proto.SerializeToString(), providers=["CPUExecutionProvider"])
            wanted = {value.name for value in session.get_inputs()}
            fed = {name: _to_ort(value) for name, value in feeds.items() if name in wanted}
            found.update(zip(inside, map(_from_ort, session.run_with_ort_values(None, fed)), strict=True))
        return [found[name] for name in value_names]

    def call_reference(self, *args: Any, **kwargs: Any) -> Any:
        """Run the model by ONNX's own evaluator instead of ONNX Runtime: slow, and independent of it.

        Args:
            args: What the torch model takes.
            kwargs: What the torch model takes by keyword.

        Returns:
            What a call of the program returns.

        Raises:
            InvalidArgumentError: If the arguments do not fit the exported ones.
        """
        from onnx.reference import ReferenceEvaluator

        feeds = self.flat_inputs(*args, **kwargs)
        self.check_sizes(feeds)
        wanted = set(self.input_names)
        arrays = {name: _to_numpy(value) for name, value in feeds.items() if name in wanted}
        results = ReferenceEvaluator(self.model_proto).run(None, arrays)
        outputs = {name: _from_numpy(value) for name, value in zip(self.output_names, results, strict=True)}
        return self.structured(self._with_complex(outputs))

    def release(self) -> None:
        """Give the session and the captured program back to memory."""
        self._session = None
        self.exported_program = self.lowered_program = None
        if self._folder is not None:
            self._folder.cleanup()
            self._folder = None


def _is_same(value: Any, constant: Any) -> bool:
    if isinstance(value, torch.Tensor) or isinstance(constant, torch.Tensor):
        return value is constant
    if type(value) is float and type(constant) is float:
        # NaN is itself here, and the two zeros are two numbers.
        return repr(value) == repr(constant)
    return value is constant or (type(value) is type(constant) and bool(value == constant))


def _runtime() -> Any:
    """Return the module of ONNX Runtime.

    Raises:
        OnnxExporterError: If it is not installed.
    """
    try:
        import onnxruntime
    except ImportError as error:
        raise OnnxExporterError("Running the model needs ONNX Runtime: pip install onnxruntime.") from error
    return onnxruntime


def _to_numpy(value: Any) -> npt.NDArray[Any]:
    tensor = value.detach() if isinstance(value, torch.Tensor) else _number(value)
    if tensor.is_complex():
        tensor = torch.view_as_real(tensor.resolve_conj())
    return ir.tensor_adapters.TorchTensor(tensor.cpu().contiguous()).numpy()


def _from_numpy(array: npt.NDArray[Any]) -> torch.Tensor:
    dtype = ir.tensor_adapters.to_torch_dtype(ir.DataType.from_numpy(array.dtype))
    return torch.from_numpy(np.array(array).reshape(-1).view(np.uint8)).view(dtype).reshape(array.shape)


def _to_ort(value: Any) -> Any:
    onnxruntime, array = _runtime(), _to_numpy(value)
    if array.dtype.kind == "V" or array.dtype.name in ("bfloat16",) or "float8" in array.dtype.name:
        carrier = np.uint16 if array.dtype.itemsize == 2 else np.uint8
        onnx_type = int(ir.tensor_adapters.from_torch_dtype(value.dtype))
        return onnxruntime.OrtValue.ortvalue_from_numpy_with_onnx_type(array.view(carrier), onnx_type)
    return onnxruntime.OrtValue.ortvalue_from_numpy(array)


def _fitting(declared: ir.Value, given: Any) -> torch.Tensor:
    """Return what is given for an input as a tensor; an int counts as a float where the model takes one.

    Raises:
        InvalidArgumentError: If it has another dtype than the input, or is none that a tensor can be made of.
    """
    assert declared.dtype is not None
    wanted = ir.tensor_adapters.to_torch_dtype(declared.dtype)
    if type(given) is int and wanted.is_floating_point:
        given = float(given)
    try:
        tensor = given if isinstance(given, torch.Tensor) else _number(given)
    except (RuntimeError, TypeError, ValueError) as error:
        raise InvalidArgumentError(f"Input {declared.name} is {given!r}, the model takes a tensor.") from error
    if (tensor.dtype.to_real() if tensor.is_complex() else tensor.dtype) != wanted:
        raise InvalidArgumentError(f"Input {declared.name} is {tensor.dtype}, the model takes {wanted}.")
    return tensor


def _number(value: Any) -> torch.Tensor:
    return torch.tensor(value, dtype=torch.float64 if isinstance(value, float) else None)


def _from_ort(value: Any) -> torch.Tensor:
    dtype = ir.tensor_adapters.to_torch_dtype(ir.DataType(value.element_type()))
    if dtype is not torch.bfloat16 and dtype.itemsize > 1:
        return torch.from_numpy(np.array(value.numpy()))
    # NumPy has no such element type; the bytes are read where they lie.
    result = torch.empty(value.shape(), dtype=dtype)
    ctypes.memmove(result.data_ptr(), value.data_ptr(), value.tensor_size_in_bytes())
    return result
