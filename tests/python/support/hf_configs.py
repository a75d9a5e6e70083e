"""Rotary settings of published models, as their config.json has them (Phi-3's factors rounded, its short ones made up).

Only keys that matter here: class name in transformers, its rotary embedding's module and class, and the dict.
"""

# fmt: off
PHI3_LONG = [
    1.07, 1.12, 1.15, 1.42, 1.57, 1.8, 2.13, 2.13, 3.01, 5.91, 6.95, 9.07, 9.93, 10.71, 11.13, 14.61, 15.41, 19.81,
    37.28, 38.28, 38.6, 40.12, 46.2, 50.94, 53.66, 54.94, 56.9, 57.29, 59.99, 60.87, 60.89, 61.72, 62.92, 62.96, 63.42,
    63.82, 63.84, 63.9, 63.94, 64.07, 64.11, 64.12, 64.15, 64.19, 64.24, 64.57, 64.69, 64.76,
]
# fmt: on
PHI3_SHORT = [1.0 + 0.05 * k for k in range(48)]

MODELS = {
    "Llama-2-7B": ("LlamaConfig", "llama.LlamaRotaryEmbedding", {
        "model_type": "llama", "hidden_size": 4096, "num_attention_heads": 32, "max_position_embeddings": 4096,
        "rope_scaling": None,
    }),
    "Llama-2-7B, linear": ("LlamaConfig", "llama.LlamaRotaryEmbedding", {
        "model_type": "llama", "hidden_size": 4096, "num_attention_heads": 32, "max_position_embeddings": 4096,
        "rope_scaling": {"factor": 8.0, "type": "linear"},
    }),
    "Llama-2-7B, dynamic": ("LlamaConfig", "llama.LlamaRotaryEmbedding", {
        "model_type": "llama", "hidden_size": 4096, "num_attention_heads": 32, "max_position_embeddings": 4096,
        "rope_scaling": {"factor": 2.0, "type": "dynamic"},
    }),
    "Yarn-Llama-2-7B-64k": ("LlamaConfig", "llama.LlamaRotaryEmbedding", {
        "model_type": "llama", "hidden_size": 4096, "num_attention_heads": 32, "max_position_embeddings": 65536,
        "rope_scaling": {"factor": 16.0, "original_max_position_embeddings": 4096, "type": "yarn", "finetuned": True},
    }),
    "Llama-3-8B": ("LlamaConfig", "llama.LlamaRotaryEmbedding", {
        "model_type": "llama", "hidden_size": 4096, "num_attention_heads": 32, "num_key_value_heads": 8,
        "max_position_embeddings": 8192, "rope_theta": 500000.0, "rope_scaling": None,
    }),
    "Llama-3.1-8B": ("LlamaConfig", "llama.LlamaRotaryEmbedding", {
        "model_type": "llama", "hidden_size": 4096, "num_attention_heads": 32, "num_key_value_heads": 8,
        "max_position_embeddings": 131072, "rope_theta": 500000.0,
        "rope_scaling": {
            "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0, "original_max_position_embeddings": 8192,
            "rope_type": "llama3",
        },
    }),
    "Llama-3.2-1B": ("LlamaConfig", "llama.LlamaRotaryEmbedding", {
        "model_type": "llama", "hidden_size": 2048, "num_attention_heads": 32, "num_key_value_heads": 8, "head_dim": 64,
        "max_position_embeddings": 131072, "rope_theta": 500000.0,
        "rope_scaling": {
            "factor": 32.0, "high_freq_factor": 4.0, "low_freq_factor": 1.0, "original_max_position_embeddings": 8192,
            "rope_type": "llama3",
        },
    }),
    "CodeLlama-7B": ("LlamaConfig", "llama.LlamaRotaryEmbedding", {
        "model_type": "llama", "hidden_size": 4096, "num_attention_heads": 32, "max_position_embeddings": 16384,
        "rope_theta": 1000000, "rope_scaling": None,
    }),
    "Mistral-7B-v0.3": ("MistralConfig", "mistral.MistralRotaryEmbedding", {
        "model_type": "mistral", "hidden_size": 4096, "num_attention_heads": 32, "num_key_value_heads": 8,
        "max_position_embeddings": 32768, "rope_theta": 1000000.0,
    }),
    "Qwen2-7B": ("Qwen2Config", "qwen2.Qwen2RotaryEmbedding", {
        "model_type": "qwen2", "hidden_size": 3584, "num_attention_heads": 28, "num_key_value_heads": 4,
        "max_position_embeddings": 131072, "rope_theta": 1000000.0,
    }),
    "Qwen2.5-7B, yarn": ("Qwen2Config", "qwen2.Qwen2RotaryEmbedding", {
        "model_type": "qwen2", "hidden_size": 3584, "num_attention_heads": 28, "num_key_value_heads": 4,
        "max_position_embeddings": 32768, "rope_theta": 1000000.0,
        "rope_scaling": {"factor": 4.0, "original_max_position_embeddings": 32768, "type": "yarn"},
    }),
    "Phi-3-mini-4k": ("Phi3Config", "phi3.Phi3RotaryEmbedding", {
        "model_type": "phi3", "hidden_size": 3072, "num_attention_heads": 32, "max_position_embeddings": 4096,
        "original_max_position_embeddings": 4096, "rope_theta": 10000.0, "rope_scaling": None,
    }),
    "Phi-3-mini-128k": ("Phi3Config", "phi3.Phi3RotaryEmbedding", {
        "model_type": "phi3", "hidden_size": 3072, "num_attention_heads": 32, "max_position_embeddings": 131072,
        "original_max_position_embeddings": 4096, "rope_theta": 10000.0,
        "rope_scaling": {"type": "longrope", "short_factor": PHI3_SHORT, "long_factor": PHI3_LONG},
    }),
    "Phi-4-mini": ("Phi3Config", "phi3.Phi3RotaryEmbedding", {
        "model_type": "phi3", "hidden_size": 3072, "num_attention_heads": 24, "num_key_value_heads": 8,
        "max_position_embeddings": 131072, "original_max_position_embeddings": 4096, "rope_theta": 10000.0,
        "partial_rotary_factor": 0.75,
        "rope_scaling": {"type": "longrope", "short_factor": [1.0] * 48, "long_factor": PHI3_LONG},
    }),
    "DeepSeek-V3": ("DeepseekV3Config", "deepseek_v3.DeepseekV3RotaryEmbedding", {
        "model_type": "deepseek_v3", "hidden_size": 7168, "num_attention_heads": 128, "qk_rope_head_dim": 64,
        "qk_nope_head_dim": 128, "max_position_embeddings": 163840, "rope_theta": 10000,
        "rope_scaling": {
            "beta_fast": 32, "beta_slow": 1, "factor": 40, "mscale": 1.0, "mscale_all_dim": 1.0,
            "original_max_position_embeddings": 4096, "type": "yarn",
        },
    }),
    "gpt-oss-20b": ("GptOssConfig", "gpt_oss.GptOssRotaryEmbedding", {
        "model_type": "gpt_oss", "hidden_size": 2880, "num_attention_heads": 64, "head_dim": 64,
        "max_position_embeddings": 131072, "rope_theta": 150000,
        "rope_scaling": {
            "beta_fast": 32.0, "beta_slow": 1.0, "factor": 32.0, "original_max_position_embeddings": 4096,
            "rope_type": "yarn", "truncate": False,
        },
    }),
    "Ministral-3": ("Ministral3Config", "ministral3.Ministral3RotaryEmbedding", {
        "model_type": "ministral3", "hidden_size": 4096, "num_attention_heads": 32, "head_dim": 128,
        "max_position_embeddings": 262144,
        "rope_parameters": {
            "type": "yarn", "rope_theta": 1000000.0, "factor": 16.0, "original_max_position_embeddings": 16384,
            "max_position_embeddings": 262144, "beta_fast": 32.0, "beta_slow": 1.0, "mscale": 1.0,
            "mscale_all_dim": 1.0, "llama_4_scaling_beta": 0.1,
        },
    }),
    "GPT-NeoX-20B": ("GPTNeoXConfig", "gpt_neox.GPTNeoXRotaryEmbedding", {
        "model_type": "gpt_neox", "hidden_size": 6144, "num_attention_heads": 64, "max_position_embeddings": 2048,
        "rotary_pct": 0.25, "rotary_emb_base": 10000,
    }),
    "GLM-4-9B": ("GlmConfig", "glm.GlmRotaryEmbedding", {
        "model_type": "glm", "hidden_size": 4096, "num_attention_heads": 32, "head_dim": 128,
        "max_position_embeddings": 131072, "partial_rotary_factor": 0.5, "rope_theta": 10000.0,
    }),
    "Command-R": ("CohereConfig", "cohere.CohereRotaryEmbedding", {
        "model_type": "cohere", "hidden_size": 8192, "num_attention_heads": 64, "max_position_embeddings": 8192,
        "rope_theta": 8000000.0,
    }),
    "Hunyuan-7B": ("HunYuanDenseV1Config", "hunyuan_v1_dense.HunYuanDenseV1RotaryEmbedding", {
        "model_type": "hunyuan_v1_dense", "hidden_size": 4096, "num_attention_heads": 32, "head_dim": 128,
        "max_position_embeddings": 32768, "rope_theta": 10000.0,
        "rope_scaling": {
            "alpha": 1000.0, "beta_fast": 32, "beta_slow": 1, "factor": 1.0, "mscale": 1.0, "mscale_all_dim": 1.0,
            "type": "dynamic",
        },
    }),
    "Phi-3.5-MoE": ("PhimoeConfig", "phimoe.PhimoeRotaryEmbedding", {
        "model_type": "phimoe", "hidden_size": 3072, "num_attention_heads": 32, "max_position_embeddings": 131072,
        "original_max_position_embeddings": 4096, "rope_theta": 10000.0,
        "rope_scaling": {
            "type": "longrope", "short_factor": PHI3_SHORT, "long_factor": PHI3_LONG,
            "short_mscale": 1.243163121016122, "long_mscale": 1.243163121016122,
            "original_max_position_embeddings": 4096,
        },
    }),
}  # fmt: skip

# A rope dict, or a base, for each type of layer.
LAYERED_MODELS = {
    "Gemma-3-4B": ("Gemma3TextConfig", "gemma3.Gemma3RotaryEmbedding", {
        "model_type": "gemma3_text", "hidden_size": 2560, "num_attention_heads": 8, "head_dim": 256,
        "num_hidden_layers": 12, "max_position_embeddings": 131072, "rope_theta": 1000000.0,
        "rope_local_base_freq": 10000.0, "rope_scaling": {"factor": 8.0, "rope_type": "linear"},
    }),
    "Gemma-4": ("Gemma4TextConfig", "gemma4.Gemma4TextRotaryEmbedding", {
        "model_type": "gemma4_text", "hidden_size": 2560, "num_attention_heads": 8, "head_dim": 256,
        "global_head_dim": 512, "num_hidden_layers": 12, "max_position_embeddings": 131072,
        "rope_parameters": {
            "sliding_attention": {"rope_type": "default", "rope_theta": 10000.0},
            "full_attention": {"rope_type": "proportional", "partial_rotary_factor": 0.25, "rope_theta": 1000000.0},
        },
    }),
    "ModernBERT-base": ("ModernBertConfig", "modernbert.ModernBertRotaryEmbedding", {
        "model_type": "modernbert", "hidden_size": 768, "num_attention_heads": 12, "max_position_embeddings": 8192,
        "global_rope_theta": 160000.0, "local_rope_theta": 10000.0,
    }),
}  # fmt: skip

MULTIMODAL_MODELS = {
    "Qwen2-VL-7B": ("Qwen2VLConfig", "qwen2_vl.Qwen2VLRotaryEmbedding", {
        "model_type": "qwen2_vl", "hidden_size": 3584, "num_attention_heads": 28, "num_key_value_heads": 4,
        "max_position_embeddings": 32768, "rope_theta": 1000000.0,
        "rope_scaling": {"type": "mrope", "mrope_section": [16, 24, 24]},
    }),
    "Qwen3-VL-8B": ("Qwen3VLConfig", "qwen3_vl.Qwen3VLTextRotaryEmbedding", {
        "model_type": "qwen3_vl",
        "text_config": {
            "model_type": "qwen3_vl_text", "hidden_size": 4096, "num_attention_heads": 32, "head_dim": 128,
            "max_position_embeddings": 262144, "rope_theta": 5000000,
            "rope_scaling": {"mrope_interleaved": True, "mrope_section": [24, 20, 20], "rope_type": "default"},
        },
    }),
}  # fmt: skip
