"""Faults of other rotary modules: the right numbers, for every module of the family."""

import math
from collections.abc import Callable
from dataclasses import dataclass

import pytest
import torch

import layouts
import posenc
import reference
from rotary_calls import unit_pairs
from tolerances import DTYPES, assert_bits, assert_near

pytestmark = pytest.mark.kernels

nn = posenc.nn


@dataclass(frozen=True)
class Form:
    """A module of width `dim` whose pairs turn as Rotary(dim, base=1e4)'s do, in the half layout unless asked.

    `place` makes its positions of plain ones, (T) or (B, T): on each axis alike.
    """

    build: Callable
    place: Callable = lambda positions: positions


def on_axes(count):
    return lambda positions: positions.expand(count, *positions.shape)


FORMS = {
    "rotary": Form(lambda dim, **o: nn.Rotary(dim, **o)),
    "rotary_learnable": Form(lambda dim, **o: nn.Rotary(dim, learnable=True, **o)),
    "xpos": Form(lambda dim, interleaved=False, **o: nn.XPos(dim, interleaved=interleaved, scale_base=1e30, **o)),
    "axial": Form(
        lambda dim, interleaved=False: nn.AxialRotary(dim, num_axes=1, base=1e4, interleaved=interleaved), on_axes(1)
    ),
    "axial_learnable": Form(
        lambda dim, interleaved=False: nn.AxialRotary(
            dim, num_axes=1, base=1e4, interleaved=interleaved, learnable=True
        ),
        on_axes(1),
    ),
    "axial_heads": Form(
        lambda dim, interleaved=False: nn.AxialRotary(
            dim, num_axes=1, base=1e4, interleaved=interleaved, learnable=True, num_heads=1
        ),
        on_axes(1),
    ),
    "multimodal": Form(lambda dim, **o: nn.MultimodalRotary(dim, sections_of(dim), **o), on_axes(3)),
    "multimodal_turns": Form(
        lambda dim, **o: nn.MultimodalRotary(dim, turns_of(dim), interleaved_sections=True, **o), on_axes(3)
    ),
}
# Without parameters: nothing of these is float32.
FIXED = ["rotary", "xpos", "axial", "multimodal", "multimodal_turns"]
every_form = pytest.mark.parametrize("name", FORMS)
every_fixed_form = pytest.mark.parametrize("name", FIXED)


def sections_of(dim):
    pairs = dim // 2
    return (pairs - pairs // 3 - pairs // 2, pairs // 3, pairs // 2)


def turns_of(dim):
    pairs = dim // 2
    return (pairs - 2 * (pairs // 3), pairs // 3, pairs // 3)


class TestLayout:
    x = torch.tensor([1.0, 2.0, 3.0, 4.0]).view(1, 1, 1, 4)
    half = torch.tensor([-1.9841106, 1.9599007, 2.4623779, 4.0197997])
    interleaved = torch.tensor([-1.1426398, 1.9220756, 2.9598507, 4.0297995])

    @every_form
    def test_the_layout_is_an_explicit_argument(self, name):
        form = FORMS[name]
        positions = form.place(torch.tensor([1]))
        for interleaved, expected in ((False, self.half), (True, self.interleaved)):
            y = form.build(4, interleaved=interleaved)(self.x, positions=positions)
            torch.testing.assert_close(y.detach().flatten(), expected, rtol=0, atol=1e-6)

    @every_form
    def test_permuted_columns_turn_one_layout_into_the_other(self, name):
        form = FORMS[name]
        positions = form.place(torch.tensor([3, 1, 4, 1, 5]))
        x = torch.randn(2, 1, 5, 12)
        columns = posenc.ops.permute_rotary_weight(torch.arange(12), 1, "half")
        y = form.build(12)(x[..., columns], positions=positions)
        assert_bits(y, form.build(12, interleaved=True)(x, positions=positions)[..., columns])


class TestPositionAxis:
    @every_form
    @pytest.mark.parametrize("shape", [(2, 1, 5, 4), (1, 1, 5, 4), (3, 1, 3, 4), (5, 1, 5, 4)], ids=str)
    def test_equal_rows_turn_alike(self, name, shape):
        form, (batch, _, length, width) = FORMS[name], shape
        module = form.build(width)
        stored = torch.randn(1, length, 1, width).expand(batch, length, 1, width).contiguous()
        x = stored.transpose(1, 2)
        plain = torch.arange(length)
        y = module(x, positions=form.place(plain))
        for row in y:
            assert_bits(row, y[0])
        assert_bits(y[:, :, 0], x[:, :, 0])
        assert_bits(module(x.contiguous(), positions=form.place(plain)), y)
        assert_bits(module(x, positions=form.place(plain.expand(batch, length))), y)
        for t in range(length):
            alone = module(x[:, :, t : t + 1], positions=form.place(torch.tensor([t])))
            assert_bits(alone, y[:, :, t : t + 1])

    @pytest.mark.parametrize("name", [name for name in FORMS if name != "axial_heads"])
    @pytest.mark.parametrize("length", [2, 3, 5])
    def test_all_heads_of_a_token_turn_alike(self, name, length):
        """As many heads as tokens, rows or axes."""
        form = FORMS[name]
        for heads in (2, 3, 5):
            x = torch.randn(3, 1, length, 4).expand(3, heads, length, 4).contiguous()
            y = form.build(4)(x, positions=form.place(torch.arange(length)))
            for head in range(heads):
                assert_bits(y[:, head], y[:, 0])

    def test_the_first_dimension_of_multi_axis_positions_is_the_axis(self):
        """As many rows, tokens and axes: (A, T) and (A, B, T) leave nothing to guess."""
        q = torch.randn(3, 2, 3, 8)
        positions = torch.tensor([[1, 2, 3], [40, 50, 60], [700, 800, 900]])
        module, axes = nn.MultimodalRotary(8, (1, 1, 2)), reference.multimodal_axes((1, 1, 2), False)
        rule = {"inv_freq": reference.inverse_frequencies(8), "axes": axes}
        assert_near(module(q, positions=positions), reference.rotary(q, positions, **rule))
        rows = torch.stack([positions, positions.flip(1), positions.T])
        assert_near(module(q, positions=rows), reference.rotary(q, rows, **rule))
        two = q[:2, :, :2]
        pair = torch.tensor([[1, 2], [30, 40]])
        assert_near(nn.AxialRotary(8)(two, positions=pair), reference.axial(two, pair))

    @every_form
    @pytest.mark.parametrize("shape", [(5, 4), (1, 5, 4), (2, 3, 5, 1, 4)], ids=str)
    def test_other_numbers_of_dimensions_are_not_guessed(self, name, shape):
        with pytest.raises(ValueError, match=r"expected q of shape \(batch, heads, length, head_dim\)"):
            FORMS[name].build(4)(torch.randn(shape), positions=FORMS[name].place(torch.arange(shape[-2])))


class TestMaterialisedModules:
    @every_form
    def test_frequencies_are_no_memory_of_the_allocator(self, name):
        with torch.device("meta"):
            module = FORMS[name].build(8)
        dirty = [torch.full((64,), math.nan) for _ in range(32)]
        del dirty
        module.to_empty(device="cpu")
        y = module(unit_pairs(8, 1), positions=FORMS[name].place(torch.tensor([1]))).detach().flatten()
        assert torch.atan2(y[4:], y[:4]).tolist() == pytest.approx([1, 0.1, 0.01, 0.001], rel=1e-5)


class TestDtypes:
    @pytest.mark.parametrize("dtype", DTYPES, ids=str)
    @every_form
    def test_output_dtype_is_the_input_dtype(self, name, dtype):
        form = FORMS[name]
        module, positions = form.build(8), form.place(torch.tensor([5, 0, 2]))
        q, k = torch.randn(2, 1, 3, 8).to(dtype), torch.randn(2, 1, 3, 8).to(dtype)
        outputs = module(q, k, positions)
        assert [y.dtype for y in outputs] == [dtype, dtype]
        if dtype.itemsize == 2:
            for y, wide in zip(outputs, module(q.float(), k.float(), positions), strict=True):
                assert_bits(y, wide.to(dtype))


FAR = torch.tensor([65536, 65537, 65538])
FAR_FORMS = {
    "rotary": (lambda: nn.Rotary(2), FAR),
    "rotary_float32": (lambda: nn.Rotary(2, exact=False), FAR),
    "rotary_learnable": (lambda: nn.Rotary(2, learnable=True), FAR),
    "xpos": (lambda: nn.XPos(2, interleaved=False, scale_base=1e30), FAR),
    "axial": (lambda: nn.AxialRotary(2, num_axes=1), FAR[None]),
    "axial_learnable": (lambda: nn.AxialRotary(2, num_axes=1, learnable=True), FAR[None]),
    "axial_heads": (lambda: nn.AxialRotary(2, num_axes=1, learnable=True, num_heads=1), FAR[None]),
    "multimodal_time": (lambda: nn.MultimodalRotary(2, (1, 0, 0)), FAR.expand(3, 1, 3)),
    "multimodal_width": (lambda: nn.MultimodalRotary(2, (0, 0, 1)), FAR.expand(3, 1, 3)),
    "multimodal_float32": (lambda: nn.MultimodalRotary(2, (0, 1, 0), exact=False), FAR.expand(3, 1, 3)),
}


class TestAutocast:
    """Positions beyond 65536, where bfloat16 steps are 512 wide."""

    cos = torch.tensor([-0.7218348, -0.9723620, -0.3289041])
    sin = torch.tensor([0.6920655, -0.2334784, -0.9443633])

    @staticmethod
    def under_func(module, x, positions):
        """The reference form, which torch.func transforms run."""
        return torch.func.jvp(lambda x: module(x, positions=positions), (x,), (x,))[0]

    @pytest.mark.parametrize("name", FAR_FORMS)
    @pytest.mark.parametrize("path", ["fused", "grad", "func"])
    @pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
    def test_angles_are_the_same_inside_and_outside_autocast(self, name, path, dtype):
        build, positions = FAR_FORMS[name]
        module = build()
        x = unit_pairs(2, 3).requires_grad_(path == "grad")
        runs = []
        for enabled in (False, True):
            with torch.autocast("cpu", dtype=dtype, enabled=enabled):
                y = self.under_func(module, x, positions) if path == "func" else module(x, positions=positions)
                assert y.dtype == torch.float32
                runs.append(y)
        assert_bits(runs[0], runs[1])
        y = runs[1].detach()[0, 0]
        torch.testing.assert_close(y[:, 0], self.cos, rtol=0, atol=1e-5)
        torch.testing.assert_close(y[:, 1], self.sin, rtol=0, atol=1e-5)
        if path == "grad":
            grad = torch.autograd.grad(runs[1].sum(), x)[0][0, 0]
            torch.testing.assert_close(grad[:, 0], self.cos + self.sin, rtol=0, atol=2e-5)

    def test_autocast_keeps_image_tokens_after_a_long_text_apart(self):
        module = nn.MultimodalRotary(8, (1, 1, 2))
        positions = posenc.positions.multimodal_positions([("image", (1, 2, 3))]) + 70000
        x = torch.ones(1, 1, 6, 8, dtype=torch.bfloat16)
        with torch.autocast("cpu", dtype=torch.bfloat16):
            y = module(x, positions=positions)[0, 0]
        assert len({tuple(row.tolist()) for row in y}) == 6


class TestLargePositions:
    positions = torch.tensor([16000, 48039, 131071, 1000000, 16777217])
    cosines = torch.tensor([-0.9913814, -0.6163210, -0.8179835, 0.9367521, 0.9943840], dtype=torch.float64)

    @every_form
    def test_the_first_pair_is_exact_at_large_positions(self, name):
        form = FORMS[name]
        y = form.build(128)(unit_pairs(128, 5), positions=form.place(self.positions)).detach()
        torch.testing.assert_close(y[0, 0, :, 0].double(), self.cosines, rtol=0, atol=1e-6)

    @every_fixed_form
    def test_the_second_pair_is_exact_at_large_positions(self, name):
        form = FORMS[name]
        y = form.build(128)(unit_pairs(128, 1), positions=form.place(torch.tensor([131071])))
        assert y[0, 0, 0, 1].item() == pytest.approx(-0.9782709, abs=1e-6)

    def test_the_second_pair_with_float32_angles(self):
        for module in (nn.Rotary(128, exact=False), nn.MultimodalRotary(128, (16, 24, 24), exact=False)):
            y = module(unit_pairs(128, 1), offset=131071)
            assert y[0, 0, 0, 1].item() == pytest.approx(-0.9777133, abs=1e-6)

    @pytest.mark.parametrize("axis", [0, 1, 2])
    def test_every_axis_is_exact_at_large_positions(self, axis):
        positions = torch.zeros(3, 5, dtype=torch.int64)
        positions[axis] = self.positions
        for module in (
            nn.AxialRotary(12, num_axes=3, interleaved=False),
            nn.AxialRotary(12, num_axes=3, interleaved=False, learnable=True),
        ):
            y = module(unit_pairs(12, 5), positions=positions).detach()
            torch.testing.assert_close(y[0, 0, :, 2 * axis].double(), self.cosines, rtol=0, atol=1e-6)

    def test_xpos_is_exact_at_large_positions_near_its_centre(self):
        position = 1000000
        module = nn.XPos(128, interleaved=False, centre=position)
        q, k = module(unit_pairs(128, 1), unit_pairs(128, 1), torch.tensor([position]))
        assert q[0, 0, 0, 0].item() == pytest.approx(0.9367521, abs=1e-6)
        assert k[0, 0, 0, 0].item() == pytest.approx(0.9367521, abs=1e-6)


class TestMultimodalGeometry:
    axes = [0, 1, 2, 2]

    def test_each_section_turns_by_its_own_axis(self):
        y = nn.MultimodalRotary(8, (1, 1, 2))(
            unit_pairs(8, 1, torch.float64), positions=torch.tensor([[1], [2], [3]])
        ).flatten()
        assert torch.atan2(y[4:], y[:4]).tolist() == pytest.approx([1, 0.2, 0.03, 0.003], rel=1e-12)
        y = nn.MultimodalRotary(8, (2, 1, 1), interleaved_sections=True)(
            unit_pairs(8, 1, torch.float64), positions=torch.tensor([[1], [2], [3]])
        ).flatten()
        assert torch.atan2(y[4:], y[:4]).tolist() == pytest.approx([1, 0.2, 0.03, 0.001], rel=1e-12)

    @pytest.mark.parametrize("in_place", [False, True])
    @pytest.mark.parametrize("dtype", DTYPES, ids=str)
    def test_nothing_around_the_tensors_is_written(self, dtype, in_place):
        """positions (3, 5), q of 4 heads, k of 1, each between rows of canaries."""
        positions = torch.tensor([[0, 1, 2, 2, 4], [0, 1, 2, 3, 4], [0, 1, 3, 2, 4]])
        kept_positions = positions.clone()
        buffers = [torch.full((1, 5 + 4, heads + 2, 8 + 3), 7.0, dtype=dtype) for heads in (4, 1)]
        views = []
        for buffer in buffers:
            view = buffer[:, 2:7, 1:-1, 1:9].transpose(1, 2)
            view.copy_(torch.randn(view.shape))
            views.append(view)
        before = [layouts.with_strides_of(view, view) for view in views]
        inv_freq = reference.inverse_frequencies(8)
        if in_place:
            posenc.ops.rotary_qk_(*views, positions, inv_freq, axes=self.axes)
            turned = views
        else:
            turned = nn.MultimodalRotary(8, (1, 1, 2))(*views, positions)
            for view, kept in zip(views, before, strict=True):
                assert_bits(view, kept)
        for y, x in zip(turned, before, strict=True):
            assert_near(y, reference.rotary(x, positions, inv_freq, axes=self.axes))
        assert_bits(positions, kept_positions)
        for buffer, view in zip(buffers, views, strict=True):
            view.fill_(7.0)
            assert (buffer == 7).all()

    @pytest.mark.parametrize("row", [0, 1, 2])
    def test_every_row_of_positions_is_read(self, row):
        positions = torch.zeros(3, 5, dtype=torch.int64)
        positions[row] = torch.arange(5)
        y = nn.MultimodalRotary(8, (1, 1, 2))(unit_pairs(8, 5), positions=positions)[0, 0]
        for pair, axis in enumerate(self.axes):
            if axis == row:
                expected = (torch.arange(5) * reference.inverse_frequencies(8)[pair]).sin()
                torch.testing.assert_close(y[:, 4 + pair].double(), expected, rtol=0, atol=1e-6)
            else:
                assert y[:, 4 + pair].tolist() == [0] * 5

    @pytest.mark.parametrize("interleaved_sections", [False, True])
    def test_text_is_plain_rope(self, interleaved_sections):
        q, k = torch.randn(2, 4, 5, 8), torch.randn(2, 1, 5, 8)
        text = torch.arange(3, 8)
        module = nn.MultimodalRotary(8, (2, 1, 1), interleaved_sections=interleaved_sections)
        for y, e in zip(module(q, k, text.expand(3, 5)), nn.Rotary(8)(q, k, text), strict=True):
            assert_bits(y, e)

    @pytest.mark.parametrize("sections", [(1, 1, 1), (1, 1, 3), (2, 2, 4), (16, 24, 24)], ids=str)
    def test_sections_that_do_not_add_up_raise(self, sections):
        with pytest.raises(ValueError, match="add up"):
            nn.MultimodalRotary(8, sections)

    def test_a_head_of_64_takes_3_axes_of_unequal_sections_only(self):
        with pytest.raises(ValueError, match="multiple of 2"):
            nn.AxialRotary(64, num_axes=3)
        with pytest.raises(ValueError, match="add up"):
            nn.MultimodalRotary(64, (10, 10, 10))
        assert nn.MultimodalRotary(64, (10, 11, 11))(torch.randn(1, 2, 5, 64)).shape == (1, 2, 5, 64)
