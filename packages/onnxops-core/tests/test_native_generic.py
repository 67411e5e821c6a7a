"""What holds for every native operator, checked on the calls of core_samples.

The yardstick is the operator's reference (checked against ONNX's own cases and ONNX Runtime elsewhere) or
torch itself.
"""

import core_samples_more  # noqa: F401 - adds its samples
import pytest
import torch
from core_rotated import rotated_heads
from core_samples import SAMPLES
from core_schemas import newest_schema, schema_at
from torch._subclasses.fake_tensor import FakeTensorMode

from onnxops_core.native import dequantize_linear, find_native_op, native_ops

TOLERANCE = {torch.float16: 2e-3, torch.bfloat16: 1.6e-2, torch.float32: 2e-5, torch.float64: 1e-10}
EXACT = 0.0

_each = pytest.mark.parametrize("sample", SAMPLES, ids=str)
# Tracing takes long: one call of each operator by default, all of them in the wide session.
_FIRST = [
    next(s for s in SAMPLES if (s.op_type, s.version) == key) for key in {(s.op_type, s.version) for s in SAMPLES}
]


def _traced(samples):
    marked = [s if s in _FIRST else pytest.param(s, marks=pytest.mark.wide) for s in samples]
    return pytest.mark.parametrize("sample", marked, ids=str)


# What the slower compiler is tried with.
_INDUCTOR = ("Attention", "RotaryEmbedding", "RMSNormalization", "TensorScatter", "GroupQueryAttention")
_differentiable = pytest.mark.parametrize("sample", [s for s in SAMPLES if s.differentiable], ids=str)


def _outputs(result):
    return [result] if isinstance(result, torch.Tensor) else list(result)


def _assert_equal(actual, expected, dtype):
    for one, other in zip(_outputs(actual), _outputs(expected), strict=True):
        assert one.dtype == other.dtype
        tolerance = TOLERANCE.get(dtype, EXACT) if one.dtype in TOLERANCE else EXACT
        torch.testing.assert_close(one, other, rtol=tolerance, atol=tolerance, equal_nan=True)


_COLUMNS = {
    "gradients": lambda s: s.differentiable,
    "vmap": lambda s: s.vmap,
    "opcheck": lambda s: s.opcheck,
    "halves": lambda s: {torch.float16, torch.bfloat16} <= {*s.dtypes},
    "float64": lambda s: torch.float64 in s.dtypes,
}
# Where no sample of an operator takes part in a column, and why.
_EXEMPT = {
    ("BitCast", "gradients"): "bits have none",
    ("BitCast", "halves"): "bits are not rounded",
    ("BitCast", "float64"): "bits are not rounded",
    ("QuantizeLinear", "gradients"): "the outputs are integers",
    ("QuantizeLinear", "halves"): "ONNX divides in the scale's dtype, a rounding of its own",
    ("QuantizeLinear", "float64"): "no dtype of ONNX's constraint",
    ("DequantizeLinear", "gradients"): "ONNX has no float64 scale, in which they are compared; see below",
    ("DequantizeLinear", "float64"): "no dtype of ONNX's constraint",
    ("NonMaxSuppression", "gradients"): "the outputs are indices",
    ("NonMaxSuppression", "vmap"): "how many boxes are kept differs between elements",
    ("NonMaxSuppression", "halves"): "no dtype of ONNX's constraint",
    ("NonMaxSuppression", "float64"): "no dtype of ONNX's constraint",
}


def test_every_operator_takes_part_in_every_column():
    parts = {(s.op_type, column) for s in SAMPLES for column, takes_part in _COLUMNS.items() if takes_part(s)}

    assert {(s.op_type, column) for s in SAMPLES for column in _COLUMNS} - parts == set(_EXEMPT)


def test_gradient_of_a_quantization_scale_is_torchs():
    x, zero = torch.tensor([[3, -4], [7, 1]], dtype=torch.int8), torch.tensor([1, -2], dtype=torch.int8)
    scale = torch.tensor([0.5, 2.0], requires_grad=True)
    weights = torch.tensor([[1.0, 2.0], [3.0, 4.0]])

    (dequantize_linear(x, scale, zero) * weights).sum().backward()

    torch.testing.assert_close(scale.grad, ((x.float() - zero.float()) * weights).sum(0))


def test_every_operator_has_a_sample():
    assert {(s.op_type, s.version) for s in SAMPLES} == {(op.op_type, op.since_version) for op in native_ops().values()}


@_each
def test_kernel_equals_reference_in_every_dtype(sample):
    for dtype in sample.dtypes:
        args, kwargs = sample.make(dtype)
        _assert_equal(sample.op(*args, **kwargs), sample.op.reference(*args, **kwargs), dtype)


def _exact(op, dtype, args, kwargs):
    """The reference in float64, with nothing rounded but what the operator itself holds in a half precision cache."""
    wide = [a.double() if isinstance(a, torch.Tensor) and a.dtype == dtype else a for a in args]
    if not kwargs.get("do_rotary"):
        return op.reference(*wide, **kwargs)
    # The cache holds rotated keys: they are rotated and rounded here, the rest sees them as they are.
    query, key, value = rotated_heads(wide, kwargs)
    query, key = query.to(dtype).double(), key.to(dtype).double()
    rest = [*wide[3:7], None, None, None, *wide[10:12]]
    return op.reference(query, key, value, *rest, **{**kwargs, "do_rotary": False})


@_each
def test_half_precision_is_rounded_once(sample):
    for dtype in (torch.float16, torch.bfloat16):
        if dtype not in sample.dtypes:
            continue
        args, kwargs = sample.make(dtype)
        exact = _outputs(_exact(sample.op, dtype, args, kwargs))
        for one, other in zip(_outputs(sample.op(*args, **kwargs)), exact, strict=True):
            bound = torch.finfo(dtype).eps if one.is_floating_point() else 0
            torch.testing.assert_close(one.double(), other.double(), rtol=bound, atol=bound, equal_nan=True)


@_each
def test_dispatcher_and_direct_call_agree(sample):
    dtype = sample.usual_dtype
    args, kwargs = sample.make(dtype)

    _assert_equal(sample.op.overload(*args, **kwargs), sample.op(*args, **kwargs), dtype)


@_each
def test_outputs_are_contiguous_and_new(sample):
    args, kwargs = sample.make(sample.usual_dtype)

    outputs = _outputs(sample.op(*args, **kwargs))

    storages = {a.untyped_storage().data_ptr() for a in args if isinstance(a, torch.Tensor)}
    assert all(output.is_contiguous() for output in outputs)
    assert all(output.numel() == 0 or output.untyped_storage().data_ptr() not in storages for output in outputs)


@_each
def test_strided_inputs_give_the_same(sample):
    dtype = sample.usual_dtype
    args, kwargs = sample.make(dtype)
    strided = [
        a.unsqueeze(-1).expand(*a.shape, 2).clone().select(-1, 0) if isinstance(a, torch.Tensor) else a for a in args
    ]

    _assert_equal(sample.op(*strided, **kwargs), sample.op(*args, **kwargs), dtype)


@pytest.mark.parametrize("grad", [False, True])
@_each
def test_autocast_changes_nothing(sample, grad):
    dtype = sample.usual_dtype
    args, kwargs = sample.make(dtype)
    if grad and sample.differentiable:
        args = tuple(a.requires_grad_() if isinstance(a, torch.Tensor) and a.is_floating_point() else a for a in args)

    with torch.autocast("cpu", dtype=torch.bfloat16):
        cast = sample.op(*args, **kwargs)

    _assert_equal(cast, sample.op(*args, **kwargs), dtype)


@pytest.mark.parametrize("sample", [s for s in SAMPLES if s.op_type != "NonMaxSuppression"], ids=str)
def test_autocast_changes_no_dtype_in_fake_mode(sample):
    args, kwargs = sample.make(sample.usual_dtype)

    with FakeTensorMode(allow_non_fake_inputs=True) as mode, torch.autocast("cpu", dtype=torch.bfloat16):
        fakes = sample.op(*(mode.from_tensor(a) if isinstance(a, torch.Tensor) else a for a in args), **kwargs)

    assert [o.dtype for o in _outputs(fakes)] == [o.dtype for o in _outputs(sample.op(*args, **kwargs))]


@_traced([s for s in SAMPLES if s.opcheck])
def test_opcheck(sample):
    args, kwargs = sample.make(sample.usual_dtype)
    if sample.differentiable:
        args = tuple(a.requires_grad_() if isinstance(a, torch.Tensor) and a.is_floating_point() else a for a in args)

    torch.library.opcheck(sample.op.overload, args, kwargs)


@pytest.mark.parametrize("fast", [True, pytest.param(False, marks=pytest.mark.wide)], ids=["projected", "whole"])
@_differentiable
def test_gradients_are_exact_in_both_modes(sample, fast):
    args, kwargs = sample.make(torch.float64)
    places = [i for i, a in enumerate(args) if isinstance(a, torch.Tensor) and a.is_floating_point()]

    def function(*tensors):
        full = list(args)
        for place, tensor in zip(places, tensors, strict=True):
            full[place] = tensor
        outputs = _outputs(sample.op(*full, **kwargs))
        return tuple(o for o in outputs if o.dtype == torch.float64 and o.numel())

    tensors = [args[i].clone().requires_grad_() for i in places]

    assert torch.autograd.gradcheck(function, tensors, check_forward_ad=True, fast_mode=fast)


@_differentiable
def test_gradients_of_all_outputs_are_the_references(sample):
    # Beside gradcheck, which has no use for outputs in less than float64.
    args, kwargs = sample.make(torch.float64)
    places = [i for i, a in enumerate(args) if isinstance(a, torch.Tensor) and a.is_floating_point()]

    def total(op):
        def function(*tensors):
            full = list(args)
            for place, tensor in zip(places, tensors, strict=True):
                full[place] = tensor
            return sum(o.double().sin().sum() for o in _outputs(op(*full, **kwargs)) if o.is_floating_point())

        return function

    tensors = tuple(args[i] for i in places)
    numbers = tuple(range(len(places)))
    tangents = tuple(torch.ones_like(tensor) for tensor in tensors)
    op, reference = total(sample.op), total(sample.op.reference)

    backward = torch.func.grad(op, numbers)(*tensors)
    _, forward = torch.func.jvp(op, tensors, tangents)

    expected = torch.func.grad(reference, numbers)(*tensors)
    # Statistics in float32 are rounded once here and there.
    torch.testing.assert_close(backward, expected, rtol=1e-6, atol=1e-6)
    torch.testing.assert_close(forward, torch.func.jvp(reference, tensors, tangents)[1], rtol=1e-6, atol=1e-6)


@pytest.fixture
def _no_loop_of_vmap():
    """Makes vmap fail where it would run an operator once per element for want of a batching rule."""
    torch._C._functorch._set_vmap_fallback_enabled(False)
    yield
    torch._C._functorch._set_vmap_fallback_enabled(True)


@pytest.mark.usefixtures("_no_loop_of_vmap")
@pytest.mark.parametrize("sample", [s for s in SAMPLES if s.vmap], ids=str)
def test_vmap_is_batched_and_equals_a_loop(sample):
    dtype = sample.usual_dtype
    calls = [sample.make(dtype)[0] for _ in range(3)]
    kwargs = sample.make(dtype)[1]
    mapped = [
        isinstance(a, torch.Tensor)
        and i not in sample.unbatched
        and (a.is_floating_point() or not sample.differentiable)
        for i, a in enumerate(calls[0])
    ]
    args = [torch.stack([c[i] for c in calls]) if m else calls[0][i] for i, m in enumerate(mapped)]

    result = torch.vmap(lambda *a: sample.op(*a, **kwargs), in_dims=tuple(0 if m else None for m in mapped))(*args)

    loop = [_outputs(sample.op(*(c[i] if m else calls[0][i] for i, m in enumerate(mapped)), **kwargs)) for c in calls]
    _assert_equal(result, [torch.stack(outputs) for outputs in zip(*loop, strict=True)], dtype)


@_traced(SAMPLES)
def test_compiles_without_graph_breaks(sample):
    dtype = sample.usual_dtype
    args, kwargs = sample.make(dtype)
    torch.compiler.reset()

    compiled = torch.compile(lambda *a: sample.op(*a, **kwargs), backend="aot_eager", fullgraph=True)

    _assert_equal(compiled(*args), sample.op(*args, **kwargs), dtype)


@pytest.mark.wide
@pytest.mark.parametrize("sample", [s for s in _FIRST if s.op_type in _INDUCTOR], ids=str)
def test_inductor_compiles_the_operator_among_others(sample):
    dtype = sample.usual_dtype
    args, kwargs = sample.make(dtype)
    torch.compiler.reset()

    compiled = torch.compile(lambda *a: [2 * o for o in _outputs(sample.op(*a, **kwargs))], fullgraph=True)

    _assert_equal(compiled(*args), [2 * o for o in _outputs(sample.op(*args, **kwargs))], dtype)


@_traced(SAMPLES)
def test_export_keeps_the_operator(sample):
    args, kwargs = sample.make(sample.usual_dtype)

    class Model(torch.nn.Module):
        def forward(self, *inputs):
            return sample.op(*inputs, **kwargs)

    program = torch.export.export(Model(), args)

    targets = [node.target for node in program.graph.nodes if find_native_op(node.target)]
    assert targets == [sample.op.overload]
    functional = [node.target for node in program.run_decompositions({}).graph.nodes if find_native_op(node.target)]
    assert functional == [sample.op.overload]


@_each
def test_node_attributes_and_inputs_match_the_operators_onnx_schema(sample):
    args, kwargs = sample.make(sample.usual_dtype)

    call = sample.op.onnx_call(args, kwargs)

    schema = schema_at(sample.op, call.min_opset)
    required = {name for name, attribute in schema.attributes.items() if attribute.required}
    assert len(call.inputs) <= len(schema.inputs)
    assert set(call.attributes) <= set(schema.attributes)
    assert max(call.outputs) < len(schema.outputs)
    assert required <= set(call.attributes)


@_each
def test_arguments_are_named_as_in_the_onnx_schema(sample):
    # Attributes of a later version are offered too; onnx_call's min_opset tells which opset a call needs.
    schema = newest_schema(sample.op)
    names = [argument.name for argument in sample.op.overload._schema.arguments]
    positional = [a.name for a in sample.op.overload._schema.arguments if not a.kwarg_only]

    assert set(names) - set(positional) - sample.op.not_attributes <= set(schema.attributes)
    assert positional == [parameter.name for parameter in schema.inputs][: len(positional)]
