"""LearnedAbsolute.resize: interpolation as torch's own, what it keeps, what it refuses."""

import numpy
import pytest
import torch
from torch.nn.functional import interpolate

import posenc
from tolerances import DTYPES, assert_bits, assert_near

LearnedAbsolute = posenc.nn.LearnedAbsolute


def table(*sizes, dtype=torch.float64):
    module = LearnedAbsolute(*sizes).to(dtype)
    with torch.no_grad():
        module.weight.normal_()
    return module


@pytest.mark.parametrize("new", [(3, 3), (7, 2), (4, 4), (1, 1), (9, 9)], ids=str)
@pytest.mark.parametrize(
    "options",
    [{}, {"mode": "bilinear"}, {"align_corners": True}, {"antialias": True}, {"mode": "bilinear", "antialias": True}],
    ids=str,
)
@pytest.mark.parametrize("prefix", [0, 2])
def test_grids_are_images_behind_the_prefix(new, options, prefix):
    module = table(prefix + 16, 3)
    resized = module.resize(new, prefix=prefix, **options)
    image = module.weight[prefix:].detach().reshape(1, 4, 4, 3).permute(0, 3, 1, 2)
    expected = interpolate(image, size=new, **{"mode": "bicubic", **options}).permute(0, 2, 3, 1).reshape(-1, 3)
    assert (resized.max_positions, resized.dim) == (prefix + new[0] * new[1], 3)
    assert_bits(resized.weight.detach()[:prefix], module.weight.detach()[:prefix])
    assert_near(resized.weight.detach()[prefix:], expected)


def test_the_old_grid_may_be_given():
    module = table(1 + 6, 4)
    resized = module.resize((4, 2), prefix=1, grid=(2, 3))
    image = module.weight[1:].detach().reshape(1, 2, 3, 4).permute(0, 3, 1, 2)
    expected = interpolate(image, size=(4, 2), mode="bicubic").permute(0, 2, 3, 1).reshape(-1, 4)
    assert_near(resized.weight.detach()[1:], expected)
    assert not torch.equal(resized.weight, module.resize((4, 2), prefix=1, grid=(3, 2)).weight)


@pytest.mark.parametrize("new", [3, 8, 20])
@pytest.mark.parametrize("options", [{}, {"align_corners": True}, {"mode": "linear"}], ids=str)
def test_a_number_of_positions_is_a_line_with_the_prefix_in_it(new, options):
    module = table(2 + 6, 3)
    resized = module.resize(new, prefix=2, **options)
    line = module.weight[2:].detach().T[None]
    expected = interpolate(line, size=new - 2, **{"mode": "linear", **options})[0].T
    assert resized.max_positions == new
    assert_near(resized.weight.detach(), torch.cat([module.weight[:2].detach(), expected]))


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_an_unchanged_size_keeps_every_bit(dtype):
    module = table(1 + 9, 4, dtype=dtype)
    for same in (module.resize((3, 3), prefix=1), module.resize(10, prefix=1), module.resize(10)):
        assert_bits(same.weight.detach(), module.weight.detach())
        assert same.weight.data_ptr() != module.weight.data_ptr()


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
def test_sixteen_bits_are_interpolated_in_float32(dtype):
    module = table(16, 4, dtype=dtype)
    wide = LearnedAbsolute(16, 4)
    wide.load_state_dict(module.state_dict())
    for new in ((7, 7), 33):
        assert_bits(module.resize(new).weight.detach(), wide.resize(new).weight.detach().to(dtype))


def test_the_new_module_stands_alone():
    module = table(1 + 4, 3).eval().requires_grad_(False)
    before = module.weight.clone()
    resized = module.resize((3, 3), prefix=1)
    assert isinstance(resized, LearnedAbsolute)
    assert not resized.training
    assert not resized.weight.requires_grad
    with torch.no_grad():
        resized.weight.add_(1.0)
    assert_bits(module.weight, before)
    trained = table(4, 3).resize(8)
    assert trained.training
    assert trained.weight.is_leaf
    assert trained.weight.requires_grad
    x = torch.zeros(8, 3, dtype=torch.float64)
    trained(x).square().sum().backward()
    assert (trained.weight.grad != 0).all()
    assert list(trained.state_dict()) == ["weight"]
    with pytest.raises(ValueError, match="from 0 to 7, as max_positions is 8"):
        trained(x[:1], offset=8)
    assert repr(trained) == "LearnedAbsolute(8, 3)"


def test_nothing_is_drawn_and_memory_is_where_the_table_is():
    module = table(4, 3)
    state = torch.random.get_rng_state()
    module.resize(9)
    assert torch.equal(torch.random.get_rng_state(), state)
    assert LearnedAbsolute(4, 3).to("meta").resize((3, 3)).weight.shape == (9, 3)
    assert LearnedAbsolute(4, 3).to("meta").resize((3, 3)).weight.is_meta


def test_numbers_of_numpy():
    module = table(4, 3)
    assert module.resize(numpy.int64(7)).max_positions == 7
    assert module.resize((numpy.int32(3), 2), grid=[2, 2]).max_positions == 6


ERRORS = {
    "no square": (
        lambda m: m.resize((3, 3)),
        ValueError,
        r"expected grid=\(rows, columns\), as the 10 positions .* no sq",
    ),
    "another grid": (
        lambda m: m.resize((3, 3), prefix=1, grid=(2, 4)),
        ValueError,
        r"expected grid to be the \(rows, columns\) of the 9 positions after the prefix, but got \[2, 4\]",
    ),
    "a negative grid": (lambda m: m.resize((3, 3), prefix=1, grid=(-3, -3)), ValueError, "expected grid to be the"),
    "an overflowing grid": (lambda m: m.resize((3, 3), grid=(2**62, 4)), ValueError, "expected grid to be the"),
    "an empty grid": (lambda m: m.resize((0, 3), prefix=1), ValueError, "at least 1 row and 1 column, but got"),
    "three axes": (
        lambda m: m.resize((2, 2, 2)),
        ValueError,
        "expected new_positions to be a number of rows or a grid",
    ),
    "prefix alone": (lambda m: m.resize((3, 3), prefix=10), ValueError, "expected prefix from 0 to 9, .* but got 10"),
    "negative prefix": (lambda m: m.resize(4, prefix=-1), ValueError, "expected prefix from 0 to 9, .* but got -1"),
    "no rows": (lambda m: m.resize(3, prefix=3), ValueError, "expected new_positions to be more than prefix = 3"),
    "bicubic line": (lambda m: m.resize(20, mode="bicubic"), ValueError, "expected mode to be 'linear' .* 'bicubic'"),
    "linear grid": (
        lambda m: m.resize((3, 3), prefix=1, mode="linear"),
        ValueError,
        "expected mode to be 'bilinear' or 'bicubic' .* but got 'linear'",
    ),
    "unknown mode": (lambda m: m.resize((3, 3), prefix=1, mode="nearest"), ValueError, "but got 'nearest'"),
    "grid of a line": (lambda m: m.resize(20, grid=(2, 5)), ValueError, "expected grid only with a new grid"),
    "antialias of a line": (lambda m: m.resize(20, antialias=True), ValueError, "expected antialias only with"),
    "a float": (lambda m: m.resize(2.5), TypeError, "expected new_positions to be an int, but got 2.5"),
    "a bool": (lambda m: m.resize((True, 2)), TypeError, "expected new_positions to be an int, but got True"),
}


@pytest.mark.parametrize("which", ERRORS)
def test_what_has_no_meaning_is_refused_by_name(which):
    call, error, message = ERRORS[which]
    with pytest.raises(error, match=rf"^LearnedAbsolute\.resize: .*{message}"):
        call(table(10, 3))
