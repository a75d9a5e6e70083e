"""Access to Hugging Face transformers configurations and config.json files, which leave out what their class fills in."""

from collections.abc import Callable, Mapping
from typing import Any

from posenc.hf_defaults import DEFAULTS
from posenc.hf_layered_defaults import LAYERED_DEFAULTS
from posenc.hf_text_parts import PART_DEFAULTS, TEXT_PARTS

__all__ = ["Getter", "class_defaults", "getter", "is_known", "text_config"]

# The value of the first of these names that has one, else of the configuration class's default for it, else None.
Getter = Callable[..., Any]

_ALL = {**DEFAULTS, **LAYERED_DEFAULTS}
_TEXT_KEYS = ("thinker_config", "vlm_config", "text_config")
# Encoder-decoder models: as transformers' get_text_config does, the decoder.
_DECODER_KEYS = {"dia": "decoder_config", "t5gemma": "decoder", "t5gemma2": "decoder"}
# Where null is a value of its own, not an absent key.
_NULL_MEANS_NONE = frozenset(("head_dim", "partial_rotary_factor", "rotary_dim"))


def is_known(model_type: str | None) -> bool:
    """Whether transformers' models of this type, or their text parts, have a rotary embedding by default."""
    return _text_type(model_type or "") in _ALL


def class_defaults(model_type: str | None) -> Mapping[str, Any]:
    """Returns what transformers' configuration class fills in for absent keys; empty for an unknown model type."""
    part = _text_type(model_type or "")
    defaults = _ALL.get(part, {})
    if part == model_type:
        return defaults
    # A composite model may give its text part other sizes than the part's own class does.
    return {key: value for key, value in defaults.items() if key not in ("hidden_size", "num_attention_heads")}


def getter(config: Any) -> Getter:
    """Returns how to read a configuration or its dict by names of keys."""
    if not isinstance(config, Mapping):
        return lambda *names: _first(getattr(config, name, None) for name in names)
    defaults = class_defaults(config.get("model_type"))
    own_names = defaults.get("names", {})

    def get(*names: str) -> Any:
        value = _first(config.get(key) for name in names for key in (name, own_names.get(name)))
        if value is not None or any(name in config and name in _NULL_MEANS_NONE for name in names):
            return value
        return _first(defaults.get(name) for name in names)

    return get


def text_config(config: Any) -> Any:
    """Returns the part of a composite model's configuration that describes its language model, else all of it."""
    if not isinstance(config, Mapping):
        return config.get_text_config() if hasattr(config, "get_text_config") else config
    model_type = config.get("model_type") or ""
    for key in (*_TEXT_KEYS, _DECODER_KEYS.get(model_type)):
        part = config.get(key)
        if isinstance(part, Mapping) and part:
            part = {**PART_DEFAULTS.get(model_type, {}), **part}
            part["model_type"] = part.get("model_type") or _text_type(model_type)
            return text_config(part)
    return config


def _text_type(model_type: str) -> str:
    if not model_type or model_type in _ALL:
        return model_type
    return TEXT_PARTS.get(model_type, f"{model_type}_text")


def _first(values: Any) -> Any:
    return next((value for value in values if value is not None), None)
