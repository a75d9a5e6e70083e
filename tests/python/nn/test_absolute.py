"""Sinusoidal, LearnedAbsolute and CAPE (evaluated) beyond the promises of every module: values, positions,
derivatives."""

import pytest
import torch
from torch.autograd import gradcheck, gradgradcheck

import posenc
import reference
from tolerances import DTYPES, assert_bits, assert_near

CAPE, LearnedAbsolute, Sinusoidal = posenc.nn.CAPE, posenc.nn.LearnedAbsolute, posenc.nn.Sinusoidal

BUILD = {
    "sinusoidal": lambda dim: Sinusoidal(dim),
    "learned": lambda dim: LearnedAbsolute(40, dim),
    "cape": lambda dim: CAPE(dim).eval(),
}
every_module = pytest.mark.parametrize("name", BUILD)
every_dtype = pytest.mark.parametrize("dtype", DTYPES, ids=str)
every_layout = pytest.mark.parametrize("layout", ["interleaved", "concatenated", "tensor2tensor", "cosines_first"])


def encoding(module, positions, dtype=torch.float32):
    """What the module adds at these positions."""
    positions = torch.as_tensor(positions)
    width = (module.dim,) if positions.ndim == 1 else (1, module.dim)
    return module(torch.zeros(*positions.shape[:-1], positions.shape[-1], width[-1], dtype=dtype), positions)


class TestSinusoidalValues:
    def test_paper_at_width_4(self):
        expected = torch.tensor([[0.0, 1.0, 0.0, 1.0], [0.841471, 0.540302, 0.010000, 0.999950]])
        torch.testing.assert_close(encoding(Sinusoidal(4), [0, 1]), expected, rtol=0, atol=1e-6)

    def test_odd_width_at_position_2(self):
        expected = torch.tensor([[0.909297, -0.416147, 0.050217, 0.998738, 0.001262]])
        torch.testing.assert_close(encoding(Sinusoidal(5), [2]), expected, rtol=0, atol=1e-6)

    @every_layout
    @pytest.mark.parametrize("dim", [2, 3, 4, 5, 8, 9, 64])
    @every_dtype
    def test_every_width(self, layout, dim, dtype):
        # The float64 reference itself is off by 1e-16 of an angle.
        farthest = [999.0] if dtype == torch.float64 else [131071.0, 1e6]
        positions = torch.tensor([0.0, 1.0, -3.0, 2.5, *farthest])
        y = encoding(Sinusoidal(dim, layout=layout), positions, dtype)
        assert_near(y, reference.sinusoidal(positions, dim, layout=layout))

    def test_concatenated_has_the_columns_of_the_paper_in_another_order(self):
        for dim in (1, 2, 7, 8):
            paper = encoding(Sinusoidal(dim), [3, 14])
            columns = [*range(0, dim, 2), *range(1, dim, 2)]
            assert_bits(encoding(Sinusoidal(dim, layout="concatenated"), [3, 14]), paper[:, columns])

    def test_tensor2tensor_reaches_the_base_in_the_last_column(self):
        module = Sinusoidal(8, layout="tensor2tensor")
        torch.testing.assert_close(module.inv_freq, torch.tensor([1, 10 ** (-4 / 3), 10 ** (-8 / 3), 1e-4]).double())
        assert Sinusoidal(2, layout="tensor2tensor").inv_freq.tolist() == [1.0]

    def test_columns_without_a_frequency_are_left_alone(self):
        x = torch.randn(3, 7)
        assert_bits(Sinusoidal(7, layout="tensor2tensor")(x)[:, 6], x[:, 6])


class TestLearnedValues:
    def test_rows_of_the_table(self):
        module = LearnedAbsolute(8, 3)
        assert_bits(encoding(module, [7, 0, 3, 3]), module.weight[[7, 0, 3, 3]])

    def test_initial_distribution(self):
        weight = LearnedAbsolute(500, 400).weight.detach()
        assert abs(weight.mean()) < 2e-4
        assert 0.0198 < weight.std() < 0.0202
        assert weight.abs().max() > 0.08, "not truncated"

    def test_reset_draws_anew(self):
        module = LearnedAbsolute(8, 4)
        before = module.weight.detach().clone()
        module.reset_parameters()
        assert not torch.equal(module.weight, before)

    @pytest.mark.parametrize("dtype", [torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64], ids=str)
    def test_every_integer_type(self, dtype):
        module = LearnedAbsolute(8, 3)
        assert_bits(encoding(module, torch.tensor([7, 0], dtype=dtype)), module.weight[[7, 0]])

    def test_float32_table_beside_16_bit_embeddings(self):
        module, x = LearnedAbsolute(8, 3), torch.randn(4, 3).bfloat16()
        assert_bits(module(x), (x.float() + module.weight[:4]).bfloat16())
        module(x).float().sum().backward()
        assert module.weight.grad.dtype == torch.float32


@every_module
class TestPlaces:
    def module(self, name):
        return BUILD[name](6)

    def test_offset(self, name):
        module, x = self.module(name), torch.randn(2, 5, 6)
        assert_bits(module(x, offset=30), module(x, torch.arange(30, 35)))

    def test_offset_by_row(self, name):
        module, x = self.module(name), torch.randn(2, 5, 6)
        for dtype in (torch.int32, torch.int64):
            rows = torch.tensor([3, 20], dtype=dtype)
            assert_bits(module(x, offset=rows), module(x, rows[:, None] + torch.arange(5)))

    def test_tokens_stand_alone(self, name):
        """Any tokens in any order: each row of the result is that of its token and position."""
        module, x = self.module(name), torch.randn(2, 5, 6)
        positions = torch.tensor([[7, 2, 2, 0, 5], [39, 0, 1, 0, 1]])
        y = module(x, positions)
        for b in range(2):
            for t in range(5):
                assert_bits(y[b, t], module(x[b, t : t + 1], positions[b, t : t + 1])[0])

    def test_without_a_batch(self, name):
        module, x = self.module(name), torch.randn(5, 6)
        assert_bits(module(x), module(x[None])[0])
        assert_bits(module(x, torch.arange(5)), module(x))
        assert_bits(module(x, offset=4), module(x[None], offset=4)[0])

    def test_positions_of_one_row_serve_the_batch(self, name):
        module, x = self.module(name), torch.randn(3, 4, 6)
        positions = torch.tensor([[5, 1, 9, 9]])
        assert_bits(module(x, positions), module(x, positions[0]))
        assert_bits(module(x, positions), module(x, positions.expand(3, 4)))

    def test_token_by_token_equals_the_whole(self, name):
        module, x = self.module(name), torch.randn(2, 5, 6)
        steps = [module(x[:, t : t + 1], offset=t) for t in range(5)]
        assert_bits(torch.cat(steps, 1), module(x))

    @pytest.mark.parametrize("shape", [(0, 6), (2, 0, 6), (0, 3, 6)], ids=str)
    def test_nothing(self, name, shape):
        module, x = self.module(name), torch.randn(shape)
        assert module(x).shape == shape
        assert module(x, torch.arange(shape[-2])).shape == shape

    @every_dtype
    @pytest.mark.parametrize("view", ["expanded", "wider", "every_second", "length_first"])
    def test_views(self, name, dtype, view):
        x = {
            "expanded": lambda: torch.randn(1, 5, 6).expand(3, 5, 6),
            "wider": lambda: torch.randn(3, 5, 9)[..., 3:],
            "every_second": lambda: torch.randn(3, 10, 12)[:, ::2, ::2],
            "length_first": lambda: torch.randn(5, 3, 6).transpose(0, 1),
        }[view]().to(dtype)
        module = self.module(name)
        assert_bits(module(x), module(x.contiguous()))


@every_module
class TestDerivatives:
    def call(self, name, *inputs):
        module = BUILD[name](4).double()
        names = [n for n, _ in module.named_parameters()]
        parameters = [p.detach().clone().requires_grad_() for p in module.parameters()]

        def run(x, *values):
            return torch.func.functional_call(module, dict(zip(names, values)), (x, *inputs)).sin()

        return run, (torch.randn(2, 3, 4, dtype=torch.float64, requires_grad=True), *parameters)

    @pytest.mark.parametrize("positions", [None, torch.tensor([3, 0, 3])], ids=["counted", "given"])
    def test_first_and_second(self, name, positions):
        run, inputs = self.call(name, positions)
        assert gradcheck(run, inputs)
        assert gradgradcheck(run, inputs)

    def test_transforms(self, name):
        module, x = BUILD[name](4), torch.randn(5, 2, 3, 4)
        assert_bits(torch.func.vmap(module)(x), torch.stack([module(each) for each in x]))
        assert_bits(torch.func.vmap(module)(x[:, 0]), module(x[:, 0]))
        _, tangent = torch.func.jvp(module, (x[0],), (x[1],))
        assert_bits(tangent, x[1])
        cotangent = torch.func.grad(lambda x: (module(x) * x.detach()).sum())(x[0])
        assert_bits(cotangent, x[0])

    def test_frozen_input_costs_no_graph(self, name):
        module = BUILD[name](4).requires_grad_(False)
        assert not module(torch.randn(2, 3, 4)).requires_grad
        assert module(torch.randn(2, 3, 4, requires_grad=True)).requires_grad


@pytest.mark.parametrize("name", ["sinusoidal", "cape"])
def test_gradients_of_floating_positions(name):
    module, x = BUILD[name](5), torch.randn(2, 3, 5, dtype=torch.float64)
    for shape in ((3,), (2, 3)):
        positions = torch.randn(shape, dtype=torch.float64, requires_grad=True)
        assert gradcheck(lambda p: module(x, p), (positions,))


def test_learned_positions_are_batched_by_vmap():
    module, x = LearnedAbsolute(8, 3), torch.randn(4, 3)
    positions = torch.randint(0, 8, (5, 4))
    y = torch.func.vmap(lambda p: module(x, p))(positions)
    assert_bits(y, torch.stack([module(x, p) for p in positions]))


def test_registration():
    """Torch's own checks of schema, autograd, fake tensors and dynamic shapes."""
    x, positions, weight = torch.randn(2, 3, 5, requires_grad=True), torch.tensor([4, 0, 1]), torch.randn(6, 5)
    inv_freq, ops = Sinusoidal(5).inv_freq, torch.ops.posenc
    cape = {"training": False, "max_global_shift": 1.0, "max_local_shift": 0.5, "max_global_scaling": 1.1}
    for op, args, options in [
        (ops._add_sinusoidal.default, (x, positions, inv_freq, 5), {}),
        (ops._add_sinusoidal.default, (x, None, inv_freq, 5), {"offset": 3, "interleaved": False}),
        (
            ops._add_sinusoidal.default,
            (x[..., :4], torch.stack([positions, positions]), Sinusoidal(2).inv_freq, 4),
            {"num_axes": 2, "interleaved": False, "cosines_first": True},
        ),
        (ops._resized_positions.default, (weight, [3, 2]), {"prefix": 2, "grid": [2, 2], "mode": "bilinear"}),
        (ops._resized_positions.default, (weight, [9]), {"prefix": 1}),
        (ops._add_learned.default, (x, None, weight.requires_grad_()), {"offset": 2}),
        (ops._add_learned.default, (x, positions, weight), {}),
        (ops._add_cape.default, (x, positions, inv_freq, 5), {**cape, "centre": True}),
        (ops._checked_positions.default, (positions, 5), {}),
    ]:
        torch.library.opcheck(op, args, options)


ERRORS = {
    "width": (
        ValueError,
        r"expected x of shape \(batch, length, dim\) or \(length, dim\) with dim 6, but got \[2, 5, 7\]",
    ),
    "dimensions": (ValueError, r"expected x of shape .* but got \[1, 2, 5, 6\]"),
    "integer_x": (TypeError, "expected x to be float32, float64, bfloat16 or float16, but got Long"),
    "bool_positions": (TypeError, "expected positions to be an integer .*type, but got Bool"),
    "length": (ValueError, r"expected positions of shape \(length\) or \(batch, length\) with length 5, but got \[4\]"),
    "batch": (ValueError, r"with batch 1 or 2, but got \[3, 5\]"),
    "axes": (ValueError, r"expected positions of shape .* but got \[1, 2, 5\]"),
    "rows_without_batch": (ValueError, r"\(length\), as x has no batch, but got \[1, 5\]"),
    "offset_beside_positions": (ValueError, "expected no offset with positions, but got offset 2"),
    "offsets_beside_positions": (ValueError, "expected either positions or one offset, but got several"),
    "floating_offsets": (TypeError, "expected a tensor offset to be an integer type, but got Float"),
    "offsets_of_another_batch": (ValueError, r"expected a tensor offset of shape \(batch\) .* but got \[3\]"),
    "offsets_without_batch": (ValueError, r"expected a tensor offset of shape \(batch\) .* but got \[1\]"),
    "device": (ValueError, "like the module, but it is on meta|expected positions on meta"),
}


def wrong_call(module, which):
    x, positions = torch.randn(2, 5, 6), torch.arange(5)
    return {
        "width": lambda: module(torch.randn(2, 5, 7)),
        "dimensions": lambda: module(torch.randn(1, 2, 5, 6)),
        "integer_x": lambda: module(torch.ones(2, 5, 6, dtype=torch.long)),
        "bool_positions": lambda: module(x, positions > 2),
        "length": lambda: module(x, positions[:4]),
        "batch": lambda: module(x, positions.expand(3, 5)),
        "axes": lambda: module(x, positions.expand(1, 2, 5)),
        "rows_without_batch": lambda: module(x[0], positions[None]),
        "offset_beside_positions": lambda: module(x, positions, offset=2),
        "offsets_beside_positions": lambda: module(x, positions, offset=torch.tensor([1, 2])),
        "floating_offsets": lambda: module(x, offset=torch.tensor([1.0, 2.0])),
        "offsets_of_another_batch": lambda: module(x, offset=torch.tensor([1, 2, 3])),
        "offsets_without_batch": lambda: module(x[0], offset=torch.tensor([1])),
        "device": lambda: module(x.to("meta"), positions),
    }[which]()


@every_module
@pytest.mark.parametrize("which", ERRORS)
@pytest.mark.parametrize("twin", [False, True], ids=["python", "cpp"])
def test_wrong_calls(name, which, twin):
    module = BUILD[name](6)
    kind = type(module).__name__
    if twin:
        module = LearnedAbsoluteTwin(40, 6) if name == "learned" else getattr(posenc.nn.cpp, kind)(6)
    error, message = ERRORS[which]
    with pytest.raises(error, match=f"^{kind}: .*{message}"):
        wrong_call(module, which)


LearnedAbsoluteTwin = posenc.nn.cpp.LearnedAbsolute


def test_learned_positions_are_integers():
    with pytest.raises(TypeError, match="^LearnedAbsolute: expected positions to be an integer type, but got Float"):
        LearnedAbsolute(8, 3)(torch.randn(2, 3), torch.tensor([0.0, 1.0]))


@pytest.mark.parametrize("package", [posenc.nn, posenc.nn.cpp], ids=["python", "cpp"])
def test_wrong_options(package):
    for build, message in [
        (lambda: package.Sinusoidal(0), "Sinusoidal: expected dim to be at least 1, but got 0"),
        (
            lambda: package.Sinusoidal(1, layout="tensor2tensor"),
            "Sinusoidal: expected dim to be at least 2 in the layout",
        ),
        (
            lambda: package.Sinusoidal(1, layout="cosines_first"),
            "Sinusoidal: expected dim to be at least 2 in the layout cosines_first, but got 1",
        ),
        (lambda: package.Sinusoidal(8, num_axes=0), "Sinusoidal: expected num_axes to be at least 1, but got 0"),
        (
            lambda: package.Sinusoidal(10, num_axes=2),
            r"Sinusoidal: expected dim to be a multiple of 2 \* num_axes = 4, but got 10",
        ),
        (lambda: package.Sinusoidal(8, base=0.0), "Sinusoidal: expected base to be positive and finite, but got 0"),
        (lambda: package.Sinusoidal(8, layout="half"), "Sinusoidal: expected layout to be 'interleaved', .* 'half'"),
        (lambda: package.LearnedAbsolute(0, 8), "LearnedAbsolute: expected max_positions to be at least 1, but got 0"),
        (lambda: package.LearnedAbsolute(8, -1), "LearnedAbsolute: expected dim to be at least 1, but got -1"),
        (lambda: package.CAPE(0), "CAPE: expected dim to be at least 1, but got 0"),
        (lambda: package.CAPE(8, base=float("inf")), "CAPE: expected base to be positive and finite, but got inf"),
        (lambda: package.CAPE(8, max_global_shift=-1.0), "CAPE: expected max_global_shift to be at least 0 .* -1"),
        (lambda: package.CAPE(8, max_local_shift=float("nan")), "CAPE: expected max_local_shift .* but got nan"),
        (lambda: package.CAPE(8, max_global_scaling=0.9), "CAPE: expected max_global_scaling to be at least 1 .* 0.9"),
    ]:
        with pytest.raises(ValueError, match=message):
            build()


@every_module
def test_options_are_read_only(name):
    with pytest.raises(AttributeError, match="dim is fixed at construction"):
        BUILD[name](6).dim = 8
