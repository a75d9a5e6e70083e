"""Plain float64 references for the additive encodings, written from the papers, pair by pair.

Nothing here imports posenc. A bias is a function of a query's and a key's position -> (H) numbers; torch float64, so
that autograd gives reference gradients.
"""

import math

import torch

import contextual_reference as pairs


def alibi_slopes(heads: int) -> list[float]:
    """ALiBi (arXiv 2108.12409), section 3, and the authors' get_slopes for numbers of heads between powers of two."""
    if heads & (heads - 1) == 0:
        return [2.0 ** (-8.0 * h / heads) for h in range(1, heads + 1)]
    lower = 2 ** int(math.log2(heads))
    return alibi_slopes(lower) + alibi_slopes(2 * lower)[0::2][: heads - lower]


def alibi(slopes):
    return lambda i, j: -slopes * abs(i - j)


def t5_bucket(relative: int, num_buckets=32, max_distance=128, bidirectional=True) -> int:
    """T5 (arXiv 1910.10683), section 2.1, as its authors' _relative_position_bucket has it."""
    first = 0
    if bidirectional:
        num_buckets //= 2
        first = num_buckets if relative > 0 else 0
        distance = abs(relative)
    else:
        distance = max(-relative, 0)
    exact = num_buckets // 2
    if distance < exact:
        return first + distance
    steps = math.log(distance / exact) / math.log(max_distance / exact) * (num_buckets - exact)
    return first + min(exact + int(steps), num_buckets - 1)


def t5(weight, **options):
    return lambda i, j: weight[t5_bucket(j - i, num_buckets=len(weight), **options)]


def kerple(r1, r2, kind="log"):
    """KERPLE (arXiv 2205.09921), clamped as in the authors' code."""
    r1, r2 = r1.clamp(min=0.01), r2.clamp(min=0.01)
    if kind == "log":
        return lambda i, j: -r1 * torch.log(1 + r2 * abs(i - j))
    r2 = r2.clamp(max=2)
    return lambda i, j: -r1 * abs(i - j) ** r2 if i != j else torch.zeros_like(r1)


def sandwich(heads: int, dim: int = 128):
    """Sandwich (arXiv 2212.10356)."""

    def bias(i, j):
        total = sum(math.cos((i - j) / 10000.0 ** (2 * k / dim)) for k in range(1, dim // 2 + 1))
        return torch.tensor([(total - dim / 2) / (8 * h / heads) for h in range(1, heads + 1)], dtype=torch.float64)

    return bias


def fire_ratio(i: int, j: int, c, threshold, eps=1e-6):
    """What FIRE's MLP sees (arXiv 2310.04418): psi(i - j) / psi(max(threshold, i))."""

    def psi(x):
        return torch.log(abs(c * x) + 1)

    limit = abs(threshold)
    return psi(abs(i - j)) / (psi(limit if limit > i else torch.full_like(limit, i)) + eps)


def fire(p, eps=1e-6):
    def bias(i, j):
        ratio = fire_ratio(i, j, p["c"], p["threshold"], eps)
        hidden = torch.relu(p["mlp.0.weight"] @ ratio + p["mlp.0.bias"])
        return p["mlp.2.weight"] @ hidden + p["mlp.2.bias"]

    return bias


def materialise(bias, q_positions, k_positions):
    """(H, Tq, Tk)."""
    rows = [torch.stack([bias(int(i), int(j)) for j in k_positions], dim=-1) for i in q_positions]
    return torch.stack(rows, dim=-2)


def logits(q, k, bias, *, scale=None, is_causal=False, q_positions=None, k_positions=None, **hiding):
    """The final scores (B, H, Tq, Tk), -inf where hidden."""
    batch, heads, q_len, width = q.shape
    q_default, k_default = pairs.default_positions(q_len, k.shape[2])
    q_rows = pairs.by_row(q_default if q_positions is None else q_positions, batch)
    k_rows = pairs.by_row(k_default if k_positions is None else k_positions, batch)
    added = torch.stack([materialise(bias, q_rows[b], k_rows[b]) for b in range(batch)])
    seen = pairs.visible(q, k, is_causal=is_causal, q_positions=q_positions, k_positions=k_positions, **hiding)
    scores = q @ pairs.for_heads(k, heads).transpose(-1, -2) * (1 / math.sqrt(width) if scale is None else scale)
    return (scores + added).masked_fill(~seen.unsqueeze(1), -math.inf)


def attend(q, k, v, bias, **call):
    """A query that sees no key gives zeros."""
    scores = logits(q, k, bias, **call)
    empty = torch.isinf(scores).all(-1, keepdim=True)
    weights = torch.softmax(scores.masked_fill(empty, 0.0), dim=-1).masked_fill(empty, 0.0)
    return weights @ pairs.for_heads(v, q.shape[1])
