"""Copies that are views in torch at some sizes: a warning where a write would tell the two apart, and nowhere else."""

from __future__ import annotations

import re
import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor
from ts_models import exported, n

import onnx_ts_legacy
from onnx_ts_legacy.errors import OnnxExporterError

COPIED = "gives a copy in the model"
AXES = {"x": {0: "n", 1: "m"}}


def copy_written(x: Tensor) -> Tensor:
    y = x.clone()
    y.t().reshape(-1).add_(1)
    return y


def base_written(x: Tensor) -> Tensor:
    y = x.clone()
    z = y.t().contiguous()
    y.mul_(2)
    return z


def part_written(x: Tensor) -> Tensor:
    y = x.clone()
    z = y.t().flatten()
    y[0].mul_(2)
    return z + 1


def copy_of_a_copy(x: Tensor) -> Tensor:
    y = x.clone()
    z = y.t().ravel().view(-1, x.shape[0])[:, :1].contiguous()
    z.zero_()
    return y.sum(1)


def left_half(x: Tensor) -> Tensor:
    y = x.clone()
    z = y[:, : x.shape[1] // 2].contiguous()
    z.neg_()
    return y


def piece(x: Tensor) -> Tensor:
    y = x.clone()
    z = y.chunk(2, 1)[1].contiguous()
    z.neg_()
    return y


def of_expanded(x: Tensor) -> Tensor:
    y = x.sum(1)
    z = y.expand(x.shape[1], y.shape[0]).contiguous()
    z.neg_()
    return y


def like_another(x: Tensor) -> Tensor:
    y = x.clone()
    z = y.t().reshape_as(x)
    z.neg_()
    return y


def formatted(x: Tensor) -> Tensor:
    y = x.view(1, x.shape[0], x.shape[1], 1).clone()
    z = y.contiguous(memory_format=torch.channels_last)
    z.neg_()
    return y


def in_a_branch(x: Tensor) -> Tensor:
    y = x.clone()
    z = y.t().reshape(-1)
    if bool(x.sum() > 1e9):
        z = z + 1
    else:
        z.add_(5)
    return y + z[0]


def in_a_loop(x: Tensor) -> Tensor:
    y = x.clone()
    z = y.t().reshape(-1)
    total = torch.zeros(x.shape)
    for _ in range(x.shape[0] + 1):
        total = total + y
        z.add_(1)
    return total


def through_a_branch(x: Tensor) -> Tensor:
    y = x.clone()
    z = y.t().reshape(-1)
    chosen = z if bool(x.sum() > -1e9) else x.clone().view(-1)
    chosen.add_(1)
    return y


WARNED: list[Callable[[Tensor], Tensor]] = [
    *(copy_written, base_written, part_written, copy_of_a_copy, left_half, piece, of_expanded, like_another),
    formatted,
]
SCRIPTED_ONLY: list[Callable[[Tensor], Tensor]] = [in_a_branch, in_a_loop, through_a_branch]


@pytest.mark.parametrize(
    "model",
    [*WARNED, *(torch.jit.script(function) for function in (*WARNED, *SCRIPTED_ONLY))],
    ids=lambda model: f"{getattr(model, 'name', model.__name__)}-{type(model).__name__}",
)
def test_a_write_that_torch_shares_at_some_sizes_is_told_of(model: Any) -> None:
    x = n(4, 6)

    with pytest.warns(UserWarning, match=COPIED) as told:
        program = onnx_ts_legacy.export(model, (x,), opset_version=17, dynamic_axes=AXES)

    text = next(str(entry.message) for entry in told if COPIED in str(entry.message))
    assert len(re.findall(r"test_sometimes_views\.py:\d+", text)) >= 2
    sizes = {"n": 5, "m": 8, **{name: int(size) for name, size in re.findall(r"([nm]) is (\d+)", text)}}
    named, other = n(sizes["n"], sizes["m"]), n(5, 8)
    (at_other,), (at_named,) = program(other), program(named)
    torch.testing.assert_close(at_other, model(other.clone()))
    assert not torch.allclose(at_named, model(named.clone()))


def test_windows_that_torch_shares_at_the_sizes_of_the_example_are_refused() -> None:
    def windows(x: Tensor) -> Tensor:
        y = x.clone()
        z = y.unfold(1, 2, 2).contiguous()
        z.add_(1)
        return y

    with pytest.raises(OnnxExporterError, match=rf"{COPIED}.*at the sizes of the example.*test_sometimes_views\.py"):
        onnx_ts_legacy.export(windows, (n(4, 6),), opset_version=17, dynamic_axes=AXES)


def cloned(x: Tensor) -> Tensor:
    y = x.clone()
    y.t().reshape(-1).clone().add_(1)
    return y


def not_read(x: Tensor) -> Tensor:
    y = x * 2
    z = y.t().reshape(-1)
    z.add_(1)
    return z


def written_before(x: Tensor) -> Tensor:
    y = x.clone()
    y.add_(1)
    z = y.t().reshape(-1)
    return z + y.sum()


def overwritten(x: Tensor) -> Tensor:
    y = x.clone()
    z = y.t().contiguous()
    y.mul_(2)
    z.copy_(x.t())
    return z


def other_dtype(x: Tensor) -> Tensor:
    y = x.clone()
    z = y.to(torch.float64)
    z.add_(1)
    return y + z


def never_a_view(x: Tensor) -> Tensor:
    y = x[:, :4].reshape(-1, 2, 2).transpose(1, 2)
    z = y.reshape(-1, 4)
    z.add_(1)
    return y.sum(1) + z[:, :2]


def on_two_paths(x: Tensor) -> Tensor:
    y = x.clone()
    z = y.t().reshape(-1)
    if bool(x.sum() > 0):
        y = y + 1
        z.add_(5)
        result = z
    else:
        result = (y * 3).view(-1)
    return result


SILENT = [cloned, not_read, written_before, overwritten, other_dtype, never_a_view]


@pytest.mark.parametrize("model", [*SILENT, *map(torch.jit.script, (*SILENT, on_two_paths))])
def test_copies_that_no_write_tells_apart_are_exported_without_a_word(model: Any) -> None:
    sizes = ((4, 6), (1, 6), (7, 4), (5, 5), (1, 4))
    with warnings.catch_warnings():
        warnings.filterwarnings("error", message=f".*{COPIED}")
        exported(model, *((n(*size),) for size in sizes), dynamic_axes=AXES)


@pytest.mark.parametrize("size", [(1, 6), (4, 1), (4, 6)])
def test_static_sizes_tell_what_is_a_view(size: tuple[int, int]) -> None:
    exported(copy_written, (n(*size),))
    exported(torch.jit.script(base_written), (n(*size),))
