"""Faults that the rotary ops and modules once had, each with all of its kind."""

import math

import pytest
import torch
import torch._functorch.config
import torch._inductor.config
import torch.autograd.forward_ad as forward_ad

from posenc import nn, ops, scaling

FREQUENCIES = scaling.frequencies(8)[0]


def tables(length, dtype=torch.float32):
    return ops.rotary_tables(None, FREQUENCIES, length=length, offset=3, dtype=dtype)


IN_PLACE = {
    "rotary_qk_": (
        lambda q, k: ops.rotary_qk_(q, k, None, FREQUENCIES, offset=3),
        lambda q, k: ops.rotary_qk(q, k, None, FREQUENCIES, offset=3),
    ),
    "apply_rotary_qk_": (
        lambda q, k: ops.apply_rotary_qk_(q, k, *tables(q.shape[2], q.dtype)),
        lambda q, k: ops.apply_rotary_qk(q, k, *tables(q.shape[2], q.dtype)),
    ),
}
in_place = pytest.mark.parametrize(("write", "functional"), IN_PLACE.values(), ids=IN_PLACE)


@in_place
@pytest.mark.parametrize("dynamic", [False, True])
@torch._functorch.config.patch(enable_autograd_cache=False)
@torch._inductor.config.patch(force_disable_caches=True)
def test_compiled_in_place_ops_write_both_slices_of_a_packed_projection(write, functional, dynamic):
    torch._dynamo.reset()

    def call(packed):
        write(packed[:, 0], packed[:, 1])
        return packed + 1

    packed = torch.randn(2, 2, 3, 4, 8)
    expected = torch.stack(functional(packed[:, 0], packed[:, 1]), 1)
    compiled = packed.clone()
    result = torch.compile(call, fullgraph=True, dynamic=dynamic)(compiled)
    torch.testing.assert_close(compiled, expected)
    torch.testing.assert_close(result, expected + 1)


@in_place
def test_in_place_ops_are_functionalised(write, functional):
    def call(q, k):
        q, k = q.clone(), k.clone()
        write(q, k)
        return q, k

    q, k = torch.randn(2, 4, 5, 8), torch.randn(2, 2, 5, 8)
    torch.testing.assert_close(torch.func.functionalize(call)(q, k), functional(q, k))


@in_place
def test_in_place_ops_carry_tangents(write, functional):
    def call(q):
        q = q * 1
        k = q.clone()
        write(q, k)
        return q, k

    q, tangent = torch.randn(2, 4, 5, 8, dtype=torch.float64), torch.randn(2, 4, 5, 8, dtype=torch.float64)
    expected = torch.func.jvp(lambda q: functional(q, q.clone()), (q,), (tangent,))
    torch.testing.assert_close(torch.func.jvp(call, (q,), (tangent,)), expected)
    with forward_ad.dual_level():
        duals = [forward_ad.unpack_dual(out) for out in call(forward_ad.make_dual(q, tangent))]
    torch.testing.assert_close(tuple(dual.tangent for dual in duals), expected[1])


OVERLAPPING = {
    "heads of the other": lambda: (lambda x: (x, x[:, 1:3]))(torch.randn(2, 4, 5, 8)),
    "the same slice": lambda: (lambda x: (x[:, :, 0].transpose(1, 2), x[:, :, 0].transpose(1, 2)))(
        torch.randn(2, 5, 3, 4, 8)
    ),
    "neighbouring slices that share a head": lambda: (lambda x: (x[:, :3], x[:, 2:4]))(torch.randn(2, 4, 5, 8)),
    "every second and every third head": lambda: (lambda x: (x[:, ::2], x[:, ::3]))(torch.randn(2, 6, 5, 8)),
    "windows": lambda: (lambda x: tuple(x.as_strided((1, 2, 3, 8), (48, 24, 8, 1), start) for start in (0, 20)))(
        torch.randn(96)
    ),
}


@in_place
@pytest.mark.parametrize("views", OVERLAPPING.values(), ids=OVERLAPPING)
def test_in_place_ops_refuse_q_and_k_that_overlap(write, functional, views):
    q, k = views()
    before = q.clone(), k.clone()
    with pytest.raises(RuntimeError, match=r"rotary_qk_: expected q and k to share no element"):
        write(q, k)
    torch.testing.assert_close((q, k), before)


@in_place
def test_in_place_ops_refuse_tensors_that_overlap_themselves(write, functional):
    overlapping = torch.randn(64).as_strided((1, 2, 3, 8), (64, 12, 8, 1))
    with pytest.raises(RuntimeError, match=r"rotary_qk_: expected k to hold each element once"):
        write(torch.randn(1, 2, 3, 8), overlapping)


DISJOINT = {
    "packed by token": lambda: (lambda x: (x[:, :, 0].transpose(1, 2), x[:, :, 1].transpose(1, 2)))(
        torch.randn(2, 5, 3, 4, 8)
    ),
    "packed by head": lambda: (lambda x: (x[:, :4], x[:, 4:6]))(torch.randn(2, 8, 5, 8)),
    "alternate heads": lambda: (lambda x: (x[:, ::2], x[:, 1::2]))(torch.randn(2, 8, 5, 8)),
    "alternate columns": lambda: (lambda x: (x[..., ::2], x[..., 1::2]))(torch.randn(2, 4, 5, 16)),
    "third heads between second ones": lambda: (lambda x: (x[:, ::2], x[:, 3:4]))(torch.randn(2, 6, 5, 8)),
}


@in_place
@pytest.mark.parametrize("views", DISJOINT.values(), ids=DISJOINT)
def test_in_place_ops_take_views_that_share_storage_and_no_element(write, functional, views):
    q, k = views()
    expected = functional(q, k)
    write(q, k)
    torch.testing.assert_close((q, k), expected)


@pytest.mark.kernels
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("position", [math.inf, -math.inf, math.nan])
def test_a_position_without_end_reaches_the_pairs_of_its_own_axis_alone(dtype, position):
    x = torch.randn(1, 1, 2, 8, dtype=dtype)
    positions = torch.tensor([[1.0, 2.0], [position, 0.0]])
    turned = ops.rotary(x, positions, FREQUENCIES, axes=[0, 1, 0, 1])
    alone = ops.rotary(x, positions[0], FREQUENCIES)
    assert turned[0, 0, 0, 1::2].isnan().all()
    torch.testing.assert_close(turned[0, 0, 0, ::2], alone[0, 0, 0, ::2])
    assert turned[0, 0, 1].isfinite().all()


def test_axes_without_positions_agree_however_many_there_are():
    x = torch.randn(1, 2, 3, 8)
    expected = ops.rotary(x, None, FREQUENCIES, offset=5)
    for axis in (3, 10**6, 2**60 - 1, 2**63 - 1):
        assert torch.equal(ops.rotary(x, None, FREQUENCIES, axes=[0, 1, 0, axis], offset=5), expected)


@pytest.mark.kernels
@pytest.mark.parametrize("position", [10**6, 10**9])
def test_float64_tables_hold_at_large_positions_at_every_level(position):
    cos, sin = ops.rotary_tables(torch.tensor([position]), FREQUENCIES, dtype=torch.float64)
    for k, frequency in enumerate(FREQUENCIES.tolist()):
        numerator, denominator = frequency.as_integer_ratio()
        angle = reduced(position * numerator, denominator)
        assert abs(cos[0, k].item() - math.cos(angle)) < 1e-13
        assert abs(sin[0, k].item() - math.sin(angle)) < 1e-13


def reduced(numerator, denominator):
    """numerator / denominator modulo 2 pi, by integers: 2 pi to 200 bits."""
    bits = 200
    two_pi = int("6283185307179586476925286766559005768394338798750211641949889184615632812572417997256069650684234136")
    scale = 10 ** (len(str(two_pi)) - 1)
    turn = (two_pi << bits) // scale
    return ((numerator << bits) // denominator % turn) / (1 << bits)


def test_an_output_asks_for_a_gradient_only_where_its_input_does():
    q, k = torch.randn(1, 2, 3, 8, requires_grad=True), torch.randn(1, 2, 3, 8)
    for turn in (functional for _, functional in IN_PLACE.values()):
        q_turned, k_turned = turn(q, k)
        assert q_turned.requires_grad and not k_turned.requires_grad
        q_turned, k_turned = turn(k, q)
        assert k_turned.requires_grad and not q_turned.requires_grad
        (gradient,) = torch.autograd.grad(k_turned.sum(), q)
        assert gradient.abs().sum() > 0


def test_in_place_ops_name_the_input_that_asks_for_a_gradient():
    q, k, asking = torch.randn(1, 2, 3, 8), torch.randn(1, 2, 3, 8), FREQUENCIES.clone().requires_grad_()
    with pytest.raises(RuntimeError, match="inv_freq requires one"):
        ops.rotary_qk_(q, k, None, asking)


@pytest.mark.parametrize("twin", [False, True], ids=["python", "cpp"])
def test_modules_refuse_other_shapes_by_name(twin):
    modules = nn.cpp if twin else nn
    for module in (modules.XPos(8), modules.Rotary(8), modules.Rotary(8, scaling=scaling.DynamicNTK(2.0, 4))):
        for shape in ((8,), (5, 8), (4, 5, 8), (2, 4, 5, 16)):
            with pytest.raises(ValueError, match=r"expected q of shape \(batch, heads, length, head_dim\)"):
                module.forward(torch.randn(shape), torch.randn(shape))
    with pytest.raises(ValueError, match=r"equal batch, length and head_dim.*\[2, 2, 5, 16\]"):
        modules.XPos(8).forward(torch.randn(2, 4, 5, 8), torch.randn(2, 2, 5, 16))
    with pytest.raises(ValueError, match="seq_len to be at least 1, but got -3"):
        modules.Rotary(8).forward(torch.randn(2, 4, 5, 8), seq_len=-3)
    with pytest.raises(ValueError, match=r"offset of shape \(batch\)"):
        modules.Rotary(8).forward(torch.randn(2, 4, 5, 8), offset=torch.tensor([3]))
