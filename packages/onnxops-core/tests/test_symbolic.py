"""symbolic and symbolic_multi_out: results, encoding, errors, capture."""

import json
import math

import pytest
import torch

import onnxops_core
from onnxops_core import symbolic, symbolic_multi_out
from onnxops_core.symbolic import decode_symbolic_call, is_symbolic_overload


def _captured_call(function, *args, dynamic_shapes=None):
    class Model(torch.nn.Module):
        def forward(self, *inputs):
            return function(*inputs)

    program = torch.export.export(Model(), args, dynamic_shapes=dynamic_shapes, strict=False)
    (node,) = [n for n in program.graph.nodes if is_symbolic_overload(n.target)]
    return node, decode_symbolic_call(node.target, node.args, node.kwargs)


def test_result_has_the_stated_dtype_and_shape():
    result = symbolic("com.example::Op", (torch.ones(2),), dtype=torch.float16, shape=(3, 0, 2))

    assert (result.dtype, result.shape) == (torch.float16, (3, 0, 2))


def test_dtype_may_be_an_onnx_integer():
    assert symbolic("Op", (), dtype=7, shape=()).dtype is torch.int64


def test_result_lies_on_the_device_of_the_first_tensor_input():
    result = symbolic("Op", (None, torch.ones(2, device="meta")), dtype=1, shape=(4,))

    assert result.device.type == "meta"


def test_multi_out_returns_one_tensor_per_output():
    results = symbolic_multi_out(
        "com.example::Op", (torch.ones(2), None), dtypes=(torch.bool, 1, 11), shapes=((2,), (), (0, 5))
    )

    assert [(r.dtype, tuple(r.shape)) for r in results] == [
        (torch.bool, (2,)),
        (torch.float32, ()),
        (torch.float64, (0, 5)),
    ]


def test_attributes_survive_the_graph():
    attrs = {
        "i": 3,
        "negative": -(2**63),
        "flag": True,
        "f": 0.1,
        "huge": math.inf,
        "s": "text with 'quotes' and é",
        "ints": [1, 2],
        "flags": (True, False),
        "floats": [1, 2.5],
        "strings": ["a", ""],
        "empty": [],
        "one": [7],
    }

    _, call = _captured_call(lambda x: symbolic("d::Op", (x,), attrs, dtype=1, shape=(1,)), torch.ones(2))

    assert call.attributes == attrs | {"flag": 1, "flags": [1, 0], "floats": [1.0, 2.5]}
    assert [type(v) for v in call.attributes["floats"]] == [float, float]
    assert type(call.attributes["flag"]) is int


def test_name_version_and_metadata_survive_the_graph():
    node, call = _captured_call(
        lambda x: symbolic(
            "com.example::Op",
            (x, None, x),
            dtype=torch.bfloat16,
            shape=(4,),
            version=3,
            metadata_props={"k": "v"},
        ),
        torch.ones(2),
    )

    assert (call.domain, call.op_type, call.version) == ("com.example", "Op", 3)
    assert call.metadata_props == {"k": "v"}
    assert call.inputs == (node.args[0][0], None, node.args[0][0])
    assert (call.dtypes, call.shapes, call.multi_out) == ((16,), ((4,),), False)


def test_onnx_domain_may_be_written_out():
    _, call = _captured_call(lambda x: symbolic("ai.onnx::Relu", (x,), dtype=1, shape=(2,)), torch.ones(2))

    assert (call.domain, call.op_type, call.version) == ("", "Relu", None)


def test_outputs_of_several_ranks_survive_the_graph():
    _, call = _captured_call(
        lambda x: symbolic_multi_out("d::Op", (x,), dtypes=(1, 7, 9), shapes=((2, 3), (), (4,)))[0],
        torch.ones(2),
    )

    assert (call.dtypes, call.shapes, call.multi_out) == ((1, 7, 9), ((2, 3), (), (4,)), True)


def test_tensor_attribute_reaches_the_graph_as_a_constant():
    class Model(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.register_buffer("table", torch.arange(3.0))

        def forward(self, x):
            return symbolic("d::Op", (x,), {"table": self.table, "k": 1}, dtype=1, shape=(1,))

    program = torch.export.export(Model(), (torch.ones(2),))
    (node,) = [n for n in program.graph.nodes if is_symbolic_overload(n.target)]
    call = decode_symbolic_call(node.target, node.args, node.kwargs)

    name = program.graph_signature.inputs_to_buffers[call.attributes["table"].name]
    assert program.state_dict[name].tolist() == [0.0, 1.0, 2.0]
    assert call.attributes["k"] == 1


def test_dynamic_shape_stays_dynamic():
    node, _ = _captured_call(
        lambda x: symbolic("d::Op", (x,), dtype=1, shape=(x.shape[0] * 2, 5)),
        torch.ones(3, 2),
        dynamic_shapes=(({0: torch.export.Dim("n")},),),
    )

    rows = node.meta["val"].shape[0]
    assert isinstance(rows, torch.SymInt)
    assert str(rows.node.expr).startswith("2*")


def test_compiles_without_graph_breaks():
    @torch.compile(backend="eager", fullgraph=True)
    def function(x):
        y = symbolic("d::Op", (x,), {"a": [1.5], "b": "s", "c": 2}, dtype=x.dtype, shape=x.shape)
        z = symbolic_multi_out("d::Two", (x, None), dtypes=[1], shapes=[x.shape])
        return y + 1, z[0]

    y, z = function(torch.ones(4))

    assert (y.tolist(), z.tolist()) == ([1.0] * 4, [0.0] * 4)


def test_operators_pass_opcheck():
    encoded = (["a"], ["i"], [1], [4], [], [], [], ["k"], ["v"])
    x = torch.ones(2)

    torch.library.opcheck(torch.ops.onnxops_symbolic.call.default, ([x, None], "d", "Op", 1, 1, [2, 3], *encoded))
    torch.library.opcheck(
        torch.ops.onnxops_symbolic.call_multi_out.default,
        ([x], "d", "Op", None, [1, 7], [2, 3, 4], [2, 1], *encoded),
    )


@pytest.mark.parametrize("name", ["", "::Op", "domain::", "a::b::C", "d::Not an op", "3D", "my domain::Op"])
def test_malformed_name_is_refused(name):
    with pytest.raises(ValueError, match="malformed"):
        symbolic(name, (), dtype=1, shape=())


@pytest.mark.parametrize("value", [None, {}, frozenset(), 1j, [1, "a"], [[1]], [None]], ids=repr)
def test_unsupported_attribute_is_refused_by_name(value):
    with pytest.raises(ValueError, match="'bad'"):
        symbolic("d::Op", (), {"bad": value}, dtype=1, shape=())


def test_lengths_that_differ_are_refused():
    with pytest.raises(ValueError, match=r"2 dtypes but 1 shapes"):
        symbolic_multi_out("d::Op", (), dtypes=(1, 1), shapes=((2,),))


def test_input_that_is_no_tensor_is_refused():
    with pytest.raises(ValueError, match="input 1 is a float"):
        symbolic("d::Op", (torch.ones(1), 2.0), dtype=1, shape=())


def test_dtype_that_torch_lacks_is_refused():
    with pytest.raises(ValueError, match="STRING"):
        symbolic("d::Op", (), dtype=8, shape=())


def test_metadata_that_is_no_text_is_refused():
    with pytest.raises(ValueError, match="metadata_props"):
        symbolic("d::Op", (), dtype=1, shape=(), metadata_props={"k": 1})


def test_other_operators_cannot_be_decoded():
    with pytest.raises(ValueError, match="not a symbolic ONNX operator"):
        decode_symbolic_call(torch.ops.aten.relu.default, ())


def test_export_branch_with_a_symbolic_operator_is_captured():
    class Model(torch.nn.Module):
        def forward(self, x):
            if onnxops_core.is_in_onnx_export():
                return symbolic("d::Op", (x,), dtype=x.dtype, shape=x.shape) + 1
            return x

    with onnxops_core.onnx_export():
        program = torch.export.export(Model(), (torch.ones(2),))

    assert any(is_symbolic_overload(node.target) for node in program.graph.nodes)


class _Traced(torch.nn.Module):
    def forward(self, x):
        made = symbolic("a::Op", (None, x), {"f": 0.1, "t": torch.ones(2)}, dtype=torch.int32, shape=(x.shape[0], 4))
        return symbolic_multi_out("a::Two", (made,), {"s": ["é"]}, dtypes=[1, 7], shapes=[(3,), (1, 2)])


def test_trace_records_a_call_and_its_results():
    x = torch.ones(2, 3)

    traced = torch.jit.trace(_Traced(), (x,))

    assert [node.kind() for node in traced.graph.nodes() if "symbolic" in node.kind()] == [
        "onnxops_symbolic::call",
        "onnxops_symbolic::call_multi_out",
    ]
    for result, expected in zip(traced(x), _Traced()(x), strict=True):
        torch.testing.assert_close(result, expected)


def test_traced_form_is_read_back_as_the_plain_one():
    call = {"domain": "a", "op_type": "Op", "version": 2, "dtype": 1, "given": [False, True]}
    call |= {"attr_names": ["f", "n"], "attr_kinds": ["f", "is"], "attr_lengths": [1, 2], "attr_ints": [3, 4]}
    call |= {"attr_floats": [0.1], "attr_strings": [], "metadata_keys": ["k"], "metadata_values": ["v"]}

    read = decode_symbolic_call(torch.ops.onnxops_symbolic.call.traced, ("x", [], ["like"], json.dumps(call)))

    assert (read.inputs, read.attributes) == ((None, "x"), {"f": 0.1, "n": [3, 4]})
    assert (read.domain, read.op_type, read.version, read.dtypes, read.shapes) == ("a", "Op", 2, (1,), None)
    assert read.metadata_props == {"k": "v"}
