"""Small models of the architectures that people export, with random weights."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

Case = tuple[torch.nn.Module, dict[str, torch.Tensor], dict[str, dict[int, str]]]

TEXT = {0: "batch", 1: "length"}


def _ids() -> torch.Tensor:
    return torch.randint(0, 100, (2, 7))


def _image(size: int = 32) -> torch.Tensor:
    return torch.randn(2, 3, size, size)


def bert() -> Case:
    from transformers import BertConfig, BertModel

    config = BertConfig(
        num_hidden_layers=2, hidden_size=64, num_attention_heads=4, intermediate_size=128, vocab_size=100
    )
    mask = torch.tensor([[1] * 7, [1] * 4 + [0] * 3])
    return BertModel(config), {"input_ids": _ids(), "attention_mask": mask}, {"input_ids": TEXT, "attention_mask": TEXT}


def llama() -> Case:
    from transformers import LlamaConfig, LlamaForCausalLM

    config = LlamaConfig(
        num_hidden_layers=2,
        hidden_size=64,
        num_attention_heads=4,
        num_key_value_heads=2,
        intermediate_size=128,
        vocab_size=100,
        use_cache=False,
    )
    return LlamaForCausalLM(config), {"input_ids": _ids()}, {"input_ids": TEXT}


def vit() -> Case:
    from transformers import ViTConfig, ViTModel

    config = ViTConfig(
        num_hidden_layers=2, hidden_size=64, num_attention_heads=4, intermediate_size=128, image_size=32, patch_size=8
    )
    return ViTModel(config), {"pixel_values": _image()}, {"pixel_values": {0: "batch"}}


def swin() -> Case:
    from transformers import SwinConfig, SwinModel

    config = SwinConfig(image_size=32, patch_size=4, embed_dim=16, depths=[2, 2], num_heads=[2, 4], window_size=4)
    return SwinModel(config), {"pixel_values": _image()}, {"pixel_values": {0: "batch"}}


def convnext() -> Case:
    from transformers import ConvNextConfig, ConvNextModel

    config = ConvNextConfig(hidden_sizes=[8, 16], depths=[1, 2], num_stages=2)
    return ConvNextModel(config), {"pixel_values": _image()}, {"pixel_values": {0: "batch"}}


def resnet() -> Case:
    from transformers import ResNetConfig, ResNetModel

    config = ResNetConfig(embedding_size=8, hidden_sizes=[8, 16], depths=[1, 2])
    return ResNetModel(config), {"pixel_values": _image()}, {"pixel_values": {0: "batch", 2: "height", 3: "width"}}


def mobilenet() -> Case:
    from transformers import MobileNetV2Config, MobileNetV2Model

    torch.manual_seed(1)
    model = MobileNetV2Model(MobileNetV2Config(depth_multiplier=0.25))
    for module in model.modules():
        if isinstance(module, torch.nn.Conv2d):
            # The default initialization is so small that the outputs vanish, and with them every error.
            torch.nn.init.kaiming_normal_(module.weight)
    return model, {"pixel_values": _image(64)}, {"pixel_values": {0: "batch"}}


class Recurrent(torch.nn.Module):
    def __init__(self, kind: str) -> None:
        super().__init__()
        self.layers = getattr(torch.nn, kind)(5, 6, 2, bidirectional=True, batch_first=True)
        self.head = torch.nn.Linear(12, 3)

    def forward(self, x: torch.Tensor) -> Any:
        hidden, state = self.layers(x)
        return self.head(hidden), state


def lstm() -> Case:
    return Recurrent("LSTM"), {"x": torch.randn(2, 7, 5)}, {"x": {0: "batch", 1: "time"}}


def gru() -> Case:
    return Recurrent("GRU"), {"x": torch.randn(2, 7, 5)}, {"x": {0: "batch", 1: "time"}}


class UNet(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        nn = torch.nn
        self.down = nn.Sequential(nn.Conv2d(3, 8, 3, padding=1), nn.GroupNorm(2, 8), nn.SiLU())
        self.bottom = nn.Sequential(nn.Conv2d(8, 16, 3, stride=2, padding=1), nn.BatchNorm2d(16), nn.ReLU())
        self.up = nn.ConvTranspose2d(16, 8, 2, stride=2)
        self.out = nn.Conv2d(16, 1, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        skip = self.down(x)
        pooled = torch.nn.functional.max_pool2d(skip, 2)
        smooth = torch.nn.functional.interpolate(pooled, scale_factor=2, mode="bilinear", align_corners=False)
        return self.out(torch.cat([skip + smooth, self.up(self.bottom(skip))], 1)).sigmoid()


def unet() -> Case:
    return UNet(), {"x": torch.randn(2, 3, 16, 16)}, {"x": {0: "batch"}}


ARCHITECTURES: dict[str, Callable[[], Case]] = {
    function.__name__: function for function in (bert, llama, vit, swin, convnext, resnet, mobilenet, lstm, gru, unet)
}
