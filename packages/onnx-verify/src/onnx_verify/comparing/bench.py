"""Latency, throughput and peak memory of models, measured side by side."""

from __future__ import annotations

import json
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np

from onnx_verify.comparing.comparison import resolve_inputs
from onnx_verify.comparing.verdict import plain_values
from onnx_verify.errors import InputError, ModelRunError
from onnx_verify.inputs.datafiles import write_value
from onnx_verify.inputs.reading import InputsLike
from onnx_verify.inputs.sets import InputSet, bind_feeds
from onnx_verify.models.storage import save_model
from onnx_verify.running.runtimes import Backend, BackendLike, OnnxRuntime, Runtime, as_runtime


@dataclass
class Measurement:
    """What was measured of one model in one runtime.

    Times are seconds per run over one input set. ``ratio`` is the median, over all rounds, of this model's time over
    the first model's time in the same round, so that noise which slows down both cancels. ``peak_bytes`` is the peak
    of resident memory beyond that of the process before the model was loaded; None where it was not measured.
    """

    name: str
    backend: str
    median_s: float
    p95_s: float
    runs_per_s: float
    ratio: float
    peak_bytes: int | None = None
    times_s: list[float] = field(default_factory=list, repr=False)


@dataclass
class BenchmarkReport:
    """The measurements, the first model first."""

    rows: list[Measurement]
    rounds: int

    def __str__(self) -> str:
        """Return a table."""
        lines = [f"{'model':32} {'runtime':14} {'median':>10} {'p95':>10} {'runs/s':>9} {'ratio':>7} {'peak':>10}"]
        for row in self.rows:
            peak = "-" if row.peak_bytes is None else f"{row.peak_bytes / 2**20:.1f} MiB"
            lines.append(
                f"{row.name[:32]:32} {row.backend:14} {row.median_s * 1e3:7.3f} ms {row.p95_s * 1e3:7.3f} ms "
                f"{row.runs_per_s:9.1f} {row.ratio:6.2f}x {peak:>10}"
            )
        return "\n".join(lines)

    def to_dict(self) -> dict[str, Any]:
        """Return plain values, without the single times."""
        rows = [{key: value for key, value in asdict(row).items() if key != "times_s"} for row in self.rows]
        plain: dict[str, Any] = plain_values({"rounds": self.rounds, "rows": rows})
        return plain


def benchmark(
    models: Mapping[str, Any] | Sequence[Any],
    inputs: InputsLike,
    *,
    backends: Sequence[BackendLike] = (Backend(),),
    rounds: int = 30,
    warmup: int = 3,
    memory: bool = True,
    progress: Callable[[int, int], None] | None = None,
) -> BenchmarkReport:
    """Measure models side by side: each round runs every one of them once, in an order that changes.

    Args:
        models: by name, or a list; ONNX models in any form, torch programs, callables. Each ONNX model is measured
            in each backend.
        inputs: as for :func:`onnx_verify.compare`; a run is one pass over the first input set.
        backends: how ONNX models are run; the memory limit does not apply, for it would cost time.
        rounds: how often each is measured.
        warmup: runs before the first measured one.
        memory: whether peak memory is measured, in a process of its own for each ONNX model and backend.
        progress: called with the finished and the total number of rounds.

    Raises:
        InputError: if there is nothing to measure, or the inputs do not fit.
        ModelRunError: if a model cannot be run.
    """
    named = dict(models) if isinstance(models, Mapping) else {f"model {i}": each for i, each in enumerate(models)}
    if not named or rounds < 1:
        raise InputError("give at least one model and one round")
    entries = _entries(named, backends)
    chosen = resolve_inputs(inputs, *(runtime for _, _, runtime in entries))[0]
    calls = [_bound(runtime, chosen) for _, _, runtime in entries]
    for call in calls:
        for _ in range(warmup):
            call()
    times = _measure(calls, rounds, progress)
    rows = []
    for (name, label, runtime), own in zip(entries, times, strict=True):
        row = _row(name, label, own, times[0])
        if memory and isinstance(runtime, OnnxRuntime):
            row.peak_bytes = peak_memory(runtime, chosen)
        rows.append(row)
    return BenchmarkReport(rows, rounds)


def _entries(named: Mapping[str, Any], backends: Sequence[BackendLike]) -> list[tuple[str, str, Runtime]]:
    entries: list[tuple[str, str, Runtime]] = []
    for name, model in named.items():
        for backend in map(Backend.of, backends):
            runtime = as_runtime(model, replace(backend, bounded=False))
            if not isinstance(runtime, OnnxRuntime):
                entries.append((name, "python", runtime))
                break
            entries.append((name, backend.label, runtime))
    return entries


def _bound(runtime: Runtime, inputs: InputSet) -> Callable[[], object]:
    """Return a call without the cost of binding the inputs."""
    if isinstance(runtime, OnnxRuntime):
        feeds = bind_feeds(inputs, runtime.inputs or ())
        return lambda: runtime.run_values(feeds)
    return lambda: runtime.run(inputs)


def _measure(
    calls: Sequence[Callable[[], object]], rounds: int, progress: Callable[[int, int], None] | None
) -> list[list[float]]:
    times: list[list[float]] = [[] for _ in calls]
    rng = np.random.default_rng(0)
    for done in range(rounds):
        for index in rng.permutation(len(calls)):
            begin = time.perf_counter()
            calls[index]()
            times[index].append(time.perf_counter() - begin)
        if progress is not None:
            progress(done + 1, rounds)
    return times


def _row(name: str, label: str, times: list[float], first: list[float]) -> Measurement:
    median = statistics.median(times)
    ratio = statistics.median(own / other for own, other in zip(times, first, strict=True))
    p95 = float(np.percentile(times, 95))
    return Measurement(name, label, median, p95, 1 / median, ratio, None, times)


# Runs in a fresh interpreter: what this process holds already would hide what the model needs.
_PROBE = """
import json, sys
from pathlib import Path
from onnx_verify.inputs.datafiles import read_inputs
from onnx_verify.running.runtimes import Backend

def peak():
    # Not getrusage: its peak lives on across exec and would be that of the parent.
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("VmHWM"))

before = peak()
runtime = Backend.parse(sys.argv[1]).load(sys.argv[2])
runtime.run(read_inputs(Path(sys.argv[3]))[0])
print(json.dumps(peak() - before))
"""


def peak_memory(runtime: OnnxRuntime, inputs: InputSet) -> int | None:
    """Return the bytes by which loading and one run raise the peak of a fresh process; None but on Linux.

    Raises:
        ModelRunError: if the model does not run there.
    """
    if not Path("/proc/self/status").exists():
        return None
    feeds = bind_feeds(inputs, runtime.inputs or ())
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        save_model(runtime.model, folder / "model.onnx")
        data = folder / "data"
        data.mkdir()
        for index, value in enumerate(feeds.values()):
            write_value(data / f"input_{index}.pb", value)
        command = [sys.executable, "-c", _PROBE, runtime.backend.label, str(folder / "model.onnx"), str(data)]
        run = subprocess.run(command, capture_output=True, text=True, check=False)
    if run.returncode:
        raise ModelRunError(f"{runtime.name} failed in a process of its own: {run.stderr.strip()[-400:]}")
    kib: int = json.loads(run.stdout.splitlines()[-1])
    return kib << 10
