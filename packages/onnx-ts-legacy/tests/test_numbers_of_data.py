"""Numbers that the data decides, as arguments of operators: right for other data, or refused by name."""

from __future__ import annotations

import itertools
import operator
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numbered_calls
import pytest
import torch
from torch.utils import _pytree as pytree
from ts_models import scripted_program

import onnx_ts_legacy
from onnx_ts_legacy.errors import CaptureError, UnsupportedOperatorsError

X = torch.linspace(-2, 2, 12).reshape(3, 4)
# n, f and b are what the data say.
DATA = [torch.tensor([2.0, 0.75]), torch.tensor([1.0, -1.5]), torch.tensor([3.0, 2.25])]
RIGHT = [
    *(
        "F.leaky_relu(x, f)",
        "F.elu(x, f)",
        "F.elu(x, 0.5 * n)",
        "F.celu(x, f)",
        "F.threshold(x, f, 1.0 * n)",
        "x.clamp(f)",
    ),
    *(
        "F.hardtanh(x, -1.0 * n, 1.0 * n)",
        "F.softplus(x, n)",
        "F.softplus(x, 1.0, f)",
        "x.add(x, alpha=n)",
        "x.sub(x, alpha=f)",
    ),
    *("torch.linspace(f, n, n)", "torch.logspace(f, n, n)", "torch.arange(n)", "torch.arange(f, n + 4, 0.5)"),
    *("x.topk(n).values", "x[:, :n]", "x[n - 1]", "x.select(0, n - 1)", "x.narrow(1, 0, n)", "x.roll(n)"),
    *("x.pow(n)", "x.fmod(f)", "x.remainder(f)", "x.masked_fill(x > 0, f)", "torch.full((n, 2), f)", "x.lerp(x, f)"),
    *("torch.zeros(n, 3)", "x.repeat(n, 1)", "x.tril(n)", "torch.where(x > 0, x, f)"),
    *("torch.eye(n)", "x[:n].sum(0)", "(x > 0) + (x > 1)", "F.pad(x, [n, 0])", "x.repeat_interleave(n, 0)"),
    *("torch.stack(x.t()[:2 * n // n].split(n))", "F.nll_loss(x, torch.tensor([1, 2, 3]), ignore_index=n)"),
]
CALLS = {
    "cumsum": "x.cumsum(n - 1)",
    "softmax": "x.softmax(n - 1)",
    "one_hot": "F.one_hot(torch.tensor([0, 1]), n + 2)",
    "sum": "x.sum(1, b)",
    "mean": "x.mean(1, b)",
    "amax": "x.amax(n - 1)",
    "unbind": "torch.stack(x.unbind(n - 1))",
    "split": "torch.stack(x.split(1, n - 1))",
    "select": "x.select(n - 1, 0)",
    "slice": "torch.ops.aten.slice(x, n - 1, 0, 1)",
    "avg_pool2d": "F.avg_pool2d(x[None], 2, ceil_mode=b)",
    "layer_norm": "F.layer_norm(x, [4], eps=f)",
    "topk": "x.topk(2, largest=b).values",
    "dropout": "F.dropout(x, 0.5, b)",
    "batch_norm": "F.batch_norm(x, torch.zeros(4), torch.ones(4), training=b)",
    "sort": "x.sort(1, b)[0]",
    "searchsorted": "torch.searchsorted(x[0], x, right=b)",
    "cross_entropy_loss": "torch.ops.aten.cross_entropy_loss(x, torch.tensor([1, 2, 3]), reduction=n - 1)",
    "diagonal": "x.diagonal(n - 1)",
    "norm": "torch.ops.aten.norm(x, n)",
}


@pytest.fixture
def scripted(tmp_path: Path) -> Callable[[str], torch.jit.ScriptFunction]:
    head = "n, f, b = int(t[0]), float(t[1]), bool(t[0] > 1)"
    return lambda expression: scripted_program(tmp_path, "x, t", f"{head}\nreturn {expression}")


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("expression", RIGHT)
def test_a_number_of_the_data_may_be_another_one(
    expression: str, scripted: Callable[[str], torch.jit.ScriptFunction]
) -> None:
    program = scripted(expression)
    exported = onnx_ts_legacy.export(program, (X, DATA[0]), opset_version=18)

    for t in DATA:
        torch.testing.assert_close(exported(X, t)[0], program(X, t), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("name", CALLS)
def test_a_number_that_has_to_be_known_is_refused_with_the_operator(
    name: str, scripted: Callable[[str], torch.jit.ScriptFunction]
) -> None:
    with pytest.raises(UnsupportedOperatorsError, match=f"aten::{name}") as caught:
        onnx_ts_legacy.export(scripted(CALLS[name]), (X, DATA[0]), opset_version=18)

    assert "defect" not in str(caught.value)
    assert "data" in str(caught.value)


@pytest.mark.parametrize(
    "function",
    [
        lambda x, t: x.cumsum(int(t[0]) - 1),
        lambda x, t: x.softmax(t[0].int().item() - 1),
        lambda x, t: torch.nn.functional.one_hot(t.abs().long(), int(t[0]) + 2),
        lambda x, t: torch.nn.functional.leaky_relu(x, float(t[1])),
        lambda x, t: torch.stack(x.unbind(int(t[0]) - 1)),
        lambda x, t: x * operator.index(x.nonzero().size(0)),
    ],
    ids=["cumsum", "softmax", "one_hot", "leaky_relu", "unbind", "nonzero"],
)
def test_a_trace_would_keep_the_number_of_the_example_and_is_refused(function: Callable[..., Any]) -> None:
    with pytest.raises(CaptureError, match=r"torch\.jit\.script.*torch\.cond"):
        onnx_ts_legacy.export(function, (X, DATA[0]), frozen_values="error")


@pytest.mark.parametrize(
    "function", [lambda x: x[x > 0].unbind(), lambda x: x[x > 0].split(1)], ids=["unbind", "split"]
)
def test_pieces_of_a_selection_that_are_unpacked_are_refused_with_advice(function: Callable[..., Any]) -> None:
    with pytest.raises(
        UnsupportedOperatorsError, match=r"how many tensors it returns.*loop over them in a scripted model"
    ):
        onnx_ts_legacy.export(lambda x: torch.stack(function(x)), (X,), frozen_values="error")


@pytest.mark.filterwarnings("ignore")
def test_pieces_whose_number_the_data_decides_are_a_list() -> None:
    @torch.jit.script
    def pieces(x: torch.Tensor, n: int):
        return x.split(n)

    program = onnx_ts_legacy.export(pieces, (X, 2))

    for n in (1, 2, 3):
        torch.testing.assert_close(program(X, n)[0], list(pieces(X, n)))


# ---- every operator of the table


def outcomes(name: str) -> Iterator[str]:
    """Yield what is wrong with a model in which data are the number of a parameter, for each of these."""
    for call in numbered_calls.numbered_calls(name):
        try:
            exported = onnx_ts_legacy.export(call.function, call.inputs, opset_version=20)
        except UnsupportedOperatorsError as error:
            if "defect" in str(error):
                yield f"{call.parameter}: {error}"
            continue
        for inputs, expected in call.others():
            actual = exported(*inputs)
            for found, wanted in zip(pytree.tree_leaves(actual), pytree.tree_leaves(expected), strict=True):
                if not torch.allclose(found.double(), wanted.double(), rtol=1e-3, atol=1e-4, equal_nan=True):
                    yield f"{call.parameter}={inputs[call.place]}: {found} is not {wanted}"
                    break


@pytest.mark.wide
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", numbered_calls.names())
def test_every_number_of_every_operator_is_right_or_refused(name: str) -> None:
    assert not list(itertools.islice(outcomes(name), 3))
