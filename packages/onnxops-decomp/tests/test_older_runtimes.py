"""Models written for an older ONNX Runtime: other nodes than for the newest, and the same results."""

from __future__ import annotations

import subprocess
import sys
from importlib import metadata
from pathlib import Path

import onnx_ir as ir
import pytest

from onnxops_decomp import LoweringError, OpBuilder
from onnxops_decomp.exporting.errors import RuntimeSupportError
from onnxops_decomp.exporting.program import runtime_support
from onnxops_decomp.exporting.program.running import Session
from onnxops_decomp.runtimes.onnxruntime import kernel_gaps

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



def nodes(function, *args, opset=20, **kwargs):
    lowered = check(function, *args, opset=opset, **kwargs)
    return [node.op_type for node in lowered.proto.graph.node]


def lower(function, *args):
    return lower_graph(trace(function, args), opset=20).proto.graph


doubles = torch.linspace(-40, 40, 101, dtype=torch.float64)
assert "Cos" not in nodes(lambda x: x.cos(), doubles)
assert nodes(lambda x: F.silu(x), doubles)[-4:] == ["Sigmoid", "Neg", "Neg", "Mul"]
assert nodes(lambda x: F.silu(x), doubles.float()) == ["Sigmoid", "Mul"]
image = torch.randn(2, 3, 8, 9)
assert "AveragePool" not in nodes(lambda x: F.avg_pool2d(x, 3, 2, 1, True, True), image)
assert "AveragePool" in nodes(lambda x: F.avg_pool2d(x, 3, 2, 1, True, False), image)
for normalized in ([4], [3, 4]):
    made = nodes(lambda x: F.layer_norm(x, normalized), torch.randn(2, 3, 4) + 10)
    assert made == ["ReduceMean", "Sub", "LayerNormalization"], made
spectrum = torch.randn(3, 9, dtype=torch.complex64)
frames = lambda x: torch.stft(x, 4, 2, return_complex=True, onesided=False, center=False)
assert "STFT" not in nodes(frames, spectrum)
assert "STFT" in nodes(frames, spectrum.real)
assert "DFT" not in nodes(lambda x: torch.fft.irfft(x), spectrum)
assert "DFT" in nodes(lambda x: torch.fft.fft(x), spectrum)
assert "ReduceMin" not in nodes(lambda x: (x > 0).all(1), torch.ones(2, 3))
nodes(lambda x: (x > 0).all(1), torch.ones(2, 0))
small = torch.arange(12, dtype=torch.int8).reshape(3, 4)
blocks = lambda: torch.arange(16, dtype=torch.int8).reshape(1, 4, 2, 2)
assert "DepthToSpace" not in nodes(lambda x: F.pixel_shuffle(x, 2), blocks())
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


high = torch.randint(2**31 - 9, 2**31 + 9, (3, 4, 5), generator=torch.Generator().manual_seed(0))
other = high.flip(0, 1)
for function in (
    lambda x, y: torch.maximum(x, y), lambda x, y: x.clamp(2**31 - 3, 2**31 + 3), lambda x, y: x.amax((0, 2)),
    lambda x, y: x.amin(1, keepdim=True), lambda x, y: x.max(), lambda x, y: torch.minimum(x, y[0, 0, 0]),
    lambda x, y: x.to(torch.uint32).view(3, 20).to(torch.int64).amax(0),
):
    assert not {"Max", "Min", "Clip", "ReduceMax", "ReduceMin"} & set(nodes(function, high, other))
    nodes(function, high - 2**31 * 9, other - 2**62, opset=9)
assert "Div" in nodes(lambda x: x.amax((0, 2)), high, opset=10, others=[(other[:2, :, :3] * 2**20,)])
nothing = torch.arange(0)
nodes(lambda x: torch.bincount(x, minlength=2), nothing)
nodes(lambda x: torch.bincount(x, minlength=2), torch.tensor([1, 3]), others=[(nothing,)])
nodes(torch.searchsorted, torch.ones(2), torch.ones(3), others=[(torch.ones(0), torch.ones(4))])
x = torch.randn(1, 5, 16)
(call,) = lower(lambda x: attention(x, num_outputs=1), x).node
assert len([name for name in call.output if name]) == 3
assert "onnxruntime>=1.24" in message(lambda x: attention(x, local_window_size=2), x)
assert "onnxruntime>=1.23" in message(lambda x: attention(x, head_sink=torch.ones(2)), x)
packed = torch.zeros(8, 1, 16, dtype=torch.uint8), torch.ones(8)
bytewise = lambda x, *weights: native.matmul_nbits(x, *weights, K=16, N=8, bits=8, block_size=16)
assert "onnxruntime>=1.23" in message(bytewise, x, *packed)
"""


@pytest.mark.parametrize(
    ("releases", "is_older"),
    [
        ({}, False),
        ({"onnxruntime": "1.24.4"}, False),
        ({"onnxruntime": "1.22.1"}, True),
        ({"onnxruntime-gpu": "1.23.0"}, True),
        ({"onnxruntime-gpu": "1.30.0", "onnxruntime": "1.23.2"}, True),
    ],
    ids=str,
)
def test_the_release_is_that_of_any_distribution(
    releases: dict[str, str], is_older: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    def version(name: str) -> str:
        if name not in releases:
            raise metadata.PackageNotFoundError(name)
        return releases[name]

    monkeypatch.setattr(metadata, "version", version)
    monkeypatch.setattr(kernel_gaps, "installed_release", kernel_gaps.installed_release.__wrapped__)

    assert kernel_gaps.is_older(1, 24) == is_older


@pytest.mark.parametrize(
    ("installed", "opset", "said"),
    [
        ("1.22.1", 24, "opset_version=22, or install onnxruntime>=1.24"),
        ("1.24.4", 26, "opset_version=25, or install onnxruntime>=1.25"),
        ("1.31.0", 28, "opset_version=26, or install onnxruntime>=1.32"),
        ("1.32.0", 28, "Unsupported model IR version: 13"),
    ],
)
def test_an_opset_that_is_newer_than_the_runtime_is_refused(
    installed: str, opset: int, said: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def initialize(*args: object, **options: object) -> None:
        raise ValueError("Unsupported model IR version: 13, max supported IR version: 12")

    version = metadata.version
    monkeypatch.setattr(metadata, "version", lambda name: installed if name == "onnxruntime" else version(name))
    monkeypatch.setattr(kernel_gaps, "installed_release", kernel_gaps.installed_release.__wrapped__)
    monkeypatch.setattr(runtime_support, "installed_release", kernel_gaps.installed_release)
    model = ir.Model(ir.Graph((), (), nodes=(), opset_imports={"": opset}), ir_version=13)

    with pytest.raises((RuntimeSupportError, ValueError), match=said):
        Session(model, initialize)


@pytest.mark.parametrize(
    ("installed", "op_type", "attributes", "said"),
    [
        ("1.22.1", "MoE", {"swiglu_fusion": 1}, "install onnxruntime>=1.23"),
        ("1.23.2", "MoE", {"swiglu_fusion": 1}, ""),
        ("1.30.0", "QMoE", {"accuracy_level": 1}, "install onnxruntime>=1.31"),
        ("1.31.1", "QMoE", {"accuracy_level": 1}, ""),
    ],
)
def test_experts_that_a_release_does_not_know_are_refused(
    installed: str, op_type: str, attributes: dict[str, int], said: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Made first, because what is known of the installed release is looked up once.
    builder, version = OpBuilder(20), metadata.version
    x = builder.constant(0.0, ir.DataType.FLOAT)
    monkeypatch.setattr(metadata, "version", lambda name: installed if name == "onnxruntime" else version(name))
    monkeypatch.setattr(kernel_gaps, "installed_release", kernel_gaps.installed_release.__wrapped__)

    if not said:
        assert len(builder.emit_custom("com.microsoft", op_type, [x], attributes, [x.dtype])) == 1
        return
    with pytest.raises(LoweringError, match=said):
        builder.emit_custom("com.microsoft", op_type, [x], attributes, [x.dtype])
    # Of another domain it is the user's own.
    builder.emit_custom("mine", op_type, [x], attributes, [x.dtype])


def test_what_older_releases_lack_is_written_otherwise() -> None:
    # In a process of its own, because forms and gaps are looked up once.
    command = [sys.executable, "-W", "ignore", "-c", PROGRAM, str(Path(__file__).parent)]
    run = subprocess.run(command, capture_output=True, text=True, check=False, timeout=300)

    assert run.returncode == 0, run.stderr
