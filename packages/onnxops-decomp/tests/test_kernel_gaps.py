"""Dtypes without a kernel in the runtime are computed in an exact stand-in; the tables are what is measured."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import adapter_cases
import kernel_survey
import numpy as np
import onnx
import onnx_ir as ir
import pytest
import torch
from adapter_cases import Case
from decomp_harness import check, compare, expected_of, lower_graph, run, trace
from onnx import helper
from onnx.reference import ReferenceEvaluator
from opset_sweep import swept

from onnxops_decomp.builder import forms as registry
from onnxops_decomp.builder.op_builder import OpBuilder
from onnxops_decomp.builder.scope import ModelContext
from onnxops_decomp.files.model import build_model
from onnxops_decomp.runtimes.onnxruntime import kernel_gaps
from onnxops_decomp.spec.schemas import op_spec

T = ir.DataType
INF, NAN = float("inf"), float("nan")
OPSET = 21
# What the specification allows, the runtime cannot run, and no other operator gives exactly.
LEFT_AS_IT_IS = frozenset(
    (
        *("Acos", "Asin", "Atan", "AveragePool", "Conv", "ConvTranspose", "Det", "Erf", "GridSample", "ImageDecoder"),
        *("Attention", "BitCast", "BatchNormalization", "InstanceNormalization", "LRN", "LpPool", "MaxUnpool"),
        # At opset 28: composed, a model would no longer tell other runtimes that it is quantized.
        "DequantizeLinear",
        "OptionalGetElement",
        *("MeanVarianceNormalization", "MelWeightMatrix", "QuantizeLinear", "RNN", "Resize", "RoiAlign"),
        *("ReduceL1", "ReduceL2", "ReduceLogSum", "ReduceLogSumExp", "ReduceMean"),
    )
)
# Of these a lowering emits no double: it composes the operator, or writes another one. That models of doubles load is
# tested with the samples of OpInfo.
NO_DOUBLES_EMITTED = frozenset(
    (
        *("AveragePool", "Conv", "ConvTranspose", "Det", "GridSample", "LRN", "LpPool", "MaxPool", "MaxUnpool", "RNN"),
        *("Attention", "MeanVarianceNormalization", "MelWeightMatrix", "OptionalGetElement", "RoiAlign"),
    )
)
# Gaps that a later runtime closed; the stand-in stays for the runtimes before it.
CLOSED_SINCE = {("BitShift", T.UINT16): (1, 32)}
# Single dtypes of operators that are otherwise covered. The doubles are missing in the oldest kernels alone, which the
# adapters do not use.
NO_STAND_IN = {
    *(("Col2Im", T.BOOL), ("Clip", T.DOUBLE), ("Max", T.DOUBLE), ("MaxPool", T.DOUBLE), ("Min", T.DOUBLE)),
    *((op_type, dtype) for op_type in ("ReduceProd", "ReduceSumSquare") for dtype in (T.UINT32, T.UINT64)),
    *((op_type, T.UINT64) for op_type in ("ArgMax", "ArgMin", "OneHot", "Pow", "ReduceMax", "ReduceMin", "Unique")),
}


def _is_composed(op_type: str, dtype: ir.DataType) -> bool:
    registry.find_adapter("Identity", 7, 28)
    return any(dtypes is None or dtype in dtypes for _, dtypes, _ in registry._COMPOSED.get(op_type, ()))


def _entries() -> list[tuple[str, str, ir.DataType]]:
    return [
        (op_type, type_key, dtype)
        for op_type, variables in kernel_gaps.KERNEL_GAPS.items()
        for type_key, dtypes in variables.items()
        for dtype in dtypes
    ]


def _composed_entries() -> list[tuple[str, int, ir.DataType]]:
    registry.find_adapter("Identity", 7, 28)
    return [
        (op_type, operand, dtype)
        for op_type, forms in sorted(registry._COMPOSED.items())
        for operand, dtypes, _ in forms
        for dtype in sorted(dtypes or ())
    ]


def _fits(case: Case) -> bool:
    """Tell whether the dtypes of a case are allowed together."""
    spec = op_spec(case.op_type, OPSET)
    assert spec is not None
    bound: dict[str, np.dtype] = {}
    for index, array in enumerate(case.inputs):
        if array is None:
            continue
        formal = spec.formal_input(index)
        if ir.DataType.from_numpy(array.dtype) not in formal.dtypes:
            return False
        if formal.homogeneous and bound.setdefault(formal.type_key, array.dtype) != array.dtype:
            return False
    return True


def _expected(case: Case) -> list[np.ndarray]:
    """Run the operator itself in ONNX's evaluator."""
    if case.op_type == "OneHot":
        return [_one_hot(*(np.asarray(array) for array in case.inputs), **case.attributes)]
    names = [f"x{index}" if array is not None else "" for index, array in enumerate(case.inputs)]
    inputs = [
        helper.make_tensor_value_info(name, int(ir.DataType.from_numpy(array.dtype)), array.shape)
        for name, array in zip(names, case.inputs, strict=True)
        if array is not None
    ]
    outputs = [f"y{index}" for index in range(len(case.outputs))]
    node = helper.make_node(case.op_type, names, outputs, **case.attributes)
    results = [onnx.ValueInfoProto(name=name) for name in outputs]
    graph = helper.make_graph([node], "expected", inputs, results)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", OPSET)], ir_version=10)
    feeds = {name: array for name, array in zip(names, case.inputs, strict=True) if array is not None}
    return [np.asarray(result) for result in ReferenceEvaluator(model).run(None, feeds)]


def _one_hot(indices: np.ndarray, depth: np.ndarray, values: np.ndarray, axis: int = -1) -> np.ndarray:
    """Apply OneHot; ONNX's evaluator takes no booleans, and old ones counted what is out of range from the start."""
    positions = np.expand_dims(np.where(indices < 0, indices + depth.item(), indices), axis)
    shape = [1] * positions.ndim
    shape[axis] = -1
    return np.where(positions == np.arange(depth.item()).reshape(shape), values[1], values[0])


def _actual(case: Case) -> list[np.ndarray]:
    op = OpBuilder(OPSET)
    values: list[ir.Value | None] = []
    for index, array in enumerate(case.inputs):
        dtype = None if array is None else ir.DataType.from_numpy(array.dtype)
        if array is None or not index:
            values.append(None if array is None else op.input("input_0", dtype, array.shape))
        else:
            values.append(op.constant(array, dtype))
    results = op.emit_many(case.op_type, len(case.outputs), *values, **case.attributes)
    for result, array in zip(results, case.outputs, strict=True):
        result.shape = result.shape or ir.Shape([None] * array.ndim)
    return adapter_cases.run(ir.to_proto(build_model(op, results, name="test")), case)


def _retyped_cases(op_type: str, type_key: str, dtype: ir.DataType) -> list[Case]:
    spec = op_spec(op_type, OPSET)
    assert spec is not None
    cases = (
        kernel_survey.retyped(case, spec, type_key, dtype, together=together)
        for case in adapter_cases.cases_of(op_type)
        # OneHot takes three dtypes of its own, and none of UINT64 indices, which no signed type holds.
        for together in ((False,) if op_type == "OneHot" else (False, True))
        if not any(array is not None and array.dtype.kind in "OUV" for array in case.inputs)
    )
    return [case for case in cases if case is not None and _fits(case)][:6]


@pytest.mark.parametrize("op_type, type_key, dtype", _entries(), ids=lambda value: getattr(value, "name", value))
def test_stand_in_gives_the_result_of_the_dtype(op_type: str, type_key: str, dtype: ir.DataType) -> None:
    cases = _retyped_cases(op_type, type_key, dtype)
    assert cases
    for case in cases:
        for actual, expected in zip(_actual(case), _expected(case), strict=True):
            assert actual.dtype == expected.dtype
            np.testing.assert_allclose(actual, expected, rtol=1e-6)


@pytest.mark.parametrize("op_type, operand, dtype", _composed_entries(), ids=lambda v: getattr(v, "name", str(v)))
def test_composed_operator_gives_the_result_of_the_dtype(op_type: str, operand: int, dtype: ir.DataType) -> None:
    spec = op_spec(op_type, OPSET)
    assert spec is not None
    if dtype not in spec.formal_input(operand).dtypes:
        # PRelu of narrow integers and the like: allowed at no opset, refused before the table is asked.
        return
    cases = _retyped_cases(op_type, spec.formal_input(operand).type_key, dtype)
    for case in cases:
        for actual, expected in zip(_actual(case), _expected(case), strict=True):
            assert actual.dtype == expected.dtype
            # A composed double is as good as one, an evaluated single within a test case's own tolerance.
            np.testing.assert_allclose(actual, expected, rtol=case.rtol, atol=1e-7)


F = torch.nn.functional
DOUBLES = {
    "conv1d": (lambda x, w: F.conv1d(x, w, stride=2, padding=1), (2, 3, 9), (4, 3, 3)),
    "conv2d": (lambda x, w: F.conv2d(x, w, groups=2, dilation=(1, 2), padding="same"), (2, 4, 6, 7), (6, 2, 3, 2)),
    "conv3d": (lambda x, w: F.conv3d(x, w, torch.ones(2).double()), (1, 2, 4, 5, 4), (2, 2, 2, 3, 1)),
    "conv_transpose1d": (lambda x, w: F.conv_transpose1d(x, w, stride=2, padding=1), (2, 3, 5), (3, 2, 4)),
    "conv_transpose2d": (
        lambda x, w: F.conv_transpose2d(x, w, groups=2, output_padding=1, stride=2),
        (2, 4, 3, 5),
        (4, 3, 3, 2),
    ),
    "avg_pool1d": (lambda x: F.avg_pool1d(x, 3, 2, 1), (2, 3, 9)),
    "avg_pool2d": (lambda x: F.avg_pool2d(x, 2, ceil_mode=True, count_include_pad=False), (2, 3, 7, 5)),
    "avg_pool3d": (lambda x: F.avg_pool3d(x, 2, divisor_override=3), (1, 2, 4, 5, 4)),
    "local_response_norm": (lambda x: F.local_response_norm(x, 3), (2, 5, 4, 3)),
    "instance_norm": (lambda x, w: F.instance_norm(x, weight=w, bias=w), (2, 3, 7, 5), (3,)),
    "gelu": (F.gelu, (4, 5)),
    "gelu_tanh": (lambda x: F.gelu(x, approximate="tanh"), (4, 5)),
}


@pytest.mark.parametrize("opset", swept(9, 11, 18, 20, 22, 26))
@pytest.mark.parametrize("name", sorted(DOUBLES))
def test_doubles_are_computed_as_such(name: str, opset: int) -> None:
    function, *shapes = DOUBLES[name]
    check(function, *(torch.randn(shape).double() for shape in shapes), opset=opset, tolerance=(1e-12, 1e-12))


@pytest.mark.parametrize("opset", [11, 18])
def test_doubles_are_convolved_and_averaged_at_other_sizes(opset: int) -> None:
    def function(x: torch.Tensor) -> torch.Tensor:
        return F.avg_pool2d(F.conv2d(x, torch.linspace(-1, 1, 72, dtype=x.dtype).reshape(4, 3, 2, 3)), 2)

    first, second = (torch.randn(shape).double() for shape in ((5, 3, 8, 6), (2, 3, 4, 9)))
    check(function, first, others=[(second,)], opset=opset)


@pytest.mark.parametrize("opset", [7, 9, 13, 26])
def test_the_error_function_has_all_digits_of_a_double(opset: int) -> None:
    x = torch.cat([torch.linspace(-7, 7, 2001), torch.logspace(-300, 0, 50), torch.tensor([INF, -INF, NAN, -0.0])])
    check(torch.erf, x.double(), opset=opset, tolerance=(1e-12, 0.0))


@pytest.mark.parametrize("opset", [11, 18, 26])
def test_gelu_of_large_negative_doubles_is_zero(opset: int) -> None:
    check(F.gelu, torch.tensor([-6.5, -8.0, -1e6, -1e30, 1e30, NAN]).double(), opset=opset, tolerance=(1e-12, 1e-9))


@pytest.mark.parametrize("op_type", ["Add", "MatMul", "Softmax", "Where", "ReduceSum"])
def test_bfloat16_computes_in_float_where_the_model_is_meant_for_the_cpu(op_type: str) -> None:
    op = OpBuilder(20, context=ModelContext(20, widen_bfloat16=True))
    x = op.input("x", T.BFLOAT16, (2, 2))
    operands = {"Softmax": [x], "Where": [op.input("c", T.BOOL, (2, 2)), x, x], "ReduceSum": [x]}.get(op_type, [x, x])
    result = op.emit(op_type, *operands)
    assert result.dtype == T.BFLOAT16
    assert kernel_survey.has_kernel(ir.to_proto(build_model(op, [result], name="test")).SerializeToString())


@pytest.mark.parametrize("function", [torch.cummax, torch.logcumsumexp])
def test_loops_carry_bfloat16_in_a_model_meant_for_the_cpu(function: Callable[..., Any]) -> None:
    x = torch.randn(3, 4).bfloat16()
    lowered = lower_graph(trace(lambda x: function(x, 0), [x]), opset=18, widen_bfloat16=True)
    compare(run(lowered.proto, [x]), expected_of(lambda x: function(x, 0), [x]))


def test_bfloat16_stays_by_itself() -> None:
    op = OpBuilder(20)
    x = op.input("x", T.BFLOAT16, (2, 2))
    model = build_model(op, [op.Add(x, x)], name="test")
    assert [node.op_type for node in model.graph] == ["Add"]


@pytest.mark.wide
@pytest.mark.parametrize("op_type", sorted({case.op_type for case in adapter_cases.all_cases()}))
def test_tables_are_what_is_measured(op_type: str) -> None:
    missing: dict[tuple[str, ir.DataType], list[int]] = {}
    present: set[tuple[str, ir.DataType]] = set()
    for (_, opset, type_key, dtype), has_kernel in kernel_survey.survey(op_type):
        if dtype == T.BFLOAT16:
            continue
        if has_kernel:
            present.add((type_key, dtype))
        else:
            missing.setdefault((type_key, dtype), []).append(opset)
    first, last = kernel_gaps.NO_KERNEL.get(op_type, (1, 0))
    known = kernel_gaps.KERNEL_GAPS.get(op_type, {})
    new = {
        (type_key, dtype.name): opsets
        for (type_key, dtype), opsets in missing.items()
        if op_type not in (NO_DOUBLES_EMITTED if dtype == T.DOUBLE else LEFT_AS_IT_IS)
        and dtype not in known.get(type_key, {})
        and (op_type, dtype) not in NO_STAND_IN
        and not _is_composed(op_type, dtype)
        and not all(first <= opset <= last for opset in opsets)
    }
    assert not new, "dtypes without a kernel that the tables do not know"
    wide_enough = {
        ("ReduceMax", T.BOOL),
        ("ReduceMin", T.BOOL),
        *(("OneHot", d) for d in (T.FLOAT, T.FLOAT16, T.INT32)),
    }
    closed = {
        (type_key, dtype.name)
        for type_key, dtypes in known.items()
        for dtype in dtypes
        if (type_key, dtype) in present and (type_key, dtype) not in missing and (op_type, dtype) not in wide_enough
        if kernel_survey.RUNTIME < CLOSED_SINCE.get((op_type, dtype), (99, 0))
    }
    assert not closed, "gaps that have closed"
