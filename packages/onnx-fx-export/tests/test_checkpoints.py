"""Weights from files are mapped, converted while they are written, and never loaded as a whole."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

import onnx_fx_export
from onnx_fx_export import InvalidArgumentError, SaveError, export


class Model(torch.nn.Module):
    """Weights that are stored as they are, transposed, tied, complex, and of no dimension."""

    def __init__(self, width: int = 6) -> None:
        super().__init__()
        self.linear = torch.nn.Linear(width, width)
        self.embedding, self.head = torch.nn.Embedding(9, width), torch.nn.Linear(width, 9, bias=False)
        self.head.weight = self.embedding.weight
        self.cube = torch.nn.Parameter(torch.randn(3, 3, 3))
        self.turns = torch.nn.Parameter(torch.randn(2, width, dtype=torch.complex64))
        self.scale = torch.nn.Parameter(torch.tensor(0.5))

    def forward(self, x, ids):
        hidden = torch.nn.functional.gelu(self.linear(x)) + self.embedding(ids)
        turned = torch.view_as_real(self.turns.transpose(0, 1)).sum()
        return self.head(hidden) * self.scale + turned, x[:, :3, None, None] * self.cube.permute(2, 1, 0)


@pytest.fixture
def weights() -> dict[str, torch.Tensor]:
    torch.manual_seed(1)
    return dict(Model().state_dict())


def example(n: int = 2, width: int = 6) -> tuple[torch.Tensor, torch.Tensor]:
    torch.manual_seed(n)
    return torch.randn(n, width), torch.randint(0, 9, (n,))


def unallocated(width: int = 6):
    with onnx_fx_export.enable_fake_mode():
        model = Model(width)
    return export(model, example(width=width), dynamic_shapes=({0: "n"}, {0: "n"}))


def written(weights: dict[str, torch.Tensor], folder: Path, shards: int) -> Path:
    """Write files as other tools do: each name in one of them, tied weights under one name."""
    folder.mkdir()
    names = list(weights)
    places = {}
    for shard in range(shards):
        own = {name: weights[name].clone() for name in names[shard::shards]}
        file = f"model-{shard + 1:05}-of-{shards:05}.safetensors" if shards > 1 else "model.safetensors"
        save_file(own, folder / file)
        places.update(dict.fromkeys(own, file))
    if shards > 1:
        (folder / "model.safetensors.index.json").write_text(json.dumps({"metadata": {}, "weight_map": places}))
    return folder


@pytest.mark.parametrize("tied", ["head.weight", "embedding.weight"])
@pytest.mark.parametrize("shards", [1, 3])
def test_a_folder_gives_the_weights_of_a_model_that_was_never_allocated(shards, tied, weights, tmp_path) -> None:
    reference = Model()
    reference.load_state_dict(weights)
    del weights[tied]
    program = unallocated()

    assert program.apply_weights(written(weights, tmp_path / "shards", shards)) == []

    program.save(tmp_path / "model.onnx", external_data=True)
    sizes = sum(tensor.nbytes for tensor in weights.values())
    assert sizes - 1000 < (tmp_path / "model.onnx.data").stat().st_size <= sizes
    torch.testing.assert_close(program(*example(5)), reference(*example(5)))


def test_an_index_may_stand_for_its_folder(weights, tmp_path) -> None:
    folder = written(weights, tmp_path / "shards", 2)
    assert unallocated().apply_weights(folder / "model.safetensors.index.json") == []


def test_files_of_torch_are_read_too(weights, tmp_path) -> None:
    (folder := tmp_path / "shards").mkdir()
    names = list(weights)
    files = {name: f"pytorch_model-{index % 2}.bin" for index, name in enumerate(names)}
    for file in set(files.values()):
        torch.save({name: weights[name] for name in names if files[name] == file}, folder / file)
    (folder / "pytorch_model.bin.index.json").write_text(json.dumps({"weight_map": files}))
    assert unallocated().apply_weights(folder) == []


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float64])
def test_another_dtype_is_converted_if_asked(dtype, weights, tmp_path) -> None:
    other = {name: tensor if tensor.is_complex() else tensor.to(dtype) for name, tensor in weights.items()}
    folder = written(other, tmp_path / "shards", 2)
    program = unallocated()
    with pytest.raises(InvalidArgumentError, match=r"dtype .*; the model wants .* and FLOAT; cast=True converts it"):
        program.apply_weights(folder)
    with pytest.raises(SaveError, match="never allocated"):
        program.save(tmp_path / "none.onnx")

    program.apply_weights(folder, cast=True)

    reference = Model()
    reference.load_state_dict(other)  # converts
    program.save(tmp_path / "model.onnx", external_data=True)
    same = export(reference, example(), dynamic_shapes=({0: "n"}, {0: "n"}))
    same.save(tmp_path / "same.onnx", external_data=True)
    assert (tmp_path / "model.onnx.data").read_bytes() == (tmp_path / "same.onnx.data").read_bytes()
    torch.testing.assert_close(program(*example(4)), reference(*example(4)))
    program.apply_weights(reference.state_dict())  # and back to what needs no conversion
    torch.testing.assert_close(program(*example(4)), reference(*example(4)))


def test_weights_of_more_than_a_piece_are_converted_right(tmp_path) -> None:
    width = 450  # a matrix of it in double precision has more than the MiB that is converted at once
    reference = Model(width)
    weights = {name: t if t.is_complex() else t.double() for name, t in reference.state_dict().items()}
    program = unallocated(width)

    program.apply_weights(weights, cast=True)

    program.save(tmp_path / "converted.onnx", external_data=True)
    same = export(reference, example(width=width), dynamic_shapes=({0: "n"}, {0: "n"}))
    same.save(tmp_path / "same.onnx", external_data=True)
    assert (tmp_path / "converted.onnx.data").read_bytes() == (tmp_path / "same.onnx.data").read_bytes()


@pytest.mark.parametrize("width", [4, 256])
def test_a_number_too_large_for_half_precision_is_an_error_and_no_file(width, tmp_path) -> None:
    x = torch.ones(1, width).half()
    program = export(torch.nn.Linear(width, width).half(), (x,))
    weight = torch.ones(width, width)
    weight[1, 2] = 1e6
    program.apply_weights({"weight": weight, "bias": torch.full((width,), float("inf"))}, cast=True)
    for use in (
        lambda: program.save(tmp_path / "model.onnx"),
        lambda: program.save(tmp_path / "model.onnx", external_data=True),
        lambda: program(x),
    ):
        with pytest.raises(SaveError, match=r"weight weight cannot .*1e\+06, which is too large for torch\.float16"):
            use()
    assert not list(tmp_path.iterdir())


def test_integers_are_not_converted() -> None:
    class Table(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("table", torch.arange(4))

        def forward(self, x):
            return x + self.table

    program = export(Table(), (torch.ones(4),))
    for wrong in (torch.ones(4), torch.ones(4, dtype=torch.int32)):
        with pytest.raises(InvalidArgumentError, match="the model wants"):
            program.apply_weights({"table": wrong}, cast=True)


def test_weights_keep_their_axes_in_any_order() -> None:
    class Turned(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.cube = torch.nn.Parameter(torch.randn(3, 3, 3))

        def forward(self, x):
            return x @ self.cube.permute(2, 0, 1)

    program, other = export(Turned(), (torch.randn(3, 2, 3),)), Turned()
    assert not any(node.op_type == "Transpose" for node in program.model.graph)
    program.apply_weights(other.state_dict())
    x = torch.randn(3, 2, 3)
    torch.testing.assert_close(program(x), other(x).detach())


BROKEN = {
    "nothing": (lambda folder: None, "has no checkpoint"),
    "several": (
        lambda folder: [save_file({"a": torch.ones(1)}, folder / f"{n}.safetensors") for n in "ab"],
        "several checkpoints.*no index",
    ),
    "missing shard": (
        lambda folder: (folder / "m.index.json").write_text('{"weight_map": {"a": "gone.safetensors"}}'),
        r"no checkpoint at .*gone",
    ),
    "missing tensor": (
        lambda folder: (
            save_file({"b": torch.ones(1)}, folder / "x.safetensors"),
            (folder / "m.index.json").write_text('{"weight_map": {"a": "x.safetensors"}}'),
        ),
        "lacks a, which the index says",
    ),
    "no index": (lambda folder: (folder / "m.index.json").write_text("[]"), "no weight_map"),
    "half a file": (lambda folder: (folder / "m.safetensors").write_bytes(b"half"), "not a complete safetensors file"),
    "another file": (lambda folder: (folder / "m.pt").write_bytes(b"half"), "torch cannot load"),
}


@pytest.mark.parametrize("kind", BROKEN)
def test_broken_folders_are_named(kind, tmp_path) -> None:
    make, text = BROKEN[kind]
    make(tmp_path)
    with pytest.raises(InvalidArgumentError, match=text):
        unallocated().apply_weights(tmp_path)


def test_an_example_without_data_is_refused() -> None:
    with onnx_fx_export.enable_fake_mode():
        model = Model()
    x, ids = example()
    for each in (model, Model()):
        with pytest.raises(InvalidArgumentError, match=r"example of ids is on the meta device.*torch\.zeros\(\[2\]\)"):
            export(each, (x, ids.to("meta")))
    export(lambda x: x + 1, (x.to("meta"),))


MEMORY = """
import pathlib, sys, threading, torch, onnx_fx_export

class Peak(threading.Thread):
    def run(self):
        self.most, self.ended = 0, threading.Event()
        while not self.ended.wait(0.002):
            self.most = max(self.most, own())

def own():
    lines = dict(line.split(":", 1) for line in open("/proc/self/status"))
    return int(lines["RssAnon"].split()[0]) >> 10

folder, dtype, width, layers = pathlib.Path(sys.argv[1]), getattr(torch, sys.argv[2]), *map(int, sys.argv[3:5])
if len(sys.argv) > 5:
    pathlib.Path(sys.argv[5], "cgroup.procs").write_text(str(__import__("os").getpid()))

def program(width, layers):
    with onnx_fx_export.enable_fake_mode():
        model = torch.nn.Sequential(*(torch.nn.Linear(width, width) for _ in range(layers)))
    return onnx_fx_export.export(model.to(dtype), (torch.randn(1, width).to(dtype),))

warm = program(8, 2)
warm.apply_weights({n: torch.ones(s) for n, s in (("0.weight", (8, 8)), ("0.bias", 8), ("1.weight", (8, 8)),
    ("1.bias", 8))}, cast=True)
warm.save(folder / "warm.onnx", external_data=True)
start = own()
watch = Peak(daemon=True)
watch.start()
large = program(width, layers)
large.apply_weights(folder, cast=True)
large.save(folder / "model.onnx", external_data=True)
watch.ended.set()
watch.join()
print(watch.most - start)
"""
GROUPS = Path("/sys/fs/cgroup/memory")


def linear_layers(folder: Path, width: int, layers: int, per_file: int) -> int:
    """Write a checkpoint of linear layers, one file at a time; return the number of its elements."""
    folder.mkdir()
    places = {}
    for first in range(0, layers, per_file):
        shard = {}
        for layer in range(first, min(first + per_file, layers)):
            shard[f"{layer}.weight"] = torch.full((width, width), float(layer))
            shard[f"{layer}.bias"] = torch.full((width,), float(layer))
        save_file(shard, folder / f"{first}.safetensors")
        places.update(dict.fromkeys(shard, f"{first}.safetensors"))
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": places}))
    return layers * (width + 1) * width


def peak_mib(folder: Path, *arguments: object) -> int:
    """Return by how much the memory of a process grows that writes a checkpoint as a model."""
    command = [sys.executable, "-c", MEMORY, str(folder), *map(str, arguments)]
    return int(subprocess.run(command, capture_output=True, text=True, check=True).stdout)


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="reads the memory of a process from Linux")
@pytest.mark.parametrize("dtype", ["float32", "float16"])
def test_memory_does_not_grow_with_the_weights(dtype, tmp_path) -> None:
    """256 MiB in four files: a whole weight has 16."""
    elements = linear_layers(tmp_path / "shards", 2048, 16, 4)
    assert peak_mib(tmp_path / "shards", dtype, 2048, 16) < 64
    width = 4 if dtype == "float32" else 2
    assert (tmp_path / "shards" / "model.onnx.data").stat().st_size == width * elements


@pytest.mark.wide
@pytest.mark.skipif(not os.access(GROUPS, os.W_OK), reason="needs to make a control group for memory")
def test_twelve_gib_are_written_under_a_limit_of_four(tmp_path) -> None:
    (group := GROUPS / tmp_path.name).mkdir()
    try:
        (group / "memory.limit_in_bytes").write_text(str(4 << 30))
        elements = linear_layers(tmp_path / "shards", 4096, 192, 16)
        assert 4 * elements >= 12 << 30
        assert peak_mib(tmp_path / "shards", "float32", 4096, 192, group) < 1024
        assert int((group / "memory.max_usage_in_bytes").read_text()) <= 4 << 30
        assert (tmp_path / "shards" / "model.onnx.data").stat().st_size == 4 * elements
    finally:
        group.rmdir()
        shutil.rmtree(tmp_path / "shards")
