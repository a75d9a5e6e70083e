"""Bad calls of the attention ops: each message names op, argument, rule and value."""

import pytest
import torch

import posenc
from attention_calls import OPS


def call(op, **changes):
    """One call with some arguments replaced: q, k, v stand for query, key and value of any op."""
    q, k, v = (changes.pop(name, torch.randn(2, 4, 5, 8)) for name in "qkv")
    arguments = {
        "attention": lambda: {"query": q, "key": k, "value": v},
        "relative_attention": lambda: {"query": q, "key": k, "value": v, "rel_k": torch.randn(5, 8)},
        "cope_attention": lambda: {"query": q, "key": k, "value": v, "pos_emb": torch.randn(1, 8, 4)},
        "piecewise_attention": lambda: {"q_near": q, "k_near": k, "q_far": q, "k_far": k, "value": v, "threshold": 3},
    }[op]()
    return getattr(posenc.ops, op)(**(arguments | changes))


r = torch.randn
SHARED = [
    ({"q": r(4, 5, 8)}, ValueError, "of shape (batch, heads, length, head width), but got 3 dimensions: [4, 5, 8]"),
    ({"k": r(3, 4, 5, 8)}, ValueError, "to have the batch of"),
    ({"k": r(2, 4, 5, 6), "v": r(2, 4, 5, 6)}, ValueError, "to have the head width of"),
    ({"k": r(2, 3, 5, 8), "v": r(2, 3, 5, 8)}, ValueError, "to be a multiple of those of"),
    ({"v": r(2, 4, 6, 8)}, ValueError, "expected value to have the heads and the length of"),
    ({"v": r(2, 2, 5, 8)}, ValueError, "expected value to have the heads and the length of"),
    ({"v": r(2, 4, 5, 0)}, ValueError, "a value width of at least 1"),
    ({"v": r(2, 4, 5, 8).double()}, TypeError, "expected value to have the dtype of"),
    (
        {"v": torch.ones(2, 4, 5, 8, dtype=torch.int64)},
        TypeError,
        "float32, float64, bfloat16 or float16, but got Long",
    ),
    ({"v": r(2, 4, 5, 8, device="meta")}, ValueError, "but it is on meta"),
    ({"scale": float("nan")}, ValueError, "expected a finite scale, but got nan"),
    ({"window": 0}, ValueError, "expected window to be at least 1, but got 0"),
    ({"dropout_p": 1.5}, ValueError, "expected dropout_p from 0 to 1, but got 1.5"),
    ({"dropout_p": float("nan")}, ValueError, "expected dropout_p from 0 to 1"),
    ({"key_mask": torch.ones(2, 5)}, TypeError, "expected key_mask to be bool, true where a key may be attended"),
    ({"key_mask": torch.ones(2, 4, dtype=torch.bool)}, ValueError, "expected key_mask of shape (2, 5), but got [2, 4]"),
    ({"key_mask": torch.ones(5, dtype=torch.bool)}, ValueError, "expected key_mask of shape (2, 5), but got [5]"),
    ({"segment_ids": torch.ones(2, 5)}, TypeError, "expected segment_ids to be an integer type, but got Float"),
    ({"segment_ids": torch.ones(2, 6).long()}, ValueError, "expected segment_ids of shape (2, 5), but got [2, 6]"),
    (
        {"segment_ids": torch.ones(2, 5).long(), "q": r(2, 4, 6, 8)},
        ValueError,
        "at most as many queries as keys with segment_ids",
    ),
    (
        {"q_segment_ids": torch.ones(2, 5).long()},
        ValueError,
        "expected segment_ids, the segments of keys, with q_segment",
    ),
    (
        {"segment_ids": torch.ones(2, 5).long(), "q_segment_ids": torch.ones(2, 4).long()},
        ValueError,
        "expected q_segment_ids of shape (2, 5), but got [2, 4]",
    ),
    ({"attn_mask": r(5, 5)}, TypeError, "true where a query may attend to a key, but got Float: pass numbers"),
    (
        {"attn_mask": torch.ones(4, 5, dtype=torch.bool)},
        ValueError,
        "expected attn_mask to be broadcastable to (2, 4, 5, 5), but got [4, 5]",
    ),
    ({"bias": r(5, 4)}, ValueError, "expected bias to be broadcastable to (2, 4, 5, 5), but got [5, 4]"),
    ({"window": (-1, 2)}, ValueError, "expected window_left to be at least 0, but got -1"),
    ({"window": (1, -2)}, ValueError, "expected window_right to be at least 0, but got -2"),
    ({"window": (1, 2, 3)}, ValueError, "expected window to be an int or (left, right), but got (1, 2, 3)"),
    ({"sinks": r(3)}, ValueError, "expected sinks of shape (4) or (2, 4, 5), but got [3]"),
    ({"sinks": r(2, 4, 6)}, ValueError, "expected sinks of shape (4) or (2, 4, 5), but got [2, 4, 6]"),
    ({"sinks": torch.ones(4).long()}, TypeError, "expected sinks to be float32"),
    ({"softcap": 0.0}, ValueError, "expected softcap to be positive and finite, but got 0"),
    ({"softcap": float("inf")}, ValueError, "expected softcap to be positive and finite, but got inf"),
    ({"softcap_on": "sum"}, ValueError, "expected softcap with softcap_on='sum', but got None"),
    ({"softcap": 1.0, "softcap_on": "all"}, ValueError, "to be 'content' or 'sum', but got 'all'"),
]
POSITIONS = [
    ({"q_positions": torch.ones(5, dtype=torch.bool)}, TypeError, "q_positions to be an integer or floating type"),
    ({"q_positions": torch.arange(4)}, ValueError, "expected q_positions of shape (5) or (2, 5), but got [4]"),
    (
        {"k_positions": torch.zeros(3, 5).long()},
        ValueError,
        "expected k_positions of shape (5) or (2, 5), but got [3, 5]",
    ),
    ({"k_positions": torch.zeros(5, device="meta").long()}, ValueError, "expected k_positions on cpu like"),
    (
        {"k_positions": torch.zeros(2, 2, 5).long()},
        ValueError,
        "but got [2, 2, 5]: positions of two axes need grid_bias or grid_rel_y",
    ),
    ({"block_ids": r(2, 5)}, TypeError, "expected block_ids to be an integer type, but got Float"),
    (
        {"block_ids": torch.ones(2, 5).long(), "q": r(2, 4, 6, 8)},
        ValueError,
        "at most as many queries as keys with block_ids, which name the blocks of keys",
    ),
    ({"q_start": torch.tensor(1.0)}, TypeError, "expected q_start to be int64, but got Float"),
    ({"q_start": torch.arange(3)}, ValueError, "expected q_start of shape () or (2), but got [3]"),
    (
        {"q_start": torch.tensor(1), "q_positions": torch.arange(5)},
        ValueError,
        "expected either q_positions or q_start, but got both",
    ),
]
PLACES = {"k_positions": torch.zeros(2, 5).long()}
ON_GRID = [
    ({"grid_bias": r(4, 3, 5)}, ValueError, "expected k_positions of shape (2, 5), the keys' coordinates on two axes"),
    ({"grid_bias": r(4, 3, 4)} | PLACES, ValueError, "grid_bias of shape (4, 2Ry + 1, 2Rx + 1), but got [4, 3, 4]"),
    ({"grid_bias": r(4, 2, 5)} | PLACES, ValueError, "grid_bias of shape (4, 2Ry + 1, 2Rx + 1), but got [4, 2, 5]"),
    ({"grid_bias": r(3, 3, 5)} | PLACES, ValueError, "grid_bias of shape (4, 2Ry + 1, 2Rx + 1), but got [3, 3, 5]"),
    ({"grid_bias": r(4, 15)} | PLACES, ValueError, "grid_bias of shape (4, 2Ry + 1, 2Rx + 1), but got [4, 15]"),
    ({"grid_bias": torch.ones(4, 3, 5).long()} | PLACES, TypeError, "expected grid_bias to be float32"),
    (
        {"grid_bias": r(4, 3, 5), "k_positions": torch.zeros(2, 5)},
        TypeError,
        "expected integer k_positions, coordinates on two axes, with grid_bias, grid_rel_y and grid_rel_x, but got",
    ),
    (
        {"grid_bias": r(4, 3, 5), "k_positions": torch.arange(5)},
        ValueError,
        "expected k_positions of shape (2, 5) or (2, 2, 5), coordinates on two axes",
    ),
    (
        {"grid_bias": r(4, 3, 5), "k_positions": torch.zeros(3, 5).long()},
        ValueError,
        "expected k_positions of shape (2, 5) or (2, 2, 5), coordinates on two axes",
    ),
    (
        {"grid_bias": r(4, 3, 5), "k_positions": torch.zeros(2, 3, 5).long()},
        ValueError,
        "expected k_positions of shape (2, 5) or (2, 2, 5), coordinates on two axes",
    ),
    (
        {"grid_bias": r(4, 3, 5), "q_positions": torch.zeros(2, 4).long()} | PLACES,
        ValueError,
        "expected q_positions of shape (2, 5) or (2, 2, 5), coordinates on two axes",
    ),
]
BY_OP = {
    "attention": [
        ({"alibi_slopes": r(3)}, ValueError, "expected alibi_slopes of shape (4) or (2, 4), but got [3]"),
        ({"alibi_slopes": torch.ones(4).long()}, TypeError, "expected alibi_slopes to be float32"),
        (
            {"log_decay": r(4, 5), "is_causal": True},
            ValueError,
            "expected log_decay of shape (2, 4, 5), but got [4, 5]",
        ),
        ({"log_decay": r(2, 4, 5)}, ValueError, "expected is_causal=True with log_decay"),
        (
            {"log_decay": r(2, 4, 5), "is_causal": True, "q_positions": torch.arange(5)},
            ValueError,
            "expected neither q_positions nor k_positions with log_decay",
        ),
        (
            {"log_decay": r(2, 4, 5), "is_causal": True, "q_start": torch.tensor(0)},
            ValueError,
            "expected no q_start with log_decay",
        ),
        (
            {"log_decay": r(2, 4, 5), "is_causal": True, "block_ids": torch.zeros(2, 5).long()},
            ValueError,
            "expected no block_ids with log_decay",
        ),
        (
            {
                "log_decay": r(2, 4, 5),
                "is_causal": True,
                "segment_ids": torch.zeros(2, 5).long(),
                "q_segment_ids": torch.zeros(2, 5).long(),
            },
            ValueError,
            "expected no q_segment_ids with log_decay",
        ),
        ({"distance_bias": r(4, 4)}, ValueError, "expected distance_bias of shape (4, 2R + 1), but got [4, 4]"),
        ({"distance_bias": r(2, 5)}, ValueError, "expected distance_bias of shape (4, 2R + 1), but got [2, 5]"),
        ({"bias": r(1, 2, 4, 5, 5)}, ValueError, "expected bias to be broadcastable to (2, 4, 5, 5)"),
        ({"bias": torch.ones(5, 5, dtype=torch.bool)}, TypeError, "expected bias to be float32"),
        (
            {"alibi_slopes": r(4), "q_positions": torch.arange(5.0)},
            TypeError,
            "expected integer q_positions, as the scores depend on the distance, but got Float",
        ),
    ],
    "relative_attention": [
        ({"rel_k": r(4, 8)}, ValueError, "expected rel_k of shape (2R + 1, 8) or (4, 2R + 1, 8), but got [4, 8]"),
        ({"rel_k": r(3, 5, 8)}, ValueError, "expected rel_k of shape"),
        ({"rel_v": r(5, 7)}, ValueError, "expected rel_v of shape (2R + 1, 8) or (4, 2R + 1, 8), but got [5, 7]"),
        (
            {"rel_v": r(7, 8)},
            ValueError,
            "expected rel_k and rel_v to cover the same distances, but got [5, 8] and [7, 8]",
        ),
        ({"k_positions": torch.arange(5.0)}, TypeError, "expected integer k_positions"),
        ({"rel_query": r(2, 4, 5, 8), "rel_k": r(5, 7)}, ValueError, "expected rel_k of shape (2R + 1, 8)"),
        (
            {"rel_query": r(2, 4, 6, 8)},
            ValueError,
            "expected rel_query of shape (2, 4, 5, width), but got [2, 4, 6, 8]",
        ),
        ({"rel_query": r(2, 4, 5, 8).double()}, TypeError, "expected rel_query to have the dtype of query"),
        ({"rel_q": r(4, 8)}, ValueError, "expected rel_q of shape (2R + 1, 8) or (4, 2R + 1, 8), but got [4, 8]"),
        ({"rel_q": r(5, 7)}, ValueError, "expected rel_q of shape (2R + 1, 8)"),
        ({"rel_q": r(5, 8).long()}, TypeError, "expected rel_q to be float32"),
        ({"rel_q": r(3, 8), "max_distance": (2, 2)}, ValueError, "expected rel_q to have 5 rows"),
        ({"beyond": "wrap"}, ValueError, "expected beyond to be 'clip' or 'zero', but got 'wrap'"),
        (
            {"max_distance": (3, 2)},
            ValueError,
            "to have 6 rows, one for each distance from -3 to 2, but got shape [5, 8]",
        ),
        (
            {"max_distance": (-1, 5)},
            ValueError,
            "expected max_distance to be at least 0 on both sides, but got (-1, 5)",
        ),
        ({"max_distance": (4, None)}, ValueError, "expected max_distance_left with max_distance_right"),
        ({"max_distance": 2}, ValueError, "expected max_distance to be (left, right), but got 2"),
        ({"rel_k": None}, ValueError, "expected rel_k, a table or a pair of them for two axes, or rel_q, but got None"),
        ({"rel_k": (r(3, 8),)}, ValueError, "expected rel_k to be a table or (rel_y, rel_x), but got 1"),
        ({"rel_k": (r(3, 8), r(5, 8))}, ValueError, "expected k_positions of shape (2, 5), the keys' coordinates"),
        ({"rel_k": (r(4, 8), r(5, 8))} | PLACES, ValueError, "grid_rel_y of shape (2R + 1, 8) or (4, 2R + 1, 8), but"),
        ({"rel_k": (r(3, 8), r(5, 7))} | PLACES, ValueError, "grid_rel_x of shape (2R + 1, 8) or (4, 2R + 1, 8), but"),
        ({"rel_k": (r(3, 8), r(2, 5, 8))} | PLACES, ValueError, "expected grid_rel_x of shape (2R + 1, 8)"),
        ({"rel_k": (r(3, 8), r(5, 8)), "rel_v": r(5, 8)} | PLACES, ValueError, "expected no rel_v, rel_query,"),
        ({"rel_k": (r(3, 8), r(5, 8)), "max_distance": (2, 2)} | PLACES, ValueError, "expected no rel_v, rel_query,"),
        ({"rel_scale": 1.0} | PLACES, ValueError, "expected grid_rel_scale with grid_rel_y and grid_rel_x alone"),
        (
            {"rel_k": (r(3, 8), r(5, 8)), "rel_scale": float("inf")} | PLACES,
            ValueError,
            "expected a finite grid_rel_scale, but got inf",
        ),
        (
            {"rel_k": (r(3, 8), r(5, 8)), "q": r(2, 4, 6, 8)} | PLACES,
            ValueError,
            "expected q_positions of shape (2, 6) where there are more queries than keys, 5, but got None",
        ),
    ],
    "cope_attention": [
        ({"pos_emb": r(8, 4)}, ValueError, "expected pos_emb of shape (1, 8, positions) or (4, 8, positions)"),
        ({"pos_emb": r(2, 8, 4)}, ValueError, "expected pos_emb of shape (1, 8, positions) or (4, 8, positions)"),
        ({"pos_emb": r(1, 8, 0)}, ValueError, "expected pos_emb of shape (1, 8, positions)"),
        ({"gate_bias": r(3)}, ValueError, "expected gate_bias of shape (4), but got [3]"),
        ({"gate_key": r(2, 4, 4, 8)}, ValueError, "expected gate_key to have the heads and the length of key"),
        ({"gate_key": r(2, 4, 5, 6)}, ValueError, "expected gate_key to have the head width of query"),
    ],
    "piecewise_attention": [
        ({"q_far": r(2, 4, 4, 8)}, ValueError, "expected q_far to have the shape of q_near"),
        ({"k_far": r(2, 4, 4, 8)}, ValueError, "expected k_far to have the heads and the length of k_near"),
        ({"q_positions": torch.arange(5.0)}, TypeError, "expected integer q_positions"),
    ],
}
BAD = [(op, *bad) for op in OPS for bad in SHARED + ON_GRID + ([] if op == "cope_attention" else POSITIONS) + BY_OP[op]]


@pytest.mark.parametrize(
    ("op", "changes", "error", "text"), BAD, ids=lambda x: x if isinstance(x, str) and x in OPS else ""
)
def test_a_bad_call_says_what_is_wrong(op, changes, error, text):
    with pytest.raises(error) as raised:
        call(op, **changes)
    assert str(raised.value).startswith(f"{op}: ")
    assert text in str(raised.value)


@pytest.mark.parametrize(
    ("op", "changes", "error", "text"), BAD, ids=lambda x: x if isinstance(x, str) and x in OPS else ""
)
def test_a_bad_call_says_the_same_with_gradients(op, changes, error, text):
    with pytest.raises(error) as raised:
        call(op, **({"q": torch.randn(2, 4, 5, 8, requires_grad=True)} | changes))
    assert text in str(raised.value)


@pytest.mark.parametrize("op", OPS)
def test_a_good_call_after_a_bad_one(op):
    with pytest.raises(ValueError, match="window"):
        call(op, window=-1)
    assert call(op).isfinite().all()


@pytest.mark.parametrize("op", OPS)
def test_the_first_tensor_has_a_head_width(op):
    with pytest.raises(ValueError, match="a head width of at least 1"):
        call(op, q=r(2, 4, 5, 0), k=r(2, 4, 5, 0))
