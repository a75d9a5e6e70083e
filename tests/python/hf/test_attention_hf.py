"""Scores of transformers' own attention functions and modules: outputs and gradients of random small configurations."""

from types import SimpleNamespace

import pytest
import torch

import posenc
from tolerances import assert_near

HEADS, GROUPS, TOKENS, WIDTH = 4, 2, 37, 16


def operands():
    torch.manual_seed(0)
    q = torch.randn(2, HEADS, TOKENS, WIDTH, requires_grad=True)
    k, v = (torch.randn(2, GROUPS, TOKENS, WIDTH, requires_grad=True) for _ in range(2))
    return q, k, v


def module(**own):
    return SimpleNamespace(num_key_value_groups=HEADS // GROUPS, head_dim=WIDTH, training=False, **own)


def additive(visible):
    return torch.zeros(visible.shape).masked_fill(~visible, torch.finfo(torch.float32).min)[None, None]


def expect_equal(ours, theirs, leaves, scale=8):
    assert_near(ours, theirs, scale=scale)
    grad = torch.randn_like(ours)
    expected = torch.autograd.grad(theirs, leaves, grad)
    for x, e in zip(torch.autograd.grad(ours, leaves, grad), expected, strict=True):
        assert_near(x, e, scale=scale)


def test_gpt_oss():
    from transformers.models.gpt_oss.modeling_gpt_oss import eager_attention_forward

    q, k, v = operands()
    sinks = torch.randn(HEADS, requires_grad=True)
    distance = torch.arange(TOKENS)[:, None] - torch.arange(TOKENS)
    mask = additive((distance >= 0) & (distance < 9))
    theirs, _ = eager_attention_forward(module(sinks=sinks), q, k, v, mask, WIDTH**-0.5)
    ours = posenc.ops.attention(q, k, v, is_causal=True, window=9, sinks=sinks)
    expect_equal(ours.transpose(1, 2), theirs, (q, k, v, sinks))


@pytest.mark.parametrize("cap", [50.0, 1.0])
def test_gemma_2(cap):
    from transformers.models.gemma2.modeling_gemma2 import eager_attention_forward

    q, k, v = operands()
    mask = additive(torch.ones(TOKENS, TOKENS, dtype=torch.bool).tril())
    theirs, _ = eager_attention_forward(module(), q, k, v, mask, scaling=0.3, softcap=cap)
    ours = posenc.ops.attention(q, k, v, is_causal=True, scale=0.3, softcap=cap)
    expect_equal(ours.transpose(1, 2), theirs, (q, k, v))


def test_image_blocks_of_gemma_3():
    """transformers' own mask of a sliding layer with image tokens, as booleans, and block_ids: one visibility."""
    from transformers import Gemma3TextConfig
    from transformers.masking_utils import create_sliding_window_causal_mask

    groups = torch.full((2, TOKENS), -1)
    groups[0, 3:15] = 0
    groups[1, 20:] = 1

    def same_image(batch, head, query, key):
        return (groups[batch, query] == groups[batch, key]) & (groups[batch, query] >= 0)

    config = Gemma3TextConfig(sliding_window=6, attn_implementation="sdpa")
    mask = create_sliding_window_causal_mask(
        config=config,
        inputs_embeds=torch.zeros(2, TOKENS, 1),
        attention_mask=None,
        cache=None,
        position_ids=None,
        or_mask_function=same_image,
    )
    q, k, v = operands()
    ours = posenc.ops.attention(q, k, v, is_causal=True, window=6, block_ids=groups)
    expect_equal(ours, posenc.ops.attention(q, k, v, attn_mask=mask), (q, k, v))


def attend_of(encoding, u, v, pos_proj):
    """The encoding with the very parameters of a model, so that gradients reach them."""
    encoding.content_bias, encoding.position_bias, encoding.pos_proj = u, v, pos_proj
    return encoding.attend


def test_transformer_xl_is_the_attention_of_wav2vec2_conformer():
    from transformers import Wav2Vec2ConformerConfig
    from transformers.models.wav2vec2_conformer import modeling_wav2vec2_conformer as modeling

    torch.manual_seed(0)
    config = Wav2Vec2ConformerConfig(
        hidden_size=HEADS * WIDTH,
        num_attention_heads=HEADS,
        position_embeddings_type="relative",
        attention_dropout=0.0,
        attn_implementation="eager",
    )
    layer = modeling.Wav2Vec2ConformerSelfAttention(config).eval()
    torch.nn.init.normal_(layer.pos_bias_u)
    torch.nn.init.normal_(layer.pos_bias_v)
    x = torch.randn(2, TOKENS, HEADS * WIDTH, requires_grad=True)
    theirs = layer(x, relative_position_embeddings=modeling.Wav2Vec2ConformerRelPositionalEmbedding(config)(x))[0]
    encoding = posenc.nn.TransformerXL(WIDTH, HEADS, layout="interleaved")
    attend = attend_of(encoding, layer.pos_bias_u, layer.pos_bias_v, layer.linear_pos.weight)
    q, k, v = (
        linear(x).unflatten(-1, (HEADS, WIDTH)).transpose(1, 2)
        for linear in (layer.linear_q, layer.linear_k, layer.linear_v)
    )
    ours = layer.linear_out(attend(q, k, v).transpose(1, 2).flatten(2))
    expect_equal(ours, theirs, (x, *(p for p in layer.parameters() if p.requires_grad)), scale=60)


def test_transformer_xl_is_the_attention_of_parakeet():
    """With fewer key heads than query heads."""
    from transformers import ParakeetEncoderConfig
    from transformers.models.parakeet import modeling_parakeet as modeling

    torch.manual_seed(0)
    config = ParakeetEncoderConfig(
        hidden_size=HEADS * WIDTH,
        num_attention_heads=HEADS,
        num_key_value_heads=GROUPS,
        attention_dropout=0.0,
        attn_implementation="eager",
    )
    config.num_key_value_heads = GROUPS
    layer = modeling.ParakeetEncoderAttention(config, 0).eval()
    torch.nn.init.normal_(layer.bias_u)
    torch.nn.init.normal_(layer.bias_v)
    x = torch.randn(2, TOKENS, HEADS * WIDTH, requires_grad=True)
    theirs, _ = layer(x, modeling.ParakeetEncoderRelPositionalEncoding(config)(x))
    encoding = posenc.nn.TransformerXL(WIDTH, HEADS, layout="interleaved")
    attend = attend_of(encoding, layer.bias_u, layer.bias_v, layer.relative_k_proj.weight)
    q, k, v = (
        linear(x).unflatten(-1, (-1, WIDTH)).transpose(1, 2) for linear in (layer.q_proj, layer.k_proj, layer.v_proj)
    )
    assert (q.shape[1], k.shape[1]) == (HEADS, GROUPS)
    ours = layer.o_proj(attend(q, k, v).transpose(1, 2).flatten(2))
    expect_equal(ours, theirs, (x, *layer.parameters()), scale=60)


def test_conformer():
    """Wav2Vec2-Conformer's relative attention, from its own projections."""
    from transformers import Wav2Vec2ConformerConfig
    from transformers.models.wav2vec2_conformer import modeling_wav2vec2_conformer as modeling

    torch.manual_seed(0)
    config = Wav2Vec2ConformerConfig(
        hidden_size=HEADS * WIDTH,
        num_attention_heads=HEADS,
        position_embeddings_type="relative",
        attention_dropout=0.0,
        attn_implementation="eager",
    )
    layer = modeling.Wav2Vec2ConformerSelfAttention(config).eval()
    torch.nn.init.normal_(layer.pos_bias_u)
    torch.nn.init.normal_(layer.pos_bias_v)
    x = torch.randn(2, TOKENS, HEADS * WIDTH, requires_grad=True)
    rows = modeling.Wav2Vec2ConformerRelPositionalEmbedding(config)(x)
    theirs = layer(x, relative_position_embeddings=rows)[0]

    def heads(linear, x):
        return linear(x).unflatten(-1, (HEADS, WIDTH)).transpose(1, 2)

    q, k, v = (heads(linear, x) for linear in (layer.linear_q, layer.linear_k, layer.linear_v))
    u, w = layer.pos_bias_u.unsqueeze(1), layer.pos_bias_v.unsqueeze(1)
    # Their rows are those of the distances i - j from T - 1 to -(T - 1): j - i from -(T - 1) to T - 1.
    rel_k = heads(layer.linear_pos, rows)[0]
    out = posenc.ops.relative_attention(q + u, k, v, rel_k, rel_query=q + w)
    ours = layer.linear_out(out.transpose(1, 2).flatten(2))
    parameters = [p for p in layer.parameters() if p.requires_grad]
    expect_equal(ours, theirs, (x, *parameters), scale=60)


@pytest.mark.parametrize(
    "own",
    [
        {"position_buckets": 8, "max_relative_positions": 20},
        {"position_buckets": 256, "max_relative_positions": -1, "max_position_embeddings": 512},
        {"position_buckets": -1, "max_relative_positions": 6},
        {"position_buckets": 16, "pos_att_type": ["p2c"], "share_att_key": False},
        {"position_buckets": 16, "pos_att_type": ["c2p"], "share_att_key": False},
    ],
    ids=["small_buckets", "v3", "no_buckets", "p2c", "c2p"],
)
def test_deberta_v2(own):
    """Their layer, from its projections to its context, with padding."""
    from transformers.models.deberta_v2 import modeling_deberta_v2 as modeling

    options = {
        "hidden_size": HEADS * WIDTH,
        "num_attention_heads": HEADS,
        "relative_attention": True,
        "pos_att_type": ["p2c", "c2p"],
        "share_att_key": True,
        "max_position_embeddings": 64,
    }
    config = modeling.DebertaV2Config(**options | own)
    torch.manual_seed(0)
    theirs = modeling.DisentangledSelfAttention(config).eval()
    span = theirs.pos_ebd_size
    x = torch.randn(2, TOKENS, HEADS * WIDTH, requires_grad=True)
    embeddings = torch.randn(2 * span, HEADS * WIDTH, requires_grad=True)
    attended = torch.arange(TOKENS) < torch.tensor([[TOKENS], [TOKENS - 9]])
    mask = (attended.unsqueeze(1) & attended.unsqueeze(2)).unsqueeze(1)
    out, _ = theirs(x, mask, rel_embeddings=embeddings)
    leaves = [x, embeddings, *theirs.parameters()]

    def heads(projection, of):
        return projection(of).unflatten(-1, (HEADS, WIDTH)).transpose(-2, -3)

    shares = config.share_att_key
    encoding = posenc.nn.DisentangledRelative(
        WIDTH,
        HEADS,
        theirs.max_relative_positions,
        buckets=theirs.position_buckets if theirs.position_buckets > 0 else None,
        c2p="c2p" in config.pos_att_type,
        p2c="p2c" in config.pos_att_type,
    )
    tables = {}
    if encoding.c2p:
        tables["rel_k"] = heads(theirs.key_proj if shares else theirs.pos_key_proj, embeddings)
    if encoding.p2c:
        tables["rel_q"] = heads(theirs.query_proj if shares else theirs.pos_query_proj, embeddings)
    q, k, v = (heads(projection, x) for projection in (theirs.query_proj, theirs.key_proj, theirs.value_proj))
    for name, table in tables.items():  # computed, so that gradients reach what they are made of
        delattr(encoding, name)
        setattr(encoding, name, table)
    ours = encoding.attend(q, k, v, key_mask=attended)
    ours, out = ours.transpose(1, 2).flatten(2)[attended], out[attended]
    expect_equal(ours, out, leaves, scale=40)


@pytest.mark.parametrize("tokens", [37, 120])
def test_gated_bias_of_wavlm(tokens):
    """A gate of each query and head times a bucketed bias: relative_attention with queries one number wide."""
    from transformers.models.wavlm.modeling_wavlm import WavLMAttention

    theirs = WavLMAttention(HEADS * WIDTH, HEADS, num_buckets=32, max_distance=60).double().eval()
    torch.manual_seed(4)
    with torch.no_grad():
        for parameter in theirs.parameters():
            parameter.normal_(std=0.3)
    x = torch.randn(2, tokens, HEADS * WIDTH, dtype=torch.float64, requires_grad=True)
    keys = torch.arange(tokens).expand(2, -1) < torch.tensor([[tokens], [tokens - 6]])

    split = x.unflatten(-1, (HEADS, WIDTH)).transpose(1, 2)
    a, b = theirs.gru_rel_pos_linear(split).unflatten(-1, (2, 4)).sum(-1).sigmoid().unsqueeze(-1).unbind(-2)
    gate = a * (b * theirs.gru_rel_pos_const - 1) + 2
    q, k, v = (
        project(x).unflatten(-1, (HEADS, WIDTH)).transpose(1, 2)
        for project in (theirs.q_proj, theirs.k_proj, theirs.v_proj)
    )
    buckets = posenc.ops.t5_bucket(torch.arange(1 - tokens, tokens), num_buckets=32, max_distance=60)
    table = theirs.rel_attn_embed(buckets).t().unsqueeze(-1)
    out = posenc.ops.relative_attention(q, k, v, table, rel_query=gate * WIDTH**0.5, key_mask=keys)
    ours = theirs.out_proj(out.transpose(1, 2).flatten(2))

    expected, _, _ = theirs(x, attention_mask=keys.long())
    expect_equal(ours, expected, (x, *theirs.parameters()), scale=100)
