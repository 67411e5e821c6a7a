"""benchmark(): rows, ratios and memory."""

import time

import numpy as np
import pytest
from models import mlp, normal

import onnx_verify
from onnx_verify import Backend, benchmark


def test_each_model_is_measured_in_each_backend():
    report = benchmark(
        {"a": mlp(), "b": mlp(layers=5)},
        (normal(2, 8),),
        backends=[Backend(), Backend.parse("reference")],
        rounds=5,
        memory=False,
    )
    assert [(row.name, row.backend) for row in report.rows] == [
        ("a", "ort:all"), ("a", "reference"), ("b", "ort:all"), ("b", "reference"),
    ]  # fmt: skip
    assert report.rows[0].ratio == 1
    for row in report.rows:
        assert len(row.times_s) == 5
        assert 0 < row.median_s <= row.p95_s
        assert row.runs_per_s == pytest.approx(1 / row.median_s)


def test_the_ratio_of_two_sleeps_is_their_ratio():
    def short(x):
        time.sleep(0.01)
        return x

    def long(x):
        time.sleep(0.03)
        return x

    report = benchmark([short, long], (np.ones(1),), rounds=7, memory=False)
    assert 2 < report.rows[1].ratio < 4


def test_peak_memory_grows_with_the_weights():
    small = benchmark([mlp(width=8)], (normal(1, 8),), rounds=1).rows[0].peak_bytes
    large = benchmark([mlp(width=1500)], (normal(1, 1500),), rounds=1).rows[0].peak_bytes
    assert large - small > 3 * 1500 * 1500 * 4 * 0.9


def test_nothing_to_measure_is_an_error():
    with pytest.raises(onnx_verify.InputError):
        benchmark([], (normal(1),))
