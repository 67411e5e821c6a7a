"""What the exporter uses of torch without a public promise is still there and means the same."""

import pytest
import torch
from torch_names import found, private_names

import onnx_fx_export
from onnx_fx_export.torch_private import Writes, fake_like, guard_texts, is_decided_by_data


def test_guards_are_texts_over_input_sizes() -> None:
    class Model(torch.nn.Module):
        def forward(self, x):
            return x + 1 if x.shape[0] > 5 else x

    program = torch.export.export(Model(), (torch.ones(8),), dynamic_shapes=({0: torch.export.Dim.DYNAMIC},))
    assert "L['x'].size()[0] > 5" in guard_texts(program)


def test_writes_are_noted_of_tensors_without_data_and_their_views() -> None:
    written, read = fake_like([torch.ones(2, 3), torch.ones(2, 3)])
    with Writes() as writes:
        written.view(-1).add_(read.view(-1))
    assert writes.reached(written)
    assert not writes.reached(read)


def test_symbols_of_sizes_that_data_decides_are_told_from_those_of_inputs() -> None:
    class Model(torch.nn.Module):
        def forward(self, x):
            return x.nonzero()

    program = torch.export.export(Model(), (torch.ones(8),), dynamic_shapes=({0: torch.export.Dim.DYNAMIC},))
    values = (node.meta.get("val") for node in program.graph.nodes)
    sizes = [value.shape[0].node.expr for value in values if isinstance(value, torch.Tensor)]
    assert [is_decided_by_data(size) for size in sizes] == [False, True]


@pytest.mark.parametrize("name", private_names(onnx_fx_export))
def test_every_private_name_in_use_is_there(name: str) -> None:
    assert found(name) is not None
