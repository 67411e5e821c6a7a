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


@pytest.mark.parametrize("op_type", CALLS)
def test_below_its_opset_it_is_refused_by_name(op_type: str) -> None:
    model, args = CALLS[op_type]
    with pytest.raises(UnsupportedOperatorsError, match=rf"{op_type}.*the lowest opset that works is 23"):
        export(model, args, opset_version=18)


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
