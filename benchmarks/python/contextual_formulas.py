"""Contextual encodings by their formulas in float64, for `attention_reference.Reference`."""

import torch
from torch import Tensor

from attention_reference import Block, Formula, hide, scores, weights

# So near to an integer, positions in float32 may lie on the other side of it.
KINK_MARGIN = 1e-4


def cope(gate_bias: float) -> Formula:
    """CoPE (arXiv 2405.18719, eq. 3 to 5); the input after the value is pos_emb (1, D, P)."""

    def formula(block: Block, query: Tensor, key: Tensor, value: Tensor, pos_emb: Tensor) -> Tensor:
        content = scores(block, query, key)
        last = pos_emb.shape[-1] - 1
        positions = _positions(block, content, gate_bias).clamp(max=last)
        below = positions.detach().floor().clamp(max=last - 1).long()
        entries = block.of_queries(query) @ pos_emb
        contextual = torch.lerp(entries.gather(-1, below), entries.gather(-1, below + 1), positions - below)
        return weights(block, content + contextual) @ block.of_keys(value)

    return formula


def cope_kinks(gate_bias: float) -> Formula:
    """The queries with a position at an integer.

    The interpolated table has another slope on either side, so rounding moves such a query's gradient by as much as
    the slopes differ.
    """

    def formula(block: Block, query: Tensor, key: Tensor, _: Tensor, pos_emb: Tensor) -> Tensor:
        positions = _positions(block, scores(block, query, key), gate_bias)
        whole = positions.round()
        # Beyond the last entry positions are clamped.
        counts = (whole > 0) & (whole < pos_emb.shape[-1])
        return ((positions - whole).abs() < KINK_MARGIN).logical_and_(counts).any(-1)

    return formula


def _positions(block: Block, content: Tensor, gate_bias: float) -> Tensor:
    gates = hide(block, content + gate_bias).sigmoid()
    return gates.flip(-1).cumsum(-1).flip(-1)


def piecewise(threshold: int) -> Formula:
    """Scores of q and k nearby, of q_far and k_far from `threshold` tokens on."""

    def formula(block: Block, query: Tensor, key: Tensor, value: Tensor, q_far: Tensor, k_far: Tensor) -> Tensor:
        near = block.distances() > -threshold
        both = torch.where(near, scores(block, query, key), scores(block, q_far, k_far))
        return weights(block, both) @ block.of_keys(value)

    return formula


def shaw(block: Block, query: Tensor, key: Tensor, value: Tensor, rel_k: Tensor, rel_v: Tensor) -> Tensor:
    """Shaw et al. (arXiv 1803.02155, eq. 3 and 4), causal; tables (2R+1, D) for all heads."""
    radius = rel_k.shape[0] // 2
    content = scores(block, query, key)
    row = (block.distances().clamp(-radius, radius) + radius).expand_as(content)
    relative = block.of_queries(query) @ rel_k.t() * query.shape[-1] ** -0.5
    of = weights(block, content + relative.gather(-1, row))
    by_row = torch.zeros_like(relative).scatter_add(-1, row, of)
    return of @ block.of_keys(value) + by_row @ rel_v
