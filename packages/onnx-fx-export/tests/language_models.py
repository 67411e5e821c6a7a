"""Small language models of many architectures, with random weights whose tokens vary."""

from __future__ import annotations

from typing import Any

import torch

_IDS = {"vocab_size": 64, "bos_token_id": 1, "eos_token_id": 2, "pad_token_id": 0}
_HEADS = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4}
_PLAIN = {**_IDS, **_HEADS, "initializer_range": 0.3}
_LIMITED = {**_PLAIN, "intermediate_size": 64, "max_position_embeddings": 256}
_GROUPED = {**_LIMITED, "num_key_value_heads": 2}
_EXPERTS = {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 32}
_WINDOW = {"sliding_window": 16, "head_dim": 8}

CONFIGURATIONS: dict[str, tuple[str, dict[str, Any]]] = {
    "llama": ("LlamaConfig", _GROUPED),
    "qwen2": ("Qwen2Config", _GROUPED),
    "qwen3": ("Qwen3Config", {**_GROUPED, "head_dim": 8}),
    "mistral": ("MistralConfig", {**_GROUPED, "sliding_window": 16}),
    "phi3": ("Phi3Config", _GROUPED),
    "gemma2": ("Gemma2Config", {**_GROUPED, **_WINDOW}),
    "gemma3": (
        "Gemma3TextConfig",
        {**_GROUPED, **_WINDOW, "layer_types": ["sliding_attention", "full_attention"]},
    ),
    "gpt2": ("GPT2Config", {**_IDS, "n_embd": 32, "n_layer": 2, "n_head": 4, "n_positions": 256,
                            "initializer_range": 0.3}),
    "gpt_neox": ("GPTNeoXConfig", _LIMITED),
    "opt": ("OPTConfig", {**_IDS, **_HEADS, "ffn_dim": 64, "word_embed_proj_dim": 32, "init_std": 0.3,
                          "max_position_embeddings": 256}),
    "bloom": ("BloomConfig", {**_IDS, "hidden_size": 32, "n_layer": 2, "n_head": 4, "initializer_range": 0.3}),
    "falcon": ("FalconConfig", {**_PLAIN, "alibi": False}),
    "olmo2": ("Olmo2Config", _GROUPED),
    "granite": ("GraniteConfig", _GROUPED),
    "smollm3": ("SmolLM3Config", _GROUPED),
    "mixtral": ("MixtralConfig", {**_GROUPED, "num_local_experts": 4}),
    "qwen3_moe": ("Qwen3MoeConfig", {**_GROUPED, **_EXPERTS, "head_dim": 8}),
}  # fmt: skip


def language_model(name: str, **settings: Any) -> Any:
    """Return a model in evaluation mode.

    Args:
        name: A key of ``CONFIGURATIONS``.
        settings: What its configuration has otherwise.
    """
    import transformers

    kind, given = CONFIGURATIONS[name]
    torch.manual_seed(0)
    config = getattr(transformers, kind)(**{**given, **settings})
    return transformers.AutoModelForCausalLM.from_config(config).eval()
