"""In-place operators with view aliasing, traced and scripted."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor
from ts_models import exported, over_opsets, refused_below

import onnx_ts_legacy
from onnx_ts_legacy.errors import OnnxExporterError

A, B = torch.arange(24.0).reshape(4, 6) - 7, torch.linspace(-2, 2, 42).reshape(7, 6)


def select_then_add(x: Tensor) -> Tensor:
    y = x * 2
    y[1].add_(5)
    return y


def slice_assigned(x: Tensor) -> Tensor:
    y = x.clone()
    y[1:, ::2] = x[:-1, 1::2]
    y[..., -1] = 0
    return y


def view_written(x: Tensor) -> Tensor:
    y = x + 0
    flat = y.view(-1)
    flat[3] = 100
    flat[5:9].mul_(-1)
    return y


def base_written_view_read(x: Tensor) -> Tensor:
    y = x.clone()
    row, column = y[0], y[:, 2]
    y.mul_(3)
    row += 1
    return torch.cat([row, column, y.sum(0)])


def transposed_written(x: Tensor) -> Tensor:
    y = x.clone()
    y.t()[2].fill_(9)
    y.permute(1, 0).unsqueeze(0)[:, 1:3].zero_()
    return y


def pieces_written(x: Tensor) -> Tensor:
    y = x.clone()
    first, second = y.chunk(2, dim=1)
    first.add_(10)
    second[0] = first[1]
    a, _, c = y.split([1, 2, 3], dim=1)
    c.sub_(a)
    y.unbind(1)[3].neg_()
    return y


def diagonal_written(x: Tensor) -> Tensor:
    y = x.clone()
    y.diagonal(1).fill_(-3)
    return y


def nested_views(x: Tensor) -> Tensor:
    y = x.clone()
    y[1:][1:][:, 2:4].copy_(torch.ones(2))
    return y


def masked(x: Tensor) -> Tensor:
    y = x.clone()
    y[y > 1] = 0
    y.masked_fill_(y < -3, 7).clamp_(max=5)
    return y


def indexed(x: Tensor) -> Tensor:
    y = x.clone()
    y[torch.tensor([0, -1])] = 1.0
    y[torch.tensor([[0, 1], [2, -1]]), torch.tensor([[1, 2], [-1, 0]])] = x[:2, :2]
    y[:, torch.tensor([1, 1, 3])] += 2
    return y


def metadata_changed(x: Tensor) -> Tensor:
    y = x.clone()
    y.unsqueeze_(0).transpose_(1, 2)
    y[0, 1] = 4
    return y.squeeze_(0)


def mixed_dtypes(x: Tensor) -> Tensor:
    y = torch.zeros(x.shape, dtype=torch.int64)
    y[0] = x[0]
    y += 2
    z = torch.zeros_like(x)
    z.copy_(y)
    return z


def handed_through(x: Tensor) -> Tensor:
    y = x.clone()
    same = torch.dropout(y.to(torch.float32).contiguous(), 0.5, False)
    same.reshape(-1).mul_(3)
    return y


def copied_on_the_way(x: Tensor) -> Tensor:
    y = x.clone().view(-1, 2, 3).transpose(1, 2)
    copy = y.contiguous()
    copy.mul_(3)
    z = y.permute(0, 1, 2).relu()
    z.contiguous().add_(1)
    return y + z


def out_argument(x: Tensor) -> Tensor:
    y = torch.empty_like(x)
    torch.mul(x, 3, out=y)
    return y


FUNCTIONS = [
    select_then_add,
    slice_assigned,
    view_written,
    base_written_view_read,
    transposed_written,
    pieces_written,
    diagonal_written,
    nested_views,
    masked,
    indexed,
    metadata_changed,
    mixed_dtypes,
    handed_through,
    copied_on_the_way,
]


MODELS = {
    **{f"{function.__name__}-traced": function for function in FUNCTIONS},
    **{f"{function.__name__}-scripted": torch.jit.script(function) for function in FUNCTIONS},
}
LOWEST = {
    f"{name}-{way}": opset
    for name, opset in {
        "indexed": 9,
        "slice_assigned": 10,
        "view_written": 10,
        "nested_views": 10,
        "diagonal_written": 11,
    }.items()
    for way in ("traced", "scripted")
}


@pytest.mark.parametrize(("model", "lowest", "opset"), over_opsets(MODELS, LOWEST))
def test_a_write_reaches_all_views_of_the_memory(model: Callable[..., Tensor], lowest: int, opset: int) -> None:
    with refused_below(lowest, opset):
        exported(model, (A,), (B,), opset=opset, dynamic_axes={"x": {0: "n"}})


def test_an_out_argument_is_written() -> None:
    exported(torch.jit.script(out_argument), (A,), (B,), dynamic_axes={"x": {0: "n"}})


def test_a_write_that_onnx_cannot_express_is_refused() -> None:
    def unfolded(x: Tensor) -> Tensor:
        y = x.clone()
        y.unfold(1, 2, 2).mul_(2)
        return y

    with pytest.raises(OnnxExporterError, match="aten::unfold made is changed in place"):
        onnx_ts_legacy.export(unfolded, (A,))


def test_a_written_value_that_has_one_element_in_the_example_may_have_more() -> None:
    def doubled_where_positive(x: Tensor) -> Tensor:
        y = x.clone()
        y[y > 0] = y[y > 0] * 2
        return y

    example = -torch.ones(3, 4)
    example[1, 2] = 5

    exported(doubled_where_positive, (example,), (A[:, :4],), (-B,), dynamic_axes={"x": {0: "n", 1: "m"}})


@pytest.mark.parametrize("scripted", [False, True], ids=["traced", "scripted"])
@pytest.mark.parametrize("kind", [torch.nn.Dropout, torch.nn.Dropout2d, torch.nn.AlphaDropout])
def test_dropout_in_place(kind: type[torch.nn.Module], scripted: bool) -> None:
    """Its operand is called ``self`` in place, and ``input`` else."""
    model = torch.nn.Sequential(torch.nn.Conv2d(3, 2, 1), kind(0.5, inplace=True), torch.nn.ReLU(inplace=True)).eval()
    x = torch.randn(2, 3, 4, 5)
    callee = torch.jit.script(model) if scripted else model
    exported(callee, (x,), (torch.randn(3, 3, 6, 5),), dynamic_axes={"input": {0: "batch", 2: "height"}})
