"""Exporting and saving a model of 2.5 GiB: memory beyond the loaded model, and time beside writing the same bytes.

    python benchmarks/saving.py [--gib 2.5] [--json FILE]

The model is a chain of linear layers, whose weights ONNX wants transposed, and of convolutions with batch
normalization, whose weights are computed anew. The peak is of the process's own memory (RssAnon) from the start of
the export to the end of the save. The disk's own speed is measured in turn with the saves: the same number of bytes
through ``write``, into a file of the same folder. Both end when the disk has them (``fsync``).
"""

from __future__ import annotations

import os
import statistics
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

import torch
from figures import Cell, Figure, Peak, by_torch, command, quiet

import onnx_fx_export

WIDTH = 4096
CHANNELS = 512
TURNS, BUDGET = 3, 40  # saves to time, and the seconds after which no further one begins


def build(gib: float) -> torch.nn.Module:
    """Return a model with about that many GiB of weights."""
    layers: list[torch.nn.Module] = [torch.nn.Conv2d(4, CHANNELS, 3, bias=False), torch.nn.BatchNorm2d(CHANNELS)]
    for _ in range(8):
        layers += [torch.nn.Conv2d(CHANNELS, CHANNELS, 3, padding=1, bias=False), torch.nn.BatchNorm2d(CHANNELS)]
    layers += [torch.nn.AdaptiveAvgPool2d(1), torch.nn.Flatten(), torch.nn.Unflatten(1, (1, -1))]
    layers += [torch.nn.Linear(CHANNELS, WIDTH)]
    left = gib * (1 << 30) - 4 * sum(tensor.numel() for layer in layers for tensor in layer.parameters())
    layers += [torch.nn.Linear(WIDTH, 4 * WIDTH), torch.nn.Linear(4 * WIDTH, WIDTH)]
    layers += [torch.nn.Linear(WIDTH, WIDTH) for _ in range(int(left / 4 / WIDTH / WIDTH) - 8)]
    return torch.nn.Sequential(*layers).eval()


def ours(model: torch.nn.Module, example: torch.Tensor) -> Callable[[Path], None]:
    """Export with onnx-fx-export and return what saves the result."""
    return onnx_fx_export.export(model, (example,)).save


def theirs(model: torch.nn.Module, example: torch.Tensor) -> Callable[[Path], None]:
    """Export with torch.onnx and return what saves the result."""
    program = by_torch(model, (example,), dynamo=True)
    return lambda path: program.save(path, external_data=True)


def legacy(model: torch.nn.Module, example: torch.Tensor) -> Callable[[Path], None]:
    """Return what exports with the TorchScript exporter of torch.onnx, which saves while it exports."""
    # Above 2 GiB it takes nothing but a string for a path.
    return lambda path: by_torch(model, (example,), str(path), dynamo=False, external_data=True)


def seconds(action: Callable[[Path], object], path: Path) -> float:
    """Return how long it takes to write new files to the disk, once the system has nothing else to write."""
    for old in path.parent.iterdir():
        old.unlink()
    os.sync()
    start = time.perf_counter()
    action(path)
    for new in path.parent.iterdir():
        with new.open("rb") as file:
            os.fsync(file.fileno())
    return time.perf_counter() - start


def write_plainly(model: torch.nn.Module, path: Path) -> None:
    """Write the bytes of all weights with ``write``, 256 KiB at a time: some systems take longer for more."""
    with path.open("wb") as file:
        for tensor in model.parameters():
            data = memoryview(tensor.detach().reshape(-1).view(torch.uint8).numpy())
            for begin in range(0, len(data), 1 << 18):
                file.write(data[begin : begin + (1 << 18)])


def measure_or_none(
    name: str, export: Callable[..., Callable[[Path], None]], model: torch.nn.Module
) -> dict[str, Cell]:
    """Measure one exporter of torch; the figures of one that fails are None."""
    try:
        return measure(name, export, model)
    except Exception:
        return {**dict.fromkeys(COLUMNS), "exporter": name}


def measure(name: str, export: Callable[..., Callable[[Path], None]], model: torch.nn.Module) -> dict[str, Cell]:
    """Measure one exporter."""
    example = torch.randn(2, 4, 8, 8)
    size = sum(tensor.numel() * tensor.element_size() for tensor in model.parameters())
    with tempfile.TemporaryDirectory(dir=".") as folder:
        path = Path(folder) / "model.onnx"
        export(build(0), example)(path)  # imports, and what torch caches
        with Peak() as peak:
            save = export(model, example)
            save(path)
        turns: list[tuple[float, float]] = []
        begin = time.perf_counter()
        # The legacy exporter takes a minute and more for each.
        while len(turns) < TURNS and time.perf_counter() - begin < BUDGET:
            turns.append((seconds(save, path), seconds(partial(write_plainly, model), path)))
    saving, writing = (statistics.median(column) for column in zip(*turns, strict=True))
    return {
        "exporter": name,
        "weights": size / 2**30,
        "peak": peak.own / 2**20,
        "share": 100 * peak.own / size,
        "saving": saving,
        "writing": writing,
        "ratio": statistics.median(mine / plain for mine, plain in turns),
    }


COLUMNS = {
    "exporter": "exporter",
    "weights": "weights GiB",
    "peak": "peak beyond the model MiB",
    "share": "% of the weights",
    "saving": "save s",
    "writing": "write s",
    "ratio": "save / write",
}


def main() -> None:
    """Measure the exporters and print the table."""
    parser = command(__doc__)
    parser.add_argument("--gib", type=float, default=2.5)
    options = parser.parse_args()
    quiet()
    model = build(options.gib)
    sides = {"torch.onnx": theirs, "torch.onnx, legacy": legacy}
    Figure(
        title="Saving a large model",
        caption="Memory that export and save take beyond the loaded model, and the time of a save beside writing the "
        "same bytes, both until the disk has them; the legacy exporter writes while it exports, so its time is that of "
        "both; less is better.",
        columns=COLUMNS,
        rows=[
            measure("onnx-fx-export", ours, model),
            *(measure_or_none(name, export, model) for name, export in sides.items()),
        ],
    ).finish(options.json)


if __name__ == "__main__":
    main()
