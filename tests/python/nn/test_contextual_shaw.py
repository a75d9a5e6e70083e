"""ShawRelative: the formula of arXiv 1803.02155, its tables and gradients."""

import math

import pytest
import torch

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
    "fewer_queries": (4, 6, {"is_causal": True, "scale": 0.4}),
    "padded": (6, 6, {"key_mask": PADS}),
    "window": (6, 6, {"window": 2}),
    "packed": (6, 6, {"q_positions": BY_ROW, "k_positions": BY_ROW, "segment_ids": SEGMENTS}),
    "far_apart": (6, 6, {"q_positions": torch.arange(6) + 100, "k_positions": torch.arange(6)}),
}


@pytest.mark.parametrize("which", CALLS)
@pytest.mark.parametrize("num_heads", [None, HEADS], ids=["shared", "per_head"])
@pytest.mark.parametrize("values", [True, False], ids=["values", "scores_only"])
def test_equals_the_paper(which, num_heads, values):
    q_len, k_len, call = CALLS[which]
    module = with_parameters(nn.ShawRelative(WIDTH, 2, num_heads=num_heads, values=values))
    q, k, v = (x.requires_grad_() for x in heads_of(q_len, k_len))
    expected = contextual_reference.shaw(q, k, v, module.rel_k, module.rel_v, **call)
    assert_equals(module.attend(q, k, v, **call), expected, (q, k, v, *module.parameters()))


def test_rows_of_distances_at_radius_2():
    """k = 2: distances -3..3 read rows 0 0 1 2 3 4 4."""
    module = nn.ShawRelative(1, 2, values=False).double()
    with torch.no_grad():
        module.rel_k.copy_(torch.arange(5).unsqueeze(1))
    q, k = torch.ones(1, 1, 1, 1).double(), torch.zeros(1, 1, 7, 1).double()
    rows = module.logits(q, k, q_positions=torch.tensor([3]), k_positions=torch.arange(7))
    assert rows.flatten().tolist() == [0, 0, 1, 2, 3, 4, 4]


def test_zero_tables_are_plain_attention():
    module, (q, k, v) = nn.ShawRelative(WIDTH, 2).double(), heads_of(5, 5)
    with torch.no_grad():
        module.rel_k.zero_()
        module.rel_v.zero_()
    wide = torch.nn.functional.scaled_dot_product_attention(q, k, v, enable_gqa=True)
    assert_near(module.attend(q, k, v), wide)


def test_tables_per_head_that_are_equal_are_a_shared_one():
    shared = with_parameters(nn.ShawRelative(WIDTH, 2))
    each = nn.ShawRelative(WIDTH, 2, num_heads=HEADS).double()
    with torch.no_grad():
        each.rel_k.copy_(shared.rel_k)
        each.rel_v.copy_(shared.rel_v)
    inputs = heads_of(5, 5)
    assert_near(each.attend(*inputs), shared.attend(*inputs).detach())


def test_values_of_another_width_without_rel_v():
    module, (q, k, _) = with_parameters(nn.ShawRelative(WIDTH, 2, values=False)), heads_of(5, 5)
    v = torch.randn(2, GROUPS, 5, 3).double()
    assert_near(module.attend(q, k, v), contextual_reference.shaw(q, k, v, module.rel_k).detach())


def test_initial_distribution_is_glorot_uniform():
    for num_heads in (None, 50):
        module = nn.ShawRelative(300, 100, num_heads=num_heads)
        bound = math.sqrt(6 / (201 + 300))
        for table in (module.rel_k.detach(), module.rel_v.detach()):
            assert table.shape[-2:] == (201, 300)
            assert 0.99 * bound < table.abs().max() <= bound
            assert abs(table.mean()) < 0.01 * bound
            assert 0.98 * bound < table.std() * math.sqrt(3) < 1.02 * bound
        assert not torch.equal(module.rel_k, module.rel_v)


def test_reset_draws_anew():
    module = nn.ShawRelative(4, 2)
    before = module.rel_v.detach().clone()
    module.reset_parameters()
    assert not torch.equal(module.rel_v, before)


def test_scores_only_has_no_value_table():
    module = nn.ShawRelative(4, 2, values=False)
    assert module.rel_v is None
    assert list(module.state_dict()) == ["rel_k"]


def test_values_take_part_at_the_rows_of_their_distances():
    """With zero values and uniform weights, each output is the mean of the rel_v rows that its distances read."""
    module = with_parameters(nn.ShawRelative(3, 1))
    q, k, v = torch.zeros(1, 1, 3, 3).double(), torch.randn(1, 1, 3, 3).double(), torch.zeros(1, 1, 3, 3).double()
    out = module.attend(q, k, v)[0, 0]
    table = module.rel_v
    assert_near(out[0], ((table[1] + 2 * table[2]) / 3).detach())
    assert_near(out[1], ((table[0] + table[1] + table[2]) / 3).detach())
    assert_bits(module.attend(q, k, v)[0, 0].detach(), out.detach())
