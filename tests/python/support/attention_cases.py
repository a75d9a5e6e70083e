"""Calls of the attention ops: one table drives forward, gradients, registration, transforms and layouts.

A call is tensors by argument name (those that may have a gradient, in the order of the schema) and other options.
"""

from dataclasses import dataclass, field
from typing import Any

import torch

import attention_op_reference
import posenc
from devices import moved, on_cpu

BATCH, HEADS, GROUPS, WIDTH, VALUE_WIDTH = 2, 4, 2, 6, 5


@dataclass(frozen=True)
class AttentionCase:
    """One call.

    Attributes:
        name: Test id.
        op: Name of the op.
        tables: Shapes of the tensors other than queries, keys and values, by argument name.
        options: Other keyword arguments, and threshold.
        queries, keys: Lengths.
    """

    name: str
    op: str
    tables: dict[str, tuple[int, ...]] = field(default_factory=dict)
    options: dict[str, Any] = field(default_factory=dict)
    queries: int = 5
    keys: int = 7

    def __str__(self) -> str:
        return f"{self.op}-{self.name}"

    @property
    def dispatcher_op(self):
        return getattr(torch.ops.posenc, self.op).default

    def tensors(self, dtype=torch.float64, make=None) -> dict[str, torch.Tensor]:
        make = make or (lambda shape, dtype: torch.randn(shape, dtype=torch.float64).to(dtype))
        query, key = (BATCH, HEADS, self.queries, WIDTH), (BATCH, GROUPS, self.keys, WIDTH)
        value = (*key[:3], VALUE_WIDTH)
        if self.op == "piecewise_attention":
            shapes = {"q_near": query, "k_near": key, "q_far": query, "k_far": key, "value": value}
        else:
            shapes = {"query": query, "key": key, "value": value}
        made = {name: make(shape, dtype) for name, shape in shapes.items()}
        for name, shape in self.tables.items():
            made[name] = (make if name in ("gate_key", "rel_query") else _plain)(shape, dtype)
        return made

    def options_for(self, tensors) -> dict[str, Any]:
        """The options, on the device of the tensors."""
        return moved(self.options, next(iter(tensors.values())).device)

    @property
    def dispatcher_options(self) -> dict[str, Any]:
        """The options as the dispatcher's op takes them, which has a pair of windows as two arguments."""
        options = dict(self.options)
        if isinstance(options.get("window"), tuple):
            left, right = options.pop("window")
            options |= {"window_left": left, "window_right": right}
        if "max_distance" in options:
            left, right = options.pop("max_distance")
            options |= {"max_distance_left": left, "max_distance_right": right}
        if "rel_scale" in options:
            options["grid_rel_scale"] = options.pop("rel_scale")
        return options

    def call(self, tensors) -> dict[str, Any]:
        """The tensors as the function takes them, which has tables for two axes as a pair."""
        call = dict(tensors)
        if "grid_rel_y" in call:
            call["rel_k"] = (call.pop("grid_rel_y"), call.pop("grid_rel_x"))
        return call

    def logits(self, tensors):
        """The scores, for tensors without value and rel_v."""
        renamed = {"q_near": "query", "k_near": "key"}
        causal = self.op in ("cope_attention", "piecewise_attention")
        options = {"is_causal": causal} | moved(self.dispatcher_options, next(iter(tensors.values())).device)
        return torch.ops.posenc._attention_logits(**{renamed.get(n, n): x for n, x in tensors.items()}, **options)

    def run(self, tensors):
        """(out, lse) of the op."""
        return getattr(posenc.ops, self.op)(**self.call(tensors), **self.options_for(tensors), return_lse=True)

    def expected(self, tensors):
        """(out, lse) in float64, without dropout."""
        return on_cpu(getattr(attention_op_reference, self.op), **self.call(tensors), **self.options)


def finite(lse):
    """lse with 0 for queries that see no key."""
    return torch.where(lse.isinf(), torch.zeros_like(lse), lse)


def function_of(case, tensors):
    """Both results, as a function of the values of the tensors."""

    def call(*values):
        out, lse = case.run(dict(zip(tensors, values, strict=True)))
        return out, finite(lse)

    return call


def _plain(shape, dtype):
    return torch.randn(shape, dtype=torch.float64).to(dtype)


MASK = torch.tensor([[True, True, False, True, True, True, False], [False, False, True, True, False, True, True]])
SEGMENTS = torch.tensor([[0, 0, 0, 1, 1, 1, 2], [3, 3, 3, 3, 3, 1, 1]])
RESTARTING = torch.tensor([[0, 1, 2, 0, 1, 2, 3], [4, 4, 0, 9, 2, 5, 6]])
LATER = torch.tensor([[2, 0, 1, 5, 3], [9, 2, 2, 6, 1]])
ATTN_MASK = torch.rand(BATCH, 1, 5, 7, generator=torch.Generator().manual_seed(3)) > 0.3
BLOCKS = torch.tensor([[0, 0, -1, 1, 1, 1, -1], [-1, 2, 2, 2, 5, 5, 5]])
CAPPED = {"softcap": 1.5, "attn_mask": ATTN_MASK}
CAPPED_SUM = {"softcap": 1.5, "softcap_on": "sum", "key_mask": MASK}
SHARED_RULES = {
    "plain": {},
    "causal": {"is_causal": True},
    "attn_mask": {"attn_mask": ATTN_MASK},
    "attn_mask_by_key": {"attn_mask": MASK[0], "is_causal": True},
    "left_and_right": {"window": (3, 1)},
    "left": {"window": (2, None), "is_causal": True},
    "right_by_position": {"window": (None, 1), "q_positions": LATER, "k_positions": RESTARTING},
    "blocks": {"block_ids": BLOCKS, "is_causal": True},
    "blocks_and_a_window": {"block_ids": BLOCKS, "is_causal": True, "window": 2},
    "segments_of_queries": {"segment_ids": SEGMENTS, "q_segment_ids": SEGMENTS[:, [0, 6, 1, 3, 2]]},
    "start": {"q_start": torch.tensor([0, 3]), "is_causal": True},
    "softcap": CAPPED,
    "softcap_on_sum": CAPPED_SUM | {"is_causal": True},
    "masked": {"key_mask": MASK, "is_causal": True},
    "window": {"window": 2, "is_causal": True},
    "two_sided_window": {"window": 3, "is_causal": False},
    "segments": {"segment_ids": SEGMENTS, "is_causal": True},
    "by_position": {"is_causal": True, "q_positions": LATER, "k_positions": RESTARTING},
    "shared_positions": {"is_causal": True, "q_positions": LATER[0], "k_positions": RESTARTING[1]},
    "everything": {
        "is_causal": True,
        "q_positions": LATER,
        "k_positions": RESTARTING,
        "key_mask": MASK,
        "window": 4,
        "segment_ids": SEGMENTS,
        "scale": 0.7,
        "attn_mask": ATTN_MASK,
        "softcap": 2.0,
    },
}
COPE_RULES = {
    "plain": {},
    "masked": {"key_mask": MASK},
    "window": {"window": 3},
    "segments": {"segment_ids": SEGMENTS},
    "left": {"window": (3, None)},
    "softcap": CAPPED,
    "softcap_on_sum": CAPPED_SUM,
    "everything": {
        "key_mask": MASK,
        "window": 4,
        "segment_ids": SEGMENTS,
        "scale": 0.7,
        "attn_mask": ATTN_MASK,
        "softcap": 2.0,
    },
}

# Coordinates on two axes: rows of a picture, with tokens that lie far away, share a place, or come in any order.
Q_GRID = torch.tensor([[0, 0, 2, 5, -3], [1, 7, 0, 1, 2]])
K_GRID = torch.tensor([[0, 0, 0, 1, 1, 1, -(2**40)], [0, 1, 2, 0, 1, 2, 9]])
ROWS_OF_GRID = torch.stack([K_GRID, K_GRID.flip(1) * 2], 1)
ON_GRID = {"q_positions": Q_GRID, "k_positions": K_GRID}
BY_PLACE = ("q_positions", "k_positions")
GRID_RULES = {
    "last_keys": {"k_positions": K_GRID},
    "rows_of_their_own": {"k_positions": ROWS_OF_GRID, "q_positions": ROWS_OF_GRID[:, :, :5] + 1, "is_causal": True},
    "start": {"q_start": torch.tensor([0, 3]), "is_causal": True} | ON_GRID,
} | {name: rule | ON_GRID for name, rule in SHARED_RULES.items() if not rule.keys() & {"q_start", *BY_PLACE}}

SLOPES, TABLE, BIAS = {"alibi_slopes": (HEADS,)}, {"distance_bias": (HEADS, 5)}, {"bias": (BATCH, HEADS, 5, 7)}
DECAY = {"log_decay": (BATCH, HEADS, 7)}
SINKS = {"sinks": (HEADS,)}
DOT_TABLES = {
    "dot": {},
    "slopes": SLOPES,
    "slopes_by_row": {"alibi_slopes": (BATCH, HEADS)},
    "table": TABLE,
    "bias": BIAS,
    "bias_by_key": {"bias": (7,)},
    "bias_by_head_and_row": {"bias": (HEADS, 5, 1)},
    "sinks_by_query": {"sinks": (BATCH, HEADS, 5)},
    "all_biases": SLOPES | TABLE | {"bias": (1, HEADS, 1, 7)} | SINKS,
}
GRID_BIAS = {"grid_bias": (HEADS, 3, 5)}
GRID_TABLES = {
    "grid_wide": {"grid_bias": (HEADS, 9, 21)},
    "grid_one_row": {"grid_bias": (HEADS, 1, 3)},
    "grid_bias": GRID_BIAS,
    "grid_and_all_biases": GRID_BIAS | SLOPES | TABLE | {"bias": (1, HEADS, 1, 7)} | SINKS,
}
AXES = {"grid_rel_y": (3, WIDTH), "grid_rel_x": (HEADS, 5, WIDTH)}
GRID_RELATIVE_TABLES = {
    "axes_wide": {"grid_rel_y": (HEADS, 17, WIDTH), "grid_rel_x": (1, WIDTH)},
    "axes": AXES,
    "axes_and_grid": AXES | GRID_BIAS | SLOPES | SINKS,
}
REL_QUERY = {"rel_query": (BATCH, HEADS, 5, 3), "rel_k": (HEADS, 5, 3)}
RELATIVE_TABLES = {
    "keys": {"rel_k": (5, WIDTH)},
    "keys_and_values": {"rel_k": (5, WIDTH), "rel_v": (5, VALUE_WIDTH)},
    "by_head": {"rel_k": (HEADS, 3, WIDTH), "rel_v": (HEADS, 3, VALUE_WIDTH)},
    "queries": {"rel_q": (5, WIDTH)},
    "queries_by_head": {"rel_q": (HEADS, 3, WIDTH)},
    "one_entry": {"rel_k": (1, WIDTH), "rel_v": (HEADS, 1, VALUE_WIDTH)},
    "keys_queries_and_values": {"rel_k": (5, WIDTH), "rel_v": (5, VALUE_WIDTH), "rel_q": (HEADS, 7, WIDTH)},
}
COPE_TABLES = {
    "shared": {"pos_emb": (1, WIDTH, 4)},
    "by_head": {"pos_emb": (HEADS, WIDTH, 8)},
    "one_position": {"pos_emb": (1, WIDTH, 1)},
    "two_positions": {"pos_emb": (1, WIDTH, 2)},
    "gate_keys": {"pos_emb": (1, WIDTH, 4), "gate_key": (BATCH, GROUPS, 7, WIDTH)},
    "gate_bias": {"pos_emb": (HEADS, WIDTH, 4), "gate_bias": (HEADS,)},
}


def _table(op, tables, rules, extra=None, plain="plain"):
    """Every table with the plainest rules, every rule with the richest table."""
    richest = list(tables)[-1]
    pairs = [(t, plain) for t in tables] + [(richest, r) for r in rules if r != plain]
    return [AttentionCase(f"{t}-{r}", op, tables[t], rules[r] | (extra or {})) for t, r in pairs]


CASES = [
    *_table("attention", DOT_TABLES, SHARED_RULES),
    AttentionCase("decay", "attention", DECAY, {"is_causal": True}),
    AttentionCase("decay_of_all_rows", "attention", {"log_decay": (1, HEADS, 7)}, {"is_causal": True, "window": 4}),
    AttentionCase("decay_masked", "attention", SLOPES | DECAY, {"is_causal": True, "key_mask": MASK}),
    AttentionCase("decay_segments", "attention", BIAS | DECAY, {"is_causal": True, "segment_ids": SEGMENTS}),
    AttentionCase("decay_one_query", "attention", DECAY, {"is_causal": True}, queries=1),
    *_table("relative_attention", RELATIVE_TABLES, SHARED_RULES),
    *_table("attention", GRID_TABLES, GRID_RULES, plain="last_keys"),
    AttentionCase("grid_one_query", "attention", GRID_BIAS, {"k_positions": K_GRID}, queries=1),
    AttentionCase(
        "grid_of_more_queries", "attention", GRID_BIAS, {"k_positions": K_GRID[:, :3], "q_positions": K_GRID}, 7, 3
    ),
    *_table("relative_attention", GRID_RELATIVE_TABLES, GRID_RULES, {"rel_scale": 1.0}, plain="last_keys"),
    AttentionCase("axes_of_one_scale", "relative_attention", AXES, {"k_positions": K_GRID, "scale": 0.3}),
    AttentionCase("axes_without_content", "relative_attention", AXES, ON_GRID | {"scale": 0.0, "rel_scale": 0.7}),
    AttentionCase("axes_one_query", "relative_attention", AXES, {"k_positions": K_GRID}, queries=1),
    AttentionCase("decay_on_grid", "attention", DECAY | GRID_BIAS, {"is_causal": True, "k_positions": K_GRID}),
    *_table("cope_attention", COPE_TABLES, COPE_RULES),
    AttentionCase("cope_on_grid", "cope_attention", COPE_TABLES["by_head"] | GRID_BIAS, {"k_positions": K_GRID}),
    AttentionCase("cope_of_all_terms", "cope_attention", COPE_TABLES["gate_keys"] | SLOPES | TABLE | DECAY | SINKS),
    AttentionCase("cope_capped", "cope_attention", COPE_TABLES["gate_bias"] | SLOPES | SINKS, CAPPED),
    AttentionCase("cope_of_gate_keys_capped", "cope_attention", COPE_TABLES["gate_keys"] | SINKS, CAPPED),
    AttentionCase("cope_capped_on_sum", "cope_attention", COPE_TABLES["two_positions"] | SINKS, CAPPED_SUM),
    AttentionCase("query_of_its_own", "relative_attention", REL_QUERY),
    AttentionCase("left_and_right", "relative_attention", REL_QUERY | SINKS, {"max_distance": (3, 1)}),
    AttentionCase(
        "zero_beyond", "relative_attention", RELATIVE_TABLES["by_head"], {"beyond": "zero", "is_causal": True}
    ),
    AttentionCase(
        "left_and_zero_beyond",
        "relative_attention",
        {"rel_k": (4, WIDTH), "rel_v": (4, VALUE_WIDTH)},
        {"max_distance": (2, 1), "beyond": "zero", "q_positions": LATER, "k_positions": RESTARTING},
    ),
    AttentionCase(
        "queries_left_and_zero_beyond",
        "relative_attention",
        {"rel_q": (4, WIDTH), "rel_k": (HEADS, 4, WIDTH)},
        {"max_distance": (2, 1), "beyond": "zero", "window": (3, None)},
    ),
    AttentionCase(
        "queries_of_all_terms",
        "relative_attention",
        {"rel_q": (5, WIDTH)} | SLOPES | BIAS | DECAY | SINKS,
        CAPPED_SUM | {"is_causal": True},
    ),
    AttentionCase(
        "relative_of_all_terms", "relative_attention", RELATIVE_TABLES["by_head"] | SLOPES | BIAS | SINKS, CAPPED
    ),
    AttentionCase("piecewise_of_all_terms", "piecewise_attention", TABLE | BIAS | SINKS, CAPPED | {"threshold": 3}),
    AttentionCase("piecewise_on_grid", "piecewise_attention", GRID_BIAS, {"k_positions": K_GRID, "threshold": 2}),
    AttentionCase("scaled_positions", "cope_attention", COPE_TABLES["shared"], {"scale_position_logits": True}),
    *_table("piecewise_attention", {"distances": {}}, SHARED_RULES, {"threshold": 3}),
    AttentionCase("never_far", "piecewise_attention", {}, {"threshold": 100}),
    AttentionCase("more_queries_than_keys", "attention", SLOPES, {"is_causal": True}, queries=6, keys=3),
    AttentionCase("more_queries_than_keys", "cope_attention", COPE_TABLES["shared"], {}, queries=6, keys=3),
    AttentionCase("one_query", "attention", SLOPES | TABLE, {"is_causal": True}, queries=1),
    AttentionCase("one_query", "cope_attention", COPE_TABLES["shared"], {}, queries=1),
    AttentionCase("one_query", "relative_attention", RELATIVE_TABLES["keys_queries_and_values"], {}, queries=1),
    AttentionCase("one_token", "relative_attention", RELATIVE_TABLES["by_head"], {"is_causal": True}, 1, 1),
]
# One of each op, and of two axes, for what does not depend on the rules.
ONE_OF_EACH = [
    next(c for c in CASES if c.op == op and ("everything" in c.name or c.name.endswith("by_head-plain")))
    for op in ("attention", "relative_attention", "cope_attention", "piecewise_attention")
] + [c for c in CASES if c.name == "axes_and_grid-everything"]
