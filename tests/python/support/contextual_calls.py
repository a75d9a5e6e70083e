"""What the tests of the contextual encodings share: one module of each kind, inputs,
and comparison with a reference."""

import torch

import posenc
from tolerances import assert_near

nn = posenc.nn

HEADS, GROUPS, WIDTH = 4, 2, 8

BUILD = {
    "shaw": lambda package=nn: package.ShawRelative(WIDTH, 3, num_heads=HEADS),
    "disentangled": lambda package=nn: package.DisentangledRelative(WIDTH, HEADS, 7, buckets=4),
    "transformer_xl": lambda package=nn: package.TransformerXL(WIDTH, HEADS, pos_dim=6, layout="interleaved"),
    "rerope": lambda package=nn: package.ReRoPE(WIDTH, 3, log_scale_length=4),
    "leaky_rerope": lambda package=nn: package.ReRoPE(WIDTH, 3, leak=2.5),
    "self_extend": lambda package=nn: package.SelfExtend(WIDTH, group=3, window=4),
    "cope": lambda package=nn: package.CoPE(WIDTH, 4, num_heads=HEADS, gate_bias=0.3),
}
COPE_VARIANTS = {
    "paper": {},
    "per_head": {"num_heads": HEADS},
    "scaled": {"scale_position_logits": True},
    "from_values": {"gate": "value"},
    "from_keys": {"gate": "key", "num_heads": HEADS},
    "bias": {"num_heads": HEADS, "gate_bias": -1.0, "scale_position_logits": True},
}


def normal(*shape, dtype=torch.float64) -> torch.Tensor:
    return torch.randn(shape, dtype=torch.float64).to(dtype)


def heads_of(q_len, k_len, *, batch=2, heads=HEADS, groups=GROUPS, width=WIDTH, dtype=torch.float64):
    """Queries, keys and values."""
    return (
        normal(batch, heads, q_len, width, dtype=dtype),
        normal(batch, groups, k_len, width, dtype=dtype),
        normal(batch, groups, k_len, width, dtype=dtype),
    )


def with_parameters(module, dtype=torch.float64):
    """The module with parameters that are not 0."""
    module = module.to(dtype)
    with torch.no_grad():
        for parameter in module.parameters():
            parameter.copy_(torch.randn_like(parameter))
    return module


def build(name, dtype=torch.float64):
    return with_parameters(BUILD[name](), dtype)


def causal(name) -> dict:
    """What makes a call of this module causal."""
    return {"is_causal": True} if name in ("shaw", "disentangled", "transformer_xl") else {}


def assert_equals(actual, expected, inputs) -> None:
    """Outputs and the gradients of all inputs, in float64, of a loss that weights every output by its own number."""
    assert_near(actual.detach(), expected.detach(), scale=10)
    grad = torch.randn_like(actual)
    computed = torch.autograd.grad(actual, inputs, grad, retain_graph=True)
    for ours, theirs in zip(computed, torch.autograd.grad(expected, inputs, grad), strict=True):
        assert_near(ours, theirs, scale=100)
