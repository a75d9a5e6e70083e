"""What the layer takes of today's models: norms of queries and keys, scale, sinks, caps, masks, blocks, values of
another width, keys of another sequence. Against modules of transformers, the ops, and the layer in C++."""

import pytest
import torch

import posenc
from tolerances import assert_near

HEADS, GROUPS, WIDTH, TOKENS, EMBED = 4, 2, 8, 13, 24
OPTIONS = {
    "plain": {},
    "scale": {"scale": 0.4},
    "sinks": {"sinks": True},
    "softcap": {"softcap": 0.7},
    "softcap_on_sum": {"softcap": 0.7, "softcap_on": "sum"},
    "value_dim": {"value_dim": 5},
    "window": {"window": (3, None)},
    "all": {"scale": 0.4, "sinks": True, "softcap": 2.0, "value_dim": 5, "window": (4, 1)},
}
ENCODINGS = {
    "none": lambda: [],
    "rotary": lambda: [posenc.nn.Rotary(WIDTH)],
    "ALiBi": lambda: [posenc.nn.ALiBi(HEADS)],
    "Shaw": lambda: [posenc.nn.ShawRelative(WIDTH, 3, values=False)],
    "TransformerXL": lambda: [posenc.nn.TransformerXL(WIDTH, HEADS)],
    "FIRE": lambda: [posenc.nn.FIRE(HEADS)],
    "CoPE": lambda: [posenc.nn.Rotary(WIDTH), posenc.nn.CoPE(WIDTH, 5)],
    "ReRoPE": lambda: [posenc.nn.ReRoPE(WIDTH, 4)],
    "ForgettingBias": lambda: [posenc.nn.ForgettingBias(EMBED, HEADS)],
}
every_encoding = pytest.mark.parametrize("encoding", ENCODINGS)


def layer_of(encoding="rotary", dtype=torch.float64, **options):
    torch.manual_seed(0)
    layer = posenc.nn.Attention(
        EMBED, HEADS, num_kv_heads=GROUPS, head_dim=WIDTH, encodings=ENCODINGS[encoding](), **options
    ).to(dtype)
    with torch.no_grad():
        for name, parameter in layer.named_parameters():
            if "proj" not in name and "mlp" not in name:
                parameter.normal_(std=0.5)
    return layer.eval()


def tokens(count=TOKENS, dtype=torch.float64):
    return torch.randn(2, count, EMBED, dtype=dtype)


@every_encoding
@pytest.mark.parametrize("options", OPTIONS)
def test_token_by_token_equals_the_whole_pass(encoding, options):
    layer, x = layer_of(encoding, **OPTIONS[options]), tokens()
    cache = posenc.nn.KVCache(2, GROUPS, TOKENS, WIDTH, value_dim=layer.value_dim, dtype=torch.float64)
    with torch.no_grad():
        whole = layer(x)
        steps = [layer(x[:, begin:end], cache=cache) for begin, end in ((0, 5), (5, 6), (6, 7), (7, TOKENS))]
    assert_near(torch.cat(steps, 1), whole, scale=10)


@every_encoding
def test_masks_and_a_bias_reach_every_encoding(encoding):
    layer, x = layer_of(encoding, sinks=True), tokens()
    tree = torch.ones(TOKENS, TOKENS, dtype=torch.bool).tril()
    tree[-1, -2] = False
    masked = layer(x, attn_mask=tree)
    hiding = torch.zeros(TOKENS, TOKENS, dtype=torch.float64).masked_fill(~tree, -torch.inf)
    assert_near(masked, layer(x, bias=hiding))
    assert not torch.allclose(masked[:, -1], layer(x)[:, -1])
    cache = posenc.nn.KVCache(2, GROUPS, TOKENS, WIDTH, dtype=torch.float64)
    with torch.no_grad():
        layer(x[:, :-2], cache=cache)
        assert_near(layer(x[:, -2:], cache=cache, attn_mask=tree[-2:]), masked[:, -2:], scale=10)


@pytest.mark.parametrize("encoding", [name for name in ENCODINGS if name not in ("CoPE", "ForgettingBias")])
def test_tokens_of_a_block_see_each_other_in_the_layer(encoding):
    layer, x = layer_of(encoding), tokens()
    blocks = torch.full((2, TOKENS), -1)
    blocks[:, 2:7] = 0
    visible = torch.ones(TOKENS, TOKENS, dtype=torch.bool).tril()
    visible[2:7, 2:7] = True
    both_ways = layer_of(encoding, is_causal=False)
    assert_near(layer(x, block_ids=blocks), both_ways(x, attn_mask=visible), scale=10)


def test_encodings_that_count_back_from_a_query_refuse_blocks():
    for encoding in ("CoPE", "ForgettingBias"):
        with pytest.raises((TypeError, ValueError), match="block_ids"):
            layer_of(encoding)(tokens(), block_ids=torch.zeros(2, TOKENS, dtype=torch.long))


@every_encoding
@pytest.mark.parametrize("options", OPTIONS)
def test_the_layer_in_cpp_gives_the_same(encoding, options):
    layer, x = layer_of(encoding, **OPTIONS[options]), tokens()
    given = dict(OPTIONS[options])
    if "window" in given:
        left, right = given.pop("window")
        given |= {"window_left": left, "window_right": right}
    made = [_in_cpp(e) for e in layer.encodings]
    twin = posenc.nn.cpp.Attention(EMBED, HEADS, num_kv_heads=GROUPS, head_dim=WIDTH, encodings=made, **given)
    twin.to(torch.float64)
    twin.eval()
    ours = dict(layer.named_parameters())
    with torch.no_grad():
        assert set(dict(twin.named_parameters())) == set(ours)
        for name, parameter in twin.named_parameters():
            parameter.copy_(ours[name])
    tree = torch.ones(TOKENS, TOKENS, dtype=torch.bool).tril()
    tree[5, 2] = False
    for call in ({}, {"attn_mask": tree}, {"bias": torch.randn(TOKENS, TOKENS, dtype=torch.float64)}):
        assert_near(twin(x, **call), layer(x, **call), scale=10)


def _in_cpp(encoding):
    """One of those above."""
    modules = posenc.nn.cpp
    return {
        "Rotary": lambda: modules.Rotary(WIDTH),
        "ALiBi": lambda: modules.ALiBi(HEADS),
        "ShawRelative": lambda: modules.ShawRelative(WIDTH, 3, values=False),
        "TransformerXL": lambda: modules.TransformerXL(WIDTH, HEADS),
        "FIRE": lambda: modules.FIRE(HEADS),
        "CoPE": lambda: modules.CoPE(WIDTH, 5),
        "ReRoPE": lambda: modules.ReRoPE(WIDTH, 4),
        "ForgettingBias": lambda: modules.ForgettingBias(EMBED, HEADS),
    }[type(encoding).__name__]()


def published(package, config_name, attention_name, **options):
    """(config, attention, rotary) of a model of transformers, with random norms and sinks."""
    import importlib

    modeling = importlib.import_module(f"transformers.models.{package}.modeling_{package}")
    config = getattr(importlib.import_module("transformers"), config_name)(
        hidden_size=EMBED,
        num_attention_heads=HEADS,
        num_key_value_heads=GROUPS,
        head_dim=WIDTH,
        num_hidden_layers=2,
        attn_implementation="eager",
        **options,
    )
    torch.manual_seed(0)
    attention = getattr(modeling, attention_name)(config, layer_idx=0).double().eval()
    with torch.no_grad():
        for name, parameter in attention.named_parameters():
            if "norm" in name or name == "sinks":
                parameter.normal_()
    rotary = next(getattr(modeling, name) for name in dir(modeling) if name.endswith("RotaryEmbedding"))(config)
    return config, attention, rotary


def expect_published(config, attention, rotary, window=None, **options):
    """The layer with the model's weights gives its outputs and gradients."""
    encoding = posenc.nn.Rotary.from_hf(config)
    bias = attention.q_proj.bias is not None
    layer = posenc.nn.Attention(
        EMBED,
        HEADS,
        num_kv_heads=GROUPS,
        head_dim=WIDTH,
        encodings=[encoding],
        bias=bias,
        window=window,
        q_norm=getattr(attention, "q_norm", None),
        k_norm=getattr(attention, "k_norm", None),
        **options,
    ).double()
    layer.load_state_dict(attention.state_dict(), strict=False)
    x = tokens().requires_grad_()
    distance = torch.arange(TOKENS)[:, None] - torch.arange(TOKENS)
    visible = (distance >= 0) & (distance < (window or TOKENS))
    mask = torch.zeros(TOKENS, TOKENS, dtype=torch.float64).masked_fill(~visible, torch.finfo(torch.float64).min)
    theirs = attention(x, rotary(x, torch.arange(TOKENS)[None]), mask[None, None])[0]
    ours = layer(x)
    assert_near(ours.float(), theirs, scale=4)  # their angles are float32
    grad = torch.randn_like(ours)
    for a, b in zip(torch.autograd.grad(ours, x, grad), torch.autograd.grad(theirs, x, grad), strict=True):
        assert_near(a.float(), b, scale=20)


def test_norms_of_each_head_as_in_qwen_3():
    expect_published(*published("qwen3", "Qwen3Config", "Qwen3Attention"))


def test_norms_of_all_heads_as_in_olmo_2():
    expect_published(*published("olmo2", "Olmo2Config", "Olmo2Attention"))


def test_sinks_and_windows_as_in_gpt_oss():
    rope = {"rope_type": "default", "rope_theta": 10000.0}
    made = published("gpt_oss", "GptOssConfig", "GptOssAttention", sliding_window=4, rope_parameters=rope)
    expect_published(*made, window=4, sinks=True)


def test_scale_and_cap_as_in_gemma_2():
    made = published(
        "gemma2",
        "Gemma2Config",
        "Gemma2Attention",
        query_pre_attn_scalar=9,
        attn_logit_softcapping=0.8,
        sliding_window=5,
    )
    expect_published(*made, window=5, scale=1 / 3, softcap=0.8)


def test_keys_of_another_sequence_as_in_whisper():
    from transformers.models.whisper.modeling_whisper import WhisperAttention, WhisperConfig

    torch.manual_seed(0)
    config = WhisperConfig(attn_implementation="eager")
    attention = WhisperAttention(EMBED, HEADS, is_decoder=True, layer_idx=0, config=config).double().eval()
    layer = posenc.nn.Attention(EMBED, HEADS, cross=True, bias=True).double()
    weights = {name.replace("out_proj", "o_proj"): x for name, x in attention.state_dict().items()}
    layer.load_state_dict(weights | {"k_proj.bias": torch.zeros(EMBED)})
    x, context = tokens(), tokens(29)
    expected = attention(x, key_value_states=context)[0]
    assert_near(layer(x, context=context), expected)
    cache = posenc.nn.KVCache(2, HEADS, 29, EMBED // HEADS, dtype=torch.float64)
    with torch.no_grad():
        steps = [layer(x[:, :1], context=context, cache=cache)]
        steps += [layer(x[:, i : i + 1], cache=cache) for i in range(1, TOKENS)]
    assert cache.length == 29
    assert_near(torch.cat(steps, 1), expected)


def test_packed_keys_of_another_sequence_take_a_mask():
    layer, x, context = posenc.nn.Attention(EMBED, HEADS, cross=True).double(), tokens(), tokens(7)
    mask = torch.tensor([[True] * 7, [True] * 4 + [False] * 3])
    out = layer(x, context=context, key_mask=mask)
    assert_near(out[1], layer(x[1:], context=context[1:, :4])[0])


REFUSED = [
    ({"cross": True, "is_causal": True}, {}, "expected is_causal to be false with cross"),
    ({"cross": True, "window": 3}, {}, "expected no window with cross"),
    ({"cross": True, "encodings": [posenc.nn.Rotary(WIDTH)]}, {}, "expected no encodings with cross"),
    ({"softcap": -1.0}, {}, "expected softcap to be positive and finite, but got -1"),
    ({"softcap_on": "sum"}, {}, "or 'sum' with softcap, but got 'sum'"),
    ({"scale": float("inf")}, {}, "expected a finite scale, but got inf"),
    ({"value_dim": 0}, {}, "expected value_dim to be at least 1, but got 0"),
    ({"window": (-1, 0)}, {}, "expected window_left to be at least 0, but got -1"),
    ({"window": (1, 2, 3)}, {}, "expected window to be an int or (left, right)"),
    ({}, {"context": tokens()}, "expected no context in a layer that was made without cross"),
    ({"cross": True}, {}, "expected context (batch, length, embed_dim) with cross"),
    ({"cross": True}, {"context": tokens()[:1]}, "expected context of shape (2, length, 24)"),
    (
        {"cross": True},
        {"context": tokens(), "positions": torch.arange(TOKENS)},
        "expected neither positions nor block_ids",
    ),
]


@pytest.mark.parametrize(("options", "call", "message"), REFUSED)
def test_what_does_not_fit_is_refused(options, call, message):
    with pytest.raises(ValueError) as raised:
        posenc.nn.Attention(EMBED, HEADS, head_dim=WIDTH, **options).double()(tokens(), **call)
    assert message in str(raised.value)


@pytest.mark.parametrize("name", ["q_norm", "k_norm"])
def test_norms_are_modules(name):
    with pytest.raises(TypeError, match=f"Attention: expected {name} to be a module or None, but got function"):
        posenc.nn.Attention(EMBED, HEADS, **{name: torch.nn.functional.relu})


def test_context_that_a_cache_holds_is_not_given_again():
    layer, x, context = posenc.nn.Attention(EMBED, HEADS, cross=True).double(), tokens(), tokens(7)
    cache = posenc.nn.KVCache(2, HEADS, 7, EMBED // HEADS, dtype=torch.float64)
    with torch.no_grad():
        layer(x, context=context, cache=cache)
        with pytest.raises(ValueError, match="whose keys and values the cache holds"):
            layer(x, context=context, cache=cache)


def test_sinks_start_at_0_and_have_gradients():
    layer = posenc.nn.Attention(EMBED, HEADS, sinks=True)
    assert torch.equal(layer.sinks, torch.zeros(HEADS))
    layer(tokens(dtype=torch.float32)).sum().backward()
    assert layer.sinks.grad.abs().min() > 0
    with torch.no_grad():
        layer.sinks.fill_(3.0)
    layer.reset_parameters()
    assert torch.equal(layer.sinks, torch.zeros(HEADS))


def test_a_shard_has_the_heads_of_its_projections():
    """Half of the heads on each of two ranks: their outputs add up to that of the whole layer."""
    layer, x = layer_of("rotary"), tokens()
    total = 0
    for rank in range(2):
        shard = layer_of("rotary")
        for name, heads in (("q_proj", HEADS), ("k_proj", GROUPS), ("v_proj", GROUPS)):
            rows = slice(rank * heads // 2 * WIDTH, (rank + 1) * heads // 2 * WIDTH)
            weight = getattr(layer, name).weight
            getattr(shard, name).weight = torch.nn.Parameter(weight[rows].detach().clone())
        columns = slice(rank * HEADS // 2 * WIDTH, (rank + 1) * HEADS // 2 * WIDTH)
        shard.o_proj.weight = torch.nn.Parameter(layer.o_proj.weight[:, columns].detach().clone())
        total = total + shard(x)
    assert_near(total, layer(x))


def test_the_layer_compiles_without_graph_breaks():
    layer = posenc.nn.Attention(
        EMBED, HEADS, sinks=True, softcap=2.0, window=(3, 0), q_norm=torch.nn.RMSNorm(EMBED // HEADS)
    )
    x, mask = tokens(dtype=torch.float32), torch.ones(TOKENS, TOKENS, dtype=torch.bool)
    compiled = torch.compile(layer, fullgraph=True, backend="aot_eager")
    assert_near(compiled(x, attn_mask=mask), layer(x, attn_mask=mask))
