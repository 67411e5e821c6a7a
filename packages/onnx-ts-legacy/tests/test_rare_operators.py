"""Operators that write to operands besides their result, and those whose shapes torch finds with data only."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from ts_models import exported

import onnx_ts_legacy
from onnx_ts_legacy import TrainingMode
from onnx_ts_legacy.errors import OnnxExporterError

aten = torch.ops.aten


@pytest.mark.parametrize("scripted", [False, True], ids=["traced", "scripted"])
def test_instance_norm_updates_its_statistics_as_state(scripted: bool) -> None:
    model = nn.InstanceNorm1d(3, affine=True, track_running_stats=True).train()
    given = torch.jit.script(model) if scripted else model
    program = onnx_ts_legacy.export(
        given, (torch.randn(2, 3, 5),), state="io", training=TrainingMode.PRESERVE, dynamic_axes={"input": {0: "n"}}
    )
    state = dict(program.initial_state)

    for count in (2, 5, 1):
        x = torch.randn(count, 3, 5) * 2 + 1
        results = dict(zip(program.output_names, program(x, **state), strict=True))
        torch.testing.assert_close(results["output"], model(x).detach(), rtol=1e-4, atol=1e-5)
        state = {name: results[output] for name, output in program.state_outputs.items()}

    torch.testing.assert_close(state["running_mean"], model.running_mean, rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(state["running_var"], model.running_var, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("with_update", [False, True], ids=["_native_batch_norm_legit", "_batch_norm_with_update"])
def test_functional_batch_norm_returns_its_statistics_and_writes_the_running_ones(with_update: bool) -> None:
    def normalized(x: Tensor, mean: Tensor, variance: Tensor) -> tuple[Tensor, ...]:
        if with_update:
            return aten._batch_norm_with_update(x, torch.ones(3), torch.zeros(3), mean, variance, 0.2, 1e-5)[:3]
        return aten._native_batch_norm_legit(x, None, None, mean, variance, True, 0.2, 1e-5)

    example = (torch.randn(4, 3, 5), torch.zeros(3), torch.ones(3))
    program = onnx_ts_legacy.export(normalized, example, state="io", dynamic_axes={"x": {0: "n"}})

    mean, variance, x = torch.rand(3), torch.rand(3) + 1, torch.randn(7, 3, 5) * 3
    results = dict(zip(program.output_names, program(x, mean, variance), strict=True))
    expected = [*normalized(x, mean, variance), mean, variance]
    for actual, wanted in zip(results.values(), expected, strict=True):
        torch.testing.assert_close(actual, wanted, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("scripted", [False, True], ids=["traced", "scripted"])
def test_memory_is_filled_with_normal_numbers(scripted: bool) -> None:
    def filled(x: Tensor) -> Tensor:
        y = x.clone()
        y[:, 1:].normal_(5.0, 0.5)
        return y

    program = onnx_ts_legacy.export(
        torch.jit.script(filled) if scripted else filled, (torch.zeros(2, 4),), dynamic_axes={"x": {0: "n"}}
    )

    (result,) = program(torch.zeros(4000, 4))
    assert result.shape == (4000, 4)
    assert not result[:, 0].any()
    torch.testing.assert_close(result[:, 1:].mean(), torch.tensor(5.0), rtol=0, atol=0.05)
    torch.testing.assert_close(result[:, 1:].std(), torch.tensor(0.5), rtol=0, atol=0.05)


def ctc_by_vectors(x: Tensor) -> Tensor:
    targets, lengths = torch.tensor([[1, 2, 2], [3, 1, 0]]), torch.tensor([3, 2])
    return F.ctc_loss(x.log_softmax(-1), targets, torch.tensor([6, 5]), lengths, reduction="none")


def ctc_by_lists(x: Tensor) -> Tensor:
    return F.ctc_loss(x.log_softmax(-1), torch.tensor([[1, 2, 2], [3, 1, 0]]), (6, 5), (3, 2))


def split_before_constants(x: Tensor) -> tuple[Tensor, ...]:
    return torch.tensor_split(x, torch.tensor([1, 4]), 0)


def split_into_a_constant(x: Tensor) -> tuple[Tensor, ...]:
    return torch.tensor_split(x, torch.tensor(4), 0)


@pytest.mark.parametrize(
    "function",
    [ctc_by_vectors, ctc_by_lists, split_before_constants, split_into_a_constant],
    ids=lambda function: function.__name__,
)
def test_a_call_whose_shape_torch_finds_with_data_only(function: Callable[..., Tensor]) -> None:
    exported(function, (torch.randn(7, 2, 4),), (torch.randn(9, 2, 4),), dynamic_axes={"x": {0: "t"}})


@pytest.mark.parametrize("vector", [False, True])
def test_least_squares(vector: bool) -> None:
    def solved(a: Tensor, b: Tensor) -> Tensor:
        return torch.linalg.lstsq(a, b).solution

    def right(rows: int) -> Tensor:
        return torch.randn(4, rows) if vector else torch.randn(4, rows, 2)

    inputs = [(torch.randn(4, rows, 3), right(rows)) for rows in (6, 9)]
    exported(solved, *inputs, dynamic_axes={"a": {1: "m"}, "b": {1: "m"}})


def test_a_tensor_is_split_before_places_that_the_runtime_knows() -> None:
    def split(x: Tensor, places: Tensor) -> tuple[Tensor, ...]:
        return torch.tensor_split(x, places, 0)

    exported(split, (torch.randn(6, 2), torch.tensor([2, 4])), (torch.randn(6, 2), torch.tensor([1, 5])))


def test_a_number_of_parts_that_the_runtime_computes_is_refused() -> None:
    with pytest.raises(OnnxExporterError, match="how many parts"):
        onnx_ts_legacy.export(lambda x, n: torch.tensor_split(x, n, 0), (torch.randn(6, 2), torch.tensor(3)))


def between_elements(x: Tensor) -> Tensor:
    return torch.linspace(x[0], x[1], x.size(0)) + torch.linspace(0, 10, x.size(0), dtype=torch.int64)


@pytest.mark.parametrize(
    "program",
    [
        lambda x: torch.linspace(-1, 1, x.size(0)) * x,
        lambda x: torch.logspace(0.0, 1, x.size(0), 2.0, dtype=torch.float64) * x,
        between_elements,
        torch.jit.script(between_elements),
    ],
    ids=["linspace", "logspace", "traced", "scripted"],
)
def test_as_many_spaced_numbers_as_a_dynamic_size(program: Callable[..., Tensor]) -> None:
    exported(program, (torch.rand(4),), (torch.rand(2),), (torch.rand(7),), dynamic_axes={"x": {0: "n"}})


GROUPED: dict[str, tuple[Callable[[int], tuple[tuple[int, ...], tuple[int, ...]]], dict[str, dict[int, str]]]] = {
    "rows": (lambda tokens: ((tokens, 8), (2, 8, 16)), {"x": {0: "tokens"}}),
    "columns": (lambda tokens: ((2, 4, 8), (8, tokens)), {"weight": {1: "tokens"}}),
    "inner": (lambda tokens: ((8, tokens), (tokens, 16)), {"x": {1: "tokens"}, "weight": {0: "tokens"}}),
}


@pytest.mark.parametrize("scripted", [False, True], ids=["traced", "scripted"])
@pytest.mark.parametrize("turned", [False, True])
@pytest.mark.parametrize("name", GROUPED)
def test_products_of_groups_take_floats(name: str, turned: bool, scripted: bool) -> None:
    shapes, dynamic = GROUPED[name]

    def plain(x: Tensor, weight: Tensor, ends: Tensor) -> Tensor:
        return torch._grouped_mm(x, weight, offs=ends)

    def by_columns(x: Tensor, weight: Tensor, ends: Tensor) -> Tensor:
        return torch._grouped_mm(x.mT.contiguous().mT, weight, offs=ends)

    def args(tokens: int) -> tuple[Tensor, ...]:
        ends = torch.tensor([tokens // 4, tokens], dtype=torch.int32)
        return *(torch.randn(shape) for shape in shapes(tokens)), ends

    function = by_columns if turned else plain
    exported(torch.jit.script(function) if scripted else function, args(8), args(24), dynamic_axes=dynamic)


@pytest.mark.parametrize("driver", ["gels", "gelsd", "gelss", "gelsy"])
def test_residuals_of_least_squares_are_there_where_the_rank_is_full(driver: str) -> None:
    class Model(torch.nn.Module):
        def forward(self, a: torch.Tensor, b: torch.Tensor) -> tuple[torch.Tensor, ...]:
            return tuple(torch.linalg.lstsq(a, b, driver=driver))

    example = torch.randn(4, 3), torch.randn(4, 2)
    program = onnx_ts_legacy.export(Model(), example, dynamic_shapes={"a": {0: "m"}, "b": {0: "m"}})
    for rows in (4, 6, 3, 2):
        call = torch.randn(rows, 3), torch.randn(rows, 2)
        torch.testing.assert_close(list(program(*call)), list(Model()(*call)), rtol=1e-3, atol=1e-4)
    if driver in ("gelsd", "gelss"):
        call = torch.randn(4, 3)[:, [0, 0, 1]].contiguous(), torch.randn(4, 2)
        assert [tuple(x.shape) for x in program(*call)] == [tuple(x.shape) for x in Model()(*call)]


def test_residuals_whose_dimensions_data_decides_are_refused_where_they_are_read() -> None:
    a, b = torch.randn(2, 4, 3), torch.randn(2, 4, 2)
    program = onnx_ts_legacy.export(lambda a, b: torch.linalg.lstsq(a, b, driver="gelsd").solution, (a, b))
    torch.testing.assert_close(program(a, b)[0], torch.linalg.lstsq(a, b).solution, rtol=1e-3, atol=1e-4)
    with pytest.raises(onnx_ts_legacy.errors.OnnxExporterError, match="result 1 of this call has no form in ONNX"):
        onnx_ts_legacy.export(lambda a, b: torch.linalg.lstsq(a, b, driver="gelsd").residuals, (a, b))
