"""The additive modules beyond the promises of every module: calls that agree, positions, gradients, transforms."""

import pytest
import torch
from torch.autograd import gradcheck

import bias_reference
import posenc
from additive_calls import BUILD, build, operands
from posenc.nn import ALiBi
from tolerances import assert_bits, assert_near

REFERENCES = {
    "alibi": lambda p, heads: bias_reference.alibi(torch.tensor(bias_reference.alibi_slopes(heads)).double()),
    "alibi_learnable": lambda p, heads: bias_reference.alibi(p["slopes"]),
    "t5_decoder": lambda p, heads: bias_reference.t5(p["weight"], max_distance=6, bidirectional=False),
    "t5_encoder": lambda p, heads: bias_reference.t5(p["weight"], max_distance=6, bidirectional=True),
    "kerple_log": lambda p, heads: bias_reference.kerple(p["r1"], p["r2"]),
    "kerple_power": lambda p, heads: bias_reference.kerple(p["r1"], p["r2"], kind="power"),
    "sandwich": lambda p, heads: bias_reference.sandwich(heads, 12),
    "fire": lambda p, heads: bias_reference.fire(p),
}
LEARNING = [name for name in BUILD if name not in ("alibi", "sandwich")]
every_module = pytest.mark.parametrize("name", BUILD)
every_learning_module = pytest.mark.parametrize("name", LEARNING)


def reference_of(name, module):
    return REFERENCES[name]({key: p.detach().double() for key, p in module.named_parameters()}, module.num_heads)


CALLS = {
    "plain": {},
    "causal": {"is_causal": True},
    "masked": {"key_mask": torch.tensor([[True, False, True, True, False, True, True], [False] * 7])},
    "window": {"is_causal": True, "window": 3},
    "both_sides_window": {"window": 2, "scale": 0.7},
    "segments": {"segment_ids": torch.tensor([[0, 0, 1, 1, 1, 2, 2], [5, 5, 5, 5, 5, 4, 4]])},
    "positions": {
        "is_causal": True,
        "q_positions": torch.tensor([[40, 3, 3, 0, 9], [1, 2, 50, 4, 0]]),
        "k_positions": torch.tensor([0, 2, 4, 6, 8, 3, 30]),
    },
    "negative_positions": {"q_positions": torch.tensor([-9, -3, 0, 2, 5])},
    "all": {
        "is_causal": True,
        "window": 6,
        "key_mask": torch.tensor([[True, False, True, True, True, True, True]] * 2),
        "segment_ids": torch.tensor([[0, 0, 0, 1, 1, 1, 1], [5, 5, 5, 5, 5, 4, 4]]),
        "q_positions": torch.tensor([[2, 0, 1, 2, 3], [2, 3, 4, 0, 1]]),
        "k_positions": torch.tensor([[0, 1, 2, 0, 1, 2, 3], [0, 1, 2, 3, 4, 0, 1]]),
    },
}


@every_module
@pytest.mark.parametrize("call", CALLS)
class TestCalls:
    def test_attend_and_lse(self, name, call):
        module, (q, k, v) = build(name), operands()
        bias, call = reference_of(name, module), {**CALLS[call]}
        scale = {"scale": module.scale} | call
        out, lse = module.attend(q, k, v, return_lse=True, **call)
        assert_near(out, bias_reference.attend(q, k, v, bias, **scale))
        expected = bias_reference.logits(q, k, bias, **scale)
        torch.testing.assert_close(lse, expected.logsumexp(-1), rtol=1e-12, atol=1e-12)
        assert_near(module.logits(q, k, **call), expected)
        assert_bits(module.attend(q, k, v, **call), out)

    def test_twin(self, name, call):
        module, (q, k, v) = build(name), operands(dtype=torch.float32)
        twin = getattr(posenc.nn.cpp, type(module).__name__)(*arguments_of(name), **options_of(name))
        with torch.no_grad():
            for key, parameter in twin.named_parameters():
                parameter.copy_(dict(module.named_parameters())[key])
        for ours, theirs in zip(
            module.attend(q, k, v, return_lse=True, **CALLS[call]),
            twin.attend(q, k, v, return_lse=True, **CALLS[call]),
            strict=True,
        ):
            assert_bits(ours, theirs)
        assert_bits(module.logits(q, k, **CALLS[call]), twin.logits(q, k, **CALLS[call]))
        assert_bits(module.bias(4, 6), twin.bias(4, 6))


def arguments_of(name):
    return (6,)


def options_of(name):
    """The options of BUILD, for the C++ twin."""
    return {
        "alibi_learnable": {"learnable": True},
        "t5_decoder": {"num_buckets": 8, "max_distance": 6},
        "t5_encoder": {"num_buckets": 8, "max_distance": 6, "bidirectional": True},
        "kerple_power": {"kind": "power"},
        "sandwich": {"dim": 12},
        "fire": {"hidden_dim": 6, "threshold": 3.7},
    }.get(name, {})


@every_module
class TestBias:
    @pytest.mark.parametrize("lengths", [(4, None), (4, 4), (1, 6), (3, 7), (5, 3), (1, 1), (0, 3), (2, 0)])
    def test_reference(self, name, lengths):
        module = build(name)
        q_len, k_len = lengths[0], lengths[0] if lengths[1] is None else lengths[1]
        bias = module.double().bias(*lengths)
        assert bias.shape == (6, q_len, k_len)
        if q_len and k_len:
            expected = bias_reference.materialise(reference_of(name, module), range(k_len - q_len, k_len), range(k_len))
            torch.testing.assert_close(bias.double(), expected, rtol=1e-6, atol=1e-6)

    def test_is_what_logits_add(self, name):
        module, (q, k, _) = build(name), operands(dtype=torch.float32)
        scores = q @ k.repeat_interleave(3, 1).transpose(-1, -2)
        torch.testing.assert_close(module.logits(q, k, scale=1.0), scores + module.bias(5, 7), rtol=1e-5, atol=1e-5)

    def test_decoding_rows_are_the_last_ones(self, name):
        module = build(name)
        # torch's matrix products, which make FIRE's, may sum differently for other numbers of rows.
        check = torch.testing.assert_close if name == "fire" else assert_bits
        check(module.bias(2, 9), module.bias(9)[:, -2:])
        check(module.bias(1, 9), module.bias(9)[:, -1:])

    def test_dtype_follows_the_parameters(self, name):
        module = build(name)
        assert module.half().bias(3).dtype == torch.float32
        assert module.double().bias(3).dtype == (torch.float64 if name in LEARNING else torch.float32)

    def test_decoding_equals_the_full_pass(self, name):
        module, (q, k, v) = build(name), operands(q_len=7)
        full = module.attend(q, k, v, is_causal=True)
        for i in range(7):
            step = module.attend(q[:, :, i : i + 1], k[:, :, : i + 1], v[:, :, : i + 1], is_causal=True)
            assert_near(step, full[:, :, i : i + 1])


@every_module
class TestPositions:
    def test_counted_positions_may_be_given(self, name):
        module, (q, k, v) = build(name), operands()
        expected = module.attend(q, k, v, is_causal=True)
        given = {"q_positions": torch.arange(2, 7), "k_positions": torch.arange(7)}
        assert_near(module.attend(q, k, v, is_causal=True, **given), expected)
        assert_near(module.attend(q, k, v, is_causal=True, q_positions=given["q_positions"]), expected)
        assert_near(module.attend(q, k, v, is_causal=True, k_positions=given["k_positions"].int()), expected)

    def test_left_padding(self, name):
        """A padded row with counted positions equals the row alone."""
        module, (q, k, v) = build(name), operands(q_len=7)
        alone = module.attend(q[:1, :, 2:], k[:1, :, 2:], v[:1, :, 2:], is_causal=True)
        mask = torch.tensor([[False, False, True, True, True, True, True], [True] * 7])
        positions = posenc.positions.positions_from_mask(mask)
        padded = module.attend(q, k, v, is_causal=True, key_mask=mask, q_positions=positions, k_positions=positions)
        assert_near(padded[:1, :, 2:], alone)

    def test_shifting_all_positions_changes_nothing_but_in_fire(self, name):
        module, (q, k, v) = build(name), operands()
        given = {"q_positions": torch.arange(2, 7), "k_positions": torch.arange(7)}
        shifted = {key: p + 50 for key, p in given.items()}
        expected, result = (module.attend(q, k, v, **positions) for positions in (given, shifted))
        if name == "fire":
            assert (result - expected).abs().max() > 1e-4
        else:
            assert_near(result, expected)

    def test_floating_positions_are_refused(self, name):
        module, (q, k, v) = build(name), operands()
        with pytest.raises(TypeError, match="expected integer q_positions, as the scores depend on the distance"):
            module.attend(q, k, v, q_positions=torch.arange(5.0))
        with pytest.raises(TypeError, match="expected integer k_positions"):
            module.logits(q, k, k_positions=torch.arange(7.0))


class Attending(torch.nn.Module):
    def __init__(self, encoding, **call):
        super().__init__()
        self.encoding, self.call = encoding, call

    def forward(self, q, k, v):
        return self.encoding.attend(q, k, v, return_lse=True, **self.call)


@every_module
class TestGradients:
    @pytest.mark.parametrize("call", ["causal", "all"])
    def test_gradcheck(self, name, call):
        module = build(name, heads=2).double()
        names = [key for key, _ in module.named_parameters()]
        inputs = [x.requires_grad_() for x in operands(heads=2, groups=1, width=3)]
        wrapped = Attending(module, **CALLS[call])

        def attend(q, k, v, *parameters):
            named = {f"encoding.{key}": p for key, p in zip(names, parameters, strict=True)}
            out, lse = torch.func.functional_call(wrapped, named, (q, k, v))
            return out, lse.nan_to_num(neginf=0.0)

        parameters = [p.detach().clone().requires_grad_() for p in module.parameters()]
        assert gradcheck(attend, (*inputs, *parameters), nondet_tol=1e-12)

    def test_second_derivatives(self, name):
        module = build(name, heads=2).double()
        q, k, v = (x.requires_grad_() for x in operands(q_len=3, k_len=4, heads=2, groups=1, width=3))
        names, values = zip(*module.named_parameters(), strict=True) if list(module.parameters()) else ((), ())
        weight = torch.randn(2, 2, 3, 3, dtype=torch.float64)

        def second(attend):
            wanted = [q, k, v, *values]
            first = torch.autograd.grad((attend() * weight).sum(), wanted, create_graph=True)
            return torch.autograd.grad(sum((g.square() * (1 + i)).sum() for i, g in enumerate(first)), wanted)

        bias = REFERENCES[name](dict(zip(names, values, strict=True)), 2)
        expected = second(lambda: bias_reference.attend(q, k, v, bias, is_causal=True, scale=module.scale))
        for ours, e in zip(second(lambda: module.attend(q, k, v, is_causal=True)), expected, strict=True):
            torch.testing.assert_close(ours, e, rtol=1e-9, atol=1e-9)


@every_module
class TestTransforms:
    def test_vmap(self, name):
        module = build(name)
        q, k, v = (torch.stack([x, 2 * x, -x]) for x in operands())
        batched = torch.func.vmap(lambda *x: module.attend(*x, is_causal=True))(q, k, v)
        for b in range(3):
            assert_near(batched[b], module.attend(q[b], k[b], v[b], is_causal=True))

    def test_jvp(self, name):
        module = build(name).double()
        inputs = operands()
        tangents = tuple(torch.randn_like(x) for x in inputs)
        bias = reference_of(name, module)
        _, ours = torch.func.jvp(lambda *x: module.attend(*x), inputs, tangents)
        _, expected = torch.func.jvp(lambda *x: bias_reference.attend(*x, bias, scale=module.scale), inputs, tangents)
        torch.testing.assert_close(ours, expected, rtol=1e-11, atol=1e-11)

    def test_autocast(self, name):
        module, (q, k, v) = build(name), operands(dtype=torch.float32)
        with torch.autocast("cpu", dtype=torch.bfloat16):
            result = module.attend(q, k, v, is_causal=True)
        assert result.dtype == torch.bfloat16
        assert_bits(result, module.attend(q.bfloat16(), k.bfloat16(), v.bfloat16(), is_causal=True))

    def test_dropout(self, name):
        module, (q, k, v) = build(name), operands()
        draws = []
        for seed in (1, 1, 2):
            torch.manual_seed(seed)
            draws.append(module.attend(q, k, v, dropout_p=0.5))
        assert_bits(draws[0], draws[1])
        assert not torch.equal(draws[0], draws[2])
        assert not torch.equal(draws[0], module.attend(q, k, v, dropout_p=0.5)), "fresh in every call"


class TestALiBiSlopesKeepTheirValues:
    @pytest.mark.parametrize("cast", [torch.half, torch.bfloat16, torch.float, torch.double], ids=str)
    def test_no_cast_rounds_them(self, cast):
        exact = torch.tensor(bias_reference.alibi_slopes(12), dtype=torch.float64)
        module = ALiBi(12).to(cast)
        assert_bits(module.slopes, exact)
        assert "slopes" in dict(module.named_buffers())
        assert not module.state_dict()

    def test_other_moves(self):
        module = ALiBi(12, slopes=[0.1 * h for h in range(12)])
        expected = module.bias(5)
        for move in (lambda: module.to("meta"), lambda: module.to_empty(device="cpu"), lambda: module.half()):
            move()
            assert_bits(module.bias(5), expected)

    def test_half_width_queries_get_float32_slopes(self):
        module, (q, k, _) = ALiBi(6), operands(dtype=torch.bfloat16)
        torch.testing.assert_close(
            module.half().logits(q, k), module.float().logits(q.float(), k.float()), rtol=1e-6, atol=1e-6
        )

    def test_given_as_a_tensor(self):
        slopes = torch.tensor([0.1, 0.2])
        module = ALiBi(2, slopes=slopes)
        assert_bits(module.slopes.float(), slopes)
        slopes.zero_()
        assert module.slopes.min() > 0
        assert "slopes=(0.1" in repr(module)

    def test_learnable_ones_learn(self):
        module, (q, k, v) = ALiBi(6, learnable=True), operands(dtype=torch.float32)
        optimizer = torch.optim.SGD(module.parameters(), 0.1)
        before = module.slopes.detach().clone()
        module.attend(q, k, v, is_causal=True).square().sum().backward()
        optimizer.step()
        assert (module.slopes != before).all()
        module.reset_parameters()
        assert_bits(module.slopes.detach(), before)


@every_learning_module
def test_parameters_learn_from_unlike_dtypes(name):
    """A float32 module with 16-bit queries: gradients have the parameters' dtype."""
    module, (q, k, v) = build(name), operands(dtype=torch.bfloat16)
    module.attend(q, k, v, is_causal=True).float().square().sum().backward()
    wide, (q, k, v) = build(name), (x.float() for x in (q, k, v))
    wide.load_state_dict(module.state_dict())
    wide.attend(q, k, v, is_causal=True).square().sum().backward()
    for ours, expected in zip(module.parameters(), wide.parameters(), strict=True):
        assert ours.grad.dtype == torch.float32
        torch.testing.assert_close(ours.grad, expected.grad, rtol=0.1, atol=0.05)
