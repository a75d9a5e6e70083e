"""FIRE's attention, a piecewise linear term: it equals attention with the bias of the MLP, in less memory."""

import pytest
import torch

import posenc
from posenc.nn import FIRE
from processes import python
from tolerances import assert_bits, assert_near

pytestmark = pytest.mark.kernels

# More than five tiles, the last one cut.
LENGTH = 530
SEGMENTS = (torch.arange(LENGTH) // 97).expand(2, -1)
RESTARTED = torch.arange(LENGTH) % 97
MASK = torch.rand(2, LENGTH, generator=torch.Generator().manual_seed(3)) > 0.2

CALLS = {
    "plain": {},
    "causal": {"is_causal": True},
    "segments": {"segment_ids": SEGMENTS, "key_mask": MASK},
    "packed": {
        "is_causal": True,
        "segment_ids": SEGMENTS,
        "q_positions": RESTARTED[-512:],
        "k_positions": RESTARTED.expand(2, -1),
        "window": 60,
    },
}
every_call = pytest.mark.parametrize("call", CALLS)


def build(dtype=torch.float64):
    return FIRE(2, hidden_dim=8, threshold=99.5).to(dtype)


def operands(dtype=torch.float64, q_len=512, k_len=LENGTH):
    q = torch.randn(2, 2, q_len, 4, dtype=torch.float64)
    k, v = torch.randn(2, 2, 1, k_len, 4, dtype=torch.float64)
    return [x.to(dtype).requires_grad_() for x in (q, k, v)]


def whole(module, q, k, v, **call):
    """The bias by the MLP itself (arXiv 2310.04418, eq. 7 and 8), materialised, through the op that takes any."""
    q_len, k_len = q.shape[2], k.shape[2]
    i = call.get("q_positions", torch.arange(k_len - q_len, k_len)).unsqueeze(-1).to(module.c)
    j = call.get("k_positions", torch.arange(k_len)).unsqueeze(-2).to(module.c)

    def psi(x):
        return torch.log1p((module.c * x).abs())

    x = psi((i - j).abs()) / (psi(torch.maximum(module.threshold.abs(), i)) + module.eps)
    bias = module.mlp(x.unsqueeze(-1)).movedim(-1, -3)
    return posenc.ops.attention(q, k, v, bias=bias, return_lse=True, **call)


def gradients(results, inputs, grads):
    return torch.autograd.grad([y.nan_to_num(neginf=0.0) for y in results], inputs, grads)


@every_call
def test_the_term_equals_the_materialised_mlp(call):
    module, (q, k, v) = build(), operands()
    results, expected = module.attend(q, k, v, return_lse=True, **CALLS[call]), whole(module, q, k, v, **CALLS[call])
    grads = [torch.randn_like(y) for y in expected]
    wanted = [q, k, v, *module.parameters()]
    for ours, e in zip(results, expected, strict=True):
        torch.testing.assert_close(ours, e, rtol=1e-11, atol=1e-11)
    for ours, e in zip(gradients(results, wanted, grads), gradients(expected, wanted, grads), strict=True):
        torch.testing.assert_close(ours, e, rtol=1e-9, atol=1e-9)


def test_second_derivatives_equal_those_of_the_mlp():
    module, (q, k, v) = build(), operands(q_len=300)
    wanted = [q, k, *module.parameters()]
    weight = torch.randn(2, 2, 300, 4, dtype=torch.float64)

    def second(out):
        first = torch.autograd.grad((out * weight).sum(), wanted, create_graph=True)
        return torch.autograd.grad(sum(g.square().sum() for g in first), wanted)

    results = second(module.attend(q, k, v, is_causal=True))
    expected = second(whole(module, q, k, v, is_causal=True)[0])
    for ours, e in zip(results, expected, strict=True):
        torch.testing.assert_close(ours, e, rtol=1e-7, atol=1e-8)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
def test_half_width_gradients_are_rounded_once(dtype):
    """Sums over tiles are float32, however many tiles there are."""
    module, inputs = build(torch.float32), operands(dtype)
    wide = [x.detach().double().requires_grad_() for x in inputs]
    module64 = build().requires_grad_()
    module64.load_state_dict(module.state_dict())
    grad = torch.randn(2, 2, 512, 4, dtype=torch.float64).to(dtype)
    results = torch.autograd.grad(module.attend(*inputs, is_causal=True), inputs, grad)
    expected = torch.autograd.grad(module64.attend(*wide, is_causal=True), wide, grad.double())
    # Those of queries and keys also depend on the output, which is kept as rounded.
    for ours, e, atol in zip(results, expected, (1e-3, 1e-3, 2e-5), strict=True):
        assert ours.dtype == dtype
        torch.testing.assert_close(ours.double(), e, rtol=torch.finfo(dtype).eps, atol=atol)


def test_only_wanted_gradients():
    module, (q, k, v) = build(), operands()
    module.requires_grad_(False)
    module.c.requires_grad_()
    expected = torch.autograd.grad(whole(module, q, k, v)[0].sum(), [module.c, v])
    out = module.attend(q.detach(), k.detach(), v)
    for ours, e in zip(torch.autograd.grad(out.sum(), [module.c, v]), expected, strict=True):
        torch.testing.assert_close(ours, e, rtol=1e-9, atol=1e-9)
    module.requires_grad_(False)
    assert not module.attend(q.detach(), k.detach(), v.detach()).requires_grad


class TestDropout:
    P = 0.4

    def dropped_weights(self, module, q, k, seed, **call):
        """The weights after dropout, seen through values that are the unit vectors."""
        torch.manual_seed(seed)
        values = torch.eye(k.shape[2], dtype=q.dtype).expand(q.shape[0], 1, -1, -1)
        return module.attend(q, k, values, dropout_p=self.P, **call)

    def test_share_and_scale(self):
        module, (q, k, _) = build(), operands()
        dropped = self.dropped_weights(module, q, k, 5)
        weights = module.logits(q, k).softmax(-1)
        kept = dropped != 0
        assert kept.double().mean().item() == pytest.approx(1 - self.P, abs=0.01)
        torch.testing.assert_close(dropped[kept], weights[kept] / (1 - self.P), rtol=1e-9, atol=1e-12)
        assert not torch.equal(kept[:, :, :64], kept[:, :, 256:320]), "blocks draw apart"

    def test_backward_drops_the_same(self):
        module, (q, k, v) = build(), operands()
        kept = self.dropped_weights(module, q, k, 5, is_causal=True) != 0
        torch.manual_seed(5)
        out = module.attend(q, k, v, is_causal=True, dropout_p=self.P)
        weights = module.logits(q, k, is_causal=True).softmax(-1) * kept / (1 - self.P)
        expected = weights @ v.expand(-1, 2, -1, -1)
        torch.testing.assert_close(out, expected, rtol=1e-9, atol=1e-9)
        grad, wanted = torch.randn_like(out), [q, k, v, *module.parameters()]
        for ours, e in zip(
            torch.autograd.grad(out, wanted, grad), torch.autograd.grad(expected, wanted, grad), strict=True
        ):
            torch.testing.assert_close(ours, e, rtol=1e-8, atol=1e-8)

    def test_everything(self):
        module, (q, k, v) = build(), operands()
        out = module.attend(q, k, v, dropout_p=1.0)
        assert_bits(out, torch.zeros_like(q))


class TestEdges:
    @pytest.mark.parametrize(("q_len", "k_len"), [(0, 5), (0, 0), (4, 0), (5, 2), (1, 1)])
    def test_lengths(self, q_len, k_len):
        module, (q, k, v) = build(), operands(q_len=q_len, k_len=k_len)
        out, lse = module.attend(q, k, v, is_causal=True, return_lse=True)
        expected = whole(module, q, k, v, is_causal=True)
        assert_near(out, expected[0])
        torch.testing.assert_close(lse, expected[1], rtol=1e-12, atol=1e-12)
        for g in torch.autograd.grad(out.sum() + lse[lse.isfinite()].sum(), [q, k, v, *module.parameters()]):
            assert g.isfinite().all()

    def test_what_a_query_does_not_see_does_not_reach_it(self):
        module, (q, k, v) = build(), operands(q_len=LENGTH)
        expected = module.attend(q, k, v, is_causal=True, segment_ids=SEGMENTS)
        with torch.no_grad():
            for x in (k, v):
                x[:, :, 300:400] = float("nan")
        result = module.attend(q, k, v, is_causal=True, segment_ids=SEGMENTS)
        unseen = (SEGMENTS[0] < 300 // 97) | (SEGMENTS[0] > 399 // 97)
        assert_bits(result[:, :, unseen], expected[:, :, unseen])
        grads = torch.autograd.grad(result[:, :, unseen].sum(), [q, k, v])
        for g in grads:
            assert g[:, :, unseen].isfinite().all()

    def test_values_of_another_width(self):
        module, (q, k, _) = build(), operands()
        v = torch.randn(2, 1, LENGTH, 3, dtype=torch.float64, requires_grad=True)
        out = module.attend(q.transpose(1, 2).contiguous().transpose(1, 2), k, v)
        assert_near(out, whole(module, q, k, v)[0])
        assert out.stride(1) < out.stride(2), "in the order of the query's strides"
        out.sum().backward()
        assert v.grad.shape == v.shape

    def test_compiled_with_other_lengths(self, fresh_compiler):
        module = build(torch.float32)
        attend = torch.compile(lambda *x: module.attend(*x, is_causal=True), fullgraph=True, dynamic=True)
        for length in (5, 40, 300):
            inputs = operands(torch.float32, q_len=length, k_len=length)
            result, expected = attend(*inputs), module.attend(*inputs, is_causal=True)
            torch.testing.assert_close(result, expected)
            wanted = [*inputs, *module.parameters()]
            for ours, e in zip(
                torch.autograd.grad(result.sum(), wanted), torch.autograd.grad(expected.sum(), wanted), strict=True
            ):
                torch.testing.assert_close(ours, e, rtol=1e-4, atol=1e-5)


def test_memory_stays_below_one_number_for_each_pair():
    """Forward and backward in a process of its own: less than the bias alone would take, let alone what made it."""
    code = """
import resource, torch, posenc
torch.set_num_threads(1)
module = posenc.nn.FIRE(2, hidden_dim=8)
q, k, v = (torch.randn(1, 2, 4096, 8, requires_grad=True) for _ in range(3))
peak = lambda: resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
module.attend(q[:, :, :64], k[:, :, :64], v[:, :, :64], is_causal=True).sum().backward()
before = peak()
module.attend(q, k, v, is_causal=True).sum().backward()
print(peak() - before)
"""
    used = int(python(code).split()[-1])
    assert used < 2 * 4096 * 4096 * 4
