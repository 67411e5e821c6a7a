"""Metrics against direct numpy computations."""

import math

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from onnx_verify import Tolerance, default_tolerance
from onnx_verify.values.metrics import measure

LOOSE = Tolerance(1e-3, 1e-3)


def test_metrics_equal_their_definitions():
    rng = np.random.default_rng(0)
    reference = rng.standard_normal((7, 5))
    candidate = reference + rng.standard_normal((7, 5)) * 1e-2
    difference = np.abs(candidate - reference)
    metrics = measure(reference, candidate, LOOSE)
    assert metrics.max_abs == difference.max()
    assert metrics.mean_abs == pytest.approx(difference.mean())
    assert metrics.max_rel == pytest.approx((difference / np.abs(reference)).max())
    assert metrics.mismatches == (~np.isclose(candidate, reference, 1e-3, 1e-3)).sum()
    assert metrics.snr_db == pytest.approx(10 * math.log10((reference**2).sum() / (difference**2).sum()))
    cosine = (reference * candidate).sum() / np.linalg.norm(reference) / np.linalg.norm(candidate)
    assert metrics.cosine == pytest.approx(cosine)
    assert sum(metrics.histogram.values()) == 35


def test_chunks_do_not_change_the_result(monkeypatch):
    rng = np.random.default_rng(1)
    reference = rng.standard_normal((31, 17)).astype(np.float32)
    candidate = reference.copy()
    candidate[29, 3] += 1
    whole = measure(reference, candidate, LOOSE)
    monkeypatch.setattr("onnx_verify.values.metrics._CHUNK", 10)
    parts = measure(reference, candidate, LOOSE)
    assert parts.worst_index == (29, 3)
    assert (parts.mismatches, parts.max_ulp, parts.histogram) == (
        whole.mismatches,
        whole.max_ulp,
        whole.histogram,
    )
    assert parts.cosine == pytest.approx(whole.cosine)


@pytest.mark.parametrize(
    "dtype",
    [np.float16, np.float32, np.float64, ml_dtypes.bfloat16, ml_dtypes.float8_e4m3fn, ml_dtypes.float8_e5m2],
)
def test_ulp_counts_representable_steps(dtype):
    info = ml_dtypes.finfo(dtype)
    one = np.array([1.0], dtype)
    next_up = (one.astype(np.float64) + float(info.eps)).astype(dtype)
    tiny = np.array([info.smallest_subnormal], dtype)
    assert measure(one, next_up, LOOSE).max_ulp == 1
    assert measure(one, one, LOOSE).max_ulp == 0
    assert measure(tiny, -tiny, LOOSE).max_ulp == 2
    assert measure(np.array([0.0], dtype), np.array([-0.0], dtype), LOOSE).max_ulp == 0


@given(
    hnp.arrays(np.float32, hnp.array_shapes(max_dims=3, max_side=5, min_side=0), elements=st.floats(width=32)),
    st.randoms(use_true_random=False),
)
def test_agreement_equals_numpys_isclose(reference, random):
    candidate = reference.copy()
    for index in np.ndindex(*reference.shape):
        if random.random() < 0.3:
            candidate[index] = random.choice([np.nan, np.inf, -np.inf, 0.0, float(reference[index]) * 1.01])
    metrics = measure(reference, candidate, LOOSE)
    wide_reference, wide_candidate = reference.astype(np.float64), candidate.astype(np.float64)
    with np.errstate(all="ignore"):
        close = np.isclose(wide_candidate, wide_reference, 1e-3, 1e-3, equal_nan=True)
    assert metrics.mismatches == np.count_nonzero(~close)


def test_unsigned_and_64_bit_integers_are_compared_exactly():
    high = np.array([2**64 - 1], np.uint64)
    assert measure(high, high, default_tolerance(high.dtype)).mismatches == 0
    assert measure(high, high - np.uint64(1), default_tolerance(high.dtype)).mismatches == 1


def test_a_tolerance_that_lets_all_pass_is_refused():
    with pytest.raises(Exception, match="finite"):
        Tolerance(float("inf"), 0)
    with pytest.raises(Exception, match="rtol"):
        Tolerance(-1, 0)


def test_defaults_shrink_with_precision():
    kinds = [np.float64, np.float32, np.float16, ml_dtypes.bfloat16]
    rtols = [default_tolerance(np.dtype(kind)).rtol for kind in kinds]
    assert rtols == sorted(rtols)
    assert default_tolerance(np.dtype(np.int32)) == Tolerance(0, 0)
