"""Where a runtime differs from the specification other forms are written, for that runtime alone; it does differ."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import onnx
import onnxruntime as ort
import pytest
import torch
import torch.nn.functional as F
from decomp_harness import lower_graph, trace
from onnx import helper

from onnxops_decomp.builder.parts import DEFAULT_RUNTIME
from onnxops_decomp.builder.runtime import Deviation
from onnxops_decomp.runtimes.onnxruntime.kernel_gaps import is_older

# Deviations that a later runtime no longer has; the form stays for models that run on the ones before it.
CLOSED_SINCE = {Deviation.EMPTY_GEMM: (1, 32)}
# The release that came with one; what is written because of it is right for those before as well.
OPENED_IN = {Deviation.NAN_BESIDE_INFINITY: (1, 27)}
RUN = """
import onnxruntime, numpy
session = onnxruntime.InferenceSession(bytes.fromhex("{model}"))
session.run(None, {{name: numpy.array(values, dtype).reshape(shape) for name, values, dtype, shape in {inputs}}})
"""


def model(op_type: str, *inputs: np.ndarray[Any, Any], opset: int = 18, **attributes: Any) -> onnx.ModelProto:
    """Return a model of one node, whose result has the dtype of its first input."""
    names = [chr(ord("a") + number) for number in range(len(inputs))]
    types = [helper.np_dtype_to_tensor_dtype(value.dtype) for value in inputs]
    result = onnx.TensorProto.INT32 if op_type.endswith("Integer") else types[0]
    graph = helper.make_graph(
        [helper.make_node(op_type, names, ["y"], **attributes)],
        "g",
        [
            helper.make_tensor_value_info(name, kind, [None] * value.ndim)
            for name, kind, value in zip(names, types, inputs, strict=True)
        ],
        [helper.make_tensor_value_info("y", result, None)],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=9)


def result(op_type: str, *inputs: Any, **attributes: Any) -> np.ndarray[Any, Any]:
    proto = model(op_type, *inputs, **attributes)
    session = ort.InferenceSession(proto.SerializeToString())
    return session.run(None, {value.name: given for value, given in zip(proto.graph.input, inputs, strict=True)})[0]


def zeros(*shape: int, dtype: str = "f") -> np.ndarray[Any, Any]:
    return np.zeros(shape, dtype)


def counts_the_bins_that_it_gets() -> bool:
    spectrum, points = np.ones((1, 4, 2), np.float32), np.array(10)
    if is_older(1, 26):
        return True  # it has no inverses of half a spectrum at all
    found = result("DFT", spectrum, points, axis=1, inverse=1, onesided=1)
    return not np.allclose(found[0, :, 0], np.fft.irfft(spectrum[0, :, 0] + 1j, n=10), atol=1e-3)


def fails_or_ends_the_process(op_type: str, *inputs: np.ndarray[Any, Any], **attributes: Any) -> bool:
    proto = model(op_type, *inputs, **attributes)
    named = zip(proto.graph.input, inputs, strict=True)
    given = [(value.name, array.tolist(), array.dtype.str, array.shape) for value, array in named]
    program = RUN.format(model=proto.SerializeToString().hex(), inputs=given)
    return subprocess.run([sys.executable, "-c", program], capture_output=True, check=False).returncode != 0


def lengthens_no_empty_signal() -> bool:
    points = np.array(4)
    assert not result("DFT", zeros(1, 1, 1), points, axis=1).any()
    return fails_or_ends_the_process("DFT", zeros(1, 0, 1), points, axis=1)


def leaves_beta_out() -> bool:
    found = result("Gemm", zeros(2, 0), zeros(0, 3), np.ones(3, np.float32), beta=2.0)
    return not np.allclose(found, 2.0)


def fails_without_elements() -> bool:
    try:
        result("LayerNormalization", zeros(2, 4, 0), zeros(0))
    except Exception as error:  # whatever the runtime raises
        return "LayerNormalization" in str(error)
    return False


def leaves_products_unwritten() -> bool:
    # What memory held before is not the same every time.
    tries = (result("MatMulInteger", zeros(64, 0, dtype="b"), zeros(0, 64, dtype="b")) for _ in range(50))
    return any(found.any() for found in tries)


def forgets_nan_beside_infinity() -> bool:
    found = result("ReduceLogSumExp", np.array([np.inf, np.nan], np.float32), keepdims=0)
    return not np.isnan(found)


def has_four_digits() -> bool:
    signal = np.random.default_rng(0).standard_normal((1, 1001, 1)).astype(np.float32)
    found, expected = result("DFT", signal, axis=1), np.fft.fft(signal[0, :, 0].astype(float))
    error = np.abs(found[0, :, 0] + 1j * found[0, :, 1] - expected).max() / np.abs(expected).max()
    return bool(error > 1e-5)


def fails_for_a_batch_of_one() -> bool:
    def fails(batch: int) -> bool:
        try:
            result("AffineGrid", zeros(batch, 2, 3, dtype="e"), np.array([batch, 1, 4, 4]), opset=20)
        except Exception as error:  # whatever the runtime raises
            return "AffineGrid" in str(error) or "Split" in str(error)
        return False

    return fails(1) and not fails(2)


def moves_what_it_resizes() -> bool:
    nodes = [
        helper.make_node("Transpose", ["x"], ["t"], perm=[0, 3, 1, 2]),
        helper.make_node("Resize", ["t", "", "", "sizes"], ["r"], axes=[2, 3], mode="linear"),
        helper.make_node("Transpose", ["r"], ["y"], perm=[0, 2, 3, 1]),
    ]
    types = [helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, [None] * 4) for name in "xy"]
    sizes = onnx.numpy_helper.from_array(np.array([2, 2]), "sizes")
    graph = helper.make_graph(nodes, "g", types[:1], types[1:], [sizes])
    proto = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=9)
    try:
        ort.InferenceSession(proto.SerializeToString()).run(None, {"x": zeros(1, 4, 4, 3)})
    except Exception as error:  # whatever the runtime raises
        return "Resize" in str(error)
    return False


GATES = {"RNN": 1, "GRU": 3, "LSTM": 4}
SHOWN: dict[Deviation, Callable[[], bool]] = {
    Deviation.BINS_AS_GIVEN: counts_the_bins_that_it_gets,
    Deviation.EMPTY_EINSUM: lambda: fails_or_ends_the_process("Einsum", zeros(2, 0), zeros(3, 0), equation="ij,kj->ik"),
    Deviation.EMPTY_GEMM: leaves_beta_out,
    Deviation.EMPTY_NORMALIZATION: fails_without_elements,
    Deviation.EMPTY_SIGNAL: lengthens_no_empty_signal,
    Deviation.EMPTY_PRODUCT: leaves_products_unwritten,
    Deviation.HALF_AFFINE_GRID: fails_for_a_batch_of_one,
    Deviation.NAN_BESIDE_INFINITY: forgets_nan_beside_infinity,
    Deviation.RESIZED_AXES: moves_what_it_resizes,
    Deviation.ROUGH_SPECTRUM: has_four_digits,
}


@pytest.mark.parametrize("deviation", Deviation)
def test_the_runtime_still_deviates(deviation: Deviation) -> None:
    opened, closed = OPENED_IN.get(deviation), CLOSED_SINCE.get(deviation)
    deviates = (opened is None or not is_older(*opened)) and (closed is None or is_older(*closed))
    assert SHOWN[deviation]() == deviates


@pytest.mark.parametrize(("op_type", "since"), DEFAULT_RUNTIME.get().no_doubles.items())
def test_the_runtime_still_takes_no_doubles(op_type: str, since: int | None) -> None:
    x, one = zeros(1, 1, 4, dtype="d"), zeros(1, dtype="d")
    others = {"Conv": [zeros(1, 1, 2, dtype="d")], "InstanceNormalization": [one, one]}
    others["ConvTranspose"] = others["Conv"]
    others |= {"Max": [x], "Min": [x], "GridSample": [zeros(1, 2, 2, 2, dtype="d")]}
    others |= {layer: [zeros(1, n, 4, dtype="d"), zeros(1, n, 1, dtype="d")] for layer, n in GATES.items()}
    attributes = {"kernel_shape": [2]} if op_type.endswith("Pool") else {"hidden_size": 1} if op_type in GATES else {}

    def takes(opset: int) -> bool:
        try:
            result(
                op_type, x[None] if op_type == "GridSample" else x, *others.get(op_type, []), opset=opset, **attributes
            )
        except Exception as error:  # whatever the runtime raises
            return not re.search("NOT_IMPLEMENTED|does not support double", str(error))
        return True

    assert not takes(18 if since is None else since - 1)
    assert since is None or takes(since)


X = torch.randn(2, 3, 4)
LSTM = [torch.zeros(1, 3, 2).double()] * 2, [torch.ones(8, size).double() for size in (4, 2)]
WRITTEN: list[tuple[Callable[..., Any], Sequence[Any], bool, str]] = [
    (torch.matmul, (X, X[0, 0]), True, "MatMul"),
    (torch.addmm, (torch.ones(3), torch.ones(2, 0), torch.ones(0, 3)), False, "Gemm"),
    (lambda x, y: torch.einsum("bij,bkj->k", x, y), (X, X), True, "Einsum"),
    (F.conv1d, (X.double(), torch.ones(2, 3, 2).double()), False, "Conv"),
    (lambda x: F.avg_pool1d(x, 2), (X.double(),), False, "AveragePool"),
    (torch.fft.fft, (X[..., :3],), False, "DFT"),
    (lambda *given: torch.lstm(*given, False, 1, 0.0, False, False, False)[0], (X.double(), *LSTM), False, "LSTM"),
    (lambda x: x.logsumexp(0), (X,), False, "ReduceLogSumExp"),
    (lambda x: F.interpolate(x, 3, mode="linear"), (X,), True, "Resize"),
]


@pytest.mark.parametrize(("function", "args", "dynamic", "plain"), WRITTEN)
def test_another_runtime_gets_the_plain_operator(function: Any, args: Any, dynamic: bool, plain: str) -> None:
    traced = trace(function, args, dynamic=dynamic)
    usual = lower_graph(traced, opset=20).op_types()
    other = lower_graph(traced, opset=20, runtime=None).op_types()

    assert plain in other
    assert other != usual


@pytest.mark.parametrize(
    ("opset", "plain", "function"),
    [(11, "Clip", lambda x: F.hardtanh(x)), (7, "Max", lambda x: torch.maximum(x, x.flip(0)))],
)
def test_another_runtime_gets_the_older_form_for_doubles(opset: int, plain: str, function: Any) -> None:
    traced = trace(function, (X.double(),), dynamic=False)

    assert plain in lower_graph(traced, opset=opset, runtime=None, nan="finite").op_types()
    assert plain not in lower_graph(traced, opset=opset, nan="finite").op_types()
