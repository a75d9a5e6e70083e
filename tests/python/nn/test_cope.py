"""CoPE (arXiv 2405.18719): values worked out by hand, equality with the paper in every variant, edge cases."""

import math

import pytest
import torch

import contextual_reference
import posenc
from contextual_calls import COPE_VARIANTS, GROUPS, WIDTH, assert_equals, heads_of, nn, normal, with_parameters
from tolerances import assert_bits, assert_near

PADS_LEFT = torch.tensor([[False, False, True, True, True, True, True], [True] * 7])
PADS_RIGHT = torch.tensor([[True] * 5 + [False, False], [True] * 7])
SEGMENTS = torch.tensor([[0, 0, 0, 1, 1, 1, 1], [0, 1, 1, 1, 1, 2, 2]])

CALLS = {
    "square": (7, 7, {}),
    "decode": (1, 7, {}),
    "fewer_queries": (4, 7, {"scale": 0.6}),
    "more_queries": (7, 4, {}),
    "pads_left": (7, 7, {"key_mask": PADS_LEFT}),
    "pads_right": (7, 7, {"key_mask": PADS_RIGHT}),
    "window": (7, 7, {"window": 3}),
    "packed": (7, 7, {"segment_ids": SEGMENTS}),
    "packed_cached": (3, 7, {"segment_ids": SEGMENTS, "key_mask": PADS_RIGHT}),
}


@pytest.mark.parametrize("which", CALLS)
@pytest.mark.parametrize("variant", COPE_VARIANTS)
@pytest.mark.parametrize("max_positions", [3, 12], ids=["saturating", "never_saturating"])
def test_equals_the_paper(which, variant, max_positions):
    q_len, k_len, call = CALLS[which]
    options = COPE_VARIANTS[variant]
    module = with_parameters(nn.CoPE(WIDTH, max_positions, **options))
    inputs = [x.requires_grad_() for x in heads_of(q_len, k_len)]
    q, k, v = inputs
    gates = {}
    if options.get("gate") == "key":
        gates = {"gate_key": normal(2, GROUPS, k_len, WIDTH).requires_grad_()}
        inputs.append(gates["gate_key"])
    expected = contextual_reference.cope(
        q,
        k,
        v,
        module.pos_emb,
        gate_key=v if options.get("gate") == "value" else gates.get("gate_key"),
        gate_bias=module.gate_bias,
        scale_position_logits=module.scale_position_logits,
        **call,
    )
    assert_equals(module.attend(q, k, v, **gates, **call), expected, (*inputs, *module.parameters()))


def scalar_case(keys, entries):
    """Width 1, scale 1, three queries of 1, these keys and entries of the table, values (1, 0, 0)."""
    module = nn.CoPE(1, len(entries)).double()
    with torch.no_grad():
        module.pos_emb.copy_(torch.tensor(entries))
    q = torch.ones(1, 1, 3, 1).double().requires_grad_()
    k = torch.tensor(keys).double().view(1, 1, 3, 1).requires_grad_()
    v = torch.tensor([1.0, 0.0, 0.0]).double().view(1, 1, 3, 1).requires_grad_()
    return module, q, k, v


def counted(module, q, k, **call):
    """The positions (B, H, Tq, Tk): content and position logits less the content,
    with entry p of the table equal to p."""
    ruler = nn.CoPE(1, module.max_positions).double()
    with torch.no_grad():
        ruler.pos_emb.copy_(torch.arange(module.max_positions))
    return ruler.logits(q, k, scale=1.0, **call) - q @ k.transpose(-1, -2)


def assert_golden(actual, expected):
    torch.testing.assert_close(actual.flatten().tolist(), expected, rtol=0, atol=1e-6)


class TestByHand:
    """One head of width 1, entries 0 1 3; gates 1/2 put key 1 exactly on position 1,
    where the slope is the right one."""

    def gradients_of_the_last_row(self, module, q, k, v):
        loss = module.attend(q, k, v, scale=1.0)[0, 0, 2, 0]
        return torch.autograd.grad(loss, (q, k, v, module.pos_emb))

    def test_gates_of_one_half(self):
        module, q, k, v = scalar_case([0.0, 0.0, 0.0], [0.0, 1.0, 3.0])
        assert_golden(counted(module, q, k)[0, 0, 2], [1.5, 1.0, 0.5])
        logits = module.logits(q, k, scale=1.0)[0, 0, 2]
        assert_golden(logits, [2.0, 1.0, 0.5])
        assert_golden(logits.softmax(-1), [0.628532, 0.231224, 0.140244])
        dq, dk, dv, de = self.gradients_of_the_last_row(module, q, k, v)
        assert_golden(dk, [0.350219, -0.101258, -0.066111])
        assert_golden(de, [-0.044074, -0.072666, 0.116740])
        assert_golden(dq[0, 0, 2], [0.277554])
        assert_golden(dv, [0.628532, 0.231224, 0.140244])
        (ds,) = torch.autograd.grad(logits.softmax(-1)[0], logits)
        assert_golden(ds, [0.233480, -0.145332, -0.088148])

    def test_away_from_whole_positions(self):
        module, q, k, v = scalar_case([0.2, -0.4, 0.6], [0.0, 1.0, 3.0])
        assert_golden(counted(module, q, k)[0, 0, 2], [1.596803, 1.046969, 0.645656])
        assert_golden(
            (module.logits(q, k, scale=1.0) - q @ k.transpose(-1, -2))[0, 0, 2], [2.193605, 1.093937, 0.645656]
        )
        assert_golden(module.logits(q, k, scale=1.0)[0, 0, 2].softmax(-1), [0.666653, 0.121827, 0.211520])
        dq, dk, _, de = self.gradients_of_the_last_row(module, q, k, v)
        assert_golden(dk, [0.332236, -0.013458, -0.108750])
        assert_golden(de, [-0.049966, -0.078845, 0.128811])
        assert_golden(dq[0, 0, 2], [0.314169])

    def test_two_positions(self):
        module, q, k, _ = scalar_case([0.0, 0.0, 0.0], [0.0, 1.0])
        assert_golden(counted(module, q, k)[0, 0, 2], [1.0, 1.0, 0.5])
        logits = module.logits(q, k, scale=1.0)[0, 0, 2]
        assert_golden(logits, [1.0, 1.0, 0.5])
        assert_golden(logits.softmax(-1), [0.383652, 0.383652, 0.232697])

    def test_rows_count_from_their_own_query(self):
        module, q, k, _ = scalar_case([0.0, 0.0, 0.0], [0.0] * 8)
        p = counted(module, q, k)[0, 0]
        assert_golden(p[0, :1], [0.5])
        assert_golden(p[1, :2], [1.0, 0.5])
        assert_golden(p[2], [1.5, 1.0, 0.5])


class TestEdges:
    def plain(self, q, k, v, **call):
        return posenc.ops.attention(q, k, v, is_causal=True, **call)

    def test_one_position_is_plain_attention(self):
        module, inputs = with_parameters(nn.CoPE(WIDTH, 1)), heads_of(6, 6)
        assert_near(module.attend(*inputs), self.plain(*inputs))

    @pytest.mark.parametrize("options", COPE_VARIANTS.values(), ids=COPE_VARIANTS)
    def test_new_module_is_plain_attention(self, options):
        module, (q, k, v) = nn.CoPE(WIDTH, 4, **options).double(), heads_of(6, 6)
        call = {"gate_key": k + 1} if module.needs_gate_key else {}
        assert_near(module.attend(q, k, v, **call).detach(), self.plain(q, k, v))

    def test_gates_of_1_are_a_table_over_distances(self):
        """p = i - j + 1: entries 1, 2, .. at distances 0, 1, .., the last one from there on."""
        module, (q, k, v) = with_parameters(nn.CoPE(WIDTH, 5, gate="key")), heads_of(7, 7, heads=2)
        q, gate_key = self.aligned(q)
        entry = (torch.arange(7)[:, None] - torch.arange(7) + 1).clamp(0, 4)
        bias = (q @ module.pos_emb).gather(-1, entry.expand(2, 2, 7, 7))
        out = module.attend(q, k, v, gate_key=gate_key)
        assert_near(out, self.plain(q, k, v, bias=bias).detach(), scale=10)

    def aligned(self, q):
        """Queries with one column in common, and keys whose product with each of them is large."""
        column = torch.zeros_like(q)
        column[..., 0] = 1.0
        return torch.where(column == 1, 1.0, q), 1e4 * column

    def test_gates_of_0_are_plain_attention(self):
        """p = 0 throughout: entry 0 shifts a whole row."""
        module, (q, k, v) = with_parameters(nn.CoPE(WIDTH, 5, gate="key")), heads_of(7, 7, heads=2)
        q, opened = self.aligned(q)
        closed = -opened
        assert_near(module.attend(q, k, v, gate_key=closed), self.plain(q, k, v), scale=10)
        shift = module.logits(q, k, gate_key=closed) - posenc.nn.CoPE(WIDTH, 5).double().logits(q, k)
        seen = torch.ones(7, 7, dtype=torch.bool).tril()
        assert_near(shift[..., seen], (q @ module.pos_emb)[..., :1].expand(2, 2, 7, 7)[..., seen].detach(), scale=10)

    def test_gate_bias_spans_as_documented(self):
        """ln(a / (1 - a)) with a = span / T: T tokens without content span `span` positions."""
        length, span = 40, 6
        module = nn.CoPE(1, 100, num_heads=1, gate_bias=math.log((span / length) / (1 - span / length))).double()
        with torch.no_grad():
            module.pos_emb.copy_(torch.arange(100))
        q, k = torch.ones(1, 1, length, 1).double(), torch.zeros(1, 1, length, 1).double()
        assert_golden(module.logits(q, k)[0, 0, -1, :1], [6.0])

    def test_pads_are_not_counted_wherever_they_stand(self):
        ruler, (q, k, v) = with_parameters(nn.CoPE(WIDTH, 20)), heads_of(7, 7, batch=1)
        mask = torch.tensor([[True, False, True, True, False, True, True]])
        kept = mask[0].nonzero().flatten()
        padded = ruler.attend(q, k, v, key_mask=mask)[:, :, kept]
        alone = ruler.attend(q[:, :, kept], k[:, :, kept], v[:, :, kept])
        assert_near(padded, alone.detach(), scale=10)

    def test_scales(self):
        """The paper leaves q . e unscaled; Meta's repository multiplies it by the scale of the content."""
        paper, meta = (with_parameters(nn.CoPE(WIDTH, 4, scale_position_logits=x)) for x in (False, True))
        meta.load_state_dict(paper.state_dict())
        q, k, _ = heads_of(5, 5)
        for scale in (None, 0.2):
            used = WIDTH**-0.5 if scale is None else scale
            content = (q @ k.repeat_interleave(2, 1).transpose(-1, -2)) * used
            seen = torch.ones(5, 5, dtype=torch.bool).tril()
            by_paper = (paper.logits(q, k, scale=scale) - content)[..., seen]
            by_meta = (meta.logits(q, k, scale=scale) - content)[..., seen]
            assert_near(by_meta, (by_paper * used).detach(), scale=10)

    def test_values_gate_as_gate_keys_do(self):
        by_value, by_key = (with_parameters(nn.CoPE(WIDTH, 4, gate=gate)) for gate in ("value", "key"))
        by_key.load_state_dict(by_value.state_dict())
        q, k, v = heads_of(5, 5)
        assert_bits(by_value.attend(q, k, v), by_key.attend(q, k, v, gate_key=v))
        assert_bits(by_value.logits(q, k, gate_key=v), by_key.logits(q, k, gate_key=v))
        assert not torch.allclose(by_value.attend(q, k, v), by_key.attend(q, k, v, gate_key=k))


class TestStructure:
    """Facts that hold for any input, since a softmax ignores what is added to a whole row."""

    def test_gradients_of_the_entries_add_up_to_0(self):
        module, inputs = with_parameters(nn.CoPE(WIDTH, 4)), heads_of(7, 7)
        (grad,) = torch.autograd.grad(module.attend(*inputs).square().sum(), (module.pos_emb,))
        assert grad.abs().max() > 0.1
        assert_near(grad.sum(-1), torch.zeros(1, WIDTH), scale=10)

    def test_a_constant_added_to_all_entries_changes_nothing(self):
        module, inputs = with_parameters(nn.CoPE(WIDTH, 4)), heads_of(7, 7)
        before = module.attend(*inputs).detach()
        with torch.no_grad():
            module.pos_emb += torch.randn(1, WIDTH, 1).double()
        assert_near(module.attend(*inputs), before, scale=10)

    def test_gates_left_of_the_saturated_band_get_no_gradient(self):
        module, (q, k, v) = with_parameters(nn.CoPE(WIDTH, 3, gate="key")), heads_of(12, 12, heads=2)
        gate_key = (
            torch.zeros(2, GROUPS, 12, WIDTH).double().requires_grad_()
        )  # gates 1/2: saturated 4 keys to the left
        out = module.attend(q[:, :, -1:], k, v, gate_key=gate_key)
        (grad,) = torch.autograd.grad(out.square().sum(), (gate_key,))
        assert (grad[:, :, :9] == 0).all()
        assert (grad[:, :, 9:] != 0).any(-1).all()

    def test_first_step_moves_the_table_first(self):
        """A table of zeros has no slope, so gates get no gradient from positions."""
        module, (q, k, v) = nn.CoPE(WIDTH, 4, gate="key").double(), heads_of(7, 7)
        gate_key = normal(2, GROUPS, 7, WIDTH).requires_grad_()
        loss = module.attend(q, k, v, gate_key=gate_key).square().sum()
        gate_grad, table_grad = torch.autograd.grad(loss, (gate_key, module.pos_emb))
        assert (gate_grad == 0).all()
        assert table_grad.abs().max() > 0

    def test_rows_that_see_nothing_get_no_gradient(self):
        module, inputs = with_parameters(nn.CoPE(WIDTH, 4)), [x.requires_grad_() for x in heads_of(5, 5)]
        mask = torch.zeros(2, 5, dtype=torch.bool)
        out, lse = module.attend(*inputs, key_mask=mask, return_lse=True)
        assert (out == 0).all()
        assert (lse == -torch.inf).all()
        for grad in torch.autograd.grad(out.sum(), (*inputs, module.pos_emb)):
            assert (grad == 0).all()
