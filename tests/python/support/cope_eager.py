"""CoPE attention as its paper lists it, on whole rows of scores, in the dtype of its inputs. Imports no posenc.

A call is tensors by argument name: query (B, H, Tq, D), key and value (B, H, Tk, D), pos_emb (1, D, P), gate_bias (H).
Queries are taken in blocks, so that 8192 keys fit into memory.
"""

import math

import torch

from contextual_reference import cope_listing

BLOCK = 1 << 21


def _scores(query, key, first):
    """scale * query . key, -infinity where key is later than query; the queries stand at first, first + 1, .."""
    hidden = torch.arange(key.shape[2]) > first + torch.arange(query.shape[2])[:, None]
    scores = query @ key.transpose(-1, -2) / math.sqrt(query.shape[3])
    return scores.masked_fill(hidden, -math.inf)


def _attend(query, key, value, pos_emb, gate_bias, first):
    scores = _scores(query, key, first)
    gates_from = scores + gate_bias[:, None, None]
    return torch.softmax(scores + cope_listing(query, gates_from, pos_emb), -1) @ value


def _blocks(query, key):
    """Rows of queries, and the position of the first."""
    queries, keys = query.shape[2], key.shape[2]
    size = max(1, BLOCK // (query.shape[0] * query.shape[1] * keys))
    for start in range(0, queries, size):
        yield slice(start, min(start + size, queries)), keys - queries + start


def attention(tensors):
    """out."""
    return attention_and_gradients(tensors, None)[0]


def attention_and_gradients(tensors, grad):
    """(out, gradients by name); grad None: no gradients."""
    query, key = tensors["query"], tensors["key"]
    outs, sums = [], {name: torch.zeros_like(x) for name, x in tensors.items()}
    for rows, first in _blocks(query, key):
        end = first + rows.stop - rows.start
        parts = {"query": (..., rows, slice(None)), "key": (..., slice(end), slice(None))}
        parts["value"] = parts["key"]
        here = {name: x[parts.get(name, ...)].detach().requires_grad_(grad is not None) for name, x in tensors.items()}
        out = _attend(**here, first=first)
        outs.append(out.detach())
        if grad is not None:
            of_block = torch.autograd.grad(out, list(here.values()), grad[:, :, rows], materialize_grads=True)
            for name, x in zip(here, of_block, strict=True):
                sums[name][parts.get(name, ...)] += x
    return torch.cat(outs, 2), sums


def rows_near_kinks(tensors, margin):
    """(B, H, Tq): whether a position that counts comes within `margin` of an integer, where the slope jumps."""
    query, key, last = tensors["query"], tensors["key"], tensors["pos_emb"].shape[2] - 1
    near = []
    for rows, first in _blocks(query, key):
        scores = _scores(query[:, :, rows], key, first)
        p = torch.sigmoid(scores + tensors["gate_bias"][:, None, None]).flip(-1).cumsum(-1).flip(-1)
        whole = p.round()
        near.append((((p - whole).abs() < margin) & (whole > 0) & (whole <= last)).any(-1))
    return torch.cat(near, 2)
