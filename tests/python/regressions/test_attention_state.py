"""What attention's backward knows of its forward, on every path; and arguments that are missing."""

import pytest
import torch

import posenc
from tolerances import assert_near

ops = posenc.ops


def low_bias_call(dtype=torch.float32):
    """All keys of all rows have a bias of -1e9, as left padding gives: weights are uniform."""
    q, k, v = (torch.randn(1, 2, 6, 4, dtype=dtype) for _ in range(3))
    return q * 0, k, v.requires_grad_(), torch.full((1, 2, 6, 6), -1e9, dtype=dtype)


@pytest.mark.kernels
@pytest.mark.parametrize("create_graph", [False, True])
def test_gradients_under_a_low_bias_are_those_of_uniform_weights(create_graph):
    q, k, v, bias = low_bias_call()
    out = ops.attention(q, k, v, bias=bias)
    grad_out = torch.randn_like(out)
    (grad,) = torch.autograd.grad(out, v, grad_out, create_graph=create_graph)
    assert_near(grad.detach(), grad_out.mean(2, keepdim=True).expand_as(v), scale=10)


@pytest.mark.kernels
def test_the_backward_op_reads_the_softmax_state_of_the_forward_op():
    q, k, v, bias = low_bias_call()
    v = v.detach()
    forward = torch.ops.posenc._attention_forward.default
    backward = torch.ops.posenc._attention_backward.default
    with torch.no_grad():
        residuals = forward(q, k, v, bias=bias)
    grad_out = torch.randn_like(residuals[0])
    wanted = [False, False, True] + [False] * (len(backward._schema.returns) - 3)
    grads = backward(grad_out, None, *residuals, wanted, q, k, v, bias=bias)
    assert_near(grads[2], grad_out.mean(2, keepdim=True).expand_as(v), scale=10)


def test_second_derivatives_under_a_low_bias_are_finite_and_right():
    q, k, v, bias = low_bias_call(torch.float64)
    bias.requires_grad_()
    out = ops.attention(q, k, v, bias=bias)
    (of_bias,) = torch.autograd.grad(out[..., 0].pow(2).sum(), bias, create_graph=True)
    (second,) = torch.autograd.grad(of_bias.pow(2).sum(), bias)
    shifted = (bias.detach() + 1e9).requires_grad_()
    (expected,) = torch.autograd.grad(
        ops.attention(q, k, v, bias=shifted)[..., 0].pow(2).sum(), shifted, create_graph=True
    )
    (expected,) = torch.autograd.grad(expected.pow(2).sum(), shifted)
    assert_near(second, expected, scale=1e6)


@pytest.mark.parametrize(
    ("op", "argument"),
    [("cope_attention", "pos_emb"), ("piecewise_attention", "q_far")],
)
def test_a_required_tensor_that_is_none_is_named(op, argument):
    x = torch.randn(1, 2, 4, 4)
    names = {"piecewise_attention": ("q_near", "k_near", "k_far", "value")}.get(op, ("query", "key", "value"))
    more = {"threshold": 2} if op == "piecewise_attention" else {}
    with pytest.raises(TypeError, match=f"{op}.*{argument}.*None"):
        getattr(ops, op)(**dict.fromkeys(names, x), **{argument: None}, **more)


@pytest.mark.parametrize("name", ["query", "key", "value"])
def test_an_operand_that_is_none_is_named(name):
    tensors = dict.fromkeys(("query", "key", "value"), torch.randn(1, 2, 4, 4)) | {name: None}
    with pytest.raises(TypeError, match=f"attention: expected {name} to be a tensor, but got None"):
        ops.attention(**tensors)


def test_options_of_a_term_without_the_term_are_refused():
    x = torch.randn(1, 2, 4, 4)
    op = torch.ops.posenc.attention
    with pytest.raises(ValueError, match="expected q_far and k_far where one of them or threshold is given"):
        op(x, x, x, threshold=3)
    with pytest.raises(
        ValueError, match="expected pos_emb where gate_key, gate_bias or scale_position_logits is given"
    ):
        op(x, x, x, scale_position_logits=True)
    with pytest.raises(ValueError, match="expected rel_k where rel_v or rel_query is given"):
        op(x, x, x, rel_v=torch.zeros(3, 4))
    with pytest.raises(ValueError, match="use either"):
        op(x, x, x, is_causal=True, q_far=x, k_far=x, pos_emb=torch.zeros(1, 4, 3))


@pytest.mark.kernels
@pytest.mark.parametrize("queries", [1, 5, 100])
def test_a_slope_of_zero_leaves_the_other_heads_of_its_group_alone(queries):
    q, k, v = torch.randn(1, 4, queries, 8), torch.randn(1, 2, 100, 8), torch.randn(1, 2, 100, 8)
    slopes = torch.tensor([0.0, 0.5, 0.0, 1.0])
    out = ops.attention(q, k, v, is_causal=True, alibi_slopes=slopes)
    one_by_one = [
        ops.attention(
            q[:, h : h + 1],
            k[:, h // 2 : h // 2 + 1],
            v[:, h // 2 : h // 2 + 1],
            is_causal=True,
            alibi_slopes=slopes[h : h + 1],
        )
        for h in range(4)
    ]
    assert_near(out, torch.cat(one_by_one, 1))


@pytest.mark.kernels
@pytest.mark.parametrize("length", [5, 100])
def test_a_slope_of_zero_has_a_gradient(length):
    q, k, v = torch.randn(3, 1, 2, length, 8)

    def gradient(first):
        slopes = torch.tensor([first, 0.5], requires_grad=True)
        out = ops.attention(q, k, v, is_causal=True, alibi_slopes=slopes)
        return torch.autograd.grad(out.square().sum(), slopes)[0]

    assert gradient(0.0)[0] != 0
    assert_near(gradient(0.0), gradient(1e-12), scale=100)
