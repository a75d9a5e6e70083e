"""Rotary settings of Hugging Face transformers configurations.

transformers itself is not needed: everything here reads attributes or dict entries.
"""

from collections.abc import Mapping
from typing import Any

from posenc import _C
from posenc.hf_config import Getter, class_defaults, getter, is_known, text_config

RopeConfig = _C.scaling.RopeConfig

__all__ = ["RopeConfig", "multimodal_rotary_arguments", "read_rope", "rotary_arguments"]

# A mapping with one of these is a model's configuration; without, it is a rope dict. In this order, as configurations whose
# layers differ in heads raise where that is read of all of them at once.
_CONFIG_KEYS = (
    "model_type",
    "rope_parameters",
    "rope_scaling",
    "text_config",
    "hidden_size",
    "n_embd",
    "num_attention_heads",
)
# Bases of sliding-attention layers in configurations from before rope dicts per layer type (Gemma 3, ModernBERT).
_LOCAL_THETA_KEYS = ("rope_local_base_freq", "local_rope_theta")


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
        >>> posenc.hf_rope.rotary_arguments({"rope_type": "linear", "factor": 4.0, "rope_theta": 1e6}, head_dim=64)
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
        >>> arguments = posenc.hf_rope.multimodal_rotary_arguments(rope, head_dim=8)
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

    A key that config.json leaves out has the default of the configuration's class in transformers 5.24, by `model_type`.
    An unknown model type has base 10000, whole heads and width hidden_size / num_attention_heads.

    The pair layout is not part of the dict: it follows `model_type` and `rope_interleave`, or `interleaved`.

    Args and Raises as `rotary_arguments`.

    Example:
        >>> config = {"rope_theta": 1e6, "hidden_size": 4096, "num_attention_heads": 32, "model_type": "llama"}
        >>> posenc.hf_rope.read_rope(config).base
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
        config = text_config(config)
        get = getter(config)
        rope, nested = _choose(_all_rope_parameters(config, get), layer_type)
        _check_layer_type(get, layer_type, nested)
        head_dim = head_dim or _head_dim(config, get, layer_type)
    if nested:
        rope = {key: value for key, value in rope.items() if key != "truncate"}
    if sections := class_defaults(get("model_type")).get("mrope_section"):
        rope = {"mrope_section": sections, **rope}
    if interleaved is None:
        interleaved = get("rope_interleave")
    return _C.scaling.read_rope(
        {key: _plain(key, value) for key, value in rope.items()},
        head_dim=head_dim,
        max_position_embeddings=_number(get, "max_position_embeddings"),
        original_max_position_embeddings=None if nested else _number(get, "original_max_position_embeddings"),
        rope_theta=_number(get, "rope_theta", "rotary_emb_base"),
        partial_rotary_factor=_number(get, "partial_rotary_factor", "rotary_pct", "rope_pct"),
        rotary_dim=_number(get, "rotary_dim"),
        model_type=get("model_type") or "",
        interleaved=interleaved,
    )


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
    if isinstance(config, Mapping) and config.get("partial_rotary_factors") and not config.get("rope_parameters"):
        raise ValueError(
            "from_hf: partial_rotary_factors, one for each layer, needs rope_parameters by layer type beside it"
        )
    defaults = class_defaults(model_type) if isinstance(config, Mapping) else {}
    if _is_nested(defaults.get("rope_parameters", {})):
        return _completed(config.get("rope_scaling") or config.get("rope_parameters") or {}, defaults, get)
    rope = get("rope_scaling") or get("rope_parameters")
    local_theta = get(*_LOCAL_THETA_KEYS)
    theta = get("rope_theta", "global_rope_theta", "rotary_emb_base")
    if local_theta is not None and not _is_nested(rope or {}):
        # Gemma 3's scaling is for the layers of full attention; ModernBERT has none.
        full = {**(rope or {}), **({} if theta is None else {"rope_theta": theta})}
        return {"full_attention": full, "sliding_attention": {"rope_theta": local_theta}}
    # rope_scaling is null in the files of plain RoPE; files of models with rotary embeddings may name nothing at all.
    named = isinstance(config, Mapping) and ("rope_scaling" in config or is_known(model_type))
    if rope is None and theta is None and get("rotary_dim") is None and not named:
        raise ValueError(
            f"from_hf: the configuration (model_type {model_type!r}) has no rotary embedding: neither "
            "rope_parameters, rope_scaling, rope_theta nor rotary_dim"
        )
    return rope or {}


def _completed(given: Mapping[str, Any], defaults: Mapping[str, Any], get: Getter) -> Mapping[str, Any]:
    """Returns one rope dict for each layer type, from what a file gives and its class has as defaults."""
    per_type, scaled = defaults["rope_parameters"], defaults.get("scaled_layers", ())
    if given and not _is_nested(given):
        if not scaled:
            raise ValueError(
                f"from_hf: model_type {get('model_type')!r} has a rope dict for each layer type: expected "
                f"rope_parameters with the keys {list(per_type)}, but got a single dict with {list(given)}"
            )
        given = {layer_type: given for layer_type in scaled}
    completed = {**per_type, **given}
    for layer_type, rope in completed.items():
        if not rope or layer_type not in per_type:
            continue
        own = dict(per_type[layer_type] or {}) if layer_type not in given else {}
        theta = _number(get, defaults.get("theta_keys", {}).get(layer_type, ""))
        if theta is None:
            theta = (per_type[layer_type] or {}).get("rope_theta")
        completed[layer_type] = {**own, **({} if theta is None else {"rope_theta": theta}), **given.get(layer_type, {})}
    return completed


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
    width = _own_head_dim(config, get, layer_type) if layer_type is not None else None
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
            f"from_hf: the configuration does not say how wide a head is, without {' and '.join(missing)}: give head_dim"
        )
    return hidden * class_defaults(get("model_type")).get("heads_span", 1) // heads


def _own_head_dim(config: Any, get: Getter, layer_type: str) -> int | None:
    """Returns the head width of one layer type, where layer types differ in it (Gemma 4)."""
    if not isinstance(config, Mapping):
        if not getattr(config, "is_heterogeneous", False):
            return None
        layers = [config.per_layer_config[i] for i, kind in enumerate(config.layer_types) if kind == layer_type]
        widths = {getattr(layer, "head_dim", None) for layer in layers}
        if len(widths) > 1:
            raise ValueError(f"from_hf: layers of type {layer_type!r} differ in head_dim: give head_dim")
        return next(iter(widths), None)
    per_layer = config.get("per_layer_config")
    if layer_type == "full_attention" and (per_layer is None or config.get("global_head_dim")):
        return _number(get, "global_head_dim")
    per_layer = per_layer or {}
    if layer_type in per_layer:
        return per_layer[layer_type].get("head_dim")
    layer_types = config.get("layer_types") or []
    for index, own in per_layer.items():
        if str(index).isdigit() and int(index) < len(layer_types) and layer_types[int(index)] == layer_type:
            return own.get("head_dim")
    return None
