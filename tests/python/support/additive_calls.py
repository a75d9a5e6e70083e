"""What the tests of additive encodings share: modules by name, and operands of attention."""

import torch

from posenc.nn import FIRE, ALiBi, Kerple, Sandwich, T5RelativeBias

BUILD = {
    "alibi": lambda heads: ALiBi(heads),
    "alibi_learnable": lambda heads: ALiBi(heads, learnable=True),
    "t5_decoder": lambda heads: T5RelativeBias(heads, num_buckets=8, max_distance=6),
    "t5_encoder": lambda heads: T5RelativeBias(heads, num_buckets=8, max_distance=6, bidirectional=True),
    "kerple_log": lambda heads: Kerple(heads),
    "kerple_power": lambda heads: Kerple(heads, kind="power"),
    "sandwich": lambda heads: Sandwich(heads, dim=12),
    "fire": lambda heads: FIRE(heads, hidden_dim=6, threshold=3.7),
}


def build(name, heads=6):
    """With parameters inside their ranges, away from where a clamp or a maximum has no derivative."""
    module = BUILD[name](heads)
    with torch.no_grad():
        for parameter in module.parameters():
            parameter.add_(0.07)
    return module


def operands(q_len=5, k_len=7, heads=6, groups=2, width=4, dtype=torch.float64):
    q = torch.randn(2, heads, q_len, width, dtype=torch.float64).to(dtype)
    k, v = torch.randn(2, 2, groups, k_len, width, dtype=torch.float64).to(dtype)
    return q, k, v
