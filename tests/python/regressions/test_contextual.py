"""Faults of other implementations of CoPE: the right numbers, for both of its forms."""

import math

import pytest
import torch

from contextual_calls import nn
from tolerances import assert_bits


def module_form(module, q, k, v):
    """The paper's module on masked logits."""
    mask = torch.full((q.shape[2], k.shape[2]), -math.inf, dtype=q.dtype).triu(1)
    scores = q @ k.transpose(-1, -2) / math.sqrt(q.shape[-1]) + mask
    return torch.softmax(scores + module(q, scores), -1) @ v


FORMS = {"attend": lambda module, q, k, v: module.attend(q, k, v), "module": module_form}
every_form = pytest.mark.parametrize("form", FORMS.values(), ids=FORMS)


class TestCoPECausality:
    def test_every_row_counts_from_its_own_query(self):
        """All scores 0, gates 1/2; entry p of the table is p. Counting from the last key would give 1.5 for row 0."""
        module = nn.CoPE(1, 8)
        with torch.no_grad():
            module.pos_emb.copy_(torch.arange(8))
        q, k = torch.ones(1, 1, 3, 1), torch.zeros(1, 1, 3, 1)
        masked = torch.full((3, 3), -math.inf).triu(1).expand(1, 1, 3, 3)
        for p in (module.logits(q, k)[0, 0], module(q, masked)[0, 0]):
            assert p[0, :1].tolist() == [0.5]
            assert p[1, :2].tolist() == [1.0, 0.5]
            assert p[2].tolist() == [1.5, 1.0, 0.5]

    @every_form
    def test_a_later_key_changes_nothing_before_it(self, form):
        torch.manual_seed(7)
        module = nn.CoPE(4, 8)
        with torch.no_grad():
            module.pos_emb.normal_()
        q, k, v = torch.randn(3, 1, 1, 3, 4).requires_grad_().unbind()

        def rows(k, v):
            out = form(module, q, k, v)[:, :, :2]
            return out.detach(), torch.autograd.grad(out.square().sum(), (q, k, v, module.pos_emb))

        out, grads = rows(k, v)
        moved = torch.tensor([0.0, 0.0, 3.0]).view(1, 1, 3, 1)
        moved_out, moved_grads = rows(k + moved, v - moved)
        assert_bits(moved_out, out)
        for ours, theirs in zip(moved_grads, grads, strict=True):
            assert_bits(ours, theirs)
        for grad in grads[1:3]:
            assert (grad[:, :, 2] == 0).all()
        assert (grads[0][:, :, 2] == 0).all()

    @every_form
    @pytest.mark.parametrize("row", range(1, 5))
    def test_gradients_of_later_keys_are_exactly_0(self, form, row):
        module = nn.CoPE(4, 3)
        with torch.no_grad():
            module.pos_emb.normal_()
        q, k, v = (torch.randn(1, 2, 5, 4, requires_grad=True) for _ in range(3))
        for grad in torch.autograd.grad(form(module, q, k, v)[:, :, row].square().sum(), (k, v)):
            assert (grad[:, :, row + 1 :] == 0).all()
            assert (grad[:, :, row] != 0).any()
