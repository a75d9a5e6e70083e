"""What CoPE's gates and tables imply for any input, over several tiles of the kernel: equalities,
many of them exact."""

import math

import pytest
import torch

import posenc
from tolerances import assert_bits, assert_near

pytestmark = pytest.mark.kernels
ops = posenc.ops

LENGTH, WIDTH = 205, 16
WINDOW = {"window": 120}
MASK = {"key_mask": (torch.arange(LENGTH) % 7 != 3)[None] & (torch.arange(LENGTH) > 11)}
SEGMENTS = {"segment_ids": torch.tensor([0] * 50 + [1] * 110 + [2] * 45)[None]}
RULES = {"plain": {}, "window": WINDOW, "mask": MASK, "segments": SEGMENTS, "all": WINDOW | MASK | SEGMENTS}
every_rule = pytest.mark.parametrize("rules", RULES.values(), ids=RULES)
both_dtypes = pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)


def tokens(*shape, dtype=torch.float32):
    return torch.randn(shape, dtype=torch.float64).to(dtype).requires_grad_()


def heads_of(queries=LENGTH, keys=LENGTH, heads=2, groups=1, width=WIDTH, value_width=WIDTH, dtype=torch.float32):
    """Queries, keys, values."""
    return (
        tokens(1, heads, queries, width, dtype=dtype),
        tokens(1, groups, keys, width, dtype=dtype),
        tokens(1, groups, keys, value_width, dtype=dtype),
    )


def table_of(entries, heads=1, width=WIDTH, dtype=torch.float32, std=0.3):
    return (std * torch.randn(heads, width, entries, dtype=torch.float64)).to(dtype).requires_grad_()


def seen_keys(rules, length=LENGTH):
    """(Tq, Tk), from the rules."""
    distance = torch.arange(length)[:, None] - torch.arange(length)
    seen = (distance >= 0) & (distance < rules.get("window", length))
    if "key_mask" in rules:
        seen = seen & rules["key_mask"]
    if "segment_ids" in rules:
        seen = seen & (rules["segment_ids"].mT == rules["segment_ids"])
    return seen


class TestBand:
    """Keys whose position lies below the last entry are those nearest to the query, without a gap."""

    ENTRIES = 21

    def call(self, rules, rows):
        """Gradients of gate keys (Tk, D), for each of some rows alone; and the keys (rows, Tk) of their bands."""
        (q, k, v), table = heads_of(heads=1), table_of(self.ENTRIES)
        gate_key = tokens(1, 1, LENGTH, WIDTH)
        out = ops.cope_attention(q, k, v, table, gate_key=gate_key, **rules)
        grads = []
        for row in rows:
            (grad,) = torch.autograd.grad(out[:, :, row].sum(), gate_key, retain_graph=True)
            grads.append(grad[0, 0])
        seen = seen_keys(rules)
        gates = torch.sigmoid(q.double() @ gate_key.double().mT / math.sqrt(WIDTH))[0, 0] * seen
        positions = gates.flip(-1).cumsum(-1).flip(-1)
        return torch.stack(grads), ((positions < self.ENTRIES - 1) & seen)[list(rows)]

    @every_rule
    def test_gates_have_a_gradient_in_the_band_and_nowhere_else(self, rules):
        rows = (13, 40, 95, 96, 97, 150, 191, 192, LENGTH - 1)
        grads, band = self.call(rules, rows)
        assert_bits((grads != 0).any(-1), band)
        if not rules:
            for row, keys in zip(rows, band, strict=True):
                assert keys.nonzero().flatten().tolist() == list(range(row + 1 - keys.sum(), row + 1))
            assert (band.sum(-1) < torch.tensor(rows)).sum() > 5, "rows that pass the end of the band"

    def test_gates_that_no_band_reaches_have_none(self):
        """Gates of 1/2: 20 positions are 40 keys, of which the first is at the last entry."""
        (q, k, v), table = heads_of(queries=20), table_of(self.ENTRIES)
        gate_key = torch.zeros(1, 1, LENGTH, WIDTH, requires_grad=True)
        gate_bias = torch.zeros(2, requires_grad=True)
        out = ops.cope_attention(q, k, v, table, gate_key=gate_key, gate_bias=gate_bias)
        (grad,) = torch.autograd.grad(out.square().sum(), gate_key)
        reached = LENGTH - 20 - 2 * (self.ENTRIES - 1) + 2
        assert_bits(grad[:, :, :reached], torch.zeros(1, 1, reached, WIDTH))
        assert (grad[:, :, reached:] != 0).any(-1).all()

    def test_keys_left_of_the_band_get_what_plain_attention_gives_them(self):
        """Their own gates have no gradient, so that only their scores and values are left."""
        q, k, v = heads_of(queries=20)
        table, gate_bias = table_of(self.ENTRIES), torch.full((2,), 3.0)
        out, lse = ops.cope_attention(q, k, v, table, gate_bias=gate_bias, return_lse=True)
        grad = torch.randn_like(out)
        grads = torch.autograd.grad(out, (k, v), grad)
        left = slice(0, 100)
        scores = q @ k.mT / math.sqrt(WIDTH) + (q @ table[0])[..., -1:]
        weights = (scores - lse.unsqueeze(-1)).exp()
        of_scores = weights * (grad @ v.mT - (grad * out).sum(-1, keepdim=True))
        expected = (of_scores.mT @ q / math.sqrt(WIDTH), weights.mT @ grad)
        for ours, theirs in zip(grads, expected, strict=True):
            assert_near(ours[:, :, left], theirs.sum(1, keepdim=True)[:, :, left].detach(), scale=4)


class TestTable:
    @both_dtypes
    @every_rule
    @pytest.mark.parametrize("entries", [2, 30, 300])
    def test_gradients_of_the_entries_add_up_to_0(self, dtype, rules, entries):
        inputs, table = heads_of(heads=4, groups=2, dtype=dtype), table_of(entries, heads=4, dtype=dtype)
        out = ops.cope_attention(*inputs, table, **rules)
        (grad,) = torch.autograd.grad(out, table, torch.randn_like(out))
        assert grad.abs().max() > 0.1
        bound = 30 * torch.finfo(dtype).eps * grad.abs().sum(-1).max()
        assert grad.sum(-1).abs().max() < bound

    @both_dtypes
    @every_rule
    @pytest.mark.parametrize("scaled", [False, True], ids=["paper", "scaled"])
    def test_a_constant_added_to_all_entries_moves_lse_alone(self, dtype, rules, scaled):
        (q, k, v), table, moved = heads_of(dtype=dtype), table_of(30, dtype=dtype), torch.randn(1, WIDTH, 1).to(dtype)
        rules = rules | {"scale_position_logits": scaled}

        def results(table):
            out, lse = ops.cope_attention(q, k, v, table, **rules, return_lse=True)
            return out, lse, torch.autograd.grad(out.square().sum(), (q, k, v, table))

        (out, lse, grads), (moved_out, moved_lse, moved_grads) = results(table), results(table + moved)
        assert_near(moved_out.detach(), out.detach(), scale=10)
        shift = (q @ moved)[..., 0] * (WIDTH**-0.5 if scaled else 1.0)
        sees = out.detach().abs().sum(-1) > 0
        assert_near(moved_lse.detach()[sees], (lse + shift).detach()[sees], scale=10)
        for ours, theirs in zip(moved_grads, grads, strict=True):
            assert_near(ours, theirs, scale=100)

    @pytest.mark.parametrize("entries", [2, 7, 60])
    @pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16, torch.float16], ids=str)
    @every_rule
    def test_zeros_are_plain_attention_bit_for_bit(self, entries, dtype, rules):
        self.equals_plain_attention(torch.zeros(4, WIDTH, entries), rules, dtype)

    @every_rule
    def test_one_entry_moves_lse_alone(self, rules):
        inputs, table = heads_of(heads=4, groups=2), table_of(1)
        out = ops.cope_attention(*inputs, table, **rules)
        expected = ops.attention(*inputs, is_causal=True, **rules)
        assert_bits(out, expected)
        grad = torch.randn_like(out)
        *grads, of_table = torch.autograd.grad(out, (*inputs, table), grad)
        for ours, theirs in zip(grads, torch.autograd.grad(expected, inputs, grad), strict=True):
            assert_near(ours, theirs, scale=4)
        assert_bits(of_table, torch.zeros_like(of_table))

    @pytest.mark.parametrize(
        ("queries", "keys", "width", "value_width"),
        [(9, 9, 16, 16), (96, 96, 64, 64), (97, 193, 80, 24), (300, 300, 3, 129), (193, 96, 17, 1)],
    )
    def test_of_any_shape(self, queries, keys, width, value_width):
        inputs = heads_of(queries, keys, 6, 3, width, value_width)
        self.equals_plain_attention(torch.zeros(1, width, 5), {}, torch.float32, inputs)
        self.equals_plain_attention(torch.zeros(1, width, 5), {"dropout_p": 0.3}, torch.float32, inputs)

    def equals_plain_attention(self, table, rules, dtype, inputs=None):
        inputs = inputs or heads_of(heads=4, groups=2, dtype=dtype)
        plain = rules | {"is_causal": True, "return_lse": True}

        def results(call):
            torch.manual_seed(3)
            out, lse = call()
            return out, lse, torch.autograd.grad(out, inputs, torch.ones_like(out) / 3)

        out, lse, grads = results(lambda: ops.cope_attention(*inputs, table, **rules, return_lse=True))
        same, same_lse, same_grads = results(lambda: ops.attention(*inputs, **plain))
        assert_bits(out, same)
        assert_bits(lse, same_lse)
        for ours, theirs in zip(grads, same_grads, strict=True):
            assert_bits(ours, theirs)

    @both_dtypes
    @pytest.mark.parametrize("radius", [3, 40, 250])
    def test_gates_of_1_are_a_table_over_distances(self, dtype, radius):
        """p = distance + 1, at most R + 1: entry p is Shaw's at distance p - 1, and entry 0 is never met."""
        (q, k, v), table = heads_of(heads=4, groups=2, dtype=dtype), table_of(radius + 2, heads=4, dtype=dtype)
        opened = {"gate_bias": torch.full((4,), 200.0, dtype=dtype), "scale_position_logits": True}
        out, lse = ops.cope_attention(q, k, v, table, **opened, return_lse=True)
        later = torch.randn(4, radius, WIDTH, dtype=dtype)  # of keys that are not seen
        rel_k = torch.cat([table[:, :, 1:].flip(2).mT, later], 1)
        same, same_lse = ops.relative_attention(q, k, v, rel_k, is_causal=True, return_lse=True)
        assert_near(out.detach(), same.detach(), scale=4)
        assert_near(lse.detach(), same_lse.detach(), scale=4)
        grad = torch.randn_like(out)
        expected = torch.autograd.grad(same, (q, k, v, table), grad)
        for ours, theirs in zip(torch.autograd.grad(out, (q, k, v, table), grad), expected, strict=True):
            assert_near(ours, theirs, scale=40)


class TestCausality:
    @every_rule
    @pytest.mark.parametrize("t", [0, 50, 94, 95, 96, 150, 192])
    def test_a_later_key_changes_no_bit_of_an_earlier_row(self, rules, t):
        inputs, gate_key = heads_of(heads=4, groups=2), tokens(1, 2, LENGTH, WIDTH)
        table, gate_bias = table_of(9, heads=4), torch.randn(4, requires_grad=True)
        leaves = (*inputs, gate_key, table, gate_bias)

        def earlier_rows(q, k, v, gate_key, table, gate_bias):
            out = ops.cope_attention(q, k, v, table, gate_key=gate_key, gate_bias=gate_bias, **rules)[:, :, : t + 1]
            return out.detach(), torch.autograd.grad(out.sin().sum(), (q, k, v, gate_key, table, gate_bias))

        out, grads = earlier_rows(*leaves)
        for grad in grads[:4]:
            assert_bits(grad[:, :, t + 1 :], torch.zeros_like(grad[:, :, t + 1 :]))
        later = [x.detach().clone() for x in leaves]
        for x in later[:4]:
            x[:, :, t + 1 :] = 50 * torch.randn_like(x[:, :, t + 1 :])
        moved_out, moved_grads = earlier_rows(*(x.requires_grad_() for x in later))
        assert_bits(moved_out, out)
        for ours, theirs in zip(moved_grads, grads, strict=True):
            assert_bits(ours, theirs)


class TestPacking:
    """Sequences of their own, cut out of a batch, whose ends lie within tiles."""

    ENTRIES = 12

    def results(self, parts, **rules):
        """out and gradients of q, k, v, gate keys of some rows of keys, and of the table."""
        out = ops.cope_attention(*parts[:3], parts[4], gate_key=parts[3], **rules)
        return out, torch.autograd.grad(out.sin().sum(), parts)

    def inputs(self, dtype):
        return [*heads_of(heads=4, groups=2, dtype=dtype), tokens(1, 2, LENGTH, WIDTH, dtype=dtype)]

    @both_dtypes
    @pytest.mark.parametrize("ends", [(1, 100), (95, 191), (96, 192), (50, 97, 98, 193)], ids=str)
    def test_segments_equal_sequences_of_their_own(self, dtype, ends):
        segments = torch.bucketize(torch.arange(LENGTH), torch.tensor(ends), right=True)
        segments = (7 - 2 * segments % 5)[None]  # ids need not grow
        inputs, table = self.inputs(dtype), table_of(self.ENTRIES, heads=4, dtype=dtype)
        out, grads = self.results([*inputs, table], segment_ids=segments)
        of_table = torch.zeros_like(table)
        for start, end in zip((0, *ends), (*ends, LENGTH), strict=True):
            apart = [x[:, :, start:end].detach().requires_grad_() for x in inputs]
            apart_out, apart_grads = self.results([*apart, table])
            assert_near(out[:, :, start:end].detach(), apart_out.detach(), scale=4)
            for whole, theirs in zip(grads[:4], apart_grads[:4], strict=True):
                assert_near(whole[:, :, start:end], theirs, scale=40)
            of_table += apart_grads[4]
        assert_near(grads[4], of_table, scale=100)

    @both_dtypes
    @pytest.mark.parametrize("real", [slice(1, 200), slice(96, 192), slice(100, LENGTH), slice(0, 97)], ids=str)
    def test_padding_on_either_side_equals_no_padding(self, dtype, real):
        mask = torch.zeros(1, LENGTH, dtype=torch.bool)
        mask[:, real] = True
        inputs, table = self.inputs(dtype), table_of(self.ENTRIES, heads=4, dtype=dtype)
        out = ops.cope_attention(*inputs[:3], table, gate_key=inputs[3], key_mask=mask)[:, :, real]
        grads = torch.autograd.grad(out.sin().sum(), (*inputs, table))
        apart = [*(x[:, :, real].detach().requires_grad_() for x in inputs), table]
        expected, expected_grads = self.results(apart)
        assert_near(out.detach(), expected.detach(), scale=4)
        for whole, theirs in zip(grads[:4], expected_grads[:4], strict=True):
            assert_near(whole[:, :, real], theirs, scale=40)
            rest = whole.clone()
            rest[:, :, real] = 0
            assert_bits(rest, torch.zeros_like(rest))
        assert_near(grads[4], expected_grads[4], scale=100)
