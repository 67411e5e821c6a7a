"""Native operators through torch's own exporter, and torch's ONNX operators through our registry."""

import core_samples_more  # noqa: F401 - adds its samples
import onnxruntime
import pytest
import torch
from core_samples import SAMPLES

from onnxops_core import native
from onnxops_core.interop import torch_onnx_translation_table
from onnxops_core.native import find_native_op
from onnxops_core.symbolic import decode_symbolic_call, is_symbolic_overload, symbolic, symbolic_multi_out

EXPORTED = {
    "Attention-23-causal": 23,
    "Attention-23-grouped": 23,
    "RotaryEmbedding-23-flat, partial, interleaved": 23,
    "RMSNormalization-23-two dimensions, broadcast scale": 23,
    "LayerNormalization-17-last dimension": 18,
    "Gelu-20-tanh": 20,
    "DFT-20-padded": 20,
    "AffineGrid-20-images": 20,
    "DeformConv-22-groups, mask, bias": 22,
    "MultiHeadAttention-1-bias, lengths": 18,
    "SkipSimplifiedLayerNormalization-1-bias": 18,
    "MatMulNBits-1-four bits": 18,
}


class _Model(torch.nn.Module):
    def __init__(self, op, args, kwargs):
        super().__init__()
        self.op, self.template, self.kwargs = op, args, kwargs

    def forward(self, *tensors):
        given = iter(tensors)
        args = [next(given) if isinstance(value, torch.Tensor) else value for value in self.template]
        outputs = self.op(*args, **self.kwargs)
        if isinstance(outputs, torch.Tensor):
            return outputs
        return tuple(outputs)[: self.kwargs.get("num_outputs", len(outputs))]


@pytest.mark.parametrize("label", EXPORTED)
def test_torchs_exporter_writes_the_operators_node(label, tmp_path):
    (sample,) = [s for s in SAMPLES if str(s) == label]
    args, kwargs = sample.make(torch.float32)
    model = _Model(sample.op, args, kwargs)
    tensors = tuple(value for value in args if isinstance(value, torch.Tensor))
    opset = EXPORTED[label]

    program = torch.onnx.export(
        model,
        tensors,
        dynamo=True,
        opset_version=opset,
        custom_translation_table=torch_onnx_translation_table(opset),
        verbose=False,
    )

    assert sample.op_type in [node.op_type for node in program.model.graph]
    if sample.op_type == "DeformConv" and tuple(map(int, onnxruntime.__version__.split(".")[:2])) < (1, 26):
        pytest.skip("ONNX Runtime before 1.26 has no kernel for DeformConv")
    path = tmp_path / "model.onnx"
    program.save(str(path))
    session = onnxruntime.InferenceSession(str(path), providers=["CPUExecutionProvider"])
    feeds = {i.name: value.numpy() for i, value in zip(session.get_inputs(), tensors, strict=True)}
    expected = model(*tensors)
    expected = [expected] if isinstance(expected, torch.Tensor) else expected
    for actual, wanted in zip(session.run(None, feeds), expected, strict=True):
        torch.testing.assert_close(torch.from_numpy(actual), wanted, rtol=1e-4, atol=2e-5)


def test_torchs_exporter_writes_symbolic_nodes():
    class Model(torch.nn.Module):
        def forward(self, x):
            attributes = {"k": 2, "f": [0.5], "s": ["a"], "empty": []}
            y = symbolic("com.example::One", (x, None, x), attributes, dtype=x.dtype, shape=x.shape, version=2)
            return symbolic_multi_out("com.example::Two", (y,), dtypes=(1, 7), shapes=((2,), x.shape), version=2)

    program = torch.onnx.export(
        Model(),
        (torch.ones(3),),
        dynamo=True,
        opset_version=18,
        custom_translation_table=torch_onnx_translation_table(18),
        verbose=False,
        optimize=False,
    )

    one, two = [node for node in program.model.graph if node.domain == "com.example"]
    assert (one.op_type, len(one.inputs), one.inputs[1]) == ("One", 3, None)
    assert {name: list(a.value) if name != "k" else a.value for name, a in one.attributes.items()} == {
        "k": 2,
        "f": [0.5],
        "s": ["a"],
        "empty": [],
    }
    assert (two.op_type, len(two.outputs)) == ("Two", 2)


def test_operators_of_a_later_opset_are_left_out():
    table = torch_onnx_translation_table(23)

    assert torch.ops.onnxops.Attention.opset23 in table
    assert torch.ops.onnxops.Attention.opset24 not in table
    assert torch.ops.onnxops.MatMulNBits.opset1 in table


def test_torchs_own_onnx_operators_are_known():
    class Model(torch.nn.Module):
        def forward(self, x, cos, sin):
            x = torch.onnx.ops.rotary_embedding(x, cos, sin)
            return torch.onnx.ops.attention(x, x, x, is_causal=True)[0]

    inputs = torch.randn(1, 2, 4, 8), torch.randn(1, 4, 4), torch.randn(1, 4, 4)
    program = torch.export.export(Model(), inputs)
    found = [(find_native_op(n.target), n) for n in program.graph.nodes if find_native_op(n.target)]

    assert [op.op_type for op, _ in found] == ["RotaryEmbedding", "Attention"]
    call = found[1][0].onnx_call(found[1][1].args, found[1][1].kwargs)
    assert (call.op_type, call.min_opset, call.attributes) == ("Attention", 23, {"is_causal": 1})
    table = {n.target: op.decomposition for op, n in found}
    lowered = program.run_decompositions(table).module()(*inputs)
    torch.testing.assert_close(lowered, Model()(*inputs))


def test_torchs_own_symbolic_operators_are_read():
    class Model(torch.nn.Module):
        def forward(self, x):
            one = torch.onnx.ops.symbolic(
                "com.example::One", (x, None), {"a": 1, "b": [1.5], "c": "s"}, dtype=x.dtype, shape=x.shape, version=2
            )
            two, _ = torch.onnx.ops.symbolic_multi_out(
                "Two", (one,), {"k": [1, 2]}, dtypes=(1, 7), shapes=((2,), ()), metadata_props={"m": "v"}
            )
            return two

    program = torch.export.export(Model(), (torch.ones(3),))
    calls = [
        decode_symbolic_call(n.target, n.args, n.kwargs) for n in program.graph.nodes if is_symbolic_overload(n.target)
    ]

    assert [(c.domain, c.op_type, c.version) for c in calls] == [("com.example", "One", 2), ("", "Two", None)]
    assert calls[0].attributes == {"a": 1, "b": [1.5], "c": "s"}
    assert (calls[0].inputs[1], calls[0].shapes, calls[0].dtypes) == (None, ((3,),), (1,))
    assert (calls[1].attributes, calls[1].metadata_props) == ({"k": [1, 2]}, {"m": "v"})
    assert (calls[1].dtypes, calls[1].shapes, calls[1].multi_out) == ((1, 7), ((2,), ()), True)


def _attention_calls():
    q, k = torch.randn(2, 4, 5, 8), torch.randn(2, 2, 5, 8)
    flat = torch.randn(2, 5, 32), torch.randn(2, 5, 16)
    yield (q, k, k), {}
    yield (q, k, k), {"is_causal": True, "scale": 0.3}
    yield (q, k, k, torch.rand(5, 5) > 0.3), {}
    yield (q, k, k, torch.randn(2, 1, 5, 5)), {"qk_matmul_output_mode": 0}
    yield (flat[0], flat[1], flat[1]), {"q_num_heads": 4, "kv_num_heads": 2}
    yield (q, k, k, None, k, k), {"softmax_precision": 1}


@pytest.mark.parametrize("call", list(_attention_calls()), ids=range(6))
def test_attention_accepts_the_calls_of_torch_onnx_ops(call):
    args, kwargs = call

    ours, theirs = native.attention(*args, **kwargs), torch.onnx.ops.attention(*args, **kwargs)

    for one, other in zip(ours, theirs, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("kwargs", [{}, {"interleaved": True}, {"rotary_embedding_dim": 4}])
def test_rotary_embedding_accepts_the_calls_of_torch_onnx_ops(kwargs):
    width = kwargs.get("rotary_embedding_dim", 8) // 2
    args = torch.randn(2, 3, 5, 8), torch.randn(9, width), torch.randn(9, width), torch.randint(0, 9, (2, 5))

    torch.testing.assert_close(
        native.rotary_embedding(*args, **kwargs), torch.onnx.ops.rotary_embedding(*args, **kwargs)
    )


def test_a_dtype_that_the_onnx_operator_lacks_is_refused_by_name():
    x, row = torch.randn(1, 2, 3, 4).double(), torch.randn(1, 3, 2).double()

    with pytest.raises(torch.onnx.OnnxExporterError) as refused:
        torch.onnx.export(
            _Model(find_native_op(torch.ops.onnxops.RotaryEmbedding.opset23), (x, row, row), {}),
            (x, row, row),
            dynamo=True,
            opset_version=23,
            custom_translation_table=torch_onnx_translation_table(23),
            verbose=False,
        )

    first = refused.value
    while first.__cause__ is not None:
        first = first.__cause__
    assert isinstance(first, ValueError)
    assert "RotaryEmbedding: ONNX's operator has no torch.float64" in str(first)
