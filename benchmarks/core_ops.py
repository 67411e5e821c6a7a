"""Native operators on the CPU beside what torch offers for the same computation.

    python benchmarks/core_ops.py [--composed] [--json FILE] [--only NAME]

One thread, one process. Each row compares functions that compute the same: ours, torch's, and that of
``torch.onnx.ops`` where it has one. They are timed in alternation, so that a slow moment of the machine hits all, and
the best rounds are compared. A row whose ratio to torch exceeds its target is marked.
"""

from __future__ import annotations

import dataclasses
import os
import tempfile
import time
from collections.abc import Callable

import torch
import torch.onnx.ops
from figures import Cell, Figure, Plot, command
from torch.nn import functional

from onnxops_core import native


@dataclasses.dataclass
class Row:
    name: str
    ours: Callable[[], object]
    theirs: Callable[[], object]
    target: float
    note: str = ""
    in_torch_onnx: Callable[[], object] | None = None


def _time(function: Callable[[], object], repeats: int) -> float:
    # The thread's own time: on a shared machine the clock would count other processes too.
    start = time.thread_time()
    for _ in range(repeats):
        function()
    return (time.thread_time() - start) / repeats


def measure(row: Row, budget: float) -> list[float]:
    """Returns the least seconds per call of ours, of torch's and, if there is one, of torch.onnx's function."""
    functions = [row.ours, row.theirs, *([row.in_torch_onnx] if row.in_torch_onnx else [])]
    for function in functions:
        for _ in range(3):
            function()
    once = max(1e-7, *(_time(function, 1) for function in functions))
    repeats = max(1, int(0.004 / once))
    rounds = max(7, min(60, int(budget / (2 * once * repeats))))
    times = [[_time(function, repeats) for function in functions] for _ in range(rounds)]
    return [min(column) for column in zip(*times, strict=True)]


def attention_rows() -> list[Row]:
    rows = []
    sdpa = functional.scaled_dot_product_attention
    for length in (1, 128, 512, 2048):
        q, k, v = (torch.randn(1, 8, length, 64) for _ in range(3))
        rows.append(
            Row(
                f"attention causal f32 D64 S{length}",
                lambda q=q, k=k, v=v: native.attention(q, k, v, is_causal=True, num_outputs=1),
                lambda q=q, k=k, v=v: sdpa(q, k, v, is_causal=True),
                1.05 if length > 1 else 12 / 4.5,
                "SDPA; at S1 the target is 12 us",
                lambda q=q, k=k, v=v: torch.onnx.ops.attention(q, k, v, is_causal=True),
            )
        )
    for length in (128, 512, 2048):
        q, k, v = (torch.randn(1, 8, length, 64) for _ in range(3))
        mask = torch.randn(1, 1, length, length)
        rows.append(
            Row(
                f"attention float mask f32 D64 S{length}",
                lambda q=q, k=k, v=v, m=mask: native.attention(q, k, v, m, num_outputs=1),
                lambda q=q, k=k, v=v, m=mask: sdpa(q, k, v, m),
                1.05,
                "SDPA",
                lambda q=q, k=k, v=v, m=mask: torch.onnx.ops.attention(q, k, v, m),
            )
        )
    q, k, v = torch.randn(1, 8, 512, 64), torch.randn(1, 2, 512, 64), torch.randn(1, 2, 512, 64)
    rows.append(
        Row(
            "attention grouped causal f32 S512",
            lambda: native.attention(q, k, v, is_causal=True, num_outputs=1),
            lambda: sdpa(q, k, v, is_causal=True, enable_gqa=True),
            1.05,
            "SDPA",
            lambda: torch.onnx.ops.attention(q, k, v, is_causal=True),
        )
    )
    return rows


def decode_rows() -> list[Row]:
    sdpa = functional.scaled_dot_product_attention
    q, k, v = (torch.randn(1, 8, 1, 128) for _ in range(3))
    past_k, past_v = (torch.randn(1, 8, 511, 128) for _ in range(2))
    cache_k, cache_v = (torch.randn(1, 8, 1024, 128) for _ in range(2))
    at, valid = torch.tensor([511]), torch.tensor([512])

    def concatenated() -> torch.Tensor:
        return sdpa(q, torch.cat((past_k, k), 2), torch.cat((past_v, v), 2))

    def in_place() -> torch.Tensor:
        cache_k[:, :, 511:512] = k
        cache_v[:, :, 511:512] = v
        return sdpa(q, cache_k[:, :, :512], cache_v[:, :, :512])

    def ours_in_place() -> torch.Tensor:
        native.tensor_scatter_(cache_k, k, at)
        native.tensor_scatter_(cache_v, v, at)
        result: torch.Tensor = native.attention(
            q, cache_k, cache_v, None, None, None, valid, is_causal=True, num_outputs=1
        )
        return result

    return [
        Row(
            "decode past 511 D128 H8",
            lambda: native.attention(q, k, v, None, past_k, past_v, is_causal=True, num_outputs=3),
            concatenated,
            1.0,
            "concat + SDPA",
            lambda: torch.onnx.ops.attention(q, k, v, None, past_k, past_v),
        ),
        Row("decode in place 512 D128 H8", ours_in_place, in_place, 1.0, "in-place cache + SDPA"),
    ]


def _half_split(x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
    first, second = x.chunk(2, -1)
    return torch.cat((first * cos - second * sin, second * cos + first * sin), -1)


def rotary_rows() -> list[Row]:
    rows = []
    for length in (1, 128, 2048):
        x = torch.randn(1, 8, length, 128)
        cos, sin = torch.randn(1, length, 64), torch.randn(1, length, 64)
        wide = cos.unsqueeze(1), sin.unsqueeze(1)
        ours = lambda x=x, c=cos, s=sin: native.rotary_embedding(x, c, s)  # noqa: E731
        rows.append(
            Row(
                f"rotary f32 H8 D128 S{length}",
                ours,
                lambda x=x, w=wide: _half_split(x, *w),
                1.0,
                "half-split torch",
                lambda x=x, c=cos, s=sin: torch.onnx.ops.rotary_embedding(x, c, s),
            )
        )
        rows.append(Row(f"rotary f32 H8 D128 S{length} (copy)", ours, x.clone, 1.6, "clone; an aim, not a limit"))
    return rows


def normalization_rows() -> list[Row]:
    rows = []
    for tokens in (1, 128, 2048):
        x, scale = torch.randn(tokens, 1024), torch.randn(1024)
        rows.append(
            Row(
                f"rms_normalization f32 {tokens}x1024",
                lambda x=x, s=scale: native.rms_normalization(x, s),
                lambda x=x, s=scale: functional.rms_norm(x, (1024,), s, 1e-5),
                1.0 if tokens > 1 else 2.0,
                "torch's rms_norm",
            )
        )
    return rows


def peak_memory() -> dict[str, float]:
    """Returns the largest resident growth in MiB of attention calls that want Y alone, at S 2048 and H 8."""
    from torch.profiler import ProfilerActivity, profile

    q, k, v = (torch.randn(1, 8, 2048, 64) for _ in range(3))
    calls = {
        "causal": {"is_causal": True},
        "softcap": {"softcap": 5.0, "is_causal": True},
        "window": {"left_window_size": 128, "right_window_size": 0},
    }
    peaks = {}
    for name, attributes in calls.items():
        with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as profiler:
            native.attention(q, k, v, **attributes, num_outputs=1)
        held = largest = 0
        for event in profiler.profiler.kineto_results.events():
            if event.name() == "[memory]":
                held += event.nbytes()
                largest = max(largest, held)
        peaks[name] = largest / 2**20
    return peaks


def figures(row: Row, budget: float) -> dict[str, Cell]:
    """Returns a row of the table, in microseconds."""
    ours, theirs, *others = measure(row, budget)
    return {
        "operator": row.name,
        "beside": row.note,
        "ours": ours * 1e6,
        "theirs": theirs * 1e6,
        "ratio": ours / theirs,
        "target": row.target,
        "late": "yes" if ours / theirs > row.target else "no",
        "onnx": others[0] * 1e6 if others else "",
        "onnx_ratio": ours / others[0] if others else "",
    }


def main() -> None:
    """Measure all rows and the memory of attention."""
    parser = command(__doc__)
    parser.add_argument("--only", default="")
    parser.add_argument("--composed", action="store_true", help="without the optional C kernels")
    parser.add_argument("--budget", type=float, default=1.5, help="seconds per row")
    options = parser.parse_args()
    torch.set_num_threads(1)
    torch.manual_seed(0)
    cache = tempfile.TemporaryDirectory()
    os.environ["XDG_CACHE_HOME"] = cache.name
    if not options.composed:
        native.build_cpu_kernels()
    measured: list[dict[str, Cell]] = []
    with torch.no_grad():
        for row in (*attention_rows(), *decode_rows(), *rotary_rows(), *normalization_rows()):
            if options.only in row.name:
                measured.append(figures(row, options.budget))
        memory = {} if options.only else peak_memory()
    peaks = ", ".join(f"{name} {mebibytes:.1f} MiB" for name, mebibytes in memory.items())
    built = "without" if options.composed else "with"
    held = f" Peak memory of attention over 2048 positions: {peaks}." if peaks else ""
    Figure(
        title="Native operators beside torch, one thread",
        caption="Microseconds of a call on the CPU, the best of many rounds in turn with what torch offers for the "
        "same computation, and with the operator of the same name in torch.onnx.ops where it has one, "
        f"{built} the optional C kernels; less is better.{held}",
        columns={
            "operator": "operator",
            "beside": "beside",
            "ours": "us",
            "theirs": "torch us",
            "ratio": "ratio",
            "target": "aim",
            "late": "beyond it",
            "onnx": "torch.onnx.ops us",
            "onnx_ratio": "ratio",
        },
        rows=measured,
        plot=Plot("bars", "operator", {"ratio": "onnxops-core / torch"}, "time over that of torch"),
    ).finish(options.json)


if __name__ == "__main__":
    main()
