"""Triton kernels of the native operators on an NVIDIA GPU: share of the copy bandwidth, beside torch.compile.

    python benchmarks/core_gpu.py [--json FILE]

Each memory-bound operator is timed at sizes far beyond the caches. The bandwidth is that of the bytes it must
read and write; the yardstick is a device-to-device copy of as many bytes. The target on a Hopper GPU is 80 %
of the copy.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable

import torch
from figures import Figure, Plot, command
from torch.nn import functional

from onnxops_core import native


@dataclasses.dataclass
class Row:
    name: str
    ours: Callable[[], object]
    reference: Callable[..., object]
    arguments: tuple[object, ...]
    bytes_moved: int


def _milliseconds(function: Callable[[], object]) -> float:
    """Returns the least time of a call, in events of the device."""
    for _ in range(10):
        function()
    best = float("inf")
    for _ in range(50):
        start, stop = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        start.record()
        function()
        stop.record()
        torch.cuda.synchronize()
        best = min(best, start.elapsed_time(stop))
    return best


def _rotary(x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
    first, second = x.chunk(2, -1)
    cos, sin = cos.unsqueeze(1), sin.unsqueeze(1)
    return torch.cat((first * cos - second * sin, second * cos + first * sin), -1)


def _skip_rms(x: torch.Tensor, skip: torch.Tensor, scale: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    total = x + skip
    return functional.rms_norm(total, (x.shape[-1],), scale, 1e-5), total


def _swiglu(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    return functional.silu(a) * b


def rows(dtype: torch.dtype, device: str = "cuda", length: int = 4096) -> list[Row]:
    """Returns the memory-bound operators, by default at sizes far beyond the caches."""
    x = torch.randn(16, 32, length, 128, device=device, dtype=dtype)
    cos, sin = (torch.randn(16, length, 64, device=device, dtype=dtype) for _ in range(2))
    tokens, skip = (torch.randn(16 * length, 4096, device=device, dtype=dtype) for _ in range(2))
    scale = torch.randn(4096, device=device, dtype=dtype)
    size = tokens.numel() * dtype.itemsize
    return [
        Row(
            "rotary_embedding",
            lambda: native.rotary_embedding(x, cos, sin),
            _rotary,
            (x, cos, sin),
            2 * x.numel() * dtype.itemsize,
        ),
        Row(
            "rms_normalization",
            lambda: native.rms_normalization(tokens, scale),
            lambda t, s: functional.rms_norm(t, (4096,), s, 1e-5),
            (tokens, scale),
            2 * size,
        ),
        Row(
            "skip_simplified_layer_normalization",
            lambda: native.skip_simplified_layer_normalization(tokens, skip, scale, epsilon=1e-5),
            _skip_rms,
            (tokens, skip, scale),
            4 * size,
        ),
        Row("swiglu", lambda: native.swiglu(tokens, skip), _swiglu, (tokens, skip), 3 * size),
    ]


def measure(row: Row, dtype: torch.dtype) -> dict[str, str | float | None]:
    """Time one operator, the same by torch.compile, and a copy of as many bytes."""
    source = torch.empty(row.bytes_moved // 2, dtype=torch.uint8, device="cuda")
    target = torch.empty_like(source)
    copy = _milliseconds(lambda: target.copy_(source))
    compiled = torch.compile(row.reference)
    ours, theirs = _milliseconds(row.ours), _milliseconds(lambda: compiled(*row.arguments))
    name = f"{row.name} {str(dtype).removeprefix('torch.')}"
    shares = {"share": copy / ours, "compiled_share": copy / theirs}
    return {"operator": name, "ours": ours, "compiled": theirs, "copy": copy, **shares}


def main() -> None:
    """Measure all operators in two dtypes, if there is a GPU."""
    options = command(__doc__).parse_args()
    if not torch.cuda.is_available():
        print("nothing is measured: this needs an NVIDIA GPU")
        return
    Figure(
        title=f"Native operators on {torch.cuda.get_device_name()}",
        caption="Milliseconds of a call, beside torch.compile of the same computation, and the share of the bandwidth "
        "of a copy of as many bytes, the limit of an operator that only moves memory; the aim is 0.8.",
        columns={
            "operator": "operator",
            "ours": "ms",
            "compiled": "torch.compile ms",
            "copy": "copy ms",
            "share": "share of copy",
            "compiled_share": "torch.compile",
        },
        rows=[measure(row, dtype) for dtype in (torch.bfloat16, torch.float32) for row in rows(dtype)],
        plot=Plot("bars", "operator", {"share": "onnxops-core", "compiled_share": "torch.compile"}, "share of copy"),
    ).finish(options.json)


if __name__ == "__main__":
    main()
