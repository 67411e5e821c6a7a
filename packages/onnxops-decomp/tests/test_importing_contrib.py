"""ONNX Runtime's own operators, imported, compute what its kernels compute."""

from __future__ import annotations

import numpy as np
import onnx
import onnx_ir as ir
import onnxruntime
import pytest
import torch
from drawn_arrays import RNG
from onnx import helper, numpy_helper

from onnxops_decomp import ModelImportError, to_torch
from onnxops_decomp.importing.graph import GraphImport, Root

DOMAIN = "com.microsoft"


def floats(*shape):
    return RNG.standard_normal(shape).astype(np.float32)


def steps(*shape, dtype=np.uint8):
    return RNG.integers(np.iinfo(dtype).min, np.iinfo(dtype).max, shape, dtype, endpoint=True)


def scalar(number, dtype=np.float32):
    return np.array(number, dtype)


U8, S8 = lambda number: scalar(number, np.uint8), lambda number: scalar(number, np.int8)


def quantized_lstm(count, scales, dtype=np.uint8):
    """Return an input, and weights by direction that are quantized by scales of a shape."""
    offset = np.full(scales, 0 if dtype == np.int8 else 128, dtype)
    scale = RNG.uniform(0.004, 0.008, scales).astype(np.float32)
    weights = (steps(count, 4, 20, dtype=dtype), steps(count, 5, 20, dtype=dtype), floats(count, 40))
    return [floats(3, 1, 4), *weights, None, None, None, None, scale, offset, scale, offset]


CACHE = (np.cos(np.arange(40, dtype=np.float32)).reshape(10, 4), np.sin(np.arange(40, dtype=np.float32)).reshape(10, 4))
# Inputs (None: left out), attributes, number of outputs.
CASES = {
    "Gelu": [([floats(3, 4)], {}, 1)],
    "BiasGelu": [([floats(2, 3, 4), floats(4)], {}, 1)],
    "FastGelu": [([floats(3, 4)], {}, 1), ([floats(2, 3, 4), floats(4)], {}, 1)],
    "QuickGelu": [([floats(3, 4)], {}, 1), ([floats(3, 4)], {"alpha": 1.0}, 1)],
    "FusedMatMul": [
        ([floats(2, 4, 3), floats(2, 5, 4)], {"transA": 1, "transB": 1, "alpha": 0.5}, 1),
        ([floats(3, 4), floats(2, 4, 5)], {}, 1),
        ([floats(4, 2, 3), floats(2, 3, 5)], {"transBatchA": 1}, 1),
        ([floats(2, 4, 3), floats(3, 2, 5)], {"transBatchB": 1}, 1),
        ([floats(3, 2, 4), floats(2, 3, 5)], {"transBatchA": 1, "transA": 1}, 1),
    ],
    "FusedGemm": [
        ([floats(3, 4), floats(4, 5), floats(5)], {"activation": "Relu", "alpha": 0.5, "beta": 2.0}, 1),
        ([floats(4, 3), floats(4, 5)], {"activation": "LeakyRelu", "activation_alpha": 0.3, "transA": 1}, 1),
    ],
    "FusedConv": [
        ([floats(1, 2, 5, 6), floats(3, 2, 3, 3), floats(3)], {"activation": "Relu", "pads": [1, 1, 1, 1]}, 1),
        (
            [floats(1, 2, 5, 6), floats(3, 2, 3, 3), None, floats(1, 3, 3, 4)],
            {"activation": "Clip", "activation_params": [-0.5, 0.5]},
            1,
        ),
    ],
    "DynamicQuantizeLSTM": [
        (quantized_lstm(1, (1,), dtype=np.int8), {"hidden_size": 5}, 3),
        (quantized_lstm(2, (2, 20)), {"hidden_size": 5, "direction": "bidirectional"}, 3),
    ],
    "RotaryEmbedding": [
        ([floats(2, 3, 16), scalar([4], np.int64), *CACHE], {"num_heads": 2}, 1),
        ([floats(2, 3, 16), np.array([[1, 5, 0], [2, 3, 9]]), *CACHE], {"interleaved": 1}, 1),
        ([floats(2, 2, 3, 8), np.array([[1, 5, 0], [2, 3, 9]]), *CACHE], {}, 1),
    ],
    "EmbedLayerNormalization": [
        (
            [
                *(np.array(ids, np.int32) for ids in ([[1, 2, 0], [3, 3, 1]], [[0, 1, 1], [0, 0, 1]])),
                *(floats(5, 4), floats(6, 4), floats(2, 4), floats(4), floats(4)),
                np.array([[1, 1, 0], [1, 1, 1]], np.int32),
            ],
            {"epsilon": 1e-6},
            3,
        ),
        (
            [
                *(np.array([[1, 2, 0]], np.int32), None, floats(5, 4), floats(6, 4), None, floats(4), floats(4), None),
                np.array([[5, 0, 2]], np.int32),
            ],
            {},
            2,
        ),
    ],
    "Attention": [
        ([floats(2, 3, 8), floats(8, 24), floats(24)], {"num_heads": 2}, 1),
        ([floats(2, 3, 8), floats(8, 24), floats(24)], {"num_heads": 2, "unidirectional": 1}, 1),
        ([floats(2, 3, 8), floats(8, 24), floats(24), np.array([2, 3], np.int32)], {"num_heads": 4}, 1),
        ([floats(2, 3, 8), floats(8, 24), floats(24), np.array([2, 3, 0, 1], np.int32)], {"num_heads": 4}, 1),
        ([floats(2, 3, 8), floats(8, 24), floats(24), np.array([[1, 1, 0], [1, 0, 1]], np.int32)], {"num_heads": 2}, 1),
        (
            [floats(2, 3, 8), floats(8, 24), floats(24), RNG.integers(0, 2, (2, 3, 3), np.int32)],
            {"num_heads": 2, "scale": 0.7},
            1,
        ),
        (
            [floats(1, 2, 8), floats(8, 24), floats(24), None, floats(2, 1, 2, 3, 4)],
            {"num_heads": 2, "unidirectional": 1},
            2,
        ),
        ([floats(2, 3, 8), floats(8, 20), floats(20)], {"num_heads": 2, "qkv_hidden_sizes": [8, 8, 4]}, 1),
        ([floats(2, 3, 8), floats(8, 24), floats(24), None, None, floats(1, 2, 3, 3)], {"num_heads": 2}, 1),
    ],
    "Inverse": [([floats(2, 3, 3)], {}, 1)],
    "Trilu": [([floats(3, 4), scalar(1, np.int64)], {"upper": 0}, 1)],
    "GridSample": [([floats(1, 2, 4, 5), floats(1, 3, 3, 2)], {"mode": "bilinear", "align_corners": 1}, 1)],
    "QuantizeLinear": [([floats(3, 4), scalar(0.1), U8(7)], {}, 1)],
    "DequantizeLinear": [([steps(3, 4), floats(4), steps(4)], {"axis": 1}, 1)],
    "MatMulIntegerToFloat": [
        ([steps(3, 4), steps(4, 5, dtype=np.int8), scalar(0.2), floats(5)], {}, 1),
        ([steps(3, 4), steps(4, 5), scalar(0.2), scalar(0.3), U8(9), U8(3), floats(5)], {}, 1),
    ],
    "DynamicQuantizeMatMul": [
        ([floats(3, 4), steps(4, 5, dtype=np.int8), scalar(0.2)], {}, 1),
        ([floats(2, 3, 4), steps(4, 5), floats(5), steps(5), floats(5)], {}, 1),
    ],
    "QLinearAdd": [
        ([steps(3, 4), scalar(0.1), U8(3), steps(4), scalar(0.2), U8(9), scalar(0.3), U8(5)], {}, 1),
        ([steps(3, 4, dtype=np.int8), scalar(0.1), S8(3), S8(5), scalar(0.2), S8(-9), scalar(0.3)], {}, 1),
    ],
    "QLinearMul": [([steps(3, 4), scalar(0.1), U8(3), steps(4), scalar(0.2), U8(9), scalar(0.3), U8(5)], {}, 1)],
    "QLinearSigmoid": [([steps(30), scalar(0.05), U8(128), scalar(1 / 256), U8(0)], {}, 1)],
    "QLinearLeakyRelu": [([steps(30), scalar(0.05), U8(128), scalar(0.03), U8(90)], {"alpha": 0.2}, 1)],
    "QLinearSoftmax": [
        ([steps(3, 4), scalar(0.03), U8(128), scalar(1 / 256), U8(0)], {"axis": -1, "opset": 13}, 1),
        ([steps(2, 3, 4), scalar(0.03), U8(128), scalar(1 / 256), U8(0)], {"axis": 1, "opset": 11}, 1),
    ],
    "QLinearConcat": [
        ([scalar(0.2), U8(4), steps(2, 3), scalar(0.1), U8(3), steps(2, 1), scalar(0.3), U8(0)], {"axis": 1}, 1)
    ],
    "QLinearGlobalAveragePool": [
        ([steps(1, 2, 3, 3), scalar(0.1), U8(3), scalar(0.05), U8(7)], {}, 1),
        ([steps(1, 3, 3, 2), scalar(0.1), U8(3), scalar(0.05), U8(7)], {"channels_last": 1}, 1),
    ],
    "QLinearAveragePool": [
        ([steps(1, 2, 5, 5), scalar(0.1), U8(3), scalar(0.05), U8(7)], {"kernel_shape": [2, 2], "strides": [2, 2]}, 1),
    ],
    "QLinearWhere": [
        (
            [
                *(np.array([True, False, True]), steps(3), scalar(0.1), U8(3)),
                *(steps(2, 3), scalar(0.2), U8(9), scalar(0.3), U8(5)),
            ],
            {},
            1,
        ),
    ],
    "QAttention": [
        ([steps(2, 3, 8), steps(8, 24, dtype=np.int8), floats(24), scalar(0.01), scalar(0.02)], {"num_heads": 2}, 1),
        (
            [
                *(steps(2, 3, 8), steps(8, 24), floats(24), scalar(0.01), scalar(0.02)),
                *(np.array([2, 3], np.int32), U8(120), U8(130)),
            ],
            {"num_heads": 4, "unidirectional": 1},
            1,
        ),
        (
            [
                *(steps(1, 2, 8), steps(8, 24, dtype=np.int8), floats(24), scalar(0.01), scalar(0.02)),
                *(None, U8(7), S8(0), floats(2, 1, 2, 3, 4)),
            ],
            {"num_heads": 2},
            2,
        ),
    ],
    "QEmbedLayerNormalization": [
        (
            [
                *(np.array(ids, np.int32) for ids in ([[1, 2, 0], [3, 3, 1]], [[0, 1, 1], [0, 0, 1]])),
                *(steps(5, 4), steps(6, 4), steps(2, 4), steps(4), steps(4), np.array([[1, 1, 0]] * 2, np.int32)),
                *(scalar(0.02), scalar(0.03), scalar(0.01), scalar(0.02), scalar(0.05)),
                *(U8(120), U8(9), U8(130), U8(3), U8(90)),
            ],
            {"epsilon": 1e-6},
            2,
        ),
    ],
    "GatherBlockQuantized": [
        ([steps(5, 16), np.array([[1, 4], [0, -1]]), floats(5, 2)], {"block_size": 16}, 1),
        ([steps(5, 10), np.array([3, 1]), floats(5, 2), steps(5, 1)], {"block_size": 16, "quantize_axis": -1}, 1),
        ([steps(5, 20), np.array(2), floats(5, 2), steps(5, 2)], {"block_size": 16, "bits": 8}, 1),
    ],
    "QGemm": [
        ([steps(3, 4), scalar(0.1), U8(3), steps(4, 5), scalar(0.2), U8(9)], {}, 1),
        (
            [
                *(steps(3, 4), scalar(0.01), U8(3), steps(5, 4, dtype=np.int8), floats(5) ** 2 + 0.01),
                *(np.zeros(5, np.int8), steps(5).astype(np.int32), scalar(0.5), U8(100)),
            ],
            {"transB": 1},
            1,
        ),
    ],
}  # fmt: skip


def case_model(op_type, inputs, attributes, outputs, domain=DOMAIN):
    given = {f"x{place}": array for place, array in enumerate(inputs) if array is not None}
    names = [f"x{place}" if array is not None else "" for place, array in enumerate(inputs)]
    # Parameters of quantization are constants to most kernels.
    fixed = {name: array for name, array in given.items() if array.ndim == 0 or op_type.startswith("Q")}
    fed = {name: array for name, array in given.items() if name not in fixed} or given
    made = [f"y{place}" for place in range(outputs)]
    graph = helper.make_graph(
        [helper.make_node(op_type, names, made, domain=domain, **attributes)],
        "graph",
        [
            helper.make_tensor_value_info(name, helper.np_dtype_to_tensor_dtype(array.dtype), array.shape)
            for name, array in fed.items()
        ],
        [onnx.ValueInfoProto(name=name) for name in made],
        [numpy_helper.from_array(array, name) for name, array in given.items() if name not in fed],
    )
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid(DOMAIN, 1)]
    return helper.make_model(graph, opset_imports=opsets, ir_version=8), fed


def outputs_of(model, fed):
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    session = onnxruntime.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
    return session.run(None, fed)


def assert_agrees(op_type: str, case) -> None:
    """Compare a case with ONNX Runtime's kernel."""
    model, fed = case_model(op_type, *case)
    made = to_torch(model)(*map(torch.from_numpy, fed.values()))
    for got, want in zip(made if isinstance(made, tuple) else (made,), outputs_of(model, fed), strict=True):
        # A value half way between two steps may be rounded either way.
        atol = 1 if want.dtype.kind in "iu" and op_type.startswith("Q") else 1e-4
        assert got.numpy().dtype == want.dtype
        np.testing.assert_allclose(got.numpy().astype(np.float64), want.astype(np.float64), rtol=1e-3, atol=atol)


def need_kernel(op_type: str) -> None:
    """Skip a test of what the installed runtime does not know."""
    if op_type == "GatherBlockQuantized":
        pytest.importorskip("onnxruntime", minversion="1.23", reason="ONNX Runtime has its forms in bytes since 1.23")


@pytest.mark.parametrize(
    "op_type, case", [(op_type, place) for op_type, cases in CASES.items() for place in range(len(cases))]
)
def test_an_operator_computes_what_its_kernel_computes(op_type: str, case: int) -> None:
    need_kernel(op_type)
    assert_agrees(op_type, CASES[op_type][case])


@pytest.mark.parametrize("op_type", CASES)
def test_the_dtype_of_the_first_result_is_known_without_a_run(op_type: str) -> None:
    need_kernel(op_type)
    model, fed = case_model(op_type, *CASES[op_type][-1])
    read = ir.from_proto(model)
    root = Root(read, trainable=False)
    made = GraphImport(root, None, root.module)
    made.sources.add(read.graph)
    made.inputs(read.graph.inputs)
    made.nodes(read.graph)
    want = outputs_of(model, fed)[0].dtype
    assert made.find(read.graph.outputs[0]).dtype == helper.np_dtype_to_tensor_dtype(want)


def test_simplified_layer_normalization_stands_in_the_domain_of_onnx() -> None:
    case = ([floats(2, 3, 4), floats(4)], {"axis": -1, "epsilon": 1e-6}, 2)
    model, fed = case_model("SimplifiedLayerNormalization", *case, domain="")
    for got, want in zip(to_torch(model)(*map(torch.from_numpy, fed.values())), outputs_of(model, fed), strict=True):
        np.testing.assert_allclose(got.numpy(), want, rtol=1e-5, atol=1e-6)


def test_an_operator_whose_domain_the_model_does_not_import_is_that_of_the_runtime() -> None:
    model, fed = case_model("BiasGelu", *CASES["BiasGelu"][0])
    del model.opset_import[1]
    (want,) = outputs_of(model, fed)
    np.testing.assert_allclose(to_torch(model)(*map(torch.from_numpy, fed.values())), want, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize(
    "op_type, inputs, attributes, message",
    [
        ("BiasGelu", [floats(2)], {}, "1 inputs"),
        ("Gelu", [floats(2)], {"approximate": "tanh"}, "attribute 'approximate'"),
        ("QuickGelu", [floats(2)], {"alpha": 1}, "type INT"),
        ("QLinearAdd", [steps(3), scalar(0.1), U8(3), None, scalar(0.2), U8(9), scalar(0.3), U8(5)], {}, "'B'"),
        ("FusedGemm", [floats(2, 2), floats(2, 2)], {"activation": "Gelu"}, "activation 'Gelu'"),
        ("GatherBlockQuantized", [steps(5, 16), np.array([1]), floats(5, 2)], {"bits": 3, "block_size": 16}, "3 bits"),
    ],
)
def test_what_does_not_fit_an_operator_is_refused(op_type: str, inputs, attributes, message: str) -> None:
    model, fed = case_model(op_type, inputs, attributes, 1)
    with pytest.raises((ModelImportError, NotImplementedError), match=message):
        to_torch(model)(*map(torch.from_numpy, fed.values()))


@pytest.mark.parametrize("to", [onnx.TensorProto.UINT8, onnx.TensorProto.INT4])
def test_a_quantized_value_passes_the_derivative_on_in_range(to: int) -> None:
    nodes = [
        helper.make_node("QuantizeLinear", ["x", "scale", "zero"], ["q"], domain=DOMAIN),
        helper.make_node("DequantizeLinear", ["q", "scale", "zero"], ["y"], domain=DOMAIN),
    ]
    info = [helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, [3]) for name in "xy"]
    constants = [
        helper.make_tensor("scale", onnx.TensorProto.FLOAT, [], [0.5]),
        helper.make_tensor("zero", to, [], [2]),
    ]
    graph = helper.make_graph(nodes, "graph", info[:1], info[1:], constants)
    opsets = [helper.make_opsetid("", 21), helper.make_opsetid(DOMAIN, 1)]
    model = helper.make_model(graph, opset_imports=opsets, ir_version=10)
    x = torch.tensor([0.3, 1.1, 999.0], requires_grad=True)

    y = to_torch(model)(x)
    y.sum().backward()

    np.testing.assert_array_equal(y.detach().numpy(), outputs_of(model, {"x": x.detach().numpy()})[0])
    assert x.grad.tolist() == [1, 1, 0]
