"""Exact angles against long double, and exact=False against the float32 tables of transformers."""

import math

import numpy as np
import pytest
import torch
from transformers import LlamaConfig
from transformers.models.llama.modeling_llama import LlamaRotaryEmbedding, apply_rotary_pos_emb

import posenc
import reference
from tolerances import assert_bits, assert_near

pytestmark = pytest.mark.kernels

PAIRS = 64
INV_FREQ = reference.inverse_frequencies(2 * PAIRS, 500000.0)

LARGE_POSITIONS = [0, 1, 1023, 16000, 48039, 65537, 131071, 524287, 999_999, 1_000_000, 16_777_217]
BEYOND_INT32 = [2**31 - 1, 2**31, 2**31 + 5, 2**32 + 1, -(2**31) - 7]


def worst(table, expected):
    return float(np.abs(table.numpy().astype(np.longdouble) - expected).max())


@pytest.mark.parametrize("positions", [LARGE_POSITIONS, [-p for p in LARGE_POSITIONS]], ids=["forward", "backward"])
def test_tables_at_large_positions(positions):
    expected = reference.long_double_tables(positions, INV_FREQ)
    for dtype, bound in ((torch.float32, 1e-6), (torch.float64, 1e-8)):
        tables = posenc.ops.rotary_tables(torch.tensor(positions), INV_FREQ, dtype=dtype)
        for table, e in zip(tables, expected, strict=True):
            assert worst(table, e) < bound


@pytest.mark.parametrize("interleaved", [False, True], ids=["half", "interleaved"])
@pytest.mark.parametrize("positions", [LARGE_POSITIONS, BEYOND_INT32], ids=["to_2_24", "beyond_int32"])
def test_rotation_at_large_positions(positions, interleaved):
    """x holds zeros and ones, so that each output entry is one cos or sin, with the error of its angle alone."""
    expected_cos, expected_sin = reference.long_double_tables(positions, INV_FREQ)
    x = torch.zeros(1, 2, len(positions), 2 * PAIRS)
    first = slice(0, None, 2) if interleaved else slice(0, PAIRS)
    second = slice(1, None, 2) if interleaved else slice(PAIRS, None)
    x[..., first] = 1
    y = posenc.ops.rotary(x, torch.tensor(positions), INV_FREQ, interleaved=interleaved)
    for head in range(2):
        assert worst(y[0, head][:, first], expected_cos) < 1e-6
        assert worst(y[0, head][:, second], expected_sin) < 1e-6


def test_offset_reaches_large_positions_exactly():
    x = torch.randn(1, 1, 3, 2 * PAIRS)
    start = 16_777_215
    y = posenc.ops.rotary(x, None, INV_FREQ, offset=start)
    expected = reference.long_double_rotate(
        x[0, 0].numpy(), *reference.long_double_tables([start, start + 1, start + 2], INV_FREQ)
    )
    assert worst(y[0, 0], expected) < 5e-6
    rows = posenc.ops.rotary(x, None, INV_FREQ, offset=torch.tensor([2**31 + 5]))
    assert_bits(rows, posenc.ops.rotary(x, torch.arange(3) + 2**31 + 5, INV_FREQ))


def test_float64_at_moderate_positions():
    positions = [0, 1, 2, 17, 100, 1000, 4095]
    cos, sin = reference.long_double_tables(positions, INV_FREQ)
    tables = posenc.ops.rotary_tables(torch.tensor(positions), INV_FREQ, dtype=torch.float64)
    assert worst(tables[0], cos) < 1e-12
    assert worst(tables[1], sin) < 1e-12
    x = torch.randn(1, 1, len(positions), 2 * PAIRS, dtype=torch.float64)
    y = posenc.ops.rotary(x, torch.tensor(positions), INV_FREQ)
    assert worst(y[0, 0], reference.long_double_rotate(x[0, 0].numpy(), cos, sin)) < 5e-12


@pytest.mark.parametrize("position", [2.0**40 + 1, 2.0**52 + 1, 1e15, 1e22, 1e300, -1e300], ids=str)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
def test_huge_positions_are_reduced_exactly(position, dtype):
    """Frequency 1, so the angle is the position and only its reduction is judged (cos(1e22) = 0.5232..)."""
    positions = torch.tensor([position, 1.0], dtype=torch.float64)
    inv_freq = torch.ones(9, dtype=torch.float64)
    cos, sin = posenc.ops.rotary_tables(positions, inv_freq, dtype=dtype)
    expected_cos, expected_sin = math.cos(position), math.sin(position)
    assert_near(cos[0], torch.full((9,), expected_cos, dtype=torch.float64))
    assert_near(sin[0], torch.full((9,), expected_sin, dtype=torch.float64))
    x = torch.ones(1, 1, 2, 18, dtype=dtype)
    y = posenc.ops.rotary(x, positions, inv_freq)
    assert_near(y[0, 0, 0, :9], torch.full((9,), expected_cos - expected_sin, dtype=torch.float64))
    assert_near(y[0, 0, 1, :9], torch.full((9,), math.cos(1.0) - math.sin(1.0), dtype=torch.float64))


@pytest.mark.parametrize("position", [math.inf, -math.inf, math.nan], ids=str)
def test_infinite_and_nan_positions_spoil_their_own_token_only(position):
    positions = torch.tensor([2.0, position, 5.0], dtype=torch.float64)
    x = torch.randn(1, 2, 3, 11)
    y = posenc.ops.rotary(x, positions, reference.inverse_frequencies(10))
    assert y[:, :, 1, :10].isnan().all()
    assert_bits(y[:, :, 1, 10], x[:, :, 1, 10])
    clean = torch.tensor([2.0, 0.0, 5.0], dtype=torch.float64)
    expected = posenc.ops.rotary(x, clean, reference.inverse_frequencies(10))
    assert_bits(y[:, :, ::2], expected[:, :, ::2])


@pytest.mark.parametrize("value", [math.inf, math.nan], ids=str)
def test_non_finite_values_stay_in_their_pair(value):
    x = torch.randn(1, 1, 3, 9)
    x[0, 0, 1, 2] = value
    y = posenc.ops.rotary(x, None, reference.inverse_frequencies(8), offset=1)
    bad = ~y.isfinite()
    assert bad[0, 0, 1, 2]
    assert bad[0, 0, 1, 6]
    assert bad.sum() == 2


def llama(head_dim, theta=500000.0):
    config = LlamaConfig(
        hidden_size=4 * head_dim,
        num_attention_heads=4,
        head_dim=head_dim,
        max_position_embeddings=4096,
        rope_parameters={"rope_type": "default", "rope_theta": theta},
    )
    return LlamaRotaryEmbedding(config)


POSITION_ROW = torch.tensor([[0, 1, 2, 77, 4095, 131071, 1_000_000]])


@pytest.mark.parametrize("head_dim", [8, 64, 80, 128])
def test_float32_angles_are_those_of_transformers(head_dim):
    """The angle is float32(position) * float32(inv_freq) rounded to float32; cosine and sine of it are right to the
    last place, as torch's own are."""
    embedding = llama(head_dim)
    full_cos, full_sin = embedding(torch.zeros(1), POSITION_ROW)
    inv_freq, _ = posenc.scaling.frequencies(head_dim, base=500000.0, exact=False)
    assert_bits(inv_freq, embedding.inv_freq)
    cos, sin = posenc.ops.rotary_tables(POSITION_ROW, inv_freq, exact=False)
    assert cos.dtype == torch.float32
    half = head_dim // 2
    assert_bits(cos, full_cos[..., :half])
    assert_bits(sin, full_sin[..., :half])
    angle = reference.float32_angles(POSITION_ROW, inv_freq).double()
    torch.testing.assert_close(cos.double(), angle.cos(), rtol=0, atol=2.0**-23)
    torch.testing.assert_close(sin.double(), angle.sin(), rtol=0, atol=2.0**-23)
    exact_cos, _ = posenc.ops.rotary_tables(POSITION_ROW, inv_freq)
    if head_dim > 8:
        assert (exact_cos - cos).abs().max() > 1e-3, "exact angles differ at these positions, so this test can tell"


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16], ids=str)
def test_rotation_equals_apply_rotary_pos_emb(dtype):
    q, k = torch.randn(1, 4, 7, 64).to(dtype), torch.randn(1, 2, 7, 64).to(dtype)
    embedding = llama(64)
    cos, sin = embedding(torch.zeros(1), POSITION_ROW)
    expected = apply_rotary_pos_emb(q.float(), k.float(), cos, sin)
    module = posenc.nn.Rotary(64, base=500000.0, exact=False)
    for results in (
        module(q, k, POSITION_ROW),
        posenc.ops.rotary_qk(q, k, POSITION_ROW, embedding.inv_freq, exact=False),
        posenc.ops.apply_rotary_qk(q, k, cos[..., :32], sin[..., :32]),
    ):
        for y, e in zip(results, expected, strict=True):
            assert_near(y, e.double())


def test_sixteen_bit_tables_of_transformers_can_be_passed():
    """transformers casts its tables to the model's dtype; the result then is theirs up to the rounding of products."""
    q, k = torch.randn(1, 4, 7, 64).bfloat16(), torch.randn(1, 2, 7, 64).bfloat16()
    cos, sin = llama(64)(torch.zeros(1, dtype=torch.bfloat16), POSITION_ROW)
    expected = apply_rotary_pos_emb(q.double(), k.double(), cos.double(), sin.double())
    for y, e in zip(posenc.ops.apply_rotary_qk(q, k, cos[..., :32], sin[..., :32]), expected, strict=True):
        assert_near(y, e)
