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
from decomp_harness import check, lower_graph, trace
from onnxops_core import native
from onnxops_decomp import LoweringError


def factor(rank=4):
    return torch.full([1] * rank, 0.25)



def nodes(function, *args, **kwargs):
    lowered = check(function, *args, opset=20, **kwargs)
    return [node.op_type for node in lowered.proto.graph.node]


def lower(function, *args):
    return lower_graph(trace(function, args), opset=20).proto.graph


doubles = torch.linspace(-40, 40, 101, dtype=torch.float64)
assert "Cos" not in nodes(lambda x: x.cos(), doubles)
image = torch.randn(2, 3, 8, 9)
assert "AveragePool" not in nodes(lambda x: F.avg_pool2d(x, 3, 2, 1, True, True), image)
assert "AveragePool" in nodes(lambda x: F.avg_pool2d(x, 3, 2, 1, True, False), image)
spectrum = torch.randn(3, 9, dtype=torch.complex64)
frames = lambda x: torch.stft(x, 4, 2, return_complex=True, onesided=False, center=False)
assert "STFT" not in nodes(frames, spectrum)
assert "STFT" in nodes(frames, spectrum.real)
assert "DFT" not in nodes(lambda x: torch.fft.irfft(x), spectrum)
assert "DFT" in nodes(lambda x: torch.fft.fft(x), spectrum)
assert "ReduceMin" not in nodes(lambda x: (x > 0).all(1), torch.ones(2, 3))
nodes(lambda x: (x > 0).all(1), torch.ones(2, 0))
small = torch.arange(12, dtype=torch.int8).reshape(3, 4)
composed = [lambda x: torch.maximum(x, x.flip(0)), lambda x: torch.where(x > 3, x, -x), lambda x: x.topk(2).values]
for function in composed:
    assert "Cast" in nodes(function, small)
assert "Cast" in nodes(lambda x: x.triu(), small.int())
a, b = torch.randn(2, 3, 4), torch.randn(2, 5, 4)
product = lambda a, b: a @ b.mT
assert "Neg" in nodes(product, a.double(), b.double(), others=[(torch.randn(0, 2, 4).double(),) * 2])
assert "Neg" not in nodes(product, a, b)
scaled = [lambda a, b: (a @ b.mT) * factor(), lambda a, b: (a @ b.mT) / factor(), lambda a, b: (a * factor()) @ b.mT]
for function in scaled:
    assert "Unsqueeze" in nodes(function, a, b)
assert "Unsqueeze" not in nodes(lambda a, b: (a @ b.mT) * factor(2), a, b)


def attention(x, **kwargs):
    seen = torch.tensor([4]).int()
    return native.group_query_attention(x, x, x, None, None, seen, 5, num_heads=2, kv_num_heads=2, **kwargs)


def message(function, *args):
    try:
        lower(function, *args)
    except LoweringError as error:
        return str(error)


x = torch.randn(1, 5, 16)
(call,) = lower(lambda x: attention(x, num_outputs=1), x).node
assert len([name for name in call.output if name]) == 3
assert "onnxruntime>=1.24" in message(lambda x: attention(x, local_window_size=2), x)
assert "onnxruntime>=1.23" in message(lambda x: attention(x, head_sink=torch.ones(2)), x)
packed = torch.zeros(8, 1, 16, dtype=torch.uint8), torch.ones(8)
bytewise = lambda x, *weights: native.matmul_nbits(x, *weights, K=16, N=8, bits=8, block_size=16)
assert "onnxruntime>=1.23" in message(bytewise, x, *packed)
"""


def test_what_older_releases_lack_is_written_otherwise() -> None:
    # In a process of its own, because forms and gaps are looked up once.
    command = [sys.executable, "-W", "ignore", "-c", PROGRAM, str(Path(__file__).parent)]
    run = subprocess.run(command, capture_output=True, text=True, check=False, timeout=300)

    assert run.returncode == 0, run.stderr
