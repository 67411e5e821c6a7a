"""The public functions in captured graphs: dynamic shapes, gradients, state, and the ONNX node of a call."""

import subprocess
import sys

import pytest
import torch
from core_audit import public_functions
from torch.export import Dim

from onnxops_core import native
from onnxops_core.native import ScalarInput, find_native_op


class _Function(torch.nn.Module):
    def __init__(self, function):
        super().__init__()
        self.function = function

    def forward(self, *inputs):
        return self.function(*inputs)


def _exported(function, inputs, dynamic):
    return torch.export.export(_Function(function), inputs, dynamic_shapes=(dynamic,), strict=False)


def _native_nodes(program):
    return [node for node in program.graph.nodes if find_native_op(node.target)]


def _randn(*shape):
    return torch.randn(shape)


_B, _S, _T = Dim("b", max=64), Dim("s", max=4096), Dim("t", max=4096)
_ROWS = ({0: _B, 1: _S},)
DYNAMIC = {
    "attention": (
        lambda q, k, v: native.attention(q, k, v, is_causal=True, num_outputs=1),
        lambda b, s: (_randn(b, 4, s, 8), _randn(b, 2, s, 8), _randn(b, 2, s, 8)),
        ({0: _B, 2: _S}, {0: _B, 2: _S}, {0: _B, 2: _S}),
    ),
    "attention with a past": (
        lambda q, k, v, pk, pv: native.attention(q, k, v, None, pk, pv, is_causal=True, num_outputs=3),
        lambda b, s: (*(_randn(b, 2, 1, 8) for _ in range(3)), _randn(b, 2, s, 8), _randn(b, 2, s, 8)),
        ({0: _B}, {0: _B}, {0: _B}, {0: _B, 2: _S}, {0: _B, 2: _S}),
    ),
    "attention with a mask": (
        lambda q, k, v, m: native.attention(q, k, v, m, q_num_heads=2, kv_num_heads=2),
        lambda b, s: (_randn(b, s, 8), _randn(b, s, 8), _randn(b, s, 8), _randn(b, 1, s, s)),
        ({0: _B, 1: _S}, {0: _B, 1: _S}, {0: _B, 1: _S}, {0: _B, 2: _S, 3: _S}),
    ),
    "attention with lengths and windows": (
        lambda q, k, v, n: native.attention(q, k, v, None, None, None, n, left_window_size=3, num_outputs=1),
        lambda b, s: (_randn(b, 2, 3, 8), _randn(b, 2, s, 8), _randn(b, 2, s, 8), torch.full((b,), s)),
        ({0: _B}, {0: _B, 2: _S}, {0: _B, 2: _S}, {0: _B}),
    ),
    "rotary_embedding": (
        lambda x, c, s, p: native.rotary_embedding(x, c, s, p, num_heads=2),
        lambda b, s: (_randn(b, s, 16), _randn(4096, 4), _randn(4096, 4), torch.arange(s).repeat(b, 1)),
        ({0: _B, 1: _S}, {}, {}, {0: _B, 1: _S}),
    ),
    "rms_normalization": (
        native.rms_normalization,
        lambda b, s: (_randn(b, s, 8), _randn(8)),
        ({0: _B, 1: _S}, {}),
    ),
    "layer_normalization": (
        native.layer_normalization,
        lambda b, s: (_randn(b, s, 8), _randn(8)),
        ({0: _B, 1: _S}, {}),
    ),
    "group_normalization": (
        lambda x, s, b: native.group_normalization(x, s, b, num_groups=2),
        lambda b, s: (_randn(b, 4, s), _randn(4), _randn(4)),
        ({0: _B, 2: _S}, {}, {}),
    ),
    "swiglu": (native.swiglu, lambda b, s: (_randn(b, s), _randn(b, s)), ({0: _B, 1: _S}, {0: _B, 1: _S})),
    "tensor_scatter": (
        native.tensor_scatter,
        lambda b, s: (_randn(b, 2, s, 8), _randn(b, 2, 1, 8), torch.zeros(b, dtype=torch.int64)),
        ({0: _B, 2: _S}, {0: _B}, {0: _B}),
    ),
    "causal_conv_with_state": (
        native.causal_conv_with_state,
        lambda b, s: (_randn(b, 3, s), _randn(3, 1, 4)),
        ({0: _B, 2: _S}, {}),
    ),
    "linear_attention": (
        lambda q, k, v: native.linear_attention(q, k, v, update_rule="linear", q_num_heads=2, kv_num_heads=2),
        lambda b, s: (_randn(b, s, 8), _randn(b, s, 8), _randn(b, s, 8)),
        ({0: _B, 1: _S}, {0: _B, 1: _S}, {0: _B, 1: _S}),
    ),
    "flex_attention": (
        native.flex_attention,
        lambda b, s: (_randn(b, 2, s, 8), _randn(b, 2, s, 8), _randn(b, 2, s, 8)),
        ({0: _B, 2: _S}, {0: _B, 2: _S}, {0: _B, 2: _S}),
    ),
    "dequantize_linear": (
        native.dequantize_linear,
        lambda b, s: (torch.randint(0, 9, (b, s), dtype=torch.uint8), torch.tensor(0.5)),
        ({0: _B, 1: _S}, {}),
    ),
    "grid_sample": (
        native.grid_sample,
        lambda b, s: (_randn(b, 2, s, 5), _randn(b, s, 3, 2)),
        ({0: _B, 2: _S}, {0: _B, 1: _S}),
    ),
    "dft": (native.dft, lambda b, s: (_randn(b, s, 1),), ({0: _B, 1: _S},)),
    "roi_align": (
        lambda x, r, i: native.roi_align(x, r, i, output_height=2),
        lambda b, s: (_randn(2, 3, 6, 5), _randn(s, 4), torch.zeros(s, dtype=torch.int64)),
        ({}, {0: _S}, {0: _S}),
    ),
    "multi_head_attention": (
        lambda q, k, v: native.multi_head_attention(q, k, v, num_heads=2),
        lambda b, s: (_randn(b, s, 8), _randn(b, s, 8), _randn(b, s, 8)),
        ({0: _B, 1: _S}, {0: _B, 1: _S}, {0: _B, 1: _S}),
    ),
    "group_query_attention": (
        lambda q, k, v, n: native.group_query_attention(
            q, k, v, None, None, n, q.shape[1], num_heads=4, kv_num_heads=2
        ),
        lambda b, s: (_randn(b, s, 32), _randn(b, s, 16), _randn(b, s, 16), torch.full((b,), s - 1, dtype=torch.int32)),
        ({0: _B, 1: _S}, {0: _B, 1: _S}, {0: _B, 1: _S}, {0: _B}),
    ),
    "matmul_nbits": (
        lambda a, b, s: native.matmul_nbits(a, b, s, K=32, N=5, block_size=16),
        lambda b, s: (_randn(b, s, 32), torch.randint(0, 256, (5, 2, 8), dtype=torch.uint8), _randn(5, 2)),
        ({0: _B, 1: _S}, {}, {}),
    ),
    "gelu": (lambda x: native.gelu(x, approximate="tanh"), lambda b, s: (_randn(b, s),), _ROWS),
    "swish": (lambda x: native.swish(x, alpha=1.5), lambda b, s: (_randn(b, s),), _ROWS),
    "mish": (native.mish, lambda b, s: (_randn(b, s),), _ROWS),
    "hard_swish": (native.hard_swish, lambda b, s: (_randn(b, s),), _ROWS),
    "cum_prod": (lambda x: native.cum_prod(x, 1, exclusive=True), lambda b, s: (_randn(b, s),), _ROWS),
    "bit_cast": (lambda x: native.bit_cast(x, to=torch.int32), lambda b, s: (_randn(b, s),), _ROWS),
    "quantize_linear": (
        lambda x, scale: native.quantize_linear(x, scale, axis=2, output_dtype=3),
        lambda b, s: (_randn(b, s, 4), _randn(4).abs()),
        ({0: _B, 1: _S}, {}),
    ),
    "instance_normalization": (
        native.instance_normalization,
        lambda b, s: (_randn(b, 3, s), _randn(3), _randn(3)),
        ({0: _B, 2: _S}, {}, {}),
    ),
    "skip_layer_normalization": (
        native.skip_layer_normalization,
        lambda b, s: (_randn(b, s, 8), _randn(b, s, 8), _randn(8)),
        ({0: _B, 1: _S}, {0: _B, 1: _S}, {}),
    ),
    "skip_simplified_layer_normalization": (
        native.skip_simplified_layer_normalization,
        lambda b, s: (_randn(b, s, 8), _randn(b, s, 8), _randn(8)),
        ({0: _B, 1: _S}, {0: _B, 1: _S}, {}),
    ),
    "stft": (
        lambda x, window: native.stft(x, 2, window),
        lambda b, s: (_randn(b, s + 4, 1), _randn(4)),
        ({0: _B, 1: Dim("long", min=8, max=4096)}, {}),
    ),
    "affine_grid": (
        lambda theta: native.affine_grid(theta, [theta.shape[0], 1, 4, 5]),
        lambda b, s: (_randn(b, 2, 3),),
        ({0: _B},),
    ),
    "deform_conv": (
        lambda x, w, offset: native.deform_conv(x, w, offset, pads=[1, 1]),
        lambda b, s: (_randn(b, 2, s), _randn(4, 2, 3), _randn(b, 3, s)),
        ({0: _B, 2: _S}, {}, {0: _B, 2: _S}),
    ),
    "non_max_suppression": (
        lambda boxes, scores: native.non_max_suppression(boxes, scores, 3, 0.5),
        lambda b, s: (_randn(b, s, 4), _randn(b, 2, s)),
        ({0: _B, 1: _S}, {0: _B, 2: _S}),
    ),
}


def test_every_typed_function_is_exported_with_dynamic_sizes():
    assert {name.split(" with")[0] for name in DYNAMIC} == set(public_functions())


@pytest.mark.parametrize("name", DYNAMIC)
def test_dynamic_sizes_stay_dynamic_and_other_sizes_are_right(name):
    function, inputs, dynamic = DYNAMIC[name]
    program = _exported(function, inputs(3, 6), dynamic)
    others = inputs(2, 9)

    result = program.module()(*others)

    torch.testing.assert_close(result, function(*others))
    assert len(_native_nodes(program)) == 1


# A recurrence over a dynamic length, and a choice among a dynamic number of boxes, have no decomposition into a fixed
# number of operators.
_UNBOUNDED = ("linear_attention", "non_max_suppression")


@pytest.mark.parametrize("name", [name for name in DYNAMIC if name not in _UNBOUNDED])
def test_decomposition_is_exportable_with_dynamic_sizes(name):
    # What an exporter does below the operator's opset: it captures the decomposition in the operator's place.
    function, inputs, dynamic = DYNAMIC[name]
    program = _exported(function, inputs(3, 6), dynamic)
    (node,) = _native_nodes(program)
    others = inputs(2, 9)

    lowered = program.run_decompositions({node.target: find_native_op(node.target).decomposition})

    assert not _native_nodes(lowered)
    torch.testing.assert_close(lowered.module()(*others), function(*others))


_COMPILED = ("attention", "attention with a past", "rotary_embedding", "rms_normalization", "tensor_scatter")


@pytest.mark.parametrize(
    "name", [name if name in _COMPILED else pytest.param(name, marks=pytest.mark.wide) for name in DYNAMIC]
)
def test_public_function_compiles_for_all_sizes_at_once(name):
    function, inputs, _ = DYNAMIC[name]
    torch.compiler.reset()
    compiled = torch.compile(function, backend="aot_eager", fullgraph=True, dynamic=True)

    for sizes in ((3, 6), (2, 9)):
        given = inputs(*sizes)
        torch.testing.assert_close(compiled(*given), function(*given))


@pytest.mark.parametrize("name", [name for name in DYNAMIC if name != "roi_align"])
def test_empty_batch_gives_an_empty_batch(name):
    function, inputs, _ = DYNAMIC[name]

    outputs, full = function(*inputs(0, 6)), function(*inputs(2, 6))

    single = isinstance(full, torch.Tensor)
    for one, other in zip([outputs] if single else outputs, [full] if single else full, strict=True):
        expected = (0, *other.shape[1:]) if other.numel() else tuple(other.shape)
        assert (tuple(one.shape), one.dtype) == (expected, other.dtype)


@pytest.mark.parametrize(
    ("size", "attributes"),
    [(1, {}), (1, {"onesided": True}), (2, {"inverse": True}), (2, {"inverse": True, "onesided": True})],
)
def test_transform_of_an_empty_batch_has_the_size_of_any_other(size, attributes):
    empty, full = native.dft(_randn(0, 6, size), **attributes), native.dft(_randn(2, 6, size), **attributes)

    assert empty.shape == (0, *full.shape[1:])


def test_short_time_transform_of_an_empty_batch_has_the_size_of_any_other():
    empty, full = native.stft(_randn(0, 20, 1), 3, _randn(8)), native.stft(_randn(2, 20, 1), 3, _randn(8))

    assert empty.shape == (0, *full.shape[1:])


def test_no_regions_give_no_pools():
    result = native.roi_align(_randn(2, 3, 6, 5), _randn(0, 4), torch.zeros(0, dtype=torch.int64), output_height=2)

    assert result.shape == (0, 3, 2, 1)


def test_no_keys_give_zeros():
    y = native.attention(_randn(2, 4, 3, 8), _randn(2, 2, 0, 8), _randn(2, 2, 0, 5), num_outputs=1)

    assert torch.equal(y, torch.zeros(2, 4, 3, 5))


def test_no_queries_give_no_rows():
    y, key, value, qk = native.attention(_randn(2, 4, 0, 8), _randn(2, 2, 6, 8), _randn(2, 2, 6, 5), softcap=1.0)

    assert [tuple(t.shape) for t in (y, key, value, qk)] == [(2, 4, 0, 5), (2, 2, 6, 8), (2, 2, 6, 5), (2, 4, 0, 6)]


def test_model_trains_through_the_operators():
    torch.manual_seed(0)

    class Block(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.project = torch.nn.Linear(16, 48)
            self.scale = torch.nn.Parameter(torch.ones(16))

        def forward(self, x):
            q, k, v = self.project(native.rms_normalization(x, self.scale)).chunk(3, -1)
            y = native.attention(q, k, v, is_causal=True, q_num_heads=2, kv_num_heads=2, num_outputs=1)
            return native.gelu(y)

    block = Block()
    x, target = torch.randn(4, 6, 16), torch.randn(4, 6, 16)
    optimizer = torch.optim.Adam(block.parameters(), 1e-2)
    losses = []
    for _ in range(20):
        optimizer.zero_grad()
        loss = torch.nn.functional.mse_loss(block(x), target)
        loss.backward()
        optimizer.step()
        losses.append(float(loss))

    assert losses[-1] < 0.8 * losses[0]
    assert all(parameter.grad is not None for parameter in block.parameters())


def test_parameters_do_not_hide_the_operator_from_export():
    class Model(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.scale = torch.nn.Parameter(torch.ones(8))

        def forward(self, x):
            return native.rms_normalization(x, self.scale)

    program = torch.export.export(Model(), (torch.randn(2, 8),))

    assert len(_native_nodes(program)) == 1
    assert len(_native_nodes(program.run_decompositions({}))) == 1


@pytest.mark.parametrize("strict", [False, True])
def test_cache_that_is_written_in_place_becomes_a_mutated_buffer(strict):
    class Cache(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.register_buffer("keys", torch.zeros(1, 2, 8, 4))

        def forward(self, new, at):
            return native.tensor_scatter_(self.keys, new, at) * 2

    new, at = torch.ones(1, 2, 1, 4), torch.tensor([3])
    program = torch.export.export(Cache(), (new, at), strict=strict).run_decompositions({})

    eager = Cache()
    expected = eager(new, at)
    module = program.module()
    torch.testing.assert_close(module(new, at), expected)
    torch.testing.assert_close(dict(module.named_buffers())["keys"], eager.keys)
    assert list(program.graph_signature.buffers_to_mutate.values()) == ["keys"]
    assert [node.target for node in _native_nodes(program)] == [torch.ops.onnxops.TensorScatter.opset24]


def test_in_place_write_changes_the_cache_and_returns_it():
    cache = torch.zeros(2, 3, 4)

    result = native.tensor_scatter_(cache, torch.ones(2, 2, 4), torch.tensor([2, 0]), mode="circular")

    assert result is cache
    assert cache[:, :, 0].tolist() == [[1, 0, 1], [1, 1, 0]]


def test_numbers_that_are_inputs_in_onnx_are_marked_as_such():
    op = find_native_op(torch.ops.onnxops.CumProd.opset26)

    call = op.onnx_call((torch.ones(2, 3), 1), {"reverse": True})

    assert call.inputs[1] == ScalarInput(1, 7)
    assert call.attributes == {"reverse": 1}
    assert (call.domain, call.op_type, call.min_opset, call.outputs) == ("", "CumProd", 26, (0,))


def test_absent_inputs_between_given_ones_stay_in_place():
    op = find_native_op(torch.ops.onnxops.Attention.opset24)
    q, lengths = torch.ones(1, 1, 2, 4), torch.tensor([2])

    call = op.onnx_call((q, q, q, None, None, None, lengths), {"num_outputs": 1, "is_causal": True, "scale": None})

    assert [value is not None for value in call.inputs] == [True, True, True, False, False, False, True]
    assert call.attributes == {"is_causal": 1}


@pytest.mark.parametrize(
    ("kwargs", "opset"),
    [({}, 21), ({"precision": 1}, 23), ({"output_dtype": 25}, 25), ({"output_dtype": 28}, 28)],
)
def test_lowest_opset_depends_on_the_call(kwargs, opset):
    op = find_native_op(torch.ops.onnxops.QuantizeLinear.opset21)

    assert op.onnx_call((torch.ones(2), torch.tensor(1.0)), kwargs).min_opset == opset


@pytest.mark.parametrize(
    ("kwargs", "overload"),
    [({}, "opset23"), ({"nonpad_kv_seqlen": torch.tensor([3])}, "opset24"), ({"left_window_size": 1}, "opset25")],
)
def test_attention_takes_the_oldest_version_that_has_the_arguments(kwargs, overload):
    q = torch.randn(1, 2, 3, 4)

    program = torch.export.export(_Function(lambda q: native.attention(q, q, q, **kwargs, num_outputs=1)), (q,))

    assert [str(node.target) for node in _native_nodes(program)] == [f"onnxops.Attention.{overload}"]


@pytest.mark.parametrize("grad", [False, True])
def test_compiled_code_keeps_to_the_dtypes_under_autocast(grad):
    def function(q, weight):
        with torch.autocast("cpu", dtype=torch.bfloat16):
            y = native.attention(q, q, q, is_causal=True, num_outputs=1)
            return y, torch.nn.functional.linear(y, weight)

    q, weight = _randn(1, 2, 5, 8).requires_grad_(grad), _randn(3, 8)
    torch.compiler.reset()
    y, projected = torch.compile(function, backend="aot_eager", fullgraph=True)(q, weight)

    assert (y.dtype, projected.dtype) == (torch.float32, torch.bfloat16)
    torch.testing.assert_close(y, native.attention(q, q, q, is_causal=True, num_outputs=1))


def test_scripted_trace_records_the_operator():
    traced = torch.jit.trace(lambda x: native.swish(x, alpha=2.0), (torch.ones(3),), check_trace=False)

    assert "onnxops::Swish" in str(traced.graph)


def test_package_imports_in_little_time_and_without_compilers():
    code = (
        "import time, torch; start = time.process_time(); import onnxops_core, onnxops_core.native, sys;"
        "print(time.process_time() - start);"
        "print([m for m in ('torch._dynamo', 'torch._inductor', 'triton', 'onnx', 'sympy') if m in sys.modules"
        " and m not in before])"
    )
    code = code.replace("start = ", "import sys; before = set(sys.modules); start = ", 1)

    seconds, loaded = min(
        subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.splitlines()
        for _ in range(2)
    )

    assert float(seconds) < 0.2
    assert loaded == "[]"
