"""Faults of other rotary implementations' gradients: each test fails where the fault exists."""

from typing import ClassVar

import pytest
import torch
from torch.autograd import gradcheck, gradgradcheck
from torch.utils.checkpoint import checkpoint

import posenc
import reference
from rotary_calls import FUNCTIONAL, INV_FREQ, every_op, tables
from tolerances import assert_bits, assert_near

ops = posenc.ops
Rotary = posenc.nn.Rotary


class TestGradients:
    @every_op
    def test_outputs_carry_a_graph(self, op):
        x = torch.randn(1, 2, 3, 4, dtype=torch.float64, requires_grad=True)
        for y in FUNCTIONAL[op](x, x * 2):
            assert y.requires_grad
            assert y.grad_fn is not None
            (grad,) = torch.autograd.grad(y.sum(), x, retain_graph=True)
            assert grad.isfinite().all()
            assert grad.any()
        assert gradcheck(FUNCTIONAL[op], (x, torch.randn_like(x).requires_grad_()))

    def test_tables_and_frequencies_carry_a_graph(self):
        f = INV_FREQ.clone().requires_grad_()
        for y in (*ops.rotary_tables(None, f, length=3), ops.rotary(torch.randn(1, 2, 3, 4), None, f)):
            assert y.grad_fn is not None
            (grad,) = torch.autograd.grad(y.sum(), f, retain_graph=True)
            assert grad.isfinite().all()
            assert grad.any()

    def test_the_gradient_of_a_rotation_by_1_is_the_rotation_by_minus_1(self):
        x = torch.randn(1, 1, 1, 4, dtype=torch.float64, requires_grad=True)
        grad_out = torch.tensor([1.0, 0, 0, 0], dtype=torch.float64).view(1, 1, 1, 4)
        (grad,) = torch.autograd.grad(ops.rotary(x, torch.tensor([1]), INV_FREQ), x, grad_out)
        expected = torch.tensor([0.5403023, 0, -0.8414710, 0], dtype=torch.float64).view(1, 1, 1, 4)
        torch.testing.assert_close(grad, expected, rtol=0, atol=1e-7)


class TestMutation:
    @every_op
    def test_inputs_keep_their_bits_and_version(self, op):
        x = torch.randn(1, 3, 2, 4, dtype=torch.float64, requires_grad=True)
        x0, version = x.detach().clone(), x._version
        z = (x * x).sum() + sum(y.sum() for y in FUNCTIONAL[op](x, x))
        z.backward()
        assert_bits(x.detach(), x0)
        assert x._version == version
        wide = x0.clone().requires_grad_()
        ((wide * wide).sum() + 2 * reference.rotary(wide, None, INV_FREQ).sum()).backward()
        torch.testing.assert_close(x.grad, wide.grad, rtol=1e-6, atol=1e-6)

    @every_op
    @pytest.mark.parametrize("use_reentrant", [False, True])
    def test_checkpointing_changes_no_gradient(self, op, use_reentrant):
        x = torch.randn(1, 3, 2, 4, dtype=torch.float64, requires_grad=True)
        x0 = x.detach().clone()

        def run(x):
            return (x * x).sum() + sum(y.sum() for y in FUNCTIONAL[op](x, x))

        (expected,) = torch.autograd.grad(run(x), x)
        checkpoint(run, x, use_reentrant=use_reentrant).backward()
        assert_bits(x.grad, expected)
        assert_bits(x.detach(), x0)

    @pytest.mark.parametrize("op", ["rotary_qk_", "apply_rotary_qk_"])
    def test_in_place_ops_raise_the_version(self, op):
        rest = (None, INV_FREQ) if op == "rotary_qk_" else tables(2)
        x, k, w = torch.randn(1, 3, 2, 4), torch.randn(1, 3, 2, 4), torch.randn(1, 3, 2, 4, requires_grad=True)
        version, z = x._version, (w * x).sum()
        getattr(ops, op)(x, k, *rest)
        assert x._version > version
        with pytest.raises(RuntimeError, match="modified by an inplace operation"):
            z.backward()
        with pytest.raises(RuntimeError, match=op):
            getattr(ops, op)(w * 1, k, *rest)


class TestCallsInModes:
    @staticmethod
    def gradients(module, x):
        x = x.detach().requires_grad_()
        module(x).pow(3).sum().backward()
        result = [x.grad, *(p.grad for p in module.parameters())]
        module.zero_grad()
        return result

    MODES: ClassVar = {
        "inference_mode": torch.inference_mode,
        "no_grad": torch.no_grad,
        "autocast": lambda: torch.autocast("cpu", dtype=torch.bfloat16),
    }

    @pytest.mark.parametrize("learnable", [False, True])
    @pytest.mark.parametrize("mode", [*MODES, "compile"])
    def test_a_first_call_in_a_mode_leaves_no_trace(self, mode, learnable, fresh_compiler):
        module, fresh, x = Rotary(8, learnable=learnable), Rotary(8, learnable=learnable), torch.randn(2, 3, 5, 8)
        if mode == "compile":
            torch.compile(module, backend="aot_eager", fullgraph=True)(x)
        else:
            with self.MODES[mode]():
                module(x)
        expected = self.gradients(fresh, x)
        for _ in range(2):
            for grad, e in zip(self.gradients(module, x), expected, strict=True):
                assert_bits(grad, e)

    def test_a_module_built_under_inference_mode_can_be_trained_with(self):
        with torch.inference_mode():
            module = Rotary(8)
            module(torch.randn(1, 2, 3, 8))
        x = torch.randn(1, 2, 3, 8)
        for grad, e in zip(self.gradients(module, x), self.gradients(Rotary(8), x), strict=True):
            assert_bits(grad, e)

    def test_learned_frequencies_are_read_on_every_step(self):
        module, x = Rotary(8, learnable=True), torch.randn(1, 2, 3, 8)
        optimizer = torch.optim.SGD(module.parameters(), lr=0.1)
        outputs = []
        for _ in range(3):
            optimizer.zero_grad()
            y = module(x)
            y.sum().backward()
            optimizer.step()
            outputs.append(y.detach())
            assert_near(module(x), reference.rotary(x, None, module.inv_freq.detach()))
        assert not torch.equal(outputs[0], outputs[1])
        assert not torch.equal(outputs[1], outputs[2])


class TestSecondDerivatives:
    @every_op
    def test_second_derivatives_are_exact(self, op):
        q = torch.randn(1, 3, 1, 4, dtype=torch.float64, requires_grad=True)
        k = torch.randn(1, 3, 1, 4, dtype=torch.float64, requires_grad=True)
        assert gradgradcheck(lambda q, k: tuple(y * y for y in FUNCTIONAL[op](q, k)), (q, k))

    def test_second_derivatives_of_tables_and_frequencies_are_exact(self):
        f = INV_FREQ.clone().requires_grad_()
        x = torch.randn(1, 3, 1, 4, dtype=torch.float64, requires_grad=True)
        positions = torch.tensor([3])
        assert gradgradcheck(lambda x, f: ops.rotary(x, positions, f), (x, f))
        assert gradgradcheck(lambda f: ops.rotary_tables(positions, f, dtype=torch.float64), (f,))
        cos, sin = (t.requires_grad_() for t in tables(1, dtype=torch.float64))
        assert gradgradcheck(ops.apply_rotary, (x, cos, sin))

    def test_the_second_derivative_of_a_rotation_by_1(self):
        """x -> grad_in for grad_out = [1, 0], then d(grad_in . [1, 0]) / d(grad_out)."""
        x = torch.randn(1, 1, 1, 2, dtype=torch.float64, requires_grad=True)
        grad_out = torch.tensor([1.0, 0.0], dtype=torch.float64).view(1, 1, 1, 2).requires_grad_()
        y = ops.rotary(x, torch.tensor([1]), torch.ones(1, dtype=torch.float64))
        (grad_in,) = torch.autograd.grad(y, x, grad_out, create_graph=True)
        (second,) = torch.autograd.grad(grad_in[..., 0].sum(), grad_out)
        # column 0 of the transposed rotation: (cos 1, sin 1)
        torch.testing.assert_close(second.flatten(), torch.tensor([0.5403023, 0.8414710]).double(), rtol=0, atol=1e-7)
