"""Faults of other rotary implementations: memory, shapes, devices and modules;
each test fails where the fault exists."""

import copy
from typing import ClassVar

import pytest
import torch

import layouts
import posenc
import reference
from rotary_calls import FUNCTIONAL, INV_FREQ, every_op, tables
from tolerances import assert_bits, assert_near

pytestmark = pytest.mark.kernels

ops = posenc.ops
Rotary = posenc.nn.Rotary


class TestStrides:
    @staticmethod
    def inputs(name):
        qkv = torch.randn(2, 5, 3, 4, 8)
        if name == "packed":
            return qkv, qkv[:, :, 0].transpose(1, 2), qkv[:, :, 1].transpose(1, 2)
        if name == "transposed":
            x = torch.randn(2, 4, 5, 8)
            return x, x.transpose(1, 2), x.transpose(1, 2).clone().transpose(1, 2).contiguous().transpose(1, 2)
        wide = torch.randn(2, 4, 5, 16)
        return wide, wide[..., ::2], wide[..., 1::2]

    @every_op
    @pytest.mark.parametrize("name", ["packed", "transposed", "last_stride_2"])
    @pytest.mark.parametrize("gradient", ["contiguous", "transposed", "expanded_heads", "one_number", "every_second"])
    def test_strides_change_no_bit(self, op, name, gradient):
        storage, q, k = self.inputs(name)
        before = storage.clone()
        k = k if k.shape == q.shape else torch.randn(q.shape)
        grads = [layouts.make(gradient, q.shape, torch.float32) for _ in range(2)]

        def run(q, k, grads):
            q, k = q.detach().requires_grad_(), k.detach().requires_grad_()
            outputs = FUNCTIONAL[op](q, k)
            return *outputs, *torch.autograd.grad(outputs, (q, k), grads)

        expected = run(q.contiguous(), k.contiguous(), [g.contiguous() for g in grads])
        for y, e in zip(run(q, k, grads), expected, strict=True):
            assert_bits(y.detach(), e.detach())
        assert_bits(storage, before)

    @pytest.mark.parametrize("op", ["rotary_qk_", "apply_rotary_qk_"])
    def test_in_place_writes_only_what_was_passed(self, op):
        qkv, q, k = self.inputs("packed")
        v = qkv[:, :, 2].clone()
        expected = ops.rotary_qk(q, k, None, INV_FREQ)
        rest = (None, INV_FREQ) if op == "rotary_qk_" else tables(5)
        getattr(ops, op)(q, k, *rest)
        assert_near(q, expected[0].double())
        assert_near(k, expected[1].double())
        assert_bits(qkv[:, :, 2], v)


class TestRepeatedCalls:
    def test_every_call_equals_a_fresh_module(self):
        module, x = Rotary(4), torch.tensor([1.0, 0, 0, 0]).view(1, 1, 1, 4)
        first = module(x, offset=0)
        shifted = module(x, offset=5)
        expected = torch.tensor([0.2836622, 0, -0.9589243, 0]).view(1, 1, 1, 4)
        torch.testing.assert_close(shifted, expected, rtol=0, atol=1e-6)
        assert_bits(module(x, offset=0), first)
        for dtype in (torch.float32, torch.float64, torch.bfloat16, torch.float32):
            for length in (3, 7, 3):
                x = torch.randn(1, 2, length, 4).to(dtype)
                assert_bits(module(x), Rotary(4)(x))

    def test_length_dependent_scaling_remembers_nothing(self):
        scaling = posenc.scaling.DynamicNTK(2.0, 4)
        module = Rotary(4, scaling=scaling)
        for length in (3, 9, 3, 30, 5):
            x = torch.randn(1, 2, length, 4)
            assert_bits(module(x), Rotary(4, scaling=scaling)(x))


class TestShapes:
    @pytest.mark.parametrize("build", [Rotary, posenc.nn.cpp.Rotary], ids=["python", "cpp"])
    def test_constructors_refuse_widths_that_do_not_fit(self, build):
        for args, options in [
            ((65,), {"rotary_dim": 33}),
            ((4,), {"rotary_dim": 6}),
            ((65,), {}),
            ((8,), {"base": -10000.0}),
            ((0,), {}),
        ]:
            with pytest.raises(ValueError, match="(Rotary|frequencies): expected"):
                build(*args, **options)
        with pytest.raises(ValueError, match="factor"):
            build(8, scaling=posenc.scaling.Linear(0.0))

    def test_raw_ops_refuse_wide_tables(self):
        x, wide = torch.randn(1, 2, 3, 33), torch.randn(3, 34)
        for call in (
            lambda: torch.ops.posenc.apply_rotary(x, wide, wide),
            lambda: torch.ops.posenc.apply_rotary_qk(x, x, wide, wide),
            lambda: torch.ops.posenc.apply_rotary_qk_(x, x.clone(), wide, wide),
            lambda: torch.ops.posenc.rotary(x, None, torch.ones(17, dtype=torch.float64)),
            lambda: torch.ops.posenc.rotary_qk(x, x, None, torch.ones(17, dtype=torch.float64)),
            lambda: torch.ops.posenc.rotary_qk_(x, x.clone(), None, torch.ones(17, dtype=torch.float64)),
        ):
            with pytest.raises(ValueError, match=r"\[1, 2, 3, 33\]"):
                call()

    def test_even_width_on_an_odd_head_is_legal(self):
        x = torch.randn(1, 2, 3, 5)
        y = Rotary(5, rotary_dim=4)(x)
        assert_near(y, reference.rotary(x, None, INV_FREQ))
        assert_bits(y[..., 4], x[..., 4])


class TestDevices:
    """The meta device stands for any other: what would be put on the wrong device here would be there too."""

    def test_the_module_follows_its_inputs(self):
        module, x = Rotary(8, scaling=posenc.scaling.Yarn(4.0, 64)), torch.randn(1, 2, 3, 8)
        expected = module(x)
        assert module(x.to("meta")).device.type == "meta"
        assert_bits(module(x), expected)

    @pytest.mark.parametrize(
        "scaling", [None, posenc.scaling.Yarn(4.0, 64), posenc.scaling.DynamicNTK(2.0, 4)], ids=str
    )
    def test_the_default_device_is_not_used(self, scaling):
        x = torch.randn(1, 2, 3, 8)
        with torch.device("meta"):
            module = Rotary(8, scaling=scaling)
            inside = module(x, positions=torch.arange(3, device="cpu"))
        assert_bits(inside, Rotary(8, scaling=scaling)(x))
        assert_bits(module(x), inside)

    def test_tensors_on_different_devices_are_refused_by_name(self):
        x, inv_freq = torch.randn(1, 2, 3, 4), INV_FREQ.to("meta")
        for call in (
            lambda: ops.rotary(x, None, inv_freq),
            lambda: ops.rotary(x, torch.arange(3, device="meta"), INV_FREQ),
            lambda: ops.rotary_qk(x, x.to("meta"), None, INV_FREQ),
            lambda: ops.apply_rotary(x, *(t.to("meta") for t in tables(3))),
            lambda: ops.rotary_tables(torch.arange(3, device="meta"), INV_FREQ),
            lambda: Rotary(4)(x, positions=torch.arange(3, device="meta")),
        ):
            with pytest.raises(ValueError, match=r"(cpu.*meta)|(meta.*cpu)"):
                call()


class TestOutputMemory:
    INPUTS: ClassVar = {
        "all_positions_0": (torch.zeros(3, dtype=torch.int64), INV_FREQ),
        "no_rotated_columns": (torch.arange(3), INV_FREQ[:0]),
        "plain": (torch.arange(3), INV_FREQ),
    }

    @pytest.mark.parametrize("name", INPUTS)
    @pytest.mark.parametrize("same", [False, True], ids=["q_and_k", "same_tensor"])
    def test_outputs_own_their_memory(self, name, same):
        positions, inv_freq = self.INPUTS[name]
        q = torch.randn(1, 2, 3, 4)
        k = q if same else torch.randn(1, 2, 3, 4)
        cos, sin = ops.rotary_tables(positions, inv_freq)
        for outputs in (
            ops.rotary_qk(q, k, positions, inv_freq),
            ops.apply_rotary_qk(q, k, cos, sin),
            (ops.rotary(q, positions, inv_freq), ops.rotary(k, positions, inv_freq)),
            (ops.apply_rotary(q, cos, sin), ops.apply_rotary(k, cos, sin)),
        ):
            pointers = {t.untyped_storage().data_ptr() for t in (q, k, *outputs)}
            assert len(pointers) == (3 if same else 4)
            for y, e in zip(outputs, ops.rotary_qk(q, k.clone(), positions, inv_freq), strict=True):
                assert_near(y, e.double())
        if cos.numel():
            assert cos.untyped_storage().data_ptr() != sin.untyped_storage().data_ptr()

    @every_op
    def test_empty_inputs_give_empty_outputs(self, op):
        x = torch.randn(1, 2, 0, 4, dtype=torch.float64)
        for y in FUNCTIONAL[op](x, x):
            assert y is not x
            assert y.shape == x.shape
            assert y._base is None


class TestModuleSemantics:
    OPTIONS: ClassVar = {
        "base": 500.0,
        "interleaved": True,
        "rotary_dim": 4,
        "exact": False,
        "head_dim": 16,
        "seq_len": 9,
    }

    @pytest.mark.parametrize("name", OPTIONS)
    def test_attribute_writes_take_effect_or_raise(self, name):
        module, x = Rotary(8), torch.randn(1, 2, 3, 8)
        try:
            setattr(module, name, self.OPTIONS[name])
        except (AttributeError, TypeError):
            assert_bits(module(x), Rotary(8)(x))
            return
        head_dim = self.OPTIONS[name] if name == "head_dim" else 8
        options = {} if name == "head_dim" else {name: self.OPTIONS[name]}
        x = torch.randn(1, 2, 3, head_dim)
        assert_bits(module(x, offset=10000), Rotary(head_dim, **options)(x, offset=10000))

    def test_parameter_writes_reach_the_kernel(self):
        module, x = Rotary(8, learnable=True), torch.randn(1, 2, 3, 8)
        module.inv_freq = torch.nn.Parameter(torch.tensor([0.5, 0.25, 0.125, 0.0]))
        assert_near(module(x), reference.rotary(x, None, module.inv_freq.detach()))

    def test_a_parent_module_sees_each_parameter_once(self):
        parent = torch.nn.ModuleDict({"a": Rotary(8, learnable=True), "b": Rotary(8)}).to(torch.float64)
        assert list(parent.state_dict()) == ["a.inv_freq"]
        assert [name for name, _ in parent.named_parameters()] == ["a.inv_freq"]
        assert parent["a"].inv_freq.dtype == torch.float64
        twin = copy.deepcopy(parent)
        with torch.no_grad():
            twin["a"].inv_freq.zero_()
        assert parent["a"].inv_freq.all()
        x = torch.randn(1, 2, 3, 8, dtype=torch.float64)
        assert_bits(twin["a"](x), x)

    def test_a_module_in_two_places_is_counted_once(self):
        rope = Rotary(8, learnable=True)
        parent = torch.nn.ModuleList([rope, rope])
        assert len(list(parent.parameters())) == 1
