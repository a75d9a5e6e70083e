"""ReRoPE, Leaky ReRoPE and Self-Extend: distances, equality with a pairwise construction,
and with Rotary where near."""

import math

import pytest
import torch
from torch.autograd import gradcheck

import contextual_reference
import posenc
from contextual_calls import HEADS, WIDTH, assert_equals, heads_of, nn
from tolerances import DTYPES, assert_bits, assert_near

BUILD = {
    "rerope": (lambda **o: nn.ReRoPE(WIDTH, 3, **o), lambda *x, **o: contextual_reference.rerope(*x, 3, **o)),
    "leaky": (
        lambda **o: nn.ReRoPE(WIDTH, 2, leak=16.0, **o),
        lambda *x, **o: contextual_reference.rerope(*x, 2, 16.0, **o),
    ),
    "leaky_fraction": (
        lambda **o: nn.ReRoPE(WIDTH, 4, leak=2.5, **o),
        lambda *x, **o: contextual_reference.rerope(*x, 4, 2.5, **o),
    ),
    "log_scaled": (
        lambda **o: nn.ReRoPE(WIDTH, 3, log_scale_length=3, **o),
        lambda *x, **o: contextual_reference.rerope(*x, 3, None, 3, **o),
    ),
    "leaky_log_scaled": (
        lambda **o: nn.ReRoPE(WIDTH, 3, leak=3.0, log_scale_length=2, **o),
        lambda *x, **o: contextual_reference.rerope(*x, 3, 3.0, 2, **o),
    ),
    "self_extend": (
        lambda **o: nn.SelfExtend(WIDTH, group=2, window=4, **o),
        lambda *x, **o: contextual_reference.self_extend(*x, 2, 4, **o),
    ),
    "self_extend_fraction": (
        lambda **o: nn.SelfExtend(WIDTH, group=3, window=4, **o),
        lambda *x, **o: contextual_reference.self_extend(*x, 3, 4, **o),
    ),
}
every_module = pytest.mark.parametrize("name", BUILD)

PADS = torch.tensor([[False, True, True, True, True, True, True, False], [True] * 8])
BY_ROW = torch.tensor([[-7, 2, 3, 4, 30, 31, 32, 40], [0, 1, 2, 0, 1, 2, 3, 4]])
SEGMENTS = torch.tensor([[0] * 8, [0, 0, 0, 1, 1, 1, 1, 1]])

CALLS = {
    "plain": (8, 8, {}),
    "decode": (1, 8, {}),
    "fewer_queries": (3, 8, {"scale": 0.4}),
    "more_queries": (8, 5, {}),
    "not_causal": (8, 8, {"is_causal": False}),
    "padded": (8, 8, {"key_mask": PADS}),
    "hiding_window": (8, 8, {"window": 6}),
    "by_row": (8, 8, {"q_positions": BY_ROW, "k_positions": BY_ROW, "segment_ids": SEGMENTS}),
    "one_row_for_all": (2, 8, {"q_positions": torch.tensor([[100, 9]]), "k_positions": torch.arange(8) * 3}),
    "queries_given": (2, 8, {"q_positions": torch.tensor([4, 7], dtype=torch.int32)}),
}


@every_module
@pytest.mark.parametrize("which", CALLS)
def test_equals_the_pairwise_construction(name, which):
    """Each pair's score is q turned by the distance that the paper gives it, times k."""
    q_len, k_len, call = CALLS[which]
    build, reference = BUILD[name]
    q, k, v = (x.requires_grad_() for x in heads_of(q_len, k_len))
    assert_equals(build().attend(q, k, v, **call), reference(q, k, v, **call), (q, k, v))


@every_module
def test_options_of_the_rotation(name):
    build, reference = BUILD[name]
    q, k, v = (x.requires_grad_() for x in heads_of(8, 8))
    options = {"base": 50.0, "interleaved": True}
    assert_equals(build(**options).attend(q, k, v), reference(q, k, v, **options), (q, k, v))


def distances(module, q_position, k_positions):
    """The distances that a module gives, from the cosine and sine of one pair of columns whose frequency is 1."""
    k_positions = torch.tensor(k_positions)
    call = {"q_positions": torch.tensor([q_position]), "k_positions": k_positions, "scale": 1.0, "is_causal": False}
    q = torch.tensor([[[[1.0, 0.0]]]], dtype=torch.float64)
    parts = []
    for turned in ([1.0, 0.0], [0.0, 1.0]):
        k = torch.tensor(turned, dtype=torch.float64).expand(1, 1, len(k_positions), 2)
        parts.append(module.logits(q, k, **call).flatten())
    return parts


def assert_distances(module, q_position, k_positions, expected):
    cosines, sines = distances(module, q_position, k_positions)
    expected = torch.tensor(expected, dtype=torch.float64)
    torch.testing.assert_close(cosines, expected.cos(), rtol=0, atol=1e-12)
    torch.testing.assert_close(sines, expected.sin(), rtol=0, atol=1e-12)


class TestDistances:
    def test_rerope_stops_at_the_window(self):
        keys = [1000, 999, 489, 488, 487, 0]
        assert_distances(nn.ReRoPE(2, 512), 1000, keys, [0, 1, 511, 512, 512, 512])

    def test_rerope_default_window(self):
        assert nn.ReRoPE(2).window == 512

    def test_leaky_rerope_at_1000(self):
        keys = [1000, 489, 488, 472, 0]
        assert_distances(nn.ReRoPE(2, 512, leak=16.0), 1000, keys, [0, 511, 512, 513, 542.5])

    def test_self_extend_in_groups(self):
        keys = [19, 13, 12, 11, 9, 0]
        assert_distances(nn.SelfExtend(2, group=4, window=8), 20, keys, [1, 7, 8, 9, 9, 11])

    def test_self_extend_shift_may_be_a_fraction(self):
        assert_distances(nn.SelfExtend(2, group=3, window=4), 10, [10, 6, 0], [0, 3 - 2 + 4 - 4 / 3, 3 + 4 - 4 / 3])

    def test_self_extend_defaults(self):
        module = nn.SelfExtend(2)
        assert (module.group, module.window) == (8, 1024)
        assert_distances(module, 3000, [2999, 1977, 1976, 0], [1, 1023, 375 + 1024 - 128 - 247, 375 + 1024 - 128])

    def test_negative_positions_are_floored(self):
        # floor(5/4) + 2 - 2/4 less floor(-1/4), floor(-4/4), floor(-5/4)
        assert_distances(nn.SelfExtend(2, group=4, window=2), 5, [-1, -4, -5], [2.5 + 1, 2.5 + 1, 2.5 + 2])

    def test_keys_ahead_are_near(self):
        for module in (nn.ReRoPE(2, 2), nn.ReRoPE(2, 2, leak=4.0), nn.SelfExtend(2, group=4, window=2)):
            assert_distances(module, 3, [4, 100], [-1, -97])


class TestLogScale:
    def factors(self, module, positions):
        """Content scores at distance 0 are those of RoPE times the factor."""
        ones = torch.ones(1, 1, len(positions), 2).double()
        positions = torch.tensor(positions)
        logits = module.logits(ones, ones, q_positions=positions, k_positions=positions, scale=0.5)
        return logits[0, 0].diagonal().tolist()

    def test_published_value(self):
        (factor,) = self.factors(nn.ReRoPE(2, 512, log_scale_length=4096), [8191])
        assert abs(factor - 1.083333) < 1e-6

    def test_no_smaller_than_1(self):
        factors = self.factors(nn.ReRoPE(2, 512, log_scale_length=4096), [-5, -1, 0, 1, 4094, 4095, 4096])
        assert factors[:6] == pytest.approx([1.0] * 6, abs=1e-15)
        assert factors[6] == pytest.approx(math.log(4097) / math.log(4096), abs=1e-15)

    def test_far_scores_too(self):
        q, k, _ = heads_of(1, 30, batch=1)
        plain, scaled = nn.ReRoPE(WIDTH, 4), nn.ReRoPE(WIDTH, 4, log_scale_length=7)
        factor = math.log(30) / math.log(7)
        assert_near(scaled.logits(q, k), plain.logits(q, k) * factor)


ROPE = {
    "window_of_the_length": lambda: nn.ReRoPE(WIDTH, 9),
    "window_beyond": lambda: nn.ReRoPE(WIDTH, 512),
    "leak_1": lambda: nn.ReRoPE(WIDTH, 2, leak=1.0),
    "self_extend_window": lambda: nn.SelfExtend(WIDTH, group=8, window=9),
    "group_1": lambda: nn.SelfExtend(WIDTH, group=1, window=2),
}


@pytest.mark.parametrize("which", ROPE)
def test_nothing_far_is_plain_rotary(which):
    q, k, v = heads_of(9, 9)
    turned = nn.Rotary(WIDTH)(q, k)
    assert_near(ROPE[which]().attend(q, k, v), posenc.ops.attention(*turned, v, is_causal=True), scale=10)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_sides(dtype):
    q, k, _ = heads_of(3, 5, dtype=dtype)
    rotary = nn.Rotary(WIDTH)
    q_near, k_near, q_far, k_far = nn.ReRoPE(WIDTH, 7).sides(q, k)
    assert_bits(q_near, rotary(q, offset=2))
    assert_bits(k_near, rotary(k))
    assert_bits(q_far, rotary(q, positions=torch.tensor([7, 7, 7])))
    assert k_far is k, "the far key of plain ReRoPE costs nothing"

    for module in (nn.ReRoPE(WIDTH, 7, leak=4.0), nn.SelfExtend(WIDTH, group=2, window=7)):
        sides = module.sides(q, k)
        assert [x.dtype for x in sides] == [dtype] * 4
        assert [x.shape for x in sides] == [q.shape, k.shape, q.shape, k.shape]
        assert_bits(sides[0], q_near)
        assert_bits(sides[1], k_near)


@every_module
def test_derivatives_of_the_rotations(name):
    module = BUILD[name][0]()
    q, k, _ = heads_of(2, 3, batch=1, heads=2, groups=1)
    assert gradcheck(module.sides, (q.requires_grad_(), k.requires_grad_()))


@every_module
def test_rotations_are_batched_by_vmap(name):
    module = BUILD[name][0]()
    q, k = torch.randn(3, 2, HEADS, 4, WIDTH).double(), torch.randn(3, 2, HEADS, 5, WIDTH).double()
    batched = torch.func.vmap(module.sides)(q, k)
    for i in range(3):
        for all_samples, one in zip(batched, module.sides(q[i], k[i]), strict=True):
            assert_near(all_samples[i], one)


def test_registration():
    """Torch's own checks of schema, autograd, fake tensors and dynamic shapes."""
    ops, inv_freq = torch.ops.posenc, nn.ReRoPE(4).inv_freq
    q, k = torch.randn(2, 4, 3, 4, requires_grad=True), torch.randn(2, 2, 5, 4, requires_grad=True)
    for op, args, options in [
        (ops._rerope_qk.default, (q, k, inv_freq), {"window": 3, "log_scale_length": 4}),
        (ops._leaky_rerope_qk.default, (q, k, inv_freq, inv_freq / 2), {"window": 3, "leak": 2.0}),
        (ops._self_extend_qk.default, (q, k, inv_freq), {"group": 2, "window": 3, "k_positions": torch.arange(5)}),
    ]:
        torch.library.opcheck(op, args, options)


def test_autocast_leaves_the_rotations_alone():
    q, k, _ = heads_of(3, 3, dtype=torch.float32)
    module = nn.ReRoPE(WIDTH, 2, log_scale_length=2)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        inside = module.sides(q, k)
    for ours, outside in zip(inside, module.sides(q, k), strict=True):
        assert_bits(ours, outside)
