"""What the tests of rotary encodings share: one function for each op and module that rotates, and inputs."""

import pytest
import torch

import posenc
import reference

ops = posenc.ops
Rotary = posenc.nn.Rotary
INV_FREQ = reference.inverse_frequencies(4)


def tables(length, inv_freq=INV_FREQ, dtype=torch.float32):
    return ops.rotary_tables(None, inv_freq, length=length, dtype=dtype)


# (q, k) -> (q', k'); rotary_dim is 4.
FUNCTIONAL = {
    "rotary": lambda q, k: (ops.rotary(q, None, INV_FREQ), ops.rotary(k, None, INV_FREQ)),
    "rotary_qk": lambda q, k: ops.rotary_qk(q, k, None, INV_FREQ),
    "apply_rotary": lambda q, k: tuple(ops.apply_rotary(x, *tables(x.shape[2], dtype=x.dtype)) for x in (q, k)),
    "apply_rotary_qk": lambda q, k: ops.apply_rotary_qk(q, k, *tables(q.shape[2], dtype=q.dtype)),
    "module": lambda q, k: Rotary(q.shape[-1], rotary_dim=4)(q, k),
    "learnable_module": lambda q, k: Rotary(q.shape[-1], rotary_dim=4, learnable=True).double()(q, k),
}
every_op = pytest.mark.parametrize("op", FUNCTIONAL)


def unit_pairs(dim, length, dtype=torch.float32):
    """x (1, 1, T, dim) of half-layout pairs (1, 0), which a rotation makes (cos, sin)."""
    x = torch.zeros(1, 1, length, dim, dtype=dtype)
    x[..., : dim // 2] = 1
    return x
