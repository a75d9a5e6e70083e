"""Values of the rotary ops against the float64 reference, over dtypes, layouts, widths, lengths and positions."""

import pytest
import torch

import layouts
import posenc
import reference
from devices import each_device, moved
from tolerances import DTYPES, assert_bits, assert_near

pytestmark = [pytest.mark.kernels, each_device]

# Every vector length has 0, 1, .. lanes left over somewhere in here.
PAIR_COUNTS = (1, 2, 3, 4, 5, 7, 8, 9, 12, 15, 16, 17, 24, 31, 32, 33, 64)
LENGTHS = (1, 3, 5, 7, 17, 63, 64, 65, 130)
both_pairings = pytest.mark.parametrize("interleaved", [False, True], ids=["half", "interleaved"])
every_dtype = pytest.mark.parametrize("dtype", DTYPES, ids=str)
every_layout = pytest.mark.parametrize("layout", layouts.LAYOUTS)


def normal(*shape, dtype=torch.float32):
    return torch.randn(shape, dtype=torch.float64).to(dtype)


def frequencies(pairs):
    return reference.inverse_frequencies(2 * pairs)


def table_dtype_for(dtype):
    return torch.float64 if dtype == torch.float64 else torch.float32


@every_dtype
@both_pairings
@pytest.mark.parametrize("pairs", PAIR_COUNTS)
@pytest.mark.parametrize("tail", [0, 1, 6])
def test_every_width(pairs, tail, interleaved, dtype):
    width = 2 * pairs
    q, k = normal(2, 3, 3, width + tail, dtype=dtype), normal(2, 1, 3, width + tail, dtype=dtype)
    inv_freq = frequencies(pairs)
    positions = torch.tensor([3, 0, 11])
    rotated = posenc.ops.rotary_qk(q, k, positions, inv_freq, interleaved=interleaved)
    for x, y in zip((q, k), rotated, strict=True):
        assert_near(y, reference.rotary(x, positions, inv_freq, interleaved=interleaved))
        assert_bits(y[..., width:], x[..., width:])


@every_dtype
@both_pairings
@pytest.mark.parametrize("pairs", PAIR_COUNTS)
def test_every_width_of_tables(pairs, interleaved, dtype):
    q, k = normal(1, 2, 3, 2 * pairs + 1, dtype=dtype), normal(1, 1, 3, 2 * pairs + 1, dtype=dtype)
    table_dtype = table_dtype_for(dtype)
    cos, sin = normal(3, pairs, dtype=table_dtype), normal(3, pairs, dtype=table_dtype)
    for x, y in zip((q, k), posenc.ops.apply_rotary_qk(q, k, cos, sin, interleaved=interleaved), strict=True):
        assert_near(y, reference.rotate(x, cos, sin, interleaved=interleaved), scale=2)
        assert_bits(y[..., 2 * pairs :], x[..., 2 * pairs :])


@every_dtype
@both_pairings
@pytest.mark.parametrize("length", LENGTHS)
@pytest.mark.parametrize("layout", ["contiguous", "transposed"])
def test_every_length(length, layout, interleaved, dtype):
    q, k = layouts.make(layout, (2, 4, length, 12), dtype), layouts.make(layout, (2, 2, length, 12), dtype)
    inv_freq = frequencies(5)
    rotated = posenc.ops.rotary_qk(q, k, None, inv_freq, interleaved=interleaved, offset=2)
    for x, y in zip((q, k), rotated, strict=True):
        assert_near(y, reference.rotary(x, None, inv_freq, interleaved=interleaved, offset=2), scale=2)


@every_dtype
@both_pairings
@every_layout
@pytest.mark.parametrize("table_fed", [False, True], ids=["table_free", "table_fed"])
def test_every_layout_equals_contiguous(layout, table_fed, interleaved, dtype):
    q = layouts.make(layout, (2, 4, 5, 19), dtype)
    k = layouts.make(layout, (2, 2, 5, 19), dtype)
    before = q.clone(), k.clone()
    inv_freq = frequencies(9)
    tables = posenc.ops.rotary_tables(None, inv_freq, length=5, dtype=table_dtype_for(dtype))

    def run(q, k):
        if table_fed:
            return posenc.ops.apply_rotary_qk(q, k, *tables, interleaved=interleaved)
        return posenc.ops.rotary_qk(q, k, None, inv_freq, interleaved=interleaved)

    for x, y, expected in zip((q, k), run(q, k), run(q.contiguous(), k.contiguous()), strict=True):
        assert_bits(y, expected)
        assert y.stride() == torch.empty_like(x).stride(), "outputs keep the order of the strides"
        assert_near(y, reference.rotary(x, None, inv_freq, interleaved=interleaved))
    assert_bits(q, before[0])
    assert_bits(k, before[1])


@every_dtype
@every_layout
def test_single_tensor_ops_equal_the_two_tensor_ops(layout, dtype):
    q, k = layouts.make(layout, (2, 4, 5, 10), dtype), layouts.make("contiguous", (2, 1, 5, 10), dtype)
    inv_freq = frequencies(4)
    cos, sin = posenc.ops.rotary_tables(None, inv_freq, length=5, attention_scaling=1.25)
    free = posenc.ops.rotary_qk(q, k, None, inv_freq, attention_scaling=1.25)
    fed = posenc.ops.apply_rotary_qk(q, k, cos, sin)
    for i, x in enumerate((q, k)):
        assert_bits(posenc.ops.rotary(x, None, inv_freq, attention_scaling=1.25), free[i])
        assert_bits(posenc.ops.apply_rotary(x, cos, sin), fed[i])


@every_dtype
@both_pairings
@pytest.mark.parametrize("layout", layouts.DENSE)
def test_in_place_equals_out_of_place(layout, interleaved, dtype):
    q, k = layouts.make(layout, (2, 4, 5, 10), dtype), layouts.make(layout, (2, 2, 5, 10), dtype)
    inv_freq = frequencies(4)
    tables = posenc.ops.rotary_tables(None, inv_freq, length=5)
    rule = {"interleaved": interleaved, "inverse": True}

    expected = posenc.ops.rotary_qk(q, k, None, inv_freq, **rule)
    q1, k1 = layouts.with_strides_of(q, q), layouts.with_strides_of(k, k)
    posenc.ops.rotary_qk_(q1, k1, None, inv_freq, **rule)
    assert_bits(q1, expected[0])
    assert_bits(k1, expected[1])

    expected = posenc.ops.apply_rotary_qk(q, k, *tables, **rule)
    posenc.ops.apply_rotary_qk_(q, k, *tables, **rule)
    assert_bits(q, expected[0])
    assert_bits(k, expected[1])


def test_in_place_leaves_the_rest_of_a_packed_projection():
    packed = normal(2, 5, 3, 4, 8)
    before = packed.clone()
    q, k = packed[:, :, 0].transpose(1, 2), packed[:, :, 1].transpose(1, 2)
    expected = posenc.ops.rotary_qk(q, k, None, frequencies(3))
    posenc.ops.rotary_qk_(q, k, None, frequencies(3))
    assert_bits(packed[:, :, 0].transpose(1, 2), expected[0])
    assert_bits(packed[:, :, 1].transpose(1, 2), expected[1])
    assert_bits(packed[:, :, 2], before[:, :, 2])


POSITION_DTYPES = (torch.int64, torch.int32, torch.int16, torch.float32, torch.float64)
POSITIONS = {
    "counted": [0, 1, 2, 3, 4],
    "unsorted_repeated": [7, 2, 2, 0, 5],
    "negative": [-1, -30, 0, 4, -2],
    "per_row": [[0, 0, 0, 1, 2], [0, 1, 2, 3, 4]],
    "shared_row": [[9, 1, 4, 4, 0]],
}


@pytest.mark.parametrize("position_dtype", POSITION_DTYPES, ids=str)
@pytest.mark.parametrize("name", POSITIONS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
def test_positions(name, position_dtype, dtype):
    positions = torch.tensor(POSITIONS[name]).to(position_dtype)
    x, inv_freq = normal(2, 3, 5, 10, dtype=dtype), frequencies(4)
    y = posenc.ops.rotary(x, positions, inv_freq)
    assert_near(y, reference.rotary(x, positions, inv_freq))
    cos, sin = posenc.ops.rotary_tables(positions, inv_freq, dtype=dtype)
    assert cos.shape == (*positions.shape, 4)
    angle = reference.angles(positions, inv_freq)
    assert_near(cos, angle.cos())
    assert_near(sin, angle.sin())
    assert_near(posenc.ops.apply_rotary(x, cos, sin), reference.rotary(x, positions, inv_freq))


def test_fractional_positions():
    positions = torch.tensor([0.5, -1.25, 3.75, 0.001, 100.5])
    x, inv_freq = normal(2, 3, 5, 8), frequencies(4)
    assert_near(posenc.ops.rotary(x, positions, inv_freq), reference.rotary(x, positions, inv_freq))


@pytest.mark.parametrize("view", ["every_second", "expanded", "reversed_rows"])
def test_strided_positions_frequencies_and_tables(view):
    numbers = torch.arange(20).view(2, 10) * 3 % 11
    positions = {
        "every_second": numbers[:, ::2],
        "expanded": numbers[0, 0].expand(2, 5),
        "reversed_rows": numbers.t().contiguous().t()[:, 2:7],
    }[view]
    x, inv_freq = normal(2, 3, 5, 8), torch.rand(8, dtype=torch.float64)[::2]
    expected = posenc.ops.rotary(x, positions.contiguous(), inv_freq.contiguous())
    assert_bits(posenc.ops.rotary(x, positions, inv_freq), expected)
    cos, sin = (t.transpose(1, 2).contiguous().transpose(1, 2) for t in posenc.ops.rotary_tables(positions, inv_freq))
    assert not cos.is_contiguous()
    assert_bits(
        posenc.ops.apply_rotary(x, cos, sin),
        posenc.ops.apply_rotary(x, cos.contiguous(), sin.contiguous()),
    )


@pytest.mark.parametrize("offset", [0, 5, -3, torch.tensor([4, 0]), torch.tensor([-2, 9], dtype=torch.int32)], ids=str)
def test_offset_equals_explicit_positions(offset, device):
    offset = moved(offset, device)
    q, k, inv_freq = normal(2, 4, 5, 8), normal(2, 2, 5, 8), frequencies(4)
    counted = torch.arange(5)
    positions = counted + (offset.long()[:, None] if isinstance(offset, torch.Tensor) else offset)
    expected = posenc.ops.rotary_qk(q, k, positions, inv_freq)
    for y, e in zip(posenc.ops.rotary_qk(q, k, None, inv_freq, offset=offset), expected, strict=True):
        assert_bits(y, e)
    assert_bits(posenc.ops.rotary(q, None, inv_freq, offset=offset), expected[0])
    tables = posenc.ops.rotary_tables(None, inv_freq, length=5, offset=offset)
    for y, e in zip(tables, posenc.ops.rotary_tables(positions, inv_freq), strict=True):
        assert_bits(y, e)
    posenc.ops.rotary_qk_(q, k, None, inv_freq, offset=offset)
    assert_bits(q, expected[0])
    assert_bits(k, expected[1])


@every_dtype
@both_pairings
@pytest.mark.parametrize("rows", [False, True], ids=["A_T", "A_B_T"])
@pytest.mark.parametrize("kind", ["axes", "summed", "summed_per_head"])
def test_multi_axis(kind, rows, interleaved, dtype):
    batch, heads, length, pairs, axis_count = 2, 3, 5, 5, 3
    positions = torch.randint(-20, 20, (axis_count, batch, length) if rows else (axis_count, length))
    inv_freq = {
        "axes": torch.rand(pairs, dtype=torch.float64),
        "summed": torch.rand(axis_count, pairs, dtype=torch.float64),
        "summed_per_head": torch.rand(axis_count, heads, pairs, dtype=torch.float64),
    }[kind]
    rule = {"axes": [0, 2, 1, 1, 0]} if kind == "axes" else {}
    q, k = normal(batch, heads, length, 11, dtype=dtype), normal(batch, heads, length, 11, dtype=dtype)
    rotated = posenc.ops.rotary_qk(q, k, positions, inv_freq, interleaved=interleaved, **rule)
    for x, y in zip((q, k), rotated, strict=True):
        assert_near(y, reference.rotary(x, positions, inv_freq, interleaved=interleaved, **rule), scale=2)
        assert_bits(posenc.ops.rotary(x, positions, inv_freq, interleaved=interleaved, **rule), y)

    cos, sin = posenc.ops.rotary_tables(positions, inv_freq, dtype=torch.float64, **rule)
    angle = reference.angles(positions, inv_freq, **rule)
    if kind == "summed_per_head" and not rows:
        angle = angle.unsqueeze(0)
    assert cos.shape == angle.shape
    assert_near(cos, angle.cos())
    assert_near(sin, angle.sin())


@pytest.mark.parametrize("kind", ["axes", "summed", "summed_per_head"])
@pytest.mark.parametrize("offset", [0, 3, torch.tensor([1, 6])], ids=["zero", "int", "per_row"])
def test_multi_axis_without_positions_counts_on_every_axis(kind, offset, device):
    offset = moved(offset, device)
    inv_freq = {
        "axes": torch.rand(4, dtype=torch.float64),
        "summed": torch.rand(2, 4, dtype=torch.float64),
        "summed_per_head": torch.rand(2, 3, 4, dtype=torch.float64),
    }[kind]
    rule = {"axes": [0, 1, 1, 0]} if kind == "axes" else {}
    x = normal(2, 3, 5, 8)
    y = posenc.ops.rotary(x, None, inv_freq, offset=offset, **rule)
    assert_near(y, reference.rotary(x, None, inv_freq, offset=offset, **rule), scale=2)


def test_equal_axes_equal_plain_rotary_bit_for_bit():
    x, inv_freq, positions = normal(2, 3, 5, 8), frequencies(4), torch.tensor([[4, 0, 2, 9, 1], [0, 1, 2, 3, 4]])
    y = posenc.ops.rotary(x, torch.stack([positions] * 3), inv_freq, axes=[0, 1, 2, 0])
    assert_bits(y, posenc.ops.rotary(x, positions, inv_freq))


@every_dtype
@pytest.mark.parametrize("shape", [(0, 3, 5, 8), (2, 0, 5, 8), (2, 3, 0, 8), (0, 0, 0, 8), (2, 3, 5, 0)], ids=str)
def test_empty_tensors(shape, dtype):
    x, inv_freq = normal(*shape, dtype=dtype), frequencies(shape[-1] // 2)
    cos, sin = posenc.ops.rotary_tables(None, inv_freq, length=shape[2])
    assert cos.shape == sin.shape == (shape[2], shape[-1] // 2)
    positions = torch.zeros(shape[0], shape[2], dtype=torch.int64)
    outputs = [
        posenc.ops.rotary(x, None, inv_freq),
        posenc.ops.rotary(x, positions, inv_freq),
        *posenc.ops.rotary_qk(x, x[:, :0], None, inv_freq)[:1],
        *posenc.ops.apply_rotary_qk(x, x, cos, sin),
    ]
    posenc.ops.rotary_qk_(x, x.clone(), None, inv_freq)
    for y in outputs:
        assert y.shape == shape
        assert y.dtype == dtype


def test_no_keys_beside_queries():
    q, k = normal(2, 3, 5, 8), normal(2, 0, 5, 8)
    rotated_q, rotated_k = posenc.ops.rotary_qk(q, k, None, frequencies(4))
    assert_bits(rotated_q, posenc.ops.rotary(q, None, frequencies(4)))
    assert rotated_k.shape == k.shape


@pytest.mark.parametrize("heads", [(8, 2), (3, 1), (6, 6), (32, 8)], ids=str)
@pytest.mark.parametrize("q_layout", ["contiguous", "transposed"])
@pytest.mark.parametrize("k_layout", ["contiguous", "transposed", "packed", "every_second"])
def test_grouped_heads_and_unlike_layouts(heads, q_layout, k_layout):
    q = layouts.make(q_layout, (2, heads[0], 5, 16), torch.float32)
    k = layouts.make(k_layout, (2, heads[1], 5, 16), torch.float32)
    rotated = posenc.ops.rotary_qk(q, k, None, frequencies(8), offset=3)
    for x, y in zip((q, k), rotated, strict=True):
        assert_bits(y, posenc.ops.rotary(x.contiguous(), None, frequencies(8), offset=3))
        assert_near(y, reference.rotary(x, None, frequencies(8), offset=3))


@pytest.mark.parametrize("q_dtype", DTYPES, ids=str)
@pytest.mark.parametrize("k_dtype", DTYPES, ids=str)
def test_queries_and_keys_of_different_dtype(q_dtype, k_dtype):
    q, k, inv_freq = normal(2, 4, 5, 10, dtype=q_dtype), normal(2, 2, 5, 10, dtype=k_dtype), frequencies(4)
    rotated = posenc.ops.rotary_qk(q, k, None, inv_freq)
    for x, y in zip((q, k), rotated, strict=True):
        assert y.dtype == x.dtype
        assert_bits(y, posenc.ops.rotary(x, None, inv_freq))
    posenc.ops.rotary_qk_(q, k, None, inv_freq)
    assert_bits(q, rotated[0])
    assert_bits(k, rotated[1])


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
@both_pairings
@pytest.mark.parametrize("pairs", [1, 5, 8, 12, 17, 33, 64])
def test_16_bit_results_are_the_float32_result_rounded_once(pairs, interleaved, dtype):
    x, inv_freq = normal(2, 3, 9, 2 * pairs + 3, dtype=dtype), frequencies(pairs)
    rule = {"interleaved": interleaved, "attention_scaling": 1.2345}
    wide = posenc.ops.rotary(x.float(), None, inv_freq, offset=1000, **rule)
    assert_bits(posenc.ops.rotary(x, None, inv_freq, offset=1000, **rule), wide.to(dtype))

    tables = posenc.ops.rotary_tables(None, inv_freq, length=9, offset=7)
    wide = posenc.ops.apply_rotary(x.float(), *tables, interleaved=interleaved)
    assert_bits(posenc.ops.apply_rotary(x, *tables, interleaved=interleaved), wide.to(dtype))


@every_dtype
def test_tables_of_every_dtype(dtype):
    inv_freq = frequencies(9)
    cos, sin = posenc.ops.rotary_tables(None, inv_freq, length=7, offset=3, attention_scaling=1.5, dtype=dtype)
    angle = reference.angles(torch.arange(3, 10), inv_freq)
    assert cos.dtype == sin.dtype == dtype
    assert_near(cos, 1.5 * angle.cos())
    assert_near(sin, 1.5 * angle.sin())
    x = normal(2, 3, 7, 18, dtype=dtype)
    assert_near(posenc.ops.apply_rotary(x, cos, sin), reference.rotate(x, cos, sin), scale=2)


@pytest.mark.parametrize("leading", [(), (1,), (2,), (1, 1), (2, 1), (1, 3), (2, 3)], ids=str)
@every_dtype
def test_every_table_shape(leading, dtype):
    table_dtype = table_dtype_for(dtype)
    x = normal(2, 3, 5, 9, dtype=dtype)
    cos, sin = normal(*leading, 5, 4, dtype=table_dtype), normal(*leading, 5, 4, dtype=table_dtype)
    assert_near(posenc.ops.apply_rotary(x, cos, sin), reference.rotate(x, cos, sin), scale=2)


@every_dtype
@both_pairings
def test_magnitude_and_inverse(interleaved, dtype):
    x, inv_freq = normal(2, 3, 5, 10, dtype=dtype), frequencies(4)
    rule = {"interleaved": interleaved, "attention_scaling": 0.707, "inverse": True, "offset": 6}
    assert_near(posenc.ops.rotary(x, None, inv_freq, **rule), reference.rotary(x, None, inv_freq, **rule))
    table_dtype = table_dtype_for(dtype)
    cos, sin = posenc.ops.rotary_tables(None, inv_freq, length=5, offset=6, attention_scaling=0.707, dtype=table_dtype)
    y = posenc.ops.apply_rotary(x, cos, sin, interleaved=interleaved, inverse=True)
    assert_near(y, reference.rotary(x, None, inv_freq, **rule), scale=2)


@every_dtype
@pytest.mark.parametrize("layout", ["contiguous", "transposed"])
def test_work_split_over_threads_gives_the_same_bits(layout, dtype):
    q, k = layouts.make(layout, (2, 4, 1031, 64), dtype), layouts.make(layout, (2, 2, 1031, 64), dtype)
    inv_freq = frequencies(32)
    expected = posenc.ops.rotary_qk(q, k, None, inv_freq)
    torch.set_num_threads(3)
    for y, e in zip(posenc.ops.rotary_qk(q, k, None, inv_freq), expected, strict=True):
        assert_bits(y, e)


def test_float32_frequencies_are_taken_as_given():
    x, inv_freq = normal(2, 3, 5, 8), frequencies(4).float()
    y = posenc.ops.rotary(x, None, inv_freq, offset=100000)
    assert_bits(y, posenc.ops.rotary(x, None, inv_freq.double(), offset=100000))
