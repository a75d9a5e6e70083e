"""Faults of other libraries' absolute encodings: the right numbers, for every module of the family."""

import math

import pytest
import torch

import posenc
import reference
from tolerances import DTYPES, assert_bits, assert_near

CAPE, LearnedAbsolute, Sinusoidal = posenc.nn.CAPE, posenc.nn.LearnedAbsolute, posenc.nn.Sinusoidal

FIXED = {
    "sinusoidal": lambda dim: Sinusoidal(dim),
    "concatenated": lambda dim: Sinusoidal(dim, layout="concatenated"),
    "cape": lambda dim: CAPE(dim).eval(),
}
BUILD = {**FIXED, "learned": lambda dim: LearnedAbsolute(2000, dim)}
every_fixed = pytest.mark.parametrize("name", FIXED)
every_module = pytest.mark.parametrize("name", BUILD)


def pair(name, dim, k):
    """The columns of sine and cosine k."""
    return [k, dim // 2 + k] if name == "concatenated" else [2 * k, 2 * k + 1]


def added(module, positions, dtype=torch.float32):
    """The encoding of positions (T), as (T, dim)."""
    positions = torch.as_tensor(positions)
    return module(torch.zeros(len(positions), module.dim, dtype=dtype), positions)


class TestFrequenciesOfCastModules:
    @every_fixed
    @pytest.mark.parametrize("cast", [torch.half, torch.bfloat16], ids=str)
    def test_casting_the_module_rounds_no_frequency(self, name, cast):
        module = FIXED[name](32).to(cast)
        y = added(module, [1857])[0, pair(name, 32, 1)]
        torch.testing.assert_close(y, torch.tensor([0.9518086, 0.3066928]), rtol=0, atol=1e-6)
        x = torch.randn(2, 7, 32)
        assert_bits(module.float()(x), FIXED[name](32)(x))


class TestRepeatedCalls:
    @every_module
    def test_each_call_equals_the_same_call_of_a_fresh_module(self, name):
        module = BUILD[name](4)
        state = module.state_dict()
        for dtype in (torch.float32, torch.float64, torch.float32):
            for length in (3, 7, 3):
                for offset in (0, 5, 0):
                    fresh, x = BUILD[name](4), torch.ones(1, length, 4, dtype=dtype)
                    fresh.load_state_dict(state)
                    assert_bits(module(x, offset=offset), fresh(x, offset=offset))


class TestPositionsByRow:
    @every_module
    def test_left_padded_rows_equal_unpadded_ones(self, name):
        module, x = BUILD[name](6), torch.randn(2, 5, 6)
        positions = posenc.positions.positions_from_mask(torch.tensor([[0, 0, 1, 1, 1], [1, 1, 1, 1, 1]]))
        y = module(x, positions)
        assert_bits(y[0, 2:], module(x[0, 2:]))
        assert_bits(y[1], module(x[1]))

    @every_module
    def test_packed_sequences_start_anew(self, name):
        module, x = BUILD[name](6), torch.randn(1, 8, 6)
        y = module(x, torch.tensor([0, 1, 2, 3, 0, 1, 2, 3]))
        assert_bits(y, torch.cat([module(x[:, :4]), module(x[:, 4:])], 1))


class TestMaterialisedModules:
    @every_module
    @pytest.mark.parametrize("training", [False, True])
    def test_nothing_is_left_to_the_allocator(self, name, training):
        with torch.device("meta"):
            module = BUILD[name](8)
        dirty = [torch.full((16000,), float("nan")) for _ in range(8)]
        del dirty
        module.to_empty(device="cpu").train(training)
        y = module(torch.zeros(2, 5, 8))
        assert y.isfinite().all()
        if name == "learned":
            assert 0.015 < module.weight.detach().std() < 0.025
        elif not (name == "cape" and training):
            assert_bits(y, FIXED[name](8)(torch.zeros(2, 5, 8)))


class TestDtypes:
    @every_fixed
    @pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
    def test_16_bit_results_are_float32_ones_rounded_once(self, name, dtype):
        module, x = FIXED[name](8), torch.randn(2, 50, 8).to(dtype)
        assert_bits(module(x), module(x.float()).to(dtype))

    @pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
    @pytest.mark.parametrize("narrow_table", [False, True])
    def test_learned_rows_add_in_float32(self, dtype, narrow_table):
        module, x = LearnedAbsolute(50, 8), torch.randn(2, 50, 8).to(dtype)
        module = module.to(dtype) if narrow_table else module
        assert_bits(module(x), (x.float() + module.weight.float()).to(dtype))

    @every_module
    @pytest.mark.parametrize("dtype", DTYPES, ids=str)
    def test_output_has_the_dtype_of_the_input(self, name, dtype):
        assert BUILD[name](8)(torch.ones(2, 3, 8, dtype=dtype)).dtype == dtype

    @every_fixed
    def test_float64_is_exact(self, name):
        layout = "concatenated" if name == "concatenated" else "interleaved"
        y = added(FIXED[name](8), [1, 100000], torch.float64)
        torch.testing.assert_close(
            y, reference.sinusoidal(torch.tensor([1, 100000]), 8, layout=layout), rtol=0, atol=1e-12
        )


class TestAutocast:
    @every_fixed
    def test_autocast_changes_no_angle(self, name):
        module, positions = FIXED[name](2), torch.tensor([65536, 65537, 65538])
        outside = added(module, positions)
        with torch.autocast("cpu", dtype=torch.bfloat16):
            inside = added(module, positions)
        assert_bits(inside, outside)
        expected = torch.tensor([[0.6920655, -0.7218348], [-0.2334784, -0.9723620], [-0.9443633, -0.3289041]])
        torch.testing.assert_close(inside, expected, rtol=0, atol=1e-6)

    def test_autocast_changes_no_random_position(self):
        module, x = CAPE(4), torch.randn(2, 5, 4)
        torch.manual_seed(3)
        outside = module(x)
        with torch.autocast("cpu", dtype=torch.bfloat16):
            torch.manual_seed(3)
            assert_bits(module(x), outside)


class TestLargePositions:
    positions = [16000, 48039, 131071, 1000000, 16777217]

    @every_fixed
    def test_the_first_pair_is_exact_at_large_positions(self, name):
        y = added(FIXED[name](128), self.positions)[:, pair(name, 128, 0)]
        expected = torch.tensor([[math.sin(p), math.cos(p)] for p in self.positions])
        torch.testing.assert_close(y, expected, rtol=0, atol=1e-6)
        cosines = torch.tensor([-0.9913814, -0.6163210, -0.8179835, 0.9367521, 0.9943840])
        torch.testing.assert_close(y[:, 1], cosines, rtol=0, atol=1e-6)

    @every_fixed
    def test_the_second_pair_is_exact_at_large_positions(self, name):
        y = added(FIXED[name](128), [131071])[0, pair(name, 128, 1)]
        torch.testing.assert_close(y[1], torch.tensor(-0.9782709), rtol=0, atol=1e-6)


class TestSinusoidalFormula:
    @pytest.mark.parametrize("build", [Sinusoidal, lambda dim: CAPE(dim).eval(), posenc.nn.cpp.Sinusoidal])
    def test_odd_widths_end_with_a_sine(self, build):
        expected = torch.tensor([[0.8414710, 0.5403023, 0.0251162, 0.9996845, 0.0006310]])
        torch.testing.assert_close(build(5)(torch.zeros(1, 5), offset=1), expected, rtol=0, atol=1e-6)
        p = torch.tensor([0, 1, 2, 3])
        torch.testing.assert_close(build(1)(torch.zeros(4, 1))[:, 0], p.double().sin().float(), rtol=0, atol=1e-6)

    def test_frequencies_are_powers_of_the_base_over_the_width(self):
        for module in (Sinusoidal(8), Sinusoidal(8, layout="concatenated"), CAPE(8)):
            torch.testing.assert_close(module.inv_freq, torch.tensor([1, 0.1, 0.01, 0.001]).double())

    @every_fixed
    def test_each_token_gets_its_own_position(self, name):
        y = FIXED[name](8)(torch.zeros(1, 3, 8))[0]
        first = torch.zeros(8)
        for k in range(4):
            first[pair(name, 8, k)[1]] = 1
        assert_bits(y[0], first)
        assert not torch.equal(y[0], y[1])
        assert not torch.equal(y[1], y[2])
        assert_near(y[:, pair(name, 8, 0)[0]], torch.arange(3).double().sin())


class TestLearnedRange:
    limit = "LearnedAbsolute: expected positions from 0 to 7, as max_positions is 8, but got "
    wrong = {
        "length 9": (lambda m: m(torch.ones(1, 9, 4)), "offset 0 and length 9"),
        "offset 7, length 2": (lambda m: m(torch.ones(1, 2, 4), offset=7), "offset 7 and length 2"),
        "offset -1": (lambda m: m(torch.ones(1, 2, 4), offset=-1), "offset -1 and length 2"),
        "offset 7 of a row": (
            lambda m: m(torch.ones(2, 2, 4), offset=torch.tensor([0, 7])),
            "positions from 0 to 8",
        ),
        "position 8": (lambda m: m(torch.ones(1, 2, 4), torch.tensor([8, 0])), "positions from 0 to 8"),
        "position -1": (lambda m: m(torch.ones(1, 2, 4), torch.tensor([[3, -1]])), "positions from -1 to 3"),
        "int32": (lambda m: m(torch.ones(1, 2, 4), torch.tensor([8, 0]).int()), "positions from 0 to 8"),
    }

    @pytest.mark.parametrize("which", wrong)
    @pytest.mark.parametrize("build", [LearnedAbsolute, posenc.nn.cpp.LearnedAbsolute], ids=["python", "cpp"])
    def test_a_position_outside_names_the_limit_and_leaves_the_module_working(self, which, build):
        module, (call, got) = build(8, 4), self.wrong[which]
        with pytest.raises(ValueError, match=self.limit + got):
            call(module)
        x = torch.ones(1, 8, 4)
        assert_bits(module(x), x + dict(module.named_parameters())["weight"])

    def test_unused_rows_get_no_gradient(self):
        for where, used in (
            ({}, [0, 1, 2]),
            ({"offset": 5}, [5, 6, 7]),
            ({"positions": torch.tensor([7, 2, 2])}, [2, 7]),
            ({"offset": torch.tensor([0, 3])}, [0, 1, 2, 3, 4, 5]),
        ):
            module = LearnedAbsolute(8, 4)
            module(torch.ones(2, 3, 4), **where).sum().backward()
            assert module.weight.grad.abs().sum(-1).nonzero().flatten().tolist() == used

    def test_gradients_of_repeated_rows_add_up(self):
        module, grad = LearnedAbsolute(8, 4), torch.randn(2, 3, 4)
        module(torch.ones(2, 3, 4), torch.tensor([[7, 2, 2], [2, 0, 7]])).backward(grad)
        expected = torch.zeros(8, 4)
        expected[2], expected[7], expected[0] = (
            grad[0, 1] + grad[0, 2] + grad[1, 0],
            grad[0, 0] + grad[1, 2],
            grad[1, 1],
        )
        torch.testing.assert_close(module.weight.grad, expected)

    def test_empty_calls_use_no_position(self):
        module = LearnedAbsolute(8, 4)
        assert module(torch.ones(2, 0, 4), offset=8).shape == (2, 0, 4)
        assert module(torch.ones(2, 0, 4), torch.empty(0, dtype=torch.long)).shape == (2, 0, 4)


class TestCallsInModes:
    def step(self, module):
        x = torch.ones(2, 5, 6, requires_grad=True)
        torch.manual_seed(5)
        y = module(x)
        return torch.autograd.grad(y.square().sum(), [x, *module.parameters()])

    @every_fixed
    @pytest.mark.parametrize("mode", [torch.inference_mode, torch.no_grad], ids=["inference", "no_grad"])
    def test_the_mode_of_construction_and_first_call_leaves_no_trace(self, name, mode):
        with mode():
            module = FIXED[name](6)
            module(torch.ones(2, 5, 6))
        fresh = FIXED[name](6)
        for _ in range(2):
            for g, e in zip(self.step(module), self.step(fresh), strict=True):
                assert_bits(g, e)

    @every_module
    def test_training_after_an_evaluation_equals_training_at_once(self, name):
        module = BUILD[name](6)
        fresh = BUILD[name](6)
        fresh.load_state_dict(module.state_dict())
        with torch.inference_mode():
            module(torch.ones(2, 5, 6))
        for g, e in zip(self.step(module), self.step(fresh), strict=True):
            assert_bits(g, e)
