"""Models of transformers with attn_implementation="posenc": logits, gradients and generated tokens equal eager's."""

import functools

import pytest
import torch

import hf_models
import posenc.hf

FAMILIES = hf_models.FAMILIES
GENERATES = [name for name, family in FAMILIES.items() if family.kind in ("decoder", "pair", "speech")]
DECODERS = [name for name, family in FAMILIES.items() if family.kind == "decoder"]


@functools.cache
def model_of(name):
    return hf_models.build(name)


@pytest.mark.parametrize("name", FAMILIES)
def test_logits_and_gradients_equal_eager(name):
    model = model_of(name)
    said = set()
    for call, given in hf_models.inputs(name).items():
        found = posenc.hf.check(model, given)
        assert found.output < 1e-5, call
        assert found.gradients < 1e-4, call
        layers = [layer for layer in posenc.hf.report(model) if layer.ran != "-"]
        assert layers and all(layer.ran == "posenc" for layer in layers), call
        said.update(word for layer in layers for word in layer.how.split(", "))
    assert said >= set(FAMILIES[name].says)


def generated(name, **options):
    """What eager attention and posenc generate, with the scores of each step."""
    model, given = model_of(name), hf_models.prompt(name)
    results = []
    for implementation in ("eager", "posenc"):
        model.set_attn_implementation(implementation)
        torch.manual_seed(0)
        results.append(
            model.generate(
                **given,
                max_new_tokens=18,
                do_sample=False,
                pad_token_id=0,
                output_scores=True,
                return_dict_in_generate=True,
                **options,
            )
        )
    return results


def assert_same(eager, ours):
    torch.testing.assert_close(ours.sequences, eager.sequences)
    for expected, actual in zip(eager.scores, ours.scores, strict=True):
        largest = float(expected[expected.isfinite()].abs().max())
        torch.testing.assert_close(actual, expected, rtol=1e-4, atol=1e-4 * largest)


@pytest.mark.parametrize("name", GENERATES)
def test_greedy_generation_equals_eager(name):
    assert_same(*generated(name))


@pytest.mark.parametrize("name", GENERATES)
def test_beams_equal_eager(name):
    assert_same(*generated(name, num_beams=3))


@pytest.mark.parametrize("name", [name for name in GENERATES if FAMILIES[name].kind != "speech"])
def test_caches_of_fixed_size_equal_eager(name):
    assert_same(*generated(name, cache_implementation="static", disable_compile=True))


def test_without_a_cache_generation_equals_eager():
    assert_same(*generated("mistral-window", use_cache=False))


def test_assisted_decoding_equals_eager():
    """Several tokens at once on a cache, and a cache that is cropped."""
    plain = generated("llama")[0]
    helper = hf_models.build("llama")
    model = model_of("llama")
    model.set_attn_implementation("posenc")
    given = {key: value[:1] for key, value in hf_models.prompt("llama").items()}
    found = model.generate(**given, max_new_tokens=18, do_sample=False, pad_token_id=0, assistant_model=helper)
    torch.testing.assert_close(found, plain.sequences[:1])


@pytest.mark.parametrize("reentrant", [True, False])
@pytest.mark.parametrize("name", ["llama", "mistral-window", "t5"])
def test_gradient_checkpointing_changes_nothing(name, reentrant):
    given = next(iter(hf_models.inputs(name).values()))
    grads = []
    for checkpointed in (False, True):
        model = hf_models.build(name)
        model.train()
        if checkpointed:
            model.gradient_checkpointing_enable({"use_reentrant": reentrant})
        model(**given).logits.square().mean().backward()
        grads.append([parameter.grad for parameter in model.parameters()])
    for plain, again in zip(*grads, strict=True):
        torch.testing.assert_close(again, plain)


@pytest.mark.parametrize("name", ["llama", "gemma2-softcap", "t5gemma-softcap", "bert"])
def test_autocast_stays_as_near_to_float32_as_eager(name):
    model, given = model_of(name), next(iter(hf_models.inputs(name).values()))
    model.set_attn_implementation("eager")
    exact = model(**given).logits
    errors = {}
    for implementation in ("eager", "posenc"):
        model.set_attn_implementation(implementation)
        with torch.autocast("cpu", torch.bfloat16):
            errors[implementation] = (model(**given).logits.float() - exact).norm() / exact.norm()
    assert errors["posenc"] < 1.2 * errors["eager"] + 1e-3


def test_bfloat16_models_stay_as_near_to_float32_as_eager():
    given = hf_models.tokens(left=7)
    seen = given["attention_mask"].bool()
    exact = hf_models.build("mistral-window", "eager")(**given).logits[seen]
    errors = [
        (hf_models.build("mistral-window", how).bfloat16()(**given).logits[seen].float() - exact).norm()
        for how in ("eager", "posenc")
    ]
    assert errors[1] < 1.2 * errors[0]


def test_dropout_acts_in_training_alone():
    model = hf_models.build("bert")
    for module in model.modules():
        if isinstance(getattr(module, "dropout", None), torch.nn.Dropout) and "Self" in type(module).__name__:
            module.dropout.p = 0.5
    given = hf_models.tokens()
    torch.testing.assert_close(model(**given).logits, model(**given).logits, rtol=0, atol=0)
    model.train()
    assert not torch.equal(model(**given).logits, model(**given).logits)


def test_attention_longer_than_a_tile_equals_eager():
    model = model_of("mistral-window")
    found = posenc.hf.check(model, hf_models.tokens(2, 230, left=103) | {"use_cache": False})
    assert found.output < 1e-5 and found.gradients < 1e-4
