"""Sparse, nested, quantized and opaque tensors are refused by name in every argument that is a tensor."""

import warnings

import pytest
import torch

import posenc

nn, ops = posenc.nn, posenc.ops


def sparse_rows(x):
    return x.to_sparse_csr() if x.dim() > 1 else x.to_sparse()


def nested(layout):
    def make(x):
        return torch.nested.nested_tensor([x, x] if x.dim() else [x[None], x[None]], layout=layout)

    return make


def quantized(x):
    return torch.quantize_per_tensor(x.float(), 0.1, 0, torch.qint8)


LAYOUTS = {
    "sparse": lambda x: x.to_sparse(),
    "sparse_csr": sparse_rows,
    "nested": nested(torch.strided),
    "jagged": nested(torch.jagged),
    "quantized": quantized,
    "mkldnn": lambda x: x.float().to_mkldnn(),
}
FLOATS_ONLY = ("quantized", "mkldnn")

Q, X = torch.randn(2, 2, 5, 8), torch.randn(2, 5, 8)
INV_FREQ = torch.tensor([1.0, 0.1, 0.01, 0.001])
POSITIONS, OFFSETS = torch.arange(5), torch.tensor([3, 4])
TABLE, PLACES = torch.randn(5, 4), torch.zeros(2, 5).long()


def attention(**other):
    """Attention with one operand or table in another layout."""
    return ops.attention(**({"query": Q, "key": Q, "value": Q, "is_causal": True} | other))


def with_parameter(module, name):
    """A call of a module one of whose parameters is in another layout."""

    def call(value):
        module._parameters.pop(name, None)
        setattr(module, name, value)
        return call_of(module)

    return call


def call_of(module):
    if isinstance(module, nn.ForgettingBias):
        return module(X)
    return module.logits(Q, Q) if hasattr(module, "logits") else module(X)


# op or module - argument: the tensor that is in another layout, and the call with it.
ARGUMENTS = {
    "rotary-x": (Q, lambda t: ops.rotary(t, None, INV_FREQ)),
    "rotary-positions": (POSITIONS, lambda t: ops.rotary(Q, t, INV_FREQ)),
    "rotary-inv_freq": (INV_FREQ, lambda t: ops.rotary(Q, None, t)),
    "rotary-offset": (OFFSETS, lambda t: ops.rotary(Q, None, INV_FREQ, offset=t)),
    "rotary_qk-q": (Q, lambda t: ops.rotary_qk(t, Q, None, INV_FREQ)),
    "rotary_qk-k": (Q, lambda t: ops.rotary_qk(Q, t, None, INV_FREQ)),
    "rotary_qk_-q": (Q, lambda t: ops.rotary_qk_(t, Q.clone(), None, INV_FREQ)),
    "rotary_tables-inv_freq": (INV_FREQ, lambda t: ops.rotary_tables(None, t, length=3)),
    "rotary_tables-positions": (POSITIONS, lambda t: ops.rotary_tables(t, INV_FREQ)),
    "rotary_tables-decay": (INV_FREQ, lambda t: ops.rotary_tables(POSITIONS, INV_FREQ, decay=t)),
    "apply_rotary-x": (Q, lambda t: ops.apply_rotary(t, TABLE, TABLE)),
    "apply_rotary-cos": (TABLE, lambda t: ops.apply_rotary(Q, t, TABLE)),
    "apply_rotary-sin": (TABLE, lambda t: ops.apply_rotary(Q, TABLE, t)),
    "apply_rotary_qk-k": (Q, lambda t: ops.apply_rotary_qk(Q, t, TABLE, TABLE)),
    "apply_rotary_qk_-k": (Q, lambda t: ops.apply_rotary_qk_(Q.clone(), t, TABLE, TABLE)),
    "permute_rotary_weight-weight": (torch.randn(8, 4), lambda t: ops.permute_rotary_weight(t, 1)),
    "t5_bucket-relative_position": (POSITIONS, ops.t5_bucket),
    "scaled_inv_freq-like": (
        INV_FREQ, lambda t: torch.ops.posenc.scaled_inv_freq(t, posenc._C.scaling.encode(None), 8, 10000.0, 5),
    ),
    "positions_from_mask-mask": (torch.ones(2, 5).bool(), posenc.positions.positions_from_mask),
    "positions_from_cu_seqlens-cu_seqlens": (OFFSETS, lambda t: posenc.positions.positions_from_cu_seqlens(t, 5)),
    "segments_from_cu_seqlens-cu_seqlens": (OFFSETS, lambda t: posenc.positions.segments_from_cu_seqlens(t, 5)),
    "attention-query": (Q, lambda t: attention(query=t)),
    "attention-key": (Q, lambda t: attention(key=t)),
    "attention-value": (Q, lambda t: attention(value=t)),
    "attention-alibi_slopes": (torch.ones(2), lambda t: attention(alibi_slopes=t)),
    "attention-distance_bias": (torch.ones(2, 3), lambda t: attention(distance_bias=t)),
    "attention-grid_bias": (torch.ones(2, 3, 5), lambda t: attention(grid_bias=t, k_positions=PLACES)),
    "attention-bias": (torch.ones(5, 5), lambda t: attention(bias=t)),
    "attention-log_decay": (torch.ones(2, 2, 5), lambda t: attention(log_decay=t)),
    "attention-key_mask": (torch.ones(2, 5).bool(), lambda t: attention(key_mask=t)),
    "attention-segment_ids": (torch.zeros(2, 5).long(), lambda t: attention(segment_ids=t)),
    "attention-q_positions": (POSITIONS, lambda t: attention(q_positions=t)),
    "attention-k_positions": (POSITIONS, lambda t: attention(k_positions=t)),
    "XPos-k": (Q, lambda t: nn.XPos(8)(Q, t)),
    "AxialRotary-positions": (torch.zeros(2, 5).long(), lambda t: nn.AxialRotary(8)(Q, positions=t)),
    "Attention-x": (X, lambda t: nn.Attention(8, 2)(t)),
    "Attention-positions": (POSITIONS, lambda t: nn.Attention(8, 2)(X, positions=t)),
    "KVCache-k": (Q, lambda t: nn.KVCache(2, 2, 5, 8).append(t, Q)),
    "KVCache-v": (Q, lambda t: nn.KVCache(2, 2, 5, 8).append(Q, t)),
    "ShawRelative-query": (Q, lambda t: nn.ShawRelative(8, 4).attend(t, Q, Q)),
    "DisentangledRelative-query": (Q, lambda t: nn.DisentangledRelative(8, 2, 4).attend(t, Q, Q)),
    "DisentangledRelative-rel_q": (
        torch.randn(2, 8, 8),
        with_parameter(nn.DisentangledRelative(8, 2, 4), "rel_q"),
    ),
    "attention-rel_q": (torch.ones(3, 8), lambda t: posenc.ops.relative_attention(Q, Q, Q, rel_q=t)),
    "DecomposedRelative-query": (Q, lambda t: nn.DecomposedRelative(8, (1, 5)).attend(t, Q, Q)),
    "DecomposedRelative-key": (Q, lambda t: nn.DecomposedRelative(8, (1, 5)).attend(Q, t, Q)),
    "GridRelativeBias-query": (Q, lambda t: nn.GridRelativeBias(2, (1, 5)).attend(t, Q, Q)),
    "GridRelativeBias-table": (torch.ones(9, 2), with_parameter(nn.GridRelativeBias(2, (1, 5)), "table")),
    "TransformerXL-query": (Q, lambda t: nn.TransformerXL(8, 2).attend(t, Q, Q)),
    "TransformerXL-key": (Q, lambda t: nn.TransformerXL(8, 2).logits(Q, t)),
    "TransformerXL-q_positions": (POSITIONS, lambda t: nn.TransformerXL(8, 2).attend(Q, Q, Q, q_positions=t)),
    "TransformerXL-pos_proj": (torch.randn(16, 16), with_parameter(nn.TransformerXL(8, 2), "pos_proj")),
    "CoPE-value": (Q, lambda t: nn.CoPE(8, 4, gate="value").attend(Q, Q, t)),
    "Sinusoidal-x": (X, lambda t: nn.Sinusoidal(8)(t)),
    "Sinusoidal-positions": (POSITIONS, lambda t: nn.Sinusoidal(8)(X, t)),
    "Sinusoidal-offset": (OFFSETS, lambda t: nn.Sinusoidal(8)(X, offset=t)),
    "LearnedAbsolute-x": (X, lambda t: nn.LearnedAbsolute(9, 8)(t)),
    "LearnedAbsolute-positions": (POSITIONS, lambda t: nn.LearnedAbsolute(9, 8)(X, t)),
    "LearnedAbsolute-offset": (OFFSETS, lambda t: nn.LearnedAbsolute(9, 8)(X, offset=t)),
    "LearnedAbsolute-weight": (torch.randn(9, 8), with_parameter(nn.LearnedAbsolute(9, 8), "weight")),
    "CAPE-x": (X, lambda t: nn.CAPE(8)(t)),
    "CAPE-positions": (POSITIONS, lambda t: nn.CAPE(8)(X, t)),
    "ALiBi-query": (Q, lambda t: nn.ALiBi(2).attend(t, Q, Q)),
    "ALiBi-key": (Q, lambda t: nn.ALiBi(2).attend(Q, t, Q)),
    "ALiBi-slopes": (torch.ones(2), with_parameter(nn.ALiBi(2, learnable=True), "slopes")),
    "T5RelativeBias-query": (Q, lambda t: nn.T5RelativeBias(2).attend(t, Q, Q)),
    "T5RelativeBias-weight": (torch.ones(32, 2), with_parameter(nn.T5RelativeBias(2), "weight")),
    "Kerple-key": (Q, lambda t: nn.Kerple(2).attend(Q, t, Q)),
    "Kerple-q_positions": (POSITIONS, lambda t: nn.Kerple(2).attend(Q, Q, Q, q_positions=t)),
    "Kerple-r1": (torch.ones(2), with_parameter(nn.Kerple(2), "r1")),
    "Kerple-r2": (torch.ones(2), with_parameter(nn.Kerple(2), "r2")),
    "Sandwich-query": (Q, lambda t: nn.Sandwich(2, dim=8).attend(t, Q, Q)),
    "FIRE-key": (Q, lambda t: nn.FIRE(2).logits(Q, t)),
    "FIRE-c": (torch.ones(1), with_parameter(nn.FIRE(2), "c")),
    "ReRoPE-query": (Q, lambda t: nn.ReRoPE(8).attend(t, Q, Q)),
    "ReRoPE-k_positions": (POSITIONS, lambda t: nn.ReRoPE(8).attend(Q, Q, Q, k_positions=t)),
    "SelfExtend-key": (Q, lambda t: nn.SelfExtend(8).attend(Q, t, Q)),
    "CoPE-query": (Q, lambda t: nn.CoPE(8, 4)(t, torch.randn(2, 2, 5, 5))),
    "CoPE-attn_logits": (torch.randn(2, 2, 5, 5), lambda t: nn.CoPE(8, 4)(Q, t)),
    "ForgettingBias-x": (X, lambda t: nn.ForgettingBias(8, 2)(t)),
    "ForgettingBias-weight": (torch.ones(2, 8), with_parameter(nn.ForgettingBias(8, 2), "weight")),
    "ForgettingBias-log_decay": (torch.zeros(2, 2, 5), lambda t: nn.ForgettingBias(8, 2).attend(Q, Q, Q, log_decay=t)),
}  # fmt: skip


def combinations():
    return [
        (argument, layout)
        for argument, (tensor, _) in ARGUMENTS.items()
        for layout in LAYOUTS
        if tensor.is_floating_point() or layout not in FLOATS_ONLY
    ]


@pytest.mark.parametrize(("argument", "layout"), combinations())
def test_a_tensor_that_is_not_dense_is_refused_by_name(argument, layout):
    tensor, call = ARGUMENTS[argument]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch's, of layouts in beta
        value = LAYOUTS[layout](tensor)
    op, name = argument.split("-")
    with pytest.raises((ValueError, TypeError), match=rf"{op}: expected {name}\b.*"):
        call(value)


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("make", [nn.Rotary, nn.XPos])
def test_rotary_modules_or_their_ops_refuse_it(make, layout):
    with pytest.raises(ValueError, match=r"expected (q|x) to be a dense tensor"):
        make(8)(LAYOUTS[layout](Q))


def test_the_message_says_what_to_do():
    for layout, advice in {
        "sparse": r"got the layout Sparse: call to_dense\(\) on it",
        "nested": "got a nested one: pad its sequences to one length",
        "quantized": r"got a quantized one: call dequantize\(\) on it",
    }.items():
        with pytest.raises(ValueError, match=rf"rotary: expected inv_freq to be a dense tensor, but {advice}"):
            ops.rotary(Q, None, LAYOUTS[layout](INV_FREQ))


@pytest.mark.parametrize("layout", ["sparse", "nested", "quantized", "mkldnn"])
def test_they_are_refused_by_name_in_inference_mode_too(layout):
    with torch.inference_mode(), pytest.raises(ValueError, match="rotary: expected x to be a dense tensor"):
        ops.rotary(LAYOUTS[layout](Q), None, INV_FREQ)
