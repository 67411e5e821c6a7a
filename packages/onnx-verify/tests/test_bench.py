"""benchmark(): rows, ratios and memory."""

from types import SimpleNamespace

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


def test_the_ratio_holds_when_noise_slows_whole_rounds_down(monkeypatch):
    clock, calls = [0.0], {"short": 0, "long": 0}
    noise = np.random.default_rng(0).uniform(1, 50, 100)

    def takes(name, seconds):
        def function(x):
            clock[0] += seconds * noise[calls[name]]
            calls[name] += 1
            return x

        return function

    monkeypatch.setattr("onnx_verify.comparing.bench.time", SimpleNamespace(perf_counter=lambda: clock[0]))
    models = {"short": takes("short", 0.01), "long": takes("long", 0.03)}
    report = benchmark(models, (np.ones(1),), rounds=20, memory=False)
    assert report.rows[1].ratio == pytest.approx(3)
    assert report.rows[0].p95_s > 1.5 * report.rows[0].median_s


def test_peak_memory_grows_with_the_weights():
    small = benchmark([mlp(width=8)], (normal(1, 8),), rounds=1).rows[0].peak_bytes
    large = benchmark([mlp(width=1500)], (normal(1, 1500),), rounds=1).rows[0].peak_bytes
    assert large - small > 3 * 1500 * 1500 * 4 * 0.9


def test_nothing_to_measure_is_an_error():
    with pytest.raises(onnx_verify.InputError):
        benchmark([], (normal(1),))


def test_the_report_prints_and_converts_to_plain_values():
    report = benchmark({"a": mlp(), "f": lambda x: x}, (normal(2, 8),), rounds=2, memory=False)
    assert "ort:all" in str(report)
    assert "python" in str(report)
    assert "1.00x" in str(report)
    plain = report.to_dict()
    assert plain["rounds"] == 2
    assert "times_s" not in plain["rows"][0]


def test_progress_is_told_after_each_round():
    told = []
    benchmark([mlp()], (normal(2, 8),), rounds=3, memory=False, progress=lambda done, total: told.append((done, total)))
    assert told == [(1, 3), (2, 3), (3, 3)]
