"""Calls whose sizes are declared dynamic, traced at one size and compared with PyTorch at others."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from ts_models import exported, n

import onnx_ts_legacy
from onnxops_core.exporting import unfused_layers

ARGUMENTS = "xyzw"


class Case(NamedTuple):
    """One call, an example, inputs of other sizes, and the dynamic axes of each input, named ``<input><axis>``."""

    call: Callable[..., Any]
    example: tuple[Tensor, ...]
    other: tuple[Tensor, ...]
    axes: tuple[str, ...]


class Called(nn.Module):
    def __init__(self, call: Callable[..., Any]) -> None:
        super().__init__()
        self.call = call

    def forward(self, *args: Tensor) -> Any:
        return self.call(*args)


def ints(limit: int, *sizes: int) -> Tensor:
    return torch.randint(0, limit, sizes, generator=torch.Generator().manual_seed(limit))


def mask(*sizes: int) -> Tensor:
    return torch.arange(sizes[1]).expand(sizes) >= sizes[1] - torch.arange(sizes[0])[:, None] % 3


def images(call: Callable[..., Any], height: int = 7, width: int = 16) -> Case:
    """A call on images of which everything but the channels is dynamic."""
    return Case(call, (n(2, 4, 11, 13),), (n(3, 4, height, width),), ("023",))


def rows(call: Callable[..., Any]) -> Case:
    return Case(call, (n(4, 5),), (n(7, 6),), ("01",))


def made(kind: Callable[..., nn.Module], *args: Any, **kwargs: Any) -> nn.Module:
    torch.manual_seed(0)
    # Calls read these modules without being their parents, so that tracing takes the weights as constants.
    return kind(*args, **kwargs).eval().requires_grad_(False)


ATTENTION = made(nn.MultiheadAttention, 8, 2, batch_first=True)
ENCODER = made(nn.TransformerEncoder, nn.TransformerEncoderLayer(8, 2, 16, batch_first=True), 2)
LSTM = made(nn.LSTM, 8, 4, 2, batch_first=True, bidirectional=True, proj_size=3)
BAG = made(nn.EmbeddingBag, 10, 4, mode="max")


def rotated(x: Tensor) -> Tensor:
    length, pairs = x.shape[1], x.shape[2] // 2
    angles = torch.outer(torch.arange(length).float(), torch.arange(pairs).float())
    turned = torch.view_as_complex(x.reshape(*x.shape[:-1], -1, 2)) * torch.polar(torch.ones(length, pairs), angles)
    return torch.view_as_real(turned).flatten(2)


def written(x: Tensor) -> Tensor:
    y = x.clone()
    y[:, 1:].mul_(2)
    y.t()[0].zero_()
    return y


def checked(x: Tensor) -> Tensor:
    torch._check(x.shape[2] % 2 == 0, lambda: "the height is even")
    torch._check_value(x.shape[0] > 0)
    pooled, places = F.max_pool2d(x, 2, return_indices=True)
    return F.max_unpool2d(pooled, places, 2)


CASES = {
    "adaptive average pooling": images(lambda x: F.adaptive_avg_pool2d(x, (3, 5))),
    "adaptive maximum pooling": images(lambda x: F.adaptive_max_pool2d(x, (3, 5))),
    "maximum pooling that rounds up": images(lambda x: F.max_pool2d(x, 3, 2, 1, ceil_mode=True), 4, 4),
    "average pooling that rounds up": images(lambda x: F.avg_pool2d(x, 3, 2, 1, ceil_mode=True), 4, 9),
    "average pooling without padding": images(
        lambda x: F.avg_pool2d(x, 3, 2, 1, ceil_mode=True, count_include_pad=False), 9, 4
    ),
    "resize by scales": images(lambda x: F.interpolate(x, scale_factor=(1.7, 0.6), mode="bilinear")),
    "resize by recomputed scales": images(
        lambda x: F.interpolate(x, scale_factor=1.7, mode="bicubic", recompute_scale_factor=True)
    ),
    "resize to the size of another": Case(
        lambda x, y: F.interpolate(x, size=y.shape[-2:], mode="bilinear", align_corners=True) + y,
        (n(2, 4, 5, 6), n(2, 4, 9, 8)),
        (n(2, 4, 3, 4), n(2, 4, 7, 11)),
        ("23", "23"),
    ),
    "nearest resize to twice the size": images(lambda x: F.interpolate(x, size=[2 * s for s in x.shape[2:]])),
    "pixel shuffles": Case(
        lambda x: F.pixel_unshuffle(F.pixel_shuffle(x, 2), 2) + F.channel_shuffle(x, 4),
        (n(2, 8, 3, 5),),
        (n(1, 8, 2, 2),),
        ("023",),
    ),
    "padding": Case(
        lambda x: (F.pad(x, (1, 2), "reflect"), F.pad(x, (1, 2), "replicate"), F.pad(x, (3, 2), "circular")),
        (n(2, 3, 9),),
        (n(1, 3, 6),),
        ("02",),
    ),
    "padding by a negative amount": images(lambda x: F.pad(x, (-1, 2, 1, 1), value=3.0)),
    "grid sampling of an affine grid": Case(
        lambda x, y: F.grid_sample(x, F.affine_grid(y, x.shape, align_corners=False), align_corners=False),
        (n(2, 3, 5, 6), n(2, 2, 3)),
        (n(2, 3, 7, 4), n(2, 2, 3)),
        ("23", ""),
    ),
    "normalizations": images(lambda x: (F.group_norm(x, 2), F.instance_norm(x), F.local_response_norm(x, 3))),
    "attention with a padding mask and weights": Case(
        lambda x, y: ATTENTION(x, x, x, key_padding_mask=y),
        (n(2, 5, 8), mask(2, 5)),
        (n(3, 7, 8), mask(3, 7)),
        ("01", "01"),
    ),
    "an encoder with a padding mask": Case(
        lambda x, y: ENCODER(x, src_key_padding_mask=y),
        (n(2, 5, 8), mask(2, 5)),
        (n(3, 7, 8), mask(3, 7)),
        ("01", "01"),
    ),
    "causal attention": Case(
        lambda x, y, z: F.scaled_dot_product_attention(x, y, z, is_causal=True),
        (n(2, 4, 5, 8), n(2, 4, 5, 8), n(2, 4, 5, 8)),
        (n(1, 4, 9, 8), n(1, 4, 9, 8), n(1, 4, 9, 8)),
        ("02", "02", "02"),
    ),
    "a recurrent network with projections": Case(lambda x: LSTM(x), (n(3, 5, 8),), (n(2, 9, 8),), ("01",)),
    "rotation by complex numbers": Case(rotated, (n(2, 5, 8),), (n(3, 9, 8),), ("01",)),
    "bags of embeddings": Case(
        lambda x, y: BAG(x, y),
        (ints(10, 9), torch.tensor([0, 4, 4])),
        (ints(10, 12), torch.tensor([0, 1, 5, 12])),
        ("0", "0"),
    ),
    "windows along a dimension": Case(lambda x: x.unfold(1, 3, 2).mean(-1), (n(2, 9),), (n(1, 14),), ("01",)),
    "rolled, flipped and turned": rows(lambda x: torch.rot90(torch.roll(x.flip(0), (1, -2), (0, 1)))),
    "deviations": rows(lambda x: (x.std(0), x.var(1, correction=0), x.std())),
    "covariances and correlations": rows(lambda x: (torch.cov(x), torch.corrcoef(x))),
    "order statistics": rows(lambda x: (torch.quantile(x, 0.3, dim=1), x.median(0), x.nanmedian(), x.sort(1))),
    "counts of a boolean": rows(lambda x: (x > 0).cumsum(1)[:, -1:]),
    "triangles": rows(lambda x: torch.tril(x, -1) + torch.triu(x, 2)),
    "positions": rows(lambda x: torch.arange(x.shape[1]).expand(x.shape[0], -1) + x),
    "new tensors of its size": rows(
        lambda x: torch.cat([x.new_zeros(x.shape[0], 2), x, torch.full((x.size(0), 1), float("-inf"))], 1)
    ),
    "writes to parts": rows(written),
    "a histogram": Case(lambda x: torch.histc(x, 10, -1, 1), (n(40),), (n(70),), ("0",)),
    "counts": Case(lambda x: torch.bincount(x, minlength=5), (ints(9, 40),), (ints(12, 30),), ("0",)),
    "division of integers": Case(
        lambda x: (x // 3, x % 3, torch.div(x, -4, rounding_mode="trunc"), torch.fmod(x, -3), x / 2),
        (torch.arange(-6, 7),),
        (torch.arange(-9, 10),),
        ("0",),
    ),
    "einsum": Case(
        lambda x, y: torch.einsum("bij,bkj->bik", x, y),
        (n(2, 3, 4), n(2, 5, 4)),
        (n(2, 6, 4), n(2, 2, 4)),
        ("1", "1"),
    ),
    "distances": Case(torch.cdist, (n(2, 4, 4), n(2, 3, 4)), (n(2, 5, 4), n(2, 9, 4)), ("1", "1")),
    "a sorted search": Case(
        lambda x, y: torch.searchsorted(x, y, right=True), (n(9).sort()[0], n(4)), (n(5).sort()[0], n(7)), ("0", "0")
    ),
    "a grid of coordinates": Case(
        lambda x, y: torch.stack(torch.meshgrid(x, y, indexing="xy")), (n(3), n(4)), (n(5), n(2)), ("0", "0")
    ),
    "parts of a dimension": Case(
        lambda x: [part.sum() for part in x.chunk(3, 1)] + list(x.tensor_split(4, 1)), (n(2, 12),), (n(5, 12),), ("0",)
    ),
    "distinct rows": Case(
        lambda x: torch.unique(x, return_inverse=True, return_counts=True, dim=0),
        (ints(2, 9, 2),),
        (ints(3, 17, 2),),
        ("0",),
    ),
    "selection by a mask": rows(lambda x: (x[x > 0], torch.nonzero(x > 0))),
    "accumulated writes": Case(
        lambda x, y: x.index_put((y,), torch.ones(2), accumulate=True),
        (n(9, 2), torch.tensor([1, 1, -2])),
        (n(17, 2), torch.tensor([0, -1, 0, 5])),
        ("0", "0"),
    ),
    "scattered means": Case(
        lambda x, y: x.scatter_reduce(0, y, x[:1].expand_as(y), "mean", include_self=False),
        (n(9, 2), ints(9, 5, 2)),
        (n(17, 2), ints(17, 6, 2)),
        ("0", "0"),
    ),
    "a loss with smoothing": Case(
        lambda x: F.cross_entropy(x, x.argmax(1), label_smoothing=0.1, ignore_index=1), (n(6, 5),), (n(8, 5),), ("0",)
    ),
    "padding that is odd": Case(
        made(nn.Conv2d, 4, 2, (3, 4), padding="same", dilation=(1, 3)),
        (n(1, 4, 6, 7),),
        (n(2, 4, 9, 8),),
        ("023",),
    ),
    "padding without a batch": Case(made(nn.Conv1d, 3, 2, 4, padding="same"), (n(3, 8),), (n(3, 5),), ("1",)),
    "as many classes as there are": Case(lambda x: F.one_hot(x), (ints(4, 3),), (ints(9, 5),), ("0",)),
    "combinations": Case(lambda x: torch.combinations(x, 3), (n(4),), (n(6),), ("0",)),
    "a signal from its spectrum": Case(
        lambda x: torch.istft(
            torch.stft(x, 16, 4, window=torch.hann_window(16), return_complex=True), 16, 4, window=torch.hann_window(16)
        ),
        (n(2, 64),),
        (n(3, 80),),
        ("01",),
    ),
    "a product of Kronecker": Case(torch.kron, (n(3, 4), n(2, 5)), (n(6, 4), n(3, 5)), ("0", "0")),
    "checked sizes": Case(checked, (n(2, 4, 6, 6),), (n(3, 4, 8, 4),), ("023",)),
    "linear algebra": Case(
        lambda x: (torch.linalg.inv(x), torch.linalg.det(x), torch.linalg.solve(x, x.sum(-1))),
        (n(2, 4, 4) + 4 * torch.eye(4),),
        (n(3, 4, 4) + 4 * torch.eye(4),),
        ("0",),
    ),
}


def axes_of(case: Case) -> dict[str, dict[int, str]]:
    named = zip(ARGUMENTS, case.axes, strict=False)
    # Inputs that share a dimension of equal size share its name.
    return {
        name: {int(axis): f"{axis}_{case.example[ARGUMENTS.index(name)].shape[int(axis)]}" for axis in axes}
        for name, axes in named
    }


@pytest.mark.parametrize("opset", [11, 20])
@pytest.mark.parametrize("name", CASES)
def test_a_call_takes_other_sizes(name: str, opset: int) -> None:
    case = CASES[name]
    count = len(case.example)

    # PyTorch's fused layers put zeros at padded positions, where their definition has other values.
    with unfused_layers():
        exported(
            Called(case.call).eval(),
            case.example,
            case.other,
            opset=opset,
            input_names=list(ARGUMENTS[:count]),
            dynamic_axes=axes_of(case),
        )


def test_distances_are_nearer_to_the_true_ones_than_those_of_pytorch_where_the_number_of_rows_is_dynamic() -> None:
    """PyTorch multiplies matrices for more than 25 rows, which loses digits where rows are far from zero."""
    generator = torch.Generator().manual_seed(0)
    x, y = (torch.randn(40, 4, generator=generator) + 1e5 for _ in range(2))
    program = onnx_ts_legacy.export(
        torch.cdist, (x[:3], y[:4]), input_names=["x", "y"], dynamic_axes={"x": {0: "n"}, "y": {0: "m"}}
    )
    found, true = program(x, y)[0], torch.cdist(x.double(), y.double())
    torch.testing.assert_close(found, true.float())
    # What rounding the squares of the lengths makes of a root.
    largest = (4 * torch.finfo(torch.float32).eps * x.norm(dim=1).max() ** 2).sqrt()
    assert 1e6 * (found - true).abs().max() < (torch.cdist(x, y) - true).abs().max() < 2 * largest


class OfMatrices(nn.Module):
    def forward(self, x: Tensor):
        down, right = torch.gradient(x)
        half = torch.gradient(x, spacing=2.0, dim=[1], edge_order=2)[0]
        low, high = torch.diag(x, -1), torch.diag(x[0], 1)
        traces = torch.trace((x * 9).int()) + torch.trace(x)
        return down, right, half, low, high, torch.diagonal_copy(x, 1), traces, torch.linalg.multi_dot([x, x.t(), x])


@pytest.mark.parametrize("scripted", [False, True], ids=["traced", "scripted"])
def test_calls_on_matrices_take_other_sizes(scripted: bool) -> None:
    model = torch.jit.script(OfMatrices()) if scripted else OfMatrices()
    program = onnx_ts_legacy.export(model, (n(5, 4),), input_names=["x"], dynamic_axes={"x": [0, 1]})

    for x in (n(5, 4), n(6, 8), n(7, 3)):
        for found, expected in zip(program(x), OfMatrices()(x), strict=True):
            torch.testing.assert_close(found, expected)


class Counted(nn.Module):
    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        return F.one_hot(x), torch.combinations(x)


@pytest.mark.parametrize("axes", [None, {"x": [0]}], ids=["static", "dynamic"])
@pytest.mark.parametrize("convert", [lambda model: model, torch.jit.script], ids=["traced", "scripted"])
def test_as_many_classes_as_there_are(convert: Callable[..., Any], axes: Any) -> None:
    program = onnx_ts_legacy.export(convert(Counted()), (ints(4, 3),), input_names=["x"], dynamic_axes=axes)

    x = ints(9, 5 if axes else 3)
    for found, expected in zip(program(x), Counted()(x), strict=True):
        torch.testing.assert_close(found, expected)
