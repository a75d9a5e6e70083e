"""config.json files that leave keys out: transformers fills them in; without it the file must have them."""

import copy
import functools
import importlib
import inspect
import sys

import pytest

from posenc import scaling
from posenc.hf import read_rope
from posenc.nn import Rotary
from tolerances import assert_bits

transformers = pytest.importorskip("transformers")
transformers.logging.set_verbosity_error()

from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS  # noqa: E402
from transformers.models.auto.configuration_auto import CONFIG_MAPPING  # noqa: E402

ROPE_KEYS = frozenset(
    (
        *("rope_parameters", "rope_scaling", "rope_theta", "partial_rotary_factor", "rope_local_base_freq"),
        *("global_rope_theta", "local_rope_theta", "compress_rope_theta", "swa_rope_theta", "rotary_dim"),
    )
)
# What is said of the configuration object and of its dict alike.
REFUSED = {
    "ernie4_5_vl_moe_text": "order of its own",  # sorts its frequencies by axis, even for text alone
    "blt": "without hidden_size and num_attention_heads",  # its three parts have their own
}
# Configurations of no language model, whose tables are not as wide as a head: pixels (2), time stamps (1).
OTHER_WIDTHS = frozenset(("efficientloftr", "eomt_dinov3", "musicflamingo"))
# Classes whose default sizes give an odd rotary width, which Rotary refuses.
ODD_BY_DEFAULT = frozenset(("glm4_moe", "glm4v_moe_text", "qwen3_omni_moe_text"))
# Classes whose default part of heads of a power of two is an odd width.
ODD_WHEN_RESIZED = frozenset(("moonshine", "moonshine_streaming"))


def rope_of(config):
    try:
        return getattr(config, "rope_parameters", None)
    except AttributeError:
        return None


@functools.cache
def config_classes():
    """Every configuration class, and those of parts, that has a rotary embedding along one axis by default."""
    found = {}

    def visit(cls):
        if cls.model_type in found or not hasattr(cls, "model_type"):
            return
        try:
            config = cls()
        except Exception:
            return  # a class that cannot be built without arguments has no defaults to leave out
        rope = rope_of(config)
        if cls.model_type in ("gptj", "codegen") or (rope and rope.get("rope_type") != "axial"):
            found[cls.model_type] = cls
        for part in (cls.sub_configs or {}).values():
            if hasattr(part, "model_type") and part.model_type:
                visit(part)

    for model_type in CONFIG_MAPPING:
        visit(CONFIG_MAPPING[model_type])
    return found


def text_part_of(model_type):
    try:
        text = CONFIG_MAPPING[model_type]().get_text_config()
    except Exception:
        return None  # no default configuration, or several text parts
    return text.model_type


def without_rope_keys(value):
    if isinstance(value, dict):
        return {key: without_rope_keys(item) for key, item in value.items() if key not in ROPE_KEYS}
    return value


def layer_types_of(config):
    rope = rope_of(config) or {}
    nested = [key for key, value in rope.items() if isinstance(value, dict)]
    return nested or [None]


def vars_of(rope):
    names = ("head_dim", "rotary_dim", "base", "scaling", "interleaved", "mrope_section", "mrope_interleaved")
    return {name: getattr(rope, name) for name in names}


def assert_same(source, config, layer_type):
    ours = read_rope(source, layer_type)
    assert vars_of(ours) == vars_of(read_rope(config, layer_type))
    return ours


def their_table(config, layer_type):
    """inv_freq of the model's own function, None where it has none that takes this configuration."""
    rope = config.rope_parameters if layer_type is None else config.rope_parameters[layer_type]
    if rope.get("rope_type", "default") != "default":
        compute = ROPE_INIT_FUNCTIONS[rope["rope_type"]]
    else:
        name = type(config).__module__.replace("configuration_", "modeling_")
        if importlib.util.find_spec(name) is None:
            return None
        module = importlib.import_module(name)
        rotaries = [
            cls.compute_default_rope_parameters
            for _, cls in inspect.getmembers(module, inspect.isclass)
            if cls.__module__ == name and hasattr(cls, "compute_default_rope_parameters")
        ]
        own = [
            function
            for function in rotaries
            if type(config).__name__ in str(inspect.signature(function).parameters["config"].annotation)
        ]
        if not own:
            return None
        compute = own[0]
    if getattr(config, "is_heterogeneous", False):
        layer = config.per_layer_config[config.layer_types.index(layer_type)]
        layer.rope_parameters = config.rope_parameters
        config = layer
    return compute(config, **({} if layer_type is None else {"layer_type": layer_type}))


def readings(config, layer_type, *sources):
    """Checks that every source reads as the configuration does, which says it in all its keys."""
    for source in sources:
        rope = assert_same(source, config, layer_type)
    return rope


# A file has the type of a model, or of a part that transformers registers as one.
MODEL_TYPES = sorted((set(config_classes()) & set(CONFIG_MAPPING)) - OTHER_WIDTHS)


def test_the_walk_finds_the_model_types():
    assert len(MODEL_TYPES) > 150
    assert {"llama", "gemma3_text", "gpt_neox", "gptj", "falcon", "qwen3_vl_text", "gpt_oss"} <= set(MODEL_TYPES)


@pytest.mark.parametrize("model_type", MODEL_TYPES)
def test_defaults_of_every_model_type(model_type):
    cls = config_classes()[model_type]
    sizes = {"hidden_size": 1024, "num_attention_heads": 8} if model_type in ODD_BY_DEFAULT else {}
    config = cls(**sizes)
    minimal = {"model_type": model_type, **sizes}
    stripped = without_rope_keys(config.to_dict()) | {"model_type": model_type}
    for layer_type in layer_types_of(config):
        if model_type in REFUSED:
            for source in (config, minimal, stripped):
                with pytest.raises(ValueError, match=REFUSED[model_type]):
                    read_rope(source, layer_type)
            continue
        rope = readings(config, layer_type, stripped, minimal)
        if rope_of(config) and (table := their_table(config, layer_type)):
            ours, magnitude = scaling.frequencies(rope.rotary_dim, rope.base, rope.scaling, exact=False)
            assert_bits(ours, table[0])
            assert magnitude == table[1]


def built(cls, **keys):
    """The configuration, None where the class refuses such keys."""
    try:
        return cls(**keys)
    except Exception:
        return None


@pytest.mark.parametrize("model_type", sorted(set(MODEL_TYPES) - set(REFUSED) - ODD_WHEN_RESIZED))
def test_sizes_and_a_scaling_without_base(model_type):
    cls = config_classes()[model_type]
    sizes = {"hidden_size": 1536, "num_attention_heads": 4}
    config = built(cls, **sizes)
    if config is not None:
        for layer_type in layer_types_of(config):
            readings(config, layer_type, {"model_type": model_type, **sizes})
    keys = {"hidden_size": 1024, "num_attention_heads": 8, "rope_scaling": {"rope_type": "linear", "factor": 2.0}}
    config = built(cls, **copy.deepcopy(keys))
    if config is None or rope_of(config) is None:
        return
    source = {"model_type": model_type, **keys}
    if layer_types_of(config) == [None] and layer_types_of(cls()) != [None]:
        with pytest.raises(ValueError, match="has a rope dict for each layer type: expected rope_parameters"):
            read_rope(source)
        return
    for layer_type in layer_types_of(config):
        readings(config, layer_type, source)


COMPOSITES = sorted(
    model_type
    for model_type in CONFIG_MAPPING
    if model_type not in config_classes() and text_part_of(model_type) in set(MODEL_TYPES) - set(REFUSED)
)


@pytest.mark.parametrize("model_type", COMPOSITES)
def test_composite_models_are_read_for_their_text(model_type):
    cls = CONFIG_MAPPING[model_type]
    stripped = without_rope_keys(cls().to_dict()) | {"model_type": model_type}
    config = cls.from_dict(copy.deepcopy(stripped))
    text = config.get_text_config()
    for layer_type in layer_types_of(text):
        if text.model_type in ODD_BY_DEFAULT:
            with pytest.raises(ValueError, match="even rotary width"):
                read_rope(stripped, layer_type)
        else:
            readings(text, layer_type, stripped, config)


def test_sizes_may_stand_outside_the_text_part():
    flat = {"model_type": "qwen2_vl", "hidden_size": 1024, "num_attention_heads": 8}
    assert (read_rope(flat).base, read_rope(flat).head_dim) == (1e6, 128)


def test_gemma_3_as_published():
    text = {"hidden_size": 2560, "num_hidden_layers": 34, "rope_scaling": {"factor": 8.0, "rope_type": "linear"}}
    for part in (text, text | {"model_type": "gemma3_text"}):
        config = {"model_type": "gemma3", "text_config": part}
        with pytest.raises(ValueError, match="give layer_type"):
            read_rope(config)
        full, sliding = read_rope(config, "full_attention"), read_rope(config, "sliding_attention")
        assert (full.head_dim, full.base, full.scaling) == (256, 1e6, scaling.Linear(8))
        assert (sliding.head_dim, sliding.base, sliding.scaling) == (256, 1e4, None)


def test_keys_of_the_file_go_before_the_defaults():
    assert read_rope({"model_type": "mixtral", "rope_theta": 5e5}).base == 5e5
    assert read_rope({"model_type": "gpt_neox", "rotary_pct": 0.5}).rotary_dim == 48
    assert read_rope({"model_type": "stablelm", "rope_pct": 0.5}).rotary_dim == 40
    full = read_rope({"model_type": "gemma3_text", "rope_theta": 5e5}, "full_attention")
    assert full.base == 5e5
    nested = {"sliding_attention": {"rope_theta": 7.0}}
    assert read_rope({"model_type": "gemma3_text", "rope_parameters": nested}, "sliding_attention").base == 7.0
    assert read_rope({"model_type": "gemma3_text", "rope_parameters": nested}, "full_attention").base == 1e6


def test_a_composite_model_without_sizes_has_those_of_its_class():
    rope = read_rope({"model_type": "llava"})
    assert (rope.head_dim, rope.rotary_dim, rope.base) == (128, 128, 1e4)


def test_a_key_that_the_class_does_not_read_changes_nothing_as_in_transformers():
    """GPT-NeoX says rotary_pct."""
    assert read_rope({"model_type": "gpt_neox", "partial_rotary_factor": 0.5}).rotary_dim == 24


@pytest.mark.parametrize(("model_type", "key"), [("gptj", "rotary_dim"), ("qwen3", "head_dim")])
def test_none_for_a_number_that_the_class_needs_is_refused_by_name(model_type, key):
    with pytest.raises(ValueError, match=f"from_hf: .*Config of transformers refuses the configuration: .*'{key}'"):
        read_rope({"model_type": model_type, key: None})


def test_an_unknown_model_type_has_no_defaults_of_a_class():
    rope = read_rope({"model_type": "new_model", "hidden_size": 512, "num_attention_heads": 8, "rope_scaling": None})
    assert (rope.base, rope.head_dim, rope.rotary_dim) == (1e4, 64, 64)
    with pytest.raises(ValueError, match="has no rotary embedding"):
        read_rope({"model_type": "new_model", "hidden_size": 512, "num_attention_heads": 8})


def test_falcon_with_alibi_has_no_rotary_embedding():
    assert read_rope({"model_type": "falcon"}).head_dim == 64
    with pytest.raises(ValueError, match="alibi, no rotary embedding"):
        read_rope({"model_type": "falcon", "alibi": True})


@pytest.mark.parametrize("config", [None, "x", 5, [], b"x"], ids=repr)
def test_what_is_no_configuration_is_refused_with_the_accepted_kinds(config):
    with pytest.raises(TypeError, match=r"a transformers configuration, its dict \(config.json\) or a rope dict"):
        Rotary.from_hf(config)


def test_values_of_another_kind_name_their_key():
    rope = {"type": "longrope", "short_factor": [1.0, "a"], "long_factor": [1.0], "factor": 2.0}
    with pytest.raises(TypeError, match="expected 'short_factor' to be a list of numbers, but it has 'a'"):
        Rotary.from_hf(rope, head_dim=8)
    for key in ("rope_theta", "hidden_size", "head_dim"):
        with pytest.raises(TypeError, match=f"expected '{key}'.* to be a number, but got '64'"):
            read_rope({"model_type": "llama", key: "64"})


def test_a_layer_type_that_the_configuration_does_not_list():
    config = {"model_type": "qwen3", "num_hidden_layers": 1, "layer_types": ["full_attention"]}
    assert read_rope(config, "full_attention").base == 1e4
    with pytest.raises(ValueError, match=r"layer_types \['full_attention'\], but got 'nonsense'"):
        read_rope(config, "nonsense")
    assert read_rope({"rope_theta": 5.0}, "nonsense", head_dim=8).base == 5.0


def test_a_list_of_parts_layer_by_layer_is_refused():
    with pytest.raises(ValueError, match="partial_rotary_factors, one for each layer, needs rope_parameters"):
        read_rope({"model_type": "step3p5", "partial_rotary_factors": [0.5, 1.0]})


def test_what_transformers_refuses_is_refused_with_its_reason():
    config = {"model_type": "llama", "rope_scaling": {"rope_type": "linear"}}
    with pytest.raises(ValueError, match="from_hf: LlamaConfig of transformers refuses the configuration: .*'factor'"):
        read_rope(config)


@pytest.fixture
def without_transformers(monkeypatch):
    monkeypatch.setitem(sys.modules, "transformers", None)


PHI = {
    "model_type": "phi",
    "hidden_size": 2048,
    "num_attention_heads": 32,
    "head_dim": 64,
    "rope_theta": 1e4,
    "rope_scaling": None,
    "partial_rotary_factor": 0.5,
}
LLAMA = {"model_type": "llama", "hidden_size": 4096, "num_attention_heads": 32, "rope_theta": 5e5}


@pytest.mark.parametrize("config", [PHI, LLAMA], ids=["phi", "llama"])
def test_a_file_with_its_keys_reads_alike_without_transformers(config, monkeypatch):
    expected = vars_of(read_rope(config))
    monkeypatch.setitem(sys.modules, "transformers", None)
    assert vars_of(read_rope(config)) == expected
    assert vars_of(read_rope({"model_type": "a_composite", "text_config": config})) == expected


@pytest.mark.parametrize("key", ["rope_theta", "rope_scaling", "partial_rotary_factor", "head_dim"])
def test_without_transformers_a_missing_key_is_named(without_transformers, key):
    missing = {name: value for name, value in PHI.items() if name != key}
    with pytest.raises(ValueError, match=f"'phi'.* lacks the key '{key}': add it, or install transformers"):
        Rotary.from_hf(missing)


def test_without_transformers_the_base_of_a_llama_is_needed(without_transformers):
    with pytest.raises(ValueError, match="'llama'.* lacks the key 'rope_theta': add it, or install transformers"):
        Rotary.from_hf({name: value for name, value in LLAMA.items() if name != "rope_theta"})
    assert Rotary.from_hf(LLAMA | {"rope_parameters": {"rope_theta": 7.0}}).base == 7.0


def test_without_transformers_a_file_as_transformers_saves_it_reads_alike(monkeypatch):
    saved = [CONFIG_MAPPING[model_type]().to_dict() for model_type in ("phi", "qwen3", "glm")]
    expected = [vars_of(read_rope(config)) for config in saved]
    monkeypatch.setitem(sys.modules, "transformers", None)
    assert [vars_of(read_rope(config, head_dim=config.get("head_dim") or 64)) for config in saved] == expected


def test_without_transformers_a_rope_dict_needs_nothing_else(without_transformers):
    rope = Rotary.from_hf({"rope_type": "linear", "factor": 4.0}, head_dim=8)
    assert (rope.base, rope.scaling) == (1e4, scaling.Linear(4))
    no_type = {"hidden_size": 64, "num_attention_heads": 4, "rope_scaling": None}
    assert read_rope(no_type).head_dim == 16


def test_without_transformers_layers_that_differ_in_width_need_it_given(without_transformers):
    rope = {"full_attention": {"rope_theta": 1e6, "partial_rotary_factor": 1.0}}
    config = {"model_type": "gemma4_text", "head_dim": 256, "global_head_dim": 512, "rope_parameters": rope}
    with pytest.raises(ValueError, match="differ in head_dim: give head_dim, or install transformers"):
        read_rope(config, "full_attention")
    assert read_rope(config, "full_attention", head_dim=512).head_dim == 512


def test_without_transformers_one_rope_dict_does_not_stand_for_a_type_of_layer(without_transformers):
    """Gemma 3's layers with sliding windows have another base, which its class knows."""
    config = PHI | {"model_type": "gemma3_text", "partial_rotary_factor": 1.0}
    with pytest.raises(ValueError, match="lacks the key 'rope_parameters': add it, or install transformers"):
        read_rope(config, "sliding_attention")
    assert read_rope(config | {"rope_local_base_freq": 7.0}, "sliding_attention").base == 7.0
    assert read_rope(LLAMA, "full_attention").base == 5e5
