"""Positions far apart, equal, or not comparable: visibility compares them exactly."""

import math

import pytest
import torch

import posenc
from tolerances import assert_near

pytestmark = pytest.mark.kernels

LOWEST, HIGHEST = -(2**63), 2**63 - 1


def attend(q_positions, k_positions, *, values, transformed=False, **options):
    """Outputs (Tq) of equal scores over scalar values, by the kernels or by the plain form that transforms take."""
    queries, keys = torch.zeros(1, 1, len(q_positions), 4), torch.zeros(1, 1, len(k_positions), 4)
    v = torch.tensor(values, dtype=torch.float32).view(1, 1, -1, 1)

    def call(v):
        return posenc.ops.attention(
            queries, keys, v, q_positions=torch.tensor(q_positions), k_positions=torch.tensor(k_positions), **options
        )

    return (torch.func.jvp(call, (v,), (v,))[0] if transformed else call(v)).flatten()


@pytest.fixture(params=["kernels", "plain form"])
def transformed(request):
    return request.param == "plain form"


@pytest.mark.parametrize("pad", [LOWEST, -(2**53) - 1, 2**53 + 1, HIGHEST])
@pytest.mark.parametrize("queries", [4, 1], ids=["all", "decode"])
def test_the_position_of_a_masked_key_changes_nothing(pad, queries, transformed):
    mask = torch.tensor([[False, True, True, True]])
    positions = [pad, 0, 1, 2]
    rules = {"is_causal": True, "key_mask": mask, "transformed": transformed}
    out = attend(positions[-queries:], positions, values=[9.0, 1.0, 2.0, 3.0], **rules)
    near = attend([5, 0, 1, 2][-queries:], [5, 0, 1, 2], values=[9.0, 1.0, 2.0, 3.0], **rules)
    assert torch.equal(out[-min(queries, 3) :], near[-min(queries, 3) :])
    later = attend(positions[-queries:], positions, values=[9.0, 1.0, 2.0, 7.0], **rules)
    if queries > 1:  # causal: the queries at 0 and 1 do not see the key at 2
        assert torch.equal(out[1:3], later[1:3])


@pytest.mark.parametrize("base", [0, 2**53, 2**62, LOWEST + 3])
def test_integers_are_compared_exactly_wherever_they_lie(base, transformed):
    positions = [base, base + 1, base + 3]
    out = attend(positions, positions, values=[1.0, 2.0, 6.0], is_causal=True, transformed=transformed)
    assert_near(out, torch.tensor([1.0, 1.5, 3.0]))
    out = attend(positions, positions, values=[1.0, 2.0, 6.0], is_causal=True, window=2, transformed=transformed)
    assert_near(out, torch.tensor([1.0, 1.5, 6.0]))


def test_keys_at_both_ends_of_the_integers_are_outside_every_window(transformed):
    positions = [LOWEST, 0, HIGHEST]
    out = attend(positions, positions, values=[1.0, 2.0, 6.0], window=2**62, transformed=transformed)
    assert_near(out, torch.tensor([1.0, 2.0, 6.0]))


def test_a_position_that_is_not_a_number_is_neither_visible_nor_sees(transformed):
    positions = [0.0, 1.0, math.nan]
    out = attend(positions, positions, values=[1.0, 2.0, 3.0], window=2, transformed=transformed)
    assert_near(out, torch.tensor([1.5, 1.5, 0.0]))
    out = attend(positions, positions, values=[1.0, 2.0, 3.0], is_causal=True, transformed=transformed)
    assert_near(out, torch.tensor([1.0, 1.5, 0.0]))


@pytest.mark.parametrize("same", [math.inf, -math.inf, 1e300])
def test_equal_positions_see_each_other_however_large(same, transformed):
    for rules in ({"window": 2}, {"window": 1, "is_causal": True}):
        out = attend([same, 0.0], [same, 0.0], values=[1.0, 2.0], transformed=transformed, **rules)
        assert_near(out, torch.tensor([1.0, 2.0]))


@pytest.mark.parametrize("length", [5, 130])
def test_distances_that_int64_cannot_hold_are_the_longest(length, transformed):
    """ALiBi, tables and thresholds at keys as far away as can be."""
    positions = [LOWEST, *range(length - 1)]
    q = torch.zeros(1, 1, length, 4)
    table = torch.zeros(1, 7)
    table[0, 0] = 5.0  # three tokens before the query, or more
    values = torch.arange(float(length)).view(1, 1, -1, 1)
    call = {"q_positions": torch.tensor(positions), "k_positions": torch.tensor(positions), "is_causal": True}

    def run(**terms):
        def op(v):
            return posenc.ops.attention(q, q, v, **call, **terms)

        return (torch.func.jvp(op, (values,), (values,))[0] if transformed else op(values)).flatten()

    near = list(range(length))
    weights = torch.tensor([math.exp(5.0) if length - 2 - p >= 3 else 1.0 for p in positions])
    expected = (weights * torch.tensor(near, dtype=torch.float32)).sum() / weights.sum()
    assert_near(run(distance_bias=table)[-1:], expected[None], scale=10)
    assert torch.isfinite(run(alibi_slopes=torch.ones(1))).all()
