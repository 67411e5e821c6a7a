"""Loops and recurrent layers of an imported model keep dynamic lengths, in eager mode and where torch records."""

from __future__ import annotations

import pickle

import numpy as np
import onnx
import pytest
import torch
from importable_models import DYNAMIC, doubling, wanted

from onnxops_decomp import to_torch


def tensors(feeds: dict[str, np.ndarray]) -> tuple[torch.Tensor, ...]:
    return tuple(torch.from_numpy(np.asarray(each)) for each in feeds.values())


def assert_agrees(made, model: onnx.ModelProto, feeds: dict[str, np.ndarray]) -> None:
    for got, want in zip(made if isinstance(made, tuple) else (made,), wanted(model, feeds), strict=True):
        torch.testing.assert_close(got.detach(), torch.from_numpy(want), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("name", ["LSTM", "Loop over a dimension", "Scan"])
def test_a_pickled_module_comes_back_with_names_and_metadata(name: str) -> None:
    make, cases, _ = DYNAMIC[name]
    model = make()
    before = to_torch(model)
    after = pickle.loads(pickle.dumps(before))

    assert after.code == before.code
    assert after.meta == before.meta
    assert [node.meta for node in after.graph.nodes] == [node.meta for node in before.graph.nodes]
    assert list(after.state_dict()) == list(before.state_dict())
    for feeds in cases:
        assert_agrees(after(*tensors(feeds)), model, feeds)


@pytest.mark.parametrize("name", DYNAMIC)
def test_eager_mode_agrees_with_the_runtime(name: str) -> None:
    make, inputs, _ = DYNAMIC[name]
    module = to_torch(make())
    for feeds in inputs:
        assert_agrees(module(*tensors(feeds)), make(), feeds)


def exported(name: str) -> torch.export.ExportedProgram:
    make, inputs, axes = DYNAMIC[name]
    dims = [dict.fromkeys(axes, torch.export.Dim.DYNAMIC), *({} for _ in range(len(inputs[0]) - 1))]
    if "lengths" in inputs[0]:
        dims[1] = {0: torch.export.Dim.DYNAMIC}
    return torch.export.export(to_torch(make()), tensors(inputs[0]), dynamic_shapes=tuple(dims))


@pytest.mark.parametrize("name", DYNAMIC)
def test_an_exported_program_takes_other_lengths(name: str) -> None:
    make, inputs, _ = DYNAMIC[name]
    program = exported(name)
    for feeds in inputs:
        if 1 not in feeds["x"].shape:  # torch.export takes sizes of 0 and 1 for others
            assert_agrees(program.module()(*tensors(feeds)), make(), feeds)


@pytest.mark.parametrize("name", ["LSTM", "Loop over a dimension", "Loop of a count at most", "Scan"])
def test_torch_compile_takes_other_lengths(name: str) -> None:
    make, inputs, _ = DYNAMIC[name]
    compiled = torch.compile(to_torch(make()), fullgraph=True, backend="aot_eager", dynamic=True)
    for feeds in inputs:
        assert_agrees(compiled(*tensors(feeds)), make(), feeds)


def test_a_loop_without_a_limit_that_collects_is_refused_where_torch_records() -> None:
    with pytest.raises(Exception, match="without a limit"):
        torch.export.export(to_torch(doubling(True, False, True)), (torch.ones(3),))
