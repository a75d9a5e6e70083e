"""Rotary settings of Hugging Face transformers configurations; :mod:`posenc.hf` offers them."""

from collections.abc import Mapping
from typing import Any

from posenc import _C
from posenc.hf.config import Getter, default_of, getter, lacks, text_config

RopeConfig = _C.scaling.RopeConfig

__all__ = ["RopeConfig", "multimodal_rotary_arguments", "read_rope", "rotary_arguments"]

_SIZE_KEYS = ("hidden_size", "n_embd", "num_attention_heads")
# A mapping with one of these is a model's configuration; without, it is a rope dict. In this order, as configurations
# whose layers differ in heads raise where that is read of all of them at once.
_CONFIG_KEYS = (
    "model_type",
    "rope_parameters",
    "rope_scaling",
    "text_config",
    *_SIZE_KEYS,
)
# Bases of sliding-attention layers in configurations from before rope dicts per layer type (Gemma 3, ModernBERT).
_LOCAL_THETA_KEYS = ("rope_local_base_freq", "local_rope_theta")
_THETA_KEYS = ("rope_theta", "global_rope_theta", "rotary_emb_base")
_PART_KEYS = ("partial_rotary_factor", "rotary_pct", "rope_pct")
# Sections that a model has but that its class does not write into the rope dict.
_UNWRITTEN_SECTIONS = {"ernie4_5_vl_moe_text": [22, 22, 20]}


def rotary_arguments(
    config: Any, layer_type: str | None = None, head_dim: int | None = None, interleaved: bool | None = None
) -> dict[str, Any]:
    """Returns the keyword arguments of `posenc.nn.Rotary` that a configuration asks for.

    Args:
        config: A transformers configuration, its dict (config.json), or a rope dict with `head_dim`.
        layer_type: Which of several rope dicts, e.g. "sliding_attention". A single dict serves every layer type, unless
            the configuration lists `layer_types` without this one.
        head_dim: Width of a head, where the configuration does not give it or gives another.
        interleaved: Pair layout; None: as transformers' model of this `model_type` has it.

    Raises:
        ValueError: Unknown type or key, a missing or invalid value, or sections of several position axes.
        TypeError: A value of the wrong kind.

    Example:
        >>> posenc.hf.rotary_arguments({"rope_type": "linear", "factor": 4.0, "rope_theta": 1e6}, head_dim=64)
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
        >>> rope = {"type": "mrope", "mrope_section": [1, 1, 2]}
        >>> arguments = posenc.hf.multimodal_rotary_arguments(rope, head_dim=8)
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

    A config.json leaves out what its class in transformers fills in, by `model_type`, so transformers reads it where it
    is installed. Where it is not, the file must have the keys. Without a class (no `model_type`, or one that
    transformers does not know) the base is 10000, heads rotate whole, and their width is hidden_size /
    num_attention_heads.

    The pair layout is not part of the dict: it follows `model_type` and `rope_interleave`, or `interleaved`.

    Args and Raises as `rotary_arguments`.

    Example:
        >>> config = {"rope_theta": 1e6, "hidden_size": 4096, "num_attention_heads": 32, "model_type": "llama"}
        >>> posenc.hf.read_rope(config).base
        1000000.0
    """
    if not isinstance(config, Mapping) and not any(hasattr(config, key) for key in _CONFIG_KEYS):
        raise TypeError(
            "from_hf: expected config to be a transformers configuration, its dict (config.json) or a rope dict, "
            f"but got {type(config).__name__}"
        )
    if isinstance(config, Mapping) and not any(key in config for key in _CONFIG_KEYS):
        rope, nested = _choose(config, layer_type)
        if head_dim is None:
            raise ValueError("from_hf: a rope dict does not say how wide a head is: give head_dim")
        get = getter({})
    else:
        given, config = config, text_config(_checked(config))
        get = getter(config)
        rope, nested = _choose(_all_rope_parameters(config, get), layer_type)
        if isinstance(given, Mapping):
            _check_given(given, config, nested)
        _check_layer_type(get, layer_type, nested)
        head_dim = head_dim or _head_dim(config, get, layer_type)
        _require(config, "rope_theta", rope.get("rope_theta"), get(*_THETA_KEYS))
        if layer_type is not None and not nested:
            _require(config, "rope_parameters", get("rope_parameters"))
        if not get("rope_parameters"):  # which transformers saves with the part in it, where the class has one
            _require(config, "partial_rotary_factor", rope.get("partial_rotary_factor"), get(*_PART_KEYS, "rotary_dim"))
    if nested:
        rope = {key: value for key, value in rope.items() if key != "truncate"}
    if sections := _UNWRITTEN_SECTIONS.get(get("model_type")):
        rope = {"mrope_section": sections, **rope}
    if interleaved is None:
        interleaved = get("rope_interleave")
    return _C.scaling.read_rope(
        {key: _plain(key, value) for key, value in rope.items()},
        head_dim=head_dim,
        max_position_embeddings=_number(get, "max_position_embeddings"),
        original_max_position_embeddings=None if nested else _number(get, "original_max_position_embeddings"),
        rope_theta=_number(get, "rope_theta", "rotary_emb_base"),
        partial_rotary_factor=_number(get, *_PART_KEYS),
        rotary_dim=_number(get, "rotary_dim"),
        model_type=get("model_type") or "",
        interleaved=interleaved,
    )


def _require(config: Any, key: str, *values: Any) -> None:
    """Raises where none of ``values`` is there and transformers, which would fill ``key`` in, is not installed."""
    if all(value is None for value in values) and lacks(config, key):
        raise ValueError(
            f"from_hf: the configuration (model_type {config['model_type']!r}) lacks the key {key!r}: add it, "
            "or install transformers, whose class for this model type fills it in"
        )


def _checked(config: Any) -> Any:
    """``config``; raises where a value that must be a number is not one, before transformers does in its own words."""
    if isinstance(config, Mapping):
        for key in (*_SIZE_KEYS, *_THETA_KEYS, *_PART_KEYS, "head_dim", "rotary_dim", "max_position_embeddings"):
            _number(config.get, key)
    return config


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _plain(key: str, value: Any) -> Any:
    """Makes a list a list of floats; the C++ side tells numbers, flags and strings apart by itself."""
    if not isinstance(value, list | tuple):
        return value
    for item in value:
        if not _is_number(item):
            raise TypeError(f"rope config: expected {key!r} to be a list of numbers, but it has {item!r}")
    return [float(item) for item in value]


def _number(get: Getter, *names: str) -> Any:
    value = get(*names)
    if value is not None and not _is_number(value):
        raise TypeError(f"from_hf: expected {' or '.join(map(repr, names))} to be a number, but got {value!r}")
    return value


def _all_rope_parameters(config: Any, get: Getter) -> Mapping[str, Any]:
    model_type = get("model_type")
    if get("alibi"):
        raise ValueError(f"from_hf: the configuration (model_type {model_type!r}) has alibi, no rotary embedding")
    rope = get("rope_scaling") or get("rope_parameters")
    theta, local_theta = get(*_THETA_KEYS), get(*_LOCAL_THETA_KEYS)
    # The files of plain RoPE have rope_scaling, but null.
    named = isinstance(config, Mapping) and ("rope_scaling" in config or "rope_parameters" in config)
    if not named:
        _require(config, "rope_scaling", rope)
    if local_theta is not None and not _is_nested(rope or {}):
        # Gemma 3's scaling is for the layers of full attention; ModernBERT has none.
        full = {**(rope or {}), **({} if theta is None else {"rope_theta": theta})}
        return {"full_attention": full, "sliding_attention": {"rope_theta": local_theta}}
    if rope is None and theta is None and get("rotary_dim") is None and not named:
        _require(config, "rope_theta")
        raise ValueError(
            f"from_hf: the configuration (model_type {model_type!r}) has no rotary embedding: neither "
            "rope_parameters, rope_scaling, rope_theta nor rotary_dim"
        )
    return rope or {}


def _check_given(given: Mapping[str, Any], config: Any, nested: bool) -> None:
    """Raises where a dict has one rope dict, or one list, for layers that its class tells apart."""
    if given.get("partial_rotary_factors") and not given.get("rope_parameters"):
        raise ValueError("from_hf: partial_rotary_factors, one for each layer, needs rope_parameters by layer type too")
    default = None if nested else default_of(getattr(config, "model_type", None))
    per_type = getattr(default, "rope_parameters", None) or {}
    if _is_nested(per_type):
        raise ValueError(
            f"from_hf: model_type {config.model_type!r} has a rope dict for each layer type: expected rope_parameters "
            f"with the keys {list(per_type)}, but got a single dict"
        )


def _check_layer_type(get: Getter, layer_type: str | None, nested: bool) -> None:
    layer_types = get("layer_types")
    if layer_type is not None and not nested and layer_types and layer_type not in layer_types:
        raise ValueError(
            f"from_hf: expected layer_type to be one of the configuration's layer_types {sorted(set(layer_types))}, "
            f"but got {layer_type!r}"
        )


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


def _head_dim(config: Any, get: Getter, layer_type: str | None) -> int:
    if isinstance(config, Mapping) and (get("global_head_dim") or get("per_layer_config")):
        raise ValueError(
            "from_hf: the configuration has layers that differ in head_dim: give head_dim, or install transformers"
        )
    width = _own_head_dim(config, layer_type) if layer_type is not None else None
    if width is None:
        width = _number(get, "head_dim")
    if width is None:
        width = _number(get, "qk_rope_head_dim")
    if width is not None:
        return width
    hidden, heads = _number(get, "hidden_size", "n_embd"), _number(get, "num_attention_heads", "n_head")
    if not hidden or not heads:
        missing = [name for name, value in (("hidden_size", hidden), ("num_attention_heads", heads)) if not value]
        raise ValueError(
            f"from_hf: the configuration does not say how wide a head is, without {' and '.join(missing)}: "
            "give head_dim"
        )
    _require(config, "head_dim")
    return hidden // heads


def _own_head_dim(config: Any, layer_type: str) -> int | None:
    """Returns the head width of one layer type, where layer types differ in it (Gemma 4)."""
    if not getattr(config, "is_heterogeneous", False):
        return None
    layers = [config.per_layer_config[i] for i, kind in enumerate(config.layer_types) if kind == layer_type]
    widths = {getattr(layer, "head_dim", None) for layer in layers}
    if len(widths) > 1:
        raise ValueError(f"from_hf: layers of type {layer_type!r} differ in head_dim: give head_dim")
    return next(iter(widths), None)
