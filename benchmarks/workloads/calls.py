"""Calls of common operators at sizes that networks use, by field."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

__all__ = ["Call", "calls"]


@dataclasses.dataclass(frozen=True)
class Call:
    """A module that makes one call, and its inputs; the first dimension of each is a batch or a number of rows."""

    module: nn.Module
    inputs: tuple[Tensor, ...]


class _Function(nn.Module):
    def __init__(self, function: Callable[..., Any]) -> None:
        super().__init__()
        self.function = function

    def forward(self, x: Tensor, y: Tensor | None = None, z: Tensor | None = None) -> Any:
        given = (each for each in (x, y, z) if each is not None)
        return self.function(*given)


def _image(*shape: int) -> Tensor:
    return torch.randn(*(shape or (2, 32, 56, 56)))


def _tokens(rows: int = 2, length: int = 128, width: int = 256) -> Tensor:
    return torch.randn(rows, length, width)


def _heads() -> Tensor:
    return torch.randn(2, 8, 128, 32)


def _scores() -> Tensor:
    return torch.randn(64, 1000)


def _boxes(count: int = 1000) -> Tensor:
    corner = torch.rand(count, 2) * 100
    return torch.cat([corner, corner + torch.rand(count, 2) * 50], 1)


def _numbers(high: int, *shape: int) -> Tensor:
    return torch.randint(0, high, shape)


_Calls = Mapping[str, tuple[Callable[..., Any] | nn.Module, tuple[Tensor, ...]]]


def _vision() -> _Calls:
    return {
        "conv2d 3x3": (nn.Conv2d(32, 64, 3, padding=1), (_image(),)),
        "conv2d 7x7 stride 2": (nn.Conv2d(3, 32, 7, 2, 3), (_image(2, 3, 112, 112),)),
        "conv2d depthwise": (nn.Conv2d(32, 32, 7, padding=3, groups=32), (_image(),)),
        "conv2d padding same": (nn.Conv2d(32, 32, 3, padding="same"), (_image(),)),
        "conv2d reflect": (nn.Conv2d(32, 32, 3, padding=1, padding_mode="reflect"), (_image(),)),
        "conv_transpose2d": (nn.ConvTranspose2d(32, 16, 4, 2, 1), (_image(2, 32, 28, 28),)),
        "conv3d": (nn.Conv3d(4, 8, 3, padding=1), (torch.randn(1, 4, 8, 28, 28),)),
        "batch_norm": (nn.BatchNorm2d(32).eval(), (_image(),)),
        "group_norm": (nn.GroupNorm(8, 32), (_image(),)),
        "instance_norm": (nn.InstanceNorm2d(32, affine=True), (_image(),)),
        "layer_norm of channels": (lambda x: F.layer_norm(x.permute(0, 2, 3, 1), (32,)), (_image(),)),
        "max_pool2d": (lambda x: F.max_pool2d(x, 3, 2, 1), (_image(),)),
        "max_pool2d with indices": (lambda x: F.max_pool2d(x, 2, return_indices=True), (_image(),)),
        "avg_pool2d": (lambda x: F.avg_pool2d(x, 3, 2, 1), (_image(),)),
        "avg_pool2d without padding": (lambda x: F.avg_pool2d(x, 3, 1, 1, count_include_pad=False), (_image(),)),
        "adaptive_avg_pool2d 1": (lambda x: F.adaptive_avg_pool2d(x, 1), (_image(),)),
        "adaptive_avg_pool2d 7": (lambda x: F.adaptive_avg_pool2d(x, 7), (_image(),)),
        "adaptive_max_pool2d 1": (lambda x: F.adaptive_max_pool2d(x, 1), (_image(),)),
    }


def _images() -> _Calls:
    return {
        "interpolate nearest": (lambda x: F.interpolate(x, scale_factor=2.0), (_image(2, 32, 28, 28),)),
        "interpolate bilinear": (
            lambda x: F.interpolate(x, scale_factor=2.0, mode="bilinear", align_corners=False),
            (_image(2, 16, 28, 28),),
        ),
        "interpolate to a size": (lambda x: F.interpolate(x, size=(64, 64), mode="bilinear"), (_image(2, 16, 28, 28),)),
        "interpolate bicubic": (
            lambda x: F.interpolate(x, scale_factor=2.0, mode="bicubic"),
            (_image(2, 3, 56, 56),),
        ),
        "pixel_shuffle": (lambda x: F.pixel_shuffle(x, 2), (_image(),)),
        "pixel_unshuffle": (lambda x: F.pixel_unshuffle(x, 2), (_image(),)),
        "grid_sample": (
            lambda x, g: F.grid_sample(x, g.tanh(), align_corners=False),
            (_image(2, 8, 32, 32), torch.randn(2, 32, 32, 2)),
        ),
        "pad reflect": (lambda x: F.pad(x, (1, 1, 1, 1), "reflect"), (_image(),)),
        "pad constant": (lambda x: F.pad(x, (1, 2, 3, 4), value=0.5), (_image(),)),
        "patches": (lambda x: x.unfold(2, 8, 8).unfold(3, 8, 8), (_image(2, 3, 56, 56),)),
        "unfold": (lambda x: F.unfold(x, 3, padding=1), (_image(1, 8, 28, 28),)),
        "fold": (lambda x: F.fold(x, (28, 28), 2, stride=2), (torch.randn(2, 32, 196),)),
        "roll": (lambda x: x.roll((3, 3), (2, 3)), (_image(),)),
        "window partition": (
            lambda x: x.view(x.shape[0], 8, 7, 8, 7, 32).permute(0, 1, 3, 2, 4, 5).flatten(0, 2),
            (torch.randn(2, 56, 56, 32),),
        ),
        "channel shuffle": (lambda x: F.channel_shuffle(x, 4), (_image(),)),
        "flip": (lambda x: x.flip(3), (_image(),)),
        "local_response_norm": (lambda x: F.local_response_norm(x, 5), (_image(),)),
    }


def _activations() -> _Calls:
    return {
        "relu": (F.relu, (_tokens(),)),
        "gelu": (F.gelu, (_tokens(),)),
        "gelu tanh": (lambda x: F.gelu(x, approximate="tanh"), (_tokens(),)),
        "silu": (F.silu, (_tokens(),)),
        "mish": (F.mish, (_tokens(),)),
        "hardswish": (F.hardswish, (_image(),)),
        "hardsigmoid": (F.hardsigmoid, (_image(),)),
        "relu6": (F.relu6, (_image(),)),
        "leaky_relu": (lambda x: F.leaky_relu(x, 0.1), (_image(),)),
        "elu": (F.elu, (_tokens(),)),
        "softplus": (F.softplus, (_tokens(),)),
        "prelu": (nn.PReLU(32), (_image(),)),
        "glu": (F.glu, (_tokens(),)),
        "swiglu": (lambda x: F.silu(x.chunk(2, -1)[0]) * x.chunk(2, -1)[1], (_tokens(),)),
        "softmax": (lambda x: x.softmax(-1), (_heads(),)),
        "log_softmax": (lambda x: x.log_softmax(-1), (_scores(),)),
        "logsigmoid": (F.logsigmoid, (_tokens(),)),
        "tanhshrink": (F.tanhshrink, (_tokens(),)),
        "clamp": (lambda x: x.clamp(-1, 1), (_tokens(),)),
        "clamp_min": (lambda x: x.clamp(min=0.1), (_tokens(),)),
    }


def _layers() -> _Calls:
    return {
        "linear": (nn.Linear(256, 512), (_tokens(),)),
        "linear without bias": (nn.Linear(256, 512, bias=False), (_tokens(),)),
        "matmul": (torch.matmul, (_heads(), torch.randn(2, 8, 32, 128))),
        "bmm": (torch.bmm, (torch.randn(16, 64, 64), torch.randn(16, 64, 64))),
        "einsum": (lambda x, y: torch.einsum("bhid,bhjd->bhij", x, y), (_heads(), _heads())),
        "embedding": (nn.Embedding(1000, 256), (_numbers(1000, 2, 128),)),
        "layer_norm": (nn.LayerNorm(256), (_tokens(),)),
        "rms_norm": (nn.RMSNorm(256), (_tokens(),)),
        "rms norm by hand": (lambda x: x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-6), (_tokens(),)),
        "attention": (F.scaled_dot_product_attention, (_heads(), _heads(), _heads())),
        "causal attention": (
            lambda q, k, v: F.scaled_dot_product_attention(q, k, v, is_causal=True),
            (_heads(), _heads(), _heads()),
        ),
        "rotary": (
            lambda x, y: x * y.cos() + torch.cat([-x[..., 16:], x[..., :16]], -1) * y.sin(),
            (_heads(), torch.randn(2, 8, 128, 32)),
        ),
    }


def _tokens_and_heads() -> _Calls:
    tokens = _numbers(1000, 2, 128)
    mask = torch.ones(2, 128, dtype=torch.bool)
    return {
        "split heads": (lambda x: x.view(*x.shape[:2], 8, 32).transpose(1, 2), (_tokens(),)),
        "merge heads": (lambda x: x.transpose(1, 2).reshape(x.shape[0], 128, 256), (_heads(),)),
        "qkv chunks": (lambda x: x.chunk(3, -1), (_tokens(2, 128, 768),)),
        "causal mask": (
            lambda x: x.masked_fill(torch.ones(128, 128).triu(1).bool(), float("-inf")),
            (torch.randn(2, 8, 128, 128),),
        ),
        "padding mask": (lambda x, m: x.masked_fill(~m[:, None, None, :], -1e9), (torch.randn(2, 8, 128, 128), mask)),
        "last token": (lambda x: x[:, -1], (_tokens(),)),
        "mean of tokens": (lambda x: x.mean(1), (_tokens(),)),
        "position numbers": (lambda x: torch.arange(x.shape[1]) + x, (tokens,)),
        "gather": (lambda x, i: x.gather(1, i.unsqueeze(-1).expand(-1, -1, 256)), (_tokens(), _numbers(128, 2, 16))),
        "index_select": (lambda x: x.index_select(1, torch.tensor([0, 5, 7])), (_tokens(),)),
        "one_hot": (lambda x: F.one_hot(x, 1000), (tokens,)),
        "cumsum": (lambda x: x.cumsum(1), (_tokens(),)),
        "repeat_interleave of heads": (lambda x: x.repeat_interleave(4, 1), (_heads(),)),
        "where": (lambda x, y: torch.where(x > 0, x, y), (_tokens(), _tokens())),
        "normalize": (lambda x: F.normalize(x, dim=-1), (_tokens(),)),
        "cosine_similarity": (lambda x, y: F.cosine_similarity(x, y, -1), (_tokens(), _tokens())),
        "cross_entropy": (F.cross_entropy, (_scores(), _numbers(1000, 64))),
        "logsumexp": (lambda x: x.logsumexp(-1), (_scores(),)),
    }


def _detection() -> _Calls:
    return {
        "argmax": (lambda x: x.argmax(-1), (_scores(),)),
        "argmin": (lambda x: x.argmin(-1), (_scores(),)),
        "max along a dimension": (lambda x: x.max(-1), (_scores(),)),
        "amax": (lambda x: x.amax(-1), (_scores(),)),
        "amin": (lambda x: x.amin(-1), (_scores(),)),
        "topk": (lambda x: x.topk(10), (_scores(),)),
        "topk of many": (lambda x: x.topk(100, dim=1), (torch.randn(4, 20000),)),
        "sort": (lambda x: x.sort(-1, descending=True), (_scores(),)),
        "argsort": (lambda x: x.argsort(-1), (_scores(),)),
        "nonzero": (lambda x: (x > 1).nonzero(), (_scores(),)),
        "boolean index": (lambda x: x[x > 1], (_scores(),)),
        "index rows": (lambda x, i: x[i], (_scores(), _numbers(64, 32))),
        "scatter_add": (lambda x, i: torch.zeros(64, 1000).scatter_add(0, i, x), (_scores(), _numbers(64, 64, 1000))),
        "scatter": (lambda x, i: x.scatter(1, i, 1.0), (_scores(), _numbers(1000, 64, 4))),
        "box areas": (lambda b: (b[:, 2] - b[:, 0]) * (b[:, 3] - b[:, 1]), (_boxes(),)),
        "box overlaps": (
            lambda b: torch.minimum(b[:, None, 2:], b[None, :, 2:]) - torch.maximum(b[:, None, :2], b[None, :, :2]),
            (_boxes(200),),
        ),
        "clip boxes": (
            lambda b: torch.stack([b[..., 0::2].clamp(0, 90), b[..., 1::2].clamp(0, 80)], -1).flatten(1),
            (_boxes(),),
        ),
        "cdist": (torch.cdist, (torch.randn(4, 100, 16), torch.randn(4, 80, 16))),
        "unbind boxes": (lambda b: b.unbind(-1), (_boxes(),)),
        "meshgrid": (
            lambda x: torch.stack(torch.meshgrid(torch.arange(40), torch.arange(40), indexing="ij"), -1) + x,
            (torch.randn(2, 40, 40, 2),),
        ),
    }


def _arithmetic() -> _Calls:
    return {
        "mean": (lambda x: x.mean(), (_tokens(),)),
        "sum along a dimension": (lambda x: x.sum(-1), (_tokens(),)),
        "prod": (lambda x: x.prod(-1), (_scores(),)),
        "std": (lambda x: x.std(-1), (_tokens(),)),
        "var": (lambda x: x.var(-1, unbiased=False), (_tokens(),)),
        "norm": (lambda x: x.norm(dim=-1), (_tokens(),)),
        "any": (lambda x: (x > 3).any(-1), (_tokens(),)),
        "pow 2": (lambda x: x**2, (_tokens(),)),
        "rsqrt": (lambda x: (x * x + 1).rsqrt(), (_tokens(),)),
        "floor_divide": (lambda x: torch.div(x, 7, rounding_mode="floor"), (_numbers(1000, 2, 128),)),
        "remainder": (lambda x: x % 7, (_numbers(1000, 2, 128),)),
        "stack": (lambda x, y: torch.stack([x, y], 1), (_tokens(), _tokens())),
        "addmm": (torch.addmm, (torch.randn(64, 64), torch.randn(64, 128), torch.randn(128, 64))),
        "lerp": (lambda x, y: torch.lerp(x, y, 0.3), (_tokens(), _tokens())),
    }


def _audio() -> _Calls:
    return {
        "conv1d": (nn.Conv1d(64, 64, 5, padding=2), (torch.randn(2, 64, 400),)),
        "lstm": (nn.LSTM(64, 64, batch_first=True), (torch.randn(2, 50, 64),)),
        "lstm both ways": (nn.LSTM(64, 64, 2, bidirectional=True, batch_first=True), (torch.randn(2, 50, 64),)),
        "gru": (nn.GRU(64, 64, batch_first=True), (torch.randn(2, 50, 64),)),
        "rnn": (nn.RNN(64, 64, batch_first=True), (torch.randn(2, 50, 64),)),
    }


def _made(entry: tuple[Callable[..., Any] | nn.Module, tuple[Tensor, ...]]) -> Call:
    what, inputs = entry
    return Call((what if isinstance(what, nn.Module) else _Function(what)).eval(), inputs)


def calls() -> dict[str, Call]:
    """Return all calls by name; weights and inputs are the same each time."""
    torch.manual_seed(0)
    tables = (
        _vision(),
        _images(),
        _activations(),
        _layers(),
        _tokens_and_heads(),
        _detection(),
        _arithmetic(),
        _audio(),
    )
    return {name: _made(entry) for table in tables for name, entry in table.items()}
