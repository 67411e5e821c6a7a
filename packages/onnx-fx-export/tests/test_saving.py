"""A saved model is one file when small, streamed to external data when asked, and equals the program."""

from __future__ import annotations

import io
import tracemalloc
from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import pytest
import torch

from onnx_fx_export import SaveError, export
from onnxops_decomp.exporting import MAX_SINGLE_FILE_BYTES, StreamedTensor


def run(path: Path, x: torch.Tensor) -> torch.Tensor:
    session = onnxruntime.InferenceSession(str(path), providers=["CPUExecutionProvider"])
    return torch.from_numpy(np.asarray(session.run(None, {session.get_inputs()[0].name: x.numpy()})[0]))


@pytest.fixture
def model() -> torch.nn.Module:
    return torch.nn.Sequential(torch.nn.Linear(64, 64), torch.nn.ReLU(), torch.nn.Linear(64, 8))


@pytest.mark.parametrize("external", [None, False, True])
def test_saved_models_equal_the_program(model, external, tmp_path: Path) -> None:
    path = tmp_path / "model.onnx"
    export(model, (torch.randn(2, 64),), path, external_data=external)
    assert sorted(entry.name for entry in tmp_path.iterdir()) == (
        ["model.onnx", "model.onnx.data"] if external else ["model.onnx"]
    )
    x = torch.randn(2, 64)
    torch.testing.assert_close(run(path, x), model(x), rtol=1e-5, atol=1e-5)
    onnx.checker.check_model(str(path), full_check=True)


def test_weights_above_a_gibibyte_go_beside_the_model(model, tmp_path: Path, monkeypatch) -> None:
    assert MAX_SINGLE_FILE_BYTES == 1 << 30
    size = 4 * sum(parameter.numel() for parameter in model.parameters())
    for limit, names in ((size + 1, ["a.onnx"]), (size, ["a.onnx", "a.onnx.data"])):
        monkeypatch.setattr("onnxops_decomp.exporting.program.saving.MAX_SINGLE_FILE_BYTES", limit)
        export(model, (torch.randn(2, 64),), tmp_path / "a.onnx")
        assert sorted(file.name for file in tmp_path.iterdir()) == names


def test_a_session_of_a_large_model_reads_a_file_that_goes_with_it(model, monkeypatch) -> None:
    program = export(model, (torch.randn(2, 64),))
    x = torch.randn(2, 64)
    expected = program(x)
    monkeypatch.setattr("onnxops_decomp.exporting.program.running.MAX_SINGLE_FILE_BYTES", 1)
    paths: list[str] = []

    def initializer(path: str):
        paths.append(path)
        return onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])

    program.initialize_inference_session(initializer)
    torch.testing.assert_close(program(x), expected)
    assert Path(paths[0]).exists()
    program.release()
    assert not Path(paths[0]).exists()


@pytest.mark.parametrize("broken", ["write", "replace"])
@pytest.mark.parametrize("external", [False, True])
def test_a_save_that_fails_leaves_what_was_there(model, external, broken, tmp_path: Path, monkeypatch) -> None:
    path = tmp_path / "model.onnx"
    program = export(model, (torch.randn(2, 64),), path, external_data=external)
    before = {file.name: file.read_bytes() for file in tmp_path.iterdir()}

    def full(*args, **kwargs):
        raise OSError(28, "No space left on device")

    if broken == "replace":
        monkeypatch.setattr("onnxops_decomp.exporting.program.saving.os.replace", full)
    elif external:
        for tensor in program.model.graph.initializers.values():
            monkeypatch.setattr(type(tensor.const_value), "tofile", full)
    else:
        monkeypatch.setattr(
            "onnxops_decomp.exporting.program.saving.write_model", lambda model, file: (file.write(b"half"), full())
        )
    with pytest.raises(SaveError, match="No space left"):
        program.save(path, external_data=external)
    assert {file.name: file.read_bytes() for file in tmp_path.iterdir()} == before
    with pytest.raises(SaveError):
        program.save(tmp_path / "other.onnx", external_data=external)
    assert {file.name for file in tmp_path.iterdir()} == before.keys()


@pytest.mark.parametrize("in_memory", [False, True])
def test_one_file_is_written_without_a_copy_of_the_weights(in_memory: bool, tmp_path: Path) -> None:
    large = torch.nn.Sequential(*(torch.nn.Linear(1500, 1500, bias=False) for _ in range(3))).eval()
    x = torch.randn(2, 3, 1500)
    program = export(large, (x,))
    weights = sum(parameter.nbytes for parameter in large.parameters())
    file = io.BytesIO() if in_memory else tmp_path / "model.onnx"

    tracemalloc.start()
    program.save(file)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()

    # One weight of three at a time is transposed; a file in memory is there on purpose, and grows by half at most.
    assert peak < weights * (1.75 if in_memory else 0.5)
    content = file.getvalue() if in_memory else file.read_bytes()
    session = onnxruntime.InferenceSession(content, providers=["CPUExecutionProvider"])
    (result,) = session.run(None, {session.get_inputs()[0].name: x.numpy()})
    torch.testing.assert_close(torch.from_numpy(result), large(x).detach(), rtol=1e-4, atol=1e-5)


def test_external_data_can_be_moved_with_the_model(model, tmp_path: Path) -> None:
    export(model, (torch.randn(2, 64),), tmp_path / "model.onnx", external_data=True)
    moved = tmp_path / "elsewhere"
    moved.mkdir()
    for name in ("model.onnx", "model.onnx.data"):
        (tmp_path / name).rename(moved / name)
    x = torch.randn(2, 64)
    torch.testing.assert_close(run(moved / "model.onnx", x), model(x), rtol=1e-5, atol=1e-5)


def test_a_model_can_be_saved_without_its_weights(model, tmp_path: Path) -> None:
    program = export(model, (torch.randn(2, 64),), tmp_path / "model.onnx", export_params=False)
    saved = onnx.load(tmp_path / "model.onnx")
    assert not saved.graph.initializer
    assert len(saved.graph.input) == 5
    assert len(program.model.graph.inputs) == 1
    assert len(program.model.graph.initializers) == 4


def test_weights_can_be_inputs_too(model, tmp_path: Path) -> None:
    program = export(model, (torch.randn(2, 64),), tmp_path / "model.onnx", keep_initializers_as_inputs=True)
    saved = onnx.load(tmp_path / "model.onnx")
    assert len(saved.graph.initializer) == 4
    assert len(saved.graph.input) == 5
    assert len(program.model.graph.inputs) == 1


def test_saving_twice_gives_the_same_bytes(model, tmp_path: Path) -> None:
    program = export(model, (torch.randn(2, 64),))
    program.save(tmp_path / "a.onnx")
    program.save(tmp_path / "b.onnx")
    assert (tmp_path / "a.onnx").read_bytes() == (tmp_path / "b.onnx").read_bytes()


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.uint8, torch.bool])
@pytest.mark.parametrize("perm", [(0, 1), (1, 0)])
def test_weights_are_streamed_in_pieces(dtype: torch.dtype, perm: tuple[int, int], monkeypatch) -> None:
    monkeypatch.setattr("onnxops_decomp.exporting.weights.initializers._BLOCK_BYTES", 100)
    tensor = (torch.rand(70, 130) * 3).to(dtype).permute(perm)
    file = io.BytesIO()
    StreamedTensor(tensor).tofile(file)
    assert file.getvalue() == tensor.contiguous().reshape(-1).view(torch.uint8).numpy().tobytes()


def test_weights_of_any_rank_are_streamed(monkeypatch) -> None:
    monkeypatch.setattr("onnxops_decomp.exporting.weights.initializers._BLOCK_BYTES", 100)
    for tensor in (torch.tensor(3.0), torch.empty(0, 4), torch.randn(5, 6, 40).permute(2, 0, 1)):
        file = io.BytesIO()
        StreamedTensor(tensor).tofile(file)
        assert file.getvalue() == tensor.contiguous().numpy().tobytes()


def test_transposed_weights_are_never_copied_whole() -> None:
    model = torch.nn.Sequential(torch.nn.Linear(2048, 2048), torch.nn.Linear(2048, 2048))
    program = export(model, (torch.randn(2, 3, 2048),))
    sizes = []

    class Counting(io.BytesIO):
        def write(self, data) -> int:
            sizes.append(memoryview(data).nbytes)
            return sizes[-1]

    for value in program.model.graph.initializers.values():
        value.const_value.tofile(Counting())
    assert sum(sizes) == 4 * 2 * (2048 * 2048 + 2048)
    assert max(sizes) <= 8 << 20
