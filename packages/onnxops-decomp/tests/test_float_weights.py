"""ONNX Runtime takes float weights of quantized programs as they are."""

from __future__ import annotations

import numpy as np
import onnx
import onnx_ir as ir
import onnxruntime as ort
import pytest
from onnx.reference import ReferenceEvaluator

from onnxops_decomp.runtimes.onnxruntime.float_weights import KeepFloatWeights

RNG = np.random.default_rng(0)
WEIGHTS = {
    "Conv": RNG.normal(size=(4, 3, 3, 3)),
    "ConvTranspose": RNG.normal(size=(3, 4, 3, 3)),
    "Gemm": RNG.normal(size=(24, 4)),
    "MatMul": RNG.normal(size=(24, 4)),
}
IMAGE = "d = DequantizeLinear(q, s, z)"
MATRIX = "f = Flatten(x)  p = QuantizeLinear(f, s, z)  d = DequantizeLinear(p, s, z)"
CASES = {
    "Conv": ("Conv", f"{IMAGE}  c = Conv(d, w, b)"),
    "Conv without bias": ("Conv", f"{IMAGE}  c = Conv(d, w)"),
    "Conv and Relu": ("Conv", f"{IMAGE}  r = Conv(d, w, b)  c = Relu(r)"),
    "Conv behind MaxPool": ("Conv", f"{IMAGE}  m = MaxPool<kernel_shape = [2, 2]>(d)  c = Conv(m, w, b)"),
    "computed weight": ("Conv", f"{IMAGE}  v = Mul(w, s)  c = Conv(d, v, b)"),
    "ConvTranspose": ("ConvTranspose", f"{IMAGE}  c = ConvTranspose(d, w, b)"),
    "Gemm": ("Gemm", f"{MATRIX}  c = Gemm(d, w, b)"),
    "MatMul": ("MatMul", f"{MATRIX}  c = MatMul(d, w)"),
    "MatMul and Add": ("MatMul", f"{MATRIX}  r = MatMul(d, w)  c = Add(r, b)"),
}
QUANTIZED = "v = DequantizeLinear(i, s, y0)"


def model_of(operator: str, lines: str, opset: int) -> ir.Model:
    rank = WEIGHTS[operator].ndim
    shape = "n, c, h, w" if rank == 4 else "n, c"
    text = f"""<ir_version: 6, opset_import: ["": {opset}]> main (float[n, 3, h, w] x) => (float[{shape}] y)
        <float s = {{0.05}}, uint8 z = {{60}}, int8 y0 = {{0}}, float t = {{0.0413}}> {{
            q = QuantizeLinear(x, s, z)  {lines}
            o = QuantizeLinear(c, t, z)
            y = DequantizeLinear(o, t, z)
        }}"""
    proto = onnx.parser.parse_model(text)
    weight = WEIGHTS[operator].astype(np.float32)
    # Multiples of what ONNX Runtime rounds biases of quantized layers to, the product of the scales.
    bias = (np.arange(-300, 500, 200) * 0.0025).astype(np.float32)
    arrays = {"w": weight, "b": bias, "i": (weight * 30).astype(np.int8)}
    proto.graph.initializer.extend(onnx.numpy_helper.from_array(array, name) for name, array in arrays.items())
    return ir.from_proto(proto)


def assert_runs_as_specified(model: ir.Model) -> None:
    proto = ir.to_proto(model)
    onnx.checker.check_model(proto, full_check=True)
    options = ort.SessionOptions()
    options.log_severity_level = 4
    session = ort.InferenceSession(proto.SerializeToString(), options, providers=["CPUExecutionProvider"])
    x = RNG.normal(size=(5, 3, 7, 6) if "h" in str(model.graph.outputs[0].shape) else (5, 3, 2, 4)).astype(np.float32)
    (actual,) = session.run(None, {"x": x})
    # ONNX's evaluator knows these operators from opset 21 on, where they are the same.
    proto.opset_import[0].version, proto.ir_version = 21, 10
    (expected,) = ReferenceEvaluator(proto).run(None, {"x": x})
    # What lies between two steps may be rounded to either.
    apart = np.abs(actual - expected)
    assert apart.max() <= 0.0414
    assert (apart > 1e-5).mean() < 0.005


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("opset", [10, 11, 12, 15, 21])
def test_constant_weights_stay_floats(case: str, opset: int) -> None:
    model = model_of(*CASES[case], opset)

    assert KeepFloatWeights()(model).modified

    assert_runs_as_specified(model)


@pytest.mark.parametrize("opset", [10, 11, 21])
def test_quantized_weights_are_left_to_the_kernels_that_take_them(opset: int) -> None:
    """But for opset 10, where quantizing the bias fails."""
    model = model_of("Conv", f"{IMAGE}  {QUANTIZED}  c = Conv(d, v, b)", opset)

    assert KeepFloatWeights()(model).modified == (opset == 10)

    assert_runs_as_specified(model)


@pytest.mark.parametrize("lines", ["c = Conv(x, w, b)", f"{IMAGE}  a = Relu(d)  c = Conv(a, w, b)"])
def test_other_inputs_stay_as_they_are(lines: str) -> None:
    assert not KeepFloatWeights()(model_of("Conv", lines, 12)).modified
