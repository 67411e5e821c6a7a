"""Random numbers, loops, windows and transforms below the opsets that have them, against torch and statistics."""

from __future__ import annotations

from typing import Any

import adapter_cases
import numpy as np
import onnx_ir as ir
import pytest
import torch
from adapter_cases import run_function as run

from onnxops_decomp.builder.op_builder import OpBuilder
from onnxops_decomp.errors import UnsupportedOpsetError
from onnxops_decomp.files.model import build_model

T = ir.DataType
SAMPLES = 20000


@pytest.mark.parametrize("opset", [7, 13, 21, 22, 26])
@pytest.mark.parametrize("dtype", [np.float32, np.float64, np.float16])
def test_uniform_and_normal_numbers_have_their_moments(opset: int, dtype: type) -> None:
    like = np.zeros((SAMPLES, 2), dtype)
    uniform, normal = run(
        lambda op, x: [op.RandomUniformLike(x, low=-1.0, high=3.0), op.RandomNormalLike(x, mean=2.0, scale=0.5)],
        opset,
        like,
    )
    assert uniform.dtype == normal.dtype == dtype
    assert uniform.shape == normal.shape == like.shape
    assert -1 <= uniform.min() < -0.98
    assert 2.98 < uniform.max() <= 3
    # Six standard errors of the mean and of the standard deviation.
    margin = 6 / np.sqrt(like.size)
    assert abs(uniform.astype(np.float64).mean() - 1) < margin * 4 / np.sqrt(12)
    assert abs(uniform.astype(np.float64).std() - 4 / np.sqrt(12)) < margin * 4 / np.sqrt(12)
    assert abs(normal.astype(np.float64).mean() - 2) < margin * 0.5
    assert abs(normal.astype(np.float64).std() - 0.5) < margin * 0.5
    assert abs(np.corrcoef(normal[:, 0], normal[:, 1])[0, 1]) < margin * 1.5


@pytest.mark.parametrize("opset", [7, 15, 21, 22, 26])
def test_bernoulli_follows_its_probabilities(opset: int) -> None:
    probability = np.tile(np.array([0.0, 0.25, 0.9, 1.0], np.float32), (SAMPLES, 1))
    means = run(lambda op, x: op.Bernoulli(x), opset, probability)[0].mean(0)
    np.testing.assert_allclose(means, [0, 0.25, 0.9, 1], atol=6 * 0.5 / np.sqrt(SAMPLES))
    assert means[0] == 0
    assert means[3] == 1


@pytest.mark.parametrize("opset", [7, 21, 22, 26])
def test_multinomial_follows_its_weights(opset: int) -> None:
    logarithms = np.log(np.array([[0.1, 0.6, 0.3], [0.5, 0.25, 0.25]], np.float32))
    drawn = run(lambda op, x: op.Multinomial(x, sample_size=SAMPLES), opset, logarithms)[0]
    assert drawn.dtype == np.int32
    shares = np.stack([np.bincount(row, minlength=3) / SAMPLES for row in drawn])
    np.testing.assert_allclose(shares, np.exp(logarithms), atol=6 * 0.5 / np.sqrt(SAMPLES))


@pytest.mark.parametrize("opset", [7, 10, 12, 22])
def test_dropout_in_training_scales_what_it_keeps(opset: int) -> None:
    data = np.full(SAMPLES, 3, np.float32)
    dropped, mask = run(lambda op, x: op.emit_many("Dropout", 2, x, 0.25, True), opset, data)
    np.testing.assert_allclose(dropped, np.where(mask, 4, 0), rtol=1e-6)
    assert abs(mask.mean() - 0.75) < 6 * 0.5 / np.sqrt(SAMPLES)


@pytest.mark.parametrize("opset", [13, 19, 20, 21, 22])
def test_bfloat16_is_made_where_the_operator_does_not_know_it(opset: int) -> None:
    op = OpBuilder(opset)
    x, shape = op.input("x", T.BFLOAT16, (2, 2)), op.input("shape", T.INT64, (2,))
    fill = ir.tensor(np.ones(1, T.BFLOAT16.numpy()))
    made = [op.EyeLike(x), op.ConstantOfShape(shape, value=fill), op.RandomNormal(shape=[2], dtype=int(T.BFLOAT16))]
    assert {value.dtype for value in made} == {T.BFLOAT16}


@pytest.mark.parametrize("opset", [7, 9, 11, 13, 20])
def test_loop_that_carries_nothing(opset: int) -> None:
    def squares(op: OpBuilder, count: ir.Value) -> ir.Value:
        body = op.subgraph()
        index, running = body.input("index", T.INT64, ()), body.input("running", T.BOOL, ())
        graph = body.graph([running, body.Mul(index, index)], name="squares")
        return op.emit_many("Loop", 1, count, op.constant(True), body=graph)[0]

    actual = run(squares, opset, np.array(5, np.int64))[0]
    np.testing.assert_array_equal(actual, [0, 1, 4, 9, 16])


def test_sequence_through_a_branch_needs_opset_13() -> None:
    op = OpBuilder(12)
    x, flag = op.input("x", T.FLOAT, (2,)), op.input("flag", T.BOOL, ())
    branches = []
    for name in ("then", "else"):
        inner = op.subgraph()
        result = inner.SequenceConstruct(inner.Exp(x))
        result.type = ir.SequenceType(ir.TensorType(T.FLOAT))
        branches.append(inner.graph([result], name=name))
    with pytest.raises(UnsupportedOpsetError, match="lowest opset that works is 13"):
        op.emit("If", flag, then_branch=branches[0], else_branch=branches[1])


@pytest.mark.parametrize("opset", [7, 9, 11, 16])
@pytest.mark.parametrize("name", ["hann", "hamming", "blackman"])
@pytest.mark.parametrize("periodic", [False, True])
def test_window_is_that_of_torch(opset: int, name: str, periodic: bool) -> None:
    op_type = f"{name.capitalize()}Window"
    # torch's Hamming window rounds the coefficients of the specification, 25/46 and 21/46, to two digits.
    options = {"alpha": 25 / 46, "beta": 21 / 46} if name == "hamming" else {}
    expected = getattr(torch, f"{name}_window")(9, periodic=periodic, dtype=torch.float64, **options)
    actual = run(lambda op, n: op.emit(op_type, n, periodic=int(periodic)), opset, np.array(9, np.int64))[0]
    np.testing.assert_allclose(actual, expected.numpy(), rtol=1e-6, atol=1e-7)


@pytest.mark.parametrize("opset", [7, 11, 16])
@pytest.mark.parametrize("onesided", [0, 1])
def test_stft_is_that_of_torch(opset: int, onesided: int) -> None:
    signal, window = torch.randn(2, 40), torch.hann_window(10)
    expected = torch.stft(signal, 10, 4, window=window, center=False, onesided=bool(onesided), return_complex=True)
    actual = run(
        lambda op, x, w: op.STFT(x, 4, w, onesided=onesided), opset, signal[..., None].numpy(), window.numpy()
    )[0]
    np.testing.assert_allclose(actual, torch.view_as_real(expected.transpose(1, 2)).numpy(), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("opset", [7, 10, 11, 13, 17])
@pytest.mark.parametrize(
    "options",
    [
        {},
        {"stride": 2},
        {"padding": 1, "dilation": 2},
        {"stride": (2, 3), "padding": (1, 0)},
    ],
)
def test_col2im_is_fold_of_torch(opset: int, options: dict[str, Any]) -> None:
    pair = lambda value: list(value) if isinstance(value, tuple) else [value, value]  # noqa: E731
    image = torch.randn(2, 3, 9, 10)
    columns = torch.nn.functional.unfold(image, (3, 2), **options)
    expected = torch.nn.functional.fold(columns, (9, 10), (3, 2), **options)
    attributes = {
        "strides": pair(options.get("stride", 1)),
        "pads": pair(options.get("padding", 0)) * 2,
        "dilations": pair(options.get("dilation", 1)),
    }
    actual = run(lambda op, x: op.Col2Im(x, [9, 10], [3, 2], **attributes), opset, columns.numpy(), dynamic=opset > 9)[
        0
    ]
    np.testing.assert_allclose(actual, expected.numpy(), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("opset", [7, 9, 10, 18])
@pytest.mark.parametrize("size", [7, 8])
@pytest.mark.parametrize("dilation", [1, 2])
def test_max_pooling_with_ceiling_and_dilation_is_that_of_torch(opset: int, size: int, dilation: int) -> None:
    x = torch.randn(2, 3, size, size)
    expected = torch.nn.functional.max_pool2d(x, 3, 2, 1, dilation, ceil_mode=True)
    attributes = {"kernel_shape": [3, 3], "strides": [2, 2], "pads": [1] * 4, "dilations": [dilation] * 2}
    actual = run(lambda op, x: op.MaxPool(x, ceil_mode=1, **attributes), opset, x.numpy())[0]
    np.testing.assert_array_equal(actual, expected.numpy())


@pytest.mark.parametrize("opset", [7, 9])
@pytest.mark.parametrize("include", [False, True])
def test_average_pooling_with_ceiling_is_that_of_torch(opset: int, include: bool) -> None:
    x = torch.randn(2, 3, 8, 7)
    expected = torch.nn.functional.avg_pool2d(x, 3, 2, 1, ceil_mode=True, count_include_pad=include)
    attributes = {"kernel_shape": [3, 3], "strides": [2, 2], "pads": [1] * 4, "count_include_pad": int(include)}
    actual = run(lambda op, x: op.AveragePool(x, ceil_mode=1, **attributes), opset, x.numpy())[0]
    np.testing.assert_allclose(actual, expected.numpy(), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("opset", [7, 9, 11, 13, 14])
@pytest.mark.parametrize("upper", [0, 1])
@pytest.mark.parametrize("k", [-2, 0, 3])
@pytest.mark.parametrize("dtype", [np.float32, np.int64, np.int8, np.bool_])
def test_triangle_of_symbolic_sizes(opset: int, upper: int, k: int, dtype: type) -> None:
    x = np.arange(1, 41).reshape(2, 4, 5).astype(dtype)
    x[0, 0, 0] = 0
    actual = run(lambda op, x: op.Trilu(x, k, upper=upper), opset, x, dynamic=True)[0]
    np.testing.assert_array_equal(actual, np.triu(x, k) if upper else np.tril(x, k))


def test_infinities_outside_of_a_triangle_do_not_spread() -> None:
    x = np.full((3, 3), -np.inf, np.float32)
    for opset in (7, 9, 13):
        actual = run(lambda op, x: op.Trilu(x, 1), opset, x)[0]
        np.testing.assert_array_equal(actual, np.triu(x, 1))


def test_model_of_an_older_opset_loads_where_the_newest_does_not() -> None:
    op = OpBuilder(7)
    x = op.input("input_0", T.FLOAT, (2, 3))
    proto = ir.to_proto(build_model(op, [op.Gelu(x)], name="test"))
    array = np.linspace(-3, 3, 6, dtype=np.float32).reshape(2, 3)
    actual = adapter_cases.run_in_runtime(proto, {"input_0": array})[0]
    expected = torch.nn.functional.gelu(torch.from_numpy(array)).numpy()
    np.testing.assert_allclose(actual, expected, rtol=1e-5, atol=1e-6)
