"""ONNX operators that a model calls by name reach the model, or their composed form below their opset."""

from __future__ import annotations

import onnx
import pytest
import torch

import onnx_fx_export
import onnxops_core
from onnx_fx_export import export
from onnxops_core import rms_normalization, rotary_embedding, symbolic, symbolic_multi_out


def op_types(program) -> list[str]:
    return [f"{node.domain}::{node.op_type}".removeprefix("::") for node in program.model.graph]


class Norm(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.scale = torch.nn.Parameter(torch.rand(8))

    def forward(self, x):
        return rms_normalization(x, self.scale, epsilon=1e-6)


@pytest.mark.parametrize(("opset", "fused"), [(23, True), (20, False), (13, False)])
def test_a_native_operator_is_one_node_from_its_opset_on(opset: int, fused: bool) -> None:
    model = Norm()
    program = export(model, (torch.randn(2, 3, 8),), opset_version=opset, dynamic_shapes={"x": {0: "n"}})
    assert ("RMSNormalization" in op_types(program)) is fused
    onnx.checker.check_model(program.model_proto)
    x = torch.randn(5, 3, 8)
    torch.testing.assert_close(program(x), model(x), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("opset", [23, 18])
@pytest.mark.parametrize("causal", [False, True])
def test_native_attention(opset: int, causal: bool) -> None:
    class Attention(torch.nn.Module):
        def forward(self, q, k, v):
            return onnxops_core.attention(q, k, v, is_causal=causal)[0]

    q, k, v = torch.randn(2, 4, 5, 8), torch.randn(2, 2, 6, 8), torch.randn(2, 2, 6, 8)
    program = export(Attention(), (q, k, v), opset_version=opset)
    assert ("Attention" in op_types(program)) is (opset >= 23)
    assert all(len(node.outputs) == 1 for node in program.model.graph if node.op_type == "Attention")
    torch.testing.assert_close(program(q, k, v), Attention()(q, k, v), rtol=1e-4, atol=1e-5)


def test_models_written_with_torch_onnx_ops() -> None:
    class Rotary(torch.nn.Module):
        def forward(self, x, cos, sin, position):
            return torch.onnx.ops.rotary_embedding(x, cos, sin, position)

    args = (torch.randn(2, 3, 4, 8), torch.randn(10, 4), torch.randn(10, 4), torch.arange(4).repeat(2, 1))
    program = export(Rotary(), args, opset_version=23)
    assert op_types(program) == ["RotaryEmbedding"]
    torch.testing.assert_close(program(*args), rotary_embedding(*args), rtol=1e-5, atol=1e-6)


def test_symbolic_operators_become_the_node_they_name() -> None:
    class Custom(torch.nn.Module):
        def forward(self, x):
            y = symbolic(
                "com.example::Scale",
                (x, None),
                {"factor": 2.0, "axes": [0, 1], "mode": "fast", "table": torch.tensor([1.0, 2.0])},
                dtype=x.dtype,
                shape=x.shape,
                version=3,
                metadata_props={"origin": "test"},
            )
            a, b = symbolic_multi_out(
                "com.example::Split", (y,), dtypes=(torch.int64, torch.float32), shapes=((2,), x.shape), version=3
            )
            return a, b + 1

    program = export(Custom(), (torch.randn(2, 3),), dynamic_shapes={"x": {0: "n"}})
    proto = program.model_proto
    assert [f"{node.domain}::{node.op_type}" for node in proto.graph.node][:2] == [
        "com.example::Scale",
        "com.example::Split",
    ]
    attributes = {entry.name: onnx.helper.get_attribute_value(entry) for entry in proto.graph.node[0].attribute}
    assert attributes["factor"] == 2.0
    assert attributes["axes"] == [0, 1]
    assert attributes["mode"] == b"fast"
    assert onnx.numpy_helper.to_array(attributes["table"]).tolist() == [1.0, 2.0]
    assert {entry.domain: entry.version for entry in proto.opset_import} == {"": 20, "com.example": 3}
    assert [output.type.tensor_type.elem_type for output in proto.graph.output] == [7, 1]


def test_torch_onnx_symbolic_becomes_the_node_it_names() -> None:
    class Custom(torch.nn.Module):
        def forward(self, x):
            return torch.onnx.ops.symbolic("com.example::Scale", (x,), {"factor": 2.0}, dtype=x.dtype, shape=x.shape)

    assert op_types(export(Custom(), (torch.randn(2, 3),))) == ["com.example::Scale"]


def test_a_symbolic_onnx_operator_runs() -> None:
    class Custom(torch.nn.Module):
        def forward(self, x):
            if onnxops_core.is_in_onnx_export():
                return symbolic("Celu", (x,), {"alpha": 2.0}, dtype=x.dtype, shape=x.shape)
            return torch.nn.functional.celu(x, 2.0)

    x = torch.randn(2, 3)
    torch.testing.assert_close(export(Custom(), (x,))(x), Custom()(x))


def test_a_symbolic_onnx_operator_above_the_opset_is_refused() -> None:
    class Custom(torch.nn.Module):
        def forward(self, x):
            return symbolic("Gelu", (x,), dtype=x.dtype, shape=x.shape)

    with pytest.raises(onnx_fx_export.ConversionError, match="Gelu"):
        export(Custom(), (torch.randn(2, 3),), opset_version=18)


def test_torch_knows_that_it_is_exported() -> None:
    class Branch(torch.nn.Module):
        def forward(self, x):
            return x + 1 if torch.onnx.is_in_onnx_export() else x - 1

    torch.testing.assert_close(export(Branch(), (torch.zeros(2),))(torch.zeros(2)), torch.ones(2))
