"""Exports of deep transformers over ``torch.export`` alone, with their equal layers captured once.

    python benchmarks/deep.py [--depth 32] [--only bert] [--json FILE]

Small in width, with dynamic batch and length: what costs is the number of layers. The sides take turns; seconds are
those of this process alone.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from figures import Cell, Figure, command, over, quiet, take_turns

import onnx_fx_export

Example = tuple[torch.nn.Module, dict[str, torch.Tensor]]
SIZES = {"hidden_size": 64, "num_attention_heads": 4, "intermediate_size": 128}


def bert(depth: int) -> Example:
    """BERT."""
    from transformers import BertConfig, BertModel

    ids = torch.randint(0, 1000, (2, 16))
    model = BertModel(BertConfig(num_hidden_layers=depth, **SIZES))
    return model, {"input_ids": ids, "attention_mask": torch.ones_like(ids)}


def llama(depth: int) -> Example:
    """Llama with half as many heads for keys."""
    from transformers import LlamaConfig, LlamaForCausalLM

    config = LlamaConfig(num_hidden_layers=depth, num_key_value_heads=2, vocab_size=1000, use_cache=False, **SIZES)
    return LlamaForCausalLM(config), {"input_ids": torch.randint(0, 1000, (2, 16))}


def vit(depth: int) -> Example:
    """ViT for images of 32 by 32 pixels."""
    from transformers import ViTConfig, ViTModel

    config = ViTConfig(num_hidden_layers=depth, image_size=32, patch_size=8, **SIZES)
    return ViTModel(config), {"pixel_values": torch.randn(2, 3, 32, 32)}


MODELS: dict[str, Callable[[int], Example]] = {"bert": bert, "llama": llama, "vit": vit}


def measure(name: str, depth: int, rounds: int) -> dict[str, Cell]:
    """Measure one model."""
    torch.manual_seed(0)
    model, inputs = MODELS[name](depth)
    model.eval()
    axes = range(2 if "input_ids" in inputs else 1)
    shapes = {key: dict.fromkeys(axes, torch.export.Dim.DYNAMIC) for key in inputs}
    ours = partial(onnx_fx_export.export, model, (), kwargs=inputs, dynamic_shapes=shapes)
    sides: dict[str, Callable[[], Any]] = {
        "capture": lambda: torch.export.export(model, (), inputs, dynamic_shapes=shapes),
        "unasked": ours,
        "asked": partial(ours, capture_repeated_blocks=True),
        "each": partial(ours, capture_repeated_blocks=False),
    }
    times = take_turns(list(sides.values()), rounds, warm_up=0, clock=time.process_time)
    seconds = dict(zip(sides, times, strict=True))
    ratios = {side: over(seconds[side], seconds["capture"]) for side in ("unasked", "asked", "each")}
    return {"model": name, "capture": seconds["capture"], **ratios}


def main() -> None:
    """Measure all models and print the table."""
    parser = command(__doc__, MODELS)
    parser.add_argument("--depth", type=int, default=32)
    parser.add_argument("--rounds", type=int, default=3)
    options = parser.parse_args()
    quiet()
    for name in options.only:
        measure(name, 2, 1)
    Figure(
        title="Deep transformers",
        caption=f"Processor time of an export of {options.depth} layers over that of `torch.export.export` alone: with "
        "the default, with `capture_repeated_blocks=True`, and with each layer captured; less is better.",
        columns={
            "model": "model",
            "capture": "torch.export alone s",
            "unasked": "export over it",
            "asked": "blocks captured once",
            "each": "each captured",
        },
        rows=[measure(name, options.depth, options.rounds) for name in options.only],
    ).finish(options.json)


if __name__ == "__main__":
    main()
