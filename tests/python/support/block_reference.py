"""The attention block in plain torch, in the dtype of its inputs: the slowest and plainest form. Imports no posenc."""

import math

import torch
from torch.nn.functional import linear


def heads_of(x, weight, bias, heads):
    """(B, T, E) -> (B, heads, T, D)."""
    batch, length, _ = x.shape
    return linear(x, weight, bias).view(batch, length, heads, -1).transpose(1, 2)


def rope(x, positions, interleaved=False, base=10000.0):
    """Rotary embedding (arXiv 2104.09864, eq. 34), angles in float64."""
    width = x.shape[-1]
    theta = base ** (-torch.arange(0, width, 2, dtype=torch.float64) / width)
    angles = positions[..., None].double() * theta
    if positions.dim() == 2:
        angles = angles.unsqueeze(1)  # over heads
    cos, sin = angles.cos().to(x.dtype), angles.sin().to(x.dtype)
    if interleaved:
        a, b = x[..., 0::2], x[..., 1::2]
        return torch.stack([a * cos - b * sin, b * cos + a * sin], dim=-1).flatten(-2)
    a, b = x.chunk(2, dim=-1)
    return torch.cat([a * cos - b * sin, b * cos + a * sin], dim=-1)


def cope_logits(query, attn_logits, pos_emb):
    """The listing in the appendix of CoPE (arXiv 2405.18719): masked, scaled logits in, position logits out."""
    last = pos_emb.shape[-1] - 1
    gates = torch.sigmoid(attn_logits)
    positions = gates.flip(-1).cumsum(dim=-1).flip(-1).clamp(max=last)
    upper, lower = positions.ceil().long(), positions.floor().long()
    integer_logits = query @ pos_emb
    share = positions - lower
    return integer_logits.gather(-1, upper) * share + integer_logits.gather(-1, lower) * (1 - share)


def published_rotary_cope(weights, x, heads, kv_heads, interleaved=False):
    """Attention with RoPE, grouped heads, an additive causal mask and CoPE, as it is usually published."""
    batch, length, _ = x.shape
    q = heads_of(x, weights["q_proj.weight"], weights["q_proj.bias"], heads)
    k = heads_of(x, weights["k_proj.weight"], weights["k_proj.bias"], kv_heads)
    v = heads_of(x, weights["v_proj.weight"], weights["v_proj.bias"], kv_heads)
    positions = torch.arange(length)
    q, k = rope(q, positions, interleaved), rope(k, positions, interleaved)
    k = k.repeat_interleave(heads // kv_heads, dim=1)
    v = v.repeat_interleave(heads // kv_heads, dim=1)
    mask = torch.full((length, length), -math.inf, dtype=x.dtype).triu(diagonal=1)
    scores = q @ k.transpose(-1, -2) / math.sqrt(q.shape[-1]) + mask
    scores = scores + cope_logits(q, scores, weights["encodings.1.pos_emb"])
    attention = torch.softmax(scores, dim=-1)
    out = (attention @ v).transpose(1, 2).reshape(batch, length, -1)
    return linear(out, weights["o_proj.weight"], weights.get("o_proj.bias"))


def block(weights, x, heads, kv_heads, *, visible, rotate=lambda q_or_k: q_or_k, bias=0.0):
    """Attention with grouped heads over the keys that `visible` (B, T, T) shows; a query that sees none gives zeros.

    rotate: queries or keys -> the same, turned. bias: broadcastable to (B, H, T, T), added to the scores.
    """
    q = rotate(heads_of(x, weights["q_proj.weight"], weights.get("q_proj.bias"), heads))
    k = rotate(heads_of(x, weights["k_proj.weight"], weights.get("k_proj.bias"), kv_heads))
    v = heads_of(x, weights["v_proj.weight"], weights.get("v_proj.bias"), kv_heads)
    k = k.repeat_interleave(heads // kv_heads, dim=1)
    v = v.repeat_interleave(heads // kv_heads, dim=1)
    scores = q @ k.transpose(-1, -2) / math.sqrt(q.shape[-1]) + bias
    scores = scores.masked_fill(~visible.unsqueeze(1), -math.inf)
    attention = torch.softmax(scores, dim=-1).nan_to_num(0.0)
    out = (attention @ v).transpose(1, 2).flatten(2)
    return linear(out, weights["o_proj.weight"], weights.get("o_proj.bias"))
