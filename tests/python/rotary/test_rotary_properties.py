"""Properties of a rotation that hold for every input, searched by hypothesis."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import layouts
import posenc
import reference
from tolerances import DTYPES, assert_bits, assert_near

pytestmark = pytest.mark.kernels

sizes = st.integers(1, 5)
pair_counts = st.integers(0, 20)
position = st.integers(-(10**6), 10**6)
seeds = st.integers(0, 2**31)


def normal(seed, *shape, dtype=torch.float64):
    return torch.randn(shape, dtype=torch.float64, generator=torch.Generator().manual_seed(seed)).to(dtype)


@st.composite
def rotations(draw):
    """Two (B, H, T, D) tensors of any layouts, positions, frequencies and the rule of one call."""
    batch, heads, groups, length = draw(sizes), draw(sizes), draw(sizes), draw(st.integers(1, 9))
    pairs, tail = draw(pair_counts), draw(st.integers(0, 3))
    dtype = draw(st.sampled_from(DTYPES))
    torch.manual_seed(draw(seeds))
    width = 2 * pairs + tail
    q = layouts.make(draw(st.sampled_from(sorted(layouts.LAYOUTS))), (batch, heads, length, width), dtype)
    k = layouts.make(draw(st.sampled_from(sorted(layouts.LAYOUTS))), (batch, groups, length, width), dtype)
    shape = draw(st.sampled_from([(length,), (batch, length), (1, length)]))
    positions = torch.randint(-5000, 5000, shape)
    if draw(st.booleans()):
        positions = positions.double() / 8
    rule = {
        "attention_scaling": draw(st.sampled_from([1.0, 0.5, 1.375])),
        "interleaved": draw(st.booleans()),
        "inverse": draw(st.booleans()),
    }
    return q, k, positions, torch.rand(pairs, dtype=torch.float64), rule


@given(rotations())
def test_any_call_gives_the_reference(rotation):
    q, k, positions, inv_freq, rule = rotation
    for x, y in zip((q, k), posenc.ops.rotary_qk(q, k, positions, inv_freq, **rule), strict=True):
        expected = reference.rotary(x, positions, inv_freq, **rule)
        # angles near 5000 leave 5000 * 2^-53 = 6e-13 of float64
        assert_near(y, expected, scale=4)
        assert y.stride() == torch.empty_like(x).stride()
        assert_bits(y, posenc.ops.rotary(x.contiguous(), positions, inv_freq, **rule))


@given(seed=seeds, pairs=pair_counts, interleaved=st.booleans(), m=position, n=position, shift=position)
def test_scores_depend_on_distance_alone(seed, pairs, interleaved, m, n, shift):
    q, k = normal(seed, 1, 1, 1, 2 * pairs), normal(seed + 1, 1, 1, 1, 2 * pairs)
    inv_freq = reference.inverse_frequencies(2 * pairs)

    def score(m, n):
        q_rotated = posenc.ops.rotary(q, None, inv_freq, offset=m, interleaved=interleaved)
        k_rotated = posenc.ops.rotary(k, None, inv_freq, offset=n, interleaved=interleaved)
        return (q_rotated * k_rotated).sum()

    torch.testing.assert_close(score(m + shift, n + shift), score(m, n), rtol=0, atol=1e-7)


@given(seed=seeds, pairs=pair_counts, tail=st.integers(0, 3), interleaved=st.booleans(), p=position)
def test_norms_are_kept_and_scaled_by_the_magnitude(seed, pairs, tail, interleaved, p):
    x, inv_freq = normal(seed, 2, 3, 4, 2 * pairs + tail), reference.inverse_frequencies(2 * pairs)
    y = posenc.ops.rotary(x, None, inv_freq, offset=p, interleaved=interleaved)
    torch.testing.assert_close(y.norm(dim=-1), x.norm(dim=-1), rtol=1e-12, atol=0)
    y = posenc.ops.rotary(x, None, inv_freq, offset=p, interleaved=interleaved, attention_scaling=1.5)
    width = 2 * pairs
    torch.testing.assert_close(y[..., :width].norm(dim=-1), 1.5 * x[..., :width].norm(dim=-1), rtol=1e-12, atol=0)


@given(seed=seeds, pairs=pair_counts, interleaved=st.booleans(), p=position)
def test_the_inverse_undoes(seed, pairs, interleaved, p):
    x, inv_freq = normal(seed, 2, 3, 4, 2 * pairs + 1), reference.inverse_frequencies(2 * pairs)
    rule = {"offset": p, "interleaved": interleaved}
    back = posenc.ops.rotary(posenc.ops.rotary(x, None, inv_freq, **rule), None, inv_freq, inverse=True, **rule)
    torch.testing.assert_close(back, x, rtol=1e-12, atol=1e-12)


@given(seed=seeds, pairs=pair_counts, a=st.integers(-1000, 1000), b=st.integers(-1000, 1000))
def test_rotations_add(seed, pairs, a, b):
    x, inv_freq = normal(seed, 1, 2, 3, 2 * pairs), reference.inverse_frequencies(2 * pairs)
    steps = [torch.full((3,), p) for p in (a, b, a + b)]
    twice = posenc.ops.rotary(posenc.ops.rotary(x, steps[0], inv_freq), steps[1], inv_freq)
    torch.testing.assert_close(twice, posenc.ops.rotary(x, steps[2], inv_freq), rtol=1e-11, atol=1e-11)


@given(seed=seeds, pairs=st.integers(1, 20), interleaved=st.booleans())
def test_the_gradient_is_the_transpose(seed, pairs, interleaved):
    """<rotate(x), g> = <x, rotate^T(g)>, whatever x and g."""
    x, g = normal(seed, 1, 2, 3, 2 * pairs).requires_grad_(), normal(seed + 1, 1, 2, 3, 2 * pairs)
    inv_freq = reference.inverse_frequencies(2 * pairs)
    y = posenc.ops.rotary(x, None, inv_freq, interleaved=interleaved, offset=7)
    (transposed,) = torch.autograd.grad(y, x, g)
    torch.testing.assert_close((y * g).sum(), (x * transposed).sum(), rtol=1e-12, atol=1e-12)
