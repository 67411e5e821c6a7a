"""Writing a folder for generation from a checkpoint: memory, and time beside copying the same bytes.

    python benchmarks/checkpoints.py [--gib 2 ...] [--limit GIB] [--experts] [--only fp32 int4 ...] [--json FILE]

The checkpoint is a Llama of random weights in float32, in files of 2 GiB; with `--experts` a Mixtral, whose experts are
stored each by itself and joined while they are read. Nothing generates: the weights go from file
to file. The peak is of the process's own memory (RssAnon), the largest weight included, from the moment at which
everything is imported. `save` is the stage that reads, converts and writes; before it and before the copy, the system
forgets what it has read where it lets us (`/proc/sys/vm/drop_caches`), and both end in `fsync`. With `--limit` the
process runs in a memory control group of so many GiB, page cache included, where the system lets us make one.
"""

from __future__ import annotations

import contextlib
import json
import multiprocessing
import os
import shutil
import tempfile
import time
from pathlib import Path
from typing import Any

import torch
from figures import Cell, Figure, Peak, command, quiet

PRECISIONS = ("fp32", "fp16", "int8", "int4")
WIDTH, INNER, VOCABULARY, EXPERTS = 4096, 11008, 32000, 8
SHARD_BYTES = 2 << 30
GROUP = Path("/sys/fs/cgroup/memory/onnx-fx-export-benchmark")


def configuration(gib: float, *, experts: bool) -> Any:
    """Return the configuration of a model of about that many GiB."""
    from transformers import LlamaConfig, MixtralConfig

    inner, copies = (INNER // EXPERTS, EXPERTS) if experts else (INNER, 1)
    layer = WIDTH * (4 * WIDTH + 3 * inner * copies)
    sizes = {
        "hidden_size": WIDTH, "intermediate_size": inner, "num_attention_heads": 32, "num_key_value_heads": 32,
        "vocab_size": VOCABULARY,
        "num_hidden_layers": max(1, round((gib * (1 << 30) / 4 - 2 * VOCABULARY * WIDTH) / layer)),
    }  # fmt: skip
    config = MixtralConfig(**sizes, num_local_experts=EXPERTS) if experts else LlamaConfig(**sizes)
    config.architectures, config.dtype = ["MixtralForCausalLM" if experts else "LlamaForCausalLM"], torch.float32
    return config


def stored(name: str, shape: torch.Size) -> dict[str, torch.Size]:
    """Return the tensors of a checkpoint that a weight is made of, by name."""
    block, _, part = name.partition("mlp.experts.")
    if not part:
        return {name.replace("mlp.gate.", "block_sparse_moe.gate."): shape}
    count, rows, columns = shape
    names = {"gate_up_proj": ("w1", "w3"), "down_proj": ("w2",)}[part]
    return {
        f"{block}block_sparse_moe.experts.{expert}.{name}.weight": torch.Size((rows // len(names), columns))
        for expert in range(count)
        for name in names
    }


def write_checkpoint(folder: Path, gib: float, *, experts: bool) -> tuple[int, int]:
    """Write a checkpoint of about that many GiB without ever having it in memory.

    Returns:
        The bytes of its weights, and of the largest weight of the model.
    """
    from safetensors.torch import save_file
    from transformers import AutoModelForCausalLM

    config = configuration(gib, experts=experts)
    config.save_pretrained(folder)
    with torch.device("meta"):
        state = AutoModelForCausalLM.from_config(config).state_dict()
    shapes = {name: shape for key, tensor in state.items() for name, shape in stored(key, tensor.shape).items()}
    numbers = torch.randn(VOCABULARY * WIDTH + len(shapes)) * 0.02
    places: dict[str, str] = {}
    shard: dict[str, torch.Tensor] = {}
    for begin, (name, shape) in enumerate(shapes.items()):
        shard[name] = numbers[begin : begin + shape.numel()].view(shape).clone()
        places[name] = f"model-{begin:05}.safetensors"
        if sum(tensor.nbytes for tensor in shard.values()) >= SHARD_BYTES or begin == len(shapes) - 1:
            places.update(dict.fromkeys(shard, places[name]))
            save_file(shard, folder / places[name], metadata={"format": "pt"})
            shard = {}
    (folder / "model.safetensors.index.json").write_text(json.dumps({"metadata": {}, "weight_map": places}))
    return sum(4 * shape.numel() for shape in shapes.values()), max(4 * tensor.numel() for tensor in state.values())


def forget_files() -> None:
    """Let the system write what it has to, and forget what it has read, if it lets us."""
    os.sync()
    with contextlib.suppress(OSError):
        Path("/proc/sys/vm/drop_caches").write_text("1")


def synced(folder: Path) -> None:
    """Wait until the disk has the files of a folder."""
    for path in folder.iterdir():
        with path.open("rb") as file:
            os.fsync(file.fileno())


def copy_seconds(source: Path, out: Path) -> float:
    """Return how long it takes to copy the files of a folder."""
    forget_files()
    start = time.perf_counter()
    shutil.copytree(source, out)
    synced(out)
    seconds = time.perf_counter() - start
    shutil.rmtree(out)
    return seconds


def write_folder(source: Path, out: Path, precision: str) -> dict[str, float]:
    """Write the folder in this process, and return its peak in bytes and its seconds by stage."""
    quiet()
    from onnx_fx_export.generation import export_folder

    small = Path(tempfile.mkdtemp(dir=out.parent))
    write_small(small)
    export_folder(small / "model", small / "out", precision, verify=False, tokenizer=False)  # type: ignore[arg-type]
    begun: dict[str, float] = {}

    def note(stage: str) -> None:
        if stage.startswith("save"):
            forget_files()
        begun[stage.split()[0]] = time.perf_counter()

    start = time.perf_counter()
    with Peak() as peak:
        export_folder(source, out, precision, verify=False, tokenizer=False, progress=note)  # type: ignore[arg-type]
        synced(out)
    end = time.perf_counter()
    return {"peak": float(peak.own), "save": end - begun["save"], "whole": end - start}


def write_small(folder: Path) -> None:
    """Write a small model, with which everything is imported and cached."""
    from transformers import AutoModelForCausalLM, LlamaConfig

    sizes = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 1, "num_attention_heads": 4}
    AutoModelForCausalLM.from_config(LlamaConfig(**sizes, vocab_size=64)).save_pretrained(folder / "model")


def enter_group(limit: float) -> None:
    """Put this process under a limit of GiB."""
    GROUP.mkdir(exist_ok=True)
    (GROUP / "memory.limit_in_bytes").write_text(str(int(limit * (1 << 30))))
    (GROUP / "cgroup.procs").write_text(str(os.getpid()))


def in_own_process(source: Path, out: Path, precision: str, limit: float | None) -> dict[str, float]:
    """Write the folder in a new process, under a limit of GiB if there is one."""
    given = {} if limit is None else {"initializer": enter_group, "initargs": (limit,)}
    with multiprocessing.get_context("spawn").Pool(1, **given) as pool:
        return pool.apply(write_folder, (source, out, precision))


def measure(gib: float, precision: str, limit: float | None, *, experts: bool) -> dict[str, Cell]:
    """Measure one size and precision."""
    # On the disk of the repository, as temporary places may lie in memory, and where git does not look.
    room = Path("bench-output")
    room.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory(dir=room) as folder:
        source, out = Path(folder).resolve() / "model", Path(folder).resolve() / "out"
        source.mkdir()
        size, largest = write_checkpoint(source, gib, experts=experts)
        copying = copy_seconds(source, out)
        found = in_own_process(source, out, precision, limit)
    return {
        "name": f"{gib:g} GiB{' with experts' if experts else ''}, {precision}",
        "weights": size / 2**30,
        "largest": largest / 2**20,
        "peak": found["peak"] / 2**20,
        "save": found["save"],
        "copying": copying,
        "ratio": found["save"] / copying,
        "whole": found["whole"],
    }


def main() -> None:
    """Measure and print the table."""
    parser = command(__doc__, PRECISIONS, ["fp32", "int4"])
    parser.add_argument("--gib", type=float, nargs="*", default=[2.0])
    parser.add_argument("--limit", type=float)
    parser.add_argument("--experts", action="store_true")
    options = parser.parse_args()
    Figure(
        title="Language models from checkpoints",
        caption="Peak of the process's own memory, the largest weight included, and seconds of reading, converting and "
        "writing all weights beside those of copying the checkpoint, both from the disk and to the disk; `export` is "
        "everything together, capture included; less is better.",
        columns={
            "name": "checkpoint, written as", "weights": "weights GiB", "largest": "largest weight MiB",
            "peak": "peak MiB", "save": "save s", "copying": "copy s", "ratio": "save / copy", "whole": "export s",
        },
        rows=[
            measure(gib, name, options.limit, experts=options.experts) for gib in options.gib for name in options.only
        ],
    ).finish(options.json)  # fmt: skip


if __name__ == "__main__":
    main()
