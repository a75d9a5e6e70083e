"""Exactness of float32 over rows of 10^5 keys and with large scores, against the same sums in float64.

A sum is off by its rounding errors, which are relative to what is summed: gradients whose terms cancel are compared
relative to the sum of their sizes.
"""

import functools
import math

import pytest
import torch

import posenc
from attention_calls import call, every_op

pytestmark = pytest.mark.kernels

KEYS, WIDTH = 100_000, 32
FEW, MANY = 4, 16  # queries: those of decoding, and more
EPSILON = torch.finfo(torch.float32).eps


def in_float64(query, key, value, grad, slope):
    """Of a causal head, the queries being its last tokens: (out, lse, gradients of query, key, value and slope), and
    the sums of the sizes of what the gradients are sums of."""
    query, key, value, grad = (x.double() for x in (query, key, value, grad))
    scale = query.shape[3] ** -0.5
    distance = torch.arange(key.shape[2] - query.shape[2], key.shape[2])[:, None] - torch.arange(key.shape[2])
    scores = (query @ key.mT * scale - slope * distance).masked_fill(distance < 0, -math.inf)
    lse = scores.logsumexp(-1, keepdim=True)
    weights = (scores - lse).exp()
    out = weights @ value
    of_scores = weights * (grad @ value.mT - (grad * out).sum(-1, keepdim=True))

    def sums(of_scores, query, key, grad):
        of_query, of_key = of_scores @ key * scale, of_scores.mT @ query * scale
        return of_query, of_key, weights.mT @ grad, -(of_scores * distance).sum().view(1)

    return out, lse[..., 0], sums(of_scores, query, key, grad), sums(*(x.abs() for x in (of_scores, query, key, grad)))


def even(queries):
    """Weights of about 1 / keys."""
    return torch.randn(1, 1, queries, WIDTH) / 4, torch.randn(1, 1, KEYS, WIDTH)


def peaked(queries):
    """Weights that a few hundred keys share."""
    query, key = even(queries)
    return 12 * query, key


def rising(queries):
    """Scores that rise towards key 0, so that the maximum grows with every tile of keys on the way there."""
    query, key = even(queries)
    query[..., 0] = math.sqrt(WIDTH)
    key[..., 0] = torch.linspace(6, 0, KEYS)
    return query, key


def falling(queries):
    query, key = rising(queries)
    return query, key.flip(2)


CASES = {
    "even": (even, 0.0),
    "even_slope": (even, 1e-5),
    "peaked": (peaked, 0.0),
    "rising": (rising, 0.0),
    "falling": (falling, 0.0),
    "falling_slope": (falling, 2.0**-8),
}
every_case = pytest.mark.parametrize("case", CASES)
every_length = pytest.mark.parametrize("queries", [FEW, MANY])


@functools.lru_cache(maxsize=1)
def results(case, queries):
    """(out, lse, gradients) of the op, and in_float64()."""
    make, slope = CASES[case]
    torch.manual_seed(0)
    query, key = make(queries)
    # Of a mean other than 0, so that out is no sum that cancels.
    tensors = [x.requires_grad_() for x in (query, key, 1 + torch.randn(1, 1, KEYS, WIDTH))]
    slopes = {"alibi_slopes": torch.tensor([slope], requires_grad=True)} if slope else {}
    out, lse = posenc.ops.attention(*tensors, is_causal=True, **slopes, return_lse=True)
    grad = torch.randn_like(out)
    ours = (out.detach(), lse.detach(), torch.autograd.grad(out, [*tensors, *slopes.values()], grad))
    return ours, in_float64(*(x.detach() for x in tensors), grad, slope)


@every_case
@every_length
def test_out_of_long_rows(case, queries):
    (out, lse, _), (expected, expected_lse, _, _) = results(case, queries)
    off = (out.double() - expected).abs().amax(-1) / expected.abs().amax(-1)
    assert off.max() < 2e-6
    torch.testing.assert_close(lse.double(), expected_lse, rtol=1e-6, atol=2e-6)


@every_case
@every_length
def test_gradients_of_long_rows(case, queries):
    (_, _, grads), (_, _, expected, sizes) = results(case, queries)
    for name, grad, e, size in zip(("query", "key", "value", "slope"), grads, expected, sizes):
        scale = e.abs().max() if name in ("key", "value") else size.abs().max()
        assert (grad.double() - e).abs().max() < 1e-5 * scale, name


@every_length
@pytest.mark.parametrize("sign", [1, -1])
def test_scores_of_ten_thousand(queries, sign):
    """Within 1e4 float32 epsilons, what a score of 1e4 is rounded to."""
    query, key = torch.randn(1, 1, queries, WIDTH).sign() * 100, torch.randn(1, 1, 3000, WIDTH) / 100
    key += sign * math.sqrt(WIDTH) * 100 / WIDTH * query[:, :, -1:].sign()
    tensors = [x.requires_grad_() for x in (query, key, torch.randn(1, 1, 3000, WIDTH))]
    out, lse = posenc.ops.attention(*tensors, is_causal=True, return_lse=True)
    grad = torch.randn_like(out)
    expected, expected_lse, gradients, sizes = in_float64(*(x.detach() for x in tensors), grad, 0.0)
    assert expected_lse.abs().max() > 1e4 - 100
    bound = 1e4 * EPSILON
    assert (out.detach() - expected).abs().max() < bound * tensors[2].detach().abs().max()
    assert (lse.detach() - expected_lse).abs().max() < bound
    for ours, theirs, size in zip(torch.autograd.grad(out, tensors, grad), gradients, sizes):
        assert (ours - theirs).abs().max() < 2 * bound * size.max()


@every_op
def test_large_scores_of_several_tiles_stay_finite(op):
    q, k, v = (torch.randn(1, 2, 200, 8) for _ in range(3))
    leaves = [x.requires_grad_() for x in (100 * q.sign(), 100 * k.sign(), v)]
    out, lse = call(op, *leaves, return_lse=True)
    assert out.isfinite().all() and lse.isfinite().all()
    assert lse.detach().abs().max() > 1e4
    for grad in torch.autograd.grad(out.sum(), leaves):
        assert grad.isfinite().all()


def laid_out(x, layout):
    """x (B, H, T, D), as some memory holds it."""
    if layout == "tokens first":
        return x.transpose(1, 2).contiguous().transpose(1, 2)
    if layout == "columns apart":
        return x.repeat_interleave(2, dim=3)[..., ::2]
    if layout == "odd rows apart":
        return torch.cat([x, x[..., :1], x[..., :1]] if x.shape[3] % 2 else [x, x[..., :1]], dim=3)[..., : x.shape[3]]
    return x


@pytest.mark.parametrize("layout", ["contiguous", "tokens first", "columns apart", "odd rows apart"])
@pytest.mark.parametrize("width", [1, 2, 3, 31, 64, 65])
def test_scores_of_bfloat16_are_exact_as_those_of_float32(width, layout):
    """Products of bfloat16 numbers are exact, however a processor multiplies them: lse, which nothing rounds to 16
    bits, is as good as that of float32, and a gradient that many keys or queries add to is rounded once."""
    value_width = width + 2
    q, k = (laid_out(torch.randn(2, h, 200, width).bfloat16(), layout) for h in (4, 2))
    v = laid_out(torch.randn(2, 2, 200, value_width).bfloat16(), layout)
    grad = laid_out(torch.randn(2, 4, 200, value_width).bfloat16(), layout)
    leaves, wide = ([x.detach().to(t).requires_grad_() for x in (q, k, v)] for t in (torch.bfloat16, torch.float64))
    results = []
    for inputs in (leaves, wide):
        out, lse = posenc.ops.attention(*inputs, is_causal=True, scale=0.3, return_lse=True)
        results.append((lse, *torch.autograd.grad(out, inputs, grad.to(out.dtype))))
    (lse, *gradients), (expected_lse, *expected) = results
    assert (lse.double() - expected_lse).abs().max() <= 2e-6 * expected_lse.abs().max()
    for result, e in zip(gradients, expected, strict=True):
        # Half a unit in the last of eight bits, and what sums of float32 lose.
        torch.testing.assert_close(result.double(), e, rtol=2**-8, atol=1e-5 * e.abs().max().item())
