"""What ShawRelative, TransformerXL, ReRoPE, SelfExtend and CoPE have in common: decoding, logits and lse, keywords,
graphs."""

import pytest
import torch

import posenc
from contextual_calls import BUILD, HEADS, WIDTH, build, causal, heads_of, nn
from tolerances import assert_bits, assert_near

every_module = pytest.mark.parametrize("name", BUILD)

FAMILY = {
    # always_causal, takes_positions, needs_gate_key, rotates
    "shaw": (False, True, False, False),
    "disentangled": (False, True, False, False),
    "transformer_xl": (False, True, False, False),
    "rerope": (False, True, False, True),
    "leaky_rerope": (False, True, False, True),
    "self_extend": (False, True, False, True),
    "cope": (True, False, False, False),
}


@every_module
def test_family_facts(name):
    module = BUILD[name]()
    facts = (module.always_causal, module.takes_positions, module.needs_gate_key, module.rotates)
    assert facts == FAMILY[name]
    assert nn.CoPE(8, 4, gate="key").needs_gate_key
    assert not nn.CoPE(8, 4, gate="value").needs_gate_key


@every_module
class TestDecoding:
    """Every row of a full pass equals the same row computed from cached keys, unrotated, and the newest query alone."""

    def test_token_by_token(self, name):
        module, (q, k, v) = build(name), heads_of(9, 9)
        whole = module.attend(q, k, v, **causal(name))
        for t in range(9):
            row = module.attend(q[:, :, t : t + 1], k[:, :, : t + 1], v[:, :, : t + 1], **causal(name))
            assert_near(row[:, :, 0], whole[:, :, t].detach(), scale=10)

    def test_chunks(self, name):
        module, (q, k, v) = build(name), heads_of(9, 9)
        chunk = module.attend(q[:, :, 4:7], k[:, :, :7], v[:, :, :7], **causal(name))
        assert_near(chunk, module.attend(q, k, v, **causal(name))[:, :, 4:7].detach(), scale=10)

    def test_left_padding(self, name):
        """A padded row equals the unpadded one: its pads are neither attended nor counted."""
        module, (q, k, v) = build(name), heads_of(7, 7)
        mask = torch.tensor([[False, False, True, True, True, True, True], [True] * 7])
        positions = posenc.positions.positions_from_mask(mask)
        call = {"q_positions": positions, "k_positions": positions} if module.takes_positions else {}
        padded = module.attend(q, k, v, key_mask=mask, **call, **causal(name))
        alone = module.attend(q[:1, :, 2:], k[:1, :, 2:], v[:1, :, 2:], **causal(name))
        assert_near(padded[:1, :, 2:], alone.detach(), scale=10)
        for t in range(2, 7):
            step = {} if not module.takes_positions else {"q_positions": positions[:, t : t + 1]}
            step |= {} if not module.takes_positions else {"k_positions": positions[:, : t + 1]}
            row = module.attend(
                q[:, :, t : t + 1],
                k[:, :, : t + 1],
                v[:, :, : t + 1],
                key_mask=mask[:, : t + 1],
                **step,
                **causal(name),
            )
            assert_near(row[:, :, 0], padded[:, :, t].detach(), scale=10)

    def test_packed_sequences(self, name):
        """Two sequences in one row equal each alone."""
        module, (q, k, v) = build(name), heads_of(7, 7)
        ids = torch.tensor([[0, 0, 0, 1, 1, 1, 1]]).expand(2, 7)
        positions = torch.tensor([0, 1, 2, 0, 1, 2, 3])
        call = {"q_positions": positions, "k_positions": positions} if module.takes_positions else {}
        packed = module.attend(q, k, v, segment_ids=ids, **call, **causal(name))
        for part in (slice(0, 3), slice(3, 7)):
            alone = module.attend(q[:, :, part], k[:, :, part], v[:, :, part], **causal(name))
            assert_near(packed[:, :, part], alone.detach(), scale=10)


@every_module
class TestLogits:
    CALLS = (
        {},
        {"scale": 0.3},
        {"window": 3},
        {"key_mask": torch.tensor([[True] * 5 + [False], [False] + [True] * 5])},
        {"segment_ids": torch.tensor([[0, 0, 1, 1, 1, 1]] * 2)},
    )

    def test_softmax_of_logits_times_values_is_attend(self, name):
        module, (q, k, v) = build(name), heads_of(4, 6)
        for call in self.CALLS:
            out, lse = module.attend(q, k, v, return_lse=True, **call, **causal(name))
            logits = module.logits(q, k, **call, **causal(name))
            assert logits.shape == (2, HEADS, 4, 6)
            assert_near(lse, logits.logsumexp(-1).detach(), scale=10)
            weights = logits.softmax(-1).nan_to_num(0.0)
            expected = weights @ v.repeat_interleave(2, dim=1)
            if name == "shaw":
                distance = (torch.arange(6) - torch.arange(2, 6)[:, None]).clamp(-3, 3) + 3
                expected = expected + (weights.unsqueeze(-1) * module.rel_v[:, distance]).sum(-2)
            assert_near(out, expected.detach(), scale=10)

    def test_dtype(self, name):
        for dtype, expected in ((torch.float16, torch.float32), (torch.float64, torch.float64)):
            q, k, _ = heads_of(3, 3, dtype=dtype)
            assert build(name, dtype).logits(q, k).dtype == expected

    def test_differentiable(self, name):
        module, (q, k, _) = build(name), heads_of(3, 3)
        loss = module.logits(q.requires_grad_(), k.requires_grad_()).exp().sum()
        assert all(g.abs().sum() > 0 for g in torch.autograd.grad(loss, (q, k)))


@every_module
class TestKeywords:
    def test_dropout_follows_the_seed(self, name):
        module, (q, k, v) = build(name), heads_of(6, 6)

        def drawn(seed):
            torch.manual_seed(seed)
            return module.attend(q, k, v, dropout_p=0.5, **causal(name))

        assert_bits(drawn(1), drawn(1))
        assert not torch.equal(drawn(1), drawn(2))
        assert not torch.equal(drawn(1), module.attend(q, k, v, **causal(name)))

    def test_query_without_a_key_gives_0(self, name):
        module, (q, k, v) = build(name), heads_of(6, 4)
        out, lse = module.attend(q, k, v, return_lse=True, **causal(name))
        assert_bits(out[:, :, :2], torch.zeros(2, HEADS, 2, WIDTH, dtype=torch.float64))
        assert (lse[:, :, :2] == -torch.inf).all()
        assert_near(out[:, :, 2:], module.attend(q[:, :, 2:], k, v, **causal(name)).detach(), scale=10)

    def test_no_tokens(self, name):
        module = build(name)
        for q_len, k_len in ((0, 0), (0, 3), (2, 0)):
            q, k, v = heads_of(q_len, k_len)
            assert_bits(module.attend(q, k, v), torch.zeros_like(q))
            assert module.logits(q, k).shape == (2, HEADS, q_len, k_len)

    def test_causality_is_exact(self, name):
        """What comes later changes nothing, not even a bit, and gets no gradient."""
        module, (q, k, v) = build(name), [x.requires_grad_() for x in heads_of(5, 5)]
        out = module.attend(q, k, v, **causal(name))
        later_k, later_v = k.detach().clone(), v.detach().clone()
        later_k[:, :, 3:] += 5.0
        later_v[:, :, 3:] = torch.nan
        assert_bits(module.attend(q, later_k, later_v, **causal(name))[:, :, :3].detach(), out[:, :, :3].detach())
        for grad in torch.autograd.grad(out[:, :, :3].square().sum(), (k, v)):
            assert (grad[:, :, 3:] == 0).all()
            assert (grad[:, :, :3] != 0).any()


@every_module
def test_compiled_decoding_takes_any_length(name, fresh_compiler):
    module = build(name, torch.float32)
    compiled = torch.compile(module.attend, fullgraph=True, dynamic=True, backend="aot_eager")
    for length in (5, 6, 9):
        q, k, v = heads_of(2, length, dtype=torch.float32)
        with torch.no_grad():
            assert_near(compiled(q, k, v, **causal(name)), module.attend(q, k, v, **causal(name)))


@every_module
def test_exported_for_any_length(name):
    class Wrapped(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.encoding = build(name, torch.float32)

        def forward(self, q, k, v):
            return self.encoding.attend(q, k, v, **causal(name))

    module, length = Wrapped(), torch.export.Dim("length", min=2, max=64)
    shapes = tuple({2: length} for _ in range(3))
    program = torch.export.export(module, heads_of(5, 5, dtype=torch.float32), dynamic_shapes=shapes)
    inputs = heads_of(11, 11, dtype=torch.float32)
    assert_near(program.module()(*inputs), module(*inputs).detach())
