"""Small language models of many architectures, with random weights whose tokens vary."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import onnx
import torch

_IDS = {"vocab_size": 64, "bos_token_id": 1, "eos_token_id": 2, "pad_token_id": 0}
_HEADS = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4}
_PLAIN = {**_IDS, **_HEADS, "initializer_range": 0.3}
_LIMITED = {**_PLAIN, "intermediate_size": 64, "max_position_embeddings": 256}
_GROUPED = {**_LIMITED, "num_key_value_heads": 2}
_EXPERTS = {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 32}
_CHOSEN = {"num_experts": 4, "num_experts_per_tok": 2}
_LAYERS = {"layer_types": ["sliding_attention", "full_attention"]}
_WINDOW = {"sliding_window": 16, "head_dim": 8}

CONFIGURATIONS: dict[str, tuple[str, dict[str, Any]]] = {
    "llama": ("LlamaConfig", _GROUPED),
    "qwen2": ("Qwen2Config", _GROUPED),
    "qwen3": ("Qwen3Config", {**_GROUPED, "head_dim": 8}),
    "mistral": ("MistralConfig", {**_GROUPED, "sliding_window": 16}),
    "phi3": ("Phi3Config", _GROUPED),
    "gemma2": ("Gemma2Config", {**_GROUPED, **_WINDOW}),
    "gemma3": ("Gemma3TextConfig", {**_GROUPED, **_WINDOW, **_LAYERS}),
    "gpt2": ("GPT2Config", {**_IDS, "n_embd": 32, "n_layer": 2, "n_head": 4, "n_positions": 256,
                            "initializer_range": 0.3}),
    "gpt_neox": ("GPTNeoXConfig", _LIMITED),
    "opt": ("OPTConfig", {**_IDS, **_HEADS, "ffn_dim": 64, "word_embed_proj_dim": 32, "init_std": 0.3,
                          "max_position_embeddings": 256}),
    "bloom": ("BloomConfig", {**_IDS, "hidden_size": 32, "n_layer": 2, "n_head": 4, "initializer_range": 0.3}),
    "falcon": ("FalconConfig", {**_PLAIN, "alibi": False}),
    "falcon_alibi": ("FalconConfig", {**_PLAIN, "alibi": True}),
    "mpt": ("MptConfig", {**_IDS, "d_model": 32, "n_layers": 2, "n_heads": 4, "max_seq_len": 256,
                          "initializer_range": 0.3}),
    "gemma": ("GemmaConfig", {**_GROUPED, "head_dim": 16}),
    "gpt_oss": ("GptOssConfig", {**_GROUPED, **_WINDOW, **_LAYERS, "head_dim": 16, "num_local_experts": 4,
                                 "num_experts_per_tok": 2}),
    "phi": ("PhiConfig", {**_GROUPED, "hidden_size": 128}),
    "nemotron": ("NemotronConfig", {**_GROUPED, "hidden_size": 128, "head_dim": 32}),
    "ernie4_5": ("Ernie4_5Config", {**_GROUPED, "head_dim": 16}),
    "olmo2": ("Olmo2Config", _GROUPED),
    "granite": ("GraniteConfig", _GROUPED),
    "smollm3": ("SmolLM3Config", _GROUPED),
    "mixtral": ("MixtralConfig", {**_GROUPED, "num_local_experts": 4}),
    "qwen3_moe": ("Qwen3MoeConfig", {**_GROUPED, **_EXPERTS, "head_dim": 8}),
    "olmoe": ("OlmoeConfig", {**_GROUPED, **_CHOSEN, "bos_token_id": None}),
    "granitemoe": ("GraniteMoeConfig", {**_GROUPED, "num_local_experts": 4, "num_experts_per_tok": 2}),
    "phimoe": ("PhimoeConfig", {**_GROUPED, "num_local_experts": 4}),
    "llama4": ("Llama4TextConfig", {**_GROUPED, "head_dim": 8, "num_local_experts": 4, "intermediate_size_mlp": 64,
                                    "attention_chunk_size": 16}),
    "xglm": ("XGLMConfig", {**_IDS, "d_model": 32, "ffn_dim": 64, "num_layers": 2, "attention_heads": 4,
                            "max_position_embeddings": 256, "init_std": 0.3}),
    "biogpt": ("BioGptConfig", _LIMITED),
    "gptj": ("GPTJConfig", {**_IDS, "n_embd": 32, "n_layer": 2, "n_head": 4, "n_positions": 256, "rotary_dim": 8,
                            "initializer_range": 0.3}),
    "gemma3n": ("Gemma3nTextConfig", {**_GROUPED, **_WINDOW, "num_hidden_layers": 4, "num_kv_shared_layers": 2,
                                      "layer_types": 2 * _LAYERS["layer_types"], "vocab_size_per_layer_input": 64,
                                      "hidden_size_per_layer_input": 8, "laurel_rank": 8,
                                      "activation_sparsity_pattern": [0.0] * 4}),
    "cohere2": ("Cohere2Config", {**_GROUPED, "sliding_window": 16}),
}  # fmt: skip

_LATENT = {"q_lora_rank": 16, "kv_lora_rank": 16, "qk_rope_head_dim": 8, "v_head_dim": 8, "qk_nope_head_dim": 8}
# Models whose keys are wider than their values, or the other way round.
UNEQUAL: dict[str, tuple[str, dict[str, Any]]] = {
    "deepseek_v3": ("DeepseekV3Config", {**_LIMITED, **_LATENT, "moe_intermediate_size": 32, "n_routed_experts": 4,
                                         "num_experts_per_tok": 2, "n_group": 1, "topk_group": 1,
                                         "first_k_dense_replace": 1}),
    "deepseek_v32": ("DeepseekV32Config", {**_LIMITED, **_LATENT, "moe_intermediate_size": 32, "n_routed_experts": 4,
                                           "num_experts_per_tok": 2, "n_group": 1, "topk_group": 1,
                                           "first_k_dense_replace": 1, "index_n_heads": 64, "index_head_dim": 16,
                                           "index_topk": 8}),
}  # fmt: skip

_ENCODER_DECODER = {
    **_IDS, "d_model": 32, "encoder_layers": 2, "decoder_layers": 2, "encoder_attention_heads": 4,
    "decoder_attention_heads": 4, "encoder_ffn_dim": 64, "decoder_ffn_dim": 64, "init_std": 0.3,
    "decoder_start_token_id": 1,
}  # fmt: skip
_TRANSLATOR = {**_ENCODER_DECODER, "max_position_embeddings": 256}
_UNTIED = {**_TRANSLATOR, "tie_word_embeddings": False}

_RELATIVE = {**_IDS, "d_model": 32, "d_kv": 8, "d_ff": 64, "num_layers": 2, "num_heads": 4, "initializer_factor": 3.0,
             "decoder_start_token_id": 0}  # fmt: skip

ENCODER_DECODERS: dict[str, tuple[str, dict[str, Any]]] = {
    "t5": ("T5Config", _RELATIVE),
    "bart": ("BartConfig", _UNTIED),
    "marian": ("MarianConfig", _UNTIED),
    "pegasus": ("PegasusConfig", _TRANSLATOR),
    "mbart": ("MBartConfig", _TRANSLATOR),
    "m2m_100": ("M2M100Config", _UNTIED),
    "mt5": ("MT5Config", _RELATIVE),
    "umt5": ("UMT5Config", _RELATIVE),
    "longt5": ("LongT5Config", {**_RELATIVE, "local_radius": 7}),
    "longt5_global": ("LongT5Config", {**_RELATIVE, "local_radius": 7, "global_block_size": 4,
                                       "encoder_attention_type": "transient-global"}),
    "pegasus_x": ("PegasusXConfig", {**_TRANSLATOR, "num_global_tokens": 4, "block_size": 8}),
    "fsmt": ("FSMTConfig", {**{key: value for key, value in _TRANSLATOR.items() if key != "vocab_size"},
                            "src_vocab_size": 48, "tgt_vocab_size": 64, "num_beams": 1, "langs": ["en", "de"]}),
    "t5gemma": ("T5GemmaConfig", {**_IDS, "encoder": {**_GROUPED, **_WINDOW}, "decoder": {**_GROUPED, **_WINDOW},
                                  "initializer_range": 0.3}),
    "whisper": ("WhisperConfig", {**_ENCODER_DECODER, "num_mel_bins": 8, "max_source_positions": 20,
                                  "max_target_positions": 256}),
    "pix2struct": ("Pix2StructConfig", {"text_config": {**_IDS, "hidden_size": 32, "d_kv": 8, "d_ff": 64,
                                                        "num_layers": 2, "num_heads": 4, "decoder_start_token_id": 0},
                                        "vision_config": {"hidden_size": 32, "patch_embed_hidden_size": 12, "d_ff": 64,
                                                          "d_kv": 8, "num_hidden_layers": 1, "num_attention_heads": 4,
                                                          "seq_len": 64}}),
    "moonshine": ("MoonshineConfig", {**_IDS, "hidden_size": 32, "intermediate_size": 64,
                                      "encoder_num_hidden_layers": 1, "decoder_num_hidden_layers": 2,
                                      "encoder_num_attention_heads": 4,
                                      "decoder_num_attention_heads": 4, "max_position_embeddings": 256,
                                      "decoder_start_token_id": 1, "initializer_range": 0.3}),
}  # fmt: skip
# Models with an encoder that cannot be written.
REFUSED: dict[str, tuple[str, dict[str, Any]]] = {
    "prophetnet": ("ProphetNetConfig", {**_IDS, "hidden_size": 32, "encoder_ffn_dim": 64, "decoder_ffn_dim": 64,
                                        "num_encoder_layers": 1, "num_decoder_layers": 1, "init_std": 0.3,
                                        "num_encoder_attention_heads": 4, "num_decoder_attention_heads": 4,
                                        "decoder_start_token_id": 1, "max_position_embeddings": 64}),
    "led": ("LEDConfig", {**_ENCODER_DECODER, "encoder_layers": 1, "decoder_layers": 1, "attention_window": [8],
                          "max_encoder_position_embeddings": 64, "max_decoder_position_embeddings": 64}),
    "bigbird_pegasus": ("BigBirdPegasusConfig", {**_TRANSLATOR, "encoder_layers": 1, "decoder_layers": 1}),
    "speech_to_text": ("Speech2TextConfig", {**_ENCODER_DECODER, "encoder_layers": 1, "decoder_layers": 1}),
    "switch": ("SwitchTransformersConfig", {**_RELATIVE, "num_experts": 2, "num_decoder_layers": 1, "num_layers": 1}),
}  # fmt: skip
_MAMBA = {**_IDS, "hidden_size": 32, "state_size": 8, "num_hidden_layers": 2, "initializer_range": 0.3}
_HYBRID = {**_GROUPED, "mamba_d_state": 8, "mamba_n_heads": 8, "mamba_d_head": 8, "mamba_chunk_size": 16}
_DELTA = {"linear_key_head_dim": 8, "linear_value_head_dim": 8, "linear_num_key_heads": 2, "linear_num_value_heads": 4}
_TYPES = {"layer_types": ["linear_attention", "full_attention"]}

# Models whose layers keep states of one size.
STATE_SPACES: dict[str, tuple[str, dict[str, Any]]] = {
    "mamba": ("MambaConfig", _MAMBA),
    "mamba2": ("Mamba2Config", {**_MAMBA, "num_heads": 8, "head_dim": 8, "n_groups": 2, "chunk_size": 16}),
    "falcon_mamba": ("FalconMambaConfig", _MAMBA),
    "jamba": ("JambaConfig", {**_GROUPED, "num_experts": 2, "attn_layer_period": 2, "attn_layer_offset": 1,
                              "mamba_d_state": 8}),
    "bamba": ("BambaConfig", {**_HYBRID, "attn_layer_indices": [1]}),
    "falcon_h1": ("FalconH1Config", {**_HYBRID, "mamba_d_ssm": 64}),
    "granitemoehybrid": ("GraniteMoeHybridConfig", {**_HYBRID, "layer_types": ["mamba", "attention"],
                                                    "num_local_experts": 2, "shared_intermediate_size": 32}),
    "qwen3_next": ("Qwen3NextConfig", {**_GROUPED, **_EXPERTS, **_DELTA, **_TYPES, "head_dim": 8,
                                       "shared_expert_intermediate_size": 32}),
    "qwen3_5": ("Qwen3_5TextConfig", {**_GROUPED, **_DELTA, **_TYPES, "head_dim": 16}),
    "olmo_hybrid": ("OlmoHybridConfig", {**_GROUPED, **_DELTA, **_TYPES, "linear_num_key_heads": 4}),
    "nemotron_h": ("NemotronHConfig", {**_GROUPED, "head_dim": 8, "layers_block_type": ["mamba", "attention", "mlp"],
                                       "num_hidden_layers": 3, "ssm_state_size": 8, "mamba_num_heads": 8,
                                       "mamba_head_dim": 8, "n_groups": 2, "chunk_size": 16}),
    "zamba2": ("Zamba2Config", {**_LIMITED, "mamba_d_state": 8, "mamba_ngroups": 1, "n_mamba_heads": 8,
                                "chunk_size": 16, "mamba_headdim": 8, "num_mem_blocks": 1, "hybrid_layer_ids": [1],
                                "adapter_rank": 4,
                                "num_hidden_layers": 3, "attention_head_dim": 16, "use_mem_rope": True,
                                "layers_block_type": ["mamba", "hybrid", "mamba"]}),
    "kimi_linear": ("KimiLinearConfig", {**_LIMITED, **_TYPES, **_EXPERTS, "kv_lora_rank": 16, "qk_rope_head_dim": 8,
                                         "v_head_dim": 8, "qk_nope_head_dim": 8, "linear_head_dim": 8,
                                         "linear_num_heads": 4, "num_key_value_heads": 4}),
    "bailing_hybrid": ("BailingHybridConfig", {**_LIMITED, **_TYPES, **_LATENT, "num_local_experts": 8,
                                               "num_experts_per_tok": 2, "moe_intermediate_size": 32, "n_group": 2,
                                               "topk_group": 1, "first_k_dense_replace": 1, "head_dim": 8,
                                               "num_key_value_heads": 4, "q_lora_rank": None}),
    "lara_mini": ("LaraMiniConfig", {**_PLAIN, **_EXPERTS, **_DELTA, **_WINDOW, "num_key_value_heads": 2,
                                     "max_position_embeddings": 256, "shared_expert_intermediate_size": 32,
                                     "layer_types": ["linear_attention", "sliding_attention"]}),
    "zamba": ("ZambaConfig", {**_GROUPED, "num_hidden_layers": 4, "mamba_d_state": 8, "n_mamba_heads": 2,
                              "attention_head_dim": 16, "layers_block_type": ["mamba", "hybrid", "mamba", "hybrid"]}),
    "lfm2": ("Lfm2Config", {**_GROUPED, "block_auto_adjust_ff_dim": False, "layer_types": ["conv", "full_attention"]}),
    "lfm2_moe": ("Lfm2MoeConfig", {**_GROUPED, **_EXPERTS, "num_dense_layers": 1,
                                   "layer_types": ["conv", "full_attention"]}),
}  # fmt: skip

_EYES = {"hidden_size": 16, "intermediate_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2,
         "image_size": 16, "patch_size": 4, "projection_dim": 16}  # fmt: skip
_EYES_APART = {key: value for key, value in _EYES.items() if key != "projection_dim"}
_IMAGE_TOKEN = {"image_token_id": 63, "image_token_index": 63}
_MARKS = {"image_token_id": 63, "video_token_id": 62, "vision_start_token_id": 61, "vision_end_token_id": 60}
_PLACED = {**_GROUPED, "rope_parameters": {"rope_type": "default", "rope_theta": 1e4, "mrope_section": [1, 1, 2]}}
_TOWER = {"depth": 2, "hidden_size": 32, "num_heads": 2, "patch_size": 4, "initializer_range": 0.3}
_ADDING = {
    **_TOWER,
    "out_hidden_size": 32,
    "intermediate_size": 32,
    "num_position_embeddings": 36,
    "deepstack_visual_indexes": [0, 1],
}
_INTERLEAVED = {
    **_PLACED,
    "head_dim": 8,
    "rope_parameters": {**_PLACED["rope_parameters"], "mrope_section": [2, 1, 1], "mrope_interleaved": True},
}
_WINDOWED = {**_TOWER, "out_hidden_size": 32, "intermediate_size": 32, "window_size": 16, "fullatt_block_indexes": [1]}

_SIGLIP = {**_EYES_APART, "model_type": "siglip_vision_model"}
_PIXTRAL = {**_EYES_APART, "model_type": "pixtral", "hidden_size": 32, "head_dim": 16, "initializer_range": 0.3}
_WHOLE = {"vision_feature_layer": -1, "vision_feature_select_strategy": "full"}
_TILES = {"image_grid_pinpoints": [[16, 32], [32, 16], [32, 32], [48, 16], [16, 48]]}

# Models that read images among the tokens of a text.
VISION_LANGUAGE: dict[str, tuple[str, dict[str, Any]]] = {
    "llava": ("LlavaConfig", {**_IDS, **_IMAGE_TOKEN, "text_config": {**_GROUPED, "model_type": "llama"},
                              "vision_config": {**_EYES, "model_type": "clip_vision_model"}}),
    "gemma3_vision": ("Gemma3Config", {**_IDS, **_IMAGE_TOKEN, "mm_tokens_per_image": 4,
                                       "text_config": {**_GROUPED, **_WINDOW, **_LAYERS},
                                       "vision_config": {**_EYES, "model_type": "siglip_vision_model"}}),
    "smolvlm": ("SmolVLMConfig", {**_IDS, "image_token_id": 63, "scale_factor": 2,
                                  "text_config": {**_GROUPED, "model_type": "llama"}, "vision_config": _EYES_APART}),
    "idefics3": ("Idefics3Config", {**_IDS, "image_token_id": 63, "scale_factor": 2,
                                    "text_config": {**_GROUPED, "model_type": "llama"}, "vision_config": _EYES_APART}),
    "paligemma": ("PaliGemmaConfig", {**_IDS, **_IMAGE_TOKEN, "projection_dim": 32,
                                      "text_config": {**_GROUPED, "model_type": "gemma", "head_dim": 8},
                                      "vision_config": _SIGLIP}),
    "deepseek_vl": ("DeepseekVLConfig", {**_IDS, **_IMAGE_TOKEN, "text_config": {**_GROUPED, "model_type": "llama"},
                                         "vision_config": _SIGLIP}),
    "llava_pixtral": ("LlavaConfig", {**_IDS, **_IMAGE_TOKEN, **_WHOLE, "vision_config": _PIXTRAL,
                                      "text_config": {**_GROUPED, "model_type": "mistral"}}),
    "mistral3": ("Mistral3Config", {**_IDS, **_IMAGE_TOKEN, "spatial_merge_size": 2, "vision_feature_layer": -1,
                                    "vision_config": _PIXTRAL, "text_config": {**_GROUPED, "model_type": "mistral"}}),
    "llava_next": ("LlavaNextConfig", {**_IDS, **_IMAGE_TOKEN, **_TILES,
                                       "text_config": {**_GROUPED, "model_type": "mistral"},
                                       "vision_config": {**_EYES, "model_type": "clip_vision_model"}}),
    "llava_onevision": ("LlavaOnevisionConfig", {**_IDS, **_IMAGE_TOKEN, **_TILES, "video_token_id": 62,
                                                 "vision_aspect_ratio": "anyres_max_2", "vision_config": _SIGLIP,
                                                 "text_config": {**_GROUPED, "model_type": "qwen2"}}),
    "qwen2_vl": ("Qwen2VLConfig", {**_MARKS, "text_config": _PLACED, "vision_config": {**_TOWER, "embed_dim": 32}}),
    "qwen2_5_vl": ("Qwen2_5_VLConfig", {**_MARKS, "text_config": _PLACED, "vision_config": _WINDOWED}),
    "glm4v": ("Glm4vConfig", {**_MARKS, "image_start_token_id": 61, "image_end_token_id": 60, "text_config": _PLACED,
                              "vision_config": {**_TOWER, "out_hidden_size": 32, "intermediate_size": 32,
                                                "image_size": 24, "spatial_merge_size": 2}}),
    "exaone4_5": ("Exaone4_5_Config", {**_MARKS, "text_config": {**_GROUPED, **_WINDOW, "model_type": "exaone4"},
                                       "vision_config": {**_WINDOWED, "num_heads": 4, "num_key_value_heads": 2}}),
    "qwen3_vl": ("Qwen3VLConfig", {**_MARKS, "text_config": _INTERLEAVED, "vision_config": _ADDING}),
}  # fmt: skip

# Those whose layers keep states of one size.
RECURRENT_VISION: dict[str, tuple[str, dict[str, Any]]] = {
    "qwen3_5_vl": ("Qwen3_5Config", {**_MARKS, "text_config": {**_INTERLEAVED, **_DELTA, **_TYPES, "head_dim": 16},
                                     "vision_config": {**_ADDING, "deepstack_visual_indexes": []}}),
    "qwen3_5_moe_vl": ("Qwen3_5MoeConfig", {
        **_MARKS, "vision_config": {**_ADDING, "deepstack_visual_indexes": []},
        "text_config": {**_INTERLEAVED, **_DELTA, **_TYPES, **_EXPERTS, "head_dim": 16,
                        "shared_expert_intermediate_size": 32}}),
    "lfm2_vl": ("Lfm2VlConfig", {**_IMAGE_TOKEN, "vision_config": {**_EYES_APART, "num_patches": 16},
                                 "text_config": {**_GROUPED, "block_auto_adjust_ff_dim": False,
                                                 "layer_types": ["conv", "full_attention"]}}),
}  # fmt: skip
VISION_LANGUAGE |= RECURRENT_VISION

_EARS = {"hidden_size": 32, "intermediate_size": 128, "num_hidden_layers": 2, "num_attention_heads": 2,
         "num_mel_bins": 8, "initializer_range": 0.3}  # fmt: skip
_HEARING = {"audio_token_id": 63, "audio_config": {**_EARS, "max_source_positions": 20}}

_WHISPERING = {
    "num_mel_bins": 8, "d_model": 32, "encoder_layers": 1, "encoder_attention_heads": 2, "encoder_ffn_dim": 32,
    "max_source_positions": 20, "init_std": 0.3, "initializer_range": 0.3,
}  # fmt: skip
# Encoders that divide sounds into blocks of frames.
_BLOCKWISE = {
    "audio_token_id": 63, "initializer_range": 0.3, "window_size": 6, "downsample_rate": 2, "has_lora_adapter": False,
    "text_config": {**_GROUPED, "model_type": "granite", "num_hidden_layers": 1},
    "encoder_config": {"input_dim": 8, "num_layers": 1, "hidden_dim": 16, "num_heads": 2, "dim_head": 8,
                       "output_dim": 8, "context_size": 8, "max_pos_emb": 16, "conv_kernel_size": 3,
                       "initializer_range": 0.3},
    "projector_config": {"model_type": "blip_2_qformer", "hidden_size": 16, "num_hidden_layers": 1,
                         "num_attention_heads": 2, "intermediate_size": 16, "encoder_hidden_size": 16,
                         "initializer_range": 0.3},
}  # fmt: skip

# Models that read sounds among the tokens of a text.
SPEECH_LANGUAGE: dict[str, tuple[str, dict[str, Any]]] = {
    "voxtral": ("VoxtralConfig", {**_HEARING, "text_config": {**_GROUPED, "model_type": "llama"}}),
    "audio_flamingo3": ("AudioFlamingo3Config", {**_HEARING, "text_config": {**_GROUPED, "model_type": "qwen2"}}),
    "glm_asr": ("GlmAsrConfig", {**_HEARING, "text_config": {**_GROUPED, "model_type": "llama"},
                                 "audio_config": {**_EARS, "max_position_embeddings": 20, "num_key_value_heads": 2}}),
    "qwen2_audio": ("Qwen2AudioConfig", {
        "audio_token_id": 63, "text_config": {**_GROUPED, "model_type": "qwen2"},
        "audio_config": _WHISPERING}),
    "granite_speech": ("GraniteSpeechConfig", _BLOCKWISE),
    "granite_speech_plus": ("GraniteSpeechPlusConfig", _BLOCKWISE),
    "moss_transcribe": ("MossTranscribeDiarizeConfig", {
        "audio_token_id": 63, "audio_merge_size": 4, "text_config": {**_GROUPED, "model_type": "qwen3", "head_dim": 8},
        "audio_config": _WHISPERING}),
    "fun_asr_nano": ("FunAsrNanoConfig", {
        "audio_token_id": 63, "text_config": {**_GROUPED, "model_type": "qwen3", "head_dim": 8},
        "adaptor_config": {"hidden_size": 32, "num_attention_heads": 2, "intermediate_size": 8, "num_hidden_layers": 1,
                           "projector_hidden_size": 32},
        "audio_config": {"num_mel_bins": 4, "num_stacked_frames": 2, "hidden_size": 32, "num_attention_heads": 2,
                         "intermediate_size": 32, "num_hidden_layers": 2, "num_timestamp_prediction_layers": 1,
                         "fsmn_kernel_size": 3, "max_position_embeddings": 64}}),
    "qwen3_asr": ("Qwen3ASRConfig", {
        "audio_token_id": 63, "initializer_range": 0.3, "tie_word_embeddings": False,
        "text_config": {**_GROUPED, "model_type": "qwen3", "num_hidden_layers": 1, "head_dim": 8,
                        "tie_word_embeddings": False},
        "audio_config": {"num_mel_bins": 8, "d_model": 32, "encoder_layers": 1, "encoder_attention_heads": 2,
                         "encoder_ffn_dim": 32, "output_dim": 32, "n_window_infer": 200, "downsample_hidden_size": 8,
                         "initializer_range": 0.3}}),
}  # fmt: skip

# So large weights are that the tokens vary.
_SPREAD = dict.fromkeys(("t5", "mt5", "umt5", "longt5", "longt5_global", "pegasus", "mbart", "whisper"), 0.7)


def language_model(name: str, **settings: Any) -> Any:
    """Return a model in evaluation mode.

    Args:
        name: A key of one of the tables above.
        settings: What its configuration has otherwise.
    """
    import transformers

    tables = CONFIGURATIONS | UNEQUAL | ENCODER_DECODERS | REFUSED | STATE_SPACES | VISION_LANGUAGE | SPEECH_LANGUAGE
    kind, given = tables[name]
    torch.manual_seed(0)
    config = getattr(transformers, kind)(**{**given, **settings})
    model = getattr(transformers, f"AutoModelFor{_head(name)}").from_config(config).eval()
    if name in ENCODER_DECODERS | REFUSED:
        for weight in model.parameters():
            if weight.dim() > 1:
                weight.data.normal_(std=_SPREAD.get(name, 0.2))
    if name in VISION_LANGUAGE | SPEECH_LANGUAGE:  # which do not generate images or sounds
        model.get_output_embeddings().weight.data[_MARKS["image_token_id"]] = 0
    return model


def _head(name: str) -> str:
    """Return what transformers calls models of such a task."""
    if name in VISION_LANGUAGE or name == "pix2struct":
        return "ImageTextToText"
    if name in ("whisper", "moonshine", "speech_to_text"):
        return "SpeechSeq2Seq"
    if name == "fun_asr_nano":
        return "MultimodalLM"
    return "Seq2SeqLM" if name in ENCODER_DECODERS | REFUSED | SPEECH_LANGUAGE else "CausalLM"


def input_shapes(file: Path) -> dict[str, list[str | int]]:
    """Return the inputs of a model file, each with the names and sizes of its dimensions."""
    graph = onnx.load(file, load_external_data=False).graph
    return {
        value.name: [dim.dim_param or dim.dim_value for dim in value.type.tensor_type.shape.dim]
        for value in graph.input
    }
