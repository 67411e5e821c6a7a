"""Measures which dtypes that the ONNX specification allows ONNX Runtime's CPU provider has no kernel for.

Each operator is taken from ONNX's node test cases, given other dtypes, and only loaded: a missing kernel is an error
when the session is made. What the builder would do about it is switched off meanwhile.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator
from contextlib import contextmanager
from unittest import mock

import adapter_cases
import numpy as np
import onnx
import onnx_ir as ir
import onnxruntime as ort
from adapter_cases import Case

from onnxops_decomp.builder import forms as registry
from onnxops_decomp.builder.planning import make_plan
from onnxops_decomp.errors import LoweringError
from onnxops_decomp.runtimes.onnxruntime import kernel_gaps
from onnxops_decomp.spec.schemas import OLDEST_OPSET, OpSpec, op_spec

DTYPES = [
    ir.DataType[name]
    for name in "BOOL INT8 INT16 INT32 INT64 UINT8 UINT16 UINT32 UINT64 FLOAT16 BFLOAT16 FLOAT DOUBLE".split()
]

RUNTIME = tuple(int(part) for part in ort.__version__.split(".")[:2])
# The newest opset that the installed runtime loads.
NEWEST_LOADED = 28 if RUNTIME >= (1, 32) else 26

# (operator, since_version, type variable, dtype)
Gap = tuple[str, int, str, ir.DataType]


@functools.cache
def has_kernel(model: bytes) -> bool:
    options = ort.SessionOptions()
    options.log_severity_level, options.intra_op_num_threads = 4, 1
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    try:
        ort.InferenceSession(model, options, providers=["CPUExecutionProvider"])
    except Exception:
        # The runtime expands some operators by their definition, and stumbles over dtypes inside it.
        return False
    return True


def versions(op_type: str) -> list[int]:
    """Return the opsets from 7 to the runtime's newest at which the answer may differ.

    These are the first one of each version of the operator, and for one that the runtime may expand by its definition
    all of them, because the definition does not hold for every opset.
    """
    found: dict[tuple[int, int], int] = {}
    for opset in range(OLDEST_OPSET, NEWEST_LOADED + 1):
        spec = op_spec(op_type, opset)
        if spec is not None:
            schema = onnx.defs.get_schema(op_type, opset)
            defined = schema.has_function or schema.has_context_dependent_function
            found.setdefault((spec.since_version, opset if defined else 0), opset)
    return list(found.values())


def retyped(case: Case, spec: OpSpec, type_key: str, dtype: ir.DataType, *, together: bool) -> Case | None:
    """Return the case with the inputs of one type variable in another dtype, or None if it has no such input.

    Args:
        case: The call.
        spec: Its operator.
        type_key: The type variable.
        dtype: The dtype it gets.
        together: Whether other variables that had the same dtype change with it, where they may.
    """
    inputs = list(case.inputs)
    variadic = spec.inputs[-1].variadic
    formals = [spec.formal_input(i) for i in range(len(inputs)) if i < len(spec.inputs) or variadic]
    index = next((i for i, formal in enumerate(formals) if formal.type_key == type_key), None)
    if index is None or inputs[index] is None:
        return None
    before = inputs[index].dtype
    for i, formal in enumerate(formals):
        array = inputs[i]
        if array is None:
            continue
        if formal.type_key == type_key or (together and array.dtype == before and dtype in formal.dtypes):
            with np.errstate(all="ignore"):
                inputs[i] = array.astype(dtype.numpy())
    return Case(**{**vars(case), "inputs": inputs})


def single_node_model(case: Case, opset: int) -> bytes | None:
    """Return the case as one node of its own operator, or None if the opset writes it in another way."""
    for constants in (False, True):
        try:
            proto = adapter_cases.emit(case, opset, constants=constants, inferred=False)
        except (LoweringError, onnx.checker.ValidationError, TypeError):
            continue
        if [node.op_type for node in proto.graph.node] == [case.op_type]:
            return proto.SerializeToString()
    return None


@contextmanager
def without_stand_ins() -> Iterator[None]:
    """Let the builder emit every operator as it is, whatever the runtime can do."""
    registry.find_adapter("Identity", OLDEST_OPSET, NEWEST_LOADED)
    caches = (registry._FORMS.clear, make_plan.cache_clear, kernel_gaps._gaps_of.cache_clear)
    with mock.patch.object(kernel_gaps, "KERNEL_GAPS", {}), mock.patch.object(registry, "_COMPOSED", {}):
        for clear in caches:
            clear()
        yield
    for clear in caches:
        clear()


def survey(op_type: str) -> list[tuple[Gap, bool]]:
    """Return, for each opset, type variable and dtype that the specification allows, whether there is a kernel."""
    cases = adapter_cases.cases_of(op_type)
    found: list[tuple[Gap, bool]] = []
    with without_stand_ins():
        for opset in versions(op_type):
            spec = op_spec(op_type, opset)
            assert spec is not None
            for type_key in dict.fromkeys(formal.type_key for formal in spec.inputs):
                allowed = next(formal.dtypes for formal in spec.inputs if formal.type_key == type_key)
                for dtype in (d for d in DTYPES if d in allowed):
                    answer = _answer(cases, spec, opset, type_key, dtype)
                    if answer is not None:
                        found.append(((op_type, opset, type_key, dtype), answer))
    return found


def _answer(cases: list[Case], spec: OpSpec, opset: int, type_key: str, dtype: ir.DataType) -> bool | None:
    """Return whether any case of this dtype loads; None if none can be written."""
    answer: bool | None = None
    for case in cases[:8]:
        for together in (True, False):
            changed = retyped(case, spec, type_key, dtype, together=together)
            model = None if changed is None else single_node_model(changed, opset)
            if model is not None:
                answer = has_kernel(model)
                if answer:
                    return True
    return answer
