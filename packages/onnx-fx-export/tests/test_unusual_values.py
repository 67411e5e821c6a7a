"""A branch on a size that makes no difference to usual numbers is kept apart nonetheless."""

from __future__ import annotations

import math
import warnings

import pytest
import torch
from torch.export import Dim

from onnx_fx_export import InvalidArgumentError, export
from onnx_fx_export.sizes.trial_runs import TrialRuns


def bounded(x):
    return x.clamp(-50, 50)


def without_nan(x):
    return torch.nan_to_num(x)


def same(x):
    return x + 0


class Branches(torch.nn.Module):
    def __init__(self, decides, change):
        super().__init__()
        self.decides, self.change = decides, change

    def forward(self, x):
        return self.change(x) if self.decides(x) else x * 1


def more_than_three(x):
    return x.shape[0] > 3


def not_one(x):
    return x.shape[0] != 1


def several_elements(x):
    return x.numel() > 3


def limited(x):
    return min(x.shape[0], 4) == 4


def by_a_root(x):
    return math.sqrt(x.shape[0]) >= 2


UNUSUAL = {bounded: torch.tensor([1e3, -1e3]), without_nan: torch.tensor([torch.nan, 1.0])}
DECISIONS = [more_than_three, not_one, several_elements, limited, by_a_root]


def exported(model):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)
        return export(model, (torch.randn(6, 2),), dynamic_shapes=({0: Dim.DYNAMIC},))


@pytest.mark.parametrize("change", UNUSUAL)
@pytest.mark.parametrize("decides", DECISIONS)
def test_sizes_of_the_other_branch_are_refused_or_right(decides, change):
    model = Branches(decides, change)
    program = exported(model)

    refused = set()
    for rows in (1, 2, 3, 4, 9):
        x = UNUSUAL[change].expand(rows, 2)
        try:
            result = program(x)
        except InvalidArgumentError:
            refused.add(rows)
        else:
            torch.testing.assert_close(result, model(x), equal_nan=True)
    assert refused == {rows for rows in (1, 2, 3) if not decides(torch.ones(rows, 2))}


@pytest.mark.parametrize("decides", DECISIONS)
def test_sizes_of_a_branch_that_does_the_same_are_taken(decides):
    model = Branches(decides, same)
    program = exported(model)

    for rows in (1, 2, 3, 9):
        x = torch.randn(rows, 2)
        torch.testing.assert_close(program(x), model(x))


class BothDecide(torch.nn.Module):
    def forward(self, x):
        return x * 2 if x.sum() > 0 or x.shape[0] > 3 else x - 1


def test_a_size_that_decides_with_the_data_is_kept_as_a_condition():
    program = exported(BothDecide())

    for x in (torch.ones(5, 2), -torch.ones(5, 2)):
        torch.testing.assert_close(program(x), x * 2)
    with pytest.raises(InvalidArgumentError):
        program(-torch.ones(3, 2))


@pytest.mark.parametrize(("example", "runs"), [(torch.arange(6).reshape(3, 2), 2), (torch.randn(3, 2), 4)])
def test_no_run_is_made_twice(example, runs, monkeypatch):
    points, run = [], TrialRuns.run

    def counted(trials, sizes, *args, **kwargs):
        points.append(sizes)
        return run(trials, sizes, *args, **kwargs)

    monkeypatch.setattr(TrialRuns, "run", counted)
    model = Branches(not_one, same)
    program = export(model, (example,), dynamic_shapes=({0: Dim.DYNAMIC},))

    assert len(points) == runs
    torch.testing.assert_close(program(example[:1]), model(example[:1]))


def test_a_model_whose_code_leaves_nothing_open_is_not_run(monkeypatch):
    """Most of the code that its classes bring along loads and patches models, and asks for classes there."""
    from transformers import ConvNextConfig, ConvNextModel

    model = ConvNextModel(ConvNextConfig(hidden_sizes=[4, 8, 8, 8], depths=[1, 1, 1, 1])).eval()
    monkeypatch.setattr(TrialRuns, "run", lambda *_, **__: pytest.fail("the model was run"))
    program = export(model, (torch.randn(2, 3, 32, 32),), dynamic_shapes=({0: Dim.DYNAMIC},))

    x = torch.randn(3, 3, 32, 32)
    torch.testing.assert_close(program(x).last_hidden_state, model(x).last_hidden_state, rtol=1e-4, atol=1e-4)
