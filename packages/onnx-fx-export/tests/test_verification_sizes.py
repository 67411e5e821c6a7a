"""``verify=True`` compares at sizes that capture has not seen."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
import torch

from onnx_fx_export import DynamicShapeError, VerificationError, export
from onnxops_decomp.exporting import other_sizes


class SpecialForOne(torch.nn.Module):
    def forward(self, x):
        return x * 2 if x.shape[0] == 1 else x + 1


class Projected(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = torch.nn.Linear(4, 3)

    def forward(self, x, y):
        return self.linear(x), torch.cat([x, y], 1).sum(1)


def test_a_model_that_treats_one_row_otherwise_is_refused_for_an_example_of_one_row():
    with pytest.raises(DynamicShapeError, match="rows"):
        export(SpecialForOne(), (torch.randn(1, 2),), dynamic_shapes=[{0: "rows"}])


def test_sizes_below_a_declared_bound_are_not_asked_for():
    rows = torch.export.Dim("rows", min=2)
    program = export(SpecialForOne(), (torch.randn(3, 2),), dynamic_shapes=[{0: rows}], verify=True)
    x = torch.randn(7, 2)
    torch.testing.assert_close(program(x), x + 1)


def test_an_export_that_is_wrong_at_other_sizes_only_is_found():
    def first_three_rows(op, self):
        bounds = [op.constant(np.array([bound])) for bound in (0, 3, 2**31)]
        rows = [op.Slice(self, low, high, bounds[0]) for low, high in itertools.pairwise(bounds)]
        return op.Concat(op.Relu(rows[0]), rows[1], axis=0)

    table = {torch.ops.aten.relu.default: first_three_rows}
    x = -torch.rand(3, 4)
    export(torch.nn.ReLU(), (x,), custom_translation_table=table, verify=True)
    with pytest.raises(VerificationError, match="at rows = 4"):
        export(torch.nn.ReLU(), (x,), custom_translation_table=table, dynamic_shapes=[{0: "rows"}], verify=True)


def test_sizes_that_the_model_refuses_are_passed_over():
    class Pairs(torch.nn.Module):
        def forward(self, x):
            return x.reshape(-1, 2, 3).sum(1)

    program = export(Pairs(), (torch.randn(4, 3),), dynamic_shapes=[{0: "rows"}], verify=True)
    x = torch.randn(10, 3)
    torch.testing.assert_close(program(x), x.reshape(-1, 2, 3).sum(1))


def test_a_warning_tells_of_sizes_at_which_the_model_itself_fails():
    class AtLeastTwo(torch.nn.Module):
        def forward(self, x):
            return x.topk(2, dim=0).values

    with pytest.warns(UserWarning, match="Not verified at rows = 1 .*the model itself fails there"):
        export(AtLeastTwo(), (torch.randn(4, 3),), dynamic_shapes=[{0: "rows"}], verify=True)


def test_each_group_of_sizes_differs_between_dimensions_and_ends_with_the_smallest():
    example = (torch.randn(3, 4), torch.randn(3, 5))
    program = export(Projected(), example, dynamic_shapes=[{0: "rows"}, {0: "rows", 1: "columns"}])
    groups = [[sizes for sizes, _ in group] for group in other_sizes(program, example, {}, 1)]
    assert groups == [[{"rows": 4, "columns": 7}, {"rows": 6, "columns": 10}], [{"rows": 1, "columns": 1}]]


def test_calls_at_other_sizes_have_the_shapes_and_contents_of_the_example():
    example = (torch.randn(3, 4), torch.randn(3, 5))
    program = export(Projected(), example, dynamic_shapes=[{0: "rows"}, {0: "rows", 1: "columns"}])
    _, ((x, y), kwargs) = next(next(other_sizes(program, example, {}, 1)))
    assert (x.shape, y.shape, kwargs) == ((4, 4), (4, 7), {})
    rows, columns = [0, 0, 1, 2], [0, 0, 1, 2, 2, 3, 4]
    torch.testing.assert_close(x, example[0][rows])
    torch.testing.assert_close(y, example[1][rows][:, columns])


def test_a_model_without_dynamic_dimensions_has_no_other_sizes():
    example = (torch.randn(3, 4), torch.randn(3, 5))
    assert not list(other_sizes(export(Projected(), example), example, {}, 1))


@pytest.mark.parametrize("bounds", ["any", "declared"])
def test_a_padded_encoder_is_verified_as_it_runs_without_gradients(bounds):
    layer = torch.nn.TransformerEncoderLayer(8, 2, 16, batch_first=True)
    encoder = torch.nn.TransformerEncoder(layer, 2).eval()
    x, mask = torch.randn(2, 5, 8), torch.tensor([[False] * 3 + [True] * 2, [False] * 5])
    dim = torch.export.Dim.DYNAMIC
    sizes = {0: dim, 1: dim} if bounds == "any" else {0: "batch", 1: "length"}

    program = export(
        encoder,
        (x,),
        kwargs={"src_key_padding_mask": mask},
        dynamic_shapes={"src": sizes, "src_key_padding_mask": sizes},
        verify=True,
    )

    with torch.no_grad():
        expected = encoder(x, src_key_padding_mask=mask)
    actual = program(x, src_key_padding_mask=mask)
    # What runs without gradients leaves zeros behind the ends of sequences.
    assert torch.all(expected[mask] == 0)
    torch.testing.assert_close(actual, expected, rtol=1e-4, atol=1e-5)


def test_sorted_inputs_stay_sorted_at_other_sizes():
    class Search(torch.nn.Module):
        def forward(self, boundaries, x):
            return torch.searchsorted(boundaries, x, right=True)

    args = (torch.arange(9.0), torch.tensor([0.5, 3.0, 20.0]))
    export(Search(), args, dynamic_shapes=[{0: "n"}, {0: "m"}], verify=True)


def test_a_model_that_the_runtime_does_not_run_is_not_verified():
    class Reduced(torch.nn.Module):
        def forward(self, x):
            return x.bfloat16().amax(-1).float()

    with pytest.raises(VerificationError, match=r"ONNX Runtime cannot run the exported model.*ReduceMax"):
        export(Reduced(), (torch.randn(3, 2),), verify=True)
