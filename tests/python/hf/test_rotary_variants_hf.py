"""MultimodalRotary and Rotary.from_hf against the rotary modules of transformers' own models,
in tiny configurations."""

import importlib
import sys

import pytest
import torch

import posenc
from tolerances import assert_bits, assert_near

Rotary, MultimodalRotary = posenc.nn.Rotary, posenc.nn.MultimodalRotary

TINY = {"hidden_size": 64, "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 16, "vocab_size": 32}
POSITIONS = torch.tensor(
    [
        [[0, 1, 2, 2, 2, 2, 4], [100, 1000, 1857, 4095, 20000, 7, 3]],
        [[0, 1, 2, 2, 3, 3, 4], [0, 31, 2000, 1, 5, 131071, 3]],
        [[0, 1, 2, 3, 2, 3, 4], [9, 8, 7, 6, 5, 4, 3]],
    ]
)


def their_text_model(package, prefix, sections, **rope):
    """(configuration, rotary module, apply function) of a transformers model."""
    modeling = importlib.import_module(f"transformers.models.{package}.modeling_{package}")
    configuration = importlib.import_module(f"transformers.models.{package}.configuration_{package}")
    parameters = {"rope_type": "default", "rope_theta": 1e6, "mrope_section": list(sections)} | rope
    config = getattr(configuration, f"{prefix}TextConfig")(**TINY, rope_parameters=parameters)
    rotary = next(
        getattr(modeling, name)
        for name in (f"{prefix}RotaryEmbedding", f"{prefix}TextRotaryEmbedding")
        if hasattr(modeling, name)
    )
    return config, rotary(config), modeling.apply_rotary_pos_emb


MODELS = {
    "qwen2_vl": ("qwen2_vl", "Qwen2VL", (2, 3, 3)),
    "qwen2_5_vl": ("qwen2_5_vl", "Qwen2_5_VL", (2, 3, 3)),
    "qwen3_vl": ("qwen3_vl", "Qwen3VL", (4, 2, 2), {"mrope_interleaved": True}),
    "qwen3_vl_without_the_key": ("qwen3_vl", "Qwen3VL", (4, 2, 2)),
    "qwen3_vl_linear": (
        "qwen3_vl",
        "Qwen3VL",
        (4, 2, 2),
        {"mrope_interleaved": True, "rope_type": "linear", "factor": 4.0},
    ),
    "qwen2_vl_yarn": (
        "qwen2_vl",
        "Qwen2VL",
        (2, 3, 3),
        {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 64},
    ),
}


@pytest.mark.parametrize("model", MODELS.values(), ids=MODELS)
def test_tables_are_theirs_bit_for_bit(model):
    """Read off by rotating pairs (1, 0), which become (cos, sin)."""
    package, prefix, sections, *rope = model
    config, theirs, _ = their_text_model(package, prefix, sections, **(rope[0] if rope else {}))
    full_cos, full_sin = theirs(torch.zeros(1), POSITIONS)
    module = MultimodalRotary.from_hf(config, exact=False)
    assert module.sections == sections
    assert module.interleaved_sections == (package == "qwen3_vl")
    assert_bits(module.inv_freq, theirs.inv_freq)
    pairs = torch.cat([torch.ones(2, 1, 7, 8), torch.zeros(2, 1, 7, 8)], dim=-1)
    cos, sin = module(pairs, positions=POSITIONS)[:, 0].chunk(2, dim=-1)
    assert_bits(cos, full_cos[..., :8])
    assert_bits(sin, full_sin[..., :8])


@pytest.mark.parametrize("exact", [True, False])
@pytest.mark.parametrize("model", MODELS.values(), ids=MODELS)
def test_rotation_is_theirs(model, exact):
    package, prefix, sections, *rope = model
    config, theirs, apply_rotary_pos_emb = their_text_model(package, prefix, sections, **(rope[0] if rope else {}))
    q, k = torch.randn(2, 4, 7, 16), torch.randn(2, 2, 7, 16)
    # Within a few hundred tokens their float32 angles are good to 1e-5.
    positions = POSITIONS if not exact else POSITIONS % 100
    expected = apply_rotary_pos_emb(q, k, *theirs(q, positions))
    for y, e in zip(MultimodalRotary.from_hf(config, exact=exact)(q, k, positions), expected, strict=True):
        if exact:
            torch.testing.assert_close(y, e, rtol=1e-4, atol=1e-4)
        else:
            assert_near(y, e.double())


def test_the_two_section_forms_differ():
    """So the comparisons above can tell them apart."""
    q = torch.randn(2, 4, 7, 16)
    blocks = MultimodalRotary(16, (4, 2, 2))(q, positions=POSITIONS)
    turns = MultimodalRotary(16, (4, 2, 2), interleaved_sections=True)(q, positions=POSITIONS)
    assert (blocks - turns).abs().max() > 0.1


PARTIAL = {
    "qwen3_5": ("Qwen3_5", "Qwen3_5TextRotaryEmbedding", (3, 3, 2), {"mrope_interleaved": True}, False),
    "glm4v": ("Glm4v", "Glm4vTextRotaryEmbedding", (2, 3, 3), {}, True),
}


@pytest.mark.parametrize("package", PARTIAL)
def test_partly_rotated_heads_with_sections(package):
    """A quarter of each head turns: Qwen3.5 has sections in turns, GLM-4V adjacent columns as pairs."""
    prefix, rotary, sections, rope, interleaved = PARTIAL[package]
    modeling = importlib.import_module(f"transformers.models.{package}.modeling_{package}")
    configuration = importlib.import_module(f"transformers.models.{package}.configuration_{package}")
    parameters = {"rope_type": "default", "rope_theta": 1e7, "partial_rotary_factor": 0.25, **rope}
    config = getattr(configuration, f"{prefix}TextConfig")(
        **(TINY | {"head_dim": 64}), rope_parameters=parameters | {"mrope_section": list(sections)}
    )
    theirs = getattr(modeling, rotary)(config)
    q, k = torch.randn(2, 4, 7, 64), torch.randn(2, 2, 7, 64)
    expected = modeling.apply_rotary_pos_emb(q, k, *theirs(q, POSITIONS))
    module = MultimodalRotary.from_hf(config, exact=False)
    assert (module.head_dim, module.rotary_dim, module.sections) == (64, 16, sections)
    assert (module.interleaved, module.interleaved_sections) == (interleaved, bool(rope))
    for x, y, e in zip((q, k), module(q, k, POSITIONS), expected, strict=True):
        assert_near(y, e.double())
        assert_bits(y[..., 16:], x[..., 16:])


def test_rotary_from_hf_takes_options_and_equals_the_constructor():
    rope = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 64, "rope_theta": 5e5}
    q, k = torch.randn(2, 4, 7, 16), torch.randn(2, 2, 7, 16)
    for options in ({}, {"exact": False}, {"learnable": True}, {"seq_len": 99}):
        module = Rotary.from_hf(rope, head_dim=16, **options)
        same = Rotary(16, base=5e5, scaling=posenc.scaling.Yarn(4.0, 64), **options)
        assert repr(module) == repr(same)
        for y, e in zip(module(q, k), same(q, k), strict=True):
            assert_bits(y.detach(), e.detach())
    with pytest.raises(TypeError):
        Rotary.from_hf(rope, head_dim=16, no_such_option=1)


def test_rotary_from_hf_of_a_whole_model():
    from transformers import LlamaConfig
    from transformers.models.llama.modeling_llama import LlamaRotaryEmbedding, apply_rotary_pos_emb

    llama3 = {
        "rope_type": "llama3",
        "rope_theta": 5e5,
        "factor": 8.0,
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
        "original_max_position_embeddings": 64,
    }
    config = LlamaConfig(**TINY, rope_parameters=llama3)
    theirs = LlamaRotaryEmbedding(config)
    q, k = torch.randn(2, 4, 7, 16), torch.randn(2, 2, 7, 16)
    expected = apply_rotary_pos_emb(q, k, *theirs(q, torch.arange(7)[None]))
    for source in (config, config.to_dict()):
        module = Rotary.from_hf(source, exact=False)
        assert_bits(module.inv_freq, theirs.inv_freq)
        for y, e in zip(module(q, k), expected, strict=True):
            assert_near(y, e.double())


def test_each_class_sends_to_the_other():
    sections = {"type": "mrope", "mrope_section": [1, 1, 2]}
    with pytest.raises(ValueError, match=r"MultimodalRotary\.from_hf"):
        Rotary.from_hf(sections, head_dim=8)
    with pytest.raises(ValueError, match=r"Rotary\.from_hf"):
        MultimodalRotary.from_hf({"rope_type": "linear", "factor": 4.0}, head_dim=8)
    with pytest.raises(ValueError, match=r"add up to the 4 pairs"):
        MultimodalRotary.from_hf({"type": "mrope", "mrope_section": [1, 1, 1]}, head_dim=8)
    module = MultimodalRotary.from_hf(sections, head_dim=8)
    assert (module.sections, module.interleaved_sections, module.rotary_dim) == ((1, 1, 2), False, 8)


@pytest.mark.parametrize("model_type", ["ernie4_5_vl_moe", "ernie4_5_vl_moe_text", "hunyuan_vl"])
def test_models_with_another_order_of_axes_are_refused(model_type):
    """Ernie 4.5 VL puts time last and mixes height and width;
    HunYuan-VL cuts its sections from the full-width table."""
    config = {
        "model_type": model_type,
        "hidden_size": 64,
        "num_attention_heads": 4,
        "rope_scaling": {"rope_type": "default", "mrope_section": [3, 3, 2]},
        "rope_theta": 1e4,
    }
    with pytest.raises(ValueError, match=model_type.removesuffix("_text")):
        MultimodalRotary.from_hf(config)


def test_cohere_compass_has_sections_in_turns(monkeypatch):
    """Without transformers, whose class refuses sections."""
    monkeypatch.setitem(sys.modules, "transformers", None)
    rope = {"rope_type": "default", "mrope_section": [4, 2, 2], "rope_theta": 1e4}
    config = {"model_type": "cohere_compass_text", "head_dim": 16, "rope_parameters": rope}
    assert MultimodalRotary.from_hf(config).interleaved_sections
