"""Numbers of the additive encodings: golden values, other implementations, and the references at more sizes."""

import math

import pytest
import torch

import bias_reference
import posenc
from posenc.nn import FIRE, ALiBi, Kerple, Sandwich, T5RelativeBias
from tolerances import assert_bits

DISTANCES = torch.tensor(
    [0, 1, 7, 8, 9, 11, 12, 15, 16, 17, 20, 22, 23, 31, 32, 45, 46, 63, 64, 90, 91, 127, 128, 1000]
)
CAUSAL_BUCKETS = [0, 1, 7, 8, 9, 11, 12, 15, 16, 16, 17, 18, 18, 21, 21, 23, 24, 26, 26, 29, 29, 31, 31, 31]
BEFORE_BUCKETS = [0, 1, 7, 8, 8, 8, 9, 9, 10, 10, 10, 10, 11, 11, 12, 12, 13, 13, 14, 14, 15, 15, 15, 15]
CAUSAL_STARTS = [*range(17), 19, 21, 24, 27, 31, 35, 40, 46, 52, 59, 67, 77, 87, 99, 113]
BIDIRECTIONAL_STARTS = [*range(9), 12, 16, 23, 32, 46, 64, 91]


def set_parameters(module, **values):
    with torch.no_grad():
        for name, value in values.items():
            getattr(module, name).fill_(value)
    return module


class TestALiBiSlopes:
    @pytest.mark.parametrize(
        ("heads", "exponents"),
        [
            (8, [1, 2, 3, 4, 5, 6, 7, 8]),
            (12, [1, 2, 3, 4, 5, 6, 7, 8, 0.5, 1.5, 2.5, 3.5]),
            (16, [0.5 * h for h in range(1, 17)]),
            (20, [*(0.5 * h for h in range(1, 17)), 0.25, 0.75, 1.25, 1.75]),
            (71, [*(0.125 * h for h in range(1, 65)), 0.0625, 0.1875, 0.3125, 0.4375, 0.5625, 0.6875, 0.8125]),
        ],
    )
    def test_exponents(self, heads, exponents):
        slopes = posenc.ops.alibi_slopes(heads, dtype=torch.float64)
        torch.testing.assert_close(-slopes.log2(), torch.tensor(exponents).double(), rtol=1e-15, atol=1e-15)

    @pytest.mark.parametrize(
        ("heads", "head", "slope"),
        [(16, 0, 0.70710678), (20, 16, 0.84089642), (71, 0, 0.91700404), (71, 64, 0.95760328), (71, 70, 0.56939432)],
    )
    def test_values(self, heads, head, slope):
        assert posenc.ops.alibi_slopes(heads)[head].item() == pytest.approx(slope, abs=6e-8)
        assert ALiBi(heads).slopes[head].item() == pytest.approx(slope, abs=6e-9)

    @pytest.mark.parametrize("heads", [1, 2, 5, 7, 24, 32, 33, 100])
    def test_reference(self, heads):
        expected = torch.tensor(bias_reference.alibi_slopes(heads), dtype=torch.float64)
        torch.testing.assert_close(posenc.ops.alibi_slopes(heads, dtype=torch.float64), expected, rtol=1e-15, atol=0)
        assert_bits(posenc.ops.alibi_slopes(heads), expected.float())
        assert_bits(ALiBi(heads).slopes, posenc.ops.alibi_slopes(heads, dtype=torch.float64))

    @pytest.mark.parametrize("heads", [1, 6, 8, 12, 16])
    def test_bias_of_bloom(self, heads):
        """BLOOM adds slope * (index of the key): the same up to a number for each query, which softmax ignores."""
        bloom = pytest.importorskip("transformers.models.bloom.modeling_bloom")
        length = 9
        theirs = bloom.build_alibi_tensor(torch.ones(1, length), heads, torch.float32).double()
        ours = ALiBi(heads).bias(length).double()
        causal = torch.full((length, length), -math.inf, dtype=torch.float64).triu(1)
        torch.testing.assert_close((ours + causal).softmax(-1), (theirs + causal).softmax(-1), rtol=1e-6, atol=1e-7)

    @pytest.mark.parametrize("heads", [1, 6, 8, 12, 16])
    def test_last_row_of_mpt(self, heads):
        mpt = pytest.importorskip("transformers.models.mpt.modeling_mpt")
        theirs = mpt.build_mpt_alibi_tensor(heads, 9)
        torch.testing.assert_close(ALiBi(heads).bias(1, 9), theirs.float(), rtol=1e-6, atol=1e-7)


class TestT5Buckets:
    def test_causal(self):
        ids = posenc.ops.t5_bucket(-DISTANCES, bidirectional=False)
        assert ids.tolist() == CAUSAL_BUCKETS
        assert posenc.ops.t5_bucket(DISTANCES, bidirectional=False).tolist() == [0] * len(DISTANCES)

    def test_bidirectional(self):
        assert posenc.ops.t5_bucket(-DISTANCES).tolist() == BEFORE_BUCKETS
        assert posenc.ops.t5_bucket(DISTANCES).tolist() == [0] + [16 + id for id in BEFORE_BUCKETS[1:]]

    @pytest.mark.parametrize(
        ("starts", "bidirectional"), [(CAUSAL_STARTS, False), (BIDIRECTIONAL_STARTS, True)], ids=["causal", "both"]
    )
    def test_where_each_bucket_begins(self, starts, bidirectional):
        ids = posenc.ops.t5_bucket(-torch.arange(200), bidirectional=bidirectional).tolist()
        assert [ids.index(bucket) for bucket in range(len(starts))] == starts

    @pytest.mark.parametrize("bidirectional", [True, False])
    @pytest.mark.parametrize(
        ("num_buckets", "max_distance"), [(32, 128), (4, 3), (8, 7), (10, 20), (32, 33), (64, 512), (128, 10000)]
    )
    def test_reference(self, num_buckets, max_distance, bidirectional):
        rule = {"num_buckets": num_buckets, "max_distance": max_distance, "bidirectional": bidirectional}
        relative = torch.arange(-1200, 1200)
        expected = [bias_reference.t5_bucket(r, **rule) for r in relative.tolist()]
        assert posenc.ops.t5_bucket(relative, **rule).tolist() == expected

    @pytest.mark.parametrize("bidirectional", [True, False])
    @pytest.mark.parametrize(("num_buckets", "max_distance"), [(32, 128), (16, 64), (64, 256)])
    def test_transformers(self, num_buckets, max_distance, bidirectional):
        t5 = pytest.importorskip("transformers.models.t5.modeling_t5")
        relative = torch.arange(-599, 600)
        theirs = t5.T5Attention._relative_position_bucket(
            relative, bidirectional=bidirectional, num_buckets=num_buckets, max_distance=max_distance
        )
        ours = posenc.ops.t5_bucket(
            relative, bidirectional=bidirectional, num_buckets=num_buckets, max_distance=max_distance
        )
        assert_bits(ours, theirs)

    @pytest.mark.parametrize("dtype", [torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64], ids=str)
    def test_every_integer_type_and_shape(self, dtype):
        relative = torch.tensor([[0, 5, 100], [17, 40, 1]], dtype=dtype)
        ids = posenc.ops.t5_bucket(relative)
        assert_bits(ids, posenc.ops.t5_bucket(relative.long()))
        assert ids.shape == relative.shape
        assert posenc.ops.t5_bucket(torch.empty(2, 0, dtype=dtype)).shape == (2, 0)
        assert posenc.ops.t5_bucket(torch.tensor(3, dtype=dtype)).shape == ()

    def test_the_largest_distances(self):
        limits = torch.tensor([torch.iinfo(torch.int64).min, torch.iinfo(torch.int64).max])
        assert posenc.ops.t5_bucket(limits).tolist() == [15, 31]
        assert posenc.ops.t5_bucket(limits, bidirectional=False).tolist() == [31, 0]

    @pytest.mark.parametrize("bidirectional", [True, False], ids=["encoder", "decoder"])
    def test_bias_of_transformers(self, bidirectional):
        t5 = pytest.importorskip("transformers.models.t5.modeling_t5")
        config = t5.T5Config(d_model=32, d_kv=8, num_heads=4, is_decoder=not bidirectional)
        theirs = t5.T5Attention(config, has_relative_attention_bias=True)
        ours = T5RelativeBias(4, bidirectional=bidirectional)
        with torch.no_grad():
            ours.weight.copy_(theirs.relative_attention_bias.weight)
        expected = theirs.compute_bias(150, 150)[0]
        if not bidirectional:  # theirs masks later keys elsewhere
            expected, result = expected.tril(), ours.bias(150).tril()
        else:
            result = ours.bias(150)
        assert_bits(result, expected)


class TestKerple:
    def test_log(self):
        module = set_parameters(Kerple(1), r1=1.0, r2=1.0)
        assert module.bias(1, 10)[0, 0, 0].item() == pytest.approx(-2.302585, abs=1e-6)
        module = set_parameters(Kerple(1), r1=0.5, r2=1.0)
        assert module.bias(1, 5)[0, 0, 0].item() == pytest.approx(-0.804719, abs=1e-6)

    def test_power(self):
        module = set_parameters(Kerple(1, kind="power"), r1=0.5, r2=1.0)
        assert module.bias(1, 5)[0, 0, 0].item() == pytest.approx(-2.0, abs=1e-6)

    def test_power_1_is_alibi(self):
        module = set_parameters(Kerple(8, kind="power"), r2=1.0)
        with torch.no_grad():
            module.r1.copy_(posenc.ops.alibi_slopes(8))
        # The smallest slope is below the least that r1 may be.
        torch.testing.assert_close(module.bias(9)[:6], ALiBi(8).bias(9)[:6])

    @pytest.mark.parametrize("kind", ["log", "power"])
    def test_initial_distribution(self, kind):
        module = Kerple(20000, kind=kind)
        for parameter, limit in ((module.r1, 2.0), (module.r2, 1.0)):
            assert parameter.min() >= 0
            assert parameter.max() < limit
            assert parameter.mean().item() == pytest.approx(limit / 2, abs=0.01 * limit)

    @pytest.mark.parametrize(
        ("kind", "r1", "r2", "used"),
        [("log", -3.0, 0.001, (0.01, 0.01)), ("log", 5.0, 7.0, (5.0, 7.0)), ("power", 0.0, 3.0, (0.01, 2.0))],
    )
    def test_out_of_range_is_clamped_but_learns_on(self, kind, r1, r2, used):
        """A plain clamp() would pass no gradient back, and the parameter would never return."""
        outside = set_parameters(Kerple(1, kind=kind), r1=r1, r2=r2)
        inside = set_parameters(Kerple(1, kind=kind), r1=used[0], r2=used[1])
        assert_bits(outside.bias(1, 9), inside.bias(1, 9))
        gradients = [torch.autograd.grad(m.bias(1, 9).sum(), [m.r1, m.r2]) for m in (outside, inside)]
        for ours, expected in zip(*gradients, strict=True):
            assert expected.abs() > 0.01
            assert_bits(ours, expected)

    def test_power_has_a_finite_gradient_at_distance_0(self):
        module = Kerple(2, kind="power")
        for g in torch.autograd.grad(module.bias(3).sum(), [module.r1, module.r2]):
            assert g.isfinite().all()


class TestSandwich:
    @pytest.mark.parametrize(
        ("distance", "value"),
        [(0, 64.0), (1, 62.5534), (2, 58.7980), (10, 44.6591), (100, 30.6811), (1000, 10.6104)],
    )
    def test_sums(self, distance, value):
        heads = 4
        bias = Sandwich(heads).bias(1, distance + 1)[:, 0, 0]
        for h in range(1, heads + 1):
            assert bias[h - 1].item() * (8 * h / heads) + 64 == pytest.approx(value, abs=6e-5)

    def test_reference_at_any_distance(self):
        """Distances on both sides of a block of 4096, which the sums are formed in."""
        expected = torch.stack([bias_reference.sandwich(3, 10)(n, 0) for n in (0, 1, 4095, 4096, 4097, 9000)])
        q_positions = torch.tensor([0, 1, 4095, 4096, 4097, 9000])
        query, key = torch.zeros(1, 3, 6, 1).double(), torch.zeros(1, 1, 1, 1).double()
        scores = Sandwich(3, dim=10).logits(query, key, q_positions=q_positions, k_positions=torch.zeros(1).long())
        torch.testing.assert_close(scores[0, :, :, 0].T, expected, rtol=1e-11, atol=1e-11)


class TestFIRE:
    @pytest.mark.parametrize(
        ("threshold", "i", "j", "eps", "ratio"),
        [(4.0, 9, 4, 1e-6, 0.631708), (4.0, 9, 4, 1e-30, 0.631709), (8.0, 2, 0, 1e-6, 0.310183)],
    )
    def test_ratio(self, threshold, i, j, eps, ratio):
        """An MLP that is the identity shows what it sees."""
        module = FIRE(1, hidden_dim=1, c=0.1, threshold=threshold, eps=eps).double()
        for layer in (module.mlp[0], module.mlp[2]):
            set_parameters(layer, weight=1.0, bias=0.0)
        # Rounded to float32 at construction, as every parameter is.
        set_parameters(module, c=0.1)
        assert module.bias(1, i + 1)[0, 0, j].item() == pytest.approx(ratio, abs=6e-7)

    def test_depends_on_the_query(self):
        bias = FIRE(2, threshold=3.0).bias(9).detach()
        torch.testing.assert_close(bias[:, 1, 0], bias[:, 2, 1])
        assert (bias[:, 8, 4] - bias[:, 7, 3]).abs().min() > 0

    def test_initial_values(self):
        module = FIRE(3, hidden_dim=7, c=0.25, threshold=64.0)
        assert module.c.tolist() == [0.25]
        assert module.threshold.tolist() == [64.0]
        assert [tuple(p.shape) for p in module.mlp.parameters()] == [(7, 1), (7,), (3, 7), (3,)]


def test_initial_distribution_of_t5():
    """With heads of width 64, that of T5: std 1 / sqrt(d_model)."""
    weight = T5RelativeBias(200, num_buckets=400, max_distance=500).weight.detach()
    assert weight.std().item() == pytest.approx((64 * 200) ** -0.5, rel=0.01)
    assert weight.mean().item() == pytest.approx(0.0, abs=2e-4)
