"""Which execution provider runs a model, without a GPU and with one."""

import onnxruntime as ort
import pytest
from models import mlp, mlp_numpy, normal

import onnx_verify
from onnx_verify import Backend, OnnxBackend, compare, find_mismatch

CUDA, CPU = OnnxBackend.ONNX_RUNTIME_CUDA.value, OnnxBackend.ONNX_RUNTIME_CPU.value
needs_cuda = pytest.mark.skipif(CUDA not in ort.get_available_providers(), reason="needs onnxruntime with CUDA")


class Session:
    """A session that runs on the CPU whatever it was asked for, and says what it was asked for."""

    asked = None
    started = (CUDA, CPU)

    def __init__(self, model, options, providers, **settings):
        Session.asked = providers
        self.inner = REAL(model, options, providers=[CPU], **settings)

    def get_providers(self):
        return list(self.started)

    def __getattr__(self, name):
        return getattr(self.inner, name)


REAL = ort.InferenceSession


@pytest.fixture
def gpu(monkeypatch):
    """A machine whose onnxruntime has the CUDA provider."""
    monkeypatch.setattr(ort, "get_available_providers", lambda: [CUDA, CPU])
    monkeypatch.setattr(ort, "InferenceSession", Session)
    return monkeypatch


def test_the_cuda_provider_is_listed_where_it_is_there(gpu):
    assert OnnxBackend.available() == list(OnnxBackend)


def test_the_cuda_provider_comes_first_with_the_cpu_behind_it(gpu):
    verdict = compare(lambda x: mlp_numpy(mlp(), x), mlp(), (normal(2, 8),), backend="ort-cuda:basic")
    assert verdict
    assert Session.asked == [CUDA, CPU]
    assert "ort-cuda:basic" in verdict.candidate


def test_two_providers_are_compared_node_by_node(gpu):
    backends = {"backend": Backend.parse("ort-cuda"), "reference_backend": Backend.parse("ort")}
    assert find_mismatch(mlp(), (normal(2, 8),), exhaustive=True, **backends).ok


def test_a_provider_that_does_not_start_is_an_error_and_not_a_run_on_the_cpu(gpu):
    gpu.setattr(Session, "started", (CPU,))
    with pytest.raises(onnx_verify.ModelRunError, match="did not start"):
        compare(mlp(), mlp(), (normal(2, 8),), backend="ort-cuda")


def test_a_provider_that_this_build_lacks_is_an_error(monkeypatch):
    monkeypatch.setattr(ort, "get_available_providers", lambda: [CPU])
    assert OnnxBackend.ONNX_RUNTIME_CUDA not in OnnxBackend.available()
    with pytest.raises(onnx_verify.ModelRunError, match="CUDAExecutionProvider is not in this build"):
        compare(mlp(), mlp(), (normal(2, 8),), backend="ort-cuda")


@pytest.mark.cuda
@needs_cuda
def test_cuda_agrees_with_the_cpu_node_by_node():
    backends = {"backend": Backend.parse("ort-cuda"), "reference_backend": Backend.parse("ort")}
    assert compare(lambda x: mlp_numpy(mlp(), x), mlp(), (normal(2, 8),), backend="ort-cuda")
    assert find_mismatch(mlp(), (normal(2, 8),), exhaustive=True, **backends).ok
