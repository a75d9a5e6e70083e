"""ForgettingBias: what its decays are, in which precision, how attend adds them up, and what it refuses."""

import math

import pytest
import torch

import contextual_reference as reference
import posenc
from contextual_calls import assert_equals, heads_of, with_parameters
from tolerances import assert_bits, assert_near

nn = posenc.nn
HEADS, EMBED_DIM = 4, 12
KINDS = ("fox", "cable")

every_kind = pytest.mark.parametrize("kind", KINDS)
every_package = pytest.mark.parametrize("package", [nn, nn.cpp], ids=["python", "cpp"])


def build(kind, dtype=torch.float64):
    return with_parameters(nn.ForgettingBias(EMBED_DIM, HEADS, kind=kind), dtype)


def inputs(q_len, k_len, dtype=torch.float64):
    """Queries, keys, values and the inputs of the keys' tokens."""
    return *heads_of(q_len, k_len, dtype=dtype), torch.randn(2, k_len, EMBED_DIM, dtype=torch.float64).to(dtype)


def test_facts_and_initial_parameters():
    fox, cable = nn.ForgettingBias(EMBED_DIM, HEADS), nn.ForgettingBias(EMBED_DIM, HEADS, kind="cable")
    for module in (fox, cable):
        assert (module.always_causal, module.takes_positions, module.needs_gate_key) == (True, False, False)
        x = torch.randn(1, 3, EMBED_DIM)
        state = module.token_state(x)
        assert list(state) == ["log_decay"]
        assert_bits(state["log_decay"], module(x))
        assert module.weight.shape == (HEADS, EMBED_DIM)
        assert 0 < module.weight.abs().max() <= 1 / math.sqrt(EMBED_DIM)
    assert_bits(fox.bias.detach(), torch.zeros(HEADS))
    assert cable.bias is None
    assert not any(module.token_state(x) for module in (nn.ALiBi(2), nn.CoPE(8, 4), nn.FIRE(2)))
    torch.manual_seed(3)
    drawn = nn.ForgettingBias(EMBED_DIM, HEADS, kind="cable").weight
    torch.manual_seed(3)
    assert_bits(drawn.detach(), torch.nn.Linear(EMBED_DIM, HEADS, bias=False).weight.detach())


# The decays


@every_kind
def test_decays_are_those_of_the_papers(kind):
    module, x = build(kind), torch.randn(2, 5, EMBED_DIM, dtype=torch.float64, requires_grad=True)
    parameters = dict(module.named_parameters())
    assert_equals(module(x), reference.log_decay(x, **parameters), [x, *parameters.values()])
    assert torch.autograd.gradcheck(module, x)
    assert torch.autograd.gradgradcheck(module, x)


@every_kind
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
def test_large_numbers(kind, dtype):
    """Neither end overflows, and float64 keeps its digits, where softplus of torch has those of 2e-9."""
    module = nn.ForgettingBias(1, 1, kind=kind).to(dtype)
    with torch.no_grad():
        module.weight.fill_(1.0)
    z = torch.tensor([-1000.0, -30.0, -1.0, 0.0, 1.0, 21.0, 30.0, 1000.0], dtype=dtype)
    signed = (z if kind == "fox" else -z).tolist()
    expected = [min(s, 0.0) - math.log1p(math.exp(-abs(s))) for s in signed]
    torch.testing.assert_close(
        module(z.view(1, -1, 1)).flatten().detach(),
        torch.tensor(expected, dtype=dtype),
        rtol=1e-14 if dtype == torch.float64 else 1e-6,
        atol=0,
    )


@every_kind
def test_half_width_modules_sum_in_float32(kind):
    """In bfloat16 a sum of thousands of decays would be off by whole tokens."""
    module, length = build(kind, torch.bfloat16), 5000
    x = (0.1 * torch.randn(1, length, EMBED_DIM)).bfloat16()
    decays = module(x).detach()
    assert decays.dtype == torch.float32
    expected = reference.log_decay(x.double(), *(p.detach().double() for p in module.parameters()))
    torch.testing.assert_close(decays.double(), expected, rtol=1e-5, atol=1e-6)
    q = torch.zeros(1, HEADS, 1, 8, dtype=torch.bfloat16)
    k = torch.zeros(1, 2, length, 8, dtype=torch.bfloat16)
    logits = module.logits(q, k, log_decay=decays)[0, :, 0]
    sums = expected[0].flip(-1).cumsum(-1).flip(-1)
    torch.testing.assert_close(logits[:, :-1].double(), sums[:, 1:], rtol=1e-5, atol=1e-4)


@every_kind
@every_package
def test_autocast_rounds_no_decay(kind, package):
    module = package.ForgettingBias(EMBED_DIM, HEADS, kind=kind)
    q, k, v, x = inputs(6, 6, torch.float32)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        decays = module.forward(x)
        out = module.attend(q, k, v, log_decay=decays)
    assert_bits(decays.detach(), module.forward(x).detach())
    assert out.dtype == torch.bfloat16
    torch.testing.assert_close(out.float(), module.attend(q, k, v, log_decay=decays), rtol=2e-2, atol=2e-2)


@every_kind
def test_vmap_and_forward_mode(kind):
    module, x = build(kind), torch.randn(3, 2, 5, EMBED_DIM, dtype=torch.float64)
    whole = torch.func.vmap(module)(x)
    assert_near(whole.detach(), torch.stack([module(row) for row in x]).detach())
    _, moved = torch.func.jvp(module, (x[0],), (torch.ones_like(x[0]),))
    step = 1e-6
    assert_near(moved.detach(), ((module(x[0] + step) - module(x[0] - step)) / (2 * step)).detach(), scale=1e5)


# The sums


@every_kind
def test_equal_inputs_make_alibi(kind):
    module = build(kind)
    q, k, v, x = inputs(7, 7)
    decays = module(x[:, :1].expand(-1, 7, -1))[:1].expand(2, -1, -1).detach()
    slopes = -decays[0, :, 0]
    expected = posenc.ops.attention(q, k, v, is_causal=True, alibi_slopes=slopes)
    assert_near(module.attend(q, k, v, log_decay=decays), expected, scale=10)


def test_initial_fox_halves_per_token():
    module = nn.ForgettingBias(EMBED_DIM, HEADS)
    q = torch.zeros(1, HEADS, 4, 8)
    logits = module.logits(q, q, log_decay=module(torch.zeros(1, 4, EMBED_DIM)))
    torch.testing.assert_close(logits[0, 0, -1].exp(), torch.tensor([0.125, 0.25, 0.5, 1.0]))
    with torch.no_grad():
        module.bias.fill_(math.log(100.0))
    logits = module.logits(q, q, log_decay=module(torch.zeros(1, 4, EMBED_DIM)))
    torch.testing.assert_close(logits[0, 0, -1, 0].item(), 3 * math.log(100 / 101), rtol=1e-5, atol=0)


@every_kind
class TestDecoding:
    """Every row of a full pass equals the same row computed from cached keys and decays, and the newest query alone."""

    def test_token_by_token(self, kind):
        module, (q, k, v, x) = build(kind), inputs(9, 9)
        whole = module.attend(q, k, v, log_decay=module(x)).detach()
        for t in range(9):
            decays = torch.cat([module(x[:, i : i + 1]) for i in range(t + 1)], dim=2)
            row = module.attend(q[:, :, t : t + 1], k[:, :, : t + 1], v[:, :, : t + 1], log_decay=decays)
            assert_near(row[:, :, 0], whole[:, :, t], scale=10)

    def test_masked_tokens_are_not_there(self, kind):
        """Pads on the left and in between: each row equals the one without them, and nothing reaches it from them."""
        module, (q, k, v, x) = build(kind), inputs(7, 7)
        mask = torch.tensor([[False, False, True, True, False, True, True], [True] * 7])
        x[0, 0] = x[0, 4] = math.nan
        x.requires_grad_()
        padded = module.attend(q, k, v, log_decay=module(x), key_mask=mask)
        kept = mask[0]
        alone = module.attend(q[:1, :, kept], k[:1, :, kept], v[:1, :, kept], log_decay=module(x[:1, kept]))
        assert_near(padded[:1, :, kept].detach(), alone.detach(), scale=10)
        (gradient,) = torch.autograd.grad(module.logits(q, k, log_decay=module(x))[1].exp().sum(), x)
        assert gradient[1].abs().sum() > 0
        weights = module.attend(q, k, v, log_decay=module(x.detach().nan_to_num().requires_grad_()), key_mask=mask)
        assert_bits(weights[:1, :, kept].detach(), padded[:1, :, kept].detach())

    def test_packed_sequences(self, kind):
        module, (q, k, v, x) = build(kind), inputs(7, 7)
        ids = torch.tensor([[0, 0, 0, 1, 1, 1, 1]]).expand(2, 7)
        packed = module.attend(q, k, v, log_decay=module(x), segment_ids=ids).detach()
        for part in (slice(0, 3), slice(3, 7)):
            alone = module.attend(q[:, :, part], k[:, :, part], v[:, :, part], log_decay=module(x[:, part]))
            assert_near(packed[:, :, part], alone.detach(), scale=10)

    def test_causality_is_exact(self, kind):
        module, (q, k, v, x) = build(kind), inputs(5, 5)
        x.requires_grad_()
        out = module.attend(q, k, v, log_decay=module(x))
        later = x.detach().clone()
        later[:, 3:] += 5.0
        assert_bits(module.attend(q, k, v, log_decay=module(later))[:, :, :3].detach(), out[:, :, :3].detach())
        (gradient,) = torch.autograd.grad(out[:, :, :3].square().sum(), x)
        assert_bits(gradient[:, 3:], torch.zeros(2, 2, EMBED_DIM, dtype=torch.float64))
        assert (gradient[:, 1:3] != 0).any()


@every_kind
def test_softmax_of_logits_times_values_is_attend(kind):
    module, (q, k, v, x) = build(kind), inputs(4, 6)
    decays = module(x)
    for call in (
        {},
        {"scale": 0.3},
        {"window": 3},
        {"key_mask": torch.tensor([[True] * 5 + [False], [False] + [True] * 5])},
        {"segment_ids": torch.tensor([[0, 0, 1, 1, 1, 1]] * 2)},
    ):
        out, lse = module.attend(q, k, v, log_decay=decays, return_lse=True, **call)
        logits = module.logits(q, k, log_decay=decays, **call)
        assert logits.shape == (2, HEADS, 4, 6)
        assert_near(lse.detach(), logits.logsumexp(-1).detach(), scale=10)
        weights = logits.softmax(-1).nan_to_num(0.0)
        assert_near(out.detach(), (weights @ v.repeat_interleave(2, dim=1)).detach(), scale=10)
        assert_near(out.detach(), reference.forgetting(q, k, v, decays, **call).detach(), scale=10)


def test_dropout_follows_the_seed():
    module, (q, k, v, x) = build("fox"), inputs(6, 6)

    def drawn(seed, dropout_p=0.5):
        torch.manual_seed(seed)
        return module.attend(q, k, v, log_decay=module(x), dropout_p=dropout_p).detach()

    assert_bits(drawn(1), drawn(1))
    assert not torch.equal(drawn(1), drawn(2))
    assert not torch.equal(drawn(1), drawn(1, 0.0))


def test_no_tokens():
    module = build("fox")
    for q_len, k_len in ((0, 0), (0, 3)):
        q, k, v, x = inputs(q_len, k_len)
        assert_bits(module.attend(q, k, v, log_decay=module(x)).detach(), torch.zeros_like(q))
        assert module.logits(q, k, log_decay=module(x)).shape == (2, HEADS, q_len, k_len)


# Graphs


@every_kind
def test_compiled_decoding_takes_any_length(kind, fresh_compiler):
    module = build(kind, torch.float32)

    def call(q, k, v, x):
        return module.attend(q, k, v, log_decay=module(x))

    compiled = torch.compile(call, fullgraph=True, dynamic=True, backend="aot_eager")
    for length in (5, 6, 9):
        arguments = inputs(2, length, torch.float32)
        with torch.no_grad():
            assert_near(compiled(*arguments), call(*arguments))


def test_compiled_under_autocast_rounds_no_decay(fresh_compiler):
    module = build("fox", torch.float32)
    compiled = torch.compile(module, fullgraph=True, backend="aot_eager")
    x = torch.randn(2, 5, EMBED_DIM)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        decays = compiled(x)
    assert_near(decays.detach(), module(x).detach().double())


@every_kind
def test_exported_for_any_length(kind):
    class Wrapped(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.encoding = build(kind, torch.float32)

        def forward(self, q, k, v, x):
            return self.encoding.attend(q, k, v, log_decay=self.encoding(x))

    module, length = Wrapped(), torch.export.Dim("length", min=2, max=64)
    shapes = ({2: length}, {2: length}, {2: length}, {1: length})
    program = torch.export.export(module, inputs(5, 5, torch.float32), dynamic_shapes=shapes)
    arguments = inputs(11, 11, torch.float32)
    assert_near(program.module()(*arguments).detach(), module(*arguments).detach())


@every_kind
def test_ops_are_registered_as_torch_wants(kind):
    module, (q, k, _, x) = build(kind), inputs(3, 5)
    mask = torch.tensor([[False] + [True] * 4, [True] * 5])
    complement = {"complement": kind == "cable"}
    torch.library.opcheck(
        torch.ops.posenc._log_decay.default, (x.requires_grad_(), module.weight, module.bias), complement
    )
    decays = module(x).detach().requires_grad_()
    for key_mask in (None, mask):
        torch.library.opcheck(torch.ops.posenc._decay_terms.default, (decays, q, k, HEADS, key_mask))


# What does not fit


OPTIONS = [
    ((0, 4), {}, "expected embed_dim to be at least 1, but got 0"),
    ((8, 0), {}, "expected num_heads to be at least 1, but got 0"),
    ((8, 4), {"kind": "forget"}, "expected kind to be 'fox' or 'cable', but got 'forget'"),
]


@every_package
def test_wrong_options(package):
    for arguments, options, message in OPTIONS:
        with pytest.raises(ValueError, match=f"^ForgettingBias: {message}"):
            package.ForgettingBias(*arguments, **options)


@every_package
def test_wrong_inputs(package):
    module = package.ForgettingBias(EMBED_DIM, HEADS)
    x = torch.randn(2, 5, EMBED_DIM)
    for wrong, error, message in [
        (x[0], ValueError, r"expected x of shape \(batch, length, embed_dim\) with embed_dim 12, but got \[5, 12\]"),
        (x[..., :7], ValueError, r"expected x of shape .* but got \[2, 5, 7\]"),
        (x.long(), TypeError, "expected x to be float32, .* but got Long"),
        (x.to("meta"), ValueError, "expected x on cpu, but it is on meta"),
    ]:
        with pytest.raises(error, match=f"^ForgettingBias: {message}"):
            module.forward(wrong)


@every_package
def test_wrong_calls(package):
    module, (q, k, v, x) = package.ForgettingBias(EMBED_DIM, HEADS), inputs(5, 5, torch.float32)
    decays = module.forward(x)
    shape = r"expected log_decay of shape \(2, 4, 5\)"
    query = r"expected query of shape \(batch, heads, length, head_dim\) with num_heads 4, but got"
    for given, message in [
        ({"log_decay": None}, shape + r", what forward\(\) makes of the layer's input, but got None"),
        ({"log_decay": decays[:, :3]}, shape + r", but got \[2, 3, 5\]"),
        ({"log_decay": decays[:, :, 1:]}, shape + r", but got \[2, 4, 4\]"),
        ({"log_decay": decays[0]}, shape + r", but got \[4, 5\]"),
        ({"log_decay": decays.to("meta")}, "expected log_decay on cpu, but it is on meta"),
        ({"query": q[:, :2]}, query + r" \[2, 2, 5, 8\]"),
        ({"query": q[0]}, query + r" \[4, 5, 8\]"),
        ({"key": k[0]}, r"expected key of shape \(batch, heads, length, head_dim\), but got"),
    ]:
        call = {"query": q, "key": k, "value": v, "log_decay": decays, **given}
        with pytest.raises(ValueError, match=f"^ForgettingBias: {message}"):
            module.attend(**call)
        call.pop("value")
        with pytest.raises(ValueError, match=f"^ForgettingBias: {message}"):
            module.logits(**call)
    with pytest.raises(TypeError if package is nn else ValueError, match="log_decay"):
        module.attend(q, k, v)
    for unknown in ({"is_causal": False}, {"q_positions": torch.arange(5)}, {"gate_key": k}):
        with pytest.raises(TypeError):
            module.attend(q, k, v, log_decay=decays, **unknown)
    with pytest.raises(ValueError, match="expected key_mask of shape"):
        module.attend(q, k, v, log_decay=decays, key_mask=torch.ones(2, 4).bool())
    with pytest.raises(TypeError, match="expected key_mask to be bool"):
        module.attend(q, k, v, log_decay=decays, key_mask=torch.ones(2, 5))


def test_options_are_read_only():
    module = nn.ForgettingBias(EMBED_DIM, HEADS)
    for option in ("embed_dim", "num_heads", "kind"):
        with pytest.raises(AttributeError, match=f"ForgettingBias: {option} is fixed at construction"):
            setattr(module, option, 8)
