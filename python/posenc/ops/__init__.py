"""The ops of posenc as functions of tensors. Each is one call of ``torch.ops.posenc.NAME``.

dtypes: float32, float64, bfloat16, float16; arithmetic is float32 (float64 for float64), angles are formed and reduced
in float64. Tensors may have any strides: pass ``x.transpose(1, 2)`` of a (B, T, H, D) tensor as it is. Outputs keep the
order of the strides.

Raises: ValueError for shapes and values, TypeError for dtypes and for keywords that an op does not have.

Rotary ops
----------

Shapes: B batch, H query heads, G key heads, T tokens, D head width, R rotary width (R <= D), A position axes. Tensors
to rotate are (B, H, T, D).

Arguments that several of them share:
    positions: Integer or floating positions in tokens, (T) or (B, T); over several axes (A, T) or (A, B, T). They may
        repeat, be unsorted or negative. None: ``offset + arange(T)``, on every axis.
    inv_freq: (R/2) frequencies in radians per token, float64 or float32. (A, R/2), or per head (A, H, R/2): the angle
        of a pair is the sum over axes of position times frequency.
    attention_scaling: Multiplies cos and sin (the magnitude of YaRN).
    interleaved: Pairs are (2k, 2k+1) instead of (k, k + R/2).
    inverse: Rotates by the negated angle (the transpose; ``attention_scaling`` still multiplies).
    axes: For each of the R/2 frequencies, the position axis that rotates its pair.
    exact: False forms angles as ``position * inv_freq`` rounded to float32, as the tables of other libraries do.
    offset: First position where ``positions`` is None: an int, or an int tensor (B).

Attention ops
-------------

Shapes: B batch, H query heads, G key and value heads (H a multiple of G), Tq queries, Tk keys, D head width, Dv value
width. ``query`` is (B, H, Tq, D), ``key`` (B, G, Tk, D), ``value`` (B, G, Tk, Dv), of one dtype; tables and biases may
be wider.

Each returns ``out`` (B, H, Tq, Dv), in the order of the strides of ``query``; with ``return_lse=True`` also ``lse``
(B, H, Tq), float32 (float64 for float64), the natural logarithm of the sum of exp of the final scores. Both are
differentiable in every floating tensor argument but positions. A query that sees no key gives 0, lse -infinity (with
``sinks``: its sink) and zero gradients; a NaN or infinity at a key reaches no query that does not see that key.

Keyword arguments that several of them share:
    is_causal: By position: query i sees key j where ``k_positions[j] <= q_positions[i]``.
    scale: Multiplies query . key. None: ``1 / sqrt(D)``.
    key_mask: (B, Tk) bool, True where a key may be attended.
    attn_mask: Bool, broadcastable to (B, H, Tq, Tk), True where a query may attend to a key, as in torch's
        ``scaled_dot_product_attention``. No copy is made of it; tiles of scores that it hides wholly are skipped.
    window: An int w: query i sees key j only where ``q_positions[i] - k_positions[j] < w`` and, where not causal, also
        ``k_positions[j] - q_positions[i] < w``. A pair (left, right), as in flash-attention: only where
        ``-right <= q_positions[i] - k_positions[j] <= left``; None in a place is any distance. ``is_causal`` hides
        later keys whatever ``right`` is.
    segment_ids: (B, Tk) integer, one for each key. A query sees the keys of its own segment only. The segments of
        queries are ``q_segment_ids``; without it the last Tq entries, which needs Tq <= Tk.
    q_segment_ids: (B, Tq) integer, for queries that are not the last tokens, as in packed cross-attention.
    block_ids: (B, Tk) integer: tokens of one block see each other, whatever ``is_causal`` and ``window`` say (prefix
        LM, PaliGemma; image tokens of Gemma 3). Entries below 0 are in no block. Queries are the last Tq entries.
    q_positions, k_positions: (T) or (B, T), in tokens. None: ``arange(Tk)`` for keys and the last Tq of them for
        queries, which suits decoding with a cache. Integer, or floating where no score depends on the distance. With
        ``grid_bias``, or a pair of tables as ``rel_k``, coordinates (y, x), integer, (2, T) or (2, B, T): those of keys
        must be given, and queries have the last Tq of them; everything else goes by index then.
    q_start: int64 tensor, () or (B): the position of the first query, where ``q_positions`` is not given; the others
        follow it. For key buffers of a fixed size, whose first tokens alone are filled, with ``is_causal``.
    bias: Broadcastable to (B, H, Tq, Tk): added to the scores.
    softcap: c > 0: a score s becomes ``c tanh(s / c)``.
    softcap_on: "content": the cap acts on ``scale * query . key``, before any term is added (Gemma 2, Grok). "sum": on
        the sum of all terms, before masks (audio layers of Gemma 4).
    sinks: (H) or (B, H, Tq): a logit that takes part in the softmax and has no value (gpt-oss). lse includes it.
    dropout_p: Probability with which a weight is zeroed; the others are divided by ``1 - dropout_p``. The mask follows
        torch's seed and is fresh in every call.
    return_lse: Return (out, lse) instead of out.
"""

from posenc.ops.attention import attention, cope_attention, piecewise_attention, relative_attention
from posenc.ops.bias import alibi_slopes, t5_bucket
from posenc.ops.rotary import (
    apply_rotary,
    apply_rotary_qk,
    apply_rotary_qk_,
    permute_rotary_weight,
    rotary,
    rotary_qk,
    rotary_qk_,
    rotary_tables,
)

__all__ = [
    "alibi_slopes",
    "t5_bucket",
    "attention",
    "cope_attention",
    "piecewise_attention",
    "relative_attention",
    "apply_rotary",
    "apply_rotary_qk",
    "apply_rotary_qk_",
    "permute_rotary_weight",
    "rotary",
    "rotary_qk",
    "rotary_qk_",
    "rotary_tables",
]
