"""Questions about data that code asks only to raise an exception are answered so that it does not, and told of."""

from __future__ import annotations

import contextlib
import warnings
from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

from onnx_fx_export import CaptureError, export
from onnx_fx_export.capture.conditions.branches import answer_without_raising

Function = Callable[[Tensor, Tensor], Tensor]


class Called(nn.Module):
    def __init__(self, function: Function) -> None:
        super().__init__()
        self.function = function

    def forward(self, x: Tensor, counts: Tensor) -> Tensor:
        return self.function(x, counts)


def check(condition: Tensor, message: str) -> None:
    if not condition:
        raise ValueError(message)


def asserted(x: Tensor, counts: Tensor) -> Tensor:
    assert x.min() >= 0, f"not negative: {x.min()}"
    assert not x.max() > 1
    return x * counts


def asserted_together(x: Tensor, counts: Tensor) -> Tensor:
    assert not ((counts < 0).any() or (x > 2).any())  # noqa: PT018
    assert counts.any() or (counts == 0).all()
    return x * counts


def asserted_of_a_number(x: Tensor, counts: Tensor) -> Tensor:
    assert 0 <= counts[0, 0].item() < 60
    return x * counts


def of_several(x: Tensor, counts: Tensor) -> Tensor:
    assert all(part.max() < 60 for part in (x, counts))
    assert torch.equal(x, x)
    assert torch.allclose(counts, counts)
    return x * counts


def raised(x: Tensor, counts: Tensor) -> Tensor:
    if x.sum() < 0 or (counts > 50).any():
        message = f"too many of {counts}"
        raise ValueError(message)
    elif x.dim() == 2:  # noqa: RET506
        x = x + 1
    if torch.isfinite(x).all():
        x = x - 1
    else:
        raise ValueError("infinite")
    return x * counts


def raised_in_another_function(x: Tensor, counts: Tensor) -> Tensor:
    check((counts <= 50).all(), "too many")
    return x * counts


def asked_for_rows(x: Tensor, counts: Tensor) -> Tensor:
    assert counts[counts > 90].numel() == 0
    return x[x[:, 0] > 0.5] * 2


def call(rows: int, columns: int) -> tuple[Tensor, Tensor]:
    return torch.rand(rows, columns), torch.randint(1, 50, (rows, columns))


NAMES = ({0: "rows", 1: "columns"},) * 2
RAISING = [asserted, asserted_together, of_several, raised, raised_in_another_function]
OF_NUMBERS = [asserted_of_a_number, asked_for_rows]


@pytest.mark.parametrize("function", [*RAISING, *OF_NUMBERS])
def test_what_only_raises_is_no_branch(function: Function) -> None:
    with pytest.warns(UserWarning, match="raises an exception for some inputs") as told:
        program = export(Called(function), call(3, 4), dynamic_shapes=NAMES)
    assert function in OF_NUMBERS or program.capture_strategy == "non-strict"
    assert any(f"{__file__}:" in str(each.message) for each in told)
    for size in ((2, 5), (5, 3), (1, 1)):
        x, counts = call(*size)
        torch.testing.assert_close(program(x, counts), function(x, counts))


def both(x: Tensor, counts: Tensor) -> Tensor:
    assert (x >= 0).all()
    if (counts > 25).any():
        return x * 2
    return x - 1


def raised_at_times(x: Tensor, counts: Tensor) -> Tensor:
    if (counts > 25).any():
        if x.shape[0] > 1:
            return x * 2
        raise ValueError("one row")
    return x - 1


@pytest.mark.parametrize("function", [both, raised_at_times])
def test_other_questions_keep_both_answers(function: Function) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)
        program = export(Called(function), call(3, 4), dynamic_shapes=NAMES)
    for counts in (torch.full((2, 5), 1), torch.full((2, 5), 30)):
        x = torch.rand(2, 5)
        torch.testing.assert_close(program(x, counts), function(x, counts))


def checked(x: Tensor) -> Tensor:
    if (x < 0).any():
        raise ValueError("negative")
    return x


def caught(x: Tensor, counts: Tensor) -> Tensor:
    try:
        assert (x >= 0).all()
        return x * counts
    except AssertionError:
        return counts - x


def caught_by_the_caller(x: Tensor, counts: Tensor) -> Tensor:
    try:
        return checked(x) * counts
    except ValueError:
        return counts - x


def suppressed(x: Tensor, counts: Tensor) -> Tensor:
    result = counts - x
    with contextlib.suppress(AssertionError):
        assert (x >= 0).all()
        result = x * counts
    return result


def left_in_the_end(x: Tensor, counts: Tensor) -> Tensor:
    result = counts - x
    try:
        result = checked(x) * counts
    finally:
        return result


@pytest.mark.parametrize("function", [caught, caught_by_the_caller, suppressed, left_in_the_end])
def test_what_is_caught_is_a_branch(function: Function) -> None:
    program = export(Called(function), call(3, 4), dynamic_shapes=NAMES)
    for sign in (1, -1):
        x, counts = call(2, 5)
        torch.testing.assert_close(program(sign * x, counts), function(sign * x, counts))


def test_managers_of_torch_catch_nothing() -> None:
    def function(x: Tensor, counts: Tensor) -> Tensor:
        with torch.no_grad():
            return checked(x) * counts

    # What surrounds the export is not the model's code.
    with pytest.warns(UserWarning, match="raises an exception for some inputs"), contextlib.suppress(KeyError):
        program = export(Called(function), call(3, 4), dynamic_shapes=NAMES, strategy="non-strict")
    x, counts = call(2, 5)
    torch.testing.assert_close(program(x, counts), function(x, counts))


def test_a_loop_over_a_size_may_check_what_it_reads() -> None:
    class Decoder(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.cell = nn.GRUCell(4, 4)

        def forward(self, x: Tensor, mask: Tensor) -> Tensor:
            if not mask[:, 0].all():
                raise ValueError("a row is empty")
            state = x[:, 0] * 0
            for step in range(x.shape[1]):
                state = self.cell(x[:, step], state)
            return state

    model = Decoder()
    mask = torch.ones(2, 3, dtype=torch.bool)
    with pytest.warns(UserWarning, match="raises an exception for some inputs"):
        program = export(model, (torch.randn(2, 3, 4), mask), dynamic_shapes=({0: "rows", 1: "steps"},) * 2)
    x = torch.randn(3, 7, 4)
    mask = torch.ones(3, 7, dtype=torch.bool)
    torch.testing.assert_close(program(x, mask), model(x, mask), rtol=1e-5, atol=1e-5)


def test_code_that_names_its_answer_is_left_alone() -> None:
    def named(x: Tensor, counts: Tensor) -> Tensor:
        assert (low := bool(x.min() < 0.5)) or counts.any()  # noqa: RUF018
        return x * 2 if low else x

    with pytest.raises(CaptureError):
        export(Called(named), call(3, 4), dynamic_shapes=NAMES, strategy="non-strict")


@pytest.mark.parametrize(
    ("source", "part", "answer"),
    [
        ("assert a", "a", True),
        ("assert not (a and not b)", "b", True),
        ("assert not (a and not b)", "a", False),
        ("assert not (a and not b)", "", None),
        ("if a and b:\n    raise E", "", False),
        ("if a:\n    pass\nelse:\n    raise E", "a", True),
        ("if a:\n    if b:\n        return\n    raise E", "a", None),
        ("if a:\n    x = 1", "a", None),
    ],
)
def test_the_answer_that_does_not_raise(tmp_path, source: str, part: str, answer: bool | None) -> None:
    path = tmp_path / "code.py"
    path.write_text(source.replace("assert a", "assert  a"))
    first = path.read_text().partition("\n")[0]
    column = first.index(part, 2) if part else 0
    span = ((1, column), (1, column + 1)) if part else ((1, 0), (source.count("\n") + 1, 99))
    assert answer_without_raising(str(path), span) is answer
