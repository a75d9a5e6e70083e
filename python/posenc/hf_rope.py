"""Rotary settings of Hugging Face transformers configurations.

transformers itself is not needed: everything here reads attributes or dict entries.
"""

from collections.abc import Callable, Mapping
from typing import Any

from posenc import _C

RopeConfig = _C.scaling.RopeConfig

__all__ = ["RopeConfig", "multimodal_rotary_arguments", "read_rope", "rotary_arguments"]

# A mapping with one of these is a model's configuration; without, it is a rope dict.
_CONFIG_KEYS = frozenset(
    ("rope_parameters", "rope_scaling", "text_config", "model_type", "hidden_size", "num_attention_heads", "n_embd")
)
# Bases of sliding-attention layers in configurations from before rope dicts per layer type (Gemma 3, ModernBERT).
_LOCAL_THETA_KEYS = ("rope_local_base_freq", "local_rope_theta")

_Getter = Callable[[str], Any]


def rotary_arguments(
    config: Any, layer_type: str | None = None, head_dim: int | None = None, interleaved: bool | None = None
) -> dict[str, Any]:
    """Returns the keyword arguments of `posenc.nn.Rotary` that a configuration asks for.

    Args:
        config: A transformers configuration, its dict (config.json), or a rope dict with `head_dim`.
        layer_type: Which of several rope dicts, e.g. "sliding_attention".
        head_dim: Width of a head, where the configuration does not give it or gives another.
        interleaved: Pair layout; None: as transformers' model of this `model_type` has it.

    Raises:
        ValueError: Unknown type or key, a missing or invalid value, or sections of several position axes.
        TypeError: A value of the wrong kind.

    Example:
        >>> rotary_arguments({"rope_type": "linear", "factor": 4.0, "rope_theta": 1e6}, head_dim=64)
        {'head_dim': 64, 'rotary_dim': 64, 'base': 1000000.0, 'interleaved': False, 'scaling': Linear(factor=4)}
    """
    rope = read_rope(config, layer_type, head_dim, interleaved)
    if rope.mrope_section:
        raise ValueError(
            f"Rotary.from_hf: the configuration has mrope_section {rope.mrope_section}, several position axes: "
            "use MultimodalRotary.from_hf"
        )
    return {
        "head_dim": rope.head_dim,
        "rotary_dim": rope.rotary_dim,
        "base": rope.base,
        "interleaved": rope.interleaved,
        "scaling": rope.scaling,
    }


def multimodal_rotary_arguments(
    config: Any, layer_type: str | None = None, head_dim: int | None = None, interleaved: bool | None = None
) -> dict[str, Any]:
    """Returns the keyword arguments of `posenc.nn.MultimodalRotary` that a configuration asks for.

    Args and Raises as `rotary_arguments`, but the configuration needs `mrope_section`.

    Example:
        >>> arguments = multimodal_rotary_arguments({"type": "mrope", "mrope_section": [1, 1, 2]}, head_dim=8)
        >>> arguments["sections"], arguments["interleaved_sections"]
        ([1, 1, 2], False)
    """
    rope = read_rope(config, layer_type, head_dim, interleaved)
    if not rope.mrope_section:
        raise ValueError("MultimodalRotary.from_hf: the configuration has no mrope_section: use Rotary.from_hf")
    return {
        "head_dim": rope.head_dim,
        "sections": rope.mrope_section,
        "rotary_dim": rope.rotary_dim,
        "base": rope.base,
        "interleaved": rope.interleaved,
        "interleaved_sections": rope.mrope_interleaved,
        "scaling": rope.scaling,
    }


def read_rope(
    config: Any, layer_type: str | None = None, head_dim: int | None = None, interleaved: bool | None = None
) -> RopeConfig:
    """Reads the rotary embedding that a configuration describes.

    Takes every rope dict that transformers takes: `rope_parameters` or `rope_scaling`, `rope_type` or `type`, one dict
    or one per layer type; a multimodal configuration is read for its text model. Where it has both, `rope_scaling` goes
    before `rope_parameters`, the dict's `rope_theta` and `partial_rotary_factor` before the configuration's, and the
    configuration's `original_max_position_embeddings` before the dict's (not for dicts per layer type). As in
    transformers, `truncate` has no effect in dicts per layer type.

    The pair layout is not part of the dict: it follows `model_type` and `rope_interleave`, or `interleaved`.

    Args and Raises as `rotary_arguments`.

    Example:
        >>> read_rope({"rope_theta": 1e6, "hidden_size": 4096, "num_attention_heads": 32, "model_type": "llama"}).base
        1000000.0
    """
    if isinstance(config, Mapping) and not _CONFIG_KEYS & config.keys():
        rope, nested = _choose(config, layer_type)
        if head_dim is None:
            raise ValueError("from_hf: a rope dict does not say how wide a head is: give head_dim")
        get = _getter({})
    else:
        config = _text_config(config)
        get = _getter(config)
        rope, nested = _choose(_all_rope_parameters(config, get), layer_type)
        head_dim = head_dim or _head_dim(config, get, layer_type)
    if nested:
        rope = {key: value for key, value in rope.items() if key != "truncate"}
    if interleaved is None:
        interleaved = get("rope_interleave")
    return _C.scaling.read_rope(
        {key: _plain(value) for key, value in rope.items()},
        head_dim=head_dim,
        max_position_embeddings=get("max_position_embeddings"),
        original_max_position_embeddings=None if nested else get("original_max_position_embeddings"),
        rope_theta=_first(get, "rope_theta", "rotary_emb_base"),
        partial_rotary_factor=_first(get, "partial_rotary_factor", "rotary_pct"),
        rotary_dim=get("rotary_dim"),
        model_type=get("model_type") or "",
        interleaved=interleaved,
    )


def _plain(value: Any) -> Any:
    """Makes a list a list of floats; the C++ side tells numbers, flags and strings apart by itself."""
    if isinstance(value, list | tuple):
        return [float(item) for item in value]
    return value


def _getter(config: Any) -> _Getter:
    if isinstance(config, Mapping):
        return config.get
    return lambda name: getattr(config, name, None)


def _first(get: _Getter, *names: str) -> Any:
    return next((value for value in map(get, names) if value is not None), None)


def _text_config(config: Any) -> Any:
    if isinstance(config, Mapping):
        return config.get("text_config") or config
    return config.get_text_config() if hasattr(config, "get_text_config") else config


def _all_rope_parameters(config: Any, get: _Getter) -> Mapping[str, Any]:
    rope = get("rope_scaling") or get("rope_parameters")
    local_theta = _first(get, *_LOCAL_THETA_KEYS)
    theta = _first(get, "rope_theta", "global_rope_theta", "rotary_emb_base")
    if local_theta is not None and not _is_nested(rope or {}):
        # Gemma 3's scaling is for the layers of full attention; ModernBERT has none.
        full = {**(rope or {}), **({} if theta is None else {"rope_theta": theta})}
        return {"full_attention": full, "sliding_attention": {"rope_theta": local_theta}}
    # rope_scaling is null in the files of plain RoPE; the first Llama files name nothing at all.
    named = isinstance(config, Mapping) and ("rope_scaling" in config or get("model_type") == "llama")
    if rope is None and theta is None and get("rotary_dim") is None and not named:
        raise ValueError(
            f"from_hf: the configuration (model_type {get('model_type')!r}) has no rotary embedding: neither "
            "rope_parameters, rope_scaling, rope_theta nor rotary_dim"
        )
    return rope or {}


def _is_nested(rope: Mapping[str, Any]) -> bool:
    return any(isinstance(value, Mapping) for value in rope.values())


def _choose(rope: Mapping[str, Any], layer_type: str | None) -> tuple[Mapping[str, Any], bool]:
    """Returns the rope dict of a layer type, and whether there is one for each type."""
    if not _is_nested(rope):
        return rope, False
    per_type = {key: value for key, value in rope.items() if value is None or isinstance(value, Mapping)}
    if layer_type is None:
        first, *others = per_type.values()
        if first is None or any(other != first for other in others):
            raise ValueError(f"from_hf: the rope dict differs by layer type: give layer_type, one of {list(per_type)}")
        return first, True
    if layer_type not in per_type:
        raise ValueError(f"from_hf: expected layer_type to be one of {list(per_type)}, but got {layer_type!r}")
    chosen = per_type[layer_type]
    if chosen is None:
        raise ValueError(f"from_hf: layers of type {layer_type!r} have no rotary embedding")
    return chosen, True


def _head_dim(config: Any, get: _Getter, layer_type: str | None) -> int:
    width = _own_head_dim(config, layer_type) if layer_type is not None else None
    if width is None:
        width = _first(get, "head_dim", "qk_rope_head_dim")
    if width is not None:
        return width
    hidden, heads = _first(get, "hidden_size", "n_embd"), _first(get, "num_attention_heads", "n_head")
    if not hidden or not heads:
        raise ValueError("from_hf: the configuration does not say how wide a head is: give head_dim")
    return hidden // heads


def _own_head_dim(config: Any, layer_type: str) -> int | None:
    """Returns the head width of one layer type, where layer types differ in it (Gemma 4)."""
    if not isinstance(config, Mapping):
        if not getattr(config, "is_heterogeneous", False):
            return None
        return getattr(config.per_layer_config[layer_type], "head_dim", None)
    if layer_type == "full_attention" and config.get("global_head_dim"):
        return config["global_head_dim"]
    per_layer = config.get("per_layer_config") or {}
    if layer_type in per_layer:
        return per_layer[layer_type].get("head_dim")
    layer_types = config.get("layer_types") or []
    for index, own in per_layer.items():
        if str(index).isdigit() and int(index) < len(layer_types) and layer_types[int(index)] == layer_type:
            return own.get("head_dim")
    return None
