"""Rotary settings of Hugging Face transformers configurations."""

from posenc.hf.rope import RopeConfig, multimodal_rotary_arguments, read_rope, rotary_arguments

__all__ = ["RopeConfig", "multimodal_rotary_arguments", "read_rope", "rotary_arguments"]
