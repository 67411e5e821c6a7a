"""Importing a model of 1 GiB: time beside reading its bytes, and memory.

    python benchmarks/importing_weights.py [--gib 1] [--json FILE]

The model is a chain of products, its weights inside the file or beside it. The import is timed with a first look at
each page of the weights, in turn with a read of the same files into memory; both find the files in the system's cache.
The peak is of the process's own memory (RssAnon), in a process that has imported a small model before.
"""

from __future__ import annotations

import multiprocessing
import tempfile
from pathlib import Path

import numpy as np
import onnx
from figures import Cell, Figure, Peak, command, over, quiet, take_turns
from onnx import TensorProto, helper, numpy_helper

SIDE = 4096
PAGE = 1024
"""Floats in a page of memory."""


def write_model(path: Path, count: int, side: int, beside: bool) -> None:
    """Write a chain of products with square weights."""
    rng = np.random.default_rng(0)
    values = rng.standard_normal((side, side), np.float32)
    nodes = [helper.make_node("MatMul", [f"x{place}", f"w{place}"], [f"x{place + 1}"]) for place in range(count)]
    weights = [numpy_helper.from_array(values * (place + 1), f"w{place}") for place in range(count)]
    infos = [helper.make_tensor_value_info(name, TensorProto.FLOAT, ["n", side]) for name in ("x0", f"x{count}")]
    graph = helper.make_graph(nodes, "chain", infos[:1], infos[1:], weights)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=9)
    onnx.save(model, path, save_as_external_data=beside, location=f"{path.name}.data")


def imported(path: Path) -> float:
    """Import a model and look at each page of its weights."""
    from onnxops_decomp import to_torch

    return sum(float(each.detach().view(-1)[::PAGE].sum()) for each in to_torch(path).parameters())


def read(folder: Path) -> None:
    """Read the files of a folder into memory."""
    for path in folder.iterdir():
        with path.open("rb", buffering=0) as file:
            left = memoryview(bytearray(path.stat().st_size))
            while len(left):
                left = left[file.readinto(left) :]


def peaks(small: Path, path: Path) -> tuple[int, int]:
    """Return the peaks of an import, own memory and all resident pages, beyond what importing needs at all."""
    quiet()
    imported(small)
    with Peak() as peak:
        imported(path)
    return peak.own, peak.resident


def measure(name: str, gib: float, beside: bool) -> dict[str, Cell]:
    """Measure one kind of file."""
    with tempfile.TemporaryDirectory(dir=".") as root:
        folders = [Path(root) / each for each in ("small", "large")]
        paths = [folder / "model.onnx" for folder in folders]
        for path, count, side in zip(paths, (1, round(gib * 2**30 / 4 / SIDE**2)), (64, SIDE), strict=True):
            path.parent.mkdir()
            write_model(path, count, side, beside)
        size = sum(path.stat().st_size for path in folders[1].iterdir())
        ours, bare = take_turns([lambda: imported(paths[1]), lambda: read(folders[1])], rounds=5)
        with multiprocessing.get_context("spawn").Pool(1) as pool:
            own, resident = pool.apply(peaks, tuple(paths))
    return {
        "name": name,
        "size": size / 2**30,
        "import": ours,
        "read": bare,
        "ratio": over(ours, bare),
        "own": own / 2**20,
        "resident": resident / 2**20,
    }


def main() -> None:
    """Measure and print the table."""
    parser = command(__doc__)
    parser.add_argument("--gib", type=float, default=1.0)
    options = parser.parse_args()
    quiet()
    Figure(
        title="Importing large models",
        caption="Seconds of `to_torch` with a first look at each page of the weights, beside reading the same bytes; "
        "the process's own memory at its peak, and with the pages of the file that are mapped; less is better.",
        columns={
            "name": "weights",
            "size": "GiB",
            "import": "import s",
            "read": "read s",
            "ratio": "import / read",
            "own": "own MiB",
            "resident": "resident MiB",
        },
        rows=[
            measure("inside the file", options.gib, beside=False),
            measure("beside it", options.gib, beside=True),
        ],
    ).finish(options.json)


if __name__ == "__main__":
    main()
