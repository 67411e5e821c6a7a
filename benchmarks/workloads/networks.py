"""Networks of the usual architectures, few layers of each in the proportions of the published ones, with an example."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Callable, Mapping

import torch
from torch import Tensor, nn

__all__ = ["NETWORKS", "Network"]


@dataclasses.dataclass(frozen=True)
class Network:
    """A network and its example.

    Attributes:
        module: The network.
        inputs: Arguments by name, with a batch of 2.
        kind: The `model_type` of onnxruntime.transformers' optimizer.
        heads: Number of attention heads; 0 where there are none.
        width: Size of the hidden states; 0 where they differ from layer to layer.
    """

    module: nn.Module
    inputs: Mapping[str, Tensor]
    kind: str = "bert"
    heads: int = 0
    width: int = 0


def _ids(length: int = 64, vocabulary: int = 1000) -> Tensor:
    return torch.randint(0, vocabulary, (2, length))


def _image(size: int = 224) -> Tensor:
    return torch.randn(2, 3, size, size)


def _bert() -> Network:
    from transformers import BertConfig, BertModel

    config = BertConfig(
        hidden_size=384, num_hidden_layers=4, num_attention_heads=6, intermediate_size=1536, vocab_size=1000
    )
    ids = _ids()
    return Network(BertModel(config), {"input_ids": ids, "attention_mask": torch.ones_like(ids)}, "bert", 6, 384)


def _gpt2() -> Network:
    from transformers import GPT2Config, GPT2LMHeadModel

    config = GPT2Config(n_embd=384, n_layer=4, n_head=6, vocab_size=1000, n_positions=128, use_cache=False)
    return Network(GPT2LMHeadModel(config), {"input_ids": _ids()}, "gpt2", 6, 384)


def _t5() -> Network:
    from transformers import T5Config, T5EncoderModel

    config = T5Config(d_model=384, d_kv=64, d_ff=1024, num_layers=4, num_heads=6, vocab_size=1000)
    return Network(T5EncoderModel(config), {"input_ids": _ids()}, "t5", 6, 384)


def _llama() -> Network:
    from transformers import LlamaConfig, LlamaForCausalLM

    config = LlamaConfig(
        hidden_size=512,
        num_hidden_layers=4,
        num_attention_heads=8,
        num_key_value_heads=2,
        intermediate_size=1376,
        vocab_size=1000,
        use_cache=False,
    )
    return Network(LlamaForCausalLM(config), {"input_ids": _ids()}, "gpt2", 8, 512)


def _whisper() -> Network:
    from transformers import WhisperConfig
    from transformers.models.whisper.modeling_whisper import WhisperEncoder

    config = WhisperConfig(
        d_model=384, encoder_layers=4, encoder_attention_heads=6, encoder_ffn_dim=1536, max_source_positions=200
    )
    return Network(WhisperEncoder(config), {"input_features": torch.randn(2, 80, 400)}, "bart", 6, 384)


def _vit() -> Network:
    from transformers import ViTConfig, ViTModel

    config = ViTConfig(hidden_size=384, num_hidden_layers=4, num_attention_heads=6, intermediate_size=1536)
    return Network(ViTModel(config, add_pooling_layer=False), {"pixel_values": _image()}, "vit", 6, 384)


def _swin() -> Network:
    from transformers import Swinv2Config, Swinv2Model

    config = Swinv2Config(image_size=128, embed_dim=48, depths=[2, 2], num_heads=[3, 6], window_size=8)
    return Network(Swinv2Model(config), {"pixel_values": _image(128)}, "swin")


def _convnext() -> Network:
    from transformers import ConvNextConfig, ConvNextModel

    config = ConvNextConfig(depths=[1, 1, 3, 1], hidden_sizes=[48, 96, 192, 384])
    return Network(ConvNextModel(config), {"pixel_values": _image(128)})


def _resnet() -> Network:
    from transformers import ResNetConfig, ResNetModel

    return Network(ResNetModel(ResNetConfig()), {"pixel_values": _image(96)})


class _Block(nn.Sequential):
    def __init__(self, before: int, after: int, stride: int = 1) -> None:
        super().__init__(nn.Conv2d(before, after, 3, stride, 1, bias=False), nn.BatchNorm2d(after), nn.SiLU())


class _Detector(nn.Module):
    """A one-stage detector: strided blocks, a pyramid, and boxes decoded from the cells of three grids."""

    def __init__(self, classes: int = 80) -> None:
        super().__init__()
        widths = (32, 64, 128, 256)
        self.stem = _Block(3, widths[0], 2)
        self.stages = nn.ModuleList(
            nn.Sequential(_Block(a, b, 2), _Block(b, b), _Block(b, b)) for a, b in itertools.pairwise(widths)
        )
        self.narrow = nn.ModuleList(nn.Conv2d(width, 64, 1) for width in widths[1:])
        self.heads = nn.ModuleList(nn.Conv2d(64, 4 + classes, 1) for _ in widths[1:])

    def forward(self, image: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        x, levels = self.stem(image), []
        for stage in self.stages:
            x = stage(x)
            levels.append(x)
        above, found = None, []
        for index in (2, 1, 0):
            level = self.narrow[index](levels[index])
            above = level if above is None else level + nn.functional.interpolate(above, scale_factor=2.0)
            found.append(self._decoded(self.heads[index](above), 4 * 2**index))
        cells = torch.cat(found, 1)
        scores, classes = cells[..., 4:].sigmoid().max(-1)
        best, places = scores.topk(100, 1)
        boxes = cells[..., :4].gather(1, places.unsqueeze(-1).expand(-1, -1, 4))
        return boxes, best, classes.gather(1, places)

    @staticmethod
    def _decoded(cells: Tensor, stride: int) -> Tensor:
        height, width = cells.shape[2:]
        rows, columns = torch.meshgrid(torch.arange(height), torch.arange(width), indexing="ij")
        grid = torch.stack([columns, rows], -1).view(1, -1, 2)
        cells = cells.flatten(2).transpose(1, 2)
        center = (cells[..., :2].sigmoid() * 2 - 0.5 + grid) * stride
        half = (cells[..., 2:4].sigmoid() * 2) ** 2 * stride / 2
        return torch.cat([center - half, center + half, cells[..., 4:]], -1)


class _Residual(nn.Module):
    def __init__(self, before: int, after: int, times: int) -> None:
        super().__init__()
        self.first = nn.Sequential(nn.GroupNorm(8, before), nn.SiLU(), nn.Conv2d(before, after, 3, padding=1))
        self.time = nn.Linear(times, after)
        self.second = nn.Sequential(nn.GroupNorm(8, after), nn.SiLU(), nn.Conv2d(after, after, 3, padding=1))
        self.skip = nn.Conv2d(before, after, 1) if before != after else nn.Identity()

    def forward(self, x: Tensor, time: Tensor) -> Tensor:
        hidden = self.first(x) + self.time(nn.functional.silu(time))[:, :, None, None]
        return self.skip(x) + self.second(hidden)


class _Diffusion(nn.Module):
    """A U-Net of a diffusion model: residual blocks with the time, self-attention in the middle."""

    def __init__(self, width: int = 64) -> None:
        super().__init__()
        self.width = width
        self.time = nn.Sequential(nn.Linear(width, 4 * width), nn.SiLU(), nn.Linear(4 * width, 4 * width))
        self.enter = nn.Conv2d(4, width, 3, padding=1)
        self.down = nn.ModuleList([_Residual(width, width, 4 * width), _Residual(width, 2 * width, 4 * width)])
        self.norm = nn.LayerNorm(2 * width)
        self.query, self.out = nn.Linear(2 * width, 6 * width), nn.Linear(2 * width, 2 * width)
        self.up = nn.ModuleList([_Residual(4 * width, width, 4 * width), _Residual(2 * width, width, 4 * width)])
        self.leave = nn.Sequential(nn.GroupNorm(8, width), nn.SiLU(), nn.Conv2d(width, 4, 3, padding=1))

    def forward(self, sample: Tensor, timestep: Tensor) -> Tensor:
        steps = torch.exp(torch.arange(self.width // 2) * -0.2).to(sample.dtype)
        angles = timestep.to(sample.dtype)[:, None] * steps
        time = self.time(torch.cat([angles.cos(), angles.sin()], -1))
        x, kept = self.enter(sample), []
        for block in self.down:
            x = block(x, time)
            kept.append(x)
            x = nn.functional.avg_pool2d(x, 2)
        x = self._attended(x)
        for block in self.up:
            x = nn.functional.interpolate(x, scale_factor=2.0)
            x = block(torch.cat([x, kept.pop()], 1), time)
        return self.leave(x)

    def _attended(self, x: Tensor) -> Tensor:
        tokens = self.norm(x.flatten(2).transpose(1, 2))
        heads = (part.unflatten(-1, (4, -1)).transpose(1, 2) for part in self.query(tokens).chunk(3, -1))
        mixed = nn.functional.scaled_dot_product_attention(*heads).transpose(1, 2).flatten(2)
        return x + self.out(mixed).transpose(1, 2).reshape(x.shape)


def _yolo() -> Network:
    return Network(_Detector(), {"image": _image(128)})


def _unet() -> Network:
    inputs = {"sample": torch.randn(2, 4, 32, 32), "timestep": torch.tensor([3, 500])}
    return Network(_Diffusion(), inputs, "unet", 4, 128)


NETWORKS: Mapping[str, Callable[[], Network]] = {
    "bert": _bert,
    "gpt2": _gpt2,
    "t5": _t5,
    "llama": _llama,
    "whisper": _whisper,
    "vit": _vit,
    "swin v2": _swin,
    "convnext": _convnext,
    "resnet": _resnet,
    "yolo-like": _yolo,
    "u-net": _unet,
}
