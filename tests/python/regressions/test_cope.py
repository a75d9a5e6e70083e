"""CoPE's slope where a position is a whole number is that of the interval above, as its documentation says."""

import pytest
import torch

import posenc

pytestmark = pytest.mark.kernels

TABLE = torch.tensor([0.0, 1.0, 5.0, 6.0, 16.0])  # the slopes of its intervals are 1, 4, 1 and 10
TOKENS = 9


def slope_above(position):
    return 0.0 if position >= 4 else float(TABLE[int(position) + 1] - TABLE[int(position)])


def expected():
    """The sum over keys j of the last query of d score(j) / d k_l, for D = 1, q = 1 and k = 0, by hand: gates are 1/2,
    each key's own score has slope 1, and a gate reaches the positions of all keys up to its own with its slope of
    1/4."""
    positions = [(TOKENS - j) / 2 for j in range(TOKENS)]
    return [1.0 + sum(slope_above(p) / 4 for p in positions[: key + 1]) for key in range(TOKENS)]


def by_logits(module, q, k):
    return module.logits(q, k)[0, 0, -1]


def by_module_form(module, q, k):
    scores = (q @ k.mT).masked_fill(torch.ones(TOKENS, TOKENS, dtype=torch.bool).triu(1), -torch.inf)
    return (scores + module(q, scores))[0, 0, -1]


@pytest.mark.parametrize("scores", [by_logits, by_module_form])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_scores_at_whole_positions_take_the_slope_above(scores, dtype):
    module = posenc.nn.CoPE(1, 5).to(dtype)
    with torch.no_grad():
        module.pos_emb.copy_(TABLE)
    q, k = torch.ones(1, 1, TOKENS, 1, dtype=dtype), torch.zeros(1, 1, TOKENS, 1, dtype=dtype, requires_grad=True)
    [gradient] = torch.autograd.grad(scores(module, q, k).sum(), k)
    torch.testing.assert_close(gradient.flatten().tolist(), expected())


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_attention_at_whole_positions_takes_the_slope_above(dtype):
    module = posenc.nn.CoPE(1, 5).to(dtype)
    with torch.no_grad():
        module.pos_emb.copy_(TABLE)
    q, k = torch.ones(1, 1, TOKENS, 1, dtype=dtype), torch.zeros(1, 1, TOKENS, 1, dtype=dtype, requires_grad=True)
    v = torch.linspace(-1, 1, TOKENS, dtype=dtype).view(1, 1, TOKENS, 1)
    [gradient] = torch.autograd.grad(module.attend(q, k, v)[0, 0, -1].sum(), k)
    weights = module.logits(q, k)[0, 0, -1].detach().softmax(-1)
    of_scores = weights * (v.flatten() - weights @ v.flatten())  # the softmax's own gradient
    positions = [(TOKENS - j) / 2 for j in range(TOKENS)]
    slopes = torch.tensor([slope_above(p) for p in positions], dtype=dtype)
    torch.testing.assert_close(gradient.flatten(), of_scores + (of_scores * slopes).cumsum(0) / 4, rtol=1e-4, atol=1e-6)
