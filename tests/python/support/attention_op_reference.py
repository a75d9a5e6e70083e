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


def _in_window(distance, window, is_causal):
    """Whether a query sees a key `distance` tokens before it; window is an int or (left, right)."""
    if window is None:
        return True
    if isinstance(window, int):
        return distance < window and (is_causal or -distance < window)
    left, right = window
    return (left is None or distance <= left) and (is_causal or right is None or -distance <= right)


def _visible(i, queries, keys, q, k, *, is_causal, window, key_mask, segment_ids, q_segment_ids, block_ids):
    """The keys that query i sees."""
    seen, own = [], keys - queries + i
    for j in range(keys):
        distance = q[i] - k[j]
        near = not (is_causal and distance < 0) and _in_window(distance, window, is_causal)
        one_block = block_ids is not None and block_ids[j] >= 0 and block_ids[j] == block_ids[own]
        segment = None if segment_ids is None else segment_ids[own] if q_segment_ids is None else q_segment_ids[i]
        attended = key_mask is None or key_mask[j]
        if (near or one_block) and attended and (segment is None or segment_ids[j] == segment):
            seen.append(j)
    return seen


def _distances_on_axes(q_positions, k_positions, batch, queries):
    """Key less query on each of two axes, (batch, queries, keys); without q_positions queries are the last keys."""
    k = k_positions if k_positions.dim() == 3 else k_positions.unsqueeze(1)
    q = k[:, :, k.shape[2] - queries :] if q_positions is None else q_positions
    q = q if q.dim() == 3 else q.unsqueeze(1)
    return [(k[axis].unsqueeze(1) - q[axis].unsqueeze(2)).expand(batch, -1, -1) for axis in range(2)]


def _clipped(distance, entries):
    radius = (entries - 1) // 2
    return radius + distance.clamp(-radius, radius)


BY_ROW = ("key_mask", "segment_ids", "q_segment_ids", "block_ids")


def _attend(
    query,
    key,
    value,
    score,
    add_value=None,
    *,
    alibi_slopes=None,
    distance_bias=None,
    log_decay=None,
    bias=None,
    hidden_below=None,
    attn_mask=None,
    softcap=None,
    softcap_on="content",
    sinks=None,
    q_start=None,
    grid_bias=None,
    grid_rel=None,
    **rules,
):
    """score(b, h, i, seen, distances) -> of the keys seen, the product and what is added to it; add_value(h, weights,
    distances) -> (Dv). Entries of bias of at most `hidden_below`, and -infinity, hide a key. grid_rel: (rel_y, rel_x,
    scale)."""
    rules = {"is_causal": False, "window": None} | dict.fromkeys(BY_ROW) | rules
    q_positions, k_positions = rules.pop("q_positions", None), rules.pop("k_positions", None)
    (batch, heads, queries, _), keys, share = query.shape, key.shape[2], query.shape[1] // key.shape[1]
    if grid_bias is not None or grid_rel is not None:  # positions are on two axes, and all else goes by index
        along = _distances_on_axes(q_positions, k_positions, batch, queries)
        q_positions = k_positions = None
    if q_start is not None:
        q_positions = q_start.reshape(-1, 1) + torch.arange(queries)
    q_of, k_of = _positions(q_positions, queries, keys), _positions(k_positions, keys, keys)
    full = None if bias is None else bias.expand(batch, heads, queries, keys)
    mask = None if attn_mask is None else attn_mask.expand(batch, heads, queries, keys)
    lowest = -math.inf if hidden_below is None else hidden_below

    def capped(x, where):
        return softcap * torch.tanh(x / softcap) if softcap is not None and softcap_on == where else x

    def final_scores(b, h, i, seen, distances):
        product, added = score(b, h, i, seen, distances)
        s = capped(product, "content") + added
        if alibi_slopes is not None:
            slope = alibi_slopes[h] if alibi_slopes.dim() == 1 else alibi_slopes[b, h]
            s = s - slope * torch.tensor(distances, dtype=s.dtype).abs()
        if distance_bias is not None:
            radius = (distance_bias.shape[1] - 1) // 2
            s = s + distance_bias[h, [radius + max(-radius, min(radius, d)) for d in distances]]
        if log_decay is not None:
            decays, own = log_decay[b % log_decay.shape[0], h], keys - queries + i
            ids = rules["segment_ids"]
            counts = torch.ones(keys, dtype=bool) if ids is None else ids[b] == ids[b, own]
            s = s + torch.stack([(decays * counts)[j + 1 : own + 1].sum() for j in seen])
        if grid_bias is not None:
            y, x = (_clipped(d[b, i, seen], n) for d, n in zip(along, grid_bias.shape[1:], strict=True))
            s = s + grid_bias[h, y, x]
        if grid_rel is not None:
            for d, table in zip(along, grid_rel[:2], strict=True):
                of_head = table if table.dim() == 2 else table[h]
                s = s + grid_rel[2] * of_head[_clipped(d[b, i, seen], len(of_head))] @ query[b, h, i]
        return capped(s if full is None else s + full[b, h, i, seen], "sum")

    def hides(b, h, i, j):
        return (full is not None and full[b, h, i, j].item() <= lowest) or (mask is not None and not mask[b, h, i, j])

    outs, sums = [], []
    for b in range(batch):
        q, k = q_of(b), k_of(b)
        by_row = rules | {name: _row(rules[name], b) for name in BY_ROW}
        for h in range(heads):
            for i in range(queries):
                seen = _visible(i, queries, keys, q, k, **by_row)
                seen = [j for j in seen if not hides(b, h, i, j)]
                sink = None if sinks is None else sinks[h] if sinks.dim() == 1 else sinks[b, h, i]
                if not seen:
                    outs.append(value.new_zeros(value.shape[3]))
                    sums.append(value.new_full((), -math.inf) if sink is None else sink)
                    continue
                distances = [k[j] - q[i] for j in seen]
                s = final_scores(b, h, i, seen, distances)
                lse = torch.logsumexp(s if sink is None else torch.cat([s, sink.reshape(1)]), 0)
                weights = torch.exp(s - lse)
                out = weights @ value[b, h // share, seen]
                outs.append(out if add_value is None else out + add_value(h, weights, distances))
                sums.append(lse)
    shape = (batch, heads, queries)
    return torch.stack(outs).reshape(*shape, value.shape[3]), torch.stack(sums).reshape(shape)


def _scale(query, scale):
    return 1 / math.sqrt(query.shape[3]) if scale is None else scale


def attention(query, key, value, *, scale=None, grid_rel_y=None, grid_rel_x=None, grid_rel_scale=None, **rules):
    """softmax(scale q.k + biases) v."""
    if grid_rel_y is not None:
        rules["grid_rel"] = (grid_rel_y, grid_rel_x, _scale(query, scale) if grid_rel_scale is None else grid_rel_scale)
    share, factor = query.shape[1] // key.shape[1], _scale(query, scale)

    def score(b, h, i, seen, distances):
        product = factor * key[b, h // share, seen] @ query[b, h, i]
        return product, torch.zeros_like(product)

    return _attend(query, key, value, score, **rules)


def relative_attention(
    query,
    key,
    value,
    rel_k=None,
    rel_v=None,
    *,
    rel_query=None,
    rel_q=None,
    max_distance=None,
    beyond="clip",
    scale=None,
    **rules,
):
    """Shaw et al., arXiv 1803.02155, equations 3 and 4; with rel_query as in Transformer-XL, arXiv 1901.02860; rel_q as
    in DeBERTa, arXiv 2006.03654, equation 4. A pair of tables is for two axes."""
    if isinstance(rel_k, tuple):
        names = {"grid_rel_y": rel_k[0], "grid_rel_x": rel_k[1], "grid_rel_scale": rules.pop("rel_scale", None)}
        return attention(query, key, value, scale=scale, **names, **rules)
    share, factor = query.shape[1] // key.shape[1], _scale(query, scale)
    own = query if rel_query is None else rel_query

    def entries(table, h, distances):
        left, right = ((table.shape[-2] - 1) // 2,) * 2 if max_distance is None else max_distance
        rows = (table if table.dim() == 2 else table[h])[[left + max(-left, min(right, d)) for d in distances]]
        covered = torch.tensor([beyond == "clip" or -left <= d <= right for d in distances])
        return rows * covered.unsqueeze(-1)

    def score(b, h, i, seen, distances):
        keys = key[b, h // share, seen]
        content = keys @ query[b, h, i]
        added = torch.zeros_like(content)
        if rel_k is not None:
            added = added + entries(rel_k, h, distances) @ own[b, h, i]
        if rel_q is not None:
            added = added + (entries(rel_q, h, distances) * keys).sum(-1)
        return factor * content, factor * added

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
        return factor * key[b, h // share, seen] @ query[b, h, i], (factor if scale_position_logits else 1.0) * bias

    return _attend(query, key, value, score, is_causal=True, **rules)


def piecewise_attention(q_near, k_near, q_far, k_far, value, threshold, *, scale=None, is_causal=True, **rules):
    """One score where q_position - k_position < threshold, another beyond."""
    share, factor = q_near.shape[1] // k_near.shape[1], _scale(q_near, scale)

    def score(b, h, i, seen, distances):
        near = k_near[b, h // share, seen] @ q_near[b, h, i]
        far = k_far[b, h // share, seen] @ q_far[b, h, i]
        product = factor * torch.where(torch.tensor([-d < threshold for d in distances]), near, far)
        return product, torch.zeros_like(product)

    return _attend(q_near, k_near, value, score, is_causal=is_causal, **rules)
