"""Attention whose scores carry a positional encoding, as functions; :mod:`posenc.ops` offers them.

Shapes: B batch, H query heads, G key and value heads (H a multiple of G), Tq queries, Tk keys, D head width, Dv value
width. ``query`` is (B, H, Tq, D), ``key`` (B, G, Tk, D), ``value`` (B, G, Tk, Dv), with any strides and one dtype of
float32, float64, bfloat16 and float16; tables and biases may be wider. Arithmetic is float32 (float64 for float64).

Each returns ``out`` (B, H, Tq, Dv), in the order of the strides of ``query``; with ``return_lse=True`` also ``lse``
(B, H, Tq), float32 (float64 for float64), the natural logarithm of the sum of exp of the final scores. Both are
differentiable in every floating tensor argument but positions. A query that sees no key gives 0, lse -infinity and zero
gradients; a NaN or infinity at a key reaches no query that does not see that key.

Arguments that several of them share:
    is_causal: By position: query i sees key j where ``k_positions[j] <= q_positions[i]``.
    scale: Multiplies query . key. None: ``1 / sqrt(D)``.
    key_mask: (B, Tk) bool, True where a key may be attended.
    window: Sees keys with ``q_position - k_position < window`` and, where not causal, ``k_position - q_position < window``.
    segment_ids: (B, Tk) integer; a query, of the last Tq entries, sees keys of its own segment only. Needs Tq <= Tk.
    q_positions, k_positions: (T) or (B, T), in tokens. None: ``arange(Tk)`` for keys and the last Tq of them for queries,
        so that decoding with a cache is right as it is. Integer, or floating where no score depends on the distance.
    dropout_p: Probability with which a weight is zeroed; the others are divided by ``1 - dropout_p``. The mask follows
        torch's seed and is fresh in every call.
    return_lse: Return (out, lse) instead of out.

Raises: ValueError for shapes and values, TypeError for dtypes.
"""

from typing import Any, Literal, overload

import torch
from torch import Tensor

_attention = torch.ops.posenc.attention.default
_relative_attention = torch.ops.posenc.relative_attention.default
_cope_attention = torch.ops.posenc.cope_attention.default
_piecewise_attention = torch.ops.posenc.piecewise_attention.default

__all__ = ["attention", "cope_attention", "piecewise_attention", "relative_attention"]


def _given(**options: Any) -> dict[str, Any]:
    """Without those that are None: a call spends a microsecond on every three arguments."""
    return {name: option for name, option in options.items() if option is not None}


@overload
def attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    *,
    is_causal: bool = False,
    scale: float | None = None,
    key_mask: Tensor | None = None,
    window: int | None = None,
    segment_ids: Tensor | None = None,
    q_positions: Tensor | None = None,
    k_positions: Tensor | None = None,
    alibi_slopes: Tensor | None = None,
    distance_bias: Tensor | None = None,
    bias: Tensor | None = None,
    log_decay: Tensor | None = None,
    dropout_p: float = 0.0,
    return_lse: Literal[False] = False,
) -> Tensor: ...


@overload
def attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    *,
    is_causal: bool = False,
    scale: float | None = None,
    key_mask: Tensor | None = None,
    window: int | None = None,
    segment_ids: Tensor | None = None,
    q_positions: Tensor | None = None,
    k_positions: Tensor | None = None,
    alibi_slopes: Tensor | None = None,
    distance_bias: Tensor | None = None,
    bias: Tensor | None = None,
    log_decay: Tensor | None = None,
    dropout_p: float = 0.0,
    return_lse: Literal[True],
) -> tuple[Tensor, Tensor]: ...


def attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    *,
    is_causal: bool = False,
    scale: float | None = None,
    key_mask: Tensor | None = None,
    window: int | None = None,
    segment_ids: Tensor | None = None,
    q_positions: Tensor | None = None,
    k_positions: Tensor | None = None,
    alibi_slopes: Tensor | None = None,
    distance_bias: Tensor | None = None,
    bias: Tensor | None = None,
    log_decay: Tensor | None = None,
    dropout_p: float = 0.0,
    return_lse: bool = False,
) -> Tensor | tuple[Tensor, Tensor]:
    """``softmax(scale * query @ key^T + biases) @ value``. The biases may be combined, and have gradients.

    Args:
        query: (B, H, Tq, D).
        key: (B, G, Tk, D).
        value: (B, G, Tk, Dv).
        alibi_slopes: (H) or (B, H): adds ``-slope * |q_position - k_position|`` (ALiBi, arXiv 2108.12409).
        distance_bias: (H, 2R+1): adds entry ``R + clip(k_position - q_position, -R, R)`` (T5, KERPLE, Sandwich).
        bias: Broadcastable to (B, H, Tq, Tk): added; -infinity, or the lowest finite number of its dtype, hides a key.
        log_decay: (B, H, Tk) or (1, H, Tk): adds the sum of the entries of the tokens behind the key, up to the query's own,
            with segment_ids those of their segment (forgetting attention, arXiv 2503.02130; CABLE, arXiv 2503.08067). Needs ``is_causal``, goes by index. Entries
            below -100000 count as that: they forget all before them, and later sums keep their digits.
        is_causal, scale, key_mask, window, segment_ids, q_positions, k_positions, dropout_p, return_lse: See
            :mod:`posenc.attention_ops`.

    Example:
        >>> q, k, v = torch.randn(1, 8, 5, 16), torch.randn(1, 2, 5, 16), torch.randn(1, 2, 5, 16)
        >>> posenc.ops.attention(q, k, v, is_causal=True, alibi_slopes=posenc.ops.alibi_slopes(8)).shape
        torch.Size([1, 8, 5, 16])
    """
    visible_by_index = key_mask is None and window is None and segment_ids is None
    visible_by_index = visible_by_index and q_positions is None and k_positions is None
    unbiased = alibi_slopes is None and distance_bias is None and bias is None and log_decay is None
    if visible_by_index and unbiased and scale is None and dropout_p == 0.0:
        # A microsecond less than to ask for each below, which shows on short sequences.
        out, lse = _attention(query, key, value, is_causal=is_causal)
        return (out, lse) if return_lse else out
    out, lse = _attention(
        query,
        key,
        value,
        is_causal=is_causal,
        dropout_p=dropout_p,
        **_given(
            scale=scale,
            key_mask=key_mask,
            window=window,
            segment_ids=segment_ids,
            q_positions=q_positions,
            k_positions=k_positions,
            alibi_slopes=alibi_slopes,
            distance_bias=distance_bias,
            bias=bias,
            log_decay=log_decay,
        ),
    )
    return (out, lse) if return_lse else out


@overload
def relative_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    rel_k: Tensor,
    rel_v: Tensor | None = None,
    *,
    is_causal: bool = False,
    scale: float | None = None,
    key_mask: Tensor | None = None,
    window: int | None = None,
    segment_ids: Tensor | None = None,
    q_positions: Tensor | None = None,
    k_positions: Tensor | None = None,
    dropout_p: float = 0.0,
    return_lse: Literal[False] = False,
) -> Tensor: ...


@overload
def relative_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    rel_k: Tensor,
    rel_v: Tensor | None = None,
    *,
    is_causal: bool = False,
    scale: float | None = None,
    key_mask: Tensor | None = None,
    window: int | None = None,
    segment_ids: Tensor | None = None,
    q_positions: Tensor | None = None,
    k_positions: Tensor | None = None,
    dropout_p: float = 0.0,
    return_lse: Literal[True],
) -> tuple[Tensor, Tensor]: ...


def relative_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    rel_k: Tensor,
    rel_v: Tensor | None = None,
    *,
    is_causal: bool = False,
    scale: float | None = None,
    key_mask: Tensor | None = None,
    window: int | None = None,
    segment_ids: Tensor | None = None,
    q_positions: Tensor | None = None,
    k_positions: Tensor | None = None,
    dropout_p: float = 0.0,
    return_lse: bool = False,
) -> Tensor | tuple[Tensor, Tensor]:
    """Attention with relative position embeddings (Shaw et al., arXiv 1803.02155, eq. 3 and 4).

    With ``r = R + clip(k_position - q_position, -R, R)`` scores are ``scale * query . (key + rel_k[r])``, and weights sum
    ``value + rel_v[r]``.

    Args:
        query: (B, H, Tq, D).
        key: (B, G, Tk, D).
        value: (B, G, Tk, Dv).
        rel_k: (2R+1, D), or (H, 2R+1, D) for each head.
        rel_v: (2R+1, Dv) or (H, 2R+1, Dv). None: keys only.
        is_causal, scale, key_mask, window, segment_ids, q_positions, k_positions, dropout_p, return_lse: See
            :mod:`posenc.attention_ops`.

    Example:
        >>> x = torch.randn(1, 2, 5, 4)
        >>> posenc.ops.relative_attention(x, x, x, torch.randn(9, 4), torch.randn(9, 4)).shape
        torch.Size([1, 2, 5, 4])
    """
    out, lse = _relative_attention(
        query,
        key,
        value,
        rel_k,
        rel_v,
        is_causal=is_causal,
        dropout_p=dropout_p,
        **_given(
            scale=scale,
            key_mask=key_mask,
            window=window,
            segment_ids=segment_ids,
            q_positions=q_positions,
            k_positions=k_positions,
        ),
    )
    return (out, lse) if return_lse else out


@overload
def cope_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    pos_emb: Tensor,
    *,
    gate_key: Tensor | None = None,
    gate_bias: Tensor | None = None,
    scale: float | None = None,
    scale_position_logits: bool = False,
    key_mask: Tensor | None = None,
    window: int | None = None,
    segment_ids: Tensor | None = None,
    dropout_p: float = 0.0,
    return_lse: Literal[False] = False,
) -> Tensor: ...


@overload
def cope_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    pos_emb: Tensor,
    *,
    gate_key: Tensor | None = None,
    gate_bias: Tensor | None = None,
    scale: float | None = None,
    scale_position_logits: bool = False,
    key_mask: Tensor | None = None,
    window: int | None = None,
    segment_ids: Tensor | None = None,
    dropout_p: float = 0.0,
    return_lse: Literal[True],
) -> tuple[Tensor, Tensor]: ...


def cope_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    pos_emb: Tensor,
    *,
    gate_key: Tensor | None = None,
    gate_bias: Tensor | None = None,
    scale: float | None = None,
    scale_position_logits: bool = False,
    key_mask: Tensor | None = None,
    window: int | None = None,
    segment_ids: Tensor | None = None,
    dropout_p: float = 0.0,
    return_lse: bool = False,
) -> Tensor | tuple[Tensor, Tensor]:
    """Contextual position encoding (CoPE, arXiv 2405.18719, eq. 3 to 5), always causal, by index.

    The gate of (i, j) is ``sigmoid(scale * query_i . gate_key_j + gate_bias)``; the position of key j is the sum of the
    gates from j up to i, at most P-1; the score is ``scale * query . key`` plus ``query . pos_emb`` interpolated at the
    position. Keys that a query does not see are not counted. The clamp at P-1 passes no gradient.

    Args:
        query: (B, H, Tq, D).
        key: (B, G, Tk, D).
        value: (B, G, Tk, Dv).
        pos_emb: (1, D, P), or (H, D, P) for each head.
        gate_key: (B, G, Tk, D): forms the gates instead of ``key``. Pass ``value`` for gates from values.
        gate_bias: (H), added to the gates' logits.
        scale_position_logits: Multiply ``query . pos_emb`` by ``scale`` too (Meta's repository). False: the paper's
            listing.
        scale, key_mask, window, segment_ids, dropout_p, return_lse: See :mod:`posenc.attention_ops`. Keys outside
            ``window`` or of another segment are neither attended nor counted.

    Example:
        >>> x = torch.randn(1, 2, 5, 4)
        >>> posenc.ops.cope_attention(x, x, x, torch.zeros(1, 4, 8)).shape
        torch.Size([1, 2, 5, 4])
    """
    out, lse = _cope_attention(
        query,
        key,
        value,
        pos_emb,
        scale_position_logits=scale_position_logits,
        dropout_p=dropout_p,
        **_given(
            gate_key=gate_key,
            gate_bias=gate_bias,
            scale=scale,
            key_mask=key_mask,
            window=window,
            segment_ids=segment_ids,
        ),
    )
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
    is_causal: bool = True,
    scale: float | None = None,
    key_mask: Tensor | None = None,
    window: int | None = None,
    segment_ids: Tensor | None = None,
    q_positions: Tensor | None = None,
    k_positions: Tensor | None = None,
    dropout_p: float = 0.0,
    return_lse: Literal[False] = False,
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
    is_causal: bool = True,
    scale: float | None = None,
    key_mask: Tensor | None = None,
    window: int | None = None,
    segment_ids: Tensor | None = None,
    q_positions: Tensor | None = None,
    k_positions: Tensor | None = None,
    dropout_p: float = 0.0,
    return_lse: Literal[True],
) -> tuple[Tensor, Tensor]: ...


def piecewise_attention(
    q_near: Tensor,
    k_near: Tensor,
    q_far: Tensor,
    k_far: Tensor,
    value: Tensor,
    threshold: int,
    *,
    is_causal: bool = True,
    scale: float | None = None,
    key_mask: Tensor | None = None,
    window: int | None = None,
    segment_ids: Tensor | None = None,
    q_positions: Tensor | None = None,
    k_positions: Tensor | None = None,
    dropout_p: float = 0.0,
    return_lse: bool = False,
) -> Tensor | tuple[Tensor, Tensor]:
    """Attention with one score nearby and another further on, as ReRoPE and Self-Extend (arXiv 2401.01325) need.

    The score is ``scale * q_near . k_near`` where ``q_position - k_position < threshold``, else ``scale * q_far . k_far``.

    Args:
        q_near, q_far: (B, H, Tq, D).
        k_near, k_far: (B, G, Tk, D).
        value: (B, G, Tk, Dv).
        threshold: In tokens.
        is_causal, scale, key_mask, window, segment_ids, q_positions, k_positions, dropout_p, return_lse: See
            :mod:`posenc.attention_ops`.

    Example:
        >>> x = torch.randn(1, 2, 5, 4)
        >>> posenc.ops.piecewise_attention(x, x, x, x, x, 3).shape
        torch.Size([1, 2, 5, 4])
    """
    out, lse = _piecewise_attention(
        q_near,
        k_near,
        q_far,
        k_far,
        value,
        threshold,
        is_causal=is_causal,
        dropout_p=dropout_p,
        **_given(
            scale=scale,
            key_mask=key_mask,
            window=window,
            segment_ids=segment_ids,
            q_positions=q_positions,
            k_positions=k_positions,
        ),
    )
    return (out, lse) if return_lse else out
