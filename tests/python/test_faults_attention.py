"""Faults that reviews of the attention kernels found, each with the right value."""

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
