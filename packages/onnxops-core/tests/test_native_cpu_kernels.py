"""The optional C kernels give what the references give, and their absence changes nothing but the time."""

import os
import shutil
import stat
import weakref

import pytest
import torch
from core_samples import SAMPLES

from onnxops_core import OnnxExporterError, build_cpu_kernels, native
from onnxops_core.native import find_native_op
from onnxops_core.native.c_kernels import library as c_library

ROTARY = find_native_op(torch.ops.onnxops.RotaryEmbedding.opset23)
SCATTER = find_native_op(torch.ops.onnxops.TensorScatter.opset24)
RMS = find_native_op(torch.ops.onnxops.RMSNormalization.opset23)
_WITH_KERNELS = [s for s in SAMPLES if s.op_type in ("Attention", "RMSNormalization", "RotaryEmbedding")]


@pytest.fixture(scope="module")
def library(tmp_path_factory):
    if not any(map(shutil.which, ("cc", "gcc", "clang"))):
        pytest.skip("needs a C compiler")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_CACHE_HOME", str(tmp_path_factory.mktemp("kernels")))
        yield build_cpu_kernels()
        c_library.cpu_kernels.cache_clear()


@pytest.fixture
def kernels(library, monkeypatch):
    """Returns a list to which each call of a compiled kernel adds its name."""
    compiled = c_library.cpu_kernels()
    assert compiled is not None
    called = []

    class Recorder:
        def __getattr__(self, name):
            called.append(name.removeprefix("onnxops_"))
            return getattr(compiled, name)

    monkeypatch.setattr(c_library, "cpu_kernels", Recorder)
    return called


@pytest.fixture
def no_kernels(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    c_library.cpu_kernels.cache_clear()
    yield tmp_path
    c_library.cpu_kernels.cache_clear()


def _close(actual, expected):
    for one, other in zip(*([x] if isinstance(x, torch.Tensor) else x for x in (actual, expected)), strict=True):
        torch.testing.assert_close(one, other, rtol=1e-5, atol=1e-5, equal_nan=True)


@pytest.mark.parametrize("sample", _WITH_KERNELS, ids=str)
def test_samples_give_the_references_results(kernels, sample):
    args, kwargs = sample.make(torch.float32)

    _close(sample.op(*args, **kwargs), sample.op.reference(*args, **kwargs))


@pytest.mark.parametrize("interleaved", [False, True])
@pytest.mark.parametrize(("size", "width"), [(2, 0), (10, 0), (64, 0), (80, 32), (12, 12)])
@pytest.mark.parametrize("flat", [False, True])
@pytest.mark.parametrize("positions", [False, True])
def test_rotary_embedding(kernels, interleaved, size, width, flat, positions):
    x = torch.randn(2, 5, 3 * size) if flat else torch.randn(2, 5, 3, size).transpose(1, 2)
    half = (width or size) // 2
    rows = (9,) if positions else (2, 5)
    args = (x, torch.randn(*rows, half), torch.randn(*rows, half))
    args += (torch.randint(0, 9, (5, 2)).T,) if positions else ()
    kwargs = {"interleaved": interleaved, "rotary_embedding_dim": width, "num_heads": 3 if flat else 0}

    result = native.rotary_embedding(*args, **kwargs)

    _close(result, ROTARY.reference(*args, **kwargs))
    assert kernels[-1] == "rotary"
    assert result.is_contiguous()


@pytest.mark.parametrize("shape", [(1, 1), (7, 3), (2, 3, 1000), (0, 4), (3, 0)])
def test_rms_normalization(kernels, shape):
    x, scale = torch.randn(shape), torch.randn(shape[-1:])

    _close(native.rms_normalization(x, scale, epsilon=0.1), RMS.reference(x, scale, epsilon=0.1))


def test_tensors_by_keyword_are_differentiated_and_not_kept(kernels):
    x, scale = torch.randn(4, 8), torch.ones(8, requires_grad=True)
    RMS(x, scale=scale).sum().backward()
    torch.testing.assert_close(scale.grad, RMS.reference(x, torch.ones(8)).sum(0))

    scale = torch.ones(8)
    kept = weakref.ref(scale)
    _close(RMS(x, scale=scale), RMS.reference(x, scale))
    del scale
    assert kept() is None


def test_rms_normalization_over_two_dimensions(kernels):
    x, scale = torch.randn(2, 3, 5, 7), torch.randn(5, 7)

    _close(native.rms_normalization(x, scale, axis=-2), RMS.reference(x, scale, axis=-2))
    assert kernels == ["rms_normalization"]


def _attend(q, k, v, **kwargs):
    reference = find_native_op(torch.ops.onnxops.Attention.opset23).reference
    _close(native.attention(q, k, v, num_outputs=1, **kwargs), reference(q, k, v, num_outputs=1, **kwargs)[0])


@pytest.mark.parametrize("total", [1, 3, 63, 64, 65, 130])
@pytest.mark.parametrize(("kv_heads", "group"), [(3, 1), (2, 3), (1, 11)])
def test_one_query_per_head(kernels, total, kv_heads, group):
    _attend(
        torch.randn(2, kv_heads * group, 1, 20), torch.randn(2, kv_heads, total, 20), torch.randn(2, kv_heads, total, 9)
    )
    assert kernels == ["attend_one_query"]


def test_one_query_against_a_cache_that_is_laid_out_token_by_token(kernels):
    k, v = torch.randn(2, 70, 3, 16).transpose(1, 2), torch.randn(2, 3, 90, 16)[:, :, :70]

    _attend(torch.randn(2, 1, 6, 16).transpose(1, 2), k, v, scale=0.5)
    assert kernels == ["attend_one_query"]


def test_scores_of_any_size_are_stable(kernels):
    q, k = torch.full((1, 1, 1, 4), 50.0), torch.linspace(-60, 60, 100).view(1, 1, 100, 1).expand(1, 1, 100, 4)

    for keys in (k.contiguous(), -k):
        _attend(q, keys.contiguous(), torch.randn(1, 1, 100, 4))


@pytest.mark.parametrize("value", [float("nan"), float("inf"), -float("inf")])
def test_scores_that_are_no_numbers_spread_as_in_torch(kernels, value):
    k = torch.randn(1, 1, 70, 4)
    k[0, 0, 65, 1] = value

    _attend(torch.ones(1, 1, 1, 4), k, torch.randn(1, 1, 70, 4))


@pytest.mark.parametrize("lengths", [(9, 9), (3, 7), (0, 5)])
def test_decoding_step_on_a_cache_with_lengths(kernels, lengths):
    q, k, v = torch.randn(2, 4, 1, 8), torch.randn(2, 2, 9, 8), torch.randn(2, 2, 9, 6)
    args = (q, k, v, None, None, None, torch.tensor(lengths))

    result = native.attention(*args, is_causal=True, num_outputs=1)

    reference = find_native_op(torch.ops.onnxops.Attention.opset24).reference
    _close(result, reference(*args, is_causal=True, num_outputs=1)[0])
    assert "attend_one_query" in kernels


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.int8, torch.bool, torch.float8_e4m3fn])
@pytest.mark.parametrize(
    ("axis", "starts", "mode"),
    [
        (-2, [3, 0], "linear"),
        (1, [2, 2], "circular"),
        (2, [6, -1], "circular"),
        (-1, [5, 14], "circular"),
        (3, None, "linear"),
    ],
)
def test_writes_into_a_cache(kernels, dtype, axis, starts, mode):
    cache = torch.randint(0, 2, (2, 3, 7, 5)).to(dtype)
    update = torch.randint(0, 2, (2, 3, 7, 5)).to(dtype).narrow(axis, 0, 3).contiguous()
    starts = None if starts is None else torch.tensor([start % 5 if axis in (-1, 1) else start for start in starts])
    expected = SCATTER.reference(cache, update, starts, axis=axis, mode=mode)

    result = native.tensor_scatter_(cache, update, starts, axis=axis, mode=mode)

    assert kernels == ["write_cache"]
    assert result is cache
    assert torch.equal(cache.float(), expected.float())


@pytest.mark.parametrize("starts", [[-1, 0], [0, 5]])
def test_a_refused_write_leaves_the_cache(kernels, starts):
    cache = torch.zeros(2, 1, 7, 4)

    with pytest.raises(ValueError, match="write_indices"):
        native.tensor_scatter_(cache, torch.ones(2, 1, 3, 4), torch.tensor(starts))

    assert not cache.any()


@pytest.mark.parametrize(
    ("cache", "update"),
    [
        (torch.zeros(2, 7, 1, 4).transpose(1, 2), torch.randn(2, 1, 3, 4)),
        (torch.zeros(2, 1, 7, 4), torch.randn(2, 1, 4, 3).mT),
        (torch.zeros(2, 1, 7, 4, dtype=torch.complex64), torch.randn(2, 1, 3, 4, dtype=torch.complex64).conj()),
        (torch.zeros(2, 1, 7, 4), torch._neg_view(torch.randn(2, 1, 3, 4))),
        (torch.zeros(0, 1, 7, 4), torch.zeros(0, 1, 3, 4)),
    ],
    ids=["strided cache", "strided update", "conjugate", "negated", "empty"],
)
def test_writes_that_memory_does_not_show_are_left_to_torch(kernels, cache, update):
    expected = SCATTER.reference(cache, update, None)

    assert torch.equal(native.tensor_scatter_(cache, update), expected)


@pytest.mark.parametrize(
    ("call", "reason"),
    [
        (lambda: ROTARY.explain(torch.ones(1, 1, 1, 4).double(), torch.ones(3, 2), torch.ones(3, 2)), "float64"),
        (lambda: ROTARY.explain(torch.ones(1, 1, 4, 1).mT, torch.ones(3, 2), torch.ones(2, 3).T), "not dense"),
        (lambda: RMS.explain(torch.ones(2, 4), torch.ones(1)), "broadcast"),
        (lambda: RMS.explain(torch.ones(2, 4), torch.ones(4), stash_type=11), "not float32"),
    ],
)
def test_refusals_give_reasons(kernels, call, reason):
    assert reason in call()["C"]


def test_tensors_that_are_negated_when_read(kernels):
    x, row = torch.randn(1, 2, 1, 4), torch.randn(1, 1, 2)
    negated, scale = torch._neg_view(x), torch._neg_view(torch.randn(4))

    _close(native.rotary_embedding(negated, row, row), ROTARY.reference(-x, row, row))
    _close(native.rms_normalization(x, scale), RMS.reference(x, scale))
    _attend(x, negated, x)
    assert kernels == []


def test_large_tensors_are_left_to_torchs_threads(kernels, monkeypatch):
    monkeypatch.setattr(torch, "get_num_threads", lambda: 2)
    x = torch.ones(1, 1, 1 << 17, 2)

    assert "threads" in ROTARY.explain(x, torch.ones(1, 1 << 17, 1), torch.ones(1, 1 << 17, 1))["C"]
    assert ROTARY.explain(x[:, :, :8], torch.ones(1, 8, 1), torch.ones(1, 8, 1))["C"] is None


def test_library_is_the_users_alone(library):
    if os.name == "posix":
        assert stat.S_IMODE(library.parent.stat().st_mode) == 0o700
    assert [path.name for path in library.parent.iterdir()] == [library.name]


@pytest.mark.parametrize("broken", [False, True])
def test_absent_or_broken_library_is_no_error(no_kernels, broken):
    if broken:
        c_library._library_path().parent.mkdir()
        c_library._library_path().write_text("no library")
    x, scale = torch.randn(2, 4), torch.randn(4)

    assert "build_cpu_kernels" in RMS.explain(x, scale)["C"]
    _close(native.rms_normalization(x, scale), RMS.reference(x, scale))


def test_missing_compiler_is_named(no_kernels):
    with pytest.raises(OnnxExporterError, match=r"no C compiler.*no-such-compiler"):
        build_cpu_kernels("no-such-compiler")


@pytest.mark.skipif(os.name != "posix", reason="the failing compiler is a POSIX command")
def test_failing_compiler_leaves_nothing_behind(no_kernels):
    with pytest.raises(OnnxExporterError, match="the C compiler failed"):
        build_cpu_kernels("false")

    assert list((no_kernels / "onnxops-core").iterdir()) == []
