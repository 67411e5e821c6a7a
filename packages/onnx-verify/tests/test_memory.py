"""A search stays within its memory limit, measured in a process of its own."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

BENCHMARKS = Path(__file__).parents[3] / "benchmarks"


@pytest.mark.skipif(not BENCHMARKS.exists(), reason="the benchmarks are in the repository only, not in the package")
@pytest.mark.parametrize(
    "gib, limit", [(0.5, 256), pytest.param(2.5, 1024, marks=pytest.mark.wide)], ids=["512 MiB", "2.5 GiB"]
)
def test_the_fault_is_found_within_the_limit(gib, limit, tmp_path):
    figure = tmp_path / "figure.json"
    script = BENCHMARKS / "verify_memory.py"
    command = [sys.executable, script, "--gib", str(gib), "--limit-mib", str(limit), "--json", figure]
    subprocess.run(command, capture_output=True, check=True, timeout=600)
    (row,) = json.loads(figure.read_text())["rows"]
    assert row["found"] == "yes", row
    assert gib * 1024 > limit
    assert row["own"] < limit
    assert row["resident"] < gib * 1024 + limit
