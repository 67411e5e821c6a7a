"""PyTorch's OpInfo database through the table: torch's result at every opset, or an error that says why not."""

from __future__ import annotations

import itertools

import opinfo_samples
import pytest
import torch
from decomp_harness import ORT_NEWEST_OPSET, trace

from onnxops_decomp.errors import UnsupportedOpsetError

OPSETS = [7, 9, 11, 13, 15, 17, 18, 20, 21, 23, 24, 25, 26]
NAMES = opinfo_samples.names()
DTYPES = [torch.float32, torch.int64, torch.bool, torch.float16, torch.float64]
# From here on an opset refuses none of the samples in these dtypes.
EXPRESSIBLE_FROM = 13

# No lowering: there is no faithful form, and the error says so, or torch hides the operator behind one of its own.
UNSUPPORTED = frozenset("""linalg.eig linalg.eigvals sparse.mm.reduce""".split())
# ``make_fx`` cannot record a call whose result has a size that depends on data; torch.export can, and the tests of
# the exporter have these.
NOT_RECORDED = frozenset("geqrf histogram histogramdd linalg.lstsq linalg.lstsq.grad_oriented sparse.mm.reduce".split())
# Torch's fake kernels say HALF where its CPU kernels, and the lowering, give FLOAT, or give another rank for a negative
# dim: refused rather than guessed.
DISPUTED = {
    ("_native_batch_norm_legit", torch.float16),
    ("native_batch_norm", torch.float16),
    ("unique_consecutive", torch.float32),
    # Rounded to FLOAT there would be no neighbour, and no wider dtype exists.
    ("nextafter", torch.float64),
}
# The result is one of several right ones: the order of equal elements, the sign of a vector, what rounding leaves of
# an exponential or of a long sum in half precision. Tests of their own pin them down.
AMBIGUOUS = frozenset(
    """argsort grid_sampler_2d kthvalue linalg.eigh linalg.svd matrix_exp nn.functional.conv_transpose3d sort svd
    topk""".split()
)
# The evaluator of ONNX is at fault: it stacks what a Loop collects wrongly, fails on loops without an iteration and on
# more than 64 elements to sort, does not know negative pads, takes minutes for volumes. ONNX Runtime runs the same
# nodes rightly at opset 26.
NOT_IN_THE_EVALUATOR = frozenset(
    """cholesky constant_pad_nd cummax cummin geqrf grid_sampler_3d linalg.cholesky linalg.cholesky_ex linalg.det
    linalg.eigh linalg.inv linalg.inv_ex linalg.ldl_factor linalg.ldl_factor_ex linalg.lu_factor
    linalg.lu_factor_ex linalg.qr linalg.slogdet linalg.solve linalg.solve_ex linalg.svd logcumsumexp logdet lu
    mode msort nn.functional.fractional_max_pool2d nn.functional.fractional_max_pool3d
    nn.functional.pad.circular nn.functional.pad.constant nn.functional.pad.reflect nn.functional.pad.replicate
    nn.functional.pad.replicate_negative normal pca_lowrank qr rand_like randint randint_like randn_like sort
    svd svd_lowrank topk""".split()
)
# Refused at symbolic sizes: memory addressed by strides, and as many results, or places, as a size.
STATIC = frozenset(
    "as_strided as_strided.partial_views as_strided_copy as_strided_scatter combinations split unsafe_split".split()
)


def check(name: str, dtype: torch.dtype, opsets: list[int], *, count: int, dynamic: bool = False) -> None:
    for call in opinfo_samples.calls(name, dtype, count):
        expected = opinfo_samples.expected_of(call)
        if expected is None:
            continue
        traced = trace(call, call.tensors, dynamic=dynamic)
        for opset in opsets:
            refusal = opinfo_samples.outcome(call, traced, expected, opset, values=name not in AMBIGUOUS)
            if isinstance(refusal, UnsupportedOpsetError):
                assert refusal.lowest is not None
                assert opset < refusal.lowest <= EXPRESSIBLE_FROM
            else:
                known = name in UNSUPPORTED or (name, dtype) in DISPUTED or (dynamic and name in STATIC)
                assert refusal is None or known, refusal


RECORDED = [name for name in NAMES if name not in NOT_RECORDED]
TURNS = [
    (name, dtype, opset)
    for name, dtype, opset in zip(RECORDED, itertools.cycle(DTYPES), itertools.cycle(OPSETS), strict=False)
]


@pytest.mark.parametrize("name, dtype, opset", TURNS)
def test_a_sample_at_an_opset_whose_turn_it_is(name: str, dtype: torch.dtype, opset: int) -> None:
    check(name, dtype, [opset], count=1)


@pytest.mark.wide
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", RECORDED)
def test_samples_at_every_opset_of_the_runtime(name: str, dtype: torch.dtype) -> None:
    assert max(OPSETS) == ORT_NEWEST_OPSET
    check(name, dtype, OPSETS, count=3 if dtype == torch.float32 else 1)


@pytest.mark.wide
@pytest.mark.parametrize("name", RECORDED)
def test_samples_with_symbolic_sizes(name: str) -> None:
    check(name, torch.float32, [13, 23], count=2, dynamic=True)


@pytest.mark.wide
@pytest.mark.parametrize("name", [name for name in RECORDED if name not in NOT_IN_THE_EVALUATOR])
def test_samples_at_the_newest_opsets_in_the_evaluator_of_onnx(name: str) -> None:
    check(name, torch.float32, [27, 28], count=1)
