"""Sizes and offsets that overflow, or would fill memory, are refused by name and with the limit."""

import pytest
import torch

import posenc

nn = posenc.nn
LAST = 2**63 - 1

# A call, and what of it may be at most a limit. Each overflows or asks for more than a list of 2**24 entries. None:
# sections, which must add up to the width.
LARGE = {
    "grid": (lambda: posenc.positions.multimodal_positions([("image", (2**32, 2**32, 1))]), r"the tokens t \* h \* w"),
    "grid_to_zero": (
        lambda: posenc.positions.multimodal_positions([("video", (2**16, 2**24, 2**24))]),
        r"the tokens t \* h \* w",
    ),
    "text": (lambda: posenc.positions.multimodal_positions([("text", LAST)]), "the length of text"),
    "spans": (lambda: posenc.positions.multimodal_positions([("text", 2**31)] * 3), "the tokens of all spans"),
    "slopes": (lambda: posenc.ops.alibi_slopes(2**62), "num_heads"),
    "buckets": (
        lambda: posenc.ops.t5_bucket(torch.zeros(1).long(), num_buckets=2**40, max_distance=2**50),
        "num_buckets",
    ),
    "frequencies": (lambda: posenc.scaling.frequencies(2**40), "dim"),
    "tables": (lambda: posenc.ops.rotary_tables(None, torch.ones(4), length=2**62), r"length \* R/2"),
    "ALiBi": (lambda: nn.ALiBi(2**62), "num_heads"),
    "Attention": (lambda: nn.Attention(8, 2**32, head_dim=2**32), r"embed_dim \* num_heads \* head_dim"),
    "Attention_width": (lambda: nn.Attention(2**40, 1), r"embed_dim \* embed_dim"),
    "AxialRotary": (lambda: nn.AxialRotary(2**40), "head_dim"),
    "AxialRotary_axes": (lambda: nn.AxialRotary(8, num_axes=2**62), "num_axes"),
    "AxialRotary_heads": (
        lambda: nn.AxialRotary(8, learnable=True, num_heads=2**61),
        r"num_axes \* num_heads \* head_dim",
    ),
    "CAPE": (lambda: nn.CAPE(2**40), "dim"),
    "CoPE": (lambda: nn.CoPE(2**32, 2**32), r"num_heads \* head_dim \* max_positions"),
    "DecomposedRelative": (lambda: nn.DecomposedRelative(8, (2**40, 2)), "size"),
    "DecomposedRelative_width": (lambda: nn.DecomposedRelative(2**32, (2**20, 2)), r"\(2 \* size - 1\) \* head_dim"),
    "FIRE": (lambda: nn.FIRE(2**20, hidden_dim=2**45), r"hidden_dim \* num_heads"),
    "DisentangledRelative": (
        lambda: nn.DisentangledRelative(2**30, 2**30, 64),
        r"num_heads \* \(2 \* span\) \* head_dim",
    ),
    "ForgettingBias": (lambda: nn.ForgettingBias(2**32, 2**32), r"embed_dim \* num_heads"),
    "GridRelativeBias": (lambda: nn.GridRelativeBias(2, (2, 2**40)), "window"),
    "GridRelativeBias_heads": (
        lambda: nn.GridRelativeBias(2**20, (2**20, 2**20)),
        r"\(2h - 1\) \* \(2w - 1\) \* num_heads",
    ),
    "Kerple": (lambda: nn.Kerple(2**40), "num_heads"),
    "KVCache": (
        lambda: nn.KVCache(2**16, 2**16, 2**16, 2**16),
        r"batch_size \* num_kv_heads \* max_length \* head_dim",
    ),
    "LearnedAbsolute": (lambda: nn.LearnedAbsolute(2**32, 2**32), r"max_positions \* dim"),
    "MultimodalRotary": (lambda: nn.MultimodalRotary(8, (LAST, LAST, 6)), None),
    "ReRoPE": (lambda: nn.ReRoPE(2**40), "head_dim"),
    "Rotary": (lambda: nn.Rotary(2**40), "head_dim"),
    "Sandwich": (lambda: nn.Sandwich(2, dim=2**40), "dim"),
    "SelfExtend": (lambda: nn.SelfExtend(2**40), "head_dim"),
    "ShawRelative": (lambda: nn.ShawRelative(8, LAST), "max_distance"),
    "ShawRelative_heads": (lambda: nn.ShawRelative(2**30, 2**30, num_heads=2**10), r"num_heads \* \(2 \* max_distance"),
    "Sinusoidal": (lambda: nn.Sinusoidal(2**40), "dim"),
    "Sinusoidal_axes": (lambda: nn.Sinusoidal(8, num_axes=2**62), "num_axes"),
    "LearnedAbsolute.resize": (lambda: nn.LearnedAbsolute(4, 8).resize(2**60), r"new_positions \* dim"),
    "LearnedAbsolute.resize_grid": (lambda: nn.LearnedAbsolute(4, 8).resize((2**40, 2**40)), r"rows \* columns \* dim"),
    "TransformerXL": (lambda: nn.TransformerXL(2**20, 2**20), "pos_dim"),
    "TransformerXL_pos_dim": (lambda: nn.TransformerXL(8, 2, pos_dim=2**40), "pos_dim"),
    "T5RelativeBias": (lambda: nn.T5RelativeBias(2, max_distance=2**40), "max_distance"),
    "T5RelativeBias_buckets": (lambda: nn.T5RelativeBias(2, num_buckets=2**40, max_distance=2**50), "num_buckets"),
    "XPos": (lambda: nn.XPos(2**40), "head_dim"),
    "bias": (lambda: nn.ALiBi(2).bias(2**40, 2**40), r"num_heads \* q_len \* k_len"),
}

# The twins in C++ that take the same arguments.
LARGE_CPP = {
    "ALiBi": lambda cpp: cpp.ALiBi(2**62),
    "AxialRotary": lambda cpp: cpp.AxialRotary(2**40),
    "CAPE": lambda cpp: cpp.CAPE(2**40),
    "CoPE": lambda cpp: cpp.CoPE(2**32, 2**32),
    "DisentangledRelative": lambda cpp: cpp.DisentangledRelative(2**30, 2**30, 64),
    "FIRE": lambda cpp: cpp.FIRE(2**20, hidden_dim=2**45),
    "ForgettingBias": lambda cpp: cpp.ForgettingBias(2**32, 2**32),
    "DecomposedRelative": lambda cpp: cpp.DecomposedRelative(8, (2**40, 2)),
    "GridRelativeBias": lambda cpp: cpp.GridRelativeBias(2, (2, 2**40)),
    "KVCache": lambda cpp: cpp.KVCache(2**16, 2**16, 2**16, 2**16),
    "LearnedAbsolute": lambda cpp: cpp.LearnedAbsolute(2**32, 2**32),
    "MultimodalRotary": lambda cpp: cpp.MultimodalRotary(8, [LAST, LAST, 6]),
    "Rotary": lambda cpp: cpp.Rotary(2**40),
    "ShawRelative": lambda cpp: cpp.ShawRelative(8, LAST),
    "T5RelativeBias": lambda cpp: cpp.T5RelativeBias(2, max_distance=2**40),
    "TransformerXL": lambda cpp: cpp.TransformerXL(2**20, 2**20),
    "XPos": lambda cpp: cpp.XPos(2**40),
}


def message(name):
    _, product = LARGE[name]
    return f"{name}: expected sections that add up" if product is None else rf"expected {product}.* to be at most \d+"


@pytest.mark.parametrize("name", LARGE)
def test_sizes_that_overflow_or_fill_memory_are_refused(name):
    call, _ = LARGE[name]
    with pytest.raises(ValueError, match=message(name)):
        call()


@pytest.mark.parametrize("name", LARGE_CPP)
def test_sizes_that_overflow_or_fill_memory_are_refused_in_cpp(name):
    with pytest.raises(ValueError, match=message(name)):
        LARGE_CPP[name](nn.cpp)


def test_large_sizes_that_models_have_are_taken():
    assert posenc.ops.alibi_slopes(2**16).shape == (2**16,)
    assert posenc.positions.multimodal_positions([("text", 2**16), ("video", (64, 32, 32))]).shape == (3, 2**17)
    with torch.device("meta"):
        assert nn.LearnedAbsolute(2**24, 2**14).weight.shape == (2**24, 2**14)
        assert nn.Attention(2**16, 2**9).q_proj.weight.shape == (2**16, 2**16)
    buckets = posenc.ops.t5_bucket(torch.tensor([-(2**62), 5]), num_buckets=2**12, max_distance=2**62)
    assert buckets.tolist() == [2**11 - 1, 2**11 + 5]


# Offsets

INV_FREQ = torch.tensor([1.0, 0.1, 0.01, 0.001], dtype=torch.float64)
X, Q = torch.randn(2, 5, 8), torch.randn(2, 2, 5, 8)

WITH_OFFSET = {
    "rotary": lambda offset: posenc.ops.rotary(Q, None, INV_FREQ, offset=offset),
    "rotary_float64": lambda offset: posenc.ops.rotary(Q.double(), None, INV_FREQ, offset=offset),
    "rotary_qk": lambda offset: posenc.ops.rotary_qk(Q, Q, None, INV_FREQ, offset=offset),
    "rotary_qk_": lambda offset: posenc.ops.rotary_qk_(Q.clone(), Q.clone(), None, INV_FREQ, offset=offset),
    "rotary_tables": lambda offset: posenc.ops.rotary_tables(None, INV_FREQ, length=5, offset=offset),
    "rotary_gradient": lambda offset: posenc.ops.rotary(Q.clone().requires_grad_(), None, INV_FREQ, offset=offset),
    "Rotary": lambda offset: nn.Rotary(8)(Q, offset=offset),
    "Rotary_dynamic": lambda offset: nn.Rotary(8, scaling=posenc.scaling.DynamicNTK(2, 16))(Q, offset=offset),
    "XPos": lambda offset: nn.XPos(8)(Q, offset=offset),
    "Sinusoidal": lambda offset: nn.Sinusoidal(8)(X, offset=offset),
    "LearnedAbsolute": lambda offset: nn.LearnedAbsolute(16, 8)(X, offset=offset),
    "cpp.Rotary": lambda offset: nn.cpp.Rotary(8)(Q, offset=offset),
    "cpp.Rotary_dynamic": lambda offset: nn.cpp.Rotary(8, scaling=posenc.scaling.DynamicNTK(2, 16))(Q, offset=offset),
    "cpp.Sinusoidal": lambda offset: nn.cpp.Sinusoidal(8)(X, offset=offset),
    "cpp.LearnedAbsolute": lambda offset: nn.cpp.LearnedAbsolute(16, 8)(X, offset=offset),
}


@pytest.mark.parametrize("name", WITH_OFFSET)
@pytest.mark.parametrize("offset", [LAST, LAST - 4, torch.tensor([0, LAST]), torch.tensor([LAST - 4, 0])], ids=str)
def test_an_offset_whose_last_position_is_beyond_int64_is_refused(name, offset):
    with pytest.raises(ValueError, match=r"2(\^|\*\*)63 - 1|positions from 0 to 15"):
        WITH_OFFSET[name](offset)


@pytest.mark.parametrize("name", WITH_OFFSET)
def test_the_largest_offset_is_taken_where_there_is_no_table(name):
    if "Learned" in name:
        with pytest.raises(ValueError, match="positions from 0 to 15"):
            WITH_OFFSET[name](LAST - 5)
    else:
        WITH_OFFSET[name](LAST - 5)
        WITH_OFFSET[name](torch.tensor([LAST - 5, 0]))


def test_a_position_of_the_largest_int_needs_no_length():
    dynamic = nn.Rotary(8, scaling=posenc.scaling.DynamicNTK(2, 16))
    for module in (dynamic, nn.cpp.Rotary(8, scaling=posenc.scaling.DynamicNTK(2, 16))):
        with pytest.raises(ValueError, match="expected positions below"):
            module(Q, positions=torch.tensor([0, 1, 2, 3, LAST]))
    nn.Rotary(8)(Q, positions=torch.tensor([0, 1, 2, 3, LAST]))
