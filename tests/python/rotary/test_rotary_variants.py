"""XPos, AxialRotary and MultimodalRotary beyond what every module promises (test_modules.py):
their numbers and rules."""

import math

import pytest
import torch

import posenc
import reference
from tolerances import DTYPES, assert_bits, assert_near

pytestmark = pytest.mark.kernels

Rotary, XPos = posenc.nn.Rotary, posenc.nn.XPos
AxialRotary, MultimodalRotary = posenc.nn.AxialRotary, posenc.nn.MultimodalRotary
scaling = posenc.scaling

GRID = torch.tensor([[0, 1, 1, 1, 2, 2, 2], [0, 1, 2, 3, 1, 2, 3]])
SPANS = torch.tensor([[0, 1, 2, 2, 2, 2, 4], [0, 1, 2, 2, 3, 3, 4], [0, 1, 2, 3, 2, 3, 4]])


def queries_and_keys(width=8, length=7, dtype=torch.float32, key_heads=2):
    q = torch.randn(2, 4, length, width, dtype=torch.float64).to(dtype)
    return q, torch.randn(2, key_heads, length, width, dtype=torch.float64).to(dtype)


def scores(module, q, k, positions):
    rotated_q, rotated_k = module(q, k, positions)
    return rotated_q @ rotated_k.repeat_interleave(q.shape[1] // k.shape[1], dim=1).transpose(-1, -2)


def cosines_and_sines(module, width, positions, *, pairs=None, interleaved=False):
    """cos and sin (.., T, R/2) as the module applies them in float64: each pair (1, 0) becomes (cos, sin)."""
    pairs = width // 2 if pairs is None else pairs
    firsts, seconds = zip(*(reference.pair_columns(k, pairs, interleaved) for k in range(pairs)), strict=True)
    x = torch.zeros(1, 1, positions.shape[-1], width, dtype=torch.float64)
    x[..., list(firsts)] = 1
    y = module(x, positions=positions)[0, 0]
    return y[..., list(firsts)], y[..., list(seconds)]


def angles(module, width, positions, **layout):
    cos, sin = cosines_and_sines(module, width, positions, **layout)
    return torch.atan2(sin, cos)


def near(*values):
    return pytest.approx(values, rel=2e-6)


class TestXPos:
    @staticmethod
    def sizes(module, positions):
        """Norm of each rotated unit pair: of queries and of keys (T, 32)."""
        x = torch.zeros(1, 1, len(positions), 64, dtype=torch.float64)
        x[..., ::2] = 1
        return [y.unflatten(-1, (32, 2)).norm(dim=-1)[0, 0] for y in module(x, x, positions)]

    def test_zeta(self):
        q, k = self.sizes(XPos(64), torch.tensor([0, 1, 512]))
        assert q[0].tolist() == pytest.approx([1] * 32, rel=1e-12)
        assert q[2, [0, 16, 31]].tolist() == near(0.285714, 0.642857, 0.977679)
        assert q[1, 0].item() == pytest.approx(0.997556, rel=1e-6)
        torch.testing.assert_close(q * k, torch.ones_like(q), rtol=1e-12, atol=0)

    @pytest.mark.parametrize("centre", [0, 300.5, -1000])
    def test_products_decay_with_the_distance(self, centre):
        q, k = self.sizes(XPos(64, centre=centre), torch.tensor([100, 99, 100 - 512]))
        assert (q[0] * k[1])[0].item() == pytest.approx(0.997556, rel=1e-6)
        assert (q[0] * k[2])[[0, 16, 31]].tolist() == near(0.285714, 0.642857, 0.977679)

    def test_scale_base_is_the_distance_of_one_zeta(self):
        q, k = self.sizes(XPos(64, scale_base=8), torch.tensor([8, 0]))
        assert (q[0] * k[1])[[0, 16, 31]].tolist() == near(0.285714, 0.642857, 0.977679)

    @pytest.mark.parametrize("interleaved", [True, False])
    def test_any_centre_gives_the_same_scores(self, interleaved):
        q, k = queries_and_keys(16, dtype=torch.float64)
        positions = torch.tensor([0, 5, 9, 100, 2, 700, 3])
        expected = scores(XPos(16, interleaved=interleaved), q, k, positions)
        for centre in (350, -37.5, 1e3):
            moved = scores(XPos(16, interleaved=interleaved, centre=centre), q, k, positions)
            torch.testing.assert_close(moved, expected, rtol=1e-10, atol=1e-10)

    def test_scores_depend_on_the_distance_alone(self):
        q, k = queries_and_keys(16, dtype=torch.float64)
        positions = torch.tensor([0, 5, 9, 11, 2, 7, 3])
        expected = scores(XPos(16), q, k, positions)
        torch.testing.assert_close(scores(XPos(16), q, k, positions + 123), expected, rtol=1e-10, atol=1e-10)

    def test_cached_keys_stay_right_while_decoding(self):
        module, (q, k) = XPos(8), queries_and_keys()
        whole = module(q, k)
        for t in range(7):
            one = module(q[:, :, t : t + 1], k[:, :, t : t + 1], offset=t)
            for y, e in zip(one, whole, strict=True):
                assert_bits(y, e[:, :, t : t + 1])

    def test_queries_alone(self):
        module, (q, k) = XPos(8), queries_and_keys()
        assert_bits(module(q, positions=GRID[1]), module(q, k, GRID[1])[0])

    def test_float16_keys_overflow_where_the_docstring_says(self):
        x = torch.ones(1, 1, 1, 64, dtype=torch.float16)
        x[..., 1::2] = 0

        def largest(position, **options):
            return XPos(64, **options)(x, x, offset=position)[1][0, 0, 0, :2].double().norm().item()

        # Pair 0 turns by the position itself; its norm bounds both columns.
        assert largest(4500) == pytest.approx((1.4 / 0.4) ** (4500 / 512), rel=1e-3)
        assert math.isfinite(largest(4600, centre=4600))
        assert math.isinf(largest(6000))

    @pytest.mark.parametrize("offset", [3, torch.tensor([3, 8])], ids=["int", "per_row"])
    def test_offset(self, offset):
        module, (q, k) = XPos(8), queries_and_keys()
        positions = torch.arange(7) + (offset[:, None] if isinstance(offset, torch.Tensor) else offset)
        for y, e in zip(module(q, k, offset=offset), module(q, k, positions), strict=True):
            assert_bits(y, e)


class TestAxialRotary:
    def test_frequencies_of_rope_vit(self):
        """d = 64, base 100: 100^(-4t/64) for each axis."""
        for axis in (0, 1):
            positions = torch.zeros(2, 1)
            positions[axis] = 1.0
            turned = angles(AxialRotary(64), 64, positions, interleaved=True)[0]
            own, other = turned.split(16)[axis], turned.split(16)[1 - axis]
            assert own[[0, 1, 15]].tolist() == pytest.approx([1, 0.749894, 0.013335], abs=5e-7)
            assert other.tolist() == [0.0] * 16
        turned = angles(AxialRotary(64, base=1e4), 64, torch.tensor([[1], [0]]), interleaved=True)[0]
        assert turned[[0, 1, 15]].tolist() == near(1, 0.5623413, 1.778279e-4)

    @pytest.mark.parametrize("num_axes", [1, 2, 3])
    def test_interleaved_axes_are_rotaries_on_adjacent_columns(self, num_axes):
        """The first D/A columns turn by the first axis, and so on, as the 2-D form is usually written."""
        q, k = queries_and_keys(12)
        positions = torch.tensor([[4, 0, 2, 9, 1, 1, 3]] * num_axes) + torch.arange(num_axes)[:, None]
        for x, y in zip((q, k), AxialRotary(12, num_axes=num_axes)(q, k, positions), strict=True):
            one_axis = Rotary(12 // num_axes, base=100.0, interleaved=True)
            shares = zip(x.chunk(num_axes, dim=-1), positions, strict=True)
            assert_bits(y, torch.cat([one_axis(share, positions=p) for share, p in shares], dim=-1))

    @pytest.mark.parametrize("options", [{}, {"interleaved": False}, {"learnable": True}], ids=str)
    @pytest.mark.parametrize("dtype", DTYPES, ids=str)
    def test_a_class_token_at_place_0_keeps_its_bits(self, dtype, options):
        q, k = queries_and_keys(dtype=dtype)
        for x, y in zip((q, k), AxialRotary(8, **options)(q, k, GRID), strict=True):
            assert_bits(y[:, :, 0], x[:, :, 0])
            assert not torch.equal(y[:, :, 1], x[:, :, 1])

    @pytest.mark.parametrize("interleaved", [True, False])
    @pytest.mark.parametrize(
        "positions",
        [(GRID + 0.5) / 4, GRID.double() * 0.37 - 1, GRID.to(torch.int32), GRID - 3],
        ids=["unit", "float64", "int32", "negative"],
    )
    def test_coordinates_of_every_kind(self, positions, interleaved):
        q, _ = queries_and_keys(16)
        y = AxialRotary(16, interleaved=interleaved)(q, positions=positions)
        assert_near(y, reference.axial(q, positions, interleaved=interleaved))

    @pytest.mark.parametrize("options", [{}, {"learnable": True}, {"learnable": True, "num_heads": 4}], ids=str)
    def test_positions_shared_by_the_batch_or_given_by_row(self, options):
        q, _ = queries_and_keys()
        module = AxialRotary(8, **options)
        shared = module(q, positions=GRID)
        assert_bits(module(q, positions=GRID[:, None]), shared)
        assert_bits(module(q, positions=GRID[:, None].expand(-1, 2, -1)), shared)
        other = GRID.flip(1)
        rows = module(q, positions=torch.stack([GRID, other], dim=1))
        assert_bits(rows[0], shared[0])
        assert_bits(rows[1], module(q, positions=other)[1])

    @pytest.mark.parametrize(
        "options", [{}, {"interleaved": False}, {"learnable": True}, {"learnable": True, "num_heads": 4}], ids=str
    )
    @pytest.mark.parametrize("shift", [(5, 0), (0, -3), (2, 7)], ids=str)
    def test_scores_depend_on_the_offsets_along_each_axis(self, options, shift):
        module = AxialRotary(8, **options).double()
        if options.get("learnable"):
            with torch.no_grad():
                module.inv_freq.add_(torch.rand_like(module.inv_freq))
        q, k = queries_and_keys(dtype=torch.float64, key_heads=4)
        moved = GRID + torch.tensor(shift)[:, None]
        torch.testing.assert_close(scores(module, q, k, moved), scores(module, q, k, GRID), rtol=1e-10, atol=1e-10)

    @pytest.mark.parametrize("num_heads", [None, 4])
    @pytest.mark.parametrize("num_axes", [1, 2, 3])
    def test_mixed_frequencies_start_axial(self, num_axes, num_heads):
        mixed = AxialRotary(12, num_axes=num_axes, base=10.0, learnable=True, num_heads=num_heads)
        expected = reference.axial_mixed_frequencies(12, num_axes, 10.0)
        if num_heads is not None:
            expected = expected[:, None].expand(-1, num_heads, -1)
        assert_bits(mixed.inv_freq.detach(), expected.float())
        q, _ = queries_and_keys(12)
        positions = SPANS[:num_axes]
        axial = AxialRotary(12, num_axes=num_axes, base=10.0)(q, positions=positions)
        torch.testing.assert_close(mixed(q, positions=positions), axial, rtol=1e-5, atol=1e-5)

    def test_mixed_angle_is_the_sum_over_axes(self):
        module = AxialRotary(4, learnable=True, interleaved=False)
        with torch.no_grad():
            module.inv_freq.copy_(torch.tensor([[0.5, -0.25], [0.125, 1.0]]))
        turned = angles(module.double(), 4, torch.tensor([[1, 2.5], [2, -0.5]]))
        torch.testing.assert_close(turned, torch.tensor([[0.75, 1.75], [1.1875, -1.125]], dtype=torch.float64))

    def test_each_head_learns_its_own_frequencies(self):
        module, (q, _) = AxialRotary(8, learnable=True, num_heads=4), queries_and_keys()
        grad = torch.zeros_like(q)
        grad[:, 2] = 1.0
        module(q, positions=GRID).backward(grad)
        moved = module.inv_freq.grad.abs().sum(dim=(0, 2))
        assert moved[[0, 1, 3]].tolist() == [0, 0, 0]
        assert moved[2] > 0.1

    @pytest.mark.parametrize("num_heads", [None, 4])
    def test_learning_finds_the_frequencies_of_a_target(self, num_heads):
        target = AxialRotary(8)
        module = AxialRotary(8, learnable=True, num_heads=num_heads)
        with torch.no_grad():
            module.inv_freq.add_(0.05 * torch.rand_like(module.inv_freq))
        q, k = queries_and_keys(key_heads=4)
        optimizer, losses = torch.optim.Adam(module.parameters(), lr=2e-3), []
        for _ in range(80):
            optimizer.zero_grad()
            loss = sum((y - e).square().mean() for y, e in zip(module(q, k, GRID), target(q, k, GRID), strict=True))
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
        assert losses[-1] < losses[0] / 20
        module.reset_parameters()
        assert_bits(module.inv_freq, AxialRotary(8, learnable=True, num_heads=num_heads).inv_freq)


class TestMultimodalRotary:
    def test_sections_of_qwen2_vl(self):
        positions = torch.tensor([[5], [2], [7]])
        turned = cosines_and_sines(MultimodalRotary(128, (16, 24, 24), base=1e6), 128, positions)
        for k, angle in ((0, 5.0), (16, 0.0632456), (40, 1.244796e-3)):
            assert turned[0][0, k].item() == pytest.approx(math.cos(angle), abs=5e-7)
            assert turned[1][0, k].item() == pytest.approx(math.sin(angle), abs=5e-7)

    def test_sections_in_turns(self):
        """Time 0 leaves its pairs alone; height and width show which pairs are theirs."""
        module = MultimodalRotary(128, (24, 20, 20), interleaved_sections=True)
        for axis in range(3):
            positions = torch.zeros(3, 1, dtype=torch.int64)
            positions[axis] = 1
            _, sin = cosines_and_sines(module, 128, positions)
            theirs = [k for k in range(64) if sin[0, k] != 0]
            if axis == 0:
                assert theirs == [k for k in range(64) if k % 3 == 0 or k >= 60]
            else:
                assert theirs == [k for k in range(60) if k % 3 == axis]

    @pytest.mark.parametrize("interleaved_sections", [False, True])
    @pytest.mark.parametrize("options", [{}, {"interleaved": True}, {"exact": False}, {"rotary_dim": 8}], ids=str)
    @pytest.mark.parametrize("dtype", DTYPES, ids=str)
    def test_text_equals_rotary_bit_for_bit(self, dtype, options, interleaved_sections):
        sections = (2, 1, 1) if "rotary_dim" in options else (3, 3, 2)
        multimodal = MultimodalRotary(16, sections, interleaved_sections=interleaved_sections, **options)
        plain, (q, k) = Rotary(16, **options), queries_and_keys(16, dtype=dtype)
        rows = torch.tensor([[9, 1, 2, 70000, 4, 0, 3], [0, 1, 2, 3, 4, 5, 6]])
        for call, plain_call in (
            ({"positions": rows[:1].expand(3, -1)}, {"positions": rows[0]}),
            ({"positions": rows.expand(3, -1, -1)}, {"positions": rows}),
            ({"positions": rows.double().expand(3, -1, -1)}, {"positions": rows}),
            ({}, {}),
            ({"offset": 5}, {"offset": 5}),
            ({"offset": torch.tensor([1, 9])}, {"offset": torch.tensor([1, 9])}),
        ):
            for y, e in zip(multimodal(q, k, **call), plain(q, k, **plain_call), strict=True):
                assert_bits(y, e)
            assert_bits(multimodal(q, **call), plain(q, **plain_call))

    @pytest.mark.parametrize("kind", [scaling.Yarn(16.0, 64), scaling.DynamicNTK(2.0, 4), scaling.Linear(4.0)], ids=str)
    @pytest.mark.parametrize("exact", [True, False])
    def test_scaled_text_equals_rotary_bit_for_bit(self, kind, exact):
        multimodal = MultimodalRotary(16, (2, 3, 3), scaling=kind, exact=exact)
        plain, (q, k) = Rotary(16, scaling=kind, exact=exact), queries_and_keys(16)
        text = torch.arange(20, 27)
        for y, e in zip(multimodal(q, k, text.expand(3, -1)), plain(q, k, text), strict=True):
            assert_bits(y, e)

    @pytest.mark.parametrize("interleaved_sections", [False, True])
    @pytest.mark.parametrize("shift", [(5, 0, 0), (0, -3, 0), (0, 0, 11), (1, 2, 3)], ids=str)
    def test_scores_depend_on_the_offsets_along_each_axis(self, shift, interleaved_sections):
        module = MultimodalRotary(16, (3, 3, 2), interleaved_sections=interleaved_sections)
        q, k = queries_and_keys(16, dtype=torch.float64)
        moved = SPANS + torch.tensor(shift)[:, None]
        torch.testing.assert_close(scores(module, q, k, moved), scores(module, q, k, SPANS), rtol=1e-10, atol=1e-10)

    @pytest.mark.parametrize("sections", [(1, 3, 4), (8, 0, 0), (0, 0, 8), (2, 2, 2, 2), (3, 5), (8,)], ids=str)
    def test_any_number_of_axes_and_empty_sections(self, sections):
        q, _ = queries_and_keys(16)
        positions = torch.randint(0, 50, (len(sections), 2, 7))
        axes = reference.multimodal_axes(sections, False)
        y = MultimodalRotary(16, sections)(q, positions=positions)
        assert_near(y, reference.rotary(q, positions, reference.inverse_frequencies(16), axes=axes))

    def test_the_columns_beyond_rotary_dim_pass_through(self):
        q, k = queries_and_keys(11)
        module = MultimodalRotary(11, (2, 1, 1), rotary_dim=8)
        narrow = MultimodalRotary(8, (2, 1, 1))
        for x, y in zip((q, k), module(q, k, SPANS), strict=True):
            assert_bits(y[..., 8:], x[..., 8:])
            assert_bits(y[..., :8], narrow(x[..., :8], positions=SPANS))

    def test_spans_of_the_position_helper(self):
        positions = posenc.positions.multimodal_positions([("text", 3), ("image", (1, 2, 2)), ("text", 2)])
        q, _ = queries_and_keys(8, length=9)
        module = MultimodalRotary(8, (1, 1, 2))
        whole = module(q, positions=positions)
        assert_bits(whole[:, :, :3], Rotary(8)(q[:, :, :3]))
        assert_bits(whole[:, :, 7:], Rotary(8)(q[:, :, 7:], offset=5))
        axes = reference.multimodal_axes((1, 1, 2), False)
        assert_near(whole, reference.rotary(q, positions, reference.inverse_frequencies(8), axes=axes))


class TestLengthDependentScaling:
    """The length is, in this order: the call's, the constructor's, offset + T, the largest position of any axis + 1."""

    dynamic = scaling.DynamicNTK(2.0, 4)

    def expected(self, q, positions, length):
        inv_freq = reference.dynamic_ntk_frequencies(8, 1e4, 2.0, 4, length)
        return reference.rotary(q, positions, inv_freq, axes=[0, 1, 2, 2])

    @pytest.mark.parametrize("axis", [0, 1, 2])
    def test_largest_position_of_any_axis_and_row(self, axis):
        q, _ = queries_and_keys()
        positions = SPANS[:, None].repeat(1, 2, 1)
        positions[axis, 1, 3] = 30
        module = MultimodalRotary(8, (1, 1, 2), scaling=self.dynamic)
        assert_near(module(q, positions=positions), self.expected(q, positions, 31))
        assert_near(module(q, positions=SPANS), self.expected(q, SPANS, 5))

    def test_given_lengths_go_first(self):
        q, _ = queries_and_keys()
        module = MultimodalRotary(8, (1, 1, 2), scaling=self.dynamic, seq_len=100)
        assert_near(module(q, positions=SPANS), self.expected(q, SPANS, 100))
        assert_near(module(q, positions=SPANS, seq_len=9), self.expected(q, SPANS, 9))
        assert_near(module(q, offset=50), self.expected(q, (torch.arange(7) + 50).expand(3, -1), 100))

    def test_offset_plus_length(self):
        q, _ = queries_and_keys()
        module = MultimodalRotary(8, (1, 1, 2), scaling=self.dynamic)
        counted = torch.arange(7).expand(3, -1)
        assert_near(module(q), self.expected(q, counted, 7))
        assert_near(module(q, offset=20), self.expected(q, counted + 20, 27))
        rows = torch.tensor([1, 9])
        assert_near(module(q, offset=rows), self.expected(q, counted[:, None] + rows[None, :, None], 16))

    @pytest.mark.parametrize("namespace", [posenc.nn, posenc.nn.cpp], ids=["python", "cpp"])
    @pytest.mark.parametrize(("name", "arguments"), [("Rotary", (8,)), ("MultimodalRotary", (8, (1, 1, 2)))])
    def test_negative_positions_and_negative_offsets_agree(self, name, arguments, namespace):
        """Only differences of positions matter, so all of them may lie below 0; the length is then 1."""
        q, _ = queries_and_keys()
        module = getattr(namespace, name)(*arguments, scaling=self.dynamic)
        positions = torch.arange(-9, -2)
        axes = positions if name == "Rotary" else positions.expand(3, -1)
        expected = module(q, positions=axes, seq_len=1)
        assert_bits(module(q, offset=-9), expected)
        assert_bits(module(q, positions=axes), expected)
