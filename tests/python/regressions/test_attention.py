"""Faults that the attention kernels once had, each with the right value."""

import math

import pytest
import torch

import posenc
import processes
from tolerances import assert_bits

pytestmark = pytest.mark.kernels
attention = posenc.ops.attention


@pytest.mark.parametrize("low", [-math.inf, torch.finfo(torch.float32).min, -1e16, -1e9])
@pytest.mark.parametrize("queries", [6, 20])
def test_a_token_that_forgets_all_leaves_later_ones_their_digits(low, queries):
    q, k, v = torch.randn(3, 1, 2, queries, 8)
    decay = -torch.rand(1, 2, queries)
    decay[..., 3] = low
    log_decay = decay.clone().requires_grad_()
    out = attention(q, k, v, is_causal=True, log_decay=log_decay)
    later = attention(q[:, :, 3:], k[:, :, 3:], v[:, :, 3:], is_causal=True, log_decay=decay[..., 3:] * 1.0)
    torch.testing.assert_close(out[:, :, 3:], later, atol=1e-6, rtol=0)
    with torch.no_grad():
        torch.testing.assert_close(attention(q, k, v, is_causal=True, log_decay=decay), out)
    (grad,) = torch.autograd.grad(out.sum(), log_decay)
    assert grad.isfinite().all() and (grad[..., 3] == 0).all()


@pytest.mark.parametrize("number", [math.nan, math.inf])
@pytest.mark.parametrize("queries", [3, 20])
def test_an_undefined_decay_reaches_those_alone_who_have_it_between_them(number, queries):
    keys, token = 120, 101
    q, k, v = torch.randn(1, 2, queries, 8), torch.randn(1, 2, keys, 8), torch.randn(1, 2, keys, 8)
    decay = -torch.rand(1, 2, keys) / 10
    undefined = decay.clone()
    undefined[..., token] = number
    cases = (
        {"window": keys},  # rows from `token` on see keys before it
        {"window": 5},  # as far as the window reaches back
        {"segment_ids": torch.tensor([[0] * 110 + [1] * 10])},
        {"segment_ids": torch.tensor([[0, 1] * 60])},
        {"key_mask": (torch.arange(keys) >= token)[None]},  # the token is the first that is seen
        {"key_mask": (torch.arange(keys) > token)[None]},  # a pad
    )
    for rules in cases:
        i, j = torch.arange(keys - queries, keys)[:, None], torch.arange(keys)
        seen = (j <= i) & (i - j < rules.get("window", keys))
        seen &= rules.get("key_mask", torch.ones(1, keys, dtype=bool))[0]
        crosses = (j < token) & (i >= token)
        if "segment_ids" in rules:
            ids = rules["segment_ids"][0]
            seen &= ids[i] == ids
            crosses &= ids[i] == ids[token]
        hit = (seen & crosses).any(1)
        leaves = [x.clone().requires_grad_() for x in (q, k, v, undefined)]
        out = attention(*leaves[:3], is_causal=True, log_decay=leaves[3], **rules)
        assert out[:, :, hit].isnan().all()
        expected = [x.clone().requires_grad_() for x in (q, k, v, decay)]
        plain = attention(*expected[:3], is_causal=True, log_decay=expected[3], **rules)
        torch.testing.assert_close(out[:, :, ~hit], plain[:, :, ~hit])
        with torch.no_grad():
            decoded = attention(*leaves[:3], is_causal=True, log_decay=leaves[3], **rules)
        torch.testing.assert_close(decoded, out, equal_nan=True)
        # Tokens that share no row with the undefined one keep their gradients.
        apart = ids != ids[token] if "segment_ids" in rules else ~hit.any() & torch.ones(keys, dtype=bool)
        gradients = torch.autograd.grad(out.sin().sum(), leaves)
        for name, grad, e in zip("qkvd", gradients, torch.autograd.grad(plain.sin().sum(), expected), strict=True):
            kept = apart[keys - queries :] if name == "q" else apart
            torch.testing.assert_close(grad[:, :, kept], e[:, :, kept])


@pytest.mark.parametrize("queries", [1, 8, 40])
@pytest.mark.parametrize("scale", [None, 0.0, 2.0**-126, 1e-40, -1e-38])
def test_large_products_with_a_small_scale_in_bfloat16(queries, scale):
    """Products of pairs once overflowed before the scale made scores of them."""
    size = 2.0**61 if scale is None else 2.0**62
    x = torch.full((1, 1, 40, 64), size).bfloat16()
    q, k = x[:, :, :queries].clone().requires_grad_(), x.clone().requires_grad_()
    v = torch.randn(1, 1, 40, 64).bfloat16().requires_grad_()
    out, lse = attention(q, k, v, scale=scale, return_lse=True)
    torch.testing.assert_close(out, v.float().mean(2, keepdim=True).expand_as(out).bfloat16())
    score = size * size * 64 * (64**-0.5 if scale is None else scale)
    torch.testing.assert_close(lse, torch.full_like(lse, score + math.log(40)), rtol=1e-4, atol=1e-4)
    (grad,) = torch.autograd.grad(out.sum(), v)
    torch.testing.assert_close(grad, torch.full_like(grad, queries / 40))


def test_a_query_that_is_not_a_number_reaches_no_other_values_in_the_reference_form():
    q, k, v = torch.randn(3, 1, 1, 6, 4)
    q[0, 0, 2] = math.nan
    v.requires_grad_()
    for rules in ({"is_causal": True}, {"segment_ids": torch.tensor([[0, 0, 0, 1, 1, 1]])}):
        out = attention(q, k, v, **rules)
        (plain,) = torch.autograd.grad(out.sum(), v, retain_graph=True)
        (differentiable,) = torch.autograd.grad(out.sum(), v, create_graph=True)
        torch.testing.assert_close(differentiable, plain, equal_nan=True)
        assert plain[0, 0, 3:].isfinite().all()


def test_one_row_of_segments_for_all_batch_rows_beside_decays():
    """Rows of segments after the first were once read, though there was one."""
    q, k, v = torch.randn(3, 3, 2, 20, 8)
    ids = torch.tensor([[0] * 7 + [1] * 13] + [[5] * 20] * 2)[:1]
    for decay in (-torch.rand(3, 2, 20), -torch.rand(1, 2, 20)):
        leaves = [x.clone().requires_grad_() for x in (q, k, v, decay)]
        expected = [x.clone().requires_grad_() for x in (q, k, v, decay)]
        out = attention(*leaves[:3], is_causal=True, log_decay=leaves[3], segment_ids=ids)
        whole = attention(*expected[:3], is_causal=True, log_decay=expected[3], segment_ids=ids.expand(3, 20))
        assert_bits(out, whole)
        for grad, e in zip(
            torch.autograd.grad(out.sin().sum(), leaves), torch.autograd.grad(whole.sin().sum(), expected), strict=True
        ):
            assert_bits(grad, e)
        with torch.no_grad():
            decoded = attention(q[:, :, -1:], k, v, is_causal=True, log_decay=decay, segment_ids=ids)
        torch.testing.assert_close(decoded, out[:, :, -1:])

        def loss(x):
            return attention(q, k, v, is_causal=True, log_decay=x, segment_ids=ids).sin().sum()

        torch.testing.assert_close(torch.func.grad(loss)(decay), grad)


@pytest.mark.parametrize(
    ("form", "factor"), [("kernel", 1e6), ("kernel", math.nan), ("reference form", math.nan), ("torch.func", 1e6)]
)
@pytest.mark.parametrize("order", [(0, 1), (1, 0)])
def test_gradients_of_decays_do_not_meet_those_of_other_segments(factor, order, form):
    q, k, v = torch.randn(3, 1, 1, 64, 8)
    decay, grad = -torch.rand(1, 1, 64), torch.randn(1, 1, 64, 8)
    ids = torch.tensor([[order[0]] * 32 + [order[1]] * 32])
    grad[:, :, 32:] *= factor

    def loss(decay, dtype):
        out = attention(q.to(dtype), k.to(dtype), v.to(dtype), is_causal=True, log_decay=decay, segment_ids=ids)
        return (out * grad.to(dtype))[:, :, : 64 if dtype is torch.float32 else 32].sum()

    wide = decay.double().requires_grad_()
    (expected,) = torch.autograd.grad(loss(wide, torch.float64), wide)
    if form != "torch.func":
        leaf = decay.requires_grad_()
        (result,) = torch.autograd.grad(loss(leaf, torch.float32), leaf, create_graph=form == "reference form")
    else:
        result = torch.func.grad(loss)(decay, torch.float32)
    torch.testing.assert_close(result[..., :32], expected[..., :32].float(), atol=1e-5, rtol=1e-5)


def test_decoding_and_the_backward_pass_make_the_same_weights_of_large_decays():
    for seed in range(50):
        torch.manual_seed(seed)
        q, k, v = torch.randn(3, 1, 1, 8, 4)
        v.requires_grad_()
        decay = -10 * torch.rand(1, 1, 8)
        decay[..., 7] = -math.inf
        alone = (torch.arange(8) == 6)[None]  # the last query sees this key alone, which the decays forget
        out = attention(q, k, v, is_causal=True, log_decay=decay, key_mask=alone)
        (grad,) = torch.autograd.grad(out[:, :, 7].sum(), v)
        torch.testing.assert_close(grad[0, 0, 6], torch.ones(4))


def test_decays_count_within_their_segment():
    """Also where segments interleave: each is attended to as if it were alone."""
    q, k, v = torch.randn(3, 2, 2, 12, 8)
    decay = -torch.rand(2, 2, 12)
    ids = torch.tensor([[4, 1, 4, 1, 1, 7, 4, 7, 4, 1, 7, 4], [2] * 5 + [0] * 7])
    leaves = [x.clone().requires_grad_() for x in (q, k, v, decay)]
    packed = attention(*leaves[:3], is_causal=True, log_decay=leaves[3], segment_ids=ids)
    gradients = torch.autograd.grad(packed.sin().sum(), leaves)
    for b in range(2):
        for segment in ids[b].unique():
            at = ids[b] == segment
            alone = [x[b : b + 1, :, at].clone().requires_grad_() for x in (q, k, v, decay)]
            out = attention(*alone[:3], is_causal=True, log_decay=alone[3])
            torch.testing.assert_close(packed[b : b + 1, :, at], out)
            for grad, e in zip(gradients, torch.autograd.grad(out.sin().sum(), alone), strict=True):
                torch.testing.assert_close(grad[b : b + 1, :, at], e)
    with torch.no_grad():
        last = attention(q[:, :, -2:], k, v, is_causal=True, log_decay=decay, segment_ids=ids)
    torch.testing.assert_close(last, packed[:, :, -2:])


@pytest.mark.parametrize("number", [torch.finfo(torch.bfloat16).min, torch.finfo(torch.float32).min, -math.inf])
@pytest.mark.parametrize("keys", [96, 97])
def test_biases_near_the_lowest_number_hide_keys_on_every_path(number, keys):
    k, v = torch.zeros(1, 1, keys, 4), torch.randn(1, 1, keys, 4)
    for queries in (2, 12):
        bias = torch.zeros(1, 1, queries, keys)
        bias[..., 0, :] = number
        bias[..., 1, 1:] = number
        out, lse = attention(torch.zeros(1, 1, queries, 4), k, v, bias=bias, return_lse=True)
        assert_bits(out[0, 0, 0], torch.zeros(4))
        assert lse[0, 0, 0] == -math.inf
        assert_bits(out[0, 0, 1], v[0, 0, 0])


@pytest.mark.parametrize("queries", [2, 20])
@pytest.mark.parametrize("key", [3, 4, 19])
def test_weights_that_vanish_are_zero(queries, key):
    zeros = torch.zeros(1, 1, 20, 4)
    value = zeros.clone()
    value[0, 0, key] = 1e34
    bias = torch.zeros(1, 1, 1, 20)
    bias[..., key] = -1e9
    assert_bits(attention(zeros[:, :, :queries], zeros, value, bias=bias), zeros[:, :, :queries])


def test_entries_that_no_key_can_reach_change_nothing():
    q, k, v = torch.randn(3, 1, 1, 40, 8)
    table = torch.zeros(1, 8, 100_000)
    table[..., :60] = torch.randn(1, 8, 60)
    long, short = table.requires_grad_(), table.detach()[..., :60].clone().requires_grad_()
    outs = [posenc.ops.cope_attention(q, k, v, t, gate_bias=torch.full((1,), 50.0)) for t in (long, short)]
    assert_bits(outs[0], outs[1])
    grads = [torch.autograd.grad(out.sum(), t)[0] for out, t in zip(outs, (long, short), strict=True)]
    assert_bits(grads[0][..., :60], grads[1])
    assert not grads[0][..., 60:].any()


GROWTH = """
import resource, torch, posenc
torch.set_num_threads(1)
def peak():
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
def run(batch):
    q = torch.randn(batch, 16, 16, 64)
    table = torch.randn(1, 64, 1024, requires_grad=True)
    posenc.ops.cope_attention(q, q, q, table).sum().backward()
run(1)
before = peak()
run(256)
print(peak() - before)
"""


def test_gradients_of_tables_need_no_memory_for_each_batch_row():
    # Queries, outputs and gradients are 17 MB each; a table for every row and head would be 1 GB.
    assert int(processes.python(GROWTH)) < 200e6


def relative_error(actual, expected):
    return ((actual.double() - expected).square().mean().sqrt() / expected.abs().max()).item()


def test_gradients_of_keys_that_many_queries_see_keep_their_digits():
    """Each tile of queries is summed on its own."""
    inputs = (torch.randn(1, 1, 20_000, 16), *torch.randn(2, 1, 1, 32, 16))
    grad = torch.randn(1, 1, 20_000, 16)

    def gradients(form, *inputs):
        leaves = [x.detach().requires_grad_() for x in inputs]
        return torch.autograd.grad(form(*leaves), leaves, grad.to(inputs[0].dtype))

    def eager(q, k, v):
        return (q @ k.mT / 4).softmax(-1) @ v

    expected = gradients(eager, *(x.double() for x in inputs))
    ours, listing = gradients(attention, *inputs), gradients(eager, *inputs)
    for actual, peer, wanted in zip(ours, listing, expected, strict=True):
        assert relative_error(actual, wanted) < max(2 * relative_error(peer, wanted), 1e-7)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64])
@pytest.mark.parametrize("length", [5, 97, 130])
@pytest.mark.parametrize("layout", ["rows", "columns", "strided", "one row", "one column"])
def test_biases_of_every_layout(layout, length, dtype):
    """They are added, and their gradients taken, in squares of adjacent entries."""
    q, k, v = torch.randn(3, 1, 2, length, 8, dtype=torch.float64)
    bias = {
        "rows": lambda: torch.randn(1, 2, length, length, dtype=dtype),
        "columns": lambda: torch.randn(1, 2, length, length, dtype=dtype).mT,
        "strided": lambda: torch.randn(1, 2, length, 2 * length, dtype=dtype)[..., ::2],
        "one row": lambda: torch.randn(1, 2, 1, length, dtype=dtype),
        "one column": lambda: torch.randn(1, 2, length, 1, dtype=dtype),
    }[layout]()
    bias.requires_grad_()
    for is_causal in (False, True):
        hidden = torch.full((length, length), -math.inf).triu(1) if is_causal else torch.zeros(())
        expected = (q @ k.mT / math.sqrt(8) + bias.double() + hidden).softmax(-1) @ v
        work = torch.float64 if dtype == torch.float64 else torch.float32
        out = attention(q.to(work), k.to(work), v.to(work), is_causal=is_causal, bias=bias)
        torch.testing.assert_close(out.double(), expected, atol=1e-5, rtol=0)
        (grad,), (wanted,) = (torch.autograd.grad(x.square().sum(), bias) for x in (out, expected))
        torch.testing.assert_close(grad, wanted, atol=1e-5, rtol=0.01 if dtype == torch.bfloat16 else 1e-5)


@pytest.mark.parametrize("value", [0.0, math.nan, math.inf])
def test_biases_that_hide_whole_tiles(value):
    """As a causal mask of transformers does; what is hidden is not even read."""
    q, k, v = (torch.randn(1, 2, 200, 8).requires_grad_() for _ in range(3))
    bias = torch.full((200, 200), -math.inf).triu(1)
    with torch.no_grad():
        k[:, :, 150:] = v[:, :, 150:] = value
    seen = slice(None, 150)
    out, expected = attention(q, k, v, bias=bias)[:, :, seen], attention(q, k, v, is_causal=True)[:, :, seen]
    torch.testing.assert_close(out, expected)
    for actual, wanted in zip(*(torch.autograd.grad(x.sum(), (q, k, v)) for x in (out, expected)), strict=True):
        torch.testing.assert_close(actual, wanted, equal_nan=True)


@pytest.mark.parametrize("queries", [1, 20])
def test_a_gate_of_nan_reaches_the_queries_that_count_it(queries):
    q, k, v = torch.randn(3, 1, 1, 20, 8)
    gate_key = torch.randn(1, 1, 20, 8)
    gate_key[:, :, 18] = math.nan
    leaves = [x.requires_grad_() for x in (q, k, v, torch.randn(1, 8, 64), gate_key)]
    q, k, v, table, gate_key = leaves
    out = posenc.ops.cope_attention(q[:, :, -queries:], k, v, table, gate_key=gate_key)
    assert out[0, 0, -1].isnan().all()
    assert out[0, 0, :-2].isfinite().all()
    torch.autograd.grad(out.sum(), leaves)


def cope_backward(q, k, v, table, residuals):
    """Gradients of q, k, v and table by the op behind autograd."""
    op = torch.ops.posenc._attention_backward
    names = [r.name.removeprefix("grad_") for r in op.default._schema.returns]
    wanted = [name in ("query", "key", "value", "pos_emb") for name in names]
    results = op(torch.ones_like(residuals[0]), None, *residuals, wanted, q, k, v, pos_emb=table, is_causal=True)
    assert [x is not None for x in results] == wanted
    return [x for x in results if x is not None]


def test_counts_of_another_call_never_lead_beyond_the_table():
    q, k, v = torch.randn(3, 1, 1, 40, 8)
    table = torch.randn(1, 8, 5)
    *residuals, counts = torch.ops.posenc._attention_forward(q, k, v, pos_emb=table, is_causal=True)
    for number in (-(2**30), -1, 3, 2**30):
        gradients = cope_backward(q, k, v, table, [*residuals, torch.full_like(counts, number)])
        assert [x.shape for x in gradients] == [q.shape, k.shape, v.shape, table.shape]


def test_residuals_of_another_form_are_refused_or_read_as_they_lie():
    q, k, v = torch.randn(3, 1, 2, 40, 8)
    table = torch.randn(1, 8, 5)
    out, lse, seed, *state = torch.ops.posenc._attention_forward(q, k, v, pos_emb=table, is_causal=True)

    def gradients(state):
        return cope_backward(q, k, v, table, [out, lse, seed, *state])

    strided = gradients([x.mT.contiguous().mT for x in state])
    for actual, expected in zip(strided, gradients(state), strict=True):
        assert_bits(actual, expected)
    for i, name in enumerate(("largest", "total", "counts")):
        for wrong in (state[i][..., 1:], state[i].to(torch.float64)):
            with pytest.raises(
                ValueError, match=f"cope_attention: expected {name} that the forward pass left, .*40.*but got"
            ):
                gradients([*state[:i], wrong, *state[i + 1 :]])


@pytest.mark.parametrize("name", ["out", "lse", "seed", "grad_out", "grad_lse"])
def test_tensors_that_do_not_fit_the_call_are_refused_by_the_backward_op(name):
    """The kernels read them without a look at their sizes."""
    q, k, v = torch.randn(3, 1, 2, 40, 8)
    op = torch.ops.posenc._attention_backward.default
    out, lse, seed, *state = torch.ops.posenc._attention_forward(q, k, v)
    wanted = [True] * 3 + [False] * (len(op._schema.returns) - 3)
    given = {"out": out, "lse": lse, "seed": seed, "grad_out": torch.ones_like(out), "grad_lse": torch.ones_like(lse)}

    def gradients(out, lse, seed, grad_out, grad_lse):
        return op(grad_out, grad_lse, out, lse, seed, *state, wanted, q, k, v)

    gradients(**given)
    for wrong in (given[name].expand(2, *given[name].shape), given[name].to(torch.int32)):
        with pytest.raises(ValueError, match=f"attention: expected {name} .*, but got"):
            gradients(**given | {name: wrong})


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("low", [-3e7, -1e9, -1e20, -1e30])
@pytest.mark.parametrize("queries", [1, 100])
def test_gradients_of_rows_whose_keys_all_have_a_low_bias(low, queries, dtype):
    """As under a mask of -1e9 with nothing but padding before it: the bias is the same for all keys, so it changes
    nothing. What is far from 0 is lse, and rounded to it."""
    q, k, v = torch.zeros(1, 1, queries, 8, dtype=dtype), *torch.randn(2, 1, 1, 100, 8, dtype=dtype)
    leaves = [x.requires_grad_() for x in (q, k, v)]
    grad = torch.randn(1, 1, queries, 8, dtype=dtype)
    bias = torch.full((1, 100), low, dtype=dtype)
    actual = torch.autograd.grad(attention(*leaves, bias=bias), leaves, grad)
    for x, expected in zip(actual, torch.autograd.grad(attention(*leaves), leaves, grad), strict=True):
        torch.testing.assert_close(x, expected, atol=1e-5, rtol=0)


@pytest.mark.parametrize("queries", [1, 20])
@pytest.mark.parametrize("bias", [3e7, 1e15, math.inf])
def test_gates_of_huge_biases_are_open_or_shut(bias, queries):
    q, k, v = torch.randn(3, 1, 1, 20, 8)
    table = torch.randn(1, 8, 30)
    for sign in (-1, 1):
        out, expected = (
            posenc.ops.cope_attention(q[:, :, -queries:], k, v, table, gate_bias=torch.tensor([sign * number]))
            for number in (bias, 1e4)
        )
        assert_bits(out, expected)
