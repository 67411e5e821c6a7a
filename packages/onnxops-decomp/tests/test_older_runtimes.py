"""Models written for an older ONNX Runtime: other nodes than for the newest, and the same results."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

PROGRAM = """
import sys
from importlib import metadata

installed = metadata.version
metadata.version = lambda name: "1.22.0" if name == "onnxruntime" else installed(name)
sys.path.insert(0, sys.argv[1])
import torch
import torch.nn.functional as F
from decomp_harness import check


def nodes(function, *args, **kwargs):
    lowered = check(function, *args, opset=20, **kwargs)
    return [node.op_type for node in lowered.proto.graph.node]


doubles = torch.linspace(-40, 40, 101, dtype=torch.float64)
assert "Cos" not in nodes(lambda x: x.cos(), doubles)
image = torch.randn(2, 3, 8, 9)
assert "AveragePool" not in nodes(lambda x: F.avg_pool2d(x, 3, 2, 1, True, True), image)
assert "AveragePool" in nodes(lambda x: F.avg_pool2d(x, 3, 2, 1, True, False), image)
spectrum = torch.randn(3, 9, dtype=torch.complex64)
assert "DFT" not in nodes(lambda x: torch.fft.irfft(x), spectrum)
assert "DFT" in nodes(lambda x: torch.fft.fft(x), spectrum)
assert "ReduceMin" not in nodes(lambda x: (x > 0).all(1), torch.ones(2, 3))
nodes(lambda x: (x > 0).all(1), torch.ones(2, 0))
small = torch.arange(12, dtype=torch.int8).reshape(3, 4)
composed = [lambda x: torch.maximum(x, x.flip(0)), lambda x: torch.where(x > 3, x, -x), lambda x: x.topk(2).values]
for function in composed:
    assert "Cast" in nodes(function, small)
assert "Cast" in nodes(lambda x: x.triu(), small.int())
"""


def test_what_older_releases_lack_is_written_otherwise() -> None:
    # In a process of its own, because forms and gaps are looked up once.
    command = [sys.executable, "-W", "ignore", "-c", PROGRAM, str(Path(__file__).parent)]
    run = subprocess.run(command, capture_output=True, text=True, check=False, timeout=300)

    assert run.returncode == 0, run.stderr
