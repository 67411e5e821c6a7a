"""Peak memory of an export into a file beside ``torch.onnx.export``, dynamo and legacy, each in a process of its own.

    python benchmarks/export_memory.py [--json FILE]

Counts what the process holds at its peak beyond what it held before the export: the model's weights are there
already, so a copy of them shows. Needs Linux, whose kernel counts the peak itself.
"""

from __future__ import annotations

import contextlib
import io
import logging
import subprocess
import sys
import tempfile
import warnings
from pathlib import Path

import torch
from figures import Figure, Plot, command

LEGACY_OPSET = 20
SIDES = {"ours": "onnx-fx-export", "dynamo": "torch.onnx", "legacy": "torch.onnx, legacy"}


class Layers(torch.nn.Module):
    """Linear layers with a normalization each: many weights, few nodes."""

    def __init__(self, width: int, depth: int) -> None:
        super().__init__()
        self.layers = torch.nn.ModuleList(torch.nn.Linear(width, width) for _ in range(depth))
        self.norms = torch.nn.ModuleList(torch.nn.LayerNorm(width) for _ in range(depth))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for layer, norm in zip(self.layers, self.norms, strict=True):
            x = norm(x + layer(x).relu())
        return x


MODELS = {"64 MiB, 4 layers": (2048, 4), "512 MiB, 32 layers": (2048, 32), "64 MiB, 256 layers": (256, 256)}


def export(side: str, model: torch.nn.Module, inputs: tuple[torch.Tensor, ...], path: Path) -> None:
    """Export into a file as a user of that exporter would."""
    if side == "ours":
        import onnx_fx_export

        onnx_fx_export.export(model, inputs, opset_version=LEGACY_OPSET).save(path)
        return
    with contextlib.redirect_stdout(io.StringIO()):
        torch.onnx.export(model, inputs, path, dynamo=side == "dynamo", opset_version=LEGACY_OPSET, verbose=False)


def resident(field: str) -> int:
    """Return a size of this process in KiB: `VmRSS` is that of now, `VmHWM` the largest since the last reset."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith(f"{field}:"))


def measure_here(side: str, name: str) -> float:
    """Return by how many MiB this process grows at most during an export."""
    width, depth = MODELS[name]
    model, inputs = Layers(width, depth).eval(), (torch.randn(2, width),)
    with tempfile.TemporaryDirectory() as folder:
        # Imports and caches are no part of an export: a small model has loaded them all.
        export(side, Layers(8, 1).eval(), (torch.randn(2, 8),), Path(folder) / "small.onnx")
        Path("/proc/self/clear_refs").write_text("5")
        before = resident("VmRSS")
        export(side, model, inputs, Path(folder) / "model.onnx")
    return (resident("VmHWM") - before) / 1024


def measure(side: str, name: str) -> float | None:
    """Return what a new process measures; None where the export fails."""
    arguments = [sys.executable, __file__, "--measure", side, name]
    done = subprocess.run(arguments, capture_output=True, text=True)
    return float(done.stdout.splitlines()[-1]) if done.returncode == 0 else None


def main() -> None:
    """Measure all models by all exporters."""
    parser = command(__doc__)
    parser.add_argument("--measure", nargs=2, metavar=("SIDE", "MODEL"), help="measure one export in this process")
    options = parser.parse_args()
    if not Path("/proc/self/clear_refs").exists():
        print("nothing is measured: this needs Linux")
        return
    if options.measure:
        warnings.filterwarnings("ignore")
        logging.disable(logging.WARNING)
        print(measure_here(*options.measure))
        return
    Figure(
        title="Peak memory of an export into a file",
        caption="MiB that a process holds at its peak beyond what it held before the export, the model's weights "
        "included; less is better.",
        columns={"model": "weights, layers", **{side: f"{title} MiB" for side, title in SIDES.items()}},
        rows=[{"model": name} | {side: measure(side, name) for side in SIDES} for name in MODELS],
        plot=Plot("bars", "model", SIDES, "MiB beyond what the process held before"),
    ).finish(options.json)


if __name__ == "__main__":
    main()
