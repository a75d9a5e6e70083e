"""One way to call each of the attention ops."""

import pytest
import torch

import posenc

OPS = ("attention", "relative_attention", "cope_attention", "piecewise_attention")
every_op = pytest.mark.parametrize("op", OPS)


def call(op, q, k, v, **options):
    """One call of any op with tables of its own; causal where the op lets one choose."""
    width = q.shape[3]
    table = torch.linspace(-1, 1, 5 * width, dtype=q.dtype).view(5, width)
    if op != "cope_attention":
        options = {"is_causal": True} | options
    extra = {
        "attention": lambda: posenc.ops.attention(q, k, v, alibi_slopes=table[:1, : q.shape[1]].abs()[0], **options),
        "relative_attention": lambda: posenc.ops.relative_attention(q, k, v, table, **options),
        "cope_attention": lambda: posenc.ops.cope_attention(q, k, v, table.t()[None], **options),
        "piecewise_attention": lambda: posenc.ops.piecewise_attention(q, k, q * 2, k, v, 2, **options),
    }
    return extra[op]()
