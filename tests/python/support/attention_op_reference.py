"""The attention ops, one query at a time, in float64: plain sums over the keys that the query sees.

Every function takes query (B, H, Tq, D), key (B, G, Tk, D) and value (B, G, Tk, Dv) and returns (out, lse).
"""

import math

import torch


def _positions(positions, length, last):
    """Positions of one batch row each: given, or the last `length` of 0 .. last - 1."""
    if positions is None:
        return lambda b: list(range(last - length, last))
    return lambda b: (positions if positions.dim() == 1 else positions[b % positions.shape[0]]).tolist()


def _row(x, b):
    return None if x is None else x[b % x.shape[0]]


def _visible(i, queries, keys, q, k, *, is_causal, window, key_mask, segment_ids):
    """The keys that query i sees."""
    seen = []
    for j in range(keys):
        distance = q[i] - k[j]
        hidden = (
            (is_causal and distance < 0)
            or (window is not None and distance >= window)
            or (window is not None and not is_causal and -distance >= window)
            or (key_mask is not None and not key_mask[j])
            or (segment_ids is not None and segment_ids[j] != segment_ids[keys - queries + i])
        )
        if not hidden:
            seen.append(j)
    return seen


def _attend(query, key, value, score, add_value=None, *, hides=None, **rules):
    """score(b, h, i, seen, distances) -> the scores of the keys seen; add_value(h, weights, distances) -> (Dv)."""
    rules = {"is_causal": False, "window": None, "key_mask": None, "segment_ids": None} | rules
    q_positions, k_positions = rules.pop("q_positions", None), rules.pop("k_positions", None)
    (batch, heads, queries, _), keys, share = query.shape, key.shape[2], query.shape[1] // key.shape[1]
    q_of, k_of = _positions(q_positions, queries, keys), _positions(k_positions, keys, keys)
    outs, sums = [], []
    for b in range(batch):
        q, k = q_of(b), k_of(b)
        by_row = rules | {name: _row(rules[name], b) for name in ("key_mask", "segment_ids")}
        for h in range(heads):
            for i in range(queries):
                seen = _visible(i, queries, keys, q, k, **by_row)
                if hides is not None:
                    seen = [j for j in seen if not hides(b, h, i, j)]
                if not seen:
                    outs.append(value.new_zeros(value.shape[3]))
                    sums.append(value.new_full((), -math.inf))
                    continue
                distances = [k[j] - q[i] for j in seen]
                s = score(b, h, i, seen, distances)
                lse = torch.logsumexp(s, 0)
                weights = torch.exp(s - lse)
                out = weights @ value[b, h // share, seen]
                outs.append(out if add_value is None else out + add_value(h, weights, distances))
                sums.append(lse)
    shape = (batch, heads, queries)
    return torch.stack(outs).reshape(*shape, value.shape[3]), torch.stack(sums).reshape(shape)


def _scale(query, scale):
    return 1 / math.sqrt(query.shape[3]) if scale is None else scale


def attention(
    query,
    key,
    value,
    *,
    scale=None,
    alibi_slopes=None,
    distance_bias=None,
    bias=None,
    log_decay=None,
    hidden_below=None,
    **rules,
):
    """softmax(scale q.k + biases) v; entries of bias of at most `hidden_below`, and -infinity, hide a key."""
    share, factor = query.shape[1] // key.shape[1], _scale(query, scale)
    full = None if bias is None else bias.expand(*query.shape[:3], key.shape[2])
    lowest = -math.inf if hidden_below is None else hidden_below

    def score(b, h, i, seen, distances):
        s = factor * key[b, h // share, seen] @ query[b, h, i]
        if alibi_slopes is not None:
            slope = alibi_slopes[h] if alibi_slopes.dim() == 1 else alibi_slopes[b, h]
            s = s - slope * torch.tensor(distances, dtype=s.dtype).abs()
        if distance_bias is not None:
            radius = (distance_bias.shape[1] - 1) // 2
            s = s + distance_bias[h, [radius + max(-radius, min(radius, d)) for d in distances]]
        if log_decay is not None:
            decays, own = log_decay[b % log_decay.shape[0], h], key.shape[2] - query.shape[2] + i
            ids = rules.get("segment_ids")
            counts = torch.ones(key.shape[2], dtype=bool) if ids is None else ids[b] == ids[b, own]
            s = s + torch.stack([(decays * counts)[j + 1 : own + 1].sum() for j in seen])
        return s if full is None else s + full[b, h, i, seen]

    hides = None if full is None else lambda b, h, i, j: full[b, h, i, j].item() <= lowest
    return _attend(query, key, value, score, hides=hides, **rules)


def relative_attention(query, key, value, rel_k, rel_v=None, *, scale=None, **rules):
    """Shaw et al., arXiv 1803.02155, equations 3 and 4."""
    share, factor = query.shape[1] // key.shape[1], _scale(query, scale)
    radius = (rel_k.shape[-2] - 1) // 2

    def entries(table, h, distances):
        return (table if table.dim() == 2 else table[h])[[radius + max(-radius, min(radius, d)) for d in distances]]

    def score(b, h, i, seen, distances):
        return factor * (key[b, h // share, seen] + entries(rel_k, h, distances)) @ query[b, h, i]

    def add_value(h, weights, distances):
        return weights @ entries(rel_v, h, distances)

    return _attend(query, key, value, score, None if rel_v is None else add_value, **rules)


def cope_attention(
    query, key, value, pos_emb, *, gate_key=None, gate_bias=None, scale=None, scale_position_logits=False, **rules
):
    """CoPE, arXiv 2405.18719, equations 3 to 5."""
    share, factor = query.shape[1] // key.shape[1], _scale(query, scale)
    gates_from = key if gate_key is None else gate_key
    last = pos_emb.shape[2] - 1

    def score(b, h, i, seen, distances):
        table = pos_emb[h % pos_emb.shape[0]]
        shift = 0.0 if gate_bias is None else gate_bias[h]
        gates = torch.sigmoid(factor * gates_from[b, h // share, seen] @ query[b, h, i] + shift)
        position = gates.flip(0).cumsum(0).flip(0)
        position = torch.where(position < last, position, torch.full_like(position, last))
        below = position.detach().floor().clamp(max=max(last - 1, 0)).long()
        above = (below + 1).clamp(max=last)
        fraction = position - below
        logits = query[b, h, i] @ table
        bias = (1 - fraction) * logits[below] + fraction * logits[above]
        return factor * key[b, h // share, seen] @ query[b, h, i] + (factor if scale_position_logits else 1.0) * bias

    return _attend(query, key, value, score, is_causal=True, **rules)


def piecewise_attention(q_near, k_near, q_far, k_far, value, threshold, *, scale=None, is_causal=True, **rules):
    """One score where q_position - k_position < threshold, another beyond."""
    share, factor = q_near.shape[1] // k_near.shape[1], _scale(q_near, scale)

    def score(b, h, i, seen, distances):
        near = k_near[b, h // share, seen] @ q_near[b, h, i]
        far = k_far[b, h // share, seen] @ q_far[b, h, i]
        return factor * torch.where(torch.tensor([-d < threshold for d in distances]), near, far)

    return _attend(q_near, k_near, value, score, is_causal=is_causal, **rules)
