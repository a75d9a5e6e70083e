"""Attention on two axes in transformers' vision layers: outputs and gradients of random small configurations."""

import pytest
import torch
from torch.nn.functional import normalize

import posenc
from tolerances import assert_near

HEADS, WIDTH = 4, 8
EMBED = HEADS * WIDTH


def randomised(layer):
    torch.manual_seed(0)
    with torch.no_grad():
        for parameter in layer.parameters():
            parameter.normal_(0.0, 0.3)
    return layer.eval()


def split(x):
    return x.unflatten(-1, (HEADS, -1)).transpose(1, 2)


def merged(out):
    return out.transpose(1, 2).flatten(2)


def expect_equal(ours, theirs, own, their_own, shared, scale=16):
    """Outputs, and gradients: to the encoding's parameters and their twins, and to what both share."""
    assert_near(ours, theirs, scale=scale)
    grad = torch.randn_like(ours)
    computed = torch.autograd.grad(ours, [*own, *shared], grad)
    expected = torch.autograd.grad(theirs, [*their_own, *shared], grad)
    for result, e in zip(computed, expected, strict=True):
        assert_near(result, e, scale=4 * scale)


def copied(encoding, parameters):
    with torch.no_grad():
        for own, theirs in zip(encoding.parameters(), parameters, strict=True):
            own.copy_(theirs)
    return encoding


def test_sam():
    from transformers.models.sam.configuration_sam import SamVisionConfig
    from transformers.models.sam.modeling_sam import SamVisionAttention

    config = SamVisionConfig(
        hidden_size=EMBED, num_attention_heads=HEADS, use_rel_pos=True, image_size=20, patch_size=4
    )
    layer = randomised(SamVisionAttention(config, window_size=0))
    x = torch.randn(2, 5, 5, EMBED, requires_grad=True)
    theirs, _ = layer(x)
    tables = [layer.rel_pos_h, layer.rel_pos_w]
    encoding = copied(posenc.nn.DecomposedRelative(WIDTH, (5, 5)), tables)
    q, k, v = (split(part) for part in layer.qkv(x.flatten(1, 2)).chunk(3, -1))
    ours = layer.proj(merged(encoding.attend(q, k, v))).unflatten(1, (5, 5))
    expect_equal(ours, theirs, encoding.parameters(), tables, [x, layer.qkv.weight, layer.proj.weight])


@pytest.mark.parametrize("window", [4, 3])
def test_swin(window):
    from transformers.models.swin import modeling_swin
    from transformers.models.swin.configuration_swin import SwinConfig

    config = SwinConfig(embed_dim=EMBED, num_heads=[HEADS], depths=[1], window_size=window, attn_implementation="eager")
    layer = randomised(modeling_swin.SwinAttention(config, EMBED, HEADS, window))
    x = torch.randn(3, window * window, EMBED, requires_grad=True)
    theirs = layer(x)[0]
    tables = [layer.relative_position_bias.relative_position_bias_table]
    encoding = copied(posenc.nn.GridRelativeBias(HEADS, (window, window)), tables)
    q, k, v = (split(proj(x)) for proj in (layer.q_proj, layer.k_proj, layer.v_proj))
    ours = layer.o_proj(merged(encoding.attend(q, k, v)))
    expect_equal(ours, theirs, encoding.parameters(), tables, [x, layer.q_proj.weight, layer.o_proj.weight])


def test_swin_v2():
    from transformers.models.swinv2.configuration_swinv2 import Swinv2Config
    from transformers.models.swinv2.modeling_swinv2 import Swinv2SelfAttention

    layer = randomised(Swinv2SelfAttention(Swinv2Config(), EMBED, HEADS, 4))
    x = torch.randn(3, 16, EMBED, requires_grad=True)
    theirs = layer(x)[0]
    mlp = list(layer.continuous_position_bias_mlp.parameters())
    encoding = copied(posenc.nn.GridRelativeBias(HEADS, (4, 4), kind="cpb"), mlp)
    q, k, v = (split(proj(x)) for proj in (layer.query, layer.key, layer.value))
    scaled = normalize(q, dim=-1) * layer.logit_scale.clamp(max=torch.tensor(100.0).log()).exp()
    ours = merged(encoding.attend(scaled, normalize(k, dim=-1), v, scale=1.0))
    expect_equal(ours, theirs, encoding.parameters(), mlp, [x, layer.query.weight, layer.logit_scale])


def test_beit():
    from transformers.models.beit.configuration_beit import BeitConfig
    from transformers.models.beit.modeling_beit import BeitAttention, BeitRelativePositionBias

    config = BeitConfig(
        hidden_size=EMBED, num_attention_heads=HEADS, image_size=20, patch_size=4, attn_implementation="eager"
    )
    layer, bias = randomised(BeitAttention(config)), randomised(BeitRelativePositionBias(config))
    x = torch.randn(2, 26, EMBED, requires_grad=True)
    theirs = layer(x, attention_mask=bias((5, 5)))[0]
    tables = [bias.relative_position_bias_table]
    encoding = copied(posenc.nn.GridRelativeBias(HEADS, (5, 5), class_token=True), tables)
    q, k, v = (split(proj(x)) for proj in (layer.q_proj, layer.k_proj, layer.v_proj))
    ours = layer.o_proj(merged(encoding.attend(q, k, v)))
    expect_equal(ours, theirs, encoding.parameters(), tables, [x, layer.q_proj.weight, layer.o_proj.weight])
