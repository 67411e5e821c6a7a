"""ONNX operators that a model calls by name, through a trace."""

from __future__ import annotations

import pytest
import torch

import onnxops_core
from onnx_ts_legacy import export
from onnx_ts_legacy.errors import UnsupportedOperatorsError


class Attention(torch.nn.Module):
    def forward(self, q):
        return onnxops_core.attention(q, q, q, is_causal=True, num_outputs=1)


class Rotary(torch.nn.Module):
    def forward(self, x, cos, sin):
        return torch.onnx.ops.rotary_embedding(x, cos, sin)


CALLS = {
    "Attention": (Attention(), (torch.randn(1, 2, 3, 4),)),
    "RotaryEmbedding": (Rotary(), (torch.randn(2, 3, 4, 8), torch.randn(2, 4, 4), torch.randn(2, 4, 4))),
}


@pytest.mark.parametrize("op_type", CALLS)
def test_a_native_operator_is_one_node(op_type: str) -> None:
    model, args = CALLS[op_type]
    program = export(model, args, opset_version=24)
    assert [node.op_type for node in program.model.graph] == [op_type]
    torch.testing.assert_close(program(*args), [model(*args)], rtol=1e-4, atol=1e-5)


N = onnxops_core
X, W = torch.randn(2, 6, 8), torch.ones(8) * 2
HEADS = torch.randn(1, 2, 3, 4)


def rotated(x):
    return N.rotary_embedding(x, torch.ones(4, 2), torch.ones(4, 2), torch.arange(3).expand(x.size(0), 3))


# Model, example and the lowest opset that has the node; below it there is a composed form.
COMPOSED = {
    "Attention": (lambda q: N.attention(q, q + 1, q - 1, is_causal=True, num_outputs=1), (HEADS,), 23),
    "RotaryEmbedding": (
        lambda x: N.rotary_embedding(x, torch.ones(4, 2), torch.ones(4, 2), torch.arange(3).expand(x.size(0), 3)),
        (HEADS,),
        23,
    ),
    "RMSNormalization": (lambda x: N.rms_normalization(x, W), (X,), 23),
    "Gelu": (lambda x: N.gelu(x), (X,), 20),
    "Swish": (lambda x: N.swish(x), (X,), 24),
    "Mish": (lambda x: N.mish(x), (X,), 18),
    "HardSwish": (lambda x: N.hard_swish(x), (X,), 14),
    "LayerNormalization": (lambda x: N.layer_normalization(x, W, W)[0], (X,), 17),
    "GroupNormalization": (lambda x: N.group_normalization(x, torch.ones(6), torch.zeros(6), num_groups=3), (X,), 21),
    "AffineGrid": (lambda x: N.affine_grid(x, [2, 1, 3, 4]), (torch.randn(2, 2, 3),), 20),
}


@pytest.mark.parametrize("opset", [9, 13, 17])
@pytest.mark.parametrize("op_type", COMPOSED)
@pytest.mark.parametrize("traced_before", [False, True], ids=["function", "program"])
def test_below_its_opset_it_is_composed(op_type: str, opset: int, traced_before: bool) -> None:
    model, args, since = COMPOSED[op_type]
    given = torch.jit.trace(model, args, check_trace=False) if traced_before else model
    program = export(given, args, opset_version=opset, input_names=["x"], dynamic_axes={"x": {0: "n"}})
    assert (op_type in {node.op_type for node in program.model.graph}) is (opset >= since)
    for x in (args[0], torch.cat([args[0]] * 3)[: 2 if op_type == "AffineGrid" else 3]):
        torch.testing.assert_close(program(x), [model(x)], rtol=1e-4, atol=1e-5)


class Symbolic(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("table", torch.arange(3.0))

    def forward(self, x, y):
        attributes = {"a": 1.5, "n": [1, 2], "s": "p", "names": ["q", "r"], "flag": True, "e": [], "t": self.table}
        made = onnxops_core.symbolic(
            "com.example::Make",
            (x, None, y),
            attributes,
            dtype=x.dtype,
            shape=(x.shape[0], 7),
            version=3,
            metadata_props={"from": "here"},
        )
        first, second = onnxops_core.symbolic_multi_out(
            "com.example::Split", (made,), dtypes=[torch.int64, 10], shapes=[(x.shape[0],), (2, 2)], version=3
        )
        return made, first, second.float() + 1


def test_a_symbolic_call_is_one_node_with_what_it_was_given() -> None:
    program = export(
        Symbolic(), (torch.ones(2, 3), torch.ones(3)), input_names=["x", "y"], dynamic_axes={"x": {0: "n"}}
    )

    make, split, *_ = program.model.graph
    values = {name: attribute.value for name, attribute in make.attributes.items()}
    table = values.pop("t").numpy()
    assert (make.domain, make.op_type, [value and value.name for value in make.inputs]) == (
        "com.example",
        "Make",
        ["x", None, "y"],
    )
    assert {name: list(v) if isinstance(v, tuple) else v for name, v in values.items()} == {
        "a": 1.5,
        "n": [1, 2],
        "s": "p",
        "names": ["q", "r"],
        "flag": 1,
        "e": [],
    }
    assert table.tolist() == [0.0, 1.0, 2.0]
    assert make.metadata_props["from"] == "here"
    assert (split.op_type, [output.dtype.name for output in split.outputs]) == ("Split", ["INT64", "FLOAT16"])
    assert program.model.opset_imports["com.example"] == 3


def test_the_size_of_a_symbolic_call_is_not_fixed_by_the_example() -> None:
    program = export(
        Symbolic(), (torch.ones(2, 3), torch.ones(3)), input_names=["x", "y"], dynamic_axes={"x": {0: "n"}}
    )

    shape = program.model.graph.outputs[0].shape
    assert shape is None or not isinstance(shape[0], int)


class Doubled(torch.nn.Module):
    def forward(self, x):
        return onnxops_core.symbolic("Add", (x, x), dtype=x.dtype, shape=x.shape)


def test_a_symbolic_call_of_an_onnx_operator_runs_at_other_sizes() -> None:
    program = export(Doubled(), (torch.ones(2, 3),), input_names=["x"], dynamic_axes={"x": {0: "n"}})

    x = torch.randn(5, 3)
    assert [node.op_type for node in program.model.graph] == ["Add"]
    torch.testing.assert_close(program(x), [x + x])


class Old(torch.nn.Module):
    def forward(self, x):
        return onnxops_core.symbolic("Gelu", (x,), dtype=x.dtype, shape=x.shape)


def test_a_symbolic_call_that_the_opset_lacks_is_refused_at_the_line_of_the_model() -> None:
    with pytest.raises(UnsupportedOperatorsError, match=r"Gelu.*20(.|\n)*test_native_operators\.py:\d+"):
        export(Old(), (torch.ones(2, 3),), opset_version=18)
