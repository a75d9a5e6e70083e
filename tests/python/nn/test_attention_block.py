"""Attention against a plain float64 block: heads, masks, positions, encodings of each family, dropout."""

import math

import pytest
import torch

import block_reference as reference
import posenc
import reference as formulas
from block_stacks import BY_NAME, EMBED_DIM, HEAD_DIM, HEADS, KV_HEADS
from tolerances import assert_bits

BATCH, LENGTH = 2, 7


def embeddings(dtype=torch.float64, length=LENGTH):
    return torch.randn(BATCH, length, EMBED_DIM, dtype=torch.float64).to(dtype)


def weights_of(module):
    return {name: p.detach().double().clone() for name, p in module.named_parameters()}


def visible(positions=None, *, causal=True, window=None, key_mask=None, segment_ids=None):
    """(B, T, T): which keys each query sees, from the words of the documentation."""
    positions = torch.arange(LENGTH).expand(BATCH, -1) if positions is None else positions.expand(BATCH, -1)
    gap = positions.unsqueeze(2) - positions.unsqueeze(1)
    seen = torch.ones(BATCH, LENGTH, LENGTH, dtype=torch.bool)
    if causal:
        seen &= gap >= 0
    if window is not None:
        seen &= gap < window
        if not causal:
            seen &= -gap < window
    if key_mask is not None:
        seen &= key_mask.unsqueeze(1)
    if segment_ids is not None:
        seen &= segment_ids.unsqueeze(2) == segment_ids.unsqueeze(1)
    return seen


def assert_close(actual, expected):
    torch.testing.assert_close(actual, expected, rtol=1e-10, atol=1e-10)


# Shapes and projections


@pytest.mark.parametrize("kv_heads", [1, 2, 4])
@pytest.mark.parametrize("head_dim", [None, 6])
@pytest.mark.parametrize("bias, output_bias", [(False, None), (True, None), (True, False), (False, True)])
def test_heads_and_biases(kv_heads, head_dim, bias, output_bias):
    block = posenc.nn.Attention(
        EMBED_DIM, HEADS, num_kv_heads=kv_heads, head_dim=head_dim, bias=bias, output_bias=output_bias
    ).double()
    width = HEADS * (head_dim or HEAD_DIM)
    assert block.q_proj.weight.shape == (width, EMBED_DIM)
    assert block.k_proj.weight.shape == block.v_proj.weight.shape == (width * kv_heads // HEADS, EMBED_DIM)
    assert block.o_proj.weight.shape == (EMBED_DIM, width)
    assert [p.bias is not None for p in (block.q_proj, block.k_proj, block.v_proj)] == [bias] * 3
    assert (block.o_proj.bias is not None) == (bias if output_bias is None else output_bias)
    x = embeddings()
    expected = reference.block(weights_of(block), x, HEADS, kv_heads, visible=visible())
    assert_close(block(x), expected)


@pytest.mark.parametrize("dtype, tolerance", [(torch.float32, 1e-5), (torch.bfloat16, 4e-2), (torch.float16, 4e-3)])
def test_dtypes(dtype, tolerance):
    block = BY_NAME["rotary"].block().to(dtype)
    x = embeddings(dtype)
    y = block(x)
    assert y.dtype == dtype
    positions = torch.arange(LENGTH)
    expected = reference.block(
        weights_of(block), x.double(), HEADS, KV_HEADS, visible=visible(), rotate=lambda t: reference.rope(t, positions)
    )
    torch.testing.assert_close(y.double(), expected, rtol=tolerance, atol=tolerance)


def test_autocast_attends_in_half_width():
    block = BY_NAME["rotary"].block()
    x = embeddings(torch.float32)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        y = block(x)
    assert y.dtype == torch.bfloat16
    torch.testing.assert_close(y.float(), block(x), rtol=4e-2, atol=4e-2)


@pytest.mark.parametrize("length", [0, 1])
def test_short_inputs(length):
    y = BY_NAME["rotary_cope"].block()(torch.randn(BATCH, length, EMBED_DIM))
    assert y.shape == (BATCH, length, EMBED_DIM)
    assert y.isfinite().all()


# What a query sees


MASKS = {
    "nothing given": {},
    "window": {"window": 3},
    "padding": {"key_mask": torch.tensor([[0, 0, 1, 1, 1, 1, 1], [1, 1, 1, 1, 1, 1, 0]]).bool()},
    "segments": {"segment_ids": torch.tensor([[0, 0, 0, 1, 1, 1, 1], [5, 5, 5, 5, 5, 7, 7]])},
    "positions": {"positions": torch.tensor([[0, 0, 0, 1, 2, 3, 4], [6, 5, 4, 3, 2, 1, 0]])},
    "positions of all rows": {"positions": torch.tensor([3, 1, 4, 1, 5, 9, 2])},
    "packed": {
        "positions": torch.tensor([0, 1, 2, 0, 1, 2, 3]),
        "segment_ids": torch.tensor([[0, 0, 0, 1, 1, 1, 1]] * BATCH),
        "window": 2,
    },
}


@pytest.mark.parametrize("causal", [True, False])
@pytest.mark.parametrize("name", MASKS)
def test_masks(name, causal):
    call = dict(MASKS[name])
    window = call.pop("window", None)
    block = BY_NAME["nope"].block(is_causal=causal, window=window).double()
    x = embeddings()
    expected = reference.block(
        weights_of(block), x, HEADS, KV_HEADS, visible=visible(causal=causal, window=window, **call)
    )
    assert_close(block(x, **call), expected)


def test_positions_of_one_row_stand_for_all():
    block, x, places = BY_NAME["rotary"].block(), embeddings(torch.float32), torch.tensor([5, 2, 2, 0, 9, 7, 1])
    assert_bits(block(x, positions=places[None]), block(x, positions=places))
    assert_bits(block(x, positions=places.expand(BATCH, -1)), block(x, positions=places))


# Families


@pytest.mark.parametrize("interleaved", [False, True])
@pytest.mark.parametrize(
    "positions", [torch.arange(LENGTH), torch.tensor([[0, 0, 1, 2, 3, 4, 5], [9, 8, 7, 6, 5, 4, 3]])], ids=["T", "B T"]
)
def test_rotary(interleaved, positions):
    block = BY_NAME["rotary"].block(encodings=[posenc.nn.Rotary(HEAD_DIM, interleaved=interleaved)]).double()
    x = embeddings()
    expected = reference.block(
        weights_of(block),
        x,
        HEADS,
        KV_HEADS,
        visible=visible(positions),
        rotate=lambda t: reference.rope(t, positions, interleaved),
    )
    assert_close(block(x, positions=positions), expected)


def test_rotary_ones_turn_in_order():
    first, second = posenc.nn.Rotary(HEAD_DIM), posenc.nn.Rotary(HEAD_DIM, interleaved=True, base=10.0)
    block = BY_NAME["nope"].block(encodings=[first, second]).double()
    x, positions = embeddings(), torch.arange(LENGTH)

    def rotate(t):
        return reference.rope(reference.rope(t, positions), positions, interleaved=True, base=10.0)

    expected = reference.block(weights_of(block), x, HEADS, KV_HEADS, visible=visible(), rotate=rotate)
    assert_close(block(x), expected)
    block.encodings = torch.nn.ModuleList([second, first])
    assert not torch.allclose(block(x), expected)


def test_several_axes_feed_rotary_encodings_alone():
    """Causality, absolute encodings and everything else count by index."""
    rows, columns = torch.tensor([2, 2, 1, 1, 0, 0, 0]), torch.tensor([3, 1, 3, 1, 3, 2, 1])
    axial, absolute = posenc.nn.AxialRotary(HEAD_DIM), posenc.nn.Sinusoidal(EMBED_DIM)
    block = BY_NAME["nope"].block(encodings=[axial, absolute]).double()
    x = embeddings()
    positions = torch.stack([rows, columns])
    expected = reference.block(
        weights_of(block),
        x + formulas.sinusoidal(torch.arange(LENGTH), EMBED_DIM),
        HEADS,
        KV_HEADS,
        visible=visible(),
        rotate=lambda t: formulas.axial(t, positions, base=100.0, interleaved=True),
    )
    assert_close(block(x, positions=positions[:, None].expand(-1, BATCH, -1)), expected)
    assert_close(block(x, positions=positions[:, None]), expected)


def test_absolute_ones_are_added_before_the_projections():
    table, sinusoids = posenc.nn.LearnedAbsolute(20, EMBED_DIM), posenc.nn.Sinusoidal(EMBED_DIM)
    block = BY_NAME["nope"].block(encodings=[table, sinusoids]).double()
    x, positions = embeddings(), torch.tensor([[0, 1, 2, 3, 4, 5, 6], [9, 3, 3, 0, 1, 2, 4]])
    moved = x + table.weight.detach()[positions] + formulas.sinusoidal(positions, EMBED_DIM)
    expected = reference.block(weights_of(block), moved, HEADS, KV_HEADS, visible=visible(positions))
    assert_close(block(x, positions=positions), expected)


@pytest.mark.parametrize("causal", [True, False])
def test_score_encoding_sees_positions(causal):
    slopes = torch.tensor([0.5, 0.25, 0.125, 1.0])
    block = BY_NAME["nope"].block(encodings=[posenc.nn.ALiBi(HEADS, slopes=slopes)], is_causal=causal, window=6)
    block.double()
    x, positions = embeddings(), torch.tensor([[0, 0, 1, 2, 4, 8, 16], [9, 8, 7, 6, 5, 4, 3]])
    gap = (positions.unsqueeze(2) - positions.unsqueeze(1)).abs()
    expected = reference.block(
        weights_of(block),
        x,
        HEADS,
        KV_HEADS,
        visible=visible(positions, causal=causal, window=6),
        bias=-slopes.double().view(1, HEADS, 1, 1) * gap.unsqueeze(1),
    )
    assert_close(block(x, positions=positions), expected)


def test_score_encoding_says_its_scale():
    encoding = posenc.nn.T5RelativeBias(HEADS, scale=1.0)
    block = BY_NAME["nope"].block(encodings=[encoding]).double()
    x = embeddings()
    weights = weights_of(block)
    # The reference divides by sqrt(D).
    weights["q_proj.weight"] *= math.sqrt(HEAD_DIM)
    weights["q_proj.bias"] *= math.sqrt(HEAD_DIM)
    bias = encoding.bias(LENGTH).detach().double()
    assert_close(block(x), reference.block(weights, x, HEADS, KV_HEADS, visible=visible(), bias=bias))


def test_cope_counts_for_itself_while_rotary_takes_positions():
    block = BY_NAME["rotary_cope"].block().double()
    x = embeddings()
    shifted = torch.tensor([[20, 30, 31, 40, 50, 60, 61]] * BATCH)
    moved = block(x, positions=shifted)
    assert not torch.allclose(moved, block(x)), "the rotation follows positions"
    backwards = torch.arange(LENGTH - 1, -1, -1)
    first_only = block(x[:, :1], positions=backwards[:1])
    assert_close(block(x, positions=backwards)[:, :1], first_only)  # causal by index


def test_gate_keys_are_turned_as_keys_are():
    encodings = [posenc.nn.XPos(HEAD_DIM, scale_base=4.0), posenc.nn.CoPE(HEAD_DIM, 5, gate="key")]
    block = BY_NAME["nope"].block(encodings=encodings).double()
    plain = BY_NAME["nope"].block(encodings=[encodings[0], posenc.nn.CoPE(HEAD_DIM, 5)]).double()
    shared = block.state_dict()
    for part in ("weight", "bias"):
        shared[f"gate_proj.{part}"] = shared[f"k_proj.{part}"]
    block.load_state_dict(shared)
    plain.load_state_dict({name: tensor for name, tensor in shared.items() if not name.startswith("gate_proj")})
    x = embeddings()
    assert_close(block(x), plain(x))


# Dropout


@pytest.mark.parametrize("option", ["dropout", "output_dropout"])
def test_dropout_acts_in_training_only(option):
    block = BY_NAME["rotary_cope"].block(**{option: 0.5})
    x = embeddings(torch.float32)
    plain = BY_NAME["rotary_cope"].block()(x)
    assert_bits(block(x), plain)
    block.train()
    torch.manual_seed(3)
    first, second = block(x), block(x)
    assert not torch.equal(first, second)
    torch.manual_seed(3)
    assert_bits(block(x), first)
    mean = torch.stack([block(x) for _ in range(500)]).mean(dim=0)
    torch.testing.assert_close(mean, plain, rtol=0.2, atol=0.5)


def test_output_dropout_zeroes_elements_and_scales_the_others():
    block = BY_NAME["nope"].block(output_dropout=0.25)
    x = embeddings(torch.float32)
    plain = block(x)
    y = block.train()(x)
    dropped = y == 0
    assert 0.1 < dropped.float().mean() < 0.4
    torch.testing.assert_close(y[~dropped], plain[~dropped] / 0.75)
