"""``nn.Transformer`` and its parts, and masks of transformers, at other sizes, as they run without gradients."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

from onnx_fx_export import export

X, LENGTHS = {0: "batch", 1: "time"}, {0: "batch", 1: "time"}
SQUARE = {0: "time", 1: "time"}


def padding(batch: int, time: int, *, left: bool = False) -> torch.Tensor:
    mask = torch.zeros(batch, time, dtype=torch.bool)
    mask[-1, : 2 if left else None] = True
    if not left:
        mask[-1, : time - 2] = False
    return mask


def causal(time: int) -> torch.Tensor:
    return torch.triu(torch.full((time, time), float("-inf")), 1)


class Encoder(nn.Module):
    def __init__(self, call: Callable[..., torch.Tensor], norm: bool = False, **options: Any) -> None:
        super().__init__()
        layer = nn.TransformerEncoderLayer(8, 2, 16, batch_first=True, **options)
        self.encoder = nn.TransformerEncoder(layer, 2, norm=nn.LayerNorm(8) if norm else None)
        for parameter in self.parameters():
            nn.init.normal_(parameter, std=0.4)
        self.call = call

    def forward(self, x: torch.Tensor, mask: torch.Tensor | None = None, pad: torch.Tensor | None = None) -> Any:
        return self.call(self.encoder, x, mask, pad)


CALLS: dict[str, Callable[..., torch.Tensor]] = {
    "padding": lambda encoder, x, mask, pad: encoder(x, src_key_padding_mask=pad),
    "float padding": lambda encoder, x, mask, pad: encoder(
        x, src_key_padding_mask=torch.zeros_like(pad, dtype=torch.float32).masked_fill(pad, float("-inf"))
    ),
    "mask": lambda encoder, x, mask, pad: encoder(x, mask=mask),
    "causal mask": lambda encoder, x, mask, pad: encoder(x, mask=mask, is_causal=True),
    "both": lambda encoder, x, mask, pad: encoder(x, mask=mask, src_key_padding_mask=pad.float() * -1e4),
}


@pytest.mark.parametrize("options", [{}, {"norm": True}, {"norm_first": True}], ids=["plain", "norm", "norm first"])
@pytest.mark.parametrize("name", CALLS)
def test_an_encoder_with_masks(name: str, options: dict[str, Any]) -> None:
    torch.manual_seed(0)
    model = Encoder(CALLS[name], **options).eval()
    shapes = {"x": X, "mask": SQUARE, "pad": LENGTHS}

    program = export(model, (torch.randn(2, 5, 8), causal(5), padding(2, 5)), dynamic_shapes=shapes)

    # Behind the ends of sequences the model leaves zeros, unless padding also stands at a beginning.
    sides = (False, True) if name.endswith("padding") else (False,)
    for batch, time, left in ((*sizes, left) for sizes in ((2, 5), (3, 7), (1, 4)) for left in sides):
        args = torch.randn(batch, time, 8), causal(time), padding(batch, time, left=left)
        with torch.no_grad():
            expected = model(*args)
        torch.testing.assert_close(program(*args), expected, rtol=1e-4, atol=1e-5)


def test_an_encoder_that_is_trained_or_runs_all_rows_leaves_no_zeros() -> None:
    layer = nn.TransformerEncoderLayer(8, 2, 16, dropout=0.0, batch_first=True)
    for model in (nn.TransformerEncoder(layer, 2), nn.TransformerEncoder(layer, 2, enable_nested_tensor=False).eval()):
        program = export(
            lambda x, pad, model=model: model(x, src_key_padding_mask=pad),
            (torch.randn(2, 5, 8), padding(2, 5)),
            dynamic_shapes=({0: "batch", 1: "time"}, LENGTHS),
        )
        args = torch.randn(3, 6, 8), padding(3, 6)
        with torch.no_grad():
            expected = model(args[0], src_key_padding_mask=args[1])
        torch.testing.assert_close(program(*args), expected, rtol=1e-4, atol=1e-5)


class Translation(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.transformer = nn.Transformer(8, 2, 1, 1, 16, batch_first=True)

    def forward(self, source: torch.Tensor, target: torch.Tensor, pad: torch.Tensor, target_pad: torch.Tensor) -> Any:
        return self.transformer(
            source,
            target,
            tgt_mask=nn.Transformer.generate_square_subsequent_mask(target.shape[1], dtype=torch.float32),
            src_key_padding_mask=pad,
            memory_key_padding_mask=pad,
            tgt_key_padding_mask=target_pad.float().masked_fill(target_pad, float("-inf")),
            tgt_is_causal=True,
        )


def test_encoder_and_decoder_with_all_masks() -> None:
    def example(batch: int, source: int, target: int) -> tuple[torch.Tensor, ...]:
        inputs = torch.randn(batch, source, 8), torch.randn(batch, target, 8)
        return *inputs, padding(batch, source), padding(batch, target)

    model = Translation().eval()
    rows = {0: "batch", 1: "source"}, {0: "batch", 1: "target"}
    program = export(model, example(2, 5, 4), dynamic_shapes=(*rows, *rows))
    for sizes in ((3, 7, 9), (2, 6, 3)):
        args = example(*sizes)
        with torch.no_grad():
            torch.testing.assert_close(program(*args), model(*args), rtol=1e-4, atol=1e-5)


class PooledKeys(nn.Module):
    """Attention to half as many keys, as Informer has it: a mask for all of them would not fit."""

    def __init__(self, implementation: str) -> None:
        super().__init__()
        self.masks = pytest.importorskip("transformers.masking_utils")
        self.config = pytest.importorskip("transformers").BertConfig(attn_implementation=implementation)

    def forward(self, x: torch.Tensor, mask: torch.Tensor | None = None) -> torch.Tensor:
        whole = self.masks.create_bidirectional_mask(config=self.config, inputs_embeds=x, attention_mask=mask)
        keys = x if mask is not None else nn.functional.avg_pool1d(x.mT, 2).mT
        return nn.functional.scaled_dot_product_attention(x[:, None], keys[:, None], keys[:, None], whole)


@pytest.mark.parametrize("implementation", ["sdpa", "eager"])
def test_transformers_makes_a_mask_for_padding_alone(implementation: str) -> None:
    model = PooledKeys(implementation)
    without = export(model, (torch.randn(2, 8, 4),), dynamic_shapes=(X,))
    padded = export(model, (torch.randn(2, 8, 4), ~padding(2, 8)), dynamic_shapes=(X, X))
    x, mask = torch.randn(3, 11, 4), ~padding(3, 11)
    torch.testing.assert_close(without(x), model(x))
    torch.testing.assert_close(padded(x, mask), model(x, mask))
