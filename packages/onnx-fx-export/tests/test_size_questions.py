"""Code that treats a dynamic size of 0 or 1 apart is never captured silently."""

from __future__ import annotations

import itertools
import math
import warnings
from collections.abc import Callable

import pytest
import torch
from torch.export import Dim

from onnx_fx_export import DynamicShapeError, InvalidArgumentError, export
from onnx_fx_export.inputs.arguments import FunctionModule

APART = "treats size 1 of a dynamic dimension differently"


class SpecialForOne(torch.nn.Module):
    def forward(self, x):
        return x * 2 if x.shape[0] == 1 else x + 1


class SpecialForNone(torch.nn.Module):
    def forward(self, x):
        return x - 5 if x.numel() == 0 else x + 1


class AsksByTruth(torch.nn.Module):
    def forward(self, x):
        return torch.cat([x, x]) if x.shape[0] - 1 else x


class AsksBoth(torch.nn.Module):
    def forward(self, x, y):
        return x + 1 if x.shape[0] + y.shape[0] > 2 else x * 3


class Squeezes(torch.nn.Module):
    def forward(self, x):
        return torch.relu(x).squeeze()


class SqueezesOne(torch.nn.Module):
    def forward(self, x):
        return torch.relu(x).squeeze(0)


class SameBothWays(torch.nn.Module):
    def forward(self, x):
        return x + x if x.shape[0] == 1 else x * 2


class CausalUnlessOne(torch.nn.Module):
    def forward(self, x):
        return torch.nn.functional.scaled_dot_product_attention(x, x, x, is_causal=bool(x.shape[2] > 1))


class OneRowLater(torch.nn.Module):
    """The second size is asked about only where the first one is 1, so capture never sees that question."""

    def forward(self, x):
        if x.shape[0] == 1:
            return x * 2 if x.shape[1] == 1 else x + 2
        return x + 1


def exported(model, *args, dims=None, **options):
    return export(model, args, dynamic_shapes=dims or [{0: "rows"} for _ in args], **options)


@pytest.mark.parametrize("model", [SpecialForOne(), AsksByTruth(), SqueezesOne(), OneRowLater()])
def test_a_branch_for_one_row_is_told_of_and_refused(model) -> None:
    with pytest.warns(UserWarning, match=APART):
        program = exported(model, torch.randn(3, 2))
    for rows in (2, 5):
        x = torch.randn(rows, 2)
        torch.testing.assert_close(program(x), model(x))
    with pytest.raises(InvalidArgumentError, match="rows"):
        program(torch.randn(1, 2))


def test_the_warning_names_the_line_that_asks() -> None:
    with pytest.warns(UserWarning, match=rf"{__file__}:{SpecialForOne.forward.__code__.co_firstlineno + 1}"):
        exported(SpecialForOne(), torch.randn(3, 2))


def test_an_example_of_zeros_does_not_hide_the_branch() -> None:
    class Doubled(torch.nn.Module):
        def forward(self, x):
            return x * 2 if x.shape[0] == 1 else x * 3

    with pytest.warns(UserWarning, match=APART):
        exported(Doubled(), torch.zeros(3, 2))


def test_a_branch_for_no_rows_is_refused_at_no_rows_only() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        program = exported(SpecialForNone(), torch.randn(3, 2))
    for rows in (1, 4):
        x = torch.randn(rows, 2)
        torch.testing.assert_close(program(x), x + 1)
    with pytest.raises(InvalidArgumentError, match="rows"):
        program(torch.randn(0, 2))


def test_a_question_about_two_sizes_is_a_condition_on_both() -> None:
    with pytest.warns(UserWarning, match=APART):
        program = exported(AsksBoth(), torch.randn(3), torch.randn(4), dims=[{0: "rows"}, {0: "columns"}])
    x = torch.randn(1)
    torch.testing.assert_close(program(x, torch.randn(2)), x + 1)
    with pytest.raises(InvalidArgumentError, match=r"columns \+ rows > 2"):
        program(x, torch.randn(1))


def test_squeeze_without_an_axis_asks_about_every_dynamic_one() -> None:
    with pytest.warns(UserWarning, match=APART):
        program = exported(Squeezes(), torch.randn(3, 1, 4), dims=[{0: "rows", 2: "columns"}])
    assert program(torch.randn(2, 1, 5)).shape == (2, 5)
    for shape in ((1, 1, 5), (2, 1, 1)):
        with pytest.raises(InvalidArgumentError, match="!= 1"):
            program(torch.randn(shape))


@pytest.mark.parametrize("function", [torch.cov, torch.corrcoef])
def test_a_call_that_squeezes_its_result_asks_about_its_size(function: Callable[..., torch.Tensor]) -> None:
    with pytest.warns(UserWarning, match=APART):
        program = exported(FunctionModule(lambda x: function(x)), torch.randn(3, 4), dims=[{0: "rows", 1: "columns"}])
    x = torch.randn(2, 5)
    torch.testing.assert_close(program(x), function(x))
    with pytest.raises(InvalidArgumentError, match="rows != 1"):
        program(torch.randn(1, 5))


def test_a_squeeze_that_nothing_is_computed_with_is_tried_at_one() -> None:
    def unused(x: torch.Tensor) -> torch.Tensor:
        x.squeeze().repeat(2, 1).double()
        return x + 1

    def counted(x: torch.Tensor) -> torch.Tensor:
        return x * x.squeeze().dim()

    program = exported(FunctionModule(unused), torch.randn(3, 4), dims=[{0: "rows"}])
    assert program.constraints.conditions == ()
    with pytest.warns(UserWarning, match=APART):
        program = exported(FunctionModule(counted), torch.randn(3, 4), dims=[{0: "rows"}])
    with pytest.raises(InvalidArgumentError, match="rows != 1"):
        program(torch.randn(1, 4))


@pytest.mark.parametrize(
    ("index", "least"),
    [(slice(2), 2), (slice(-2, None), 2), (slice(3), 3), (slice(1), 1), (slice(1, None), 1), (slice(None, -2), 2)],
)
@pytest.mark.parametrize("dim", ["rows", Dim.DYNAMIC])
def test_what_a_slice_leaves_is_not_taken_for_granted(index: slice, least: int, dim) -> None:
    """``x[:2]`` of one row is one row, and torch says that it has two."""

    def filled(x):
        x = x * 1
        x[index] = 1
        return x, x[index] + 1

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        program = exported(FunctionModule(filled), torch.randn(6, 3), dims=[{0: dim}])
    for rows in range(9):
        x = torch.randn(rows, 3)
        if rows >= least:
            torch.testing.assert_close(tuple(program(x)), filled(x))
        else:
            with pytest.raises(InvalidArgumentError, match=f">= {least}"):
                program(x)


@pytest.mark.parametrize(
    "copied",
    [
        lambda y: y.mT.reshape(-1),
        lambda y: y.t().contiguous(),
        lambda y: y.t().flatten(),
        lambda y: y[:, 1:].ravel(),
        lambda y: y[:, :-4].reshape(-1),
    ],
)
def test_a_copy_that_is_a_view_at_some_sizes_is_not_taken_for_one(copied) -> None:
    """What is written to it then reaches the tensor that it was taken of."""

    def read_later(x):
        y = x * 1
        copied(y).add_(1)
        return y + 0

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        program = exported(FunctionModule(read_later), torch.randn(7, 8), dims=[{0: "rows", 1: "columns"}])
    taken = 0
    for rows, columns in itertools.product((1, 2, 3, 6), range(1, 8)):
        x = torch.randn(rows, columns)
        try:
            torch.testing.assert_close(program(x), read_later(x))
            taken += 1
        except InvalidArgumentError:
            continue
    assert taken >= 6


def test_a_copy_that_is_a_view_at_size_one_is_told_of_with_its_line() -> None:
    def read_later(x):
        y = x * 1
        y.mT.reshape(-1).add_(1)
        return y + 0

    line = read_later.__code__.co_firstlineno + 2
    with pytest.warns(UserWarning, match=rf"{APART}, at\n  .*test_size_questions.py:{line}\n"):
        exported(FunctionModule(read_later), torch.randn(7, 8), dims=[{0: "rows", 1: "columns"}])


def test_a_copy_that_alone_is_read_later_may_be_a_view() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        function = FunctionModule(lambda x: (x * 1).mT.reshape(-1).add_(1))
        program = exported(function, torch.randn(7, 8), dims=[{0: "rows", 1: "columns"}])
    for shape in ((1, 4), (3, 1), (1, 1), (5, 2)):
        x = torch.randn(shape)
        torch.testing.assert_close(program(x), function(x))


def test_a_slice_that_needs_two_is_told_of_with_its_line() -> None:
    with pytest.warns(UserWarning, match=rf"{APART}, at\n  .*test_size_questions.py:\d+\n"):
        exported(FunctionModule(lambda x: x[:2] + 1), torch.randn(6, 3), dims=[{0: "rows"}])


@pytest.mark.parametrize("model", [SameBothWays(), CausalUnlessOne()])
def test_a_branch_that_computes_the_same_is_left_alone(model) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        program = exported(model, torch.randn(3, 2, 4, 8), dims=[{0: "rows", 2: "length"}])
    for rows, length in ((1, 1), (1, 4), (3, 1), (2, 6)):
        x = torch.randn(rows, 2, length, 8)
        torch.testing.assert_close(program(x), model(x))


def test_a_declared_bound_ends_the_questions() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        program = exported(SpecialForOne(), torch.randn(3, 2), dims=[{0: Dim("rows", min=2)}])
    with pytest.raises(InvalidArgumentError, match="rows >= 2"):
        program(torch.randn(1, 2))


def test_a_model_without_questions_has_no_conditions() -> None:
    model = torch.nn.Sequential(torch.nn.Linear(2, 3), torch.nn.BatchNorm1d(3)).eval()
    program = exported(model, torch.randn(3, 2))
    assert program.constraints.conditions == ()
    x = torch.randn(1, 2)
    torch.testing.assert_close(program(x), model(x))


def test_trying_size_one_leaves_the_models_buffers_alone() -> None:
    class Counting(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("calls", torch.zeros(()))

        def forward(self, x):
            self.calls += 1
            return x + x if x.shape[0] == 1 else x * 2

    model = Counting()
    exported(model, torch.randn(3, 2), state="io")
    assert model.calls == 0


def test_comparisons_are_as_before_after_an_export() -> None:
    before = torch.SymInt.__eq__
    exported(torch.nn.ReLU(), torch.randn(3))
    assert torch.SymInt.__eq__ is before


def test_sizes_that_follow_from_others_follow_them_to_size_one():
    class Cached(torch.nn.Module):
        def forward(self, x, past, mask):
            y = torch.cat([past, x], 1) * mask
            return y.sum(1) if x.shape[1] == 1 else y.cumsum(1)[:, -1]

    def inputs(past, length):
        return torch.randn(2, length), torch.randn(2, past), torch.rand(past + length)

    names = ({1: "length"}, {1: "past"}, {0: "total"})
    with warnings.catch_warnings():
        warnings.simplefilter("error", UserWarning)
        program = export(Cached(), inputs(5, 3), dynamic_shapes=names)

    for example in (inputs(6, 1), inputs(4, 2)):
        torch.testing.assert_close(program(*example), Cached()(*example))
    with pytest.raises(InvalidArgumentError):
        program(*inputs(6, 1)[:2], torch.rand(8))


@pytest.mark.parametrize("past", ["past", Dim.DYNAMIC])
def test_a_total_that_is_declared_first_may_be_as_small_as_its_parts(past) -> None:
    def function(new, mask, past):
        return (torch.cat([past, new], 1) * mask.unsqueeze(-1)).sum(1)

    def args(length):
        return torch.randn(2, 1, 3), torch.rand(2, length + 1), torch.randn(2, length, 3)

    program = export(function, args(4), dynamic_shapes=(None, {1: "total"}, {1: past}))
    names = ["past + 1", "past"] if past == "past" else ["total", "total - 1"]
    assert [str(value.shape[1]) for value in program.model.graph.inputs[1:]] == names
    for length in (0, 1, 2, 7):
        torch.testing.assert_close(program(*(a := args(length))), function(*a))


def test_a_total_that_is_asked_about_may_be_as_small_as_its_parts() -> None:
    def function(new, mask, past):
        keys = torch.cat([past, new], 1)
        whole = mask[:, : keys.shape[1]]
        return (keys * whole.unsqueeze(-1)).sum(1)

    def args(length):
        return torch.randn(2, 1, 3), torch.rand(2, length + 1), torch.randn(2, length, 3)

    program = export(function, args(4), dynamic_shapes=(None, {1: "total"}, {1: "past"}))
    for length in (1, 2, 7):
        torch.testing.assert_close(program(*(a := args(length))), function(*a))
    new, mask, past = args(4)
    with pytest.raises(InvalidArgumentError):
        program(new, mask[:, :3], past)


@pytest.mark.parametrize("strict", [False, True])
@pytest.mark.parametrize("case", ["squeezed", "first rows"])
def test_what_calls_of_a_captured_program_take_for_granted_is_a_condition(case, strict) -> None:
    class Cut(torch.nn.Module):
        def forward(self, x):
            return x.squeeze(0) + 1 if case == "squeezed" else x[:2].sum(0) * x[:2].shape[0]

    model, shapes = Cut(), {"x": {0: torch.export.Dim("n")}}
    captured = torch.export.export(model, (torch.randn(5, 3),), dynamic_shapes=shapes, strict=strict)
    with pytest.warns(UserWarning, match="size 1"):
        program = export(captured)
    x = torch.randn(4, 3)
    torch.testing.assert_close(program(x), model(x))
    with pytest.raises(InvalidArgumentError, match="captured for"):
        program(torch.randn(1, 3))


def test_a_declared_minimum_of_a_captured_program_is_kept() -> None:
    def shapes():
        return ({0: Dim("n", min=3)}, {0: Dim("m")})

    module = FunctionModule(lambda x, y: (x.sum(), y.sum()))
    program = export(torch.export.export(module, (torch.ones(5), torch.ones(4)), dynamic_shapes=shapes()))
    program(torch.ones(3), torch.ones(1))
    with pytest.raises(InvalidArgumentError, match=">= 3"):
        program(torch.ones(2), torch.ones(4))


class ShiftedRight(torch.nn.Module):
    """Moves ids by one place, as decoders do in training; torch.export takes 3 for the least length of that."""

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        shifted = ids.new_zeros(ids.shape)
        shifted[:, 1:] = ids[:, :-1].clone()
        shifted[:, 0] = 1
        return shifted


class OneApart(torch.nn.Module):
    """Does something else where two are left of three."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        rest = x[:, 1:]
        return -rest.sum(1) if rest.shape[1] == 1 else rest.amax(1)


@pytest.mark.parametrize(
    "length",
    [Dim("s"), Dim("s", max=60), Dim("s", min=1, max=60), Dim("s", min=2), "s", Dim.DYNAMIC],
    ids=["Dim", "max", "min 1", "min 2", "name", "DYNAMIC"],
)
def test_sizes_that_only_torch_leaves_out_are_left_in(length: object) -> None:
    model = ShiftedRight()
    program = export(model, (torch.randint(9, (2, 7)),), dynamic_shapes=({0: Dim("b"), 1: length},))
    for size in (1, 2, 3, 11)[1 if getattr(length, "min", 0) == 2 else 0 :]:
        ids = torch.randint(9, (3, size))
        torch.testing.assert_close(program(ids), model(ids))


def test_sizes_that_are_equal_by_chance_are_left_in() -> None:
    def spectrum(x: torch.Tensor) -> torch.Tensor:
        return torch.fft.rfft(x, dim=0).abs()

    program = export(FunctionModule(spectrum), (torch.randn(5, 4),), dynamic_shapes=[{0: "n", 1: "m"}])
    for sizes in ((6, 4), (7, 6), (5, 3), (2, 2)):
        x = torch.randn(sizes)
        torch.testing.assert_close(program(x), spectrum(x))


# Each agrees with what is captured where the answer differs first, and not at other sizes with that answer.
SELDOM_APART = {
    "half of one is the other": lambda x: x[:, :2].sum() if x.shape[0] // 2 == x.shape[1] else x.sum(),
    "as many rows as columns": lambda x: x[:3].sum() if x.shape[0] == x.shape[1] else x.sum(),
    "half of it is 1": lambda x: x[:2].sum() if x.shape[0] // 2 == 1 else x.sum(),
}


@pytest.mark.parametrize("case", SELDOM_APART)
def test_answers_of_the_model_are_not_judged_by_one_agreement(case: str) -> None:
    function = SELDOM_APART[case]
    program = export(FunctionModule(function), (torch.randn(7, 4),), dynamic_shapes=[{0: "n", 1: "m"}])
    for sizes in ((3, 4), (2, 5), (4, 2), (9, 9), (12, 6), (20, 10), (6, 4)):
        x = torch.randn(sizes)
        try:
            result = program(x)
        except InvalidArgumentError:
            continue
        torch.testing.assert_close(result, function(x), rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(program(x), function(x), rtol=1e-4, atol=1e-4)


def test_two_sizes_that_make_one_together_are_left_in() -> None:
    def frames(x: torch.Tensor) -> torch.Tensor:
        return x.unfold(1, 4, 2).mean(-1)

    program = export(FunctionModule(frames), (torch.randn(2, 11),), dynamic_shapes=[{0: "batch", 1: "time"}])
    for sizes in ((1, 4), (2, 4), (1, 11), (3, 7)):
        x = torch.randn(sizes)
        torch.testing.assert_close(program(x), frames(x))


def test_a_size_at_which_the_model_does_something_else_is_refused() -> None:
    model, x = OneApart(), torch.randn(2, 6)
    program = export(model, (x,), dynamic_shapes=({1: "s"},))
    torch.testing.assert_close(program(x[:, :3]), model(x[:, :3]))
    with pytest.raises(InvalidArgumentError, match="captured for"):
        program(x[:, :2])
    with pytest.raises(DynamicShapeError):
        export(model, (x,), dynamic_shapes=({1: Dim("s", min=2)},))


def test_a_bound_of_the_model_is_named_as_a_declaration() -> None:
    class Table(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("table", torch.arange(512.0))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x + self.table[: x.shape[1]]

    with pytest.raises(DynamicShapeError, match=r"Declare s = Dim\('s', max=512\)"):
        export(Table(), (torch.randn(2, 8),), dynamic_shapes=({1: Dim("s", max=600)},))


NUMBERS_OF_SIZES = {
    "int of a product": lambda x: x[:, : int(x.shape[1] * 0.3)],
    "int of a quotient": lambda x: x * int(x.shape[1] // 3),
    "int of a root": lambda x: x * int(x.shape[1] ** 0.5),
    "int of a rounded number": lambda x: x * int(round(x.shape[1] * 0.3)),  # noqa: RUF046 - as models have it
    "int of the upper whole number": lambda x: x * int(math.ceil(x.shape[1] / 3)),  # noqa: RUF046 - as models have it
    "int of the larger one": lambda x: x * int(max(x.shape[1], 45)),
    "int of two sizes": lambda x: x * int(x.shape[1] / x.shape[0]),
    "a quotient": lambda x: x * (x.shape[1] / 3),
    "float of a quotient": lambda x: x * float(x.shape[1] / 3),
    "resized": lambda x: torch.nn.functional.interpolate(x[:, None], size=int(x.shape[1] * 1.5)),
    "as_tensor": lambda x: x[..., : torch.ceil(torch.as_tensor(8 * x.shape[1] / 16)).long()],
    "as_tensor of several": lambda x: x * torch.as_tensor([x.shape[1], 2.5]).sum(),
    "as_tensor of a dtype": lambda x: x * torch.as_tensor(x.shape[1] // 2, dtype=torch.float64),
    "new_tensor": lambda x: x * x.new_tensor([[x.shape[1], 2.5]]).sum(),
    "new_tensor of a dtype": lambda x: x * x.new_tensor(x.shape[1] / 3, dtype=torch.int64),
    "new_tensor of a shape": lambda x: x * x.new_tensor(x.shape)[1],
    "asarray": lambda x: x * torch.asarray((3, x.shape[1])).sum(),
}


@pytest.mark.parametrize("case", NUMBERS_OF_SIZES)
@pytest.mark.parametrize("declared", ["s", Dim("s", max=600), Dim.DYNAMIC], ids=["name", "Dim", "DYNAMIC"])
def test_numbers_made_of_sizes_follow_them(case: str, declared: object) -> None:
    model = FunctionModule(NUMBERS_OF_SIZES[case])
    program = export(model, (torch.randn(2, 40),), dynamic_shapes=({1: declared},))
    for size in (40, 50, 43, 91, 12):
        x = torch.randn(2, size)
        torch.testing.assert_close(program(x), model(x))


def test_what_torch_takes_for_granted_of_the_smaller_size_is_tried() -> None:
    """A slice asks whether it is all of the dimension, which changes nothing."""
    model = FunctionModule(lambda x: x[:, : min(x.shape[1], 45)])
    program = export(model, (torch.randn(2, 40),), dynamic_shapes=({1: "s"},))
    for size in (40, 45, 46, 91, 12):
        x = torch.randn(2, size)
        torch.testing.assert_close(program(x), model(x))


@pytest.mark.parametrize("declared", ["s", Dim("s", max=600), Dim.DYNAMIC], ids=["name", "Dim", "DYNAMIC"])
def test_a_size_that_becomes_a_number_of_the_example_is_refused(declared: object) -> None:
    model = FunctionModule(lambda x: x * torch.FloatTensor([x.shape[1] / 2.0]))
    with pytest.raises(DynamicShapeError, match=r"fixed by .*test_size_questions\.py:\d+: .*FloatTensor"):
        export(model, (torch.randn(2, 40),), dynamic_shapes=({1: declared},))


def test_conditions_of_what_dynamo_captured_are_kept() -> None:
    """Dynamo counts the arguments where torch.export names them."""
    model = FunctionModule(lambda x: x * int(x.shape[1] * 0.5) if x.shape[1] > 10 else x)
    program = export(model, (torch.randn(2, 40),), dynamic_shapes=({1: "s"},))
    torch.testing.assert_close(program(torch.ones(2, 20)), torch.full((2, 20), 10.0))
    with pytest.raises(InvalidArgumentError, match="captured for s >= 11"):
        program(torch.ones(2, 9))


@pytest.mark.parametrize("layer", [torch.nn.LSTM, torch.nn.GRU])
@pytest.mark.parametrize("shape", [(0, 5, 3), (2, 0, 3)])
def test_recurrent_networks_refuse_nothing_to_read(layer, shape) -> None:
    """ONNX Runtime ends the process there."""
    model = layer(3, 4, batch_first=True)
    program = exported(model, torch.randn(2, 5, 3), dims=[{0: "batch", 1: "length"}])
    x = torch.randn(1, 1, 3)
    torch.testing.assert_close(program(x)[0], model(x)[0])
    with pytest.raises(InvalidArgumentError, match=">= 1"):
        program(torch.randn(shape))


def test_trial_runs_leave_the_model_and_the_random_numbers_as_they_were() -> None:
    class Counts(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.calls, self.seen, self.total = 0, [], torch.zeros(2)
            self.register_buffer("kept", torch.zeros(2))

        def forward(self, x):
            self.calls += 1
            self.seen.append(self.calls)
            self.total = self.total + 1
            self.kept.add_(1)
            return x + self.kept + torch.rand(2) if x.shape[0] == 1 else x * 2 + self.kept

    model = Counts()
    torch.manual_seed(3)
    expected = torch.rand(4)
    torch.manual_seed(3)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        exported(model, torch.randn(3, 2, generator=torch.Generator()), state="ignore")
    torch.testing.assert_close(torch.rand(4), expected)
    assert (model.calls, model.seen) == (0, [])
    assert model.total.sum() == 0
    assert model.kept.sum() == 0


@pytest.mark.parametrize(
    "left",
    [
        lambda x: x[:, 2 * x.shape[0] :],
        lambda x: x[:, : 3 - 2 * x.shape[0]] if x.shape[0] < 2 else x[:, :0],
        lambda x: x[:, x.shape[0] + 1 : 3],
    ],
)
def test_nothing_that_is_left_of_larger_sizes_is_not_taken_for_granted(left) -> None:
    class Sums(torch.nn.Module):
        def forward(self, x):
            rest = left(x)
            return x.new_ones(rest.shape[1], 2), rest.sum(1)

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        program = exported(Sums(), torch.randn(6, 3))
    for rows in (1, 2, 5):
        x = torch.randn(rows, 3)
        try:
            results = program(x)
        except InvalidArgumentError:
            assert rows == 1
            continue
        torch.testing.assert_close(tuple(results), Sums()(x))
