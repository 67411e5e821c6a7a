"""Triton kernels of the native operators on an NVIDIA GPU: share of the copy bandwidth, beside torch.compile.

    python benchmarks/core_gpu.py [--json FILE]

Each operator is timed at sizes far beyond the caches; all but attention are bound by memory. The bandwidth is that of
the bytes it must read and write; the yardstick is a device-to-device copy of as many bytes. The target on a Hopper GPU
is 80 % of the copy.
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


def _interleaved(x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
    first, second = x[..., 0::2], x[..., 1::2]
    cos, sin = cos.unsqueeze(1), sin.unsqueeze(1)
    return torch.stack((first * cos - second * sin, second * cos + first * sin), -1).flatten(-2)


def _scatter(cache: torch.Tensor, update: torch.Tensor, starts: torch.Tensor) -> torch.Tensor:
    rows = torch.arange(cache.shape[0], device=cache.device)
    return cache.index_put((rows[:, None], torch.arange(cache.shape[1], device=cache.device), starts[:, None]), update)


def _nbits(a: torch.Tensor, packed: torch.Tensor, scales: torch.Tensor) -> torch.Tensor:
    values = torch.stack((packed & 15, packed >> 4), -1).flatten(-2).to(a.dtype) - 8
    return a @ (values * scales.unsqueeze(-1)).flatten(1).T


def _capped(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    scores = (q @ k.transpose(2, 3)).float() / q.shape[3] ** 0.5
    scores = 30.0 * torch.tanh(scores / 30.0)
    ahead = torch.ones(scores.shape[2:], dtype=torch.bool, device=q.device).triu(1)
    return torch.softmax(scores.masked_fill(ahead, float("-inf")), -1).to(q.dtype) @ v


def _skip_rms(x: torch.Tensor, skip: torch.Tensor, scale: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    total = x + skip
    return functional.rms_norm(total, (x.shape[-1],), scale, 1e-5), total


def _swiglu(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    return functional.silu(a) * b


def _rotary_rows(x: torch.Tensor) -> list[Row]:
    cos, sin = (torch.randn(16, x.shape[2], 64, device=x.device, dtype=x.dtype) for _ in range(2))
    size = 2 * x.numel() * x.dtype.itemsize
    return [
        Row("rotary_embedding", lambda: native.rotary_embedding(x, cos, sin), _rotary, (x, cos, sin), size),
        Row(
            "rotary_embedding interleaved",
            lambda: native.rotary_embedding(x, cos, sin, interleaved=True),
            _interleaved,
            (x, cos, sin),
            size,
        ),
    ]


def rows(dtype: torch.dtype, device: str = "cuda", length: int = 4096) -> list[Row]:
    """Returns the memory-bound operators, by default at sizes far beyond the caches."""
    x = torch.randn(16, 32, length, 128, device=device, dtype=dtype)
    tokens, skip = (torch.randn(16 * length, 4096, device=device, dtype=dtype) for _ in range(2))
    scale = torch.randn(4096, device=device, dtype=dtype)
    size = tokens.numel() * dtype.itemsize
    return [
        *_rotary_rows(x),
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
        Row(
            "layer_normalization",
            lambda: native.layer_normalization(tokens, scale, scale)[0],
            lambda t, s: functional.layer_norm(t, (4096,), s, s, 1e-5),
            (tokens, scale),
            2 * size,
        ),
        *_cache_rows(x, dtype),
        *_product_rows(dtype, device, length),
    ]


def _cache_rows(cache: torch.Tensor, dtype: torch.dtype) -> list[Row]:
    update = cache[:, :, 0].clone()
    starts = torch.arange(cache.shape[0], device=cache.device)
    return [
        Row(
            "tensor_scatter",
            lambda: native.tensor_scatter(cache, update.unsqueeze(2), starts),
            _scatter,
            (cache, update, starts),
            2 * cache.numel() * dtype.itemsize,
        )
    ]


def _product_rows(dtype: torch.dtype, device: str, length: int) -> list[Row]:
    """One token times a 4-bit matrix, which is bound by reading that; and attention, which is bound by computing."""
    size = 4 * length
    a = torch.randn(1, size, device=device, dtype=dtype)
    packed = torch.randint(0, 256, (size, size // 32, 16), device=device, dtype=torch.uint8)
    scales = torch.rand(size, size // 32, device=device, dtype=dtype)
    q, k, v = (torch.randn(4, 16, length, 128, device=device, dtype=dtype) for _ in range(3))
    return [
        Row(
            "matmul_nbits of one token",
            lambda: native.matmul_nbits(a, packed, scales, K=size, N=size, block_size=32),
            _nbits,
            (a, packed, scales),
            packed.numel() + scales.numel() * dtype.itemsize,
        ),
        Row(
            "attention with a soft cap",
            lambda: native.attention(q, k, v, is_causal=True, softcap=30.0, num_outputs=1),
            _capped,
            (q, k, v),
            4 * q.numel() * dtype.itemsize,
        ),
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
