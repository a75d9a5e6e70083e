"""Which model reads the text in composite models of Hugging Face transformers 5.24."""

from typing import Any

__all__ = ["PART_DEFAULTS", "TEXT_PARTS"]

# The model_type of a text part, and those of the composite models that have it. Not listed: a text part that is called
# as its model is, with _text.
_COMPOSITES = {
    "cohere2": "aya_vision cohere2_vision",
    "deepseek_v3": "kimi_k25",
    "dia_decoder": "dia",
    "emu3_text_model": "emu3",
    "exaone4": "exaone4_5",
    "gemma": "colpali paligemma",
    "gemma3_text": "shieldgemma2",
    "gemma4_unified_text": "gemma4_unified_assistant",
    "glm4v_text": "glm46v glmga",
    "granite": "granite_speech granite_speech_plus",
    "hyperclovax": "hyperclovax_vision_v2",
    "lfm2": "lfm2_vl",
    "lfm3": "lfm3_vl",
    "llama": (
        "deepseek_vl deepseek_vl_hybrid glmasr idefics3 janus llava llava_next llava_next_video omniasr "
        "perception_lm smolvlm video_llava vipllava voxtral"
    ),
    "mistral": "idefics2 mistral3",
    "mllama_text_model": "mllama",
    "modernbert": "colmodernvbert modernvbert pe_audio pe_audio_video pe_video",
    "persimmon": "fuyu",
    "qwen2": (
        "audioflamingo3 fast_vlm got_ocr2 internvl llava_onevision musicflamingo ovis2 pp_chart2table "
        "qwen2_audio vibevoice vibevoice_asr video_llama_3"
    ),
    "qwen2_5_omni_text": "qwen2_5_omni_thinker",
    "qwen2_vl_text": "colqwen2",
    "qwen3": "fun_asr_nano lighton_ocr moss_transcribe_diarize qianfan_ocr qwen3_asr",
    "qwen3_5_text": "jev minicpm_ocr minicpmv4_6 minicpmv4_7",
    "qwen3_omni_moe_text": "qwen3_omni_moe_thinker",
    "qwen3_vl_text": "cosmos3_omni",
    "step3p5": "step3p7",
    "t5_gemma_module": "t5gemma",
    "t5gemma2_decoder": "t5gemma2",
    "t5gemma2_text": "t5gemma2_encoder",
    "ultrabert": "ultravbert",
}

TEXT_PARTS = {composite: part for part, composites in _COMPOSITES.items() for composite in composites.split()}

# What a composite model's class fills in for its text part before the part's own class does.
PART_DEFAULTS: dict[str, dict[str, Any]] = {
    "voxtral": {"hidden_size": 3072, "head_dim": 128, "rope_theta": 100_000_000.0},
    "voxtral_realtime": {"hidden_size": 3072, "num_attention_heads": 32, "head_dim": 128, "rope_theta": 1_000_000.0},
}
