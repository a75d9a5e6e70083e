"""Frequencies against plain references and published numbers, and the edges of every formula."""

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import scaling_reference as reference
from posenc import scaling
from posenc.scaling import frequencies
from scaling_cases import CASES, IDS

DIM = 64


def thetas(dim, base, value, seq_len=None) -> list[float]:
    inv_freq, _ = frequencies(dim, base, value, seq_len)
    assert inv_freq.dtype == torch.float64
    assert inv_freq.shape == (dim // 2,)
    return inv_freq.tolist()


def multipliers(dim, base, value) -> list[float]:
    return [scaled / plain for scaled, plain in zip(thetas(dim, base, value), reference.plain(dim, base))]


@pytest.mark.parametrize("base", [10000.0, 500000.0])
@pytest.mark.parametrize(("cls", "arguments", "formula"), CASES, ids=IDS)
def test_every_scaling_equals_its_formula(cls, arguments, formula, base):
    assert thetas(DIM, base, cls(**arguments)) == pytest.approx(formula(DIM, base, **arguments), rel=1e-13, abs=0)


@pytest.mark.parametrize("seq_len", [None, 0, 1, 4095, 4096, 4097, 100_000])
@pytest.mark.parametrize(
    ("cls", "arguments", "formula"), [case for case in CASES if scaling.depends_on_length(case[0](**case[1]))]
)
def test_length_dependent_scalings_at_every_length(cls, arguments, formula, seq_len):
    expected = formula(DIM, 10000.0, **arguments, seq_len=seq_len)
    assert thetas(DIM, 10000.0, cls(**arguments), seq_len) == pytest.approx(expected, rel=1e-12, abs=0)


@pytest.mark.parametrize(("cls", "arguments", "formula"), CASES, ids=IDS)
def test_other_scalings_ignore_the_length(cls, arguments, formula):
    value = cls(**arguments)
    equal = thetas(DIM, 10000.0, value, 1_000_000) == thetas(DIM, 10000.0, value)
    assert equal != scaling.depends_on_length(value)


def test_plain_rope():
    assert thetas(8, 10000.0, None) == pytest.approx([1.0, 0.1, 0.01, 0.001], rel=1e-15)
    assert frequencies(8)[1] == 1.0


@pytest.mark.parametrize("exact", [True, False])
def test_width_zero_has_no_frequencies(exact):
    inv_freq, attention_scaling = frequencies(0, scaling=scaling.Yarn(4, 8192), exact=exact)
    assert inv_freq.shape == (0,)
    assert attention_scaling == pytest.approx(1.138629, abs=1e-6)
    assert frequencies(0, scaling=scaling.NTK(2), exact=exact)[0].shape == (0,)


@pytest.mark.parametrize("exact", [True, False])
@pytest.mark.parametrize(("cls", "arguments", "formula"), CASES, ids=IDS)
def test_width_two_gives_one_finite_frequency_or_says_why_not(cls, arguments, formula, exact):
    value = cls(**arguments)
    if isinstance(value, scaling.LongRoPE):
        value = scaling.LongRoPE([2.0], [4.0], 4096)
    if isinstance(value, scaling.NTK | scaling.DynamicNTK):
        with pytest.raises(ValueError, match=r"dim to be above 2 for .*NTK"):
            frequencies(2, scaling=value, exact=exact)
    else:
        inv_freq, _ = frequencies(2, scaling=value, exact=exact)
        assert inv_freq.shape == (1,)
        assert inv_freq.isfinite().all()


@pytest.mark.parametrize("dim", [1, 33, 65, -2])
def test_odd_or_negative_width_is_refused(dim):
    with pytest.raises(ValueError, match=f"expected dim to be even and at least 0, but got {dim}"):
        frequencies(dim)


@pytest.mark.parametrize("base", [0.0, -10000.0, math.inf, math.nan])
def test_impossible_base_is_refused(base):
    with pytest.raises(ValueError, match="expected base to be positive and finite"):
        frequencies(8, base)


def test_base_one_has_no_yarn_ramp():
    with pytest.raises(ValueError, match="expected base to be above 1 for Yarn"):
        frequencies(8, 1.0, scaling.Yarn(4, 64))
    assert thetas(8, 1.0, scaling.Yarn(4, 64, ramp="turns")) == pytest.approx(
        reference.ntk_by_parts(8, 1.0, 4, 64), rel=1e-14
    )


def test_negative_length_is_refused():
    with pytest.raises(ValueError, match="expected seq_len to be at least 0, but got -1"):
        frequencies(8, scaling=scaling.DynamicNTK(2, 16), seq_len=-1)


@pytest.mark.parametrize(("factor", "base"), [(2, 20221.26), (4, 40889.94), (8, 82684.62)])
def test_ntk_base(factor, base):
    found = thetas(128, 10000.0, scaling.NTK(factor))
    assert found[1] ** (-128 / 2) == pytest.approx(base, abs=0.005)
    assert found[0] == 1.0
    assert found[-1] == pytest.approx(10000.0 ** (-126 / 128) / factor, rel=1e-13)


@pytest.mark.parametrize(("factor", "base"), [(2, 30527.74), (1, 20221.26)])
def test_dynamic_ntk_base_at_twice_the_length(factor, base):
    found = thetas(128, 10000.0, scaling.DynamicNTK(factor, 4096), 8192)
    assert found[1] ** (-128 / 2) == pytest.approx(base, abs=0.005)


def test_dynamic_ntk_has_no_effect_up_to_the_original_length():
    value = scaling.DynamicNTK(2.7, 16)
    for seq_len in (None, 0, 3, 16):
        assert thetas(8, 10000.0, value, seq_len) == thetas(8, 10000.0, None)


def test_dynamic_ntk_turns_a_key_differently_one_token_later():
    value = scaling.DynamicNTK(2, 16)
    after, before = (thetas(8, 10000.0, value, length)[1] for length in (17, 16))
    assert after == pytest.approx(0.0961500, abs=5e-8)
    assert math.cos(15 * after) == pytest.approx(0.1281930, abs=5e-7)
    assert math.cos(15 * before) == pytest.approx(0.0707372, abs=5e-7)
    assert scaling.depends_on_length(value)


@pytest.mark.parametrize(
    ("arguments", "magnitude", "softmax_scale"),
    [
        ({"factor": 128, "attention_factor": 1.4852030}, 1.4852030, 1.0),
        ({"factor": 128}, 1.4852030, 1.0),
        ({"factor": 40, "mscale": 1, "mscale_all_dim": 1}, 1.0, 1.8738542),
        ({"factor": 40, "mscale": 1, "mscale_all_dim": 0}, 1.3688879, 1.0),
        ({"factor": 40, "mscale": 0.707, "mscale_all_dim": 0.707}, 1.0, 1.5896262),
        ({"factor": 40, "mscale_all_dim": 1}, 1.3688879, 1.8738542),
        ({"factor": 40, "mscale": 0.707}, 1.3688879, 1.0),
        ({"factor": 1, "mscale": 3, "mscale_all_dim": 2}, 1.0, 1.0),
        ({"factor": 0.5}, 1.0, 1.0),
    ],
)
def test_yarn_magnitude_and_softmax_scale(arguments, magnitude, softmax_scale):
    value = scaling.Yarn(original_max_positions=4096, **arguments)
    for exact in (True, False):
        assert frequencies(64, scaling=value, exact=exact)[1] == pytest.approx(magnitude, abs=5e-7)
    assert scaling.attention_scaling(value) == pytest.approx(magnitude, abs=5e-7)
    assert value.softmax_scale() == pytest.approx(softmax_scale, abs=5e-7)


@pytest.mark.parametrize(
    ("factor", "magnitude"),
    [(4, 1.138629), (16, 1.277259), (32, 1.346574), (40, 1.368888), (128, 1.485203), (1, 1.0)],
)
def test_yarn_magnitude_by_factor(factor, magnitude):
    assert scaling.attention_scaling(scaling.Yarn(factor, 4096)) == pytest.approx(magnitude, abs=5e-7)


def test_yarn_tutorial_magnitude_is_an_attention_factor():
    magnitude = (0.1 * math.log(16) + 1) * 0.707
    inv_freq, attention_scaling = frequencies(128, 10000.0, scaling.Yarn(16, 4096, attention_factor=magnitude))
    assert attention_scaling == pytest.approx(0.903022, abs=5e-7)
    assert torch.equal(inv_freq, frequencies(128, 10000.0, scaling.Yarn(16, 4096))[0])


@pytest.mark.parametrize(
    ("original", "factor", "expected"),
    [
        (64, 4, [1, 0.625, 0.25, 0.25]),
        (4, 4, [1, 0.25, 0.25, 0.25]),
        (163840, 4, [1, 1, 1, 0.75]),
        (64, 1, [1, 1, 1, 1]),
        (4, 1, [1, 1, 1, 1]),
        (163840, 1, [1, 1, 1, 1]),
    ],
)
def test_yarn_ramp_edges(original, factor, expected):
    assert multipliers(8, 10000.0, scaling.Yarn(factor, original)) == pytest.approx(expected, rel=1e-13)


@pytest.mark.parametrize("exact", [True, False])
@pytest.mark.parametrize("original", [1, 2, 6, 7, 10**6, 10**9, 10**12, 10**15])
def test_tiny_and_huge_original_lengths_stay_finite(original, exact):
    for dim in (2, 4, 8, 128):
        for ramp in ("dims", "turns"):
            for truncate in (True, False):
                value = scaling.Yarn(4, original, ramp=ramp, truncate=truncate)
                inv_freq, _ = frequencies(dim, scaling=value, exact=exact)
                plain = frequencies(dim, exact=exact)[0]
                assert inv_freq.isfinite().all()
                assert ((inv_freq <= plain * (1 + 1e-6)) & (inv_freq >= plain / 4 * (1 - 1e-6))).all()


# d = 128, base 1e4, L0 = 4096, s = 16: the authors' ramp in dims and the paper's in turns.
YARN_TABLE = {
    20: (5.623413e-2, 5.623413e-2),
    21: (4.694086e-2, 4.832173e-2),
    30: (8.526844e-3, 3.935989e-3),
    33: (4.600435e-3, 1.757736e-3),
    40: (8.817890e-4, 2.991557e-4),
    45: (1.517716e-4, 9.642592e-5),
    46: (8.334509e-5, 8.334509e-5),
    63: (7.217387e-6, 7.217387e-6),
}


def test_yarn_table_of_both_ramps():
    dims = thetas(128, 10000.0, scaling.Yarn(16, 4096))
    turns = thetas(128, 10000.0, scaling.Yarn(16, 4096, ramp="turns"))
    for k, (by_dims, by_turns) in YARN_TABLE.items():
        assert dims[k] == pytest.approx(by_dims, rel=5e-7)
        assert turns[k] == pytest.approx(by_turns, rel=5e-7)
    assert turns == thetas(128, 10000.0, scaling.NTKByParts(16, 4096))


def test_yarn_of_deepseek_v3():
    value = scaling.Yarn(40, 4096, mscale=1, mscale_all_dim=1)
    found = thetas(64, 10000.0, value)
    assert [found[k] for k in (16, 22, 23)] == pytest.approx([5.5e-3, 1.778279e-4, 3.333804e-5], rel=5e-7)
    assert value.softmax_scale() == pytest.approx(1.873854, abs=5e-7)


def test_yarn_of_gpt_oss():
    for truncate, expected in ((False, [3.170570e-2, 1.293187e-4]), (True, [3.162075e-2, 2.279478e-4])):
        found = thetas(64, 150000.0, scaling.Yarn(32, 4096, truncate=truncate))
        assert [found[9], found[17]] == pytest.approx(expected, rel=5e-7)


@pytest.mark.parametrize(
    ("base", "original", "low", "high"),
    [(1e4, 4096, 20, 46), (1e4, 2048, 16, 41), (5e5, 8192, 18, 35), (1e6, 32768, 23, 40)],
)
def test_yarn_ramp_bounds(base, original, low, high):
    found = multipliers(128, base, scaling.Yarn(4, original))
    assert [k for k in range(64) if found[k] < 1 - 1e-12][0] == low + 1
    assert [k for k in range(64) if found[k] <= 0.25 + 1e-12][0] == high


def test_yarn_with_one_boundary_is_a_step():
    value = scaling.Yarn(4, 64, beta_fast=2, beta_slow=2, truncate=False)
    assert multipliers(8, 10000.0, value) == pytest.approx([1, 0.25, 0.25, 0.25], rel=1e-12)
    by_parts = scaling.NTKByParts(4, 64, beta_fast=2, beta_slow=2)
    assert multipliers(8, 10000.0, by_parts) == pytest.approx([1, 0.25, 0.25, 0.25], rel=1e-12)


@pytest.mark.parametrize("exact", [True, False])
def test_long_rope_looks_at_the_length_and_not_at_the_configured_maximum(exact):
    value = scaling.LongRoPE([1, 1], [2, 4], 8, factor=4)
    for seq_len in (None, 0, 4, 8):
        assert frequencies(4, 10000.0, value, seq_len, exact)[0].tolist() == pytest.approx([1, 0.01], rel=1e-7)
    for seq_len in (9, 12, 32):
        assert frequencies(4, 10000.0, value, seq_len, exact)[0].tolist() == pytest.approx([0.5, 0.0025], rel=1e-7)


def test_a_batch_takes_the_list_of_its_longest_row():
    positions = torch.tensor([[0, 1, 2, 3], [8, 9, 10, 11]])
    value = scaling.LongRoPE([1, 1], [2, 4], 8)
    assert thetas(4, 10000.0, value, int(positions.max()) + 1) == pytest.approx([0.5, 0.0025], rel=1e-12)


def test_lists_of_wrong_length_are_refused():
    with pytest.raises(ValueError, match="one number per pair each, but got 2 and 3"):
        scaling.LongRoPE([1, 1], [2, 4, 8], 8)
    with pytest.raises(ValueError, match=r"dim / 2 = 2 numbers for dim 4, but got 3"):
        frequencies(4, scaling=scaling.LongRoPE([1, 1, 1], [2, 4, 8], 8))


@pytest.mark.parametrize(
    ("arguments", "magnitude"),
    [
        ({"factor": 32, "original_max_positions": 4096}, 1.190238),
        ({"factor": 8, "original_max_positions": 8192}, 1.109400),
        ({"factor": 1, "original_max_positions": 4096}, 1.0),
        ({"factor": 0.5, "original_max_positions": 4096}, 1.0),
        ({"original_max_positions": 4096}, 1.0),
        ({"factor": 32, "original_max_positions": 4096, "attention_factor": 1.24}, 1.24),
    ],
)
def test_long_rope_magnitude_and_its_override(arguments, magnitude):
    value = scaling.LongRoPE([1.0], [2.0], **arguments)
    assert frequencies(2, scaling=value)[1] == pytest.approx(magnitude, abs=5e-7)


# d = 128, base 5e5, s = 8, L0 = 8192.
LLAMA3_TABLE = {
    28: 3.211446e-3,
    29: 2.166571e-3,
    30: 1.371894e-3,
    31: 8.567514e-4,
    32: 5.248462e-4,
    33: 3.126938e-4,
    34: 1.785078e-4,
    35: 9.556212e-5,
    63: 3.068926e-7,
}


def test_llama3_table():
    found, plain = thetas(128, 500000.0, scaling.Llama3(8, 8192)), thetas(128, 500000.0, None)
    for k, expected in LLAMA3_TABLE.items():
        assert found[k] == pytest.approx(expected, rel=5e-7)
    assert found[:29] == plain[:29]
    assert found[35:] == [theta / 8 for theta in plain[35:]]


@pytest.mark.parametrize("exact", [True, False])
def test_llama3_with_equal_factors_is_a_step_and_never_nan(exact):
    value = scaling.Llama3(16, 8192, low_freq_factor=1, high_freq_factor=1)
    found = frequencies(128, 500000.0, value, exact=exact)[0]
    plain = frequencies(128, 500000.0, exact=exact)[0]
    kept = 8192 * plain / (2 * math.pi) > 1
    torch.testing.assert_close(found, torch.where(kept, plain, plain / 16), rtol=0, atol=0)
    assert 0 < kept.sum() < 64


def test_llama3_exactly_at_equal_factors_counts_as_slow():
    at_edge = 4096 / (2 * math.pi)  # turns of pair 0, whose frequency is 1
    value = scaling.Llama3(8, 4096, low_freq_factor=at_edge, high_freq_factor=at_edge)
    assert thetas(2, 10000.0, value) == pytest.approx([1 / 8], rel=1e-14)


def test_p_rope_keeps_the_fastest_pairs():
    assert thetas(8, 10000.0, scaling.PRoPE(0.75)) == pytest.approx([1, 0.1, 0.01, 0], rel=1e-14)
    assert thetas(8, 10000.0, scaling.PRoPE(1)) == thetas(8, 10000.0, None)
    assert thetas(8, 10000.0, scaling.PRoPE(0)) == [0.0] * 4


def test_proportional_of_gemma4():
    found = thetas(512, 1e6, scaling.Proportional(0.25))
    assert found[:64] == pytest.approx([1e6 ** (-2 * k / 512) for k in range(64)], rel=1e-14)
    assert found[64:] == [0.0] * 192


def test_truncated_basis_table():
    found = thetas(128, 10000.0, scaling.TruncatedBasis(2048))
    assert sum(theta >= 3.067962e-3 for theta in found) == 41
    assert [theta for theta in found if 0 < theta < 3.0e-3] == pytest.approx([1.917476e-4] * 14, rel=5e-7)
    assert found.count(0.0) == 9


@pytest.mark.parametrize(("power", "expected"), [(0.5, 7.071068e-3), (0.1, 9.330330e-3), (0, 1e-2)])
def test_power_basis_table(power, expected):
    assert thetas(128, 10000.0, scaling.PowerBasis(power))[32] == pytest.approx(expected, rel=5e-7)


def test_linear_is_position_interpolation():
    assert 6 * thetas(8, 10000.0, scaling.Linear(4))[0] == 1.5


factors = st.floats(1.0, 1000.0)
lengths = st.integers(1, 10**7)


@given(
    dim=st.integers(1, 128).map(lambda n: 2 * n),
    base=st.floats(1.5, 1e8),
    factor=factors,
    original=lengths,
    betas=st.tuples(st.floats(0.01, 1000.0), st.floats(0.01, 1000.0)).map(sorted),
    truncate=st.booleans(),
    ramp=st.sampled_from(["dims", "turns"]),
)
def test_yarn_equals_its_formula_everywhere(dim, base, factor, original, betas, truncate, ramp):
    slow, fast = betas
    value = scaling.Yarn(factor, original, fast, slow, truncate=truncate, ramp=ramp)
    expected = reference.yarn(dim, base, factor, original, fast, slow, truncate, ramp)
    assert thetas(dim, base, value) == pytest.approx(expected, rel=1e-9)


@given(
    dim=st.integers(1, 128).map(lambda n: 2 * n),
    base=st.floats(1.5, 1e8),
    factor=factors,
    original=lengths,
    low_high=st.tuples(st.floats(0.01, 100.0), st.floats(0.01, 100.0)).map(sorted),
)
def test_llama3_equals_its_formula_everywhere(dim, base, factor, original, low_high):
    low, high = low_high
    found = thetas(dim, base, scaling.Llama3(factor, original, low, high))
    assert found == pytest.approx(reference.llama3(dim, base, factor, original, low, high), rel=1e-6)
    assert all(math.isfinite(theta) for theta in found)
