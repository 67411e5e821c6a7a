"""Architectures of transformers in small random configurations, each with its inputs and dynamic dimensions."""

from __future__ import annotations

from typing import Any

import torch

# Whatever a configuration calls its sizes, they become these.
_SIZES = {
    "hidden_size": 32, "d_model": 32, "dim": 32, "n_embd": 32, "embed_dim": 32, "embedding_size": 16,
    "word_embed_proj_dim": 32, "head_dim": 8, "d_kv": 8, "rotary_dim": 4,
    "intermediate_size": 64, "moe_intermediate_size": 32, "hidden_dim": 64, "d_ff": 64, "ffn_dim": 64,
    "encoder_ffn_dim": 64, "decoder_ffn_dim": 64,
    "num_hidden_layers": 2, "num_layers": 2, "n_layers": 2, "n_layer": 2, "encoder_layers": 2, "decoder_layers": 2,
    "num_decoder_layers": 2,
    "num_attention_heads": 4, "n_heads": 4, "n_head": 4, "num_heads": 4, "encoder_attention_heads": 4,
    "decoder_attention_heads": 4, "num_key_value_heads": 2,
    "num_local_experts": 4, "num_experts": 4, "num_experts_per_tok": 2,
    "vocab_size": 100, "type_vocab_size": 2, "max_position_embeddings": 64, "sliding_window": 8,
    "image_size": 32, "patch_size": 8,
    "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2, "decoder_start_token_id": 1, "use_cache": False,
}  # fmt: skip
_TEXT = {0: "batch", 1: "length"}

ENCODERS = """Albert Bert Camembert DebertaV2 DistilBert Electra Ernie LayoutLM MPNet MobileBert ModernBert
Nystromformer RoFormer Roberta Splinter XLMRoberta""".split()
DECODERS = """BioGpt Bloom CodeGen Cohere GPT2 GPTJ GPTNeoX Gemma Gemma2 Glm Granite Llama Mistral Mixtral OPT Olmo
Persimmon Phi Phi3 Qwen2 Qwen2Moe Qwen3 SmolLM3 StableLm Starcoder2 XGLM""".split()
ENCODER_DECODERS = "Bart BlenderbotSmall MBart Marian Pegasus T5".split()
VISION = "Beit Cvt DeiT Dinov2 FocalNet PoolFormer Pvt RegNet ResNet Segformer ViT ViTMSN".split()
# Its scan is a Python loop over the length, which torch.export therefore fixes; the batch stays dynamic. LED cannot be
# captured: it decides by the values of its mask, and computes sizes as tensors.
FIXED_LENGTH = ["Mamba"]
ZOO = [*ENCODERS, *DECODERS, *FIXED_LENGTH, *ENCODER_DECODERS, *VISION]

Case = tuple[torch.nn.Module, dict[str, torch.Tensor], dict[str, dict[int, str]]]


def _model(name: str) -> torch.nn.Module:
    import transformers

    kind: Any = getattr(transformers, f"{name}Config")
    base = kind()
    # Vision models keep lists of sizes, one per stage, as they are.
    sizes = {key: size for key, size in _SIZES.items() if isinstance(getattr(base, key, None), int | type(None))}
    known = {key: size for key, size in sizes.items() if hasattr(base, key)}
    if name in VISION:
        known.pop("vocab_size", None)
    model: torch.nn.Module = getattr(transformers, f"{name}Model")(kind(**known))
    return model.eval()


def case(name: str) -> Case:
    """Return a model, its example inputs and their dynamic dimensions."""
    torch.manual_seed(0)
    model = _model(name)
    if name in VISION:
        return model, {"pixel_values": torch.randn(2, 3, 32, 32)}, {"pixel_values": {0: "batch"}}
    if name in FIXED_LENGTH:
        return model, {"input_ids": torch.randint(3, 90, (2, 7))}, {"input_ids": {0: "batch"}}
    mask = torch.tensor([[1] * 7, [1] * 5 + [0] * 2])
    inputs = {"input_ids": torch.randint(3, 90, (2, 7)), "attention_mask": mask}
    dims: dict[str, dict[int, str]] = {"input_ids": _TEXT, "attention_mask": _TEXT}
    if name in ENCODER_DECODERS:
        inputs["decoder_input_ids"] = torch.randint(3, 90, (2, 5))
        dims["decoder_input_ids"] = {0: "batch", 1: "target"}
    return model, inputs, dims
