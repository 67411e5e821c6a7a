"""Triton kernels of the native operators on an NVIDIA GPU: share of the copy bandwidth, beside torch.compile.

    python benchmarks/core_gpu.py [--json FILE]

Each memory-bound operator is timed at sizes far beyond the caches. The bandwidth is that of the bytes it must
read and write; the yardstick is a device-to-device copy of as many bytes. The target on a Hopper GPU is 80 %
of the copy.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
from collections.abc import Callable

import torch
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


def main() -> None:
    """Prints a table, and writes it as JSON if asked to."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json")
    options = parser.parse_args()
    if not torch.cuda.is_available():
        raise SystemExit("needs an NVIDIA GPU")
    results = {}
    for dtype in (torch.bfloat16, torch.float32):
        for row in rows(dtype):
            source = torch.empty(row.bytes_moved // 2, dtype=torch.uint8, device="cuda")
            target = torch.empty_like(source)
            copy = _milliseconds(lambda t=target, s=source: t.copy_(s))  # type: ignore[misc]
            compiled = torch.compile(row.reference)
            ours = _milliseconds(row.ours)
            theirs = _milliseconds(lambda c=compiled, r=row: c(*r.arguments))  # type: ignore[misc]
            share = copy / ours
            name = f"{row.name} {str(dtype).removeprefix('torch.')}"
            late = "" if share >= 0.8 else "  BELOW TARGET"
            print(
                f"{name:50s} {ours:8.3f} ms  torch.compile {theirs:8.3f} ms  {share:6.1%} of copy bandwidth{late}",
                flush=True,
            )
            results[name] = {"ours_ms": ours, "compiled_ms": theirs, "copy_ms": copy, "share": share}
    if options.json:
        with open(options.json, "w", encoding="utf-8") as file:
            json.dump({"device": torch.cuda.get_device_name(), "results": results}, file, indent=1)


if __name__ == "__main__":
    main()
