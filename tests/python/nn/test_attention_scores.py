"""Attention with several score encodings: their terms add up."""

import pytest
import torch

import posenc
from tolerances import assert_near

nn = posenc.nn
EMBED, HEADS, WIDTH, TOKENS = 32, 4, 8, 9

LISTS = {
    "alibi, t5": lambda: [nn.ALiBi(HEADS), nn.T5RelativeBias(HEADS, scale=None)],
    "two tables of different reach": lambda: [
        nn.T5RelativeBias(HEADS, num_buckets=4, max_distance=5, scale=None),
        nn.Kerple(HEADS),
    ],
    "alibi twice": lambda: [nn.ALiBi(HEADS), nn.ALiBi(HEADS, learnable=True)],
    "cope, shaw": lambda: [nn.CoPE(WIDTH, 5), nn.ShawRelative(WIDTH, 3, values=False)],
    "shaw of two reaches": lambda: [
        nn.ShawRelative(WIDTH, 2, values=False),
        nn.ShawRelative(WIDTH, 4, num_heads=HEADS, values=False),
    ],
    "shaw, deberta": lambda: [
        nn.ShawRelative(WIDTH, 2, values=False),
        nn.DisentangledRelative(WIDTH, HEADS, 7, c2p=False),
    ],
    "fire, sandwich": lambda: [nn.FIRE(HEADS, hidden_dim=4), nn.Sandwich(HEADS, dim=8)],
    "fox, cope of gate keys, alibi": lambda: [
        nn.ForgettingBias(EMBED, HEADS),
        nn.CoPE(WIDTH, 5, gate="key"),
        nn.ALiBi(HEADS),
    ],
    "transformer-xl, alibi": lambda: [nn.TransformerXL(WIDTH, HEADS), nn.ALiBi(HEADS)],
    "swin, alibi": lambda: [nn.GridRelativeBias(HEADS, (3, 3)), nn.ALiBi(HEADS)],
    "rerope, t5": lambda: [nn.ReRoPE(WIDTH, 4), nn.T5RelativeBias(HEADS, scale=None)],
}


def layer_of(encodings, **options):
    torch.manual_seed(3)
    layer = nn.Attention(EMBED, HEADS, encodings=encodings, **options).double().eval()
    with torch.no_grad():
        for parameter in layer.parameters():
            parameter.add_(0.3 * torch.rand_like(parameter))
    return layer


def tokens():
    torch.manual_seed(4)
    return torch.randn(2, TOKENS, EMBED, dtype=torch.float64)


def heads(linear, x):
    return linear(x).unflatten(-1, (-1, WIDTH)).transpose(1, 2)


def logits_of(score, layer, x, q, k):
    state = score.token_state(x)
    if score.needs_gate_key:
        state["gate_key"] = heads(layer.gate_proj, x)
    causal = {} if score.always_causal else {"is_causal": True}
    own = {} if score.scale is None else {"scale": layer.scale}
    return score.logits(q, k, **state, **causal, **own)


@pytest.mark.parametrize("which", LISTS)
def test_terms_add_up(which):
    """The scores of each encoding alone, less what they share."""
    encodings = LISTS[which]()
    layer = layer_of(encodings, scale=0.3 if which == "shaw, deberta" else None)
    x = tokens()
    q, k, v = (heads(linear, x) for linear in (layer.q_proj, layer.k_proj, layer.v_proj))
    content = q @ k.transpose(-1, -2) * (WIDTH**-0.5 if layer.scale is None else layer.scale)
    hidden = torch.ones(TOKENS, TOKENS).triu(1).bool()
    added = sum(
        logits_of(score, layer, x, q, k).masked_fill(hidden, 0.0) - content.masked_fill(hidden, 0.0)
        if layer.scale is None or score.scale is not None
        else score.logits(q, k, is_causal=True, scale=layer.scale).masked_fill(hidden, 0.0)
        - content.masked_fill(hidden, 0.0)
        for score in encodings
    )
    weights = (content + added).masked_fill(hidden, -torch.inf).softmax(-1)
    expected = layer.o_proj((weights @ v).transpose(1, 2).flatten(2))
    assert_near(layer(x), expected, scale=30)


def test_values_of_tables_add_up():
    encodings = [nn.ShawRelative(WIDTH, 2), nn.ShawRelative(WIDTH, 5)]
    layer, x = layer_of(encodings), tokens()
    one = layer_of([nn.ShawRelative(WIDTH, 5)])
    with torch.no_grad():
        for name, parameter in one.named_parameters():
            if "encodings" not in name:
                parameter.copy_(layer.get_parameter(name))
        places = torch.arange(-5, 6).clamp(-2, 2) + 2
        for name in ("rel_k", "rel_v"):
            short, long = (getattr(encoding, name) for encoding in encodings)
            getattr(one.encodings[0], name).copy_(long + short[places])
    assert_near(layer(x), one(x), scale=10)


@pytest.mark.parametrize("which", [name for name in LISTS if "swin" not in name])  # a grid has all its keys at once
def test_token_by_token_equals_the_whole_pass(which):
    layer, x = layer_of(LISTS[which](), scale=0.3 if which == "shaw, deberta" else None), tokens()
    cache = nn.KVCache(2, HEADS, TOKENS, WIDTH, dtype=torch.float64)
    with torch.no_grad():
        steps = [layer(x[:, t : t + 1], cache=cache) for t in range(TOKENS)]
        assert_near(torch.cat(steps, 1), layer(x), scale=30)


@pytest.mark.parametrize("which", LISTS)
def test_gradients_reach_every_parameter(which):
    layer = layer_of(LISTS[which](), scale=0.3 if which == "shaw, deberta" else None)
    layer(tokens()).square().sum().backward()
    for name, parameter in layer.named_parameters():
        assert parameter.grad is not None, name
        # Of a table over distances, later keys have no part.
        assert parameter.grad.abs().sum() > 0, name


class Alone(nn.ScoreEncoding):
    """Attends by itself."""

    def attend_op(self, query, key, value, **call):
        return posenc.ops.attention(query, key, value, return_lse=True, **call)


REFUSED = {
    "state of one name": (
        lambda: [nn.ForgettingBias(EMBED, HEADS), nn.ForgettingBias(EMBED, HEADS)],
        "at most one score encoding with state of tokens of a kind",
    ),
    "scales that differ": (
        lambda: [nn.T5RelativeBias(HEADS), nn.DisentangledRelative(WIDTH, HEADS, 4)],
        "expected scale, as the score encodings multiply q . k by different numbers",
    ),
    "one without add_terms": (lambda: [nn.ALiBi(HEADS), Alone()], "no other score encoding with Alone"),
    "rotary with the second": (
        lambda: [nn.ALiBi(HEADS), nn.Rotary(WIDTH), nn.ReRoPE(WIDTH)],
        "no rotary encoding together with ReRoPE",
    ),
}


@pytest.mark.parametrize("which", REFUSED)
def test_what_cannot_act_together_is_refused(which):
    encodings, message = REFUSED[which]
    with pytest.raises(ValueError, match="^Attention: .*" + message):
        nn.Attention(EMBED, HEADS, encodings=encodings())


CALLS = {
    "CoPE twice": (lambda: [nn.CoPE(WIDTH, 5), nn.CoPE(WIDTH, 4)], "CoPE: expected no other encoding with pos_emb"),
    "FIRE twice": (lambda: [nn.FIRE(HEADS), nn.FIRE(HEADS)], "FIRE: expected no other encoding with fire_rate"),
    "Shaw and Transformer-XL": (
        lambda: [nn.ShawRelative(WIDTH, 3), nn.TransformerXL(WIDTH, HEADS)],
        "TransformerXL: expected no other encoding with rel_k",
    ),
    "SAM and Swin": (
        lambda: [nn.DecomposedRelative(WIDTH, (3, 3)), nn.GridRelativeBias(HEADS, (3, 3))],
        "GridRelativeBias: expected no other encoding with places on two axes",
    ),
    "CoPE and ReRoPE": (lambda: [nn.CoPE(WIDTH, 5), nn.ReRoPE(WIDTH, 4)], "q_far"),
}


@pytest.mark.parametrize("which", CALLS)
def test_terms_of_which_an_op_has_one_are_refused_in_the_call(which):
    encodings, message = CALLS[which]
    layer = nn.Attention(EMBED, HEADS, encodings=encodings())
    with pytest.raises(ValueError, match=message):
        layer(tokens().float())


def test_positions_that_one_of_two_encodings_does_not_read_are_refused():
    layer = layer_of([nn.CoPE(WIDTH, 5), nn.ALiBi(HEADS)])
    with pytest.raises(ValueError, match="expected no positions with CoPE, which goes by index"):
        layer(tokens(), positions=torch.arange(TOKENS) * 2)


def test_a_scale_of_one_encoding_is_that_of_all():
    layer, x = layer_of([nn.ALiBi(HEADS), nn.T5RelativeBias(HEADS)]), tokens()
    scaled = layer_of([nn.ALiBi(HEADS), nn.T5RelativeBias(HEADS, scale=None)], scale=1.0)
    scaled.load_state_dict(layer.state_dict())
    assert_near(layer(x), scaled(x))
