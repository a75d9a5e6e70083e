"""Sinusoidal over several axes and in the order of diffusion models, against the formulas of the models' own code."""

import math

import numpy
import pytest
import torch
from torch.autograd import gradcheck

import posenc
from tolerances import DTYPES, assert_bits, assert_near

Sinusoidal = posenc.nn.Sinusoidal
PACKAGES = {"python": posenc.nn, "cpp": posenc.nn.cpp}
every_package = pytest.mark.parametrize("package", PACKAGES.values(), ids=PACKAGES)


def grid(rows, columns):
    """Positions (2, rows * columns) of patches, row by row."""
    return torch.stack(torch.meshgrid(torch.arange(rows), torch.arange(columns), indexing="ij")).flatten(1)


def mae_table(dim, rows, columns):
    """get_2d_sincos_pos_embed of MAE and DiT in numpy: "here w goes first"."""

    def one_axis(dim, pos):
        omega = numpy.arange(dim // 2, dtype=numpy.float64)
        omega /= dim / 2.0
        omega = 1.0 / 10000**omega
        out = numpy.einsum("m,d->md", pos.reshape(-1), omega)
        return numpy.concatenate([numpy.sin(out), numpy.cos(out)], axis=1)

    grid_h, grid_w = numpy.arange(rows, dtype=numpy.float32), numpy.arange(columns, dtype=numpy.float32)
    mesh = numpy.stack(numpy.meshgrid(grid_w, grid_h), axis=0).reshape(2, 1, rows, columns)
    return numpy.concatenate([one_axis(dim // 2, mesh[0]), one_axis(dim // 2, mesh[1])], axis=1)


def timestep_embedding(t, dim, max_period=10000):
    """timestep_embedding of GLIDE, which DiT and others have taken."""
    half = dim // 2
    freqs = torch.exp(-math.log(max_period) * torch.arange(0, half, dtype=torch.float64) / half)
    args = t[:, None].double() * freqs[None]
    embedding = torch.cat([torch.cos(args), torch.sin(args)], dim=-1)
    return torch.cat([embedding, torch.zeros_like(embedding[:, :1])], dim=-1) if dim % 2 else embedding


@every_package
@pytest.mark.parametrize(("rows", "columns"), [(4, 4), (3, 5)])
def test_table_of_mae(package, rows, columns):
    """Its first half is that of columns."""
    module = package.Sinusoidal(16, num_axes=2, layout="concatenated")
    table = module.forward(torch.zeros(rows * columns, 16, dtype=torch.float64), grid(rows, columns).flip(0))
    assert_near(table, torch.from_numpy(mae_table(16, rows, columns)))


@every_package
@pytest.mark.parametrize("dim", [2, 7, 8, 320])
def test_time_steps_of_diffusion_models(package, dim):
    steps = torch.tensor([0.0, 1.0, 500.5, 999.0])
    table = package.Sinusoidal(dim, layout="cosines_first").forward(torch.zeros(4, dim, dtype=torch.float64), steps)
    assert_near(table, timestep_embedding(steps, dim), scale=10)


def test_axes_are_encodings_of_their_own_side_by_side():
    positions = torch.tensor([[0, 3, 1], [7, 7, 2], [4, 0, 9]])
    for layout in ("interleaved", "concatenated", "tensor2tensor", "cosines_first"):
        x = torch.randn(3, 12)
        one = Sinusoidal(4, layout=layout)
        expected = torch.cat([one(x[:, 4 * a : 4 * a + 4], axis) for a, axis in enumerate(positions)], -1)
        assert_bits(Sinusoidal(12, layout=layout, num_axes=3)(x, positions), expected)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_positions_by_row_shared_or_without_a_batch(dtype):
    module, positions = Sinusoidal(8, num_axes=2), grid(2, 3)
    x = torch.randn(4, 6, 8).to(dtype)
    expected = torch.stack([module(row, positions) for row in x])
    assert_bits(module(x, positions), expected)
    assert_bits(module(x, positions[:, None]), expected)
    assert_bits(module(x, positions[:, None].expand(2, 4, 6)), expected)
    moved = positions[:, None] + torch.arange(4)[:, None]
    assert_bits(module(x, moved), torch.stack([module(row, positions + b) for b, row in enumerate(x)]))


def test_gradients_of_positions_and_transforms():
    module, x = Sinusoidal(8, num_axes=2), torch.randn(2, 3, 8, dtype=torch.float64)
    for shape in ((2, 3), (2, 2, 3)):
        positions = torch.randn(shape, dtype=torch.float64, requires_grad=True)
        assert gradcheck(lambda p: module(x, p), (positions,))
    many = torch.randn(5, 2, 3, dtype=torch.float64)
    mapped = torch.func.vmap(lambda p: module(x, p))(many)
    assert_near(mapped, torch.stack([module(x, p) for p in many]))


def test_nothing():
    module = Sinusoidal(8, num_axes=2)
    assert module(torch.zeros(0, 3, 8), torch.zeros(2, 3)).shape == (0, 3, 8)
    assert module(torch.zeros(2, 0, 8), torch.zeros(2, 0)).shape == (2, 0, 8)


ERRORS = {
    "no positions": (lambda m, x: m.forward(x), r"expected positions of shape \(axes, length\) .* with 2 axes, which"),
    "an offset alone": (lambda m, x: m.forward(x, offset=3), "with 2 axes, which have no default"),
    "an offset beside": (lambda m, x: m.forward(x, torch.zeros(2, 5), offset=3), "expected no offset with positions"),
    "one axis": (lambda m, x: m.forward(x, torch.zeros(5)), r"expected positions of shape \(axes, length\) or"),
    "other axes": (lambda m, x: m.forward(x, torch.zeros(3, 5)), r"with 2 axes, but got \[3, 5\]"),
    "length": (lambda m, x: m.forward(x, torch.zeros(2, 4)), r"with length 5, but got \[2, 4\]"),
    "batch": (lambda m, x: m.forward(x, torch.zeros(2, 4, 5)), r"with batch 1 or 3, but got \[2, 4, 5\]"),
    "sparse": (lambda m, x: m.forward(x, torch.zeros(2, 5).to_sparse()), "expected positions to be a dense tensor"),
    "no batch": (lambda m, x: m.forward(x[0], torch.zeros(2, 1, 5)), r"\(axes, length\), as x has no batch,"),
}


@every_package
@pytest.mark.parametrize("which", ERRORS)
def test_wrong_positions(package, which):
    call, message = ERRORS[which]
    with pytest.raises(ValueError, match=f"^Sinusoidal: .*{message}"):
        call(package.Sinusoidal(8, num_axes=2), torch.randn(3, 5, 8))


@every_package
class TestInAttention:
    def block(self, package, *encodings):
        return package.Attention(16, 2, is_causal=False, encodings=list(encodings))

    def test_positions_reach_it(self, package):
        encoding = package.Sinusoidal(16, num_axes=2)
        block, plain = self.block(package, encoding), self.block(package)
        for mine, theirs in zip(plain.parameters(), block.parameters(), strict=True):
            mine.data.copy_(theirs.data)
        x, positions = torch.randn(3, 6, 16), grid(2, 3)[:, None].expand(2, 3, 6)
        expected = plain.forward(encoding.forward(x, positions))
        assert_bits(block.forward(x, positions=positions), expected)

    def test_beside_encodings_of_one_axis_and_rotary_ones_of_two(self, package):
        x, positions = torch.randn(1, 6, 16), grid(2, 3)[:, None]
        axial, counted = package.AxialRotary(8), package.Sinusoidal(16)
        block = self.block(package, package.Sinusoidal(16, num_axes=2), counted, axial)
        y = block.forward(x, positions=positions)
        assert y.shape == x.shape
        assert not torch.equal(y, block.forward(x, positions=positions.flip(0)))

    def test_wrong_positions(self, package):
        block, x = self.block(package, package.Sinusoidal(16, num_axes=2)), torch.randn(1, 6, 16)
        for positions in (None, torch.arange(6), torch.zeros(3, 1, 6)):
            with pytest.raises(ValueError, match=r"expected positions of shape \(2, batch, length\) for its absolute"):
                block.forward(x, positions=positions)


def test_options():
    module = Sinusoidal(12, num_axes=3)
    assert (module.num_axes, module.position_axes, Sinusoidal(12).position_axes) == (3, 3, None)
    assert module.inv_freq.tolist() == Sinusoidal(4).inv_freq.tolist()
    assert "num_axes=3" in repr(module)
    with pytest.raises(AttributeError, match="num_axes is fixed at construction"):
        module.num_axes = 2
