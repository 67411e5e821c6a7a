"""Passes keep what a model computes, and leave alone what they cannot prove."""

from __future__ import annotations

import numpy as np
import onnx
import onnx_ir as ir
import onnxruntime as ort
import pytest

from onnxops_decomp.builder.op_builder import OpBuilder
from onnxops_decomp.builder.parts import DEFAULT_RUNTIME
from onnxops_decomp.builder.runtime import Runtime
from onnxops_decomp.builder.scope import ModelContext
from onnxops_decomp.files.model import build_model
from onnxops_decomp.passes import DerivedTensor, FoldBatchNormalization
from onnxops_decomp.runtimes.onnxruntime.padding import KeepPaddingApart

CASES = {
    "conv": ("y = Conv(x, w)", (6, 4, 3, 3)),
    "conv with a bias": ("y = Conv(x, w, b)", (6, 4, 3, 3)),
    "grouped conv": ("y = Conv<group = 2>(x, w, b)", (6, 2, 3, 3)),
    "transposed conv": ("y = ConvTranspose(x, w, b)", (4, 6, 3, 3)),
    "grouped transposed conv": ("y = ConvTranspose<group = 2>(x, w)", (4, 3, 3, 3)),
}


def model_of(line: str, weight: tuple[int, ...], *, x: str = "float[n, 4, 7, 7]", rest: str = "", opset: int = 20):
    """A model of one linear operator and a BatchNormalization behind it, with random weights."""
    text = f"""<ir_version: 8, opset_import: ["": {opset}]> main ({x} x) => (float[] z) {{
        {line}
        z = BatchNormalization<epsilon = 0.01>(y, scale, offset, mean, var)
        {rest}
    }}"""
    model = ir.from_proto(onnx.parser.parse_model(text))
    model.graph.outputs[0].shape = None
    random = np.random.default_rng(0)
    shapes = {"w": weight, **dict.fromkeys(("b", "scale", "offset", "mean", "var"), (6,))}
    values = {value.name: value for node in model.graph for value in node.inputs if value is not None}
    for name, shape in shapes.items():
        if name in values:
            array = random.uniform(0.5, 2, shape).astype(np.float32) * (1 if name == "var" else random.choice([-1, 1]))
            values[name].const_value = ir.tensor(array.astype(np.float32), name=name)
            values[name].shape = ir.Shape(shape)
            values[name].dtype = ir.DataType.FLOAT
            model.graph.initializers.add(values[name])
    values["y"].shape = ir.Shape(["n", 6, None, None]) if len(weight) == 4 else ir.Shape(["n", 6])
    return model


def run(model: ir.Model, x: np.ndarray) -> np.ndarray:
    session = ort.InferenceSession(ir.to_proto(model).SerializeToString(), providers=["CPUExecutionProvider"])
    return session.run(None, {"x": x})[0]


def folded(model: ir.Model) -> bool:
    return FoldBatchNormalization()(model).modified


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("opset", [9, 14, 20])
def test_batch_normalization_goes_into_the_weights(case: str, opset: int) -> None:
    model = model_of(*CASES[case], opset=opset)
    x = np.random.default_rng(1).standard_normal((3, 4, 7, 7)).astype(np.float32)
    expected = run(model, x)
    assert folded(model)
    assert len(model.graph) == 1
    np.testing.assert_allclose(run(model, x), expected, rtol=1e-5, atol=1e-5)
    assert set(model.graph.initializers) == {"w.folded", "w.folded_bias"}


@pytest.mark.parametrize("trans", [0, 1])
def test_batch_normalization_goes_into_a_matrix(trans: int) -> None:
    model = model_of(f"y = Gemm<transB = {trans}>(x, w, b)", (6, 4) if trans else (4, 6), x="float[n, 4]")
    x = np.random.default_rng(1).standard_normal((3, 4)).astype(np.float32)
    expected = run(model, x)
    assert folded(model)
    np.testing.assert_allclose(run(model, x), expected, rtol=1e-5, atol=1e-5)


def test_a_scaled_matrix_product_keeps_its_normalization() -> None:
    assert not folded(model_of("y = Gemm<alpha = 2.0>(x, w, b)", (4, 6), x="float[n, 4]"))


def test_a_weight_with_two_readers_is_not_changed() -> None:
    assert not folded(model_of("y = Conv(x, w)", (6, 4, 3, 3), rest="other = Conv(x, w)"))


def test_a_result_with_two_readers_is_not_changed() -> None:
    assert not folded(model_of("y = Conv(x, w)", (6, 4, 3, 3), rest="other = Relu(y)"))


def test_statistics_of_the_batch_are_not_folded() -> None:
    model = model_of("y = Conv(x, w)", (6, 4, 3, 3))
    model.graph[-1].attributes["training_mode"] = ir.AttrInt64("training_mode", 1)
    assert not folded(model)


def test_a_weight_that_a_caller_may_replace_is_not_folded() -> None:
    model = model_of("y = Conv(x, w)", (6, 4, 3, 3))
    model.graph.inputs.append(model.graph.initializers["w"])
    assert not folded(model)


def test_weights_beyond_half_precision_are_not_folded() -> None:
    model = model_of("y = Conv(x, w)", (6, 4, 3, 3))
    for value in model.graph.initializers.values():
        value.const_value = ir.tensor(value.const_value.numpy().astype(np.float16), name=value.name)
    model.graph.initializers["scale"].const_value = ir.tensor(np.full(6, 6e4, np.float16))
    model.graph.initializers["var"].const_value = ir.tensor(np.full(6, 1e-3, np.float16))
    assert not folded(model)


def test_a_derived_tensor_reads_its_sources_each_time() -> None:
    source = ir.tensor(np.array([1.0, 2.0], np.float32))
    tensor = DerivedTensor(lambda a: a * 2, [source], name="twice", dtype=source.dtype, shape=source.shape)
    assert tensor.numpy().tolist() == [2, 4]
    other = tensor.of([ir.tensor(np.array([3.0, 4.0], np.float32))])
    assert other.numpy().tolist() == [6, 8]
    assert other.numpy() is not other.numpy()


POOL = "MaxPool<kernel_shape = [3, 3], strides = [2, 2]>"
PADDED = {
    "next to each other": f"p = Pad(x, pads, zero)  y = {POOL}(p)",
    "without a value": f"p = Pad(x, pads)  y = {POOL}(p)",
    "behind an Identity": f"p = Pad(x, pads, zero)  i = Identity(p)  y = {POOL}(i)",
    "behind a Cast": f"p = Pad(x, pads, zero)  i = Cast<to = 11>(p)  d = {POOL}(i)  y = Cast<to = 1>(d)",
    "in a function": "y = local.padded(x, pads)",
    "in a branch": f"y = If(yes)<then_branch = then () => (t) {{ p = Pad(x, pads)  t = {POOL}(p) }}, "
    "else_branch = other () => (e) { e = Neg(x) }>",
}


def zero_padded(case: str, opset: int) -> ir.Model:
    """A model that writes zeros around its input and takes maxima, in one of several ways."""
    text = f"""<ir_version: 8, opset_import: ["": {opset}, "local": 1]>
        main (float[n, 2, 6, 7] x) => (float[a, b, c, d] y)
        <int64[8] pads = {{0, 0, 1, 1, 0, 0, 1, 1}}, float zero = {{0}}, bool yes = {{1}}> {{ {PADDED[case]} }}
        <domain: "local", opset_import: ["": {opset}]> padded (x, pads) => (y) {{
            pads_1 = Constant<value = int64[8] {{0, 0, 1, 1, 0, 0, 1, 1}}>()
            p = Pad(x, pads_1)
            y = {POOL}(p)
        }}"""
    return ir.from_proto(onnx.parser.parse_model(text))


@pytest.mark.parametrize("case", PADDED)
@pytest.mark.parametrize("opset", [11, 17, 18, 23])
def test_zeros_are_kept_apart_from_max_pool(case: str, opset: int) -> None:
    x = -1 - np.random.default_rng(2).random((3, 2, 6, 7)).astype(np.float32)
    model = zero_padded(case, opset)
    onnx.checker.check_model(ir.to_proto(model))
    assert KeepPaddingApart()(model).modified
    onnx.checker.check_model(ir.to_proto(model), full_check=True)
    padded = np.pad(x, [(0, 0), (0, 0), (1, 1), (1, 1)])
    windows = np.lib.stride_tricks.sliding_window_view(padded, (3, 3), axis=(2, 3))[:, :, ::2, ::2]
    np.testing.assert_array_equal(run(model, x), windows.max((-2, -1)))


@pytest.mark.parametrize(
    "line", [f"p = Pad(x, pads, low)  y = {POOL}(p)", f'p = Pad<mode = "edge">(x, pads)  y = {POOL}(p)']
)
def test_other_padding_stays_as_it_is(line: str) -> None:
    text = f"""<ir_version: 8, opset_import: ["": 20]> main (float[n, 2, 6, 7] x) => (float[a, b, c, d] y)
        <int64[8] pads = {{0, 0, 1, 1, 0, 0, 1, 1}}, float low = {{-10.0}}> {{ {line} }}"""
    assert not KeepPaddingApart()(ir.from_proto(onnx.parser.parse_model(text))).modified


@pytest.mark.parametrize("runtime", [DEFAULT_RUNTIME.get(), None])
def test_padding_is_kept_apart_for_the_runtime_that_moves_it_alone(runtime: Runtime | None) -> None:
    op = OpBuilder(20, context=ModelContext(20, runtime=runtime))
    padded = op.Pad(op.input("x", ir.DataType.FLOAT, ("n", 2, 6, 7)), op.constant([0, 0, 1, 1, 0, 0, 1, 1]))
    model = build_model(op, [op.MaxPool(padded, kernel_shape=[3, 3])], name="pooled")

    pad = next(node for node in model.graph if node.op_type == "Pad")
    assert len(pad.inputs) == (4 if runtime is not None else 2)
