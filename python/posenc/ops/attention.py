"""Attention whose scores carry a positional encoding; :mod:`posenc.ops` offers and explains it."""

from typing import Literal, overload

import torch
from torch import Tensor
from typing_extensions import Unpack

from posenc.ops.keywords import (
    AttentionOptions,
    CoPEAttentionOptions,
    RelativeAttentionOptions,
    given,
    keywords_of,
    takes,
)

_attention = torch.ops.posenc.attention.default
_relative_attention = torch.ops.posenc.relative_attention.default
_cope_attention = torch.ops.posenc.cope_attention.default
_piecewise_attention = torch.ops.posenc.piecewise_attention.default

_ATTENTION = keywords_of(_attention, AttentionOptions)
_RELATIVE = keywords_of(_relative_attention, RelativeAttentionOptions)
_COPE = keywords_of(_cope_attention, CoPEAttentionOptions)
_PIECEWISE = keywords_of(_piecewise_attention, AttentionOptions)


@overload
def attention(
    query: Tensor, key: Tensor, value: Tensor, *, return_lse: Literal[False] = False, **call: Unpack[AttentionOptions]
) -> Tensor: ...


@overload
def attention(
    query: Tensor, key: Tensor, value: Tensor, *, return_lse: Literal[True], **call: Unpack[AttentionOptions]
) -> tuple[Tensor, Tensor]: ...


@takes(_ATTENTION)
def attention(
    query: Tensor, key: Tensor, value: Tensor, *, return_lse: bool = False, **call: Unpack[AttentionOptions]
) -> Tensor | tuple[Tensor, Tensor]:
    """``softmax(scale * query @ key^T + biases) @ value``. The biases may be combined, and have gradients.

    Args:
        query: (B, H, Tq, D).
        key: (B, G, Tk, D).
        value: (B, G, Tk, Dv).
        alibi_slopes: (H) or (B, H): adds ``-slope * |q_position - k_position|`` (ALiBi, arXiv 2108.12409).
        distance_bias: (H, 2R+1): adds entry ``R + clip(k_position - q_position, -R, R)`` (T5, KERPLE, Sandwich).
        bias: Broadcastable to (B, H, Tq, Tk): added; -infinity, or the lowest finite number of its dtype, hides a key.
        log_decay: (B, H, Tk) or (1, H, Tk): adds the sum of ``log_decay[t]`` for ``key < t <= query``, by index; with
            ``segment_ids`` only over t of the query's segment (forgetting attention, arXiv 2503.02130; CABLE,
            arXiv 2503.08067). Needs ``is_causal``. An entry below -100000 counts as -100000: that is enough to forget
            all keys before t, and later sums keep their precision.
        grid_bias: (H, 2Ry+1, 2Rx+1): adds entry ``[Ry + clip(dy, -Ry, Ry), Rx + clip(dx, -Rx, Rx)]``, where (dy, dx) is
            the key's place less the query's on two axes (Swin, arXiv 2103.14030; BEiT, LeViT). ``k_positions`` and
            ``q_positions`` are integer coordinates (y, x) then, (2, T) or (2, B, T).
        is_causal, scale, attn_mask, key_mask, window, segment_ids, q_segment_ids, block_ids, q_positions, k_positions,
            q_start, softcap, softcap_on, sinks, dropout_p, return_lse: See :mod:`posenc.ops`.

    Example:
        >>> q, k, v = torch.randn(1, 8, 5, 16), torch.randn(1, 2, 5, 16), torch.randn(1, 2, 5, 16)
        >>> posenc.ops.attention(q, k, v, is_causal=True, alibi_slopes=posenc.ops.alibi_slopes(8)).shape
        torch.Size([1, 8, 5, 16])
    """
    out, lse = _attention(query, key, value, **given("attention", _ATTENTION, call))
    return (out, lse) if return_lse else out


@overload
def relative_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    rel_k: Tensor | tuple[Tensor, Tensor] | None = None,
    rel_v: Tensor | None = None,
    *,
    return_lse: Literal[False] = False,
    **call: Unpack[RelativeAttentionOptions],
) -> Tensor: ...


@overload
def relative_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    rel_k: Tensor | tuple[Tensor, Tensor] | None = None,
    rel_v: Tensor | None = None,
    *,
    return_lse: Literal[True],
    **call: Unpack[RelativeAttentionOptions],
) -> tuple[Tensor, Tensor]: ...


@takes(_RELATIVE)
def relative_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    rel_k: Tensor | tuple[Tensor, Tensor] | None = None,
    rel_v: Tensor | None = None,
    *,
    return_lse: bool = False,
    **call: Unpack[RelativeAttentionOptions],
) -> Tensor | tuple[Tensor, Tensor]:
    """Attention with relative position embeddings (Shaw et al., arXiv 1803.02155, eq. 3 and 4).

    With ``r = R + clip(k_position - q_position, -R, R)`` scores are ``scale * query . (key + rel_k[r])``, and weights
    sum ``value + rel_v[r]``.

    Args:
        query: (B, H, Tq, D).
        key: (B, G, Tk, D).
        value: (B, G, Tk, Dv).
        rel_k: (2R+1, D), or (H, 2R+1, D) for each head. A pair (rel_y, rel_x) of such tables, of any radii: positions
            are on two axes then, as with ``grid_bias`` of :func:`attention`, and scores are ``scale * query . key +
            rel_scale * query . (rel_y[Ry + clip(dy)] + rel_x[Rx + clip(dx)])`` (SAM, arXiv 2304.02643; ViTDet,
            arXiv 2203.16527). None: there is ``rel_q`` alone.
        rel_v: (2R+1, Dv) or (H, 2R+1, Dv). None: keys only, as with a pair.
        rel_query: (B, H, Tq, r): multiplied with ``rel_k``, which is r wide then, in the place of ``query``, and by
            ``scale``: ``scale * query . key + scale * rel_query . rel_k[r]``, as in Transformer-XL (arXiv 1901.02860),
            where ``query + u`` and ``query + v`` are given, and in Conformers.
        rel_q: (2R+1, D) or (H, 2R+1, D): adds ``scale * key . rel_q[r]`` (DeBERTa's position-to-content score, arXiv
            2006.03654, equation 4).
        max_distance: (L, R): tables have L + R + 1 rows, for distances ``k_position - q_position`` from -L to R. None:
            2R + 1 rows.
        beyond: What other distances get: "clip", the row of the nearest distance; "zero", nothing.
        rel_scale: Multiplies what a pair adds; 1 in SAM. None: ``scale``.
        **call: The keyword arguments of :func:`attention`, all of which may be combined with these tables.

    Example:
        >>> x = torch.randn(1, 2, 5, 4)
        >>> posenc.ops.relative_attention(x, x, x, torch.randn(9, 4), torch.randn(9, 4)).shape
        torch.Size([1, 2, 5, 4])
    """
    handed_on = given("relative_attention", _RELATIVE, call)
    table = None if isinstance(rel_k, (tuple, list)) else rel_k
    if isinstance(rel_k, (tuple, list)):
        if len(rel_k) != 2:
            raise ValueError(
                f"relative_attention: expected rel_k to be a table or (rel_y, rel_x), but got {len(rel_k)}"
            )
        handed_on["grid_rel_y"], handed_on["grid_rel_x"] = rel_k
    out, lse = _relative_attention(query, key, value, table, rel_v, **handed_on)
    return (out, lse) if return_lse else out


@overload
def cope_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    pos_emb: Tensor,
    *,
    return_lse: Literal[False] = False,
    **call: Unpack[CoPEAttentionOptions],
) -> Tensor: ...


@overload
def cope_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    pos_emb: Tensor,
    *,
    return_lse: Literal[True],
    **call: Unpack[CoPEAttentionOptions],
) -> tuple[Tensor, Tensor]: ...


@takes(_COPE)
def cope_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    pos_emb: Tensor,
    *,
    return_lse: bool = False,
    **call: Unpack[CoPEAttentionOptions],
) -> Tensor | tuple[Tensor, Tensor]:
    """Contextual position encoding (CoPE, arXiv 2405.18719, eq. 3 to 5), always causal, by index.

    The gate of query i and key j is ``sigmoid(scale * query_i . gate_key_j + gate_bias)``; the position of key j is the
    sum of the gates from j up to i, at most P-1; the score is ``scale * query . key`` plus ``query . pos_emb``
    interpolated at the position. Keys that a query does not see are not counted. The clamp at P-1 passes no gradient.

    Args:
        query: (B, H, Tq, D).
        key: (B, G, Tk, D).
        value: (B, G, Tk, Dv).
        pos_emb: (1, D, P), or (H, D, P) for each head.
        gate_key: (B, G, Tk, D): forms the gates instead of ``key``. Pass ``value`` for gates from values.
        gate_bias: (H), added to the gates' logits.
        scale_position_logits: Multiply ``query . pos_emb`` by ``scale`` too (Meta's repository). False: the paper's
            listing.
        **call: The other keyword arguments are those of :func:`attention`, without ``is_causal`` and ``block_ids``;
            positions are those on two axes of ``grid_bias`` alone. Keys that a mask, ``window`` or ``segment_ids``
            hides are neither attended nor counted.

    Example:
        >>> x = torch.randn(1, 2, 5, 4)
        >>> posenc.ops.cope_attention(x, x, x, torch.zeros(1, 4, 8)).shape
        torch.Size([1, 2, 5, 4])
    """
    out, lse = _cope_attention(query, key, value, pos_emb, **given("cope_attention", _COPE, call))
    return (out, lse) if return_lse else out


@overload
def piecewise_attention(
    q_near: Tensor,
    k_near: Tensor,
    q_far: Tensor,
    k_far: Tensor,
    value: Tensor,
    threshold: int,
    *,
    return_lse: Literal[False] = False,
    **call: Unpack[AttentionOptions],
) -> Tensor: ...


@overload
def piecewise_attention(
    q_near: Tensor,
    k_near: Tensor,
    q_far: Tensor,
    k_far: Tensor,
    value: Tensor,
    threshold: int,
    *,
    return_lse: Literal[True],
    **call: Unpack[AttentionOptions],
) -> tuple[Tensor, Tensor]: ...


@takes(_PIECEWISE)
def piecewise_attention(
    q_near: Tensor,
    k_near: Tensor,
    q_far: Tensor,
    k_far: Tensor,
    value: Tensor,
    threshold: int,
    *,
    return_lse: bool = False,
    **call: Unpack[AttentionOptions],
) -> Tensor | tuple[Tensor, Tensor]:
    """Attention with one score for near keys and another for far ones, as ReRoPE and Self-Extend (arXiv 2401.01325)
    need.

    The score is ``scale * q_near . k_near`` where ``q_position - k_position < threshold``, else ``scale * q_far .
    k_far``.

    Args:
        q_near, q_far: (B, H, Tq, D).
        k_near, k_far: (B, G, Tk, D).
        value: (B, G, Tk, Dv).
        threshold: In tokens.
        **call: The keyword arguments of :func:`attention`, all of which may be combined with these tables.

    Example:
        >>> x = torch.randn(1, 2, 5, 4)
        >>> posenc.ops.piecewise_attention(x, x, x, x, x, 3).shape
        torch.Size([1, 2, 5, 4])
    """
    out, lse = _piecewise_attention(
        q_near, k_near, q_far, k_far, value, threshold, **given("piecewise_attention", _PIECEWISE, call)
    )
    return (out, lse) if return_lse else out
