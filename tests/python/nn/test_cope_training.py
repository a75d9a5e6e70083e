"""Training with CoPE follows, step by step, training with the paper's listing on whole matrices of scores.

Two-layer models of tokens, with equal weights at the start, learn to count. Rounding to float32 moves a curve, and
training amplifies it: how far is seen from the listing in float64.
"""

import copy
import os

import pytest
import torch

import posenc
from block_reference import cope_logits, heads_of, rope

TOKENS, WIDTH, HEADS, KV_HEADS, LAYERS, ENTRIES = 16, 32, 4, 2, 2, 24
BATCH, LENGTH = 1, 128
# 200 take a minute.
STEPS = int(os.environ.get("POSENC_TRAINING_STEPS", "30"))

ENCODINGS = {
    "cope": lambda: [posenc.nn.CoPE(WIDTH // HEADS, ENTRIES)],
    "cope_per_head": lambda: [posenc.nn.CoPE(WIDTH // HEADS, ENTRIES, num_heads=HEADS)],
    "rotary_cope": lambda: [posenc.nn.Rotary(WIDTH // HEADS), posenc.nn.CoPE(WIDTH // HEADS, ENTRIES)],
}


class Listing(torch.nn.Module):
    """What an Attention block with CoPE computes, of the block's parameters, in torch."""

    def __init__(self, block, rotates):
        super().__init__()
        self.weights = torch.nn.ParameterDict({k.replace(".", "_"): p for k, p in block.named_parameters()})
        self.table, self.rotates = next(k for k in self.weights if k.endswith("pos_emb")), rotates

    def forward(self, x):
        w, groups = self.weights, HEADS // KV_HEADS
        q, k, v = (
            heads_of(x, w[f"{name}_proj_weight"], None, heads)
            for name, heads in (("q", HEADS), ("k", KV_HEADS), ("v", KV_HEADS))
        )
        if self.rotates:
            q, k = (rope(y, torch.arange(x.shape[1])) for y in (q, k))
        k, v = (y.repeat_interleave(groups, 1) for y in (k, v))
        hidden = torch.ones(x.shape[1], x.shape[1], dtype=torch.bool).triu(1)
        scores = (q @ k.mT / q.shape[3] ** 0.5).masked_fill(hidden, -torch.inf)
        out = torch.softmax(scores + cope_logits(q, scores, w[self.table]), -1) @ v
        return out.transpose(1, 2).flatten(2) @ w["o_proj_weight"].mT


class Model(torch.nn.Module):
    def __init__(self, blocks):
        super().__init__()
        self.embedding = torch.nn.Embedding(TOKENS, WIDTH)
        self.blocks = torch.nn.ModuleList(blocks)
        self.norms = torch.nn.ModuleList(torch.nn.LayerNorm(WIDTH) for _ in blocks)
        self.head = torch.nn.Linear(WIDTH, TOKENS)

    def forward(self, tokens):
        x = self.embedding(tokens)
        for block, norm in zip(self.blocks, self.norms, strict=True):
            x = x + block(norm(x))
        return self.head(x)


def models(name):
    """With the op, with the listing, and with the listing in float64; equal parameters."""
    torch.manual_seed(1)
    blocks = [
        posenc.nn.Attention(WIDTH, HEADS, num_kv_heads=KV_HEADS, encodings=ENCODINGS[name]()) for _ in range(LAYERS)
    ]
    with torch.no_grad():
        for block in blocks:
            block.encodings[-1].pos_emb.normal_(std=0.1)
    fused = Model(blocks)
    listing = copy.deepcopy(fused)
    listing.blocks = torch.nn.ModuleList(Listing(block, name.startswith("rotary")) for block in listing.blocks)
    return fused, listing, copy.deepcopy(listing).double()


def batch(step):
    """Tokens that count on by 3, but for one in eight."""
    draw = torch.Generator().manual_seed(step)
    steps = torch.full((BATCH, LENGTH), 3)
    steps[torch.rand(BATCH, LENGTH, generator=draw) < 1 / 8] = 5
    return (torch.randint(TOKENS, (BATCH, 1), generator=draw) + steps.cumsum(1)) % TOKENS


def train(model):
    """The loss of every step."""
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    losses = []
    for step in range(STEPS):
        tokens = batch(step)
        logits = model(tokens[:, :-1])
        loss = torch.nn.functional.cross_entropy(logits.flatten(0, 1), tokens[:, 1:].flatten())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return torch.tensor(losses, dtype=torch.float64)


@pytest.mark.parametrize("name", ["cope", "rotary_cope"])
def test_training_follows_the_listing(name):
    fused, listing, exact = (train(model) for model in models(name))
    assert exact[-1] < exact[0] - 0.2, "learns"
    rounding = (listing - exact).abs()
    off = (fused - exact).abs()
    assert off[:10].max() < 1e-5
    assert (off <= 1e-5 + 4 * rounding.cummax(0).values).all(), (off.max(), rounding.max())


@pytest.mark.parametrize("name", ENCODINGS)
def test_gradients_of_the_first_step_are_those_of_the_listing(name):
    fused, listing, _ = models(name)
    tokens = batch(0)
    for model in (fused, listing):
        torch.nn.functional.cross_entropy(model(tokens[:, :-1]).flatten(0, 1), tokens[:, 1:].flatten()).backward()
    theirs = {k.replace(".weights.", ".").replace("_", "."): p.grad for k, p in listing.named_parameters()}
    for k, p in fused.named_parameters():
        torch.testing.assert_close(p.grad, theirs[k.replace("_", ".")], rtol=1e-4, atol=2e-6, msg=k)
