"""Plain float64 references for ShawRelative, TransformerXL, ReRoPE, SelfExtend, CoPE and ForgettingBias, written from
the papers, pair by pair.

Nothing here imports posenc. Queries are (B, H, Tq, D), keys (B, G, Tk, D), values (B, G, Tk, Dv); torch float64
throughout, so that autograd gives reference gradients.
"""

import math

import torch

import reference


def default_positions(q_len: int, k_len: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Keys count from 0; the queries are the last of them."""
    return torch.arange(k_len - q_len, k_len), torch.arange(k_len)


def by_row(positions: torch.Tensor, batch: int) -> torch.Tensor:
    return positions.expand(batch, -1)


def visible(
    q,
    k,
    *,
    is_causal=True,
    key_mask=None,
    window=None,
    segment_ids=None,
    q_positions=None,
    k_positions=None,
) -> torch.Tensor:
    """(B, Tq, Tk): which keys each query sees."""
    batch, q_len, k_len = q.shape[0], q.shape[2], k.shape[2]
    q_default, k_default = default_positions(q_len, k_len)
    q_positions = by_row(q_default if q_positions is None else q_positions, batch)
    k_positions = by_row(k_default if k_positions is None else k_positions, batch)
    seen = torch.ones(batch, q_len, k_len, dtype=torch.bool)
    for b in range(batch):
        for i in range(q_len):
            for j in range(k_len):
                distance = int(q_positions[b, i]) - int(k_positions[b, j])
                sees = not is_causal or distance >= 0
                if window is not None:
                    sees = sees and abs(distance) < window
                if key_mask is not None:
                    sees = sees and bool(key_mask[b, j])
                if segment_ids is not None:
                    sees = sees and segment_ids[b, k_len - q_len + i] == segment_ids[b, j]
                seen[b, i, j] = sees
    return seen


def for_heads(x: torch.Tensor, heads: int) -> torch.Tensor:
    """(B, G, T, D) -> (B, H, T, D): head h reads group floor(h G / H)."""
    groups = x.shape[1]
    return torch.stack([x[:, h * groups // heads] for h in range(heads)], dim=1)


def weights(scores: torch.Tensor, seen: torch.Tensor) -> torch.Tensor:
    """Softmax of (B, H, Tq, Tk) over the keys that a query sees; 0 where it sees none."""
    hidden = scores.masked_fill(~seen.unsqueeze(1), -math.inf)
    sees_no_key = ~seen.any(-1)
    hidden = hidden.masked_fill(sees_no_key[:, None, :, None], 0.0)
    return torch.softmax(hidden, -1).masked_fill(~seen.unsqueeze(1), 0.0)


def attention(scores, seen, v) -> torch.Tensor:
    return weights(scores, seen) @ for_heads(v, scores.shape[1])


def scale_of(q, scale) -> float:
    return 1 / math.sqrt(q.shape[-1]) if scale is None else scale


# Shaw et al., arXiv 1803.02155


def shaw_rows(q, k, radius, q_positions=None, k_positions=None) -> torch.Tensor:
    """(B, Tq, Tk): clip(j - i, -R, R) + R, section 3.2."""
    q_default, k_default = default_positions(q.shape[2], k.shape[2])
    i = by_row(q_default if q_positions is None else q_positions, q.shape[0])
    j = by_row(k_default if k_positions is None else k_positions, q.shape[0])
    return (j[:, None, :] - i[:, :, None]).clamp(-radius, radius) + radius


def shaw_scores(q, k, rel_k, rows, scale=None) -> torch.Tensor:
    """Eq. 4: q_i . (k_j + a_r) / sqrt(d)."""
    batch, heads, q_len, _ = q.shape
    keys = for_heads(k, heads)
    tables = rel_k.expand(heads, *rel_k.shape[-2:])
    scores = []
    for b in range(batch):
        for i in range(q_len):
            moved = keys[b] + tables[:, rows[b, i]]
            scores.append((q[b, :, i].unsqueeze(1) * moved).sum(-1))
    return torch.stack(scores).view(batch, q_len, heads, -1).transpose(1, 2) * scale_of(q, scale)


def shaw(q, k, v, rel_k, rel_v=None, *, scale=None, is_causal=False, **seen) -> torch.Tensor:
    """Eq. 3: the weighted sum of v_j + a_r."""
    batch, heads, q_len, _ = q.shape
    rows = shaw_rows(q, k, rel_k.shape[-2] // 2, seen.get("q_positions"), seen.get("k_positions"))
    sees = visible(q, k, is_causal=is_causal, **seen)
    a = weights(shaw_scores(q, k, rel_k, rows, scale), sees)
    out = a @ for_heads(v, heads)
    if rel_v is None:
        return out
    tables = rel_v.expand(heads, *rel_v.shape[-2:])
    added = [(a[b, :, i].unsqueeze(-1) * tables[:, rows[b, i]]).sum(1) for b in range(batch) for i in range(q_len)]
    return out + torch.stack(added).view(batch, q_len, heads, -1).transpose(1, 2)


# DeBERTa, He et al., arXiv 2006.03654


def log_bucket(distance: int, buckets: int | None, max_distance: int) -> int:
    """Of i - j; with buckets as DeBERTa v2 has them, computed in float32."""
    middle = (buckets or 0) // 2
    if buckets is None or abs(distance) <= middle:
        return distance
    far = torch.log(torch.tensor(abs(distance)) / middle) / torch.log(torch.tensor((max_distance - 1) / middle))
    return int(math.copysign(math.ceil((far * (middle - 1)).item()) + middle, distance))


def disentangled(
    q, k, v, rel_k, rel_q, max_distance, buckets=None, *, scale=None, is_causal=False, **seen
) -> torch.Tensor:
    """Eq. 4: q_i . k_j + q_i . rel_k[r] + k_j . rel_q[r], times 1 / sqrt(D * terms)."""
    batch, heads, q_len, width = q.shape
    span, terms = buckets or max_distance, 1 + (rel_k is not None) + (rel_q is not None)
    q_default, k_default = default_positions(q_len, k.shape[2])
    i = by_row(seen.get("q_positions", q_default), batch)
    j = by_row(seen.get("k_positions", k_default), batch)
    keys, scores = for_heads(k, heads), []
    for b in range(batch):
        for a in range(q_len):
            r = [
                span + max(-span, min(span - 1, log_bucket(int(i[b, a] - c), buckets, max_distance)))
                for c in j[b].tolist()
            ]
            score = keys[b] @ q[b, :, a].unsqueeze(-1)
            if rel_k is not None:
                score = score + rel_k[:, r] @ q[b, :, a].unsqueeze(-1)
            if rel_q is not None:
                score = score + (rel_q[:, r] * keys[b]).sum(-1, keepdim=True)
            scores.append(score.squeeze(-1))
    scores = torch.stack(scores).view(batch, q_len, heads, -1).transpose(1, 2)
    scores = scores * (1 / math.sqrt(width * terms) if scale is None else scale)
    return attention(scores, visible(q, k, is_causal=is_causal, **seen), v)


# Transformer-XL, arXiv 1901.02860, section 3.3


def transformer_xl_rows(distances, pos_proj, layout) -> torch.Tensor:
    """W R_n for distances n = i - j (..): (.., H * D), with the columns of the authors' code or of Conformers."""
    width = pos_proj.shape[1]
    angles = [distances.double() * 10000.0 ** (-2 * k / width) for k in range(width // 2)]
    sines, cosines = [a.sin() for a in angles], [a.cos() for a in angles]
    columns = sines + cosines
    if layout == "interleaved":
        columns = [column for pair in zip(sines, cosines, strict=True) for column in pair]
    return torch.stack(columns, -1) @ pos_proj.T


def transformer_xl_scores(q, k, u, v, pos_proj, *, layout="concatenated", scale=None, **positions) -> torch.Tensor:
    """(q_i + u) . k_j + (q_i + v) . (W R_{i-j}) of each head."""
    batch, heads, q_len, width = q.shape
    q_default, k_default = default_positions(q_len, k.shape[2])
    i = by_row(positions.get("q_positions", q_default), batch)
    j = by_row(positions.get("k_positions", k_default), batch)
    rows = transformer_xl_rows(i[:, :, None] - j[:, None, :], pos_proj, layout)  # (B, Tq, Tk, H * D)
    rows = rows.unflatten(-1, (heads, width)).permute(0, 3, 1, 2, 4)
    content = (q + u.unsqueeze(1)) @ for_heads(k, heads).transpose(-1, -2)
    position = ((q + v.unsqueeze(1)).unsqueeze(3) * rows).sum(-1)
    return (content + position) * scale_of(q, scale)


def transformer_xl(q, k, v, parameters, *, layout="concatenated", scale=None, is_causal=False, **seen) -> torch.Tensor:
    """With content_bias, position_bias and pos_proj among the parameters."""
    learned = (parameters["content_bias"], parameters["position_bias"], parameters["pos_proj"])
    positions = {name: seen[name] for name in ("q_positions", "k_positions") if name in seen}
    scores = transformer_xl_scores(q, k, *learned, layout=layout, scale=scale, **positions)
    return attention(scores, visible(q, k, is_causal=is_causal, **seen), v)


# ReRoPE (kexue.fm 9708) and Self-Extend (arXiv 2401.01325): RoPE with the distance of each pair replaced


def rerope_distance(i: int, j: int, window: int, leak: float | None = None) -> float:
    """min(n, w); leaky: n below w, else w + (n - w) / k."""
    n = i - j
    if n < window:
        return n
    return window if leak is None else window + (n - window) / leak


def self_extend_distance(i: int, j: int, group: int, window: int) -> float:
    """n below W, else floor(i/G) + W - W/G - floor(j/G) (eq. 4)."""
    if i - j < window:
        return i - j
    return math.floor(i / group) + window - window / group - math.floor(j / group)


def distances(q, k, distance, q_positions=None, k_positions=None) -> torch.Tensor:
    """(B, Tq, Tk) of distance(i, j)."""
    q_default, k_default = default_positions(q.shape[2], k.shape[2])
    i = by_row(q_default if q_positions is None else q_positions, q.shape[0])
    j = by_row(k_default if k_positions is None else k_positions, q.shape[0])
    rows = [[[distance(int(a), int(c)) for c in j[b]] for a in i[b]] for b in range(q.shape[0])]
    return torch.tensor(rows, dtype=torch.float64).view(q.shape[0], q.shape[2], k.shape[2])


def log_factors(positions: torch.Tensor, length: int) -> torch.Tensor:
    """max(1, ln(i + 1) / ln L0); 1 before the first token."""
    factors = [[max(1.0, math.log(max(int(p), 0) + 1) / math.log(length)) for p in row] for row in positions]
    return torch.tensor(factors, dtype=torch.float64)


def rope_scores_at(q, k, distance, *, base=10000.0, interleaved=False, scale=None) -> torch.Tensor:
    """q_i turned by the distance of each pair, times k_j: RoFormer (arXiv 2104.09864) eq. 16 for any distance."""
    batch, heads, q_len, width = q.shape
    keys, inv_freq = for_heads(k, heads), reference.inverse_frequencies(width, base)
    scores = []
    for b in range(batch):
        for i in range(q_len):
            copies = q[b : b + 1, :, i : i + 1].expand(1, heads, k.shape[2], width)
            turned = reference.rotary(copies, distance[b, i], inv_freq, interleaved=interleaved)
            scores.append((turned[0] * keys[b]).sum(-1))
    return torch.stack(scores).view(batch, q_len, heads, -1).transpose(1, 2) * scale_of(q, scale)


def rerope(
    q, k, v, near, leak=None, log_scale_length=None, *, base=10000.0, interleaved=False, scale=None, **seen
) -> torch.Tensor:
    """`near` is the encoding's window; that of `seen` hides keys."""
    q_positions, k_positions = seen.get("q_positions"), seen.get("k_positions")
    pairs = distances(q, k, lambda i, j: rerope_distance(i, j, near, leak), q_positions, k_positions)
    if log_scale_length is not None:
        positions = default_positions(q.shape[2], k.shape[2])[0] if q_positions is None else q_positions
        q = q * log_factors(by_row(positions, q.shape[0]), log_scale_length)[:, None, :, None]
    scores = rope_scores_at(q, k, pairs, base=base, interleaved=interleaved, scale=scale)
    return attention(scores, visible(q, k, **seen), v)


def self_extend(q, k, v, group, near, *, base=10000.0, interleaved=False, scale=None, **seen) -> torch.Tensor:
    q_positions, k_positions = seen.get("q_positions"), seen.get("k_positions")
    pairs = distances(q, k, lambda i, j: self_extend_distance(i, j, group, near), q_positions, k_positions)
    scores = rope_scores_at(q, k, pairs, base=base, interleaved=interleaved, scale=scale)
    return attention(scores, visible(q, k, **seen), v)


# CoPE, arXiv 2405.18719


def cope_listing(query, attn_logits, pos_emb) -> torch.Tensor:
    """The paper's module (appendix): gates, reversed sum, clamp, interpolation between floor and ceiling."""
    gates = torch.sigmoid(attn_logits)
    last = pos_emb.shape[-1] - 1
    pos = gates.flip(-1).cumsum(dim=-1).flip(-1).clamp(max=last)
    ceiling, floor = pos.ceil().long(), pos.floor().long()
    z = torch.matmul(query, pos_emb)
    w = pos - floor
    return z.gather(-1, ceiling) * w + z.gather(-1, floor) * (1 - w)


def cope_positions(gates: torch.Tensor, last: int) -> torch.Tensor:
    """Eq. 4 for gates (.., Tk) of one query, those of keys that it does not see being 0, and the clamp of section 4."""
    total, positions = torch.zeros_like(gates[..., 0]), []
    for j in reversed(range(gates.shape[-1])):
        total = total + gates[..., j]
        positions.append(torch.where(total < last, total, torch.full_like(total, last)))
    return torch.stack(positions[::-1], -1)


def interpolated(z: torch.Tensor, p: torch.Tensor) -> torch.Tensor:
    """Eq. 5 on logits: entries of z (.., P) at p (.., Tk). floor + 1 rather than the ceiling, to keep the slope where p
    is whole; floor at most P - 2."""
    last = z.shape[-1] - 1
    floor = p.detach().floor().clamp(max=max(last - 1, 0))
    w, index = p - floor, floor.long()
    return (1 - w) * z.gather(-1, index) + w * z.gather(-1, (index + 1).clamp(max=last))


def cope_gates(q, gate_key, seen, *, scale=None, gate_bias=None) -> torch.Tensor:
    """Eq. 3, (B, H, Tq, Tk); 0 where a query does not see a key."""
    logits = q @ for_heads(gate_key, q.shape[1]).transpose(-1, -2) * scale_of(q, scale)
    if gate_bias is not None:
        logits = logits + gate_bias[:, None, None]
    return torch.where(seen.unsqueeze(1), torch.sigmoid(logits), 0.0)


def cope_scores(q, k, pos_emb, seen, *, gate_key=None, gate_bias=None, scale=None, scale_position_logits=False):
    """Content and position logits (section 4), before the softmax."""
    gates = cope_gates(q, k if gate_key is None else gate_key, seen, scale=scale, gate_bias=gate_bias)
    z = q @ pos_emb
    rows = range(q.shape[2])
    b = torch.stack([interpolated(z[:, :, i], cope_positions(gates[:, :, i], z.shape[-1] - 1)) for i in rows], 2)
    content = q @ for_heads(k, q.shape[1]).transpose(-1, -2) * scale_of(q, scale)
    return content + (b * scale_of(q, scale) if scale_position_logits else b)


def cope(q, k, v, pos_emb, *, key_mask=None, window=None, segment_ids=None, **options) -> torch.Tensor:
    seen = visible(q, k, key_mask=key_mask, window=window, segment_ids=segment_ids)
    return attention(cope_scores(q, k, pos_emb, seen, **options), seen, v)


# Forgetting attention, arXiv 2503.02130, and CABLE, arXiv 2503.08067


def log_decay(x, weight, bias=None) -> torch.Tensor:
    """(B, T, E) -> (B, H, T): log f_t = log sigmoid(w_h . x_t + b_h); without a bias -softplus(w_h . x_t)."""
    z = torch.einsum("bte,he->bht", x, weight)
    if bias is None:
        return -torch.log1p(torch.exp(z))
    return -torch.log1p(torch.exp(-(z + bias[:, None])))


def forgetting(q, k, v, decays, *, scale=None, key_mask=None, window=None, segment_ids=None) -> torch.Tensor:
    """softmax(q . k + sum over t = j + 1 .. i of decays[t]) v; masked tokens have no decay."""
    batch, heads, q_len, _ = q.shape
    k_len = k.shape[2]
    if key_mask is not None:
        decays = torch.where(key_mask[:, None], decays, 0.0)
    rows = []
    for i in range(k_len - q_len, k_len):
        rows.append(torch.stack([decays[:, :, j + 1 : i + 1].sum(-1) for j in range(k_len)], -1))
    content = q @ for_heads(k, heads).transpose(-1, -2) * scale_of(q, scale)
    seen = visible(q, k, key_mask=key_mask, window=window, segment_ids=segment_ids)
    return attention(content + torch.stack(rows, 2), seen, v)
