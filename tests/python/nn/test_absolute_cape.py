"""What CAPE draws in training: from which seed, how often, for which tokens, and how far."""

import copy
import math

import pytest
import torch

import posenc
import reference
from tolerances import DTYPES, assert_bits, assert_near

CAPE, Sinusoidal = posenc.nn.CAPE, posenc.nn.Sinusoidal
UNMOVED = {"max_global_shift": 0.0, "max_local_shift": 0.0, "max_global_scaling": 1.0}
every_dtype = pytest.mark.parametrize("dtype", DTYPES, ids=str)


def positions_seen(module, positions, batch=1):
    """The positions (B, T) at which the module evaluates its sinusoids, which must lie in (-pi, pi).

    Of the sine and cosine with frequency 1, in float64.
    """
    x = torch.zeros(batch, len(positions), module.dim, dtype=torch.float64)
    y = module(x, torch.as_tensor(positions))
    return torch.atan2(y[..., 0], y[..., 1])


def assert_uniform(samples, bound):
    """Deciles of that many independent samples lie where those of the uniform distribution do."""
    assert samples.abs().max() <= bound
    n = samples.numel()
    deciles = torch.quantile(samples, torch.linspace(0.1, 0.9, 9, dtype=samples.dtype))
    expected = bound * torch.linspace(-0.8, 0.8, 9, dtype=samples.dtype)
    assert (deciles - expected).abs().max() < 2 * bound * 2.5 / math.sqrt(n)


class TestDistribution:
    def test_one_shift_for_a_sequence(self):
        module = CAPE(2, **{**UNMOVED, "max_global_shift": 2.0})
        seen = positions_seen(module, [0.0, 0.5, 1.0], batch=4000)
        shift = seen[:, 0]
        torch.testing.assert_close(seen - shift[:, None], torch.tensor([[0.0, 0.5, 1.0]]).double().expand(4000, 3))
        assert_uniform(shift, 2.0)

    def test_one_scale_for_a_sequence(self):
        module = CAPE(2, **{**UNMOVED, "max_global_scaling": 1.5})
        seen = positions_seen(module, [-2.0, 0.0, 1.0], batch=4000)
        scale = seen[:, 2]
        torch.testing.assert_close(seen[:, 0], -2 * scale)
        assert (seen[:, 1] == 0).all()
        assert_uniform(scale.log(), math.log(1.5))

    def test_a_shift_for_each_token(self):
        module = CAPE(2, **{**UNMOVED, "max_local_shift": 0.5})
        moved = positions_seen(module, [0.0, 1.0], batch=4000) - torch.tensor([0.0, 1.0])
        assert_uniform(moved.flatten(), 0.5)
        assert torch.corrcoef(moved.T)[0, 1].abs() < 0.1, "tokens move independently"

    def test_all_three_together(self):
        """p' = scale (p + shift), so differences reveal the scale and then the shift (arXiv 2106.03143,
        section 3.3)."""
        module = CAPE(2, max_global_shift=1.0, max_local_shift=0.0, max_global_scaling=1.2)
        seen = positions_seen(module, [0.0, 1.0], batch=4000)
        scale = seen[:, 1] - seen[:, 0]
        assert_uniform(scale.log(), math.log(1.2))
        assert_uniform(seen[:, 0] / scale, 1.0)
        assert torch.corrcoef(torch.stack([scale.log(), seen[:, 0] / scale]))[0, 1].abs() < 0.1

    def test_default_options_are_those_for_text(self):
        module = CAPE(2)
        assert (module.max_global_shift, module.max_local_shift, module.max_global_scaling) == (5.0, 0.5, 1.03)
        assert not module.centre

    def test_local_shifts_up_to_a_half_keep_the_order(self):
        module = CAPE(2, **{**UNMOVED, "max_local_shift": 0.5})
        seen = positions_seen(module, [-2.0, -1.0, 0.0, 1.0, 2.0], batch=500)
        assert (seen.diff(dim=-1) >= 0).all()

    def test_centred_positions_are_scaled_about_their_mean(self):
        module = CAPE(2, **{**UNMOVED, "max_global_scaling": 1.5}, centre=True)
        seen = positions_seen(module, [10.0, 11.0, 12.0], batch=50)
        torch.testing.assert_close(seen[:, 1], torch.zeros(50).double())
        torch.testing.assert_close(seen[:, 0], -seen[:, 2])
        assert seen[:, 2].std() > 0.05

    def test_without_a_batch_there_is_one_sequence(self):
        module = CAPE(2, **{**UNMOVED, "max_global_shift": 1.0})
        y = module(torch.zeros(4, 2), torch.zeros(4))
        assert_bits(y, y[:1].expand(4, 2))
        assert not torch.equal(y, module(torch.zeros(4, 2), torch.zeros(4)))

    def test_all_columns_see_the_same_positions(self):
        module = CAPE(6, base=10.0, max_global_shift=1.0, max_local_shift=0.3, max_global_scaling=1.2)
        y = module(torch.zeros(3, 2, 6, dtype=torch.float64))
        seen = torch.atan2(y[..., 0], y[..., 1])
        assert_near(y, reference.sinusoidal(seen, 6, base=10.0))


class TestRandomNumbers:
    def test_fresh_on_every_call(self):
        module, x = CAPE(8), torch.randn(2, 5, 8)
        assert not torch.equal(module(x), module(x))

    @every_dtype
    def test_repeated_from_the_same_seed(self, dtype):
        module, x = CAPE(8), torch.randn(2, 5, 8).to(dtype)
        torch.manual_seed(7)
        first = module(x)
        torch.manual_seed(7)
        assert_bits(copy.deepcopy(module)(x), first)
        torch.manual_seed(8)
        assert not torch.equal(module(x), first)

    @every_dtype
    def test_the_same_as_in_cpp(self, dtype):
        options = {"max_global_shift": 3.0, "max_local_shift": 0.2, "max_global_scaling": 1.5, "base": 100.0}
        for centre in (False, True):
            module, twin = CAPE(7, centre=centre, **options), posenc.nn.cpp.CAPE(7, centre=centre, **options)
            x, positions = torch.randn(2, 5, 7).to(dtype), torch.tensor([4, 0, 1, 1, 9])
            torch.manual_seed(7)
            expected = module(x, positions)
            torch.manual_seed(7)
            assert_bits(twin(x, positions), expected)

    def test_16_bit_embeddings_see_the_positions_of_float32_ones(self):
        module, x = CAPE(8), torch.randn(2, 5, 8).half()
        torch.manual_seed(7)
        wide = module(x.float())
        torch.manual_seed(7)
        assert_bits(module(x), wide.half())

    def test_evaluation_draws_nothing(self):
        module, x = CAPE(8).eval(), torch.randn(2, 5, 8)
        before = torch.random.get_rng_state()
        assert_bits(module(x), module(x))
        assert torch.equal(torch.random.get_rng_state(), before)

    def test_modes_switch_back_and_forth(self):
        module, x = CAPE(8), torch.randn(2, 5, 8)
        plain = Sinusoidal(8)(x)
        assert not torch.equal(module(x), plain)
        assert_bits(module.eval()(x), plain)
        assert not torch.equal(module.train()(x), plain)

    def test_vmap_asks_how_to_draw(self):
        module, x = CAPE(4), torch.randn(3, 2, 5, 4)
        y = torch.func.vmap(module, randomness="different")(torch.zeros_like(x))
        assert not torch.equal(y[0], y[1])
        y = torch.func.vmap(module, randomness="same")(torch.zeros_like(x))
        assert_bits(y[0], y[1])


@every_dtype
@pytest.mark.parametrize("dim", [1, 5, 8])
def test_evaluation_equals_sinusoidal(dim, dtype):
    module, plain, x = CAPE(dim, base=500.0).eval(), Sinusoidal(dim, base=500.0), torch.randn(2, 5, dim).to(dtype)
    assert_bits(module(x), plain(x))
    assert_bits(module(x, offset=1000), plain(x, offset=1000))
    assert_bits(module(x, offset=torch.tensor([3, 70000])), plain(x, offset=torch.tensor([3, 70000])))
    positions = torch.tensor([[0.5, 1e6, -3.0, 7.0, 7.0]])
    assert_bits(module(x, positions), plain(x, positions))


@every_dtype
def test_training_without_any_movement_equals_sinusoidal(dtype):
    module, plain, x = CAPE(6, **UNMOVED), Sinusoidal(6), torch.randn(2, 5, 6).to(dtype)
    assert_bits(module(x), plain(x))
    assert_bits(module(x, offset=torch.tensor([3, 70000])), plain(x, offset=torch.tensor([3, 70000])))
    positions = torch.tensor([[0, 1, 2, 7, 131071]])
    assert_bits(module(x, positions), plain(x, positions))


class TestCentre:
    def test_mean_of_each_row(self):
        x, positions = torch.randn(2, 4, 6), torch.tensor([[0, 1, 2, 3], [10, 10, 20, 0]])
        y = CAPE(6, centre=True).eval()(x, positions)
        assert_bits(y, Sinusoidal(6)(x, positions - positions.double().mean(-1, keepdim=True)))

    def test_counted_positions_lie_around_0(self):
        x = torch.zeros(3, 6)
        assert_bits(CAPE(6, centre=True).eval()(x), Sinusoidal(6)(x, torch.tensor([-1, 0, 1])))

    @pytest.mark.parametrize("offset", [3, torch.tensor([1, 2])], ids=["int", "tensor"])
    @pytest.mark.parametrize("training", [False, True])
    def test_an_offset_would_cancel_out(self, offset, training):
        for module in (CAPE(6, centre=True).train(training), posenc.nn.cpp.CAPE(6, centre=True)):
            with pytest.raises(ValueError, match="CAPE: expected no offset with centre=True"):
                module(torch.randn(2, 4, 6), offset=offset)


def test_gradient_passes_through_unchanged():
    x = torch.randn(2, 5, 8, requires_grad=True)
    grad = torch.randn(2, 5, 8)
    CAPE(8)(x).backward(grad)
    assert_bits(x.grad, grad)


@pytest.mark.parametrize("backend", ["aot_eager", "inductor"])
def test_compiled_training_draws_anew(backend, fresh_compiler):
    module, x = CAPE(2, max_global_shift=2.0, max_local_shift=0.25), torch.zeros(3, 4, 2)

    def twice(x):
        return module(x), module(x)

    compiled = torch.compile(twice, fullgraph=True, backend=backend)
    torch.manual_seed(7)
    calls = [*compiled(x), *compiled(x)]
    for i, y in enumerate(calls):
        for other in calls[:i]:
            assert not torch.equal(y, other)
        for row in y[1:]:
            assert not torch.equal(row, y[0]), "sequences of a batch move on their own"
        moved = torch.atan2(y[..., 0], y[..., 1])[:, 0]
        assert moved.abs().max() <= 2.25 * 1.03
    torch.manual_seed(7)
    for y, before in zip(compiled(x), calls[:2]):
        assert_bits(y, before)


def test_compiled_module_follows_its_mode(fresh_compiler):
    module, x = CAPE(6), torch.randn(2, 4, 6, requires_grad=True)
    compiled, plain = torch.compile(module, fullgraph=True, backend="aot_eager"), Sinusoidal(6)(x).detach()
    assert not torch.allclose(compiled(x), plain)
    module.eval()
    assert_near(compiled(x).detach(), plain.double())
    module.train()
    y = compiled(x)
    assert not torch.allclose(y, plain)
    y.sum().backward()
    assert_bits(x.grad, torch.ones_like(x))
