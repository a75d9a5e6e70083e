"""Scores that released models use, by numbers worked out by hand: sinks, caps, masks, blocks and windows."""

import math

import pytest
import torch

import posenc
from attention_calls import call, every_op
from tolerances import assert_near

pytestmark = pytest.mark.kernels


def weights_of(scores, **options):
    """Weights and lse of given scores (Tq, Tk), by a bias on queries and keys that are zero."""
    queries, keys = scores.shape
    q, k, v = torch.zeros(1, 1, queries, 4), torch.zeros(1, 1, keys, 4), torch.eye(keys).view(1, 1, keys, keys)
    out, lse = posenc.ops.attention(q, k, v, bias=scores.expand(1, 1, -1, -1), return_lse=True, **options)
    return out[0, 0], lse[0, 0]


@pytest.mark.parametrize("sinks", [torch.tensor([0.5]), torch.tensor([[[0.5]]])], ids=["head", "query"])
def test_a_sink_takes_its_share_and_joins_lse(sinks):
    scores = torch.tensor([[1.0, 2.0]])
    weights, lse = weights_of(scores, sinks=sinks)
    assert_near(weights, torch.tensor([[0.231224, 0.628532]]), scale=10)
    assert_near(lse, torch.tensor([2.464369]), scale=10)
    plain, plain_lse = weights_of(scores)
    assert_near(weights, plain * torch.sigmoid(plain_lse - 0.5).unsqueeze(-1))


def test_a_query_without_keys_gives_0_and_its_sink():
    mask = torch.tensor([[False, False], [True, False]])
    sinks = torch.tensor([0.7], requires_grad=True)
    weights, lse = weights_of(torch.zeros(2, 2), attn_mask=mask, sinks=sinks)
    assert_near(weights[0], torch.zeros(2))
    assert_near(lse[0], sinks[0])
    (gradient,) = torch.autograd.grad(lse.sum(), sinks)
    assert_near(gradient, 1 + torch.sigmoid(sinks))


@pytest.mark.parametrize("queries", [1, 100])
@pytest.mark.parametrize("sink", [1e9, 3e38, -1e9, -1e30, torch.finfo(torch.float32).min])
def test_sinks_that_float32_does_not_resolve_have_gradients(sink, queries):
    """Also of a row that sees no key, whose softmax has the sink alone."""
    q, k, v = torch.randn(2, 1, queries, 4), torch.randn(2, 1, 100, 4), torch.randn(2, 1, 100, 4)
    mask = torch.tensor([[True], [False]]).expand(2, 100)
    leaves = [x.requires_grad_() for x in (q, k, v, torch.tensor([sink]))]
    out = posenc.ops.attention(*leaves[:3], sinks=leaves[3], key_mask=mask)
    grads = torch.autograd.grad(out.sum(), leaves)
    plain = posenc.ops.attention(*leaves[:3], key_mask=mask) if sink < 0 else torch.zeros_like(out)
    expected = torch.autograd.grad(plain.sum(), leaves[:3]) if sink < 0 else [torch.zeros_like(x) for x in leaves[:3]]
    assert_near(out, plain)
    for a, b in zip(grads, [*expected, torch.zeros(1)], strict=True):
        assert_near(a, b)


@pytest.mark.parametrize("queries", [1, 100])
@pytest.mark.parametrize("sink", [math.inf, math.nan])
def test_a_sink_that_is_no_number_reaches_its_head_alone(sink, queries):
    q, k = torch.randn(1, 2, queries, 4), torch.randn(1, 2, 100, 4)
    clean = posenc.ops.attention(q, k, k, sinks=torch.tensor([0.5, 0.5]))
    out, lse = posenc.ops.attention(q, k, k, sinks=torch.tensor([0.5, sink]), return_lse=True)
    assert torch.equal(out[:, 0], clean[:, 0])
    assert out[:, 1].isnan().all()
    assert lse[:, 1].isnan().all()


@pytest.mark.parametrize("softcap_on", ["content", "sum"])
@pytest.mark.parametrize("cap", [1e-300, 1e-40, 3e38, 1e300])
@pytest.mark.parametrize("queries", [1, 100])
def test_caps_that_float32_does_not_hold(queries, cap, softcap_on):
    """The smallest make scores 0, the largest leave them; the plain form, which torch.func takes, likewise."""
    q, k, v = torch.randn(1, 1, queries, 4), torch.randn(1, 1, 100, 4), torch.randn(1, 1, 100, 4)
    q[:, :, 0] = 0
    bias = torch.randn(queries, 100).masked_fill(torch.rand(queries, 100) < 0.2, -math.inf)
    leaves = [x.requires_grad_() for x in (q, k, v, bias)]

    def attend(q, k, v, bias):
        return posenc.ops.attention(q, k, v, bias=bias, softcap=cap, softcap_on=softcap_on)

    if cap > 1:
        expected = posenc.ops.attention(q, k, v, bias=bias)
    elif softcap_on == "content":
        expected = posenc.ops.attention(0 * q, k, v, bias=bias)
    else:
        expected = posenc.ops.attention(0 * q, k, v, attn_mask=bias > -math.inf)
    out = attend(*leaves)
    assert_near(out, expected)
    func_out, pull = torch.func.vjp(attend, *(x.detach() for x in leaves))
    assert_near(func_out, expected)
    grads = torch.autograd.grad(out.sum(), leaves)
    for a, b in zip(grads, pull(torch.ones_like(out)), strict=True):
        assert a.isfinite().all()
        assert b.isfinite().all()
    assert_near(grads[2], torch.autograd.grad(expected.sum(), v)[0])


@pytest.mark.parametrize("shape", [(2,), (1, 2, 5)], ids=["head", "query"])
def test_second_derivatives_of_sinks(shape):
    q, k, v = torch.randn(3, 1, 2, 5, 4, dtype=torch.float64)
    sinks = torch.randn(shape, dtype=torch.float64, requires_grad=True)
    leaves = (q.requires_grad_(), sinks)
    assert torch.autograd.gradgradcheck(
        lambda q, sinks: posenc.ops.attention(q, k, v, sinks=sinks, return_lse=True), leaves
    )


def test_without_any_key_lse_is_the_sink_and_has_its_gradient():
    sinks = torch.tensor([0.7, -1.0], requires_grad=True)
    q, k = torch.randn(1, 2, 3, 4), torch.randn(1, 2, 0, 4)
    out, lse = posenc.ops.attention(q, k, k, sinks=sinks, return_lse=True)
    assert_near(lse, sinks.view(1, 2, 1).expand(1, 2, 3))
    assert torch.equal(out, torch.zeros(1, 2, 3, 4))
    (gradient,) = torch.autograd.grad(lse.sum(), sinks)
    assert_near(gradient, torch.tensor([3.0, 3.0]))


@pytest.mark.parametrize("size", [1e4, 3e4])
@pytest.mark.parametrize("queries", [1, 40])
def test_a_sink_far_above_or_below_the_scores_is_exact(size, queries):
    scores = torch.zeros(queries, 3)
    scores[:, 2] = -size
    for sink in (size, -size):
        weights, lse = weights_of(scores, sinks=torch.tensor([sink]))
        assert_near(
            weights, torch.tensor([[0.0 if sink > 0 else 0.5, 0.0 if sink > 0 else 0.5, 0.0]]).expand(queries, 3)
        )
        assert_near(lse / max(sink, 1), torch.full((queries,), 1.0 if sink > 0 else math.log(2)))


@pytest.mark.parametrize("on", ["content", "sum"])
@pytest.mark.parametrize("queries", [1, 100], ids=["decode", "tiles"])
def test_a_cap_scales_gradients_by_1_minus_tanh_squared(on, queries):
    q = torch.randn(1, 1, queries, 8, dtype=torch.float64)
    k, v = torch.randn(2, 1, 1, 120, 8, dtype=torch.float64)
    options = {"softcap": 2.0, "softcap_on": on, "scale": 1.0}
    leaf = q.clone().requires_grad_()
    lse = posenc.ops.attention(leaf, k, v, return_lse=True, **options)[1]
    (gradient,) = torch.autograd.grad(lse.sum(), leaf)
    s = q @ k.transpose(-1, -2)
    capped = 2 * torch.tanh(s / 2)
    assert_near(lse, capped.logsumexp(-1))
    assert_near(gradient, (capped.softmax(-1) * (1 - torch.tanh(s / 2) ** 2)) @ k)


def test_a_small_cap_of_large_scores_is_the_cap():
    q, k = torch.full((1, 1, 1, 4), 50.0), torch.tensor([1.0, -1.0]).view(1, 1, 2, 1).expand(1, 1, 2, 4)
    logits = torch.ops.posenc._attention_logits(q, k.contiguous(), softcap=3.0)
    assert_near(logits.flatten(), torch.tensor([3.0, -3.0]))


@every_op
@pytest.mark.parametrize("tokens", [5, 130])
def test_siblings_of_a_tree_of_drafts_do_not_see_each_other(op, tokens):
    """The last two tokens are two drafts for one place."""
    q, k, v = torch.randn(3, 1, 2, tokens, 8, dtype=torch.float64)
    tree = torch.ones(tokens, tokens, dtype=torch.bool).tril()
    tree[-1, -2] = False
    out = call(op, q, k, v, attn_mask=tree)
    changed = call(op, q, k.index_fill(2, torch.tensor([tokens - 2]), torch.nan), v, attn_mask=tree)
    assert torch.equal(out[:, :, -1], changed[:, :, -1])
    assert not torch.equal(out[:, :, -1], call(op, q, k, v)[:, :, -1])


@pytest.mark.parametrize("tokens", [6, 200])
def test_every_query_of_a_block_sees_to_its_end(tokens):
    values = torch.arange(tokens, dtype=torch.float32).view(1, 1, tokens, 1)
    zeros = torch.zeros(1, 1, tokens, 4)
    blocks = torch.full((1, tokens), -1)
    blocks[0, 1:4] = 0
    out = posenc.ops.attention(zeros, zeros, values, is_causal=True, block_ids=blocks)[0, 0, :, 0]
    expected = torch.arange(tokens) / 2
    expected[1:4] = 1.5  # keys 0 to 3
    assert_near(out, expected, scale=4)


@pytest.mark.parametrize("queries", [1, 150], ids=["decode", "tiles"])
@pytest.mark.parametrize("slopes", [None, torch.tensor([0.05])], ids=["plain", "ALiBi"])
def test_windows_reach_differently_to_both_sides(queries, slopes):
    q, k, v = torch.randn(1, 1, queries, 4), torch.randn(1, 1, 150, 4), torch.randn(1, 1, 150, 4)
    places = torch.arange(150)
    distance = places[-queries:, None] - places
    mask = (distance <= 70) & (distance >= -13)
    out = posenc.ops.attention(q, k, v, window=(70, 13), alibi_slopes=slopes)
    assert_near(out, posenc.ops.attention(q, k, v, attn_mask=mask, alibi_slopes=slopes), scale=4)


def test_fractional_positions_reach_the_whole_window():
    """A pair is a reach, ends included; an int a length, which a distance stays below."""
    positions = torch.tensor([0.0, 1.5, 2.0, 3.5])
    values = torch.eye(4).view(1, 1, 4, 4)
    zeros = torch.zeros(1, 1, 4, 4)
    for window, seen in (((2, 0), [[0], [0, 1], [0, 1, 2], [1, 2, 3]]), (2, [[0, 1], [0, 1, 2], [1, 2, 3], [2, 3]])):
        out = posenc.ops.attention(zeros, zeros, values, window=window, q_positions=positions, k_positions=positions)
        assert [row.nonzero().flatten().tolist() for row in out[0, 0]] == seen


def test_segments_of_queries_that_are_not_the_last_keys():
    zeros = torch.zeros(1, 1, 5, 4)
    values = torch.arange(5.0).view(1, 1, 5, 1)
    segments = torch.tensor([[0, 0, 1, 1, 1]])
    ids = {"segment_ids": segments, "q_segment_ids": torch.tensor([[0, 0, 1]])}
    out = posenc.ops.attention(zeros[:, :, :3], zeros, values, **ids)
    assert_near(out.flatten(), torch.tensor([0.5, 0.5, 3.0]))


def test_a_buffer_of_keys_that_is_not_full_needs_the_start_alone():
    """8 slots, 5 of them filled; what the others hold is not seen."""
    zeros, values = torch.zeros(1, 1, 8, 4), torch.arange(8.0).view(1, 1, 8, 1).clone()
    values[:, :, 5:] = torch.nan
    call = {"is_causal": True, "window": 4, "q_start": torch.tensor([4])}
    assert_near(posenc.ops.attention(zeros[:, :, :1], zeros, values, **call).flatten(), torch.tensor([2.5]))


@pytest.mark.parametrize("name", ["sinks", "softcap", "attn_mask"])
def test_rows_that_are_not_finite_and_see_nothing_reach_no_gradient(name):
    """Shaw's tables too sum over all queries; sinks make the lse of such a row finite."""
    tokens = 100
    q, k, v = (torch.randn(1, 1, tokens, 8) for _ in range(3))
    table = torch.randn(21, 8)
    mask = torch.ones(tokens, tokens, dtype=torch.bool)
    mask[3] = False
    q[:, :, 3] = torch.nan
    more = {"sinks": {"sinks": torch.zeros(1)}, "softcap": {"softcap": 1.0}, "attn_mask": {}}[name]
    leaves = [x.requires_grad_() for x in (q, k, v, table)]
    out = posenc.ops.relative_attention(*leaves, attn_mask=mask, **more)
    gradients = torch.autograd.grad(out.sum(), leaves)
    assert all(x.isfinite().all() for x in gradients)
    assert torch.equal(gradients[0][:, :, 3], torch.zeros(1, 1, 8))


def test_a_term_with_a_query_of_its_own_by_hand():
    """scale (q + u) . k + scale (q + v) . r[j - i] with numbers of one column; Transformer-XL, eq. of section 3.3."""
    q, k, u, v = 1.0, torch.tensor([2.0, -1.0]), 0.5, -3.0
    rows = torch.tensor([0.1, 0.2, 0.4]).view(3, 1)  # distances -1, 0, 1
    content = torch.full((1, 1, 2, 1), q + u)
    own = torch.full((1, 1, 2, 1), q + v)
    values = torch.eye(2).view(1, 1, 2, 2)
    out = posenc.ops.relative_attention(content, k.view(1, 1, 2, 1), values, rows, rel_query=own, scale=0.5)
    scores = 0.5 * 1.5 * k + 0.5 * -2.0 * torch.tensor([[0.2, 0.4], [0.1, 0.2]])
    assert_near(out[0, 0], scores.softmax(-1))
