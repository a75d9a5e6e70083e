"""What a query sees: by position, mask, window, segment and bias; what it does not see cannot reach it."""

import pytest
import torch

import posenc
from attention_calls import OPS, call, every_op
from attention_cases import CASES, ONE_OF_EACH
from tolerances import assert_bits

pytestmark = pytest.mark.kernels
one_of_each = pytest.mark.parametrize("case", ONE_OF_EACH, ids=str)


def tokens(*shape):
    return torch.randn(*shape, dtype=torch.float64, requires_grad=True)


@every_op
@pytest.mark.parametrize("number", [torch.nan, torch.inf, -torch.inf])
@pytest.mark.parametrize("where", ["key", "value"])
def test_a_hidden_key_that_is_not_finite_reaches_nobody(op, number, where):
    q, k, v = tokens(2, 2, 5, 4), tokens(2, 2, 5, 4), tokens(2, 2, 5, 4)
    mask = torch.tensor([[True, True, False, True, True]])
    with torch.no_grad():
        (k if where == "key" else v)[:, :, 2] = number
    out = call(op, q, k, v, key_mask=mask)
    clean_k, clean_v = k.detach().nan_to_num(0, 0, 0).requires_grad_(), v.detach().nan_to_num(0, 0, 0).requires_grad_()
    clean_q = q.detach().clone().requires_grad_()
    expected = call(op, clean_q, clean_k, clean_v, key_mask=mask)
    torch.testing.assert_close(out, expected)
    out.square().sum().backward()
    expected.square().sum().backward()
    for x, e in ((q, clean_q), (k, clean_k), (v, clean_v)):
        torch.testing.assert_close(x.grad, e.grad)


@every_op
@pytest.mark.parametrize("where", ["key", "value"])
def test_a_key_that_is_not_finite_reaches_only_queries_that_see_it(op, where):
    q, k, v = tokens(1, 1, 5, 4), tokens(1, 1, 5, 4), tokens(1, 1, 5, 4)
    expected = call(op, q, k, v)
    with torch.no_grad():
        (k if where == "key" else v)[:, :, 3] = torch.nan
    out = call(op, q, k, v)
    torch.testing.assert_close(out[:, :, :3], expected[:, :, :3])
    assert out[:, :, 3:].isnan().all()
    (grad_q,) = torch.autograd.grad(out[:, :, :3].square().sum(), q)
    assert grad_q[:, :, :3].isfinite().all()


def test_an_infinite_value_that_is_seen_stays_infinite():
    q, k = torch.zeros(1, 1, 3, 2), torch.zeros(1, 1, 3, 2)
    v = torch.tensor([[[[1.0, 1.0], [torch.inf, 2.0], [-torch.inf, 3.0]]]])
    out = posenc.ops.attention(q, k, v, is_causal=True)[0, 0]
    assert_bits(out[0], torch.tensor([1.0, 1.0]))
    assert_bits(out[1], torch.tensor([torch.inf, 1.5]))
    assert out[2, 0].isnan() and out[2, 1] == 2.0


@every_op
def test_a_query_that_sees_no_key_gives_zero(op):
    q, k, v = tokens(1, 2, 4, 4), tokens(1, 2, 4, 4), tokens(1, 2, 4, 4)
    mask = torch.tensor([[False, False, True, True]])
    out, lse = call(op, q, k, v, key_mask=mask, return_lse=True)
    assert_bits(out[:, :, :2], torch.zeros_like(out[:, :, :2]))
    assert (lse[:, :, :2] == -torch.inf).all() and lse[:, :, 2:].isfinite().all()
    out.square().sum().backward()
    assert_bits(q.grad[:, :, :2], torch.zeros_like(q)[:, :, :2])
    for x in (q, k, v):
        assert x.grad.isfinite().all()


@every_op
def test_more_queries_than_keys_leaves_the_first_without_a_key(op):
    q, k, v = tokens(1, 1, 5, 4), tokens(1, 1, 2, 4), tokens(1, 1, 2, 4)
    out, lse = call(op, q, k, v, return_lse=True)
    assert_bits(out[:, :, :3], torch.zeros_like(out[:, :, :3]))
    assert (lse[:, :, :3] == -torch.inf).all()
    torch.testing.assert_close(out[:, :, 3:], call(op, q[:, :, 3:], k, v))


@every_op
def test_causality_is_exact(op):
    """A later key changes neither the bits of an earlier row nor, by its gradient, anything."""
    q, k, v = tokens(1, 2, 6, 4), tokens(1, 2, 6, 4), tokens(1, 2, 6, 4)
    out = call(op, q, k, v)
    for t in range(5):
        grads = torch.autograd.grad(out[:, :, t].sum(), (q, k, v), retain_graph=True)
        assert_bits(grads[0][:, :, t + 1 :], torch.zeros_like(grads[0][:, :, t + 1 :]))
        for grad in grads[1:]:
            assert_bits(grad[:, :, t + 1 :], torch.zeros_like(grad[:, :, t + 1 :]))
    later_k, later_v = k.detach().clone(), v.detach().clone()
    later_k[:, :, 4:] += 100.0
    later_v[:, :, 4:] -= 100.0
    q, k, v = (x.detach() for x in (q, k, v))
    assert_bits(call(op, q, later_k, later_v)[:, :, :4], call(op, q, k, v)[:, :, :4])


@pytest.mark.parametrize("op", [op for op in OPS if op != "cope_attention"])
def test_causality_follows_positions_not_indices(op):
    q, k, v = tokens(1, 1, 4, 4), tokens(1, 1, 4, 4), tokens(1, 1, 4, 4)
    positions = torch.tensor([3, 0, 2, 1])
    order = positions.argsort()
    out = call(op, q, k, v, q_positions=positions, k_positions=positions)
    expected = call(op, q[:, :, order], k[:, :, order], v[:, :, order])
    torch.testing.assert_close(out[:, :, order], expected)


@pytest.mark.parametrize("op", [op for op in OPS if op != "cope_attention"])
def test_shifting_all_positions_changes_nothing(op):
    q, k, v = tokens(2, 1, 4, 4), tokens(2, 1, 4, 4), tokens(2, 1, 4, 4)
    positions = torch.tensor([[0, 1, 2, 3], [2, 0, 5, 1]])
    here = call(op, q, k, v, q_positions=positions, k_positions=positions)
    there = call(op, q, k, v, q_positions=positions + 50, k_positions=positions + 50)
    assert_bits(there, here)


def test_floating_positions_order_keys():
    q = torch.randn(1, 1, 3, 4)
    times = torch.tensor([0.5, 2.25, 2.5])
    out = posenc.ops.attention(q, q, q, is_causal=True, window=2, q_positions=times, k_positions=times)
    seen = torch.tensor([[True, False, False], [True, True, False], [False, True, True]])
    torch.testing.assert_close(out, torch.nn.functional.scaled_dot_product_attention(q, q, q, attn_mask=seen))


@every_op
def test_packed_sequences_equal_separate_ones(op):
    q, k, v = tokens(1, 2, 7, 4), tokens(1, 2, 7, 4), tokens(1, 2, 7, 4)
    out = call(op, q, k, v, segment_ids=torch.tensor([[4, 4, 4, 1, 1, 1, 1]]))
    apart = [call(op, *(x[:, :, part] for x in (q, k, v))) for part in (slice(0, 3), slice(3, 7))]
    torch.testing.assert_close(out, torch.cat(apart, 2))


@every_op
def test_padding_on_either_side_equals_no_padding(op):
    q, k, v = tokens(1, 2, 7, 4), tokens(1, 2, 7, 4), tokens(1, 2, 7, 4)
    real = slice(2, 5)
    mask = torch.zeros(1, 7, dtype=torch.bool)
    mask[:, real] = True
    out = call(op, q, k, v, key_mask=mask)
    torch.testing.assert_close(out[:, :, real], call(op, *(x[:, :, real] for x in (q, k, v))))


def test_bool_and_float_masks_agree():
    q, k, v = tokens(1, 2, 3, 4), tokens(1, 2, 3, 4), tokens(1, 2, 3, 4)
    mask = torch.tensor([[True, False, True]])
    expected = posenc.ops.attention(q, k, v, key_mask=mask)
    for dtype in (torch.float64, torch.float32, torch.bfloat16, torch.float16):
        for number in (-torch.inf, torch.finfo(dtype).min):
            bias = torch.zeros(1, 1, 1, 3, dtype=dtype).masked_fill(~mask[:, None, None], number)
            torch.testing.assert_close(posenc.ops.attention(q, k, v, bias=bias), expected)
            nothing = posenc.ops.attention(q, k, v, bias=torch.full((3, 3), number, dtype=dtype))
            assert_bits(nothing, torch.zeros_like(nothing))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
@every_op
def test_large_scores_stay_exact(op, dtype):
    q, k = (torch.randn(1, 1, 6, 4, dtype=torch.float64).sign() * 100 for _ in range(2))
    v = torch.randn(1, 1, 6, 4, dtype=torch.float64)
    out, lse = call(op, q.to(dtype), k.to(dtype), v.to(dtype), return_lse=True)
    expected, expected_lse = call(op, q, k, v, return_lse=True)
    assert out.isfinite().all() and expected_lse.abs().max() > 1e4
    bound = 1e4 * torch.finfo(dtype).eps
    torch.testing.assert_close(out.double(), expected, rtol=0, atol=bound * v.abs().max().item())
    # lse is what is left of scores up to 4e4.
    torch.testing.assert_close(lse.double(), expected_lse, rtol=0, atol=4 * bound)


def test_a_window_of_one_sees_the_token_itself():
    for op in OPS:
        q, k, v = tokens(1, 1, 4, 4), tokens(1, 1, 4, 4), tokens(1, 1, 4, 4)
        torch.testing.assert_close(call(op, q, k, v, window=1), v.detach(), rtol=1e-12, atol=1e-12)


def test_one_mask_and_one_row_of_positions_serve_a_batch():
    q = torch.randn(3, 1, 4, 4)
    mask, positions = torch.tensor([[True, False, True, True]]), torch.tensor([[0, 5, 6, 7]])
    one = posenc.ops.attention(q, q, q, is_causal=True, key_mask=mask, q_positions=positions, k_positions=positions)
    each = posenc.ops.attention(
        q,
        q,
        q,
        is_causal=True,
        key_mask=mask.expand(3, 4),
        q_positions=positions.expand(3, 4),
        k_positions=positions.expand(3, 4),
    )
    assert_bits(one, each)


def test_every_rule_is_exercised():
    used = {name for case in CASES for name in case.options}
    options = posenc.ops.keywords.MaskOptions.__annotations__ | posenc.ops.keywords.PositionOptions.__annotations__
    assert {*options, "q_start"} - {"bias"} <= used


@every_op
@pytest.mark.parametrize("where", ["key", "value"])
def test_a_hidden_key_that_is_not_finite_reaches_no_second_derivative(op, where):
    q, k, v = tokens(1, 1, 4, 4), tokens(1, 1, 4, 4), tokens(1, 1, 4, 4)
    with torch.no_grad():
        (k if where == "key" else v)[:, :, 2] = torch.nan
    mask = torch.tensor([[True, True, False, True]])
    (grad,) = torch.autograd.grad(call(op, q, k, v, key_mask=mask).sin().sum(), q, create_graph=True)
    (second,) = torch.autograd.grad(grad.square().sum(), q)
    assert grad.isfinite().all() and second.isfinite().all()


def test_positions_of_any_size_keep_their_differences():
    """Times in nanoseconds: beyond 2^53 a double no longer tells neighbours apart."""
    now = 1732000000000000000
    q, v = torch.zeros(1, 1, 3, 4), torch.eye(3, 4).view(1, 1, 3, 4)
    times = torch.tensor([now, now + 1, now + 2])
    for queries in (torch.full((3,), now), times):
        out = posenc.ops.attention(q, q, v, is_causal=True, q_positions=queries, k_positions=times)
        seen = (times <= queries[:, None]).double()
        torch.testing.assert_close(out[0, 0, :, :3].double(), seen / seen.sum(-1, keepdim=True))


@pytest.mark.parametrize("queries", [2, 12])
def test_the_longest_window_is_no_window(queries):
    q, k = torch.randn(1, 1, queries, 4), torch.randn(1, 1, 12, 4)
    for causal in (False, True):
        expected = posenc.ops.attention(q, k, k, is_causal=causal)
        assert_bits(posenc.ops.attention(q, k, k, is_causal=causal, window=2**63 - 1), expected)


@pytest.mark.parametrize("queries", [1, 12])
def test_very_low_biases_are_numbers_like_others(queries):
    x = torch.randn(1, 1, 12, 8)
    low = torch.full((12,), torch.finfo(torch.float32).min / 2)
    out = posenc.ops.attention(x[:, :, -queries:], x, x, bias=low)
    torch.testing.assert_close(out, x.mean(2, keepdim=True).expand_as(out))
    steps = low + torch.arange(12) * 1e37
    out = posenc.ops.attention(x[:, :, -queries:], x, x, bias=steps)
    torch.testing.assert_close(out, x[:, :, -1:].expand_as(out))
