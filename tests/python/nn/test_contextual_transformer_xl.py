"""TransformerXL: the formula of arXiv 1901.02860, section 3.3, the sign of distances, the rows that a call makes."""

import math

import pytest
import torch
from torch.autograd import gradcheck, gradgradcheck

import contextual_reference
from contextual_calls import GROUPS, HEADS, WIDTH, assert_equals, heads_of, nn, with_parameters
from tolerances import assert_bits, assert_near

PADS = torch.tensor([[False, True, True, True, True, False], [True] * 6])
BY_ROW = torch.tensor([[3, 4, 5, 6, 7, 8], [0, 1, 2, 0, 1, 2]])
SEGMENTS = torch.tensor([[0] * 6, [0, 0, 0, 1, 1, 1]])

CALLS = {
    "both_ways": (6, 6, {}),
    "causal": (6, 6, {"is_causal": True}),
    "decode": (1, 6, {"is_causal": True}),
    "one_query_both_ways": (1, 6, {}),
    "fewer_queries": (4, 6, {"is_causal": True, "scale": 0.4}),
    "more_queries": (6, 4, {}),
    "padded": (6, 6, {"key_mask": PADS}),
    "window": (6, 6, {"window": 2}),
    "causal_window": (6, 6, {"window": 3, "is_causal": True}),
    "packed": (6, 6, {"q_positions": BY_ROW, "k_positions": BY_ROW, "segment_ids": SEGMENTS}),
    "far_apart": (6, 6, {"q_positions": torch.arange(6) + 100, "k_positions": torch.arange(6)}),
    "keys_ahead": (3, 6, {"q_positions": torch.arange(3), "k_positions": torch.arange(6) + 40}),
}
LAYOUTS = ["concatenated", "interleaved"]


def rows_of(module, q, k, **hidden):
    """The table of a call, and its rows that are not 0."""
    terms = torch.ops.posenc._transformer_xl_terms(
        module.content_bias,
        module.position_bias,
        module.pos_proj,
        module.inv_freq,
        q,
        k,
        interleaved=module.layout == "interleaved",
        **hidden,
    )
    return terms[2], int((terms[2] != 0).any(-1).all(0).sum())


@pytest.mark.parametrize("which", CALLS)
@pytest.mark.parametrize("layout", LAYOUTS)
def test_equals_the_paper(which, layout):
    q_len, k_len, call = CALLS[which]
    module = with_parameters(nn.TransformerXL(WIDTH, HEADS, pos_dim=6, layout=layout))
    q, k, v = (x.requires_grad_() for x in heads_of(q_len, k_len))
    parameters = dict(module.named_parameters())
    expected = contextual_reference.transformer_xl(q, k, v, parameters, layout=layout, **call)
    learned = (*parameters.values(),)
    actual = module.attend(q, k, v, **call)
    assert_equals(actual, expected, (q, k, v, *learned))
    assert all(g.abs().sum() > 0 for g in torch.autograd.grad(actual.square().sum(), learned))


def test_scores_of_one_query_by_hand():
    """With an identity for pos_proj r[n] is (sin n, cos n), n the query's position minus the key's."""
    module = nn.TransformerXL(2, 1).double()
    with torch.no_grad():
        module.content_bias.copy_(torch.tensor([[0.0, 0.5]]))
        module.position_bias.copy_(torch.tensor([[0.0, 1.0]]))
        module.pos_proj.copy_(torch.eye(2))
    q, k = torch.tensor([[[[1.0, 0.0]]]]).double(), torch.tensor([[[[2.0, 4.0]] * 3]]).double()
    scores = module.logits(q, k, q_positions=torch.tensor([2]), k_positions=torch.tensor([0, 2, 4]))
    content = 1.0 * 2.0 + 0.5 * 4.0
    before, here, after = math.sin(2) + math.cos(2), 1.0, math.sin(-2) + math.cos(2)
    expected = torch.tensor([content + before, content + here, content + after], dtype=torch.float64) / math.sqrt(2)
    assert_near(scores.detach().flatten(), expected)
    torch.testing.assert_close(
        scores.detach().flatten().float(), torch.tensor([3.1771373, 3.5355339, 1.8911964]), rtol=0, atol=1e-6
    )


def test_layouts_have_the_same_columns_in_another_order():
    turns, sorted_ = (with_parameters(nn.TransformerXL(WIDTH, HEADS, layout=layout)) for layout in LAYOUTS[::-1])
    with torch.no_grad():
        sorted_.content_bias.copy_(turns.content_bias)
        sorted_.position_bias.copy_(turns.position_bias)
        sorted_.pos_proj.copy_(torch.cat([turns.pos_proj[:, 0::2], turns.pos_proj[:, 1::2]], 1))
    q, k, v = heads_of(5, 5)
    assert_near(turns.attend(q, k, v).detach(), sorted_.attend(q, k, v).detach(), scale=10)


def test_parameters_of_zero_are_plain_attention():
    module, (q, k, v) = nn.TransformerXL(WIDTH, HEADS).double(), heads_of(5, 5)
    with torch.no_grad():
        for parameter in module.parameters():
            parameter.zero_()
    wide = torch.nn.functional.scaled_dot_product_attention(q, k, v, enable_gqa=True)
    assert_near(module.attend(q, k, v), wide)


def test_values_may_have_another_width():
    module, (q, k, _) = with_parameters(nn.TransformerXL(WIDTH, HEADS)), heads_of(5, 5)
    v = torch.randn(2, GROUPS, 5, 3).double()
    expected = contextual_reference.transformer_xl(q, k, v, dict(module.named_parameters()))
    assert_near(module.attend(q, k, v).detach(), expected.detach(), scale=10)


@pytest.mark.parametrize(
    ("hidden", "rows"),
    [
        ({}, 9 + 4 - 1),
        ({"is_causal": True}, 9),
        ({"window": 3}, 5),
        ({"window": 3, "is_causal": True}, 3),
        ({"window_left": 2, "window_right": 1}, 4),
        ({"window_left": 100}, 12),
        ({"window": 3, "is_causal": True, "has_blocks": True}, 12),
    ],
    ids=str,
)
def test_rows_are_those_of_distances_that_are_seen(hidden, rows):
    module = with_parameters(nn.TransformerXL(WIDTH, HEADS))
    q, k, _ = heads_of(4, 9)
    table, made = rows_of(module, q, k, **hidden)
    assert made == rows
    assert table.shape[1] % 2 == 1


HIDING = {
    "window": {"window": 3},
    "causal_window": {"window": 3, "is_causal": True},
    "pair": {"window": (3, 1)},
    "one_side": {"window": (None, 2)},
    "blocks": {"is_causal": True, "block_ids": torch.tensor([[0, 0, 0, 0, -1, 1, 1], [-1, -1, 3, 3, 3, 3, 3]])},
    "blocks_and_window": {"window": 2, "block_ids": torch.tensor([[0, 0, 0, 0, 0, 1, 1]] * 2)},
    "mask": {"attn_mask": torch.ones(7, 7).tril(2).bool()},
    "segments": {"segment_ids": torch.tensor([[0, 0, 0, 1, 1, 1, 1]] * 2)},
}


@pytest.mark.parametrize("which", HIDING)
@pytest.mark.parametrize("given", [False, True], ids=["counted", "positions"])
def test_what_hides_keys_changes_no_score_of_the_others(which, given):
    module = with_parameters(nn.TransformerXL(WIDTH, HEADS))
    q, k, v = heads_of(7, 7)
    call = dict(HIDING[which])
    if given:
        call |= {"q_positions": torch.arange(7) + 5, "k_positions": torch.arange(7) + 5}
    everything, some = module.logits(q, k), module.logits(q, k, **call)
    seen = some > -torch.inf
    assert 0 < seen.float().mean() < 1
    assert_near(some[seen].detach(), everything[seen].detach(), scale=10)
    weights = everything.masked_fill(~seen, -torch.inf).softmax(-1).detach()
    expected = weights @ v.repeat_interleave(HEADS // GROUPS, 1)
    assert_near(module.attend(q, k, v, **call).detach(), expected, scale=10)


def test_softcap_and_sinks():
    module = with_parameters(nn.TransformerXL(WIDTH, HEADS))
    q, k, v = heads_of(6, 6)
    sinks = torch.randn(HEADS).double()
    out, lse = module.attend(q, k, v, softcap=2.0, softcap_on="sum", sinks=sinks, return_lse=True)
    logits = (2.0 * (module.logits(q, k) / 2.0).tanh()).detach()
    assert_near(module.logits(q, k, softcap=2.0, softcap_on="sum").detach(), logits, scale=10)
    with_sink = torch.cat([logits, sinks[None, :, None, None].expand(2, -1, 6, 1)], -1)
    assert_near(lse.detach(), with_sink.logsumexp(-1), scale=10)
    expected = with_sink.softmax(-1)[..., :-1] @ v.repeat_interleave(HEADS // GROUPS, 1)
    assert_near(out.detach(), expected, scale=10)


def test_first_and_second_derivatives():
    module = with_parameters(nn.TransformerXL(2, 2, pos_dim=2))
    names = [name for name, _ in module.named_parameters()]
    inputs = [x.requires_grad_() for x in heads_of(2, 3, batch=1, heads=2, groups=1, width=2)]
    learned = [p.detach().clone().requires_grad_() for p in module.parameters()]

    class Attend(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.encoding = module

        def forward(self, q, k, v):
            return self.encoding.attend(q, k, v)

    attend = Attend()

    def run(q, k, v, *values):
        return torch.func.functional_call(
            attend, {f"encoding.{n}": p for n, p in zip(names, values, strict=True)}, (q, k, v)
        )

    assert gradcheck(run, (*inputs, *learned))
    assert gradgradcheck(run, (*inputs, *learned))


def test_vmap_over_the_batch():
    module = with_parameters(nn.TransformerXL(WIDTH, HEADS))
    q, k, v = (torch.stack(pair) for pair in zip(heads_of(4, 5), heads_of(4, 5), strict=True))
    mapped = torch.func.vmap(module.attend)(q, k, v)
    for one in range(2):
        assert_near(mapped[one].detach(), module.attend(q[one], k[one], v[one]).detach(), scale=10)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
def test_rows_are_float32_beside_16_bits(dtype):
    module = nn.TransformerXL(WIDTH, HEADS).to(dtype)
    q, k, _ = heads_of(5, 5, dtype=dtype)
    assert rows_of(module, q, k)[0].dtype == torch.float32
    assert module.attend(q, k, k).dtype == dtype
    with torch.autocast("cpu", torch.bfloat16):
        wide = nn.TransformerXL(WIDTH, HEADS)
        assert wide.attend(q.bfloat16(), k.bfloat16(), k.bfloat16()).dtype == torch.bfloat16


def test_initial_distribution():
    module = nn.TransformerXL(64, 16)
    for parameter in module.parameters():
        assert 0.018 < parameter.detach().std() < 0.022
        assert abs(parameter.detach().mean()) < 0.002
    before = module.pos_proj.detach().clone()
    module.reset_parameters()
    assert not torch.equal(module.pos_proj, before)
    assert [tuple(p.shape) for p in module.parameters()] == [(16, 64), (16, 64), (1024, 1024)]


def test_far_positions_are_refused():
    module, (q, k, v) = nn.TransformerXL(WIDTH, HEADS), heads_of(3, 3, dtype=torch.float32)
    positions = torch.tensor([0, 1, 2**30])
    with pytest.raises(ValueError, match=r"^TransformerXL: expected positions within 16777216 tokens of each other"):
        module.attend(q, k, v, q_positions=positions, k_positions=positions)


def test_equal_positions_everywhere_make_one_row():
    module = with_parameters(nn.TransformerXL(WIDTH, HEADS))
    q, k, v = heads_of(4, 4)
    same = torch.full((4,), 7)
    table, made = rows_of(module, q, k, q_positions=same, k_positions=same)
    assert table.shape == (HEADS, 1, WIDTH)
    assert made == 1
    expected = contextual_reference.transformer_xl(
        q, k, v, dict(module.named_parameters()), q_positions=same, k_positions=same
    )
    assert_near(module.attend(q, k, v, q_positions=same, k_positions=same).detach(), expected.detach(), scale=10)


def test_rows_do_not_depend_on_the_call():
    """The row of a distance is the same, whichever call makes it."""
    module = nn.TransformerXL(WIDTH, HEADS).double()
    q, k, _ = heads_of(9, 9)
    whole, _ = rows_of(module, q, k)
    part, _ = rows_of(module, q[:, :, :2], k[:, :, :5])
    assert whole.shape[1] == 17
    assert_near(part[:, :6].detach(), whole[:, 4:10].detach())
    assert_bits(part[:, 6:].detach(), torch.zeros(HEADS, 3, WIDTH).double())


@pytest.mark.parametrize("layout", LAYOUTS)
def test_few_queries_are_projected_instead_of_the_rows(layout):
    """In decoding, where the rows outnumber them: the same numbers, with rows that all heads share."""
    module = with_parameters(nn.TransformerXL(WIDTH, HEADS, pos_dim=6, layout=layout))
    q, k, v = heads_of(6, 9)
    assert rows_of(module, q[:, :, -1:], k)[0].shape == (17, 6)
    assert rows_of(module, q, k)[0].shape == (HEADS, 17, WIDTH)
    whole, one = module.attend(q, k, v), module.attend(q[:, :, -1:], k, v)
    assert_near(one.detach(), whole[:, :, -1:].detach(), scale=10)
    narrow, (q, k, v) = module.to(torch.bfloat16), (x.bfloat16() for x in (q, k, v))
    rounded = narrow.attend(q[:, :, -1:], k, v)
    assert rounded.dtype == torch.bfloat16
    torch.testing.assert_close(rounded.double(), one.detach(), rtol=0, atol=0.1)
