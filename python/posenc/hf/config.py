"""Access to configurations of Hugging Face transformers and to the dicts of their config.json files."""

import copy
from collections.abc import Callable, Iterable, Mapping
from typing import Any

__all__ = ["Getter", "default_of", "getter", "lacks", "text_config"]

# The value of the first of these names that has one, else None.
Getter = Callable[..., Any]

_TEXT_KEYS = ("thinker_config", "vlm_config", "text_config")
# Model types whose classes fill in nothing but the base: heads are hidden_size / num_attention_heads wide and rotate
# whole, and nothing is scaled unless the file says so.
_PLAIN_TYPES = frozenset(("llama", "mistral", "mixtral", "qwen2", "qwen2_moe", "olmo2"))


def text_config(config: Any) -> Any:
    """Returns what describes the language model: a configuration, or a dict where transformers has no class for it.

    A dict with a ``model_type`` becomes the configuration that transformers makes of it, so that what the file leaves
    out has the value of its class.

    Raises:
        ValueError: The class of transformers refuses the dict.
    """
    if isinstance(config, Mapping):
        config = _built(config)
    if not isinstance(config, Mapping):
        return config.get_text_config() if hasattr(config, "get_text_config") else config
    for key in _TEXT_KEYS:
        part = config.get(key)
        if isinstance(part, Mapping) and part:
            return text_config(part)
    return config


def getter(config: Any) -> Getter:
    """Returns how to read a configuration or its dict by names of keys."""
    if isinstance(config, Mapping):
        return lambda *names: _first(config.get(name) for name in names)
    return lambda *names: _first(getattr(config, name, None) for name in names)


def lacks(config: Any, key: str) -> bool:
    """Whether a key without a value leaves ``config`` open: its class would fill it in, but transformers is not
    installed.

    Not so in a dict without ``model_type``, which no class completes, and where no class has another value than posenc.
    """
    if not isinstance(config, Mapping) or not config.get("model_type") or _config_mapping() is not None:
        return False
    return key == "rope_theta" or config["model_type"] not in _PLAIN_TYPES


def default_of(model_type: str | None) -> Any:
    """The configuration that transformers makes of nothing but a model type, None where it makes none."""
    cls = _class_of(model_type)
    try:
        return None if cls is None else cls()
    except Exception:
        return None  # a class that needs arguments has no defaults


def _class_of(model_type: str | None) -> Any:
    """The class of configurations in transformers, None where it has none or is not installed."""
    mapping = _config_mapping()
    return mapping[model_type] if model_type and mapping is not None and model_type in mapping else None


def _config_mapping() -> Any:
    try:
        from transformers import CONFIG_MAPPING
    except ImportError:
        return None
    return CONFIG_MAPPING


def _built(config: Mapping[str, Any]) -> Any:
    cls = _class_of(config.get("model_type"))
    if cls is None:
        return config
    keys = copy.deepcopy(dict(config))
    if "rope_pct" in keys:  # the name in older files of StableLM
        keys.setdefault("partial_rotary_factor", keys["rope_pct"])
    try:
        return cls.from_dict(keys)
    except Exception as error:
        raise ValueError(f"from_hf: {cls.__name__} of transformers refuses the configuration: {error}") from error


def _first(values: Iterable[Any]) -> Any:
    return next((value for value in values if value is not None), None)
