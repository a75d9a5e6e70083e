"""Positions on two axes: places far apart, places of any order, decoding, and what goes by index beside them."""

import pytest
import torch

import posenc
from devices import each_device
from processes import python
from tolerances import assert_near

pytestmark = [pytest.mark.kernels, each_device]

HEADS, WIDTH = 3, 16


def operands(tokens, queries=None, dtype=torch.float64):
    q, k, v = (torch.randn(2, HEADS, n, WIDTH, dtype=dtype) for n in (queries or tokens, tokens, tokens))
    return q, k, v


def picture(height, width):
    token = torch.arange(height * width)
    return torch.stack([token // width, token % width])


def tables(height, width, dtype=torch.float64):
    return (
        torch.randn(HEADS, 2 * height - 1, 2 * width - 1, dtype=dtype),
        torch.randn(2 * height - 1, WIDTH, dtype=dtype),
        torch.randn(HEADS, 2 * width - 1, WIDTH, dtype=dtype),
    )


def clipped(distance, entries):
    radius = entries // 2
    return radius + distance.clamp(-radius, radius)


def added(q, q_places, k_places, grid_bias, rel_y, rel_x):
    """(B, H, Tq, Tk): what the terms add."""
    dy, dx = (k_places[axis] - q_places[axis][:, None] for axis in range(2))
    bias = grid_bias[:, clipped(dy, grid_bias.shape[1]), clipped(dx, grid_bias.shape[2])]
    for d, table in ((dy, rel_y), (dx, rel_x)):
        products = q @ table.transpose(-1, -2)
        index = clipped(d, table.shape[-2]).expand(*products.shape[:3], d.shape[1])
        bias = bias + products.gather(-1, index)
    return bias


def both_ways(q, k, v, q_places, k_places, terms, **rules):
    """Results and gradients of the terms, and of the same as a materialised bias."""
    leaves = [x.requires_grad_() for x in (q, k, v, *terms)]
    places = {"q_positions": q_places, "k_positions": k_places}
    fused = posenc.ops.relative_attention(
        q, k, v, (terms[1], terms[2]), rel_scale=1.0, grid_bias=terms[0], **places, **rules
    )
    plain = posenc.ops.attention(q, k, v, bias=added(q, q_places, k_places, *terms), **rules)
    grad = torch.randn_like(plain)
    return [fused, *torch.autograd.grad(fused, leaves, grad)], [plain, *torch.autograd.grad(plain, leaves, grad)]


def assert_equal(one, other):
    for a, b in zip(one, other, strict=True):
        torch.testing.assert_close(a, b)


# Rows as wide as vectors, narrower, and wider than tiles; tables that end before the picture does.
@pytest.mark.parametrize("size", [(14, 14), (16, 16), (3, 70), (2, 130), (40, 5)])
@pytest.mark.parametrize("reach", [(40, 130), (3, 4), (1, 1)])
def test_pictures(size, reach):
    q, k, v = operands(size[0] * size[1])
    places = picture(*size)
    assert_equal(*both_ways(q, k, v, places, places, tables(*reach)))


@pytest.mark.parametrize("far", [1, 2**31, 2**40, 2**61])
def test_places_may_lie_as_far_apart_as_integers_allow(far):
    q, k, v = operands(200)
    places = torch.randint(-1, 2, (2, 200)) * far
    places[0, ::7] += 1
    assert_equal(*both_ways(q, k, v, places, places, tables(3, 2)))


def test_places_beyond_the_difference_that_an_integer_holds():
    q, k, v = operands(20)
    least, most = -(2**63), 2**63 - 1
    places = torch.tensor([[least, most, 0, 1] * 5, [5] * 20])
    grid_bias, _, _ = tables(2, 1)
    out = posenc.ops.attention(q, k, v, grid_bias=grid_bias, k_positions=places)
    near = torch.tensor([[1, 2, 2, 2], [0, 1, 0, 0], [0, 2, 1, 2], [0, 2, 0, 1]]).repeat(5, 5)
    assert_near(out, posenc.ops.attention(q, k, v, bias=grid_bias[:, near, 0]), scale=4)


def test_tokens_may_come_in_any_order():
    q, k, v = operands(150)
    places, order = picture(10, 15), torch.randperm(150)
    terms = tables(10, 15)
    (straight, *_), _ = both_ways(q, k, v, places, places, terms)
    shuffled = [x.detach()[:, :, order] for x in (q, k, v)]
    ours, plain = both_ways(*shuffled, places[:, order], places[:, order], terms)
    assert_equal(ours, plain)
    torch.testing.assert_close(ours[0], straight[:, :, order])


@pytest.mark.parametrize("queries", [1, 3, 8])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_decoding_equals_the_last_rows(queries, dtype):
    q, k, v = operands(330, dtype=dtype)
    grid_bias, rel_y, rel_x = tables(6, 9, torch.float32)
    call = {"grid_bias": grid_bias, "k_positions": picture(11, 30), "rel_scale": 0.5}
    whole = posenc.ops.relative_attention(q, k, v, (rel_y, rel_x), **call)
    last = posenc.ops.relative_attention(q[:, :, -queries:], k, v, (rel_y, rel_x), **call)
    assert_near(last, whole[:, :, -queries:], scale=4)


def test_all_else_goes_by_index():
    q, k, v = operands(120)
    slopes, places = torch.rand(HEADS, dtype=torch.float64), picture(12, 10).flip(1)
    rules = {"is_causal": True, "window": (70, 0), "alibi_slopes": slopes}
    assert_equal(*both_ways(q, k, v, places, places, tables(12, 10), **rules))


def test_tables_by_distance_and_on_two_axes_combine():
    q, k, v = operands(100)
    places, rel_k = picture(10, 10), torch.randn(33, WIDTH, dtype=torch.float64)
    terms = tables(10, 10)
    names = dict(zip(("grid_bias", "grid_rel_y", "grid_rel_x"), terms, strict=True))
    fused, _ = torch.ops.posenc.attention(
        q, k, v, rel_k=rel_k, **names, grid_rel_scale=1.0, q_positions=places, k_positions=places
    )
    bias = added(q, places, places, *terms)
    torch.testing.assert_close(fused, posenc.ops.relative_attention(q, k, v, rel_k, bias=bias))


HOLDS_NO_SCORES = """
import resource, torch, posenc
torch.set_num_threads(1)
tokens = 96 * 96
q, k, v = (torch.randn(1, 1, tokens, 8, requires_grad=True) for _ in range(3))
token = torch.arange(tokens)
places = torch.stack([token // 96, token % 96])
terms = [torch.randn(s, requires_grad=True) for s in ((1, 191, 191), (191, 8), (191, 8))]
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
out = posenc.ops.relative_attention(q, k, v, tuple(terms[1:]), grid_bias=terms[0], k_positions=places)
out.sum().backward()
print((resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) // 1024)
"""


def test_no_number_for_each_query_and_key_is_held():
    """Those of 9216 tokens would be 324 MiB."""
    assert int(python(HOLDS_NO_SCORES)) < 100
