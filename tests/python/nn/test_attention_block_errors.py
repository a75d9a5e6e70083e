"""What Attention refuses, at construction and in calls, and what it says; the C++ one does the same."""

import pytest
import torch

import posenc
from block_stacks import BY_NAME, EMBED_DIM, HEAD_DIM, HEADS

BATCH, LENGTH = 2, 7

in_both_languages = pytest.mark.parametrize("namespace", [posenc.nn, posenc.nn.cpp], ids=["python", "cpp"])

OPTIONS = {
    "embed_dim": ((0, 4), {}, ValueError, "expected embed_dim to be at least 1, but got 0"),
    "num_heads": ((32, 0), {}, ValueError, "expected num_heads to be at least 1, but got 0"),
    "num_kv_heads": ((32, 4), {"num_kv_heads": 0}, ValueError, "expected num_kv_heads to be at least 1, but got 0"),
    "head_dim": ((32, 4), {"head_dim": 0}, ValueError, "expected head_dim to be at least 1, but got 0"),
    "window": ((32, 4), {"window": 0}, ValueError, "expected window to be at least 1, but got 0"),
    "groups": ((32, 4), {"num_kv_heads": 3}, ValueError, "num_heads 4 to be a multiple of num_kv_heads, but got 3"),
    "division": ((30, 4), {}, ValueError, "embed_dim 30 to be a multiple of num_heads 4, or head_dim to be given"),
    "dropout": ((32, 4), {"dropout": 1.0}, ValueError, "expected dropout from 0 to below 1, but got 1"),
    "output_dropout": ((32, 4), {"output_dropout": -0.1}, ValueError, "expected output_dropout from 0 to below 1"),
}


@in_both_languages
@pytest.mark.parametrize("case", OPTIONS)
def test_options_that_do_not_fit(namespace, case):
    arguments, options, error, message = OPTIONS[case]
    with pytest.raises(error, match="Attention: .*" + message):
        namespace.Attention(*arguments, **options)


COMBINATIONS = {
    "two encodings with decays": (
        lambda nn: [nn.ForgettingBias(EMBED_DIM, HEADS), nn.Rotary(HEAD_DIM), nn.ForgettingBias(EMBED_DIM, HEADS)],
        {},
        ValueError,
        "at most one score encoding with state of tokens of a kind",
    ),
    "two scales": (
        lambda nn: [nn.T5RelativeBias(HEADS), nn.T5RelativeBias(HEADS, scale=2.0)],
        {},
        ValueError,
        "expected scale, as the score encodings multiply q . k by different numbers",
    ),
    "rotary with ReRoPE": (
        lambda nn: [nn.Rotary(HEAD_DIM), nn.ReRoPE(HEAD_DIM, 4)],
        {},
        ValueError,
        "expected no rotary encoding together with",
    ),
    "rotary with SelfExtend": (
        lambda nn: [nn.SelfExtend(HEAD_DIM), nn.XPos(HEAD_DIM)],
        {},
        ValueError,
        "expected no rotary encoding together with",
    ),
    "CoPE without causality": (
        lambda nn: [nn.CoPE(HEAD_DIM, 5)],
        {"is_causal": False},
        ValueError,
        "expected is_causal to be true with",
    ),
    "a projection": (
        lambda nn: [nn.Attention(8, 2)],
        {},
        TypeError,
        "expected encodings to be absolute, rotary or score encodings of posenc, but got .*Attention",
    ),
    "Rotary of other widths": (
        lambda nn: [nn.Rotary(4)],
        {},
        ValueError,
        "Rotary.* to have head_dim 8, as the block's head_dim is 8, but got 4",
    ),
    "XPos of other widths": (lambda nn: [nn.XPos(8)], {"head_dim": 6}, ValueError, "XPos.* head_dim 6, .* but got 8"),
    "AxialRotary of other widths": (
        lambda nn: [nn.AxialRotary(4)],
        {},
        ValueError,
        "AxialRotary.* head_dim 8, .* got 4",
    ),
    "AxialRotary of other heads": (
        lambda nn: [nn.AxialRotary(HEAD_DIM, learnable=True, num_heads=2)],
        {},
        ValueError,
        "AxialRotary.* num_heads 4, .* but got 2",
    ),
    "MultimodalRotary of other widths": (
        lambda nn: [nn.MultimodalRotary(4, (1, 1))],
        {},
        ValueError,
        "MultimodalRotary.* head_dim 8, .* but got 4",
    ),
    "ALiBi of other heads": (
        lambda nn: [nn.Rotary(HEAD_DIM), nn.ALiBi(2)],
        {},
        ValueError,
        "ALiBi.* to have num_heads 4, as the block's num_heads is 4, but got 2",
    ),
    "Sandwich of other heads": (lambda nn: [nn.Sandwich(3)], {}, ValueError, "Sandwich.* num_heads 4, .* but got 3"),
    "CoPE of other widths": (lambda nn: [nn.CoPE(4, 5)], {}, ValueError, "CoPE.* head_dim 8, .* but got 4"),
    "CoPE of other heads": (
        lambda nn: [nn.CoPE(HEAD_DIM, 5, num_heads=2)],
        {},
        ValueError,
        "CoPE.* num_heads 4, .* but got 2",
    ),
    "ShawRelative of other widths": (lambda nn: [nn.ShawRelative(4, 5)], {}, ValueError, "Shaw.* head_dim 8, .* got 4"),
    "ShawRelative of other heads": (
        lambda nn: [nn.ShawRelative(HEAD_DIM, 5, num_heads=1)],
        {},
        ValueError,
        "ShawRelative.* num_heads 4, .* but got 1",
    ),
    "TransformerXL of other widths": (
        lambda nn: [nn.TransformerXL(4, 4)],
        {},
        ValueError,
        "TransformerXL.* head_dim 8, .* got 4",
    ),
    "TransformerXL of other heads": (
        lambda nn: [nn.TransformerXL(HEAD_DIM, 2)],
        {},
        ValueError,
        "TransformerXL.* num_heads 4, .* but got 2",
    ),
    "ReRoPE of other widths": (lambda nn: [nn.ReRoPE(4)], {}, ValueError, "ReRoPE.* head_dim 8, .* but got 4"),
    "SelfExtend of other widths": (
        lambda nn: [nn.SelfExtend(4)],
        {},
        ValueError,
        "SelfExtend.* head_dim 8, .* but got 4",
    ),
    "Sinusoidal of other widths": (
        lambda nn: [nn.Sinusoidal(6)],
        {},
        ValueError,
        "Sinusoidal.* to have dim 32, as the block's embed_dim is 32, but got 6",
    ),
    "CAPE of other widths": (lambda nn: [nn.CAPE(6)], {}, ValueError, "CAPE.* dim 32, .* but got 6"),
    "LearnedAbsolute of other widths": (
        lambda nn: [nn.LearnedAbsolute(9, 6)],
        {},
        ValueError,
        "LearnedAbsolute.* dim 32, .* but got 6",
    ),
}


@pytest.mark.parametrize("encodings", [posenc.nn.ALiBi(4), None], ids=["module", "None"])
def test_encodings_come_as_a_list(encodings):
    name = type(encodings).__name__
    with pytest.raises(
        TypeError, match=f"^Attention: expected encodings to be a list of modules, but got {name}: pass"
    ):
        posenc.nn.Attention(8, 4, encodings=encodings)


@in_both_languages
@pytest.mark.parametrize("case", COMBINATIONS)
def test_encodings_that_do_not_fit_together(namespace, case):
    encodings, options, error, message = COMBINATIONS[case]
    with pytest.raises(error, match="Attention: .*" + message):
        namespace.Attention(EMBED_DIM, HEADS, encodings=encodings(namespace), **options)


CALLS = {
    "width of x": ("nope", {"x": torch.zeros(2, 7, 31)}, r"expected x of shape \(batch, length, embed_dim\).* 32"),
    "axes of x": ("nope", {"x": torch.zeros(7, 32)}, "expected x of shape"),
    "length of positions": ("rotary", {"positions": torch.arange(6)}, r"expected positions of shape \(length\), "),
    "batch of positions": ("rotary", {"positions": torch.zeros(3, 7)}, "expected positions of shape"),
    "rank of positions": ("rotary", {"positions": torch.zeros(1, 1, 2, 7)}, "expected positions of shape"),
    "several axes with a score encoding": (
        "alibi",
        {"positions": torch.zeros(3, 2, 7, dtype=torch.int64)},
        "with a score encoding, whose distances have one axis",
    ),
    "several axes with CoPE": ("cope", {"positions": torch.zeros(3, 2, 7)}, "with a score encoding"),
    "several axes that nothing takes": ("sinusoidal", {"positions": torch.zeros(3, 2, 7)}, "of several axes, with"),
    "several axes for one": ("rotary", {"positions": torch.zeros(3, 2, 7)}, r"of shape \(length\) or \(batch, length"),
    "one axis for several": ("axial", {"positions": torch.zeros(2, 7)}, r"of shape \(2, batch, length\)"),
    "two axes for three": ("multimodal", {"positions": torch.zeros(2, 2, 7)}, r"of shape \(3, batch, length\)"),
    "key_mask": ("nope", {"key_mask": torch.ones(2, 6).bool()}, "key_mask"),
    "segment_ids": ("alibi", {"segment_ids": torch.ones(2, 6).long()}, "segment_ids"),
}


@in_both_languages
@pytest.mark.parametrize("case", CALLS)
def test_calls_that_do_not_fit(namespace, case):
    name, call, message = CALLS[case]
    block = BY_NAME[name].block(namespace)
    call = {"x": torch.zeros(BATCH, LENGTH, EMBED_DIM), **call}
    with pytest.raises(ValueError, match=message):
        block.forward(call.pop("x"), **call)
