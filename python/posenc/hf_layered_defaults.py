"""As `hf_defaults`, for configuration classes that have a rope dict for each type of layer (transformers 5.24)."""

from typing import Any

__all__ = ["LAYERED_DEFAULTS"]

# By model_type, under the names of config.json, and besides those:
#   rope_parameters  what a file without a rope dict, and a dict without a layer type or base, is completed from
#   theta_keys       the key beside the rope dict that has the base of a layer type
#   scaled_layers    the layer types that a single rope_scaling is for; without them it is ambiguous
#   global_head_dim  the head width of layers of full attention
LAYERED_DEFAULTS: dict[str, dict[str, Any]] = {
    "beam": {
        "hidden_size": 5120,
        "num_attention_heads": 48,
        "head_dim": 128,
        "rope_parameters": {"sliding_attention": {"rope_theta": 10_000.0}, "full_attention": None},
    },
    "deepseek_v4": {
        "hidden_size": 4096,
        "num_attention_heads": 64,
        "head_dim": 512,
        "partial_rotary_factor": 0.125,
        "rope_parameters": {
            "main": {"rope_theta": 10_000.0, "partial_rotary_factor": 0.125},
            "compress": {"rope_theta": 160_000.0, "partial_rotary_factor": 0.125},
        },
        "theta_keys": {"main": "rope_theta", "compress": "compress_rope_theta"},
        "scaled_layers": ["compress"],
    },
    "diffusion_gemma_text": {
        "hidden_size": 2304,
        "num_attention_heads": 8,
        "head_dim": 256,
        "rope_parameters": {
            "sliding_attention": {"rope_theta": 10_000.0},
            "full_attention": {"rope_type": "proportional", "partial_rotary_factor": 0.25, "rope_theta": 1_000_000.0},
        },
        "global_head_dim": 512,
    },
    "dory": {
        "hidden_size": 2560,
        "num_attention_heads": 16,
        "head_dim": 256,
        "rope_parameters": {
            "full_attention": {"rope_theta": 10_000_000.0},
            "sliding_attention": {"rope_theta": 10_000.0},
        },
    },
    "dots3_note_text": {
        "hidden_size": 5120,
        "num_attention_heads": 128,
        "head_dim": 256,
        "rope_parameters": {
            "indexed_attention": {"rope_theta": 80_000_000.0, "partial_rotary_factor": 0.25},
            "sliding_attention": {"rope_theta": 50_000.0, "partial_rotary_factor": 0.25},
        },
        "theta_keys": {"indexed_attention": "rope_theta", "sliding_attention": "swa_rope_theta"},
    },
    "embedding_gemma2_text": {
        "hidden_size": 512,
        "num_attention_heads": 4,
        "head_dim": 256,
        "rope_parameters": {
            "sliding_attention": {"rope_theta": 10_000.0},
            "full_attention": {"rope_theta": 1_000_000.0},
        },
        "global_head_dim": 512,
    },
    "gemma3_text": {
        "hidden_size": 2304,
        "num_attention_heads": 8,
        "head_dim": 256,
        "rope_parameters": {
            "sliding_attention": {"rope_theta": 10_000.0},
            "full_attention": {"rope_theta": 1_000_000.0},
        },
        "theta_keys": {"full_attention": "rope_theta", "sliding_attention": "rope_local_base_freq"},
        "scaled_layers": ["full_attention"],
    },
    "gemma3n_text": {
        "hidden_size": 2048,
        "num_attention_heads": 8,
        "head_dim": 256,
        "rope_parameters": {
            "sliding_attention": {"rope_theta": 10_000.0},
            "full_attention": {"rope_theta": 1_000_000.0},
        },
        "theta_keys": {"full_attention": "rope_theta", "sliding_attention": "rope_local_base_freq"},
        "scaled_layers": ["full_attention"],
    },
    "gemma4_text": {
        "hidden_size": 2304,
        "num_attention_heads": 8,
        "head_dim": 256,
        "rope_parameters": {
            "sliding_attention": {"rope_theta": 10_000.0},
            "full_attention": {"rope_type": "proportional", "partial_rotary_factor": 0.25, "rope_theta": 1_000_000.0},
        },
        "global_head_dim": 512,
    },
    "gemma4_unified_text": {
        "hidden_size": 2304,
        "num_attention_heads": 8,
        "head_dim": 256,
        "rope_parameters": {
            "sliding_attention": {"rope_theta": 10_000.0},
            "full_attention": {"rope_type": "proportional", "partial_rotary_factor": 0.25, "rope_theta": 1_000_000.0},
        },
        "global_head_dim": 512,
    },
    "laguna": {
        "hidden_size": 2048,
        "num_attention_heads": 48,
        "head_dim": 128,
        "rope_parameters": {
            "full_attention": {"rope_theta": 500_000.0, "partial_rotary_factor": 0.5},
            "sliding_attention": {"rope_theta": 10_000.0},
        },
    },
    "lfm3": {
        "hidden_size": 2048,
        "num_attention_heads": 16,
        "head_dim": 128,
        "rope_parameters": {
            "sliding_attention": {"rope_theta": 10_000.0},
            "full_attention": {"rope_type": "proportional", "rope_theta": 1_000_000.0, "partial_rotary_factor": 0.5},
        },
    },
    "mellum": {
        "hidden_size": 2304,
        "num_attention_heads": 32,
        "head_dim": 128,
        "rope_parameters": {"full_attention": {"rope_theta": 500_000.0}, "sliding_attention": {"rope_theta": 10_000.0}},
    },
    "mimo_v2_flash": {
        "hidden_size": 4096,
        "num_attention_heads": 64,
        "head_dim": 192,
        "rope_parameters": {
            "full_attention": {"rope_theta": 5_000_000.0, "partial_rotary_factor": 0.334},
            "sliding_attention": {"rope_theta": 10_000.0, "partial_rotary_factor": 0.334},
        },
    },
    "modernbert": {
        "hidden_size": 768,
        "num_attention_heads": 12,
        "rope_parameters": {"sliding_attention": {"rope_theta": 10_000.0}, "full_attention": {"rope_theta": 160_000.0}},
        "theta_keys": {"full_attention": "global_rope_theta", "sliding_attention": "local_rope_theta"},
        "scaled_layers": ["sliding_attention", "full_attention"],
    },
    "modernbert-decoder": {
        "hidden_size": 768,
        "num_attention_heads": 12,
        "rope_parameters": {"sliding_attention": {"rope_theta": 10_000.0}, "full_attention": {"rope_theta": 160_000.0}},
        "theta_keys": {"full_attention": "global_rope_theta", "sliding_attention": "local_rope_theta"},
        "scaled_layers": ["sliding_attention", "full_attention"],
    },
    "neomme": {
        "hidden_size": 1024,
        "num_attention_heads": 16,
        "head_dim": 64,
        "rope_parameters": {
            "full_attention": {"rope_theta": 1_000_000.0, "partial_rotary_factor": 0.25},
            "sliding_attention": {"rope_theta": 10_000.0},
        },
        "theta_keys": {"full_attention": "rope_theta", "sliding_attention": "rope_theta"},
    },
    "olmo3": {
        "hidden_size": 4096,
        "num_attention_heads": 32,
        "rope_parameters": {
            "sliding_attention": {"rope_theta": 500_000.0},
            "full_attention": {"rope_theta": 500_000.0},
        },
        "theta_keys": {"full_attention": "rope_theta"},
        "scaled_layers": ["full_attention"],
    },
    "step3p5": {
        "hidden_size": 4096,
        "num_attention_heads": 64,
        "head_dim": 128,
        "rope_parameters": {"full_attention": {"rope_theta": 10_000.0}},
        "theta_keys": {"full_attention": "rope_theta"},
        "scaled_layers": ["full_attention"],
    },
    "t5gemma2_decoder": {
        "hidden_size": 2304,
        "num_attention_heads": 8,
        "head_dim": 256,
        "rope_parameters": {
            "sliding_attention": {"rope_theta": 10_000.0},
            "full_attention": {"rope_theta": 1_000_000.0},
        },
        "theta_keys": {"full_attention": "rope_theta", "sliding_attention": "rope_local_base_freq"},
        "scaled_layers": ["full_attention"],
    },
    "t5gemma2_text": {
        "hidden_size": 2304,
        "num_attention_heads": 8,
        "head_dim": 256,
        "rope_parameters": {
            "sliding_attention": {"rope_theta": 10_000.0},
            "full_attention": {"rope_theta": 1_000_000.0},
        },
        "theta_keys": {"full_attention": "rope_theta", "sliding_attention": "rope_local_base_freq"},
        "scaled_layers": ["full_attention"],
    },
    "ultrabert": {
        "hidden_size": 4096,
        "num_attention_heads": 32,
        "rope_parameters": {
            "sliding_attention": {"rope_theta": 10_000.0},
            "full_attention": {"rope_theta": 2_560_000.0},
        },
    },
    "zaya": {
        "hidden_size": 2048,
        "num_attention_heads": 8,
        "head_dim": 128,
        "rope_parameters": {
            "hybrid": {"rope_theta": 5_000_000.0, "partial_rotary_factor": 0.5},
            "hybrid_sliding": {"rope_theta": 10_000.0, "partial_rotary_factor": 0.5},
        },
    },
}
