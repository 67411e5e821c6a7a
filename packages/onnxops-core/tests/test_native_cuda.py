"""Native operators on an NVIDIA GPU, against the references on the same device; and how backends are
chosen."""

import types

import core_samples_more  # noqa: F401 - adds its samples
import pytest
import torch
from core_samples import SAMPLES

from onnxops_core import native
from onnxops_core.native import find_native_op
from onnxops_core.native.declaring import backends
from onnxops_core.native.declaring.backends import Backend, dispatching

TOLERANCE = {torch.float16: 4e-3, torch.bfloat16: 3e-2, torch.float32: 1e-4, torch.float64: 1e-9}


@pytest.fixture
def gpu():
    if not torch.cuda.is_available():
        pytest.skip("needs an NVIDIA GPU")
    return torch.device("cuda")


def _moved(values, device):
    return tuple(value.to(device) if isinstance(value, torch.Tensor) else value for value in values)


@pytest.mark.cuda
@pytest.mark.parametrize("sample", SAMPLES, ids=str)
def test_gpu_result_is_the_references(gpu, sample):
    for dtype in sample.dtypes:
        args, kwargs = sample.make(dtype)
        expected = sample.op.reference(*args, **kwargs)
        result = sample.op(*_moved(args, gpu), **kwargs)
        pairs = zip(*([x] if isinstance(x, torch.Tensor) else x for x in (result, expected)), strict=True)
        for one, other in pairs:
            tolerance = TOLERANCE.get(one.dtype, 0.0)
            torch.testing.assert_close(one.cpu(), other, rtol=tolerance, atol=tolerance)


@pytest.mark.cuda
@pytest.mark.parametrize("size", [(1, 1), (3, 1000), (4097, 1024), (2, 32768)])
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32])
def test_rms_normalization_of_many_sizes(gpu, size, dtype):
    x, scale = torch.randn(size).to(dtype), torch.randn(size[1]).to(dtype)
    op = find_native_op(torch.ops.onnxops.RMSNormalization.opset23)

    result = native.rms_normalization(x.to(gpu), scale.to(gpu))

    torch.testing.assert_close(result.cpu(), op.reference(x, scale), rtol=TOLERANCE[dtype], atol=TOLERANCE[dtype])


@pytest.mark.cuda
@pytest.mark.parametrize(
    "options",
    [{"softcap": 5.0}, {"left_window_size": 100, "right_window_size": 0}, {"softcap": 2.0, "is_causal": True}],
    ids=str,
)
@pytest.mark.parametrize("length", [1, 129, 1000])
def test_tiled_attention_of_many_sizes(gpu, options, length):
    q, k, v = (torch.randn(2, heads, length, 128, device=gpu, dtype=torch.float16) for heads in (8, 2, 2))
    op = find_native_op(torch.ops.onnxops.Attention.opset25)

    result = native.attention(q, k, v, **options, num_outputs=1)

    expected = op.reference(q, k, v, **options, num_outputs=1)[0]
    torch.testing.assert_close(result, expected, rtol=4e-3, atol=4e-3)


@pytest.mark.cuda
def test_addresses_beyond_32_bits(gpu):
    count = (1 << 31) + 4096
    if torch.cuda.mem_get_info()[0] < 8 * count:
        pytest.skip("needs 16 GiB of free GPU memory")
    a = torch.zeros(count, device=gpu, dtype=torch.float16)
    a[-1] = 1.0

    result = native.swiglu(a, torch.ones_like(a))

    assert float(result[-1]) == pytest.approx(0.731, abs=1e-3)


def _backend(name, reason):
    return Backend(name, lambda *args: reason, lambda *args: name)


def _itself(call):
    return call


# A tensor as far as dispatching looks; on no device, as far as torch does.
_CUDA_TENSOR = types.SimpleNamespace(is_cpu=False, is_cuda=True, get_device=lambda: -1)


def test_first_backend_that_takes_the_call_computes_it():
    run = dispatching(
        (_backend("first", "not for this"), _backend("second", None), _backend("third", None)), lambda x: "k", _itself
    )

    assert run(_CUDA_TENSOR) == "second"


def test_kernel_computes_what_every_backend_refuses():
    run = dispatching((_backend("first", "no"),), lambda x: "kernel", _itself)

    assert run(_CUDA_TENSOR) == "kernel"


def test_cpu_tensors_go_to_the_kernel_without_asking():
    run = dispatching((_backend("first", None),), lambda x: "kernel", _itself)

    assert run(torch.ones(1)) == "kernel"


def test_refusals_give_reasons():
    op = find_native_op(torch.ops.onnxops.Attention.opset25)
    q = torch.ones(1, 2, 3, 8)

    reasons = op.explain(q, q, q, softcap=2.0, num_outputs=1)

    assert "soft cap" in reasons["torch's fused attention"]
    assert reasons["Triton"] == "a tensor is on cpu, not on a CUDA device"
    assert op.explain(q, q, q, num_outputs=1)["torch's fused attention"] is None
    assert op.explain(q, q, q)["Triton"] == "the score matrix is wanted"


@pytest.mark.parametrize("installed", [True, False])
def test_missing_triton_is_a_reason(monkeypatch, installed):
    monkeypatch.setattr(backends, "_triton_is_installed", lambda: installed)

    assert (backends.triton_refuses([None]) is None) == installed


def test_wide_rows_and_broadcast_parameters_are_refused(monkeypatch):
    monkeypatch.setattr("onnxops_core.native.normalization.gpu.triton_refuses", lambda tensors: None)
    op = find_native_op(torch.ops.onnxops.RMSNormalization.opset23)

    assert op.explain(torch.ones(2, 8), torch.ones(8))["Triton"] is None
    assert op.explain(torch.ones(2, 8), torch.ones(1))["Triton"] == "a parameter is broadcast"
    assert "does not fit" in op.explain(torch.ones(1, 40000), torch.ones(40000))["Triton"]
