"""Replays ONNX's own node test cases through the builder at opsets older than the case's.

Every case is one call in the newest form with inputs and expected outputs. It is emitted at a lower opset, where the
adapters rewrite it, and run in ONNX Runtime (opsets that it knows) or in ONNX's evaluator.
"""

from __future__ import annotations

import dataclasses
import functools
import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
from decomp_harness import ORT_NEWEST_OPSET
from onnx import numpy_helper

from onnxops_decomp.builder.op_builder import OpBuilder
from onnxops_decomp.errors import UnsupportedOpsetError
from onnxops_decomp.files.model import build_model
from onnxops_decomp.spec.schemas import NEWEST_OPSET, OpSpec, op_spec

Array = np.ndarray


@dataclasses.dataclass
class Case:
    name: str
    op_type: str
    since: int
    inputs: list[Array | None]
    attributes: dict[str, Any]
    outputs: list[Array | None]
    rtol: float
    atol: float


@dataclasses.dataclass
class Outcome:
    """What became of a case at an opset: None where it passed, else the error."""

    error: Exception | None
    constants: bool

    @property
    def unsupported(self) -> bool:
        return isinstance(self.error, UnsupportedOpsetError)


@functools.cache
def all_cases() -> tuple[Case, ...]:
    with warnings.catch_warnings(), np.errstate(all="ignore"):
        warnings.simplefilter("ignore")
        if not hasattr(np, "bool"):  # The cases of onnx are written for NumPy 2.
            np.bool = np.bool_  # type: ignore[misc, assignment]
        from onnx.backend.test.case.node import collect_testcases

        cases = (_case(case) for case in collect_testcases(None))
        return tuple(case for case in cases if case is not None)


def cases_of(*op_types: str) -> list[Case]:
    return [case for case in all_cases() if case.op_type in op_types]


def _case(case: Any) -> Case | None:
    """Read a case of one node of the default domain in its newest form, on tensors."""
    graph = case.model.graph
    if len(graph.node) != 1 or graph.initializer or graph.node[0].domain not in ("", "ai.onnx"):
        return None
    node = graph.node[0]
    opset = next(o.version for o in case.model.opset_import if o.domain in ("", "ai.onnx"))
    newest, then = op_spec(node.op_type, NEWEST_OPSET), op_spec(node.op_type, opset)
    if newest is None or then is None or not _is_one_form(then, newest):
        return None
    if not all(v.type.HasField("tensor_type") for v in (*graph.input, *graph.output)):
        return None
    attributes = {}
    for attribute in node.attribute:
        value = onnx.helper.get_attribute_value(attribute)
        if isinstance(value, onnx.GraphProto):
            return None
        if isinstance(value, onnx.TensorProto):
            value = ir.serde.deserialize_tensor(value)
        if isinstance(value, bytes):
            value = value.decode()
        elif attribute.type == onnx.AttributeProto.STRINGS:
            value = [text.decode() for text in value]
        attributes[attribute.name] = value
    inputs, outputs = case.data_sets[0]
    given = iter(inputs)
    wanted = iter(outputs)
    return Case(
        name=case.name,
        op_type=node.op_type,
        since=newest.since_version,
        inputs=[_array(next(given)) if name else None for name in node.input],
        attributes=attributes,
        outputs=[_array(next(wanted)) if name else None for name in node.output],
        rtol=case.rtol,
        atol=case.atol,
    )


def _is_one_form(older: OpSpec, newer: OpSpec) -> bool:
    """Tell whether what is a call of the older version is a call of the newer one, which may only allow more dtypes."""

    def names(spec: OpSpec) -> tuple[Any, ...]:
        formals = (*spec.inputs, *spec.outputs)
        return [(each.name, each.optional, each.variadic) for each in formals], spec.attributes, spec.defaults

    return names(older) == names(newer) and all(
        old.dtypes <= new.dtypes for old, new in zip(older.inputs, newer.inputs, strict=True)
    )


def _array(value: Any) -> Array:
    return numpy_helper.to_array(value) if isinstance(value, onnx.TensorProto) else np.asarray(value)


def emit(
    case: Case, opset: int, *, constants: bool = False, symbolic: bool = False, inferred: bool = True
) -> onnx.ModelProto:
    """Write a case as a model at ``opset``.

    Args:
        case: The call.
        opset: Requested opset.
        constants: Whether all inputs but the first are constants instead of model inputs.
        symbolic: Whether the model inputs have symbolic dimensions.
        inferred: Whether the inferred dtypes and shapes are held against the expected outputs.
    """
    op = OpBuilder(opset)
    values: list[ir.Value | None] = []
    for index, array in enumerate(case.inputs):
        if array is None:
            values.append(None)
        elif constants and index:
            values.append(op.constant(array, ir.DataType.from_numpy(array.dtype)))
        else:
            dims = [ir.SymbolicDim(f"i{index}_{axis}") for axis in range(array.ndim)] if symbolic else array.shape
            values.append(op.input(f"input_{index}", ir.DataType.from_numpy(array.dtype), tuple(dims)))
    results = op.emit_many(case.op_type, len(case.outputs), *values, **case.attributes)
    wanted = [result for result, array in zip(results, case.outputs, strict=True) if array is not None]
    for result, array in zip(wanted, (array for array in case.outputs if array is not None), strict=True):
        if inferred:
            assert_inferred(result, array)
        if result.shape is None:
            # A rank that depends on the data of an input; the checker wants one on outputs.
            result.shape = ir.Shape([None] * array.ndim)
    proto = ir.to_proto(build_model(op, wanted, name=case.name))
    onnx.checker.check_model(proto)
    assert {o.version for o in proto.opset_import if o.domain == ""} == {opset}
    return proto


def assert_inferred(value: ir.Value, array: Array) -> None:
    """Assert that what the builder says of a result holds for the one expected; it may know less, never more."""
    assert value.dtype == ir.DataType.from_numpy(array.dtype)
    if value.shape is None:
        return
    assert len(value.shape) == array.ndim, f"rank {len(value.shape)} inferred, {array.ndim} expected"
    for dim, size in zip(value.shape, array.shape, strict=True):
        assert not isinstance(dim, int) or dim == size, f"{value.shape} inferred, {array.shape} expected"


def run(proto: onnx.ModelProto, case: Case) -> list[Array]:
    opset = next(o.version for o in proto.opset_import if o.domain == "")
    names = {value.name for value in proto.graph.input}
    feeds = {
        f"input_{index}": array
        for index, array in enumerate(case.inputs)
        if array is not None and f"input_{index}" in names
    }
    if opset > ORT_NEWEST_OPSET:
        from onnx.reference import ReferenceEvaluator

        return [np.asarray(result) for result in ReferenceEvaluator(proto).run(None, feeds)]
    return run_in_runtime(proto, feeds)


def run_in_runtime(proto: onnx.ModelProto, feeds: dict[str, Array]) -> list[Array]:
    import onnxruntime as ort

    options = ort.SessionOptions()
    options.intra_op_num_threads, options.log_severity_level = 1, 4
    session = ort.InferenceSession(proto.SerializeToString(), options, providers=["CPUExecutionProvider"])
    values = {}
    for value in session.get_inputs():
        array = np.ascontiguousarray(feeds[value.name]).reshape(feeds[value.name].shape)
        dtype = ir.DataType.from_numpy(array.dtype)
        if array.dtype.kind in "OUS":
            values[value.name] = ort.OrtValue.ortvalue_from_numpy(array)
        elif array.dtype.kind == "V" or dtype == ir.DataType.BFLOAT16:
            carrier = array.view(np.uint8 if array.dtype.itemsize == 1 else np.uint16)
            values[value.name] = ort.OrtValue.ortvalue_from_numpy_with_onnx_type(carrier, int(dtype))
        else:
            values[value.name] = ort.OrtValue.ortvalue_from_numpy(array)
    return [_from_ort(result) for result in session.run_with_ort_values(None, values)]


def _from_ort(value: Any) -> Array:
    if value.element_type() == onnx.TensorProto.BFLOAT16:
        import torch

        return torch.from_dlpack(value._ortvalue.to_dlpack()).float().numpy()
    return np.asarray(value.numpy())


def assert_equal(actual: list[Array], case: Case) -> None:
    wanted = [array for array in case.outputs if array is not None]
    for mine, theirs in zip(actual, wanted, strict=True):
        if theirs.dtype.name == "bfloat16":
            theirs, mine = theirs.astype(np.float32), mine.astype(np.float32)
        assert mine.dtype == theirs.dtype, f"{mine.dtype}, expected {theirs.dtype}"
        assert mine.shape == theirs.shape, f"{mine.shape}, expected {theirs.shape}"
        if theirs.dtype.kind in "fc":
            # Sums of transforms cancel to zero only up to the rounding of their largest terms.
            noise = 2e-6 * np.abs(theirs).max() if case.op_type in ("DFT", "STFT") else 0
            np.testing.assert_allclose(mine, theirs, rtol=case.rtol, atol=max(case.atol, noise))
        else:
            np.testing.assert_array_equal(mine, theirs)


def replay(case: Case, opset: int, *, symbolic: bool = False) -> Outcome:
    """Emit and run a case, first with all inputs as model inputs, then with all but the first constant.

    A case that is expressible only with constants (an axis that is an attribute at this opset) passes as such.
    """
    outcome = Outcome(None, False)
    for constants in (False, True):
        try:
            proto = emit(case, opset, constants=constants, symbolic=symbolic)
        except UnsupportedOpsetError as error:
            outcome = Outcome(error, constants)
            continue
        assert_equal(run(proto, case), case)
        return Outcome(None, constants)
    return outcome


def run_function(function: Callable[..., Any], opset: int, *arrays: Array, dynamic: bool = False) -> list[Array]:
    """Emit a function of the builder and of values for the arrays, and run it in ONNX Runtime."""
    op = OpBuilder(opset)
    values = []
    for index, array in enumerate(arrays):
        dims = [ir.SymbolicDim(f"d{index}_{axis}") for axis in range(array.ndim)] if dynamic else array.shape
        values.append(op.input(f"input_{index}", ir.DataType.from_numpy(array.dtype), tuple(dims)))
    results = function(op, *values)
    outputs = list(results) if isinstance(results, list | tuple) else [results]
    for output in outputs:
        output.shape = output.shape or ir.Shape([])
    proto = ir.to_proto(build_model(op, outputs, name="test"))
    assert proto.opset_import[0].version == opset
    return run_in_runtime(proto, {f"input_{i}": array for i, array in enumerate(arrays)})
