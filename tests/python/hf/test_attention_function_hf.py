"""The attention function that transformers calls: what it serves, what the model's own serves, what it says."""

import sys
import types
import warnings

import pytest
import torch
from torch import nn
from transformers.models.gemma2.modeling_gemma2 import eager_attention_forward as softcap_eager
from transformers.models.gpt_oss.modeling_gpt_oss import eager_attention_forward as sinks_eager
from transformers.models.llama.modeling_llama import eager_attention_forward
from transformers.models.t5.modeling_t5 import eager_attention_forward as bias_eager

import hf_models
import posenc.hf
from posenc.hf.attention import posenc_attention
from posenc.hf.masks import posenc_mask
from tolerances import assert_near

HEADS, GROUPS, TOKENS, WIDTH = 4, 2, 21, 16


class Layer(nn.Module):
    is_causal = True
    num_key_value_groups = HEADS // GROUPS


def operands(dtype=torch.float64, tokens=TOKENS, groups=GROUPS):
    q = torch.randn(2, HEADS, tokens, WIDTH, dtype=dtype, requires_grad=True)
    k, v = (torch.randn(2, groups, TOKENS, WIDTH, dtype=dtype, requires_grad=True) for _ in range(2))
    return q, k, v


def additive(visible, dtype=torch.float64):
    return torch.zeros(visible.shape, dtype=dtype).masked_fill(~visible, torch.finfo(dtype).min)


def causal(queries=TOKENS, keys=TOKENS):
    return torch.ones(queries, keys, dtype=torch.bool).tril(keys - queries)[None, None]


def expect_equal(ours, theirs, leaves, scale=1.0):
    assert ours.shape == theirs.shape
    torch.testing.assert_close(ours, theirs, rtol=1e-6, atol=1e-6)  # eager's softmax is float32
    grad = torch.randn_like(theirs)
    found = torch.autograd.grad(ours, leaves, grad)
    for x, e in zip(found, torch.autograd.grad(theirs, leaves, grad, retain_graph=True), strict=True):
        torch.testing.assert_close(x, e, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("kind", ["lazy", "bool", "float"])
def test_masks_of_every_kind(kind):
    leaves = operands()
    mask = {"lazy": posenc_mask(2, TOKENS, TOKENS, dtype=torch.float64), "bool": causal(), "float": additive(causal())}
    found, weights = posenc_attention(Layer(), *leaves, mask[kind], scaling=0.3)
    assert weights is None
    expect_equal(found, eager_attention_forward(Layer(), *leaves, additive(causal()), 0.3)[0], leaves)


@pytest.mark.parametrize("mask", [None, "lazy"])
def test_softcap(mask):
    leaves = operands()
    given = None if mask is None else posenc_mask(2, TOKENS, TOKENS, dtype=torch.float64)
    found = posenc_attention(Layer(), *leaves, given, scaling=2.0, softcap=1.5)[0]
    expected = softcap_eager(Layer(), *leaves, additive(causal()), scaling=2.0, softcap=1.5)[0]
    expect_equal(found, expected, leaves)


def test_sinks_of_heads():
    layer = Layer()
    layer.sinks = nn.Parameter(torch.randn(HEADS, dtype=torch.float64))
    leaves = operands()
    found = posenc_attention(layer, *leaves, additive(causal()), scaling=0.3, s_aux=layer.sinks)[0]
    expected = sinks_eager(layer, *leaves, additive(causal()), scaling=0.3)[0]
    expect_equal(found, expected, (*leaves, layer.sinks))


def test_sinks_of_tokens():
    """Inkling 2: a column more in the softmax."""
    q, k, v = operands(groups=HEADS)
    sinks = torch.randn(2, HEADS, TOKENS, 1, dtype=torch.float64, requires_grad=True)
    found = posenc_attention(Layer(), q, k, v, additive(causal()), scaling=0.3, sinks=sinks)[0]
    scores = (q @ k.mT * 0.3).masked_fill(~causal(), -torch.inf)
    weights = torch.cat([scores, sinks], -1).softmax(-1)[..., :-1]
    expect_equal(found, (weights @ v).transpose(1, 2), (q, k, v, sinks))


def test_sinks_in_bfloat16_are_nearer_than_eager():
    layer = Layer()
    layer.sinks = nn.Parameter(torch.randn(HEADS))
    q, k, v = operands(torch.float32)
    mask = additive(causal(), torch.float32)
    exact = sinks_eager(layer, q, k, v, mask, scaling=0.3)[0]
    with torch.autocast("cpu", torch.bfloat16):
        halves = [x.bfloat16() for x in (q, k, v)]
        eager = sinks_eager(layer, *halves, mask, scaling=0.3)[0]
        ours = posenc_attention(layer, *halves, mask, scaling=0.3, s_aux=layer.sinks)[0]
    assert (ours - exact).norm() < (eager - exact).norm()


@pytest.mark.parametrize("kind", ["lazy", "bool", "float"])
def test_position_bias_adds_to_masks(kind):
    leaves = operands(groups=HEADS)
    bias = torch.randn(1, HEADS, TOKENS, TOKENS, dtype=torch.float64, requires_grad=True)
    mask = {"lazy": posenc_mask(2, TOKENS, TOKENS, dtype=torch.float64), "bool": causal(), "float": additive(causal())}
    found = posenc_attention(Layer(), *leaves, mask[kind], scaling=1.0, position_bias=bias)[0]
    expected = bias_eager(Layer(), *leaves, additive(causal()), scaling=1.0, position_bias=bias)[0]
    expect_equal(found, expected, (*leaves, bias))


def test_indices_are_the_only_keys():
    leaves = operands()
    indices = torch.stack([torch.randperm(TOKENS)[:5] for _ in range(2 * TOKENS)]).view(2, TOKENS, 5).to(torch.int32)
    chosen = torch.zeros(2, TOKENS, TOKENS, dtype=torch.bool).scatter(-1, indices.long(), True)[:, None]
    chosen[..., 0] = True
    indices = torch.cat([indices, torch.zeros(2, TOKENS, 1, dtype=torch.int32)], -1)
    expected = eager_attention_forward(Layer(), *leaves, additive(chosen & causal()), 0.3)[0]
    for mask in (posenc_mask(2, TOKENS, TOKENS, dtype=torch.float64), causal(), additive(causal())):
        expect_equal(posenc_attention(Layer(), *leaves, mask, scaling=0.3, indices=indices)[0], expected, leaves)


def test_lengths_of_packed_sequences():
    q, k, v = operands()
    starts = torch.tensor([0, 8, 9, TOKENS], dtype=torch.int32)
    ids = torch.repeat_interleave(torch.arange(3), starts.diff())
    mask = additive((ids[:, None] == ids)[None, None])
    found = posenc_attention(Layer(), q, k, v, None, scaling=0.3, cu_seq_lens_q=starts, cu_seq_lens_k=starts)[0]
    expect_equal(found, eager_attention_forward(Layer(), q, k, v, mask, 0.3)[0], (q, k, v))


@pytest.mark.parametrize("given", [None, True, False])
@pytest.mark.parametrize("of_layer", [True, False])
def test_without_a_mask_the_call_or_the_layer_says_whether_it_is_causal(given, of_layer):
    layer = Layer()
    layer.is_causal = of_layer
    leaves = operands()
    visible = causal() if (of_layer if given is None else given) else torch.ones(1, 1, TOKENS, TOKENS, dtype=torch.bool)
    found = posenc_attention(layer, *leaves, None, scaling=0.3, is_causal=given)[0]
    expect_equal(found, eager_attention_forward(layer, *leaves, additive(visible), 0.3)[0], leaves)


def test_without_a_mask_one_query_sees_all_and_several_see_their_own_first_keys():
    """As scaled_dot_product_attention of transformers has it."""
    q, k, v = operands(tokens=1)
    expected = eager_attention_forward(Layer(), q, k, v, None, 0.25)[0]
    expect_equal(posenc_attention(Layer(), q, k, v, None)[0], expected, (q,))
    q = operands(tokens=6)[0]
    expected = eager_attention_forward(Layer(), q, k[:, :, :6], v[:, :, :6], additive(causal(6, 6)), 0.25)[0]
    expect_equal(posenc_attention(Layer(), q, k, v, None)[0], expected, (q,))


def test_learned_queries_are_shared_by_the_batch():
    q, k, v = operands()
    found = posenc_attention(Layer(), q[:1], k, v, None, is_causal=False)[0]
    expected = eager_attention_forward(Layer(), q[:1].expand(2, -1, -1, -1), k, v, None, 0.25)[0]
    expect_equal(found, expected, (q, k, v))


@pytest.fixture
def own_model():
    """The file of a model with an eager function that reads a keyword nobody knows."""
    module = types.ModuleType("a_model_of_somebody")

    def eager_attention_forward(module, query, key, value, attention_mask, scaling, dropout=0.0, tilt=None, **kwargs):
        scores = query @ key.transpose(2, 3) * scaling + (0 if attention_mask is None else attention_mask)
        return (scores * tilt).softmax(-1).matmul(value).transpose(1, 2).contiguous(), None

    module.eager_attention_forward = eager_attention_forward
    sys.modules[module.__name__] = module
    yield type("OddAttention", (nn.Module,), {"__module__": module.__name__, "is_causal": True})
    del sys.modules[module.__name__]


def test_an_unknown_keyword_runs_the_models_own_function_and_warns_once(own_model):
    layer, (q, k, v) = own_model(), operands(groups=HEADS)
    mask = posenc_mask(2, TOKENS, TOKENS, dtype=torch.float64)
    with pytest.warns(UserWarning, match="OddAttention runs its model's eager attention.*'tilt'"):
        found = posenc_attention(layer, q, k, v, mask, scaling=0.3, tilt=2.0)[0]
    expected = ((q @ k.mT * 0.3).masked_fill(~causal(), -torch.inf) * 2.0).softmax(-1) @ v
    torch.testing.assert_close(found, expected.transpose(1, 2))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        posenc_attention(layer, q, k, v, mask, scaling=0.3, tilt=2.0)
        posenc_attention(layer, q, k, v, mask, scaling=0.3, tilt=None, of_no_concern=1)
    [row] = posenc.hf.report(nn.ModuleList([layer]))
    assert (row.name, row.kind, row.ran, row.how) == ("0", "OddAttention", "posenc", "is_causal, scale")


def test_what_cannot_run_and_has_no_other_function_is_refused_by_name():
    foreign = type("Foreign", (nn.Module,), {"__module__": "nowhere"})()
    q, k, v = operands()
    with pytest.raises(NotImplementedError, match="Foreign.*3 query heads do not share 2 key heads"):
        posenc_attention(foreign, q[:, :3], k, v, None)


def test_blocks_of_keys_without_a_mask_of_them_are_refused():
    with pytest.raises(NotImplementedError, match="block_indices"):
        posenc_attention(Layer(), *operands(), None, block_indices=torch.zeros(2, TOKENS, 1))


def test_report_says_what_ran_and_what_did_not():
    model = hf_models.build("mistral-window")
    assert {layer.ran for layer in posenc.hf.report(model)} == {"-"}
    model(**hf_models.tokens(left=3))
    rows = posenc.hf.report(model)
    assert [(row.name, row.kind, row.ran) for row in rows] == [
        (f"model.layers.{i}.self_attn", "MistralAttention", "posenc") for i in range(2)
    ]
    assert set(rows[0].how.split(", ")) == {"key_mask", "is_causal", "window", "scale"}
    assert str(rows).splitlines()[1].startswith("model.layers.0.self_attn  MistralAttention  posenc")


def test_check_finds_a_model_that_is_wrong(monkeypatch):
    model = hf_models.build("llama").train()
    grads = [torch.ones_like(parameter) for parameter in model.parameters()]
    for parameter, grad in zip(model.parameters(), grads, strict=True):
        parameter.grad = grad
    model.set_attn_implementation("sdpa")
    assert posenc.hf.check(model, hf_models.tokens()).gradients < 1e-4
    # It leaves all as it was.
    assert model.training and model.config._attn_implementation == "sdpa"
    assert all(parameter.grad is grad for parameter, grad in zip(model.parameters(), grads, strict=True))

    def without_mask(module, query, key, value, attention_mask, **call):
        return posenc_attention(module, query, key, value, None, is_causal=False, **call)

    from transformers import AttentionInterface

    monkeypatch.setitem(AttentionInterface._global_mapping, "posenc", without_mask)
    monkeypatch.setattr("posenc.hf.registration.register", lambda: None)
    wrong = posenc.hf.check(model, hf_models.tokens())
    assert wrong.output > 1e-2 and wrong.gradients > 1e-2
    assert "gradients" in str(wrong)


def test_check_refuses_models_that_do_not_ask_for_an_attention_function():
    import transformers

    model = transformers.BloomForCausalLM(transformers.BloomConfig(vocab_size=9, hidden_size=8, n_layer=1, n_head=2))
    with pytest.raises(ValueError, match="BloomForCausalLM"):
        posenc.hf.check(model, {"input_ids": torch.tensor([[1, 2]])})


def test_other_devices_get_the_mask_of_sdpa(monkeypatch):
    monkeypatch.setattr("posenc.hf.masks.has_kernels", lambda device: False)
    assert posenc_mask(2, 4, 4, allow_is_causal_skip=True) is None
    made = posenc_mask(2, 4, 4, attention_mask=torch.tensor([[True] * 4, [False] + [True] * 3]))
    assert type(made) is torch.Tensor and made.dtype == torch.bool


@pytest.mark.parametrize("name", ["llama", "gpt_oss-sinks", "gemma2-softcap", "t5"])
def test_other_devices_run_sdpa_or_eager(name, monkeypatch):
    """As if the CPU were a device without kernels."""
    monkeypatch.setattr("posenc.hf.masks.has_kernels", lambda device: False)
    monkeypatch.setattr("posenc.hf.attention.has_kernels", lambda device: False)
    monkeypatch.setattr("posenc.hf.attention.attention", None)
    model = hf_models.build(name)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for call, given in hf_models.inputs(name).items():
            found = posenc.hf.check(model, given)
            assert found.output < 1e-5 and found.gradients < 1e-4, call
    ran = {layer.ran for layer in posenc.hf.report(model)}
    assert ran == {"eager" if "-" in name else "sdpa"}


def test_near():
    """Values beside the formula, in float64."""
    q, k, v = operands(groups=HEADS)
    found = posenc_attention(Layer(), q, k, v, None, scaling=0.3)[0]
    expected = (q @ k.mT * 0.3).masked_fill(~causal(), -torch.inf).softmax(-1) @ v
    assert_near(found, expected.transpose(1, 2))
