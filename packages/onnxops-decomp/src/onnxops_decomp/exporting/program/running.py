"""Runs models: by ONNX Runtime, which is imported only here, and by ONNX's own evaluator."""

from __future__ import annotations

import ctypes
import tempfile
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx
import onnx_ir as ir
import torch

from onnxops_decomp.dtypes import real_contents
from onnxops_decomp.exporting.errors import InvalidArgumentError, MissingRuntimeError, RuntimeSupportError
from onnxops_decomp.exporting.program.runtime_support import failed_node, refused_node, refused_opset
from onnxops_decomp.exporting.program.saving import (
    MAX_SINGLE_FILE_BYTES,
    Saving,
    check_data,
    own_errors,
    save_model,
    weight_bytes,
)

__all__ = ["Session", "run_proto", "run_reference"]


class Session:
    """An inference session of ONNX Runtime, and the file that it reads if the weights are large.

    Args:
        model: The model.
        initializer: Makes the session from the model's bytes, or from its path if its weights exceed 1 GiB; by
            default ``onnxruntime.InferenceSession`` on the CPU.
        arguments: Passed on to it.

    Raises:
        MissingRuntimeError: If ONNX Runtime is not installed.
        RuntimeSupportError: If it has no kernel for some node, or is older than the opset.
    """

    def __init__(
        self, model: ir.Model, initializer: Callable[..., Any] | None = None, arguments: Mapping[str, Any] | None = None
    ) -> None:
        make, options = initializer or _runtime().InferenceSession, dict(arguments or {})
        if initializer is None:
            options.setdefault("providers", ["CPUExecutionProvider"])
            options.setdefault("sess_options", _quiet())
        self._model = model
        self._folder: tempfile.TemporaryDirectory[str] | None = None
        if weight_bytes(model) < MAX_SINGLE_FILE_BYTES:
            check_data(model)
            with own_errors():
                source: str | bytes = ir.to_proto(model).SerializeToString()
        else:
            self._folder = tempfile.TemporaryDirectory(prefix="onnxops_")
            source = str(Path(self._folder.name) / "model.onnx")
            save_model(model, source, Saving())
        try:
            self._session = make(source, **options)
        except Exception as error:  # ONNX Runtime's errors have no common base but this
            if (refusal := refused_opset(model, str(error)) or refused_node(model, str(error))) is None:
                raise
            raise RuntimeSupportError(refusal) from error

    def run(self, declared: Iterable[ir.Value], inputs: Mapping[str, Any]) -> list[Any]:
        """Return all outputs.

        Args:
            declared: The model's inputs.
            inputs: What is given for them.

        Raises:
            InvalidArgumentError: If an input is of another dtype.
            RuntimeSupportError: If the runtime fails in a node.
        """
        wanted = {value.name for value in self._session.get_inputs()}
        given = {str(value.name): value for value in declared if value.name in wanted and value.name in inputs}
        feeds = {name: _to_ort(_fitting(value, inputs[name])) for name, value in given.items()}
        try:
            return _outputs(self._session, feeds)
        except Exception as error:  # ONNX Runtime's errors have no common base but this
            shapes = {name: value.shape() for name, value in feeds.items()}
            if (failure := failed_node(self._model, str(error), shapes)) is None:
                raise
            raise RuntimeSupportError(failure) from error


def run_proto(proto: onnx.ModelProto, inputs: Mapping[str, Any]) -> list[torch.Tensor]:
    """Run a model in ONNX Runtime once; inputs that it does not use are left out.

    Raises:
        MissingRuntimeError: If ONNX Runtime is not installed.
    """
    session = _runtime().InferenceSession(proto.SerializeToString(), providers=["CPUExecutionProvider"])
    wanted = {value.name for value in session.get_inputs()}
    feeds = {name: _to_ort(value) for name, value in inputs.items() if name in wanted}
    return _outputs(session, feeds)


def run_reference(proto: onnx.ModelProto, inputs: Mapping[str, Any]) -> list[Any]:
    """Run a model by ONNX's own evaluator.

    Raises:
        MissingRuntimeError: If the model computes in a dtype that the evaluator of the installed onnx lacks.
    """
    from onnx.reference import ReferenceEvaluator

    # Before release 1.19, which brought this dtype, bits of narrow floats went for integers.
    narrow = None if hasattr(onnx.TensorProto, "FLOAT8E8M0") else _narrow_dtype(proto)
    if narrow is not None:
        raise MissingRuntimeError(
            f"The evaluator of onnx {onnx.__version__} has no {narrow.name}, in which the model computes: install onnx "
            "1.19 or newer, or call the program itself, which runs it in ONNX Runtime."
        )
    wanted = {value.name for value in proto.graph.input}
    arrays = {name: _to_numpy(value) for name, value in inputs.items() if name in wanted}
    return [_from_python(value) for value in ReferenceEvaluator(proto).run(None, arrays)]


def _narrow_dtype(proto: onnx.ModelProto) -> ir.DataType | None:
    """Return a dtype of the model that NumPy lacks."""
    model = ir.from_proto(proto)
    graphs = (model.graph, *(function.graph for function in model.functions.values()))
    values = [value for graph in graphs for node in graph.all_nodes() for value in (*node.inputs, *node.outputs)]
    dtypes = (value.dtype for value in values if value is not None)
    known = (each for each in dtypes if each is not None and each != ir.DataType.STRING)
    return next((each for each in known if each.numpy().type.__module__ != "numpy"), None)


def _outputs(session: Any, feeds: Mapping[str, Any]) -> list[Any]:
    """Run a session; a sequence is a list of tensors, and an optional value that is absent None."""
    if all(value.type.startswith("tensor") for value in session.get_outputs()):
        return [_from_ort(value) for value in session.run_with_ort_values(None, feeds)]
    arrays = {name: value.numpy() for name, value in feeds.items()}
    return [_from_python(value) for value in session.run(None, arrays)]


def _from_python(value: Any) -> Any:
    if isinstance(value, list):
        return [_from_python(item) for item in value]
    return None if value is None else _from_numpy(np.asarray(value))


def _quiet() -> Any:
    """Return options of a session that reports errors only."""
    options = _runtime().SessionOptions()
    options.log_severity_level = 3
    return options


def _runtime() -> Any:
    """Return the module of ONNX Runtime.

    Raises:
        MissingRuntimeError: If it is not installed.
    """
    try:
        import onnxruntime
    except ImportError as error:
        raise MissingRuntimeError("Running the model needs ONNX Runtime: pip install onnxruntime.") from error
    return onnxruntime


def _to_numpy(value: Any) -> npt.NDArray[Any]:
    tensor = real_contents(value if isinstance(value, torch.Tensor) else _number(value))
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
    return torch.tensor(value, dtype=torch.float64 if isinstance(value, float) else None, device="cpu")


def _from_ort(value: Any) -> torch.Tensor:
    dtype = ir.tensor_adapters.to_torch_dtype(ir.DataType(value.element_type()))
    if dtype is not torch.bfloat16 and dtype.itemsize > 1:
        return torch.from_numpy(np.array(value.numpy()))
    # NumPy has no such element type; the bytes are read where they lie.
    result = torch.empty(value.shape(), dtype=dtype, device="cpu")
    ctypes.memmove(result.data_ptr(), value.data_ptr(), result.nbytes)
    return result
