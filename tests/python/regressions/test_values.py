"""Faults of other rotary implementations' values and positions, with the right numbers."""

import math

import pytest
import torch

import layouts
import posenc
import reference
from tolerances import DTYPES, assert_bits, assert_near

pytestmark = pytest.mark.kernels

ops = posenc.ops
Rotary = posenc.nn.Rotary


def frequencies(dim):
    return reference.inverse_frequencies(dim)


def every_rotation(positions, inv_freq, **rule):
    """Each op that rotates, as a function of (q, k) -> (q', k'); the in-place ones on copies with equal strides."""
    tables = ops.rotary_tables(positions, inv_freq, dtype=torch.float64)

    def in_place(op, *rest):
        def run(q, k):
            q, k = layouts.with_strides_of(q.detach(), q), layouts.with_strides_of(k.detach(), k)
            op(q, k, *rest, **rule)
            return q, k

        return run

    return {
        "rotary": lambda q, k: (ops.rotary(q, positions, inv_freq, **rule), ops.rotary(k, positions, inv_freq, **rule)),
        "rotary_qk": lambda q, k: ops.rotary_qk(q, k, positions, inv_freq, **rule),
        "rotary_qk_": in_place(ops.rotary_qk_, positions, inv_freq),
        "apply_rotary": lambda q, k: (ops.apply_rotary(q, *tables, **rule), ops.apply_rotary(k, *tables, **rule)),
        "apply_rotary_qk": lambda q, k: ops.apply_rotary_qk(q, k, *tables, **rule),
        "apply_rotary_qk_": in_place(ops.apply_rotary_qk_, *tables),
    }


ROTATIONS = list(every_rotation(torch.tensor([0]), frequencies(4)))
every_op = pytest.mark.parametrize("op", ROTATIONS)


class TestFrequenciesOfCastModules:
    @staticmethod
    def pair_1(module, dtype=torch.float32):
        x = torch.zeros(1, 1, 1, 32, dtype=dtype)
        x[..., 1] = 1
        y = module(x, offset=1857)
        return y[0, 0, 0, 1], y[0, 0, 0, 17]

    @pytest.mark.parametrize("cast", [torch.float16, torch.bfloat16], ids=str)
    def test_cast_module_keeps_exact_angles(self, cast):
        module = Rotary(32).to(cast)
        cos, sin = self.pair_1(module)
        assert abs(cos.item() - 0.3066928) < 1e-6
        assert abs(sin.item() - 0.9518086) < 1e-6
        for narrow, wide in zip(self.pair_1(module, cast), (cos, sin), strict=True):
            assert_bits(narrow, wide.to(cast))

    @pytest.mark.parametrize("cast", [torch.float16, torch.bfloat16], ids=str)
    def test_cast_module_keeps_float32_angles(self, cast):
        cos, sin = self.pair_1(Rotary(32, exact=False).to(cast))
        assert abs(cos.item() - 0.3067105) < 5e-5
        assert abs(sin.item() - 0.9518028) < 5e-5

    @pytest.mark.parametrize("exact", [True, False])
    def test_a_cast_there_and_back_changes_no_bit(self, exact):
        module, x = Rotary(32, exact=exact), torch.randn(1, 2, 50, 32)
        expected = module(x, offset=1800)
        assert_bits(module.half().float()(x, offset=1800), expected)
        assert_bits(module.bfloat16().float()(x, offset=1800), expected)

    @pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
    def test_ops_refuse_rounded_frequencies(self, dtype):
        x, inv_freq = torch.randn(1, 2, 3, 8), frequencies(8).to(dtype)
        for call in (
            lambda: ops.rotary(x, None, inv_freq),
            lambda: ops.rotary_qk(x, x, None, inv_freq),
            lambda: ops.rotary_qk_(x, x.clone(), None, inv_freq),
            lambda: ops.rotary_tables(None, inv_freq, length=3),
        ):
            with pytest.raises(TypeError, match="inv_freq"):
                call()


class TestLayout:
    x = torch.tensor([1.0, 2.0, 3.0, 4.0]).view(1, 1, 1, 4)
    half = torch.tensor([-1.9841106, 1.9599007, 2.4623779, 4.0197997]).view(1, 1, 1, 4)
    interleaved = torch.tensor([-1.1426398, 1.9220756, 2.9598507, 4.0297995]).view(1, 1, 1, 4)

    @every_op
    def test_each_layout_gives_its_numbers(self, op):
        for interleaved, expected in ((False, self.half), (True, self.interleaved)):
            run = every_rotation(torch.tensor([1]), frequencies(4), interleaved=interleaved)[op]
            for y in run(self.x, self.x.clone()):
                torch.testing.assert_close(y, expected, rtol=0, atol=1e-6)
            assert_near(Rotary(4, interleaved=interleaved)(self.x, offset=1), y.double())

    @pytest.mark.parametrize("dim", [4, 10, 64])
    def test_permuting_columns_turns_one_layout_into_the_other(self, dim):
        x = torch.randn(2, 3, 5, dim)
        to_half = torch.cat([torch.arange(0, dim, 2), torch.arange(1, dim, 2)])
        y = ops.rotary(x[..., to_half], None, frequencies(dim))
        assert_bits(y, ops.rotary(x, None, frequencies(dim), interleaved=True)[..., to_half])


class TestPositionsByRow:
    inv_freq = frequencies(8)

    @every_op
    def test_left_padded_rows_equal_the_unpadded_run(self, op):
        q, k = torch.randn(2, 4, 5, 8), torch.randn(2, 2, 5, 8)
        positions = torch.tensor([[0, 0, 0, 1, 2], [0, 1, 2, 3, 4]])
        together = every_rotation(positions, self.inv_freq)[op](q, k)
        alone = every_rotation(torch.arange(3), self.inv_freq)[op](q[:1, :, 2:].contiguous(), k[:1, :, 2:].contiguous())
        full = every_rotation(torch.arange(5), self.inv_freq)[op](q[1:], k[1:])
        for y, short, long in zip(together, alone, full, strict=True):
            assert_bits(y[:1, :, 2:], short)
            assert_bits(y[1:], long)

    @every_op
    def test_packed_sequences_restart(self, op):
        q, k = torch.randn(1, 4, 8, 8), torch.randn(1, 2, 8, 8)
        together = every_rotation(torch.tensor([0, 1, 2, 3, 0, 1, 2, 3]), self.inv_freq)[op](q, k)
        second = every_rotation(torch.arange(4), self.inv_freq)[op](q[:, :, 4:].contiguous(), k[:, :, 4:].contiguous())
        for y, e in zip(together, second, strict=True):
            assert_bits(y[:, :, 4:], e)

    @every_op
    @pytest.mark.parametrize("row", [[7, 2, 2, 0, 5], [[7, 2, 2, 0, 5]]], ids=["T", "1_T"])
    def test_unsorted_positions_broadcast(self, op, row):
        q, k = torch.randn(2, 4, 5, 8), torch.randn(2, 2, 5, 8)
        for x, y in zip((q, k), every_rotation(torch.tensor(row), self.inv_freq)[op](q, k), strict=True):
            assert_near(y, reference.rotary(x, torch.tensor([7, 2, 2, 0, 5]), self.inv_freq))

    @every_op
    def test_shifted_positions_keep_the_scores(self, op):
        q, k, positions = torch.randn(2, 2, 5, 8), torch.randn(2, 2, 5, 8), torch.tensor([7, 2, 2, 0, 5])
        scores = []
        for shift in (0, 50):
            rotated_q, rotated_k = every_rotation(positions + shift, self.inv_freq)[op](q, k)
            scores.append(rotated_q @ rotated_k.transpose(-1, -2))
        torch.testing.assert_close(scores[0], scores[1], rtol=1e-5, atol=1e-5)


class TestPartialRotary:
    x = torch.arange(1.0, 9.0).view(1, 1, 1, 8)
    expected = torch.tensor([-1.9841106, 1.9599007, 2.4623779, 4.0197997, 5, 6, 7, 8]).view(1, 1, 1, 8)

    @every_op
    def test_frequencies_and_partners_come_from_rotary_dim(self, op):
        run = every_rotation(torch.tensor([1]), frequencies(4))[op]
        for y in (*run(self.x, self.x.clone()), Rotary(8, rotary_dim=4)(self.x, offset=1)):
            torch.testing.assert_close(y, self.expected, rtol=0, atol=1e-6)
            assert_bits(y[..., 4:], self.x[..., 4:])

    @pytest.mark.parametrize("dtype", DTYPES, ids=str)
    @pytest.mark.parametrize("head_dim", [5, 7, 8, 37])
    def test_tail_is_bit_identical_in_backward_too(self, head_dim, dtype):
        """NaN payloads and negative zeros included: the tail is copied, not computed."""
        x = torch.randn(2, 3, 5, head_dim).to(dtype)
        x[..., -1] = math.nan
        x[0, 0, 0, -1] = -0.0
        x.requires_grad_()
        y = Rotary(head_dim, rotary_dim=4)(x, offset=9)
        integer = {2: torch.int16, 4: torch.int32, 8: torch.int64}[x.element_size()]
        assert torch.equal(
            y[..., 4:].detach().contiguous().view(integer), x[..., 4:].detach().contiguous().view(integer)
        )
        grad = torch.randn_like(y)
        (result,) = torch.autograd.grad(y, x, grad)
        assert_bits(result[..., 4:], grad[..., 4:])

    def test_full_width_is_the_default_and_zero_width_copies(self):
        x = torch.randn(2, 3, 5, 8)
        assert_bits(Rotary(8, rotary_dim=8)(x), Rotary(8)(x))
        y = Rotary(8, rotary_dim=0)(x)
        assert_bits(y, x)
        assert y.data_ptr() != x.data_ptr()


class TestPositionAxis:
    @every_op
    @pytest.mark.parametrize("shape", [(2, 3, 5, 4), (1, 3, 5, 4), (3, 5, 3, 4), (2, 5, 5, 4), (4, 4, 4, 4)], ids=str)
    def test_position_is_the_token_alone(self, op, shape):
        """Sizes that coincide (B = L, H = L) leave wrong broadcasting nothing to trip over."""
        batch, length, heads, width = shape
        one = torch.randn(1, length, 1, width)
        stored = one.expand(shape).contiguous()
        x = stored.transpose(1, 2)
        run = every_rotation(torch.arange(length), frequencies(width))[op]
        y = run(x, x.clone())[0]
        for b in range(batch):
            for h in range(heads):
                assert_bits(y[b, h], y[0, 0])
        assert_bits(y[:, :, 0], x[:, :, 0])
        assert_bits(run(x.contiguous(), x.contiguous())[0], y)
        for t in range(length):
            alone = every_rotation(torch.tensor([t]), frequencies(width))[op]
            single = x[:, :, t : t + 1].contiguous()
            assert_bits(alone(single, single.clone())[0], y[:, :, t : t + 1])

    @pytest.mark.parametrize("shape", [(5, 4), (3, 5, 4), (2, 3, 5, 1, 4)], ids=str)
    def test_other_numbers_of_dimensions_are_not_guessed(self, shape):
        with pytest.raises(ValueError, match=r"expected q of shape \(batch, heads, length, head_dim\)"):
            Rotary(4)(torch.randn(shape))


class TestDtypes:
    @pytest.mark.parametrize("dtype", DTYPES, ids=str)
    @every_op
    def test_output_dtype_is_the_input_dtype(self, op, dtype):
        x = torch.tensor([1.0, 2.0, 3.0, 4.0], dtype=dtype).view(1, 1, 1, 4)
        wide = torch.tensor([1.0, 2.0, 3.0, 4.0]).view(1, 1, 1, 4)
        for interleaved, expected in ((False, TestLayout.half), (True, TestLayout.interleaved)):
            run = every_rotation(torch.tensor([1]), frequencies(4), interleaved=interleaved)[op]
            y = run(x, x.clone())[0]
            assert y.dtype == dtype
            torch.testing.assert_close(y.float(), expected, rtol=8e-3, atol=1e-6)
            if dtype.itemsize == 2:
                assert_bits(y, run(wide, wide.clone())[0].to(dtype))

    @every_op
    def test_queries_and_keys_keep_their_own_dtype(self, op):
        q, k = torch.randn(1, 2, 3, 4).bfloat16(), torch.randn(1, 2, 3, 4)
        run = every_rotation(torch.arange(3), frequencies(4))[op]
        rotated_q, rotated_k = run(q, k)
        assert (rotated_q.dtype, rotated_k.dtype) == (torch.bfloat16, torch.float32)
        assert_bits(rotated_q, run(q, q.clone())[0])
        assert_bits(rotated_k, run(k.clone(), k)[1])

    @pytest.mark.parametrize("op", ["rotary", "rotary_qk", "rotary_qk_", "apply_rotary"])
    def test_float64_has_no_float32_inside(self, op):
        q = torch.randn(1, 2, 3, 64, dtype=torch.float64)
        positions = torch.tensor([1, 37, 999])
        y = every_rotation(positions, frequencies(64))[op](q, q.clone())[0]
        torch.testing.assert_close(y, reference.rotary(q, positions, frequencies(64)), rtol=1e-12, atol=1e-12)

    @pytest.mark.parametrize("dtype", [torch.int32, torch.int64, torch.uint8, torch.bool, torch.complex64], ids=str)
    @every_op
    def test_other_dtypes_raise(self, op, dtype):
        run = every_rotation(torch.arange(3), frequencies(4))[op]
        x = torch.ones(1, 2, 3, 4).to(dtype)
        with pytest.raises(TypeError, match="float32, float64, bfloat16"):
            run(x, x.clone())
        with pytest.raises(TypeError):
            Rotary(4)(x)


class TestLargePositions:
    positions = (16000, 48039, 131071, 1000000, 16777217)
    cosines = (-0.9913814, -0.6163210, -0.8179835, 0.9367521, 0.9943840)

    @pytest.mark.parametrize("position_dtype", [torch.int32, torch.int64, torch.float64], ids=str)
    def test_the_first_pair_is_exact_at_large_positions(self, position_dtype):
        expected = torch.tensor(self.cosines, dtype=torch.float64)
        positions = torch.tensor(self.positions, dtype=position_dtype)
        inv_freq = frequencies(128)
        x = torch.zeros(1, 1, 5, 128)
        x[..., 0] = 1
        for cos in (
            ops.rotary_tables(positions, inv_freq)[0][:, 0],
            ops.rotary(x, positions, inv_freq)[0, 0, :, 0],
            ops.rotary_qk(x, x, positions, inv_freq)[1][0, 0, :, 0],
            Rotary(128)(x, positions=positions)[0, 0, :, 0],
            torch.stack([Rotary(128)(x[:, :, :1], offset=p)[0, 0, 0, 0] for p in self.positions]),
        ):
            torch.testing.assert_close(cos.double(), expected, rtol=0, atol=1e-6)

    def test_float32_positions_are_what_they_say(self):
        """16777217 is no float32: such a tensor holds 16777216, and its own cosine is right."""
        cos, _ = ops.rotary_tables(torch.tensor([16777217.0], dtype=torch.float32), frequencies(4))
        assert abs(cos[0, 0].item() - 0.6263230) < 1e-6

    def test_the_second_pair_is_that_of_its_precision(self):
        exact, _ = ops.rotary_tables(torch.tensor([131071]), frequencies(128))
        assert abs(exact[0, 1].item() - -0.9782709) < 1e-6
        inv_freq, _ = posenc.scaling.frequencies(128, exact=False)
        coarse, _ = ops.rotary_tables(torch.tensor([131071]), inv_freq, exact=False)
        assert abs(coarse[0, 1].item() - -0.9777133) < 1e-6
