"""What an export remembers for later ones does not depend on the state of the process that it was learnt in."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest
import torch
from torch import Tensor
from ts_models import agree, exported

import onnx_ts_legacy
from onnx_ts_legacy.errors import CaptureError

FORMS = pytest.mark.parametrize("scripted", [False, True], ids=["traced", "scripted"])
DTYPES = (torch.double, torch.float, torch.half, torch.double)


@pytest.fixture
def default_dtype() -> Iterator[Callable[[torch.dtype], None]]:
    before = torch.get_default_dtype()
    yield torch.set_default_dtype
    torch.set_default_dtype(before)


def divided(x: Tensor):
    return x / 2, torch.true_divide(x, x), x.sqrt(), x * 0.5


def chosen(x: Tensor):
    return torch.where(x > 1, 0.5, 1.5), torch.lerp(x * 1.0, x / 1, 0.5)


def made(x: Tensor):
    return torch.arange(3.0) + x, torch.full((3,), 1.5) * x, torch.linspace(0.0, 1.0, 3) + x


@FORMS
@pytest.mark.parametrize("function", [divided, chosen, made], ids=lambda function: function.__name__)
def test_results_follow_the_default_dtype(function: Callable, scripted: bool, default_dtype: Callable) -> None:
    x = torch.tensor([1, 2, 3])
    for dtype in DTYPES:
        default_dtype(dtype)
        program = onnx_ts_legacy.export(torch.jit.script(function) if scripted else function, (x,))
        agree(program, function, (x,), (x + 2,), rtol=1e-2)


@FORMS
def test_an_operator_that_is_defined_once_more_is_the_new_one(scripted: bool) -> None:
    for factor in (2.0, 3.0):
        library = torch.library.Library("ts_caches", "DEF")
        library.define("scaled(Tensor x) -> Tensor")
        library.impl("scaled", lambda x, factor=factor: x * factor, "CompositeImplicitAutograd")
        model = torch.jit.script(_scaled()) if scripted else _scaled()
        exported(model, (torch.ones(2),))
        library._destroy()


def _scaled() -> torch.nn.Module:
    class Scaled(torch.nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return torch.ops.ts_caches.scaled(x)

    return Scaled()


class Sizes(torch.nn.Module):
    def forward(self, x: Tensor):
        n, m = x.shape
        made = torch.zeros([n, m]), x.view([n, -1]), x.expand([2, n, m]), x.reshape(n, 1, -1)
        split = torch.split(x, [n - 1, 1])[0], torch.roll(x, [n, 1], [0, 1]), torch.nn.functional.pad(x, [n, 1])
        return *made, *split, x.repeat(n, 1), x.permute([n - 2, 1]), x.sum([n - 2, 1])


@pytest.mark.parametrize(
    "failing",
    [
        lambda x: torch.ones(x.shape[0], "a"),
        lambda x: torch.full((x.shape[0], 1.5), 2.0),
        lambda x: x.new_zeros((x.shape[0], x.shape[1], "a")),
        lambda x: x.view([x.shape[0], "a"]),
        lambda x: x.expand(x.shape[0], None),
        lambda x: x.reshape(x.shape[0], "a"),
        lambda x: x.repeat(x.shape[0], None),
        lambda x: x.permute([x.shape[0] - 2, "a"]),
        lambda x: x.sum([x.shape[0] - 2, "a"]),
        lambda x: torch.split(x, [x.shape[0], "a"]),
        lambda x: torch.roll(x, [x.shape[0], "a"], [0, 1]),
        lambda x: torch.nn.functional.pad(x, [x.shape[0], "a"]),
        lambda x: torch.nn.functional.adaptive_avg_pool2d(x[None], [x.shape[0], "a"]),
        lambda x: torch.broadcast_to(x, [2, x.shape[0], "a"]),
        lambda x: x.reshape(x.shape[0] + 2, 2),
        lambda x: [][0],
    ],
)
def test_a_trace_that_failed_leaves_nothing_behind(failing: Callable) -> None:
    x = torch.arange(6.0).view(2, 3)
    for _ in range(2):
        with pytest.raises(CaptureError) as caught:
            onnx_ts_legacy.export(failing, (x,))
        assert "INTERNAL ASSERT" not in str(caught.value)
        exported(Sizes(), (x,))
