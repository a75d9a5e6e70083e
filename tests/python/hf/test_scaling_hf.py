"""Reading Hugging Face configurations: the same frequencies and magnitude as transformers' own modules."""

import copy
import importlib

import pytest
import torch

from hf_configs import LAYERED_MODELS, MODELS, MULTIMODAL_MODELS, PHI3_LONG, PHI3_SHORT
from posenc import scaling
from posenc.hf import multimodal_rotary_arguments, read_rope, rotary_arguments
from tolerances import assert_bits

transformers = pytest.importorskip("transformers")
transformers.logging.set_verbosity_error()


def config_of(model):
    name, _, published = model
    arguments = copy.deepcopy(published)
    arguments.pop("model_type")
    return getattr(transformers, name)(**arguments)


def their_module(model, config):
    family, name = model[1].split(".")
    module = importlib.import_module(f"transformers.models.{family}.modeling_{family}")
    return getattr(module, name)(config.get_text_config())


def spellings(model):
    """The published dict, the configuration, and the dict that transformers 5 saves."""
    config = config_of(model)
    return {"published": copy.deepcopy(model[2]), "config": config, "saved": config.to_dict()}


def assert_reads_as(source, inv_freq, attention_scaling, **arguments):
    rope = read_rope(source, **arguments)
    ours, our_scaling = scaling.frequencies(rope.rotary_dim, rope.base, rope.scaling, exact=False)
    assert_bits(ours, inv_freq)
    assert our_scaling == attention_scaling
    return rope


@pytest.mark.parametrize("spelling", ["published", "config", "saved"])
@pytest.mark.parametrize("name", MODELS)
def test_real_configurations(name, spelling):
    model = MODELS[name]
    theirs = their_module(model, config_of(model))
    source = spellings(model)[spelling]
    attention_scaling = theirs.attention_scaling
    if name == "Phi-3.5-MoE":
        attention_scaling = 1.243163121016122  # its forward puts the dict's mscale there
    rope = assert_reads_as(source, theirs.inv_freq, attention_scaling)
    arguments = rotary_arguments(source)
    assert arguments == {
        "head_dim": rope.head_dim,
        "rotary_dim": rope.rotary_dim,
        "base": rope.base,
        "interleaved": rope.interleaved,
        "scaling": rope.scaling,
    }


@pytest.mark.parametrize("name", ["Phi-3-mini-128k", "Llama-2-7B, dynamic"])
def test_length_dependent_models_beyond_their_original_length(name):
    model = MODELS[name]
    theirs = their_module(model, config_of(model))
    length = 9000
    theirs(torch.zeros(1), torch.arange(length)[None])
    rope = read_rope(model[2])
    assert scaling.depends_on_length(rope.scaling)
    assert_bits(scaling.frequencies(rope.rotary_dim, rope.base, rope.scaling, length, exact=False)[0], theirs.inv_freq)


@pytest.mark.parametrize("layer_type", ["full_attention", "sliding_attention"])
@pytest.mark.parametrize("spelling", ["published", "config", "saved"])
@pytest.mark.parametrize("name", LAYERED_MODELS)
def test_real_configurations_with_types_of_layers(name, spelling, layer_type):
    model = LAYERED_MODELS[name]
    theirs = their_module(model, config_of(model))
    assert_reads_as(
        spellings(model)[spelling],
        getattr(theirs, f"{layer_type}_inv_freq"),
        getattr(theirs, f"{layer_type}_attention_scaling", 1.0),
        layer_type=layer_type,
    )


@pytest.mark.parametrize("spelling", ["published", "config", "saved"])
@pytest.mark.parametrize("name", MULTIMODAL_MODELS)
def test_real_multimodal_configurations(name, spelling):
    model = MULTIMODAL_MODELS[name]
    theirs = their_module(model, config_of(model))
    source = spellings(model)[spelling]
    rope = assert_reads_as(source, theirs.inv_freq, theirs.attention_scaling)
    arguments = multimodal_rotary_arguments(source)
    assert arguments["sections"] == list(theirs.mrope_section) == rope.mrope_section
    assert arguments["interleaved_sections"] == (name == "Qwen3-VL-8B")
    assert arguments["interleaved"] is False
    with pytest.raises(ValueError, match=r"use MultimodalRotary\.from_hf"):
        rotary_arguments(source)


def test_the_layout_follows_the_model():
    layouts = {name: read_rope(model[2]).interleaved for name, model in MODELS.items()}
    assert {name for name, interleaved in layouts.items() if interleaved} == {"DeepSeek-V3", "GLM-4-9B", "Command-R"}
    assert read_rope(MODELS["GLM-4-9B"][2], interleaved=False).interleaved is False
    assert read_rope(MODELS["Llama-3-8B"][2], interleaved=True).interleaved is True
    halves = {**MODELS["DeepSeek-V3"][2], "rope_interleave": False}
    assert read_rope(halves).interleaved is False
    for model_type in (
        "gptj",
        "codegen",
        "glm4",
        "cohere2",
        "ernie4_5",
        "helium",
        "moonshine",
        "roformer",
        "llama4_text",
    ):
        config = {"model_type": model_type, "rope_theta": 1e4, "partial_rotary_factor": 1.0}
        assert read_rope(config, head_dim=8).interleaved


@pytest.mark.parametrize("model_type", ["glm", "cohere", "helium", "ernie4_5", "llama", "qwen2", "gpt_neox"])
def test_the_layout_is_the_one_of_the_models_own_rotation(model_type):
    module = importlib.import_module(f"transformers.models.{model_type}.modeling_{model_type}")
    x = torch.arange(1.0, 9.0)
    pairs = module.rotate_half(x)
    interleaved = pairs[1] == x[0]
    assert read_rope({"model_type": model_type, "rope_theta": 1e4}, head_dim=8).interleaved == interleaved


def test_gpt_j_has_its_width_outside_any_rope_dict():
    for source in (transformers.GPTJConfig(), transformers.GPTJConfig().to_dict()):
        assert rotary_arguments(source) == {
            "head_dim": 256,
            "rotary_dim": 64,
            "base": 10000.0,
            "interleaved": True,
            "scaling": None,
        }


def test_a_rope_dict_of_its_own_needs_the_width():
    rope = {"rope_type": "linear", "factor": 4, "rope_theta": 500000}
    assert rotary_arguments(rope, head_dim=64) == {
        "head_dim": 64,
        "rotary_dim": 64,
        "base": 500000.0,
        "interleaved": False,
        "scaling": scaling.Linear(4),
    }
    with pytest.raises(ValueError, match="give head_dim"):
        rotary_arguments(rope)
    assert rotary_arguments({}, head_dim=64)["base"] == 10000.0
    nested = {"full_attention": rope, "sliding_attention": {"rope_type": "default"}}
    assert rotary_arguments(nested, "full_attention", head_dim=64)["scaling"] == scaling.Linear(4)


def test_head_dim_may_be_given_with_a_config():
    assert rotary_arguments(MODELS["Llama-3-8B"][2], head_dim=96)["head_dim"] == 96


def read(rope, **outside):
    """Without a model type, so that no class of transformers comes first."""
    model = {"hidden_size": 1024, "num_attention_heads": 8, "max_position_embeddings": 8192}
    return read_rope({**model, "rope_scaling": rope, **outside})


LLAMA3 = {"rope_type": "llama3", "factor": 8, "low_freq_factor": 1, "high_freq_factor": 4}


@pytest.mark.parametrize(
    ("rope", "outside", "expected"),
    [
        ({"type": "linear", "factor": 2}, {}, scaling.Linear(2)),
        ({"rope_type": "linear", "type": "dynamic", "factor": 2}, {}, scaling.Linear(2)),
        ({"rope_type": "default", "type": "mrope"}, {}, None),
        ({"rope_type": "mrope"}, {}, None),
        ({"rope_type": "default", "factor": 4}, {}, None),
        ({"rope_type": None, "type": "linear", "factor": 2.0}, {}, scaling.Linear(2)),
        ({"type": "dynamic", "factor": 2}, {}, scaling.DynamicNTK(2, 8192)),
        ({"type": "dynamic", "factor": 2, "original_max_position_embeddings": 4}, {}, scaling.DynamicNTK(2, 8192)),
        (LLAMA3, {}, scaling.Llama3(8, 8192)),
        ({**LLAMA3, "original_max_position_embeddings": 4096}, {}, scaling.Llama3(8, 4096)),
        (
            {**LLAMA3, "original_max_position_embeddings": 4096},
            {"original_max_position_embeddings": 2048},
            scaling.Llama3(8, 2048),
        ),
        ({"type": "yarn", "factor": 4}, {}, scaling.Yarn(4, 8192)),
        ({"type": "yarn", "factor": None, "original_max_position_embeddings": 2048}, {}, scaling.Yarn(4, 2048)),
        ({"type": "yarn", "factor": 4, "beta_fast": 0, "beta_slow": 0}, {}, scaling.Yarn(4, 8192)),
        ({"type": "yarn", "factor": 4, "beta_fast": 16, "beta_slow": None}, {}, scaling.Yarn(4, 8192, beta_fast=16)),
        (
            {"type": "yarn", "factor": 4, "attention_factor": 1.5, "mscale": 0.5, "mscale_all_dim": 0},
            {},
            scaling.Yarn(4, 8192, attention_factor=1.5, mscale=0.5, mscale_all_dim=0),
        ),
        ({"type": "proportional", "partial_rotary_factor": 0.25}, {}, scaling.Proportional(0.25)),
        ({"type": "proportional", "factor": 2}, {"partial_rotary_factor": 0.5}, scaling.Proportional(0.5, 2)),
    ],
    ids=str,
)
def test_keys_and_their_precedence(rope, outside, expected):
    assert read(rope, **outside).scaling == expected


def test_longrope_names_and_magnitude():
    rope = {"short_factor": [1] * 64, "long_factor": [2.0] * 64, "original_max_position_embeddings": 4096}
    for name in ("longrope", "su", "yarn"):
        assert read({"type": name, **rope}).scaling == scaling.LongRoPE([1] * 64, [2] * 64, 4096, factor=2)
    assert read({"type": "su", "factor": 3, **rope}).scaling.factor == 3
    with pytest.raises(ValueError, match="short_mscale and long_mscale to be equal"):
        read({"type": "su", "short_mscale": 1.0, "long_mscale": 1.2, **rope})
    with pytest.raises(ValueError, match="rope_type longrope needs the key 'factor'"):
        read_rope({"type": "su", **rope}, head_dim=128)
    with pytest.raises(ValueError, match="64 numbers for dim 128, but got 48"):
        read({"type": "su", **rope, "short_factor": PHI3_SHORT, "long_factor": PHI3_LONG})


def test_base_and_width_of_the_dict_go_first():
    rope = read({"rope_theta": 5e5, "partial_rotary_factor": 0.5}, rope_theta=1e6, partial_rotary_factor=0.25)
    assert (rope.base, rope.rotary_dim) == (5e5, 64)
    rope = read(None, rope_theta=1e6, partial_rotary_factor=0.25)
    assert (rope.base, rope.rotary_dim) == (1e6, 32)


def test_new_and_old_spelling_of_the_dict():
    new = {"rope_parameters": {"rope_type": "linear", "factor": 2.0, "rope_theta": 1e6}}
    old = {"rope_scaling": {"type": "linear", "factor": 2.0}, "rope_theta": 1e6}
    model = {"hidden_size": 64, "num_attention_heads": 2}
    assert rotary_arguments({**model, **new}) == rotary_arguments({**model, **old})


def test_keys_without_effect_are_accepted():
    rope = {
        "rope_type": "default",
        "interleaved": True,
        "mrope_interleaved": True,
        "llama_4_scaling_beta": 0.1,
        "finetuned": True,
        "attention_factor": 2.0,
        "factor": 3.0,
        "beta_fast": 32,
    }
    found = read(rope)
    assert found.scaling is None
    assert found.interleaved is False
    assert scaling.attention_scaling(found.scaling) == 1.0


def test_unknown_types_and_keys_are_refused_with_the_accepted_ones():
    with pytest.raises(ValueError, match="one of default, linear, dynamic, yarn, longrope, llama3, proportional.*ntk"):
        read({"rope_type": "ntk", "factor": 2})
    with pytest.raises(ValueError, match="AxialRotary"):
        read({"rope_type": "axial"})
    with pytest.raises(ValueError, match=r"unknown key 'attn_factor'; accepted are alpha, attention_factor, beta_fast"):
        read({"rope_type": "yarn", "factor": 2, "attn_factor": 1.5})


@pytest.mark.parametrize(
    ("rope", "key"),
    [
        ({"type": "linear"}, "factor"),
        ({"type": "linear", "factor": None}, "factor"),
        ({"type": "dynamic"}, "factor"),
        ({**LLAMA3, "factor": None}, "factor"),
        ({**LLAMA3, "low_freq_factor": None}, "low_freq_factor"),
        ({**LLAMA3, "high_freq_factor": None}, "high_freq_factor"),
        ({"type": "longrope", "long_factor": [1.0]}, "short_factor"),
        ({"type": "longrope", "short_factor": [1.0]}, "long_factor"),
    ],
    ids=str,
)
def test_missing_keys_are_named(rope, key):
    with pytest.raises(ValueError, match=f"needs the key '{key}'"):
        read(rope)


def test_a_dict_of_its_own_must_say_the_lengths():
    for rope in ({"type": "yarn", "factor": 4}, LLAMA3):
        with pytest.raises(ValueError, match="needs the key 'original_max_position_embeddings'"):
            read_rope(rope, head_dim=64)
    with pytest.raises(ValueError, match="'max_position_embeddings'"):
        read_rope({"type": "dynamic", "factor": 4}, head_dim=64)
    own = {"type": "dynamic", "factor": 4, "original_max_position_embeddings": 2048}
    assert read_rope(own, head_dim=64).scaling == scaling.DynamicNTK(4, 2048)


@pytest.mark.parametrize(
    ("rope", "error", "message"),
    [
        ({"type": "linear", "factor": "4"}, TypeError, "expected 'factor' to be a number"),
        ({"type": "linear", "factor": [4.0]}, TypeError, "expected 'factor' to be a number"),
        ({"type": "linear", "factor": True}, TypeError, "expected 'factor' to be a number"),
        ({"type": "linear", "factor": -1}, ValueError, "Linear: expected factor to be positive"),
        ({"type": 3}, TypeError, "expected 'type' to be a string"),
        ({"type": "yarn", "factor": 4, "truncate": 1}, TypeError, "expected 'truncate' to be true or false"),
        ({"type": "longrope", "short_factor": 1.0, "long_factor": 1.0}, TypeError, "'short_factor' to be a list"),
        ({**LLAMA3, "original_max_position_embeddings": 0.5}, ValueError, "to be a whole number, but got 0.5"),
        ({"rope_theta": -1.0}, ValueError, "expected base to be positive"),
        ({"partial_rotary_factor": 1.5}, ValueError, "partial_rotary_factor to be above 0 and at most 1, but got 1.5"),
        ({"partial_rotary_factor": 0.01}, ValueError, "expected an even rotary width"),
        ({"mrope_section": [16, 24, 20]}, ValueError, "mrope_section to add up to the 64 pairs"),
    ],
    ids=str,
)
def test_impossible_values_are_refused(rope, error, message):
    with pytest.raises(error, match=message):
        read(rope)


def test_choosing_a_layer_type():
    model = LAYERED_MODELS["Gemma-4"]
    with pytest.raises(ValueError, match=r"give layer_type, one of \['sliding_attention', 'full_attention'\]"):
        read_rope(model[2])
    with pytest.raises(ValueError, match="expected layer_type to be one of .* but got 'chunked'"):
        read_rope(model[2], "chunked")
    same = {"a": {"rope_theta": 5.0}, "b": {"rope_theta": 5.0}}
    assert read_rope(same, head_dim=8).base == 5.0
    with pytest.raises(ValueError, match="layers of type 'b' have no rotary embedding"):
        read_rope({"a": {"rope_theta": 5.0}, "b": None}, "b", head_dim=8)
    assert read_rope(MODELS["Llama-3-8B"][2], "full_attention").base == 500000.0


def test_truncate_in_a_dict_per_layer_type_has_no_effect_as_in_transformers():
    rope = {"rope_type": "yarn", "factor": 4, "original_max_position_embeddings": 2048, "truncate": False}
    assert read_rope(rope, head_dim=64).scaling.truncate is False
    assert read_rope({"full_attention": rope}, "full_attention", head_dim=64).scaling.truncate is True


@pytest.mark.parametrize("name", ["BertConfig", "GPT2Config"])
def test_a_model_without_rotary_embedding_is_refused(name):
    with pytest.raises(ValueError, match="has no rotary embedding"):
        rotary_arguments(getattr(transformers, name)())


def test_multimodal_arguments_need_sections():
    with pytest.raises(ValueError, match=r"has no mrope_section: use Rotary\.from_hf"):
        multimodal_rotary_arguments(MODELS["Llama-3-8B"][2])


def test_first_llama_files_name_no_rope_key():
    published = {"model_type": "llama", "hidden_size": 4096, "num_attention_heads": 32, "max_position_embeddings": 2048}
    rope = read_rope(published)
    found = (rope.head_dim, rope.rotary_dim, rope.base, rope.scaling, rope.interleaved)
    assert found == (128, 128, 10000.0, None, False)
    with pytest.raises(ValueError, match="has no rotary embedding"):
        read_rope(published | {"model_type": "bert"})
