"""Gradients of the attention ops, through out and lse, to every tensor that may have one."""

import pytest
import torch

import posenc
from attention_cases import CASES, ONE_OF_EACH, finite, function_of
from devices import each_device
from tolerances import assert_bits

pytestmark = [pytest.mark.kernels, each_device]
every_case = pytest.mark.parametrize("case", CASES, ids=str)
one_of_each = pytest.mark.parametrize("case", ONE_OF_EACH, ids=str)


def leaves(case, dtype=torch.float64):
    return {name: x.requires_grad_() for name, x in case.tensors(dtype).items()}


@every_case
def test_gradients_equal_those_of_plain_sums(case):
    tensors = leaves(case)
    out, lse = case.run(tensors)
    grads = (torch.randn_like(out), torch.randn_like(lse))
    computed = torch.autograd.grad((out, finite(lse)), list(tensors.values()), grads)
    expected_out, expected_lse = case.expected(tensors)
    expected = torch.autograd.grad(
        (expected_out, finite(expected_lse)), list(tensors.values()), grads, allow_unused=True, materialize_grads=True
    )
    for name, result, e in zip(tensors, computed, expected, strict=True):
        torch.testing.assert_close(result, e, msg=lambda text, name=name: f"{name}: {text}")


@one_of_each
def test_gradcheck(case):
    tensors = leaves(case)
    assert torch.autograd.gradcheck(function_of(case, tensors), tuple(tensors.values()))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16], ids=str)
@every_case
def test_gradients_of_other_dtypes(case, dtype):
    tensors = leaves(case, dtype)
    out, lse = case.run(tensors)
    grads = (torch.randn_like(out), torch.randn_like(lse))
    computed = torch.autograd.grad((out, finite(lse)), list(tensors.values()), grads)
    wide = {name: x.detach().double().requires_grad_() for name, x in tensors.items()}
    expected_out, expected_lse = case.expected(wide)
    expected = torch.autograd.grad(
        (expected_out, finite(expected_lse)),
        list(wide.values()),
        tuple(g.double() for g in grads),
        allow_unused=True,
        materialize_grads=True,
    )
    # 16-bit gradients see out, which they sum with, rounded to 16 bits.
    tolerance = {torch.float32: 1e-5, torch.bfloat16: 2.0**-7, torch.float16: 2.0**-9}[dtype]
    for x, result, e in zip(tensors.values(), computed, expected, strict=True):
        assert result.dtype == x.dtype and result.shape == x.shape
        torch.testing.assert_close(result.double(), e, rtol=tolerance, atol=tolerance * max(1.0, e.abs().max().item()))


@one_of_each
def test_only_wanted_gradients_are_computed(case):
    for wanted in case.tensors():
        tensors = case.tensors()
        tensors[wanted].requires_grad_()
        out, _ = case.run(tensors)
        out.square().sum().backward()
        every = leaves_of(tensors)
        other_out, _ = case.run(every)
        other_out.square().sum().backward()
        torch.testing.assert_close(tensors[wanted].grad, every[wanted].grad)
        assert all(x.grad is None for name, x in tensors.items() if name != wanted)


def leaves_of(tensors):
    return {name: x.detach().clone().requires_grad_() for name, x in tensors.items()}


@one_of_each
def test_a_gradient_has_the_strides_of_its_input(case):
    tensors = {
        name: (x.transpose(1, 2).contiguous().transpose(1, 2) if x.dim() == 4 else x).detach().requires_grad_()
        for name, x in case.tensors(torch.float32).items()
    }
    out, _ = case.run(tensors)
    for x, grad in zip(tensors.values(), torch.autograd.grad(out.sum(), list(tensors.values())), strict=True):
        assert grad.stride() == x.stride()


@one_of_each
def test_the_gradient_of_lse_alone(case):
    tensors = leaves(case)
    _, lse = case.run(tensors)
    computed = torch.autograd.grad(finite(lse).sum(), list(tensors.values()))
    _, expected_lse = case.expected(tensors)
    expected = torch.autograd.grad(
        finite(expected_lse).sum(), list(tensors.values()), allow_unused=True, materialize_grads=True
    )
    for result, e in zip(computed, expected, strict=True):
        torch.testing.assert_close(result, e)


def test_no_gradient_under_no_grad():
    q = torch.randn(1, 1, 3, 4, requires_grad=True)
    with torch.no_grad():
        assert not posenc.ops.attention(q, q, q).requires_grad
    with torch.inference_mode():
        assert posenc.ops.attention(q, q, q).is_inference()


def test_gradients_are_the_same_bits_in_every_run():
    for case in ONE_OF_EACH:
        tensors = leaves(case, torch.float32)
        runs = [torch.autograd.grad(case.run(tensors)[0].sum(), list(tensors.values())) for _ in range(2)]
        for first, second in zip(*runs, strict=True):
            assert_bits(first, second)


def test_an_input_used_twice_gets_both_gradients():
    x = torch.randn(1, 2, 4, 6, dtype=torch.float64, requires_grad=True)
    parts = [x.detach().clone().requires_grad_() for _ in range(3)]
    (together,) = torch.autograd.grad(posenc.ops.attention(x, x, x).sin().sum(), x)
    apart = torch.autograd.grad(posenc.ops.attention(*parts).sin().sum(), parts)
    torch.testing.assert_close(together, sum(apart))


def test_cope_counts_gates_whose_position_is_an_integer_with_the_slope_above():
    """At an integer position c the slope between entries c and c + 1 holds."""
    key = torch.zeros(1, 1, 3, 1, dtype=torch.float64, requires_grad=True)
    query = torch.tensor([[[[1.0]]]], dtype=torch.float64, requires_grad=True)
    value = torch.tensor([[[[1.0], [0.0], [0.0]]]], dtype=torch.float64)
    table = torch.tensor([[[0.0, 1.0, 3.0]]], dtype=torch.float64, requires_grad=True)
    out = posenc.ops.cope_attention(query, key, value, table, scale=1.0)
    torch.testing.assert_close(out.item(), 0.628532, rtol=0, atol=5e-7)
    grad_key, grad_table, grad_query = torch.autograd.grad(out, (key, table, query))
    expected = {"rtol": 0, "atol": 5e-7}
    torch.testing.assert_close(grad_key.flatten(), torch.tensor([0.350219, -0.101258, -0.066111]).double(), **expected)
    torch.testing.assert_close(
        grad_table.flatten(), torch.tensor([-0.044074, -0.072666, 0.116740]).double(), **expected
    )
    torch.testing.assert_close(grad_query.item(), 0.277554, **expected)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
def test_slopes_and_tables_of_16_bit_inputs_keep_their_digits(dtype):
    """Their gradients sum over long rows with large factors, in which a rounded out would not cancel."""
    q, k, v, grad = (torch.randn(1, 2, 1500, 16).to(dtype) for _ in range(4))
    slopes, table = torch.tensor([0.01, 0.001]).requires_grad_(), torch.zeros(2, 129).requires_grad_()

    def gradients(*tensors):
        out = posenc.ops.attention(*tensors, is_causal=True, alibi_slopes=slopes, distance_bias=table)
        return torch.autograd.grad(out, (slopes, table), grad.to(out.dtype))

    for result, e in zip(gradients(q, k, v + 1), gradients(q.double(), k.double(), (v + 1).double()), strict=True):
        torch.testing.assert_close(result, e, rtol=1e-3, atol=1e-3 * e.abs().max().item())
