"""What the additive encodings refuse, and what they say."""

import math

import pytest
import torch

import posenc
from additive_calls import BUILD, operands
from tolerances import assert_bits

both = pytest.mark.parametrize("library", [posenc.nn, posenc.nn.cpp], ids=["python", "cpp"])

OPTIONS = {
    "alibi_heads": ("ALiBi", (0,), {}, "ALiBi: expected num_heads to be at least 1, but got 0"),
    "alibi_count": (
        "ALiBi",
        (3,),
        {"slopes": [0.5, 0.25]},
        "ALiBi: expected one slope for each of the 3 heads, but got 2",
    ),
    "alibi_nan": ("ALiBi", (2,), {"slopes": [0.5, math.nan]}, "ALiBi: expected finite slopes, but got nan"),
    "t5_heads": ("T5RelativeBias", (-1,), {}, "T5RelativeBias: expected num_heads to be at least 1, but got -1"),
    "t5_buckets": ("T5RelativeBias", (2,), {"num_buckets": 1}, "expected num_buckets to be at least 2, but got 1"),
    "t5_odd": (
        "T5RelativeBias",
        (2,),
        {"num_buckets": 7, "bidirectional": True},
        "expected num_buckets to be even, half of it for each direction, and at least 4, but got 7",
    ),
    "t5_distance": (
        "T5RelativeBias",
        (2,),
        {"max_distance": 16},
        "T5RelativeBias: expected max_distance to be larger than the 16 distances that have a bucket each, but got 16",
    ),
    "t5_scale": ("T5RelativeBias", (2,), {"scale": math.inf}, "T5RelativeBias: expected a finite scale, but got inf"),
    "kerple_heads": ("Kerple", (0,), {}, "Kerple: expected num_heads to be at least 1, but got 0"),
    "kerple_kind": ("Kerple", (2,), {"kind": "Log"}, "Kerple: expected kind to be 'log' or 'power', but got 'Log'"),
    "sandwich_heads": ("Sandwich", (0,), {}, "Sandwich: expected num_heads to be at least 1, but got 0"),
    "sandwich_dim": ("Sandwich", (2,), {"dim": 5}, "Sandwich: expected dim to be even and at least 2, but got 5"),
    "fire_heads": ("FIRE", (0,), {}, "FIRE: expected num_heads to be at least 1, but got 0"),
    "fire_hidden": ("FIRE", (2,), {"hidden_dim": 0}, "FIRE: expected hidden_dim to be at least 1, but got 0"),
    "fire_c": ("FIRE", (2,), {"c": 0.0}, "FIRE: expected c to be positive and finite, but got 0"),
    "fire_threshold": (
        "FIRE",
        (2,),
        {"threshold": -2.0},
        "FIRE: expected threshold to be positive and finite, but got -2",
    ),
    "fire_eps": ("FIRE", (2,), {"eps": math.nan}, "FIRE: expected eps to be positive and finite, but got nan"),
}


@both
@pytest.mark.parametrize("option", OPTIONS)
def test_options(library, option):
    name, arguments, options, message = OPTIONS[option]
    with pytest.raises(ValueError, match=message):
        getattr(library, name)(*arguments, **options)


@pytest.mark.parametrize("name", BUILD)
class TestCalls:
    def test_other_heads_name_the_module(self, name):
        module, (q, k, v) = BUILD[name](4), operands()
        rule = r"expected query of shape .* with 4 heads, as num_heads is 4, but got \[2, 6, 5, 4\]"
        message = f"{type(module).__name__}: {rule}"
        with pytest.raises(ValueError, match=message):
            module.attend(q, k, v)
        with pytest.raises(ValueError, match=message):
            module.logits(q, k)
        twin = getattr(posenc.nn.cpp, type(module).__name__)(4)
        with pytest.raises(ValueError, match=message):
            twin.attend(q, k, v)

    def test_other_shapes(self, name):
        module, (q, k, v) = BUILD[name](6), operands()
        with pytest.raises(ValueError, match=f"{type(module).__name__}: expected query of shape"):
            module.attend(q[0], k, v)
        with pytest.raises(ValueError, match="expected key of shape"):
            module.attend(q, k[0], v)
        with pytest.raises(ValueError, match="expected value"):
            module.attend(q, k, v[:, :, :3])
        with pytest.raises(ValueError, match="expected key_mask of shape"):
            module.attend(q, k, v, key_mask=torch.ones(2, 3, dtype=torch.bool))
        with pytest.raises(ValueError, match="expected q_positions of shape"):
            module.attend(q, k, v, q_positions=torch.arange(6))
        with pytest.raises(ValueError, match="expected window to be at least 1"):
            module.attend(q, k, v, window=0)
        with pytest.raises(ValueError, match="expected dropout_p from 0 to 1"):
            module.attend(q, k, v, dropout_p=1.5)

    def test_other_dtypes(self, name):
        module, (q, k, v) = BUILD[name](6), operands()
        with pytest.raises(TypeError, match="expected key to have the dtype of query"):
            module.attend(q, k.float(), v)
        with pytest.raises(TypeError, match="expected query to be float32, float64, bfloat16 or float16"):
            module.attend(q.int(), k.int(), v.int())

    def test_other_devices(self, name):
        module, (q, k, v) = BUILD[name](6), operands()
        with pytest.raises(ValueError, match="expected key on|on meta"):
            module.attend(q, k.to("meta"), v)
        if list(module.parameters()):
            with pytest.raises(
                ValueError, match=f"{type(module).__name__}: expected query on cpu like the module, but it is on meta"
            ):
                module.attend(q.to("meta"), k.to("meta"), v.to("meta"))

    def test_options_are_fixed(self, name):
        module = BUILD[name](6)
        with pytest.raises(AttributeError, match="num_heads is fixed at construction"):
            module.num_heads = 8

    def test_logits_and_bias_take_nothing_else(self, name):
        module, (q, k, _) = BUILD[name](6), operands()
        with pytest.raises(TypeError):
            module.logits(q, k, dropout_p=0.1)

    @both
    def test_bias_of_negative_lengths(self, name, library):
        encoding = type(BUILD[name](6)).__name__
        module, prefix = getattr(library, encoding)(6), encoding if library is posenc.nn else "bias"
        for lengths, message in (((-1,), "q_len to be at least 0, but got -1"), ((2, -3), "k_len .* but got -3")):
            with pytest.raises(ValueError, match=f"^{prefix}: expected {message}"):
                module.bias(*lengths)


def test_fixed_slopes_cannot_be_replaced():
    """Calls would use the new ones, but a move to another dtype the old ones."""
    with pytest.raises(AttributeError, match="slopes is fixed at construction"):
        posenc.nn.ALiBi(2).slopes = torch.ones(2)


@pytest.mark.parametrize("heads", [1, 3])
@pytest.mark.parametrize("name", ["Kerple", "Sandwich"])
@both
class TestDistancesOfTables:
    """A table holds every distance up to the largest that a row has."""

    def test_rows_far_apart_need_no_longer_table(self, library, name, heads):
        module, (q, k, v) = getattr(library, name)(heads), torch.randn(3, 2, heads, 6, 4)
        near = torch.arange(6).expand(2, -1)
        far = near + torch.tensor([[-(2**62)], [2**62]])
        expected = module.attend(q, k, v, q_positions=near, k_positions=near)
        assert_bits(module.attend(q, k, v, q_positions=far, k_positions=far), expected)

    def test_distances_beyond_the_limit_are_refused(self, library, name, heads):
        module, (q, k, v) = getattr(library, name)(heads), torch.randn(3, 2, heads, 6, 4)
        limit, near = 2**24, torch.arange(6)
        mask = torch.ones(2, 6, dtype=torch.bool)
        mask[:, 5] = False
        for farthest in (limit + 1, 10**9, -(10**9), 2**63 - 1):
            positions = torch.tensor([0, 1, 2, 3, 4, farthest])
            message = (
                rf"^{name}: expected positions within {limit} tokens .* but got a distance of \d+: give masked keys"
            )
            with pytest.raises(ValueError, match=message):
                module.attend(q, k, v, q_positions=near, k_positions=positions, key_mask=mask)
            with pytest.raises(ValueError, match=message):
                module.logits(q, k, q_positions=positions, k_positions=near)


class TestFunctions:
    @pytest.mark.parametrize("heads", [0, -3])
    def test_slopes(self, heads):
        with pytest.raises(ValueError, match=f"alibi_slopes: expected num_heads to be at least 1, but got {heads}"):
            posenc.ops.alibi_slopes(heads)

    def test_slopes_dtype(self):
        with pytest.raises(TypeError, match="alibi_slopes: expected dtype to be a floating type, but got Int"):
            posenc.ops.alibi_slopes(4, dtype=torch.int32)
        assert posenc.ops.alibi_slopes(4, dtype=torch.bfloat16).dtype == torch.bfloat16
        assert posenc.ops.alibi_slopes(4, device="meta").is_meta

    @pytest.mark.parametrize("dtype", [torch.float32, torch.bool], ids=str)
    def test_bucket_dtype(self, dtype):
        with pytest.raises(TypeError, match="t5_bucket: expected relative_position to be an integer type"):
            posenc.ops.t5_bucket(torch.zeros(3, dtype=dtype))

    def test_bucket_numbers(self):
        relative = torch.arange(3)
        with pytest.raises(ValueError, match="t5_bucket: expected num_buckets to be even"):
            posenc.ops.t5_bucket(relative, num_buckets=2)
        with pytest.raises(ValueError, match="t5_bucket: expected max_distance to be larger than the 8 distances"):
            posenc.ops.t5_bucket(relative, max_distance=8)
        assert posenc.ops.t5_bucket(relative, num_buckets=2, max_distance=2, bidirectional=False).tolist() == [0, 0, 0]
