"""Dropout of attention weights: its statistics, its seed, and the same mask in the backward pass."""

import pytest
import torch

import posenc
from attention_cases import ONE_OF_EACH, finite
from tolerances import assert_bits

pytestmark = pytest.mark.kernels
one_of_each = pytest.mark.parametrize("case", ONE_OF_EACH, ids=str)


def weights_with_dropout(p, queries=64, keys=512, heads=3):
    """Weights of equal scores, read off by values that are unit vectors."""
    q, k = torch.zeros(2, heads, queries, 8), torch.zeros(2, heads, keys, 8)
    v = torch.eye(keys).expand(2, heads, keys, keys)
    return posenc.ops.attention(q, k, v, dropout_p=p) * keys


@pytest.mark.parametrize("p", [0.1, 0.5, 0.9])
def test_weights_are_zero_or_scaled_up(p):
    weights = weights_with_dropout(p)
    kept = weights != 0
    torch.testing.assert_close(weights[kept], torch.full_like(weights[kept], 1 / (1 - p)))
    count, expected = kept.sum().item(), (1 - p) * weights.numel()
    assert abs(count - expected) < 5 * (p * expected) ** 0.5
    # Neither rows, columns, heads nor batch rows share a mask.
    for dim in range(4):
        share = kept.double().mean([d for d in range(4) if d != dim])
        deviation = ((1 - p) * p / (weights.numel() / weights.shape[dim])) ** 0.5
        assert (share - (1 - p)).abs().max() < 6 * deviation
        first, second = kept.select(dim, 0), kept.select(dim, 1)
        agreement = (first == second).double().mean().item()
        assert abs(agreement - (p * p + (1 - p) ** 2)) < 0.03


def test_neighbouring_seeds_give_unrelated_masks():
    masks = []
    for seed in (0, 1, 2):
        torch.manual_seed(seed)
        masks.append(weights_with_dropout(0.5) != 0)
    for a, b in ((0, 1), (0, 2), (1, 2)):
        assert abs((masks[a] == masks[b]).double().mean().item() - 0.5) < 0.01


@one_of_each
def test_the_mask_follows_the_seed_and_is_fresh_in_every_call(case):
    tensors = case.tensors(torch.float32)
    call = lambda: getattr(posenc.ops, case.op)(**tensors, **case.options, dropout_p=0.5)  # noqa: E731
    torch.manual_seed(3)
    first, second = call(), call()
    torch.manual_seed(3)
    assert_bits(call(), first)
    assert not torch.equal(first, second)


@one_of_each
def test_the_mask_is_fresh_in_every_call_of_a_compiled_graph(case):
    tensors = case.tensors(torch.float32)
    step = torch.compile(
        lambda **x: getattr(posenc.ops, case.op)(**x, **case.options, dropout_p=0.5),
        fullgraph=True,
        backend="aot_eager",
    )
    torch.manual_seed(3)
    first, second = step(**tensors), step(**tensors)
    torch.manual_seed(3)
    assert_bits(step(**tensors), first)
    assert not torch.equal(first, second)


@one_of_each
def test_the_backward_pass_uses_the_mask_of_the_forward_pass(case):
    tensors = {name: x.requires_grad_() for name, x in case.tensors().items()}

    def call(*values):
        torch.manual_seed(11)
        named = dict(zip(tensors, values, strict=True))
        out, lse = getattr(posenc.ops, case.op)(**named, **case.options, dropout_p=0.4, return_lse=True)
        return out, finite(lse)

    assert torch.autograd.gradcheck(call, tuple(tensors.values()))


@one_of_each
def test_lse_is_that_of_all_keys(case):
    tensors = case.tensors()

    def call(p):
        return getattr(posenc.ops, case.op)(**tensors, **case.options, dropout_p=p, return_lse=True)[1]

    assert_bits(call(0.5), call(0.0))


def test_the_mask_does_not_depend_on_how_queries_are_cut():
    """Several blocks of queries see the mask of one."""
    q, k, v = torch.zeros(1, 2, 1500, 4), torch.zeros(1, 2, 1500, 4), torch.randn(1, 2, 1500, 4)
    torch.manual_seed(5)
    long = posenc.ops.attention(q, k, v, dropout_p=0.5)
    torch.manual_seed(5)
    short = posenc.ops.attention(q[:, :, :200], k, v, dropout_p=0.5)
    torch.testing.assert_close(long[:, :, :200], short)


def test_the_ends_of_the_range():
    q, k, v = torch.randn(1, 1, 3, 4), torch.randn(1, 1, 3, 4), torch.randn(1, 1, 3, 4, requires_grad=True)
    none = posenc.ops.attention(q, k, v, dropout_p=1.0)
    assert_bits(none, torch.zeros_like(none))
    none.sum().backward()
    assert_bits(v.grad, torch.zeros_like(v))
    state = torch.random.get_rng_state()
    posenc.ops.attention(q, k, v, dropout_p=0.0)
    assert torch.equal(torch.random.get_rng_state(), state), "without dropout nothing is drawn"
